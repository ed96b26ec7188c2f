"""What a template gives back: kernels with their arguments, ready to be launched in order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from xcube.ir import Var
from xcube.lowering.cube.ir import Kernel
from xcube.lowering.cube.text import key


@dataclass(frozen=True, eq=False)
class Work:
    """One launch: `buffers` are the variables behind the kernel's buffers, `scalars` 64-bit cells.

    `grain`: cubes worth handing to one thread at a time.
    """

    kernel: Kernel
    buffers: tuple[Var, ...]
    scalars: tuple[int, ...]
    cubes: int
    grain: int

    @cached_property
    def key(self) -> str:
        """The text that identifies the kernel."""
        return key(self.kernel)
