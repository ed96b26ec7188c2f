"""Scalar functions of the kernel language, compiled for the host: the stated error bounds over all
magnitudes against extended precision, special values, every lane count alike, the interpreter bit
for bit, and other dtypes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest
from formula import LANES, Array, built, call, named, run

from xcube.errors import LoweringError
from xcube.lowering.cube import math as kernel_math
from xcube.lowering.cube.arithmetic import NUMPY
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.interpreter import interpret

special = pytest.importorskip("scipy.special")

SAMPLES = 25_000


# errors and samples ---------------------------------------------------------------------------


def ulps(got: Array, want: Array, like: Array | None = None) -> Array:
    """Errors in units in the last place of the f32 nearest to `want`, or to `like`; overflow
    counts as 2^128."""
    with np.errstate(all="ignore"):
        size = np.abs(want if like is None else like).astype(np.float32)
        spacing = np.spacing(np.clip(size, 2.0**-126, np.float32(3.4028235e38)))
        top = np.longdouble(2.0**128)
        reached = np.clip(got.astype(np.longdouble), -top, top)
        error = np.abs(reached - np.clip(want, -top, top)) / spacing
    error = np.where(np.isnan(got) & np.isnan(want), 0, error)
    return np.where(np.isnan(got) != np.isnan(want), np.inf, error).astype(float)


def spread(count: int, seed: int = 0) -> Array:
    """f32 of all exponents and both signs, alike often."""
    bits = np.random.default_rng(seed).integers(0, 0x7F800000, count, np.uint32)
    bits |= np.random.default_rng(seed + 1).integers(0, 2, count, np.uint32) << np.uint32(31)
    return bits.view(np.float32)


def between(low: float, high: float, count: int = SAMPLES) -> Array:
    return np.random.default_rng(7).uniform(low, high, count).astype(np.float32)


def double(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A reference that works in f64."""
    return lambda x: function(x.astype(np.float64))


def digamma(x: Array) -> Array:
    """NaN at the poles; by mpmath beside them, where SciPy loses digits."""
    distance = np.abs(x - np.rint(x))
    result = np.where((x <= 0) & (distance == 0), np.nan, special.digamma(x))
    for place in np.flatnonzero((x < -0.5) & (distance > 0) & (distance < 1e-3)):
        result[place] = float(mpmath.digamma(float(x[place])))
    return result


def lgamma(x: Array) -> Array:
    return np.where(np.isinf(x), np.inf, special.gammaln(x))


def erf_inv(x: Array) -> Array:
    return np.copysign(special.erfinv(x), x)


@dataclass(frozen=True)
class Row:
    """A function of one argument: its reference in extended precision, the bound that the table of
    `math.py` states for f32, and where its values are interesting."""

    name: str
    reference: Callable[[Array], Array]
    bound: float
    low: float
    high: float


ROWS = [
    Row("exp", np.exp, 1.25, -104, 89),
    Row("exp2", np.exp2, 1.25, -150, 128),
    Row("expm1", np.expm1, 1.75, -18, 20),
    Row("log", np.log, 1.25, 0.5, 2),
    Row("log2", np.log2, 1.25, 0.5, 2),
    Row("log1p", np.log1p, 1.75, -1, 2),
    Row("logistic", lambda x: 1 / (1 + np.exp(-x)), 1.75, -104, 20),
    Row("cbrt", np.cbrt, 1.25, -10, 10),
    Row("rsqrt", lambda x: 1 / np.sqrt(x), 1.75, 0, 10),
    Row("sqrt", np.sqrt, 0.5, 0, 10),
    Row("reciprocal", lambda x: 1 / x, 0.5, -10, 10),
    Row("sin", np.sin, 1.75, -1000, 1000),
    Row("cos", np.cos, 1.75, -1000, 1000),
    Row("tan", np.tan, 2, -100, 100),
    Row("asin", np.arcsin, 1.5, -1, 1),
    Row("acos", np.arccos, 1.5, -1, 1),
    Row("atan", np.arctan, 1.5, -10, 10),
    Row("sinh", np.sinh, 2, -3, 3),
    Row("cosh", np.cosh, 1.75, -90, 90),
    Row("tanh", np.tanh, 1.5, -10, 10),
    Row("asinh", np.arcsinh, 1, -10, 10),
    Row("acosh", np.arccosh, 1.75, 1, 10),
    Row("atanh", np.arctanh, 1, -1, 1),
    Row("erf", double(special.erf), 1.25, -4, 4),
    Row("erfc", double(special.erfc), 4, -4, 10.5),
    Row("erf_inv", double(erf_inv), 4, -1, 1),
    Row("lgamma", double(lgamma), 4, 0, 20),
    Row("digamma", double(digamma), 4, 0, 20),
]
FUNCTIONS = [row.name for row in ROWS]
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)

