"""The LLVM emitter: every operation, dtype and number of lanes against the meaning that the
interpreter gives it, and against values stated here; memory, control flow, golden texts, and
machine code for other processors."""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest

from xcube import errors
from xcube.lowering.cube import ir, matrix
from xcube.lowering.cube.arithmetic import NUMPY, evaluate
from xcube.lowering.cube.build import Builder
from xcube.lowering.cube.interpreter import interpret
from xcube.lowering.emit.llvm import Target, emit

Array = np.ndarray[Any, Any]
LANES = (1, 4, 16)
MEMORY_DTYPES = tuple(dtype for dtype in ir.DTYPES if dtype != "index")
PASSES = ("sroa",)


# compiling and running ----------------------------------------------------------------------------


@functools.cache
def machine(triple: str = "", cpu: str = "", features: str = "") -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    if triple:
        target = llvm.Target.from_triple(triple)
        return target.create_target_machine(cpu=cpu, features=features, opt=2)
    target = llvm.Target.from_triple(llvm.get_process_triple())
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(cpu=cpu, features=features, opt=2, jit=True)


def optimized(text: str, target: Any) -> Any:
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = target.triple, str(target.target_data)
    module.verify()
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(0))
    passes = llvm.create_new_module_pass_manager()
    for name in PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, builder)
    return module


@functools.cache
def linker() -> Any:
    return llvm.create_lljit_compiler(machine())


def compiled(text: str, name: str = "kernel") -> tuple[Any, Any]:
    """The native function and what keeps it alive."""
    data = machine().emit_object(optimized(text, machine()))
    library = llvm.JITLibraryBuilder().add_object_img(data).export_symbol(name)
    loaded = library.add_current_process().link(linker(), f"library{next(_COUNT)}")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    return ctypes.CFUNCTYPE(None, pointer, pointer, number, number)(loaded[name]), loaded


_COUNT = itertools.count()


def run(
    kernel: ir.Kernel,
    buffers: Sequence[Array],
    scalars: Sequence[int | float | bool] = (),
    cubes: int | tuple[int, int] = 1,
    target: Target | None = None,
) -> None:
    """Launch a kernel on the host, in place."""
    begin, end = (0, cubes) if isinstance(cubes, int) else cubes
    function, _library = compiled(emit(kernel, target))
    pointers = (ctypes.c_void_p * len(buffers))(*[array.ctypes.data for array in buffers])
    cells = np.zeros(len(scalars) + 1, np.int64)
    for place, (name, value) in enumerate(zip(kernel.scalars, scalars, strict=True)):
        bits = np.array([value]).astype(NUMPY[name.type.dtype]).view(np.uint8)
        cells[place : place + 1].view(np.uint8)[: len(bits)] = bits
    cells[-1] = end
    function(ctypes.addressof(pointers), cells.ctypes.data, begin, end)


# samples ------------------------------------------------------------------------------------------


def whole_samples(dtype: str) -> Array:
    kind, bits = NUMPY[dtype], ir.BITS[dtype]
    if dtype == "bool":
        return np.array([False, True])
    bounds = np.iinfo(kind)
    edges = [0, 1, 2, 3, 7, 10, bits - 1, bits, bits + 1, 100, bounds.max, bounds.max - 1]
    edges += [bounds.min, bounds.min + 1, bounds.max // 2, bounds.max // 3]
    edges += [-1, -2, -3, -7, -100] if bounds.min < 0 else [bounds.max - 100]
    random = np.random.default_rng(bits).integers(bounds.min, bounds.max, 11, kind, True)
    return np.concatenate([np.array(edges, kind), random])


def real_samples(dtype: str) -> Array:
    kind = NUMPY[dtype]
    if ir.BITS[dtype] == 8:
        return np.arange(256, dtype=np.uint8).view(kind)[::7]
    bounds = ml_dtypes.finfo(kind)
    sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.25, 7.0, 100.7, 1e5, np.inf, float(bounds.max)]
    sizes += [float(bounds.smallest_subnormal), 3 * float(bounds.smallest_subnormal)]
    sizes += [float(bounds.tiny), float(bounds.tiny) * 1.5]
    random = np.random.default_rng(1)
    widest = min(30, int(np.log2(float(bounds.max))) - 1)
    sizes += list(np.ldexp(random.uniform(1, 2, 8), random.integers(-widest, widest, 8)))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array([*sizes, *(-size for size in sizes), np.nan]).astype(kind)


def samples(dtype: str) -> Array:
    return (real_samples if dtype in ir.FLOATS else whole_samples)(dtype)


