"""Runs a formula of the kernel language over whole arrays: compiled for the host, line by line."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube.lowering.cube import ir
from xcube.lowering.cube import math as kernel_math
from xcube.lowering.cube.arithmetic import NUMPY
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.check import check
from xcube.lowering.device.cpu import device
from xcube.lowering.emit.llvm import emit

Array = np.ndarray[Any, Any]
Formula = Callable[..., Value]
LANES = 16


@functools.cache
def built(formula: Formula, dtypes: tuple[str, ...], result: str, lanes: int) -> ir.Kernel:
    build = Builder("formula")
    inputs = [build.buffer(dtype) for dtype in dtypes]
    output, count = build.buffer(result, "out"), build.scalar()
    for i in build.range(0, count, lanes):
        values = [build.load(buffer, i, lanes) for buffer in inputs]
        build.store(output, i, formula(build, *values))
    return build.finish()


@functools.cache
def _compiled(formula: Formula, dtypes: tuple[str, ...], result: str, lanes: int) -> Any:
    kernel = built(formula, dtypes, result, lanes)
    check(kernel)
    (address,) = device().compile([("formula", emit(kernel, name="formula"))])
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    return ctypes.CFUNCTYPE(None, pointer, pointer, number, number)(address)


def run(formula: Formula, args: Sequence[Array], result: str, lanes: int = LANES) -> Array:
    """A formula of lines, applied to whole arrays by a compiled loop."""
    args = [np.asarray(arg) for arg in args]
    function = _compiled(formula, tuple(short(arg) for arg in args), result, lanes)
    size = len(args[0])
    padded = -(-size // lanes) * lanes
    buffers = [np.concatenate([arg, np.ones(padded - size, arg.dtype)]) for arg in args]
    output = np.zeros(padded, NUMPY[result])
    pointers = (ctypes.c_void_p * (len(buffers) + 1))(*[b.ctypes.data for b in (*buffers, output)])
    cells = (ctypes.c_int64 * 2)(padded, 1)
    function(ctypes.addressof(pointers), ctypes.addressof(cells), 0, 1)
    return output[:size]


def short(array: Array) -> str:
    return next(name for name, dtype in NUMPY.items() if dtype == array.dtype and name != "index")


@functools.cache
def named(name: str, *comptime: int) -> Formula:
    """The formula `apply(build, name, ...)`."""
    return lambda build, *args: kernel_math.apply(build, name, *args, *comptime)


def call(name: str, *args: Array, result: str = "", lanes: int = LANES) -> Array:
    return run(named(name), args, result or short(np.asarray(args[-1])), lanes)
