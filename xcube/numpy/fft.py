"""Discrete Fourier transforms, as `jax.numpy.fft` names them: along one axis, two or several; of
complex numbers, of real ones, of Hermitian ones. `n` or `s` are lengths: what is longer is cut,
what is shorter is filled with zeros. `norm` says which direction is divided by the number of terms:
"backward" (the inverse, the default), "forward", or "ortho", which divides both by its root."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import at_user_line
from xcube.numpy.elementwise import conj
from xcube.numpy.frequencies import fftfreq, fftshift, ifftshift, rfftfreq
from xcube.numpy.fused import fused
from xcube.numpy.operands import (
    array_operand,
    as_array,
    canonical_axis,
    cast,
    inexact_of,
)
from xcube.primitives.elementwise import mul
from xcube.primitives.fft import FftType
from xcube.primitives.fft import fft as transform
from xcube.primitives.view import pad, scalar_like, slice_in_dim

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

NORMS = {"backward": 0.0, "ortho": 0.5, "forward": 1.0}

# the one way ----------------------------------------------------------------------------------


@fused()
def _transformed(x: Any, *, kind: FftType, lengths: Any, axes: Any, norm: Any, name: str) -> Array:
    given = _operand(name, x, kind)
    places, sizes = _places(name, given, lengths, axes, kind)
    if norm is not None and norm not in NORMS:
        raise ValueError(
            f'{name}: norm must be "backward", "ortho" or "forward"; got {norm!r}.{at_user_line()}'
        )
    if not places:
        return given
    for axis, size in zip(places, _given(sizes, kind), strict=True):
        given = _fitted(given, axis, size)
    found = transform(given, kind, sizes, axes=places)
    inverse = kind in (FftType.IFFT, FftType.IRFFT)
    power = NORMS[norm or "backward"]
    if power == 0.0:
        return found
    scale = float(math.prod(sizes)) ** (power if inverse else -power)
    return mul(found, scalar_like(scale, found.dtype))


def _operand(name: str, x: Any, kind: FftType) -> Array:
    """x in the dtype that a transform takes: floats narrower than float32 become float32."""
    given = array_operand(name, x)
    if kind is FftType.RFFT and dtypes.is_complex(given.dtype):
        raise ValueError(
            f"{name}: takes real numbers; got {given.aval}.{at_user_line()} "
            "Use the complex transform, or take the real part."
        )
    dtype = inexact_of(given.dtype)
    if dtypes.is_float(dtype) and dtype.itemsize < 4:
        dtype = np.dtype(np.float32)
    if kind is not FftType.RFFT:
        dtype = dtype if dtypes.is_complex(dtype) else dtypes.complex_of(dtype)
    return as_array(cast(given, dtype))


def _places(
    name: str, x: Array, lengths: Any, axes: Any, kind: FftType
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes, all from 0 on, and the length of the transform along each."""
    sizes = None if lengths is None else tuple(map(operator.index, lengths))
    if axes is None:
        count = x.ndim if sizes is None else len(sizes)
        axes = range(x.ndim - count, x.ndim)
        if count > x.ndim:
            raise ShapeError(f"{name}: got {count} lengths {sizes} for {x.aval}.{at_user_line()}")
    places = tuple([canonical_axis(name, axis, x.ndim, x.aval) for axis in axes])
    if len(set(places)) != len(places):
        raise ValueError(f"{name}: axes must differ; got {tuple(axes)}.{at_user_line()}")
    if sizes is None:
        sizes = tuple([x.shape[axis] for axis in places])
        if kind is FftType.IRFFT and sizes:
            sizes = (*sizes[:-1], 2 * (sizes[-1] - 1))
    if len(sizes) != len(places):
        raise ValueError(
            f"{name}: needs a length for each axis; got lengths {sizes}, axes {places}."
            f"{at_user_line()}"
        )
    if min(sizes, default=1) < 1:
        raise ValueError(f"{name}: lengths must be >= 1; got {sizes} for {x.aval}.{at_user_line()}")
    return places, sizes


