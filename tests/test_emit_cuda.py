"""The CUDA emitter: every operation, cast, access and statement against the meaning that the
interpreter gives it, on the host and, where there is one, on a GPU; golden texts; how accesses are
vectorised; and NVRTC's word on the kernels of the library."""

from __future__ import annotations

import functools
import importlib
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda_machines import MACHINES
from test_emit_llvm import (
    ATOMIC_DTYPES,
    ELEMENTWISE,
    MEMORY_DTYPES,
    arguments,
    assert_same,
    axpy,
    cast_samples,
    exchanged,
    exchanges,
    row_maximum,
    samples,
    search,
    sweep,
    whole_samples,
)

from xcube import config, errors
from xcube.lowering import cache, lower
from xcube.lowering.cube import ir, planes
from xcube.lowering.cube.arithmetic import NUMPY, evaluate
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.interpreter import interpret
from xcube.lowering.device import cuda_compile
from xcube.lowering.device.base import Facts
from xcube.lowering.emit.c_like import Indices
from xcube.lowering.emit.cuda import emit
from xcube.transforms.jit import make_jaxpr

Array = np.ndarray[Any, Any]
LANES = (1, 2)


# kernels, made and compiled together --------------------------------------------------------------

_MAKERS: dict[str, Callable[[], ir.Kernel]] = {}


def kernel(*rows: Any) -> Callable[[Callable[..., ir.Kernel]], Callable[..., ir.Kernel]]:
    """Note a maker of kernels: one kernel for each row of arguments, or one in all."""

    def note(make: Callable[..., ir.Kernel]) -> Callable[..., ir.Kernel]:
        for row in rows or ((),):
            _MAKERS[name_of(make.__name__, *row)] = functools.partial(make, *row)
        return make

    return note


def name_of(*parts: Any) -> str:
    return "_".join(map(str, parts))


@pytest.fixture(scope="module", params=sorted(MACHINES, reverse=True))
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A place to run all of this file's kernels by name."""
    kernels = {name: make() for name, make in _MAKERS.items()}
    return MACHINES[request.param](kernels, tmp_path_factory.mktemp("cuda"))


def agree(
    machine: Any, name: str, buffers: Sequence[Array], scalars: Sequence[Any] = (), cubes: int = 1
) -> Sequence[Array]:
    """Run on a machine and in the interpreter; the results, which must be alike."""
    expected = [array.copy() for array in buffers]
    interpret(machine.kernels[name], cubes, expected, scalars)
    machine.run(name, buffers, scalars, cubes)
    for got, wanted in zip(buffers, expected, strict=True):
        assert_same(got, wanted, name)
    return buffers


@pytest.fixture(autouse=True)
def _nothing_undefined(capfd: pytest.CaptureFixture[str]) -> Any:
    """The host's compiler reports what C++ leaves undefined, misaligned accesses among it."""
    yield
    assert "runtime error" not in capfd.readouterr().err


# operations ---------------------------------------------------------------------------------------

BOTH = tuple(itertools.product(ir.DTYPES, LANES))


def ops_of(dtype: str) -> list[str]:
    return [op for op in ELEMENTWISE if dtype in ir.OPS[op].dtypes and ir.OPS[op].arity < 3]


@kernel(*BOTH)
def operations(dtype: str, lanes: int) -> ir.Kernel:
    return sweep(dtype, lanes, ops_of(dtype), 2)


@kernel(*itertools.product(ir.FLOATS, LANES))
def fused(dtype: str, lanes: int) -> ir.Kernel:
    return sweep(dtype, lanes, ["fma"], 3)


@kernel()
def library() -> ir.Kernel:
    return sweep("f64", 1, ir.LIBRARY, 2)


def compare_ops(
    machine: Any, name: str, dtype: str, ops: Sequence[str], inputs: list[Array]
) -> None:
    kinds = [np.bool_ if ir.OPS[op].result == "bool" else NUMPY[dtype] for op in ops]
    outputs = [np.zeros(len(inputs[0]), kind) for kind in kinds]
    machine.run(name, [*inputs, *outputs], [len(inputs[0])])
    for op, output in zip(ops, outputs, strict=True):
        with np.errstate(all="ignore"):
            expected = evaluate(op, inputs[: ir.OPS[op].arity], ir.Type(dtype, len(inputs[0])))
        if op in ("min", "max"):  # which zero is not stated
            output, expected = output + output.dtype.type(0), expected + output.dtype.type(0)
        ulps = 1000 if op == "lgamma" else 10 if op in ir.LIBRARY else 0
        assert_same(output, expected, f"{op} {name}", ulps)


