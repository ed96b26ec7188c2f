"""Zeros that are known to be zero: what rules that ask for `symbolic_zeros` are given."""

from __future__ import annotations

from typing import Any

import numpy as np

from xcube import dtypes, tree
from xcube.ir import Aval
from xcube.primitives.shape import zeros_of
from xcube.transforms.arguments import abstract
from xcube.transforms.linearize import tangent_aval


class SymbolicZero:
    """A tangent or cotangent that is zero, of a shape and dtype, without elements.

    >>> SymbolicZero(Aval((3,), "float32")).shape
    (3,)
    """

    __slots__ = ("aval",)

    def __init__(self, aval: Aval) -> None:
        self.aval = aval

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> np.dtype:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return self.aval.ndim

    @property
    def size(self) -> int:
        return self.aval.size

    @property
    def weak_type(self) -> bool:
        return self.aval.weak_type

    def __repr__(self) -> str:
        return "SymbolicZero"

    @staticmethod
    def from_primal_value(value: Any) -> SymbolicZero:
        """The zero tangent of a primal."""
        return SymbolicZero(tangent_aval(abstract(value)))


def zero_of(primal: Aval, symbolic: bool = False) -> Any:
    """The zero tangent of what has an aval; of integers and bools a NumPy array of float0."""
    aval = tangent_aval(primal)
    if symbolic:
        return SymbolicZero(aval)
    return np.zeros(aval.shape, dtypes.float0) if aval.dtype == dtypes.float0 else zeros_of(aval)


def zero_from_primal(val: Any, symbolic_zeros: bool = False) -> Any:
    """The zero tangents of a tree of primals, as arrays or, on demand, as `SymbolicZero`.

    >>> zero_from_primal({"a": 1.0}, symbolic_zeros=True)
    {'a': SymbolicZero}
    """
    return tree.map(lambda x: zero_of(abstract(x), symbolic_zeros), val)
