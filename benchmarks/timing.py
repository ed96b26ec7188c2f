"""Timing on a machine that others use too: single calls of all candidates in turn, of which a low
percentile is kept, since what disturbs a call only ever makes it longer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Call = Callable[[], object]

PAUSE = 0.012  # seconds in which the idle threads of the library measured before stop spinning
SHORTEST = 2e-3  # seconds of a sample; shorter calls are repeated
PERCENTILE = 5


def low_percentiles(
    calls: Mapping[str, Call], rounds: int = 60, budget: float = 20.0
) -> dict[str, float]:
    """Seconds that one call of each candidate takes."""
    repeats = {name: _repeats(call) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + budget
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(PAUSE)
            call()
            samples[name].append(_sample(call, repeats[name]))
        if time.perf_counter() > end:
            break
    return {name: sorted(taken)[len(taken) * PERCENTILE // 100] for name, taken in samples.items()}


def _repeats(call: Call) -> int:
    for _ in range(3):
        call()
    return max(1, round(SHORTEST / max(_sample(call, 1), 1e-7)))


def _sample(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats
