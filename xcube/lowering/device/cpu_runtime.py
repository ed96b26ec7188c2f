"""The native half of the CPU device as LLVM text: the thread pool, and the module it shares with
the walker (`cpu_walker`).

The pool runs one job at a time; who finds it taken does all the work alone. A job is split into
tickets, ranges of cubes. The word `@job` holds the epoch (high half) and the tickets that are left
(low half), and a ticket is taken by compare-and-swap, so that a late worker cannot touch a job that
is over. The caller takes tickets too and waits for *finished tickets*, not for workers. Idle
workers spin for a while and then park; the caller makes the system call that wakes them only if
some are parked.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

from xcube.lowering.device import cpu_walker

TICKETS_PER_THREAD = 8
"""Enough to even out threads that start late, few enough that taking them costs nothing."""

_YIELD_AFTER = 4096

_PAUSE = {
    "x86_64": (
        "declare void @llvm.x86.sse2.pause()",
        "call void @llvm.x86.sse2.pause()",
    ),
    "aarch64": (
        "declare void @llvm.aarch64.hint(i32)",
        "call void @llvm.aarch64.hint(i32 1)",
    ),
}

_FUTEX_CALL = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "powerpc64le": 221, "s390x": 238}

# How a thread sleeps until `@sequence` changes (`park`) and how `count` of them are woken.
_FUTEX = """
declare i64 @syscall(i64, ...)

define internal void @park(i32 %seen) {{
  %r = call i64 (i64, ...) @syscall(
    i64 {number}, ptr @sequence, i32 128, i32 %seen, ptr null, ptr null, i32 0)
  ret void
}}

define internal void @wake(i32 %count) {{
  %r = call i64 (i64, ...) @syscall(
    i64 {number}, ptr @sequence, i32 129, i32 %count, ptr null, ptr null, i32 0)
  ret void
}}

define internal void @prepare_parking() {{
  ret void
}}
"""

_PTHREAD = """
@mutex = internal global [32 x i64] zeroinitializer, align 128
@condition = internal global [32 x i64] zeroinitializer, align 128
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)

define internal void @prepare_parking() {
  %a = call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  %b = call i32 @pthread_cond_init(ptr @condition, ptr null)
  ret void
}

define internal void @park(i32 %seen) {
entry:
  %a = call i32 @pthread_mutex_lock(ptr @mutex)
  br label %look
look:
  %now = load atomic i32, ptr @sequence seq_cst, align 4
  %same = icmp eq i32 %now, %seen
  br i1 %same, label %wait, label %out
wait:
  %b = call i32 @pthread_cond_wait(ptr @condition, ptr @mutex)
  br label %look
out:
  %c = call i32 @pthread_mutex_unlock(ptr @mutex)
  ret void
}

define internal void @wake(i32 %count) {
  %a = call i32 @pthread_mutex_lock(ptr @mutex)
  %b = call i32 @pthread_cond_broadcast(ptr @condition)
  %c = call i32 @pthread_mutex_unlock(ptr @mutex)
  ret void
}
"""

_WAIT_ON_ADDRESS = """
declare i32 @WaitOnAddress(ptr, ptr, i64, i32)
declare void @WakeByAddressAll(ptr)

define internal void @prepare_parking() {
  ret void
}

define internal void @park(i32 %seen) {
  %expected = alloca i32
  store i32 %seen, ptr %expected
  %r = call i32 @WaitOnAddress(ptr @sequence, ptr %expected, i64 4, i32 -1)
  ret void
}

define internal void @wake(i32 %count) {
  call void @WakeByAddressAll(ptr @sequence)
  ret void
}
"""

_POSIX_CLOCK = """
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()

define internal i64 @now() {{
  %spec = alloca [2 x i64]
  %r = call i32 @clock_gettime(i32 {clock}, ptr %spec)
  %seconds = load i64, ptr %spec
  %q = getelementptr i64, ptr %spec, i64 1
  %rest = load i64, ptr %q
  %a = mul i64 %seconds, 1000000000
  %b = add i64 %a, %rest
  ret i64 %b
}}

