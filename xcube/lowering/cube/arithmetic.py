"""What every operation of the kernel IR means, in NumPy: a line is a 1-D array, a scalar an array
of one element. The interpreter evaluates with it and the emitters are tested against it, so each
function is the plain statement of a rule, not a fast one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

from xcube.lowering.cube import ir
from xcube.lowering.cube.ir import Const, Type

Line = np.ndarray[Any, Any]

NUMPY: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    **{f"i{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    "index": np.dtype(np.int64),
    "f8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
_NARROW = frozenset(("f8_e4m3fn", "f8_e5m2", "f16", "bf16"))


def evaluate(op: str, args: Sequence[Line], type: Type, attrs: tuple[int, ...] = ()) -> Line:
    """The value of one operation; arguments and result have the dtypes and lanes of their types.

    Raises ZeroDivisionError for a division of indices by zero, which the IR rules out.

    >>> evaluate("div", [np.array([7, -7, 7]), np.array([2, 2, 0])], Type("i64", 3)).tolist()
    [3, -3, -1]
    """
    if op in _SHAPED:
        return _SHAPED[op](args, type, attrs)
    if op.startswith("reduce_"):
        return _reduced(op.removeprefix("reduce_"), args[0], type.dtype)
    if op in _COMPARE:
        return _COMPARE[op](*map(_widened, args))
    return _elementwise(op, args, type.dtype)


def literal(const: Const) -> Line:
    """The line that a literal stands for."""
    dtype, lanes = const.type.dtype, const.type.lanes
    if dtype in ir.FLOATS:
        return np.repeat(narrowed(np.array([float(const.value)]), dtype), lanes)
    return np.full(lanes, const.value, NUMPY[dtype])


def rounded(value: float, dtype: str) -> float:
    """The value of a float dtype nearest to a double.

    >>> rounded(0.1, "f16")
    0.0999755859375
    """
    with np.errstate(all="ignore"):
        return float(narrowed(np.array([value], np.float64), dtype)[0])


def narrowed(x: Line, dtype: str) -> Line:
    """Doubles (or singles) to another float dtype, rounded once, to nearest, ties to even."""
    if x.dtype == np.float64 and dtype not in ("f64", "f32", "f16"):
        x = _odd_single(x)  # ml_dtypes rounds doubles twice, by way of singles
    return x.astype(NUMPY[dtype])


# shapes and casts -------------------------------------------------------------------------------


def _cast(args: Sequence[Line], type: Type, attrs: tuple[int, ...]) -> Line:
    (x,) = args
    if type.dtype == "bool":
        return _widened(x) != 0
    if type.dtype not in ir.FLOATS:
        return _to_whole(x, NUMPY[type.dtype])
    if x.dtype.kind not in "biu":
        return narrowed(_widened(x), type.dtype)
    if type.dtype in _NARROW:
        return narrowed(_odd_double(x), type.dtype)
    return x.astype(NUMPY[type.dtype])


def _to_whole(x: Line, dtype: np.dtype[Any]) -> Line:
    if x.dtype.kind in "biu":
        return x.astype(dtype)
    return _saturated(_widened(x).astype(np.float64), dtype)


def _saturated(x: Line, dtype: np.dtype[Any]) -> Line:
    """Doubles to an integer dtype: truncated, clamped to its range, NaN as 0."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    whole = np.trunc(x)
    below, above = whole < float(low), whole >= float(high + 1)
    inside = np.where(below | above | np.isnan(whole), 0.0, whole).astype(dtype)
    return np.where(below, dtype.type(low), np.where(above, dtype.type(high), inside))


_SHAPED: dict[str, Callable[[Sequence[Line], Type, tuple[int, ...]], Line]] = {
    "select": lambda args, type, attrs: np.where(args[0], args[1], args[2]),
    "cast": _cast,
    "bitcast": lambda args, type, attrs: args[0].view(NUMPY[type.dtype]),
    "splat": lambda args, type, attrs: np.repeat(args[0], type.lanes),
    "lane": lambda args, type, attrs: np.arange(type.lanes).astype(NUMPY[type.dtype]),
    "extract": lambda args, type, attrs: args[0][list(attrs)],
    "join": lambda args, type, attrs: np.concatenate(args),
    "shuffle": lambda args, type, attrs: args[0][list(attrs)],
}


def _reduced(op: str, x: Line, dtype: str) -> Line:
    """Halves combined until one lane is left: (0 + 2) + (1 + 3) for four."""
    while len(x) > 1:
        half = len(x) // 2
        x = _elementwise(op, (x[:half], x[half:]), dtype)
    return x


def _elementwise(op: str, args: Sequence[Line], dtype: str) -> Line:
    if dtype not in ir.FLOATS:
        if dtype == "index" and op in ("div", "rem") and not args[1].all():
            raise ZeroDivisionError("the divisor of an index must not be 0")
        return _WHOLE[op](*args)
    if op == "fma":
        return _fma(args[0], args[1], args[2], dtype)
    return narrowed(_FLOAT[op](*map(_widened, args)), dtype)


def _widened(x: Line) -> Line:
    """Narrow floats as singles, in which they compute; every other dtype as it is."""
    return x if x.dtype.kind in "biu" or x.dtype.itemsize >= 4 else x.astype(np.float32)


