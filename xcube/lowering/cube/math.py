"""The one door for arithmetic on kernel values: `apply(build, name, *args)`. Core operations go
into the IR as they are, functions of f64 to the target's library where it has them, all others
through a decomposition into core operations; complex numbers are pairs.

Largest errors of the f32 functions over all arguments, in units in the last place of the result,
subnormals included (`tests/test_cube_math.py` asserts them), where `fma` rounds once:

    add sub mul div sqrt fma                        0.5
    asinh atanh                                     1.0
    exp exp2 log log2 cbrt pow erf                  1.25
    asin acos atan tanh                             1.5
    expm1 log1p acosh cosh sin cos logistic rsqrt   1.75
    atan2 sinh tan                                  2
    erf_inv erfc                                    4
    lgamma digamma                                  4, where x < 0 of the largest of f(x), f(-x), 1

Functions of f16, bf16 and 8-bit floats are computed in f32 and rounded once more.
"""

from __future__ import annotations

from xcube.lowering.cube import complex as complex_numbers
from xcube.lowering.cube import math_real
from xcube.lowering.cube.build import Builder, Operand, Value
from xcube.lowering.cube.complex import Complex
from xcube.lowering.cube.math_float import horner


def apply(build: Builder, name: str, *args: Operand | Complex) -> Value | Complex:
    """A scalar function, lane by lane: real or complex operands of one dtype and number of lanes.

    Names are those of `jax.lax`; a Python number takes the dtype of the other operands, and the
    second argument of `integer_pow` is a Python int. Complex operands promote real ones.

    Raises LoweringError if no function of that name takes operands of that dtype.

    >>> build = Builder("example")
    >>> x = build.load(build.buffer("f32"), 0, lanes=4)
    >>> apply(build, "exp", x).type
    Type(dtype='f32', lanes=4)
    """
    if name == "complex" or any(isinstance(arg, Complex) for arg in args):
        return complex_numbers.apply(build, name, *args)
    return math_real.apply(build, name, *args)  # type: ignore[arg-type]


def polynomial(x: Value, coefficients: tuple[Operand, ...]) -> Value:
    """c[0] + c[1] x + c[2] x^2 + ..., by Horner's rule with fma.

    >>> build = Builder("example")
    >>> x = build.load(build.buffer("f32"), 0)
    >>> polynomial(x, (1.0, 2.0, 3.0)).type
    Type(dtype='f32', lanes=1)
    """
    return horner(x, coefficients)
