"""The kernels of scatters against their definition, update by update."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_works import Array, Compiled, equation, group, interpreted, lines

import xcube
import xcube.numpy as jnp
from xcube.ir import Aval
from xcube.lowering.kernels import scatter, scatter_plan
from xcube.primitives.windows import GatherScatterMode, ScatterDimensionNumbers

COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "scatter": lambda old, new: new,
    "scatter-add": operator.add,
    "scatter-sub": operator.sub,
    "scatter-mul": operator.mul,
    "scatter-min": np.minimum,
    "scatter-max": np.maximum,
}
FACTS = dataclasses.replace(lines(16), cores=8)
NAMES = pytest.mark.parametrize("name", COMBINE)
MODES = pytest.mark.parametrize("mode", ["clip", "drop", "promise_in_bounds"])

# operand, indices, updates, dimension numbers
LAYOUTS: list[tuple[Any, ...]] = [
    ((9,), (6, 1), (6,), ((), (0,), (0,))),
    ((9, 21), (6, 1), (6, 21), ((1,), (0,), (0,))),
    ((9, 5), (6, 1), (5, 6), ((0,), (0,), (0,))),
    ((9, 5), (6, 1), (6, 9), ((1,), (1,), (1,))),
    ((9, 5), (6, 2), (6,), ((), (0, 1), (1, 0))),
    ((9, 5), (2, 3, 2), (2, 3, 4), ((2,), (0,), (0, 1))),
    ((9, 5), (2, 3, 2), (2, 3, 2, 3), ((2, 3), (), (0, 1))),
    ((9, 5), (2, 3, 2), (2, 2, 3, 3), ((0, 3), (), (1, 0))),
    ((3, 9, 5), (3, 6, 1), (3, 6, 5), ((2,), (1,), (1,), (0,), (0,))),
    ((3, 4, 9, 5), (4, 3, 6, 1), (4, 3, 5, 6), ((2,), (2,), (2,), (0, 1), (1, 0))),
    ((9, 5, 4), (6, 1), (6, 9, 4), ((1, 2), (1,), (1,))),
    ((9, 5, 4), (1,), (9, 4), ((0, 1), (1,), (1,))),
    ((4,), (3, 0), (3, 4), ((1,), (), ())),
    ((9,), (0, 1), (0,), ((), (0,), (0,))),
    ((), (2, 0), (2,), ((), (), ())),
]


def sample(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Whole numbers, so that every order of additions gives the same sum."""
    x = np.asarray(rng.integers(0, 4, shape))
    kind = np.dtype(dtype).kind
    return (x - 1j * rng.integers(0, 4, shape) if kind == "c" else x).astype(dtype)


def expected(name: str, x: Array, indices: Array, updates: Array, numbers: Any, mode: str) -> Array:
    """The definition: each window in turn, dropped if it does not fit."""
    out = x.copy()
    window_dims = numbers.update_window_dims
    scattered = [d for d in range(updates.ndim) if d not in window_dims]
    dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = [d for d in range(x.ndim) if d not in dropped]
    sizes = [1] * x.ndim
    for d, u in zip(kept, window_dims, strict=True):
        sizes[d] = updates.shape[u]
    walking = list(
        zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    )
    for position in np.ndindex(*indices.shape[:-1]):
        start = [0] * x.ndim
        for number, d in enumerate(numbers.scatter_dims_to_operand_dims):
            start[d] = int(indices[(*position, number)])
            if mode == "clip":
                start[d] = min(max(start[d], 0), x.shape[d] - sizes[d])
        for d, b in walking:
            start[d] = position[b]
        limits = zip(start, sizes, x.shape, strict=True)
        if not all(first >= 0 and first + size <= limit for first, size, limit in limits):
            continue
        source: list[Any] = [slice(None)] * updates.ndim
        for d, number in zip(scattered, position, strict=True):
            source[d] = number
        window = tuple([slice(a, a + s) for a, s in zip(start, sizes, strict=True)])
        new = updates[tuple(source)].reshape(sizes)
        out[window] = COMBINE[name](out[window], new)
    return out


def build(
    name: str, operands: list[Any], numbers: Any, mode: str, unique: bool = False
) -> tuple[Any, Any]:
    x = operands[0]
    eqn = equation(
        name,
        operands,
        [Aval(x.shape, x.dtype)],
        dimension_numbers=numbers,
        mode=GatherScatterMode.from_any(mode),
        unique_indices=unique,
        indices_are_sorted=False,
    )
    return scatter.build(group(eqn), FACTS), eqn


