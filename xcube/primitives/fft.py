"""The discrete Fourier transform along axes: of complex numbers, its inverse, and both for real
ones, of which the half of the frequencies says all. A transform along several axes is one along
each, and one of an even number of real terms is a complex one of half as many."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Axis, Linear, Primitive, Shape, at_user_line
from xcube.primitives.complex import complex as complex_of
from xcube.primitives.complex import conj, imag, real
from xcube.primitives.fft_steps import Core, along, roots, table, transformed, turned
from xcube.primitives.lowered import Element, Expand
from xcube.primitives.shape import broadcast_in_dim, reshape, zeros_of
from xcube.primitives.view import concatenate, expand_dims, rev, scalar_like, slice_in_dim
from xcube.trace import bind


class FftType(enum.IntEnum):
    """Which transform: of complex numbers, its inverse, of real numbers, its inverse."""

    FFT = 0
    IFFT = 1
    RFFT = 2
    IRFFT = 3


# rules ----------------------------------------------------------------------------------------


def _fft_abstract(x: Aval, *, fft_type: FftType, fft_lengths: Shape, axes: Shape) -> Aval:
    is_real = fft_type is FftType.RFFT
    if dtypes.is_complex(x.dtype) == is_real or not (is_real or dtypes.is_complex(x.dtype)):
        what = "float32 or float64" if is_real else "complex64 or complex128"
        raise DtypeError(f"fft: {fft_type.name} takes {what}; got {x}.{at_user_line()}")
    expected = list(fft_lengths)
    if fft_type is FftType.IRFFT:
        expected[-1] = fft_lengths[-1] // 2 + 1
    shape = list(x.shape)
    if [shape[axis] for axis in axes] != expected or min(fft_lengths) < 1:
        raise ShapeError(
            f"fft: {fft_type.name} of lengths {fft_lengths}, all >= 1, needs sizes "
            f"{tuple(expected)} along the axes {axes}; got {x}.{at_user_line()} Pad or cut it."
        )
    for axis, n in zip(axes, fft_lengths, strict=True):
        shape[axis] = n
    if is_real:
        shape[axes[-1]] = fft_lengths[-1] // 2 + 1
        return Aval(tuple(shape), dtypes.complex_of(x.dtype))
    dtype = dtypes.float_part(x.dtype) if fft_type is FftType.IRFFT else x.dtype
    return Aval(tuple(shape), dtype)


def _fft_transpose(
    ct: Any, x: Linear, *, fft_type: FftType, fft_lengths: Shape, axes: Shape
) -> list[Any]:
    """A matrix of roots of unity is symmetric. Of real transforms, frequencies that stand for two
    count twice."""
    n, size = fft_lengths[-1], math.prod(fft_lengths)
    if fft_type is FftType.RFFT:
        weighted = along(conj(ct), _weights(n, True, float(size), ct.dtype), axes[-1])
        return [fft(weighted, FftType.IRFFT, fft_lengths, axes=axes)]
    if fft_type is FftType.IRFFT:
        found = conj(fft(ct, FftType.RFFT, fft_lengths, axes=axes))
        return [along(found, _weights(n, False, 1 / size, found.dtype), axes[-1])]
    return [fft(ct, fft_type, fft_lengths, axes=axes)]


def _weights(n: int, halves: bool, scale: float, dtype: np.dtype) -> Any:
    """`scale` for frequencies that stand alone, twice or half of it for those that are two."""
    alone = scalar_like(scale, dtype)
    pair = scalar_like(scale * (0.5 if halves else 2.0), dtype)
    single = [broadcast_in_dim(alone, (1,), ())]
    pairs = broadcast_in_dim(pair, ((n - 1) // 2,), ())
    return concatenate([*single, pairs, *(single if n % 2 == 0 else [])], 0)


def _fft_batch(
    mapped: Axis,
    args: Sequence[Any],
    batched: Sequence[bool],
    *,
    fft_type: FftType,
    fft_lengths: Shape,
    axes: Shape,
) -> tuple[Any, bool]:
    moved = tuple([axis + 1 for axis in axes])
    return fft(args[0], fft_type, fft_lengths, axes=moved), True


# composition ----------------------------------------------------------------------------------


def composed(
    x: Any,
    *,
    fft_type: FftType,
    fft_lengths: Shape,
    axes: Shape,
    core: Core = transformed,
    real_core: Core | None = None,
) -> Any:
    """A transform as transforms of complex numbers along one axis, which `core` makes; `real_core`
    makes those of an even number of real terms, or None."""
    last, n = axes[-1], fft_lengths[-1]
    if 0 in x.shape:
        return x if fft_type <= FftType.IFFT else _nothing(x, fft_type, fft_lengths, axes)
    if fft_type is FftType.RFFT:
        x, axes = _real_forward(x, last, n, core, real_core), axes[:-1]
    inverse = fft_type in (FftType.IFFT, FftType.IRFFT)
    single = axes[:-1] if fft_type is FftType.IRFFT else axes
    for axis in reversed(single):
        x = core(x, axis, inverse, 1 / x.shape[axis] if inverse else 1.0)
    is_back = fft_type is FftType.IRFFT
    return _real_backward(x, last, n, core, real_core) if is_back else x


def _nothing(x: Any, fft_type: FftType, fft_lengths: Shape, axes: Shape) -> Any:
    out = _fft_abstract(x.aval, fft_type=fft_type, fft_lengths=fft_lengths, axes=axes)
    return broadcast_in_dim(scalar_like(0, out.dtype), out.shape, ())


def _real_forward(x: Any, axis: int, n: int, core: Core, real_core: Core | None) -> Any:
    if n % 2:
        wide = as_complex(x)
        return slice_in_dim(core(wide, axis, False), 0, n // 2 + 1, axis=axis)
    if real_core and (found := real_core(x, axis, n // 2, False, 1.0)) is not None:
        return found
    half = core(pairs(x, axis), axis, False)
    turns = table(half_turns, (n, False), (n // 2 + 1,), half.dtype)
    return bind(fft_unpack_p, half, turns, axis=axis)


def _real_backward(x: Any, axis: int, n: int, core: Core, real_core: Core | None) -> Any:
    if n % 2:
        return real(core(_mirrored(x, axis), axis, True, 1 / n))
    if real_core and (found := real_core(x, axis, n // 2, True, 1 / n)) is not None:
        return found
    turns = table(half_turns, (n, True), (n // 2 + 1,), x.dtype)
    return interleaved(core(bind(fft_pack_p, x, turns, axis=axis), axis, True, 1 / n), axis)


def as_complex(x: Any) -> Any:
    """Real numbers with imaginary parts of 0: f[*d] -> c[*d]."""
    return complex_of(x, zeros_of(x.aval))


def pairs(x: Any, axis: int) -> Any:
    """Neighbours along an axis as one complex number: f[.., 2n, ..] -> c[.., n, ..]."""
    shape = (*x.shape[:axis], x.shape[axis] // 2, 2, *x.shape[axis + 1 :])
    split = reshape(x, shape)
    parts = [slice_in_dim(split, k, k + 1, axis=axis + 1) for k in (0, 1)]
    flat = [reshape(part, (*shape[: axis + 1], *shape[axis + 2 :])) for part in parts]
    return complex_of(*flat)


def interleaved(x: Any, axis: int) -> Any:
    """The parts of complex numbers as neighbours along an axis: c[.., n, ..] -> f[.., 2n, ..]."""
    shape = (*x.shape[:axis], 2 * x.shape[axis], *x.shape[axis + 1 :])
    parts = [expand_dims(part, (axis + 1,)) for part in (real(x), imag(x))]
    return reshape(concatenate(parts, axis + 1), shape)


def _mirrored(x: Any, axis: int) -> Any:
    """All frequencies of an odd number of real terms; the first one is real."""
    first = as_complex(real(slice_in_dim(x, 0, 1, axis=axis)))
    rest = slice_in_dim(x, 1, x.shape[axis], axis=axis)
    return concatenate([first, rest, conj(rev(rest, (axis,)))], axis)


def half_turns(n: int, inverse: bool) -> np.ndarray:
    """exp(-2 pi i k / n) times -i (times i in the inverse), up to half a turn."""
    return turned(-1j * roots(np.arange(n // 2 + 1), n), inverse)


def _unpack_abstract(z: Aval, turns: Aval, *, axis: int) -> Aval:
    return Aval((*z.shape[:axis], z.shape[axis] + 1, *z.shape[axis + 1 :]), z.dtype)


def _unpack_element(e: Any, index: Any, *, axis: int) -> Any:
    """Frequency k of 2n real terms, of those of n pairs: half of the sum of Z[k] and conj(Z[n - k])
    and of their difference, turned."""
    n, k = e.inputs[0].shape[axis], index[axis]

    def at(place: Any) -> Any:
        return e.read(0, [*index[:axis], place, *index[axis + 1 :]])

    z, mirror = at(k % n), e.apply("conj", at((k * -1 + n) % n))
    turn = e.apply("mul", e.read(1, [k]), e.apply("sub", z, mirror))
    half = e.constant(0.5, e.inputs[0].dtype)
    return e.apply("mul", e.apply("add", e.apply("add", z, mirror), turn), half)


def _pack_abstract(x: Aval, turns: Aval, *, axis: int) -> Aval:
    return Aval((*x.shape[:axis], x.shape[axis] - 1, *x.shape[axis + 1 :]), x.dtype)


def _pack_element(e: Any, index: Any, *, axis: int) -> Any:
    """What `_unpack_element` undoes, twice; the first and the last frequency count as real."""
    n, k = e.outputs[0].shape[axis], index[axis]

    def at(place: Any) -> Any:
        return e.read(0, [*index[:axis], place, *index[axis + 1 :]])

    def real_part(z: Any) -> Any:
        return e.apply("complex", e.apply("real", z), nothing)

    first, nothing = e.inside(k, 0, 1), e.constant(0, dtypes.float_part(e.inputs[0].dtype))
    z, mirror = at(k), at(k * -1 + n)
    z = e.apply("select", first, real_part(z), z)
    mirror = e.apply("conj", e.apply("select", first, real_part(mirror), mirror))
    turn = e.apply("mul", e.read(1, [k]), e.apply("sub", z, mirror))
    return e.apply("add", e.apply("add", z, mirror), turn)


fft_unpack_p = Primitive("fft_unpack", _unpack_abstract, lower=Element(_unpack_element))
fft_pack_p = Primitive("fft_pack", _pack_abstract, lower=Element(_pack_element))


fft_p = Primitive(
    "fft",
    abstract=_fft_abstract,
    jvp="linear",
    transpose=_fft_transpose,
    batch=_fft_batch,
    lower=Expand(composed, "fft"),
)


def fft(x: Any, fft_type: FftType, fft_lengths: Sequence[int], *, axes: Sequence[int]) -> Any:
    """The transform of x along axes, of lengths: c[*s] -> c[*s] for FFT and IFFT, which is divided
    by the number of terms; f[.., n] -> c[.., n // 2 + 1] along the last of the axes for RFFT, and
    back for IRFFT.

    Raises DtypeError for another kind of number, ShapeError if sizes and lengths differ.

    >>> from xcube.primitives.shape import full
    >>> fft(full((3, 8), 1.0), FftType.RFFT, (8,), axes=(1,)).shape
    (3, 5)
    """
    lengths, places = tuple(fft_lengths), tuple(axes)
    return bind(fft_p, x, fft_type=fft_type, fft_lengths=lengths, axes=places)
