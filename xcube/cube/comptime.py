"""What is known while a kernel is expanded: the device it is for, and conditions on that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xcube.cube.branches import truth
from xcube.cube.state import current, fail
from xcube.errors import KernelError


@dataclass(frozen=True)
class Device:
    """`cube.device`: the device that the kernel is expanded for."""

    def has(self, feature: str) -> bool:
        """Whether the hardware does something natively, for example "f16"."""
        return feature in current().facts.features

    @property
    def kind(self) -> str:
        """What kind of device it is: "cpu" or "cuda"."""
        return current().facts.kind

    @property
    def units(self) -> int:
        """How many units of a cube work side by side; 1 where a cube is a task of one thread."""
        return current().facts.units

    @property
    def vector_bytes(self) -> int:
        """Bytes of the widest line."""
        return current().facts.vector_bytes


device = Device()


def static_assert(condition: Any, message: str) -> None:
    """A condition that must hold while the kernel is expanded.

    Raises KernelError, with the message, if it does not, or is not known then.
    """
    holds = truth("static_assert", condition)
    if not isinstance(holds, bool):
        must = "static_assert: the condition must be known at expansion"
        fail(KernelError, must, "a run-time value", "Write an assert.")
    if not holds:
        fail(KernelError, f"static_assert: {message}", "otherwise", "Launch it another way.")
