"""The NumPy functions against JAX: values, dtypes, weak types, over operations, dtypes and options;
ufunc methods, sizes that depend on values, errors, and the number of operations that are traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xcube.numpy as jnp
from xcube.errors import ConcretizationTypeError, DtypeError, ShapeError
from xcube.ir import count
from xcube.transforms.grad import grad
from xcube.transforms.jit import jit, make_jaxpr

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.filterwarnings("ignore")

DTYPES = ["bool", "int8", "int32", "uint8", "uint32", "float16", "bfloat16", "float32", "complex64"]
FEW = ["bool", "int8", "uint32", "bfloat16", "float32"]
WITH_FEW_AND_WITH_ALL = pytest.mark.parametrize(
    "dtypes",
    [pytest.param(FEW, id="few"), pytest.param(DTYPES, id="all", marks=pytest.mark.slow)],
)
RULES = settings(max_examples=40, deadline=None)


def sample(dtype: str, shape: tuple[int, ...] = (2, 3), seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    if kind.kind in "biu":
        return (rng.integers(1, 5, shape) - 2 * (kind.kind == "b")).astype(kind)
    values = rng.normal(size=shape)
    return (values + 1j * rng.normal(size=shape) if kind.kind == "c" else values).astype(kind)


def convert(library: Any, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return library.asarray(value)
    if isinstance(value, list | tuple):
        return type(value)(convert(library, item) for item in value)
    return value


def flat(value: Any) -> list[Any]:
    return (
        [leaf for item in value for leaf in flat(item)]
        if isinstance(value, list | tuple)
        else [value]
    )


def run(library: Any, name: str, args: Any, options: Any) -> list[Any]:
    function = library
    for part in name.split("."):
        function = getattr(function, part)
    given = {key: convert(library, value) for key, value in options.items()}
    return flat(function(*[convert(library, arg) for arg in args], **given))


def agree(name: str, *args: Any, weak: bool = True, **options: Any) -> None:
    """Ours and JAX's results are equal in values, shapes, dtypes and weakness, or both refuse."""
    try:
        expected = run(jax.numpy, name, args, options)
    except (TypeError, ValueError, IndexError, OverflowError):
        with pytest.raises((TypeError, ValueError, IndexError, OverflowError)):
            run(jnp, name, args, options)
        return
    found = run(jnp, name, args, options)
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        if not hasattr(y, "dtype"):
            assert x == y
            continue
        a, b = np.asarray(x), np.asarray(y)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if weak and a.dtype.kind not in "bc" and hasattr(y, "weak_type"):
            assert x.weak_type == y.weak_type
        close(a, b)


def close(a: np.ndarray, b: np.ndarray) -> None:
    if a.dtype.kind in "biu":
        np.testing.assert_array_equal(a, b)
        return
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    rtol = 3e-2 if a.dtype.itemsize == 2 else 2e-5
    np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=rtol, atol=rtol / 10)


# elements -------------------------------------------------------------------------------------

UNARY = """
exp log sin cos tan sqrt cbrt tanh arcsin arctan arcsinh arccosh sinh cosh exp2 expm1
log1p log2 log10 negative abs square reciprocal floor ceil trunc rint isnan isinf isfinite
isposinf signbit logical_not invert sinc deg2rad nan_to_num fabs bitwise_count modf frexp
sum prod max min mean var std all any argmax argmin cumsum cumprod nansum nanmax nanmean
nanvar ptp median sort argsort diff ravel zeros_like ones_like trace diag nonzero unique
average
""".split()
# JAX drops weakness there; log2 keeps it or not, by version
STRONGER = {"max", "min", "nanmax", "ptp", "unique", "sinc", "rint", "log2"}


@WITH_FEW_AND_WITH_ALL
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_array_agree_with_jax(name, dtypes):
    for dtype in dtypes:
        agree(name, sample(dtype))
    if name not in ("all", "any"):
        for number in (2, -2.5):
            agree(name, number, weak=name not in STRONGER)


BINARY = """
add subtract multiply divide floor_divide remainder power maximum minimum fmax fmin equal
not_equal less greater_equal logical_and logical_xor bitwise_and bitwise_or left_shift
right_shift arctan2 hypot logaddexp logaddexp2 copysign heaviside fmod float_power isclose
dot matmul outer inner kron array_equal
""".split()
WEAKER = {"hypot", "logaddexp2", "heaviside"}  # JAX drops weakness there
PRODUCTS_ONLY = {"dot", "matmul", "inner", "kron"}
REFUSED = {("kron", "bool"), ("arctan2", "complex64")}  # by one of the two


