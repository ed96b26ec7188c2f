"""Products of bf16 and of bytes on a processor's tiles: the statements of the kernel language
against NumPy, their faults and rules, what LLVM makes of them; contractions in the interpreter, on
the processor if it has tiles, and which of them get there."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llvmlite.binding as native
import ml_dtypes
import numpy as np
import pytest
from run_program import Pretended, run

import xcube
import xcube.numpy as jnp
from xcube.errors import KernelError, LoweringError
from xcube.lowering import lower
from xcube.lowering.cube import tiles
from xcube.lowering.cube.arithmetic import NUMPY
from xcube.lowering.cube.build import Builder
from xcube.lowering.cube.check import check
from xcube.lowering.cube.interpreter import interpret
from xcube.lowering.cube.ir import Kernel
from xcube.lowering.cube.text import text
from xcube.lowering.device import cpu_facts, cpu_tiles
from xcube.lowering.device.cpu import device
from xcube.lowering.emit import cuda, llvm
from xcube.lowering.kernels import contract_tiles_pack
from xcube.trace import bind

Array = np.ndarray[Any, Any]
TILES = frozenset({"amx_bf16", "amx_int8"})
BF16 = ml_dtypes.bfloat16

on_tiles = pytest.mark.skipif(
    not device().facts().features >= TILES, reason="the processor has no tiles, or gives none"
)


def numbers(dtype: Any, *shape: int) -> Array:
    """Reproducible elements: all bytes, or halves that sums hold exactly."""
    random = np.random.default_rng(sum(shape))
    if np.dtype(dtype).itemsize == 1:
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max + 1, shape).astype(dtype)
    return (random.integers(-8, 9, shape) / 2).astype(dtype)


# statements ---------------------------------------------------------------------------------------


def one_product(kinds: tuple[str, str]) -> Kernel:
    """out[16, 16] = left @ right + out, where rows of the left operand are a row apart too much."""
    build = Builder("product")
    left, right = (build.buffer(kind) for kind in kinds)
    out, width = build.buffer(tiles.SUMS[kinds], "inout"), tiles.width(kinds[0])
    tiles.load(build, 0, out, 0, tiles.WORDS)
    tiles.load(build, 1, left, width, 2 * width)
    tiles.load(build, 2, right, 0, width)
    tiles.multiply(build, 0, 1, 2, kinds)
    tiles.store(build, 0, out, 0, tiles.WORDS)
    return build.finish()


def operands(kinds: tuple[str, str]) -> tuple[list[Array], Array]:
    """Buffers for `one_product`, and what is to come out."""
    left, right = (NUMPY[kind] for kind in kinds)
    width, word = tiles.width(kinds[0]), tiles.word(kinds[0])
    a, b = numbers(left, 16, width), numbers(right, width, 16)
    before = numbers(np.int8, 16, 16).astype(NUMPY[tiles.SUMS[kinds]])
    spread = np.stack([np.zeros_like(a), a], 1)
    words = b.reshape(16, word, 16).swapaxes(1, 2)
    wanted = before + a.astype(np.float64) @ b.astype(np.float64)
    return [x.ravel().copy() for x in (spread, words, before)], wanted


@pytest.mark.parametrize("kinds", tiles.SUMS, ids=" x ".join)
def test_tiles_are_multiplied(kinds: tuple[str, str]) -> None:
    kernel, (buffers, wanted) = one_product(kinds), operands(kinds)
    check(kernel)
    interpret(kernel, 1, buffers)
    np.testing.assert_array_equal(buffers[2].reshape(16, 16), wanted)


@on_tiles
@pytest.mark.parametrize("kinds", tiles.SUMS, ids=" x ".join)
def test_the_processor_multiplies_like_the_interpreter(kinds: tuple[str, str]) -> None:
    buffers, wanted = operands(kinds)
    launch(one_product(kinds), buffers)
    np.testing.assert_array_equal(buffers[2].reshape(16, 16), wanted)


@on_tiles
@pytest.mark.parametrize("small", [False, True])
def test_sums_wrap_and_what_is_too_small_counts_as_zero(small: bool) -> None:
    kinds = ("bf16", "bf16") if small else ("i8", "i8")
    (left, right, out), _ = operands(kinds)
    left[...], right[...] = (1e-20, 1e-20) if small else (-128, -128)
    out[...] = 1e-39 if small else np.iinfo(np.int32).max
    found = [out.copy(), out.copy()]
    interpret(one_product(kinds), 1, [left, right, found[0]])
    launch(one_product(kinds), [left, right, found[1]])
    wanted = 0 if small else np.iinfo(np.int32).min + 64 * 128 * 128 - 1
    assert (found[0] == wanted).all() and (found[1] == wanted).all()


def launch(kernel: Kernel, buffers: list[Array]) -> None:
    """Run one cube of a kernel natively, on NumPy's memory."""
    (address,) = device().compile([("kernel", llvm.emit(kernel))])
    pointers = (ctypes.c_void_p * len(buffers))(*(x.ctypes.data for x in buffers))
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)(address)
    function(ctypes.addressof(pointers), None, 0, 1)


