"""Autotune: which of several ways to do one thing is the fastest on this device.

`race` times candidates in turn and drops the slow ones early; `Winners` remembers who won, in
memory and in a file. Templates of the kernel library ask `pick`: the winner of an earlier race if
there was one, else the heuristic's choice. `settle` runs the races that a program asks for, before
the program is lowered, when the setting `autotune` is "all".
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from xcube import __version__, config
from xcube.errors import LoweringError
from xcube.ir import Aval, Jaxpr
from xcube.lowering import cache
from xcube.lowering.device.base import Device, Executable, Facts

BUDGET = 0.5  # seconds that one race may take, the first run of each candidate not counted
ROUNDS = 24
SAMPLE = 2e-4  # seconds that one sample takes at least
MARGINS = ((8, 1.05), (4, 1.15), (2, 1.3), (1, 2.0))  # after so many rounds, times the best
NEAR = 1.05  # times the least time that the machine allows, at which there is nothing to win

T = TypeVar("T")
Runner = Callable[[], None]
Clock = Callable[[], float]


# races ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranking:
    """How a race ended: seconds of each candidate that ran, the fastest first, and why each of the
    others could not run."""

    seconds: Mapping[str, float]
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def winner(self) -> str:
        return next(iter(self.seconds))


def race(
    candidates: Mapping[str, Callable[[], Runner]],
    limit: float = 0.0,
    budget: float = BUDGET,
    clock: Clock = time.perf_counter,
) -> Ranking:
    """Time candidates in turn, and drop those that fall behind (successive rejects: Audibert,
    Bubeck and Munos, "Best arm identification in multi-armed bandits", 2010).

    A candidate is a function that prepares it (compiles, makes inputs) and gives what runs it once
    and waits for it. One that raises is left out. `limit`: seconds that the machine needs at least;
    who comes near it wins at once. Raises LoweringError, with every reason, if none can run.

    >>> sorted(race({"a": lambda: lambda: None, "b": lambda: lambda: None}).seconds)
    ['a', 'b']
    """
    samples: dict[str, _Samples] = {}
    refused: dict[str, str] = {}
    for name, prepare in candidates.items():
        try:
            samples[name] = _Samples.first(prepare(), clock)
        except Exception as error:
            refused[name] = f"{type(error).__name__}: {error}"
    if not samples:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in refused.items())
        raise LoweringError(f"autotune: no candidate can run{reasons or '; there is none'}")
    _run(samples, limit, budget, clock)
    order = sorted(samples, key=lambda name: samples[name].best)
    return Ranking({name: samples[name].best for name in order}, refused)


@dataclass(eq=False)
class _Samples:
    """A candidate in a race: how often it runs for one sample, and its best time of one run."""

    run: Runner
    repeats: int
    best: float = math.inf

    @classmethod
    def first(cls, run: Runner, clock: Clock) -> _Samples:
        run()
        start = clock()
        run()
        once = max(clock() - start, 1e-9)
        return cls(run, max(1, min(1000, math.ceil(SAMPLE / once))), once)

    def sample(self, clock: Clock) -> None:
        start = clock()
        for _ in range(self.repeats):
            self.run()
        self.best = min(self.best, (clock() - start) / self.repeats)


def _run(samples: Mapping[str, _Samples], limit: float, budget: float, clock: Clock) -> None:
    """Rounds of one sample each, among those that have not fallen behind."""
    running, stop = list(samples.values()), clock() + budget
    for number in range(1, ROUNDS + 1):
        best = min(one.best for one in running)
        margin = next((by for after, by in MARGINS if number > after), math.inf)
        running = [one for one in running if one.best <= margin * best]
        if len(running) == 1 or best <= NEAR * limit:
            return
        for one in running:
            if clock() > stop:
                return
            one.sample(clock)


# what is remembered ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """What a race is about: a family of kernels, a class of problems, and the device. Which
    candidates are legal is no part of it: a winner that is not legal for a problem of the class is
    passed over."""

    family: str
    problem: str
    device: str

    @property
    def key(self) -> str:
        return f"{self.family} | {self.problem} | {self.device}"


class Winners:
    """Rankings by question, kept in a file of the cache folder. A file that is damaged or cannot be
    written costs time, never correctness."""

    def __init__(self) -> None:
        self.rankings = 0  # noted or loaded so far
        self._lock = threading.Lock()
        self._known: dict[Path, dict[str, dict[str, float]]] = {}

    def find(self, question: Question, legal: Sequence[str]) -> str | None:
        """The fastest of the legal candidates, if they have raced."""
        with self._lock:
            seconds = self._table(_path()).get(question.key, {})
        return next((name for name in seconds if name in legal), None)

    def note(self, question: Question, ranking: Ranking) -> None:
        """Remember how a race ended."""
        path = _path()
        with self._lock:
            self.rankings += 1
            table = self._table(path)
            table[question.key] = dict(ranking.seconds)
            if cache.current().usable:
                with contextlib.suppress(OSError):
                    _write(path, {**_read(path), question.key: table[question.key]})

    def export(self, path: str | os.PathLike[str]) -> int:
        """Write everything that is remembered to a file; returns the number of rankings.

        Raises OSError if the file cannot be written.
        """
        with self._lock:
            table = {**_read(_path()), **self._table(_path())}
            _write(Path(path), table)
        return len(table)

    def load(self, path: str | os.PathLike[str]) -> int:
        """Remember what a file from `export` holds; returns the number of rankings.

        Raises OSError if there is no such file, ValueError if it is not one of this format.
        """
        found = _parsed(Path(path).read_text())
        if found is None:
            raise ValueError(
                f"autotune: {os.fspath(path)} must be a file written by export of this version of "
                f"xcube ({__version__}); it is not."
            )
        with self._lock:
            self.rankings += 1
            self._table(_path()).update(found)
        return len(found)

    def clear(self) -> None:
        """Forget everything, on disk too."""
        with self._lock:
            self.rankings += 1
            self._known.clear()
            _path().unlink(missing_ok=True)

    def _table(self, path: Path) -> dict[str, dict[str, float]]:
        if path not in self._known:
            self._known[path] = _read(path)
        return self._known[path]


def _path() -> Path:
    return cache.folder() / "tuned.json"


def _read(path: Path) -> dict[str, dict[str, float]]:
    if not cache.current().usable:
        return {}
    try:
        return _parsed(path.read_text()) or {}
    except (OSError, UnicodeDecodeError):
        return {}


def _parsed(text: str) -> dict[str, dict[str, float]] | None:
    """The rankings of a file, fastest first; None if it is damaged or of another version."""
    try:
        found = json.loads(text)
        if found["version"] != __version__:
            return None
        return {
            str(key): {str(name): float(seconds[name]) for name in sorted(seconds, key=seconds.get)}
            for key, seconds in found["seconds"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _write(path: Path, table: Mapping[str, Mapping[str, float]]) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    draft.write_text(json.dumps({"version": __version__, "seconds": table}, indent=1))
    os.replace(draft, path)


winners = Winners()


# the kernel library ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Asked:
    """A question that came up, its legal candidates, and a jaxpr whose lowering asks it again."""

    question: Question
    names: tuple[str, ...]
    example: Callable[[], Jaxpr]


@dataclass(eq=False)
class _Lowering:
    """What is answered otherwise than by what is remembered, and what was asked."""

    forced: Mapping[str, str] = field(default_factory=dict)
    asked: dict[str, Asked] = field(default_factory=dict)


_lowering: contextvars.ContextVar[_Lowering | None] = contextvars.ContextVar("tune", default=None)


def pick(
    family: str,
    problem: str,
    candidates: Sequence[T],
    facts: Facts,
    example: Callable[[], Jaxpr],
) -> T:
    """The candidate to use: the fastest known, or the first. All are legal for this problem;
    `problem` names its class, and their texts tell them apart."""
    if config.current.autotune != "all" or len(candidates) < 2:
        return candidates[0]
    question = Question(family, problem, f"{facts.kind} {facts.model} x{facts.cores}")
    named = {str(candidate): candidate for candidate in candidates}
    now = _lowering.get()
    if now is not None:
        now.asked.setdefault(question.key, Asked(question, tuple(named), example))
        if (name := now.forced.get(question.key)) is not None:
            return named[name]
    name = winners.find(question, tuple(named))
    return candidates[0] if name is None else named[name]


def answers() -> Hashable:
    """What `pick` depends on besides its arguments: kernels are built anew when it changes."""
    if config.current.autotune != "all":
        return ()
    now = _lowering.get()
    return winners.rankings, () if now is None else tuple(now.forced.items())


def size_class(number: int) -> int:
    """Sizes of one class: up to the next power of two."""
    return 1 << (number - 1).bit_length() if number > 1 else number


@contextlib.contextmanager
def _answering(forced: Mapping[str, str]) -> Iterator[_Lowering]:
    lowering = _Lowering(forced)
    token = _lowering.set(lowering)
    try:
        yield lowering
    finally:
        _lowering.reset(token)


def settle(
    lower: Callable[[], Any], device: Device, compile: Callable[[Jaxpr, Device], Any]
) -> None:
    """Run the races for the questions that lowering a program asks and that nobody answered yet."""
    if config.current.autotune != "all" or _lowering.get() is not None:
        return
    with _answering({}) as lowering:
        lower()
    for asked in lowering.asked.values():
        if winners.find(asked.question, asked.names) is None:
            winners.note(asked.question, _race(asked, device, compile))


def _race(asked: Asked, device: Device, compile: Callable[[Jaxpr, Device], Any]) -> Ranking:
    jaxpr = asked.example()
    inputs = [device.from_host(_sample(aval)) for aval in jaxpr.in_avals]

    def prepared(name: str) -> Runner:
        with _answering({asked.question.key: name}):
            executable: Executable = compile(jaxpr, device)

        def run() -> None:
            executable(inputs)
            device.synchronize()

        return run

    return race({name: lambda name=name: prepared(name) for name in asked.names})


def _sample(aval: Aval) -> np.ndarray:
    """An array of an aval: values of everyday size, so that no arithmetic is slow or special."""
    random = np.random.default_rng(0)
    if aval.dtype.kind in "iub":
        return random.integers(0, 2, aval.shape).astype(aval.dtype)
    return random.standard_normal(aval.shape, np.float32).astype(aval.dtype)
