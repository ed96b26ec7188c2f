"""Functions of elements: arithmetic, comparison, logic, bits, exponentials, trigonometry, rounding.
Each promotes and broadcasts its arguments and binds few primitives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.ir import Literal, at_user_line
from xcube.numpy.fused import fused
from xcube.numpy.operands import (
    Operand,
    array_operand,
    as_array,
    broadcast,
    cast,
    inexact_of,
    operand,
    promoted,
    promoted_inexact,
    require,
    result_type_of,
    scalar,
    to_dtype,
    typed_operand,
)
from xcube.numpy.ufunc import Ufunc
from xcube.primitives import bits, complex, convert, elementwise, select, transcendental
from xcube.primitives.kinds import add as add_elements
from xcube.primitives.shape import full
from xcube.transforms.custom.custom_jvp import custom_jvp

_FLOATS = frozenset(dtypes.FLOATS)
_INEXACT = frozenset((*dtypes.FLOATS, *dtypes.COMPLEXES))
_NUMBERS = frozenset((*dtypes.INTEGERS, *_INEXACT))
_INTEGERS = frozenset(dtypes.INTEGERS)
_WHOLE = frozenset((*dtypes.INTEGERS, dtypes.BOOL))
_ALL = frozenset(dtypes.ALL)
_REAL = _ALL - frozenset(dtypes.COMPLEXES)


# --- Families ------------------------------------------------------------------------------------


def _filled(x: Operand, y: Operand) -> tuple[Operand, Operand]:
    """A primitive of two program scalars needs one array."""
    return (as_array(x), y) if isinstance(x, Literal) and isinstance(y, Literal) else (x, y)


def _binary(
    name: str,
    function: Callable[[Any, Any], Any],
    doc: str,
    *,
    direct: frozenset[Any] = _NUMBERS,
    inexact: bool = False,
    numeric: bool = False,
    on_bool: Callable[[Any, Any], Any] | None = None,
    accepts: frozenset[Any] = _ALL,
    **ufunc: Any,
) -> Ufunc:
    """A ufunc that promotes and broadcasts, then applies a primitive function. `numeric`: bools
    become integers; `inexact`: integers become floats."""
    promote = promoted_inexact if inexact else promoted

    def general(x: Any, y: Any) -> Any:
        x, y = broadcast(name, promote(name, x, y))
        dtype = x.aval.dtype
        if dtype == dtypes.BOOL and on_bool is not None:
            return on_bool(*_filled(x, y))
        if dtype == dtypes.BOOL and numeric:
            x, y = (cast(v, dtypes.default_dtype("int")) for v in (x, y))
            dtype = x.aval.dtype
        if dtype not in accepts:
            require(name, False, f"does not accept {dtype}", x, y)
        return function(*_filled(x, y))

    general.__doc__ = doc
    primitive = getattr(function, "primitive", None)
    return Ufunc(name, general, primitive, direct if primitive else frozenset(), **ufunc)


def _named(name: str, function: Callable[..., Any], doc: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__, function.__module__ = doc, "xcube.numpy"
    return function


def _inexact(name: str, function: Callable[[Any], Any], doc: str) -> Callable[[Any], Any]:
    """A function of a float or complex element; integers become floats."""

    def apply(x: Any, /) -> Any:
        if isinstance(x, Array) and x.aval.dtype in _INEXACT:
            return function(x)
        return function(as_array(promoted_inexact(name, x)[0]))

    return _named(name, apply, doc)


def _unary(name: str, function: Callable[[Any], Any], doc: str) -> Callable[[Any], Any]:
    """A function of an element of any dtype."""

    def apply(x: Any, /) -> Any:
        return function(array_operand(name, x))

    return _named(name, apply, doc)


def _whole_is_itself(name: str, function: Callable[[Any], Any], doc: str) -> Callable[[Any], Any]:
    """A rounding: integers and bools are whole already."""

    def apply(x: Any, /) -> Any:
        x = array_operand(name, x)
        require(name, x.dtype in _REAL, "x must not be complex", x)
        return x if x.dtype in _WHOLE else function(x)

    return _named(name, apply, doc)


def _both(function: Callable[[Any], Any], z: Any) -> Any:
    """A function of real numbers applied to both parts of complex ones."""
    if not dtypes.is_complex(z.dtype):
        return function(z)
    return complex.complex(function(complex.real(z)), function(complex.imag(z)))


def number(value: Any, dtype: Any) -> Literal:
    """A constant inside a formula: weakly typed, so that the result is as weak as its operands."""
    return scalar(value, dtype, True)


def to_bool(x: Operand) -> Operand:
    """Whether elements are not zero; bools are themselves."""
    return x if x.aval.dtype == dtypes.BOOL else select.ne(as_array(x), scalar(0, x.aval.dtype))


def _logical(name: str, function: Callable[[Any, Any], Any], doc: str, **ufunc: Any) -> Ufunc:
    def general(x: Any, y: Any) -> Any:
        x, y = (to_bool(operand(name, value, k)) for k, value in enumerate((x, y)))
        return function(*_filled(*broadcast(name, [x, y])))

    general.__doc__ = doc
    return Ufunc(name, general, function.primitive, frozenset({dtypes.BOOL}), **ufunc)  # type: ignore[attr-defined]


def _ordered(real: Callable[[Any, Any], Any], strict: Callable[[Any, Any], Any]) -> Any:
    """A comparison that orders complex numbers by their real, then by their imaginary parts."""

    def compare(x: Any, y: Any) -> Any:
        if not dtypes.is_complex(x.aval.dtype):
            return real(x, y)
        x, y = (as_array(v) for v in (x, y))
        (a, b), (c, d) = _parts(x), _parts(y)
        a, b, c, d = broadcast("compare", [a, b, c, d])
        return select.select(select.eq(a, c), real(b, d), strict(a, c))

    compare.primitive = real.primitive  # type: ignore[attr-defined]
    return compare


def _parts(z: Any) -> tuple[Any, Any]:
    return complex.real(z), complex.imag(z)


# --- Arithmetic ----------------------------------------------------------------------------------

add = _binary(
    "add",
    add_elements,
    "x + y, element by element: d[*s], d[*s] -> d[*s]; for bools, x or y.",
    on_bool=bits.bitwise_or,
    identity=0,
    scatter="add",
    associative=True,
)
subtract = _binary(
    "subtract",
    elementwise.sub,
    "x - y, element by element: d[*s], d[*s] -> d[*s].",
    accepts=_NUMBERS,
    scatter="subtract",
)
multiply = _binary(
    "multiply",
    elementwise.mul,
    "x * y, element by element: d[*s], d[*s] -> d[*s]; for bools, x and y.",
    on_bool=bits.bitwise_and,
    identity=1,
    scatter="multiply",
    associative=True,
)
divide = _binary(
    "divide",
    elementwise.div,
    "x / y, element by element: d[*s], d[*s] -> d[*s]; integers give floats.",
    direct=_INEXACT,
    inexact=True,
)
true_divide = divide


def _floor_divide(x: Any, y: Any) -> Any:
    dtype = x.aval.dtype
    if dtypes.is_complex(dtype):
        require("floor_divide", False, "the operands must not be complex", x, y)
    if dtypes.is_float(dtype):
        return _float_divmod(x, y)[0]
    quotient = elementwise.div(x, y)
    if not dtypes.is_signed(dtype):
        return quotient
    zero, one = number(0, dtype), number(1, dtype)
    x, y = (as_array(v) for v in (x, y))
    opposite = select.ne(elementwise.sign(x), elementwise.sign(y))
    inexact = select.ne(elementwise.rem(x, y), zero)
    x, y, opposite, inexact, quotient = broadcast("", [x, y, opposite, inexact, quotient])
    down = bits.bitwise_and(opposite, inexact)
    return select.select(down, elementwise.sub(quotient, one), quotient)


def _float_divmod(x: Any, y: Any) -> tuple[Any, Any]:
    """The quotient comes from the truncated remainder, which is finite where x is, and is one less
    where the remainder moves to the sign of y; by zero it is x / y. Zeros have the sign of that."""
    x, y = broadcast("divmod", [as_array(x), as_array(y)])
    zero, one = number(0, x.dtype), number(1, x.dtype)
    rest, ratio = elementwise.rem(x, y), convert.stop_gradient(elementwise.div(x, y))
    quotient = elementwise.div(elementwise.sub(x, rest), y)
    moves = _moves(rest, y)
    quotient = select.select(moves, elementwise.sub(quotient, one), quotient)
    quotient = elementwise.round(select.select(select.eq(y, zero), ratio, quotient))
    signed = elementwise.mul(ratio, zero)
    quotient = select.select(select.eq(quotient, zero), signed, quotient)
    return quotient, select.select(moves, add_elements(rest, y), rest)


def _moves(rest: Any, y: Any) -> Any:
    """Where a truncated remainder has not the sign of the divisor."""
    zero = number(0, rest.dtype)
    below = select.lt(y, zero) if isinstance(y, Array) else scalar(bool(y.value < 0), dtypes.BOOL)
    differ = select.ne(select.lt(rest, zero), below)
    return bits.bitwise_and(differ, select.ne(rest, zero))


def _modulo(x: Any, y: Any) -> Any:
    """The remainder with the sign of the divisor."""
    dtype = (x if isinstance(x, Array) else y).aval.dtype
    require("remainder", not dtypes.is_complex(dtype), "the operands must not be complex", x, y)
    zero = number(0, dtype)
    if dtypes.is_integer(dtype):
        y = as_array(y)
        y = select.select(select.eq(y, zero), number(1, dtype), y)
        if not dtypes.is_signed(dtype):
            return elementwise.rem(x, y)
    rest = elementwise.rem(x, y)
    y, rest = broadcast("remainder", [y, rest])
    return select.select(_moves(rest, y), add_elements(rest, y), rest)


floor_divide = _binary(
    "floor_divide",
    _floor_divide,
    "The largest whole number not above x / y, element by element: d[*s], d[*s] -> d[*s].",
    numeric=True,
)
remainder = _binary(
    "remainder",
    _modulo,
    "x - floor(x / y) * y, element by element: d[*s], d[*s] -> d[*s]; it has the sign of y.",
    numeric=True,
)
mod = remainder
fmod = _binary(
    "fmod",
    elementwise.rem,
    "The remainder of x / y with the sign of x: d[*s], d[*s] -> d[*s].",
    numeric=True,
    accepts=_NUMBERS,
)


@fused(2)
def divmod(x: Any, y: Any, /) -> tuple[Any, Any]:
    """(floor_divide(x, y), remainder(x, y)): d[*s], d[*s] -> (d[*s], d[*s]).

    Raises DtypeError for complex operands.

    >>> divmod(7, 2)
    (Array(3, dtype=int32, weak_type=True), Array(1, dtype=int32, weak_type=True))
    """
    x, y = broadcast("divmod", promoted("divmod", x, y))
    if dtypes.is_float(x.aval.dtype):
        return _float_divmod(x, y)
    return floor_divide(x, y), remainder(x, y)


def modf(x: Any, /) -> tuple[Any, Any]:
    """Fractional and whole parts, both with the sign of x: d[*s] -> (d[*s], d[*s])."""
    x = as_array(promoted_inexact("modf", x)[0])
    whole = trunc(x)
    return elementwise.sub(x, whole), whole


def _integer_power(x: Any, y: Any) -> Any:
    """Squaring and multiplying, once for each of the low six bits of an exponent."""
    x, y = broadcast("power", [x, y])
    dtype = x.dtype
    zero, one = number(0, dtype), number(1, dtype)
    result = full(x.shape, one)
    for _ in range(6):
        odd = select.ne(bits.bitwise_and(y, one), zero)
        result = select.select(odd, elementwise.mul(result, x), result)
        x = elementwise.mul(x, x)
        y = bits.shift_right_logical(y, one)
    return result


def _power_general(x: Any, y: Any) -> Any:
    """x to the power of y, element by element: d[*s], d[*s] -> d[*s]. A Python or NumPy integer as
    y means repeated multiplication. Where both are integers and y is an array, its low six bits
    are the exponents: they must lie in 0..63, which is not checked.

    Raises TypeError for integers raised to a negative number.
    """
    if isinstance(y, int | np.integer) and not isinstance(y, bool):
        return _static_power(operand("power", x), int(y))
    base, exponent = operand("power", x, 0), operand("power", y, 1)
    whole = dtypes.is_integer(exponent.aval.dtype) and isinstance(exponent, Array)
    if whole and dtypes.is_inexact(base.aval.dtype):
        return transcendental.pow(*_filled(*broadcast("power", [as_array(base), exponent])))
    dtype, weak = result_type_of([base, exponent])
    base, exponent = broadcast("power", promoted("power", x, y))
    if dtype == dtypes.BOOL:
        dtype = dtypes.default_dtype("int")
        base, exponent = cast(base, dtype), cast(exponent, dtype)
    if dtypes.is_integer(dtype):
        return _integer_power(as_array(cast(base, dtype, weak)), as_array(exponent))
    return transcendental.pow(*_filled(base, exponent))


def _static_power(x: Operand, y: int) -> Any:
    dtype, weak = result_type_of([x, operand("power", y)])
    if y < 0 and not dtypes.is_inexact(dtype):
        raise TypeError(
            f"power: integers cannot be raised to negative powers; got {x.aval} ** {y}."
            f"{at_user_line()} Make x a float first, as in x.astype(float)."
        )
    return elementwise.integer_pow(as_array(cast(x, dtype, weak and x.aval.weak_type)), y)


power = Ufunc("power", _power_general, scatter="power")
pow = power
float_power = _binary(
    "float_power",
    transcendental.pow,
    "x to the power of y as floats: d[*s], d[*s] -> d[*s].",
    inexact=True,
)
maximum = _binary(
    "maximum",
    elementwise.max,
    "The larger of x and y, element by element: d[*s], d[*s] -> d[*s]; NaN wins.",
    direct=_ALL,
    scatter="max",
    associative=True,
)
minimum = _binary(
    "minimum",
    elementwise.min,
    "The smaller of x and y, element by element: d[*s], d[*s] -> d[*s]; NaN wins.",
    direct=_ALL,
    scatter="min",
    associative=True,
)


def _ignoring_nan(better: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def choose(x: Any, y: Any) -> Any:
        x, y = broadcast("", [as_array(x), as_array(y)])
        take_x = bits.bitwise_or(better(x, y), select.ne(y, y))
        return select.select(take_x, x, y)

    return choose


fmax = _binary(
    "fmax",
    _ignoring_nan(_ordered(select.gt, select.gt)),
    "The larger of x and y, element by element: d[*s], d[*s] -> d[*s]; a number wins over NaN.",
)
fmin = _binary(
    "fmin",
    _ignoring_nan(_ordered(select.lt, select.lt)),
    "The smaller of x and y, element by element: d[*s], d[*s] -> d[*s]; a number wins over NaN.",
)


def _numeric(x: Any) -> Any:
    return cast(x, dtypes.default_dtype("int")) if x.dtype == dtypes.BOOL else x


def _negative(x: Any) -> Any:
    require("negative", x.dtype != dtypes.BOOL, "x must not be bool; use ~x", x)
    return elementwise.neg(x)


negative = _unary("negative", _negative, "-x, element by element: d[*s] -> d[*s].")
positive = _unary("positive", lambda x: x, "x itself: d[*s] -> d[*s].")


def _absolute(x: Any) -> Any:
    return elementwise.abs(x) if dtypes.is_signed(x.dtype) else x


absolute = _unary(
    "absolute", _absolute, "The absolute value of each element: d[*s] -> d[*s], real for complex x."
)
abs = absolute


def _real_abs(x: Any) -> Any:
    require("fabs", not dtypes.is_complex(x.dtype), "x must not be complex", x)
    return elementwise.abs(x)


fabs = _inexact("fabs", _real_abs, "The absolute value as a float: d[*s] -> f[*s].")
sign = _unary(
    "sign",
    elementwise.sign,
    "-1, 0 or 1 by the sign of each element: d[*s] -> d[*s]; x/|x| for complex x.",
)
square = _unary(
    "square",
    lambda x: elementwise.square(_numeric(x)),
    "x * x, element by element: d[*s] -> d[*s].",
)
reciprocal = _inexact(
    "reciprocal", lambda x: elementwise.integer_pow(x, -1), "1 / x: d[*s] -> f[*s]."
)

# --- Comparison ----------------------------------------------------------------------------------

equal = _binary("equal", select.eq, "x == y, element by element: bool[*s].", direct=_ALL)
not_equal = _binary("not_equal", select.ne, "x != y, element by element: bool[*s].", direct=_ALL)
less = _binary(
    "less", _ordered(select.lt, select.lt), "x < y, element by element: bool[*s].", direct=_REAL
)
less_equal = _binary(
    "less_equal",
    _ordered(select.le, select.lt),
    "x <= y, element by element: bool[*s].",
    direct=_REAL,
)
greater = _binary(
    "greater", _ordered(select.gt, select.gt), "x > y, element by element: bool[*s].", direct=_REAL
)
greater_equal = _binary(
    "greater_equal",
    _ordered(select.ge, select.gt),
    "x >= y, element by element: bool[*s].",
    direct=_REAL,
)

# --- Logic and bits ------------------------------------------------------------------------------

logical_and = _logical(
    "logical_and",
    bits.bitwise_and,
    "Whether x and y are not zero: bool[*s].",
    identity=True,
    associative=True,
)
logical_or = _logical(
    "logical_or",
    bits.bitwise_or,
    "Whether x or y is not zero: bool[*s].",
    identity=False,
    associative=True,
)
logical_xor = _logical(
    "logical_xor",
    bits.bitwise_xor,
    "Whether one of x and y is not zero: bool[*s].",
    identity=False,
    associative=True,
)
logical_not = _unary(
    "logical_not",
    lambda x: select.eq(x, number(0, x.dtype)) if x.dtype != dtypes.BOOL else bits.bitwise_not(x),
    "Whether x is zero: d[*s] -> bool[*s].",
)
bitwise_and = _binary(
    "bitwise_and",
    bits.bitwise_and,
    "x & y, bit by bit.",
    direct=_WHOLE,
    accepts=_WHOLE,
    identity=-1,
    associative=True,
)
bitwise_or = _binary(
    "bitwise_or",
    bits.bitwise_or,
    "x | y, bit by bit.",
    direct=_WHOLE,
    accepts=_WHOLE,
    identity=0,
    associative=True,
)
bitwise_xor = _binary(
    "bitwise_xor",
    bits.bitwise_xor,
    "x ^ y, bit by bit.",
    direct=_WHOLE,
    accepts=_WHOLE,
    identity=0,
    associative=True,
)


def _invert(x: Any) -> Any:
    require("invert", x.dtype in _WHOLE, "x must be bool or an integer", x)
    return bits.bitwise_not(x)


invert = _unary("invert", _invert, "~x, all bits inverted: d[*s] -> d[*s].")
bitwise_not = bitwise_invert = invert
left_shift = _binary(
    "left_shift", bits.shift_left, "x << y, element by element.", numeric=True, accepts=_INTEGERS
)
bitwise_left_shift = left_shift


def _right_shift(x: Any, y: Any) -> Any:
    signed = dtypes.is_signed(x.aval.dtype)
    return (bits.shift_right_arithmetic if signed else bits.shift_right_logical)(x, y)


right_shift = _binary(
    "right_shift", _right_shift, "x >> y, element by element.", numeric=True, accepts=_INTEGERS
)
bitwise_right_shift = right_shift


def _count_bits(x: Any) -> Any:
    require("bitwise_count", x.dtype in _WHOLE, "x must be bool or an integer", x)
    if x.dtype == dtypes.BOOL:
        return cast(x, np.dtype(np.uint8))
    size = elementwise.abs(x) if dtypes.is_signed(x.dtype) else x
    return cast(bits.population_count(size), np.dtype(np.uint8))


bitwise_count = _unary("bitwise_count", _count_bits, "Bits set in |x|: i[*s] -> uint8[*s].")

# --- Exponentials and logarithms -----------------------------------------------------------------

sqrt = _inexact("sqrt", elementwise.sqrt, "The square root: d[*s] -> f[*s].")
cbrt = _inexact("cbrt", elementwise.cbrt, "The cube root: d[*s] -> f[*s].")
exp = _inexact("exp", transcendental.exp, "e to the power of x: d[*s] -> f[*s].")
exp2 = _inexact("exp2", transcendental.exp2, "2 to the power of x: d[*s] -> f[*s].")
expm1 = _inexact("expm1", transcendental.expm1, "exp(x) - 1, exact near 0: d[*s] -> f[*s].")
log = _inexact("log", transcendental.log, "The natural logarithm: d[*s] -> f[*s].")
log1p = _inexact("log1p", transcendental.log1p, "log(1 + x), exact near 0: d[*s] -> f[*s].")


def _log_of_base(name: str, base: float, doc: str, real: Any = None) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        x = cast(x, x.dtype)
        if real is not None and not dtypes.is_complex(x.dtype):
            return real(x)
        return elementwise.div(transcendental.log(x), scalar(math.log(base), x.dtype))

    return _inexact(name, function, doc)


log2 = _log_of_base("log2", 2.0, "The logarithm of base 2: d[*s] -> f[*s].", transcendental.log2)
log10 = _log_of_base("log10", 10.0, "The logarithm of base 10: d[*s] -> f[*s].")


def _log_add(log1p_: Any, exp_: Any) -> Callable[[Any, Any], Any]:
    """log(exp x + exp y) from the larger and the distance; equal infinities are themselves. The
    derivative is of the sum, not of how it is computed: it has no kink where x is y."""

    @custom_jvp
    def real(x: Any, y: Any) -> Any:
        high, distance = elementwise.max(x, y), elementwise.sub(x, y)
        smooth = add_elements(high, log1p_(exp_(elementwise.neg(elementwise.abs(distance)))))
        return select.select(select.ne(distance, distance), add_elements(x, y), smooth)

    @real.defjvp
    def _real_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
        out = real(*primals)
        shares = [exp_(elementwise.sub(_below_infinity(x), _below_infinity(out))) for x in primals]
        parts = [elementwise.mul(dx, share) for dx, share in zip(tangents, shares, strict=True)]
        return out, add_elements(*parts)

    def function(x: Any, y: Any) -> Any:
        x, y = broadcast("", [as_array(x), as_array(y)])
        if not dtypes.is_complex(x.dtype):
            return real(x, y)
        high = select.select(select.ge(complex.real(x), complex.real(y)), x, y)
        low = select.select(select.ge(complex.real(x), complex.real(y)), y, x)
        return add_elements(high, log1p_(exp_(elementwise.sub(low, high))))

    return function


def _below_infinity(x: Any) -> Any:
    """x, and 0 where it is inf: the difference of two infinities is none."""
    infinity, zero = number(math.inf, x.dtype), number(0.0, x.dtype)
    return select.select(select.eq(x, infinity), zero, x)


def _log2_1p(x: Any) -> Any:
    return elementwise.div(transcendental.log1p(x), number(math.log(2.0), x.dtype))


def _exp_2(x: Any) -> Any:
    return transcendental.exp(elementwise.mul(x, number(math.log(2.0), x.dtype)))


logaddexp = _binary(
    "logaddexp",
    _log_add(transcendental.log1p, transcendental.exp),
    "log(exp(x) + exp(y)) without overflow, element by element.",
    inexact=True,
    identity=-np.inf,
    associative=True,
)
logaddexp2 = _binary(
    "logaddexp2",
    _log_add(_log2_1p, _exp_2),
    "log2(2**x + 2**y) without overflow, element by element.",
    inexact=True,
    identity=-np.inf,
    associative=True,
)


def ldexp(x1: Any, x2: Any, /) -> Any:
    """x1 * 2**x2, element by element: f[*s], i[*s] -> f[*s].

    Raises DtypeError if x2 is no integer.
    """
    x, exponent = operand("ldexp", x1), operand("ldexp", x2, 1)
    require("ldexp", dtypes.is_integer(exponent.aval.dtype), "x2 must be an integer", exponent)
    x = as_array(cast(x, inexact_of(x.aval.dtype), x.aval.weak_type))
    half = right_shift(exponent, 1)  # in two steps, so that no factor overflows
    rest = subtract(exponent, half)
    first = exp2(cast(as_array(half), x.dtype))
    return multiply(multiply(x, first), exp2(cast(as_array(rest), x.dtype)))


@fused()
def frexp(x: Any, /) -> tuple[Any, Any]:
    """Mantissa in [0.5, 1) and exponent: f[*s] -> (f[*s], i[*s]), x = mantissa * 2**exponent."""
    x = as_array(promoted_inexact("frexp", x)[0])
    require("frexp", dtypes.is_float(x.dtype), "x must be a float", x)
    info = dtypes.finfo(x.dtype)
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    tiny = select.lt(elementwise.abs(x), number(float(info.tiny), x.dtype))
    scaled = select.select(tiny, elementwise.mul(x, number(2.0**info.nmant, x.dtype)), x)
    word = convert.bitcast_convert_type(scaled, unsigned)
    mask, bias = (1 << info.nexp) - 1, (1 << (info.nexp - 1)) - 2
    field = bits.bitwise_and(
        bits.shift_right_logical(word, number(info.nmant, unsigned)), number(mask, unsigned)
    )
    integer = np.dtype(np.int32)
    offset = select.select(
        tiny,
        full(x.shape, scalar(bias + info.nmant, integer)),
        full(x.shape, scalar(bias, integer)),
    )
    exponent = elementwise.sub(cast(field, integer), offset)
    special = bits.bitwise_or(
        select.eq(x, number(0, x.dtype)), bits.bitwise_not(select.is_finite(x))
    )
    exponent = select.select(special, full(x.shape, scalar(0, integer)), exponent)
    half = bits.shift_right_arithmetic(exponent, scalar(1, integer))
    for part in (half, elementwise.sub(exponent, half)):  # two factors, so that both are normal
        x = elementwise.mul(x, _power_of_two(elementwise.neg(part), x.dtype))
    return x, exponent


def _power_of_two(exponent: Any, dtype: np.dtype) -> Any:
    """2**exponent, exact and constant to derivatives, for the exponents of normal numbers."""
    info, unsigned = dtypes.finfo(dtype), np.dtype(f"u{dtype.itemsize}")
    bias = scalar((1 << (info.nexp - 1)) - 1, exponent.dtype)
    field = cast(add_elements(exponent, bias), unsigned)
    word = bits.shift_left(field, scalar(info.nmant, unsigned))
    return convert.stop_gradient(convert.bitcast_convert_type(word, dtype))


# --- Trigonometry --------------------------------------------------------------------------------

sin = _inexact("sin", transcendental.sin, "The sine of radians: d[*s] -> f[*s].")
cos = _inexact("cos", transcendental.cos, "The cosine of radians: d[*s] -> f[*s].")
tan = _inexact("tan", transcendental.tan, "The tangent of radians: d[*s] -> f[*s].")
arcsin = _inexact("arcsin", transcendental.asin, "The inverse of sin: d[*s] -> f[*s].")
arccos = _inexact("arccos", transcendental.acos, "The inverse of cos: d[*s] -> f[*s].")
arctan = _inexact("arctan", transcendental.atan, "The inverse of tan: d[*s] -> f[*s].")
sinh = _inexact("sinh", transcendental.sinh, "The hyperbolic sine: d[*s] -> f[*s].")
cosh = _inexact("cosh", transcendental.cosh, "The hyperbolic cosine: d[*s] -> f[*s].")
tanh = _inexact("tanh", transcendental.tanh, "The hyperbolic tangent: d[*s] -> f[*s].")
arcsinh = _inexact("arcsinh", transcendental.asinh, "The inverse of sinh: d[*s] -> f[*s].")
arccosh = _inexact("arccosh", transcendental.acosh, "The inverse of cosh: d[*s] -> f[*s].")
arctanh = _inexact("arctanh", transcendental.atanh, "The inverse of tanh: d[*s] -> f[*s].")
asin, acos, atan = arcsin, arccos, arctan
asinh, acosh, atanh = arcsinh, arccosh, arctanh
arctan2 = _binary(
    "arctan2",
    transcendental.atan2,
    "The angle of the point (y, x): f[*s], f[*s] -> f[*s].",
    direct=_FLOATS,
    accepts=_FLOATS,
    inexact=True,
)
atan2 = arctan2


def _hypot(x: Any, y: Any) -> Any:
    """sqrt(x*x + y*y), scaled by the larger so that no square overflows."""
    x, y = (elementwise.abs(as_array(v)) for v in (x, y))
    x, y = broadcast("hypot", [x, y])
    high, low = elementwise.max(x, y), elementwise.min(x, y)
    zero, one = number(0, high.dtype), number(1, high.dtype)
    safe = select.select(select.eq(high, zero), one, high)
    ratio = elementwise.square(elementwise.div(low, safe))
    length = elementwise.mul(high, elementwise.sqrt(add_elements(ratio, one)))
    infinite = number(np.inf, high.dtype)
    is_infinite = bits.bitwise_or(select.eq(x, infinite), select.eq(y, infinite))
    return select.select(is_infinite, infinite, length)


hypot = _binary(
    "hypot",
    _hypot,
    "sqrt(x*x + y*y) without overflow: f[*s], f[*s] -> f[*s].",
    inexact=True,
    accepts=_FLOATS,
)


def _scaled(name: str, factor: float, doc: str) -> Callable[[Any], Any]:
    return _inexact(name, lambda x: elementwise.mul(x, scalar(factor, x.dtype, x.weak_type)), doc)


deg2rad = _scaled("deg2rad", math.pi / 180, "Degrees as radians: d[*s] -> f[*s].")
rad2deg = _scaled("rad2deg", 180 / math.pi, "Radians as degrees: d[*s] -> f[*s].")
radians, degrees = deg2rad, rad2deg


def _sinc(x: Any) -> Any:
    zero, one = number(0, x.dtype), number(1, x.dtype)
    angle_ = elementwise.mul(x, scalar(math.pi, x.dtype, x.weak_type))
    small = select.lt(elementwise.abs(angle_), number(1e-2, dtypes.float_part(x.dtype)))
    safe = select.select(small, one, angle_)
    square_ = elementwise.square(select.select(small, angle_, zero))
    series = elementwise.sub(one, elementwise.div(square_, number(6, x.dtype)))
    series = add_elements(
        series, elementwise.div(elementwise.square(square_), number(120, x.dtype))
    )
    return select.select(small, series, elementwise.div(transcendental.sin(safe), safe))


sinc = _inexact("sinc", _sinc, "sin(pi x) / (pi x), 1 at 0: d[*s] -> f[*s].")

# --- Rounding ------------------------------------------------------------------------------------

floor = _whole_is_itself(
    "floor", elementwise.floor, "The largest whole number <= x: d[*s] -> d[*s]."
)
ceil = _whole_is_itself("ceil", elementwise.ceil, "The smallest whole number >= x: d[*s] -> d[*s].")


def _trunc(x: Any) -> Any:
    positive_ = select.ge(x, number(0, x.dtype))
    return select.select(positive_, elementwise.floor(x), elementwise.ceil(x))


trunc = _whole_is_itself("trunc", _trunc, "x without its fraction: d[*s] -> d[*s].")


def _to_even(x: Any) -> Any:
    return elementwise.round(x, elementwise.RoundingMethod.TO_NEAREST_EVEN)


def rint(x: Any, /) -> Any:
    """The nearest whole number, halves to even: d[*s] -> f[*s]."""
    x = array_operand("rint", x)
    return _both(_to_even, x if x.dtype in _INEXACT else cast(x, inexact_of(x.dtype)))


@fused()
def round(a: Any, decimals: int = 0, out: None = None) -> Any:
    """Rounded to so many decimals, halves to even: d[*s] -> d[*s].

    >>> round(2.567, 1)
    Array(2.6, dtype=float32, weak_type=True)
    """
    x = array_operand("round", a)
    if x.dtype in _WHOLE:
        if decimals >= 0:
            return x
        factor = number(10**-decimals, dtypes.default_dtype("int"))
        return cast(multiply(rint(divide(x, factor)), factor), x.dtype)
    if decimals == 0:
        return _both(_to_even, x)
    wide = x if x.dtype.itemsize >= 4 else cast(x, np.dtype(np.float32))
    factor = scalar(10.0 ** np.abs(decimals), wide.dtype, x.weak_type)
    there, back = (elementwise.mul, elementwise.div)[:: 1 if decimals > 0 else -1]
    return cast(back(_both(_to_even, there(wide, factor)), factor), x.dtype, x.weak_type)


around = round

# --- Kinds of numbers ----------------------------------------------------------------------------


def _constant(x: Any, value: bool) -> Any:
    return full(x.shape, np.bool_(value))


def _is_nan(x: Any) -> Any:
    return select.ne(x, x) if dtypes.is_inexact(x.dtype) else _constant(x, False)


def _is_finite(x: Any) -> Any:
    if dtypes.is_complex(x.dtype):
        return bits.bitwise_and(*map(select.is_finite, _parts(x)))
    return select.is_finite(x) if dtypes.is_float(x.dtype) else _constant(x, True)


def _is_inf(x: Any) -> Any:
    if dtypes.is_complex(x.dtype):
        return bits.bitwise_or(*map(_is_inf, _parts(x)))
    if not dtypes.is_float(x.dtype):
        return _constant(x, False)
    return select.eq(elementwise.abs(x), number(np.inf, x.dtype))


def _is_infinity(name: str, value: float) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        require(name, not dtypes.is_complex(x.dtype), "x must not be complex", x)
        if not dtypes.is_float(x.dtype):
            return _constant(x, False)
        return select.eq(x, number(value, x.dtype))

    return _unary(name, function, f"Whether x is {value}: d[*s] -> bool[*s].")


isnan = _unary("isnan", _is_nan, "Whether x is NaN: d[*s] -> bool[*s].")
isfinite = _unary("isfinite", _is_finite, "Whether x is neither infinite nor NaN: bool[*s].")
isinf = _unary("isinf", _is_inf, "Whether x is infinite: d[*s] -> bool[*s].")
isposinf = _is_infinity("isposinf", np.inf)
isneginf = _is_infinity("isneginf", -np.inf)


def _sign_bit(x: Any) -> Any:
    if not dtypes.is_float(x.dtype):
        return (
            select.lt(x, number(0, x.dtype)) if dtypes.is_signed(x.dtype) else _constant(x, False)
        )
    signed = np.dtype(f"i{x.dtype.itemsize}")
    return select.lt(convert.bitcast_convert_type(x, signed), number(0, signed))


signbit = _unary("signbit", _sign_bit, "Whether the sign is negative, -0.0's too: bool[*s].")


def _copy_sign(x: Any, y: Any) -> Any:
    x, y = broadcast("copysign", [as_array(x), as_array(y)])
    size = elementwise.abs(x)
    return select.select(_sign_bit(y), elementwise.neg(size), size)


copysign = _binary(
    "copysign", _copy_sign, "|x| with the sign of y: f[*s], f[*s] -> f[*s].", inexact=True
)
nextafter = _binary(
    "nextafter",
    elementwise.nextafter,
    "The float next to x in the direction of y: f[*s], f[*s] -> f[*s].",
    direct=_FLOATS,
    inexact=True,
)


@fused()
def spacing(x: Any, /) -> Any:
    """Distance from x to the next float away from zero, with the sign of x: d[*s] -> f[*s]."""
    x = as_array(promoted_inexact("spacing", x)[0])
    away = copysign(number(np.inf, x.dtype), x)
    return subtract(nextafter(x, away), x)


def _heaviside(x: Any, y: Any) -> Any:
    x, y = broadcast("heaviside", [as_array(x), as_array(y)])
    zero, one = number(0, x.dtype), number(1, x.dtype)
    step = select.select(select.lt(x, zero), full(x.shape, zero), full(x.shape, one))
    step = select.select(select.eq(x, zero), y, step)
    return select.select(select.ne(x, x), x, step)


heaviside = _binary(
    "heaviside", _heaviside, "0 below 0, 1 above 0, y at 0: f[*s], f[*s] -> f[*s].", inexact=True
)


@fused()
def nan_to_num(
    x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    """NaN and infinities replaced; infinities by the largest finite numbers unless given.

    >>> nan_to_num(float("nan"))
    Array(0., dtype=float32)
    """
    x = array_operand("nan_to_num", x)
    if dtypes.is_complex(x.dtype):
        return complex.complex(*[nan_to_num(part, copy, nan, posinf, neginf) for part in _parts(x)])
    if not dtypes.is_float(x.dtype):
        return x
    info = dtypes.finfo(x.dtype)
    high = info.max if posinf is None else posinf
    low = info.min if neginf is None else neginf

    def replaced(condition: Any, value: Any, rest: Any) -> Any:
        new = typed_operand("nan_to_num", value, x.dtype)
        condition, new, rest = broadcast("nan_to_num", [condition, new, rest])
        return select.select(condition, new, rest)

    y = replaced(select.ne(x, x), nan, x)
    y = replaced(select.eq(x, number(np.inf, x.dtype)), high, y)
    return replaced(select.eq(x, number(-np.inf, x.dtype)), low, y)


# --- Complex numbers -----------------------------------------------------------------------------

real = _unary(
    "real",
    lambda x: complex.real(x) if dtypes.is_complex(x.dtype) else x,
    "The real part: d[*s] -> d[*s].",
)
imag = _unary(
    "imag",
    lambda x: (
        complex.imag(x)
        if dtypes.is_complex(x.dtype)
        else full(x.shape, scalar(0, x.dtype, x.weak_type))
    ),
    "The imaginary part, 0 for real x: d[*s] -> d[*s].",
)
conjugate = _unary(
    "conjugate",
    lambda x: complex.conj(x) if dtypes.is_complex(x.dtype) else x,
    "x with its imaginary part negated: d[*s] -> d[*s].",
)
conj = conjugate


@fused()
def angle(z: Any, deg: bool = False) -> Any:
    """The angle of a complex number in radians, or in degrees: d[*s] -> f[*s]."""
    z = as_array(promoted_inexact("angle", z)[0])
    zero = number(0, z.dtype)
    parts = _parts(z) if dtypes.is_complex(z.dtype) else (z, full(z.shape, zero))
    result = transcendental.atan2(parts[1], parts[0])
    return rad2deg(result) if deg else result


def iscomplex(x: Any) -> Any:
    """Whether the imaginary part is not zero: d[*s] -> bool[*s]."""
    return not_equal(imag(x), 0)


def isreal(x: Any) -> Any:
    """Whether the imaginary part is zero: d[*s] -> bool[*s]."""
    return equal(imag(x), 0)


def iscomplexobj(x: Any) -> bool:
    """Whether the dtype is complex."""
    return dtypes.is_complex(dtypes.result_type(x))


def isrealobj(x: Any) -> bool:
    """Whether the dtype is not complex."""
    return not iscomplexobj(x)


# --- Whole numbers -------------------------------------------------------------------------------


def clip(
    arr: Any = None,
    /,
    min: Any = None,
    max: Any = None,
    *,
    a: Any = None,
    a_min: Any = None,
    a_max: Any = None,
) -> Any:
    """Elements below `min` or above `max` replaced by these: d[*s] -> d[*s]; None is no bound.

    Raises DtypeError for complex x.

    >>> import xcube.numpy as jnp
    >>> clip(jnp.arange(4), 1, 2)
    Array([1, 1, 2, 2], dtype=int32)
    """
    x = arr if arr is not None else a
    low, high = (min if min is not None else a_min), (max if max is not None else a_max)
    x = array_operand("clip", x)
    require("clip", not dtypes.is_complex(x.dtype), "x must not be complex", x)
    if low is not None:
        x = maximum(low, x)
    return x if high is None else minimum(high, x)


def modulus_of(x: Any) -> Any:
    """|x| squared, real: d[*s] -> f[*s]."""
    if not dtypes.is_complex(x.dtype):
        return elementwise.square(x)
    return add_elements(*map(elementwise.square, _parts(x)))


def _promoted_integers(name: str, x: Any, y: Any) -> list[Any]:
    values = [operand(name, v, k) for k, v in enumerate((x, y))]
    dtype, weak = result_type_of(values)
    require(name, dtypes.is_integer(dtype), "the operands must be integers", *values)
    return [_absolute(as_array(v)) for v in broadcast(name, to_dtype(values, dtype, weak))]


def _euclid(x: Any, y: Any) -> Any:
    """Euclid's algorithm with a fixed number of steps: Lamé's bound for the dtype's width."""
    x, y = broadcast("gcd", [x, y])
    zero, one = number(0, x.dtype), number(1, x.dtype)
    for _ in range(int(1.45 * dtypes.bits_of(x.dtype)) + 1):
        done = select.eq(y, zero)
        rest = elementwise.rem(x, select.select(done, one, y))
        x, y = select.select(done, x, y), select.select(done, zero, rest)
    return x


def gcd(x1: Any, x2: Any) -> Any:
    """The greatest common divisor, element by element: i[*s], i[*s] -> i[*s].

    >>> gcd(12, 18)
    Array(6, dtype=int32, weak_type=True)
    """
    return _euclid(*_promoted_integers("gcd", x1, x2))


def lcm(x1: Any, x2: Any) -> Any:
    """The least common multiple, element by element: i[*s], i[*s] -> i[*s].

    >>> lcm(4, 6)
    Array(12, dtype=int32, weak_type=True)
    """
    x, y = broadcast("lcm", _promoted_integers("lcm", x1, x2))
    divisor, zero, one = _euclid(x, y), number(0, x.dtype), number(1, x.dtype)
    none = select.eq(divisor, zero)
    whole = elementwise.mul(x, elementwise.div(y, select.select(none, one, divisor)))
    return select.select(none, zero, whole)
