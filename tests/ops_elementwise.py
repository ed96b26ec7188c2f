"""Rows of the elementwise operations: arithmetic, comparison, choice, bits, conversions, complex
numbers, transcendental functions. Oracles compute in float64 with NumPy, math and mpmath."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
from op_table import Row, Sample

from xcube.primitives import bits, complex, convert, elementwise, kinds, select, transcendental

SHAPES = ((), (5,), (2, 3), (1, 4), (0, 3))
HALVES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
HALF_TOLERANCE = {"f16": 2e-3, "bf16": 2e-2}
INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)


# --- Samples -------------------------------------------------------------------------------------


def floats(
    count: int, low: float, high: float, dtype: Any = np.float32, shapes: Any = SHAPES
) -> list[Sample]:
    """Makers of `count` arrays of one shape, uniform between low and high."""

    def maker(shape: tuple[int, ...]) -> Sample:
        return lambda rng: tuple(rng.uniform(low, high, shape).astype(dtype) for _ in range(count))

    return [maker(shape) for shape in shapes]


def complexes(count: int, low: float, high: float) -> list[Sample]:
    """Makers of complex arrays whose parts lie between low and high."""
    return [
        lambda rng, shape=shape: tuple(
            (rng.uniform(low, high, shape) + 1j * rng.uniform(low, high, shape)).astype(
                np.complex64
            )
            for _ in range(count)
        )
        for shape in ((), (4,), (2, 3))
    ]


def integers(count: int, dtypes: Sequence[Any] = INTEGERS, nonzero: bool = False) -> list[Sample]:
    """Makers of integer arrays over the whole range of each dtype."""

    def maker(dtype: Any) -> Sample:
        info = np.iinfo(dtype)

        def sample(rng: np.random.Generator) -> tuple[Any, ...]:
            drawn = [
                rng.integers(info.min, info.max, 9, dtype, endpoint=True) for _ in range(count)
            ]
            return tuple(np.where(x == 0, dtype(1), x) if nonzero else x for x in drawn)

        return sample

    return [maker(dtype) for dtype in dtypes]


def bools(count: int) -> list[Sample]:
    """Makers of bool arrays."""
    return [lambda rng: tuple(rng.random(8) < 0.5 for _ in range(count))]


def fixed(*args: Any) -> Sample:
    """A maker of these very arguments."""
    return lambda rng: args


def f32(*values: float) -> np.ndarray:
    """An array of the values."""
    return np.array(values, np.float32)


# --- Oracles -------------------------------------------------------------------------------------


def wide(x: Any) -> Any:
    """x in float64 or complex128; integers and bools as they are."""
    kind = np.asarray(x).dtype.kind
    if kind == "c":
        return np.asarray(x, np.complex128)
    return np.asarray(x) if kind in "iub" else np.asarray(x).astype(np.float64)


def in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of widened arguments."""

    def oracle(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*map(wide, args))

    return oracle


def each(function: Callable[..., float]) -> Callable[..., Any]:
    """A function of Python floats, element by element."""
    return np.vectorize(function, otypes=[np.float64])


def mp(name: str, *leading: Any) -> Callable[..., Any]:
    """A function of mpmath, element by element."""
    return each(lambda *args: float(getattr(mpmath, name)(*leading, *args)))


# --- Unary functions of floats and complex numbers -----------------------------------------------


def _logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


