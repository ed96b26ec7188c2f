"""Frequencies of discrete Fourier transforms, and their order."""

from __future__ import annotations

from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.ir import at_user_line
from xcube.numpy.creation import array, asarray
from xcube.numpy.elementwise import multiply, true_divide
from xcube.numpy.operands import array_operand, canonical_axis, inexact_of, requested
from xcube.numpy.shaping import roll


def fftfreq(n: int, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """The frequencies of `fft` for places d apart, in cycles: -> f[n].

    Raises ValueError if n or d are sequences.

    >>> fftfreq(4)
    Array([ 0.  ,  0.25, -0.5 , -0.25], dtype=float32)
    """
    _check_numbers("fftfreq", n, d)
    found = _float("fftfreq", dtype)
    places = (np.arange(n) + n // 2) % max(n, 1) - n // 2
    return _divided(array(places, dtype=found, device=device), d, n)


def rfftfreq(n: int, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
    """The frequencies of `rfft` for places d apart, in cycles: -> f[n // 2 + 1].

    Raises ValueError if n or d are sequences.

    >>> rfftfreq(4)
    Array([0.  , 0.25, 0.5 ], dtype=float32)
    """
    _check_numbers("rfftfreq", n, d)
    found = _float("rfftfreq", dtype)
    return _divided(array(np.arange(n // 2 + 1), dtype=found, device=device), d, n)


def _check_numbers(name: str, n: Any, d: Any) -> None:
    if isinstance(n, list | tuple) or isinstance(d, list | tuple):
        raise ValueError(f"{name}: n and d must be numbers; got n={n}, d={d}.{at_user_line()}")


def _float(name: str, dtype: Any) -> np.dtype:
    found = dtypes.default_dtype(float) if dtype is None else requested(name, dtype)
    return inexact_of(found)


def _divided(places: Array, d: Any, n: int) -> Array:
    return true_divide(places, multiply(asarray(d, dtype=places.dtype), n))


def fftshift(x: Any, axes: Any = None) -> Array:
    """The frequency 0 in the middle of axes, all where none are given: d[*s] -> d[*s].

    >>> import xcube.numpy as jnp
    >>> fftshift(jnp.arange(5))
    Array([3, 4, 0, 1, 2], dtype=int32)
    """
    given = array_operand("fftshift", x)
    places = _axes("fftshift", given, axes)
    return roll(given, [given.shape[axis] // 2 for axis in places], places)


def ifftshift(x: Any, axes: Any = None) -> Array:
    """The inverse of `fftshift`: d[*s] -> d[*s].

    >>> import xcube.numpy as jnp
    >>> ifftshift(jnp.array([3, 4, 0, 1, 2]))
    Array([0, 1, 2, 3, 4], dtype=int32)
    """
    given = array_operand("ifftshift", x)
    places = _axes("ifftshift", given, axes)
    return roll(given, [-(given.shape[axis] // 2) for axis in places], places)


def _axes(name: str, x: Array, axes: Any) -> tuple[int, ...]:
    given = range(x.ndim) if axes is None else axes if isinstance(axes, list | tuple) else (axes,)
    return tuple([canonical_axis(name, axis, x.ndim, x.aval) for axis in given])
