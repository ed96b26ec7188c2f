"""Functions of real scalars and lines by name: which are operations of the target, which are its
double-precision library's, and which are decomposed here. Half-precision and 8-bit floats are
computed in single precision and rounded once."""

from __future__ import annotations

from collections.abc import Callable

from xcube.errors import LoweringError
from xcube.lowering.cube import (
    ir,
    math_double,
    math_exp,
    math_hyper,
    math_special,
    math_trig,
)
from xcube.lowering.cube.build import Builder, Operand, Value
from xcube.lowering.cube.math_float import INFINITY, absolute, square_root, where

Function = Callable[..., Value]

NARROW = ("f8_e4m3fn", "f8_e5m2", "f16", "bf16")
SIGNED_OF = dict(zip(ir.UNSIGNED, ir.SIGNED, strict=True))
UNSIGNED_OF = dict(zip(ir.SIGNED, ir.UNSIGNED, strict=True))


def itself(x: Value) -> Value:
    return x


def zero(x: Value) -> Value:
    return x.build.constant(0, x.dtype, x.lanes)


def sign(x: Value) -> Value:
    """-1, 0 or 1; a zero keeps its sign and NaN stays."""
    if x.dtype in ir.UNSIGNED or x.dtype == "bool":
        return x.ne(0).cast(x.dtype)
    minus = where(x < 0, -1, x, x.dtype)
    return where(x > 0, 1, minus, x.dtype)


def magnitude(x: Value) -> Value:
    return x if x.dtype in (*ir.UNSIGNED, "bool") else absolute(x)


def square(x: Value) -> Value:
    return x * x


def reciprocal(x: Value) -> Value:
    return 1 / x


def rsqrt(x: Value) -> Value:
    return 1.0 / square_root(x)