def arguments(dtype: str, count: int) -> list[Array]:
    """All pairs (or triples) of samples, as many as fill lines of 16."""
    values = samples(dtype)[:: 2 if count == 3 else 1]
    columns = [np.ravel(axis) for axis in np.meshgrid(*[values] * count)]
    size = -(-len(columns[0]) // 16) * 16
    return [np.resize(column, size) for column in columns]


def assert_same(got: Array, expected: Array, what: str, ulps: int = 0) -> None:
    """Equal bits, any NaN for a NaN; `ulps` allows a distance in units of the last place."""
    if expected.dtype.kind in "biu":
        wrong = got != expected
    else:
        with np.errstate(invalid="ignore"):  # signalling NaNs among all bit patterns
            wide_got, wide = got.astype(np.float64), expected.astype(np.float64)
        both_nan = np.isnan(wide_got) & np.isnan(wide)
        same = (wide_got == wide) & (np.signbit(wide_got) == np.signbit(wide))
        wrong = ~(both_nan | same)
        if ulps:
            with np.errstate(all="ignore"):
                wrong &= ~(np.abs(wide_got - wide) <= ulps * np.spacing(np.abs(wide)))
    places = np.flatnonzero(wrong)[:5]
    assert not len(places), f"{what}: at {places} got {got[places]}, expected {expected[places]}"


# operations ---------------------------------------------------------------------------------------

ELEMENTWISE = tuple(
    op
    for op, row in ir.OPS.items()
    if row.result in ("same", "bool") and op not in (*ir.LIBRARY, "exp2_approx") and row.arity
)


def sweep(dtype: str, lanes: int, ops: Sequence[str], arity: int) -> ir.Kernel:
    """All operations on whole buffers, one result buffer for each."""
    build = Builder("sweep")
    memory = "i64" if dtype == "index" else dtype
    inputs = [build.buffer(memory) for _ in range(arity)]
    results = {op: "bool" if ir.OPS[op].result == "bool" else memory for op in ops}
    outputs = [build.buffer(result, "out") for result in results.values()]
    size = build.scalar()
    for at in build.range(0, size, lanes):
        values = [build.cast(build.load(buffer, at, lanes), dtype) for buffer in inputs]
        for op, output in zip(ops, outputs, strict=True):
            value = build.op(op, *values[: ir.OPS[op].arity])
            build.store(output, at, build.cast(value, output.dtype))
    return build.finish()


def compare_ops(
    dtype: str, lanes: int, ops: Sequence[str], arity: int, target: Target | None = None
) -> None:
    inputs = arguments(dtype, arity)
    if dtype == "index":  # whose divisor is never 0
        inputs[1] = np.where(inputs[1] == 0, 3, inputs[1])
    kernel = sweep(dtype, lanes, ops, arity)
    kinds = [np.bool_ if ir.OPS[op].result == "bool" else NUMPY[dtype] for op in ops]
    outputs = [np.zeros(len(inputs[0]), kind) for kind in kinds]
    run(kernel, [*inputs, *outputs], [len(inputs[0])], target=target)
    for op, output in zip(ops, outputs, strict=True):
        with np.errstate(all="ignore"):
            expected = evaluate(op, inputs[: ir.OPS[op].arity], ir.Type(dtype, len(inputs[0])))
        if op in ("min", "max"):  # which zero is not stated
            output, expected = output + output.dtype.type(0), expected + output.dtype.type(0)
        # CPython has its own lgamma; NumPy's other functions are the C library's or as close
        ulps = 100 if op == "lgamma" else 2 if op in ir.LIBRARY else 0
        assert_same(output, expected, f"{op} {dtype} x{lanes}", ulps)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", ir.DTYPES)
def test_operations(dtype: str, lanes: int) -> None:
    fits = [op for op in ELEMENTWISE if dtype in ir.OPS[op].dtypes]
    compare_ops(dtype, lanes, [op for op in fits if ir.OPS[op].arity < 3], 2)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", ir.FLOATS)
def test_fma_rounds_once(dtype: str, lanes: int) -> None:
    compare_ops(dtype, lanes, ["fma"], 3)


@pytest.mark.parametrize("lanes", (1, 4))
def test_library_functions(lanes: int) -> None:
    compare_ops("f64", lanes, ir.LIBRARY, 2)


@pytest.mark.skipif(
    not llvm.get_host_cpu_features().get("avx512fp16"), reason="this processor lacks f16 arithmetic"
)
@pytest.mark.parametrize("lanes", LANES)
def test_native_half(lanes: int) -> None:
    fits = [op for op in ELEMENTWISE if "f16" in ir.OPS[op].dtypes and ir.OPS[op].arity < 3]
    native = Target(native_half=True)
    compare_ops("f16", lanes, [op for op in fits if op != "rem"], 2, native)
    compare_ops("f16", lanes, ["fma"], 3, native)


@pytest.mark.parametrize("lanes", (1, 16))
@pytest.mark.parametrize("dtype", (*ir.INTEGERS, "index"))
def test_known_second_operand(dtype: str, lanes: int) -> None:
    memory = "i64" if dtype == "index" else dtype
    x = np.resize(whole_samples(dtype), 48)
    values = [int(value) for value in whole_samples(dtype) if value or dtype != "index"]
    cases = [(op, value) for op in ("div", "rem", "shl", "shr") for value in values[:24]]
    build = Builder("known")
    source = build.buffer(memory)
    outputs = [build.buffer(memory, "out") for _ in cases]
    for at in build.range(0, 48, lanes):
        value = build.cast(build.load(source, at, lanes), dtype)
        for (op, known), output in zip(cases, outputs, strict=True):
            build.store(output, at, build.cast(build.op(op, value, known), memory))
    results = [np.zeros(48, NUMPY[dtype]) for _ in cases]
    run(build.finish(), [x, *results])
    for (op, known), result in zip(cases, results, strict=True):
        expected = evaluate(op, [x, np.full(48, known, x.dtype)], ir.Type(dtype, 48))
        assert_same(result, expected, f"{dtype} {op} {known}")


def test_stated_results() -> None:
    """A few rows of the table's notes, spelled out."""
    low, most = -(2**31), 2**31 - 1
    table: list[tuple[str, str, list[Any], list[Any], list[Any]]] = [
        ("div", "i32", [7, -7, 5, low], [2, 2, 0, -1], [3, -3, -1, low]),
        ("rem", "i32", [7, -7, 5, low], [2, 2, 0, -1], [1, -1, 5, 0]),
        ("div", "u8", [200, 9, 255, 1], [7, 0, 255, 2], [28, 255, 1, 0]),
        ("shl", "i32", [1, 1, 1, 3], [31, 32, -1, 1], [low, 0, 0, 6]),
        ("shr", "i32", [-8, -8, most, 8], [1, 40, 40, 32], [-4, -1, 0, 0]),
        ("mulhi", "i32", [low, most, -1, 65536], [low, most, 1, 65536], [2**30, 2**30 - 1, -1, 1]),
        ("min", "f32", [np.nan, 1, 2, -np.inf], [1, np.nan, 3, 0], [np.nan, np.nan, 2, -np.inf]),
        ("max", "f32", [np.nan, 1, 2, -np.inf], [1, np.nan, 3, 0], [np.nan, np.nan, 3, 0]),
    ]
    for op, dtype, x, y, expected in table:
        arrays = [np.array(values, NUMPY[dtype]) for values in (x, y)]
        for lanes in (1, 4):
            result = np.zeros(4, NUMPY[dtype])
            kernel = sweep(dtype, lanes, [op], 2)
            run(kernel, [*arrays, result], [4])
            assert_same(result, np.array(expected, NUMPY[dtype]), f"{op} {dtype} x{lanes}")


# casts and constants ------------------------------------------------------------------------------


def cast_samples(dtype: str) -> Array:
    """Also the neighbourhood of every bound that a cast can meet, in either direction."""
    if dtype not in ir.FLOATS:
        near = [sign * (2**k + d) for k in range(64) for d in (-1, 0, 1) for sign in (1, -1)]
        near += [
            sign * (2**k + 2**j + 1) for k in (40, 55, 62) for j in (30, 38) for sign in (1, -1)
        ]
        bounds = (
            (0, 1) if dtype == "bool" else (np.iinfo(NUMPY[dtype]).min, np.iinfo(NUMPY[dtype]).max)
        )
        kept = [value for value in near if bounds[0] <= value <= bounds[1]]
        return np.concatenate([np.array(kept, NUMPY[dtype]), samples(dtype)])
    if ir.BITS[dtype] == 8:
        return np.arange(256, dtype=np.uint8).view(NUMPY[dtype])
    halves = np.arange(0, 2**16, 7, dtype=np.uint16)
    with np.errstate(all="ignore"):
        parts = [halves.view(kind).astype(np.float64) for kind in (np.float16, ml_dtypes.bfloat16)]
        bounds = np.ldexp(1.0, np.array([7, 8, 15, 16, 31, 32, 63, 64]))
        parts += [bounds, -bounds, bounds - 0.5, -bounds - 0.5, bounds * (1 - 2.0**-24)]
        minifloats = np.concatenate([
            np.arange(256, dtype=np.uint8).view(NUMPY[small]).astype(np.float64)
            for small in ("f8_e4m3fn", "f8_e5m2")
        ])  # fmt: skip
        middles = (minifloats[1:] + minifloats[:-1]) / 2  # ties, and just beside them
        parts += [middles, middles * (1 + 2.0**-30), middles * (1 - 2.0**-30)]
        parts += [parts[0] * (1 + 2.0**-12) * (1 - 2.0**-40), samples("f64"), samples("f32")]
        return np.concatenate([part.astype(NUMPY[dtype]) for part in parts])


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("source", MEMORY_DTYPES)
def test_casts(source: str, lanes: int) -> None:
    x = cast_samples(source)
    x = np.resize(x, -(-len(x) // 16) * 16)
    build = Builder("casts")
    data = build.buffer(source)
    outputs = [build.buffer(target, "out") for target in MEMORY_DTYPES]
    size = build.scalar()
    for at in build.range(0, size, lanes):
        for output in outputs:
            build.store(output, at, build.cast(build.load(data, at, lanes), output.dtype))
    results = [np.zeros(len(x), NUMPY[target]) for target in MEMORY_DTYPES]
    run(build.finish(), [x, *results], [len(x)])
    for target, result in zip(MEMORY_DTYPES, results, strict=True):
        with np.errstate(all="ignore"):
            expected = evaluate("cast", [x], ir.Type(target, len(x)))
        assert_same(result, expected, f"{source} x{lanes} to {target}")


def test_casts_as_ml_dtypes_has_them() -> None:
    x = cast_samples("f32")[: 16 * (len(cast_samples("f32")) // 16)]
    for dtype in ("f16", "bf16", "f8_e4m3fn", "f8_e5m2"):
        build = Builder("narrow")
        source, output, size = build.buffer("f32"), build.buffer(dtype, "out"), build.scalar()
        for at in build.range(0, size, 16):
            build.store(output, at, build.load(source, at, 16).cast(dtype))
        result = np.zeros(len(x), NUMPY[dtype])
        run(build.finish(), [x, result], [len(x)])
        with np.errstate(all="ignore"):
            assert_same(result, x.astype(NUMPY[dtype]), dtype)


@pytest.mark.parametrize("dtype", MEMORY_DTYPES)
def test_constants(dtype: str) -> None:
    values = samples(dtype)
    build = Builder("constants")
    output = build.buffer(dtype, "out")
    for at, value in enumerate(values.tolist()):
        number = float(value) if dtype in ir.FLOATS else value
        build.store(output, at, build.constant(number, dtype))
        build.store(output, len(values) + 4 * at, build.constant(number, dtype, 4))
    result = np.zeros(5 * len(values), NUMPY[dtype])
    run(build.finish(), [result])
    assert_same(result, np.concatenate([values, np.repeat(values, 4)]), dtype)


@pytest.mark.parametrize("dtype", ("f32", "f16", "bf16", "f8_e4m3fn", "f8_e5m2"))
def test_constants_round_to_nearest_even(dtype: str) -> None:
    values = cast_samples("f64")[::29].tolist()
    build = Builder("constants")
    output = build.buffer(dtype, "out")
    for at, value in enumerate(values):
        build.store(output, at, build.constant(value, dtype))
    result = np.zeros(len(values), NUMPY[dtype])
    run(build.finish(), [result])
    with np.errstate(all="ignore"):
        assert_same(
            result, evaluate("cast", [np.array(values)], ir.Type(dtype, len(values))), dtype
        )


@pytest.mark.parametrize(
    ("source", "target"),
    (
        *(("f32", "i32"), ("u64", "f64"), ("bf16", "i16"), ("f8_e5m2", "u8")),
        *(("bf16", "u32"), ("u32", "f16"), ("u8", "f32"), ("f64", "u16"), ("i16", "i64")),
    ),
)
def test_bitcast(source: str, target: str) -> None:
    x = np.resize(samples(source), 16)
    build = Builder("bits")
    data, output = build.buffer(source), build.buffer(target, "out")
    build.store(output, 0, build.load(data, 0, 16).bitcast(target))
    result = np.zeros(x.nbytes // NUMPY[target].itemsize, NUMPY[target])
    run(build.finish(), [x, result])
    assert result.tobytes() == x.tobytes()


# lines --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 7, 16])
@pytest.mark.parametrize("dtype", ["i16", "i8", "f16", "bf16", "f32", "bool"])
def test_a_known_mask_stores_no_more_than_its_lanes(dtype: str, count: int) -> None:
    x = np.arange(1, 17, dtype=np.int32)
    build = Builder("masked")
    data, output = build.buffer("i32"), build.buffer(dtype, "inout")
    value = build.load(data, 0, 16).cast(dtype)
    build.store(output, 1, value, build.lane(16) < count)
    result = np.ones(20, NUMPY[dtype])
    run(build.finish(), [x, result])
    expected = np.ones(20, NUMPY[dtype])
    expected[1 : 1 + count] = x[:count].astype(NUMPY[dtype])
    assert_same(result, expected, dtype)


def test_exp2_to_the_last_places() -> None:
    x = np.linspace(-126, 127.9, 4001, dtype=np.float32)
    build = Builder("exp2")
    data, output = build.buffer("f32"), build.buffer("f32", "out")
    for at in build.range(0, build.scalar(), 1):
        build.store(output, at, build.op("exp2_approx", build.load(data, at)))
    result = np.zeros_like(x)
    run(build.finish(), [x, result], [len(x)])
    assert_same(result, np.exp2(x.astype(np.float64)).astype(np.float32), "exp2", 2)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 3), (4, 2), (8, 8), (3, 1, 4)])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "bool", "i64"])
def test_lines_are_joined(dtype: str, sizes: tuple[int, ...]) -> None:
    x = np.resize(samples(dtype), sum(sizes))
    build = Builder("join")
    data, output = build.buffer(dtype), build.buffer(dtype, "out")
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    parts = [build.load(data, at, size) for at, size in zip(starts, sizes, strict=True)]
    build.store(output, 0, build.join(parts))
    result = np.zeros_like(x)
    run(build.finish(), [x, result])
    assert_same(result, x, dtype)


@pytest.mark.parametrize("lanes", (2, 4, 16))
@pytest.mark.parametrize("dtype", MEMORY_DTYPES)
def test_moves_between_lanes(dtype: str, lanes: int) -> None:
    x = np.resize(samples(dtype), 2 * lanes)
    build = Builder("lanes")
    data, output = build.buffer(dtype), build.buffer(dtype, "out")
    low, high = build.load(data, 0, lanes), build.load(data, lanes, lanes)
    build.store(output, 0, build.shuffle(low, range(lanes)[::-1]))
    build.store(output, lanes, build.splat(build.extract(high, lanes - 1), lanes))
    build.store(output, 2 * lanes, build.select(build.lane(lanes) < lanes // 2, low, high))
    build.store(output, 3 * lanes, build.select(build.extract(low, 0).eq(low), low, high))
    build.store(output, 4 * lanes, build.shuffle(low, [1] * lanes * 2))
    build.store(output, 6 * lanes, build.shuffle(low, [1]))
    result = np.zeros(6 * lanes + 1, NUMPY[dtype])
    run(build.finish(), [x, result])
    first, second = x[:lanes], x[lanes:]
    mixed = np.where(np.arange(lanes) < lanes // 2, first, second)
    equal = np.where(first[0] == first, first, second)
    parts = [
        first[::-1],
        np.repeat(second[-1], lanes),
        mixed,
        equal,
        np.repeat(first[1], 2 * lanes),
    ]
    assert_same(result, np.concatenate([*parts, first[1:2]]), dtype)


@pytest.mark.parametrize("lanes", (1, 4, 16))
@pytest.mark.parametrize("dtype", MEMORY_DTYPES)
def test_reductions(dtype: str, lanes: int) -> None:
    x = np.resize(samples(dtype), 64)
    ops = ["add", "mul", "min", "max", "and", "or", "xor"]
    fits = [op for op in ops if dtype in ir.OPS[f"reduce_{op}"].dtypes]
    build = Builder("reductions")
    data = build.buffer(dtype)
    outputs = [build.buffer(dtype, "out") for _ in fits]
    for row in build.range(0, 64 // lanes):
        for op, output in zip(fits, outputs, strict=True):
            build.store(output, row, build.reduce(op, build.load(data, row * lanes, lanes)))
    results = [np.zeros(64 // lanes, NUMPY[dtype]) for _ in fits]
    run(build.finish(), [x, *results])
    for op, result in zip(fits, results, strict=True):
        with np.errstate(all="ignore"):
            rows = [evaluate(f"reduce_{op}", [row], ir.Type(dtype)) for row in x.reshape(-1, lanes)]
        expected = np.concatenate(rows)
        if op in ("min", "max"):
            result, expected = result + result.dtype.type(0), expected + result.dtype.type(0)
        assert_same(result, expected, f"reduce_{op} {dtype} x{lanes}")


def test_reduce_add_is_pairwise() -> None:
    x = np.array([1e8, 1.0, -1e8, 1.0], np.float32)  # (1e8 - 1e8) + (1 + 1), not left to right
    build = Builder("pairs")
    data, output = build.buffer("f32"), build.buffer("f32", "out")
    build.store(output, 0, build.reduce("add", build.load(data, 0, 4)))
    result = np.zeros(1, np.float32)
    run(build.finish(), [x, result])
    assert result[0] == 2.0


# memory -------------------------------------------------------------------------------------------


def agree(kernel: ir.Kernel, buffers: Sequence[Array], scalars: Sequence[Any] = (), cubes: int = 1):
    """Run on the host and in the interpreter; the results, which must be alike."""
    expected = [array.copy() for array in buffers]
    interpret(kernel, cubes, expected, scalars)
    run(kernel, buffers, scalars, cubes)
    for got, wanted in zip(buffers, expected, strict=True):
        assert_same(got, wanted, kernel.name)
    return buffers


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", MEMORY_DTYPES)
def test_masked_memory(dtype: str, lanes: int) -> None:
    x = np.resize(samples(dtype), 48)
    build = Builder("masked")
    data, flags, output = build.buffer(dtype), build.buffer("bool"), build.buffer(dtype, "inout")
    for at in build.range(0, 48, lanes):
        mask = build.load(flags, at, lanes)
        value = build.load(data, at, lanes, mask)
        build.store(output, at, value)
        build.store(output, at + 48, value, mask)
    keep = np.random.default_rng(0).integers(0, 2, 48).astype(np.bool_)
    before = np.resize(samples(dtype)[::-1], 96)
    _, _, result = agree(build.finish(), [x, keep, before.copy()])
    zero = np.zeros((), x.dtype)
    expected = np.concatenate([np.where(keep, x, zero), np.where(keep, x, before[48:])])
    assert_same(result, expected, f"masked {dtype} x{lanes}")


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", MEMORY_DTYPES)
def test_gather_and_scatter(dtype: str, lanes: int) -> None:
    x = np.resize(samples(dtype), 48)
    random = np.random.default_rng(1)
    build = Builder("gather")
    data, order, flags = build.buffer(dtype), build.buffer("i32"), build.buffer("bool")
    plain, masked = build.buffer(dtype, "inout"), build.buffer(dtype, "inout")
    for at in build.range(0, 48, lanes):
        places = build.load(order, at, lanes).cast("index")
        mask = build.load(flags, at, lanes)
        build.store(plain, at, build.load(data, places))
        build.store(plain, places + 48, build.load(data, at, lanes))
        build.store(masked, at, build.load(data, places, mask=mask))
        build.store(masked, places + 48, build.load(data, at, lanes), mask)
    places = random.permutation(48).astype(np.int32)
    keep = random.integers(0, 2, 48).astype(np.bool_)
    zeros = np.zeros(96, x.dtype)
    buffers = [x, places, keep, zeros.copy(), zeros.copy()]
    _, _, _, plain_result, masked_result = agree(build.finish(), buffers)
    expected = zeros.copy()
    expected[:48], expected[48 + places] = x[places], x
    assert_same(plain_result, expected, "plain")
    expected = zeros.copy()
    expected[:48][keep], expected[48 + places[keep]] = x[places][keep], x[keep]
    assert_same(masked_result, expected, "masked")


def test_masked_off_memory_is_not_touched() -> None:
    """A line at the end of a page whose next page is not there."""
    page = mmap.PAGESIZE
    room = mmap.mmap(-1, 2 * page)
    array = np.frombuffer(room, np.float32)
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mprotect"):
        pytest.skip("this system has no mprotect")
    protect = ctypes.c_void_p(array.ctypes.data + page)
    assert libc.mprotect(protect, ctypes.c_size_t(page), 0) == 0
    build = Builder("edge")
    data, output = build.buffer("f32", "inout"), build.buffer("f32", "out")
    mask = build.lane(16) < 3
    build.store(output, 0, build.load(data, 0, 16, mask))
    build.store(data, 0, build.constant(7.0, "f32", 16), mask)
    build.store(
        output, 16, build.load(data, build.lane(16) * 2 - 4, mask=mask & (build.lane(16) > 1))
    )
    last = array[page // 4 - 3 : page // 4]
    last[:] = [1, 2, 3]
    result = np.zeros(32, np.float32)
    run(build.finish(), [last, result])
    assert last.tolist() == [7, 7, 7]
    assert result.tolist() == [1, 2, 3] + [0] * 15 + [7] + [0] * 13
    assert libc.mprotect(protect, ctypes.c_size_t(page), 3) == 0


def test_lines_of_indices_that_are_neighbours_become_plain_accesses() -> None:
    build = Builder("neighbours")
    data, output, offset = build.buffer("f32"), build.buffer("f32", "out"), build.scalar()
    line = build.splat(offset, 16) + build.lane(16)
    build.store(output, line, build.load(data, line))
    build.store(output, build.lane(16) + 32, build.load(data, build.lane(16)))
    build.store(output, 48, build.load(data, build.splat(offset, 16)))
    kernel = build.finish()
    assert "gather" not in emit(kernel) and "scatter" not in emit(kernel)
    x, result = np.arange(32, dtype=np.float32), np.zeros(64, np.float32)
    agree(kernel, [x, result], [5])
    assert result[48:].tolist() == [5] * 16 and result[5:21].tolist() == x[5:21].tolist()


@pytest.mark.parametrize("dtype", ("f32", "f64", "bf16", "i8", "bool"))
def test_streaming_stores(dtype: str) -> None:
    room = np.zeros(64 * 9, np.uint8)
    start = -room.ctypes.data % 64
    aligned = room[start : start + 64 * 8].view(NUMPY[dtype])
    x = np.resize(samples(dtype), len(aligned))
    build = Builder("stream")
    data, output, size = build.buffer(dtype), build.buffer(dtype, "out"), build.scalar()
    for at in build.range(0, size, 16):
        build.store(output, at, build.load(data, at, 16), streaming=True)
    kernel = build.finish()
    assert "!nontemporal" in emit(kernel) and "fence" in emit(kernel)
    run(kernel, [x, aligned], [len(aligned)])
    assert_same(aligned, x, dtype)


def test_shared_and_local_arrays() -> None:
    build = Builder("arrays")
    data, output = build.buffer("f32"), build.buffer("f32", "out")
    at = build.place("cube_pos.x") * 16
    shared, local, flags = build.shared("f32", 16), build.local("f32", 4), build.local("bool", 16)
    build.store(shared, 0, build.load(data, at, 16))
    build.store(flags, 0, build.load(shared, 0, 16) > 0.0)
    build.sync()
    build.store(local, 0, build.load(shared, 4, 4))
    total = build.variable(build.constant(0.0, "f32"))
    for k in build.range(0, 4):
        total.set(total.get() + build.load(local, k))
    build.store(output, at, build.select(build.load(flags, 0, 16), total.get(), 0.0))
    x = np.random.default_rng(2).normal(size=48).astype(np.float32)
    agree(build.finish(), [x, np.zeros(48, np.float32)], cubes=3)


@pytest.mark.parametrize("dtype", ("i32", "u64", "i8", "f32", "f64", "bf16", "bool"))
def test_atomics(dtype: str) -> None:
    bits = ["and", "or", "xor", "exchange"]
    ops = bits if dtype == "bool" else ["add", "min", "max", "exchange"]
    ops = ops if dtype in (*ir.FLOATS, "bool") else [*ops, *bits[:3]]
    x = np.resize(samples(dtype), 24)
    build = Builder("atomics")
    data, old, lines = build.buffer(dtype), build.buffer(dtype, "out"), build.buffer(dtype, "inout")
    cells = [build.buffer(dtype, "inout") for _ in ops]
    at = build.place("cube_pos.x")
    for row, (op, cell) in enumerate(zip(ops, cells, strict=True)):
        before = build.atomic(op, cell, at % 3, build.load(data, at))
        build.store(old, at + row * 24, before)
    build.atomic("exchange", lines, 0, build.load(data, 0, 4))
    reverse = build.constant(3, "index", 4) - build.lane(4)
    build.store(lines, 4, build.atomic("exchange", lines, reverse, build.load(data, 4, 4)))
    buffers = [x, np.zeros(24 * len(ops), x.dtype), np.zeros(8, x.dtype)]
    buffers += [np.zeros(3, x.dtype) for _ in ops]
    kernel = build.finish()
    for cube in range(24):  # one by one, so that both take the cubes in one order
        run(kernel, buffers, cubes=(cube, cube + 1))
    expected = [np.zeros_like(buffer) for buffer in buffers[3:]]
    for op, cell in zip(ops, expected, strict=True):
        for k in range(24):
            value = x[k : k + 1]
            with np.errstate(all="ignore"):
                new = (
                    value
                    if op == "exchange"
                    else evaluate(op, [cell[k % 3 : k % 3 + 1], value], ir.Type(dtype))
                )
            cell[k % 3] = new[0]
    for op, got, wanted in zip(ops, buffers[3:], expected, strict=True):
        assert_same(got, wanted, f"atomic {op} {dtype}")
    assert_same(buffers[2], np.concatenate([x[4:8][::-1], x[:4][::-1]]), "lines")


ATOMIC_DTYPES = ("i32", "u32", "i64", "u64", "i8", "u16", "f32", "f64", "f16", "bf16", "bool")


def exchanges(dtype: str, units: int) -> ir.Kernel:
    """Atomic loads, stores, subtractions and compared exchanges, each unit in its own cells; in
    global memory and in a shared array."""
    build = Builder("exchanges", (units, 1, 1))
    data, out = build.buffer(dtype), build.buffer(dtype, "out")
    cells, shared = build.buffer(dtype, "inout"), build.shared(dtype, 3 * units)
    unit, count = build.place("unit_pos.x"), 0
    for cell in range(3):
        build.store(shared, unit * 3 + cell, build.load(data, unit))
    for turn in range(3):
        value = build.load(data, unit + turn * units)
        for memory in (cells, shared):
            seen = build.atomic("load", memory, unit * 3 + turn)
            found = [seen]
            expected = seen if turn else value
            found.append(build.compare_exchange(memory, unit * 3 + turn, expected, value))
            if dtype != "bool":
                found.append(build.atomic("sub", memory, unit * 3 + turn, value))
                found.append(build.atomic("sub", memory, unit * 3 + turn, seen))
            found.append(build.atomic("store", memory, unit * 3 + (turn + 1) % 3, value))
            found.append(build.atomic("load", memory, unit * 3 + turn))
            for old in found:
                build.store(out, unit + count * units, old)
                count += 1
    return build.finish()


def exchanged(dtype: str, units: int) -> list[Array]:
    """Buffers for `exchanges`; no number is 0 or below the normal ones."""
    values = samples(dtype)
    if dtype in ir.FLOATS:
        tiny = float(ml_dtypes.finfo(NUMPY[dtype]).tiny)
        values = values[np.abs(values.astype(np.float64)) >= tiny]
    x = np.resize(values, 3 * units)
    return [x, np.zeros(36 * units, x.dtype), np.resize(x[::-1], 3 * units)]


@pytest.mark.parametrize("units", [1, 40])
@pytest.mark.parametrize("dtype", ATOMIC_DTYPES)
def test_exchanges(dtype: str, units: int) -> None:
    agree(exchanges(dtype, units), exchanged(dtype, units))


def test_atomics_from_threads_lose_nothing() -> None:
    build = Builder("count")
    floats, halves = build.buffer("f32", "inout"), build.buffer("f16", "inout")
    for _ in build.range(0, 1000):
        build.atomic("add", floats, 0, build.constant(1.0, "f32"))
    build.atomic("max", halves, 0, build.place("cube_pos.x").cast("f16"))
    function, _library = compiled(emit(build.finish()))
    total, most = np.zeros(1, np.float32), np.zeros(1, np.float16)
    pointers = (ctypes.c_void_p * 2)(total.ctypes.data, most.ctypes.data)
    threads = [
        threading.Thread(
            target=function, args=(ctypes.addressof(pointers), None, 50 * k, 50 * k + 50)
        )
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total[0] == 200_000 and most[0] == 199


# launches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", MEMORY_DTYPES)
def test_scalars_come_from_cells(dtype: str) -> None:
    values = samples(dtype)[:5]
    build = Builder("scalars")
    output = build.buffer(dtype, "out")
    for at in range(len(values)):
        build.store(output, at, build.scalar(dtype))
    result = np.zeros(len(values), values.dtype)
    run(build.finish(), [result], values.tolist())
    assert_same(result, values, dtype)


def test_places() -> None:
    build = Builder("places")
    output = build.buffer("i64", "out")
    at = build.place("cube_pos.x")
    for row, place in enumerate(ir.PLACES):
        build.store(output, at * 12 + row, build.place(place).cast("i64"))
    (result,) = agree(build.finish(), [np.full(36, -7, np.int64)], cubes=3)
    assert result[24:].tolist() == [2, 0, 0, 3, 1, 1, 0, 0, 0, 1, 1, 1]


def test_only_the_range_of_cubes_runs() -> None:
    build = Builder("range")
    output = build.buffer("i32", "inout")
    build.store(output, build.place("cube_pos.x"), build.constant(1, "i32"))
    kernel = build.finish()
    for begin, end in ((3, 6), (0, 0), (5, 2)):
        result = np.zeros(8, np.int32)
        run(kernel, [result], cubes=(begin, end))
        assert np.flatnonzero(result).tolist() == list(range(begin, end))


def test_inout_buffers_may_be_the_same_memory() -> None:
    build = Builder("same")
    x, y = build.buffer("i32", "inout"), build.buffer("i32", "inout")
    build.store(x, 0, build.constant(5, "i32"))
    build.store(y, 0, build.constant(6, "i32"))
    build.store(x, 1, build.load(x, 0))
    memory = np.zeros(2, np.int32)
    run(build.finish(), [memory, memory])
    assert memory.tolist() == [6, 6]


# control flow -------------------------------------------------------------------------------------


def test_counted_loops() -> None:
    build = Builder("loops")
    output, stop, step = build.buffer("i64", "out"), build.scalar(), build.scalar()
    count = build.variable(build.constant(0, "i64"))
    for i in build.range(-3, stop, step):
        for j in build.range(i, 4, 2):
            count.set(count.get() * 7 + (i * 3 + j).cast("i64"))
        for _ in build.range(4, 4):
            count.set(0)
    build.store(output, 0, count.get())
    kernel = build.finish()
    for stop_value, step_value in ((-3, 1), (-4, 2), (6, 1), (6, 4)):
        agree(kernel, [np.zeros(1, np.int64)], [stop_value, step_value])


def statement_kernel(body: tuple[ir.Stmt, ...]) -> ir.Kernel:
    """A kernel of hand-written statements: buffer 0 collects, cube_pos.x is name 0."""
    place = ir.Let(_AT, "cube_pos.x", ())
    return ir.Kernel("hand", (_LOG,), (), (place, *body))


_LOG = ir.Buffer(0, "i64", "global", "inout")
_AT = ir.Name(0, ir.Type("index"))


def log(number: int, names: Callable[[], int]) -> tuple[ir.Stmt, ...]:
    """log[at] = log[at] * 10 + number"""
    old, scaled, new = (ir.Name(names(), ir.Type("i64")) for _ in range(3))
    ten, one = ir.Const(10, ir.Type("i64")), ir.Const(number, ir.Type("i64"))
    return (
        ir.Load(old, _LOG, _AT),
        ir.Let(scaled, "mul", (old, ten)),
        ir.Let(new, "add", (scaled, one)),
        ir.Store(_LOG, _AT, new),
    )


def test_break_continue_and_return_in_nested_loops() -> None:
    counter = itertools.count(1)
    names = lambda: next(counter)  # noqa: E731
    index, flag = ir.Type("index"), ir.Type("bool")

    def equal(x: ir.Atom, value: int, then: tuple[ir.Stmt, ...], orelse: tuple[ir.Stmt, ...] = ()):
        test = ir.Name(names(), flag)
        return ir.Let(test, "eq", (x, ir.Const(value, index))), ir.If(test, then, orelse)

    outer, inner = ir.Name(names(), index), ir.Name(names(), index)
    zero, four, one = (ir.Const(value, index) for value in (0, 4, 1))
    inner_body = (
        *equal(inner, 1, (ir.Continue(), *log(9, names))),
        *equal(inner, 3, (*log(1, names), ir.Break(), *log(9, names))),
        *equal(outer, 2, (ir.If(ir.Const(True, flag), (ir.Break(),), (ir.Continue(),)),)),
        *log(2, names),
    )
    endless = (
        *log(3, names),
        *equal(_AT, 1, (ir.Return(), *log(9, names)), (ir.Break(),)),
        *log(9, names),
    )
    outer_body = (
        ir.For(inner, zero, four, one, inner_body),
        *equal(outer, 3, (ir.Loop(endless), *log(4, names))),
        *equal(_AT, 2, (*log(5, names), ir.Return())),
    )
    kernel = statement_kernel((ir.For(outer, zero, four, one, outer_body), *log(6, names)))
    (result,) = agree(kernel, [np.zeros(4, np.int64)], cubes=4)
    assert result.tolist() == [22122122134_6, 2212212213, 2215, 22122122134_6]


def test_statements_behind_a_jump_are_left_out() -> None:
    names = itertools.count(1).__next__
    kernel = statement_kernel((*log(1, names), ir.Return(), *log(2, names)))
    assert emit(kernel).count("mul i64") == 1


def test_variables_of_every_dtype() -> None:
    for dtype, lanes in itertools.product(MEMORY_DTYPES, (1, 3, 16)):
        x = np.resize(samples(dtype), 4 * lanes)
        build = Builder("variables")
        data, output = build.buffer(dtype), build.buffer(dtype, "out")
        kept = build.variable(build.load(data, 0, lanes))
        for k in build.range(1, 4):
            with build.when(k.eq(2)):
                kept.set(build.load(data, k * lanes, lanes))
        build.store(output, 0, kept.get())
        agree(build.finish(), [x, np.zeros(lanes, x.dtype)])


# faults -------------------------------------------------------------------------------------------


def test_what_takes_groups_is_refused() -> None:
    build = Builder("wide", (128, 1, 1))
    rows = build.shared("bf16", 64 * 64)
    panel = matrix.panel(build, rows, 0, True)
    sums = build.variable(build.constant(0, "f32", 32))
    matrix.multiply_panels(build, sums, panel, panel, 1, build.constant(True, "bool"))
    rule = r"wide: MultiplyPanels takes what the CPU has no form for: .*features"
    with pytest.raises(errors.LoweringError, match=rule):
        emit(build.finish())


@pytest.mark.parametrize("units", [1, 32])
def test_words_to_people_take_a_record(units: int) -> None:
    build = Builder("loud", (units, 1, 1))
    build.print("here")
    with pytest.raises(errors.LoweringError, match="Print"):
        emit(build.finish())


def test_arrays_beyond_the_stack_are_refused() -> None:
    build = Builder("large")
    build.shared("f32", 100_000)
    build.local("f64", 20_000)
    with pytest.raises(errors.LoweringError, match=r"fit 524288 bytes; got 560000.*20000 f64"):
        emit(build.finish())


# texts and machine code ---------------------------------------------------------------------------


def axpy() -> ir.Kernel:
    build = Builder("axpy")
    x, y, out = build.buffer("f32"), build.buffer("f32"), build.buffer("f32", "out")
    a, size = build.scalar("f32"), build.scalar()
    start = build.place("cube_pos.x") * 1024
    stop = build.op("min", start + 1024, size)
    for at in build.range(start, stop, 16):
        value = build.fma(a, build.load(x, at, 16), build.load(y, at, 16))
        build.store(out, at, value, streaming=True)
    return build.finish()


def row_maximum() -> ir.Kernel:
    build = Builder("row_maximum")
    x, out, columns = build.buffer("bf16"), build.buffer("f32", "out"), build.scalar()
    row = build.place("cube_pos.x")
    most = build.variable(build.constant(float("-inf"), "f32", 8))
    for column in build.range(0, columns, 8):
        mask = build.lane(8) + column < columns
        line = build.load(x, row * columns + column, 8, mask).cast("f32")
        most.set(build.select(mask, build.op("max", most.get(), line), most.get()))
    build.store(out, row, build.reduce("max", most.get()))
    return build.finish()


def search() -> ir.Kernel:
    build = Builder("search")
    data, found = build.buffer("i32"), build.buffer("i32", "inout")
    key, size = build.scalar("i32"), build.scalar()
    at = build.variable(build.place("cube_pos.x"))
    with build.loop():
        build.break_when(at.get() >= size)
        with build.when(build.load(data, at.get()).eq(key)):
            build.atomic("min", found, 0, at.get().cast("i32"))
        at.set(at.get() + build.place("cube_count.x"))
    return build.finish()


EXAMPLES = (axpy, row_maximum, search)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.__name__)
def test_golden_text(example: Callable[[], ir.Kernel], golden: Callable[[str, str], None]) -> None:
    golden(f"llvm/{example.__name__}.ll", emit(example(), name=example.__name__))


def test_examples_compute() -> None:
    random = np.random.default_rng(4)
    x, y = random.normal(size=(2, 2048)).astype(np.float32)
    room = np.zeros(2048 + 16, np.float32)
    out = room[-room.ctypes.data % 64 // 4 :][:2048]
    run(axpy(), [x, y, out], [2.5, 2048], cubes=2)
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(out, (2.5 * wide + y).astype(np.float32))
    rows = random.normal(size=(5, 29)).astype(ml_dtypes.bfloat16)
    rows[3, 7] = np.nan
    result = np.zeros(5, np.float32)
    run(row_maximum(), [np.append(rows, np.zeros(8, rows.dtype)), result], [29], cubes=5)
    np.testing.assert_array_equal(result, rows.astype(np.float32).max(axis=1))
    data = np.arange(100, dtype=np.int32) % 40
    found = np.full(1, 1000, np.int32)
    run(search(), [data, found], [33, 100], cubes=7)
    assert found[0] == 33


PROCESSORS = (
    ("x86_64-unknown-linux-gnu", "x86-64-v2", ""),
    ("x86_64-unknown-linux-gnu", "haswell", ""),
    ("x86_64-unknown-linux-gnu", "x86-64-v4", ""),
    ("x86_64-pc-windows-msvc", "x86-64-v3", ""),
    ("aarch64-unknown-linux-gnu", "neoverse-v1", ""),
    ("arm64-apple-macosx14", "apple-m1", ""),
)


@pytest.mark.parametrize(("triple", "cpu", "features"), PROCESSORS)
def test_machine_code_for_other_processors(triple: str, cpu: str, features: str) -> None:
    target = machine(triple, cpu, features)
    for example in EXAMPLES:
        assert target.emit_object(optimized(emit(example()), target))
    for dtype in ("bool", "i8", "u32", "i64", "f16", "bf16", "f8_e4m3fn", "f64"):
        ops = [op for op in ELEMENTWISE if dtype in ir.OPS[op].dtypes]
        assert target.emit_object(optimized(emit(sweep(dtype, 8, ops, 3)), target))


def assembly(kernel: ir.Kernel, cpu: str) -> str:
    target = machine("x86_64-unknown-linux-gnu", cpu)
    return target.emit_assembly(optimized(emit(kernel), target))


def test_a_tile_of_products_stays_in_registers() -> None:
    rows, lines, stride = 14, 2, 528
    build = Builder("tile")
    x, y, out = build.buffer("f32"), build.buffer("f32"), build.buffer("f32", "out")
    depth = build.scalar()
    zero = build.constant(0.0, "f32", 16)
    sums = [[build.variable(zero) for _ in range(lines)] for _ in range(rows)]
    for k in build.range(0, depth):
        right = [build.load(y, k * 32 + 16 * line, 16) for line in range(lines)]
        for row in range(rows):
            left = build.load(x, k + row * stride)
            for line in range(lines):
                sums[row][line].set(build.fma(left, right[line], sums[row][line].get()))
    for row, line in itertools.product(range(rows), range(lines)):
        build.store(out, row * 32 + line * 16, sums[row][line].get())
    text = assembly(build.finish(), "skylake-avx512")
    body = text[: text.index("\nkernel:")]
    assert "rsp" not in body  # no spills
    blocks = re.split(r"^\.LBB\S+:.*\n", body, flags=re.MULTILINE)
    (loop,) = [block for block in blocks if "vfmadd" in block]
    counts = {name: len(re.findall(rf"^\t{name}\b", loop, re.MULTILINE)) for name in
              ("vfmadd231ps", "vbroadcastss", "vmovups")}  # fmt: skip
    assert counts == {"vfmadd231ps": 28, "vbroadcastss": 14, "vmovups": 2}


@pytest.mark.parametrize("cpu", ("haswell", "skylake-avx512"))
@pytest.mark.parametrize(
    ("source", "target"),
    (("f32", "i32"), ("f32", "i8"), ("f32", "u8"), ("f64", "i32"), ("f32", "bf16")),
)
def test_casts_of_lines_stay_in_vectors(source: str, target: str, cpu: str) -> None:
    build = Builder("cast")
    data, output = build.buffer(source), build.buffer(target, "out")
    build.store(output, 0, build.load(data, 0, 16).cast(target))
    assert not re.search(r"vcvtts[sd]2si|vpinsr|vpextr", assembly(build.finish(), cpu))
