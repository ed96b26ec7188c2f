"""Matrix units, copies on their way and barriers in the kernel language: what the interpreter
computes against NumPy, which faults it finds, what the checker refuses, what NVRTC makes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from xcube.errors import DeviceError, KernelError, LoweringError
from xcube.lowering.cube import ir, matrix
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.check import check
from xcube.lowering.cube.interpreter import interpret
from xcube.lowering.cube.ir import Buffer, Kernel
from xcube.lowering.cube.text import key, text
from xcube.lowering.device import cuda_compile
from xcube.lowering.emit import cuda, llvm

Array = np.ndarray[Any, Any]
NUMPY = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype("f2"), "f32": np.dtype("f4")}
RANDOM = np.random.default_rng(3)
SPAN = 64  # elements of 16 bits in a line


def whole(dtype: str, *shape: int) -> Array:
    """Small multiples of 1/8, which every dtype and tf32 hold exactly."""
    return (RANDOM.integers(-9, 10, shape) / 8).astype(NUMPY[dtype])


def fault(kernel: Kernel, *buffers: Array, scalars: tuple[int, ...] = ()) -> str:
    with pytest.raises(KernelError) as caught:
        interpret(kernel, 1, buffers, scalars)
    return str(caught.value)


# a plane ----------------------------------------------------------------------------------------


def fragments(dtype: str, gather: bool) -> Kernel:
    """out[16, 8] = left[16, k] @ right[8, k].T: operands lane by lane, or by loading matrices."""
    build = Builder("plane", (32, 1, 1))
    buffers = [build.buffer(dtype), build.buffer(dtype)]
    out, unit = build.buffer("f32", "out"), build.place("unit_pos.x")
    take = gathered if gather else loaded
    x, y = (take(build, buffer, unit, which) for which, buffer in enumerate(buffers))
    result = matrix.multiply(build, x, y, build.constant(1.0, "f32", 4))
    for lane in range(4):
        row, column = matrix.sum_of(unit, lane)
        build.store(out, row * matrix.COLUMNS + column, build.extract(result, lane))
    return build.finish()


def local_line(build: Builder, places: list[Value], buffer: Buffer) -> Value:
    """A line of elements at given places."""
    array = build.local(buffer.dtype, len(places))
    for lane, place in enumerate(places):
        build.store(array, lane, build.load(buffer, place))
    return build.load(array, 0, lanes=len(places))


def gathered(build: Builder, buffer: Buffer, unit: Value, which: int) -> Value:
    dtype, deep = buffer.dtype, matrix.depth(buffer.dtype)
    lanes = (16 if which == 0 else 8) * deep // 32
    places = []
    for lane in range(lanes):
        row, k = matrix.left(unit, lane, dtype)
        if which:
            k, row = matrix.right(unit, lane, dtype)
        places.append(row * deep + k)
    return local_line(build, places, buffer)


def loaded(build: Builder, buffer: Buffer, unit: Value, which: int) -> Value:
    """Lines of the operand, 32 bytes each, as matrices in the order that a multiplication wants."""
    width, deep = matrix.width(buffer.dtype), matrix.depth(buffer.dtype)
    rows = 16 if which == 0 else 8
    shared = build.shared(buffer.dtype, rows * deep)
    for start in range(0, rows * deep, 32):
        build.store(shared, unit + start, build.load(buffer, unit + start))
    build.sync()
    number, line = unit // 8 % (rows * 2 // 8), unit % 8
    row, chunk = (line + number % 2 * 8, number // 2) if which == 0 else (line, number % 2)
    return matrix.load_matrices(build, shared, row * deep + chunk * width, rows * 2 // 8)


@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize("dtype", NUMPY)
def test_a_plane_multiplies(dtype: str, gather: bool) -> None:
    deep = matrix.depth(dtype)
    a, b, out = whole(dtype, 16, deep), whole(dtype, 8, deep), np.zeros(128, np.float32)
    interpret(fragments(dtype, gather), 1, [a.ravel(), b.ravel(), out])
    expected = a.astype(np.float64) @ b.astype(np.float64).T + 1
    np.testing.assert_array_equal(out.reshape(16, 8), expected)


def test_single_precision_is_rounded_to_tf32() -> None:
    a, b, out = np.zeros((16, 8), "f4"), np.zeros((8, 8), "f4"), np.zeros(128, "f4")
    a[0, 0], a[1, 0], b[0, 0] = 1 + 2**-11, 1 + 2**-12, 1
    interpret(fragments("f32", True), 1, [a.ravel(), b.ravel(), out])
    assert (out[0], out[8]) == (2 + 2**-10, 2)


def test_matrices_are_transposed_while_they_are_loaded() -> None:
    build = Builder("transposed", (32, 1, 1))
    x, out, unit = build.buffer("f16"), build.buffer("f16", "out"), build.place("unit_pos.x")
    shared = build.shared("f16", 64)
    build.store(shared, unit * 2, build.load(x, unit * 2, lanes=2))
    build.sync()
    line = matrix.load_matrices(build, shared, unit % 8 * 8, 1, transposed=True)
    build.store(out, unit * 2, line)
    values, result = whole("f16", 8, 8), np.zeros(64, "f2")
    interpret(build.finish(), 1, [values.ravel(), result])
    np.testing.assert_array_equal(result.reshape(8, 8), values.T)


def test_a_plane_must_be_whole() -> None:
    build = Builder("split", (32, 1, 1))
    with build.when(build.place("unit_pos.x") < 31):
        matrix.sync_plane(build)
    assert "a set of 32 must meet here; unit (31, 0, 0) ended without it" in fault(build.finish())


def test_planes_meet_by_themselves() -> None:
    build = Builder("planes", (64, 1, 1))
    out, unit = build.buffer("i32", "out"), build.place("unit_pos.x")
    shared = build.shared("i32", 64)
    build.store(shared, unit, unit.cast("i32"))
    matrix.sync_plane(build)
    build.store(out, unit, build.load(shared, unit ^ 31))
    result = np.zeros(64, np.int32)
    interpret(build.finish(), 1, [result])
    assert result.tolist() == [k ^ 31 for k in range(64)]
    crossing = dataclasses.replace(build.finish(), body=_without(build.finish(), ir.SyncPlane))
    assert "must be written before" in fault(crossing, result) or "race" in fault(crossing, result)


def _without(kernel: Kernel, kind: type) -> tuple[ir.Stmt, ...]:
    return tuple([s for s in kernel.body if not isinstance(s, kind)])


# copies on their way ----------------------------------------------------------------------------


def copying(*parts: str) -> Kernel:
    """Two units copy 16 bytes each, and each reads what the other one copied."""
    build = Builder("copies", (2, 1, 1))
    x, out, unit = build.buffer("f32"), build.buffer("f32", "out"), build.place("unit_pos.x")
    shared = build.shared("f32", 8)
    matrix.copy_async(build, shared, unit * 4, x, unit * 4, unit.eq(0))
    matrix.commit_copies(build)
    if "wait" in parts:
        matrix.wait_copies(build, 0)
    if "sync" in parts:
        build.sync()
    build.store(out, unit * 4, build.load(shared, 4 - unit * 4, lanes=4))
    return build.finish()


def test_copies_arrive_and_what_is_not_valid_is_zero() -> None:
    x, out = np.arange(1, 9, dtype="f4"), np.ones(8, "f4")
    interpret(copying("wait", "sync"), 1, [x, out])
    assert out.tolist() == [0, 0, 0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("parts", [("sync",), ("wait",), ()])
def test_copies_must_be_awaited_and_met(parts: tuple[str, ...]) -> None:
    told = fault(copying(*parts), np.ones(8, "f4"), np.ones(8, "f4"))
    assert "must be written before it is read" in told or "a race" in told


def test_copies_are_aligned() -> None:
    build = Builder("crooked", (2, 1, 1))
    x, shared = build.buffer("f32"), build.shared("f32", 8)
    matrix.copy_async(build, shared, 0, x, build.place("unit_pos.x") + 1)
    told = fault(build.finish(), np.ones(8, "f4"))
    assert "must begin at a multiple of 4; got index 1" in told


# a group ----------------------------------------------------------------------------------------


def panels(deep: tuple[bool, bool], wait: bool = True, early: bool = False) -> Kernel:
    """out[64, 16] = left @ right over a depth of 64, twice; operands lie in shared memory as they
    are given. `early`: the right panel is written before the products are done."""
    build = Builder("group", (128, 1, 1))
    sizes = (64 * SPAN, (16 if deep[1] else 64) * SPAN)
    buffers, unit = [build.buffer("bf16"), build.buffer("bf16")], build.place("unit_pos.x")
    out = build.buffer("f32", "out")
    arrays = [build.shared("bf16", size) for size in sizes]
    for buffer, array, size in zip(buffers, arrays, sizes, strict=True):
        for chunk in build.range(unit, size // 8, 128):
            at = matrix.chunk_at(chunk // 8, chunk % 8, "bf16")
            matrix.copy_async(build, array, at, buffer, chunk * 8)
    matrix.commit_copies(build)
    matrix.wait_copies(build, 0)
    build.sync()
    sums = build.variable(build.constant(5.0, "f32", 8))
    left, right = (
        matrix.panel(build, array, 0, way, SPAN * SPAN)
        for array, way in zip(arrays, deep, strict=True)
    )
    for fresh in (True, False):
        matrix.multiply_panels(build, sums, left, right, 4, build.constant(fresh, "bool"))
    if early:
        build.sync()
        build.store(arrays[1], unit * 2, build.constant(0.0, "bf16", 2))
    if wait:
        matrix.wait_products(build, 0, sums)
    for lane in range(8):
        row, column = matrix.group_sum_of(unit, lane)
        build.store(out, row * 16 + column, build.extract(sums.get(), lane))
    return build.finish()


def panel_operands(deep: tuple[bool, bool]) -> tuple[Array, Array, list[Array]]:
    a, b = whole("bf16", 64, 64), whole("bf16", 16, 64)
    wide = np.zeros((64, 64), NUMPY["bf16"])
    wide[:, :16] = b.T
    given = [a if deep[0] else a.T.copy(), b if deep[1] else wide]
    return a, b, [*[x.ravel() for x in given], np.zeros(64 * 16, "f4")]


@pytest.mark.parametrize("deep", [(True, True), (True, False), (False, True), (False, False)])
def test_a_group_multiplies_panels(deep: tuple[bool, bool]) -> None:
    a, b, buffers = panel_operands(deep)
    interpret(panels(deep), 1, buffers)
    expected = 2 * (a.astype(np.float64) @ b.astype(np.float64).T)
    np.testing.assert_array_equal(buffers[2].reshape(64, 16), expected)


def test_products_are_left_alone_until_they_are_done() -> None:
    *_, buffers = panel_operands((True, True))
    assert "until a wait for products names them" in fault(
        panels((True, True), wait=False), *buffers
    )
    assert "a race" in fault(panels((True, True), early=True), *buffers)


def held_left(steps: int) -> Kernel:
    """out[64, 16] = left @ right, where units hold the left operand, 16 * steps deep."""
    build = Builder("held", (128, 1, 1))
    x, y, out = build.buffer("bf16"), build.buffer("bf16"), build.buffer("f32", "out")
    unit, deep = build.place("unit_pos.x"), 16 * steps
    panel = build.shared("bf16", deep * SPAN)
    for element in build.range(unit, deep * SPAN, 128):
        build.store(panel, matrix.exchanged(element, "bf16"), build.load(y, element))
    build.sync()
    places = [matrix.group_sum_of(unit, lane) for lane in range(deep // 2)]
    left = build.join([build.load(x, row * deep + column) for row, column in places])
    sums = build.variable(build.constant(0.0, "f32", 8))
    right = matrix.panel(build, panel, 0, False, deep * SPAN)
    matrix.multiply_panels(build, sums, left, right, steps, build.constant(True, "bool"))
    matrix.wait_products(build, 0, sums)
    for lane in range(8):
        row, column = matrix.group_sum_of(unit, lane)
        build.store(out, row * 16 + column, build.extract(sums.get(), lane))
    return build.finish()


@pytest.mark.parametrize("steps", [1, 8])
def test_units_hold_a_left_operand(steps: int) -> None:
    a, b = whole("bf16", 64, 16 * steps), whole("bf16", 16 * steps, SPAN)
    out = np.zeros(64 * 16, "f4")
    interpret(held_left(steps), 1, [a.ravel(), b.ravel(), out])
    expected = a.astype(np.float64) @ b.astype(np.float64)[:, :16]
    np.testing.assert_array_equal(out.reshape(64, 16), expected)


# boxes ------------------------------------------------------------------------------------------


def boxes(waits: bool = True, arrives: int = 1) -> Kernel:
    """One unit asks for the box of 64 columns and 8 rows at (64, 4) of a matrix; all read it."""
    build = Builder("boxes", (32, 1, 1))
    x, out, unit = build.buffer("bf16"), build.buffer("bf16", "out"), build.place("unit_pos.x")
    sizes = [build.scalar(), build.scalar()]
    map = build.map(x, sizes, [build.scalar()], (SPAN, 8))
    shared, barriers = build.shared("bf16", 8 * SPAN), build.shared("u64", 1)
    zero = build.constant(0, "index")
    with build.when(unit.eq(0)):
        matrix.set_barrier(build, barriers, 0, 1)
    build.sync()
    with build.when(unit.eq(0)):
        for _ in range(arrives):
            matrix.arrive(build, barriers, 0, matrix.box_bytes(map))
        place = [build.constant(64, "index"), build.constant(4, "index")]
        matrix.copy_tile(build, shared, zero, map, place, barriers, zero)
    if waits:
        matrix.wait_for(build, barriers, 0, zero)
    for element in build.range(unit, 8 * SPAN, 32):
        at = matrix.exchanged(element, "bf16")
        build.store(out, element, build.load(shared, at))
    return build.finish()


BOX = (100, 9, 104)  # columns, rows, and elements between rows


def test_boxes_are_clipped() -> None:
    x, out = whole("bf16", 9, 104), np.ones(8 * SPAN, NUMPY["bf16"])
    interpret(boxes(), 1, [x.ravel(), out], BOX)
    expected = np.zeros((8, SPAN), NUMPY["bf16"])
    expected[:5, :36] = x[4:, 64:100]
    np.testing.assert_array_equal(out.reshape(8, SPAN), expected)


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        (boxes(arrives=0), "this phase of a barrier never ends"),
        (boxes(arrives=2), "a phase takes 1 arrivals; this is one more"),
    ],
)
def test_barriers_count(kernel: Kernel, told: str) -> None:
    x, out = whole("bf16", 9, 104), np.ones(8 * SPAN, NUMPY["bf16"])
    assert told in fault(kernel, x.ravel(), out, scalars=BOX)


# what is refused --------------------------------------------------------------------------------

Refusal = Callable[[Builder], None]


def _load(dtype: str, lanes: int, transposed: bool = False) -> Refusal:
    def build(b: Builder) -> None:
        target, zero = b.named(ir.Type(dtype, lanes)), ir.Const(0, ir.Type("index"))
        b.emit(ir.LoadMatrices(target, b.shared(dtype, 512), zero, transposed))

    return build


def _copy(lanes: int, space: str = "shared") -> Refusal:
    def build(b: Builder) -> None:
        target = b.shared("f32", 64) if space == "shared" else b.local("f32", 64)
        zero = ir.Const(0, ir.Type("index"))
        b.emit(ir.CopyAsync(target, zero, b.buffer("f32"), zero, lanes))

    return build


def _panel(dtype: str, deep: bool, apart: int, columns: int, steps: int) -> Refusal:
    def build(b: Builder) -> None:
        array = b.shared(dtype, 1 << 13)
        sums = b.variable(b.constant(0.0, "f32", columns // 2))
        both = [matrix.panel(b, array, 0, deep, apart)] * 2
        matrix.multiply_panels(b, sums, both[0], both[1], steps, b.constant(True, "bool"))

    return build


def _map(*box: int) -> Refusal:
    def build(b: Builder) -> None:
        n = b.scalar()
        b.map(b.buffer("bf16"), [n] * len(box), [n] * (len(box) - 1), box)

    return build


def _over(size: int) -> Refusal:
    return lambda b: b.store(
        b.shared("f32", size, over=b.shared("bf16", 64)), 0, b.constant(0.0, "f32")
    )


def _registers(count: int) -> Refusal:
    return lambda b: matrix.set_registers(b, count, grows=True)


REFUSED: dict[str, tuple[Refusal, int, str]] = {
    "lanes": (_load("bf16", 6), 32, "1, 2 or 4 matrices of bf16 give [2, 4, 8] lanes; got 6"),
    "plane": (_load("bf16", 8), 16, "takes whole sets of 32 units; the cube has 16"),
    "transposed": (_load("f32", 4, True), 32, "only matrices of 16-bit elements are transposed"),
    "dtype": (_load("i32", 4), 32, "matrices must have a dtype of bf16, f16, f32; got i32"),
    "bytes": (_copy(2), 32, "must move 16 bytes, 4 lanes of f32; got 2"),
    "space": (_copy(4, "local"), 32, "the target of a copy on its way must be in shared memory"),
    "group": (_panel("bf16", True, 0, 64, 4), 64, "takes a group of 128 units; the cube has 64"),
    "swizzle": (_panel("bf16", False, 100, 64, 4), 128, "multiple of 512 elements apart; got 100"),
    "way": (_panel("f32", False, 256, 64, 4), 128, "of f32 must lie along the depth"),
    "columns": (_panel("bf16", True, 0, 264, 4), 128, "a multiple of 8 up to 256"),
    "steps": (_panel("bf16", True, 0, 64, 5), 128, "a panel has 1 to 4 steps; got 5"),
    "box": (_map(32, 8), 32, "must be 64 elements wide and at most 256"),
    "tall box": (_map(64, 257), 32, "must be 64 elements wide and at most 256"),
    "rank": (_map(64), 32, "a map must have 2 to 5 sizes"),
    "room": (_over(33), 1, "must fit the 128 bytes that it takes over; got 132"),
    "registers": (_registers(100), 128, "must be a multiple of 8 in 24..256; got 100"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_before_a_launch(name: str) -> None:
    make, units, told = REFUSED[name]
    build = Builder("refused", (units, 1, 1))
    make(build)
    with pytest.raises(KernelError, match="check: ") as caught:
        check(build.finish())
    assert told in str(caught.value)


# texts ------------------------------------------------------------------------------------------

KERNELS: dict[str, Kernel] = {
    **{f"plane {dtype}": fragments(dtype, False) for dtype in NUMPY},
    "copies": copying("wait", "sync"),
}
HOPPER: dict[str, Kernel] = {
    **{f"panels {deep}": panels(deep) for deep in ((True, True), (False, False))},
    "boxes": boxes(),
}


def test_texts_tell_kernels_apart() -> None:
    texts = {key(kernel) for kernel in (*KERNELS.values(), *HOPPER.values())}
    assert len(texts) == len(KERNELS) + len(HOPPER)
    assert "map m0(b0; %0, %1; %2) box 64 8" in text(HOPPER["boxes"])
    resident = dataclasses.replace(KERNELS["copies"], resident=2)
    assert key(resident) != key(KERNELS["copies"])
    assert "__launch_bounds__(2, 2)" in cuda.emit(resident)


def test_a_target_without_matrix_units_says_so() -> None:
    build = Builder("copies")
    matrix.commit_copies(build)
    with pytest.raises(LoweringError, match="CommitCopies takes matrix units"):
        llvm.emit(build.finish())


def test_the_first_line_describes_maps() -> None:
    shape = cuda_compile.shape(cuda.emit(HOPPER["boxes"]))
    assert shape.maps == (cuda_compile.MapShape(0, "bf16", (0, 1), (2,), (64, 8)),)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_texts_compile(target: str) -> None:
    kernels = {**KERNELS, **(HOPPER if target == "sm_90a" else {})}
    try:
        cuda_compile.version()
    except DeviceError as error:
        pytest.skip(str(error))
    texts = [("kernel", cuda.emit(kernel)) for kernel in kernels.values()]
    assert all(code.startswith(b"\x7fELF") for code in cuda_compile.compile(texts, target))