@WITH_FEW_AND_WITH_ALL
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_arrays_promote_like_jax(name, dtypes):
    divides = name in ("divide", "floor_divide", "remainder", "fmod")
    for k, dtype in enumerate(dtypes):
        if (divides and dtype == "bool") or (name, dtype) in REFUSED:
            continue  # divisors would be zero
        other = dtypes[(k + 3) % len(dtypes)]
        if not (divides and other == "bool") and (name, other) not in REFUSED:
            agree(name, sample(dtype), sample(other, (3,), 1), weak=name not in WEAKER)
        agree(name, sample(dtype), sample(dtype, (3,), 1))
        if name not in PRODUCTS_ONLY:
            for number in (2, 1.5, np.int8(3)):
                agree(name, sample(dtype), number, weak=name not in WEAKER)


@pytest.mark.parametrize(
    "name", ["add", "multiply", "divide", "maximum", "floor_divide", "remainder"]
)
def test_python_numbers_stay_weak(name):
    for x in (3, 2.5):
        for y in (2, 1.5):
            agree(name, x, y)


@RULES
@given(
    st.sampled_from([(), (1,), (3,), (2, 1), (2, 3), (1, 3), (4, 1, 1)]),
    st.sampled_from([(), (1,), (3,), (2, 1), (2, 3), (4, 1, 3), (4,)]),
    st.sampled_from(["add", "maximum", "less"]),
)
def test_shapes_broadcast_like_numpy(a, b, name):
    x, y = np.ones(a, np.float32), np.ones(b, np.float32)
    try:
        expected = getattr(np, name)(x, y).shape
    except ValueError:
        with pytest.raises(ShapeError, match=name):
            getattr(jnp, name)(jnp.asarray(x), jnp.asarray(y))
        return
    assert getattr(jnp, name)(jnp.asarray(x), jnp.asarray(y)).shape == expected


def test_integer_division_by_zero_is_that_of_jax():
    x, zero = np.array([1, -1, 0], np.int32), np.array(0, np.int32)
    agree("floor_divide", x, zero)
    agree("remainder", x, zero)


@RULES
@given(st.integers(-30, 30), st.integers(-7, 7).filter(bool))
def test_divmod_agrees_with_python(x, y):
    for kind in (jnp.int32, jnp.float32):
        quotient, rest = jnp.divmod(kind(x), kind(y))
        assert (float(quotient), float(rest)) == divmod(x, y)


# everything else ------------------------------------------------------------------------------


def f(*shape: int, seed: int = 0) -> np.ndarray:
    return sample("float32", shape, seed)


def i(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 5, shape).astype(np.int32)


A, B, V, I = f(3, 4), f(4, 5, seed=1), f(4, seed=2), i(3, 4)  # noqa: E741
HOLES = A.copy()
HOLES[0, 1], HOLES[2] = np.nan, np.nan

Case = tuple[str, tuple[Any, ...], dict[str, Any]]


def case(name: str, *args: Any, **options: Any) -> Case:
    return name, args, options


