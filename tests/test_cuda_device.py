"""The CUDA device on GPUs where there are some, and on a stand-in for the driver everywhere: memory
that is reused, copies that are waited for, programs as graphs, control flow, faults, other
libraries' arrays."""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fake_cuda
import numpy as np
import pytest
from device_programs import RandomProgram, Reference

from xcube import dtypes, errors
from xcube.array import DeviceArray
from xcube.ir import Aval
from xcube.lowering.device import cuda, cuda_code, cuda_compile, cuda_driver, cuda_exchange
from xcube.lowering.device.base import (
    Copy,
    HostCall,
    Launch,
    Loop,
    Operand,
    Ref,
    Register,
    Step,
)
from xcube.lowering.device.cuda_memory import capacity_of
from xcube.lowering.device.cuda_plan import Bases, Planner, Straight

I32 = np.dtype(np.int32)
X, Y, OUT = Ref("input", 0), Ref("input", 1), Ref("output", 0)


# kernels: as CUDA for a GPU, as Python for the stand-in ---------------------------------------


def text(name: str, parameters: str, body: str) -> tuple[str, str]:
    """A kernel of one thread for each cube `i`."""
    return (
        name,
        "// cube_dim 1 1 1 threads 256 shared 0 scratch 0\n"
        f'extern "C" __global__ void {name}({parameters}, long long cubes) {{\n'
        "  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;\n"
        f"  if (i >= cubes) return;\n  {body}\n}}\n",
    )


ADD = text("add", "const int* x, const int* y, int* z", "z[i] = x[i] + y[i];")
AFFINE = text(
    "affine", "const int* x, int* y, long long m, long long c", "y[i] = x[i] * (int)m + (int)c;"
)
LESS = text("less", "const int* x, bool* y, long long limit", "y[i] = x[i] < (int)limit;")
TEXTS = (ADD, AFFINE, LESS)

# A thread with room of its own in memory, that takes every n-th cube; and a cube of four threads.
ROOMY = (
    "roomy",
    """// cube_dim 1 1 1 threads 64 shared 0 scratch 1048576
extern "C" __global__ void roomy(int* x, long long cubes, char* room) {
  const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  int* mine = (int*)(room + first * 1048576);
  for (long long i = first; i < cubes; i += (long long)gridDim.x * blockDim.x) {
    mine[262143] = (int)i;
    x[i] = mine[262143];
  }
}
""",
)
BLOCKS = (
    "blocks",
    """// cube_dim 4 1 1 threads 4 shared 16 scratch 0
extern "C" __global__ void blocks(int* x, long long cubes) {
  extern __shared__ int shared[];
  shared[threadIdx.x] = (int)threadIdx.x;
  __syncthreads();
  x[blockIdx.x * 4 + threadIdx.x] = 10 * (int)blockIdx.x + shared[3 - threadIdx.x];
}
""",
)


def _add(driver: Any, cells: Sequence[int]) -> None:
    x, y, z = (driver.array(pointer, cells[3]) for pointer in cells[:3])
    z[:] = x + y


def _affine(driver: Any, cells: Sequence[int]) -> None:
    x, y = (driver.array(pointer, cells[4]) for pointer in cells[:2])
    m, c = np.array(cells[2:4], np.uint64).astype(np.int32)
    y[:] = x * m + c


def _less(driver: Any, cells: Sequence[int]) -> None:
    x, y = driver.array(cells[0], cells[3]), driver.array(cells[1], cells[3], np.bool_)
    y[:] = x < cells[2]


def _roomy(driver: Any, cells: Sequence[int]) -> None:
    driver.array(cells[2], 64 << 18)[-1] = 1
    driver.array(cells[0], cells[1])[:] = range(cells[1])


def _blocks(driver: Any, cells: Sequence[int]) -> None:
    cubes = np.arange(cells[1])[:, None]
    driver.array(cells[0], 4 * cells[1])[:] = np.ravel(10 * cubes + [3, 2, 1, 0])


KERNELS = {
    "add": (4, _add),
    "affine": (5, _affine),
    "less": (4, _less),
    "roomy": (3, _roomy),
    "blocks": (2, _blocks),
}


def fake_compile(sources: Sequence[tuple[str, str]], target: str) -> list[bytes]:
    return [name.encode() for name, _ in sources]


@functools.cache
def gpus() -> int:
    return cuda.found()[0]


