"""Ranks of a few keys inside a kernel: each key is compared with all others, line by line. That is
quadratic, and for some dozens of keys faster than any sort that moves them."""

from __future__ import annotations

from collections.abc import Sequence

from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.kernels.sort_keys import Order, follows

FEW = 64  # keys that are ranked at most


class Ranks:
    """Room for `FEW` entries and their ranks; the first key of an entry counts most."""

    def __init__(self, b: Builder, orders: Sequence[Order], vector_bytes: int) -> None:
        self.b = b
        self.keys = [b.local(order.key_dtype, FEW) for order in orders]
        bits = max(order.bits for order in orders)
        self.lanes = min(FEW, max(1, vector_bytes * 8 // bits))
        self.ranks = b.local(f"u{bits}", FEW)
        for array, order in zip(self.keys, orders, strict=True):
            zeros = b.constant(0, order.key_dtype, self.lanes)
            for at in range(0, FEW, self.lanes):
                b.store(array, at, zeros)

    def put(self, i: Value, keys: Sequence[Value]) -> None:
        """Make keys the i-th entry."""
        for array, key in zip(self.keys, keys, strict=True):
            self.b.store(array, i, key)

    def keys_at(self, i: Value) -> list[Value]:
        """The keys of the i-th entry."""
        return [self.b.load(array, i) for array in self.keys]

    def rank(self, n: Value) -> None:
        """Find the rank of each of the first n entries; of equal ones the first comes first."""
        b, lanes, dtype = self.b, self.lanes, self.ranks.dtype
        for first in b.range(0, n, lanes):
            mine = [b.load(array, first, lanes) for array in self.keys]
            place = first.cast("i32") + b.lane(lanes, "i32")
            rank = b.variable(b.constant(0, dtype, lanes))
            for j in b.range(0, n):
                other = [b.splat(b.load(array, j), lanes) for array in self.keys]
                later = place > j.cast("i32")
                before = follows(mine, other) | (later & ~follows(other, mine))
                rank.set(rank.get() + before.cast(dtype))
            b.store(self.ranks, first, rank.get())

    def rank_of(self, i: Value) -> Value:
        """The rank of the i-th entry."""
        return self.b.load(self.ranks, i).cast("index")
