"""The gradients of attention on matrix units: one kernel for those of keys and values, whose cubes
take a tile of keys and walk the queries that see it, one for those of queries, whose cubes take a
tile of queries and walk its keys. Both compute the weights again, from the scores and the
logarithms of the weights' sums. No element is added to by two cubes: every run gives the same.

With P the weights, dP = dO values^T and dS = P (dP - sums of dO out along a row): dV = P^T dO,
dK = c dS^T Q, dQ = c dS K (Dao 2023). Rows are what the tile holds, columns what comes by; groups
of planes hold P and dS like sums, which is how products take their left operands.
"""

from __future__ import annotations

import itertools
import math

from xcube.ir import Equation, Shape, Var
from xcube.lowering.cube import matrix
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.cube.ir import GROUP, Buffer
from xcube.lowering.kernels.attention_matrix_tile import (
    LOG2_E,
    Boxes,
    Place,
    Plan,
    Walk,
    Window,
    begin_scores,
    begin_sums,
    cubes,
    rows_of,
    share_roles,
    store_rows,
)
from xcube.lowering.kernels.nodes import Arguments
from xcube.lowering.kernels.ring import Ring, Turn
from xcube.lowering.kernels.work import Work

STATISTICS = matrix.span("f32")  # queries whose statistics lie in one line


class Backward:
    """The launch of one of both kernels. `tile`: the two operands of which the cube holds a tile of
    rows; `passing`: the two whose blocks of columns come by."""

    def __init__(self, root: Equation, of_keys: bool) -> None:
        self.plan: Plan = root.params["plan"]
        self.factor: float = root.params["scale"]
        self.of_keys = of_keys
        window: Window = root.params["window"]
        self.window = Window(window.right, window.left) if of_keys else window
        query, key, value, gradient, statistics = root.inputs
        self.query_shape, self.key_shape = query.aval.shape, key.aval.shape
        self.value_size = value.aval.shape[-1]
        name = "attention_keys" if of_keys else "attention_queries"
        b = self.b = Builder(name, (self.plan.units, 1, 1), 1)
        arguments = self.arguments = Arguments(b)
        self.results = [arguments.buffer(var, "out") for var in root.outputs]
        rows, columns = self.plan.rows, self.plan.columns
        pairs = [("query", query), ("gradient", gradient)], [("key", key), ("value", value)]
        held, passing = pairs[::-1] if of_keys else pairs
        self.tile = [Boxes(arguments, *pair, rows) for pair in held]  # type: ignore[arg-type]
        self.passing = [Boxes(arguments, *pair, columns) for pair in passing]  # type: ignore[arg-type]
        self.statistics = Statistics(arguments, statistics, columns)  # type: ignore[arg-type]
        self.unit = b.place("unit_pos.x")

    def build(self) -> Work:
        b, plan = self.b, self.plan
        dtype = self.tile[0].dtype
        self.held = [b.shared(dtype, boxes.elements) for boxes in self.tile]
        self.blocks = [b.shared(dtype, plan.stages * boxes.elements) for boxes in self.passing]
        self.lines = b.shared("f32", plan.stages * self.statistics.room) if self.of_keys else None
        self.ready, self.ring = b.shared("u64", 1), Ring(b, plan.stages, plan.groups)
        with b.when(self.unit.eq(0)):
            matrix.set_barrier(b, self.ready, 0, 1)
            self.ring.set()
        b.sync()
        self._place()
        share_roles(b, plan, self.unit, self._ask, self._multiply)
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        return Work(b.finish(), variables, cells, cubes(self.own_shape, plan.rows), 1)

    def _multiply(self) -> None:
        matrix.wait_for(self.b, self.ready, 0, self.b.constant(0, "index"))
        _Gradients(self).build()

    @property
    def own_shape(self) -> Shape:
        """Of the operands that cubes hold tiles of."""
        return self.key_shape if self.of_keys else self.query_shape

    def _place(self) -> None:
        """The tile, and the blocks that pass by."""
        plan, passing = self.plan, self.query_shape if self.of_keys else self.key_shape
        size = self.passing[0].size + self.passing[1].size
        nbytes = passing[1] * passing[2] / self.own_shape[2] * size * 2
        last_first = not self.of_keys
        self.place = Place.of(self.arguments, self.own_shape, plan.rows, nbytes, last_first)
        rest = (plan.rows, plan.columns, passing[1], self.window)
        self.walk = Walk.of(self.arguments, self.place.first, *rest)

    def heads(self) -> tuple[Value, Value]:
        """The first head whose blocks come by, and how many do."""
        ratio = self.query_shape[2] // self.key_shape[2]
        shared_by = self.arguments.scalar("shared by", ratio)
        if self.of_keys:
            return self.place.head * shared_by, shared_by
        return self.place.head // shared_by, self.b.constant(1, "index")

    # who asks

    def _ask(self) -> None:
        b, place, zero = self.b, self.place, self.b.constant(0, "index")
        matrix.arrive(b, self.ready, 0, sum(boxes.nbytes for boxes in self.tile))
        for boxes, target in zip(self.tile, self.held, strict=True):
            where = place.first, place.head, place.example
            boxes.ask(target, zero, *where, self.ready, zero)
        first, count = self.heads()
        turn = self.ring.turn(fills=True)
        for number in b.range(0, count):
            for block in b.range(self.walk.start, self.walk.stop):
                self._ask_for(turn, block * self.plan.columns, first + number)

    def _ask_for(self, turn: Turn, line: Value, head: Value) -> None:
        nbytes = sum(boxes.nbytes for boxes in self.passing)
        nbytes += self.statistics.nbytes if self.of_keys else 0
        stage = self.ring.begin(turn, nbytes)
        where = (line, head, self.place.example, self.ring.barriers, stage)
        for boxes, target in zip(self.passing, self.blocks, strict=True):
            boxes.ask(target, stage * boxes.elements, *where)
        if self.lines is not None:
            self.statistics.ask(self.lines, stage * self.statistics.room, *where)
        turn.next()