class Machine:
    """A device, and the driver that stands behind it if that is not the real one."""

    def __init__(self, device: cuda.Cuda, driver: Any = None) -> None:
        self.device, self.driver = device, driver
        self.kernels = device.compile(TEXTS)

    def ints(self, values: Any) -> Any:
        return self.device.from_host(np.asarray(values, np.int32))

    def link(self, steps: Sequence[Step], *args: Any, **options: Any) -> Any:
        return self.device.link(self.kernels, steps, *args, **options)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(cuda_compile, "compile", fake_compile)
    driver = fake_cuda.FakeDriver(KERNELS)
    return Machine(cuda.Cuda(driver, 0), driver)


@pytest.fixture(params=["fake", "gpu"])
def machine(request: pytest.FixtureRequest) -> Machine:
    if request.param == "fake":
        return request.getfixturevalue("fake")
    if not gpus():
        pytest.skip(cuda.found()[1])
    return Machine(cuda.device())


def values(buffer: Any, count: int) -> list[int]:
    return buffer.numpy((count,), I32).tolist()


# devices --------------------------------------------------------------------------------------


def test_a_device_tells_what_it_is(fake: Machine):
    facts = fake.device.facts()
    assert (facts.name, facts.kind, facts.model, facts.cores) == ("cuda:0", "cuda", "Fake GPU", 4)
    assert facts.lanes(4) == 4
    assert fake.device.has("sm_90a")
    assert fake.device.has("tma")
    assert repr(fake.device) == "Device('cuda:0', 'Fake GPU')"


def test_without_a_driver_there_is_a_reason(monkeypatch: pytest.MonkeyPatch):
    def absent() -> Any:
        raise errors.DeviceError("cuda: no driver")

    monkeypatch.setattr(cuda_driver, "bindings", absent)
    monkeypatch.setattr(cuda, "found", cuda.found.__wrapped__)
    assert cuda.found() == (0, "cuda: no driver")
    assert cuda.devices() == []
    with pytest.raises(errors.DeviceError, match=r"no 'cuda:0'; cuda: no driver"):
        cuda.device(0)


def test_an_old_driver_is_refused():
    driver = fake_cuda.FakeDriver({})
    driver.version = 12_020
    with pytest.raises(errors.DeviceError, match=r"CUDA 12\.4 or newer; got 12\.2"):
        cuda_driver.initialize(driver)


def test_the_bindings_have_what_is_called():
    """Every function, with as many arguments as it is called with, and every enumeration."""
    driver = pytest.importorskip("cuda.bindings.driver")
    folder = Path(cuda.__file__).parent
    checked = set()
    for path in folder.glob("cuda_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and re.match(r"cu[A-Z]|CU", node.attr):
                if node.attr.startswith("CU_"):  # a member of the enumeration before it
                    assert isinstance(node.value, ast.Attribute)
                    assert hasattr(getattr(driver, node.value.attr), node.attr), node.attr
                elif "compile" not in path.name:
                    assert hasattr(driver, node.attr), f"{path.name}: {node.attr}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = node.func.attr
                if re.match(r"cu[A-Z]", name) and not any(
                    isinstance(arg, ast.Starred) for arg in node.args
                ):
                    head = getattr(driver, name).__doc__.strip().splitlines()[0]
                    head = re.sub(r"\[[^\]]*\]", "", head)
                    wanted = [part for part in head.split("(", 1)[1].split(",") if part.strip(" )")]
                    assert len(node.args) == len(wanted), f"{path.name}: {name}"
                    checked.add(name)
    assert len(checked) > 30


# memory ---------------------------------------------------------------------------------------


def test_capacities_waste_at_most_a_sixteenth():
    for nbytes in [*range(1, 70_000, 97), *(2**k + d for k in range(12, 40) for d in (-1, 0, 1))]:
        capacity = capacity_of(nbytes)
        assert capacity >= nbytes
        assert capacity % 512 == 0
        assert capacity - nbytes < max(512, nbytes / 16 + 1)
        assert capacity_of(capacity) == capacity


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5),
        np.zeros((0, 4), np.int8),
        np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(10)[::-2],
        np.array([True, False, True]),
        np.array([1 + 2j, 3]),
        np.array([1.5, -2.25, 3e38], dtypes.bfloat16),
        np.arange(3_000_001, dtype=np.int32),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_arrays_of_every_kind_come_back(machine: Machine, array: np.ndarray):
    source = array.copy()
    buffer = machine.device.from_host(source)
    source[...] = 0  # the device must not need it any more
    assert buffer.nbytes == array.nbytes
    back = buffer.numpy(array.shape, array.dtype)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
    assert not back.flags.writeable


