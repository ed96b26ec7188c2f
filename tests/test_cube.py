"""The kernel IR: canonical text, checker and interpreter."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from xcube.lowering.cube import ir
from xcube.lowering.cube.build import Builder
from xcube.lowering.cube.check import check
from xcube.lowering.cube.interpreter import interpret
from xcube.lowering.cube.ir import Buffer, Const, Kernel, Let, Name, Type
from xcube.lowering.cube.text import excerpt, key, text

IN, OUT = Buffer(0, "f32"), Buffer(1, "f32", access="out")
ARRAY = Buffer(0, "f32", "shared", "inout", 8)
ZERO, TRUE = Const(0, Type("index")), Const(True, Type("bool"))


def name(number: int, dtype: str = "f32", lanes: int = 1) -> Name:
    return Name(number, Type(dtype, lanes))


def real(value: float, lanes: int = 1) -> Const:
    return Const(value, Type("f32", lanes))


def whole(value: int) -> Const:
    return Const(value, Type("index"))


def kernel(*body: ir.Stmt, dim: tuple[int, int, int] = (1, 1, 1)) -> Kernel:
    """A kernel of b0 (in) and b1 (out), both f32."""
    return Kernel("k", (IN, OUT), (), body, dim)


# kernels ------------------------------------------------------------------------------------------


def axpy() -> Kernel:
    """y += a x, lines of 4 with a masked tail."""
    build = Builder("axpy")
    x, y = build.buffer("f32"), build.buffer("f32", "inout")
    count, a = build.scalar(), build.scalar("f32")
    start = build.place("cube_pos.x") * 4
    mask = build.lane(4) + start < count
    value = build.fma(a, build.load(x, start, 4, mask), build.load(y, start, 4, mask))
    build.store(y, start, value, mask)
    return build.finish()


def row_sums() -> Kernel:
    """Sum of each row of 16: 4 units add a line of 4 each and meet in shared memory."""
    build = Builder("row_sums", (4, 1, 1))
    x, out = build.buffer("f32"), build.buffer("f32", "out")
    partial = build.shared("f32", 4)
    unit, row = build.place("unit_pos.x"), build.place("cube_pos.x")
    line = build.load(x, row * 16 + unit * 4, 4)
    build.store(partial, unit, build.reduce("add", line))
    build.sync()
    with build.when(unit.eq(0)):
        build.store(out, row, build.reduce("add", build.load(partial, 0, 4)))
    return build.finish()


def histogram() -> Kernel:
    """Counts of small numbers by atomics, with a loop over the elements of each cube."""
    build = Builder("histogram")
    x, counts = build.buffer("i32"), build.buffer("i32", "inout")
    count, cubes = build.scalar(), build.place("cube_count.x")
    for i in build.range(build.place("cube_pos.x"), count, cubes):
        build.atomic("add", counts, build.load(x, i), build.constant(1, "i32"))
    return build.finish()


def collatz() -> Kernel:
    """Steps of each number to 1: a variable, an endless loop left by break, two branches."""
    build = Builder("collatz")
    x, out = build.buffer("i64"), build.buffer("i64", "out")
    at = build.place("cube_pos.x")
    value = build.variable(build.load(x, at))
    steps = build.variable(build.constant(0, "i64"))
    with build.loop():
        now = value.get()
        build.break_when(now <= 1)
        steps.set(steps.get() + 1)
        with build.when((now & 1).eq(0)):
            value.set(now >> 1)
        with build.otherwise():
            value.set(now * 3 + 1)
    build.store(out, at, steps.get())
    return build.finish()


KERNELS = {build.__name__: build for build in (axpy, row_sums, histogram, collatz)}


# text ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", KERNELS.values(), ids=KERNELS)
def test_text_is_unchanged(build, golden):
    program = build()
    check(program)
    golden(f"cube/{program.name}.txt", text(program))


def test_text_does_not_depend_on_numbers():
    def shifted(by: int) -> Kernel:
        value, total = name(by + 3), name(by)
        load = ir.Load(value, IN, ZERO)
        add = Let(total, "add", (value, value))
        return kernel(load, add, ir.Store(OUT, ZERO, total))

    assert text(shifted(0)) == text(shifted(40))


def test_key_leaves_out_only_the_name():
    program = axpy()
    assert key(program) == key(dataclasses.replace(program, name="other"))
    assert key(program) != key(dataclasses.replace(program, cube_dim=(2, 1, 1)))
    assert text(program) != text(dataclasses.replace(program, name="other"))


def test_literals_are_told_apart():
    negative_nan = math.copysign(math.nan, -1)
    values = [0.0, -0.0, 1.0, 0.1, np.nextafter(0.1, 1), 5e-324, 1e308, math.inf, -math.inf]
    values += [math.nan, negative_nan]
    texts = [key(kernel(ir.Store(OUT, ZERO, Const(v, Type("f64"))))) for v in values]
    assert len(set(texts)) == len(values)


def test_every_part_of_a_statement_is_in_the_text():
    mask, index, value = Const(True, Type("bool")), whole(3), real(1.0)
    array = dataclasses.replace(ARRAY, space="local")
    add = Let(name(0), "add", (value, value))
    variants = [
        ir.Store(OUT, index, value),
        ir.Store(OUT, index, value, mask),
        ir.Store(OUT, index, value, None, True),
        ir.Store(OUT, ZERO, value),
        ir.Store(OUT, index, real(1.0, 4)),
        ir.Store(OUT, index, Const(1.0, Type("f16"))),
        ir.Load(name(0), IN, index),
        ir.Load(name(0), IN, index, mask),
        ir.Load(name(0, lanes=2), IN, index),
        add,
        dataclasses.replace(add, op="mul"),
        Let(name(0), "extract", (real(1.0, 2),), (0,)),
        Let(name(0), "extract", (real(1.0, 2),), (1,)),
        ir.Allocate(ARRAY),
        ir.Allocate(array),
        ir.Allocate(dataclasses.replace(ARRAY, size=9)),
        ir.Atomic(name(0), "add", OUT, index, value),
        ir.Atomic(name(0), "max", OUT, index, value),
        ir.For(name(0, "index"), ZERO, index, whole(1), ()),
        ir.For(name(0, "index"), ZERO, index, whole(2), ()),
        ir.If(mask, (ir.Sync(),)),
        ir.If(mask, (), (ir.Sync(),)),
        ir.Loop((ir.Break(),)),
        ir.Loop((ir.Continue(),)),
        ir.Loop((ir.Return(),)),
    ]
    assert len({key(kernel(statement)) for statement in variants}) == len(variants)


def test_excerpt_marks_the_statement_under_blocks():
    program = collatz()
    shown = excerpt(program, program.body[-1], around=1)
    assert shown.splitlines()[0] == "In kernel collatz, line 27: store b1[%0] = %13"
    assert [line[:7] for line in shown.splitlines()[1:]] == ["    26 ", "  > 27 ", "    28 "]


# interpreter: values ------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", [0, 5])
def test_axpy_leaves_masked_elements(padding):
    x, y = np.arange(10, dtype=np.float32), np.ones(10, np.float32)
    interpret(axpy(), 3, [x, y], [7, 2.0], padding=padding)
    np.testing.assert_array_equal(y, [1, 3, 5, 7, 9, 11, 13, 1, 1, 1])


def test_units_meet_at_sync():
    x = np.random.default_rng(0).integers(-9, 9, (5, 16)).astype(np.float32)
    out = np.zeros(5, np.float32)
    interpret(row_sums(), (5, 1, 1), [x.reshape(-1), out])
    np.testing.assert_array_equal(out, x.sum(1))


def test_atomics_of_several_cubes_add_up():
    x = np.random.default_rng(0).integers(0, 6, 50).astype(np.int32)
    counts = np.zeros(6, np.int32)
    interpret(histogram(), 3, [x, counts], [50])
    np.testing.assert_array_equal(counts, np.bincount(x, minlength=6))


def test_loops_and_branches():
    out = np.zeros(4, np.int64)
    interpret(collatz(), 4, [np.array([1, 6, 7, 27]), out])
    assert out.tolist() == [0, 8, 16, 111]


def test_places_reach_every_unit_of_every_cube():
    build = Builder("places", (3, 2, 2))
    out = build.buffer("i64", "out")
    at = build.constant(0, "index")
    for axis in "zyx":
        at = at * build.place(f"cube_count.{axis}") + build.place(f"cube_pos.{axis}")
    for axis in "zyx":
        at = at * build.place(f"cube_dim.{axis}") + build.place(f"unit_pos.{axis}")
    build.store(out, at, at.cast("i64"))
    values = np.full(2 * 3 * 4 * 12, -1)
    interpret(build.finish(), (4, 3, 2), [values])
    assert values.tolist() == list(range(len(values)))


def test_gather_scatter_and_masked_lanes_load_zero():
    build = Builder("scatter")
    x, out = build.buffer("i32"), build.buffer("i32", "inout")
    lane = build.lane(4)
    value = build.load(x, build.op("sub", 6, lane * 2), mask=lane < 3)
    build.store(out, lane * 2, value, mask=lane.ne(1))
    values = np.full(7, -1, np.int32)
    interpret(build.finish(), 1, [np.arange(7, dtype=np.int32) * 10, values])
    assert values.tolist() == [60, -1, -1, -1, 20, -1, 0]


def test_continue_break_and_return():
    i, odd, late = name(0, "index"), name(2, "bool"), name(3, "bool")
    rest = Let(name(1, "index"), "rem", (i, whole(2)))
    body = (
        rest,
        Let(odd, "eq", (name(1, "index"), whole(1))),
        ir.If(odd, (ir.Continue(),)),
        Let(late, "gt", (i, whole(6))),
        ir.If(late, (ir.Loop((ir.Return(),)),)),
        ir.Store(OUT, i, real(1.0)),
    )
    program = kernel(ir.For(i, ZERO, whole(10), whole(1), body), ir.Store(OUT, whole(9), real(9.0)))
    out = np.zeros(10, np.float32)
    interpret(program, 1, [out[:0], out])
    assert out.tolist() == [1, 0, 1, 0, 1, 0, 1, 0, 0, 0]


def test_one_array_may_stand_for_two_buffers():
    build = Builder("increment")
    x, out = build.buffer("f32"), build.buffer("f32", "out")
    at = build.place("cube_pos.x")
    build.store(out, at, build.load(x, at) + 1.0)
    values = np.arange(3, dtype=np.float32)
    interpret(build.finish(), 3, [values, values])
    assert values.tolist() == [1, 2, 3]


def test_local_arrays_belong_to_their_unit():
    build = Builder("local", (4, 1, 1))
    out = build.buffer("i64", "out")
    scratch, unit = build.local("i64", 1), build.place("unit_pos.x")
    build.store(scratch, 0, unit.cast("i64"))
    build.sync()
    build.store(out, unit, build.load(scratch, 0))
    values = np.zeros(4, np.int64)
    interpret(build.finish(), 1, [values])
    assert values.tolist() == [0, 1, 2, 3]


# builder ------------------------------------------------------------------------------------------


def test_constants_are_values_of_their_dtype():
    build = Builder("k")
    assert build.constant(0.1, "f32").constant == float(np.float32(0.1))
    assert build.constant(0.1, "f32").eq(build.constant(0.1 + 1e-12, "f32")).constant is True
    assert build.cast(build.constant(0.1, "f16"), "f64").constant == float(np.float16(0.1))
    assert build.constant(1e300, "f32").constant == math.inf


def test_masked_loads_of_inputs_are_built_once():
    build = Builder("k")
    x, count = build.buffer("f32"), build.scalar()
    mask = build.lane(4) < count
    assert build.load(x, 0, 4, mask).atom == build.load(x, 0, 4, mask).atom
    assert build.load(x, 0, 4).atom != build.load(x, 0, 4, mask).atom


def test_text_of_what_units_do_together():
    build = Builder("together", (32, 1, 1))
    data, unit = build.buffer("i32", "inout"), build.place("unit_pos.x")
    total = build.plane("sum", build.load(data, unit))
    far = build.plane("shuffle_xor", total, 16)
    build.compare_exchange(data, 0, total, far)
    build.atomic("load", data, 1)
    build.check(far > 0, "{} is none", far)
    build.print("it's {}", unit)
    assert text(build.finish()).split("\n")[3:-1] == [
        "  %2:i32 = plane sum %1",
        "  %3:i32 = plane shuffle_xor %2, 16",
        "  %4:i32 = compare_exchange b0[0], %2, %3",
        "  %5:i32 = atomic load b0[1], 0:i32",
        "  %6:bool = gt %3, 0:i32",
        "  assert %6 '{} is none', %3",
        '  print "it\'s {}", %0',
    ]
