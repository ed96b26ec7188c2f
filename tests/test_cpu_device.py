"""The CPU device runs programs of small LLVM kernels, whoever calls it and whatever goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from xcube import config, errors
from xcube.lowering.device import cpu_pool, cpu_runtime
from xcube.lowering.device.base import Launch, Ref
from xcube.lowering.device.cpu import Cpu, device

X, Y, OUT = Ref("input", 0), Ref("input", 1), Ref("output", 0)


def kernel(name: str, pointers: int, body: str) -> tuple[str, str]:
    """A kernel whose body computes i32 `%r` of cube `%i` from i32 `%v0`, `%v1`, ... and stores it
    through the last pointer; `%s` is the address of the scalars."""
    loads, reads = [], []
    for number in range(pointers):
        loads.append(f"%q{number} = getelementptr ptr, ptr %b, i64 {number}")
        loads.append(f"%p{number} = load ptr, ptr %q{number}")
        reads.append(f"%a{number} = getelementptr i32, ptr %p{number}, i64 %i")
        if number < pointers - 1:
            reads.append(f"%v{number} = load i32, ptr %a{number}")
    lines = "\n  ".join(loads), "\n  ".join(reads)
    return (
        name,
        f"""
define void @{name}(ptr %b, ptr %s, i64 %begin, i64 %end) nounwind {{
entry:
  {lines[0]}
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %done ]
  %go = icmp slt i64 %i, %end
  br i1 %go, label %cube, label %out
cube:
  {lines[1]}
  {body}
  br label %done
done:
  store i32 %r, ptr %a{pointers - 1}
  %next = add i64 %i, 1
  br label %head
out:
  ret void
}}
""",
    )


COPY = kernel("copy", 2, "%r = add i32 %v0, 0")
ADD = kernel("add", 3, "%r = add i32 %v0, %v1")
AFFINE = kernel(
    "affine",
    2,
    """%m = load i32, ptr %s
  %c_at = getelementptr i64, ptr %s, i64 1
  %c = load i32, ptr %c_at
  %t = mul i32 %v0, %m
  %r = add i32 %t, %c""",
)
# Counts to the first scalar, so that a cube takes as long as one wishes.
SPIN = kernel(
    "spin",
    1,
    """%n = load i64, ptr %s
  br label %turn
turn:
  %k = phi i64 [ 0, %cube ], [ %k1, %turn ]
  call void asm sideeffect "", ""()
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %n
  br i1 %more, label %turn, label %stop