EINSUM: list[Case] = [
    case("einsum", text, *shapes)
    for text, shapes in [
        ("ij,jk->ik", (A, B)),
        ("ij,kj->ik", (A[:, :1], A[:, 1:2])),
        ("ij,ij->i", (A[:, :1], A[:, 1:2])),
        ("i,i->", (V[:1], V[1:2])),
        ("ij,jk", (A, B)),
        ("ii", (f(3, 3),)),
        ("ii->i", (f(3, 3),)),
        ("iij->j", (f(3, 3, 2),)),
        ("ij->ji", (A,)),
        ("ij->", (A,)),
        ("i,j->ij", (V, f(3))),
        ("i,i->", (V, V)),
        ("i,i->i", (V, V)),
        ("ij,j->ij", (A, V)),
        ("ij,kl->", (A, B)),
        ("ij,kj->", (A, f(2, 4))),
        ("bij,bjk->bik", (f(2, 3, 4), f(2, 4, 5))),
        ("...ij,...jk->...ik", (f(2, 1, 3, 4), f(3, 4, 5))),
        ("bhqd,bhkd->bhqk", (f(2, 3, 4, 5), f(2, 3, 6, 5))),
        ("ij,jk,kl->il", (A, B, f(5, 2))),
        ("ab,cb,dc,de->ae", (f(2, 3), f(4, 3), f(5, 4), f(5, 6))),
        ("ij,jk->ik", (A, f(3, 5))),
    ]
]
PRODUCTS: list[Case] = [
    case(name, f(*s), f(*t, seed=1))
    for name in ("matmul", "dot")
    for s, t in [
        ((3, 4), (4, 5)),
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((1, 3, 4), (2, 4, 5)),
        ((3, 4), (3, 5)),
    ]
] + [
    case("tensordot", A, B, 1),
    case("tensordot", f(2, 3, 4), f(4, 3, 5), ((1, 2), (1, 0))),
    case("tensordot", A, A),
    case("vecdot", sample("complex64"), sample("complex64")),
    case("matvec", f(2, 3, 4), V),
    case("vecmat", f(3), A),
    case("cross", f(2, 3), f(2, 3, seed=1)),
    case("cross", f(4, 2), f(4, 2, seed=1)),
    case("cross", f(3, 5), f(3, 5, seed=1), axis=0),
    case("linalg.norm", A),
    case("linalg.norm", A, 1),
    case("linalg.norm", V, 3),
    case("linalg.norm", A, 2, 1),
    case("linalg.norm", A, np.inf, 0),
    case("linalg.norm", A, None, 1, True),
    case("linalg.matrix_power", f(3, 3), 3),
    case("linalg.multi_dot", [A, B, f(5, 2)]),
]
REDUCTIONS: list[Case] = [
    case(name, A, axis=axis, keepdims=keepdims)
    for name in ("sum", "mean", "max", "prod", "var", "std", "any", "median")
    for axis in (None, 0, -1, (0, 1))
    for keepdims in (False, True)
] + [
    case("quantile", A, np.array([0.1, 0.5], np.float32), axis=1),
    *[case("quantile", A, 0.4, 1, method=m) for m in ("lower", "higher", "midpoint", "nearest")],
    case("percentile", A, 30, axis=0, keepdims=True),
    case("sum", A, where=A > 0, initial=3.0),
    case("mean", A, 1, where=A > 0),
    case("var", A, 1, where=A > -1, ddof=1),
    case("max", A, where=A > 0, initial=-5.0),
    case("mean", I, dtype="float16"),
    case("sum", A, axis=5),
    case("sum", A, axis=(0, 0)),
    case("max", f(0, 2), axis=0),
    case("max", f(0, 2), axis=1),
    case("mean", f(0, 2)),
    *[
        case(name, HOLES, axis=1)
        for name in "nansum nanprod nanmax nanmin nanmean nanvar nanmedian nanargmax max".split()
    ],
    case("nanquantile", HOLES, 0.3, axis=1),
    case("average", A, 1, weights=np.abs(V), returned=True),
    case("cov", A),
    case("cov", A, rowvar=False, bias=True),
    case("cov", A, aweights=np.abs(V)),
    case("corrcoef", A),
]
SHAPES: list[Case] = (
    [
        case("reshape", A, (2, -1)),
        case("reshape", A, (2, -1), order="F"),
        case("reshape", A, (5, -1)),
        case("transpose", f(2, 3, 4), (1, 2, 0)),
        case("transpose", A, (0, 0)),
        case("moveaxis", f(2, 3, 4), (0, 1), (-1, 0)),
        case("rollaxis", f(2, 3, 4), 0, 3),
        case("expand_dims", A, (0, 2)),
        case("squeeze", f(1, 3, 1)),
        case("squeeze", A, 0),
        case("broadcast_to", A, (3, 5)),
        case("atleast_3d", A),
        case("stack", [V, V], axis=1),
        case("stack", [V, f(3)]),
        case("concatenate", [A, I]),
        case("concatenate", [A, B]),
        case("concatenate", [A, A], axis=None),
        case("hstack", [V, V]),
        case("dstack", [V, V]),
        case("column_stack", [V, A.T]),
        case("array_split", V, 3),
        case("split", V, 3),
        case("split", V, [1, 3]),
        case("flip", A, (0, 1)),
        case("roll", A, (1, 2), (0, 1)),
        case("roll", A, -1),
        case("rot90", A, 3),
        case("tile", A, (2, 1, 2)),
        case("repeat", V, np.array([0, 1, 2, 3])),
        case("repeat", V, np.array([0, 1, 2, 3]), total_repeat_length=8),
        case("block", [[A, A], [A, A]]),
        case("resize", V, (3, 3)),
        case("delete", A, slice(None, None, 2), 1),
        case("insert", A, 1, f(3), 1),
        case("tril", f(2, 3, 3), -1),
        case("triu", A, 1),
        case("diag", V, -2),
        case("diagonal", f(2, 3, 4), 1, 1, 2),
        case("fill_diagonal", A, 3.0, inplace=False),
        case("unstack", A),
    ]
    + [
        case("pad", x, width, mode)
        for mode in "constant edge linear_ramp maximum mean median minimum".split()
        for x, width in ((A, ((1, 2), (0, 3))), (I, 1))
    ]
    + [
        case("pad", x, width, mode)
        for mode in ("reflect", "symmetric", "wrap")
        for x, width in ((A, ((1, 2), (0, 3))), (I, 1))
    ]
    + [
        case("pad", A, ((5, 7), (6, 4)), "reflect", reflect_type="odd"),
        case("pad", A, ((5, 7), (6, 4)), "symmetric", reflect_type="odd"),
        case("pad", A, 1, "constant", constant_values=((1, 2), (3, 4))),
    ]
)
CREATION: list[Case] = [
    case("eye", 3, 4, 1),
    case("arange", 5),
    case("arange", 1, 2, 0.3),
    case("arange", 5, 0, -2),
    case("arange", 5, dtype="float32"),
    case("linspace", 0, 1, 5),
    case("linspace", 0, 1, 5, False),
    case("linspace", 0, 10, 5, dtype=int),
    case("linspace", V, f(4, seed=5), 3, axis=1),
    case("logspace", 0, 2, 4),
    case("geomspace", 1, 100, 4),
    case("meshgrid", V, f(3), indexing="ij", sparse=True),
    case("meshgrid", V, f(3)),
    case("indices", (2, 3)),
    case("full", (2,), 3),
    case("full_like", I, 2.5),
    case("array", [[1, 2], [3, 4.0]]),
    case("array", [True, 2]),
    case("array", []),
    case("array", [1, 2j]),
    case("array", [np.float32(1), 2]),
    case("array", [[1], [1, 2]]),
    case("array", 2**40),
    case("array", 300, dtype="int8"),
    case("array", "a"),
    case("array", [V, V], ndmin=3),
    case("hamming", 5),
    case("vander", V, 3, True),
    case("polyval", V, A),
    case("polydiv", f(5), f(3, seed=1)),
]
SEARCHES: list[Case] = [
    case("take", V, np.array([0, 5, -1])),
    case("take", A, np.array([[0, 2]]), 1),
    case("where", A > 0, V, 2.5),
    case("where", A > 0, 1, 2),
    case("where", A > 0),
    case("nonzero", A > 0, size=20, fill_value=-1),
    case("argwhere", A > 0, size=3),
    case("select", [A > 1, A > 0], [A, I], 7),
    case("choose", i(4) % 3, [V, V + 1, V + 2]),
    case("compress", np.array([True, False, True]), A, 0),
    case("piecewise", V, [V < 0, V >= 0], [-1, 1]),
    case("clip", I, None, 2.5),
    case("unravel_index", np.array([5, 7]), (3, 4)),
    case("isin", I, np.arange(2, 60)),
    case("union1d", I, np.array([7])),
    case("intersect1d", I, np.array([7, 1, 2])),
    case("setdiff1d", I, np.array([1, 2])),
    case("setxor1d", np.array([1, 2, 3]), np.array([2, 5])),
    case("bincount", i(10), length=3),
    case("bincount", i(4), V),
    case("searchsorted", np.array([1, 2, 2, 3]), np.array([2, 0, 9]), side="right"),
    case("digitize", V, np.array([1.0, 0, -1]), right=True),
    case("argsort", I, descending=True),
    case("lexsort", (i(6), i(6, seed=1))),
    case("histogram", V, 3, density=True),
    case("histogram2d", V, f(4, seed=3), 3),
    case("unique", I, True, True, True),
    case("unique", I, return_counts=True, size=12),
    case("unique", i(6, 2) % 2, axis=0, return_counts=True),
    case("interp", f(5), np.sort(f(6, seed=1)), f(6, seed=2), left=-1.0, right=1.0),
    case("interp", f(5), np.sort(f(6, seed=1)), f(6, seed=2), period=2.0),
    case("gradient", V, np.array([0, 1, 3, 4.0], np.float32)),
    case("trapezoid", V, np.sort(f(4, seed=1))),
    case("convolve", V, f(3), "same"),
    case("correlate", f(2), V, "same"),
    case("unwrap", np.array([0, 1, 5, 11, -3], np.float32)),
]
CASES = EINSUM + PRODUCTS + REDUCTIONS + SHAPES + CREATION + SEARCHES


