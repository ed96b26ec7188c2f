"""Numbers in kernels: operators, promotion, casts, mathematics, bits and lines, against NumPy and
Python."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special

from xcube import ShapeDtypeStruct, config, cube


@pytest.fixture(autouse=True)
def wide_dtypes() -> Iterator[None]:
    with config.using(enable_x64=True):
        yield


@cube.function
def through_python(x):
    return float(int(x))


@cube.function
def truth(x):
    return cube.f32(bool(x))


@cube.function
def extremes(x, y):
    return max(x, y, 1) - min((x, y))


RANDOM = np.random.default_rng(4)


@cube.kernel
def apply(x: cube.Array, y: cube.Array, out: cube.Array, f: cube.comptime):
    i = cube.ABSOLUTE_POS
    if i < out.length:
        out[i] = f(x[i], y[i])


@cube.kernel
def apply_one(x: cube.Array, out: cube.Array, f: cube.comptime):
    i = cube.ABSOLUTE_POS
    if i < out.length:
        out[i] = f(x[i])


def run(f: Callable[..., Any], *arrays: np.ndarray, dtype: Any = None) -> np.ndarray:
    given = [np.ascontiguousarray(array) for array in arrays]
    out = ShapeDtypeStruct((len(given[0]),), np.dtype(dtype or given[0].dtype))
    kernel = apply if len(given) == 2 else apply_one
    return np.asarray(cube.interpret(kernel)[len(given[0]), 1](*given, out, f))


WHOLE = RANDOM.integers(-20, 21, 40).astype(np.int32)
OTHER = np.where(np.roll(WHOLE, 7) == 0, 3, np.roll(WHOLE, 7)).astype(np.int32)
REAL = RANDOM.uniform(-6, 6, 40).astype(np.float32)
BINARY = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv},
    **{"%": operator.mod, "&": operator.and_, "|": operator.or_, "^": operator.xor},
    **{"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne},
}


@pytest.mark.parametrize("name", BINARY)
def test_operators_of_integers(name: str) -> None:
    op = BINARY[name]
    found = run(lambda x, y: cube.i32(op(x, y)), WHOLE, OTHER)
    assert found.tolist() == [int(op(int(x), int(y))) for x, y in zip(WHOLE, OTHER, strict=True)]


@pytest.mark.parametrize("name", ["//", "%"])
@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, np.float32, np.float64])
def test_division_rounds_down_in_every_dtype(name: str, dtype: Any) -> None:
    x = np.arange(-30, 30).astype(dtype)
    y = np.array([3, 4, 7, 1, 5, 3][:6] * 10).astype(dtype)
    if np.dtype(dtype).kind != "u":
        y[::2] = -y[::2]
    found = run(BINARY[name], x, y)
    np.testing.assert_array_equal(found, BINARY[name](x, y))


@pytest.mark.parametrize("divisor", [1, 2, 3, -4, 7])
def test_positions_are_divided_as_in_python(divisor: int) -> None:
    @cube.kernel
    def divide(out: cube.Array, d: cube.comptime):
        i = cube.UNIT_POS
        out[2 * i] = cube.i32((i - 5) // d)
        out[2 * i + 1] = cube.i32((i - 5) % d)

    found = cube.interpret(divide)[1, 12](ShapeDtypeStruct((24,), np.int32), divisor)
    expected = [part for i in range(12) for part in divmod(i - 5, divisor)]
    assert np.asarray(found).tolist() == expected


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda x: x / 3, REAL / np.float32(3)),
        (lambda x: 2 - x, 2 - REAL),
        (lambda x: -x, -REAL),
        (lambda x: +abs(x), abs(REAL)),
        (lambda x: round(x), np.round(REAL)),
        (lambda x: x**3, REAL**3),
        (lambda x: x**-2, REAL**-2.0),
        (lambda x: abs(x) ** 1.5, abs(REAL) ** 1.5),
        (lambda x: 2**x, np.exp2(REAL)),
        (lambda x: divmod(x, 2)[0], REAL // 2),
        (lambda x: cube.f32(x > 1) + cube.f32(~(x > 1) | (x < -1)), 1.0 * (REAL > 1) + (REAL <= 1)),
        (through_python, np.trunc(REAL)),
        (truth, np.ones(40)),
        (lambda x: x.cast(cube.f16).cast("f32"), REAL.astype(np.float16).astype(np.float32)),
        (lambda x: x.cast(np.int8).cast(np.float32), np.trunc(REAL)),
        (lambda x: x.bitcast(cube.u32).bitcast(cube.f32), REAL),
    ],
)
def test_operators_of_floats(f: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(run(f, REAL), expected, rtol=3e-6)


UNARY: dict[str, tuple[Any, tuple[float, float]]] = {
    **{
        name: (getattr(np, name), (-3, 3))
        for name in "exp exp2 expm1 sin cos tan sinh cosh".split()
    },
    **{name: (getattr(np, name), (-3, 3)) for name in "tanh cbrt floor ceil trunc sign".split()},
    **{
        name: (getattr(np, name), (0.1, 9))
        for name in "log log2 log1p sqrt degrees radians".split()
    },
    "asin": (np.arcsin, (-1, 1)),
    "acos": (np.arccos, (-1, 1)),
    "atan": (np.arctan, (-3, 3)),
    "asinh": (np.arcsinh, (-3, 3)),
    "acosh": (np.arccosh, (1, 9)),
    "atanh": (np.arctanh, (-0.9, 0.9)),
    "erf": (scipy.special.erf, (-3, 3)),
    "erfc": (scipy.special.erfc, (-2, 2)),
    "lgamma": (scipy.special.gammaln, (0.5, 9)),
    "sigmoid": (scipy.special.expit, (-6, 6)),
    "rsqrt": (lambda x: x**-0.5, (0.1, 9)),
    "reciprocal": (lambda x: 1 / x, (0.1, 9)),
    "abs": (np.abs, (-3, 3)),
}


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_floats(name: str) -> None:
    function, (low, high) = UNARY[name]
    for dtype, tolerance in ((np.float32, 1e-5), (np.float64, 1e-12), (np.float16, 3e-3)):
        x = RANDOM.uniform(low, high, 17).astype(dtype)
        found = run(getattr(cube, name), x)
        expected = function(x.astype(np.float64))
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["exp", "log", "sin", "sqrt", "tanh", "floor", "sigmoid"])
def test_functions_of_known_numbers_are_known(name: str) -> None:
    function = getattr(cube, name)
    assert isinstance(function(0.75), float | int)
    assert math.isclose(function(0.75), UNARY[name][0](0.75))


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (cube.atan2, np.arctan2),
        (cube.hypot, np.hypot),
        (cube.rhypot, lambda x, y: 1 / np.hypot(x, y)),
        (cube.rem, np.fmod),
        (cube.floor_mod, np.mod),
        (cube.power, lambda x, y: np.where(x > 0, abs(x) ** y, np.nan)),
        (lambda x, y: cube.fma(x, y, 2), lambda x, y: x * y + 2),
        (lambda x, y: cube.clamp(x, -1, y), lambda x, y: np.minimum(np.maximum(x, -1), y)),
        (lambda x, y: cube.select(x > y, x, 0), lambda x, y: np.where(x > y, x, 0)),
        (extremes, lambda x, y: np.maximum(np.maximum(x, y), 1) - np.minimum(x, y)),
    ],
)
def test_functions_of_pairs(f: Any, expected: Any) -> None:
    x, y = (RANDOM.uniform(-5, 5, 30).astype(np.float32) for _ in range(2))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(run(f, x, y), expected(x, y), rtol=3e-5, atol=1e-6)


def test_what_is_no_number_is_told() -> None:
    x = np.array([1, np.inf, -np.inf, np.nan, 0], np.float32)
    for f, numpy in (
        (cube.is_nan, np.isnan),
        (cube.is_inf, np.isinf),
        (cube.is_finite, np.isfinite),
    ):
        assert run(f, x, dtype=np.bool_).tolist() == numpy(x).tolist()
    assert run(lambda v: cube.hypot(v, v), np.array([0, np.inf, 3e38, 1e-38], np.float32))[
        :2
    ].tolist() == [0, np.inf]


BITS = [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64]


def bits_of(x: np.ndarray) -> list[str]:
    return [np.binary_repr(int(v), x.itemsize * 8) for v in x]


@pytest.mark.parametrize("dtype", BITS)
def test_bits(dtype: Any) -> None:
    info = np.iinfo(dtype)
    x = np.array([0, 1, 2, 5, 96, info.max, info.min, info.max // 3], dtype)
    texts, width = bits_of(x), info.bits
    expected: dict[Any, list[int]] = {
        cube.popcount: [t.count("1") for t in texts],
        cube.clz: [len(t) - len(t.lstrip("0")) for t in texts],
        cube.ctz: [len(t) - len(t.rstrip("0")) for t in texts],
        cube.ffs: [(len(t) - len(t.rstrip("0")) + 1) % (width + 1) for t in texts],
    }
    for function, wanted in expected.items():
        assert run(function, x).tolist() == wanted, function
    assert bits_of(run(cube.reverse_bits, x)) == [t[::-1] for t in texts]


@pytest.mark.parametrize("dtype", BITS)
def test_arithmetic_that_saturates_and_high_halves(dtype: Any) -> None:
    info = np.iinfo(dtype)
    some = np.array([0, 1, 3, 100, info.max, info.max - 1, info.min, info.min + 2], dtype)
    x, y = (part.ravel() for part in np.meshgrid(some, some))
    pairs = [(int(a), int(b)) for a, b in zip(x, y, strict=True)]

    def clip(v: int) -> int:
        return max(info.min, min(info.max, v))

    assert run(cube.saturating_add, x, y).tolist() == [clip(a + b) for a, b in pairs]
    assert run(cube.saturating_sub, x, y).tolist() == [clip(a - b) for a, b in pairs]
    assert run(cube.mulhi, x, y).tolist() == [(a * b) >> info.bits for a, b in pairs]


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 10, 641, 65537, (1 << 31) - 1])
def test_fast_division(divisor: int) -> None:
    @cube.kernel
    def divide(x: cube.Array, out: cube.Tensor, by: cube.FastDivmod):
        i = cube.ABSOLUTE_POS
        quotient, rest = by.divmod(x[i])
        out[i, 0] = quotient
        out[i, 1] = rest

    x = np.array([0, 1, divisor - 1, divisor, 12345678, (1 << 31) - 1], np.uint32)
    out = ShapeDtypeStruct((len(x), 2), np.uint32)
    found = np.asarray(cube.interpret(divide)[len(x), 1](x, out, divisor))
    assert found.tolist() == [list(divmod(int(v), divisor)) for v in x]
    assert cube.FastDivmod.of(divisor).divmod(999) == divmod(999, divisor)


# promotion ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i8", "u8", "i32", "u64", "f16", "bf16", "f32", "f64"])
def test_python_numbers_take_the_dtype_beside_them(dtype: str) -> None:
    seen = []

    def f(x: Any) -> Any:
        seen.append(((x + 1) * 3).dtype)
        return 2 * x + True

    numpy = cube.dtype(dtype).numpy
    assert run(f, np.array([1, 2], numpy)).astype(int).tolist() == [3, 5]
    assert seen == [cube.dtype(dtype)]


def test_integers_become_indices_beside_an_index() -> None:
    @cube.kernel
    def place(x: cube.Array, out: cube.Array):
        i = cube.UNIT_POS
        at = x[i] + i
        cube.static_assert(at.dtype == cube.index, "an index")
        out[at] = cube.i32(at * 10)

    found = cube.interpret(place)[1, 3](
        np.array([2, 0, -2], np.int32), ShapeDtypeStruct((3,), np.int32)
    )
    assert np.asarray(found).tolist() == [0, 10, 20]


def test_dtypes_know_themselves() -> None:
    assert (cube.u8.min, cube.u8.max, cube.f16.max, cube.f32.bits) == (0, 255, 65504.0, 32)
    assert (cube.dtype("f32"), cube.dtype(np.int8), cube.dtype(ml_dtypes.bfloat16)) == (
        cube.f32,
        cube.i8,
        cube.bf16,
    )
    assert [cube.f64.is_float, cube.i8.is_float, repr(cube.index)] == [True, False, "cube.index"]


# lines ----------------------------------------------------------------------------------------


@cube.kernel
def by_lines(x: cube.Array[cube.f32, cube.lines(4)], out: cube.Array, f: cube.comptime):
    i = cube.UNIT_POS
    out[i] = f(x[i], i)


LINE = np.array([[3, -1, 2, 8], [0.5, 4, -4, 1], [7, 7, 1, 0]], np.float32)


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda x, i: x.sum(), LINE.sum(1)),
        (lambda x, i: x.prod(), LINE.prod(1)),
        (lambda x, i: x.max() - x.min(), LINE.max(1) - LINE.min(1)),
        (lambda x, i: x[1] * 10 + x[-1], LINE[:, 1] * 10 + LINE[:, 3]),
        (lambda x, i: x[i], LINE[range(3), range(3)]),
        (
            lambda x, i: x.with_lane(2, 50)[2] + x.with_lane(i, 9).sum(),
            50 + LINE.sum(1) - LINE[range(3), range(3)] + 9,
        ),
        (lambda x, i: x.shuffle((3, 0))[0], LINE[:, 3]),
        (lambda x, i: x.dot(x + 1), (LINE * (LINE + 1)).sum(1)),
        (lambda x, i: x.magnitude(), np.linalg.norm(LINE, axis=1)),
        (lambda x, i: x.normalize()[0], LINE[:, 0] / np.linalg.norm(LINE, axis=1)),
        (lambda x, i: cube.f32((x > 0).any()) + cube.f32((x > -2).all()), 1.0 + (LINE > -2).all(1)),
        (lambda x, i: (x * x[0] + 1).sum(), (LINE * LINE[:, :1] + 1).sum(1)),
        (lambda x, i: cube.line(x[0], 2, x.shuffle((1, 2)))[2], LINE[:, 1]),
        (lambda x, i: cube.full(4, 2.0).sum() + cube.exp(x * 0)[3], np.full(3, 9.0)),
        (lambda x, i: cube.select(x > 0, x, 0).sum(), np.maximum(LINE, 0).sum(1)),
        (lambda x, i: sum(v for v in x), LINE.sum(1)),
        (lambda x, i: cube.f32(cube.lane_numbers(4).sum()) + x.lanes, np.full(3, 10.0)),
    ],
)
def test_lines(f: Any, expected: np.ndarray) -> None:
    out = ShapeDtypeStruct((3,), np.float32)
    found = cube.interpret(by_lines)[1, 3](LINE.ravel(), out, f)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5)


@pytest.mark.parametrize(("size", "lanes"), [(32, 4), (30, 2), (7, 1)])
def test_lines_that_fit(size: int, lanes: int) -> None:
    @cube.kernel
    def double(x: cube.Array[cube.lines()], out: cube.Array[cube.lines()]):
        i = cube.ABSOLUTE_POS
        cube.static_assert(x.lanes == lanes, "lanes that divide the length")
        if i < x.length:
            out[i] = x[i] * 2

    x = np.arange(size, dtype=np.float32)
    found = cube.interpret(double)[size, 1](x, ShapeDtypeStruct((size,), np.float32))
    np.testing.assert_array_equal(np.asarray(found), 2 * x)
