"""What `check` and the interpreter find: one test for each rule that a kernel may break."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from xcube.errors import KernelError
from xcube.lowering.cube import ir
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.check import check
from xcube.lowering.cube.interpreter import interpret
from xcube.lowering.cube.ir import Buffer, Const, Kernel, Let, Name, Type
from xcube.lowering.cube.text import text

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


# check --------------------------------------------------------------------------------------------

F = name(0)
ADD = Let(F, "add", (real(1.0), real(2.0)))
UNIT = Let(name(0, "index"), "unit_pos.x", ())
FIRST = Let(name(1, "bool"), "eq", (name(0, "index"), ZERO))
VARIABLE = ir.Declare(F, real(0.0))

MALFORMED = {
    "a name must be defined once": (ADD, ADD),
    "a name must be defined before its use, in scope; name 0 is not defined": (
        ir.Store(OUT, ZERO, F),
    ),
    "in scope; name 0 left its scope": (ir.If(TRUE, (ADD,)), ir.Store(OUT, ZERO, F)),
    "a name must be used at its type f32; got i32": (ADD, Let(name(1), "neg", (name(0, "i32"),))),
    "a variable must be read by a Read": (VARIABLE, ir.Store(OUT, ZERO, F)),
    "only a declared variable is read or assigned": (ADD, ir.Assign(F, real(1.0))),
    "an assigned value must be f32; got index": (VARIABLE, ir.Assign(F, ZERO)),
    "a read must have its variable's type f32; got f32x2": (
        VARIABLE,
        ir.Read(name(1, lanes=2), F),
    ),
    "an operation must be in the table; got 'plus'": (Let(F, "plus", ()),),
    "add must have 2 operands; got 1": (Let(F, "add", (real(1.0),)),),
    "fma must have a dtype of f8_e4m3fn, f8_e5m2, f16, bf16, f32, f64; got i32": (
        Let(name(0, "i32"), "fma", (Const(1, Type("i32")),) * 3),
    ),
    "exp must have a dtype of f64; got f32": (Let(F, "exp", (real(1.0),)),),
    "the operands of add must have one type; got f32, f32x2": (
        Let(F, "add", (real(1.0), real(1.0, 2))),
    ),
    "the result of lt must be boolx2; got bool": (
        Let(name(0, "bool"), "lt", (real(1.0, 2), real(1.0, 2))),
    ),
    "the condition of select must be boolx2; got bool": (
        Let(name(0, lanes=2), "select", (TRUE, real(1.0, 2), real(1.0, 2))),
    ),
    "the lanes of extract must lie in 0..1; got [2]": (Let(F, "extract", (real(1.0, 2),), (2,)),),
    "shuffle must state 2 source lanes; got 1": (
        Let(name(0, lanes=2), "shuffle", (real(1.0, 4),), (0,)),
    ),
    "the lanes of shuffle must lie in 0..3; got [0, -1]": (
        Let(name(0, lanes=2), "shuffle", (real(1.0, 4),), (0, -1)),
    ),
    "add must have no attributes": (dataclasses.replace(ADD, attrs=(1,)),),
    "splat must have a scalar operand; got f32x2": (
        Let(name(0, lanes=4), "splat", (real(1.0, 2),)),
    ),
    "the result of cast must be i32x2; got i32": (Let(name(0, "i32"), "cast", (real(1.0, 2),)),),
    "bitcast must join types of as many bits, not bool or index; got f32 to i64": (
        Let(name(0, "i64"), "bitcast", (real(1.0),)),
    ),
    "join must have operands of one dtype; got f32, i32": (
        Let(name(0, lanes=2), "join", (real(1.0), Const(1, Type("i32")))),
    ),
    "the result of join must be f32x3; got f32x2": (
        Let(name(0, lanes=2), "join", (real(1.0), real(1.0, 2))),
    ),
    "the result of reduce_add must be f32; got f32x2": (
        Let(name(0, lanes=2), "reduce_add", (real(1.0, 2),)),
    ),
    "reduce_add must have a power of two of lanes, to halve; got 3": (
        Let(F, "reduce_add", (real(1.0, 3),)),
    ),
    "lane must have a dtype of i8": (Let(name(0, lanes=4), "lane", ()),),
    "the result of unit_pos.x must be index; got indexx2": (
        Let(name(0, "index", 2), "unit_pos.x", ()),
    ),
    "an address must be of dtype index; got i32": (ir.Load(F, IN, Const(0, Type("i32"))),),
    "an address must have 1 lane or the value's 4; got 2": (
        ir.Load(name(0, lanes=4), IN, Const(0, Type("index", 2))),
    ),
    "a mask must be boolx4; got bool": (ir.Load(name(0, lanes=4), IN, ZERO, TRUE),),
    "a value must have the buffer's dtype f32; got f64": (ir.Load(name(0, "f64"), IN, ZERO),),
    "a value must have the buffer's dtype f32; got index": (ir.Store(OUT, ZERO, ZERO),),
    'a buffer with access "in" must not be written': (ir.Store(IN, ZERO, real(1.0)),),
    "a streaming store must have a scalar address; got indexx2": (
        ir.Store(OUT, Const(0, Type("index", 2)), real(1.0, 2), None, True),
    ),
    "a buffer must be a parameter or allocated, in scope": (ir.Load(F, ARRAY, ZERO),),
    "an array must be shared or local; got global": (ir.Allocate(Buffer(7, "f32", size=4)),),
    "an array must have a size above 0; got 0": (ir.Allocate(dataclasses.replace(ARRAY, size=0)),),
    "an array must be allocated once": (ir.Allocate(ARRAY), ir.Allocate(ARRAY)),
    "atomic and must have a dtype of": (ir.Atomic(F, "and", OUT, ZERO, real(1.0)),),
    "an atomic gives f32; got f64": (ir.Atomic(name(0, "f64"), "add", OUT, ZERO, real(1.0)),),
    "a value to exchange must be f32; got bool": (
        ir.CompareExchange(F, OUT, ZERO, real(1.0), TRUE),
    ),
    "an exchange gives f32; got f64": (
        ir.CompareExchange(name(0, "f64"), OUT, ZERO, real(1.0), real(2.0)),
    ),
    "an operation of planes must be in the table; got 'total'": (
        ir.Plane(F, "total", real(1.0)),
    ),
    "plane ballot must have a dtype of bool; got f32": (ir.Plane(F, "ballot", real(1.0)),),
    "the result of plane ballot must be u32; got bool": (
        ir.Plane(name(0, "bool"), "ballot", TRUE),
    ),
    "plane shuffle must have the number of a unit; got none": (
        ir.Plane(F, "shuffle", real(1.0)),
    ),
    "the number of a unit must be index; got f32": (
        ir.Plane(F, "shuffle", real(1.0), real(2.0)),
    ),
    "plane sum must have no second operand": (ir.Plane(F, "sum", real(1.0), ZERO),),
    "what is asserted must be bool; got f32": (ir.Assert(real(1.0), "so"),),
    "a text must have a place for each value; 2 for 1": (ir.Print("{} {}", (ZERO,)),),
    "a text must have places of the form {} alone; got '{0:x}'": (ir.Print("{0:x}", (ZERO,)),),
    "a text must have places of the form {};": (ir.Print("{", ()),),
    "a value in a text must have 1 lane; got f32x2": (ir.Print("{}", (real(1.0, 2),)),),
    "break must be inside a loop": (ir.If(TRUE, (ir.Break(),)),),
    "continue must be inside a loop": (ir.Continue(),),
    "the condition of an if must be bool; got f32": (ir.If(real(1.0), ()),),
    "the stop of a for must be index; got f32": (
        ir.For(name(0, "index"), ZERO, real(4.0), whole(1), ()),
    ),
    "a step must be positive; got 0": (ir.For(name(0, "index"), ZERO, whole(4), ZERO, ()),),
    "a loop index must be index; got i32": (
        ir.For(name(0, "i32"), ZERO, whole(4), whole(1), ()),
    ),
    "a type must have a known dtype; got f31": (Let(name(0, "f31"), "lane", ()),),
    "a type must have 1 lane or more; got 0": (Let(name(0, "i32", 0), "lane", ()),),
    "a literal of i8 must be an int in -128..127; got 128": (
        Let(name(0, "i8"), "neg", (Const(128, Type("i8")),)),
    ),
    "a literal of f32 must be a float; got 1": (ir.Store(OUT, ZERO, real(1)),),
    "a literal of bool must be a bool; got 1": (ir.If(Const(1, Type("bool")), ()),),
    "the if around this one depends on unit_pos": (
        UNIT,
        FIRST,
        ir.If(name(1, "bool"), (), (ir.Loop((ir.Sync(), ir.Break())),)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", MALFORMED)
def test_check_names_the_broken_rule(rule):
    with pytest.raises(KernelError) as error:
        check(kernel(*MALFORMED[rule], dim=(4, 1, 1)))
    message = str(error.value)
    assert rule in message
    assert "In kernel k, line" in message and "  > " in message


HEADERS = {
    "cube_dim must be 3 sizes >= 1": Kernel("k", (), (), (), (1, 0, 1)),
    "buffer 0 of a kernel must be global 0; got global 1": Kernel("k", (OUT,), (), ()),
    "a global buffer must not hold indices": Kernel("k", (Buffer(0, "index"),), (), ()),
    "a buffer must have a dtype; got f31": Kernel("k", (Buffer(0, "f31"),), (), ()),
    "a scalar must have 1 lane; got f32x2": Kernel("k", (), (name(0, lanes=2),), ()),
}


@pytest.mark.parametrize("rule", HEADERS)
def test_check_names_the_broken_rule_of_a_header(rule):
    with pytest.raises(KernelError, match=rule):
        check(HEADERS[rule])


def test_check_shows_the_lines_around():
    with pytest.raises(KernelError) as error:
        check(kernel(ir.If(TRUE, (ADD,)), ir.Store(OUT, ZERO, F)))
    assert str(error.value) == (
        "check: a name must be defined before its use, in scope; name 0 left its scope.\n"
        "In kernel k, line 5: store b1[0] = %0\n"
        "    1 | kernel k(b0: in f32, b1: out f32) cube_dim 1 1 1 {\n"
        "    2 |   if true:bool {\n"
        "    3 |     %0:f32 = add 1.0:f32, 2.0:f32\n"
        "    4 |   }\n"
        "  > 5 |   store b1[0] = %0\n"
        "    6 | }"
    )


def test_sync_is_well_formed_where_all_units_agree():
    row = Let(name(0, "index"), "cube_pos.x", ())
    inside = ir.If(name(1, "bool"), (ir.Sync(),))
    check(kernel(row, FIRST, inside, dim=(4, 1, 1)))
    check(kernel(UNIT, FIRST, inside, dim=(1, 4, 1)))


def test_an_atomic_load_needs_no_leave_to_write():
    check(kernel(ir.Atomic(F, "load", IN, ZERO, real(0.0))))
    with pytest.raises(KernelError, match='access "in" must not be written'):
        check(kernel(ir.Atomic(F, "store", IN, ZERO, real(0.0))))


# interpreter: faults ------------------------------------------------------------------------------


def fault(
    build: Builder, *arrays: np.ndarray, cubes: int = 1, padding: int = 0, budget: int = 1000
) -> str:
    """The message of the error that a run raises, which must leave the arrays alone."""
    before = [array.copy() for array in arrays]
    with pytest.raises(KernelError) as error:
        interpret(build.finish(), cubes, arrays, padding=padding, budget=budget)
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old)
    message = str(error.value)
    assert message.startswith("interpret: ") and "  > " in message
    return message


def floats(size: int) -> np.ndarray:
    return np.zeros(size, np.float32)


def writer(dim: int = 1, access: str = "out") -> tuple[Builder, Buffer, Value]:
    """A builder with one f32 buffer, and the unit's place."""
    build = Builder("k", (dim, 1, 1))
    return build, build.buffer("f32", access), build.place("unit_pos.x")


