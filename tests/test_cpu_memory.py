"""Buffers of the CPU device share memory with NumPy, and the allocator reuses, counts, refuses."""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

from xcube import config, errors
from xcube.lowering.device.base import Buffer
from xcube.lowering.device.cpu import Cpu, device
from xcube.lowering.device.cpu_memory import Allocator, Foreign, capacity_of

F32 = np.dtype(np.float32)
I32 = np.dtype(np.int32)
U8 = np.dtype(np.uint8)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Cpu:
    with config.using(cache=str(tmp_path_factory.mktemp("cache"))):
        return device()


def ints(cpu: Cpu, values: object) -> Buffer:
    return cpu.from_host(np.asarray(values, np.int32))


# Buffers


def test_buffers_and_numpy_share_memory(cpu: Cpu):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    buffer = cpu.from_host(x)
    x[:] = 0
    view = buffer.numpy((4, 3), F32)
    address = buffer.pointer
    del buffer
    gc.collect()
    reused = [cpu.allocate(48) for _ in range(50)]
    assert address not in [block.pointer for block in reused]
    np.testing.assert_array_equal(view.ravel(), np.arange(12))
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5),
        np.zeros((0, 4), np.int8),
        np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(10)[::-2],
        np.arange(6000.0).reshape(60, 100).T,
        np.array([True, False, True]),
        np.array([1 + 2j, 3]),
        np.array([1.5, -2.25, 3e38], ml_dtypes.bfloat16),
        np.array([1, -2, 7], ml_dtypes.int4),
        np.array([0.5, 448], ml_dtypes.float8_e4m3fn),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
@pytest.mark.parametrize("copy", [True, False])
def test_arrays_of_every_kind_come_back(cpu: Cpu, array: np.ndarray, copy: bool):
    buffer = cpu.from_host(array, copy=copy)
    assert buffer.nbytes == array.nbytes
    back = buffer.numpy(array.shape, array.dtype)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_what_is_no_number_is_refused(cpu: Cpu):
    for array in (np.array([object()]), np.arange(3).astype(">i4")):
        with pytest.raises(errors.DtypeError, match="from_host"):
            cpu.from_host(array)


def test_views_beyond_the_buffer_are_refused(cpu: Cpu):
    with pytest.raises(errors.DeviceError, match="16 bytes"):
        ints(cpu, range(4)).numpy((5,), F32)


def aligned(count: int) -> np.ndarray:
    raw = np.zeros(4 * count + 64, np.uint8)
    start = -raw.__array_interface__["data"][0] % 64
    return raw[start : start + 4 * count].view(np.int32)


def test_aligned_memory_can_be_used_in_place(cpu: Cpu):
    x = aligned(20)
    x[:] = range(20)
    buffer = cpu.from_host(x, copy=False)
    assert buffer.foreign
    assert not buffer.writable
    assert buffer.capacity == 128
    x[3] = 77
    assert buffer.numpy((20,), I32)[3] == 77
    assert not cpu.from_host(x).foreign
    assert not cpu.from_host(x[1:], copy=False).foreign


def test_foreign_memory_lives_with_its_buffer():
    class Owner:
        pass

    owner = Owner()
    x = aligned(4)
    buffer = Foreign(x.__array_interface__["data"][0], 16, owner)
    count = sys.getrefcount(owner)
    view = buffer.numpy((4,), I32)
    del buffer
    assert sys.getrefcount(owner) == count
    assert view.tolist() == [0, 0, 0, 0]
    del view
    assert sys.getrefcount(owner) == count - 1
    with pytest.raises(errors.DeviceError, match="multiple of 64"):
        Foreign(x.__array_interface__["data"][0] + 4, 12, x)


# Memory


def test_capacities_waste_at_most_a_quarter():
    for nbytes in [*range(1, 5000, 7), *(2**k + d for k in range(12, 45) for d in (-1, 0, 1))]:
        capacity = capacity_of(nbytes)
        assert capacity >= max(256, nbytes)
        assert capacity % 256 == 0
        assert capacity - nbytes < max(256, nbytes / 4)
        assert capacity_of(capacity) == capacity


