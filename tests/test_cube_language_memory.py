"""Arrays, topology, planes, atomics, matrices and parameters of kernels in the interpreter; kernels
launched, in programs, and with derivatives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube import ShapeDtypeStruct, config, cube
from xcube.errors import DeviceError, KernelError
from xcube.lowering.cube import decompose
from xcube.lowering.device import cuda_compile
from xcube.lowering.emit import cuda

F32 = np.float32


def fresh(*shape: int, dtype: Any = F32) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(shape, np.dtype(dtype))


def run(kernel: Any, grid: tuple[Any, Any], *args: Any, **named: Any) -> Any:
    found = cube.interpret(kernel)[grid](*args, **named)
    return [np.asarray(x) for x in found] if isinstance(found, tuple) else np.asarray(found)


def counting(*shape: int, dtype: Any = F32) -> np.ndarray:
    return np.arange(math.prod(shape)).reshape(shape).astype(dtype)


# views ----------------------------------------------------------------------------------------


@cube.kernel
def transform(x: cube.Tensor, out: cube.Array, f: cube.comptime):
    view = f(x)
    k = 0
    for i in cube.range(view.shape[0]):
        for j in cube.range(view.shape[1]):
            out[k] = view[i, j]
            k += 1


X = counting(4, 6)
VIEWS = {
    "itself": (lambda x: x, X),
    "transposed": (lambda x: x.transposed(), X.T),
    "permuted": (lambda x: x.permuted(1, 0), X.T),
    "rows": (lambda x: x[1:3], X[1:3]),
    "part": (lambda x: x[1:, 2:5], X[1:, 2:5]),
    "from the end": (lambda x: x[-2:, :-1], X[-2:, :-1]),
    "empty": (lambda x: x[3:1], X[3:1]),
    "slice": (lambda x: x.slice(2, 4), X[2:4]),
    "of rows": (lambda x: x[2].view((2, 3), (3, 1)), X[2].reshape(2, 3)),
    "windows": (
        lambda x: x[0].view((4, 3), (1, 1)),
        np.lib.stride_tricks.sliding_window_view(X[0], 3),
    ),
    "tile": (lambda x: x.tile((2, 3), (1, 1)), X[2:4, 3:6]),
    "turned tile": (lambda x: x.transposed().tile((3, 2), (0, 1)), X.T[:3, 2:4]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    f, expected = VIEWS[name]
    found = run(transform, (1, 1), X, np.full(25, -1, F32), f)
    assert found[: expected.size].tolist() == expected.ravel().tolist()
    assert set(found[expected.size :]) == {-1}


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (5, 7), (9, 3)])
def test_tiles_are_read_and_written_inside_of_the_array(shape: tuple[int, int]) -> None:
    @cube.kernel
    def turn(x: cube.Tensor, out: cube.Tensor):
        tile = x.tile((4, 4), (cube.CUBE_POS.y, cube.CUBE_POS.x))
        into = out.tile((4, 4), (cube.CUBE_POS.x, cube.CUBE_POS.y))
        i, j = cube.UNIT_POS.y, cube.UNIT_POS.x
        into.put(j, i, value=tile.get(i, j, fill=-1) + x.get(i - 9, j, fill=1) * 100)

    x = counting(*shape)
    grid = (-(-shape[1] // 4), -(-shape[0] // 4))
    found = run(turn, (grid, (4, 4)), x, fresh(*shape[::-1]))
    np.testing.assert_array_equal(found, x.T + 100)


def test_lines_of_tensors() -> None:
    @cube.kernel
    def lines(x: cube.Tensor, out: cube.Tensor[cube.f32, 2, cube.lines(2)]):
        i = cube.UNIT_POS
        four = x.as_lines(2)
        cube.static_assert(out.rank == 2 and four.lanes == 2, "lines of two")
        for j in range(four.shape[1]):
            out[i, j] = four[i, j] * 2

    np.testing.assert_array_equal(run(lines, (1, 4), X, fresh(4, 6)), 2 * X)


def test_gathers_by_lines_of_indices() -> None:
    @cube.kernel
    def gather(x: cube.Array, at: cube.Array[cube.lines(4)], out: cube.Array[cube.lines(4)]):
        out[0] = x[at[0]]

    at = np.array([3, 0, 3, 1], np.int32)
    assert run(gather, (1, 1), counting(5) * 10, at, fresh(4)).tolist() == [30, 0, 30, 10]


def test_negative_indices_and_lengths() -> None:
    @cube.kernel
    def ends(x: cube.Tensor, out: cube.Array):
        out[0] = x[-1, -2]
        out[-1] = cube.f32(x.length + len(x) + x.rank + x.stride(0) + x.shape[1])

    assert run(ends, (1, 1), X, fresh(2)).tolist() == [22, 24 + 4 + 2 + 6 + 6]


def test_arrays_of_units_and_tables() -> None:
    @cube.kernel
    def reverse(x: cube.Array, out: cube.Array):
        kept = cube.LocalArray(cube.f32, (2, 3))
        weights = cube.constants([1.0, 10.0, 100.0])
        for k in cube.range(6):
            kept[k // 3, k % 3] = x[k]
        for k in cube.range(6):
            out[k] = kept[(5 - k) // 3, (5 - k) % 3] * weights[k % 3]

    expected = counting(6)[::-1] * np.array([1, 10, 100] * 2)
    assert run(reverse, (1, 1), counting(6), fresh(6)).tolist() == expected.tolist()


def test_results_that_begin_as_an_array() -> None:
    @cube.kernel
    def update(x: cube.Array, y: cube.Array, out: cube.Array):
        i = cube.ABSOLUTE_POS
        y[i] += x[i]
        out[i] = y[i] * 2

    x, y = counting(4), np.ones(4, F32)
    first, second = run(update, (4, 1), x, y, fresh(4))
    assert (first.tolist(), second.tolist()) == ([1, 2, 3, 4], [2, 4, 6, 8])
    assert y.tolist() == [1, 1, 1, 1]


# topology -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "dim"), [(3, 4), ((2, 3), (2, 2)), ((2, 1, 3), (1, 2, 2))])
def test_where_units_are(count: Any, dim: Any) -> None:
    @cube.kernel
    def places(out: cube.Tensor):
        unit = cube.ABSOLUTE_POS
        found = (
            (cube.CUBE_POS.x, cube.CUBE_POS.y, cube.CUBE_POS.z, cube.CUBE_POS),
            (cube.UNIT_POS.x, cube.UNIT_POS.y, cube.UNIT_POS.z, cube.UNIT_POS),
            (cube.CUBE_COUNT.x, cube.CUBE_COUNT.y, cube.CUBE_COUNT.z, cube.CUBE_COUNT),
            (cube.ABSOLUTE_POS.x, cube.ABSOLUTE_POS.y, cube.ABSOLUTE_POS.z, unit),
            (cube.CUBE_DIM.x, cube.CUBE_DIM.y, cube.CUBE_DIM.z, cube.CUBE_DIM),
        )
        for k, row in enumerate(found):
            for n, place in enumerate(row):
                out[unit, 4 * k + n] = cube.i32(place)

    counts, dims = ((*np.atleast_1d(sizes), 1, 1)[:3] for sizes in (count, dim))
    rows = []
    for number in range(math.prod(counts)):
        cube_pos = np.unravel_index(number, counts[::-1])[::-1]
        for unit in range(math.prod(dims)):
            unit_pos = np.unravel_index(unit, dims[::-1])[::-1]
            absolute = np.multiply(cube_pos, dims) + unit_pos
            flat = number * math.prod(dims) + unit
            rows.append(
                (
                    *(*cube_pos, number, *unit_pos, unit, *counts, math.prod(counts)),
                    *(*absolute, flat, *dims, math.prod(dims)),
                )
            )
    found = run(places, (count, dim), fresh(len(rows), 20, dtype=np.int32))
    assert found.tolist() == np.array(rows).tolist()


def test_units_of_a_cube_share_memory() -> None:
    @cube.kernel
    def total(x: cube.Array, out: cube.Array):
        size = cube.CUBE_DIM.x
        shared = cube.SharedMemory(cube.f32, size)
        unit = cube.UNIT_POS
        shared[unit] = x[cube.ABSOLUTE_POS]
        cube.sync_cube()
        while size > 1:
            size //= 2
            if unit < size:
                shared[unit] += shared[unit + size]
            cube.sync_cube()
        if unit == 0:
            out[cube.CUBE_POS] = shared[0]

    x = counting(24)
    np.testing.assert_array_equal(run(total, (3, 8), x, fresh(3)), x.reshape(3, 8).sum(1))


def test_planes() -> None:
    @cube.kernel
    def planes(x: cube.Array, out: cube.Tensor, bits: cube.Array):
        i = cube.ABSOLUTE_POS
        v, lane = x[i], cube.UNIT_POS_PLANE
        found = (
            cube.plane_sum(v),
            cube.plane_max(v) - cube.plane_min(v),
            cube.plane_prod(cube.f32(1) + v * 0),
            cube.plane_inclusive_sum(v),
            cube.plane_exclusive_sum(v),
            cube.plane_broadcast(v, 3),
            cube.plane_shuffle(v, 31 - lane),
            cube.plane_shuffle_xor(v, 1),
            cube.plane_shuffle_up(v, 2),
            cube.plane_shuffle_down(v, 1),
            1.0 if cube.plane_any(v > 30) else 0.0,
            1.0 if cube.plane_all(v > 30) else 0.0,
            1.0 if cube.plane_elect() else 0.0,
            cube.f32(cube.PLANE_POS),
        )
        for k, value in enumerate(found):
            out[k, i] = value
        bits[i] = cube.plane_ballot(v % 2 == 1)

    x = np.random.default_rng(0).permutation(64).astype(F32)
    found, bits = run(planes, (1, 64), x, fresh(14, 64), fresh(64, dtype=np.uint32))
    rows, k = x.reshape(2, 32), np.arange(32)

    def wide(values: np.ndarray) -> np.ndarray:
        return np.repeat(values[:, None], 32, 1)

    expected = [
        wide(rows.sum(1)),
        wide(rows.max(1) - rows.min(1)),
        np.ones((2, 32)),
        rows.cumsum(1),
        rows.cumsum(1) - rows,
        wide(rows[:, 3]),
        rows[:, ::-1],
        rows[:, k ^ 1],
        rows[:, np.where(k < 2, k, k - 2)],
        rows[:, np.where(k == 31, k, k + 1)],
        wide(1.0 * (rows > 30).any(1)),
        wide(1.0 * (rows > 30).all(1)),
        np.tile(1.0 * (k == 0), (2, 1)),
        wide(np.arange(2)),
    ]
    np.testing.assert_array_equal(found, np.array(expected).reshape(14, 64))
    ballots = ((rows % 2 == 1) * (1 << k)).sum(1)
    np.testing.assert_array_equal(bits.reshape(2, 32), wide(ballots))


def test_atomics() -> None:
    @cube.kernel
    def atomics(x: cube.Array, out: cube.Array):
        v = x[cube.ABSOLUTE_POS]
        cube.atomic_add(out, 0, v)
        cube.atomic_sub(out, 1, v)
        cube.atomic_min(out, 2, v)
        cube.atomic_max(out, 3, v)
        cube.atomic_and(out, 4, v | 8)
        cube.atomic_or(out, 5, v)
        cube.atomic_xor(out, 6, v)
        old = cube.atomic_exchange(out, 7, 1)
        cube.atomic_add(out, 8, old)
        seen = cube.atomic_compare_exchange(out, 9, 0, v)
        if seen != 0:
            cube.atomic_add(out, 10, 1)
        cube.atomic_add(out, 11, cube.atomic_load(out, 12))
        cube.atomic_store(out, 13, 5)

    x = np.array([3, 9, 4, 6], np.int32)
    begin = np.array([0, 0, 99, 0, -1, 0, 0, 0, 0, 0, 0, 0, 2, 0], np.int32)
    found = run(atomics, (2, 2), x, begin)
    assert found.tolist() == [22, -22, 3, 9, 8, 15, 3 ^ 9 ^ 4 ^ 6, 1, 3, 3, 3, 8, 2, 5]


def test_a_histogram_in_shared_memory() -> None:
    @cube.kernel
    def histogram(x: cube.Array, out: cube.Array):
        bins = cube.SharedMemory(cube.u32, 8)
        if cube.UNIT_POS < 8:
            bins[cube.UNIT_POS] = 0
        cube.sync_cube()
        for i in range(cube.UNIT_POS, x.length, cube.CUBE_DIM):
            cube.atomic_add(bins, x[i], 1)
        cube.sync_cube()
        if cube.UNIT_POS < 8:
            out[cube.UNIT_POS] = bins[cube.UNIT_POS]

    x = np.random.default_rng(2).integers(0, 8, 100).astype(np.int32)
    found = run(histogram, (1, 16), x, fresh(8, dtype=np.uint32))
    assert found.tolist() == np.bincount(x, minlength=8).tolist()


# matrices and copies --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_products_of_fragments(dtype: Any) -> None:
    @cube.kernel
    def product(a: cube.Tensor, b: cube.Tensor, c: cube.Tensor, out: cube.Tensor):
        total, deep = cube.accumulator(c), cube.matrix_a(a[:, 0:]).shape[1]
        for k in range(0, a.shape[1], deep):
            left, right = cube.matrix_a(a[:, k:]), cube.matrix_b(b[k:, :])
            total = cube.multiply_add(left, right, total)
        total.store(out)

    random = np.random.default_rng(3)
    a, b = ((random.integers(-8, 9, s) / 4).astype(dtype) for s in ((16, 32), (32, 8)))
    c = random.integers(0, 5, (16, 8)).astype(F32)
    found = run(product, (1, 32), a, b, c, fresh(16, 8))
    np.testing.assert_array_equal(found, a.astype(F32) @ b.astype(F32) + c)


def test_copies_on_their_way() -> None:
    @cube.kernel
    def copies(x: cube.Tensor, out: cube.Tensor):
        tile = cube.SharedMemory(cube.f32, (8, 4))
        i = cube.UNIT_POS
        cube.copy_async(tile[i], x[i], i < 5)
        cube.commit_copies()
        cube.wait_copies()
        cube.sync_cube()
        for j in range(4):
            out[i, j] = tile[7 - i, j]

    x = counting(8, 4)
    expected = np.where(np.arange(8)[:, None] < 5, x, 0)[::-1]
    np.testing.assert_array_equal(run(copies, (1, 8), x, fresh(8, 4)), expected)


def test_boxes_and_barriers() -> None:
    @cube.kernel
    def boxes(x: cube.Tensor, out: cube.Tensor):
        rows = cube.boxes(x, (4, 32))
        tile = cube.SharedMemory(cube.f32, (8, 32))
        ready = cube.barriers(1)
        unit = cube.UNIT_POS
        if unit == 0:
            ready.set(0, 1)
        cube.sync_cube()
        if unit == 0:
            rows.copy(tile, (1, 0), ready, 0)
            ready.arrive(0, rows.nbytes)
        ready.wait(0, 0)
        for row in range(4):
            place = (unit // 4 ^ row) * 4 + unit % 4
            out[row, unit] = tile[row, place]

    x = counting(5, 32)
    expected = np.concatenate([x[1:], np.zeros((0, 32), F32)])
    np.testing.assert_array_equal(run(boxes, (1, 32), x, fresh(4, 32)), expected)


# parameters -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Affine:
    weight: cube.Array
    bias: cube.f32
    size: cube.comptime = 2


@dataclass(frozen=True)
class Model:
    layer: Affine
    out: cube.Array


def test_bundles_of_arrays() -> None:
    @cube.kernel
    def apply(x: cube.Array, model: Model):
        i = cube.ABSOLUTE_POS
        layer = model.layer
        for k in range(layer.size):
            model.out[i] = x[i] * layer.weight[k] + layer.bias
            layer = Affine(layer.weight, layer.bias + 1, layer.size)

    model = Model(Affine(np.array([2, 3], F32), 0.5), fresh(3))
    assert run(apply, (3, 1), counting(3), model).tolist() == [1.5, 4.5, 7.5]


def test_parameters_that_nothing_is_said_of() -> None:
    @cube.kernel
    def free(x, out, scale, count, name, f):
        i = cube.ABSOLUTE_POS
        cube.static_assert(scale.dtype == cube.f32 and count.dtype == cube.i32, "inferred")
        for j in range(x.shape[1]):
            out[i, j] = f(x[i, j]) * scale + cube.f32(count) if name == "a" else x[i, j]

    args = (X, fresh(4, 6), 2.0, 3, "a", lambda v: v + 1)
    np.testing.assert_array_equal(run(free, (4, 1), *args), (X + 1) * 2 + 3)


@pytest.mark.parametrize("scale", [2, 2.0, np.float32(2), jnp.asarray(2.0)])
def test_scalars(scale: Any) -> None:
    @cube.kernel
    def scaled(x: cube.Array, out: cube.Array, scale: cube.f32, n: int = 2, on: bool = True):
        i = cube.ABSOLUTE_POS
        if i < n and on:
            out[i] = x[i] * scale
        else:
            out[i] = 0

    assert run(scaled, (4, 1), counting(4), fresh(4), scale, n=3).tolist() == [0, 2, 4, 0]
    assert run(scaled, (4, 1), counting(4), fresh(4), scale, on=False).tolist() == [0] * 4


# launched, in programs, with derivatives ------------------------------------------------------


@cube.kernel
def damped(x: cube.Array, y: cube.Array, out: cube.Array, alpha: cube.f32):
    i = cube.ABSOLUTE_POS
    if i < out.length:
        out[i] = alpha * cube.tanh(x[i]) + y[i] * y[i]


def same(x: Any, y: Any, alpha: float) -> Any:
    return alpha * jnp.tanh(x) + y * y


def test_a_launch_is_what_the_interpreter_gives() -> None:
    x, y = counting(7) / 7, counting(7)
    args = (x, y, fresh(7), 2.0)
    np.testing.assert_allclose(np.asarray(damped[7, 1](*args)), run(damped, (7, 1), *args), 1e-6)


def test_prints_and_asserts(capsys: Any) -> None:
    @cube.kernel
    def loud(x: cube.Array, out: cube.Array):
        i = cube.ABSOLUTE_POS
        cube.debug_print("{} has {}", i, x[i])
        assert x[i] < 3, "x is small"
        out[i] = x[i]

    assert np.asarray(loud[3, 1](counting(3), fresh(3))).tolist() == [0, 1, 2]
    xcube.effects_barrier()
    assert capsys.readouterr().out.splitlines() == [f"{i} has {i}.0" for i in range(3)]
    with pytest.raises(AssertionError, match=r"x is small\. At test_cube_language_memory\.py:\d+"):
        np.asarray(loud[2, 2](counting(4), fresh(4)))
        xcube.effects_barrier()


def test_kernels_in_programs() -> None:
    f = cube.call(cube.differentiable(damped), out=fresh(5), grid=(5, 1), alpha=2.0)
    x, y = jnp.asarray(counting(5) / 5), jnp.asarray(counting(5))
    np.testing.assert_allclose(xcube.jit(f)(x, y), same(x, y, 2.0), 1e-6)
    batch = jnp.stack([x, x + 1, x + 2])
    found = xcube.vmap(f, (0, None))(batch, y)
    np.testing.assert_allclose(found, xcube.vmap(lambda x: same(x, y, 2.0))(batch), 1e-6)
    for which in (0, 1):
        found = xcube.grad(lambda x, y: jnp.sum(f(x, y)), which)(x, y)
        wanted = xcube.grad(lambda x, y: jnp.sum(same(x, y, 2.0)), which)(x, y)
        np.testing.assert_allclose(found, wanted, 1e-5)


def test_sanitized_launches_run_in_the_interpreter() -> None:
    @cube.kernel(checked=False)
    def racing(x: cube.Array, out: cube.Array):
        out[0] = x[cube.ABSOLUTE_POS]

    with config.using(sanitize=True), pytest.raises(KernelError, match="a race: element 0"):
        racing[4, 1](counting(4), fresh(1))
    with config.using(sanitize=True):
        f = xcube.jit(cube.call(damped, out=fresh(5), grid=(5, 1), alpha=2.0))
        np.testing.assert_allclose(
            f(counting(5), counting(5)), same(counting(5), counting(5), 2.0), 1e-6
        )


def test_what_a_device_has_is_known() -> None:
    @cube.kernel
    def asks(out: cube.Array):
        kinds = {"cpu": 1.0, "cuda": 2.0}
        out[0] = kinds[cube.device.kind] if cube.device.units > 0 else 0.0
        out[1] = 1.0 if cube.device.has("a feature that nothing has") else 0.0

    assert run(asks, (1, 1), fresh(2)).tolist()[1] == 0


def test_kernels_compile_for_gpus(tmp_path: Any) -> None:
    """One text for every device: units, shared memory, planes, atomics and lines."""
    try:
        cuda_compile.version()
    except DeviceError as error:
        pytest.skip(str(error))

    @cube.kernel
    def everything(x: cube.Array[cube.lines(4)], out: cube.Array, steps: cube.i32):
        shared = cube.SharedMemory(cube.f32, cube.CUBE_DIM)
        i = cube.ABSOLUTE_POS
        total = 0.0
        for k in range(i, x.length, cube.CUBE_COUNT * cube.CUBE_DIM):
            total += cube.exp(x[k]).sum()
            if total > 100 and steps > 3:
                break
        shared[cube.UNIT_POS] = cube.plane_sum(total)
        cube.sync_cube()
        cube.atomic_add(out, cube.CUBE_POS, shared[0])

    x = np.zeros(256, F32)
    found = run(everything, (2, 32), x, np.zeros(2, F32), 1)
    assert found.tolist() == [32 * 32 * 4.0] * 2  # each unit of a plane adds the plane's sum
    (expansion,) = everything.known.values()
    text = cuda.emit(decompose.decompose(expansion.kernel))
    with config.using(cache=str(tmp_path)):
        (code,) = cuda_compile.compile([("kernel", text)], "sm_90a")
    assert code.startswith(b"\x7fELF")
