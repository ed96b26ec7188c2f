"""Functions of numbers in kernels: mathematics, bits, choices. They take scalars and lines, lane by
lane, and Python numbers; of numbers that are all known at expansion they give a Python number."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterable
from typing import Any

from xcube.cube import arithmetic
from xcube.cube.state import fail
from xcube.cube.values import (
    DTYPES,
    Operators,
    Value,
    as_bool,
    constant,
    converted,
    lifted,
    resolved,
    typed,
    unified,
)
from xcube.errors import DtypeError, KernelError
from xcube.lowering.cube import ir

Function = Callable[..., Any]


def _apply(name: str, *args: Value) -> Value:
    return Value(arithmetic.apply(args[0].core.build, name, *[x.core for x in args]))


def _require(name: str, x: Value, dtypes: tuple[str, ...], kind: str) -> Value:
    if x.dtype.name not in dtypes:
        way = "Cast it: x.cast(cube.f32)." if kind == "a float" else "Cast it: x.cast(cube.i32)."
        fail(DtypeError, f"{name}: the operand must be {kind}", typed(x), way)
    return x


def _floating(name: str, summary: str, known: Function, core: str = "") -> Function:
    """A function of floats; `known`: the same of Python numbers."""

    def function(x: Any) -> Any:
        value = resolved(x)
        if not isinstance(value, Value):
            return known(value)
        return _apply(core or name, _require(name, value, ir.FLOATS, "a float"))

    return _named(function, name, summary)


def _named(function: Function, name: str, summary: str) -> Function:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = summary
    return function


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _trunc(x: float) -> float:
    return float(math.trunc(x))


exp = _floating("exp", "e to the power x.", math.exp)
exp2 = _floating("exp2", "2 to the power x.", lambda x: 2.0**x)
expm1 = _floating("expm1", "exp(x) - 1, exact near 0.", math.expm1)
log = _floating("log", "The natural logarithm.", math.log)
log2 = _floating("log2", "The logarithm to the base 2.", math.log2)
log1p = _floating("log1p", "log(1 + x), exact near 0.", math.log1p)
sqrt = _floating("sqrt", "The square root.", math.sqrt)
rsqrt = _floating("rsqrt", "1 / sqrt(x).", lambda x: 1 / math.sqrt(x))
cbrt = _floating("cbrt", "The cube root.", lambda x: math.copysign(abs(x) ** (1 / 3), x))
reciprocal = _floating("reciprocal", "1 / x.", lambda x: 1 / x)
sin = _floating("sin", "The sine, of radians.", math.sin)
cos = _floating("cos", "The cosine, of radians.", math.cos)
tan = _floating("tan", "The tangent, of radians.", math.tan)
asin = _floating("asin", "The inverse of the sine, in radians.", math.asin)
acos = _floating("acos", "The inverse of the cosine, in radians.", math.acos)
atan = _floating("atan", "The inverse of the tangent, in radians.", math.atan)
sinh = _floating("sinh", "The hyperbolic sine.", math.sinh)
cosh = _floating("cosh", "The hyperbolic cosine.", math.cosh)
tanh = _floating("tanh", "The hyperbolic tangent.", math.tanh)
asinh = _floating("asinh", "The inverse of the hyperbolic sine.", math.asinh)
acosh = _floating("acosh", "The inverse of the hyperbolic cosine.", math.acosh)
atanh = _floating("atanh", "The inverse of the hyperbolic tangent.", math.atanh)
erf = _floating("erf", "The error function.", math.erf)
erfc = _floating("erfc", "1 - erf(x), exact where that is small.", math.erfc)
lgamma = _floating("lgamma", "The logarithm of the absolute gamma function.", math.lgamma)
sigmoid = _floating("sigmoid", "1 / (1 + exp(-x)).", _sigmoid, "logistic")
floor = _floating("floor", "The greatest whole number that is not above x.", math.floor)
ceil = _floating("ceil", "The least whole number that is not below x.", math.ceil)
trunc = _floating("trunc", "The whole number next to x on the way to 0.", _trunc)
is_nan = _floating("is_nan", "Whether x is not a number.", math.isnan, "isnan")
is_finite = _floating("is_finite", "Whether x is a finite number.", math.isfinite)


def is_inf(x: Any) -> Any:
    """Whether x is an infinity."""
    return absolute(x) == math.inf


def degrees(x: Any) -> Any:
    """Radians in degrees."""
    return x * (180 / math.pi)


def radians(x: Any) -> Any:
    """Degrees in radians."""
    return x * (math.pi / 180)


def sign(x: Any) -> Any:
    """-1, 0 or 1; a float zero keeps its sign and NaN stays."""
    return _apply("sign", lifted(x))


def absolute(x: Any) -> Any:
    """x without its sign."""
    return builtins.abs(x)


def _pair(name: str, x: Any, y: Any) -> tuple[Value, Value]:
    a, b = unified(name, x, y)
    _require(name, a, (*ir.INTEGERS, *ir.FLOATS, "index"), "a number")
    return a, b


def _extreme(name: str, known: Function, items: tuple[Any, ...], options: dict[str, Any]) -> Any:
    first, *others = items
    values: list[Any] = [first, *others] if others else list(first)
    if options or not any(isinstance(x, Operators) for x in values):
        return known(values, **options)
    numbers = [resolved(x) for x in values]
    found = numbers[0]
    for other in numbers[1:]:
        if not isinstance(found, Value) and not isinstance(other, Value):
            found = known(found, other)
            continue
        a, b = _pair(name, found, other)
        natural = (a.natural or b.natural) if name == "max" else (a.natural and b.natural)
        found = Value(a.core.build.op(name, a.core, b.core), natural)
    return found


def minimum(*items: Any, **options: Any) -> Any:
    """The smallest of numbers, or of the items of one tuple; NaN if one is."""
    return _extreme("min", builtins.min, items, options)


def maximum(*items: Any, **options: Any) -> Any:
    """The largest of numbers, or of the items of one tuple; NaN if one is."""
    return _extreme("max", builtins.max, items, options)


def clamp(x: Any, low: Any, high: Any) -> Any:
    """x, but not below `low` and not above `high`; NaN stays."""
    return minimum(maximum(x, low), high)


def fma(x: Any, y: Any, z: Any) -> Any:
    """x * y + z of floats, rounded once."""
    a, b = unified("fma", x, y)
    a, c = unified("fma", a, z)
    b, c = unified("fma", b, c)
    a, c = unified("fma", a, c)
    _require("fma", a, ir.FLOATS, "a float")
    return Value(a.core.build.fma(a.core, b.core, c.core))


def atan2(y: Any, x: Any) -> Any:
    """The angle of the point (x, y), in radians."""
    a, b = unified("atan2", y, x)
    return _apply("atan2", _require("atan2", a, ir.FLOATS, "a float"), b)


def hypot(x: Any, y: Any) -> Any:
    """sqrt(x * x + y * y), also where the squares are no numbers of the dtype."""
    a, b = absolute(x), absolute(y)
    high, low = maximum(a, b), minimum(a, b)
    if not isinstance(high, Operators):
        return math.hypot(high, low)
    dtype = lifted(high).dtype
    safe = select((high == 0) | is_inf(high), dtype(1.0), high)
    ratio = select(is_inf(low), dtype(1.0), low) / safe
    return high * sqrt(1 + ratio * ratio)


def rhypot(x: Any, y: Any) -> Any:
    """1 / hypot(x, y)."""
    return 1 / hypot(x, y)


def power(x: Any, y: Any) -> Any:
    """x to the power y."""
    return x**y


def floor_mod(x: Any, y: Any) -> Any:
    """What x // y leaves, with the sign of y: x % y."""
    return x % y