def check(
    name: str, operands: list[Any], layout: Any, mode: str, way: str, unique: bool = False
) -> None:
    numbers = ScatterDimensionNumbers(*layout)
    works, eqn = build(name, operands, numbers, mode, unique)
    run = interpreted if way == "interpreted" else lambda w, e, o: Compiled(w, e, e.outputs)(o)
    with np.errstate(over="ignore"):
        wanted = expected(name, *map(np.asarray, operands), numbers, mode)
    np.testing.assert_array_equal(run(works, eqn, operands)[0], wanted)


@NAMES
@MODES
@pytest.mark.parametrize("split", [False, True])
def test_every_layout(name: str, mode: str, split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if split:
        monkeypatch.setattr(scatter_plan, "TASK", 8)
        monkeypatch.setattr(scatter_plan, "SCAN", 1)
        monkeypatch.setattr(scatter_plan, "LINE", 16)
        monkeypatch.setattr(scatter_plan, "PIECE", 16)
    rng = np.random.default_rng(0)
    for shape, indices, updates, layout in LAYOUTS:
        places = rng.integers(-2, 11, indices).astype(rng.choice([np.int32, np.int64, np.int8]))
        operands = [sample(rng, shape, np.int32), places, sample(rng, updates, np.int32)]
        check(name, operands, layout, mode, "interpreted")


@pytest.mark.parametrize(
    "dtype",
    [np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.uint8, np.int64, np.complex64],
)
@pytest.mark.parametrize("way", ["interpreted", "compiled"])
def test_every_dtype(dtype: Any, way: str) -> None:
    rng = np.random.default_rng(0)
    for name in COMBINE:
        if np.dtype(dtype).kind == "c" and name in ("scatter-min", "scatter-max"):
            continue
        for shape, indices, updates, layout in LAYOUTS[1:3]:
            places = rng.integers(-2, 11, indices).astype(np.int32)
            operands = [sample(rng, shape, dtype), places, sample(rng, updates, dtype)]
            check(name, operands, layout, "drop", way)


@pytest.mark.parametrize("name", ["scatter", "scatter-min", "scatter-max"])
def test_truth_values(name: str) -> None:
    rng = np.random.default_rng(0)
    shape, indices, updates, layout = LAYOUTS[0]
    x, y = (rng.integers(0, 2, s).astype(np.bool_) for s in (shape, updates))
    check(name, [x, rng.integers(0, 9, indices), y], layout, "drop", "interpreted")


@pytest.mark.parametrize("mode", ["clip", "drop"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64])
def test_unsigned_indices_beyond_every_extent(dtype: Any, mode: str) -> None:
    places = np.array([[0], [np.iinfo(dtype).max], [3], [8]], dtype)
    operands = [np.zeros(9, np.int32), places, np.arange(1, 5, dtype=np.int32)]
    check("scatter", operands, LAYOUTS[0][3], mode, "interpreted")


@pytest.mark.parametrize("way", ["interpreted", "compiled"])
def test_a_literal_update_and_a_literal_operand(way: str) -> None:
    layout = ((), (0,), (0,))
    check(
        "scatter-add", [np.zeros(4, np.float32), np.array([2]), np.float32(5)], layout, "drop", way
    )
    layout = ((), (), ())
    operands = [np.float32(2), np.zeros((3, 0), np.int32), np.ones(3, np.float32)]
    check("scatter-add", operands, layout, "drop", way)


@given(st.lists(st.integers(-3, 14), min_size=1, max_size=60), st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_the_last_writer_stays_however_the_work_is_shared(places: list[int], width: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scatter_plan, "TASK", 8)
        patch.setattr(scatter_plan, "SCAN", 1)
        patch.setattr(scatter_plan, "LINE", 16)
        patch.setattr(scatter_plan, "PIECE", 16)
        updates = np.arange(len(places) * width, dtype=np.int32).reshape(len(places), width)
        operands = [np.zeros((12, width), np.int32), np.array(places)[:, None], updates]
        check("scatter", operands, ((1,), (0,), (0,)), "drop", "interpreted")


def test_unique_indices_share_the_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter_plan, "TASK", 8)
    rng = np.random.default_rng(0)
    places = rng.permutation(30)[:20, None].astype(np.int32)
    operands = [sample(rng, (30, 5), np.int32), places, sample(rng, (20, 5), np.int32)]
    check("scatter", operands, ((1,), (0,), (0,)), "drop", "interpreted", unique=True)


@pytest.mark.parametrize("rows", [256, 5000])
def test_the_gradient_of_an_embedding(rows: int) -> None:
    rng = np.random.default_rng(0)
    places = rng.integers(0, rows, 3000).astype(np.int32)
    updates = rng.integers(-8, 8, (3000, 96)).astype(np.float32)
    operands = [np.zeros((rows, 96), np.float32), places[:, None], updates]
    works, eqn = build(
        "scatter-add", operands, ScatterDimensionNumbers((1,), (0,), (0,)), "promise_in_bounds"
    )
    assert works[1].cubes > 1
    wanted = np.zeros((rows, 96), np.float32)
    np.add.at(wanted, places, updates)
    np.testing.assert_array_equal(Compiled(works, eqn, eqn.outputs)(operands)[0], wanted)


def test_an_operand_that_gives_its_memory_is_not_copied() -> None:
    operands = [np.zeros(9, np.float32), np.array([[2]]), np.ones(1, np.float32)]
    _, eqn = build("scatter-add", operands, ScatterDimensionNumbers((), (0,), (0,)), "drop")
    copy, update = scatter.build(group(eqn), lines(), sources=frozenset({eqn.inputs[0]}))
    assert copy.cubes == 0
    assert eqn.inputs[0] not in update.buffers


def chain(x: Any, index: Any, updates: Any) -> Any:
    """Scatters to values that nobody reads again, the last of them a result."""
    y = jnp.sin(x).at[index].add(updates)
    return y.at[index[::-1]].set(2 * updates)


def fork(x: Any, index: Any, updates: Any) -> Any:
    """Scatters to a value that others read."""
    y = jnp.sin(x)
    return y.at[index].add(updates), y.at[index].set(updates), y


def turns(x: Any, index: Any, updates: Any) -> Any:
    """The same in the body of a loop, where what is carried on must stay until it is read."""

    def turn(carry: Any, _: Any) -> Any:
        y = chain(carry, index, updates)
        return y, (y - carry).sum()

    return xcube.lax.scan(turn, x, None, length=3)


@pytest.mark.parametrize(("function", "copied"), [(chain, 0), (fork, 2), (turns, 0)])
def test_temporaries_are_overwritten(function: Callable[..., Any], copied: int) -> None:
    random = np.random.default_rng(0)
    x, updates = (random.standard_normal((n, 7)).astype(np.float32) for n in (50, 3))
    index = np.array([3, 3, 9])
    jitted = xcube.jit(function)
    with xcube.disable_jit():
        expected = function(*map(jnp.asarray, (x, index, updates)))
    found = jitted(x, index, updates)
    for one, other in zip(xcube.tree.leaves(found), xcube.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-5)
    program = xcube.inspect(jitted)(x, index, updates).program
    copies = [
        launch.cubes
        for launch in program.launches
        if program.kernels[launch.kernel].name == "scatter_copy"
    ]
    assert sum(cubes > 0 for cubes in copies) == copied


@pytest.mark.parametrize(
    ("width", "cores", "chunks", "ranges"),
    [
        (64, 1, 2, 1),
        (64, 2, 2, 1),
        (64, 8, 2, 4),
        (8, 8, 1, 1),
        (17, 8, 1, 1),
        (40, 8, 2, 2),
        (4096, 8, 32, 1),
    ],
)
def test_columns_are_shared_before_destinations(
    width: int, cores: int, chunks: int, ranges: int
) -> None:
    operands = [
        np.zeros((3000, width), np.float32),
        np.zeros((70_000, 1), np.int32),
        np.zeros((70_000, width), np.float32),
    ]
    _, eqn = build("scatter-add", operands, ScatterDimensionNumbers((1,), (0,), (0,)), "drop")
    plan = scatter_plan.plan(eqn, dataclasses.replace(lines(64), cores=cores))
    assert (plan.chunks, plan.ranges) == (chunks, ranges)


def test_one_kernel_serves_all_sizes() -> None:
    def key(rows: int, count: int, width: int) -> str:
        operands = [np.zeros((rows, width), np.float32), np.zeros((count, 1), np.int32)]
        operands.append(np.zeros((count, width), np.float32))
        works, _ = build("scatter-add", operands, ScatterDimensionNumbers((1,), (0,), (0,)), "drop")
        return works[1].key

    assert key(1000, 4096, 64) == key(300, 9999, 128)
    assert key(10, 20, 30) == key(7, 3, 18)
