"""Contractions on a device whose cubes are tasks of one thread: every road that a product may take,
against NumPy in double precision, and in the interpreter, which checks every access and looks for
races; which road and which tile a problem gets."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from run_program import Pretended, run

import xcube
import xcube.numpy as jnp
from xcube.lowering import lower
from xcube.lowering.device import default_device
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.contract_choice import Sizes, Tile, candidates

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

WIDE = Facts("cpu", "cpu", "any", 2, 512, 48 << 10, 2 << 20, 1 << 30, frozenset())
NARROW = Facts("cpu", "cpu", "any", 2, 256, 32 << 10, 1 << 20, 1 << 30, frozenset())


def operands(letters: str, sizes: dict[str, int], dtype: Any) -> list[Array]:
    """Arrays for the operands of an einsum, reproducible."""
    random = np.random.default_rng(len(letters) + sum(sizes.values()))
    shapes = [tuple([sizes[c] for c in part]) for part in letters.split("->")[0].split(",")]
    if np.dtype(dtype).kind in "iu":
        return [random.integers(-128, 128, shape).astype(dtype) for shape in shapes]
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def exact(letters: str, *arrays: Array) -> Array:
    """The einsum in double precision, or in 64-bit integers."""
    kind = np.int64 if arrays[0].dtype.kind in "iu" else np.float64
    return np.einsum(letters, *(x.astype(kind) for x in arrays), optimize=True)


def near(found: Any, wanted: Array, rtol: float) -> None:
    got = np.asarray(found).astype(wanted.dtype)
    assert got.shape == wanted.shape
    scale = np.abs(wanted).max(initial=1e-30)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=rtol * scale)


MATRICES = ("mk,kn->mn", "km,kn->mn", "mk,nk->mn", "km,nk->mn")
EDGES = (
    {"m": 1, "k": 768, "n": 1003},
    {"m": 3, "k": 771, "n": 1040},
    {"m": 8, "k": 37, "n": 2503},
    {"m": 1003, "k": 771, "n": 1},
    {"m": 1009, "k": 7, "n": 8},
    {"m": 257, "k": 31, "n": 5},
    {"m": 61, "k": 67, "n": 131},
    {"m": 200, "k": 300, "n": 400},
    {"m": 8, "k": 20011, "n": 8},
    {"m": 1, "k": 4099, "n": 2},
)


@pytest.mark.parametrize("sizes", EDGES, ids=str)
@pytest.mark.parametrize("letters", MATRICES)
def test_matrices_of_every_layout(letters: str, sizes: dict[str, int]) -> None:
    a, b = operands(letters, sizes, np.float32)
    product = xcube.jit(lambda x, y: jnp.einsum(letters, x, y))
    in_blocks = default_device().kind == "cpu"  # others sum a long depth in one go
    near(product(a, b), exact(letters, a, b), 2e-6 if in_blocks else 8e-6)


BATCHES = (
    "bmk,bkn->bmn", "bkm,bkn->bmn", "bmk,bnk->bmn", "mbk,kbn->bmn", "bmk,kbn->mbn", "bmk,kn->bmn",
)  # fmt: skip


@pytest.mark.parametrize("letters", BATCHES)
@pytest.mark.parametrize("side", [1, 4, 16, 33, 70])
def test_batches_of_small_matrices(letters: str, side: int) -> None:
    sizes = {"b": 9, "m": side, "k": side + 1, "n": side}
    a, b = operands(letters, sizes, np.float32)
    product = xcube.jit(lambda x, y: jnp.einsum(letters, x, y))
    near(product(a, b), exact(letters, a, b), 2e-6)


@pytest.mark.parametrize("sizes", EDGES[:6], ids=str)
@pytest.mark.parametrize(
    ("dtype", "rtol"),
    [(np.float64, 1e-14), (np.float16, 1e-3), (ml_dtypes.bfloat16, 8e-3), (np.int32, 0)],
)
def test_dtypes(dtype: Any, rtol: float, sizes: dict[str, int]) -> None:
    with xcube.enable_x64():
        a, b = operands("mk,kn->mn", sizes, dtype)
        near(xcube.jit(jnp.matmul)(a, b), exact("mk,kn->mn", a, b), rtol)


LARGE_SUMS = ({"m": 33, "k": 2500, "n": 40}, {"m": 2, "k": 70_001, "n": 9})


@pytest.mark.parametrize("dtypes", [(np.int8, np.int8), (np.uint8, np.uint8)], ids=str)
@pytest.mark.parametrize("sizes", [*EDGES, *LARGE_SUMS], ids=str)
def test_bytes_are_summed_exactly(sizes: dict[str, int], dtypes: Any) -> None:
    a, b = (operands("mk,kn->mn", sizes, dtype)[n] for n, dtype in enumerate(dtypes))
    for x in (a[:1], b[:, -1]):  # the largest sums there are
        x[...] = -128 if x.dtype == np.int8 else 255
    product = jnp.matmul(a, b, preferred_element_type=np.int32)
    wanted = exact("mk,kn->mn", a, b).astype(np.int32)  # sums wrap
    np.testing.assert_array_equal(np.asarray(product), wanted)


def test_the_order_of_sums_is_that_of_the_sizes_alone() -> None:
    a, b = operands("mk,kn->mn", {"m": 5, "k": 3000, "n": 700}, np.float32)
    product = xcube.jit(jnp.matmul)
    first = np.asarray(product(a, b))
    assert all((np.asarray(product(a, b)) == first).all() for _ in range(20))


# what is before and behind ------------------------------------------------------------------------


@pytest.mark.parametrize("letters", ["mk,kn->mn", "mk,nk->mn"])
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_what_is_before_and_behind_is_part_of_the_kernel(rows: int, letters: str) -> None:
    a, b = operands(letters, {"m": rows, "k": 67, "n": 1111}, np.float32)
    b = np.abs(b) + np.float32(0.5)
    bias = np.linspace(-1, 1, 1111, dtype=np.float32)

    def layer(x: Any, w: Any) -> Any:
        return jnp.maximum(jnp.einsum(letters, jnp.exp(x), 1 / w) + bias, 0) * bias

    product = exact(letters, np.exp(a.astype(float)), 1 / b.astype(float))
    near(xcube.jit(layer)(a, b), np.maximum(product + bias, 0) * bias, 3e-6)


def test_a_result_in_the_memory_of_an_operand() -> None:
    a, b = operands("mk,kn->mn", {"m": 7, "k": 12, "n": 1030}, np.float32)
    x = np.linspace(-1, 1, 7 * 1030, dtype=np.float32).reshape(7, 1030)
    added = xcube.jit(lambda x, a, b: x + a @ b, donate_argnums=0)
    near(added(jnp.asarray(x), a, b), x + exact("mk,kn->mn", a, b), 2e-6)


@pytest.mark.parametrize("transposed", [False, True])
def test_packed_weights_are_unpacked_where_they_are_read(transposed: bool) -> None:
    random = np.random.default_rng(1)
    x = random.standard_normal((1, 512)).astype(np.float32)
    packed = random.integers(0, 256, (640, 256) if transposed else (256, 640)).astype(np.uint8)
    scale = random.uniform(0.5, 2, 640).astype(np.float32)

    def product(x: Any, packed: Any, scale: Any) -> Any:
        halves = [(part.astype(np.int32) - 8) for part in (packed & 15, packed >> 4)]
        whole = jnp.concatenate(halves, axis=1 if transposed else 0).astype(np.float32)
        return x @ (whole * scale[:, None]).T if transposed else x @ (whole * scale)

    low, high = ((p.astype(np.int64) - 8) for p in (packed & 15, packed >> 4))
    whole = np.concatenate([low, high], 1 if transposed else 0).astype(float)
    wanted = x @ ((whole * scale[:, None]).T if transposed else whole * scale)
    near(xcube.jit(product)(x, packed, scale), wanted, 3e-6)


@pytest.mark.parametrize("transposed", [False, True])
def test_quantised_weights_never_lie_in_memory_as_floats(transposed: bool) -> None:
    def product(x: Any, weights: Any, scale: Any) -> Any:
        wide = weights.astype(np.float32) * (scale[:, None] if transposed else scale)
        return x @ (wide.T if transposed else wide)

    shape = (1024, 512) if transposed else (512, 1024)
    arrays = [np.ones((1, 512), np.float32), np.ones(shape, np.int8), np.ones(1024, np.float32)]
    jaxpr = xcube.make_jaxpr(product)(*arrays)
    program = lower(jaxpr.closed(), Pretended(), forward=False)  # type: ignore[arg-type]
    assert len(program.kernels) == 1
    assert program.arena_nbytes == 0


# every access -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [128, 512])
@pytest.mark.parametrize(
    ("letters", "sizes"),
    [
        ("mk,kn->mn", {"m": 1, "k": 5, "n": 130}),
        ("mk,kn->mn", {"m": 3, "k": 70, "n": 1030}),
        ("mk,nk->mn", {"m": 3, "k": 21, "n": 11}),
        ("mk,kn->mn", {"m": 13, "k": 9, "n": 19}),
        ("bmk,bnk->bmn", {"b": 5, "m": 5, "k": 17, "n": 6}),
        ("bmk,bkn->bmn", {"b": 5, "m": 7, "k": 5, "n": 9}),
        ("bkm,bk->bm", {"b": 3, "m": 21, "k": 5}),
    ],
    ids=str,
)
def test_every_access(letters: str, sizes: dict[str, int], bits: int) -> None:
    arrays = operands(letters, sizes, np.float32)
    jaxpr = xcube.make_jaxpr(lambda x, y: jnp.einsum(letters, x, y) + 1)(*arrays)
    (found,) = run(jaxpr.closed(), arrays, vector_bits=bits)
    near(found, exact(letters, *arrays) + 1, 2e-6)


# choices ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        (Sizes("lines", 1, 1, 50257, 768), "stream 1x64x16"),
        (Sizes("lines", 4, 1, 50257, 768), "stream 4x64x16"),
        (Sizes("lines", 8, 1, 8, 8), "lines 8x1x8"),
        (Sizes("lines", 64, 1, 64, 64), "lines 6x4x16"),
        (Sizes("lines", 96, 1, 96, 96), "lines 4x6x16"),
        (Sizes("depth", 1, 4096, 4096, 4096), "depth 1x8x16"),
        (Sizes("depth", 8, 50257, 768, 768), "depth 4x4x16"),
    ],
    ids=str,
)
def test_tiles_suit_the_problem(sizes: Sizes, chosen: str) -> None:
    assert str(candidates(sizes, "f32", WIDE)[0]) == chosen


@pytest.mark.parametrize("facts", [WIDE, NARROW], ids=["512", "256"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_tiles_fit_the_registers(facts: Facts, dtype: str) -> None:
    registers = 32 if facts is WIDE else 16
    for rows in (1, 2, 3, 5, 8, 17, 1000):
        for lanes in (4, 7, 32, 1000, 100_000):
            for form in ("lines", "depth"):
                sizes = Sizes(form, rows, 9 if form == "depth" else 1, lanes, lanes)
                tiles = candidates(sizes, dtype, facts)
                assert tiles
                assert all(_held(tile) <= registers for tile in tiles)
                assert all(1 <= tile.rows <= rows for tile in tiles)


def _held(tile: Tile) -> int:
    """Lines that a step needs in registers."""
    return 1 if tile.form == "stream" else tile.rows * tile.lines + tile.lines