@pytest.mark.parametrize("index", [-1, 5])
def test_store_out_of_bounds(index):
    build, out, _ = writer()
    build.store(out, build.place("cube_pos.x") + index, build.constant(1, "f32", 4))
    message = fault(build, floats(8), cubes=2)
    lane, place = (0, -1) if index < 0 else (3, 8)
    assert f"an index must be at least 0 and below 8; got {place} in lane {lane}" in message
    assert "At unit (0, 0, 0) of cube (0, 0, 0)" in message
    assert "store b0[" in message


def test_load_out_of_bounds_beyond_padding():
    build = Builder("k")
    x, out = build.buffer("f32"), build.buffer("f32", "out")
    build.store(out, 0, build.load(x, 6, 4))
    interpret(build.finish(), 1, [floats(8), floats(8)], padding=2)
    assert "below 9; got 9 in lane 3" in fault(build, floats(8), floats(8), padding=1)


def test_read_of_unwritten_shared_memory():
    build, out, unit = writer(2)
    array = build.shared("f32", 4)
    build.store(array, unit, build.constant(1, "f32"))
    build.sync()
    build.store(out, unit, build.load(array, unit + 1))
    message = fault(build, floats(2))
    assert "an element must be written before it is read; element 2 is not" in message
    assert "At unit (1, 0, 0)" in message