def integer_pow(x: Value, n: int) -> Value:
    """x^n for an n known at comptime, by repeated squaring; a negative n for floats only."""
    if n < 0:
        return reciprocal(integer_pow(x, -n))
    if n == 0:
        return x.build.constant(1, x.dtype, x.lanes)
    half = integer_pow(x, n // 2) if n > 1 else None
    even = x if half is None else half * half
    return even * x if n > 1 and n % 2 else even


def clamp(low: Operand, x: Value, high: Operand) -> Value:
    """min(max(x, low), high); NaN stays."""
    return x.build.op("min", x.build.op("max", x, low), high)


def is_finite(x: Value) -> Value:
    if x.dtype not in ir.FLOATS:
        return x.build.constant(True, "bool", x.lanes)
    return absolute(x) < INFINITY


def is_nan(x: Value) -> Value:
    return x.ne(x)


def round_half_away(x: Value) -> Value:
    """The nearest integer, ties away from zero; -0 and infinities stay."""
    whole = x.build.op("trunc", x)
    step = where(x < 0.0, -1.0, 1.0, x.dtype)
    return where(absolute(x - whole) >= 0.5, whole + step, whole)


def round_half_even(x: Value) -> Value:
    return x.build.op("round", x)


def nextafter(x: Value, y: Value) -> Value:
    """The float after x on the way to y; y itself if they are equal."""
    width = ir.BITS[x.dtype]
    whole = f"i{width}"
    here, target = x.bitcast(whole), y.bitcast(whole)
    grows = (x < y) ^ (here < 0)
    smallest = (target & -(1 << (width - 1))) | 1
    moved = where(x.eq(0.0), smallest, here + where(grows, 1, -1, whole))
    result = where(x.eq(y), target, moved).bitcast(x.dtype)
    return where(is_nan(x), x, where(is_nan(y), y, result))


def shift_right_logical(x: Value, amount: Value) -> Value:
    """Zeros come in from the left, whatever the signedness."""
    if x.dtype not in UNSIGNED_OF:
        return x >> amount
    unsigned = UNSIGNED_OF[x.dtype]
    return (x.bitcast(unsigned) >> amount.bitcast(unsigned)).bitcast(x.dtype)


def shift_right_arithmetic(x: Value, amount: Value) -> Value:
    """Copies of the top bit come in from the left, whatever the signedness."""
    if x.dtype not in SIGNED_OF:
        return x >> amount
    signed = SIGNED_OF[x.dtype]
    return (x.bitcast(signed) >> amount.bitcast(signed)).bitcast(x.dtype)


def shift_left(x: Value, amount: Value) -> Value:
    return x << amount


def population_count(x: Value) -> Value:
    return x.build.op("popcount", x)


# For every dtype that the operations used allow.
GENERIC: dict[str, Function] = {
    "sign": sign,
    "abs": magnitude,
    "square": square,
    "reciprocal": reciprocal,
    "rsqrt": rsqrt,
    "integer_pow": integer_pow,
    "clamp": clamp,
    "is_finite": is_finite,
    "isnan": is_nan,
    "round_half_away": round_half_away,
    "round_half_even": round_half_even,
    "nextafter": nextafter,
    "shift_left": shift_left,
    "shift_right_logical": shift_right_logical,
    "shift_right_arithmetic": shift_right_arithmetic,
    "population_count": population_count,
    "real": itself,
    "conj": itself,
    "imag": zero,
}
SINGLE: dict[str, Function] = {
    "exp": math_exp.exp,
    "exp2": math_exp.exp2,
    "expm1": math_exp.expm1,
    "log": math_exp.log,
    "log2": math_exp.log2,
    "log1p": math_exp.log1p,
    "logistic": math_exp.logistic,
    "pow": math_exp.pow,
    "cbrt": math_exp.cbrt,
    "sin": math_trig.sin,
    "cos": math_trig.cos,
    "tan": math_trig.tan,
    "asin": math_trig.asin,
    "acos": math_trig.acos,
    "atan": math_trig.atan,
    "atan2": math_trig.atan2,
    "sinh": math_hyper.sinh,
    "cosh": math_hyper.cosh,
    "tanh": math_hyper.tanh,
    "asinh": math_hyper.asinh,
    "acosh": math_hyper.acosh,
    "atanh": math_hyper.atanh,
    "erf": math_special.erf,
    "erfc": math_special.erfc,
    "erf_inv": math_special.erf_inv,
    "lgamma": math_special.lgamma,
    "digamma": math_special.digamma,
}
DOUBLE: dict[str, Function] = {
    "logistic": math_double.logistic,
    "erf_inv": math_double.erf_inv,
    "digamma": math_double.digamma,
}
# Exact in every float dtype, so that narrow operands need no detour.
EXACT = frozenset(
    (
        *("eq", "ne", "lt", "le", "gt", "ge", "select", "neg", "abs", "min", "max"),
        *("isnan", "nextafter", "real", "conj", "imag"),
    )
)
# What a builder that keeps calls has as single operations: see decompose.py.
CALLS = frozenset((*SINGLE, "rsqrt"))
OF_BOOL = {"add": "or", "max": "or", "mul": "and", "min": "and"}


def apply(build: Builder, name: str, *args: Operand) -> Value:
    """A function of real operands; Python numbers take the dtype of the others."""
    model = next(arg for arg in args if isinstance(arg, Value))
    if name == "select":
        model = next((arg for arg in args[1:] if isinstance(arg, Value)), model)
    if build.keeps_calls and name in CALLS and model.dtype in ir.FLOATS:
        lifted = [build.splat(build.lift(arg, model), model.lanes) for arg in args]
        return build.call(name, *lifted)
    if model.dtype in NARROW and name not in EXACT:
        return in_single(build, name, args, model.dtype)
    if model.dtype == "bool":
        name = OF_BOOL.get(name, name)
    if (function := find(name, model.dtype)) is not None:
        return function(*as_values(build, name, args, model))
    if name not in ir.OPS or model.dtype not in ir.OPS[name].dtypes:
        raise LoweringError(
            f"{name}: must be a scalar function that {model.dtype} has; it is not, in "
            f"{build.name}; cast the operands or use one of {', '.join(names(model.dtype))}."
        )
    return build.op(name, *args)


def find(name: str, dtype: str) -> Function | None:
    """The decomposition of a function for a dtype, if it has one."""
    own = {"f32": SINGLE, "f64": DOUBLE}.get(dtype, {})
    return GENERIC.get(name) or own.get(name)


def names(dtype: str) -> list[str]:
    """All functions that operands of a dtype have."""
    own = {"f64": DOUBLE}.get(dtype, SINGLE if dtype in ir.FLOATS else {})
    core = (name for name, row in ir.OPS.items() if dtype in row.dtypes and row.arity)
    return sorted({*GENERIC, *own, *core})


def as_values(build: Builder, name: str, args: tuple[Operand, ...], model: Value) -> list[Operand]:
    """Python numbers as constants; the exponent of `integer_pow` stays a comptime number."""
    if name == "integer_pow":
        return list(args)
    return [build.splat(build.lift(arg, model), model.lanes) for arg in args]


def in_single(build: Builder, name: str, args: tuple[Operand, ...], dtype: str) -> Value:
    """Computed in f32 and rounded back."""
    wide = [arg.cast("f32") if isinstance(arg, Value) else arg for arg in args]
    result = apply(build, name, *wide)
    return result.cast(dtype) if result.dtype == "f32" else result
