"""What the templates of contractions without packing share: how the places of a product are cut
into cubes, loops over the depth, factors and sums at the places of a tile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from xcube.ir import Var
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.expression import Node
from xcube.lowering.kernels.contract_choice import Tile
from xcube.lowering.kernels.contract_product import Product
from xcube.lowering.kernels.lanes import mask_of
from xcube.lowering.kernels.nodes import Arguments, Emitter
from xcube.lowering.kernels.space import Axis, Space
from xcube.lowering.kernels.work import Work

TASK = 1 << 17  # products worth being a cube of their own
CUBES = 16  # that keep all threads busy

Places = list[tuple[Value, dict[Any, Any]]]  # where, and what is known there
Sums = list[list[Variable]]


class Cubes:
    """What both forms share: cubes, loops, and how sums are written."""

    def __init__(
        self, name: str, space: Space, product: Product, tile: Tile, sources: frozenset[Var]
    ) -> None:
        self.space, self.product, self.tile, self.sources = space, product, tile, sources
        self.b = Builder(name.replace("rows", "contract", 1))
        self.arguments = Arguments(self.b, sources)
        lane = product.lane
        self.emit = Emitter(self.arguments, space.axes, lane, tile.lanes)
        taken = (lane, product.along, product.across)
        self.outer = [axis for axis in space.rows if not any(axis is other for other in taken)]
        self.depth = math.prod(axis.extent for axis in space.columns)
        self.columns = mask_of(space.columns)
        self.roots = [result.node for result in space.results]

    def build(self) -> Work:
        shared = "inout" if self.sources else "out"
        for result in self.space.results:  # results are the first buffers
            self.arguments.buffer(result.var, shared)
        cubes, work = self._cubes()
        return Work(
            self.b.finish(),
            tuple(self.arguments.variables),
            tuple(self.arguments.cells),
            cubes,
            max(1, TASK // max(1, work)),
        )

    def _scalar(self, name: str, number: int) -> Value:
        return self.arguments.scalar(name, number)

    # cubes

    def _cubes(self) -> tuple[int, int]:
        """Build the loops of a cube; their number, and the products of each: places of the outer
        axes, a block of `along` and a block across."""
        down, across = self._extents()
        entries = math.prod(axis.extent for axis in self.outer)
        block_down, block_across = _blocks(entries, down, across, self._steps(), self.depth)
        downs, acrosses = math.ceil(down / block_down), math.ceil(across / block_across)
        cube = self.b.place("cube_pos.x")
        cube, first_across = self._part(cube, acrosses, block_across, "across")
        cube, first_down = self._part(cube, downs, block_down, "down")
        stops = [
            self._stop(first, block, extent, name)
            for first, block, extent, name in (
                (first_down, block_down, down, "down"),
                (first_across, block_across, across, "across"),
            )
        ]
        work = block_down * block_across * self.depth

        def body() -> None:
            self._tiles(first_down, stops[0], first_across, stops[1])

        if downs * acrosses > 1 or not self.outer:
            self.emit.place(self.outer, cube)
            body()
            return entries * downs * acrosses, work
        return self._several(cube, work, body)

    def _several(self, cube: Value, work: int, body: Callable[[], None]) -> tuple[int, int]:
        """A cube takes neighbours along the innermost outer axis where one is a small task."""
        *above, along = self.outer
        block = max(1, min(along.extent, TASK // 4 // max(1, work)))
        blocks = math.ceil(along.extent / block)
        if above:
            count = self._scalar("blocks", blocks)
            self.emit.place(above, cube // count)
            cube = cube % count
        size = self._scalar("block", block)
        extent = self.arguments.scalar(("extent", along.dims), along.extent)
        for i in self.b.range(cube * size, self.b.op("min", cube * size + size, extent)):
            self.emit.open()
            self.emit.at[id(along)] = i
            body()
            self.emit.close()
        return math.prod(axis.extent for axis in above) * blocks, work * block

    def _part(self, cube: Value, count: int, block: int, name: str) -> tuple[Value, Value]:
        """What is left of a cube's number, and where its block begins."""
        if count == 1:
            return cube, self.b.constant(0, "index")
        size, number = self._scalar(f"block {name}", block), self._scalar(f"blocks {name}", count)
        return cube // number, cube % number * size

    def _stop(self, first: Value, block: int, extent: int, name: str) -> Value:
        end = self._scalar(f"extent {name}", extent)
        if block >= extent:
            return end
        return self.b.op("min", first + self._scalar(f"block {name}", block), end)

    def _extents(self) -> tuple[int, int]:
        """Places along the two directions of a tile."""
        raise NotImplementedError

    def _steps(self) -> tuple[int, int]:
        """The places of a whole tile along both."""
        raise NotImplementedError

    def _tiles(self, down: Value, stop_down: Value, across: Value, stop_across: Value) -> None:
        raise NotImplementedError

    # inside a tile

    def _last(self, extent: int, step: int) -> Value:
        return self.arguments.scalar(("last", extent, step), extent - step)

    def _clamped(self, begin: Value, extent: int, step: int) -> Value:
        """Where a tile is computed: the last one ends at the extent, and may begin in the one
        before."""
        return begin if extent % step == 0 else self.b.op("min", begin, self._last(extent, step))

    @contextmanager
    def _own(self, place: Value, begin: Value, extent: int, step: int) -> Iterator[None]:
        """Only what no tile before has written."""
        if extent % step == 0:
            yield
            return
        with self.b.when(place >= begin):
            yield

    @contextmanager
    def _at(self, axis: Axis | None, place: Value, scope: dict[Any, Any]) -> Iterator[None]:
        """At a place of an axis, with what is known there."""
        self.emit.open(scope)
        if axis is not None:
            self.emit.at[id(axis)] = place
        yield
        self.emit.close()

    def _places(
        self, factor: Node, axis: Axis | None, first: Value, count: int, step: int
    ) -> Places:
        """Places of a tile along an axis; what a factor needs there for all of the depth is
        computed now."""
        places: Places = [(first + n * step, {}) for n in range(count)]
        for place, scope in places:
            with self._at(axis, place, scope):
                self.emit.hoist([factor], self.columns)
        return places

    def _factor(self, node: Node, axis: Axis | None, place: Value, scope: dict[Any, Any]) -> Value:
        """A factor at a step of the depth."""
        with self._at(axis, place, scope), self._at(None, place, {}):
            return self.emit.values([node])[0]

    def _sums(self, rows: int, lines: int) -> Sums:
        zero = self.b.constant(0, self.product.line.dtype, self.tile.lanes)
        return [[self.b.variable(zero) for _ in range(lines)] for _ in range(rows)]

    def _multiply_add(self, x: Value, y: Value, cell: Variable) -> None:
        floating = x.dtype.startswith("f")
        cell.set(self.b.fma(x, y, cell.get()) if floating else x * y + cell.get())

    def _nest(self, axes: Sequence[Axis], body: Callable[[], None]) -> None:
        """Loops over axes of the depth, one element at a time."""
        if not axes:
            body()
            return
        axis, *rest = axes
        extent = self.arguments.scalar(("extent", axis.dims), axis.extent)
        for k in self.b.range(0, extent):
            self.emit.open()
            self.emit.at[id(axis)] = k
            self._nest(rest, body)
            self.emit.close()


def _blocks(
    entries: int, down: int, across: int, steps: tuple[int, int], depth: int
) -> tuple[int, int]:
    """How much of both directions a cube takes: all of it in small products, else about a task, in
    whole tiles, so that there are cubes for all threads."""
    tiles_down, tiles_across = (
        math.ceil(n / s) for n, s in zip((down, across), steps, strict=True)
    )
    work = steps[0] * steps[1] * depth
    most = max(1, min(TASK // max(1, work), entries * tiles_down * tiles_across // CUBES))
    taken_down = min(tiles_down, most)
    taken_across = min(tiles_across, max(1, most // taken_down))
    return min(down, taken_down * steps[0]), min(across, taken_across * steps[1])