def test_read_of_unwritten_local_memory():
    build, out, _ = writer()
    for _ in build.range(0, 2):
        array = build.local("f32", 2)
        build.store(array, 0, build.constant(1, "f32"))
        build.store(out, 0, build.load(array, 0, 2), mask=build.lane(2) < 1)
    assert "element 1 is not" in fault(build, floats(2))


def test_read_of_an_out_buffer_before_its_write():
    build, out, unit = writer()
    build.store(out, unit, build.load(out, unit) + 1.0)
    assert "written before it is read; element 0 is not" in fault(build, floats(2))


def test_atomic_on_unwritten_memory():
    build, _, unit = writer()
    build.atomic("add", build.shared("f32", 1), unit, build.constant(1, "f32"))
    assert "written before an atomic updates it" in fault(build, floats(1))


def test_race_of_two_writing_units():
    build, out, _ = writer(2)
    build.store(out, 0, build.constant(1, "f32"))
    message = fault(build, floats(1))
    assert "a race: element 0 is touched here (write) and by another unit (write)" in message
    assert "At unit (1, 0, 0)" in message


@pytest.mark.parametrize("synced", [True, False])
def test_race_of_a_read_after_a_write(synced):
    build, out, unit = writer(4)
    array = build.shared("f32", 4)
    build.store(array, unit, unit.cast("f32"))
    if synced:
        build.sync()
    build.store(out, unit, build.load(array, unit >> 1))
    if not synced:
        message = fault(build, floats(4))
        assert "element 0 is touched here (read) and by another unit (write)" in message
        return
    values = floats(4)
    interpret(build.finish(), 1, [values])
    assert values.tolist() == [0, 0, 1, 1]


def test_race_of_a_write_after_a_read():
    build, data, unit = writer(2, "inout")
    build.store(data, build.op("sub", 1, unit), build.load(data, 0))
    message = fault(build, floats(2))
    assert "element 0 is touched here (write) and by another unit (read)" in message


def test_race_of_an_atomic_and_a_plain_write():
    build, data, unit = writer(2, "inout")
    with build.when(unit.eq(0)):
        build.store(data, 0, build.constant(1, "f32"))
    with build.when(unit.eq(1)):
        build.atomic("add", data, 0, build.constant(1, "f32"))
    assert "touched here (atomic) and by another unit (write)" in fault(build, floats(1))


def test_race_of_two_cubes_is_not_helped_by_a_barrier():
    build, out, _ = writer()
    build.sync()
    build.store(out, 0, build.constant(1, "f32"))
    assert "by another cube (write)" in fault(build, floats(1), cubes=2)


@pytest.mark.parametrize("late", [False, True])
def test_divergent_barrier(late):
    build, _, unit = writer(3)
    for _ in build.range(0, unit if late else build.op("sub", 2, unit)):
        build.sync()
    message = fault(build, floats(1))
    assert "all units of a cube must reach a sync" in message
    assert f"unit ({0 if late else 2}, 0, 0) ended without it" in message