def test_what_is_no_number_is_refused(machine: Machine):
    for array in (np.array([object()]), np.arange(3).astype(">i4")):
        with pytest.raises(errors.DtypeError, match="from_host"):
            machine.device.from_host(array)
    with pytest.raises(errors.DeviceError, match="16 bytes"):
        machine.ints(range(4)).numpy((5,), I32)
    with pytest.raises(errors.DeviceError, match="negative"):
        machine.device.allocate(-1)


def test_blocks_are_reused_without_the_driver(fake: Machine):
    device, calls = fake.device, fake.driver.calls
    first = device.allocate(5000)
    pointer = first.pointer
    assert pointer % 256 == 0
    made = calls["cuMemAllocFromPoolAsync"]
    del first
    total = sum(calls.values())
    again = device.allocate(4900)
    assert again.pointer == pointer
    assert sum(calls.values()) == total
    other = device.allocate(5000)
    assert other.pointer != pointer
    assert calls["cuMemAllocFromPoolAsync"] == made + 1
    stats = device.memory_stats()
    assert stats.bytes_in_use == stats.peak_bytes_in_use == 2 * capacity_of(5000)


def test_trim_gives_back_what_is_unused(machine: Machine):
    device = machine.device
    device.trim()
    size = max(1 << 22, device.facts().memory_bytes >> 10)  # the system takes whole pieces
    kept, dropped = machine.ints(range(100)), device.allocate(size)
    del dropped
    assert device.trim() >= size // 2
    assert values(kept, 100) == list(range(100))
    assert device.memory_stats().bytes_reserved >= device.memory_stats().bytes_in_use