@pytest.mark.parametrize("chosen", [pytest.param(c, id=f"{k}-{c[0]}") for k, c in enumerate(CASES)])
def test_results_are_those_of_jax(chosen):
    name, args, options = chosen
    agree(name, *args, **options)


@pytest.mark.parametrize(
    "name", ["add", "subtract", "multiply", "maximum", "logaddexp", "logical_and"]
)
def test_ufunc_methods_agree_with_jax(name):
    agree(f"{name}.reduce", A)
    agree(f"{name}.reduce", A, axis=1, keepdims=True)
    agree(f"{name}.accumulate", A, axis=1)
    agree(f"{name}.outer", A, V)


def test_ufuncs_scatter_and_reduce_spans():
    agree("add.at", V, np.array([0, 0]), np.float32(1), inplace=False)
    agree("add.reduceat", V, np.array([0, 2]))
    with pytest.raises(ValueError, match="inplace"):
        jnp.add.at(jnp.zeros(2), 0, 1)


def test_all_names_of_jax_are_there():
    names = {name for name in dir(jax.numpy) if not name.startswith("_")}
    missing = {name for name in names if not hasattr(jnp, name)}
    assert missing <= {
        *("fft", "float6_e2m3fn", "float6_e3m2fn", "i0", "int1", "kaiser", "packbits", "polyfit"),
        *("roots", "uint1", "unpackbits"),
    }