def test_units_at_different_barriers():
    build, _, unit = writer(2)
    for _ in build.range(0, unit):
        build.sync()
    build.sync()
    assert "unit (1, 0, 0) stopped at another sync" in fault(build, floats(1))


def test_step_that_is_not_positive():
    build, out, unit = writer()
    for i in build.range(0, 4, unit):
        build.store(out, i, build.constant(1, "f32"))
    assert "the step of a for must be positive; got 0" in fault(build, floats(4))


def test_endless_loop():
    build, _, unit = writer()
    with build.loop():
        build.break_when(unit > 0)
    message = fault(build, floats(1), budget=10)
    assert "a loop must break within 10 rounds" in message and "loop {" in message


def test_index_divided_by_zero():
    build, out, unit = writer()
    build.store(out, build.op("div", 4, unit), build.constant(1, "f32"))
    assert "the divisor of an index must not be 0" in fault(build, floats(1))


def test_streaming_store_off_its_boundary():
    build, out, unit = writer()
    build.store(out, unit + 4, build.constant(1, "f32", 4), streaming=True)
    build.store(out, unit + 2, build.constant(1, "f32", 4), streaming=True)
    message = fault(build, floats(8))
    assert "must start at a multiple of its 4 lanes; got index 2" in message


ARGUMENTS: dict[str, tuple[list[np.ndarray], list[float]]] = {
    "takes 1 buffers; got 0": ([], []),
    "takes 0 scalars; got 1": ([floats(1)], [1]),
    "buffer 0 of kernel k must be a 1-D array of float32; got 2-D of float32": (
        [floats(4).reshape(2, 2)],
        [],
    ),
    "must be a 1-D array of float32; got 1-D of float64": ([np.zeros(4)], []),
    "must be writable; got a read-only one": ([np.frombuffer(bytes(16), np.float32)], []),
}


@pytest.mark.parametrize("rule", ARGUMENTS)
def test_arguments_must_fit(rule):
    build, _, _ = writer()
    with pytest.raises(KernelError, match=rule):
        interpret(build.finish(), 1, *ARGUMENTS[rule])


def test_buffers_must_not_overlap_in_part():
    data = floats(8)
    with pytest.raises(KernelError, match="buffers must be the same array or apart; buffer 1"):
        interpret(kernel(), 1, [data[:5], data[3:]])


def test_cube_count_has_one_to_three_sizes():
    build, _, _ = writer()
    with pytest.raises(KernelError, match="cube_count must be 1 to 3 sizes"):
        interpret(build.finish(), (1, 1, 1, 1), [floats(1)])


# planes, sources ----------------------------------------------------------------------------------


def test_a_plane_that_part_of_it_misses():
    build = Builder("missing", (40, 1, 1))
    with build.when(build.place("unit_pos.x") < 35):
        build.plane("sum", build.constant(1, "i32"))
    assert "all units of a set of 32 must meet here; unit (35, 0, 0) ended" in fault(build)


def test_a_broadcast_of_more_than_one_unit():
    build = Builder("several", (4, 1, 1))
    build.plane("broadcast", build.constant(1, "i32"), build.place("unit_pos.x") // 2)
    assert "a broadcast must be of one unit; got [0, 1]" in fault(build)


def test_a_fault_names_the_users_line():
    build = Builder("outside")
    build.source = "user.py:12"
    build.store(build.buffer("f32", "out"), 3, build.constant(1, "f32"))
    message = fault(build, np.zeros(2, np.float32))
    assert "got 3 in lane 0. At user.py:12. At unit (0, 0, 0)" in message


def test_sources_are_no_part_of_a_kernel():
    kernels = []
    for source in (None, "user.py:1"):
        build = Builder("same")
        build.source = source
        out = build.buffer("f32", "out")
        with build.when(build.place("cube_pos.x") < 3):
            build.store(out, 0, build.constant(1, "f32"))
        kernels.append(build.finish())
    assert kernels[0] == kernels[1] and hash(kernels[0]) == hash(kernels[1])
    assert text(kernels[0]) == text(kernels[1])
    assert kernels[1].body[-1].source == "user.py:1"
