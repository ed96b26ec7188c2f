"""Complex arithmetic by name: pairs of real values in, a pair (or a real value, or a bool) out."""

from __future__ import annotations

from collections.abc import Callable

from xcube.errors import LoweringError
from xcube.lowering.cube import complex_functions, complex_parts
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.complex_parts import Complex, Number, call, choose, promote

__all__ = ["Complex", "apply"]

Function = Callable[..., Complex | Value]


def real(z: Complex) -> Value:
    return z.real


def imag(z: Complex) -> Value:
    return z.imag


def equal(x: Complex, y: Complex) -> Value:
    return x.real.eq(y.real) & x.imag.eq(y.imag)


def differ(x: Complex, y: Complex) -> Value:
    return x.real.ne(y.real) | x.imag.ne(y.imag)


def is_finite(z: Complex) -> Value:
    return call("is_finite", z.real) & call("is_finite", z.imag)


def is_nan(z: Complex) -> Value:
    return call("isnan", z.real) | call("isnan", z.imag)


FUNCTIONS: dict[str, Function] = {
    "add": complex_parts.add,
    "sub": complex_parts.sub,
    "mul": complex_parts.mul,
    "div": complex_parts.div,
    "neg": complex_parts.neg,
    "conj": complex_parts.conj,
    "real": real,
    "imag": imag,
    "abs": complex_parts.magnitude,
    "sign": complex_parts.sign,
    "square": complex_parts.square,
    "reciprocal": complex_parts.reciprocal,
    "sqrt": complex_parts.sqrt,
    "rsqrt": complex_parts.rsqrt,
    "eq": equal,
    "ne": differ,
    "is_finite": is_finite,
    "isnan": is_nan,
    "exp": complex_functions.exp,
    "exp2": complex_functions.exp2,
    "expm1": complex_functions.expm1,
    "log": complex_functions.log,
    "log2": complex_functions.log2,
    "log1p": complex_functions.log1p,
    "logistic": complex_functions.logistic,
    "pow": complex_functions.pow,
    "sin": complex_functions.sin,
    "cos": complex_functions.cos,
    "tan": complex_functions.tan,
    "asin": complex_functions.asin,
    "acos": complex_functions.acos,
    "atan": complex_functions.atan,
    "sinh": complex_functions.sinh,
    "cosh": complex_functions.cosh,
    "tanh": complex_functions.tanh,
    "asinh": complex_functions.asinh,
    "acosh": complex_functions.acosh,
    "atanh": complex_functions.atanh,
}


def apply(build: Builder, name: str, *args: Number) -> Complex | Value:
    """A function of complex operands; real ones are promoted.

    "complex" makes a number of its two parts; `select` has a real condition, `integer_pow` a
    comptime exponent.

    Raises LoweringError if there is no complex function of that name.

    >>> build = Builder("example")
    >>> x = build.load(build.buffer("f32"), 0)
    >>> apply(build, "abs", apply(build, "complex", x, x)).type
    Type(dtype='f32', lanes=1)
    """
    if name == "complex":
        return from_parts(build, *args)
    like = next(arg for arg in args if isinstance(arg, Complex))
    if name == "select":
        return select(args, like)
    if name == "integer_pow":
        exponent = args[1]
        assert isinstance(exponent, int), "integer_pow: the exponent is a Python int"
        return complex_parts.integer_pow(like, exponent)
    if (function := FUNCTIONS.get(name)) is None:
        raise LoweringError(
            f"{name}: must be a function of complex numbers; it is not, in {build.name}; "
            f"use one of {', '.join(sorted(FUNCTIONS))}, or take the real and imaginary parts."
        )
    return function(*(promote(arg, like) for arg in args))


def select(args: tuple[Number, ...], like: Complex) -> Complex:
    condition, then, orelse = args
    assert isinstance(condition, Value), "select: the condition is a bool value"
    return choose(condition, promote(then, like), promote(orelse, like))


def from_parts(build: Builder, *parts: Number) -> Complex:
    """A complex number of two values, or of a value and a Python number."""
    numbers = [part for part in parts if not isinstance(part, Complex)]
    model = next(part for part in numbers if isinstance(part, Value))
    lanes = max(part.lanes for part in numbers if isinstance(part, Value))
    real_part, imag_part = (build.splat(build.lift(part, model), lanes) for part in numbers)
    return Complex(real_part, imag_part)