stop:
  %r = trunc i64 %k1 to i32""",
)


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with config.using(cache=str(folder)):
        yield folder


@pytest.fixture(scope="module")
def cpu() -> Cpu:
    return device()


@pytest.fixture(params=[1, 2, 5], ids=lambda count: f"{count}-threads")
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with config.using(threads=request.param):
        yield request.param


def ints(cpu: Cpu, values: object):
    return cpu.from_host(np.asarray(values, np.int32))


def values(buffer: object, count: int) -> np.ndarray:
    return buffer.numpy((count,), np.dtype(np.int32))  # type: ignore[attr-defined]


# Launches


@pytest.mark.parametrize("light", [True, False])
@pytest.mark.parametrize("cubes", [1, 7, 16, 1000, 12_345])
def test_every_cube_runs_once(cpu: Cpu, threads: int, cubes: int, light: bool):
    x, y = np.random.default_rng(cubes).integers(-99, 99, (2, cubes), np.int32)
    kernels = cpu.compile([ADD])
    for grain in (1, 3, cubes):
        launch = Launch(0, (X, Y, OUT), (), cubes, grain)
        program = cpu.link(kernels, [launch], 2, (4 * cubes,), light=light)
        (out,) = program([ints(cpu, x), ints(cpu, y)])
        np.testing.assert_array_equal(values(out, cubes), x + y)


def test_a_cube_range_is_counted_exactly(cpu: Cpu, threads: int):
    """Adding in place shows a cube that ran twice, not at all, or beyond the last."""
    kernels = cpu.compile([kernel("count", 2, "%r = add i32 %v0, 1")])
    cubes, tail = 4097, 4096
    step = Launch(0, (OUT, OUT), (), cubes, 1)
    nbytes = 4 * (cubes + tail)
    program = cpu.link(kernels, [step] * 200, 1, (nbytes,), donated={0: 0})
    (out,) = program([ints(cpu, np.arange(cubes + tail))])
    expected = np.arange(cubes + tail) + 200 * (np.arange(cubes + tail) < cubes)
    np.testing.assert_array_equal(values(out, cubes + tail), expected)


def test_scalars_are_cells_of_64_bits(cpu: Cpu):
    kernels = cpu.compile([AFFINE])
    program = cpu.link(kernels, [Launch(0, (X, OUT), (-3, 2**32 + 5), 10)], 1, (40,))
    (out,) = program([ints(cpu, range(10))])
    np.testing.assert_array_equal(values(out, 10), -3 * np.arange(10) + 5)


def test_offsets_arena_constants_and_several_outputs(cpu: Cpu):
    kernels = cpu.compile([ADD, AFFINE, COPY])
    arena, constant = Ref("arena", 0, 512), ints(cpu, [100, 200, 300, 400])
    launches = [
        Launch(1, (X, arena), (2, 0), 4),
        Launch(0, (arena, Ref("constant", 0), OUT), (), 4),
        Launch(2, (Ref("constant", 0, 8), Ref("output", 1, 4)), (), 2),
        Launch(2, (Ref("input", 0, 4), Ref("output", 1)), (), 1),
        Launch(0, (X, X, X), (), 0),
    ]
    program = cpu.link(kernels, launches, 1, (16, 12), [constant], 1024)
    first, second = program([ints(cpu, [1, 2, 3, 4])])
    assert values(first, 4).tolist() == [102, 204, 306, 408]
    assert values(second, 3).tolist() == [2, 300, 400]


def test_a_program_without_launches_or_inputs(cpu: Cpu):
    assert cpu.link([], [], 0, ())([]) == []
    (out,) = cpu.link([], [], 0, (12,))([])
    assert out.nbytes == 12


def test_many_launches_buffers_and_scalars(cpu: Cpu):
    """Sums 40 inputs pairwise through one launch of 41 pointers."""
    terms = "\n  ".join(
        f"%t{k + 1} = add i32 {'%t' + str(k) if k else '0'}, %v{k}" for k in range(40)
    )
    kernels = cpu.compile([kernel("total", 41, f"{terms}\n  %r = add i32 %t40, 0")])
    refs = tuple(Ref("input", number) for number in range(40))
    program = cpu.link(kernels, [Launch(0, (*refs, OUT), (), 5)], 40, (20,))
    data = np.arange(200, dtype=np.int32).reshape(40, 5)
    (out,) = program([ints(cpu, row) for row in data])
    np.testing.assert_array_equal(values(out, 5), data.sum(0))


def test_threads_share_a_launch(cpu: Cpu):
    _, body = kernel(
        "who",
        2,
        """%w = call i64 @pthread_self()
  %h = lshr i64 %w, 8
  %r = trunc i64 %h to i32
  br label %turn
turn:
  %k = phi i64 [ 0, %cube ], [ %k1, %turn ]
  call void asm sideeffect "", ""()
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, 100000
  br i1 %more, label %turn, label %stop
stop:
  br label %last
