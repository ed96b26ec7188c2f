"""Composable transforms of Python functions on arrays: `grad`, `vmap`, `jit`, compiled through one
kernel language. This file is the list of public names; each is loaded when it is first used, so
that `import xcube` costs little more than importing NumPy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xcube import ad_checkpoint as ad_checkpoint
    from xcube import config as config
    from xcube import cube as cube
    from xcube import custom_batching as custom_batching
    from xcube import custom_derivatives as custom_derivatives
    from xcube import debug as debug
    from xcube import errors as errors
    from xcube import experimental as experimental
    from xcube import export as export
    from xcube import flatten_util as flatten_util
    from xcube import lax as lax
    from xcube import nn as nn
    from xcube import numpy as numpy
    from xcube import optim as optim
    from xcube import random as random
    from xcube import stages as stages
    from xcube import tree as tree
    from xcube import tree_util as tree_util
    from xcube.array import Array as Array
    from xcube.callbacks import effects_barrier as effects_barrier
    from xcube.callbacks import pure_callback as pure_callback
    from xcube.inspection import inspect as inspect
    from xcube.runtime import block_until_ready as block_until_ready
    from xcube.runtime import clear_caches as clear_caches
    from xcube.runtime import default_backend as default_backend
    from xcube.runtime import device_get as device_get
    from xcube.runtime import device_put as device_put
    from xcube.runtime import devices as devices
    from xcube.scopes import named_call as named_call
    from xcube.scopes import named_scope as named_scope
    from xcube.settings import check_tracer_leaks as check_tracer_leaks
    from xcube.settings import checking_leaks as checking_leaks
    from xcube.settings import debug_infs as debug_infs
    from xcube.settings import debug_nans as debug_nans
    from xcube.settings import default_matmul_precision as default_matmul_precision
    from xcube.settings import disable_jit as disable_jit
    from xcube.settings import enable_x64 as enable_x64
    from xcube.settings import ensure_compile_time_eval as ensure_compile_time_eval
    from xcube.settings import log_compiles as log_compiles
    from xcube.settings import numpy_dtype_promotion as numpy_dtype_promotion
    from xcube.stages import ShapeDtypeStruct as ShapeDtypeStruct
    from xcube.transforms.checkpoint import checkpoint as checkpoint
    from xcube.transforms.checkpoint import checkpoint_policies as checkpoint_policies
    from xcube.transforms.checkpoint import remat as remat
    from xcube.transforms.custom.closures import closure_convert as closure_convert
    from xcube.transforms.custom.custom_gradient import custom_gradient as custom_gradient
    from xcube.transforms.custom.custom_jvp import custom_jvp as custom_jvp
    from xcube.transforms.custom.custom_vjp import custom_vjp as custom_vjp
    from xcube.transforms.fwd_and_bwd import fwd_and_bwd as fwd_and_bwd
    from xcube.transforms.grad import grad as grad
    from xcube.transforms.grad import jvp as jvp
    from xcube.transforms.grad import linearize as linearize
    from xcube.transforms.grad import value_and_grad as value_and_grad
    from xcube.transforms.grad import vjp as vjp
    from xcube.transforms.jacobian import hessian as hessian
    from xcube.transforms.jacobian import jacfwd as jacfwd
    from xcube.transforms.jacobian import jacobian as jacobian
    from xcube.transforms.jacobian import jacrev as jacrev
    from xcube.transforms.jit import eval_shape as eval_shape
    from xcube.transforms.jit import jit as jit
    from xcube.transforms.jit import make_jaxpr as make_jaxpr
    from xcube.transforms.jit import typeof as typeof
    from xcube.transforms.linear_transpose import linear_transpose as linear_transpose
    from xcube.transforms.vmap import vmap as vmap

__version__ = "0.1.0"

_MODULES = (
    "ad_checkpoint",
    "config",
    "cube",
    "custom_batching",
    "custom_derivatives",
    "debug",
    "errors",
    "experimental",
    "export",
    "flatten_util",
    "lax",
    "nn",
    "numpy",
    "optim",
    "random",
    "stages",
    "tree",
    "tree_util",
)
_NAMES = {
    "Array": "array",
    "ShapeDtypeStruct": "stages",
    "block_until_ready": "runtime",
    "check_tracer_leaks": "settings",
    "checking_leaks": "settings",
    "checkpoint": "transforms.checkpoint",
    "checkpoint_policies": "transforms.checkpoint",
    "clear_caches": "runtime",
    "closure_convert": "transforms.custom.closures",
    "custom_gradient": "transforms.custom.custom_gradient",
    "custom_jvp": "transforms.custom.custom_jvp",
    "custom_vjp": "transforms.custom.custom_vjp",
    "debug_infs": "settings",
    "debug_nans": "settings",
    "default_backend": "runtime",
    "default_matmul_precision": "settings",
    "device_get": "runtime",
    "device_put": "runtime",
    "devices": "runtime",
    "disable_jit": "settings",
    "effects_barrier": "callbacks",
    "enable_x64": "settings",
    "ensure_compile_time_eval": "settings",
    "eval_shape": "transforms.jit",
    "fwd_and_bwd": "transforms.fwd_and_bwd",
    "grad": "transforms.grad",
    "hessian": "transforms.jacobian",
    "inspect": "inspection",
    "jacfwd": "transforms.jacobian",
    "jacobian": "transforms.jacobian",
    "jacrev": "transforms.jacobian",
    "jit": "transforms.jit",
    "jvp": "transforms.grad",
    "linear_transpose": "transforms.linear_transpose",
    "linearize": "transforms.grad",
    "log_compiles": "settings",
    "make_jaxpr": "transforms.jit",
    "named_call": "scopes",
    "named_scope": "scopes",
    "numpy_dtype_promotion": "settings",
    "pure_callback": "callbacks",
    "remat": "transforms.checkpoint",
    "typeof": "transforms.jit",
    "value_and_grad": "transforms.grad",
    "vjp": "transforms.grad",
    "vmap": "transforms.vmap",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"xcube.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module 'xcube' has no attribute {name!r}")
    importlib.import_module("xcube.operators")  # arrays compute, whichever name came first
    value = getattr(importlib.import_module(f"xcube.{_NAMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(["__version__", *_MODULES, *_NAMES])
