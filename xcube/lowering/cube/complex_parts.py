"""Complex numbers as pairs of values, and the arithmetic that scales to avoid overflow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xcube.lowering.cube import math_real
from xcube.lowering.cube.build import Builder, Operand, Value
from xcube.lowering.cube.math_float import INFINITY, absolute, fma, square_root, where


@dataclass(frozen=True, slots=True, eq=False)
class Complex:
    """real + i imag: two values of one float dtype and number of lanes."""

    real: Value
    imag: Value

    @property
    def build(self) -> Builder:
        return self.real.build

    @property
    def dtype(self) -> str:
        """The dtype of the parts."""
        return self.real.dtype


Number = Complex | Operand


def call(name: str, *args: Operand) -> Value:
    """A real function of the parts."""
    build = next(arg.build for arg in args if isinstance(arg, Value))
    return math_real.apply(build, name, *args)


def promote(x: Number, like: Complex) -> Complex:
    """A number as a complex one."""
    if isinstance(x, Complex):
        return x
    build = like.build
    if not isinstance(x, Value):
        value = complex(x)
        real = build.constant(value.real, like.dtype, like.real.lanes)
        return Complex(real, build.constant(value.imag, like.dtype, like.real.lanes))
    return Complex(x, build.constant(0.0, x.dtype, x.lanes))


def choose(condition: Value, x: Complex, y: Complex) -> Complex:
    """x where the condition holds, y elsewhere."""
    select = condition.build.select
    return Complex(select(condition, x.real, y.real), select(condition, x.imag, y.imag))


def each(function: Callable[[Value], Value], z: Complex) -> Complex:
    return Complex(function(z.real), function(z.imag))


def is_infinite(z: Complex) -> Value:
    """Whether a part is infinite."""
    return absolute(z.real).eq(INFINITY) | absolute(z.imag).eq(INFINITY)


def with_sign_of(x: Value, sign: Value) -> Value:
    """|x| with the sign of another float of either precision."""
    width = f"i{64 if x.dtype == 'f64' else 32}"
    top = -(1 << (63 if x.dtype == "f64" else 31))
    return (absolute(x).bitcast(width) | (sign.bitcast(width) & top)).bitcast(x.dtype)


def is_negative(x: Value) -> Value:
    """Whether the sign bit is set."""
    return x.bitcast("i64" if x.dtype == "f64" else "i32") < 0


def add(x: Complex, y: Complex) -> Complex:
    return Complex(x.real + y.real, x.imag + y.imag)


def sub(x: Complex, y: Complex) -> Complex:
    return Complex(x.real - y.real, x.imag - y.imag)


def mul(x: Complex, y: Complex) -> Complex:
    return Complex(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


def div(x: Complex, y: Complex) -> Complex:
    """Smith's quotient: by the larger part of y, so that |y|^2 is never formed."""
    swap = absolute(y.real) < absolute(y.imag)
    large, small = where(swap, y.imag, y.real), where(swap, y.real, y.imag)
    ratio = where(large.eq(0.0), 0.0, small / large)
    bottom = fma(small, ratio, large)
    first, second = where(swap, x.imag, x.real), where(swap, x.real, x.imag)
    real = fma(second, ratio, first)
    imag = where(swap, fma(x.imag, ratio, -x.real), fma(-x.real, ratio, x.imag))
    return Complex(real / bottom, imag / bottom)


def neg(z: Complex) -> Complex:
    return each(lambda part: -part, z)


def conj(z: Complex) -> Complex:
    return Complex(z.real, -z.imag)


def square(z: Complex) -> Complex:
    product = z.real * z.imag
    return Complex((z.real - z.imag) * (z.real + z.imag), product + product)


def reciprocal(z: Complex) -> Complex:
    return div(promote(1.0, z), z)


def times_i(z: Complex) -> Complex:
    return Complex(-z.imag, z.real)


def over_i(z: Complex) -> Complex:
    return Complex(z.imag, -z.real)


# (above, below, up, down): parts above 2^above are multiplied by 2^-down, below 2^below by 2^up;
# then squares neither overflow nor lose bits. The exponents are even for the square root.
_LIMITS = {"f32": (62, -44, 100, 66), "f64": (500, -400, 700, 600)}


@dataclass(frozen=True, slots=True)
class Polar:
    """|z| as `size` 2^exponent; `factor` is 2^-exponent."""

    size: Value
    factor: Value
    exponent: Value


def polar(z: Complex) -> Polar:
    """The absolute value of z, scaled so that it neither overflows nor underflows."""
    above, below, up, down = _LIMITS[z.dtype]
    a, b = absolute(z.real), absolute(z.imag)
    largest = where(a > b, a, b)
    high, low = largest > 2.0**above, largest < 2.0**below
    dtype = z.dtype
    factor = where(high, 2.0**-down, where(low, 2.0**up, 1.0, dtype))
    exponent = where(high, float(down), where(low, float(-up), 0.0, dtype))
    a, b = a * factor, b * factor
    size = square_root(fma(a, a, b * b))
    size = where(is_infinite(z), INFINITY, size)
    return Polar(size, factor, exponent)


def power_of_two(exponent: Value, dtype: str) -> Value:
    """2^exponent for the integral exponents that `polar` gives, or half of them."""
    bits, bias, place = ("i64", 1023, 52) if dtype == "f64" else ("i32", 127, 23)
    return ((exponent.cast(bits) + bias) << place).bitcast(dtype)


def magnitude(z: Complex) -> Value:
    """|z|: without overflow or underflow on the way."""
    parts = polar(z)
    return parts.size * power_of_two(parts.exponent, z.dtype)


def sign(z: Complex) -> Complex:
    """z / |z|, and 0 at 0."""
    parts = polar(z)
    zero = parts.size.eq(0.0)
    size = where(zero, 1.0, parts.size)
    return each(lambda part: where(zero, 0.0, part * parts.factor / size), z)


def sqrt(z: Complex) -> Complex:
    """The root with a real part >= 0; the cut is the negative real axis, by the sign of imag."""
    parts = polar(z)
    scaled = absolute(z.real) * parts.factor
    root = square_root(fma(scaled, 0.5, parts.size * 0.5))
    root = root * power_of_two(parts.exponent * 0.5, z.dtype)
    other = where(root.eq(0.0), 0.0, absolute(z.imag) * 0.5 / root)
    infinite = absolute(z.imag).eq(INFINITY)
    left = is_negative(z.real)
    real = where(infinite, INFINITY, where(left, other, root))
    imag = where(infinite, INFINITY, where(left, root, other))
    return Complex(real, with_sign_of(imag, z.imag))


def rsqrt(z: Complex) -> Complex:
    return reciprocal(sqrt(z))


def integer_pow(z: Complex, n: int) -> Complex:
    """z^n for an n known at comptime, by repeated squaring."""
    if n < 0:
        return reciprocal(integer_pow(z, -n))
    if n == 0:
        return promote(1.0, z)
    if n == 1:
        return z
    half = integer_pow(z, n // 2)
    even = square(half)
    return mul(even, z) if n % 2 else even