@pytest.mark.parametrize("nbytes", [0, 1, 256, 3000, 70_000, 1 << 20, 5_000_000])
def test_blocks_are_disjoint_aligned_and_reused(nbytes: int):
    allocator = Allocator()
    blocks = [allocator.allocate(nbytes) for _ in range(20)]
    starts = sorted(block.pointer for block in blocks)
    capacity = blocks[0].capacity
    assert all(start % 64 == 0 for start in starts)
    assert all(b - a >= capacity for a, b in itertools.pairwise(starts))
    if capacity >= 1 << 20:
        assert all(start % (1 << 21) == 0 for start in starts)
    for block in blocks:
        assert block.numpy((nbytes,), U8).size == nbytes
    assert allocator.stats().bytes_in_use == 20 * capacity
    reserved = allocator.stats().bytes_reserved
    del block, blocks
    gc.collect()
    assert allocator.stats().bytes_in_use == 0
    again = [allocator.allocate(nbytes) for _ in range(20)]
    assert sorted(block.pointer for block in again) == starts or capacity < 1 << 16
    assert allocator.stats().bytes_reserved == reserved
    assert allocator.stats().peak_bytes_in_use == 20 * capacity
    del again
    gc.collect()
    assert allocator.trim() == reserved
    assert allocator.stats().bytes_reserved == 0


def test_trim_keeps_what_is_in_use():
    allocator = Allocator()
    blocks = [allocator.allocate(size) for size in (100, 100, 5000, 1 << 20, 1 << 21)]
    kept = blocks[::2]
    contents = [block.numpy((10,), U8).copy() for block in kept]
    del blocks
    allocator.trim()
    assert allocator.stats().bytes_in_use == sum(block.capacity for block in kept)
    for block, content in zip(kept, contents, strict=True):
        np.testing.assert_array_equal(block.numpy((10,), U8), content)
    fresh = [allocator.allocate(100) for _ in range(2000)]
    pointers = {block.pointer for block in fresh} | {block.pointer for block in kept}
    assert len(pointers) == 2000 + len(kept)


def test_impossible_sizes_are_refused(cpu: Cpu):
    for nbytes in (cpu.memory_stats().limit + 1, 1 << 50, 1 << 62, 1 << 70):
        with pytest.raises(errors.OutOfMemoryError, match=f"{nbytes} bytes"):
            cpu.allocate(nbytes)
    with pytest.raises(errors.DeviceError, match="negative"):
        cpu.allocate(-1)
    assert cpu.allocate(100).nbytes == 100


def test_the_limit_counts_what_is_in_use_not_what_is_cached():
    mib = 1 << 20
    allocator = Allocator(limit=10 * mib)
    first = allocator.allocate(6 * mib)
    with pytest.raises(errors.OutOfMemoryError, match=r"6\.0 MiB and the limit is 10\.0 MiB"):
        allocator.allocate(5 * mib)
    del first
    gc.collect()
    assert allocator.allocate(8 * mib).capacity == 8 * mib


def test_a_failing_system_call_is_out_of_memory(monkeypatch: pytest.MonkeyPatch):
    allocator = Allocator(limit=1 << 60)
    monkeypatch.setattr("xcube.lowering.device.cpu_memory.available_memory", lambda: 1 << 60)
    with pytest.raises(errors.OutOfMemoryError, match=f"{1 << 57} bytes"):
        allocator.allocate(1 << 57)


def test_a_program_that_does_not_fit_raises_and_leaks_nothing(cpu: Cpu):
    huge = cpu.memory_stats().limit
    program = cpu.link([], [], 0, (4096, huge))
    gc.collect()
    before = cpu.memory_stats().bytes_in_use
    with pytest.raises(errors.OutOfMemoryError):
        program([])
    gc.collect()
    assert cpu.memory_stats().bytes_in_use == before


def test_threads_allocate_at_once():
    allocator, failures = Allocator(), []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        held: list[tuple[object, np.ndarray]] = []
        for turn in range(1500):
            block = allocator.allocate(int(random.integers(1, 3000)))
            writable = np.frombuffer(
                (ctypes.c_uint8 * block.nbytes).from_address(block.pointer), np.uint8
            )
            writable[:] = turn % 251
            held.append((block, writable))
            if len(held) > 30:
                _, oldest = held.pop(0)
                if (oldest != (turn - 30) % 251).any():
                    failures.append((seed, turn))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    gc.collect()
    assert allocator.stats().bytes_in_use == 0