# rounding ---------------------------------------------------------------------------------------
# Rounding to odd keeps the last bit set wherever something was cut off, so that a later rounding
# to fewer bits is the rounding of the exact value (Boldo and Melquiond, 2008).


def _odd_single(x: Line) -> Line:
    """Doubles to singles, rounded to odd."""
    single = x.astype(np.float32)
    cut = np.isfinite(x) & (single.astype(np.float64) != x)
    bits = single.view(np.int32)
    away = np.where(np.abs(single.astype(np.float64)) < np.abs(x), 1, -1).astype(np.int32)
    return np.where(cut & (bits & 1 == 0), bits + away, bits).view(np.float32)


def _odd_double(x: Line) -> Line:
    """Integers to doubles, rounded to odd."""
    double = x.astype(np.float64)
    rest = np.array([float(int(a) - int(b)) for a, b in zip(x, double, strict=True)])
    return _odd_sum(double, rest)


def _odd_sum(total: Line, rest: Line) -> Line:
    """total + rest rounded to odd, where total already is that sum rounded to nearest."""
    even = total.view(np.int64) & 1 == 0
    cut = np.isfinite(total) & (rest != 0) & even
    return np.where(cut, np.nextafter(total, np.copysign(np.inf, rest)), total)


def _fma(x: Line, y: Line, z: Line, dtype: str) -> Line:
    if dtype == "f64":
        lanes = zip(x.tolist(), y.tolist(), z.tolist(), strict=True)
        return np.array([_fma_double(*lane) for lane in lanes])
    product = x.astype(np.float64) * y.astype(np.float64)  # exact: at most 24 + 24 bits
    addend = z.astype(np.float64)
    total = product + addend
    part = total - product
    rest = (product - (total - part)) + (addend - part)
    return narrowed(_odd_sum(total, rest), dtype)


def _fma_double(x: float, y: float, z: float) -> float:
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
        return z if math.isinf(z) and math.isfinite(x * 0 + y * 0) else x * y + z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        return x * y + z if x == 0 or y == 0 else 0.0
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


# integers ---------------------------------------------------------------------------------------


def _unsigned(x: Line) -> Line:
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def _div(x: Line, y: Line) -> Line:
    """Truncating; x / 0 is all ones and MIN / -1 is MIN."""
    negated = (y == -1) & (x.dtype.kind == "i")
    safe = np.where(negated | (y == 0), x.dtype.type(1), y)
    floor = x // safe
    quotient = floor + ((floor * safe != x) & ((x < 0) != (safe < 0))).astype(x.dtype)
    return np.where(
        y == 0, np.array(-1).astype(x.dtype), np.where(negated, np.negative(x), quotient)
    )


def _rem(x: Line, y: Line) -> Line:
    """The dividend's sign; x % 0 is x and MIN % -1 is 0."""
    return x - _div(x, y) * y


def _mulhi(x: Line, y: Line) -> Line:
    bits = 8 * x.dtype.itemsize
    return np.array([int(a) * int(b) >> bits for a, b in zip(x, y, strict=True)], x.dtype)


def _shl(x: Line, y: Line) -> Line:
    bits = 8 * x.dtype.itemsize
    count = np.minimum(_unsigned(y), bits - 1)
    return np.where(_unsigned(y) < bits, np.left_shift(_unsigned(x), count), 0).astype(x.dtype)


def _shr(x: Line, y: Line) -> Line:
    """Arithmetic for signed dtypes, logical for unsigned ones."""
    bits = 8 * x.dtype.itemsize
    count = np.minimum(_unsigned(y), bits - 1).astype(x.dtype)
    gone = np.where(x < 0, -1, 0).astype(x.dtype)
    return np.where(_unsigned(y) < bits, np.right_shift(x, count), gone)


def _clz(x: Line) -> Line:
    bits = 8 * x.dtype.itemsize
    return np.array([bits - int(a).bit_length() for a in _unsigned(x)], x.dtype)


_COMPARE: dict[str, Callable[[Line, Line], Line]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_SHARED: dict[str, Callable[..., Line]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "abs": np.abs,
    "min": np.minimum,
    "max": np.maximum,
}
_WHOLE: dict[str, Callable[..., Line]] = {
    **_SHARED,
    "div": _div,
    "rem": _rem,
    "mulhi": _mulhi,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shl": _shl,
    "shr": _shr,
    "popcount": lambda x: np.bitwise_count(_unsigned(x)).astype(x.dtype),
    "clz": _clz,
}

# floats -----------------------------------------------------------------------------------------


def _lanewise(function: Callable[[float], float]) -> Callable[[Line], Line]:
    return lambda x: np.array([function(value) for value in x.tolist()])


def _lgamma(value: float) -> float:
    try:
        return math.lgamma(value)
    except (ValueError, OverflowError):  # a pole, or more than the largest double
        return math.inf


_FLOAT: dict[str, Callable[..., Line]] = {
    **_SHARED,
    "div": np.divide,
    "rem": np.fmod,
    "sqrt": np.sqrt,
    "exp2_approx": np.exp2,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    **{name: getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log1p")},
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "cbrt")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "tan2")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sinh", "cosh", "tanh")},
    "pow": np.power,
    "erf": _lanewise(math.erf),
    "erfc": _lanewise(math.erfc),
    "lgamma": _lanewise(_lgamma),
}
