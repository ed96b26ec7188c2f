"""Kernels of one's own with many units, beside the same functions of arrays: what a cube of threads
costs on a processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from kernels import Case

import xcube
from xcube import cube

UNITS, TILE = 256, 16


@cube.kernel(checked=False)
def axpy(x: cube.Array, y: cube.Array, out: cube.Array) -> None:
    """2 x + y."""
    at = cube.ABSOLUTE_POS
    if at < out.length:
        out[at] = 2.0 * x[at] + y[at]


@cube.kernel(checked=False)
def row_sums(x: cube.Tensor, out: cube.Array) -> None:
    """The sums of rows, each by a cube: a tree in shared memory."""
    part, unit, row = cube.SharedMemory(cube.f32, UNITS), cube.UNIT_POS, cube.CUBE_POS
    total = cube.f32(0.0)
    for column in range(unit, x.shape[1], UNITS):
        total += x[row, column]
    part[unit] = total
    cube.sync_cube()
    half = UNITS // 2
    while half > 0:
        if unit < half:
            part[unit] += part[unit + half]
        cube.sync_cube()
        half = half // 2
    if unit == 0:
        out[row] = part[0]


@cube.kernel(checked=False)
def product(left: cube.Tensor, right: cube.Tensor, out: cube.Tensor) -> None:
    """left @ right, a tile by each cube; sizes are multiples of a tile."""
    a = cube.SharedMemory(cube.f32, (TILE, TILE))
    b = cube.SharedMemory(cube.f32, (TILE, TILE))
    x, y = cube.UNIT_POS.x, cube.UNIT_POS.y
    row, column = cube.CUBE_POS.y * TILE + y, cube.CUBE_POS.x * TILE + x
    total = cube.f32(0.0)
    for start in range(0, left.shape[1], TILE):
        a[y, x] = left[row, start + x]
        b[y, x] = right[start + y, column]
        cube.sync_cube()
        for k in range(TILE):
            total += a[y, k] * b[k, x]
        cube.sync_cube()
    out[row, column] = total


def own(launched: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a library: the kernel where kernels are, the plain one elsewhere."""

    def function(lib: Any, *args: Any) -> Any:
        return launched(*args) if lib.top is xcube else plain(lib, *args)

    return function


def _axpy(x: Any, y: Any) -> Any:
    return axpy[-(-x.size // UNITS), UNITS](x, y, xcube.ShapeDtypeStruct(x.shape, x.dtype))


def _row_sums(x: Any) -> Any:
    return row_sums[x.shape[0], UNITS](x, xcube.ShapeDtypeStruct(x.shape[:1], x.dtype))


def _product(left: Any, right: Any) -> Any:
    shape = left.shape[0], right.shape[1]
    grid = shape[1] // TILE, shape[0] // TILE
    return product[grid, (TILE, TILE)](left, right, xcube.ShapeDtypeStruct(shape, left.dtype))


def cases() -> list[Case]:
    """The cases of kernels with many units."""
    found = []
    for size in (1 << 16, 1 << 20, 1 << 24):
        plain = own(_axpy, lambda lib, x, y: 2.0 * x + y)
        found.append(
            Case(f"kernel axpy {size}", ((size,), (size,)), plain,
                 lambda x, y: 2.0 * x + y, bound="copy", work=12.0 * size)
        )  # fmt: skip
    sums = own(_row_sums, lambda lib, x: lib.jnp.sum(x, axis=1))
    found.append(
        Case("kernel row sums 1024x4096", ((1024, 4096),), sums, lambda x: np.sum(x, axis=1),
             bound="read", work=4.0 * (1 << 22))
    )  # fmt: skip
    tiles = own(_product, lambda lib, x, y: x @ y)
    found.append(
        Case("kernel product 512", ((512, 512), (512, 512)), tiles, np.matmul,
             bound="flops", work=2.0 * 512**3)
    )  # fmt: skip
    return found
