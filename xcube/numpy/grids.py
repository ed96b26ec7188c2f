"""Grids written as slices: mgrid, ogrid, r_, c_."""

from __future__ import annotations

from typing import Any

from xcube.array import Array
from xcube.ir import at_user_line
from xcube.numpy import shaping
from xcube.numpy.creation import arange, linspace, meshgrid
from xcube.numpy.operands import array_operand


def _points(item: slice) -> Array:
    """The numbers of a slice: an imaginary step is their count, the stop included."""
    start = 0 if item.start is None else item.start
    if isinstance(item.step, complex):
        return linspace(start, item.stop, int(abs(item.step)))
    return arange(start, item.stop, 1 if item.step is None else item.step)


class _Grid:
    """`mgrid[a:b, c:d]`: coordinates of a grid, stacked (mgrid) or open (ogrid)."""

    def __init__(self, is_open: bool) -> None:
        self._open = is_open

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _points(index)
        axes = [_points(item) for item in index]
        grids = meshgrid(*axes, sparse=self._open, indexing="ij")
        return grids if self._open else shaping.stack(grids, 0)


class _Joined:
    """`r_[a, b:c]`: numbers, slices and arrays joined along an axis."""

    def __init__(self, axis: int, columns: bool) -> None:
        self._axis, self._columns = axis, columns

    def __getitem__(self, index: Any) -> Array:
        items = list(index) if isinstance(index, tuple) else [index]
        if any(isinstance(item, str) for item in items):
            raise NotImplementedError(
                f"r_: directives in a text are not supported; got {index!r}.{at_user_line()}"
            )
        parts = [_points(k) if isinstance(k, slice) else array_operand("r_", k) for k in items]
        parts = [shaping.atleast_1d(x) for x in parts]
        if self._columns:
            parts = [shaping.reshape(x, (-1, 1)) if x.ndim == 1 else x for x in parts]
        return shaping.concatenate(parts, self._axis)


mgrid = _Grid(False)
ogrid = _Grid(True)
r_ = _Joined(0, False)
c_ = _Joined(-1, True)