last:""",
    )
    text = "declare i64 @pthread_self()\n" + body
    program = cpu.link(cpu.compile([("who", text)]), [Launch(0, (X, OUT), (), 64)], 1, (256,))
    seen: set[int] = set()
    with config.using(threads=3):
        for _ in range(100):
            (out,) = program([ints(cpu, np.zeros(64))])
            seen.update(values(out, 64).tolist())
            if len(seen) == 3:
                break
    assert len(seen) == 3


def test_the_number_of_threads_follows_the_configuration(cpu: Cpu):
    program = cpu.link(cpu.compile([COPY]), [Launch(0, (X, OUT), (), 64)], 1, (256,))
    for count in (4, 1, 3, 2):
        with config.using(threads=count):
            program([ints(cpu, np.zeros(64))])
            assert cpu.threads == count
    with config.using(threads=0):
        program([ints(cpu, np.zeros(64))])
        assert cpu.threads == cpu_pool.available_cores()


def test_small_launches_start_no_threads(cpu: Cpu):
    script = """
    import threading
    program = cpu.link(cpu.compile([COPY]), [Launch(0, (X, OUT), (), 64, 64)], 1, (256,))
    program([ints(cpu, range(64))])
    assert threading.active_count() == 1
    """
    assert run(script).returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX threads")
def test_portable_waiting(threads: int):
    cpu = Cpu(portable=True)
    program = cpu.link(cpu.compile([ADD]), [Launch(0, (X, Y, OUT), (), 999)], 2, (3996,))
    x = np.arange(999, dtype=np.int32)
    for pause in (0, 0, 0.02, 0, 0.02):
        time.sleep(pause)
        (out,) = program([ints(cpu, x), ints(cpu, 2 * x)])
        np.testing.assert_array_equal(values(out, 999), 3 * x)
    cpu.close()


def test_python_threads_run_programs_at_once(cpu: Cpu, threads: int):
    cubes, rounds, failures = 5000, 60, []
    kernels = cpu.compile([ADD, AFFINE])
    arena = Ref("arena", 0)
    launches = [Launch(1, (X, arena), (3, 1), cubes, 8), Launch(0, (arena, Y, OUT), (), cubes, 8)]
    program = cpu.link(kernels, launches, 2, (4 * cubes,), (), 4 * cubes)

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(rounds):
            x, y = random.integers(-99, 99, (2, cubes), np.int32)
            (out,) = program([ints(cpu, x), ints(cpu, y)])
            if not np.array_equal(values(out, cubes), 3 * x + 1 + y):
                failures.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    assert not failures


# Donation


def test_a_donated_input_becomes_the_output(cpu: Cpu):
    launch = Launch(0, (OUT, Ref("input", 1), OUT), (), 4)
    program = cpu.link(cpu.compile([ADD]), [launch], 2, (16,), donated={0: 0})
    x = ints(cpu, [1, 2, 3, 4])
    (out,) = program([x, ints(cpu, [10, 20, 30, 40])])
    assert out is x
    assert values(out, 4).tolist() == [11, 22, 33, 44]


def test_what_others_can_see_is_copied_instead_of_overwritten(cpu: Cpu):
    launch = Launch(0, (OUT, Ref("input", 1), OUT), (), 4)
    program = cpu.link(cpu.compile([ADD]), [launch], 2, (16,), donated={0: 0})
    ten = ints(cpu, [10] * 4)
    viewed = ints(cpu, [1, 2, 3, 4])
    view = values(viewed, 4)
    (out,) = program([viewed, ten])
    assert view.tolist() == [1, 2, 3, 4]
    assert values(out, 4).tolist() == [11, 12, 13, 14]
    twice = ints(cpu, [1, 2, 3, 4])
    (out,) = program([twice, twice])
    assert values(out, 4).tolist() == [2, 4, 6, 8]
    assert values(twice, 4).tolist() == [1, 2, 3, 4]


# Mistakes of the caller


def test_wrong_programs_and_calls_are_refused(cpu: Cpu):
    kernels = cpu.compile([COPY])
    good = Launch(0, (X, OUT), (), 4)
    with pytest.raises(errors.DeviceError, match="needs 1 input buffers; got 2"):
        cpu.link(kernels, [good], 1, (16,))([ints(cpu, [1])] * 2)
    with pytest.raises(errors.LoweringError, match="input 0; the program has 0"):
        cpu.link(kernels, [good], 0, (16,))
    with pytest.raises(errors.LoweringError, match="kernel 1; the program has 1"):
        cpu.link(kernels, [Launch(1, (X, OUT), (), 4)], 1, (16,))
    with pytest.raises(errors.LoweringError, match="takes over input 1"):
        cpu.link(kernels, [good], 1, (16,), donated={0: 1})
    with pytest.raises(errors.LoweringError, match="donated to several"):
        cpu.link(kernels, [good], 1, (16, 16), donated={0: 0, 1: 0})
    with pytest.raises(errors.DeviceError, match="must hold the 16 bytes"):
        cpu.link(kernels, [good], 1, (16,), donated={0: 0})([ints(cpu, [1])])


def test_wrong_texts_are_refused_with_the_kernels_name(cpu: Cpu, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(errors.LoweringError, match="'broken'"):
        cpu.compile([("broken", "define void @broken( {")])
    with pytest.raises(errors.LoweringError, match=r"'absent'.*'copy'"):
        cpu.compile([("absent", COPY[1])])
    with pytest.raises(errors.LoweringError, match="'types'"):
        cpu.compile([("types", "define void @types() { ret i32 1 }")])
    unknown = "declare void @no_such_thing()\n" + COPY[1].replace(
        "entry:", "entry:\n  call void @no_such_thing()"
    )
    with pytest.raises(errors.LoweringError, match=r"that copy.* call must exist"):
        cpu.compile([("copy", unknown)])
    assert "no_such_thing" in capfd.readouterr().err
    assert len(cpu.compile([COPY])) == 1


# Compiling


def numbered(count: int, salt: int) -> list[tuple[str, str]]:
    return [kernel(f"plus{k}", 2, f"%r = add i32 %v0, {k + salt}") for k in range(count)]


def check_numbered(cpu: Cpu, addresses: list[int], salt: int) -> None:
    for k, address in enumerate(addresses):
        (out,) = cpu.link([address], [Launch(0, (X, OUT), (), 3)], 1, (12,))([ints(cpu, [0, 1, 2])])
        assert values(out, 3).tolist() == [k + salt, k + salt + 1, k + salt + 2]


def test_many_kernels_at_once_of_any_names(cpu: Cpu):
    sources = numbered(70, salt=1000)
    same_names = numbered(3, salt=2000)
    addresses = cpu.compile([*sources, *same_names, *sources[:2]])
    check_numbered(cpu, addresses[:70], 1000)
    check_numbered(cpu, addresses[70:73], 2000)
    assert addresses[73:] == addresses[:2]
    assert cpu.compile(sources) == addresses[:70]


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.bin"))


@pytest.mark.parametrize("damage", ["none", "all", "first", "swap", "truncate", "remove"])
def test_a_fresh_process_trusts_only_good_entries(cpu: Cpu, tmp_path: Path, damage: str):
    """A second device stands for a second process: it shares nothing but the folder."""
    with config.using(cache=str(tmp_path)):
        first = Cpu()
        sources = numbered(5, salt=7)
        check_numbered(first, first.compile(sources), 7)
        kept = files(tmp_path)
        for place, path in enumerate(kept):
            data = bytearray(path.read_bytes())
            if damage == "all" or (damage == "first" and place == 0):
                data[len(data) // 2] ^= 0x55
                path.write_bytes(data)
            elif damage == "truncate":
                path.write_bytes(data[: len(data) // 2])
            elif damage == "swap":
                path.write_bytes(kept[(place + 1) % len(kept)].read_bytes())
            elif damage == "remove" and len(data) > 500:
                path.unlink()
        second = Cpu()
        check_numbered(second, second.compile(sources), 7)
        third = Cpu()
        check_numbered(third, third.compile(list(reversed(sources)))[::-1], 7)
        for each in (first, second, third):
            each.close()


def test_assembly_can_be_read(cpu: Cpu):
    assert "copy:" in cpu.assembly(*COPY) or "_copy:" in cpu.assembly(*COPY)


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
@pytest.mark.parametrize("architecture", ["x86_64", "aarch64", "riscv64", "unheard_of"])
def test_the_runtime_is_valid_on_every_platform(platform: str, architecture: str):
    llvm = pytest.importorskip("llvmlite.binding")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(cpu_runtime.text(architecture, platform))
    module.verify()
    assert {f.name for f in module.functions if not f.is_declaration} >= set(cpu_runtime.EXPORTS)
    if architecture in ("x86_64", "aarch64"):
        systems = {
            "linux": "unknown-linux-gnu",
            "darwin": "apple-macosx",
            "win32": "pc-windows-msvc",
        }
        triple = f"{architecture}-{systems[platform]}"
        machine = llvm.Target.from_triple(triple).create_target_machine(jit=True)
        assert len(machine.emit_object(module)) > 1000


# Process


def run(script: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a script with this module's names in a fresh interpreter."""
    head = "from test_cpu_device import *\ncpu = device()\n"
    places = [str(Path(__file__).parent), str(Path(errors.__file__).parent.parent)]
    return subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(script)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(places),
            "XCUBE_CACHE": config.current.cache,
        },
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