def rem(x: Any, y: Any) -> Any:
    """What the quotient that is rounded towards 0 leaves, with the sign of x."""
    a, b = _pair("rem", x, y)
    return Value(a.core.build.op("rem", a.core, b.core), a.natural)


def saturating_add(x: Any, y: Any) -> Any:
    """x + y of integers, the nearest number of the dtype where that is none."""
    a, b = unified("saturating_add", x, y)
    _require("saturating_add", a, ir.INTEGERS, "an integer")
    total, dtype = a + b, a.dtype
    if dtype.name in ir.UNSIGNED:
        return select(total < a, dtype(dtype.max), total)
    over = ((a ^ total) & (b ^ total)) < 0
    return select(over, select(a < 0, dtype(dtype.min), dtype(dtype.max)), total)


def saturating_sub(x: Any, y: Any) -> Any:
    """x - y of integers, the nearest number of the dtype where that is none."""
    a, b = unified("saturating_sub", x, y)
    _require("saturating_sub", a, ir.INTEGERS, "an integer")
    total, dtype = a - b, a.dtype
    if dtype.name in ir.UNSIGNED:
        return select(a < b, dtype(0), total)
    over = ((a ^ b) & (a ^ total)) < 0
    return select(over, select(a < 0, dtype(dtype.min), dtype(dtype.max)), total)


def mulhi(x: Any, y: Any) -> Any:
    """The high half of the product of two integers."""
    a, b = unified("mulhi", x, y)
    _require("mulhi", a, ir.INTEGERS, "an integer")
    return Value(a.core.build.op("mulhi", a.core, b.core), a.natural and b.natural)


