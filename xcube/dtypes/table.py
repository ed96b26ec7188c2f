"""The table of dtypes: which exist, how they are spelled, of which kind each is. The narrow ones
come from `ml_dtypes`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from xcube import errors

bool_ = np.bool_
int2, int4 = ml_dtypes.int2, ml_dtypes.int4
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint2, uint4 = ml_dtypes.uint2, ml_dtypes.uint4
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float4_e2m1fn = ml_dtypes.float4_e2m1fn
float8_e3m4, float8_e4m3 = ml_dtypes.float8_e3m4, ml_dtypes.float8_e4m3
float8_e4m3b11fnuz = ml_dtypes.float8_e4m3b11fnuz
float8_e4m3fn, float8_e4m3fnuz = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz
float8_e5m2, float8_e5m2fnuz = ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz
float8_e8m0fnu = ml_dtypes.float8_e8m0fnu
bfloat16 = ml_dtypes.bfloat16
float16, float32, float64 = np.float16, np.float32, np.float64
complex64, complex128 = np.complex64, np.complex128

float0 = np.dtype([("float0", np.void, 0)])


def dtypes_of(*scalar_types: Any) -> tuple[np.dtype, ...]:
    """The dtype of each scalar type."""
    return tuple(np.dtype(scalar_type) for scalar_type in scalar_types)


BOOL = np.dtype(bool_)
NARROW_INTEGERS = dtypes_of(int2, int4, uint2, uint4)
SIGNED = dtypes_of(int2, int4, int8, int16, int32, int64)
UNSIGNED = dtypes_of(uint2, uint4, uint8, uint16, uint32, uint64)
INTEGERS = SIGNED + UNSIGNED
NARROW_FLOATS = dtypes_of(
    float4_e2m1fn,
    float8_e3m4,
    float8_e4m3,
    float8_e4m3b11fnuz,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
)
FLOATS = NARROW_FLOATS + dtypes_of(bfloat16, float16, float32, float64)
COMPLEXES = dtypes_of(complex64, complex128)
ALL = (BOOL, *INTEGERS, *FLOATS, *COMPLEXES)

KIND = {
    BOOL: "bool",
    **dict.fromkeys(SIGNED, "int"),
    **dict.fromkeys(UNSIGNED, "uint"),
    **dict.fromkeys(FLOATS, "float"),
    **dict.fromkeys(COMPLEXES, "complex"),
}
_ABSTRACT = {
    "bool": np.bool_,
    "int": np.signedinteger,
    "uint": np.unsignedinteger,
    "float": np.floating,
    "complex": np.complexfloating,
}
_GROUPS = {
    "bool": (BOOL,),
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": INTEGERS,
    "real floating": FLOATS,
    "complex floating": COMPLEXES,
    "numeric": INTEGERS + FLOATS + COMPLEXES,
}


# --- Names ---------------------------------------------------------------------------------------


def _abbreviated(name: str) -> str:
    for word, letter in (("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        name = name.replace(word, letter)
    return name


SHORT: dict[np.dtype, str] = {dtype: _abbreviated(dtype.name) for dtype in ALL} | {float0: "float0"}
BY_SHORT: dict[str, np.dtype] = {short: dtype for dtype, short in SHORT.items()}


def short_name(dtype: np.dtype) -> str:
    """The name of a dtype in printed programs and in the kernel language.

    Raises DtypeError if the dtype is not one of xcube's.

    >>> short_name(np.dtype("float32")), short_name(np.dtype(bfloat16))
    ('f32', 'bf16')
    """
    name = SHORT.get(dtype)
    if name is None:
        raise unknown_dtype(dtype)
    return name


def unknown_dtype(dtype: object, operation: str = "dtype") -> errors.DtypeError:
    """The error for a dtype that the table does not hold."""
    known = ", ".join(entry.name for entry in ALL)
    return errors.DtypeError(f"{operation}: {dtype!r} is not a dtype of xcube; those are {known}.")


# --- Kinds ---------------------------------------------------------------------------------------


def kind_of(dtype: np.dtype) -> str:
    """The kind of a dtype: "bool", "int", "uint", "float" or "complex".

    Raises DtypeError if the dtype is not one of xcube's.

    >>> kind_of(np.dtype(bfloat16)), kind_of(np.dtype("uint8"))
    ('float', 'uint')
    """
    kind = KIND.get(dtype)
    if kind is None:
        raise unknown_dtype(dtype)
    return kind


def is_bool(dtype: np.dtype) -> bool:
    """Whether a dtype is boolean.

    >>> is_bool(np.dtype("bool"))
    True
    """
    return KIND.get(dtype) == "bool"


def is_integer(dtype: np.dtype) -> bool:
    """Whether a dtype is a signed or unsigned integer, the narrow ones included.

    >>> is_integer(np.dtype(int4)), is_integer(np.dtype("bool"))
    (True, False)
    """
    return KIND.get(dtype) in ("int", "uint")


def is_signed(dtype: np.dtype) -> bool:
    """Whether a dtype holds negative numbers.

    >>> is_signed(np.dtype("int8")), is_signed(np.dtype("uint8")), is_signed(np.dtype("float32"))
    (True, False, True)
    """
    return KIND.get(dtype) in ("int", "float", "complex")


def is_float(dtype: np.dtype) -> bool:
    """Whether a dtype is a real floating point type, the narrow ones included.

    >>> is_float(np.dtype(bfloat16)), is_float(np.dtype("complex64"))
    (True, False)
    """
    return KIND.get(dtype) == "float"


def is_complex(dtype: np.dtype) -> bool:
    """Whether a dtype is complex.

    >>> is_complex(np.dtype("complex64"))
    True
    """
    return KIND.get(dtype) == "complex"


def is_inexact(dtype: np.dtype) -> bool:
    """Whether a dtype is floating or complex, so that it has derivatives.

    >>> is_inexact(np.dtype(bfloat16)), is_inexact(np.dtype("int32"))
    (True, False)
    """
    return KIND.get(dtype) in ("float", "complex")


def issubdtype(dtype: Any, parent: Any) -> bool:
    """Whether `dtype` lies below `parent` in NumPy's hierarchy, in which the narrow types have
    their place: bfloat16 is a `numpy.floating`, int4 a `numpy.signedinteger`.

    Raises TypeError if an argument is no dtype.

    >>> issubdtype(bfloat16, np.floating), issubdtype(int4, np.signedinteger)
    (True, True)
    """
    lower, upper = _scalar_type(dtype), _scalar_type(parent)
    kind = KIND.get(np.dtype(lower)) if _is_concrete(lower) else None
    if lower is upper or kind is None:
        return issubclass(lower, upper)
    return not _is_concrete(upper) and issubclass(_ABSTRACT[kind], upper)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind: a dtype, a name of the array API standard ("bool",
    "signed integer", "unsigned integer", "integral", "real floating", "complex floating",
    "numeric"), or a tuple of these, of which one has to fit.

    Raises ValueError if the kind is an unknown name, TypeError if it is no dtype at all.

    >>> isdtype(np.dtype(bfloat16), ("bool", "real floating"))
    True
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return any(np.dtype(dtype) in _group(entry) for entry in kinds)


def _group(kind: Any) -> tuple[np.dtype, ...]:
    if isinstance(kind, str) and kind in _GROUPS:
        return _GROUPS[kind]
    try:
        return (np.dtype(kind),)
    except TypeError as error:
        known = ", ".join(repr(name) for name in _GROUPS)
        message = f"isdtype: kind must be a dtype or one of {known}; got {kind!r}."
        raise (ValueError if isinstance(kind, str) else TypeError)(message) from error


def _scalar_type(dtype: Any) -> type:
    if isinstance(dtype, type) and issubclass(dtype, np.generic):
        return dtype
    return np.dtype(dtype).type


def _is_concrete(scalar_type: type) -> bool:
    return not (
        scalar_type in (np.generic, np.flexible, np.character)
        or scalar_type in (np.number, np.integer, np.inexact)
        or scalar_type in (np.signedinteger, np.unsignedinteger, np.floating, np.complexfloating)
    )
