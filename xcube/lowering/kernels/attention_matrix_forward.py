"""Attention on the matrix units of devices that copy boxes of a buffer by themselves, forward: a
cube takes a tile of queries of one head and walks the keys, so that no score is ever in memory.

One unit asks for boxes of queries, keys and values, keys and values in a ring each. Groups of
planes take 64 queries each: they multiply them by a block of keys, and while they exponentiate
these scores, the matrix units already multiply the weights of the block before by its values. Keys
are walked from the last block to the first, so that blocks that need a mask come first (and last,
for a window). Weights are 2^(c s - m), m the largest c s of a row so far; sums of weights and
results of earlier blocks are scaled when m grows (Milakov and Gimelshein 2018; Dao 2023).
"""

from __future__ import annotations

import itertools
import math

from xcube.ir import Equation, Var
from xcube.lowering.cube import math as cube_math
from xcube.lowering.cube import matrix
from xcube.lowering.cube.build import Builder, Value
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
    folded,
    rows_of,
    share_roles,
    store_rows,
)
from xcube.lowering.kernels.nodes import Arguments
from xcube.lowering.kernels.ring import Ring, Turn
from xcube.lowering.kernels.work import Work


class Forward:
    """The launch of one attention: its result, and the logarithms of the sums of weights."""

    def __init__(self, root: Equation) -> None:
        self.plan: Plan = root.params["plan"]
        self.window: Window = root.params["window"]
        self.scale: float = root.params["scale"] * LOG2_E
        query, key, value = root.inputs
        assert isinstance(query, Var) and isinstance(key, Var) and isinstance(value, Var)
        self.shape, self.key_shape = query.aval.shape, key.aval.shape
        b = self.b = Builder("attention", (self.plan.units, 1, 1), 1)
        arguments = self.arguments = Arguments(b)
        self.out, self.logarithms = (arguments.buffer(var, "out") for var in root.outputs)
        self.query = Boxes(arguments, "query", query, self.plan.rows)
        self.key = Boxes(arguments, "key", key, self.plan.columns)
        self.value = Boxes(arguments, "value", value, self.plan.columns)
        self.dtype = self.query.dtype
        self.unit = b.place("unit_pos.x")

    def build(self) -> Work:
        b, plan, stages = self.b, self.plan, self.plan.stages
        self.queries = b.shared(self.dtype, self.query.elements)
        self.keys = b.shared(self.dtype, stages * self.key.elements)
        self.values = b.shared(self.dtype, stages * self.value.elements)
        self.ready = b.shared("u64", 1)
        self.turns = b.shared("u64", plan.groups) if plan.turns else None
        self.of_keys, self.of_values = (Ring(b, stages, plan.groups) for _ in range(2))
        with b.when(self.unit.eq(0)):
            self._set_barriers()
        b.sync()
        self._place()
        share_roles(b, plan, self.unit, self._ask, lambda: _Weights(self).build())
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        return Work(b.finish(), variables, cells, cubes(self.shape, plan.rows), 1)

    def _set_barriers(self) -> None:
        matrix.set_barrier(self.b, self.ready, 0, 1)
        self.of_keys.set()
        self.of_values.set()
        if self.turns is not None:
            for group in range(self.plan.groups):
                matrix.set_barrier(self.b, self.turns, group, 1)

    def _place(self) -> None:
        """The tile, and the keys that it sees."""
        (_, length, heads, _), plan = self.key_shape, self.plan
        shared_by = self.shape[2] // heads
        nbytes = length * (self.key.size + self.value.size) * 2 / shared_by
        self.place = Place.of(self.arguments, self.shape, plan.rows, nbytes, last_first=True)
        rest = (plan.rows, plan.columns, length, self.window)
        self.walk = Walk.of(self.arguments, self.place.first, *rest)
        head = self.place.head // self.arguments.scalar("shared by", shared_by)
        self.of_head = head, self.place.example

    # who asks

    def _ask(self) -> None:
        b, place, walk = self.b, self.place, self.walk
        zero = b.constant(0, "index")
        matrix.arrive(b, self.ready, 0, self.query.nbytes)
        where = place.first, place.head, place.example
        self.query.ask(self.queries, zero, *where, self.ready, zero)
        turns = [ring.turn(fills=True) for ring in (self.of_keys, self.of_values)]
        self._ask_for(self.key, self.keys, self.of_keys, turns[0], walk.stop - 1)
        for number in b.range(1, walk.stop - walk.start):
            self._ask_for(self.key, self.keys, self.of_keys, turns[0], walk.stop - 1 - number)
            self._ask_for(self.value, self.values, self.of_values, turns[1], walk.stop - number)
        self._ask_for(self.value, self.values, self.of_values, turns[1], walk.start)

    def _ask_for(self, boxes: Boxes, target: Buffer, ring: Ring, turn: Turn, block: Value) -> None:
        stage = ring.begin(turn, boxes.nbytes)
        at, line = stage * boxes.elements, block * self.plan.columns
        boxes.ask(target, at, line, *self.of_head, ring.barriers, stage)
        turn.next()


