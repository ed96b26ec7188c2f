"""The dtype table: which dtypes exist, how they are spelled, which of them is the default, and how
they promote. Dtypes are plain `numpy.dtype` objects; the narrow ones come from `ml_dtypes`. A value
is typed by a pair (dtype, weak): weak means that the value came from a Python scalar, whose width
gives way to the width of what it meets."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from xcube import config, errors

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


def _dtypes(*scalar_types: Any) -> tuple[np.dtype, ...]:
    return tuple(np.dtype(scalar_type) for scalar_type in scalar_types)


BOOL = np.dtype(bool_)
NARROW_INTEGERS = _dtypes(int2, int4, uint2, uint4)
SIGNED = _dtypes(int2, int4, int8, int16, int32, int64)
UNSIGNED = _dtypes(uint2, uint4, uint8, uint16, uint32, uint64)
INTEGERS = SIGNED + UNSIGNED
NARROW_FLOATS = _dtypes(
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
FLOATS = NARROW_FLOATS + _dtypes(bfloat16, float16, float32, float64)
COMPLEXES = _dtypes(complex64, complex128)
ALL = (BOOL, *INTEGERS, *FLOATS, *COMPLEXES)

_KIND = {
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
_NARROWED: dict[np.dtype, np.dtype] = {
    np.dtype(wide): np.dtype(narrow)
    for wide, narrow in (
        (int64, int32),
        (uint64, uint32),
        (float64, float32),
        (complex128, complex64),
    )
}
_WIDE_DEFAULT: dict[Any, np.dtype] = {
    "bool": BOOL,
    "int": np.dtype(int64),
    "uint": np.dtype(uint64),
    "float": np.dtype(float64),
    "complex": np.dtype(complex128),
}
_PYTHON_KIND: dict[Any, str] = {bool: "bool", int: "int", float: "float", complex: "complex"}


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
        raise _unknown(dtype)
    return name


def _unknown(dtype: object, operation: str = "dtype") -> errors.DtypeError:
    known = ", ".join(entry.name for entry in ALL)
    return errors.DtypeError(f"{operation}: must be one of {known}; got {dtype!r}.")


# --- Predicates ----------------------------------------------------------------------------------


def kind_of(dtype: np.dtype) -> str:
    """The kind of a dtype: "bool", "int", "uint", "float" or "complex".

    Raises DtypeError if the dtype is not one of xcube's.

    >>> kind_of(np.dtype(bfloat16)), kind_of(np.dtype("uint8"))
    ('float', 'uint')
    """
    kind = _KIND.get(dtype)
    if kind is None:
        raise _unknown(dtype)
    return kind


def is_bool(dtype: np.dtype) -> bool:
    """Whether a dtype is boolean.

    >>> is_bool(np.dtype("bool"))
    True
    """
    return _KIND.get(dtype) == "bool"


def is_integer(dtype: np.dtype) -> bool:
    """Whether a dtype is a signed or unsigned integer, the narrow ones included.

    >>> is_integer(np.dtype(int4)), is_integer(np.dtype("bool"))
    (True, False)
    """
    return _KIND.get(dtype) in ("int", "uint")


def is_signed(dtype: np.dtype) -> bool:
    """Whether a dtype holds negative numbers.

    >>> is_signed(np.dtype("int8")), is_signed(np.dtype("uint8")), is_signed(np.dtype("float32"))
    (True, False, True)
    """
    return _KIND.get(dtype) in ("int", "float", "complex")


def is_float(dtype: np.dtype) -> bool:
    """Whether a dtype is a real floating point type, the narrow ones included.

    >>> is_float(np.dtype(bfloat16)), is_float(np.dtype("complex64"))
    (True, False)
    """
    return _KIND.get(dtype) == "float"


def is_complex(dtype: np.dtype) -> bool:
    """Whether a dtype is complex.

    >>> is_complex(np.dtype("complex64"))
    True
    """
    return _KIND.get(dtype) == "complex"


def is_inexact(dtype: np.dtype) -> bool:
    """Whether a dtype is floating or complex, so that it has derivatives.

    >>> is_inexact(np.dtype(bfloat16)), is_inexact(np.dtype("int32"))
    (True, False)
    """
    return _KIND.get(dtype) in ("float", "complex")


def issubdtype(dtype: Any, parent: Any) -> bool:
    """Whether `dtype` lies below `parent` in NumPy's hierarchy, in which the narrow types have
    their place: bfloat16 is a `numpy.floating`, int4 a `numpy.signedinteger`.

    Raises TypeError if an argument is no dtype.

    >>> issubdtype(bfloat16, np.floating), issubdtype(int4, np.signedinteger)
    (True, True)
    """
    lower, upper = _scalar_type(dtype), _scalar_type(parent)
    kind = _KIND.get(np.dtype(lower)) if _is_concrete(lower) else None
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


# --- Properties ----------------------------------------------------------------------------------


def finfo(dtype: Any) -> Any:
    """Limits of a floating or complex dtype: `eps`, `max`, `tiny`, `nmant`, ...

    Raises DtypeError if the dtype is not floating.

    >>> float(finfo(bfloat16).eps)
    0.0078125
    """
    requested = np.dtype(dtype)
    if not is_inexact(requested):
        raise errors.DtypeError(f"finfo: dtype must be floating or complex; got {requested}.")
    return ml_dtypes.finfo(requested)


def iinfo(dtype: Any) -> Any:
    """Limits of an integer dtype: `min`, `max`, `bits`.

    Raises DtypeError if the dtype is not an integer.

    >>> int(iinfo(int4).max)
    7
    """
    requested = np.dtype(dtype)
    if not is_integer(requested):
        raise errors.DtypeError(f"iinfo: dtype must be an integer; got {requested}.")
    return ml_dtypes.iinfo(requested)


def bits_of(dtype: np.dtype) -> int:
    """Bits that one element carries: 4 for int4, although it is stored in a byte.

    Raises DtypeError if the dtype is not one of xcube's.

    >>> bits_of(np.dtype(int4)), bits_of(np.dtype("bool")), bits_of(np.dtype("complex64"))
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

    >>> complex_of(np.dtype("float32")), complex_of(np.dtype(bfloat16))
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