def test_machine_code_sets_the_shape_of_tiles_and_gives_them_back() -> None:
    native.initialize_all_targets()
    native.initialize_all_asmprinters()
    machine = native.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        features="+amx-tile,+amx-bf16,+amx-int8"
    )
    for kinds, instruction in {("bf16", "bf16"): "tdpbf16ps", ("u8", "i8"): "tdpbusd"}.items():
        module = native.parse_assembly(llvm.emit(one_product(kinds)))
        code = machine.emit_assembly(module)
        order = ["ldtilecfg", "tileloadd", instruction, "tilestored", "tilerelease", "ret"]
        assert sorted(order, key=code.index) == order


def test_kernels_without_tiles_know_nothing_of_them() -> None:
    build = Builder("plain")
    build.store(build.buffer("f32", "out"), 0, build.constant(1.0, "f32"))
    assert "tile" not in llvm.emit(build.finish())


def test_other_devices_refuse_tiles() -> None:
    with pytest.raises(LoweringError, match=r"LoadTile takes tiles, which .*cuda does not"):
        cuda.emit(one_product(("i8", "i8")))


def test_statements_have_a_text() -> None:
    lines = text(one_product(("u8", "i8"))).splitlines()
    assert lines[2:5] == [
        "  load tile 1, b0[64] by 128",
        "  load tile 2, b1[0] by 64",
        "  multiply tiles 0 += 1 u8, 2 i8",
    ]