EDGES = np.array(
    (
        *(0.0, 1.0, 0.5, 2.0, 1e-45, 1e-40, 2.0**-126, 3.4028235e38, np.inf, 1.5, 3.0, 88.72),
        *(89.0, 104.0, 131072.0, 131076.0, 16777216.0, 0.9, 0.625, 0.99999994, 1.0000001),
        *(8.0, 8192.0, 1e30),
    ),
    np.float32,
)
EDGES = np.concatenate([EDGES, -EDGES, np.array([np.nan], np.float32)])


def assert_within(row: Row, x: Array) -> None:
    wide = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        want = like = row.reference(wide)
        if row.name in ("lgamma", "digamma"):
            mirrored = np.fmax(np.fmax(np.abs(want), np.abs(row.reference(-wide))), 1)
            like = np.where(x < 0, mirrored, want)
    error = ulps(call(row.name, x), want, like)
    worst = int(np.argmax(error))
    assert error[worst] <= row.bound, f"{row.name}({x[worst]!r}): {error[worst]} ulp"


@each_row
def test_error_is_within_the_stated_bound(row: Row) -> None:
    assert_within(row, np.concatenate([spread(SAMPLES), between(row.low, row.high)]))


@each_row
def test_edges_and_special_values(row: Row) -> None:
    assert_within(row, EDGES)
    with np.errstate(all="ignore"):
        want = row.reference(EDGES.astype(np.longdouble)).astype(np.float32)
    got = call(row.name, EDGES)
    zeros = want == 0
    np.testing.assert_array_equal(np.signbit(got)[zeros], np.signbit(want)[zeros])
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


@pytest.mark.slow
@each_row
def test_error_is_within_the_stated_bound_everywhere(row: Row) -> None:
    for start in range(0, 1 << 32, 1 << 30):
        bits = np.arange(start, start + (1 << 30), 1021, dtype=np.int64).astype(np.uint32)
        x = bits.view(np.float32)
        assert_within(row, x[np.isfinite(x)])


# two arguments --------------------------------------------------------------------------------

PAIRS = np.array(
    [0.0, 1.0, 2.0, 3.0, 0.5, 1.5, np.inf, 1e-45, 3.4e38, 16777216.0, 16777215.0, 1.0000001],
    np.float32,
)
PAIRS = np.concatenate([PAIRS, -PAIRS, np.array([np.nan, 0.99999994], np.float32)])


def power_samples() -> tuple[Array, Array]:
    base = np.abs(spread(SAMPLES, 2))
    base = np.where(np.arange(SAMPLES) % 2, base, between(0.5, 2)).astype(np.float32)
    near_one = 1 + between(-1, 1) * np.exp2(between(-24, -1))
    base = np.where(np.arange(SAMPLES) % 4, base, near_one).astype(np.float32)
    exponent = between(-150, 128) / np.where(base == 1, 1, np.log2(base.astype(np.float64)))
    return base, exponent.astype(np.float32)


@pytest.mark.parametrize(
    "name, reference, bound", [("pow", np.power, 1.25), ("atan2", np.arctan2, 2)]
)
def test_two_arguments_are_within_the_stated_bound(
    name: str, reference: Callable[..., Array], bound: float
) -> None:
    grid = np.meshgrid(PAIRS, PAIRS)
    cases = [(spread(SAMPLES, 2), spread(SAMPLES, 4)), (grid[0].ravel(), grid[1].ravel())]
    cases.append(power_samples() if name == "pow" else (between(-1, 1), spread(SAMPLES)))
    for x, y in cases:
        with np.errstate(all="ignore"):
            want = reference(x.astype(np.longdouble), y.astype(np.longdouble))
        got = call(name, x, y)
        error = ulps(got, want)
        worst = int(np.argmax(error))
        assert error[worst] <= bound, f"{name}({x[worst]!r}, {y[worst]!r}): {error[worst]} ulp"
        number = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


