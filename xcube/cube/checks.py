"""Checked launches: the errors and the lines of text that are made of the record which a kernel
leaves. The record is looked at by a call of the host behind the launch, in programs too, so that no
result of a program with a fault is ever seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from xcube.cube.calls import Call, base
from xcube.ir import Aval, Source, user_source
from xcube.lowering.cube import checked
from xcube.lowering.cube.ir import Buffer, Kernel
from xcube.lowering.device import default_device
from xcube.primitives.callback import debug_callback_p
from xcube.trace import bind


class OutOfBounds(IndexError):
    """A kernel accessed an element that an array does not have."""


class AssertionFailed(AssertionError):
    """An assertion of a kernel did not hold."""


def record_aval(kernel: Kernel) -> Aval:
    """The record of a kernel."""
    return Aval((checked.size(kernel),), np.dtype(np.int64))


@lru_cache(maxsize=1024)
def kernel_of(call: Call) -> Kernel:
    """The kernel of a call, as its record numbers the statements."""
    return base(call, default_device().facts()).launched.kernel


@dataclass(frozen=True)
class Report:
    """Reads the record of a call: prints, and raises what it says. `source`: its launch."""

    call: Call
    source: Source | None

    def __call__(self, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        record, kernel = operands[0].tolist(), kernel_of(self.call)
        for line in checked.printed(kernel, record):
            print(line)
        if (fault := checked.fault(kernel, record)) is not None:
            raise self._error(fault)
        return []

    def __str__(self) -> str:
        return f"check of {self.call.source.name}"

    def _error(self, fault: checked.Fault) -> Exception:
        name = self.call.source.name
        at = f" At {fault.source}." if fault.source else ""
        launched = f" Launched at {self.source}." if self.source else ""
        kind = "accesses" if fault.message is None else "units"
        others = f" {fault.count - 1} more such {kind}." if fault.count > 1 else ""
        where = f"{at}{launched} It is unit {fault.unit} of cube {fault.cube}.{others}"
        if fault.message is not None:
            return AssertionFailed(f"{name}: {fault.message}.{where}")
        assert fault.buffer is not None, "a fault is an access or an assertion"
        return OutOfBounds(
            f"{name}: an index must lie in 0..{fault.size - 1} for {self._array(fault.buffer)}; "
            f"it {fault.does} element {fault.index}.{where} Guard the access with `if`, or launch "
            f"fewer units."
        )

    def _array(self, buffer: Buffer) -> str:
        if buffer.space != "global":
            return f"a {buffer.space} array of {buffer.size} {buffer.dtype}"
        expanded = self.call.source.expand(self.call, default_device().facts())
        name = expanded.arrays[buffer.number]
        return f"{name}: {self.call.argument(name).aval}"


def report(record: Any, call: Any) -> None:
    """Look at the record of a launch once it has run."""
    bind(debug_callback_p, record, function=Report(call, user_source()), results=())