SHARED = """
program = cpu.link(cpu.compile([ADD]), [Launch(0, (X, Y, OUT), (), 999)], 2, (3996,))
x = ints(cpu, np.arange(999))
def good():
    (out,) = program([x, x])
    return np.array_equal(values(out, 999), 2 * np.arange(999))
config.update("threads", 4)
assert good() and threading.active_count() == 4
"""


def test_the_interpreter_exits_with_threads_in_the_pool():
    start = time.monotonic()
    done = run(SHARED)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - start < 30


def test_programs_run_while_the_interpreter_exits():
    script = SHARED + textwrap.dedent("""
    import atexit
    class Late:
        def __del__(self):
            assert good()
            print("late")
    late = Late()
    atexit.register(lambda: print("exit", good()))
    """)
    done = run(script)
    assert (done.returncode, done.stderr) == (0, "")
    assert "exit True" in done.stdout


def test_the_interpreter_exits_while_a_daemon_thread_computes():
    script = SHARED + textwrap.dedent("""
    long = cpu.link(cpu.compile([SPIN]), [Launch(0, (OUT,), (100_000,), 20)] * 100_000, 0, (80,))
    threading.Thread(target=long, args=([],), daemon=True).start()
    time.sleep(0.2)
    """)
    done = run(script)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_computes():
    script = SHARED + textwrap.dedent("""
    for _ in range(5):
        child = os.fork()
        if child == 0:
            os._exit(0 if good() and threading.active_count() == 4 else 1)
        assert good()
        assert os.waitpid(child, 0)[1] == 0
    """)
    done = run(script)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_others_compute_and_compile_works():
    script = SHARED + textwrap.dedent("""
    stop = False
    def compute():
        while not stop:
            assert good()
    def make():
        salt = 0
        while not stop:
            salt += 100
            cpu.compile(numbered(3, salt))
    busy = [threading.Thread(target=compute), threading.Thread(target=make)]
    for thread in busy: thread.start()
    for number in range(8):
        child = os.fork()
        if child == 0:
            salt = -1000 * (number + 1)
            check_numbered(cpu, cpu.compile(numbered(2, salt)), salt)
            os._exit(0 if good() else 1)
        assert os.waitpid(child, 0)[1] == 0
    stop = True
    for thread in busy: thread.join()
    """)
    done = run(script)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("cubes", [1, 64])