def test_unused_blocks_make_room_for_others(fake: Machine):
    small = [fake.device.allocate(1 << 20) for _ in range(100)]
    del small
    assert fake.device.allocate(fake.driver.limit // 2).nbytes == fake.driver.limit // 2


class Holder:
    """What an array is to the device: it has an aval and a buffer."""

    def __init__(self, aval: str, buffer: Any) -> None:
        self._aval, self.buffer = aval, buffer


def test_out_of_memory_says_who_holds_it(fake: Machine):
    held = [Holder("f32[4194304]", fake.device.allocate(1 << 24)) for _ in range(6)]
    scratch = fake.device.allocate(1 << 20)
    with pytest.raises(errors.OutOfMemoryError) as caught:
        fake.device.allocate(1 << 25)
    message = str(caught.value)
    assert f"{1 << 25} bytes" in message
    assert re.search(r"6 x +16\.0 MiB = +96\.0 MiB  f32\[4194304\]", message)
    assert re.search(r"1 x +1\.0 MiB = +1\.0 MiB  no array", message)
    assert "donate_argnums" in message
    del held, scratch
    assert fake.device.allocate(1 << 25).nbytes == 1 << 25


def test_impossible_sizes_are_refused(machine: Machine):
    for nbytes in (machine.device.memory_stats().limit + 1, 1 << 62):
        with pytest.raises(errors.OutOfMemoryError, match=f"{nbytes} bytes"):
            machine.device.allocate(nbytes)
    assert machine.device.allocate(100).nbytes == 100


# copies to the host ---------------------------------------------------------------------------


def test_results_are_computed_when_they_are_read(fake: Machine):
    (out,) = fake.link([Launch(0, (X, X, OUT), (), 4)], 1, (16,))([fake.ints([1, 2, 3, 4])])
    assert not out.is_ready()
    assert fake.driver.array(out.pointer, 4).tolist() == [0, 0, 0, 0]
    assert values(out, 4) == [2, 4, 6, 8]
    assert out.is_ready()


def test_a_started_copy_is_read_once(fake: Machine):
    buffer = fake.ints(range(1000))
    buffer.copy_to_host_async()
    buffer.copy_to_host_async()
    assert fake.driver.calls["cuMemcpyDtoHAsync"] == 1
    for _ in range(2):
        assert values(buffer, 1000) == list(range(1000))
    assert fake.driver.calls["cuMemcpyDtoHAsync"] == 1


def test_pinned_memory_is_not_reused_under_a_copy(machine: Machine):
    """Downloads that nobody waits for, uploads and downloads of one size at once."""
    arrays = [np.full(1 << 20, k, np.int32) for k in range(12)]
    buffers = [machine.device.from_host(array) for array in arrays]
    for buffer in buffers[::2]:
        buffer.copy_to_host_async()
    del buffers[::4]
    arrays = [array for k, array in enumerate(arrays) if k % 4]
    more = [machine.device.from_host(array + 100) for array in arrays]
    for buffer, array in zip(more, arrays, strict=True):
        np.testing.assert_array_equal(buffer.numpy(array.shape, I32), array + 100)
    for buffer, array in zip(buffers, arrays, strict=True):
        np.testing.assert_array_equal(buffer.numpy(array.shape, I32), array)


def test_a_copy_that_nobody_wants_ends_before_its_memory_is_free(fake: Machine):
    buffer = fake.ints(range(1000))
    buffer.copy_to_host_async()
    del buffer
    block = fake.device._transfers.pinned.take(4000)
    assert block is not None
    np.asarray(block)[:] = 7
    fake.device.synchronize()
    assert (np.asarray(block) == 7).all()


def test_what_was_read_stays_as_it_was(machine: Machine):
    buffer = machine.ints(range(8))
    view = buffer.numpy((8,), I32)
    program = machine.link([Launch(1, (X, OUT), (2, 1), 8)], 1, (32,), donated={0: 0})
    (out,) = program([buffer])
    assert out.pointer == buffer.pointer
    assert values(out, 8) == [2 * k + 1 for k in range(8)]
    del buffer, out, program
    machine.ints(np.zeros(8)).numpy((8,), I32)
    assert view.tolist() == list(range(8))


# programs without control flow ----------------------------------------------------------------


@pytest.mark.parametrize("cubes", [1, 7, 255, 256, 100_001])
def test_every_cube_runs_once(machine: Machine, cubes: int):
    x, y = np.random.default_rng(cubes).integers(-99, 99, (2, cubes), np.int32)
    program = machine.link([Launch(0, (X, Y, OUT), (), cubes)], 2, (4 * cubes,))
    (out,) = program([machine.ints(x), machine.ints(y)])
    np.testing.assert_array_equal(out.numpy((cubes,), I32), x + y)


def test_scalars_are_cells_of_64_bits(machine: Machine):
    program = machine.link([Launch(1, (X, OUT), (-3, 2**32 + 5), 10)], 1, (40,))
    assert values(program([machine.ints(range(10))])[0], 10) == [5 - 3 * k for k in range(10)]


def test_kernels_are_launched_as_their_texts_say(machine: Machine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cuda_code, "_SCRATCH", 64 << 20)  # for 64 threads of 1000 cubes
    kernels = machine.device.compile([ROOMY, BLOCKS])
    roomy = machine.device.link(kernels, [Launch(0, (OUT,), (), 1000)], 0, (4000,))
    assert values(roomy([])[0], 1000) == list(range(1000))
    blocks = machine.device.link(kernels, [Launch(1, (OUT,), (), 3)], 0, (48,))
    assert values(blocks([])[0], 12) == [3, 2, 1, 0, 13, 12, 11, 10, 23, 22, 21, 20]


def test_few_cubes_are_spread_over_the_cores(fake: Machine):
    function = fake.device._code.function(fake.kernels[0])
    extents = [function.extent(cubes, cores=4) for cubes in (1, 33, 512, 1024, 2048, 10**6)]
    assert [extent.block[0] for extent in extents] == [32, 32, 64, 128, 256, 256]
    assert [extent.grid[0] for extent in extents] == [1, 2, 8, 8, 8, 3907]


def test_offsets_arena_constants_and_several_outputs(machine: Machine):
    arena, constant = Ref("arena", 0, 512), machine.ints([100, 200, 300, 400])
    steps = [
        Launch(1, (X, arena), (2, 0), 4),
        Launch(0, (arena, Ref("constant", 0), OUT), (), 4),
        Copy(Ref("output", 1, 4), Ref("constant", 0, 8), 8),
        Copy(Ref("output", 1), Ref("input", 0, 4), 4),
        Launch(0, (X, X, X), (), 0),
        Copy(X, X, 16),
    ]
    program = machine.link(steps, 1, (16, 12), [constant], 1024)
    for _ in range(4):
        first, second = program([machine.ints([1, 2, 3, 4])])
        assert values(first, 4) == [102, 204, 306, 408]
        assert values(second, 3) == [2, 300, 400]


def test_a_program_without_steps_or_inputs(machine: Machine):
    assert machine.link([], 0, ())([]) == []
    (out,) = machine.link([], 0, (12,))([])
    assert out.nbytes == 12


LINKS = [Ref("arena", 0, 256 * k) for k in range(6)]
CHAIN = [
    Launch(0, (X, Y, LINKS[0]), (), 8),
    *(Launch(1, (LINKS[k], LINKS[k + 1]), (2, k), 8) for k in range(5)),
    Launch(0, (LINKS[5], X, OUT), (), 8),
]


def chained(x: np.ndarray, y: np.ndarray) -> list[int]:
    value = x + y
    for k in range(5):
        value = value * 2 + k
    return (value + x).tolist()


def test_a_program_becomes_a_graph_that_is_told_what_changed(fake: Machine):
    program, calls = fake.link(CHAIN, 2, (32,), arena_nbytes=4096), fake.driver.calls
    x, y = np.arange(8, dtype=np.int32), np.full(8, 3, np.int32)
    inputs = [fake.ints(x), fake.ints(y)]
    for _ in range(6):
        assert values(program(inputs)[0], 8) == chained(x, y)
    assert calls["cuLaunchKernel"] == 2 * len(CHAIN)
    assert (calls["cuGraphInstantiate"], calls["cuGraphLaunch"]) == (1, 4)
    kept = []
    for k in range(12):
        inputs[0] = fake.ints(x + k)
        kept.append(inputs[0])
        assert values(program(inputs)[0], 8) == chained(x + k, y)
    assert calls["cuGraphInstantiate"] == 4
    assert calls["cuGraphExecKernelNodeSetParams"] == 2 * (12 - 3)
    assert values(program([kept[-1], inputs[1]])[0], 8) == chained(x + 11, y)


def test_graphs_on_a_gpu_follow_their_pointers(machine: Machine):
    program = machine.link(CHAIN, 2, (32,), arena_nbytes=4096)
    x, y = np.arange(8, dtype=np.int32), np.full(8, 3, np.int32)
    kept = []
    for k in range(20):
        inputs = [machine.ints(x + k), machine.ints(y - k)]
        (out,) = program(inputs)
        kept.append((inputs if k % 3 else None, out, chained(x + k, y - k)))
    for _, out, expected in kept:
        assert values(out, 8) == expected


def test_few_launches_need_no_graph(fake: Machine):
    program = fake.link([Launch(0, (X, X, OUT), (), 4)], 1, (16,))
    for k in range(5):
        assert values(program([fake.ints([k] * 4)])[0], 4) == [2 * k] * 4
    assert fake.driver.calls["cuLaunchKernel"] == 5


def test_what_others_see_is_not_donated(machine: Machine):
    program = machine.link([Launch(1, (X, OUT), (3, 0), 4)], 1, (16,), donated={0: 0})
    owned, shared = machine.ints([1, 2, 3, 4]), machine.ints([1, 2, 3, 4])
    shared.share()
    assert program([owned])[0].pointer == owned.pointer
    (out,) = program([shared])
    assert values(out, 4) == [3, 6, 9, 12]
    assert values(shared, 4) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([Launch(9, (X,), (), 1)], "kernel 9; the program has 3"),
        ([Launch(0, (X, Ref("arena", 0), OUT), (), 1)], "arena 0; the program has 0"),
        ([Copy(OUT, Ref("register", 4), 4)], "register 4; the program has 0"),
        ([Copy(Ref("output", 2), X, 4)], "output 2; the program has 1"),
    ],
)
def test_what_is_not_there_is_refused(fake: Machine, steps: list[Step], message: str):
    with pytest.raises(errors.LoweringError, match=message):
        fake.link(steps, 1, (4,))


