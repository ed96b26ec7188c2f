"""The cotangents of attention without a matrix of scores: a cube takes blocks of keys of one head
of keys through all tiles of queries that see them. Weights are computed anew from scores and the
logarithms of their sums; the cotangents of a block of keys and values are summed in the cube's own
arrays, those of queries in memory that no other cube writes. So results do not depend on the order
in which cubes run.

With p the weights, g the cotangents of the results: dv = pᵀ g, ds = p (g vᵀ - delta), dq = ds k
scale, dk = dsᵀ q scale; delta holds sum(out g) of each row.
"""

from __future__ import annotations

from collections.abc import Sequence

from xcube.ir import Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Buffer
from xcube.lowering.kernels.attention_tile import (
    LOG2_E,
    MASKED,
    Lines,
    Problem,
    Scores,
    Walk,
    decay,
    multiply,
    parts,
    zeros,
)
from xcube.lowering.kernels.nodes import Arguments
from xcube.lowering.kernels.work import Work
from xcube.primitives.attention import LOWEST

PACKED = 8  # operands before bias, mask and lengths


def build(group: Group) -> list[Work]:
    """The launch of the cotangents of an attention on packed operands."""
    root = group.root
    assert root is not None
    problem, chunks = root.params["problem"], root.params["chunks"]
    wanted = [var if var in group.outputs else None for var in root.outputs]
    return [_Backward(problem, chunks, root.inputs, wanted).work()]  # type: ignore[arg-type]


