"""Composable transforms of Python functions on arrays: `grad`, `vmap`, `jit`, compiled through one
kernel language. This file is the list of public names; each is loaded when it is first used, so
that `import xcube` costs little more than importing NumPy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xcube import config as config
    from xcube import errors as errors
    from xcube import lax as lax
    from xcube import nn as nn
    from xcube import numpy as numpy
    from xcube import optim as optim
    from xcube import random as random
    from xcube import tree as tree
    from xcube import tree_util as tree_util
    from xcube.array import Array as Array
    from xcube.inspection import inspect as inspect
    from xcube.runtime import block_until_ready as block_until_ready
    from xcube.runtime import clear_caches as clear_caches
    from xcube.runtime import default_backend as default_backend
    from xcube.runtime import device_get as device_get
    from xcube.runtime import device_put as device_put
    from xcube.runtime import devices as devices
    from xcube.runtime import disable_jit as disable_jit
    from xcube.runtime import enable_x64 as enable_x64
    from xcube.transforms.grad import grad as grad
    from xcube.transforms.grad import jvp as jvp
    from xcube.transforms.grad import linearize as linearize
    from xcube.transforms.grad import value_and_grad as value_and_grad
    from xcube.transforms.grad import vjp as vjp
    from xcube.transforms.jit import ShapeDtypeStruct as ShapeDtypeStruct
    from xcube.transforms.jit import eval_shape as eval_shape
    from xcube.transforms.jit import jit as jit
    from xcube.transforms.jit import make_jaxpr as make_jaxpr
    from xcube.transforms.vmap import vmap as vmap

__version__ = "0.1.0"

_MODULES = ("config", "errors", "lax", "nn", "numpy", "optim", "random", "tree", "tree_util")
_NAMES = {
    "Array": "array",
    "ShapeDtypeStruct": "transforms.jit",
    "block_until_ready": "runtime",
    "clear_caches": "runtime",
    "default_backend": "runtime",
    "device_get": "runtime",
    "device_put": "runtime",
    "devices": "runtime",
    "disable_jit": "runtime",
    "enable_x64": "runtime",
    "eval_shape": "transforms.jit",
    "grad": "transforms.grad",
    "inspect": "inspection",
    "jit": "transforms.jit",
    "jvp": "transforms.grad",
    "linearize": "transforms.grad",
    "make_jaxpr": "transforms.jit",
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
