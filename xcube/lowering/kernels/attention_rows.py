"""Attention of few queries on many keys, as in decoding: a cube takes a stretch of keys of one head
of keys, for all queries of its group, and reads keys and values as they lie, once. Stretches give
sums of values, the largest score and the sum of exponentials; ordinary maps put them together.

Lanes lie along the places of a key for scores, along keys for exponentials, along the places of a
value for sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from xcube.ir import Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.kernels.attention_tile import (
    LOG2_E,
    MASKED,
    Problem,
    Walk,
    decay,
    multiply,
)
from xcube.lowering.kernels.nodes import Arguments
from xcube.lowering.kernels.work import Work

BLOCK = 64  # keys whose scores are in memory at a time
TASK = 1 << 17  # multiplications worth handing to a thread


def build(group: Group) -> list[Work]:
    """The launch of an attention on operands as they are."""
    root = group.root
    assert root is not None
    problem, stretch = root.params["problem"], root.params["stretch"]
    return [_Rows(problem, stretch, root.inputs, root.outputs).work()]  # type: ignore[arg-type]


class _Rows:
    def __init__(
        self, problem: Problem, stretch: int, operands: Sequence[Var], outputs: Sequence[Var]
    ) -> None:
        self.problem, self.stretch, self.b = problem, stretch, Builder("attention_rows")
        self.arguments = Arguments(self.b)
        self.sums, self.tops, self.totals = [self.arguments.buffer(v, "out") for v in outputs]
        self.query, self.key, self.value = map(self.arguments.buffer, operands[:3])
        others, form = iter(operands[3:]), problem.form
        flags = (form.bias, form.mask, form.lengths)
        self.bias, self.mask, self.lengths = [next(others) if f else None for f in flags]
        self.block = self.b.shared(problem.dtype, BLOCK)

    def work(self) -> Work:
        b, sizes = self.b, self.problem.sizes
        stretches = -(-sizes.s // self.stretch)
        cube = b.place("cube_pos.x")
        count, self.pairs = self._scalar("stretches", stretches), self._scalar("m", sizes.m)
        number, pair = cube % count, cube // count
        self.batch, self.key_head = pair // self.pairs, pair % self.pairs
        self.length, self.keys = self._scalar("t", sizes.t), self._scalar("s", sizes.s)
        self.group = self._scalar("group", sizes.group)
        self.rows = self.group * self.length
        start, stop = self._range(number)
        total = self._scalar("pairs", sizes.b * sizes.m)
        for row in b.range(0, self.rows):
            self._row(row, (number * total + pair) * self.rows + row, start, stop)
        cost = self.stretch * (sizes.h + sizes.e) * sizes.group * sizes.t
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        cubes = sizes.b * sizes.m * stretches
        return Work(b.finish(), variables, cells, cubes, max(1, TASK // cost))

    def _scalar(self, name: str, number: int) -> Value:
        return self.arguments.scalar(name, number)

    def _range(self, number: Value) -> tuple[Value, Value]:
        """The keys of this stretch that count; all of it where a query may see none."""
        b, form = self.b, self.problem.form
        size = self._scalar("stretch", self.stretch)
        start = number * size
        stop = b.op("min", start + size, self.keys)
        self.limit = self.keys
        if self.lengths is not None:
            length = b.load(self.arguments.buffer(self.lengths), self.batch).cast("index")
            self.limit = b.op("min", length, self.keys)
        if form.mask or not self.problem.is_restricted:
            return start, stop
        last = self.length - 1
        (low, high), (below, above) = self._seen(b.constant(0, "index")), self._seen(last)
        all_see = (low < high) & (below < above)
        first, end = b.op("min", low, below), b.op("max", high, above)
        return (
            b.select(all_see, b.op("max", start, first), start),
            b.select(all_see, b.op("min", stop, end), stop),
        )

    def _seen(self, position: Value) -> tuple[Value, Value]:
        """The keys that count for the query at a position."""
        b, form = self.b, self.problem.form
        low, high = b.constant(0, "index"), self.limit
        if form.right is not None:
            high = b.op("min", high, position + self._scalar("right", form.right) + 1)
        if form.left is not None:
            low = b.op("max", low, position - self._scalar("left", form.left))
        return low, high

    # one query

    def _row(self, row: Value, place: Value, start: Value, stop: Value) -> None:
        """One query of the group through the stretch."""
        b, problem, lanes = self.b, self.problem, self.problem.tile.lanes
        self.head = self.key_head * self.group + row // self.length
        self.position = row % self.length
        at = (self.batch * self.length + self.position) * self._scalar("n", problem.sizes.n)
        at = (at + self.head) * problem.sizes.h
        scale = b.constant(problem.form.scale * LOG2_E, problem.dtype)
        self.lines = [
            b.load(self.query, at + i, lanes).cast(problem.dtype) * scale
            for i in range(0, problem.sizes.h, lanes)
        ]
        top = b.variable(b.constant(2 * MASKED, problem.dtype))
        total = b.variable(b.constant(0, problem.dtype))
        zero = b.constant(0, problem.dtype, lanes)
        sums = [[b.variable(zero) for _ in range(0, problem.sizes.e, lanes)]]
        for key in b.range(start, stop, BLOCK):
            count = b.op("min", stop - key, BLOCK)
            before = top.get()
            top.set(self._score(key, count, before))
            shrunk = decay(before - top.get())
            total.set(b.fma(total.get(), shrunk, self._weigh(count, top.get())))
            for cell in sums[0]:
                cell.set(cell.get() * shrunk)
            step = self.pairs * problem.sizes.e
            first = (self.batch * self.keys + key) * step + self.key_head * problem.sizes.e
            weights = Walk(self.block, b.constant(0, "index"), 1)
            multiply(b, sums, weights, Walk(self.value, first, step), count)
        b.store(self.tops, place, top.get())
        b.store(self.totals, place, total.get())
        for i, cell in enumerate(sums[0]):
            b.store(self.sums, place * problem.sizes.e + i * lanes, cell.get())

    def _score(self, key: Value, count: Value, before: Value) -> Value:
        """The scores of a block of keys; gives the largest so far."""
        b, problem, lanes = self.b, self.problem, self.problem.tile.lanes
        step = self.pairs * problem.sizes.h
        first = (self.batch * self.keys + key) * step + self.key_head * problem.sizes.h
        for i in b.range(0, count):
            at = first + i * step
            product = None
            for k, line in enumerate(self.lines):
                x = b.load(self.key, at + k * lanes, lanes).cast(problem.dtype)
                product = line * x if product is None else b.fma(line, x, product)
            assert product is not None
            b.store(self.block, i, b.reduce("add", product))
        lowest = b.constant(2 * MASKED, problem.dtype, lanes)
        largest = b.variable(lowest)
        for i in b.range(0, count, lanes):
            exists = b.lane(lanes, "i32") < (count - i).cast("i32")
            score = self._adjusted(b.load(self.block, i, lanes, exists), key + i, exists)
            b.store(self.block, i, score)
            so_far = largest.get()
            largest.set(b.select((score > so_far) & exists, score, so_far))
        found = b.reduce("max", largest.get())
        return b.select(found > before, found, before)

    def _weigh(self, count: Value, top: Value) -> Value:
        """Turn the scores of a block into exponentials; gives their sum."""
        b, problem, lanes = self.b, self.problem, self.problem.tile.lanes
        total = b.variable(b.constant(0, problem.dtype, lanes))
        for i in b.range(0, count, lanes):
            exists = b.lane(lanes, "i32") < (count - i).cast("i32")
            weight = decay(b.load(self.block, i, lanes) - top)
            b.store(self.block, i, weight)
            total.set(total.get() + b.select(exists, weight, 0.0))
        return b.reduce("add", total.get())

    def _adjusted(self, score: Value, key: Value, exists: Value) -> Value:
        """A line of scores of neighbouring keys with their bias, replaced where they do not
        count."""
        b, form = self.b, self.problem.form
        lanes = self.problem.tile.lanes
        if self.bias is not None:
            line = self._line(self.bias, key, exists).cast(self.problem.dtype)
            score = b.fma(line, LOG2_E, score)
        columns = b.lane(lanes, "i32") + key.cast("i32")
        tests = [] if self.mask is None else [self._line(self.mask, key, exists)]
        if self.lengths is not None or form.right is not None or form.left is not None:
            low, high = self._seen(self.position)
            tests.append((columns >= low.cast("i32")) & (columns < high.cast("i32")))
        for test in tests:
            score = b.select(test, score, MASKED)
        return score

    def _line(self, var: Var, key: Value, exists: Value) -> Value:
        """Bias or mask of this query for neighbouring keys."""
        b, lanes = self.b, self.problem.tile.lanes
        examples, n, t, s = var.aval.shape
        name = "bias" if var is self.bias else "mask"
        at = self.batch * self._scalar(f"{name} b", n * t * s if examples > 1 else 0)
        at = at + self.head * self._scalar(f"{name} n", t * s if n > 1 else 0)
        at = at + self.position * self._scalar(f"{name} t", s if t > 1 else 0)
        buffer = self.arguments.buffer(var)
        if s == 1:
            return b.splat(b.load(buffer, at), lanes)
        return b.load(buffer, at + key, lanes, exists)