def test_vectorize_and_apply_along_axis():
    x = jnp.asarray(A)
    dots = jnp.vectorize(lambda a, b: a @ b, signature="(n),(n)->()")(x, x[0])
    np.testing.assert_allclose(np.asarray(dots), A @ A[0], rtol=1e-5)
    parts = jnp.apply_along_axis(lambda v: v[:2] * 2, 0, x)
    np.testing.assert_array_equal(np.asarray(parts), A[:2] * 2)
    outer = jnp.vectorize(lambda a, b: a + b)(x[:, :1], x[0])
    np.testing.assert_allclose(np.asarray(outer), A[:, :1] + A[0], rtol=1e-6)


# tracing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "most"),
    [
        (lambda x: x + 1, 1),
        (lambda x: jnp.maximum(x, 0) / 2, 2),
        (lambda x: x.mean(), 2),
        (lambda x: jnp.var(x, 0), 8),
        (lambda x: x[0], 2),
        (lambda x: jnp.where(x > 0, x, 0), 2),
        (lambda x: jnp.einsum("ij,kj->ik", x, x), 2),
        (lambda x: x - x.max(1, keepdims=True), 4),
        (lambda x: jnp.clip(x, 0, 1), 2),
    ],
)
def test_functions_trace_to_few_operations(function: Callable[..., Any], most: int):
    jaxpr = make_jaxpr(function)(jnp.asarray(A))
    assert count(jaxpr) <= most
    assert not jaxpr.captured


@pytest.mark.parametrize(
    "chosen",
    [pytest.param(c, id=f"{k}-{c[0]}") for k, c in enumerate(EINSUM + PRODUCTS + REDUCTIONS)],
)
def test_traced_functions_give_what_eager_ones_give(chosen):
    name, args, options = chosen
    arrays = [k for k, arg in enumerate(args) if isinstance(arg, np.ndarray)]
    try:
        expected = run(jnp, name, args, options)
    except (TypeError, ValueError):
        return

    def traced(*given: Any) -> list[Any]:
        whole = list(args)
        for k, value in zip(arrays, given, strict=True):
            whole[k] = value
        return run(jnp, name, whole, options)

    found = jit(traced)(*[jnp.asarray(args[k]) for k in arrays])
    for x, y in zip(found, expected, strict=True):
        assert (x.aval.shape, x.dtype) == (y.aval.shape, y.dtype)
        close(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda x: jnp.nonzero(x), ConcretizationTypeError, "size="),
        (lambda x: jnp.unique(x), ConcretizationTypeError, "size="),
        (lambda x: jnp.arange(x[0]), ConcretizationTypeError, "stop"),
        (lambda x: jnp.zeros(x[0]), TypeError, "shape"),
    ],
)
def test_sizes_must_be_known_while_tracing(function, error, text):
    with pytest.raises(error, match=text):
        jit(function)(jnp.arange(3))


