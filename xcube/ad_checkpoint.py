"""The names of `jax.ad_checkpoint`: what a function may save for its derivative, and a look at what
it saves."""

from __future__ import annotations

from xcube.transforms.checkpoint import checkpoint as checkpoint
from xcube.transforms.checkpoint import checkpoint_policies as checkpoint_policies
from xcube.transforms.checkpoint import remat as remat
from xcube.transforms.remat.budget import budget as budget
from xcube.transforms.remat.policies import Offloadable as Offloadable
from xcube.transforms.remat.policies import Recompute as Recompute
from xcube.transforms.remat.policies import Saveable as Saveable
from xcube.transforms.remat.policies import checkpoint_name as checkpoint_name
from xcube.transforms.remat.residuals import print_saved_residuals as print_saved_residuals
from xcube.transforms.remat.residuals import saved_residuals as saved_residuals
