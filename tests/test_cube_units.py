"""Kernels of many units on devices where a cube is one: what the pass makes of them, natively run,
against the interpreter, which runs unit by unit; and how: neighbours as lines, what units share
once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from cube_programs import Writer
from test_emit_llvm import run

from xcube.lowering.cube import ir, matrix, planes
from xcube.lowering.cube.arithmetic import NUMPY
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.check import check
from xcube.lowering.cube.interpreter import interpret
from xcube.lowering.cube.text import text
from xcube.lowering.cube.units import one_unit
from xcube.lowering.cube.units_analysis import has

Array = np.ndarray[Any, Any]
Dim = tuple[int, int, int]
DIMS: tuple[Dim, ...] = ((1, 1, 1), (16, 1, 1), (64, 1, 1), (100, 1, 1), (8, 4, 1), (12, 3, 2),
                         (3, 5, 2), (1, 1, 7), (1, 32, 1), (64, 4, 1))  # fmt: skip
WIDTHS = (16, 4, 1)


def agree(
    kernel: ir.Kernel, buffers: Sequence[Array], scalars: Sequence[Any] = (), cubes: int = 1
) -> Sequence[Array]:
    """Run unit by unit and as groups of each width; the results, which must be alike."""
    check(kernel)
    expected = [array.copy() for array in buffers]
    interpret(kernel, cubes, expected, scalars)
    for width in WIDTHS[: 1 if has(kernel.body, ir.Plane, ir.MultiplyMatrices) else None]:
        one = one_unit(kernel, width)
        check(one)
        found = [array.copy() for array in buffers]
        run(one, found, scalars, cubes)
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, wanted, err_msg=f"{kernel.name}, width {width}")
    return expected


def grid(build: Builder) -> tuple[Value, Value]:
    """The flat numbers of a unit: in its cube, and in the launch."""
    wide, high, deep = build.cube_dim
    x, y, z = (build.place(f"unit_pos.{axis}") for axis in "xyz")
    unit = x + y * wide + z * (wide * high)
    return unit, build.place("cube_pos.x") * (wide * high * deep) + unit


def numbers(count: int, dtype: str = "int32") -> Array:
    return np.random.default_rng(count).integers(-99, 99, count).astype(dtype)


# random programs ----------------------------------------------------------------------------------


def check_program(seed: int) -> None:
    writer = Writer(seed, meets=seed % 3 > 0)
    kernel, count = writer.kernel(), 2 * writer.units
    buffers = [numbers(2 * count + 8), np.zeros(count, np.int32), np.zeros(4, np.int32)]
    agree(kernel, buffers, [3], 2)


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed: int) -> None:
    check_program(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", range(24, 424, 20))
def test_more_random_programs(seeds: int) -> None:
    for seed in range(seeds, seeds + 20):
        check_program(seed)


# shapes -------------------------------------------------------------------------------------------


def axpy(dim: Dim) -> ir.Kernel:
    build = Builder("axpy", dim)
    x, y, out = build.buffer("f32"), build.buffer("f32"), build.buffer("f32", "out")
    a, size = build.scalar("f32"), build.scalar()
    _, at = grid(build)
    with build.when(at < size):
        build.store(out, at, build.load(x, at) * a + build.load(y, at))
    return build.finish()


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("size", [0, 1, 97, 600])
def test_axpy(dim: Dim, size: int) -> None:
    x, y = np.arange(size, dtype=np.float32), numbers(size, "float32")
    cubes = -(-size // int(np.prod(dim)))
    found = agree(axpy(dim), [x, y, np.zeros(size, np.float32)], [3.0, size], cubes)
    np.testing.assert_array_equal(found[2], 3 * x + y)


@pytest.mark.parametrize("dim", DIMS)
def test_coordinates(dim: Dim) -> None:
    build = Builder("coordinates", dim)
    outs = [build.buffer("i64", "out") for _ in range(3)]
    _, at = grid(build)
    for out, axis in zip(outs, "xyz", strict=True):
        place = build.place(f"unit_pos.{axis}") * 100 + build.place(f"cube_dim.{axis}")
        build.store(out, at, (place + build.place("cube_pos.x") * 1000).cast("i64"))
    count = 2 * int(np.prod(dim))
    agree(build.finish(), [np.zeros(count, np.int64) for _ in outs], cubes=2)


@pytest.mark.parametrize("units", [2, 32, 48, 1024])
def test_tree_reduction(units: int) -> None:
    build = Builder("tree", (units, 1, 1))
    data, out, shared = build.buffer("i32"), build.buffer("i32", "out"), build.shared("i32", units)
    unit, at = grid(build)
    build.store(shared, unit, build.load(data, at))
    build.sync()
    half = build.variable(build.constant(units // 2, "index"))
    count = build.variable(build.constant(units, "index"))
    with build.loop():
        now = count.get()
        build.break_when(now <= 1)
        half.set((now + 1) // 2)
        with build.when(unit + half.get() < now):
            build.store(
                shared, unit, build.load(shared, unit) + build.load(shared, unit + half.get())
            )
        build.sync()
        count.set(half.get())
    with build.when(unit.eq(0)):
        build.store(out, build.place("cube_pos.x"), build.load(shared, 0))
    x = numbers(3 * units)
    found = agree(build.finish(), [x, np.zeros(3, np.int32)], cubes=3)
    np.testing.assert_array_equal(found[1], x.reshape(3, units).sum(1))


def test_tiled_product() -> None:
    build, side = Builder("product", (8, 8, 1)), 8
    left, right, out = build.buffer("i32"), build.buffer("i32"), build.buffer("i32", "out")
    size = build.scalar()
    a, b = build.shared("i32", side * side), build.shared("i32", side * side)
    x, y, tiles = build.place("unit_pos.x"), build.place("unit_pos.y"), size // side
    row = build.place("cube_pos.x") // tiles * side + y
    column = build.place("cube_pos.x") % tiles * side + x
    total = build.variable(build.constant(0, "i32"))
    for tile in build.range(0, tiles):
        build.store(a, y * side + x, build.load(left, row * size + tile * side + x))
        build.store(b, y * side + x, build.load(right, (tile * side + y) * size + column))
        build.sync()
        for k in build.range(0, side):
            total.set(total.get() + build.load(a, y * side + k) * build.load(b, k * side + x))
        build.sync()
    build.store(out, row * size + column, total.get())
    x, y = numbers(24 * 24), numbers(24 * 24)[::-1].copy()
    found = agree(build.finish(), [x, y, np.zeros(24 * 24, np.int32)], [24], 9)
    np.testing.assert_array_equal(found[2].reshape(24, 24), x.reshape(24, 24) @ y.reshape(24, 24))


# what units share, and what they keep -----------------------------------------------------------


def test_units_that_returned_stay_away() -> None:
    """The interpreter asks all units to meet; here those that are left go on, as on a GPU."""
    build = Builder("leaving", (40, 1, 1))
    out, shared = build.buffer("i32", "inout"), build.shared("i32", 40)
    unit, _ = grid(build)
    build.store(shared, unit, unit.cast("i32"))
    build.sync()
    with build.when((unit % 3).eq(0)):
        build.emit(ir.Return())
    for turn in build.range(0, 2):
        value = build.load(shared, (unit + 1) % 40)
        build.sync()
        with build.when(value > 30):
            build.store(out, unit, value * 10)
            build.emit(ir.Return())
        build.store(shared, unit, value + turn.cast("i32"))
        build.sync()
    build.store(out, unit, build.load(shared, unit))
    shared_values, expected, gone = np.arange(40), np.full(40, -1), np.arange(40) % 3 == 0
    for turn in range(2):
        value = np.roll(shared_values, -1)
        leaving = ~gone & (value > 30)
        expected[leaving] = value[leaving] * 10
        gone |= leaving
        shared_values = np.where(gone, shared_values, value + turn)
    expected[~gone] = shared_values[~gone]
    for width in WIDTHS:
        result = np.full(40, -1, np.int32)
        run(one_unit(build.finish(), width), [result])
        np.testing.assert_array_equal(result, expected)


def test_a_loop_around_a_barrier_ends_when_all_units_returned() -> None:
    build = Builder("gone", (20, 1, 1))
    out, flags = build.buffer("i32", "inout"), build.shared("i32", 20)
    unit, _ = grid(build)
    turn = build.variable(build.constant(0, "i32"))
    with build.loop():
        build.store(flags, unit, turn.get())
        build.sync()
        with build.when(build.load(flags, (unit + 1) % 20) >= 2):
            build.emit(ir.Return())
        build.store(out, unit, turn.get() + 1)
        turn.set(turn.get() + 1)
        build.sync()
    result = np.zeros(20, np.int32)
    run(build.finish(), [result])
    np.testing.assert_array_equal(result, np.full(20, 2))


def test_a_lock_is_taken_by_one_unit_after_the_other() -> None:
    build = Builder("lock", (24, 1, 1))
    lock, total = build.buffer("i32", "inout"), build.buffer("i64", "inout")
    with build.loop():
        build.break_when(build.compare_exchange(lock, 0, 0, 1).eq(0))
    seen = build.atomic("load", total, 0)
    build.atomic("store", total, 0, seen * 3 + 1)
    build.atomic("exchange", lock, 0, 0)
    values = np.zeros(1, np.int32), np.zeros(1, np.int64)
    run(build.finish(), values)
    assert values[1][0] == (3**24 - 1) // 2


def test_a_unit_returns_from_inside_loops() -> None:
    build = Builder("deep", (20, 1, 1))
    data, out = build.buffer("i32"), build.buffer("i32", "inout")
    _, at = grid(build)
    for k in build.range(0, 3):
        for m in build.range(0, 3):
            with build.when(build.load(data, (at + k * 3 + m) % 20) > 60):
                build.emit(ir.Return())
            build.store(out, at, build.load(out, at) + 1)
        build.store(out, at, build.load(out, at) + 100)
    build.store(out, at, build.load(out, at) + 1000)
    agree(build.finish(), [numbers(20), np.zeros(20, np.int32)])


def test_units_that_are_not_there_are_divided_by_nothing() -> None:
    """The quotient of a unit that is not there may have the divisor 0."""
    build = Builder("quotient", (20, 1, 1))
    data, out = build.buffer("i64"), build.buffer("i64", "out")
    _, at = grid(build)
    divisor = build.load(data, at).cast("index")
    build.store(out, at, divisor.cast("i64"))
    with build.when(divisor.ne(0)):
        build.store(out, at, (at * 100 // divisor + at % divisor).cast("i64"))
    agree(build.finish(), [np.arange(20) % 4, np.zeros(20, np.int64)])


def test_what_some_units_set_is_theirs() -> None:
    """The same value for all, but only some have it; and so for loops that some leave."""
    build = Builder("some", (20, 1, 1))
    data, out = build.buffer("i32"), build.buffer("i32", "out")
    _, at = grid(build)
    flag, turns = (build.variable(build.constant(0, "i32")) for _ in range(2))
    with build.when(build.load(data, at) > 0):
        flag.set(1)
    with build.loop():
        build.break_when(turns.get() >= (build.load(data, at) & 3))
        turns.set(turns.get() + 1)
    build.store(out, at, flag.get() * 10 + turns.get())
    x = numbers(20)
    found = agree(build.finish(), [x, np.zeros(20, np.int32)])
    np.testing.assert_array_equal(found[1], (x > 0) * 10 + (x & 3))


def test_atomic_updates_of_many_units() -> None:
    build = Builder("atomics", (50, 1, 1))
    data, counts = build.buffer("i32"), build.buffer("i32", "inout")
    _, at = grid(build)
    value = build.load(data, at)
    build.atomic("add", counts, (value & 7).cast("index"), 1)
    with build.when(value > 0):
        for place, op in enumerate(("add", "sub", "min", "max", "and", "or", "xor"), 8):
            build.atomic(op, counts, place, value)
    taken = build.atomic("add", counts, 15, 1)
    build.atomic("max", counts, 16, taken)
    x = numbers(150)
    found = agree(build.finish(), [x, np.zeros(17, np.int32)], cubes=3)
    np.testing.assert_array_equal(found[1][:8], np.bincount(x & 7, minlength=8))
    assert found[1][8] == x[x > 0].sum()
    assert (found[1][15], found[1][16]) == (150, 149)


def test_copies_on_their_way_are_done_at_once() -> None:
    build = Builder("copies", (8, 1, 1))
    data, out = build.buffer("f32"), build.buffer("f32", "out")
    tile, (unit, at) = build.shared("f32", 32), grid(build)
    matrix.copy_async(build, tile, unit * 4, data, unit * 4, build.place("unit_pos.x") < 6)
    matrix.commit_copies(build)
    matrix.wait_copies(build, 0)
    build.sync()
    build.store(out, at * 4, build.load(tile, (7 - unit) * 4, 4))
    x = np.arange(32, dtype=np.float32)
    found = agree(build.finish(), [x, np.zeros(32, np.float32)])
    wanted = np.where(np.arange(32) < 24, x, 0).reshape(8, 4)[::-1]
    np.testing.assert_array_equal(found[1].reshape(8, 4), wanted)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_matrix_units(dtype: str, transposed: bool) -> None:
    """Fragments of two planes, loaded and multiplied."""
    build, deep = Builder("matrices", (32, 2, 1)), matrix.depth(dtype)
    size = matrix.LINES * matrix.width(dtype)
    data, out = build.buffer(dtype), build.buffer("f32", "inout")
    rows, unit = build.shared(dtype, 6 * size), build.place("unit_pos.x")
    for at in build.range(grid(build)[0], 6 * size, 64):
        build.store(rows, at, build.load(data, at))
    build.sync()
    start = (unit % 16) * matrix.width(dtype)
    left = matrix.load_matrices(build, rows, unit * matrix.width(dtype), 4)
    shift = transposed and dtype != "f32"  # pairs of 16 bits change places
    right = matrix.load_matrices(build, rows, start + 4 * size, 2, shift)
    total = build.load(out, unit * 4 + build.place("unit_pos.y") * 128, 4)
    found = matrix.multiply(build, left, right, total)
    build.store(out, unit * 4 + build.place("unit_pos.y") * 128, found)
    x, y = numbers(6 * size).astype(NUMPY[dtype]), numbers(256, "float32")
    assert deep * 16 == 4 * size
    agree(build.finish(), [x, y])


# planes -------------------------------------------------------------------------------------------

PLANE_DIMS: tuple[Dim, ...] = ((32, 1, 1), (7, 1, 1), (16, 5, 1), (64, 1, 1))


def plane_kernel(op: str, dtype: str, dim: Dim, argument: Callable[[Value], Any]) -> ir.Kernel:
    build = Builder(f"plane_{op}", dim)
    data, out = build.buffer(dtype), build.buffer("u32" if op == "ballot" else dtype, "out")
    unit, at = grid(build)
    found = build.plane(op, build.load(data, at * 2, 2), argument(unit) if argument else None)
    build.store(out, at * 2, found)
    return build.finish()


@pytest.mark.parametrize("dim", PLANE_DIMS)
@pytest.mark.parametrize("op", planes.OPS)
def test_planes(op: str, dim: Dim) -> None:
    dtypes = [d for d in ("bool", "i8", "u32", "i64", "f32", "f16") if d in planes.OPS[op]]
    arguments: list[Any] = [None]
    if op in planes.SHUFFLES:
        arguments = [lambda unit: 3, lambda unit: (unit * 7 + 3) % 40]
        arguments = arguments[:1] if op == "broadcast" else arguments
    for dtype in dtypes:
        for argument in arguments:
            kernel = plane_kernel(op, dtype, dim, argument)
            x = numbers(2 * int(np.prod(dim))) % 7 - 3
            data = x.astype(NUMPY[dtype])
            result = np.zeros(len(x), NUMPY["u32" if op == "ballot" else dtype])
            agree(kernel, [data, result])


def test_planes_by_themselves() -> None:
    """Some planes do what others do not."""
    build = Builder("some", (96, 1, 1))
    data, out = build.buffer("i32"), build.buffer("i32", "out")
    unit, at = grid(build)
    total = build.variable(build.load(data, at))
    with build.when((unit // 32).ne(1)):
        total.set(build.plane("sum", total.get()))
        with build.when(build.plane("any", total.get() > 100)):
            total.set(total.get() + build.plane("exclusive_sum", build.constant(1, "i32")))
    build.store(out, at, total.get())
    agree(build.finish(), [numbers(96), np.zeros(96, np.int32)])


# how ----------------------------------------------------------------------------------------------


def test_neighbours_are_lines() -> None:
    """No gather, no scatter, and what units share is computed once."""
    for dim in ((64, 1, 1), (8, 8, 1), (16, 16, 1), (4, 4, 4)):
        body = text(one_unit(axpy(dim)))
        assert len(re.findall(r"f32x16 = load b\d\[%\d+\] mask", body)) == 2, body
        assert "join" not in body
        assert body.count("cube_pos.x") == 1


def test_a_units_own_lines_lie_one_behind_the_other() -> None:
    build = Builder("quads", (64, 1, 1))
    data, out = build.buffer("f32"), build.buffer("f32", "out")
    _, at = grid(build)
    build.store(out, at * 4, build.shuffle(build.load(data, at * 4, 4), (3, 2, 1, 0)))
    assert "f32x64 = load" in text(one_unit(build.finish()))
    x = np.arange(512, dtype=np.float32)
    found = agree(build.finish(), [x, np.zeros(512, np.float32)], cubes=2)
    np.testing.assert_array_equal(found[1].reshape(-1, 4), x.reshape(-1, 4)[:, ::-1])


def test_kernels_of_one_unit_stay_as_they_are() -> None:
    kernel = axpy((1, 1, 1))
    assert one_unit(kernel) is kernel
