"""Pytrees of arrays as one vector, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import xcube.numpy as jnp
from xcube import dtypes, lax, tree
from xcube.errors import DtypeError, ShapeError
from xcube.ir import at_user_line
from xcube.trace import aval_of
from xcube.transforms.arguments import flatten_call, leaf_arrays


@dataclass(frozen=True)
class _Unravel:
    """From a vector like the one that was made to a tree of the original structure."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    kinds: tuple[Any, ...]
    dtype: Any  # of the vector, if the leaves' dtypes differ; else the leaves take the vector's

    def __call__(self, flat: Any) -> Any:
        flat = jnp.asarray(flat)
        sizes = [math.prod(shape) for shape in self.shapes]
        if flat.shape != (sum(sizes),):
            raise ShapeError(
                f"unravel: the vector must have shape ({sum(sizes)},); got {aval_of(flat)}."
                f"{at_user_line()}"
            )
        if self.dtype is not None and flat.dtype != self.dtype:
            raise DtypeError(
                f"unravel: the vector must have dtype {self.dtype}, to which the leaves were "
                f"promoted; got {aval_of(flat)}.{at_user_line()}"
            )
        parts = lax.split(flat, sizes) if sizes else []
        rows = zip(parts, self.shapes, self.kinds, strict=True)
        return tree.unflatten(self.structure, [self._leaf(*row) for row in rows])

    def _leaf(self, part: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        leaf = part.reshape(shape)
        if self.dtype is None:
            return leaf
        real = dtypes.is_complex(leaf.dtype) and not dtypes.is_complex(dtype)
        return lax.convert_element_type(leaf.real if real else leaf, dtype)


def ravel_pytree(pytree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """(vector, unravel): all elements of a pytree's leaves, in the order of `tree.leaves`, as one
    vector of their promoted dtype; and the function that makes such trees of such vectors.

    Leaves of one dtype take that of the vector that is unraveled, others get their own back.
    Raises TypeError for a leaf that is no array; `unravel` raises ShapeError or DtypeError for a
    vector of another length or, if the leaves' dtypes differ, of another dtype.

    >>> vector, unravel = ravel_pytree({"a": jnp.ones(2), "b": 3.0})
    >>> vector
    Array([1., 1., 3.], dtype=float32)
    >>> unravel(2 * vector)
    {'a': Array([2., 2.], dtype=float32), 'b': Array(6., dtype=float32)}
    """
    call = flatten_call(ravel_pytree, (pytree,), {})
    leaves = leaf_arrays("ravel_pytree", "ravel_pytree", call)
    structure = tree.structure(pytree)
    if not leaves:
        return jnp.zeros(0), _Unravel(structure, (), (), None)
    kinds = tuple([x.dtype for x in leaves])
    mixed = jnp.result_type(*leaves) if len(set(kinds)) > 1 else None
    flat = [
        x.ravel() if mixed is None else lax.convert_element_type(x, mixed).ravel() for x in leaves
    ]
    unravel = _Unravel(structure, tuple([x.shape for x in leaves]), kinds, mixed)
    return jnp.concatenate(flat), unravel