# --- Defaults ------------------------------------------------------------------------------------


def default_dtype(kind: Any) -> np.dtype:
    """The default dtype of a kind: "bool", "int", "uint", "float", "complex" or the Python type.
    32 bits wide, 64 under `enable_x64`.

    Raises DtypeError if there is no such kind.

    >>> default_dtype("float"), default_dtype(int)
    (dtype('float32'), dtype('int32'))
    """
    wide = _WIDE_DEFAULT.get(_PYTHON_KIND.get(kind, kind))
    if wide is None:
        known = ", ".join(_WIDE_DEFAULT)
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
    return known if config.current.enable_x64 else _NARROWED.get(known, known)


def requested_dtype(dtype: Any, operation: str = "dtype") -> np.dtype:
    """The dtype that a `dtype=` argument asks for: the Python types mean the default width, a
    named 64-bit dtype is kept.

    Raises DtypeError if xcube has no such dtype.

    >>> requested_dtype(float), requested_dtype("float64")
    (dtype('float32'), dtype('float64'))
    """
    if isinstance(dtype, type) and dtype in _PYTHON_KIND:
        return default_dtype(dtype)
    return _known(dtype, operation)


def _known(dtype: Any, operation: str) -> np.dtype:
    if isinstance(dtype, np.dtype) and dtype in SHORT:
        return dtype
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise _unknown(dtype, operation) from error
    native = found.newbyteorder("=")
    if dtype is None or native not in SHORT:
        raise _unknown(dtype, operation)
    return native


def scalar_dtype(value: Any) -> np.dtype:
    """The weak dtype of a Python scalar: bool, int32, float32 or complex64; 64 bits wide under
    `enable_x64`.

    Raises OverflowError if an integer does not fit, DtypeError if the value is no Python scalar.

    >>> scalar_dtype(1), scalar_dtype(1.5)
    (dtype('int32'), dtype('float32'))
    """
    python_type = type(value) if type(value) in _PYTHON_KIND else python_type_of(value)
    dtype = _SCALAR_DTYPES[python_type, config.current.enable_x64]
    if python_type is int and not -_INT_LIMITS[dtype] <= value < _INT_LIMITS[dtype]:
        raise OverflowError(
            f"Python int {value} too large to convert to {dtype}; give it a wider dtype by name, "
            "as in numpy.int64(value)."
        )
    return dtype


