"""What loops walk through: ranges that Python knows, and ranges of run-time numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from xcube.cube.operators import Operators
from xcube.cube.state import fail
from xcube.cube.values import Value, resolved, typed
from xcube.errors import KernelError


@dataclass(frozen=True)
class Range:
    """Numbers that a loop of the kernel counts through. A run-time step is above zero."""

    start: Any
    stop: Any
    step: Any = 1

    def __iter__(self) -> Iterator[Any]:
        must = "range: what walks through run-time numbers must be a `for` statement"
        got = f"a comprehension or a call, over {typed(self.stop)}"
        fail(KernelError, must, got, "Write the loop out.")


@dataclass(frozen=True)
class Unrolled:
    """What a loop is to be expanded over, however long it is."""

    items: Iterable[Any]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


def run_time_range(*bounds: Any) -> Range:
    """`cube.range(start, stop, step)`: a loop of the kernel, also where the bounds are known.

    Raises TypeError if there are not one to three bounds, or the step is 0.
    """
    if not 1 <= len(bounds) <= 3:
        fail(TypeError, "range: there must be 1 to 3 bounds", f"{len(bounds)}", "Write range(n).")
    found = Range(*((0, *bounds) if len(bounds) == 1 else bounds))
    if not isinstance(found.step, Operators) and found.step == 0:
        fail(TypeError, "range: the step must not be 0", "0", "Write another step.")
    return found


def any_range(*bounds: Any) -> range | Range:
    """Python's `range` where its bounds are known, else a loop of the kernel."""
    known = [resolved(bound) for bound in bounds]
    if any(isinstance(bound, Value) and bound.core.constant is None for bound in known):
        return run_time_range(*bounds)
    return range(*[int(bound) for bound in known])


def unroll(items: Iterable[Any]) -> Unrolled:
    """A loop over this is expanded turn by turn.

    Raises KernelError if it is a range of run-time numbers.
    """
    if isinstance(items, Range):
        must = "unroll: the turns must be known at expansion"
        way = "Leave unroll away, or make the bounds comptime."
        fail(KernelError, must, f"a range up to {typed(items.stop)}", way)
    return Unrolled(items)