def test_an_interrupt_ends_a_long_program(cpu: Cpu, cubes: int):
    per_cube = 4_000_000 // cubes
    launches = [Launch(0, (OUT,), (per_cube,), cubes)] * 20_000
    long = cpu.link(cpu.compile([SPIN]), launches, 0, (4 * cubes,))
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    start = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        long([])
    assert time.monotonic() - start < 5
    timer.join()
    short = cpu.link(cpu.compile([SPIN]), launches[:2], 0, (4 * cubes,))
    assert values(short([])[0], cubes).tolist() == [per_cube] * cubes


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_a_signal_handler_may_run_programs(cpu: Cpu):
    seen = []
    long = cpu.link(cpu.compile([SPIN]), [Launch(0, (OUT,), (100_000,), 20)] * 1_000, 0, (80,))
    quick = cpu.link(cpu.compile([SPIN]), [Launch(0, (OUT,), (3,), 20)], 0, (80,))
    before = signal.signal(
        signal.SIGUSR1, lambda *_: seen.append(values(quick([])[0], 20).tolist())
    )
    try:
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        assert values(long([])[0], 20).tolist() == [100_000] * 20
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [[3] * 20]


def test_other_threads_run_during_a_heavy_program(cpu: Cpu):
    ticks, stop = [], threading.Event()

    def tick() -> None:
        while not stop.wait(0.005):
            ticks.append(time.monotonic())

    heavy = cpu.link(cpu.compile([SPIN]), [Launch(0, (OUT,), (100_000_000,), 4, 4)], 0, (16,))
    ticker = threading.Thread(target=tick)
    ticker.start()
    start = time.monotonic()
    heavy([])
    end = time.monotonic()
    stop.set()
    ticker.join()
    assert sum(start < moment < end for moment in ticks) >= 2


def test_facts(cpu: Cpu):
    facts = cpu.facts()
    assert (facts.name, facts.kind) == ("cpu", "cpu")
    assert facts.cores >= 1
    assert facts.vector_bits in (128, 256, 512)
    assert facts.lanes(4) == facts.vector_bits // 32
    assert 1 << 12 < facts.l1_bytes <= facts.l2_bytes < 1 << 30
    assert facts.memory_bytes > 1 << 26
    assert cpu.has("no such feature") is False
    cpu.synchronize()


FAR_APART = """
import ctypes
import sys

if sys.platform != "linux":
    sys.exit()
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

import xcube
import xcube.numpy as jnp


def reserve(size, access=1):
    return libc.mmap(None, size, access, 0x4022, -1, 0)


xcube.jit(jnp.sin)(jnp.ones(64))
pages = [reserve(4096, 1 + 2 * (k % 2)) for k in range(4000)]
below = reserve(6 << 30)
size = 64 << 20
while size >= 8192:  # fill every larger gap above the reservation
    while (page := reserve(size)) > below:
        pass
    libc.munmap(page, size)
    size //= 2
for page in pages[::2]:
    libc.munmap(page, 4096)
for k in range(6):
    work = xcube.jit(lambda q: (jnp.sort(q * k), jnp.sin(q) @ jnp.exp(q - k), jnp.argmax(q + k)))
    work(jnp.ones(64))
print("survived")
"""


def test_code_is_linked_where_its_constants_are_far_away():
    found = subprocess.run(
        [sys.executable, "-c", FAR_APART], capture_output=True, text=True, timeout=300, check=False
    )
    assert found.stdout.strip() == "survived", found.stderr[-2000:]
