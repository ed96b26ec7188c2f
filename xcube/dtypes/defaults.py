"""Which dtype is meant where none is named, and what stands in for 64 bits: the defaults of the
kinds, of inputs and of Python scalars, all ruled by `enable_x64`."""

from __future__ import annotations

from typing import Any

import numpy as np

from xcube import config, errors
from xcube.dtypes.table import (
    BOOL,
    SHORT,
    complex64,
    complex128,
    float32,
    float64,
    int32,
    int64,
    uint32,
    uint64,
    unknown_dtype,
)

NARROWED: dict[np.dtype, np.dtype] = {
    np.dtype(wide): np.dtype(narrow)
    for wide, narrow in (
        (int64, int32),
        (uint64, uint32),
        (float64, float32),
        (complex128, complex64),
    )
}
WIDE_DEFAULT: dict[Any, np.dtype] = {
    "bool": BOOL,
    "int": np.dtype(int64),
    "uint": np.dtype(uint64),
    "float": np.dtype(float64),
    "complex": np.dtype(complex128),
}
PYTHON_KIND: dict[Any, str] = {bool: "bool", int: "int", float: "float", complex: "complex"}


def default_dtype(kind: Any) -> np.dtype:
    """The default dtype of a kind: "bool", "int", "uint", "float", "complex" or the Python type.
    32 bits wide, 64 under `enable_x64`.

    Raises DtypeError if there is no such kind.

    >>> default_dtype("float"), default_dtype(int)
    (dtype('float32'), dtype('int32'))
    """
    wide = WIDE_DEFAULT.get(PYTHON_KIND.get(kind, kind))
    if wide is None:
        known = ", ".join(WIDE_DEFAULT)
        raise errors.DtypeError(f"default_dtype: kind must be one of {known}; got {kind!r}.")
    return canonicalize_dtype(wide)


def canonicalize_dtype(dtype: Any) -> np.dtype:
    """The dtype that an input of this dtype has inside xcube: NumPy's 64 bits become 32, unless
    `enable_x64` is on.

    Raises DtypeError if xcube has no such dtype.

    >>> canonicalize_dtype(np.dtype("float64")), canonicalize_dtype("int16")
    (dtype('float32'), dtype('int16'))
    """
    known = _known(dtype, "input")
    return known if config.current.enable_x64 else NARROWED.get(known, known)


def requested_dtype(dtype: Any, operation: str = "dtype") -> np.dtype:
    """The dtype that a `dtype=` argument asks for: the Python types mean the default width, a
    named 64-bit dtype is kept.

    Raises DtypeError if xcube has no such dtype.

    >>> requested_dtype(float), requested_dtype("float64")
    (dtype('float32'), dtype('float64'))
    """
    if isinstance(dtype, type) and dtype in PYTHON_KIND:
        return default_dtype(dtype)
    return _known(dtype, operation)


def _known(dtype: Any, operation: str) -> np.dtype:
    if isinstance(dtype, np.dtype) and dtype in SHORT:
        return dtype
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise unknown_dtype(dtype, operation) from error
    native = found.newbyteorder("=")
    if dtype is None or native not in SHORT:
        raise unknown_dtype(dtype, operation)
    return native


def scalar_dtype(value: Any) -> np.dtype:
    """The weak dtype of a Python scalar: bool, int32, float32 or complex64; 64 bits wide under
    `enable_x64`.

    Raises OverflowError if an integer does not fit, DtypeError if the value is no Python scalar.

    >>> scalar_dtype(1), scalar_dtype(1.5)
    (dtype('int32'), dtype('float32'))
    """
    python_type = type(value) if type(value) in PYTHON_KIND else python_type_of(value)
    dtype = _SCALAR_DTYPES[python_type, config.current.enable_x64]
    if python_type is int and not -_INT_LIMITS[dtype] <= value < _INT_LIMITS[dtype]:
        raise OverflowError(
            f"Python int {value} too large to convert to {dtype}; give it a wider dtype by name, "
            "as in numpy.int64(value)."
        )
    return dtype


_SCALAR_DTYPES: dict[tuple[Any, bool], np.dtype] = {
    (python_type, x64): dtype if x64 else NARROWED.get(dtype, dtype)
    for python_type, kind in PYTHON_KIND.items()
    for dtype in (WIDE_DEFAULT[kind],)
    for x64 in (False, True)
}
_INT_LIMITS = {np.dtype(int32): 1 << 31, np.dtype(int64): 1 << 63}


def python_type_of(value: Any) -> type:
    """The Python scalar type of a value: bool, int, float or complex, subclasses included.

    Raises DtypeError if the value is no Python scalar.

    >>> python_type_of(True)
    <class 'bool'>
    """
    if not isinstance(value, np.generic):
        for python_type in PYTHON_KIND:
            if isinstance(value, python_type):
                return python_type
    raise errors.DtypeError(
        f"scalar: must be a Python bool, int, float or complex; got {type(value).__name__}."
    )