@pytest.mark.parametrize(
    ("action", "error", "text"),
    [
        (lambda x: x + jnp.ones(3), ShapeError, r"add: .*f32\[3,4\] and f32\[3\]"),
        (lambda x: x @ jnp.ones(3), ShapeError, r"matmul: .*f32\[3,4\]"),
        (lambda x: jnp.sum([1, 2]), TypeError, "sum: .*list"),
        (lambda x: x.sum(axis=2), ShapeError, r"sum: .*-2\.\.1"),
        (lambda x: x.reshape(5, -1), ShapeError, "reshape: .*12 elements"),
        (lambda x: jnp.bitwise_and(x, 1), DtypeError, "bitwise_and: .*float32"),
        (lambda x: jnp.arange(3) ** -1, TypeError, "power: .*negative"),
        (lambda x: jnp.concatenate([x, jnp.ones((3, 3))]), ShapeError, "concatenate: "),
        (lambda x: jnp.ones(3) + 2**40, OverflowError, "int32"),
    ],
)
def test_errors_name_the_function_the_arrays_and_the_users_line(action, error, text):
    with pytest.raises(error, match=text) as caught:
        action(jnp.asarray(A))
    assert error is OverflowError or "test_numpy.py:" in str(caught.value)


def test_scalar_types_make_arrays_and_stand_for_dtypes():
    x = jnp.float32(3)
    assert (x.dtype, x.shape, x.weak_type) == (np.float32, (), False)
    assert jnp.zeros(2, jnp.bfloat16).dtype == jnp.bfloat16
    assert jnp.float32 == np.float32
    assert np.dtype(jnp.int8) == np.int8
    assert jnp.issubdtype(jnp.bfloat16, jnp.floating)
    assert jnp.finfo(jnp.float32).eps == np.finfo(np.float32).eps
    assert jnp.zeros(2, float).dtype == np.float32


# --- Values at the edges of the dtypes -----------------------------------------------------------

FLOAT_DTYPES = ["float16", "bfloat16", "float32", "float64"]
EDGES = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 7.0, np.inf, -np.inf, np.nan]