def test_remainder_is_exact_for_all_magnitudes() -> None:
    x, y = spread(SAMPLES, 2), spread(SAMPLES, 4)
    np.testing.assert_array_equal(call("rem", x, y), np.fmod(x, y))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_nextafter(dtype: Any) -> None:
    with np.errstate(all="ignore"):
        x, y = (part.ravel().astype(dtype) for part in np.meshgrid(PAIRS, PAIRS))
        want = np.nextafter(x, y)
    got = call("nextafter", x, y)
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
    moved = ~np.isnan(want.astype(np.float64)) & (x != y)
    np.testing.assert_array_equal(np.signbit(got)[moved], np.signbit(want)[moved])


# every target and width -----------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_scalar_and_a_line_agree_bit_for_bit(name: str) -> None:
    x = np.concatenate([EDGES, spread(300), between(-3, 3, 300)])
    line, scalar = call(name, x), call(name, x, lanes=1)
    np.testing.assert_array_equal(line.view(np.uint32), scalar.view(np.uint32))


@pytest.mark.parametrize("name", [*FUNCTIONS, "pow", "atan2"])
def test_the_interpreter_agrees(name: str) -> None:
    x = np.concatenate([spread(16), between(-2, 2, 16), EDGES[:16]])
    args = [x, x[::-1].copy()] if name in ("pow", "atan2") else [x]
    kernel = built(named(name), ("f32",) * len(args), "f32", LANES)
    output = np.zeros_like(x)
    with np.errstate(all="ignore"):
        interpret(kernel, 1, [*args, output], [len(x)])
    np.testing.assert_array_equal(call(name, *args), output)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_narrow_floats_are_computed_in_single_precision(name: str, dtype: Any) -> None:
    x = between(-3, 3, 500).astype(dtype)
    with np.errstate(all="ignore"):
        want = call(name, x.astype(np.float32)).astype(dtype)
    np.testing.assert_array_equal(call(name, x).view(np.uint16), want.view(np.uint16))


@each_row
def test_double_precision(row: Row) -> None:
    x = np.random.default_rng(3).uniform(row.low, row.high, 2000)
    x = np.concatenate([x, np.random.default_rng(4).uniform(-1, 1, 2000), EDGES])
    with np.errstate(all="ignore"):
        want = row.reference(x)
        smallest = 3 if row.name in ("digamma", "lgamma") else 2.0**-1000  # roots and poles
        error = np.abs(call(row.name, x) - want) / np.maximum(np.abs(want), smallest)
    finite = np.isfinite(want)
    assert np.max(error[finite]) < 3e-14
    np.testing.assert_array_equal(call(row.name, x)[~finite], want[~finite])


def test_the_tail_of_erf_inv_in_double_precision() -> None:
    y = np.linspace(1, 5.8, 500)
    x = special.erf(y)
    slope = np.exp(special.erfinv(x) ** 2)  # how much half an ulp of x moves the result
    assert np.max(np.abs(call("erf_inv", x) - special.erfinv(x)) / slope) < 4e-16


# exact functions ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rounding_functions(dtype: Any) -> None:
    x = np.array([0.5, 1.5, 2.5, 0.49999997, 2047.5, 6e4, np.inf, np.nan, 0.0, 0.3], dtype)
    x = np.concatenate([x, -x, between(-9, 9, 200).astype(dtype)])
    away = np.where(
        np.isfinite(x), np.copysign(np.floor(np.abs(x.astype(np.longdouble)) + 0.5), x), x
    )
    np.testing.assert_array_equal(call("round_half_away", x), away.astype(dtype))
    for name, function in (("round_half_even", np.rint), ("floor", np.floor), ("ceil", np.ceil)):
        got = call(name, x)
        np.testing.assert_array_equal(got, function(x))
        np.testing.assert_array_equal(np.signbit(got), np.signbit(function(x)))


