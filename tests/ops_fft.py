"""Rows of discrete Fourier transforms, as functions of real and imaginary parts."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from op_table import Row, Sample

from xcube.primitives.complex import complex as complex_of
from xcube.primitives.complex import imag, real
from xcube.primitives.fft import FftType, fft, fft_pack_p, fft_unpack_p, half_turns
from xcube.primitives.fft_steps import table
from xcube.trace import bind

Array = np.ndarray[Any, Any]


def normal(*shapes: tuple[int, ...]) -> Sample:
    return lambda rng: tuple([rng.normal(size=shape).astype(np.float32) for shape in shapes])


def _parts(x: Any, y: Any, kind: FftType, axes: tuple[int, ...]) -> Any:
    found = fft(complex_of(x, y), kind, [x.shape[axis] for axis in axes], axes=axes)
    return real(found), imag(found)


def _forward(x: Any, axes: tuple[int, ...]) -> Any:
    found = fft(x, FftType.RFFT, [x.shape[axis] for axis in axes], axes=axes)
    return real(found), imag(found)


def _backward(x: Any, y: Any, n: int, axes: tuple[int, ...]) -> Any:
    lengths = [*(x.shape[axis] for axis in axes[:-1]), n]
    return fft(complex_of(x, y), FftType.IRFFT, lengths, axes=axes)


def _apart(found: Array) -> tuple[Array, Array]:
    return found.real, found.imag


def _unpack(x: Any, y: Any) -> Any:
    n = 2 * x.shape[0]
    found = bind(
        fft_unpack_p,
        complex_of(x, y),
        table(half_turns, (n, False), (n // 2 + 1,), np.complex64),
        axis=0,
    )
    return real(found), imag(found)


def _pack(x: Any, y: Any) -> Any:
    n = 2 * (x.shape[0] - 1)
    found = bind(
        fft_pack_p,
        complex_of(x, y),
        table(half_turns, (n, True), (n // 2 + 1,), np.complex64),
        axis=0,
    )
    return real(found), imag(found)


def _unpacked(x: Array, y: Array) -> tuple[Array, Array]:
    terms = np.stack([*np.fft.ifft(x + 1j * y, axis=0)], 0)
    pairs = np.stack([terms.real, terms.imag], 1).reshape(-1, *x.shape[1:])
    return _apart(np.fft.rfft(pairs, axis=0))


def _packed(x: Array, y: Array) -> tuple[Array, Array]:
    terms = np.fft.irfft(x + 1j * y, axis=0)
    return _apart(2 * np.fft.fft(terms[::2] + 1j * terms[1::2], axis=0))


ROWS = [
    Row(
        "fft",
        functools.partial(_parts, kind=FftType.FFT, axes=(1,)),
        [normal((3, n), (3, n)) for n in (1, 6, 17, 64)],
        lambda x, y: _apart(np.fft.fft(x + 1j * y, axis=1)),
        differentiable=(0, 1),
    ),
    Row(
        "ifft",
        functools.partial(_parts, kind=FftType.IFFT, axes=(2, 0)),
        [normal((5, 2, 4), (5, 2, 4))],
        lambda x, y: _apart(np.fft.ifftn(x + 1j * y, axes=(2, 0))),
        differentiable=(0, 1),
    ),
    Row(
        "rfft",
        functools.partial(_forward, axes=(0, 1)),
        [normal((3, 6)), normal((4, 5)), normal((2, 1))],
        lambda x: _apart(np.fft.rfftn(x, axes=(0, 1))),
        differentiable=(0,),
    ),
    *(
        Row(
            f"irfft_{n}",
            functools.partial(_backward, n=n, axes=(1, 0)),
            [normal((4, 3), (4, 3))],
            functools.partial(lambda x, y, n: np.fft.irfftn(x + 1j * y, (3, n), axes=(1, 0)), n=n),
            differentiable=(0, 1),
        )
        for n in (6, 7)
    ),
    Row("fft_unpack", _unpack, [normal((8, 2), (8, 2))], _unpacked, batchable=False),
    Row("fft_pack", _pack, [normal((9, 2), (9, 2))], _packed, batchable=False),
]