WRONG: dict[str, tuple[Callable[[Builder, Any], None], str]] = {
    "number": (lambda b, x: tiles.zero(b, 8), "a unit has tiles 0..7; got 8"),
    "same": (
        lambda b, x: tiles.multiply(b, 1, 1, 2, ("i8", "i8")),
        "a multiplication takes three tiles; got 1, 1 and 2",
    ),
    "kinds": (
        lambda b, x: tiles.multiply(b, 0, 1, 2, ("i8", "bf16")),
        "elements of tiles must be bf16 x bf16, .*; got i8 x bf16",
    ),
    "readonly": (lambda b, x: tiles.store(b, 0, x, 0, 16), "must not be written"),
    "stride": (
        lambda b, x: tiles.load(b, 0, x, 0, b.constant(16, "i32")),
        "the distance of a tile's rows must be index; got i32",
    ),
    "bools": (
        lambda b, x: tiles.load(b, 0, b.shared("bool", 4096), 0, 64),
        "rows of a tile must be numbers in memory; got bool",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused(name: str) -> None:
    statement, message = WRONG[name]
    build = Builder("wrong")
    statement(build, build.buffer("f32"))
    with pytest.raises(KernelError, match=message):
        check(build.finish())


def test_tiles_belong_to_cubes_of_one_unit() -> None:
    build = Builder("many", (32, 1, 1))
    tiles.zero(build, 0)
    with pytest.raises(KernelError, match="tiles belong to cubes of one unit"):
        check(build.finish())


def test_the_interpreter_finds_what_is_outside_and_what_is_not_there() -> None:
    (left, right, out), _ = operands(("i8", "i8"))
    with pytest.raises(KernelError, match="an index must be at least 0 and below"):
        interpret(one_product(("i8", "i8")), 1, [left[:-64], right, out])
    build = Builder("empty")
    tiles.store(build, 3, build.buffer("i32", "out"), 0, 16)
    with pytest.raises(KernelError, match="tile 3 is not"):
        interpret(build.finish(), 1, [out])
    build = Builder("unwritten")
    tiles.load(build, 3, build.shared("i32", 256), 0, 16)
    with pytest.raises(KernelError, match="written before it is read; element 0 is not"):
        interpret(build.finish(), 1, [])


# contractions -------------------------------------------------------------------------------------

LAYOUTS = ("mk,kn->mn", "km,kn->mn", "mk,nk->mn", "km,nk->mn", "bmk,bkn->bmn", "bkm,nbk->mbn")
EDGES = (
    {"b": 3, "m": 9, "k": 64, "n": 96},
    {"b": 2, "m": 16, "k": 61, "n": 67},
    {"b": 1, "m": 61, "k": 331, "n": 131},
    {"b": 2, "m": 257, "k": 31, "n": 33},
    {"b": 2, "m": 1009, "k": 8, "n": 13},
    {"b": 2, "m": 400, "k": 513, "n": 300},
)
KINDS = {np.dtype(BF16): np.float32, np.dtype(np.int8): np.int32, np.dtype(np.uint8): np.int32}


def sides(letters: str, sizes: dict[str, int], dtype: Any) -> list[Array]:
    shapes = [[sizes[c] for c in part] for part in letters.split("->")[0].split(",")]
    return [numbers(dtype, *shape) for shape in shapes]


def product(letters: str, dtype: np.dtype) -> Callable[..., Any]:
    return lambda x, y: jnp.einsum(letters, x, y, preferred_element_type=KINDS[dtype])


def exact(letters: str, a: Array, b: Array) -> Array:
    return np.einsum(letters, a.astype(np.float64), b.astype(np.float64), optimize=True)


def kernels(function: Callable[..., Any], *arrays: Array, **facts: Any) -> list[str]:
    facts = {"features": TILES, "units": 1} | facts
    program = lower(xcube.make_jaxpr(function)(*arrays), Pretended(**facts))  # type: ignore[arg-type]
    return [text(kernel) for kernel in program.kernels]


@pytest.mark.parametrize("least", [0, 1 << 20], ids=["turned", "by maps"])
@pytest.mark.parametrize("letters", LAYOUTS[:4])
@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_contractions_in_the_interpreter(
    dtype: np.dtype, letters: str, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract_tiles_pack, "LEAST", least)
    a, b = sides(letters, {"m": 37, "k": 67, "n": 41}, dtype)
    jaxpr = xcube.make_jaxpr(product(letters, dtype))(a, b)
    (found,) = run(jaxpr, [a, b], features=TILES)
    np.testing.assert_array_equal(found, exact(letters, a, b))


@on_tiles
@pytest.mark.parametrize("lines", [16, 32])
@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_turned_blocks_are_those_of_maps(dtype: np.dtype, lines: int) -> None:
    x, pack = jnp.asarray(numbers(dtype, 2, 201, 333)), contract_tiles_pack
    maps = bind(pack.pack_lines, x, lines=lines), bind(pack.pack_words, x, lines=lines)
    turned = pack.lines_of(x, lines, deep=False), pack.words_of(x, lines, deep=True)
    for way, other in zip(maps, turned, strict=True):
        np.testing.assert_array_equal(np.asarray(way), np.asarray(other))
    panel = np.asarray(maps[0])[1, 1, 0]  # of 64 bytes, word by word
    words = np.asarray(maps[1])[1, 1, 0]
    np.testing.assert_array_equal(panel, np.asarray(x)[1, lines : 2 * lines, : panel.shape[-1]])
    np.testing.assert_array_equal(panel.view(np.uint32).T, words)


def test_blocks_of_the_depth_in_the_interpreter() -> None:
    a, b = sides("mk,kn->mn", {"m": 10, "k": 1100, "n": 103}, np.int8)
    jaxpr = xcube.make_jaxpr(product("mk,kn->mn", a.dtype))(a, b)
    (found,) = run(jaxpr, [a, b], features=TILES)
    np.testing.assert_array_equal(found, exact("mk,kn->mn", a, b))


@pytest.mark.parametrize("sizes", EDGES, ids=str)
@pytest.mark.parametrize("letters", LAYOUTS)
@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_contractions_of_every_layout(dtype: np.dtype, letters: str, sizes: dict[str, int]) -> None:
    a, b = sides(letters, sizes, dtype)
    found = xcube.jit(product(letters, dtype))(a, b)
    np.testing.assert_array_equal(np.asarray(found), exact(letters, a, b))


def test_a_large_product_of_reals() -> None:
    random = np.random.default_rng(4)
    a, b = (random.standard_normal(shape).astype(BF16) for shape in ((700, 1500), (1500, 900)))
    found = np.asarray(jnp.matmul(a, b))
    assert found.dtype == BF16
    wanted = exact("mk,kn->mn", a, b)
    np.testing.assert_allclose(found.astype(float), wanted, rtol=2**-8, atol=2e-3)


def test_what_is_before_and_behind_is_part_of_the_kernels() -> None:
    a, b = sides("mk,kn->mn", {"m": 70, "k": 67, "n": 111}, BF16)
    bias = np.linspace(-1, 1, 111).astype(BF16)

    def layer(x: Any, w: Any, bias: Any) -> Any:
        sums = jnp.matmul(jnp.maximum(x, 0), -w, preferred_element_type=np.float32)
        return (jnp.tanh(sums / 64) + bias).astype(np.float32)

    wanted = np.tanh(exact("mk,kn->mn", np.maximum(a, 0), -b) / 64) + bias.astype(float)
    (found,) = run(xcube.make_jaxpr(layer)(a, b, bias), [a, b, bias], features=TILES)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    np.testing.assert_allclose(np.asarray(xcube.jit(layer)(a, b, bias)), wanted, atol=1e-6)
    assert len(kernels(layer, a, b, bias)) == 3


def test_gradients_of_a_layer() -> None:
    x, w = sides("mk,kn->mn", {"m": 48, "k": 80, "n": 64}, BF16)
    dx, dw = xcube.grad(lambda x, w: jnp.sum((x @ w).astype(np.float32)), argnums=(0, 1))(x, w)
    ones = np.ones((48, 64))
    np.testing.assert_array_equal(np.asarray(dx), (ones @ w.astype(float).T).astype(BF16))
    np.testing.assert_array_equal(np.asarray(dw), (x.astype(float).T @ ones).astype(BF16))


def test_threads_share_the_tiles_of_a_process() -> None:
    a, b = sides("mk,kn->mn", {"m": 256, "k": 512, "n": 256}, BF16)
    function, wanted = xcube.jit(product("mk,kn->mn", a.dtype)), exact("mk,kn->mn", a, b)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: np.asarray(function(a, b)), range(12)))
    assert all((x == wanted).all() for x in found)


