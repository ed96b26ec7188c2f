"""The meaning of operations (`arithmetic.py`), through the interpreter, against Python's exact
numbers, and the builder's folding against both."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcube.lowering.cube import ir
from xcube.lowering.cube.arithmetic import NUMPY, narrowed, rounded
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.interpreter import interpret

NARROW = ("f8_e4m3fn", "f8_e5m2", "f16", "bf16")


def run(body: Callable[..., Value], *columns: tuple[str, list]) -> list:
    """body(*lines), with one buffer of a dtype and values per line, run on one unit."""
    build = Builder("body")
    lanes = len(columns[0][1])
    lines = [build.load(build.buffer(dtype), 0, lanes) for dtype, _ in columns]
    result = body(*lines)
    build.store(build.buffer(result.dtype, "out"), 0, result)
    out = np.zeros(result.lanes, NUMPY[result.dtype])
    arrays = [np.array(values, NUMPY[dtype]) for dtype, values in columns]
    interpret(build.finish(), 1, [*arrays, out])
    return out.astype(np.float64).tolist() if result.dtype in ir.FLOATS else out.tolist()


def apply(op: str, dtype: str, *columns: list) -> list:
    return run(lambda *v: v[0].build.op(op, *v), *[(dtype, column) for column in columns])


def same(got: list, expected: list) -> None:
    """Equal with signs of zeros, NaN equal to NaN."""
    assert [struct.pack("d", x) if x == x else "nan" for x in got] == [
        struct.pack("d", x) if x == x else "nan" for x in expected
    ]


# integers -----------------------------------------------------------------------------------------


def bounds(dtype: str) -> tuple[int, int]:
    bits = 64 if dtype == "index" else int(dtype[1:])
    return (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def into_range(value: int, dtype: str) -> int:
    low, high = bounds(dtype)
    return (value - low) % (high - low + 1) + low


def quotient(a: int, b: int) -> int:
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return a if b == 0 else a - quotient(a, b) * b


def shift(function: Callable[[int, int], int]) -> Callable[[int, int, int], int]:
    def shifted(a: int, b: int, bits: int) -> int:
        return function(a, b if 0 <= b < bits else bits)

    return shifted


EXACT: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": quotient,
    "rem": remainder,
    "min": min,
    "max": max,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
WIDTH: dict[str, Callable[[int, int, int], int]] = {
    "shl": shift(operator.lshift),
    "shr": shift(operator.rshift),
    "mulhi": lambda a, b, bits: a * b >> bits,
}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
WHOLE = (*ir.INTEGERS, "index")


def expected(op: str, dtype: str, a: int, b: int) -> int | bool:
    if op in COMPARISONS:
        return EXACT[op](a, b)
    bits = bounds(dtype)[1].bit_length() + (dtype[0] != "u")
    return into_range(WIDTH[op](a, b, bits) if op in WIDTH else EXACT[op](a, b), dtype)


@st.composite
def whole_operations(draw: st.DrawFn) -> tuple[str, str, int, int]:
    op = draw(st.sampled_from([*EXACT, *WIDTH]))
    dtype = draw(st.sampled_from(ir.INTEGERS if op == "mulhi" else WHOLE))
    low, high = bounds(dtype)
    edges = [v for v in (low, low + 1, high - 1, high, -2, -1, 0, 1, 2, 7, 8, 31, 32, 63, 64)]
    values = st.sampled_from([v for v in edges if low <= v <= high]) | st.integers(low, high)
    a, b = draw(values), draw(values)
    return op, dtype, a, (b or 1) if dtype == "index" and op in ("div", "rem") else b


@settings(max_examples=600, deadline=None)
@given(whole_operations())
def test_folding_agrees_with_the_interpreter_for_integers(operation):
    op, dtype, a, b = operation
    stored = "i64" if dtype == "index" else dtype
    result = "bool" if op in COMPARISONS else stored

    def every_way(x: Value, y: Value) -> Value:
        build = x.build
        x, y = build.cast(x, dtype), build.cast(y, dtype)
        p, q = build.constant(a, dtype), build.constant(b, dtype)
        out = build.local(result, 4)
        for lane, pair in enumerate([(x, y), (p, y), (x, q), (p, q)]):
            build.store(out, lane, build.cast(build.op(op, *pair), result))
        return build.load(out, 0, 4)

    assert run(every_way, (stored, [a]), (stored, [b])) == [expected(op, dtype, a, b)] * 4


@pytest.mark.parametrize("dtype", ir.INTEGERS)
def test_unary_integers(dtype):
    low, high = bounds(dtype)
    values = [low, high, 0, 1, 5, high // 3]
    mask = (1 << high.bit_length() + (low < 0)) - 1
    patterns = [v & mask for v in values]
    assert apply("neg", dtype, values) == [into_range(-v, dtype) for v in values]
    assert apply("not", dtype, values) == [into_range(~v, dtype) for v in values]
    assert apply("popcount", dtype, values) == [v.bit_count() for v in patterns]
    zeros = [mask.bit_length() - v.bit_length() for v in patterns]
    assert apply("clz", dtype, values) == zeros
    if low < 0:
        assert apply("abs", dtype, values) == [into_range(abs(v), dtype) for v in values]


def test_bool_operations():
    a, b = [False, False, True, True], [False, True, False, True]
    assert apply("and", "bool", a, b) == [False, False, False, True]
    assert apply("or", "bool", a, b) == [False, True, True, True]
    assert apply("xor", "bool", a, b) == [False, True, True, False]
    assert apply("not", "bool", a) == [True, True, False, False]
    assert apply("lt", "bool", a, b) == [False, True, False, False]


# floats -------------------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, 1.5, -2.5, 0.5, 3.5, math.inf, -math.inf, math.nan]
EDGES = [*SPECIAL, *(sign * 2.0**bits for bits in (7, 8, 31, 63, 64) for sign in (1, -1))]
floats64 = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("dtype", [d for d in ir.FLOATS if d != "f8_e4m3fn"])
def test_special_values(dtype):
    pairs = [(a, b) for a in SPECIAL for b in SPECIAL if (a, b) != (0, 0) or str(a) == str(b)]
    a, b = map(list, zip(*pairs, strict=True))
    nan = [x != x or y != y for x, y in pairs]
    low = [math.nan if n else min(x, y) for (x, y), n in zip(pairs, nan, strict=True)]
    high = [math.nan if n else max(x, y) for (x, y), n in zip(pairs, nan, strict=True)]
    same(apply("min", dtype, a, b), low)
    same(apply("max", dtype, a, b), high)
    for op in COMPARISONS:
        assert apply(op, dtype, a, b) == [EXACT[op](x, y) for x, y in pairs]
    same(apply("round", dtype, SPECIAL), [0.0, -0.0, 2, -2, 0, 4, math.inf, -math.inf, math.nan])
    same(apply("trunc", dtype, SPECIAL), [0.0, -0.0, 1, -2, 0, 3, math.inf, -math.inf, math.nan])
    same(apply("floor", dtype, SPECIAL), [0.0, -0.0, 1, -3, 0, 3, math.inf, -math.inf, math.nan])
    same(apply("neg", dtype, SPECIAL), [-x for x in SPECIAL])
    same(apply("abs", dtype, SPECIAL), [abs(x) for x in SPECIAL])
    same(apply("rem", dtype, [3.5, -3.5, 1.0], [2.0, 2.0, 0.0]), [1.5, -1.5, math.nan])
    same(apply("div", dtype, [1.0, -1.0, 0.0], [0.0] * 3), [math.inf, -math.inf, math.nan])


def nearest_single(value: Fraction) -> float:
    """The f32 nearest to an exact number, out of those nearest to the doubles around it."""
    near = float(value)
    low = math.nextafter(near, -math.inf) if Fraction(near) > value else near
    high = math.nextafter(near, math.inf) if Fraction(near) < value else near
    a, b = (struct.unpack("f", struct.pack("f", double))[0] for double in (low, high))
    return a if value - Fraction(a) < Fraction(b) - value else b


@settings(max_examples=200, deadline=None)
@given(*[st.floats(-(2.0**40), 2.0**40, width=32)] * 3)
def test_fma_of_singles_rounds_once(x, y, z):
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    (got,) = apply("fma", "f32", [x], [y], [z])
    assert got == nearest_single(exact)


def test_fma_where_two_roundings_would_differ():
    # the product is a tie of singles; the addend is lost in a double, yet breaks the tie
    x, y = 1 + 2.0**-23, 1 + 2.0**-1
    exact = Fraction(x) * Fraction(y)
    for z in (2.0**-70, -(2.0**-70), 0.0):
        (got,) = apply("fma", "f32", [x], [y], [z])
        assert got == nearest_single(exact + Fraction(z))


@settings(max_examples=200, deadline=None)
@given(floats64, floats64, floats64)
def test_fma_of_doubles_rounds_once(x, y, z):
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    (got,) = apply("fma", "f64", [x], [y], [z])
    if math.isinf(got):
        assert abs(exact) >= Fraction(2) ** 1024 - Fraction(2) ** 970
        return
    error = abs(Fraction(got) - exact)
    for neighbour in (math.nextafter(got, -math.inf), math.nextafter(got, math.inf)):
        assert math.isinf(neighbour) or error <= abs(Fraction(neighbour) - exact)


def test_fma_of_special_values():
    inf, nan = math.inf, math.nan
    cases = [
        (-1.0, 0.0, 0.0, 0.0),
        (-1.0, 0.0, -0.0, -0.0),
        (1.0, -1.0, 1.0, 0.0),
        (inf, 0.0, 1.0, nan),
        (inf, 1.0, -inf, nan),
        (2.0, 3.0, -inf, -inf),
        (nan, 1.0, 1.0, nan),
    ]
    x, y, z, wanted = map(list, zip(*cases, strict=True))
    for dtype in ("f64", "f32", "f16", "bf16", "f8_e5m2"):
        same(apply("fma", dtype, x, y, z), wanted)
    huge = [1e300, -1e300, 5e-324]
    same(apply("fma", "f64", huge, [1e300, 1e300, -0.25], [0.0] * 3), [inf, -inf, -0.0])


def grid(dtype: str) -> list[float]:
    """All finite values of a narrow dtype, in order."""
    bits = ir.BITS[dtype]
    every = np.arange(2**bits, dtype=f"u{bits // 8}").view(NUMPY[dtype])
    with np.errstate(invalid="ignore"):
        every = every.astype(np.float64)
    return sorted(set(every[np.isfinite(every)].tolist()))


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_dtypes_round_to_nearest_even(dtype):
    values = grid(dtype)
    bits = np.array(values).astype(NUMPY[dtype]).view(f"u{ir.BITS[dtype] // 8}")
    for k in range(0, len(values) - 1, max(1, len(values) // 2000)):
        a, b = values[k], values[k + 1]
        tie = a / 2 + b / 2
        assert rounded(tie, dtype) == (b if bits[k] & 1 else a)
        assert rounded(math.nextafter(tie, -math.inf), dtype) == a
        assert rounded(math.nextafter(tie, math.inf), dtype) == b
        assert rounded(a, dtype) == a


def test_narrow_arithmetic_rounds_after_each_operation():
    a = narrowed(np.array([1.0, 256.0, 0.1]), "bf16").astype(float).tolist()
    b = narrowed(np.array([2.0**-9, 1.0, 0.2]), "bf16").astype(float).tolist()
    sums = [rounded(x + y, "bf16") for x, y in zip(a, b, strict=True)]
    assert apply("add", "bf16", a, b) == sums
    assert sums[:2] == [1.0, 256.0]


LIBRARY = {
    **{n: getattr(math, n) for n in ("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos")},
    **{n: getattr(math, n) for n in ("tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")},
    **{n: getattr(math, n) for n in ("asinh", "atanh", "erf", "erfc", "cbrt", "lgamma")},
}


@pytest.mark.parametrize("op", LIBRARY)
def test_library_functions(op):
    values = [0.125, 0.5, 0.9]
    wanted = [LIBRARY[op](value) for value in values]
    np.testing.assert_allclose(apply(op, "f64", values), wanted, rtol=4e-15)


def test_library_functions_of_two_numbers_and_at_poles():
    np.testing.assert_allclose(apply("atan2", "f64", [1.0], [-1.0]), [3 * math.pi / 4])
    np.testing.assert_allclose(apply("pow", "f64", [2.0, 4.0], [10.0, -0.5]), [1024, 0.5])
    np.testing.assert_allclose(apply("acosh", "f64", [2.0]), [math.acosh(2.0)])
    same(apply("lgamma", "f64", [0.0, -1.0, 1e308]), [math.inf] * 3)
    same(apply("log", "f64", [0.0, -1.0]), [-math.inf, math.nan])


# casts, shapes, reductions ------------------------------------------------------------------------


def cast_exactly(value: float, source: str, target: str) -> float | bool:
    if target == "bool":
        return value != 0
    if target in ir.FLOATS:
        return rounded(float(value), target)
    if source not in ir.FLOATS:
        return into_range(int(value), target)
    low, high = bounds(target)
    if value != value:
        return 0
    return (high if value > 0 else low) if math.isinf(value) else min(max(int(value), low), high)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_casts_fold_as_they_run(data):
    source, target = (data.draw(st.sampled_from(("bool", *WHOLE, *ir.FLOATS))) for _ in "st")
    if source == "bool":
        value = data.draw(st.booleans())
    elif source in ir.FLOATS:
        value = rounded(data.draw(st.floats() | st.sampled_from(EDGES)), source)
    else:
        low, high = bounds(source)
        value = data.draw(st.integers(max(low, -(2**53)), min(high, 2**53)))
    stored, result = ("i64" if d == "index" else d for d in (source, target))

    def both(x: Value) -> Value:
        build = x.build
        out = build.local(result, 2)
        loaded, constant = build.cast(x, source), build.constant(value, source)
        for lane, operand in enumerate((loaded, constant)):
            build.store(out, lane, build.cast(build.cast(operand, target), result))
        return build.load(out, 0, 2)

    same(run(both, (stored, [value])), [cast_exactly(value, source, target)] * 2)


@pytest.mark.parametrize("dtype", WHOLE)
def test_floats_saturate_to_integers(dtype):
    wanted = [cast_exactly(value, "f64", dtype) for value in EDGES]
    stored = "i64" if dtype == "index" else dtype
    assert run(lambda x: x.cast(dtype).cast(stored), ("f64", EDGES)) == wanted


def test_wide_integers_round_once_to_narrow_floats():
    # just above a tie of bf16; a double in between would round onto the tie
    value = (1 << 62) + (1 << 54) + 1
    assert run(lambda x: x.cast("bf16"), ("i64", [value])) == [float((1 << 62) + (1 << 55))]
    assert run(lambda x: x.cast("bf16"), ("u64", [2**64 - 1])) == [2.0**64]
    value = (1 << 62) + (1 << 38) + 1
    assert run(lambda x: x.cast("f32"), ("i64", [value])) == [float((1 << 62) + (1 << 39))]
    folded = run(lambda x: x + x.build.constant(value, "i64").cast("f32"), ("f32", [0.0]))
    assert folded == [float((1 << 62) + (1 << 39))]


def test_bitcast():
    assert run(lambda x: x.bitcast("u32"), ("f32", [1.0, -0.0])) == [0x3F800000, 0x80000000]
    assert run(lambda x: x.bitcast("f16"), ("i16", [0x3C00, -1]))[0] == 1.0


def test_lines_change_shape():
    column = ("i32", [10, 20, 30, 40])
    assert run(lambda x: x.build.extract(x, 2), column) == [30]
    assert run(lambda x: x.build.shuffle(x, [3, 3, 0]), column) == [40, 40, 10]
    assert run(lambda x: x.build.splat(x.build.extract(x, 1), 3), column) == [20, 20, 20]
    assert run(lambda x: x.build.lane(4, "i32") + x, column) == [10, 21, 32, 43]
    assert run(lambda x: x.build.select(x > 20, x, 0), column) == [0, 0, 30, 40]


def test_reductions_of_integers():
    column = ("i8", [100, 100, -3, 7])
    for name, wanted in (("add", -52), ("mul", -80), ("and", 4), ("or", -1), ("xor", -6)):
        assert run(lambda x, name=name: x.build.reduce(name, x), column) == [wanted], name
    assert run(lambda x: x.build.reduce("min", x), column) == [-3]


def test_reductions_of_floats_combine_halves():
    values = [1.0, 2.0**24, 3.0, -(2.0**24)]
    first, second = np.float32(1.0) + np.float32(3.0), np.float32(2.0**24) - np.float32(2.0**24)
    assert run(lambda x: x.build.reduce("add", x), ("f32", values)) == [first + second]
    same(run(lambda x: x.build.reduce("max", x), ("f32", [1.0, math.nan])), [math.nan])


# the builder --------------------------------------------------------------------------------------


def test_zeros_of_both_signs_are_two_operations():
    def both(x: Value) -> Value:
        out = x.build.local("f32", 2)
        x.build.store(out, 0, x + 0.0)
        x.build.store(out, 1, x + -0.0)
        return x.build.load(out, 0, 2)

    same(run(both, ("f32", [-0.0])), [0.0, -0.0])
