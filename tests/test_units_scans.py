"""Cumulative operations and scatters on devices whose cubes have many units: in the interpreter,
which checks every access and looks for races, against NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from run_works import Array, equation, group, interpreted, lines
from test_kernels_cumulative import CASES, compare, expected, sample
from test_kernels_scatter import COMBINE, LAYOUTS, MODES, NAMES
from test_kernels_scatter import expected as by_definition
from test_kernels_scatter import sample as whole

from xcube.ir import Aval, Var
from xcube.lowering.cube.interpreter import interpret
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels import (
    cumulative,
    cumulative_plan,
    scatter,
    scatter_plan,
    scatter_units,
)
from xcube.primitives.windows import GatherScatterMode, ScatterDimensionNumbers

REVERSE = pytest.mark.parametrize("reverse", [False, True])
UNITS = pytest.mark.parametrize("units", [2, 8, 32])


def facts(units: int, cores: int = 1) -> Facts:
    """A device whose cubes have so many units."""
    return dataclasses.replace(lines(16), units=units, cores=cores)


# cumulative operations ------------------------------------------------------------------------

SHAPES = [
    ((5,), 0),
    ((1,), 0),
    ((3, 40), 1),
    ((2, 41), 1),
    ((45, 3), 0),
    ((2, 20, 6), 1),
    ((4, 1, 3), 1),
]
LONG = [((301,), 0), ((2, 256), 1), ((150, 3), 0), ((2, 100, 8), 1)]


def accumulated(name: str, x: Array, axis: int, reverse: bool, device: Facts) -> Array:
    eqn = equation(name, [x], [Aval(x.shape, x.dtype)], axis=axis, reverse=reverse)
    return interpreted(cumulative.build(group(eqn), device), eqn, [x])[0]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_units_share_the_places_of_an_axis(name: str, dtype: Any) -> None:
    for number, (shape, axis) in enumerate(SHAPES):
        x, reverse = sample(shape, dtype), number % 2 == 1
        got = accumulated(name, x, axis, reverse, facts(8))
        compare(got, expected(name, x, axis, reverse))


@REVERSE
@UNITS
def test_teams_of_every_size(units: int, reverse: bool) -> None:
    for shape, axis in (*SHAPES, *LONG):
        x = sample(shape, np.float32)
        got = accumulated("cumsum", x, axis, reverse, facts(units))
        compare(got, expected("cumsum", x, axis, reverse))


@REVERSE
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("cumsum", np.float32), ("cummax", np.int8), ("cumprod", np.complex64)],
)
def test_few_long_rows_are_cut_into_chunks(name: str, dtype: Any, reverse: bool) -> None:
    for shape, axis in LONG:
        x = sample(shape, dtype) / 4 if name == "cumprod" else sample(shape, dtype)
        eqn = equation(name, [x], [Aval(x.shape, x.dtype)], axis=axis, reverse=reverse)
        works = cumulative.build(group(eqn), facts(4, cores=1000))
        assert len(works) == 2
        compare(interpreted(works, eqn, [x])[0], expected(name, x, axis, reverse))


@pytest.mark.parametrize(("shape", "axis"), [((2, 300), 1), ((300, 2), 0)])
def test_the_result_may_lie_on_the_operand(shape: Any, axis: int) -> None:
    x = sample(shape, np.float32)
    eqn = equation("cumsum", [x], [Aval(x.shape, x.dtype)], axis=axis, reverse=False)
    for cores in (1, 1000):
        operand, result = eqn.inputs[0], eqn.outputs[0]
        assert isinstance(operand, Var)
        works = cumulative.build(group(eqn), facts(8, cores), sources=frozenset({operand}))
        both = x.reshape(-1).copy()
        memory = {operand: both, result: both}
        for work in works:
            arrays = [
                memory.setdefault(v, np.zeros(v.aval.size, v.aval.dtype)) for v in work.buffers
            ]
            interpret(work.kernel, work.cubes, arrays, work.scalars)
        compare(both.reshape(shape), expected("cumsum", x, axis, False))


def test_one_kernel_serves_sizes_of_a_class() -> None:
    def key(*shape: int) -> str:
        x = np.zeros(shape, np.float32)
        eqn = equation("cumsum", [x], [Aval(x.shape, x.dtype)], axis=1, reverse=False)
        return cumulative.build(group(eqn), facts(8))[0].key

    assert key(8, 1024) == key(64, 4096)
    assert key(8, 1024) != key(8, 1022)  # shorter lines


def test_neighbours_fill_sectors_across_memory() -> None:
    for dtype in (np.float32, np.float16, np.float64, np.int8):
        x = Aval((4096, 4096), np.dtype(dtype))
        eqn = equation("cumsum", [np.broadcast_to(dtype(0), x.shape)], [x], axis=0, reverse=False)
        chosen = cumulative_plan.plan(x, eqn, facts(256, cores=132))
        assert chosen.beside * chosen.lanes * x.dtype.itemsize >= min(cumulative_plan.STRIPS)


# scatters -------------------------------------------------------------------------------------


def built(
    name: str, operands: list[Any], layout: Any, mode: str, units: int = 8, unique: bool = False
) -> tuple[Any, Any]:
    x = operands[0]
    eqn = equation(
        name,
        operands,
        [Aval(x.shape, x.dtype)],
        dimension_numbers=ScatterDimensionNumbers(*layout),
        mode=GatherScatterMode.from_any(mode),
        unique_indices=unique,
        indices_are_sorted=False,
    )
    return scatter.build(group(eqn), facts(units)), eqn


def check(name: str, operands: list[Any], layout: Any, mode: str, **options: Any) -> None:
    works, eqn = built(name, operands, layout, mode, **options)
    numbers = ScatterDimensionNumbers(*layout)
    x, indices, updates = map(np.asarray, operands)
    with np.errstate(over="ignore"):
        wanted = by_definition(name, x, indices, updates, numbers, mode)
    np.testing.assert_array_equal(interpreted(works, eqn, operands)[0], wanted)


@NAMES
@MODES
def test_every_layout(name: str, mode: str) -> None:
    rng = np.random.default_rng(0)
    for shape, indices, updates, layout in LAYOUTS:
        places = rng.integers(-2, 11, indices).astype(("i1", "i4", "i8")[rng.integers(3)])
        operands = [whole(rng, shape, np.int32), places, whole(rng, updates, np.int32)]
        check(name, operands, layout, mode)


@pytest.mark.parametrize("few", [0, 64])
@pytest.mark.parametrize(
    "dtype",
    [np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.uint8, np.int64, np.complex64],
)
def test_every_dtype(dtype: Any, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter_units, "FEW", few)
    rng = np.random.default_rng(0)
    for name in COMBINE:
        if np.dtype(dtype).kind == "c" and name in ("scatter-min", "scatter-max"):
            continue
        for shape, indices, updates, layout in (LAYOUTS[1], LAYOUTS[3], LAYOUTS[8]):
            places = rng.integers(-2, 11, indices).astype(np.int32)
            operands = [whole(rng, shape, dtype), places, whole(rng, updates, dtype)]
            check(name, operands, layout, "drop")


@pytest.mark.parametrize("name", [n for n in COMBINE if n not in ("scatter-add", "scatter-sub")])
def test_truth_values(name: str) -> None:
    rng = np.random.default_rng(0)
    shape, indices, updates, layout = LAYOUTS[0]
    x, y = (rng.integers(0, 2, s).astype(np.bool_) for s in (shape, updates))
    combine = {"scatter-mul": np.logical_and}.get(name, COMBINE[name])
    places = rng.integers(0, 9, indices)
    wanted = x.copy()
    for place, value in zip(places[:, 0], y, strict=True):
        wanted[place] = combine(wanted[place], value)
    works, eqn = built(name, [x, places, y], layout, "drop")
    np.testing.assert_array_equal(interpreted(works, eqn, [x, places, y])[0], wanted)


@UNITS
@pytest.mark.parametrize(("width", "chunked"), [(1, False), (5, False), (48, False), (90, True)])
def test_the_last_writer_stays(
    width: int, chunked: bool, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scatter_units, "TURNS", 1 if chunked else 32)
    monkeypatch.setattr(scatter_units, "MANY", 1)
    places = np.random.default_rng(0).integers(-1, 7, (100, 1))
    updates = np.arange(100 * width, dtype=np.int32).reshape(100, width)
    operands = [np.zeros((6, width), np.int32), places, updates]
    check("scatter", operands, ((1,), (0,), (0,)), "drop", units=units)


def test_unique_indices_need_no_atomics() -> None:
    places = np.random.default_rng(0).permutation(30)[:20, None].astype(np.int32)
    operands = [np.ones((30, 8), np.float32), places, np.full((20, 8), 2, np.float32)]
    for name in COMBINE:
        works, _ = built(name, operands, ((1,), (0,), (0,)), "drop", unique=True)
        assert len(works) == 2
        assert "atomic" not in works[1].key
        check(name, operands, ((1,), (0,), (0,)), "drop", unique=True)


@pytest.mark.parametrize("units", [1, 8])
@pytest.mark.parametrize("value", [np.float32(5), np.complex64(2 + 3j), np.bool_(True)])
def test_a_literal_update(value: Any, units: int) -> None:
    names = ("scatter",) if value.dtype == np.bool_ else ("scatter", "scatter-add", "scatter-mul")
    for name in names:
        operands = [np.ones(4, value.dtype), np.array([2]), value]
        check(name, operands, ((), (0,), (0,)), "drop", units=units)


def test_sums_are_atomic_where_they_may_meet() -> None:
    operands = [np.zeros((9, 4), np.float32), np.zeros((6, 1), np.int32), np.ones((6, 4), "f4")]
    works, _ = built("scatter-add", operands, ((1,), (0,), (0,)), "drop")
    assert "atomic add" in works[1].key


def test_an_operand_that_gives_its_memory_is_not_copied() -> None:
    operands = [np.zeros(9, np.float32), np.array([[2]]), np.ones(1, np.float32)]
    _, eqn = built("scatter-add", operands, ((), (0,), (0,)), "drop")
    copy, update = scatter.build(group(eqn), facts(8), sources=frozenset({eqn.inputs[0]}))
    assert copy.cubes == 0
    assert eqn.inputs[0] not in update.buffers


def test_many_threads_share_products_that_may_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter_plan, "TASK", 8)
    rng = np.random.default_rng(0)
    places = rng.integers(-1, 60, (60, 1))
    operands = [whole(rng, (60, 2), np.int32), places, whole(rng, (60, 2), np.int32)]
    works, _ = built("scatter-mul", operands, ((1,), (0,), (0,)), "drop")
    assert works[1].cubes == scatter_plan.THREADS
    check("scatter-mul", operands, ((1,), (0,), (0,)), "drop")