define internal void @give_way() {{
  %r = call i32 @sched_yield()
  ret void
}}
"""

_WINDOWS_CLOCK = """
declare i64 @GetTickCount64()
declare i32 @SwitchToThread()

define internal i64 @now() {
  %a = call i64 @GetTickCount64()
  %b = mul i64 %a, 1000000
  ret i64 %b
}

define internal void @give_way() {
  %r = call i32 @SwitchToThread()
  ret void
}
"""

# Every word that one thread writes while others spin on another has a cache line pair of its own.
_POOL = """
; kernel, buffers, scalars, cubes, cubes of a ticket, tickets
%Job = type {{ ptr, ptr, ptr, i64, i64, i64 }}
@job = internal global [16 x i64] zeroinitializer, align 128
@work = internal global [16 x i64] zeroinitializer, align 128
@finished = internal global [16 x i64] zeroinitializer, align 128
@taken = internal global [16 x i64] zeroinitializer, align 128
@sequence = internal global [32 x i32] zeroinitializer, align 128
@parked = internal global [32 x i32] zeroinitializer, align 128
@threads = internal global [16 x i64] zeroinitializer, align 128  ; threads, rounds to spin

declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
{pause_declaration}

; Run one ticket of the job, if one is left.
define internal i1 @take() {{
entry:
  br label %look
look:
  %word = load atomic i64, ptr @job acquire, align 8
  %left = and i64 %word, 4294967295
  %none = icmp eq i64 %left, 0
  br i1 %none, label %no, label %try
try:
  %next = sub i64 %word, 1
  %swap = cmpxchg ptr @job, i64 %word, i64 %next acq_rel acquire
  %mine = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %mine, label %run, label %look
run:
  %kernel = load ptr, ptr @work
  %p1 = getelementptr %Job, ptr @work, i64 0, i32 1
  %buffers = load ptr, ptr %p1
  %p2 = getelementptr %Job, ptr @work, i64 0, i32 2
  %scalars = load ptr, ptr %p2
  %p3 = getelementptr %Job, ptr @work, i64 0, i32 3
  %cubes = load i64, ptr %p3
  %p4 = getelementptr %Job, ptr @work, i64 0, i32 4
  %each = load i64, ptr %p4
  %p5 = getelementptr %Job, ptr @work, i64 0, i32 5
  %tickets = load i64, ptr %p5
  %index = sub i64 %tickets, %left
  %begin = mul i64 %index, %each
  %stop = add i64 %begin, %each
  %end = call i64 @llvm.umin.i64(i64 %stop, i64 %cubes)
  call void %kernel(ptr %buffers, ptr %scalars, i64 %begin, i64 %end)
  %before = atomicrmw add ptr @finished, i64 1 release
  ret i1 true
no:
  ret i1 false
}}

; The life of worker %index (1, 2, ...): leaves when the pool has shrunk to %index threads.
define void @worker(i64 %index) {{
entry:
  %rounds_at = getelementptr i64, ptr @threads, i64 1
  br label %work
work:
  %worked = call i1 @take()
  br i1 %worked, label %work, label %idle
idle:
  %rounds = load atomic i64, ptr %rounds_at monotonic, align 8
  br label %spin
spin:
  %round = phi i64 [ 0, %idle ], [ %round_next, %pause ]
  %word = load atomic i64, ptr @job monotonic, align 8
  %left = and i64 %word, 4294967295
  %any = icmp ne i64 %left, 0
  br i1 %any, label %work, label %pause
pause:
  {pause}
  %round_next = add i64 %round, 1
  %more = icmp slt i64 %round_next, %rounds
  br i1 %more, label %spin, label %tired
tired:
  ; Read the sequence first: whatever is announced later changes it, and then parking returns.
  %seen = load atomic i32, ptr @sequence seq_cst, align 4
  %threads = load atomic i64, ptr @threads seq_cst, align 8
  %gone = icmp sge i64 %index, %threads
  br i1 %gone, label %leave, label %settle
settle:
  %p0 = atomicrmw add ptr @parked, i32 1 seq_cst
  %again = load atomic i64, ptr @job seq_cst, align 8
  %left_again = and i64 %again, 4294967295
  %any_again = icmp ne i64 %left_again, 0
  br i1 %any_again, label %rise, label %sleep
sleep:
  call void @park(i32 %seen)
  br label %rise
rise:
  %p1 = atomicrmw sub ptr @parked, i32 1 seq_cst
  br label %work
leave:
  ret void
}}

