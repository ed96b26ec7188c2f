"""The door of the Fourier transform: operands of any dtype, the last axes, types by name."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import at_user_line
from xcube.primitives.convert import convert_element_type
from xcube.primitives.fft import FftType
from xcube.primitives.fft import fft as transform
from xcube.transforms.arguments import to_array


def fft(x: Any, fft_type: FftType | str, fft_lengths: Sequence[int]) -> Array:
    """The transform of the last axes, of lengths: c[*s] -> c[*s] for "FFT" and "IFFT", which is
    divided by the number of terms; f[*s, n] -> c[*s, n // 2 + 1] for "RFFT", and back for "IRFFT".
    Other numbers become float32, or complex64.

    Raises ShapeError if sizes and lengths differ, ValueError for another type or complex
    numbers where real ones are needed.

    >>> fft(np.ones((3, 8), np.float32), "RFFT", (8,)).shape
    (3, 5)
    """
    kind, given = _type_of(fft_type), to_array.convert(x)
    if kind is FftType.RFFT and dtypes.is_complex(given.dtype):
        raise ValueError(f"fft: RFFT takes real numbers; got {given.aval}.{at_user_line()}")
    is_wide = given.dtype.itemsize >= 8 and dtypes.is_float(given.dtype)
    dtype = np.dtype(np.float64 if is_wide else np.float32)
    if kind is not FftType.RFFT:
        is_complex = dtypes.is_complex(given.dtype)
        dtype = given.dtype if is_complex else dtypes.complex_of(dtype)
    lengths = tuple(map(operator.index, fft_lengths))
    if len(lengths) > given.ndim:
        raise ShapeError(
            f"fft: lengths must be of at most {given.ndim} axes of {given.aval}; got {lengths}."
            f"{at_user_line()}"
        )
    converted = convert_element_type(given, dtype)
    if not lengths:
        return converted
    axes = range(given.ndim - len(lengths), given.ndim)
    return transform(converted, kind, lengths, axes=axes)


def _type_of(given: FftType | str) -> FftType:
    if isinstance(given, FftType):
        return given
    if isinstance(given, str) and given.upper() in FftType.__members__:
        return FftType[given.upper()]
    raise ValueError(
        f"fft: the type must be one of {', '.join(FftType.__members__)}; got {given!r}."
        f"{at_user_line()}"
    )
