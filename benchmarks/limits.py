"""What the machine can do at most: bytes per second copied and read, operations on single-precision
floats per second. Measured by native loops of their own, not by a library under test."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from timing import low_percentiles

ELEMENTS = 1 << 24
CHAINS, STEPS = 12, 1 << 18  # independent accumulators, each of so many dependent operations
PARTS = 8  # pieces of the work per thread, so that a disturbed thread does less


class Machine:
    """Loops that do nothing but reach one limit, on all threads: "copy", "read" or "flops".

    `calls[limit]()` does `work[limit]` bytes or operations.
    """

    def __init__(self, threads: int) -> None:
        self._loops, lanes = _compile()
        self._pool = ThreadPoolExecutor(threads)
        self._source, self._target = _aligned(ELEMENTS), _aligned(ELEMENTS)
        parts = threads * PARTS
        self._length = ELEMENTS // parts
        self._starts = [4 * self._length * n for n in range(parts)]
        self.calls: dict[str, Callable[[], object]] = {
            "copy": self._everywhere("copy", self._target, self._source),
            "read": self._everywhere("read", self._source),
            "flops": self._everywhere("flops"),
        }
        self.work = {
            "copy": 2.0 * self._source.nbytes,
            "read": 1.0 * self._source.nbytes,
            "flops": 2.0 * lanes * CHAINS * STEPS * parts,
        }

    def _everywhere(self, name: str, *arrays: np.ndarray) -> Callable[[], object]:
        places = [array.ctypes.data for array in arrays]
        function, length = self._loops[name], self._length if arrays else STEPS

        def part(start: int) -> None:
            function(*[place + start for place in places], length)

        return lambda: list(self._pool.map(part, self._starts))


def _aligned(elements: int) -> np.ndarray:
    raw = np.ones(elements + 1024, np.float32)
    start = -raw.ctypes.data % 4096 // 4
    return raw[start : start + elements]


# native loops ---------------------------------------------------------------------------------

_ENGINES: list[Any] = []  # what owns the compiled loops


def _compile() -> tuple[dict[str, Callable[..., Any]], int]:
    """The loops by name, and the lanes of a vector register."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    lanes = 16 if features.get("avx512f") else 8 if features.get("avx2") else 4
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=2
    )
    kind = f"<{lanes} x float>"
    text = "\n".join([_copy(kind, lanes), _read(kind, lanes), _flops(kind, lanes)])
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(f"{text}\n!0 = !{{i32 1}}"), machine)
    engine.finalize_object()
    _ENGINES.append(engine)
    types = {"copy": (ctypes.c_void_p,) * 2, "read": (ctypes.c_void_p,), "flops": ()}
    loops = {
        name: ctypes.CFUNCTYPE(ctypes.c_float, *pointers, ctypes.c_int64)(
            engine.get_function_address(name)
        )
        for name, pointers in types.items()
    }
    return loops, lanes


def _loop(
    name: str,
    pointers: str,
    step: int,
    phis: Sequence[str],
    body: Sequence[str],
    end: Sequence[str],
) -> str:
    """A function that repeats `body` for i = 0, step, ... up to n."""
    return "\n".join(
        [
            f"define float @{name}({pointers}i64 %n) {{",
            "entry:",
            "br label %loop",
            "loop:",
            "%i = phi i64 [ 0, %entry ], [ %j, %loop ]",
            *phis,
            *body,
            f"%j = add i64 %i, {step}",
            "%more = icmp slt i64 %j, %n",
            "br i1 %more, label %loop, label %done",
            "done:",
            *end,
            "}",
        ]
    )


def _copy(kind: str, lanes: int) -> str:
    body = []
    for k in range(4):
        body += [
            f"%k{k} = add i64 %i, {k * lanes}",
            f"%p{k} = getelementptr float, ptr %from, i64 %k{k}",
            f"%q{k} = getelementptr float, ptr %to, i64 %k{k}",
            f"%v{k} = load {kind}, ptr %p{k}, align 64",
            f"store {kind} %v{k}, ptr %q{k}, align 64, !nontemporal !0",
        ]
    end = ["fence seq_cst", "ret float 0.0"]
    return _loop("copy", "ptr %to, ptr %from, ", 4 * lanes, [], body, end)


def _read(kind: str, lanes: int) -> str:
    phis = [f"%a{k} = phi {kind} [ zeroinitializer, %entry ], [ %b{k}, %loop ]" for k in range(4)]
    body = []
    for k in range(4):
        body += [
            f"%k{k} = add i64 %i, {k * lanes}",
            f"%p{k} = getelementptr float, ptr %from, i64 %k{k}",
            f"%v{k} = load {kind}, ptr %p{k}, align 64",
            f"%b{k} = fadd {kind} %a{k}, %v{k}",
        ]
    return _loop("read", "ptr %from, ", 4 * lanes, phis, body, _total(kind, 4))


def _flops(kind: str, lanes: int) -> str:
    fma = f"@llvm.fma.v{lanes}f32"
    ones = "<" + ", ".join(["float 0x3FEFFFFFE0000000"] * lanes) + ">"
    phis = [f"%a{k} = phi {kind} [ {ones}, %entry ], [ %b{k}, %loop ]" for k in range(CHAINS)]
    body = [
        f"%b{k} = call {kind} {fma}({kind} %a{k}, {kind} {ones}, {kind} {ones})"
        for k in range(CHAINS)
    ]
    function = _loop("flops", "", 1, phis, body, _total(kind, CHAINS))
    return f"declare {kind} {fma}({kind}, {kind}, {kind})\n{function}"


def _total(kind: str, count: int) -> list[str]:
    """Use every accumulator, so that none is removed."""
    sums = [f"%s{k} = fadd {kind} %{'s' if k > 1 else 'b'}{k - 1}, %b{k}" for k in range(1, count)]
    return [*sums, f"%r = extractelement {kind} %s{count - 1}, i32 0", "ret float %r"]


if __name__ == "__main__":
    machine = Machine(len(os.sched_getaffinity(0)))
    for name, seconds in low_percentiles(machine.calls).items():
        print(f"{name:6} {machine.work[name] / seconds / 1e9:8.1f} G/s")