@pytest.mark.parametrize(("dtype", "lanes"), BOTH)
def test_operations(machine: Any, dtype: str, lanes: int) -> None:
    inputs = arguments(dtype, 2)
    if dtype == "index":  # an address does not overflow, and its divisor is never 0
        inputs = [np.clip(x, -(2**30), 2**30) for x in inputs]
        inputs[1] = np.where(inputs[1] == 0, 3, inputs[1])
    compare_ops(machine, name_of("operations", dtype, lanes), dtype, ops_of(dtype), inputs)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", ir.FLOATS)
def test_fma_rounds_once(machine: Any, dtype: str, lanes: int) -> None:
    compare_ops(machine, name_of("fused", dtype, lanes), dtype, ["fma"], arguments(dtype, 3))


def test_library_functions(machine: Any) -> None:
    compare_ops(machine, "library", "f64", ir.LIBRARY, arguments("f64", 2))


def known_cases(dtype: str) -> list[tuple[str, int]]:
    values = [int(value) for value in whole_samples(dtype) if value or dtype != "index"]
    return [(op, value) for op in ("div", "rem", "shl", "shr") for value in values[:20]]


@kernel(*[(dtype,) for dtype in (*ir.INTEGERS, "index")])
def known(dtype: str) -> ir.Kernel:
    memory = "i64" if dtype == "index" else dtype
    build = Builder("known")
    source = build.buffer(memory)
    outputs = [build.buffer(memory, "out") for _ in known_cases(dtype)]
    at = build.place("cube_pos.x")
    value = build.cast(build.load(source, at), dtype)
    for (op, number), output in zip(known_cases(dtype), outputs, strict=True):
        build.store(output, at, build.cast(build.op(op, value, number), memory))
    return build.finish()


@pytest.mark.parametrize("dtype", (*ir.INTEGERS, "index"))
def test_known_second_operand(machine: Any, dtype: str) -> None:
    x = whole_samples(dtype)
    x = x[x > np.iinfo(x.dtype).min] if dtype == "index" else x
    results = [np.zeros_like(x) for _ in known_cases(dtype)]
    machine.run(name_of("known", dtype), [x, *results], cubes=len(x))
    for (op, number), result in zip(known_cases(dtype), results, strict=True):
        expected = evaluate(op, [x, np.full(len(x), number, x.dtype)], ir.Type(dtype, len(x)))
        assert_same(result, expected, f"{dtype} {op} {number}")


# casts and literals -------------------------------------------------------------------------------


@kernel(*[(dtype,) for dtype in MEMORY_DTYPES])
def casts(source: str) -> ir.Kernel:
    build = Builder("casts")
    data = build.buffer(source)
    outputs = [build.buffer(target, "out") for target in (*MEMORY_DTYPES, "i64")]
    size = build.scalar()
    for at in build.range(0, size, 2):
        value = build.load(data, at, 2)
        for output in outputs[:-1]:
            build.store(output, at, build.cast(value, output.dtype))
        build.store(outputs[-1], at, value.cast("index").cast("i64"))
    return build.finish()


