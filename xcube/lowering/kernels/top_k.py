"""The template of top_k: the k largest of each row, largest first, and where they are. Of equal
ones the first come first, NaN is larger than everything, and 0 is larger than -0.

Short rows are ranked, and where k is a good part of a row all of it is sorted. Else a row is read
once, against the least of the best so far: what is better goes to a buffer, and only when that
is full are the k best of it found anew.
"""

from __future__ import annotations

import abc

from xcube.ir import Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels import top_k_units
from xcube.lowering.kernels.ranks import FEW, Ranks
from xcube.lowering.kernels.sort import Sorter
from xcube.lowering.kernels.sort_keys import Order
from xcube.lowering.kernels.sort_problem import Problem, keys_of
from xcube.lowering.kernels.work import Work

SHARE = 8  # a row is read through if at least so many times longer than k


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launch of a top_k; `sources`, whose memory results take over, are never operands."""
    root = group.root
    assert root is not None
    (x,), (values, indices) = root.inputs, root.outputs
    assert isinstance(x, Var)
    if not group.outputs or values.aval.size == 0:
        return []
    problem = Problem(
        shape=x.aval.shape,
        axis=root.params["axis"],
        keys=keys_of([x], signed_zeros=True),
        wanted=((x, values),) if values in group.outputs else (),
        kept=root.params["k"],
        descending=True,
        indices=indices if indices in group.outputs else None,
    )
    if facts.units > 1:
        return top_k_units.build(problem, facts)
    sorter = Sorter(problem, facts.vector_bytes)
    if problem.n <= FEW:
        return [sorter.by_ranks()]
    return [sorter.by_digits() if problem.kept * SHARE > problem.n else _by_threshold(sorter)]


def _by_threshold(sorter: Sorter) -> Work:
    b, problem, (key,) = sorter.b, sorter.problem, sorter.problem.keys
    order = key.order
    best: _Best
    if 2 * problem.kept <= FEW:
        best = _RankedBest(b, order, sorter.kept, sorter.vector_bytes)
    else:
        best = _SortedBest(sorter, order)
    for i in b.range(0, sorter.kept):
        value = sorter.row.key(key, i)
        best.append(value, i)
        best.threshold.set(b.op("max", best.threshold.get(), value))
    _read_row(sorter, best)
    best.shrink()
    for i in b.range(0, sorter.kept):
        sorter.row.write(i, best.index(i))
    return sorter.work(2 * problem.n + 64 * problem.kept)


def _read_row(sorter: Sorter, best: _Best) -> None:
    """Everything behind the first k elements, a line at a time."""
    b, key = sorter.b, sorter.problem.keys[0]
    lanes = max(1, sorter.vector_bytes * 8 // max(16, key.order.bits))
    line = b.local(key.order.key_dtype, lanes)
    for first in b.range(sorter.kept, sorter.n, lanes):
        left = (sorter.n - first).cast("i32")
        present = b.lane(lanes, "i32") < left
        keys = sorter.key_line(key, first, lanes, present)
        better = (keys < best.threshold.get()) & present
        with b.when(b.reduce("max", better.cast("u8")).ne(0)):
            b.store(line, 0, keys)
            for lane in b.range(0, b.op("min", left.cast("index"), lanes)):
                value = b.load(line, lane)
                with b.when(value < best.threshold.get()):
                    best.add(value, first + lane)


class _Best(abc.ABC):
    """The best keys of a row so far, and others that were better than the `threshold` when they
    came. Keys are downwards: the least is the best."""

    def __init__(self, b: Builder, order: Order, kept: Value, room: Value) -> None:
        self.b, self.order, self.kept, self.room = b, order, kept, room
        self.count = b.variable(b.constant(0, "index"))
        self.threshold = b.variable(b.constant(0, order.key_dtype))

    def add(self, key: Value, index: Value) -> None:
        """Take a key in; there is room for it once only the best are kept."""
        with self.b.when(self.count.get().eq(self.room)):
            self.shrink()
            self.threshold.set(self.key(self.kept - 1))
        self.append(key, index)

    def append(self, key: Value, index: Value) -> None:
        count = self.count.get()
        self.put(count, key, index)
        self.count.set(count + 1)

    @abc.abstractmethod
    def put(self, i: Value, key: Value, index: Value) -> None:
        """Make a key with its index the i-th."""

    @abc.abstractmethod
    def shrink(self) -> None:
        """Keep only the best, in order."""

    @abc.abstractmethod
    def key(self, i: Value) -> Value:
        """The i-th key."""

    @abc.abstractmethod
    def index(self, i: Value) -> Value:
        """The i-th index."""


class _RankedBest(_Best):
    """A few keys in local arrays."""

    def __init__(self, b: Builder, order: Order, kept: Value, vector_bytes: int) -> None:
        super().__init__(b, order, kept, b.constant(FEW, "index"))
        self.ranks = Ranks(b, [order], vector_bytes)
        self.indices = b.local("index", FEW)
        self._keys, self._indices = b.local(order.key_dtype, FEW), b.local("index", FEW)

    def put(self, i: Value, key: Value, index: Value) -> None:
        self.ranks.put(i, [key])
        self.b.store(self.indices, i, index)

    def shrink(self) -> None:
        b, count = self.b, self.count.get()
        self.ranks.rank(count)
        for i in b.range(0, count):
            place = self.ranks.rank_of(i)
            with b.when(place < self.kept):
                b.store(self._keys, place, self.ranks.keys_at(i)[0])
                b.store(self._indices, place, b.load(self.indices, i))
        for i in b.range(0, self.kept):
            self.put(i, b.load(self._keys, i), b.load(self._indices, i))
        self.count.set(self.kept)

    def key(self, i: Value) -> Value:
        return self.ranks.keys_at(i)[0]

    def index(self, i: Value) -> Value:
        return self.b.load(self.indices, i)


class _SortedBest(_Best):
    """Many keys in scratch memory, with room for as many again."""

    def __init__(self, sorter: Sorter, order: Order) -> None:
        room = 2 * sorter.problem.kept
        value = sorter.arguments.scalar("room", room)
        super().__init__(sorter.b, order, sorter.kept, value)
        self.radix = sorter.radix(value, room, order.bits)

    def put(self, i: Value, key: Value, index: Value) -> None:
        self.radix.put(i, key, index)

    def shrink(self) -> None:
        b, count, bits = self.b, self.count.get(), self.order.bits
        self.radix.clear(bits)
        for i in b.range(0, count):
            self.radix.count(self.radix.key(i, bits), bits)
        self.radix.sort(count, bits)
        self.count.set(self.kept)

    def key(self, i: Value) -> Value:
        return self.radix.key(i, self.order.bits)

    def index(self, i: Value) -> Value:
        return self.radix.index(i)
