"""Rules for derivatives that users give to their functions, under JAX's names."""

from __future__ import annotations

import xcube.operators  # noqa: F401  (rules compute with the arrays that they get)
from xcube.transforms.custom.closures import closure_convert
from xcube.transforms.custom.custom_gradient import custom_gradient
from xcube.transforms.custom.custom_jvp import custom_jvp, custom_jvp_call_p
from xcube.transforms.custom.custom_vjp import custom_vjp, custom_vjp_call_p
from xcube.transforms.custom.linear_call import linear_call
from xcube.transforms.custom.pullback import CustomVJPPrimal, custom_vjp_primal_tree_values
from xcube.transforms.custom.zeros import SymbolicZero, zero_from_primal

__all__ = [
    "CustomVJPPrimal",
    "SymbolicZero",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_jvp_call_p",
    "custom_vjp",
    "custom_vjp_call_p",
    "custom_vjp_primal_tree_values",
    "linear_call",
    "zero_from_primal",
]
