"""reduce_window, its derivatives and pooling: against JAX, and against NumPy over windows that are
written out; the kernels of every device in the interpreter."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as J
import numpy as np
import pytest
from run_works import Array, equation, group, interpreted, lines

import xcube
import xcube.numpy as jnp
from xcube import lax, nn
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval
from xcube.lowering.kernels import window as template
from xcube.primitives.window_reduce import window_position
from xcube.primitives.window_reduce_planes import Planes, Side, Window

jax.config.update("jax_platforms", "cpu")

Case = tuple[Any, ...]

# shape, window, strides, padding, base dilation, window dilation
CASES: dict[str, Case] = {
    "channels last": ((2, 9, 11, 5), (1, 3, 3, 1), (1, 1, 1, 1), "SAME", None, None),
    "halves": ((2, 8, 12, 3), (1, 2, 2, 1), (1, 2, 2, 1), "VALID", None, None),
    "planes": ((2, 3, 7, 37), (1, 1, 3, 3), (1, 1, 2, 2), "SAME_LOWER", None, None),
    "uneven": (
        (1, 10, 9, 4),
        (1, 3, 2, 1),
        (1, 2, 3, 1),
        ((0, 0), (1, 2), (0, 1), (0, 0)),
        None,
        (1, 2, 1, 1),
    ),
    "apart": ((5, 6), (2, 3), (1, 2), ((1, 0), (2, 2)), (2, 3), (2, 1)),
    "four": ((4, 5, 6, 3), (2, 3, 3, 2), (1, 1, 2, 1), "SAME", None, None),
    "not near": ((4, 3, 6), (2, 1, 3), (1, 1, 1), "VALID", None, None),
    "rows": ((13, 70), (4, 1), (3, 1), ((2, 1), (0, 0)), None, None),
    "line": ((130,), (11,), (1,), "SAME", None, None),
    "strided line": ((131,), (3,), (5,), "VALID", None, None),
    "all": ((7,), (7,), (1,), "VALID", None, None),
    "too small": ((2, 3), (3, 1), (1, 1), "VALID", None, None),
    "high alone": ((3, 4), (1, 1), (1, 1), ((0, 2), (0, 0)), None, None),
    "empty": ((0, 3), (1, 2), (1, 1), "SAME", None, None),
}
NAMES = pytest.mark.parametrize("name", CASES)
MONOIDS = {"add": 0.0, "max": -np.inf, "min": np.inf, "mul": 1.0}


def normal(shape: tuple[int, ...], seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def close(found: Any, wanted: Any, rtol: float = 2e-6) -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=1)
    np.testing.assert_allclose(
        found.astype(float), wanted.astype(float), rtol, rtol * float(largest)
    )


# values ---------------------------------------------------------------------------------------


@NAMES
@pytest.mark.parametrize("monoid", MONOIDS)
def test_values(name: str, monoid: str) -> None:
    shape, *window = CASES[name]
    x, init = normal(shape), np.float32(MONOIDS[monoid])
    found = lax.reduce_window(x, init, getattr(lax, monoid), *window)
    close(found, jax.lax.reduce_window(x, init, getattr(jax.lax, monoid), *window), 1e-5)


@pytest.mark.parametrize("monoid", MONOIDS)
@pytest.mark.parametrize(
    "case",
    [
        ((8, 9), (3, 2), (2, 1), "SAME", (2, 3), None),
        ((2, 5), (6, 2), (1, 2), "VALID", None, (1, 2)),
        ((4, 4), (6, 2), (2, 3), ((0, 0), (1, 2)), None, (2, 2)),
    ],
)
def test_gaps_and_windows_larger_than_the_array(case: Case, monoid: str) -> None:
    """Of some of which JAX cannot compute the gradient."""
    shape, *window = case
    x, init = normal(shape), np.float32(MONOIDS[monoid])

    def fold(x: Any) -> Any:
        return lax.reduce_window(x, init, getattr(lax, monoid), *window)

    found = fold(x)
    close(found, jax.lax.reduce_window(x, init, getattr(jax.lax, monoid), *window), 1e-5)
    slopes = np.asarray(xcube.grad(lambda x: fold(x).sum())(x))
    assert slopes.shape == shape
    assert found.size or not slopes.any()


@NAMES
def test_an_init_value_that_is_not_neutral(name: str) -> None:
    shape, *window = CASES[name]
    x = normal(shape)
    found = xcube.jit(lambda x, init: lax.reduce_window(x, init, lax.max, *window))(
        x, np.float32(1)
    )
    close(found, jax.lax.reduce_window(x, np.float32(1), jax.lax.max, *window))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint8", "int32"])
@pytest.mark.parametrize("monoid", ["add", "max", "min"])
def test_dtypes(dtype: str, monoid: str) -> None:
    shape, *window = CASES["channels last"]
    x = (np.abs(normal(shape)) * 9).astype(jnp.dtype(dtype))
    wide = x.astype(np.float64 if x.dtype.kind in "fV" else np.int64)
    init = {"add": 0, "max": -np.inf, "min": np.inf}[monoid]
    if x.dtype.kind in "iu" and monoid != "add":
        init = getattr(np.iinfo(x.dtype), {"max": "min", "min": "max"}[monoid])
    exact = jnp.array(x, dtype)
    found = lax.reduce_window(exact, np.asarray(init, x.dtype)[()], getattr(lax, monoid), *window)
    assert found.dtype == x.dtype
    pairs = np.pad(
        wide,
        ((0, 0), (1, 1), (1, 1), (0, 0)),
        constant_values=init if monoid == "add" else float(init),
    )
    seen = np.lib.stride_tricks.sliding_window_view(pairs, (3, 3), (1, 2))
    wanted = {"add": np.sum, "max": np.max, "min": np.min}[monoid](seen, (-2, -1))
    rtol = 1e-6 if dtype == "float64" else 2.0 ** (-2 * x.dtype.itemsize - 4)
    np.testing.assert_allclose(
        np.asarray(found).astype(float), wanted.astype(x.dtype).astype(float), rtol
    )


@pytest.mark.parametrize("operation", ["and", "or", "xor"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.bool_])
def test_logic(operation: str, dtype: Any) -> None:
    x = np.random.default_rng(3).integers(0, 2 if dtype is np.bool_ else 100, (7, 9)).astype(dtype)
    init = np.invert(np.zeros((), dtype)) if operation == "and" else np.zeros((), dtype)
    window = (3, 2), (1, 2), "VALID"
    found = lax.reduce_window(x, init, getattr(lax, f"bitwise_{operation}"), *window)
    close(found, jax.lax.reduce_window(x, init, getattr(jax.lax, f"bitwise_{operation}"), *window))


def test_complex_numbers() -> None:
    x = normal((6, 7)) + 1j * normal((6, 7), 1)
    x = x.astype(np.complex64)
    found = lax.reduce_window(x, np.complex64(0), lax.add, (3, 3), (1, 2), "SAME")
    wanted = jax.lax.reduce_window(x, np.complex64(0), jax.lax.add, (3, 3), (1, 2), "SAME")
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), 1e-5)


@pytest.mark.parametrize("name", ["channels last", "apart", "line", "four"])
def test_any_computation(name: str) -> None:
    shape, *window = CASES[name]
    x = normal(shape) * 0.1

    def function(lib: Any) -> Any:
        return lambda a, b: a + b + a * b  # associative; 0 is neutral

    found = lax.reduce_window(x, np.float32(0), function(jnp), *window)
    close(found, jax.lax.reduce_window(x, np.float32(0), function(J), *window), 1e-4)


def test_pairs_fold_together() -> None:
    x, y = normal((5, 6)), np.arange(30, dtype=np.int32).reshape(5, 6)

    def largest(where: Any) -> Any:
        return lambda a, b: (where(a[0] >= b[0], a[0], b[0]), where(a[0] >= b[0], a[1], b[1]))

    window = (2, 3), (1, 1), "VALID"
    inits = np.float32(-np.inf), np.int32(-1)
    found = lax.reduce_window((x, y), inits, largest(jnp.where), *window)
    for a, b in zip(
        found, jax.lax.reduce_window((x, y), inits, largest(J.where), *window), strict=True
    ):
        close(a, b)


def test_nan_wins() -> None:
    x = normal((1, 8, 9, 3))
    x[0, 3, 4, 1] = np.nan
    for pool in (nn.max_pool, nn.min_pool):
        found = np.isnan(np.asarray(pool(x, (3, 3))))
        wanted = np.zeros((1, 6, 7, 3), bool)
        wanted[0, 1:4, 2:5, 1] = True
        assert (found == wanted).all()


# derivatives ----------------------------------------------------------------------------------

SMOOTH = [name for name in CASES if name not in ("too small", "empty")]


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("monoid", ["add", "max", "min"])
def test_gradients(name: str, monoid: str) -> None:
    shape, *window = CASES[name]
    x = normal(shape)

    places = lax.reduce_window(x, MONOIDS[monoid], getattr(lax, monoid), *window).shape
    w = normal(places, 1)

    def ours(x: Any) -> Any:
        fold = lax.reduce_window(x, MONOIDS[monoid], getattr(lax, monoid), *window)
        return (w * fold**2).sum()

    def theirs(x: Any) -> Any:
        return (w * written_out(x, monoid, *window) ** 2).sum()

    close(xcube.jit(xcube.grad(ours))(x), jax.grad(theirs)(x), 1e-5)
    direction = normal(shape, 2)
    _, found = xcube.jvp(xcube.grad(ours), (x,), (direction,))
    _, wanted = jax.jvp(jax.grad(theirs), (x,), (direction,))
    close(found, wanted, 1e-5)


def written_out(
    x: Any, monoid: str, sizes: Any, strides: Any, padding: Any, base: Any, apart: Any
) -> Any:
    """By slices; JAX has no derivative of its own where windows are dilated."""
    ones = (1,) * x.ndim
    base, apart = base or ones, apart or ones
    wide = [(n - 1) * step + 1 for n, step in zip(x.shape, base, strict=True)]
    spans = [(n - 1) * step + 1 for n, step in zip(sizes, apart, strict=True)]
    if isinstance(padding, str):
        padding = jax.lax.padtype_to_pads(wide, spans, strides, padding)
    config = [(low, high, step - 1) for (low, high), step in zip(padding, base, strict=True)]
    x = jax.lax.pad(x, MONOIDS[monoid], config)
    last = [n - span for n, span in zip(x.shape, spans, strict=True)]
    parts = []
    for number in np.ndindex(*sizes):
        start = [k * step for k, step in zip(number, apart, strict=True)]
        end = [k + n + 1 for k, n in zip(start, last, strict=True)]
        parts.append(jax.lax.slice(x, start, end, strides))
    return {"add": J.sum, "max": J.max, "min": J.min}[monoid](J.stack(parts), 0)


@pytest.mark.parametrize("monoid", ["max", "min"])
@pytest.mark.parametrize("name", ["channels last", "halves", "planes", "rows", "strided line"])
def test_the_first_of_equals_has_the_gradient(name: str, monoid: str) -> None:
    shape, *window = CASES[name]
    x, init = np.round(normal(shape), 0), MONOIDS[monoid]
    w = normal(lax.reduce_window(x, init, getattr(lax, monoid), *window).shape, 1)
    found, wanted = [
        of.grad(lambda x, m=m: (w * m.reduce_window(x, init, getattr(m, monoid), *window)).sum())(x)
        for of, m in ((xcube, lax), (jax, jax.lax))
    ]
    close(found, wanted, 1e-5)


def test_gradients_of_wide_windows() -> None:
    x, w = normal((40, 50)), normal((40, 50), 1)
    for fold, init in (("max", -np.inf), ("add", 0.0)):
        found, wanted = [
            of.grad(
                lambda x, m=module, f=fold, i=init: (
                    w * m.reduce_window(x, i, getattr(m, f), (11, 13), (1, 1), "SAME")
                ).sum()
            )(x)
            for of, module in ((xcube, lax), (jax, jax.lax))
        ]
        close(found, wanted, 1e-5)


def test_a_product_has_a_derivative() -> None:
    x = normal((6,))
    found = xcube.grad(lambda x: lax.reduce_window(x, 1.0, lax.mul, (3,), (1,), "VALID").sum())(x)
    seen = np.lib.stride_tricks.sliding_window_view(x.astype(float), 3)
    wanted = np.zeros(6)
    for start, window in enumerate(seen):
        wanted[start : start + 3] += [
            window[1] * window[2],
            window[0] * window[2],
            window[0] * window[1],
        ]
    np.testing.assert_allclose(np.asarray(found), wanted, 1e-5, 1e-6)


@pytest.mark.parametrize("monoid", ["add", "max", "mul"])
def test_vmap(monoid: str) -> None:
    x = normal((3, 5, 6))

    def fold(x: Any) -> Any:
        init = float(MONOIDS[monoid])
        return lax.reduce_window(x, init, getattr(lax, monoid), (2, 3), (1, 2), "SAME")

    def slope(x: Any) -> Any:
        return xcube.grad(lambda x: (fold(x) ** 2).sum())(x)

    for function in (fold, slope):
        wanted = np.stack([np.asarray(function(row)) for row in x])
        close(xcube.vmap(function)(x), wanted, 1e-5)
        moved = xcube.vmap(function, in_axes=2, out_axes=1)(x.transpose(1, 2, 0))
        close(moved, wanted.swapaxes(0, 1), 1e-5)


@pytest.mark.parametrize("shape", [(4, 3, 6), (3, 4, 5, 2), (9,)])
@pytest.mark.parametrize("name", ["max", "min"])
def test_positions_are_the_first(shape: tuple[int, ...], name: str) -> None:
    rank = len(shape)
    sizes = (3, 2, 2, 1)[:rank]
    x = np.random.default_rng(1).integers(0, 3, shape).astype(np.float32)
    x.flat[3] = np.nan
    window = Window(sizes, (1,) * rank, ((1, 1),) * rank, (1,) * rank)
    found = np.asarray(window_position(jnp.array(x), window, name))
    fill = -np.inf if name == "max" else np.inf
    seen = np.lib.stride_tricks.sliding_window_view(np.pad(x, 1, constant_values=fill), sizes)
    flat = seen.reshape(*seen.shape[:rank], -1)
    wanted = flat.argmax(-1) if name == "max" else flat.argmin(-1)
    real = np.isfinite(np.take_along_axis(flat, wanted[..., None], -1)[..., 0]) | np.isnan(
        flat
    ).any(-1)
    assert (found[real] == wanted[real]).all()


# kernels --------------------------------------------------------------------------------------

SIDES = [
    (Side(5, 3, 1, 1, 1, 5), Side(23, 3, 1, 1, 1, 23), 1),
    (Side(4, 2, 2, 1, 0, 2), Side(18, 2, 2, 1, 0, 9), 1),
    (Side(4, 2, 2, 1, 0, 2), Side(7, 3, 3, 2, 2, 3), 5),
    (Side(7, 3, 2, 2, 3, 4), Side(21, 1, 1, 1, 0, 21), 1),
    (Side(1, 1, 1, 1, 0, 1), Side(40, 5, 4, 1, 3, 11), 1),
    (Side(3, 2, 1, 1, 2, 5), Side(3, 2, 1, 1, 2, 5), 19),
]


def by_definition(x: Array, planes: Planes, fold: Any, neutral: Any) -> Array:
    rows, columns = planes.rows, planes.columns
    out = np.zeros((planes.outer, rows.places, columns.places, planes.inner), x.dtype)
    for r, c in np.ndindex(rows.places, columns.places):
        ys = [r * rows.stride - rows.low + k * rows.apart for k in range(rows.size)]
        zs = [c * columns.stride - columns.low + k * columns.apart for k in range(columns.size)]
        ys = [y for y in ys if 0 <= y < rows.length]
        zs = [z for z in zs if 0 <= z < columns.length]
        seen = x[:, ys][:, :, zs]
        out[:, r, c] = fold(seen, (1, 2), initial=neutral)
    return out


@pytest.mark.parametrize("units", [1, 8])
@pytest.mark.parametrize("number", range(len(SIDES)))
def test_kernels(units: int, number: int) -> None:
    rows, columns, inner = SIDES[number]
    planes = Planes(2, rows, columns, inner)
    x = normal((2, rows.length, columns.length, inner))
    shape = (2, rows.places, columns.places, inner)
    for name, fold, neutral in (("max", np.max, -np.inf), ("add", np.sum, 0)):
        eqn = equation(
            "window_planes",
            [x],
            [Aval(shape, np.float32)],
            operation=name,
            planes=planes,
            shape=shape,
            positions=None,
        )
        facts = dataclasses.replace(lines(16), units=units)
        (found,) = interpreted(template.build(group(eqn), facts), eqn, [x])
        close(found, by_definition(x, planes, fold, neutral))


def test_one_kernel_serves_all_sizes() -> None:
    def key(size: int, length: int) -> str:
        f = lambda x: lax.reduce_window(x, 0.0, lax.add, (size, size), (1, 1), "SAME")  # noqa: E731
        (kernel,) = xcube.inspect(f)(jnp.ones((length, length))).kernels
        return str(kernel.cube)

    assert key(3, 100) == key(5, 117)


# pooling --------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["SAME", "VALID", ((1, 0), (2, 1))])
def test_pooling(padding: Any) -> None:
    x = normal((2, 7, 9, 3))
    pairs = padding if isinstance(padding, str) else [(0, 0), *padding, (0, 0)]
    window = (1, 3, 2, 1), (1, 2, 1, 1), pairs
    sums = jax.lax.reduce_window(x, 0.0, jax.lax.add, *window)
    counts = jax.lax.reduce_window(np.ones_like(x), 0.0, jax.lax.add, *window)
    args = (x, (3, 2), (2, 1), padding)
    close(nn.avg_pool(*args), sums / 6)
    close(nn.avg_pool(*args, count_include_pad=False), sums / counts)
    close(nn.max_pool(*args), jax.lax.reduce_window(x, -np.inf, jax.lax.max, *window))
    close(nn.min_pool(*args), jax.lax.reduce_window(x, np.inf, jax.lax.min, *window))
    close(nn.max_pool(x[0], (3, 2), (2, 1), padding), np.asarray(nn.max_pool(*args))[0])
    close(
        nn.max_pool(x.astype(np.int32), (2, 2)),
        np.asarray(nn.max_pool(np.trunc(x), (2, 2))).astype(np.int32),
    )


# errors ---------------------------------------------------------------------------------------


def test_the_shape() -> None:
    args = (8, 9), (2, 3), (2, 1), [(0, 0), (1, 1)], (2, 1), (1, 2)
    assert lax.reduce_window_shape_tuple(*args) == jax.lax.reduce_window_shape_tuple(*args)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"window_dimensions": (2,)}, ShapeError, r"f32\[4,5\]"),
        ({"window_strides": (0, 1)}, ShapeError, "window_strides=\\(0, 1\\)"),
        ({"padding": "ALL"}, ValueError, "'ALL'"),
        ({"padding": ((-1, 0), (0, 0))}, ShapeError, "-1"),
        ({"base_dilation": (1,)}, ShapeError, "base_dilation"),
        ({"computation": lambda a, b: a < b}, DtypeError, r"bool\[\]"),
        ({"init_value": (0.0, 0.0)}, ShapeError, "init value"),
    ],
)
def test_errors(change: dict[str, Any], error: type[Exception], text: str) -> None:
    args = {
        "operand": np.ones((4, 5), np.float32),
        "init_value": 0.0,
        "computation": lax.add,
        "window_dimensions": (2, 2),
        "window_strides": (1, 1),
        "padding": "VALID",
    }
    with pytest.raises(error, match=text) as raised:
        lax.reduce_window(**(args | change))
    assert "test_reduce_window.py" in str(raised.value)
    with pytest.raises(ShapeError, match="pool"):
        nn.max_pool(np.ones(3, np.float32), (2,))
