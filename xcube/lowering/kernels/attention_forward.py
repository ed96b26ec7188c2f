"""Attention of whole sequences: a cube takes a tile of queries of one head through the keys.

A row in whose keys none counts has only masked scores: its tile goes through the keys that it could
pass over otherwise, too, and the average of all values comes out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xcube.ir import Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube import math as cube_math
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.kernels.attention_sweep import Sweep
from xcube.lowering.kernels.attention_tile import UNSEEN, Problem, Scores, Walk
from xcube.lowering.kernels.nodes import Arguments
from xcube.lowering.kernels.work import Work
from xcube.primitives.attention import LOWEST

TASK = 1 << 19  # multiplications worth handing to a thread


def build(group: Group) -> list[Work]:
    """The launch of an attention on packed operands."""
    root = group.root
    assert root is not None
    return [_Forward(root.params["problem"], root.inputs, group.outputs, root.outputs).work()]  # type: ignore[arg-type]


class _Forward:
    def __init__(
        self,
        problem: Problem,
        operands: Sequence[Var],
        wanted: Sequence[Var],
        outputs: Sequence[Var],
    ) -> None:
        self.problem, self.b = problem, Builder("attention")
        self.arguments = Arguments(self.b)
        self.out, self.log_total = [
            self.arguments.buffer(var, "out") if var in wanted else None for var in outputs
        ]
        self.queries, self.keys, self.values = map(self.arguments.buffer, operands[:3])
        self.scores = Scores(self.arguments, problem, operands[3:])

    def work(self) -> Work:
        b, problem, sizes, tile = self.b, self.problem, self.problem.sizes, self.problem.tile
        tiles, heads = self._scalar("tiles", problem.tiles), self._scalar("n", sizes.n)
        cube = b.place("cube_pos.x")
        number, row = cube % tiles, cube // tiles
        self.batch, self.head = row // heads, row % heads
        group = self._scalar("group", sizes.group)
        pair = self.batch * self._scalar("m", sizes.m) + self.head // group
        first_key = pair * self._scalar("rows", problem.rows)
        self.first = number * tile.width
        self.scores.enter(self.batch, self.head)
        self.scores.place(self.first)
        walks = (
            Walk(self.queries, cube * (sizes.h * tile.width), tile.width),
            Walk(self.keys, first_key * sizes.h, 1, sizes.h),
            Walk(self.values, first_key * sizes.e, sizes.e, 1),
        )
        self.sweep = Sweep(b, problem, self.scores, walks)
        self._passes()
        self._finish()
        seen = problem.rows if problem.form.right is None else problem.rows // 2
        cost = tile.width * max(1, seen) * (sizes.h + sizes.e)
        cubes = sizes.b * sizes.n * problem.tiles
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        return Work(b.finish(), variables, cells, cubes, max(1, TASK // cost))

    def _scalar(self, name: str, number: int) -> Value:
        return self.arguments.scalar(name, number)

    def _passes(self) -> None:
        """All keys that may count, and then the others where a query has seen none that does."""
        b = self.b
        low, high = self.scores.range()
        if not self.problem.is_restricted:
            self.sweep.run(low, high)
            return
        zero, total = b.constant(0, "index"), self._scalar("rows", self.problem.rows)
        for turn in b.range(0, 3):
            start = b.select(turn.eq(0), low, b.select(turn.eq(1), zero, high))
            stop = b.select(turn.eq(0), high, b.select(turn.eq(1), low, total))
            stop = b.select(turn.eq(0) | self._unseen(), stop, start)
            self.sweep.run(start, stop)

    def _unseen(self) -> Value:
        """Whether a query has seen no key that counts."""
        b, lowest = self.b, None
        for cell, exists in zip(self.sweep.top, self.scores.exist, strict=True):
            line = b.select(exists, cell.get(), 0.0)
            lowest = line if lowest is None else b.select(line < lowest, line, lowest)
        assert lowest is not None
        return b.reduce("min", lowest) < UNSEEN

    # results

    def _finish(self) -> None:
        b, tile = self.b, self.problem.tile
        totals = [cell.get() for cell in self.sweep.total]
        if self.log_total is not None:
            self._write_logarithms(self.sweep.top, totals)
        if self.out is None:
            return
        inverse = [1.0 / total for total in totals]
        for at in b.range(0, self.problem.sizes.e * tile.width, tile.width):
            for v, factor in enumerate(inverse):
                place = at + v * tile.lanes
                b.store(self.sweep.sums, place, b.load(self.sweep.sums, place, tile.lanes) * factor)
        self._write_values()

    def _write_logarithms(self, top: Sequence[Variable], totals: Sequence[Value]) -> None:
        b, tile, sizes = self.b, self.problem.tile, self.problem.sizes
        assert self.log_total is not None
        length = self._scalar("t", sizes.t)
        row = (self.batch * self._scalar("n", sizes.n) + self.head) * length
        for v, (cell, total) in enumerate(zip(top, totals, strict=True)):
            largest = cell.get()
            logarithm = cube_math.apply(b, "log2", total)
            assert isinstance(logarithm, Value)
            line = (largest + logarithm) * math.log(2)
            line = b.select(largest < UNSEEN, LOWEST, line)
            at = row + self.first + v * tile.lanes
            b.store(self.log_total, at, line, self.scores.exist[v])

    def _write_values(self) -> None:
        """Turn the sums: queries one after the other."""
        b, tile, sizes = self.b, self.problem.tile, self.problem.sizes
        assert self.out is not None
        length, heads = self._scalar("t", sizes.t), self._scalar("n", sizes.n)
        row = (self.batch * length + self.first) * heads + self.head
        end = b.op("min", length - self.first, tile.width)
        lane = b.lane(tile.lanes) * tile.width
        for query in b.range(0, end):
            start = (row + query * heads) * sizes.e
            for place in range(0, sizes.e, tile.lanes):
                line = b.load(self.sweep.sums, lane + (query + place * tile.width), tile.lanes)
                left = sizes.e - place
                mask = b.lane(tile.lanes, "i32") < left if left < tile.lanes else None
                b.store(self.out, start + place, line.cast(self.out.dtype), mask)
