"""What follows from a dtype: its limits, its width, its parts, the dtype of its tangents."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from xcube import errors
from xcube.dtypes.promotion import promote_types
from xcube.dtypes.table import (
    complex64,
    float0,
    float4_e2m1fn,
    is_complex,
    is_inexact,
    is_integer,
    kind_of,
)


def finfo(dtype: Any) -> Any:
    """Limits of a floating or complex dtype: `eps`, `max`, `tiny`, `nmant`, ...

    Raises DtypeError if the dtype is not floating.

    >>> float(finfo("bfloat16").eps)
    0.0078125
    """
    requested = np.dtype(dtype)
    if not is_inexact(requested):
        raise errors.DtypeError(f"finfo: dtype must be floating or complex; got {requested}.")
    return ml_dtypes.finfo(requested)


def iinfo(dtype: Any) -> Any:
    """Limits of an integer dtype: `min`, `max`, `bits`.

    Raises DtypeError if the dtype is not an integer.

    >>> int(iinfo("int4").max)
    7
    """
    requested = np.dtype(dtype)
    if not is_integer(requested):
        raise errors.DtypeError(f"iinfo: dtype must be an integer; got {requested}.")
    return ml_dtypes.iinfo(requested)


def bits_of(dtype: np.dtype) -> int:
    """Bits that one element carries: 4 for int4, although it is stored in a byte.

    Raises DtypeError if the dtype is not one of xcube's.

    >>> bits_of(np.dtype("int4")), bits_of(np.dtype("bool")), bits_of(np.dtype("complex64"))
    (4, 8, 64)
    """
    if kind_of(dtype) in ("int", "uint"):
        return ml_dtypes.iinfo(dtype).bits
    return 4 if dtype == np.dtype(float4_e2m1fn) else dtype.itemsize * 8


def float_part(dtype: np.dtype) -> np.dtype:
    """The dtype of the real part: float32 for complex64; a dtype that is not complex is itself.

    >>> float_part(np.dtype("complex64"))
    dtype('float32')
    """
    return np.dtype(f"f{dtype.itemsize // 2}") if is_complex(dtype) else dtype


def complex_of(dtype: np.dtype) -> np.dtype:
    """The complex dtype whose parts hold a floating dtype: complex64 for float32 and narrower.

    Raises DtypeError if the dtype is neither floating nor complex.

    >>> complex_of(np.dtype("float32")), complex_of(np.dtype("bfloat16"))
    (dtype('complex64'), dtype('complex64'))
    """
    if not is_inexact(dtype):
        raise errors.DtypeError(f"complex: dtype must be floating or complex; got {dtype}.")
    return dtype if is_complex(dtype) else promote_types(dtype, np.dtype(complex64))


def tangent_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype of tangents: that of the value if it has derivatives, else float0.

    >>> tangent_dtype(np.dtype("float16")), tangent_dtype(np.dtype("int32")) == float0
    (dtype('float16'), True)
    """
    return dtype if is_inexact(dtype) else float0