def _given(sizes: tuple[int, ...], kind: FftType) -> tuple[int, ...]:
    """How many elements of each axis a transform of these lengths takes."""
    return (*sizes[:-1], sizes[-1] // 2 + 1) if kind is FftType.IRFFT else sizes


def _fitted(x: Array, axis: int, size: int) -> Array:
    """x cut or filled with zeros at the end of an axis."""
    missing = size - x.shape[axis]
    if missing < 0:
        return slice_in_dim(x, 0, size, axis=axis)
    if missing == 0:
        return x
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (0, missing, 0)
    return pad(x, scalar_like(0, x.dtype), config)


def _one(name: str, kind: FftType, a: Any, n: Any, axis: Any, norm: Any) -> Array:
    if isinstance(axis, list | tuple):
        raise ValueError(
            f"{name}: takes one axis; got {axis}.{at_user_line()} Use {name}n for several."
        )
    axes = None if axis is None else (axis,)
    lengths = None if n is None else (n,)
    return _several(name, kind, a, lengths, axes, norm)


def _two(name: str, kind: FftType, a: Any, s: Any, axes: Any, norm: Any) -> Array:
    if len(axes) != 2:
        raise ValueError(f"{name}: takes 2 axes; got {tuple(axes)}.{at_user_line()}")
    return _several(name, kind, a, s, axes, norm)


def _several(name: str, kind: FftType, a: Any, s: Any, axes: Any, norm: Any) -> Array:
    lengths = None if s is None else tuple(s)
    places = None if axes is None else tuple(axes)
    return _transformed(a, kind=kind, lengths=lengths, axes=places, norm=norm, name=name)


# along one axis -------------------------------------------------------------------------------


def fft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """Sums of a[j] exp(-2 pi i j k / n) along an axis: c[.., m] -> c[.., n].

    Raises ValueError for a length below 1.

    >>> import xcube.numpy as jnp
    >>> jnp.fft.fft(jnp.ones(4))
    Array([4.+0.j, 0.+0.j, 0.+0.j, 0.+0.j], dtype=complex64)
    """
    return _one("fft", FftType.FFT, a, n, axis, norm)


def ifft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The inverse of `fft`: c[.., m] -> c[.., n].

    Raises ValueError for a length below 1.

    >>> import xcube.numpy as jnp
    >>> jnp.fft.ifft(jnp.array([4.0, 0, 0, 0]))
    Array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    return _one("ifft", FftType.IFFT, a, n, axis, norm)


def rfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """`fft` of real numbers, as far as frequencies differ: f[.., m] -> c[.., n // 2 + 1].

    Raises ValueError for a length below 1, or complex numbers.

    >>> import xcube.numpy as jnp
    >>> jnp.fft.rfft(jnp.ones(4))
    Array([4.+0.j, 0.+0.j, 0.+0.j], dtype=complex64)
    """
    return _one("rfft", FftType.RFFT, a, n, axis, norm)


def irfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The inverse of `rfft`: c[.., m] -> f[.., n]; n is 2 (m - 1) where it is not given.

    Raises ValueError for a length below 1.

    >>> import xcube.numpy as jnp
    >>> jnp.fft.irfft(jnp.array([4.0, 0, 0]))
    Array([1., 1., 1., 1.], dtype=float32)
    """
    return _one("irfft", FftType.IRFFT, a, n, axis, norm)


def hfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """`fft` of a Hermitian sequence, of which a is the first half: c[.., m] -> f[.., n]; n is
    2 (m - 1) where it is not given.

    Raises ValueError for a length below 1.

    >>> import xcube.numpy as jnp
    >>> jnp.fft.hfft(jnp.ones(3))
    Array([4., 0., 0., 0.], dtype=float32)
    """
    return _one("hfft", FftType.IRFFT, conj(a), n, axis, _opposite(norm))


def ihfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Array:
    """The inverse of `hfft`: f[.., m] -> c[.., n // 2 + 1].

    Raises ValueError for a length below 1, or complex numbers.

    >>> import xcube.numpy as jnp
    >>> jnp.fft.ihfft(jnp.array([4.0, 0, 0, 0])).real
    Array([1., 1., 1.], dtype=float32)
    """
    return conj(_one("ihfft", FftType.RFFT, a, n, axis, _opposite(norm)))


def _opposite(norm: str | None) -> str | None:
    """The norm by which the other direction is divided alike."""
    return {None: "forward", "backward": "forward", "forward": "backward"}.get(norm, norm)


# along several --------------------------------------------------------------------------------


def fft2(
    a: Any, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Array:
    """`fft` along two axes: c[*d] -> c[*d].

    Raises ValueError unless there are two axes with lengths >= 1.

    >>> import xcube.numpy as jnp
    >>> jnp.fft.fft2(jnp.ones((4, 4))).shape
    (4, 4)
    """
    return _two("fft2", FftType.FFT, a, s, axes, norm)


def ifft2(
    a: Any, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Array:
    """`ifft` along two axes: c[*d] -> c[*d].

    Raises ValueError unless there are two axes with lengths >= 1.

    >>> import xcube.numpy as jnp
    >>> jnp.fft.ifft2(jnp.ones((4, 4))).shape
    (4, 4)
    """
    return _two("ifft2", FftType.IFFT, a, s, axes, norm)


def rfft2(
    a: Any, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Array:
    """`rfft` along the last of two axes, and
    `fft` along the others: f[.., n] -> c[.., n // 2 + 1].

    Raises ValueError unless there are two axes with lengths >= 1, or for complex numbers.

    >>> import xcube.numpy as jnp
    >>> jnp.fft.rfft2(jnp.ones((4, 4))).shape
    (4, 3)
    """
    return _two("rfft2", FftType.RFFT, a, s, axes, norm)


def irfft2(
    a: Any, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Array:
    """`irfft` along the last of two axes, and
    `ifft` along the others: c[.., m] -> f[.., 2 (m - 1)].

    Raises ValueError unless there are two axes with lengths >= 1.

    >>> import xcube.numpy as jnp
    >>> jnp.fft.irfft2(jnp.ones((4, 4))).shape
    (4, 6)
    """
    return _two("irfft2", FftType.IRFFT, a, s, axes, norm)


def fftn(
    a: Any,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """`fft` along several axes, all where none are given: c[*d] -> c[*d].

    Raises ValueError if axes repeat, or lengths are not as many or below 1.

    >>> import xcube.numpy as jnp
    >>> jnp.fft.fftn(jnp.ones((2, 4, 4))).shape
    (2, 4, 4)
    """
    return _several("fftn", FftType.FFT, a, s, axes, norm)


def ifftn(
    a: Any,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """`ifft` along several axes, all where none are given: c[*d] -> c[*d].

    Raises ValueError if axes repeat, or lengths are not as many or below 1.

    >>> import xcube.numpy as jnp
    >>> jnp.fft.ifftn(jnp.ones((2, 4, 4))).shape
    (2, 4, 4)
    """
    return _several("ifftn", FftType.IFFT, a, s, axes, norm)


def rfftn(
    a: Any,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """`rfft` along the last of several axes, all where none are given, and
    `fft` along the others: f[.., n] -> c[.., n // 2 + 1].

    Raises ValueError if axes repeat, or lengths are not as many or below 1, or for complex numbers.

    >>> import xcube.numpy as jnp
    >>> jnp.fft.rfftn(jnp.ones((2, 4, 4))).shape
    (2, 4, 3)
    """
    return _several("rfftn", FftType.RFFT, a, s, axes, norm)


def irfftn(
    a: Any,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Array:
    """`irfft` along the last of several axes, all where none are given, and
    `ifft` along the others: c[.., m] -> f[.., 2 (m - 1)].

    Raises ValueError if axes repeat, or lengths are not as many or below 1.

    >>> import xcube.numpy as jnp
    >>> jnp.fft.irfftn(jnp.ones((2, 4, 4))).shape
    (2, 4, 6)
    """
    return _several("irfftn", FftType.IRFFT, a, s, axes, norm)