def test_wrong_calls_are_refused(fake: Machine):
    with pytest.raises(errors.LoweringError, match="one input is donated to several outputs"):
        fake.link([], 1, (4, 4), donated={0: 0, 1: 0})
    with pytest.raises(errors.LoweringError, match="output 0 takes over input 3"):
        fake.link([], 1, (4,), donated={0: 3})
    with pytest.raises(errors.DeviceError, match="needs 2 input buffers; got 1"):
        fake.link([], 2, ())([fake.ints([1])])
    program = fake.link([], 1, (64,), donated={0: 0})
    with pytest.raises(errors.DeviceError, match="must hold the 64 bytes of output 0; it has 4"):
        program([fake.ints([1])])


def test_threads_run_programs_at_once(machine: Machine):
    program = machine.link(CHAIN, 2, (32,), arena_nbytes=4096)
    failures: list[Any] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(30):
            x, y = random.integers(-9, 9, (2, 8), np.int32)
            try:
                (out,) = program([machine.ints(x), machine.ints(y)])
                if values(out, 8) != chained(x, y):
                    failures.append((x, y))
            except Exception as error:
                failures.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []


# control flow ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(
    ("limit", "conditional", "calls"),
    [
        (2048, True, False),
        (2048, True, True),
        (6, True, False),
        (2048, False, True),
        (1, False, True),
    ],
)
def test_random_programs(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    limit: int,
    conditional: bool,
    calls: bool,
):
    """In graphs, driven by the host, and mixed: the memory is the same afterwards."""

    def planner(bases: Bases, kernels: int, _: bool) -> Planner:
        return Planner(bases, kernels, conditional, limit)

    monkeypatch.setattr(cuda, "Planner", planner)
    maker = RandomProgram(seed, calls)
    seen = [X, Y]
    steps = maker.block(seen, 2, 4)
    results = seen[2:]
    steps += [Copy(Ref("output", 0, 32 * k), ref, 32) for k, ref in enumerate(results)]
    random = np.random.default_rng(seed)
    inputs = [*random.integers(-9, 9, (2, 8), np.int32), np.arange(-1, 7, dtype=np.int32)]
    nbytes = 32 * len(results)
    program = machine.link(steps, 3, (nbytes,), arena_nbytes=maker.offset + 256)
    for _ in range(4):
        arena, out = np.zeros(maker.offset + 512, np.uint8), np.zeros(nbytes, np.uint8)
        reference = Reference({"input": inputs, "output": [out], "arena": [arena]})
        with np.errstate(over="ignore"):
            reference.run(steps)
        (found,) = program([machine.ints(x) for x in inputs])
        np.testing.assert_array_equal(found.numpy((nbytes,), np.dtype(np.uint8)), out)
        inputs[0] = inputs[0] + 1


