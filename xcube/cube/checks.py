"""Checked launches: the error that is made of the record which a kernel leaves of its first access
out of bounds. The record is looked at by a call of the host behind the launch, in programs too, so
that no result of a program with a fault is ever seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube.ir import Aval, Source, user_source
from xcube.lowering.cube import guards
from xcube.lowering.device import default_device
from xcube.primitives.callback import debug_callback_p
from xcube.trace import bind

RECORD = Aval((guards.FIELDS,), np.dtype(np.int64))


class OutOfBounds(IndexError):
    """A kernel accessed an element that an array does not have."""


@dataclass(frozen=True)
class Report:
    """Reads the record of a call, and raises what it says. `source`: where the launch is."""

    call: Any
    source: Source | None

    def __call__(self, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        record = [int(x) for x in operands[0]]
        if record[0]:
            self._raise(record)
        return []

    def __str__(self) -> str:
        return f"check of {self.call.source.name}"

    def _raise(self, record: list[int]) -> None:
        expanded = self.call.source.expand(self.call, default_device().facts())
        found = guards.fault(expanded.kernel, record)
        assert found is not None, "the record says that there is a fault"
        name = expanded.arrays[found.buffer]
        at = f" At {found.source}." if found.source else ""
        launched = f" Launched at {self.source}." if self.source else ""
        others = f" {found.count - 1} more such accesses." if found.count > 1 else ""
        raise OutOfBounds(
            f"{self.call.source.name}: an index must lie in 0..{found.size - 1} for "
            f"{name}: {self.call.argument(name).aval}; it {found.does} element {found.index}.{at}"
            f"{launched}{others} Guard the access with `if`, or launch fewer units."
        )


def report(record: Any, call: Any) -> None:
    """Look at the record of a launch once it has run."""
    bind(debug_callback_p, record, function=Report(call, user_source()), results=())