# name, function, oracle, interval, whether complex
SMOOTH: tuple[tuple[str, Any, Any, tuple[float, float], bool], ...] = (
    ("neg", elementwise.neg, np.negative, (-2, 2), True),
    ("square", elementwise.square, np.square, (-2, 2), True),
    ("sqrt", elementwise.sqrt, np.sqrt, (0.2, 3), True),
    ("rsqrt", elementwise.rsqrt, lambda x: 1 / np.sqrt(x), (0.2, 3), True),
    ("cbrt", elementwise.cbrt, np.cbrt, (0.2, 3), False),
    ("reciprocal", elementwise.reciprocal, lambda x: 1 / x, (0.3, 3), True),
    ("exp", transcendental.exp, np.exp, (-2, 2), True),
    ("exp2", transcendental.exp2, np.exp2, (-2, 2), True),
    ("expm1", transcendental.expm1, np.expm1, (-2, 2), True),
    ("log", transcendental.log, np.log, (0.2, 4), True),
    ("log2", transcendental.log2, np.log2, (0.2, 4), True),
    ("log1p", transcendental.log1p, np.log1p, (-0.5, 3), True),
    ("logistic", transcendental.logistic, _logistic, (-3, 3), True),
    ("sin", transcendental.sin, np.sin, (-4, 4), True),
    ("cos", transcendental.cos, np.cos, (-4, 4), True),
    ("tan", transcendental.tan, np.tan, (-1, 1), True),
    ("asin", transcendental.asin, np.arcsin, (-0.8, 0.8), True),
    ("acos", transcendental.acos, np.arccos, (-0.8, 0.8), True),
    ("atan", transcendental.atan, np.arctan, (-0.9, 0.9), True),
    ("sinh", transcendental.sinh, np.sinh, (-2, 2), True),
    ("cosh", transcendental.cosh, np.cosh, (-2, 2), True),
    ("tanh", transcendental.tanh, np.tanh, (-2, 2), True),
    ("asinh", transcendental.asinh, np.arcsinh, (-2, 2), True),
    ("acosh", transcendental.acosh, np.arccosh, (1.3, 3), True),
    ("atanh", transcendental.atanh, np.arctanh, (-0.8, 0.8), True),
    ("erf", transcendental.erf, each(math.erf), (-2, 2), False),
    ("erfc", transcendental.erfc, each(math.erfc), (-2, 2), False),
    ("erf_inv", transcendental.erf_inv, mp("erfinv"), (-0.9, 0.9), False),
    ("lgamma", transcendental.lgamma, each(math.lgamma), (0.3, 4), False),
    ("digamma", transcendental.digamma, mp("digamma"), (0.3, 4), False),
    ("abs", elementwise.abs, np.abs, (0.2, 2), True),
)


def _smooth_rows() -> list[Row]:
    rows = []
    for name, function, plain, (low, high), has_complex in SMOOTH:
        oracle = in_float64(plain)
        rows.append(
            Row(name, function, floats(1, low, high), oracle, rtol=5e-6, differentiable=(0,))
        )
        rows += [
            Row(
                f"{name}[{half}]",
                function,
                floats(1, low, high, dtype, ((4,),)),
                oracle,
                rtol=HALF_TOLERANCE[half],
                atol=HALF_TOLERANCE[half],
            )
            for half, dtype in HALVES.items()
        ]
        if has_complex:
            samples = complexes(1, 0.2, 0.9)
            rows.append(Row(f"{name}[complex]", function, samples, oracle, rtol=1e-5, atol=1e-5))
    return rows


# IEEE's special values, where each function has to answer as NumPy does.
EDGES = f32(0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan)
NOT_AT_EDGES = frozenset({"logistic", "erf_inv", "lgamma", "digamma"})
EDGE_ROWS = [
    Row(f"{name}[edges]", function, [fixed(EDGES)], in_float64(plain), rtol=5e-6)
    for name, function, plain, _, _ in SMOOTH
    if name not in NOT_AT_EDGES
]

POLYGAMMA_ROWS = [
    Row(
        f"polygamma[{m}]",
        lambda x, m=m: transcendental.polygamma(m, x),
        [*floats(1, 0.3, 4), fixed(f32(-0.3, -1.6, -2.25, 30.0))],
        in_float64(mp("psi", m)),
        rtol=1e-5,
        differentiable=(0,),
    )
    for m in (1, 2, 3)
]

# --- Arithmetic ----------------------------------------------------------------------------------