class _Backward:
    def __init__(
        self,
        problem: Problem,
        chunks: int,
        operands: Sequence[Var],
        outputs: Sequence[Var | None],
    ) -> None:
        self.problem, self.chunks, self.b = problem, chunks, Builder("attention_backward")
        self.arguments = Arguments(self.b)
        buffer = self.arguments.buffer
        self.dq, self.dk, self.dv, *others = [
            None if var is None else buffer(var, "out") for var in outputs
        ]
        self.bias_slopes = others[0] if others else None
        packed = [buffer(var) for var in operands[:PACKED]]
        self.queries, self.query_rows, self.keys, self.values = packed[:4]
        self.cts, self.ct_rows, self.log_total, self.delta = packed[4:]
        self.scores = Scores(self.arguments, problem, operands[PACKED:])

    def work(self) -> Work:
        b, problem, sizes, tile = self.b, self.problem, self.problem.sizes, self.problem.tile
        self._arrays()
        cube = b.place("cube_pos.x")
        count, pairs = self._scalar("chunks", self.chunks), self._scalar("m", sizes.m)
        self.chunk, self.pair = cube % count, cube // count
        self.batch, self.key_head = self.pair // pairs, self.pair % pairs
        self.group, self.tiles = (
            self._scalar("group", sizes.group),
            self._scalar("tiles", problem.tiles),
        )
        self.heads, self.length = self._scalar("n", sizes.n), self._scalar("t", sizes.t)
        self.rows = self._scalar("rows", problem.rows)
        if self.dq is not None:
            self._clear_queries(self.dq)
        for key in b.range(self.chunk * tile.block, self.rows, count * tile.block):
            self._keys(key, b.op("min", key + tile.block, self.rows))
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        return Work(b.finish(), variables, cells, sizes.b * sizes.m * self.chunks, 1)

    def _scalar(self, name: str, number: int) -> Value:
        return self.arguments.scalar(name, number)

    def _arrays(self) -> None:
        """Weights and slopes of a block, as [key, query]; sums for its keys and values."""
        b, problem, tile = self.b, self.problem, self.problem.tile
        self.weights = b.shared(problem.dtype, tile.block * tile.width)
        self.slopes = b.shared(problem.dtype, tile.block * tile.width)
        self.key_sums = b.shared(problem.dtype, tile.block * problem.padded(problem.sizes.h))
        self.value_sums = b.shared(problem.dtype, tile.block * problem.padded(problem.sizes.e))

    def _head_number(self, member: Value) -> Value:
        """Of a member of the group, among the heads of all examples."""
        return self.batch * self.heads + self.key_head * self.group + member

    def _query_sums(self, member: Value, number: Value) -> Value:
        """Where the cotangents of a tile of queries are summed."""
        total = self._scalar("all heads", self.problem.sizes.b * self.problem.sizes.n)
        head = self.chunk * total + self._head_number(member)
        return (head * self.tiles + number) * (self.problem.sizes.h * self.problem.tile.width)

    def _clear_queries(self, target: Buffer) -> None:
        b, problem = self.b, self.problem
        zero = b.constant(0, problem.dtype, problem.tile.lanes)
        start = self._query_sums(b.constant(0, "index"), b.constant(0, "index"))
        size = self.group * self.tiles * (problem.sizes.h * problem.tile.width)
        for at in b.range(start, start + size, problem.tile.lanes):
            b.store(target, at, zero)

    # a block of keys

    def _keys(self, key: Value, stop: Value) -> None:
        """One block of keys through all queries that see it."""
        b, tile = self.b, self.problem.tile
        zero = b.constant(0, self.problem.dtype, tile.lanes)
        self.key, self.stop = key, stop
        for array in (self.key_sums, self.value_sums):
            for at in b.range(0, array.size, tile.lanes):
                b.store(array, at, zero)
        for member in b.range(0, self.group):
            self.member = member
            self.scores.enter(self.batch, self.key_head * self.group + member)
            for number in b.range(0, self.tiles):
                self._queries(number)
        if self.dk is not None:
            self._write(self.dk, self.key_sums, self.problem.sizes.h)
        if self.dv is not None:
            self._write(self.dv, self.value_sums, self.problem.sizes.e)

    def _queries(self, number: Value) -> None:
        """A tile of queries and the block of keys."""
        b, tile = self.b, self.problem.tile
        self.number, first = number, number * tile.width
        self.scores.place(first)
        row = self._head_number(self.member) * self.length + first
        self.totals = [self._row(self.log_total, row, v) for v in range(tile.lines)]
        self.deltas = [self._row(self.delta, row, v) for v in range(tile.lines)]
        if not self.problem.is_restricted or self.bias_slopes is not None:
            self._pair(number)
            return
        with b.when(self._is_seen(first) | self._any_unseeing()):
            self._pair(number)

    def _row(self, buffer: Buffer, row: Value, v: int) -> Value:
        lanes = self.problem.tile.lanes
        return self.b.load(buffer, row + v * lanes, lanes, self.scores.exist[v])

    def _is_seen(self, first: Value) -> Value:
        """Whether a query of a tile may see a key of the block."""
        form, seen = self.problem.form, self.key < self.scores.limit
        if form.right is not None:
            last = first + (self.problem.tile.width - 1) + self._scalar("right", form.right)
            seen = seen & (last >= self.key)
        if form.left is not None:
            seen = seen & (first - self._scalar("left", form.left) < self.stop)
        return seen

    def _any_unseeing(self) -> Value:
        """Whether a query of the tile sees no key at all, so that it averages all values."""
        b, found = self.b, None
        for line in self.totals:
            blind = (line < 0.9 * LOWEST).cast("u8")
            found = blind if found is None else found | blind
        assert found is not None
        return b.reduce("max", found).ne(0)

    def _pair(self, number: Value) -> None:
        b, sizes, tile = self.b, self.problem.sizes, self.problem.tile
        place = self._head_number(self.member) * self.tiles + number
        at_query, at_ct = place * (sizes.h * tile.width), place * (sizes.e * tile.width)
        for key in b.range(self.key, self.stop, tile.keys):
            self._score(key, at_query)
        self._weigh()
        for key in b.range(self.key, self.stop, tile.keys):
            self._slope_tile(key, at_ct)
        if self.bias_slopes is not None:
            self._add_bias_slopes()
        row = place * tile.width
        if self.dv is not None:
            self._add_rows(self.value_sums, self.weights, self.ct_rows, row, sizes.e)
        if self.dk is not None:
            self._add_rows(self.key_sums, self.slopes, self.query_rows, row, sizes.h)
        if self.dq is not None:
            self._add_queries(self.dq)

    def _score(self, key: Value, at_query: Value) -> None:
        """Scores of a tile of keys."""
        b, problem, tile, sizes = self.b, self.problem, self.problem.tile, self.problem.sizes
        sums, place = zeros(b, problem, tile.keys, tile.lines), (key - self.key) * tile.width
        keys = Walk(self.keys, (self.pair * self.rows + key) * sizes.h, 1, sizes.h)
        multiply(b, sums, keys, Walk(self.queries, at_query, tile.width), sizes.h)
        self._store(self.weights, place, tile.width, sums)
        self.scores.adjust(self.weights, place, key)

    def _weigh(self) -> None:
        """Turn the scores of the block into weights; of a query that sees no key, all are alike."""
        b, problem, tile = self.b, self.problem, self.problem.tile
        totals, factors = [line * LOG2_E for line in self.totals], None
        if problem.is_restricted:
            blind = self._blind()
            share = b.splat(1.0 / self.scores.keys.cast(problem.dtype), tile.lanes)
            factors = [b.select(test, share, 1.0) for test in blind]
            pairs = zip(blind, totals, strict=True)
            totals = [b.select(test, MASKED, total) for test, total in pairs]
        for row in b.range(0, (self.stop - self.key) * tile.width, tile.width):
            for v, total in enumerate(totals):
                at = row + v * tile.lanes
                weight = decay(b.load(self.weights, at, tile.lanes) - total)
                b.store(self.weights, at, weight if factors is None else weight * factors[v])

    def _blind(self) -> list[Value]:
        """Which queries see no key at all."""
        return [line < 0.9 * LOWEST for line in self.totals]

    def _slope_tile(self, key: Value, at_ct: Value) -> None:
        """Slopes of a tile of keys; none of a query that sees no key."""
        b, problem, tile, sizes = self.b, self.problem, self.problem.tile, self.problem.sizes
        sums, place = zeros(b, problem, tile.keys, tile.lines), (key - self.key) * tile.width
        values = Walk(self.values, (self.pair * self.rows + key) * sizes.e, 1, sizes.e)
        multiply(b, sums, values, Walk(self.cts, at_ct, tile.width), sizes.e)
        blind = self._blind() if problem.is_restricted else []
        for r, cells in enumerate(sums):
            for v, cell in enumerate(cells):
                at = place + (r * tile.width + v * tile.lanes)
                slope = cell.get() - self.deltas[v]
                slope = b.select(blind[v], 0.0, slope) if blind else slope
                b.store(self.slopes, at, b.load(self.weights, at, tile.lanes) * slope)

    # sums

    def _add_rows(
        self, sums: Buffer, factors: Buffer, rows: Buffer, first: Value, size: int
    ) -> None:
        """sums[key, place] += factors[key, query] rows[query, place] for the tile of queries."""
        b, tile, width = self.b, self.problem.tile, self.problem.padded(size)
        for key in b.range(self.key, self.stop, tile.keys):
            start = key - self.key
            left = Walk(factors, start * tile.width, 1, tile.width)
            for line, lines in parts(b, width // tile.lanes, tile.lines):
                at = start * width + line * tile.lanes
                cells = self._load(sums, at, width, tile.keys, lines)
                right = Walk(rows, first * width + line * tile.lanes, width)
                multiply(b, cells, left, right, tile.width)
                self._store(sums, at, width, cells)

    def _add_queries(self, target: Buffer) -> None:
        """The cotangents of the tile of queries, as [place, query]."""
        tile, h = self.problem.tile, self.problem.sizes.h
        start = self._query_sums(self.member, self.number)
        row = (self.pair * self.rows + self.key) * h
        zero = self.b.constant(0, "index")
        for first, count in parts(self.b, h, tile.keys):
            at = start + first * tile.width
            cells = self._load(target, at, tile.width, count, tile.lines)
            left, right = Walk(self.keys, row + first, h, 1), Walk(self.slopes, zero, tile.width)
            multiply(self.b, cells, left, right, self.stop - self.key)
            self._store(target, at, tile.width, cells)

    def _load(self, buffer: Buffer, at: Value, step: int, rows: int, lines: int) -> Lines:
        b, lanes = self.b, self.problem.tile.lanes
        return [
            [b.variable(b.load(buffer, at + (r * step + v * lanes), lanes)) for v in range(lines)]
            for r in range(rows)
        ]

    def _store(self, buffer: Buffer, at: Value, step: int, cells: Lines) -> None:
        for r, row in enumerate(cells):
            for v, cell in enumerate(row):
                self.b.store(buffer, at + (r * step + v * self.problem.tile.lanes), cell.get())

    def _write(self, target: Buffer, sums: Buffer, size: int) -> None:
        """The cotangents of a block of keys or values, as the operand lies."""
        b, tile, sizes = self.b, self.problem.tile, self.problem.sizes
        width, heads = self.problem.padded(size), self._scalar("m", sizes.m)
        end = b.op("min", self.stop, self.scores.keys)
        row = self.batch * self.scores.keys
        for key in b.range(self.key, end):
            start = ((row + key) * heads + self.key_head) * size
            for place in range(0, size, tile.lanes):
                line = b.load(sums, (key - self.key) * width + place, tile.lanes)
                left = size - place
                mask = b.lane(tile.lanes, "i32") < left if left < tile.lanes else None
                b.store(target, start + place, line.cast(target.dtype), mask)

    # the bias

    def _add_bias_slopes(self) -> None:
        """Slopes are those of the bias; along an axis where it has one element they are summed."""
        assert self.scores.bias is not None and self.bias_slopes is not None
        _, _, t, s = self.scores.bias.aval.shape
        head = self._head_number(self.member)
        if t > 1 and s > 1:
            self._write_slopes(head)
        elif s > 1:
            self._sum_queries(head)
        else:
            self._sum_keys(head, t)

    def _slope(self, key: Value, v: int) -> Value:
        tile = self.problem.tile
        return self.b.load(self.slopes, (key - self.key) * tile.width + v * tile.lanes, tile.lanes)

    def _write_slopes(self, head: Value) -> None:
        b, keys, scores = self.b, self.scores.keys, self.scores
        for key in b.range(self.key, b.op("min", self.stop, keys)):
            start = head * self.length * keys + key
            for v, position in enumerate(scores.positions):
                places = position.cast("index") * keys + start
                b.store(self.bias_slopes, places, self._slope(key, v), scores.exist[v])  # type: ignore[arg-type]

    def _sum_queries(self, head: Value) -> None:
        b, keys, target = self.b, self.scores.keys, self.bias_slopes
        assert target is not None
        for key in b.range(self.key, b.op("min", self.stop, keys)):
            total = b.reduce("add", self._total([key]))
            at = head * keys + key
            before = b.select(self.number.eq(0), 0.0, b.load(target, at))
            b.store(target, at, before + total)

    def _total(self, keys: Sequence[Value]) -> Value:
        """The sum of the lines of slopes of some keys."""
        lines = [self._slope(key, v) for key in keys for v in range(self.problem.tile.lines)]
        total = lines[0]
        for line in lines[1:]:
            total = total + line
        return total

    def _sum_keys(self, head: Value, t: int) -> None:
        b, tile, target = self.b, self.problem.tile, self.bias_slopes
        assert target is not None
        zero = b.constant(0, self.problem.dtype, tile.lanes)
        sums = [b.variable(zero) for _ in range(tile.lines)]
        for key in b.range(self.key, self.stop):
            for v, cell in enumerate(sums):
                cell.set(cell.get() + self._slope(key, v))
        is_first = self.key.eq(self.chunk * tile.block)
        row = self.chunk * self._scalar("all heads", self.problem.sizes.b * self.problem.sizes.n)
        row = row + head
        if t == 1:
            total = sums[0].get()
            for cell in sums[1:]:
                total = total + cell.get()
            before = b.select(is_first & self.number.eq(0), 0.0, b.load(target, row))
            b.store(target, row, before + b.reduce("add", total))
            return
        at = row * self.length + self.number * tile.width
        for v, cell in enumerate(sums):
            exists, place = self.scores.exist[v], at + v * tile.lanes
            before = b.select(is_first, 0.0, b.load(target, place, tile.lanes, exists))
            b.store(target, place, before + cell.get(), exists)
