"""The threads of the CPU device: Python threads that enter the native pool and stay there.

Threads start at the first program that can use them and follow `config.current.threads`. They
leave before a fork, so that parent and child start their own afresh, and at exit, so that none is
inside native code while the interpreter goes away.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import sys
import threading
from collections.abc import Mapping

from xcube import config

_SPIN_NANOSECONDS = 100_000
_MEASURED_ROUNDS = 2_000
_DEFAULT_ROUNDS = 2_000
_EXIT_SECONDS = 1.0


def available_cores() -> int:
    """Cores that this process may use: its affinity, and its control group's share of time."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, _quota()))


def _quota() -> int:
    """Whole cores' worth of time that the control group may use, of either version."""
    words = _words("cpu.max") or _words("cpu/cpu.cfs_quota_us") + _words("cpu/cpu.cfs_period_us")
    if len(words) != 2 or not words[0].isdigit():
        return sys.maxsize
    return math.ceil(int(words[0]) / int(words[1]))


def _words(name: str) -> list[str]:
    try:
        with open(f"/sys/fs/cgroup/{name}", encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []


class Pool:
    """Worker threads of the native pool, whose functions are given by address."""

    def __init__(self, functions: Mapping[str, int]) -> None:
        self._worker = ctypes.CFUNCTYPE(None, ctypes.c_int64)(functions["worker"])
        configure = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
        self._configure = configure(functions["configure"])
        self._reset = ctypes.CFUNCTYPE(None)(functions["reset"])
        measure = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
        self._measure_pause = measure(functions["measure_pause"])
        self._workers: list[threading.Thread] = []
        self._rounds = 0
        self._closed = False
        self._lock = threading.RLock()
        self.asked = -1
        """What the configuration asked for when the threads were last adjusted."""
        self._reset()
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork,
                after_in_parent=self._lock.release,
                after_in_child=self._after_fork,
            )

    def ensure(self) -> None:
        """Have as many threads as the configuration asks for; cheap if nothing changed."""
        if self.asked != config.current.threads:
            self.resize(config.current.threads)

    def resize(self, asked: int) -> None:
        """Have `asked` threads, the calling one included; 0 means one for each core."""
        with self._lock:
            if self._closed:
                return
            threads = asked if asked > 0 else available_cores()
            self._shrink(threads - 1)
            # Workers look at the number when they tire: it must cover them before they start.
            self._configure(threads, self._spin_rounds())
            self._grow(threads - 1)
            if len(self._workers) < threads - 1:
                self._configure(len(self._workers) + 1, self._spin_rounds())
            self.asked = asked

    def close(self) -> None:
        """Send all workers home; programs run on the calling thread from then on."""
        with self._lock:
            self._closed = True
            self._shrink(0)

    @property
    def threads(self) -> int:
        """How many threads share a launch now, the calling one included."""
        return len(self._workers) + 1

    def _grow(self, workers: int) -> None:
        while len(self._workers) < workers:
            index = len(self._workers) + 1
            thread = threading.Thread(
                target=self._worker, args=(index,), name=f"xcube-{index}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                return  # The system gives no more threads: share with those there are.
            self._workers.append(thread)

    def _shrink(self, workers: int) -> None:
        leaving = self._workers[workers:]
        if not leaving:
            return
        self._configure(workers + 1, 0)
        for thread in leaving:
            thread.join(_EXIT_SECONDS)
        del self._workers[workers:]

    def _spin_rounds(self) -> int:
        if not self._rounds:
            time = self._measure_pause(_MEASURED_ROUNDS)
            each = time / _MEASURED_ROUNDS
            self._rounds = int(_SPIN_NANOSECONDS / each) if each > 0 else _DEFAULT_ROUNDS
        return self._rounds

    def _before_fork(self) -> None:
        # A child inherits no thread: fork without any, and start again when needed.
        self._lock.acquire()
        self._shrink(0)
        self.asked = -1

    def _after_fork(self) -> None:
        self._reset()
        self._lock.release()