class _Weights:
    """A group of planes at work: 64 queries."""

    def __init__(self, kernel: Forward) -> None:
        self.kernel, self.b, self.plan = kernel, kernel.b, kernel.plan
        b = self.b
        self.group, self.unit = kernel.unit // GROUP, kernel.unit % GROUP
        row, self.column = matrix.group_sum_of(self.unit, 0)
        self.row = kernel.place.first + self.group * matrix.GROUP_ROWS + row
        self.scores = b.variable(b.constant(0.0, "f32", self.plan.columns // 2))
        self.result = b.variable(b.constant(0.0, "f32", kernel.value.size // 2))
        self.most = b.variable(b.constant(-math.inf, "f32", 2))
        self.sum = b.variable(b.constant(0.0, "f32", 2))
        self.weights = b.variable(b.constant(0, "u32", self.plan.columns // 4))
        self.of_keys = kernel.of_keys.turn(fills=False)
        self.of_values = kernel.of_values.turn(fills=False)
        first = b.select(self.group.eq(0), b.constant(1, "index"), b.constant(0, "index"))
        self.parity = b.variable(first) if self.plan.turns else None

    def build(self) -> None:
        """The first block of keys, the others in a loop, the last block of values."""
        b, kernel = self.b, self.kernel
        matrix.wait_for(b, kernel.ready, 0, b.constant(0, "index"))
        self._first()
        walk, last = kernel.walk, kernel.walk.stop - 1
        one = b.constant(1, "index")
        bounds = [one, walk.stop - walk.whole, walk.stop - walk.clear, walk.stop - walk.start]
        bounds[1:3] = [b.op("max", bound, one) for bound in bounds[1:3]]
        masked = [kernel.window.right is not None, False, kernel.window.left is not None]
        for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
            if number == 1 or masked[number]:
                for turn in b.range(start, stop):
                    self._block(last - turn, masked[number])
        stage = kernel.of_values.full(self.of_values)
        self._add(stage, self._kept())
        matrix.wait_products(b, 0, self.result)
        self._write()

    def _first(self) -> None:
        b, kernel = self.b, self.kernel
        stage = kernel.of_keys.full(self.of_keys)
        self._score(stage)
        matrix.wait_products(b, 0, self.scores)
        self._done(kernel.of_keys, stage, self.of_keys)
        weights, _ = self._exponentials(kernel.walk.stop - 1, masked=True)
        self._keep(weights)

    def _block(self, block: Value, masked: bool) -> None:
        """Scores of a block, and the values of the block before."""
        b, kernel = self.b, self.kernel
        stage, weights = kernel.of_keys.full(self.of_keys), self._kept()
        self._take_turn()
        self._score(stage)
        before = kernel.of_values.full(self.of_values)
        self._add(before, weights)
        self._pass_turn()
        matrix.wait_products(b, 1, self.scores)
        self._done(kernel.of_keys, stage, self.of_keys)
        weights, factor = self._exponentials(block, masked)
        matrix.wait_products(b, 0, self.result)
        self._done(kernel.of_values, before, self.of_values)
        result = self.result.get()
        self.result.set(result * b.shuffle(factor, rows_of(result.lanes)))
        self._keep(weights)

    def _done(self, ring: Ring, stage: Value, turn: Turn) -> None:
        with self.b.when(self.unit.eq(0)):
            ring.done(stage)
        turn.next()

    # turns at the matrix units, so that one group multiplies while another exponentiates

    def _take_turn(self) -> None:
        if self.parity is None or self.kernel.turns is None:
            return
        matrix.wait_for(self.b, self.kernel.turns, self.group, self.parity.get())
        self.parity.set(1 - self.parity.get())

    def _pass_turn(self) -> None:
        if self.kernel.turns is None:
            return
        with self.b.when(self.unit.eq(0)):
            following = (self.group + 1) % self.plan.groups
            matrix.arrive(self.b, self.kernel.turns, following)

    # products

    def _score(self, stage: Value) -> None:
        """Begin: scores = queries @ keys."""
        kernel = self.kernel
        tile, passing = (kernel.query, kernel.queries), (kernel.key, kernel.keys)
        begin_scores(self.scores, self.group, *tile, *passing, stage)

    def _add(self, stage: Value, weights: Value) -> None:
        """Begin: result += weights @ values."""
        begin_sums(self.result, weights, self.kernel.value, self.kernel.values, stage)

    # weights

    def _exponentials(self, block: Value, masked: bool) -> tuple[Value, Value]:
        """The weights of the scores, and what earlier sums are multiplied by."""
        b, scores, scale = self.b, self.scores.get(), self.kernel.scale
        if masked:
            first = block * self.plan.columns + self.column
            scores = self.kernel.walk.shown(scores, self.row, first)
        lanes, before = scores.lanes, self.most.get()
        most = b.op("max", before, self._over_units("max", folded(b, "max", scores)) * scale)
        base = b.select(most.eq(-math.inf), 0.0, most)  # nothing was seen yet
        weights = b.op("exp2_approx", b.fma(scores, scale, b.shuffle(-base, rows_of(lanes))))
        factor = b.op("exp2_approx", before - base)
        self.most.set(most)
        self.sum.set(b.fma(self.sum.get(), factor, folded(b, "add", weights)))
        return weights, factor

    def _keep(self, weights: Value) -> None:
        """For the products with the values: rounded when no products go on, since they would be
        waited for before registers that products read are written."""
        self.weights.set(weights.cast(self.kernel.dtype).bitcast("u32"))

    def _kept(self) -> Value:
        return self.weights.get().bitcast(self.kernel.dtype)

    # results

    def _write(self) -> None:
        """Results over the sums of weights, and the logarithms of these sums."""
        b, kernel, place = self.b, self.kernel, self.kernel.place
        total = self._over_units("add", self.sum.get())
        line = self.result.get() / b.shuffle(total, rows_of(kernel.value.size // 2))
        rows = kernel.arguments.scalar("queries", kernel.shape[1])
        heads = kernel.arguments.scalar("heads", kernel.shape[2])
        line = line.cast(kernel.dtype)
        store_rows(kernel.out, place, self.row, self.column, line, rows, heads)
        exponents = cube_math.apply(b, "log2", total)
        assert isinstance(exponents, Value), "of real numbers"
        logarithms = (exponents + self.most.get()) * (1 / LOG2_E)
        for half in range(2):
            row = self.row + half * 8
            with b.when((row < rows) & (self.unit % 4).eq(0)):
                at = (place.example * heads + place.head) * rows + row
                b.store(kernel.logarithms, at, b.extract(logarithms, half))

    def _over_units(self, op: str, pair: Value) -> Value:
        """The two rows' results over the four units that hold them."""
        for distance in (1, 2):
            pair = self.b.op(op, pair, self.b.plane("shuffle_xor", pair, distance))
        return pair