; Set the number of threads (the caller included) and the rounds an idle worker spins.
define void @configure(i64 %threads, i64 %rounds) {{
  %rounds_at = getelementptr i64, ptr @threads, i64 1
  store atomic i64 %rounds, ptr %rounds_at monotonic, align 8
  store atomic i64 %threads, ptr @threads seq_cst, align 8
  %s = atomicrmw add ptr @sequence, i32 1 seq_cst
  call void @wake(i32 2147483647)
  ret void
}}

; A pool without workers, whatever state the memory was in (a forked child's is any).
define void @reset() {{
  store atomic i64 0, ptr @job seq_cst, align 8
  store atomic i64 0, ptr @finished seq_cst, align 8
  store atomic i64 0, ptr @taken seq_cst, align 8
  store atomic i32 0, ptr @parked seq_cst, align 4
  store atomic i64 1, ptr @threads seq_cst, align 8
  call void @prepare_parking()
  ret void
}}

; Pause %rounds times; returns the nanoseconds it took.
define i64 @measure_pause(i64 %rounds) {{
entry:
  %start = call i64 @now()
  br label %loop
loop:
  %round = phi i64 [ 0, %entry ], [ %next, %loop ]
  {pause}
  %next = add i64 %round, 1
  %more = icmp slt i64 %next, %rounds
  br i1 %more, label %loop, label %out
out:
  %end = call i64 @now()
  %time = sub i64 %end, %start
  ret i64 %time
}}

; Share cubes 0 .. %cubes among the threads, or run them here if the pool is taken.
define internal void @share(ptr %kernel, ptr %buffers, ptr %scalars, i64 %cubes, i64 %grain) {{
entry:
  %threads = load atomic i64, ptr @threads monotonic, align 8
  %alone = icmp sle i64 %threads, 1
  br i1 %alone, label %inline, label %reserve
inline:
  call void %kernel(ptr %buffers, ptr %scalars, i64 0, i64 %cubes)
  ret void
reserve:
  %swap = cmpxchg ptr @taken, i64 0, i64 1 acquire monotonic
  %mine = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %mine, label %publish, label %inline
publish:
  %most = mul i64 %threads, {tickets_per_thread}
  %short = sub i64 %most, 1
  %sum = add i64 %cubes, %short
  %even = udiv i64 %sum, %most
  %each = call i64 @llvm.umax.i64(i64 %even, i64 %grain)
  %each_short = sub i64 %each, 1
  %cover = add i64 %cubes, %each_short
  %tickets = udiv i64 %cover, %each
  store ptr %kernel, ptr @work
  %p1 = getelementptr %Job, ptr @work, i64 0, i32 1
  store ptr %buffers, ptr %p1
  %p2 = getelementptr %Job, ptr @work, i64 0, i32 2
  store ptr %scalars, ptr %p2
  %p3 = getelementptr %Job, ptr @work, i64 0, i32 3
  store i64 %cubes, ptr %p3
  %p4 = getelementptr %Job, ptr @work, i64 0, i32 4
  store i64 %each, ptr %p4
  %p5 = getelementptr %Job, ptr @work, i64 0, i32 5
  store i64 %tickets, ptr %p5
  store atomic i64 0, ptr @finished monotonic, align 8
  %word = load atomic i64, ptr @job monotonic, align 8
  %epoch = and i64 %word, -4294967296
  %epoch_next = add i64 %epoch, 4294967296
  %word_next = or i64 %epoch_next, %tickets
  store atomic i64 %word_next, ptr @job seq_cst, align 8
  %parked = load atomic i32, ptr @parked seq_cst, align 4
  %asleep = icmp sgt i32 %parked, 0
  br i1 %asleep, label %call, label %work
call:
  %s = atomicrmw add ptr @sequence, i32 1 seq_cst
  %others = sub i64 %tickets, 1
  %count = trunc i64 %others to i32
  call void @wake(i32 %count)
  br label %work
work:
  %worked = call i1 @take()
  br i1 %worked, label %work, label %wait
wait:
  %round = phi i64 [ 0, %work ], [ %round_next, %again ]
  %done = load atomic i64, ptr @finished acquire, align 8
  %all = icmp sge i64 %done, %tickets
  br i1 %all, label %over, label %pause
pause:
  {pause}
  %round_next = add i64 %round, 1
  %late = icmp sgt i64 %round_next, {yield_after}
  br i1 %late, label %yield, label %again
yield:
  call void @give_way()
  br label %again
again:
  br label %wait
over:
  store atomic i64 0, ptr @taken release, align 8
  ret void
}}
"""

EXPORTS = ("worker", "configure", "reset", "measure_pause", *cpu_walker.EXPORTS)


def text(architecture: str, platform: str = sys.platform, portable: bool = False) -> str:
    """The runtime's module for a processor ("x86_64", "aarch64", ...) and a `sys.platform`.

    `portable` asks for POSIX condition variables where the platform's own waiting is better.

    >>> "@WaitOnAddress" in text("x86_64", "win32"), "@syscall" in text("x86_64", "linux")
    (True, True)
    """
    declaration, pause = _PAUSE.get(architecture, ("", ""))
    pool = _POOL.format(
        pause_declaration=declaration,
        pause=pause,
        tickets_per_thread=TICKETS_PER_THREAD,
        yield_after=_YIELD_AFTER,
    )
    parking = _parking(architecture, platform, portable)
    return "\n".join((pool, parking, _clock(platform), cpu_walker.text()))


def _parking(architecture: str, platform: str, portable: bool) -> str:
    if platform == "win32":
        return _WAIT_ON_ADDRESS
    if platform == "linux" and architecture in _FUTEX_CALL and not portable:
        return _FUTEX.format(number=_FUTEX_CALL[architecture])
    return _PTHREAD


def _clock(platform: str) -> str:
    if platform == "win32":
        return _WINDOWS_CLOCK
    return _POSIX_CLOCK.format(clock=6 if platform == "darwin" else 1)


def imports(platform: str = sys.platform) -> dict[str, int]:
    """Addresses of what the runtime calls: Python's C API and a little of the C library."""
    found = {name: _address(getattr(ctypes.pythonapi, name)) for name in cpu_walker.CALLS}
    for name, function in _system_functions(platform):
        found[name] = _address(function)
    return found


def _address(function: Callable[..., object]) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert address is not None
    return address


def _system_functions(platform: str) -> list[tuple[str, Callable[..., object]]]:
    if platform == "win32":
        kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
        waiting = ctypes.WinDLL("api-ms-win-core-synch-l1-2-0")  # type: ignore[attr-defined]
        return [
            ("GetTickCount64", kernel.GetTickCount64),
            ("SwitchToThread", kernel.SwitchToThread),
            ("WaitOnAddress", waiting.WaitOnAddress),
            ("WakeByAddressAll", waiting.WakeByAddressAll),
        ]
    library = ctypes.CDLL(None)
    names = ["clock_gettime", "sched_yield"]
    names += ["pthread_mutex_init", "pthread_mutex_lock", "pthread_mutex_unlock"]
    names += ["pthread_cond_init", "pthread_cond_wait", "pthread_cond_broadcast"]
    names += ["syscall"] if platform == "linux" else []
    return [(name, getattr(library, name)) for name in names]
