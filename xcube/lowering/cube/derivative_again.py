"""What a way back needs of the way along: the statements that compute needed values, built once
more wherever they are asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from xcube.lowering.cube import ir, rebuild
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.derivative_analysis import Marks, assigned, defined, place_of, used
from xcube.lowering.cube.derivative_normal import OLD, refuse
from xcube.lowering.cube.ir import Kernel, Stmt


class Recomputer(rebuild.Rebuilder):
    """Builds what `needs` marks. `saved`: for each branch and loop, what the variables around it
    held; `again`: where the outermost of those that are built anew stands, if one is."""

    def __init__(self, kernel: Kernel, build: Builder, needs: Marks) -> None:
        super().__init__(kernel, build)
        self.needs = needs
        self.statements = list(rebuild.every(kernel.body))
        self.position = {id(s): number for number, s in enumerate(self.statements)}
        self.saved: dict[int, dict[int, Value]] = {}
        self.again: int | None = None

    def forward(self, body: Sequence[Stmt]) -> None:
        """What the way back needs of a block."""
        for s in body:
            if isinstance(s, ir.If | ir.For | ir.Loop):
                self.saved[id(s)] = {n: self.variables[n].get() for n in self.outer(s)}
                if self._matters(s):
                    self.statement(s)
            elif self._is_needed(s):
                self.statement(s)

    def block(self, body: Sequence[Stmt]) -> None:
        self.forward(body)

    def _is_needed(self, s: Stmt) -> bool:
        if isinstance(s, ir.Declare | ir.Assign):
            return self.needs.has(s.variable)
        if isinstance(s, ir.Store | ir.Allocate):
            return place_of(s.buffer) in self.needs.places
        if isinstance(s, ir.Atomic | ir.CompareExchange):
            if self.needs.has(s.target):
                refuse(self.kernel, s, OLD, "Give the call a rule of its own: custom_vjp.")
            return False
        if isinstance(s, ir.Break | ir.Continue):
            return True
        target = rebuild.target_of(s)
        return target is not None and self.needs.has(target)

    def outer(self, s: Stmt) -> list[int]:
        """The needed variables of the blocks around a statement to which it refers."""
        known = used([s]) - defined([s])
        return [n for n in sorted(known) if n in self.variables and n in self.needs.names]

    def _matters(self, s: Stmt) -> bool:
        """Whether what follows needs what happens inside a statement, or how a loop ends."""
        inner = list(rebuild.every([s]))
        if any(isinstance(x, ir.Break | ir.Continue) for x in inner):
            return True
        stored = (place_of(x.buffer) in self.needs.places for x in inner if isinstance(x, ir.Store))
        return bool(assigned([s]) & set(self.outer(s))) or any(stored)

    def load(self, s: ir.Load) -> None:
        if self.again is not None and s.buffer.access != "in":
            place, began = place_of(s.buffer), self.again
            stores = [x for x in self.statements if isinstance(x, ir.Store)]
            if any(place_of(x.buffer) == place and self.position[id(x)] >= began for x in stores):
                reason = "an element is read in a branch or loop and written there or behind it"
                way = "Carry what is read in a variable, or read it before."
                refuse(self.kernel, s, f"{reason}, and its value is needed on the way back", way)
        super().load(s)

    @contextlib.contextmanager
    def anew(self, s: Stmt) -> Iterator[None]:
        """A block that is computed anew, from the variables that it found."""
        variables, again = dict(self.variables), self.again
        self.again = self.position[id(s)] if again is None else again
        self.restore(self.saved[id(s)])
        yield
        self.variables, self.again = variables, again

    def restore(self, values: dict[int, Value]) -> None:
        """Give variables new places, which hold these values."""
        self.variables.update({n: self.build.variable(x) for n, x in values.items()})