def of_float(dtype: str, values: Any) -> np.ndarray:
    return np.asarray(values).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def same_with_signs(found: Any, expected: np.ndarray) -> None:
    found, expected = np.asarray(found).astype("f8"), expected.astype("f8")
    np.testing.assert_array_equal(found, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(expected)[known])


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_floor_division_of_zeros_and_infinities_is_numpys(dtype):
    x, y = (of_float(dtype, v.ravel()) for v in np.meshgrid(EDGES, EDGES))
    expected, rest = np.divmod(x.astype("f8"), y.astype("f8"))
    a, b = jnp.array(x, x.dtype), jnp.array(y, y.dtype)
    same_with_signs(jnp.floor_divide(a, b), expected)
    same_with_signs(jit(lambda a, b: a // b)(a, b), expected)
    quotient, remainder = divmod(a, b)
    same_with_signs(quotient, expected)
    np.testing.assert_array_equal(np.asarray(remainder).astype("f8"), rest)


def test_divmod_finds_one_remainder_and_keeps_weak_types():
    x = jnp.array([5.0, -5.0])
    assert str(make_jaxpr(jnp.divmod)(x, x)).count("= rem") == 1
    assert all(part.weak_type for part in jnp.divmod(7, 2))
    np.testing.assert_array_equal(jnp.divmod(jnp.array([7, -7]), 2), np.divmod([7, -7], 2))
    assert float(grad(lambda v: v // 0.0)(1.0)) == 0.0


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_nan_to_num_gives_the_limits_of_the_dtype(dtype):
    x = of_float(dtype, [np.inf, -np.inf, np.nan])
    limit = float(ml_dtypes.finfo(x.dtype).max)
    found = np.asarray(jnp.nan_to_num(jnp.array(x, x.dtype))).astype("f8")
    np.testing.assert_array_equal(found, [limit, -limit, 0.0])


def test_numbers_are_not_rounded_on_their_way_to_a_wide_dtype():
    wide = jnp.array([2.0, np.inf], "float64")
    assert float(jnp.nan_to_num(wide, posinf=1e300)[1]) == 1e300
    assert float(jnp.full((), 1e300, "float64")) == 1e300
    assert float(jnp.full_like(wide, 0.1)[0]) == 0.1
    assert float(jnp.where(jnp.array([False, True]), wide, 0.1)[0]) == 0.1
    assert float(jnp.hypot(0.1, wide)[0]) == pytest.approx(np.hypot(0.1, 2.0), rel=1e-15)
    assert float(jnp.max(wide[:1], initial=1e300)) == 1e300
    assert float(jnp.pad(wide, 1, constant_values=0.1)[0]) == 0.1


@pytest.mark.parametrize(
    ("base", "exponent"),
    [(2, "array"), ("weak", "array"), (2.0, "array"), (True, "array"), ("array", 2), (2, 3)],
)
def test_power_is_as_weak_as_in_jax(base, exponent):
    def found(library: Any) -> Any:
        named = {"array": library.arange(3), "weak": library.asarray(2)}
        return library.power(*(named.get(v, v) for v in (base, exponent)))

    ours, theirs = found(jnp), found(jax.numpy)
    assert (ours.dtype, ours.weak_type) == (theirs.dtype, theirs.weak_type)
    np.testing.assert_array_equal(ours, theirs)
    assert not (2 ** jnp.arange(3)).weak_type


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_frexp_is_exact_and_its_derivative_is_the_power_of_two(dtype):
    limits = ml_dtypes.finfo(of_float(dtype, 0).dtype)
    small, high = float(limits.smallest_normal), float(limits.max)
    values = [0.0, -0.0, 3.0, -0.75, small, small / 2, -high, np.inf, np.nan]
    x = of_float(dtype, values)
    mantissa, exponent = jnp.frexp(jnp.array(x, x.dtype))
    expected, whole = np.frexp(x.astype("f8"))
    same_with_signs(mantissa, expected)
    np.testing.assert_array_equal(exponent, np.where(np.isfinite(expected), whole, 0))
    at_three = jnp.array(3.0, x.dtype)
    assert float(grad(lambda v: jnp.frexp(v)[0])(at_three)) == 0.25


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("value", [300.5, -300.5, 2.75, -0.5, 1e300, np.inf, -np.inf, np.nan])
def test_host_floats_become_integers_as_on_the_device(dtype, value):
    limits = np.iinfo(dtype)
    expected = 0 if np.isnan(value) else int(np.trunc(np.clip(value, -1e30, 1e30)))
    expected = min(max(expected, limits.min), limits.max)
    on_host = [
        jnp.full((), value, dtype),
        jnp.array(value, dtype),
        jnp.array([value], dtype)[0],
        jnp.array(np.float64(value), dtype),
        jnp.array(np.float32(value), dtype),
        jnp.full((), np.float32(value), dtype),
    ]
    assert [int(x) for x in on_host] == [expected] * len(on_host)
    assert int(jnp.array(value, "float64").astype(dtype)) == expected


NARROW = [
    *("int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float8_e3m4", "float8_e4m3"),
    *("float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
]
DOORS: list[Callable[[Any], Any]] = [
    lambda d: jnp.zeros(2, d),
    lambda d: jnp.full(2, 1, d),
    lambda d: jnp.array(1, d),
    lambda d: jnp.asarray([1], d),
    lambda d: jnp.arange(3, dtype=d),
    lambda d: jnp.arange(3).astype(d),
    lambda d: jnp.astype(jnp.arange(3), d),
    lambda d: jnp.asarray(np.ones(2, d)),
    lambda d: jnp.array([np.ones(2, d)]),
    lambda d: jnp.add(np.ones(2, d), 1),
    lambda d: jnp.arange(3, dtype="int8").view(d),
    lambda d: jnp.add.reduce(jnp.arange(3), dtype=d),
    lambda d: getattr(jnp, d.name)(1),
]


@pytest.mark.parametrize("name", NARROW)
def test_dtypes_that_kernels_do_not_hold_are_refused_by_name(name):
    for door in DOORS:
        with pytest.raises(DtypeError, match=rf"{name}, .* not supported yet.*test_numpy.py:"):
            door(np.dtype(getattr(ml_dtypes, name)))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_the_two_floats_of_eight_bits_compute(name):
    x = jnp.ones(2, name) + jnp.asarray([1, 2], name)
    np.testing.assert_array_equal(np.asarray(x).astype("f4"), [2.0, 3.0])