@pytest.mark.parametrize("source", MEMORY_DTYPES)
def test_casts(machine: Any, source: str) -> None:
    x = cast_samples(source)
    x = x[: len(x) // 2 * 2]
    targets = (*MEMORY_DTYPES, "i64")
    results = [np.zeros(len(x), NUMPY[target]) for target in targets]
    machine.run(name_of("casts", source), [x, *results], [len(x)])
    for target, result in zip(targets, results, strict=True):
        with np.errstate(all="ignore"):
            expected = evaluate("cast", [x], ir.Type(target, len(x)))
        assert_same(result, expected, f"{source} to {target}")


@kernel(*[(dtype,) for dtype in MEMORY_DTYPES])
def literals(dtype: str) -> ir.Kernel:
    build = Builder("literals")
    output = build.buffer(dtype, "out")
    for at, value in enumerate(samples(dtype).tolist()):
        number = float(value) if dtype in ir.FLOATS else value
        build.store(output, at, build.constant(number, dtype))
    return build.finish()


@pytest.mark.parametrize("dtype", MEMORY_DTYPES)
def test_literals(machine: Any, dtype: str) -> None:
    result = np.zeros(len(samples(dtype)), NUMPY[dtype])
    machine.run(name_of("literals", dtype), [result])
    assert_same(result, samples(dtype), dtype)


BITCASTS = (("f32", "i32"), ("u32", "f32"), ("u64", "f64"), ("f64", "i64"), ("bf16", "i16"),
            ("f8_e5m2", "u8"), ("i16", "f16"), ("bf16", "u32"), ("u32", "f16"), ("u8", "f32"),
            ("f64", "u16"), ("f32", "f64"))  # fmt: skip


@kernel(*BITCASTS)
def bitcasts(source: str, target: str) -> ir.Kernel:
    build = Builder("bits")
    data, output = build.buffer(source), build.buffer(target, "out")
    build.store(output, 0, build.load(data, 0, 16).bitcast(target))
    return build.finish()


@pytest.mark.parametrize(("source", "target"), BITCASTS)
def test_bitcasts(machine: Any, source: str, target: str) -> None:
    x = np.resize(samples(source), 16)
    result = np.zeros(x.nbytes // NUMPY[target].itemsize, NUMPY[target])
    machine.run(name_of("bitcasts", source, target), [x, result])
    assert result.tobytes() == x.tobytes()


@kernel(*[(dtype,) for dtype in MEMORY_DTYPES])
def cells(dtype: str) -> ir.Kernel:
    build = Builder("cells")
    output = build.buffer(dtype, "out")
    for at in range(5):
        build.store(output, at, build.scalar(dtype))
    return build.finish()


@pytest.mark.parametrize("dtype", MEMORY_DTYPES)
def test_scalars_come_from_cells(machine: Any, dtype: str) -> None:
    values = np.resize(samples(dtype), 5)
    result = np.zeros(5, values.dtype)
    machine.run(name_of("cells", dtype), [result], values.tolist())
    assert_same(result, values, dtype)


@kernel()
def again() -> ir.Kernel:
    """Lanes that were parted and joined again, and an exponential."""
    build = Builder("again")
    data, output = build.buffer("u32"), build.buffer("f32", "out")
    halves = build.load(data, 0, 4).bitcast("f16")
    joined = build.join([build.shuffle(halves, range(2)), build.shuffle(halves, range(2, 8))])
    build.store(output, 0, joined.bitcast("f32"))
    build.store(output, 4, build.op("exp2_approx", build.load(data, 0, 4).cast("f32") * 0.25))
    return build.finish()


def test_parted_lanes_are_found_again(machine: Any) -> None:
    x, result = np.array([1, 2, 30, 40], np.uint32), np.zeros(8, np.float32)
    machine.run("again", [x, result])
    assert result[:4].tobytes() == x.tobytes()
    np.testing.assert_allclose(result[4:], 2.0 ** (x / 4), rtol=3e-7)
    text = emit(machine.kernels["again"])
    assert "<<" not in text  # no halves are put together


# lines --------------------------------------------------------------------------------------------

REDUCTIONS = ("add", "mul", "min", "max", "and", "or", "xor")


def reductions_of(dtype: str) -> list[str]:
    return [op for op in REDUCTIONS if dtype in ir.OPS[f"reduce_{op}"].dtypes]


@kernel(*[(dtype,) for dtype in MEMORY_DTYPES])
def lines(dtype: str) -> ir.Kernel:
    """Moves of lanes, selections, reductions, neighbours of every width, masks, gathers."""
    build = Builder("lines")
    data, order, flags = build.buffer(dtype), build.buffer("i32"), build.buffer("bool")
    output, offset = build.buffer(dtype, "inout"), build.scalar()
    low, high = build.load(data, offset, 8), build.load(data, offset + 8, 8)
    mask, places = build.load(flags, 0, 8), build.load(order, 0, 8).cast("index")
    neighbours = build.splat(offset, 8) + build.lane(8)
    parts = [
        build.shuffle(low, range(8)[::-1]),
        build.splat(build.extract(high, 7), 8),
        build.select(build.lane(8) < 4, low, high),
        build.select(build.extract(low, 0).eq(low), low, high),
        build.load(data, offset + 1, 8, mask),
        build.load(data, places),
        build.load(data, places, mask=mask),
        build.load(data, neighbours),
    ]
    for row, part in enumerate(parts):
        build.store(output, offset + row * 8, part)
    build.store(output, places + 64, low)
    build.store(output, places + 72, high, mask)
    build.store(output, 80, low, mask)
    build.store(output, neighbours + 88, high)
    for at, lanes in ((100, 3), (103, 6), (109, 12), (121, 16)):
        build.store(output, offset + at, build.load(data, offset, lanes))
    for row, op in enumerate(reductions_of(dtype)):
        build.store(output, 140 + row, build.reduce(op, low))
    return build.finish()


@pytest.mark.parametrize("offset", (0, 1, 4))
@pytest.mark.parametrize("dtype", MEMORY_DTYPES)
def test_lines(machine: Any, dtype: str, offset: int) -> None:
    x = np.resize(samples(dtype), 24)
    random = np.random.default_rng(3)
    order, flags = random.permutation(8).astype(np.int32), random.integers(0, 2, 8) == 1
    result = np.resize(samples(dtype)[::-1], 160)
    before = result.copy()
    expected = result.copy()
    name = name_of("lines", dtype)
    interpret(machine.kernels[name], 1, [x, order, flags, expected], [offset])
    machine.run(name, [x, order, flags, result], [offset])
    zero = x.dtype.type(0)  # min and max do not say which zero
    for row, op in enumerate(reductions_of(dtype)):
        if op in ("min", "max"):
            result[140 + row], expected[140 + row] = (
                result[140 + row] + zero,
                expected[140 + row] + zero,
            )
    assert_same(result, expected, name)
    assert_same(result[offset : offset + 8], x[offset : offset + 8][::-1], "shuffle")
    assert_same(result[80:88][~flags], before[80:88][~flags], "masked-off lanes")


@kernel()
def pairs() -> ir.Kernel:
    build = Builder("pairs")
    data, output = build.buffer("f32"), build.buffer("f32", "out")
    build.store(output, 0, build.reduce("add", build.load(data, 0, 4)))
    return build.finish()


def test_reduce_add_is_pairwise(machine: Any) -> None:
    x = np.array([1e8, 1.0, -1e8, 1.0], np.float32)  # (1e8 - 1e8) + (1 + 1), not left to right
    result = np.zeros(1, np.float32)
    machine.run("pairs", [x, result])
    assert result[0] == 2.0


# cubes and blocks ---------------------------------------------------------------------------------


@kernel()
def places() -> ir.Kernel:
    build = Builder("places")
    output = build.buffer("i64", "out")
    for row, place in enumerate(ir.PLACES):
        at = build.place("cube_pos.x") * 12 + row
        build.store(output, at, build.place(place).cast("i64"))
    return build.finish()


def test_places_and_threads_without_a_cube(machine: Any) -> None:
    (result,) = agree(machine, "places", [np.full(12 * 35, -7, np.int64)], cubes=35)
    assert result[-12:].tolist() == [34, 0, 0, 35, 1, 1, 0, 0, 0, 1, 1, 1]


@kernel()
def block_places() -> ir.Kernel:
    build = Builder("block_places", (4, 3, 2))
    output = build.buffer("i64", "out")
    x, y, z = (build.place(f"unit_pos.{axis}") for axis in "xyz")
    unit = (z * 3 + y) * 4 + x + build.place("cube_pos.x") * 24
    for row, place in enumerate(ir.PLACES):
        build.store(output, unit * 12 + row, build.place(place).cast("i64"))
    return build.finish()


def test_places_of_a_block(machine: Any) -> None:
    (result,) = agree(machine, "block_places", [np.full(12 * 24 * 3, -7, np.int64)], cubes=3)
    assert result[-12:].tolist() == [2, 0, 0, 3, 1, 1, 3, 2, 1, 4, 3, 2]


@kernel()
def block_sum() -> ir.Kernel:
    """A tree in shared memory, and a count of odd numbers by atomics."""
    build = Builder("block_sum", (32, 1, 1))
    data, output, odd = (
        build.buffer("i32"),
        build.buffer("i32", "out"),
        build.buffer("i32", "inout"),
    )
    tree, count = build.shared("i32", 32), build.shared("u8", 3)
    own = build.local("i32", 2)
    unit, cube = build.place("unit_pos.x"), build.place("cube_pos.x")
    value = build.load(data, cube * 32 + unit)
    build.store(own, 1, value)
    build.store(tree, unit, build.load(own, 1))
    with build.when(unit.eq(0)):
        build.store(count, 1, build.constant(0, "u8"))
    build.sync()
    build.atomic("add", count, 1, (value & 1).cast("u8"))
    for half in (16, 8, 4, 2, 1):
        with build.when(unit < half):
            both = build.load(tree, unit) + build.load(tree, unit + half)
            build.store(tree, unit, both)
        build.sync()
    with build.when(unit.eq(0)):
        build.store(output, cube, build.load(tree, 0))
        build.store(odd, cube, build.load(count, 1).cast("i32"))
    return build.finish()


def test_units_of_a_block_meet_in_shared_memory(machine: Any) -> None:
    x = np.random.default_rng(5).integers(-1000, 1000, 96).astype(np.int32)
    zeros = np.zeros(3, np.int32)
    _, total, odd = agree(machine, "block_sum", [x, zeros, zeros.copy()], cubes=3)
    assert total.tolist() == x.reshape(3, 32).sum(axis=1).tolist()
    assert odd.tolist() == (x.reshape(3, 32) & 1).sum(axis=1).tolist()


@kernel((8,), (3000,))
def private(size: int) -> ir.Kernel:
    """Shared and local arrays of one unit, small enough for its local memory or not."""
    build = Builder("private")
    data, output, stop = build.buffer("i64"), build.buffer("i64", "out"), build.scalar()
    shared, local, flags = build.shared("i64", size), build.local("i64", 4), build.local("bool", 5)
    cube = build.place("cube_pos.x")
    with build.when(cube < stop):
        build.store(shared, size - 8, build.load(data, cube * 8, 8))
        build.store(flags, 0, build.load(shared, size - 8, 4) > 0)
        build.sync()
        build.store(local, 0, build.load(shared, size - 6, 4))
        old = build.atomic("add", local, 1, build.constant(5, "i64"))
        kept = build.select(build.load(flags, 0, 4), build.load(local, 0, 4), -1)
        build.store(output, cube * 4, kept + old)
    return build.finish()


@pytest.mark.parametrize("size", (8, 3000))
def test_arrays_of_a_unit(machine: Any, size: int) -> None:
    x = np.random.default_rng(2).integers(-9, 9, 21 * 8)
    agree(machine, name_of("private", size), [x, np.zeros(21 * 4, np.int64)], [19], cubes=21)


@kernel()
def scratch_return() -> ir.Kernel:
    """A return of one cube is not the end of the thread's other cubes."""
    place, flag, value = (ir.Name(k, ir.Type(t)) for k, t in enumerate(("index", "bool", "i64")))
    room, output = (
        ir.Buffer(0, "i64", "local", "inout", 2000),
        ir.Buffer(0, "i64", "global", "inout"),
    )
    body = (
        ir.Let(place, "cube_pos.x", ()),
        ir.Allocate(room),
        ir.Let(flag, "eq", (place, ir.Const(3, place.type))),
        ir.If(flag, (ir.Return(),)),
        ir.Store(room, place, ir.Const(7, value.type)),
        ir.Load(value, room, place),
        ir.Store(output, place, value),
    )
    return ir.Kernel("scratch_return", (output,), (), body)


def test_a_return_ends_one_cube(machine: Any) -> None:
    (result,) = agree(machine, "scratch_return", [np.zeros(40, np.int64)], cubes=40)
    assert np.flatnonzero(result == 0).tolist() == [3]


# atomics ------------------------------------------------------------------------------------------


def atomics_of(dtype: str) -> list[str]:
    bits = ["and", "or", "xor", "exchange"]
    if dtype == "bool":
        return bits
    return ["add", "min", "max", "exchange", *([] if dtype in ir.FLOATS else bits[:3])]


@kernel(*[(dtype,) for dtype in ATOMIC_DTYPES])
def atomics(dtype: str) -> ir.Kernel:
    build = Builder("atomics")
    data, old, size = build.buffer(dtype), build.buffer(dtype, "out"), build.scalar()
    lines = build.buffer(dtype, "inout")
    cells = [build.buffer(dtype, "inout") for _ in atomics_of(dtype)]
    for at in build.range(0, size):
        for row, (op, cell) in enumerate(zip(atomics_of(dtype), cells, strict=True)):
            before = build.atomic(op, cell, at % 3, build.load(data, at))
            build.store(old, at + row * size, before)
    build.atomic("exchange", lines, 0, build.load(data, 0, 4))
    reverse = build.constant(3, "index", 4) - build.lane(4)
    build.store(lines, 4, build.atomic("exchange", lines, reverse, build.load(data, 4, 4)))
    return build.finish()


@pytest.mark.parametrize("dtype", ATOMIC_DTYPES)
def test_atomics(machine: Any, dtype: str) -> None:
    x = np.resize(samples(dtype), 24)
    if dtype == "f32":  # CUDA's own addition of singles takes numbers below the normal ones for 0
        x = np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(1), x)
    x = np.where(x == 0, np.ones_like(x), x) if dtype in ir.FLOATS else x  # of two zeros, either
    buffers = [x, np.zeros(24 * len(atomics_of(dtype)), x.dtype), np.zeros(8, x.dtype)]
    buffers += [np.ones(3, x.dtype) for _ in atomics_of(dtype)]
    agree(machine, name_of("atomics", dtype), buffers, [24])


@kernel()
def counting() -> ir.Kernel:
    build = Builder("counting")
    total, bytes_, halves = (build.buffer(dtype, "inout") for dtype in ("i32", "u8", "f16"))
    cube = build.place("cube_pos.x")
    build.atomic("add", total, 0, build.constant(1, "i32"))
    build.atomic("add", bytes_, cube % 3, build.constant(1, "u8"))
    build.atomic("max", halves, 1, cube.cast("f16"))
    return build.finish()


def test_atomics_of_many_cubes_lose_nothing(machine: Any) -> None:
    buffers = [np.zeros(1, np.int32), np.zeros(4, np.uint8), np.zeros(2, np.float16)]
    machine.run("counting", buffers, cubes=600)
    assert [buffer.tolist() for buffer in buffers] == [[600], [200] * 3 + [0], [0, 599]]


EXCHANGES = tuple(itertools.product(ATOMIC_DTYPES, (1, 40)))
kernel(*EXCHANGES)(exchanges)


@pytest.mark.parametrize(("dtype", "units"), EXCHANGES)
def test_exchanges(machine: Any, dtype: str, units: int) -> None:
    agree(machine, name_of("exchanges", dtype, units), exchanged(dtype, units))


# planes -------------------------------------------------------------------------------------------

PLANES = tuple(itertools.product(("bool", "i8", "u32", "i64", "f32", "f64", "bf16"), (1, 32, 72)))


@kernel(*PLANES)
def of_planes(dtype: str, units: int) -> ir.Kernel:
    """Every operation of planes, one after the other; numbers of units known and not."""
    build = Builder("of_planes", (units // 2, 2, 1) if units == 72 else (units, 1, 1))
    data, out, votes = build.buffer(dtype), build.buffer(dtype, "out"), build.buffer("u32", "out")
    unit = build.place("unit_pos.x") + build.place("unit_pos.y") * (units // 2)
    value, count = build.load(data, unit), 0
    far = (unit * 5 + 1) % 40
    for op in [op for op, dtypes in planes.OPS.items() if dtype in dtypes]:
        arguments = [3, far] if op in planes.SHUFFLES else [None]
        for argument in arguments[: 1 if op == "broadcast" else None]:
            found = build.plane(op, value, argument)
            target, place = (votes, unit) if op == "ballot" else (out, unit + count * units)
            build.store(target, place, found)
            count += op != "ballot"
    return build.finish()


@pytest.mark.parametrize(("dtype", "units"), PLANES)
def test_planes(machine: Any, dtype: str, units: int) -> None:
    x = np.resize((np.arange(11) - 4).astype(NUMPY[dtype]), units)
    buffers = [x, np.zeros(20 * units, x.dtype), np.zeros(units, np.uint32)]
    agree(machine, name_of("of_planes", dtype, units), buffers)


# control flow and variables -----------------------------------------------------------------------


@kernel()
def counted() -> ir.Kernel:
    build = Builder("counted")
    output, stop, step = build.buffer("i64", "out"), build.scalar(), build.scalar()
    count = build.variable(build.constant(0, "i64"))
    for i in build.range(-3, stop, step):
        for j in build.range(i, 4, 2):
            count.set(count.get() * 7 + (i * 3 + j).cast("i64"))
        for _ in build.range(4, 4):
            count.set(0)
    build.store(output, 0, count.get())
    return build.finish()


def test_counted_loops(machine: Any) -> None:
    for stop, step in ((-3, 1), (-4, 2), (6, 1), (6, 4)):
        agree(machine, "counted", [np.zeros(1, np.int64)], [stop, step])


@kernel()
def jumps() -> ir.Kernel:
    """Break, continue and return from nested loops; what runs leaves a digit."""
    build = Builder("jumps")
    output, number = build.buffer("i64", "inout"), build.scalar("i64")
    trail = build.variable(build.constant(0, "i64"))

    def leave(digit: int) -> None:
        trail.set(trail.get() * 10 + digit)
        build.store(output, 0, trail.get())

    for i in build.range(0, 4):
        for j in build.range(0, 4):
            with build.when(j.eq(1)):
                build._emit(ir.Continue())
            with build.when(j.eq(3)):
                leave(1)
                build._emit(ir.Break())
            with build.when(i.eq(2)):
                leave(2)
            with build.otherwise():
                leave(3)
        with build.loop():
            leave(4)
            build.break_when(i < 3)
            with build.when(number.eq(1)):
                build._emit(ir.Return())
            leave(5)
            build.break_when(number.eq(2))
            leave(6)
            build._emit(ir.Break())
            leave(7)
    leave(8)
    return build.finish()


def test_jumps(machine: Any) -> None:
    for number, end in ((1, "33 1 4"), (2, "33 1 45 8"), (3, "33 1 456 8")):
        (result,) = agree(machine, "jumps", [np.zeros(1, np.int64)], [number])
        trail = f"33 1 4 33 1 4 22 1 4 {end}".replace(" ", "")
        assert str(result[0]) == trail


@kernel(*[(dtype,) for dtype in MEMORY_DTYPES])
def variables(dtype: str) -> ir.Kernel:
    build = Builder("variables")
    data, output = build.buffer(dtype), build.buffer(dtype, "out")
    kept = build.variable(build.load(data, 0, 3))
    first = kept.get()
    for k in build.range(1, 4):
        with build.when(k.eq(2)):
            kept.set(build.load(data, k * 3, 3))
    build.store(output, 0, kept.get())
    build.store(output, 3, first)  # read before the assignment
    return build.finish()


@pytest.mark.parametrize("dtype", MEMORY_DTYPES)
def test_variables(machine: Any, dtype: str) -> None:
    x = np.resize(samples(dtype), 12)
    buffers = [x, np.zeros(6, x.dtype)]
    _, result = agree(machine, name_of("variables", dtype), buffers)
    assert_same(result, np.concatenate([x[6:9], x[:3]]), dtype)


@kernel()
def same_memory() -> ir.Kernel:
    build = Builder("same_memory")
    x, y = build.buffer("i32", "inout"), build.buffer("i32", "inout")
    build.store(x, 0, build.constant(5, "i32"))
    build.store(y, 0, build.constant(6, "i32"))
    build.store(x, 1, build.load(x, 0))
    return build.finish()


def test_inout_buffers_may_be_the_same_memory(machine: Any) -> None:
    memory = np.zeros(2, np.int32)
    machine.run("same_memory", [memory, memory])
    assert memory.tolist() == [6, 6]


# texts --------------------------------------------------------------------------------------------

EXAMPLES = (axpy, row_maximum, search, block_sum)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.__name__)
def test_golden_text(example: Callable[[], ir.Kernel], golden: Callable[[str, str], None]) -> None:
    golden(f"cuda/{example.__name__}.cu", emit(example(), name=example.__name__))


@pytest.mark.parametrize(
    ("dtype", "lanes", "factor", "expected"),
    (
        ("f32", 4, 4, ["*(const f32x4*)"]),
        ("f32", 4, 2, ["load_f32x4"]),
        ("f32", 8, 8, ["*(const f32x4*)"] * 2),
        ("bf16", 8, 16, ["*(const bf16x8*)"]),
        ("bool", 16, 1, ["load_u8x16"]),
        ("f64", 6, 2, ["*(const f64x2*)"] * 3),
        ("f32", 3, 3, ["b0["] * 3),
    ),
)
def test_accesses_are_as_wide_as_is_known_to_be_aligned(
    dtype: str, lanes: int, factor: int, expected: list[str]
) -> None:
    build = Builder("wide")
    data, output = build.buffer(dtype), build.buffer(dtype, "out")
    at = build.place("cube_pos.x") * factor
    build.store(output, at, build.load(data, at, lanes))
    body = emit(build.finish()).split('extern "C"')[1]
    assert re.findall(r"= (\*\(const \w+\*\)|load_\w+|b0\[)", body) == expected


def test_a_streaming_store_promises_its_alignment() -> None:
    build = Builder("stream")
    output, at = build.buffer("f32", "out"), build.scalar()
    build.store(output, at, build.constant(1.0, "f32", 4), streaming=True)
    assert "*(f32x4*)(b0 + s1) = f32x4{1.0f, 1.0f, 1.0f, 1.0f};" in emit(build.finish())


DIVISORS: tuple[tuple[Callable[..., Value], int], ...] = (
    (lambda at, build: at * 8 + 4, 4),
    (lambda at, build: (at << 3) - 16, 8),
    (lambda at, build: build.op("min", at * 4, at * 6), 2),
    (lambda at, build: at & -8, 8),
    (lambda at, build: (at * 8) % 12, 4),
    (lambda at, build: at * 16 / 8, 1),
    (lambda at, build: -(at * 2), 2),
    (lambda at, build: build.select(at < 3, at * 16, 0), 16),
    (lambda at, build: (at + 3) * at, 1),
    (lambda at, build: build.splat(at * 4, 8) * 2, 8),
)


@pytest.mark.parametrize(("make", "expected"), DIVISORS)
def test_what_divides_an_index(make: Callable[..., Value], expected: int) -> None:
    build = Builder("index")
    value = make(build.place("cube_pos.x"), build)
    indices = Indices()
    for statement in build.finish().body:
        assert isinstance(statement, ir.Let)
        indices.note(statement)
    assert indices.divisor(value.atom) == expected


def test_the_head_says_how_to_launch() -> None:
    texts = [emit(make()) for make in (axpy, block_sum, scratch_return)]
    assert [cuda_compile.shape(text) for text in texts] == [
        cuda_compile.Shape((1, 1, 1), 256, 0, 0),
        cuda_compile.Shape((32, 1, 1), 32, 144, 0),
        cuda_compile.Shape((1, 1, 1), 256, 0, 16000),
    ]
    with pytest.raises(errors.LoweringError, match=r"first line .* got '// nothing'"):
        cuda_compile.shape("// nothing\n")


def test_what_no_block_has_is_refused() -> None:
    build = Builder("large", (32, 1, 1))
    build.shared("f64", 30_000)
    with pytest.raises(errors.LoweringError, match=r"large: .* 232448 bytes; got 240000"):
        emit(build.finish())
    with pytest.raises(errors.LoweringError, match=r"wide: .* 1024 units; got 2048"):
        emit(Builder("wide", (64, 32, 1)).finish())


# NVRTC --------------------------------------------------------------------------------------------

TARGETS = ("sm_80", "sm_90a", "sm_100")


@pytest.fixture
def nvrtc(tmp_path: Path) -> Any:
    """The compiler with a cache of its own."""
    try:
        cuda_compile.version()
    except errors.DeviceError as error:
        pytest.skip(str(error))
    with config.using(cache=str(tmp_path)):
        yield cuda_compile


def library_kernels() -> list[ir.Kernel]:
    """Every kernel that the rows of the operations' tables become on a GPU."""
    features = frozenset(("f16", "bf16"))
    facts = Facts("cuda:0", "cuda", "any", 132, 128, 1 << 17, 1 << 25, 1 << 36, features)
    device: Any = SimpleNamespace(facts=lambda: facts)
    kernels: dict[str, ir.Kernel] = {}
    for path in sorted(Path(__file__).parent.glob("ops_*.py")):
        for row in importlib.import_module(path.stem).ROWS:
            for sample in row.samples:
                jaxpr = make_jaxpr(row.function)(*sample(np.random.default_rng(0))).closed()
                program = lower(jaxpr, device)
                kernels.update(zip(program.keys, program.kernels, strict=True))
    return list(kernels.values())


def test_some_kernels_of_the_library_compile(nvrtc: Any) -> None:
    kernels = library_kernels()
    texts = [("kernel", emit(kernel)) for kernel in kernels[:: len(kernels) // 8]]
    assert all(code.startswith(b"\x7fELF") for code in nvrtc.compile(texts, "sm_90a"))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_all_kernels_of_the_library_compile(nvrtc: Any, target: str) -> None:
    texts = [("kernel", emit(kernel)) for kernel in library_kernels()]
    assert len(nvrtc.compile(texts, target)) > 1000


SAMPLE = ("operations_bf16_1", "operations_i8_1", "casts_f8_e4m3fn", "lines_u8", "atomics_i64",
          "atomics_bool", "atomics_f16", "exchanges_i64_40", "of_planes_f32_72",
          "of_planes_bool_1", "block_sum", "private_3000", "scratch_return")  # fmt: skip


def test_some_operations_compile(nvrtc: Any) -> None:
    texts = [(name, emit(_MAKERS[name](), name)) for name in SAMPLE]
    assert all(code.startswith(b"\x7fELF") for code in nvrtc.compile(texts, "sm_90a"))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_all_operations_compile(nvrtc: Any, target: str) -> None:
    texts = [(name, emit(make(), name)) for name, make in _MAKERS.items()]
    assert len(nvrtc.compile(texts, target)) == len(_MAKERS)


def test_neighbours_move_at_once(nvrtc: Any) -> None:
    text = nvrtc.ptx("kernel", emit(axpy()), "sm_90a")
    assert text.count("ld.global.nc.v4.f32") >= 8 and "ld.global.nc.f32" not in text
    assert "st.global.v4.f32" in text and "fma.rn.f32" in text


def test_nothing_is_contracted_to_fma(nvrtc: Any) -> None:
    build = Builder("apart")
    x, out = build.buffer("f32"), build.buffer("f32", "out")
    value = build.load(x, 0)
    build.store(out, 0, value * value + value)
    text = nvrtc.ptx("kernel", emit(build.finish()), "sm_90a")
    assert re.search(r"mul\.(rn\.)?f32", text) and "fma" not in text


def test_code_is_kept_on_disk(nvrtc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [("kernel", emit(axpy())), ("kernel", emit(search())), ("kernel", emit(axpy()))]
    first = nvrtc.compile(sources, "sm_90a")
    assert first[0] == first[2] != first[1]
    assert len(list(Path(cache.folder()).rglob("*.bin"))) == 2
    monkeypatch.setattr(cuda_compile, "_compile", None)  # is not called again
    assert nvrtc.compile(sources, "sm_90a") == first


def test_a_fault_shows_the_log_and_the_line(nvrtc: Any) -> None:
    text = emit(axpy()).replace("fmaf(s1", "fmag(s1", 1)
    with pytest.raises(errors.LoweringError) as caught:
        nvrtc.compile([("kernel", text)], "sm_90a")
    message = str(caught.value)
    assert 'identifier "fmag" is undefined' in message
    assert re.search(r"\n +\d+ \| +const f32 v\d+_0 = fmag\(s1", message)
    with pytest.raises(errors.LoweringError, match="must define a function of that name"):
        nvrtc.compile([("other", emit(axpy()))], "sm_90a")


@pytest.mark.parametrize("target", ("sm_75", "gfx90a"))
def test_targets_that_are_not_served(nvrtc: Any, target: str) -> None:
    with pytest.raises(errors.DeviceError, match=rf"from sm_80 on.*got '{target}'"):
        nvrtc.compile([], target)


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compile, "nvrtc", None)
    with pytest.raises(errors.DeviceError, match=r"not installed.*pip install 'xcube\[cuda\]'"):
        cuda_compile.version()

    def version() -> None:
        raise RuntimeError("no libnvrtc.so")

    monkeypatch.setattr(cuda_compile, "nvrtc", SimpleNamespace(nvrtcVersion=version))
    with pytest.raises(errors.DeviceError, match=r"no libnvrtc.so. Install.*nvidia-cuda-nvrtc"):
        cuda_compile.version()