def counted(turns: int) -> list[Step]:
    """Add y to x so often."""
    read, write = Ref("register", 0), Ref("register", 1)
    registers = (
        Register(0, X),
        Register(1, Ref("arena", 0)),
        Register(2, Ref("arena", 0, 256)),
    )
    body = (Launch(0, (read, Y, write), (), 8),)
    return [Loop(turns, body, registers, ((0, 1, 2),)), Copy(OUT, read, 32)]


def test_long_loops_repeat_one_graph(fake: Machine):
    turns = 5000
    program = fake.link(counted(turns), 2, (32,), arena_nbytes=512)
    x, y = np.arange(8), np.arange(8) - 3
    inputs = [fake.ints(x), fake.ints(y)]
    for _ in range(4):
        assert values(program(inputs)[0], 8) == (x + turns * y).tolist()
    calls = fake.driver.calls
    assert calls["cuLaunchKernel"] < 3 * turns
    assert 0 < calls["cuGraphInstantiate"] <= 4


def test_loops_of_unknown_length_stay_on_the_gpu(fake: Machine):
    maker = RandomProgram(3, calls=False)
    steps = maker.until([X, Y], 1)
    bases = Bases(3, 1, (), True, steps)
    (plan,) = Planner(bases, 3).program(steps)
    assert isinstance(plan, Straight)
    program = fake.link(steps, 3, (4,), arena_nbytes=maker.offset)
    inputs = [fake.ints(range(8)) for _ in range(3)]
    before = fake.driver.calls["cuMemcpyDtoHAsync"]
    for _ in range(3):
        program(inputs)
    assert fake.driver.calls["cuMemcpyDtoHAsync"] == before
    assert fake.driver.calls["cuGraphLaunch"] == 3


def test_what_a_host_call_raises_arrives(machine: Machine):
    def refuse(arrays: Sequence[np.ndarray]) -> list[Any]:
        raise KeyError(int(arrays[0].sum()))

    operand = Operand(X, (4,), I32)
    program = machine.link([HostCall(refuse, (operand,), (), "user.py:7")], 1, ())
    with pytest.raises(KeyError, match="10") as caught:
        program([machine.ints([1, 2, 3, 4])])
    assert caught.value.__notes__ == ["Raised in the callback at user.py:7."]


# faults ---------------------------------------------------------------------------------------


def test_a_refused_launch_leaves_the_rest_alone(fake: Machine):
    program = fake.link([Launch(0, (X, X, OUT), (), 4)], 1, (16,))
    kept = fake.ints([1, 2, 3, 4])
    fake.driver.errors["cuLaunchKernel"] = 1
    with pytest.raises(errors.DeviceError, match="launch of kernel add failed: CUDA_ERROR_INVALID"):
        program([kept])
    fake.driver.errors["cuLaunchKernel"] = 2
    with pytest.raises(errors.OutOfMemoryError, match="launch of kernel add failed"):
        program([kept])
    assert values(program([kept])[0], 4) == [2, 4, 6, 8]


def test_a_fault_is_raised_when_a_result_is_read(fake: Machine):
    kept = fake.ints([1, 2, 3, 4])
    program = fake.link([Launch(0, (X, X, OUT), (), 4000)], 1, (16,))
    (out,) = program([kept])
    for _ in range(2):
        with pytest.raises(
            errors.DeviceError, match=r"memory that is not there .*ILLEGAL"
        ) as caught:
            values(out, 4)
    assert "Enqueued last: add." in str(caught.value)
    with pytest.raises(errors.DeviceError, match="only after a restart"):
        program([kept])
    with pytest.raises(errors.DeviceError, match="only after a restart"):
        fake.device.from_host(np.zeros(3))
    with pytest.raises(errors.DeviceError, match="only after a restart"):
        fake.device.synchronize()
    del out, kept, program
    gc.collect()  # nothing that dies calls the driver any more