def select(condition: Any, then: Any, orelse: Any) -> Any:
    """`then` where a condition holds, else `orelse`, lane by lane; both are computed."""
    test = as_bool("select", condition)
    x, y = unified("select", then, orelse)
    x, mask = _alike(x, test)
    y, mask = _alike(y, mask)
    if x.dtype.name == "bool" and y.core.constant is False:
        return Value(mask.core & x.core)
    if x.dtype.name == "bool" and x.core.constant is True:
        return Value(mask.core | y.core)
    return Value(mask.core.build.select(mask.core, x.core, y.core), x.natural and y.natural)


def _alike(x: Value, mask: Value) -> tuple[Value, Value]:
    lanes = builtins.max(x.lanes, mask.lanes)
    build = mask.core.build
    return (
        Value(build.splat(x.core, lanes), x.natural),
        Value(build.splat(mask.core, lanes)),
    )


# bits -----------------------------------------------------------------------------------------


def _whole(name: str, x: Any) -> Value:
    return _require(name, lifted(x), ir.INTEGERS, "an integer, not an index")


def popcount(x: Any) -> Any:
    """How many bits are 1."""
    value = _whole("popcount", x)
    return Value(value.core.build.op("popcount", value.core))


def clz(x: Any) -> Any:
    """How many bits above the highest 1 there are; all of them if there is no 1."""
    value = _whole("clz", x)
    return Value(value.core.build.op("clz", value.core))


def ctz(x: Any) -> Any:
    """How many bits below the lowest 1 there are; all of them if there is no 1."""
    value = _whole("ctz", x)
    return popcount(~value & (value - 1))


def ffs(x: Any) -> Any:
    """The place of the lowest 1, counted from 1; 0 if there is none."""
    value = _whole("ffs", x)
    return select(value == 0, value.dtype(0), ctz(value) + 1)


def reverse_bits(x: Any) -> Any:
    """The bits in the other order."""
    value = _whole("reverse_bits", x)
    unsigned = DTYPES[f"u{value.dtype.bits}"]
    bits, width = value.bitcast(unsigned), value.dtype.bits
    shift = width // 2
    while shift:
        mask = sum(((1 << shift) - 1) << place for place in range(0, width, 2 * shift))
        bits = ((bits >> shift) & mask) | ((bits & mask) << shift)
        shift //= 2
    return bits.bitcast(value.dtype)


# Python's own functions -------------------------------------------------------------------------


def as_float(x: Any = 0.0) -> Any:
    """`float(x)`: a run-time number as f32."""
    return DTYPES["f32"](x) if _is_run_time(x) else float(x)


def as_int(x: Any = 0, *base: int) -> Any:
    """`int(x)`: a run-time number as i32, truncated."""
    return DTYPES["i32"](x) if _is_run_time(x) else int(x, *base)


def as_truth(x: Any = False) -> Any:
    """`bool(x)`: whether a number is not 0."""
    return resolved(x) != 0 if _is_run_time(x) else bool(x)


def _is_run_time(x: Any) -> bool:
    return isinstance(x, Operators) and isinstance(resolved(x), Value)


def any_of(items: Iterable[Any]) -> Any:
    """Whether one of some conditions holds; all of them are computed."""
    return _folded(items, False)


def all_of(items: Iterable[Any]) -> Any:
    """Whether all of some conditions hold; all of them are computed."""
    return _folded(items, True)


def _folded(items: Iterable[Any], neutral: bool) -> Any:
    values = [item for item in items]
    if not any(isinstance(item, Operators) for item in values):
        return builtins.all(values) if neutral else builtins.any(values)
    found: Any = neutral
    for item in values:
        one = as_bool("all" if neutral else "any", item)
        found = one if found is neutral else (found & one if neutral else found | one)
    return found


def length(x: Any) -> Any:
    """`len(x)`: of an array, the length of its first axis."""
    if isinstance(x, Value):
        return x.lanes
    return x.shape[0] if hasattr(x, "as_lines") else len(x)


# lines ----------------------------------------------------------------------------------------


def line(*numbers: Any) -> Value:
    """A line of numbers of one dtype, and of the lanes of lines.

    Raises DtypeError if they have several dtypes.
    """
    if not numbers:
        fail(KernelError, "line: there must be a number", "none", "Write line(a, b).")
    values = [resolved(x) for x in numbers]
    model = next((x for x in values if isinstance(x, Value)), None)
    dtype = lifted(values[0]).dtype if model is None else model.dtype
    parts = [converted(x, dtype, "a number of a line") for x in values]
    return Value(arithmetic.joined([part.core for part in parts]))


def full(lanes: int, value: Any) -> Value:
    """A line that has one number in every lane."""
    number = lifted(value)
    return Value(number.core.build.splat(number.core, lanes), number.natural)


def lane_numbers(lanes: int) -> Value:
    """The line 0, 1, 2, ... of indices."""
    zero = constant(0, DTYPES["index"])
    return Value(zero.core.build.lane(lanes), True)
