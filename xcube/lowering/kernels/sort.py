"""The template of sorting: rows of keys in order, and every operand permuted alike.

Operands are seen as (outer, n, inner) and sorted along n, one cube to a row; equal keys keep their
order. Short rows are put in order by rank. Longer ones go digit by digit, the last key's lowest
digit first (a least significant digit radix sort), with an index beside each key; digits that
are all alike cost nothing. A single operand is made anew from its keys.
"""

from __future__ import annotations

import math

from xcube import dtypes
from xcube.ir import Aval, Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Buffer
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels import sort_units
from xcube.lowering.kernels.nodes import Arguments
from xcube.lowering.kernels.radix import Radix, is_packed, passes
from xcube.lowering.kernels.ranks import FEW, Ranks
from xcube.lowering.kernels.sort_keys import Order
from xcube.lowering.kernels.sort_problem import Key, Problem, Row, keys_of
from xcube.lowering.kernels.work import Work

TASK = 20_000  # operations worth handing to a thread


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launch of a sort; operands that nobody reads sorted are not written, and `sources`,
    whose memory results take over, are never operands."""
    root = group.root
    assert root is not None
    operands = [x for x in root.inputs if isinstance(x, Var)]
    pairs = zip(operands, root.outputs, strict=True)
    wanted = tuple([(x, out) for x, out in pairs if out in group.outputs])
    shape, axis = operands[0].aval.shape, root.params["dimension"]
    if not wanted or math.prod(shape) == 0:
        return []
    keys = keys_of(operands[: root.params["num_keys"]])
    problem = Problem(shape, axis, keys, wanted, shape[axis])
    if facts.units > 1:
        return sort_units.build(problem, facts)
    if problem.n <= FEW:
        return [Sorter(problem, facts.vector_bytes).by_ranks()]
    alone = len(operands) == 1 and len(keys) == 1
    sorter = Sorter(problem, facts.vector_bytes)
    return [sorter.keys_alone() if alone else sorter.by_digits()]


class Sorter:
    """The kernel of one cube to a row."""

    def __init__(self, problem: Problem, vector_bytes: int) -> None:
        self.problem, self.vector_bytes = problem, vector_bytes
        self.b = Builder("top_k" if problem.descending else "sort")
        self.arguments = Arguments(self.b)
        for _, out in problem.wanted:
            self.arguments.buffer(out, "out")
        if problem.indices is not None:
            self.arguments.buffer(problem.indices, "out")
        self.row = Row(self.arguments, problem, self.b.place("cube_pos.x"))
        self.n, self.kept = self.row.n, self.row.kept

    # kernels

    def by_digits(self) -> Work:
        """Radix sort of keys with indices, then every result gathered by the indices."""
        b, problem = self.b, self.problem
        widest = max(key.order.bits for key in problem.keys)
        radix = self.radix(self.n, problem.n, widest)
        for number, key in enumerate(reversed(problem.keys)):
            bits = key.order.bits
            radix.clear(bits)
            for i in b.range(0, self.n):
                index = radix.index(i) if number else i
                value = self.row.key(key, index)
                radix.put(i, value, index)
                radix.count(value, bits)
            radix.sort(self.n, bits)
        for i in b.range(0, self.kept):
            self.row.write(i, radix.index(i))
        digits = sum(passes(key.order.bits, problem.n) for key in problem.keys)
        return self.work(problem.n * (8 * digits + 4 * len(problem.wanted)))

    def keys_alone(self) -> Work:
        """Radix sort of the keys of one operand, and the operand made of them."""
        b, problem, (key,) = self.b, self.problem, self.problem.keys
        ((_, out),) = problem.wanted
        order = key.order
        radix = self.radix(self.n, problem.n, order.bits, indexed=False)
        negative = b.variable(b.constant(False, "bool"))
        radix.clear(order.bits)
        for i in b.range(0, self.n):
            x = self.row.number_at(key, i)
            value = order.key(b, x)
            radix.put(i, value)
            radix.count(value, order.bits)
            if order.is_float:
                negative.set(negative.get() | order.is_negative_zero(x))
        radix.sort(self.n, order.bits)
        self._write_numbers(radix, order, self.arguments.buffer(out))
        if order.is_float:
            with b.when(negative.get()):
                self._write_zeros(radix, key, self.arguments.buffer(out))
        return self.work(problem.n * 6 * passes(order.bits, problem.n))

    def by_ranks(self) -> Work:
        """Every element put where its rank says."""
        b, problem = self.b, self.problem
        ranks = Ranks(b, [key.order for key in problem.keys], self.vector_bytes)
        for i in b.range(0, self.n):
            ranks.put(i, [self.row.key(key, i) for key in problem.keys])
        ranks.rank(self.n)
        for i in b.range(0, self.n):
            place = ranks.rank_of(i)
            if problem.kept == problem.n:
                self.row.write(place, i)
            else:
                with b.when(place < self.kept):
                    self.row.write(place, i)
        lines = 1 + problem.n // ranks.lanes
        return self.work(problem.n * (4 * lines + 4 + 4 * len(problem.wanted)))

    # elements

    def key_line(self, key: Key, first: Value, lanes: int, present: Value) -> Value:
        """A line of neighbouring real keys of the row, as far as they are `present`."""
        b, buffer = self.b, self.arguments.buffer(key.var)
        if self.problem.inner == 1:
            numbers = b.load(buffer, self.row.first + first, lanes, present)
        else:
            places = self.row.first + (first + b.lane(lanes)) * self.row.step
            numbers = b.load(buffer, places, lanes, present)
        value = key.order.key(b, numbers)
        return ~value if self.problem.descending else value

    def _write_numbers(self, radix: Radix, order: Order, target: Buffer) -> None:
        """The row made anew from its sorted keys."""
        b = self.b
        lanes = max(1, self.vector_bytes * 8 // max(32, order.bits))
        if self.problem.inner > 1:
            lanes = 1
        whole = self.n // lanes * lanes
        for i in b.range(0, whole, lanes):
            at = self.row.first + i * self.row.step
            b.store(target, at, order.number(b, radix.key(i, order.bits, lanes)))
        if lanes > 1 and self.problem.n % lanes:
            mask = b.lane(lanes, "i32") < (self.n - whole).cast("i32")
            numbers = order.number(b, radix.key(whole, order.bits, lanes, mask))
            b.store(target, self.row.first + whole, numbers, mask)

    def _write_zeros(self, radix: Radix, key: Key, target: Buffer) -> None:
        """The zeros of the row again, with their signs, in the operand's order."""
        b, zero = self.b, key.order.zero
        place = b.variable(b.constant(0, "index"))
        for i in b.range(0, self.n):
            below = radix.key(i, key.order.bits) < zero
            place.set(place.get() + below.cast("index"))
        for i in b.range(0, self.n):
            x = self.row.number_at(key, i)
            with b.when(key.order.key(b, x).eq(zero)):
                at = place.get()
                b.store(target, self.row.first + at * self.row.step, x)
                place.set(at + 1)

    # memory

    def radix(self, room: Value, size: int, bits: int, indexed: bool = True) -> Radix:
        """A radix sort of up to `size` elements of a row, in scratch memory."""
        count = 2 * size * self.problem.rows
        packed = indexed and is_packed(bits, self.problem.n)
        word = f"u{64 if packed else bits}"
        words = self.arguments.buffer(Var(Aval((count,), dtypes.BY_SHORT[word])), "inout")
        indices = None
        if indexed and not packed:
            narrow = "u32" if self.problem.n <= 1 << 32 else "u64"
            scratch = Var(Aval((count,), dtypes.BY_SHORT[narrow]))
            indices = self.arguments.buffer(scratch, "inout")
        return Radix(self.b, words, indices, self.row.number * room * 2, room, bits, packed, size)

    def work(self, cost: int) -> Work:
        """The launch; `cost` is a row's number of operations."""
        grain = max(1, math.ceil(TASK / cost))
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        return Work(self.b.finish(), variables, cells, self.problem.rows, grain)