# which contractions get there ---------------------------------------------------------------------


def uses_tiles(dtype: Any, m: int, k: int, n: int, sums: Any = None, **facts: Any) -> bool:
    a, b = numbers(dtype, m, k), numbers(dtype, k, n)
    product = functools.partial(jnp.matmul, preferred_element_type=sums)
    return any("multiply tiles" in each for each in kernels(product, a, b, **facts))


def test_the_choice_is_by_dtype_size_and_device() -> None:
    assert uses_tiles(BF16, 64, 64, 64) and uses_tiles(BF16, 64, 64, 64, np.float32)
    assert uses_tiles(np.int8, 64, 64, 64, np.int32) and uses_tiles(np.uint8, 9, 640, 64, np.int32)
    assert not uses_tiles(BF16, 8, 640, 640) and not uses_tiles(BF16, 16, 16, 16)
    assert not uses_tiles(np.float16, 64, 64, 64) and not uses_tiles(np.int8, 64, 64, 64)
    assert not uses_tiles(BF16, 64, 64, 64, features=frozenset({"amx_int8"}))
    assert not uses_tiles(np.int8, 64, 64, 64, np.int32, features=frozenset({"amx_bf16"}))
    assert not uses_tiles(BF16, 64, 64, 64, units=256)


def test_sizes_are_no_part_of_a_kernel() -> None:
    def of(*sizes: int) -> str:
        a, b = numbers(BF16, *sizes[:2]), numbers(BF16, *sizes[1:])
        return next(x for x in kernels(jnp.matmul, a, b) if "multiply tiles" in x)

    assert of(320, 480, 640) == of(480, 640, 320)


def test_tiles_that_the_system_withholds_are_no_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_tiles, "allowed", lambda: False)
    assert not cpu_facts.facts("cpu", device()._code, 1 << 30).features & TILES
