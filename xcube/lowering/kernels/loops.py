"""A scan or while over a few scalars as one kernel with the loop inside: nothing is launched
between its steps, and what it carries stays in registers.

Arrays that share their first or last dimensions, and are computed place by place along these, are
walked in parallel: a cube runs the loop for a line of places. What is small otherwise is unrolled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from xcube.ir import Equation, subjaxprs
from xcube.lowering.bounded import MOST_TURNS
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import BITS
from xcube.lowering.expression import walk
from xcube.lowering.index import ravel
from xcube.lowering.kernels.loops_body import loop_of
from xcube.lowering.kernels.loops_code import Coder, Numbers
from xcube.lowering.kernels.loops_rules import Unfit, statements
from xcube.lowering.kernels.loops_state import PLACE, Loop, Spread
from xcube.lowering.kernels.nodes import PARTS
from xcube.lowering.kernels.space import Axis
from xcube.lowering.kernels.work import Work

TASK = 20_000  # operations worth handing to a thread
FEW_PLACES = 4  # fewer are unrolled rather than laid along lanes
STEPS = 100  # taken for a loop that decides itself
REGISTERS = 24  # vectors that a step may carry before it is better to have fewer lanes
CUBES = 8  # that lines should leave to be shared among threads
WIDEST = 4  # vectors of a line: their latencies overlap


def build(eqn: Equation, vector_bytes: int = 64) -> list[Work] | None:
    """The launch of a scan or while; None if it is no loop over a few scalars."""
    if eqn.primitive.lower.kind == "cond" or _turns(eqn) > MOST_TURNS:
        return None
    for spread in _spreads(eqn):
        try:
            loop = loop_of(eqn, spread)
        except (Unfit, RecursionError):
            continue
        return [_Kernel(eqn, loop, spread, vector_bytes).work()]
    return None


def _turns(eqn: Equation) -> int:
    """Turns of a loop and of those inside it, as far as they are known."""
    inner = [e for jaxpr in subjaxprs(eqn) for e in jaxpr.equations if "jaxpr" in e.params]
    return eqn.params.get("length", 1) * max([1, *map(_turns, inner)])


def _spreads(eqn: Equation) -> Iterator[Spread]:
    """The spaces of places to try: as many dimensions of the largest carried array as there are,
    and at last none."""
    carried = eqn.outputs[: eqn.params.get("num_carry")]  # a while has no other results
    largest = max((var.aval.shape for var in carried), key=math.prod, default=())
    for rank in range(len(largest), 0, -1):
        for leading in (True, False) if rank < len(largest) else (True,):
            shape = largest[:rank] if leading else largest[len(largest) - rank :]
            if math.prod(shape) >= FEW_PLACES:
                yield Spread(shape, leading)
    yield Spread(())


class _Kernel:
    """One kernel in the making."""

    def __init__(self, eqn: Equation, loop: Loop, spread: Spread, vector_bytes: int) -> None:
        self.eqn, self.loop, self.spread = eqn, loop, spread
        self.order = walk([*loop.before, *loop.roots])
        self.lanes = self._lanes(vector_bytes)
        self.b = Builder("loop")
        self.arguments = Numbers(self.b)
        places = Axis((0,), spread.size, "place")
        self.coder = Coder(self.arguments, places, self.lanes)
        for var in eqn.outputs:
            self.arguments.buffer(var, "out")
        cube = self.b.place("cube_pos.x")
        self.is_first = cube.eq(0)
        if spread.shape:
            end = self.arguments.cell("places", spread.size)
            start = cube * self.lanes
            self.coder.at[id(places)] = start
            self.coder.mask_from(start, end, spread.size % self.lanes != 0)

    def _lanes(self, vector_bytes: int) -> int:
        """Places of a line: several vectors, so that their latencies overlap, unless that makes
        too few lines or needs too many registers."""
        size = self.spread.size
        if not self.spread.shape:
            return 1
        widest = max([4, *(BITS[PARTS.get(n.dtype, n.dtype)] // 8 for n in self.order)])
        lanes = max(1, vector_bytes // widest)
        vectors, carried = 1, sum(1 for n in self.loop.variables if n.dims & PLACE)
        while vectors < WIDEST and 2 * vectors * carried <= REGISTERS:
            if size < 2 * vectors * lanes * CUBES and (vectors > 1 or size <= lanes):
                break
            vectors *= 2
        lanes *= vectors
        while lanes > 1 and lanes // 2 >= size:
            lanes //= 2
        return lanes

    def work(self) -> Work:
        """The launch."""
        finals = self.coder.run(self.loop, self._write_step)
        outputs = self.eqn.outputs[: len(self.loop.state)]
        values = iter(finals)
        for var in outputs:
            for index in self.spread.elements(var.aval.shape):
                self._store(var, index, next(values))
        cubes = max(1, -(-self.spread.size // self.lanes))
        return Work(
            self.b.finish(),
            tuple(self.arguments.variables),
            tuple(self.arguments.cells),
            cubes,
            max(1, math.ceil(TASK / self._cost())),
        )

    def _write_step(self, place: Value, values: Sequence[Any]) -> None:
        elements, outputs = iter(values), self.eqn.outputs[len(self.loop.state) :]
        for var, result in zip(outputs, self.loop.kept, strict=True):
            for index, _ in result:
                self._store(var, index, next(elements), 1)

    def _store(self, var: Any, index: Any, value: Any, steps: int = 0) -> None:
        """Write an element; one cube does it where all have the same."""
        position = ravel(index, var.aval.shape)
        if not self.spread.shape or self.spread.covers(var.aval.shape[steps:]):
            self.coder.store(var, position, value)
            return
        with self.b.when(self.is_first):
            self.coder.open()
            self.coder.store(var, position, value)
            self.coder.close()

    def _cost(self) -> int:
        """Operations of a cube."""
        step = sum(statements(node.op) for node in self.order)
        return (STEPS if self.loop.length is None else max(1, self.loop.length)) * max(1, step)