def test_sign_keeps_zeros_and_nan() -> None:
    x = np.array([-3.0, -0.0, 0.0, 2.0, -np.inf, np.nan], np.float32)
    got = call("sign", x)
    np.testing.assert_array_equal(got, np.array([-1, 0, 0, 1, -1, np.nan], np.float32))
    assert np.signbit(got[1]) and not np.signbit(got[2])


@pytest.mark.parametrize("dtype", ["i8", "i32", "i64", "u8", "u32", "u64"])
def test_functions_of_integers(dtype: str) -> None:
    kind = NUMPY[dtype]
    info = np.iinfo(kind)
    x = np.array([0, 1, 2, 7, info.max, info.max - 1, info.min, info.min + 1, info.max // 3], kind)
    np.testing.assert_array_equal(call("sign", x), np.sign(x))
    np.testing.assert_array_equal(call("abs", x), np.abs(x))
    np.testing.assert_array_equal(run(named("integer_pow", 5), [x], dtype), x**5)
    bits = [bin(int(v) & ((1 << info.bits) - 1)) for v in x]
    np.testing.assert_array_equal(call("population_count", x), [b.count("1") for b in bits])
    np.testing.assert_array_equal(
        call("clz", x), [info.bits - len(b[2:].lstrip("0")) for b in bits]
    )
    assert call("is_finite", x, result="bool").all()


@pytest.mark.parametrize("dtype", ["i8", "i32", "u8", "u32", "u64"])
def test_shifts_of_both_kinds(dtype: str) -> None:
    kind = NUMPY[dtype]
    info = np.iinfo(kind)
    values = [0, 1, 5, info.max, info.min, info.max // 3]
    amounts = [0, 1, info.bits - 1, info.bits]
    x = np.repeat(np.array(values, kind), len(amounts))
    n = np.tile(np.array(amounts, kind), len(values))
    width, mask = info.bits, (1 << info.bits) - 1

    def wrapped(value: int) -> int:
        value &= mask
        return value - (1 << width) if info.min < 0 and value >> (width - 1) else value

    def signed(value: int) -> int:
        value &= mask
        return value - (1 << width) if value >> (width - 1) else value

    pairs = [(int(a), int(b)) for a, b in zip(x, n, strict=True)]
    cases = {
        "shift_left": [wrapped(a << b) for a, b in pairs],
        "shift_right_logical": [wrapped((a & mask) >> b) for a, b in pairs],
        "shift_right_arithmetic": [wrapped(signed(a) >> b) for a, b in pairs],
    }
    for name, want in cases.items():
        np.testing.assert_array_equal(call(name, x, n), np.array(want, kind))


def test_clamp_keeps_nan_and_its_bounds() -> None:
    low, x, high = (np.array(v, np.float32) for v in ([0, 0, 0], [np.nan, -1, 5], [1, 1, 1]))
    np.testing.assert_array_equal(call("clamp", low, x, high), np.array([np.nan, 0, 1], np.float32))


def test_integer_powers_of_floats() -> None:
    x = between(-3, 3, 100)
    for n in (0, 1, 2, 7, -1, -3):
        got = run(named("integer_pow", n), [x], "f32")
        np.testing.assert_allclose(got, x.astype(np.float64) ** n, rtol=2e-6)


def test_booleans_add_and_multiply_as_or_and_and() -> None:
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    np.testing.assert_array_equal(call("add", x, y), x | y)
    np.testing.assert_array_equal(call("max", x, y), x | y)
    np.testing.assert_array_equal(call("mul", x, y), x & y)


def test_polynomial_is_horners_rule() -> None:
    x = between(-1, 1, 100)
    got = run(_cubic, [x], "f32")
    np.testing.assert_allclose(got, np.polyval([4, 3, 2, 1], x.astype(np.float64)), atol=1e-6)


def _cubic(build: Builder, x: Value) -> Value:
    return kernel_math.polynomial(x, (1.0, 2.0, 3.0, 4.0))


def test_an_unknown_function_is_named_with_its_dtype() -> None:
    build = Builder("probe")
    x = build.load(build.buffer("i32"), 0)
    with pytest.raises(LoweringError, match=r"exp: must be a scalar function that i32 has.*probe"):
        kernel_math.apply(build, "exp", x)
