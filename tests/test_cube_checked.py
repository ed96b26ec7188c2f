"""Checked kernels: what is out of bounds is not done, the first fault is on record with the user's
line, and prints come out in order; in the interpreter and, of one unit or of many, natively."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from test_emit_llvm import run

import xcube
from xcube import cube
from xcube.errors import KernelError
from xcube.lowering.cube import checked, ir, matrix
from xcube.lowering.cube.arithmetic import NUMPY
from xcube.lowering.cube.build import Builder
from xcube.lowering.cube.check import check
from xcube.lowering.cube.interpreter import interpret

Array = np.ndarray[Any, Any]
Runner = Callable[..., None]
RUNNERS: dict[str, Runner] = {
    "interpreted": lambda kernel, buffers, scalars, cubes: interpret(
        kernel, cubes, buffers, scalars
    ),
    "native": run,
}


@pytest.fixture(params=RUNNERS)
def runner(request: pytest.FixtureRequest) -> Runner:
    return RUNNERS[request.param]


def launched(
    runner: Runner, kernel: ir.Kernel, buffers: Sequence[Array], cubes: int = 1
) -> list[int]:
    """Run the checked kernel; its record."""
    found = checked.checked(kernel)
    check(found)
    record = np.zeros(checked.size(kernel), np.int64)
    runner(found, [*buffers, record], [len(array) for array in buffers], cubes)
    return record.tolist()


DIMS = ((1, 1, 1), (8, 1, 1), (20, 2, 1))


def flat(build: Builder) -> Any:
    wide, high, _ = build.cube_dim
    unit = build.place("unit_pos.x") + build.place("unit_pos.y") * wide
    return build.place("cube_pos.x") * (wide * high) + unit


# accesses -----------------------------------------------------------------------------------------

ACCESSES: dict[str, tuple[str, Callable[[Builder, Any, Any], Any]]] = {
    "a load": ("reads", lambda b, x, at: b.load(x, at)),
    "a masked load": ("reads", lambda b, x, at: b.load(x, at, mask=at >= 0)),
    "a line": ("reads", lambda b, x, at: b.extract(b.load(x, at, 3), 0)),
    "a gather": ("reads", lambda b, x, at: b.extract(b.load(x, b.splat(at, 4)), 1)),
    "an update": ("updates", lambda b, x, at: b.atomic("add", x, at, 0)),
    "an exchange": ("updates", lambda b, x, at: b.compare_exchange(x, at, -1, 0)),
}


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", ACCESSES)
def test_access_beyond_the_end(runner: Runner, name: str, dim: tuple[int, int, int]) -> None:
    """Two elements further than there are, by the last unit alone, lines aside."""
    does, access = ACCESSES[name]
    build = Builder("beyond", dim)
    x, out = build.buffer("i32", "inout"), build.buffer("i32", "out")
    at = flat(build)
    build.source = "user.py:5"
    value = access(build, x, at + 2)
    build.source = "user.py:6"
    build.store(out, at, value + 1)
    kernel, units = build.finish(), dim[0] * dim[1]
    count = 2 * units
    data, result = np.arange(count + 4, dtype=np.int32), np.zeros(count, np.int32)
    assert checked.fault(kernel, launched(runner, kernel, [data, result], 2)) is None
    np.testing.assert_array_equal(result, data[2 : count + 2] + 1)
    record = launched(runner, kernel, [data[: count + 1].copy(), result], 2)
    found = checked.fault(kernel, record)
    assert found is not None and found.buffer == kernel.buffers[0]
    assert (found.source, found.does, found.size) == ("user.py:5", does, count + 1)
    assert result[-1] == 1  # what is not there is read as 0
    assert found.index > count
    if name != "a line":
        assert (found.index, found.cube, found.unit, found.count) == (count + 1, 1, units - 1, 1)


@pytest.mark.parametrize("dim", DIMS)
def test_stores_out_of_bounds_are_not_done(runner: Runner, dim: tuple[int, int, int]) -> None:
    build = Builder("astray", dim)
    single, lines = build.buffer("f32", "inout"), build.buffer("f32", "inout")
    at, units = flat(build), dim[0] * dim[1]
    build.store(lines, at * 4, build.constant(2, "f32", 4))
    build.store(single, at - 1, build.constant(1, "f32"))
    kernel = build.finish()
    one, four = np.zeros(units + 4, np.float32), np.zeros(4 * units + 4, np.float32)
    found = checked.fault(kernel, launched(runner, kernel, [one, four[: 4 * units - 1]]))
    assert found is not None and (found.does, found.count) == ("writes", 2)
    assert found.index in (-1, 4 * units - 1)
    np.testing.assert_array_equal(one, np.arange(units + 4) < units - 1)
    np.testing.assert_array_equal(four, 2 * (np.arange(4 * units + 4) < 4 * units - 1))


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("space", ["shared", "local"])
def test_arrays_have_bounds_too(runner: Runner, space: str, dim: tuple[int, int, int]) -> None:
    build = Builder("array", dim)
    data, out = build.buffer("i32"), build.buffer("i32", "out")
    at, units = flat(build), dim[0] * dim[1]
    array = getattr(build, space)("i32", units)
    build.store(array, build.load(data, at).cast("index"), at.cast("i32"))
    build.sync()
    build.store(out, at, build.load(array, 0))
    kernel, result = build.finish(), np.zeros(units, np.int32)
    numbers = np.arange(units, dtype=np.int32) * (space == "shared")
    assert checked.fault(kernel, launched(runner, kernel, [numbers, result])) is None
    numbers[-1] = units + 3
    record = launched(run, kernel, [numbers, result])  # natively: an element may stay unwritten
    found = checked.fault(kernel, record)
    assert found is not None and found.buffer is not None and found.count == 1
    assert (found.buffer.space, found.index, found.size) == (space, units + 3, units)
    assert (found.does, found.unit) == ("writes", units - 1)


def test_what_lies_inside_is_not_checked() -> None:
    """Places that are known leave nothing to check."""
    build = Builder("known")
    out, array = build.buffer("i32", "out"), build.local("i32", 4)
    build.store(array, 3, build.constant(7, "i32"))
    build.store(out, 0, build.load(array, 3))
    found = checked.checked(build.finish())
    assert sum(isinstance(s, ir.If) for s in found.body) == 1  # of the global buffer


def test_copies_on_their_way_stay_inside(runner: Runner) -> None:
    build = Builder("copies", (8, 1, 1))
    data, out, tile = build.buffer("f32"), build.buffer("f32", "out"), build.shared("f32", 32)
    at = flat(build) * 4
    matrix.copy_async(build, tile, at, data, at)
    matrix.commit_copies(build)
    matrix.wait_copies(build, 0)
    build.sync()
    build.store(out, at, build.load(tile, at, 4))
    kernel, x, result = build.finish(), np.ones(30, np.float32), np.ones(32, np.float32)
    found = checked.fault(kernel, launched(runner, kernel, [x, result]))
    assert found is not None and (found.does, found.index, found.size) == ("reads", 31, 30)
    np.testing.assert_array_equal(result, np.arange(32) < 28)


# assertions and prints ----------------------------------------------------------------------------


@pytest.mark.parametrize("dim", DIMS)
def test_an_assertion_says_what_it_found(runner: Runner, dim: tuple[int, int, int]) -> None:
    build = Builder("asserting", dim)
    data = build.buffer("f32")
    at, units = flat(build), dim[0] * dim[1]
    value = build.load(data, at)
    build.source = "user.py:9"
    build.check(value < 100.0, "{} is too much at {}", value, at)
    kernel, x = build.finish(), np.arange(units, dtype=np.float32)
    assert checked.fault(kernel, launched(runner, kernel, [x])) is None
    x[-1] = 100.5
    found = checked.fault(kernel, launched(runner, kernel, [x]))
    assert found is not None and found.message == f"100.5 is too much at {units - 1}"
    assert (found.source, found.count, found.unit) == ("user.py:9", 1, units - 1)


@pytest.mark.parametrize("dim", DIMS)
def test_prints_come_in_order(runner: Runner, dim: tuple[int, int, int]) -> None:
    build = Builder("printing", dim)
    data = build.buffer("f16")
    at = flat(build)
    with build.when((at % 3).eq(0)):
        build.print("unit {}: {}", at, build.load(data, at))
        for turn in build.range(0, 2):
            build.print("turn {} {}", turn, at.eq(3))
    kernel, count = build.finish(), 2 * dim[0] * dim[1]
    x = (np.arange(count) / 2).astype(np.float16)
    record = launched(runner, kernel, [x], 2)
    wanted = [
        line
        for at in range(0, count, 3)
        for line in (f"unit {at}: {x[at]}", f"turn 0 {at == 3}", f"turn 1 {at == 3}")
    ]
    assert checked.printed(kernel, record) == wanted


def test_more_prints_than_there_is_room_for(runner: Runner) -> None:
    build = Builder("chatty")
    for turn in build.range(0, 1000):
        for _ in range(3):
            build.print("turn {}", turn)
    kernel = build.finish()
    lines = checked.printed(kernel, launched(runner, kernel, []))
    assert lines[:4] == ["turn 0"] * 3 + ["turn 1"]
    assert lines[-1] == "(3808 words more were printed than are kept)"
    assert len(lines) == checked.PRINTED // 4 + 1


@pytest.mark.parametrize("dtype", [dtype for dtype in ir.DTYPES if dtype != "index"])
def test_values_of_every_dtype(runner: Runner, dtype: str) -> None:
    build = Builder("words")
    build.print("{}", build.load(build.buffer(dtype), 0))
    kernel, x = build.finish(), np.array([3]).astype(NUMPY[dtype])
    x = -x if dtype in (*ir.SIGNED, *ir.FLOATS) else x
    assert checked.printed(kernel, launched(runner, kernel, [x])) == [format(x[0])]


def test_without_records_nothing_is_said() -> None:
    build = Builder("silent")
    out = build.buffer("i32", "out")
    build.check(build.constant(1, "i32") > build.place("cube_pos.x").cast("i32"), "never")
    build.print("here")
    build.store(out, build.place("cube_pos.x"), build.constant(1, "i32"))
    result = np.zeros(2, np.int32)
    run(checked.unchecked(build.finish()), [result], cubes=2)
    assert result.tolist() == [1, 1]


def test_the_interpreter_says_it_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    build = Builder("speaking", (2, 1, 1))
    unit = build.place("unit_pos.x")
    build.print("unit {}", unit)
    build.source = "user.py:3"
    build.check(unit < 1, "no more than {}", unit)
    with pytest.raises(KernelError, match=r"interpret: no more than 1\. At user\.py:3\. At unit"):
        interpret(build.finish(), 1, [])
    assert capsys.readouterr().out == "unit 0\nunit 1\n"


# launches -----------------------------------------------------------------------------------------


@cube.kernel
def careful(x: cube.Array, out: cube.Array) -> None:
    at = cube.ABSOLUTE_POS
    if at < out.length:
        cube.debug_print("{} holds {}", at, x[at])
        assert x[at] >= 0.0, "{braces} stay"
        out[at] = x[at]


@pytest.mark.parametrize("wrap", [lambda f: f, xcube.jit], ids=["eager", "jit"])
def test_launches_print_and_assert(wrap: Any, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.arange(3, dtype=np.float32)
    function = wrap(cube.call(careful, out=xcube.ShapeDtypeStruct((3,), x.dtype), grid=(1, 32)))
    np.testing.assert_array_equal(function(x), x)
    assert capsys.readouterr().out == "0 holds 0.0\n1 holds 1.0\n2 holds 2.0\n"
    rule = r"careful: \{braces\} stay\. At test_cube_checked\.py:\d+\..* unit 1 of cube 0\. 1 more"
    with pytest.raises(AssertionError, match=rule):
        np.asarray(function(-x))
