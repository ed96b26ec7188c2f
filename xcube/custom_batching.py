"""Rules for batches that users give to their functions, under JAX's names."""

from __future__ import annotations

import xcube.operators  # noqa: F401  (rules compute with the arrays that they get)
from xcube.transforms.custom.custom_vmap import custom_vmap, sequential_vmap

__all__ = ["custom_vmap", "sequential_vmap"]
