"""The walk of a tile of queries through keys, without a matrix of scores (Milakov and Gimelshein,
"Online normalizer calculation for softmax", 2018; Dao, "FlashAttention-2", 2023): the largest score
so far, the sum of exponentials and the weighted sum of values are corrected whenever a larger score
comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.kernels.attention_tile import (
    MASKED,
    Problem,
    Scores,
    Walk,
    decay,
    multiply,
    parts,
    zeros,
)


class Sweep:
    """`queries`: element (line, place in a key); `keys`: (key, place); `values`: (place, key).
    `fetch(key, stop)` is called before a block of keys; if there is one, it has brought the block
    to where the walks begin.

    `top` and `total`: the largest score and the sum of exponentials of each query. `sums`: an array
    with the weighted sums of values, as [place in a value, query].
    """

    def __init__(
        self,
        b: Builder,
        problem: Problem,
        scores: Scores,
        walks: tuple[Walk, Walk, Walk],
        fetch: Callable[[Value, Value], None] | None = None,
    ) -> None:
        self.b, self.problem, self.scores, self.fetch = b, problem, scores, fetch
        self.queries, self.keys, self.values = walks
        tile, padded = problem.tile, problem.padded(problem.sizes.e)
        masked = b.constant(2 * MASKED, problem.dtype, tile.lanes)
        zero = b.constant(0, problem.dtype, tile.lanes)
        self.top = [b.variable(masked) for _ in range(tile.lines)]
        self.total = [b.variable(zero) for _ in range(tile.lines)]
        self.block = b.shared(problem.dtype, tile.block * tile.width)
        self.sums = b.shared(problem.dtype, padded * tile.width)
        for at in b.range(0, padded * tile.width, tile.lanes):
            b.store(self.sums, at, zero)

    def run(self, start: Value, stop: Value) -> None:
        """Take the queries through the keys from `start` to `stop`, block by block."""
        b, block = self.b, self.problem.tile.block
        for key in b.range(start, stop, block):
            self._block(key, b.op("min", key + block, stop))

    def _block(self, key: Value, stop: Value) -> None:
        """One block of keys: scores, weights, and values added by their weights."""
        b, tile = self.b, self.problem.tile
        before = [cell.get() for cell in self.top]
        self.first = key if self.fetch is not None else b.constant(0, "index")
        if self.fetch is not None:
            self.fetch(key, stop)
        for k in b.range(key, stop, tile.keys):
            self._tile(k, (k - key) * tile.width)
        self._find_top(stop - key)
        top = [cell.get() for cell in self.top]
        shrunk = [decay(x - y) for x, y in zip(before, top, strict=True)]
        self._weigh(stop - key, top, shrunk)
        self._add_values(key, stop - key, shrunk)

    def _tile(self, key: Value, place: Value) -> None:
        """Scores of a tile of keys."""
        b, problem, tile = self.b, self.problem, self.problem.tile
        sums = zeros(b, problem, tile.keys, tile.lines)
        keys = self.keys.moved((key - self.first) * self.keys.row)
        multiply(b, sums, keys, self.queries, problem.sizes.h)
        for r, cells in enumerate(sums):
            for v, cell in enumerate(cells):
                b.store(self.block, place + (r * tile.width + v * tile.lanes), cell.get())
        self.scores.adjust(self.block, place, key)

    def _find_top(self, count: Value) -> None:
        """The largest scores, those of a block among them."""
        b, tile = self.b, self.problem.tile
        for at in b.range(0, count * tile.width, tile.width):
            for v, top in enumerate(self.top):
                score = b.load(self.block, at + v * tile.lanes, tile.lanes)
                largest = top.get()
                top.set(b.select(score > largest, score, largest))

    def _weigh(self, count: Value, top: Sequence[Value], shrunk: Sequence[Value]) -> None:
        """Turn the scores of a block into exponentials, and sum them."""
        b, tile = self.b, self.problem.tile
        zero = b.constant(0, self.problem.dtype, tile.lanes)
        fresh = [b.variable(zero) for _ in range(tile.lines)]
        for at in b.range(0, count * tile.width, tile.width):
            for v, cell in enumerate(fresh):
                weight = decay(b.load(self.block, at + v * tile.lanes, tile.lanes) - top[v])
                b.store(self.block, at + v * tile.lanes, weight)
                cell.set(cell.get() + weight)
        for total, factor, part in zip(self.total, shrunk, fresh, strict=True):
            total.set(b.fma(total.get(), factor, part.get()))

    def _add_values(self, key: Value, count: Value, shrunk: Sequence[Value]) -> None:
        b, tile = self.b, self.problem.tile
        weights = Walk(self.block, b.constant(0, "index"), tile.width)
        for first, rows in parts(b, self.problem.sizes.e, tile.keys):
            places = [
                [first * tile.width + (r * tile.width + v * tile.lanes) for v in range(tile.lines)]
                for r in range(rows)
            ]
            sums = [
                [
                    b.variable(b.load(self.sums, at, tile.lanes) * factor)
                    for at, factor in zip(row, shrunk, strict=True)
                ]
                for row in places
            ]
            values = self.values.moved((key - self.first) * self.values.step + first)
            multiply(b, sums, values, weights, count)
            for row, cells in zip(places, sums, strict=True):
                for at, cell in zip(row, cells, strict=True):
                    b.store(self.sums, at, cell.get())
