"""What a group of equations becomes: a kernel with its arguments, ready to be launched, or control
flow around blocks of more of the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from xcube.ir import Equation, Jaxpr, Var
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

    def on(self, buffers: tuple[Var, ...]) -> Work:
        """The same launch on other variables; the text of its kernel is not written again."""
        other = Work(self.kernel, buffers, self.scalars, self.cubes, self.grain)
        other.__dict__["key"] = self.key
        return other


@dataclass(frozen=True, eq=False)
class Control:
    """Control flow, a host call or a barrier: its equation, and a block for each of its jaxprs."""

    equation: Equation
    blocks: tuple[Block, ...] = ()

    @property
    def buffers(self) -> tuple[Var, ...]:
        """The variables it reads and writes."""
        read = (atom for atom in self.equation.inputs if isinstance(atom, Var))
        return (*read, *self.equation.outputs)


@dataclass(frozen=True, eq=False)
class Block:
    """A flat jaxpr and what runs it. `taken`: results that lie in the memory of an input;
    `overwritten`: results that lie where an operand was that is computed here, too."""

    jaxpr: Jaxpr
    works: tuple[Work | Control, ...]
    taken: dict[Var, Var]
    overwritten: dict[Var, Var] = field(default_factory=dict)