def _quotient(x: Any, y: Any) -> Any:
    """x / y; of integers toward zero."""
    if np.asarray(x).dtype.kind not in "iu":
        return x / y
    exact = [abs(int(a)) // abs(int(b)) for a, b in zip(x, y, strict=True)]
    return np.where((x < 0) != (y < 0), -np.array(exact, object), exact).astype(np.int64)


BINARY_ROWS = [
    Row("add", kinds.add, floats(2, -2, 2), in_float64(np.add), differentiable=(0, 1)),
    Row("sub", elementwise.sub, floats(2, -2, 2), in_float64(np.subtract), differentiable=(0, 1)),
    Row("mul", elementwise.mul, floats(2, -2, 2), in_float64(np.multiply), differentiable=(0, 1)),
    Row("div", elementwise.div, floats(2, 0.5, 2), in_float64(_quotient), differentiable=(0, 1)),
    Row("add[complex]", kinds.add, complexes(2, -1, 1), in_float64(np.add)),
    Row("sub[complex]", elementwise.sub, complexes(2, -1, 1), in_float64(np.subtract)),
    Row("mul[complex]", elementwise.mul, complexes(2, -1, 1), in_float64(np.multiply)),
    Row("div[complex]", elementwise.div, complexes(2, 0.3, 1), in_float64(np.divide)),
    Row("add[int]", kinds.add, integers(2), np.add, rtol=0, atol=0),
    Row("sub[int]", elementwise.sub, integers(2), np.subtract, rtol=0, atol=0),
    Row("mul[int]", elementwise.mul, integers(2), np.multiply, rtol=0, atol=0),
    Row(
        "div[int]",
        elementwise.div,
        [*integers(2, (np.int8, np.int16, np.int32), True), fixed(*np.int32([[7, -7], [2, 2]]))],
        _quotient,
        rtol=0,
        atol=0,
    ),
    Row("rem", elementwise.rem, floats(2, 0.6, 0.9), in_float64(np.fmod), differentiable=(0, 1)),
    Row(
        "rem[signs]",
        elementwise.rem,
        [fixed(f32(5.5, -5.5, 5.5, -5.5), f32(2, 2, -2, -2))],
        in_float64(np.fmod),
    ),
    Row("rem[int]", elementwise.rem, integers(2, nonzero=True), np.fmod, rtol=0, atol=0),
    Row(
        "atan2", transcendental.atan2, floats(2, 0.3, 2), in_float64(np.arctan2), 5e-6, 1e-6, (0, 1)
    ),
    Row(
        "atan2[quadrants]",
        transcendental.atan2,
        [fixed(f32(1, 1, -1, -1, 0, 0, -0.0), f32(1, -1, 1, -1, 1, -1, -1))],
        in_float64(np.arctan2),
    ),
    Row("max", elementwise.max, floats(2, -2, 2), in_float64(np.maximum), differentiable=(0, 1)),
    Row("min", elementwise.min, floats(2, -2, 2), in_float64(np.minimum), differentiable=(0, 1)),
    Row(
        "max[nan]",
        elementwise.max,
        [fixed(f32(1, np.nan, np.inf), f32(np.nan, 1, 2))],
        in_float64(np.maximum),
    ),
    Row(
        "min[nan]",
        elementwise.min,
        [fixed(f32(1, np.nan, -np.inf), f32(np.nan, 1, 2))],
        in_float64(np.minimum),
    ),
    Row("max[int]", elementwise.max, integers(2), np.maximum, rtol=0, atol=0),
    Row("min[int]", elementwise.min, integers(2), np.minimum, rtol=0, atol=0),
    Row("max[bool]", elementwise.max, bools(2), np.logical_or),
    Row("min[bool]", elementwise.min, bools(2), np.logical_and),
    Row("max[complex]", elementwise.max, complexes(2, -1, 1), np.maximum),
    Row("min[complex]", elementwise.min, complexes(2, -1, 1), np.minimum),
    Row("pow", transcendental.pow, floats(2, 0.5, 2), in_float64(np.power), 5e-6, 1e-6, (0, 1)),
    Row(
        "pow[edges]",
        transcendental.pow,
        [fixed(f32(0, 0, 2, -2, -8, np.inf, 1), f32(0, 2, -1, 3, 1 / 3, 0, np.nan))],
        in_float64(np.power),
    ),
    Row("pow[complex]", transcendental.pow, complexes(2, 0.3, 1), in_float64(np.power), rtol=1e-5),
    Row(
        "pow[int exponent]",
        transcendental.pow,
        [lambda rng: (rng.uniform(0.5, 2, 6).astype(np.float32), np.int32([-2, -1, 0, 1, 2, 5]))],
        in_float64(np.power),
        rtol=5e-6,
        differentiable=(0,),
    ),
    Row("nextafter", elementwise.nextafter, floats(2, -2, 2), np.nextafter, rtol=0, atol=0),
    Row(
        "nextafter[edges]",
        elementwise.nextafter,
        [fixed(f32(0, 0, 1, np.inf, np.nan), f32(1, -1, 1, 0, 1))],
        np.nextafter,
        rtol=0,
        atol=0,
    ),
]

INTEGER_POW_ROWS = [
    Row(
        f"integer_pow[{y}]",
        lambda x, y=y: elementwise.integer_pow(x, y),
        floats(1, 0.5, 2),
        in_float64(lambda x, y=y: x ** float(y)),
        rtol=5e-6,
        differentiable=(0,),
    )
    for y in (-3, -1, 0, 1, 2, 3, 7)
] + [
    Row(
        "integer_pow[int]",
        lambda x: elementwise.integer_pow(x, 3),
        integers(1),
        lambda x: x * x * x,
        rtol=0,
        atol=0,
    )
]


def _half_away(x: Any) -> Any:
    return np.trunc(x + np.copysign(0.5, x))


HALVES_TO_ROUND = fixed(f32(-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.2, -3.7, 0, 1e10, np.inf))
ROUNDING_ROWS = [
    Row("floor", elementwise.floor, [HALVES_TO_ROUND], in_float64(np.floor)),
    Row("ceil", elementwise.ceil, [HALVES_TO_ROUND], in_float64(np.ceil)),
    Row("round[away]", elementwise.round, [HALVES_TO_ROUND], in_float64(_half_away)),
    Row(
        "round[even]",
        lambda x: elementwise.round(x, elementwise.RoundingMethod.TO_NEAREST_EVEN),
        [HALVES_TO_ROUND],
        in_float64(np.rint),
    ),
    Row("sign", elementwise.sign, [fixed(EDGES), *floats(1, -2, 2)], in_float64(np.sign)),
    Row("sign[int]", elementwise.sign, integers(1), np.sign, rtol=0, atol=0),
    Row("sign[complex]", elementwise.sign, complexes(1, 0.2, 1), in_float64(lambda z: z / abs(z))),
    Row("neg[int]", elementwise.neg, integers(1), np.negative, rtol=0, atol=0),
    Row("abs[int]", elementwise.abs, integers(1, INTEGERS[:4]), np.abs, rtol=0, atol=0),
    Row("square[int]", elementwise.square, integers(1), np.square, rtol=0, atol=0),
    Row("is_finite", select.is_finite, [fixed(EDGES)], np.isfinite),
]

# --- Comparison and choice -----------------------------------------------------------------------

ORDERED = fixed(f32(1, 2, 2, np.nan, np.nan, 0, np.inf), f32(2, 1, 2, 1, np.nan, -0.0, np.inf))
COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
COMPARISON_ROWS = [
    Row(name, getattr(select, name), [ORDERED, *integers(2), *bools(2), *floats(2, -1, 1)], plain)
    for name, plain in COMPARISONS.items()
] + [
    Row(
        f"{name}[complex]",
        getattr(select, name),
        [fixed(*np.complex64([[1j, 2, 1], [1j, 2j, 1]]))],
        COMPARISONS[name],
    )
    for name in ("eq", "ne")
]


def _choose(which: Any, *cases: Any) -> Any:
    index = np.clip(np.asarray(which).astype(np.int64), 0, len(cases) - 1)
    shape = np.broadcast_shapes(np.shape(which), np.shape(cases[0]))
    return np.choose(np.broadcast_to(index, shape), [np.broadcast_to(c, shape) for c in cases])


def _selection(count: int, shape: tuple[int, ...], selector: tuple[int, ...], dtype: Any) -> Sample:
    def sample(rng: np.random.Generator) -> tuple[Any, ...]:
        which = rng.integers(-1 if count > 2 else 0, count + 1 if count > 2 else 2, selector)
        cases = [rng.normal(size=shape).astype(np.float32) for _ in range(count)]
        return (np.asarray(which).astype(dtype), *cases)

    return sample


CHOICE_ROWS = [
    Row(
        "select_n",
        select.select_n,
        [
            _selection(2, (), (), np.bool_),
            _selection(2, (5,), (5,), np.bool_),
            _selection(2, (2, 3), (), np.bool_),
            _selection(2, (0, 3), (0, 3), np.bool_),
        ],
        _choose,
        differentiable=(1, 2),
    ),
    Row(
        "select_n[int32]",
        select.select_n,
        [_selection(4, (7,), (7,), np.int32), _selection(4, (2, 3), (), np.int32)],
        _choose,
        differentiable=(1, 2, 3, 4),
    ),
    Row(
        "select_n[int cases]",
        select.select_n,
        [fixed(np.bool_([True, False]), np.int8([1, 2]), np.int8([3, 4]))],
        _choose,
    ),
    Row(
        "select",
        select.select,
        [lambda rng: (rng.random(6) < 0.5, *rng.normal(size=(2, 6)).astype(np.float32))],
        np.where,
        differentiable=(1, 2),
    ),
    Row(
        "clamp",
        lambda low, x, high: select.clamp(low, x, high),
        [
            lambda rng: (np.float32(-0.5), rng.normal(size=8).astype(np.float32), np.float32(0.5)),
            lambda rng: (
                rng.uniform(-1, 0, (2, 3)).astype(np.float32),
                rng.normal(size=(2, 3)).astype(np.float32),
                rng.uniform(0, 1, (2, 3)).astype(np.float32),
            ),
            lambda rng: (np.int32(-2), rng.integers(-9, 9, 6).astype(np.int32), np.int32(3)),
        ],
        lambda low, x, high: np.minimum(np.maximum(x, low), high),
        differentiable=(0, 1, 2),
    ),
]

# --- Bits ----------------------------------------------------------------------------------------


def _shift_left(x: Any, y: Any) -> Any:
    mask, width = (1 << (8 * x.dtype.itemsize)) - 1, 8 * x.dtype.itemsize
    return _from_bits(
        [(int(a) << int(b)) & mask if b < width else 0 for a, b in zip(x, y, strict=True)], x.dtype
    )


def _shift_right_logical(x: Any, y: Any) -> Any:
    mask, width = (1 << (8 * x.dtype.itemsize)) - 1, 8 * x.dtype.itemsize
    pairs = zip(x, y, strict=True)
    return _from_bits([(int(a) & mask) >> int(b) if b < width else 0 for a, b in pairs], x.dtype)


def _shift_right_arithmetic(x: Any, y: Any) -> Any:
    return np.array([int(a) >> int(b) for a, b in zip(x, y, strict=True)], x.dtype)


def _from_bits(values: Sequence[int], dtype: np.dtype) -> np.ndarray:
    return np.array(values, f"u{dtype.itemsize}").view(dtype)


def _population_count(x: Any) -> Any:
    mask = (1 << (8 * x.dtype.itemsize)) - 1
    return np.array([(int(a) & mask).bit_count() for a in x], x.dtype)


def _clz(x: Any) -> Any:
    width = 8 * x.dtype.itemsize
    return np.array([width - (int(a) & ((1 << width) - 1)).bit_length() for a in x], x.dtype)


def _mulhi(x: Any, y: Any) -> Any:
    width = 8 * x.dtype.itemsize
    return np.array([(int(a) * int(b)) >> width for a, b in zip(x, y, strict=True)], x.dtype)


def _shifts(dtype: Any) -> Sample:
    width, info = np.dtype(dtype).itemsize * 8, np.iinfo(dtype)

    def sample(rng: np.random.Generator) -> tuple[Any, ...]:
        distances = np.array([0, 1, width // 2, width - 1, width, width + 1], dtype)
        return rng.integers(info.min, info.max, 6, dtype, endpoint=True), distances

    return sample


BIT_ROWS = [
    Row("and", bits.bitwise_and, [*integers(2), *bools(2)], np.bitwise_and, rtol=0, atol=0),
    Row("or", bits.bitwise_or, [*integers(2), *bools(2)], np.bitwise_or, rtol=0, atol=0),
    Row("xor", bits.bitwise_xor, [*integers(2), *bools(2)], np.bitwise_xor, rtol=0, atol=0),
    Row("not", bits.bitwise_not, [*integers(1), *bools(1)], np.invert, rtol=0, atol=0),
    Row("shift_left", bits.shift_left, list(map(_shifts, INTEGERS)), _shift_left, rtol=0, atol=0),
    Row(
        "shift_right_logical",
        bits.shift_right_logical,
        list(map(_shifts, INTEGERS)),
        _shift_right_logical,
        rtol=0,
        atol=0,
    ),
    Row(
        "shift_right_arithmetic",
        bits.shift_right_arithmetic,
        list(map(_shifts, INTEGERS[:4])),
        _shift_right_arithmetic,
        rtol=0,
        atol=0,
    ),
    Row("population_count", bits.population_count, integers(1), _population_count, rtol=0, atol=0),
    Row(
        "clz",
        bits.clz,
        [*integers(1), fixed(np.int32([0, 1, -1])), fixed(np.uint8([0, 1, 128]))],
        _clz,
        rtol=0,
        atol=0,
    ),
    Row("mulhi", bits.mulhi, integers(2), _mulhi, rtol=0, atol=0),
]

# --- Conversions ---------------------------------------------------------------------------------

TARGETS = (np.int8, np.uint16, np.int32, np.float16, ml_dtypes.bfloat16, np.float32, np.complex64)
PLAIN = f32(0, 1, 2, 3.75, 100)


def _converter(dtype: Any) -> Callable[..., Any]:
    return lambda x: convert.convert_element_type(x, dtype)


CONVERSION_ROWS = [
    Row(
        f"convert_element_type[{np.dtype(target).name}]",
        _converter(target),
        [fixed(PLAIN.astype(source)) for source in (np.bool_, *TARGETS[:-1])],
        lambda x, target=target: wide(x).astype(target),
        rtol=0,
        atol=0,
    )
    for target in TARGETS
] + [
    Row(
        "convert_element_type[bool]",
        _converter(np.bool_),
        [fixed(f32(0, -0.0, 0.3, np.nan)), fixed(np.int8([0, -1])), fixed(np.complex64([0, 1j]))],
        lambda x: x != 0,
    ),
    Row(
        "convert_element_type[negative to int32]",
        _converter(np.int32),
        [fixed(f32(-1.9, -0.5, 2.9))],
        lambda x: np.trunc(x).astype(np.int32),
    ),
    Row(
        "convert_element_type[complex to float32]",
        _converter(np.float32),
        complexes(1, -1, 1),
        np.real,
        differentiable=(0,),
    ),
    Row(
        "convert_element_type[f32 to f64]",
        _converter(np.float64),
        floats(1, -2, 2),
        wide,
        differentiable=(0,),
    ),
]


def _bitcast_row(name: str, target: Any, sample: Sample, oracle: Callable[..., Any]) -> Row:
    def function(x: Any) -> Any:
        return convert.bitcast_convert_type(x, target)

    return Row(f"bitcast_convert_type[{name}]", function, [sample], oracle, rtol=0, atol=0)


BITCAST_ROWS = [
    _bitcast_row("f32 to i32", np.int32, fixed(EDGES), lambda x: x.view(np.int32)),
    _bitcast_row(
        "i32 to f32", np.float32, fixed(np.int32([1, 0x3F800000])), lambda x: x.view("f4")
    ),
    _bitcast_row(
        "f32 to u8", np.uint8, fixed(f32(1, -2.5)), lambda x: x.view(np.uint8).reshape(2, 4)
    ),
    _bitcast_row(
        "u8 to f32",
        np.float32,
        fixed(np.uint8([[0, 0, 128, 63], [0, 0, 32, 192]])),
        lambda x: x.view(np.float32)[..., 0],
    ),
    _bitcast_row(
        "scalar i64 to i16",
        np.int16,
        fixed(np.int64(-(2**40) + 7)),
        lambda x: x.reshape(1).view(np.int16),
    ),
    _bitcast_row(
        "i8 to u64",
        np.uint64,
        lambda rng: (rng.integers(-99, 99, (3, 8)).astype(np.int8),),
        lambda x: x.view(np.uint64)[..., 0],
    ),
]

WIDE_RANGE = f32(
    0,
    -0.0,
    1,
    -1.5,
    1 + 2**-11,
    1 + 3 * 2**-11,
    65504,
    65520,
    7e4,
    -7e4,
    6.2e-5,
    1e-6,
    np.inf,
    -np.inf,
    np.nan,
    3.14159,
)


def _as_half_without_subnormals(x: Any) -> Any:
    half = np.asarray(x).astype(np.float16).astype(np.float32)
    return np.where(np.abs(half) < 2.0**-14, np.copysign(0, half), half)


PRECISION_ROWS = [
    Row(
        "reduce_precision[f16]",
        lambda x: convert.reduce_precision(x, 5, 10),
        [fixed(WIDE_RANGE)],
        in_float64(_as_half_without_subnormals),
        rtol=0,
        atol=0,
    ),
    Row(
        "reduce_precision[bf16]",
        lambda x: convert.reduce_precision(x, 8, 7),
        [fixed(WIDE_RANGE)],
        lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float32),
        rtol=0,
        atol=0,
    ),
]

IDENTITY_ROWS = [
    Row(
        "optimization_barrier",
        lambda x: convert.optimization_barrier(x)[0],
        floats(1, -2, 2),
        wide,
        differentiable=(0,),
    ),
    Row("copy", convert.copy, floats(1, -2, 2), wide, differentiable=(0,)),
    Row("stop_gradient", convert.stop_gradient, floats(1, -2, 2), wide),
]

# --- Complex numbers -----------------------------------------------------------------------------

COMPLEX_ROWS = [
    Row("real", complex.real, complexes(1, -1, 1), np.real, differentiable=(0,)),
    Row("imag", complex.imag, complexes(1, -1, 1), np.imag, differentiable=(0,)),
    Row("conj", complex.conj, complexes(1, -1, 1), np.conj, differentiable=(0,)),
    Row("conj[real]", complex.conj, floats(1, -1, 1), np.conj, differentiable=(0,)),
    Row(
        "complex",
        complex.complex,
        floats(2, -1, 1),
        lambda x, y: wide(x) + 1j * wide(y),
        differentiable=(0, 1),
    ),
]

ROWS: list[Row] = [
    *_smooth_rows(),
    *EDGE_ROWS,
    *POLYGAMMA_ROWS,
    *BINARY_ROWS,
    *INTEGER_POW_ROWS,
    *ROUNDING_ROWS,
    *COMPARISON_ROWS,
    *CHOICE_ROWS,
    *BIT_ROWS,
    *CONVERSION_ROWS,
    *BITCAST_ROWS,
    *PRECISION_ROWS,
    *IDENTITY_ROWS,
    *COMPLEX_ROWS,
]