def test_failing_allocations_leak_nothing(fake: Machine):
    program = fake.link(CHAIN, 2, (32, fake.driver.limit), arena_nbytes=4096)
    inputs = [fake.ints(range(8)), fake.ints(range(8))]
    before = fake.device.memory_stats().bytes_in_use
    with pytest.raises(errors.OutOfMemoryError):
        program(inputs)
    assert fake.device.memory_stats().bytes_in_use == before


# other libraries ------------------------------------------------------------------------------


class Tensor:
    """An array of another library on the GPU, as both protocols show it."""

    def __init__(self, buffer: Any, shape: tuple[int, ...], dtype: Any, versioned: bool) -> None:
        self.buffer, self.shape, self.dtype = buffer, shape, np.dtype(dtype)
        self.version = (1, 0) if versioned else None

    def __dlpack_device__(self) -> tuple[int, int]:
        return cuda_exchange.CUDA, self.buffer.context.ordinal

    def __dlpack__(self, stream: int | None = None, **options: Any) -> Any:
        return cuda_exchange.capsule(self.buffer, self.shape, self.dtype, stream, self.version)


class Interface:
    def __init__(self, **described: Any) -> None:
        self.__cuda_array_interface__ = described


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "float64", "complex64", "bool", "bfloat16"])
def test_dlpack_shares_memory_both_ways(machine: Machine, dtype: str, versioned: bool):
    array = np.arange(6).reshape(2, 3).astype(dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    ours = machine.device.from_host(array)
    pointer = ours.pointer
    buffer, shape, found = machine.device.import_array(Tensor(ours, (2, 3), array.dtype, versioned))
    del ours
    assert (buffer.pointer, shape, found) == (pointer, (2, 3), array.dtype)
    assert buffer.foreign
    assert not buffer.writable
    assert machine.device.allocate(array.nbytes).pointer != pointer
    np.testing.assert_array_equal(buffer.numpy(shape, found), array)
    del buffer
    assert machine.device.allocate(array.nbytes).pointer == pointer


def test_an_array_shows_where_it_is_and_shares_its_memory(machine: Machine):
    ours = machine.ints(range(4))
    array = DeviceArray(Aval((4,), I32), ours, machine.device)
    assert array.__dlpack_device__() == (cuda_exchange.CUDA, 0)
    buffer, shape, dtype = machine.device.import_array(array)
    assert (buffer.pointer, shape, dtype) == (ours.pointer, (4,), I32)
    assert values(buffer, 4) == [0, 1, 2, 3]


def test_a_capsule_that_nobody_takes_is_freed(machine: Machine):
    ours = machine.ints(range(4))
    pointer = ours.pointer
    capsule = cuda_exchange.capsule(ours, (4,), I32, -1)
    del ours
    assert machine.device.allocate(16).pointer != pointer
    del capsule
    assert machine.device.allocate(16).pointer == pointer


def test_others_see_what_is_computed(fake: Machine):
    ours, seen = fake.ints([1, 2, 3, 4]), []
    capsule = cuda_exchange.capsule(ours, (4,), I32, 77)
    theirs = fake.driver.CUstream(77)
    theirs.queue.append(lambda: seen.append(fake.driver.array(ours.pointer, 4).tolist()))
    theirs.run()
    assert seen == [[1, 2, 3, 4]]
    del capsule


def test_memory_that_others_saw_waits_for_them(fake: Machine):
    ours = fake.ints([1, 2, 3, 4])
    pointer, seen = ours.pointer, []
    capsule = cuda_exchange.capsule(ours, (4,), I32, 77)
    theirs = fake.driver.CUstream(77)
    theirs.queue.append(lambda: seen.append(fake.driver.array(pointer, 4).tolist()))
    del ours, capsule
    again = fake.ints([9, 9, 9, 9])
    assert again.pointer == pointer
    assert values(again, 4) == [9, 9, 9, 9]
    assert seen == [[1, 2, 3, 4]]


def test_foreign_memory_returns_after_its_readers(fake: Machine):
    ours = fake.ints([1, 2, 3, 4])
    fake.device.synchronize()
    buffer = fake.device.wrap(ours.pointer, 16, ours)
    (out,) = fake.link([Launch(0, (X, X, OUT), (), 4)], 1, (16,))([buffer])
    theirs = fake.driver.CUstream(77)
    del buffer
    theirs.queue.append(lambda: fake.driver.array(ours.pointer, 4).fill(0))
    theirs.run()
    assert values(out, 4) == [2, 4, 6, 8]
    with pytest.raises(errors.DeviceError, match="multiple of 256"):
        fake.device.wrap(ours.pointer + 4, 8, ours)


def test_the_array_interface_shares_memory_both_ways(machine: Machine):
    ours = machine.ints(range(6))
    described = cuda_exchange.interface(ours, (2, 3), I32)
    assert described["data"] == (ours.pointer, True)
    buffer, shape, dtype = machine.device.import_array(Interface(**described))
    assert (buffer.pointer, shape, dtype) == (ours.pointer, (2, 3), I32)
    described["data"] = (ours.pointer + 4, False)
    described["shape"] = (5,)
    moved, _, _ = machine.device.import_array(Interface(**described))
    assert not moved.foreign
    assert values(moved, 5) == [1, 2, 3, 4, 5]
    with pytest.raises(BufferError, match="no name for bfloat16"):
        cuda_exchange.interface(ours, (12,), np.dtype(dtypes.bfloat16))


def test_what_cannot_be_shared_is_refused(machine: Machine):
    ours = machine.ints(range(6))
    described = cuda_exchange.interface(ours, (2, 3), I32)
    described["strides"] = (4, 8)
    with pytest.raises(BufferError, match=r"row-major order; got shape \(2, 3\)"):
        machine.device.import_array(Interface(**described))
    tensor = Tensor(ours, (6,), I32, versioned=False)
    tensor.__dlpack_device__ = lambda: (2, 5)  # type: ignore[method-assign]
    capsule = tensor.__dlpack__()
    with pytest.raises(errors.DeviceError, match="must be on cuda:0; it is on device 5"):
        machine.device.import_array(_Shown(capsule, (2, 5)))
    machine.device.import_array(_Shown(capsule, (2, 0)))
    with pytest.raises(BufferError, match="nobody has taken yet"):
        machine.device.import_array(_Shown(capsule, (2, 0)))


class _Shown:
    def __init__(self, capsule: Any, place: tuple[int, int]) -> None:
        self.capsule, self.place = capsule, place

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule


@pytest.fixture
def torch() -> Iterator[Any]:
    if not gpus():
        pytest.skip(cuda.found()[1])
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch knows no GPUs")
    yield torch


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_torch_shares_memory_both_ways(torch: Any, dtype: str):
    device = cuda.device()
    tensor = torch.arange(256, device="cuda").to(getattr(torch, dtype)).reshape(16, 16)
    buffer, shape, found = device.import_array(tensor)
    assert (buffer.pointer, shape) == (tensor.data_ptr(), (16, 16))
    back = torch.from_dlpack(Tensor(buffer, shape, found, versioned=False))
    assert back.data_ptr() == tensor.data_ptr()
    assert back.dtype == tensor.dtype
    assert bool((back == tensor).all())


# several GPUs ---------------------------------------------------------------------------------


@pytest.fixture(params=["fake", "gpu"])
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Machine]:
    if request.param == "gpu":
        if gpus() < 2:
            pytest.skip("needs two GPUs")
        return [Machine(cuda.device(n)) for n in range(2)]
    monkeypatch.setattr(cuda_compile, "compile", fake_compile)
    driver = fake_cuda.FakeDriver(KERNELS, gpus=2)
    return [Machine(cuda.Cuda(driver, n), driver) for n in range(2)]


def test_copies_between_gpus_keep_the_order(pair: list[Machine]):
    first, second = pair
    program = first.link([Launch(0, (X, X, OUT), (), 4)], 1, (16,))
    for k in range(5):
        (doubled,) = program([first.ints([k, 1, 2, 3])])
        moved = second.device.from_device(doubled)
        pointer = doubled.pointer
        del doubled
        again = first.ints([7, 7, 7, 7])  # the source's memory, given out again
        assert again.pointer == pointer or k == 0
        first.device.synchronize()
        assert values(moved, 4) == [2 * k, 2, 4, 6]
        assert moved.context.ordinal == 1


def test_a_device_of_the_driver_is_listed_once():
    if not gpus():
        pytest.skip(cuda.found()[1])
    found = cuda.devices()
    assert [device.name for device in found] == [f"cuda:{n}" for n in range(len(found))]
    assert cuda.device(0) is found[0]
    assert importlib.import_module("xcube.lowering.device").device("cuda") is found[0]