class Statistics:
    """f32[batch, heads, lines, 2, 32]: of 32 queries at a time the logarithm of the sum of weights,
    to the base 2, and the sum of dO out along the row."""

    def __init__(self, arguments: Arguments, var: Var, columns: int) -> None:
        b = self.b = arguments.build
        batch, heads, lines, _, span = var.aval.shape
        self.count, self.columns = 2 * lines, columns
        self.buffer = arguments.buffer(var)
        self.per_head = arguments.scalar("statistics of a head", 2 * lines * span)
        self.heads = arguments.scalar("statistics heads", heads)
        sizes = [span, self.count, heads, batch]
        strides = [span, 2 * lines * span, heads * 2 * lines * span]
        self.map = b.map(
            self.buffer,
            [arguments.scalar(("statistics", k), n) for k, n in enumerate(sizes)],
            [arguments.scalar(("statistics step", k), n) for k, n in enumerate(strides)],
            (span, 2 * columns // STATISTICS, 1, 1),
        )

    @property
    def room(self) -> int:
        """Elements of a stage, whose boxes begin at multiples of 1024 bytes."""
        unit = matrix.LINES * STATISTICS
        return math.ceil(2 * self.columns / unit) * unit

    @property
    def nbytes(self) -> int:
        return matrix.box_bytes(self.map)

    def ask(
        self,
        target: Buffer,
        at: Value,
        line: Value,
        head: Value,
        example: Value,
        barriers: Buffer,
        barrier: Value,
    ) -> None:
        """Ask for those of a block of queries of one head."""
        place = (self.b.constant(0, "index"), line // STATISTICS * 2, head, example)
        matrix.copy_tile(self.b, target, at, self.map, place, barriers, barrier)

    def of_row(self, place: Place, row: Value, which: int) -> Value:
        """One of them, from global memory."""
        start = (place.example * self.heads + place.head) * self.per_head
        line = row // STATISTICS * 2 + which
        return self.b.load(self.buffer, start + line * STATISTICS + row % STATISTICS)

    def of_columns(self, lines: Buffer, at: Value, pair: Value, column: int, which: int) -> Value:
        """Those of two neighbours among eight columns, from shared memory."""
        line = column // STATISTICS * 2 + which
        chunk = column % STATISTICS // 4 + pair // 2
        place = matrix.chunk_at(line, chunk, "f32") + pair % 2 * 2
        return self.b.load(lines, at + place, 2)


class _Gradients:
    """A group of planes at work: 64 rows."""

    def __init__(self, kernel: Backward) -> None:
        self.kernel, self.b, self.plan = kernel, kernel.b, kernel.plan
        b = self.b
        self.group, self.unit = kernel.unit // GROUP, kernel.unit % GROUP
        row, self.column = matrix.group_sum_of(self.unit, 0)
        self.row = kernel.place.first + self.group * matrix.GROUP_ROWS + row
        lanes = self.plan.columns // 2
        self.scores, self.slopes = (b.variable(b.constant(0.0, "f32", lanes)) for _ in range(2))
        sizes = [boxes.size for boxes in kernel.tile[: 2 if kernel.of_keys else 1]]
        self.sums = [b.variable(b.constant(0.0, "f32", size // 2)) for size in sizes]
        self.turn = kernel.ring.turn(fills=False)
        self.of_rows = [] if kernel.of_keys else [self._of_rows(which) for which in range(2)]

    def build(self) -> None:
        b, walk = self.b, self.kernel.walk
        bounds = [walk.start, walk.clear, walk.whole, walk.stop]
        _, count = self.kernel.heads()
        for _ in b.range(0, count):
            for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
                if number or walk.left is not None:
                    for block in b.range(start, stop):
                        self._block(block, masked=number != 1)
        self._write()

    def _block(self, block: Value, masked: bool) -> None:
        b, kernel = self.b, self.kernel
        stage = kernel.ring.full(self.turn)
        self._multiply(self.scores, 0, stage)
        self._multiply(self.slopes, 1, stage)
        matrix.wait_products(b, 1, self.scores)
        scores = self.scores.get()
        if masked:
            first = block * self.plan.columns + self.column
            scores = kernel.walk.shown(scores, self.row, first)
        exponents = b.fma(scores, self.kernel.factor * LOG2_E, -self._statistic(0, stage))
        weights = b.op("exp2_approx", exponents)
        matrix.wait_products(b, 0, self.slopes)
        slopes = weights * (self.slopes.get() - self._statistic(1, stage))
        factors = [slopes.cast(kernel.tile[0].dtype), weights.cast(kernel.tile[0].dtype)]
        for number, total in reversed(list(enumerate(self.sums))):
            self._add(total, factors[number], number, stage)
        matrix.wait_products(b, 0, *self.sums)
        with b.when(self.unit.eq(0)):
            kernel.ring.done(stage)
        self.turn.next()

    # products

    def _multiply(self, sums: Variable, number: int, stage: Value) -> None:
        """Begin: sums = tile @ passing^T."""
        kernel = self.kernel
        tile = kernel.tile[number], kernel.held[number]
        passing = kernel.passing[number], kernel.blocks[number]
        begin_scores(sums, self.group, *tile, *passing, stage)

    def _add(self, sums: Variable, factor: Value, number: int, stage: Value) -> None:
        """Begin: sums += factor @ passing."""
        passing = self.kernel.passing[number], self.kernel.blocks[number]
        begin_sums(sums, factor, *passing, stage)

    # statistics

    def _of_rows(self, which: int) -> Value:
        """Those of the unit's two rows, as lines of sums."""
        kernel, b, place = self.kernel, self.b, self.kernel.place
        last = kernel.arguments.scalar("last", kernel.query_shape[1] - 1)
        rows = [b.op("min", self.row + 8 * number, last) for number in range(2)]
        found = [kernel.statistics.of_row(place, row, which) for row in rows]
        return b.join(found)

    def _statistic(self, which: int, stage: Value) -> Value:
        """Of the query of each lane of sums."""
        b, kernel, lanes = self.b, self.kernel, self.plan.columns // 2
        if self.of_rows:
            return b.shuffle(self.of_rows[which], rows_of(lanes))
        assert kernel.lines is not None
        at, pair = stage * kernel.statistics.room, self.unit % 4
        pairs = [
            kernel.statistics.of_columns(kernel.lines, at, pair, column, which)
            for column in range(0, self.plan.columns, 8)
        ]
        return b.join([p for pair in pairs for p in (pair, pair)])

    # results

    def _write(self) -> None:
        kernel = self.kernel
        _, length, heads, _ = kernel.own_shape
        rows = kernel.arguments.scalar("rows", length)
        count = kernel.arguments.scalar("heads", heads)
        for number, (sums, out) in enumerate(zip(self.sums, kernel.results, strict=True)):
            line = sums.get() * kernel.factor if number == 0 else sums.get()
            line = line.cast(out.dtype)
            store_rows(out, kernel.place, self.row, self.column, line, rows, count)
