"""Attention of few queries on many keys, as in decoding with groups of heads: a cube takes the
queries of all heads of a group, which are rows of one head here, through a stretch of the keys of
their head. Keys and values are read as they lie, once, block by block into the cube's own arrays,
where they are close together. Stretches give sums of values, the largest
score and the sum of exponentials; ordinary maps put them together.
"""

from __future__ import annotations

from collections.abc import Sequence

from xcube.ir import Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Buffer
from xcube.lowering.kernels.attention_sweep import Sweep
from xcube.lowering.kernels.attention_tile import Problem, Scores, Walk
from xcube.lowering.kernels.nodes import Arguments
from xcube.lowering.kernels.work import Work

TASK = 1 << 17  # multiplications worth handing to a thread


def build(group: Group) -> list[Work]:
    """The launch of an attention on packed queries."""
    root = group.root
    assert root is not None
    problem, stretch = root.params["problem"], root.params["stretch"]
    return [_Few(problem, stretch, root.inputs, root.outputs).work()]  # type: ignore[arg-type]


class _Few:
    def __init__(
        self, problem: Problem, stretch: int, operands: Sequence[Var], outputs: Sequence[Var]
    ) -> None:
        self.problem, self.stretch, self.b = problem, stretch, Builder("attention_few")
        self.arguments = Arguments(self.b)
        self.sums, self.tops, self.totals = [self.arguments.buffer(v, "out") for v in outputs]
        self.queries, self.keys, self.values = map(self.arguments.buffer, operands[:3])
        self.scores = Scores(self.arguments, problem, operands[3:])

    def work(self) -> Work:
        b, problem, sizes, tile = self.b, self.problem, self.problem.sizes, self.problem.tile
        stretches = -(-sizes.s // self.stretch)
        count, tiles = self._scalar("stretches", stretches), self._scalar("tiles", problem.tiles)
        cube = b.place("cube_pos.x")
        number, pair = cube % count, cube // count
        pair, part = pair // tiles, pair % tiles
        pairs = self._scalar("m", sizes.m)
        batch, head = pair // pairs, pair % pairs
        self.scores.enter(batch, head)
        self.scores.place(part * tile.width)
        first = batch * self._scalar("s", sizes.s) * sizes.m + head
        self.key_start, self.value_start = first * sizes.h, first * sizes.e
        self.key_rows = b.shared(problem.dtype, tile.block * problem.padded(sizes.h))
        self.value_rows = b.shared(problem.dtype, tile.block * problem.padded(sizes.e))
        packed, zero = pair * tiles + part, b.constant(0, "index")
        walks = (
            Walk(self.queries, packed * (sizes.h * tile.width), tile.width),
            Walk(self.key_rows, zero, 1, problem.padded(sizes.h)),
            Walk(self.value_rows, zero, problem.padded(sizes.e), 1),
        )
        sweep = Sweep(b, problem, self.scores, walks, self._fetch)
        sweep.run(*self._range(number))
        total = self._scalar("packed", sizes.b * sizes.m * problem.tiles)
        self._write(sweep, number * total + packed)
        cost = self.stretch * (sizes.h + sizes.e) * tile.width
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        cubes = sizes.b * sizes.m * problem.tiles * stretches
        return Work(b.finish(), variables, cells, cubes, max(1, TASK // cost))

    def _scalar(self, name: str, number: int) -> Value:
        return self.arguments.scalar(name, number)

    def _range(self, number: Value) -> tuple[Value, Value]:
        """The keys of a stretch that count; all of it where a query may see none."""
        b, size = self.b, self._scalar("stretch", self.stretch)
        start = number * size
        stop = b.op("min", start + size, self._scalar("rows", self.problem.rows))
        if self.problem.form.mask or not self.problem.is_restricted:
            return start, stop
        low, high = self.scores.range()
        see = self.scores.all_see()
        return (
            b.select(see, b.op("max", start, low), start),
            b.select(see, b.op("min", stop, high), stop),
        )

    def _fetch(self, key: Value, stop: Value) -> None:
        """Bring a block of keys and values together; rows beyond the last key are zero."""
        sizes = self.problem.sizes
        self._fetch_rows(self.key_rows, self.keys, self.key_start, sizes.h, key, stop)
        self._fetch_rows(self.value_rows, self.values, self.value_start, sizes.e, key, stop)

    def _fetch_rows(
        self, target: Buffer, source: Buffer, start: Value, size: int, key: Value, stop: Value
    ) -> None:
        b, problem, lanes = self.b, self.problem, self.problem.tile.lanes
        step, width = self._scalar("m", problem.sizes.m) * size, problem.padded(size)
        end = b.op("min", stop, self.scores.keys)
        for row in b.range(0, end - key):
            at = start + (key + row) * step
            for place in range(0, size, lanes):
                left = size - place
                mask = b.lane(lanes, "i32") < left if left < lanes else None
                line = b.load(source, at + place, lanes, mask).cast(problem.dtype)
                b.store(target, row * width + place, line)
        zero = b.constant(0, problem.dtype, lanes)
        for at in b.range((end - key) * width, (stop - key) * width, lanes):
            b.store(target, at, zero)

    def _write(self, sweep: Sweep, place: Value) -> None:
        b, tile, e = self.b, self.problem.tile, self.problem.sizes.e
        for v, (top, total) in enumerate(zip(sweep.top, sweep.total, strict=True)):
            at = place * tile.width + v * tile.lanes
            b.store(self.tops, at, top.get())
            b.store(self.totals, at, total.get())
        start = place * (e * tile.width)
        for at in b.range(0, e * tile.width, tile.lanes):
            b.store(self.sums, start + at, b.load(sweep.sums, at, tile.lanes))