_SCALAR_DTYPES: dict[tuple[Any, bool], np.dtype] = {
    (python_type, x64): dtype if x64 else _NARROWED.get(dtype, dtype)
    for python_type, kind in _PYTHON_KIND.items()
    for dtype in (_WIDE_DEFAULT[kind],)
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
        for python_type in _PYTHON_KIND:
            if isinstance(value, python_type):
                return python_type
    raise errors.DtypeError(
        f"scalar: must be a Python bool, int, float or complex; got {type(value).__name__}."
    )


# --- Promotion -----------------------------------------------------------------------------------

# A point of the lattice is a strong dtype, or int, float, complex for the weak scalars. Each point
# lists its immediate upper neighbours; the result of promotion is the least upper bound. Source:
# "Type promotion semantics" in JAX's documentation.
_STANDARD: dict[Any, tuple[Any, ...]] = {
    BOOL: (int,),
    int: (*NARROW_INTEGERS, *_dtypes(uint8, int8)),
    np.dtype(uint8): _dtypes(int16, uint16),
    np.dtype(uint16): _dtypes(int32, uint32),
    np.dtype(uint32): _dtypes(int64, uint64),
    np.dtype(uint64): (float,),
    np.dtype(int8): _dtypes(int16),
    np.dtype(int16): _dtypes(int32),
    np.dtype(int32): _dtypes(int64),
    np.dtype(int64): (float,),
    float: (*NARROW_FLOATS, *_dtypes(bfloat16, float16), complex),
    np.dtype(bfloat16): _dtypes(float32),
    np.dtype(float16): _dtypes(float32),
    np.dtype(float32): _dtypes(float64, complex64),
    np.dtype(float64): _dtypes(complex128),
    complex: _dtypes(complex64),
    np.dtype(complex64): _dtypes(complex128),
}
# With 32-bit defaults, uint32 and a narrower signed integer meet in int32: no operand had 64 bits.
_STANDARD_32 = _STANDARD | {np.dtype(uint32): _dtypes(int32, uint64)}
_STRICT: dict[Any, tuple[Any, ...]] = {
    int: (float, *INTEGERS),
    float: (complex, *FLOATS),
    complex: COMPLEXES,
}


def _upper_bounds(edges: dict[Any, tuple[Any, ...]]) -> dict[Any, frozenset[Any]]:
    def above(point: Any) -> frozenset[Any]:
        return frozenset({point}).union(*(above(upper) for upper in edges.get(point, ())))

    return {point: above(point) for point in (*ALL, int, float, complex)}


_BOUNDS = {
    (True, True): _upper_bounds(_STRICT),
    (True, False): _upper_bounds(_STRICT),
    (False, True): _upper_bounds(_STANDARD),
    (False, False): _upper_bounds(_STANDARD_32),
}


def lattice_result_type(*pairs: tuple[np.dtype, bool]) -> tuple[np.dtype, bool]:
    """The dtype and weakness of the result of an operation on values typed (dtype, weak).

    Raises TypePromotionError if the dtypes have no common type in the promotion in force.

    >>> lattice_result_type((np.dtype("float32"), True), (np.dtype("bfloat16"), False))
    (dtype(bfloat16), False)
    """
    settings = config.current
    return _result_type(pairs, settings.numpy_dtype_promotion, settings.enable_x64)


def promote_types(a: Any, b: Any) -> np.dtype:
    """The dtype to which a binary operation casts both of its operands; `int`, `float` and
    `complex` stand for Python scalars, whose width gives way.

    Raises TypePromotionError if the two have no common type.

    >>> promote_types("int32", "float16"), promote_types("uint8", int)
    (dtype('float16'), dtype('uint8'))
    """
    settings = config.current
    try:
        return _promoted(a, b, settings.numpy_dtype_promotion, settings.enable_x64)
    except TypeError as error:
        if isinstance(error, errors.DtypeError):
            raise
        raise _unknown((a, b), "promote_types") from error


def result_type(*operands: Any) -> np.dtype:
    """The dtype of an operation's result on arrays, NumPy values, Python scalars and dtypes.

    Raises ValueError without operands, DtypeError if one has no dtype, TypePromotionError if they
    have no common type.

    >>> result_type(np.arange(3), 1.5), result_type("int8", 3)
    (dtype('float32'), dtype('int8'))
    """
    if not operands:
        raise ValueError("result_type: at least one operand must be given; got none.")
    dtype, weak = lattice_result_type(*map(typed, operands))
    return default_dtype(_KIND[dtype]) if weak else dtype


def typed(operand: Any) -> tuple[np.dtype, bool]:
    """The pair (dtype, weak) of an array, NumPy value, Python scalar or dtype.

    Raises DtypeError if the operand has no dtype.

    >>> typed(2.0), typed(np.float64(2.0)), typed("int64")
    ((dtype('float32'), True), (dtype('float32'), False), (dtype('int64'), False))
    """
    if type(operand) in _PYTHON_KIND:
        return scalar_dtype(operand), type(operand) is not bool
    if isinstance(operand, (np.ndarray, np.generic)):
        return canonicalize_dtype(operand.dtype), False
    if isinstance(operand, (int, float, complex)):
        return scalar_dtype(operand), True
    if operand is None:
        return default_dtype("float"), False
    if isinstance(operand, np.dtype | str | type):
        return requested_dtype(operand, "result_type"), _is_weak_type(operand)
    dtype = getattr(operand, "dtype", None)
    if not isinstance(dtype, np.dtype):
        raise errors.DtypeError(
            "result_type: operands must be arrays, scalars or dtypes; "
            f"got {type(operand).__name__}."
        )
    return dtype, getattr(operand, "weak_type", False)


@functools.lru_cache(maxsize=4096)
def _result_type(
    pairs: tuple[tuple[np.dtype, bool], ...], promotion: str, x64: bool
) -> tuple[np.dtype, bool]:
    found = {dtype for dtype, _ in pairs}
    weak = all(weak for _, weak in pairs)
    if len(found) == 1:
        return pairs[0][0], weak and pairs[0][0] != BOOL
    if weak and promotion != "strict":
        dtype = _least_upper_bound(tuple(found), promotion, x64)
        return _concrete(dtype, x64), dtype != BOOL
    points = tuple(_point(dtype, weak) for dtype, weak in pairs)
    bound = _least_upper_bound(points, promotion, x64)
    return _concrete(bound, x64), bound in _PYTHON_KIND


@functools.lru_cache(maxsize=4096)
def _promoted(a: Any, b: Any, promotion: str, x64: bool) -> np.dtype:
    points = tuple(
        dtype if _is_weak_type(dtype) else requested_dtype(dtype, "promote_types")
        for dtype in (a, b)
    )
    return _concrete(_least_upper_bound(points, promotion, x64), x64)


def _is_weak_type(dtype: Any) -> bool:
    # By identity: NumPy says that dtype("int64") == int.
    return dtype is int or dtype is float or dtype is complex


def _point(dtype: np.dtype, weak: bool) -> Any:
    return _WEAK_POINTS.get(_KIND.get(dtype, ""), dtype) if weak else dtype


_WEAK_POINTS = {"int": int, "uint": int, "float": float, "complex": complex}


def _concrete(point: Any, x64: bool) -> np.dtype:
    if isinstance(point, np.dtype):
        return point
    wide = _WIDE_DEFAULT[_PYTHON_KIND[point]]
    return wide if x64 else _NARROWED[wide]


def _least_upper_bound(points: tuple[Any, ...], promotion: str, x64: bool) -> Any:
    bounds = _BOUNDS[promotion == "strict", x64]
    if any(point not in bounds for point in points):
        unknown = next(point for point in points if point not in bounds)
        raise _unknown(unknown, "promotion")
    common = frozenset.intersection(*(bounds[point] for point in points))
    for point in common:
        if common <= bounds[point]:
            return point
    raise errors.TypePromotionError(_no_common_type(points, promotion))


def _no_common_type(points: tuple[Any, ...], promotion: str) -> str:
    names = ", ".join(_spelled(points))
    reason = "these have none"
    if promotion == "strict":
        reason = "numpy_dtype_promotion='strict' allows none that is implicit"
    elif any(point in NARROW_FLOATS for point in points):
        reason = "floats of 8 bits and fewer are never promoted implicitly"
    elif any(point in NARROW_INTEGERS for point in points):
        reason = "integers of 4 bits and fewer are never promoted implicitly"
    return (
        f"promotion: operands must have a common dtype, but {reason}; got {names}. "
        "Cast one of them, as in x.astype('float32')."
    )


def _spelled(points: Iterable[Any]) -> list[str]:
    return [
        point.name if isinstance(point, np.dtype) else f"Python {point.__name__}"
        for point in points
    ]
