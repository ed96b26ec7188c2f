"""Maps that transpose, where a cube is a task of one thread: results walk one axis in memory,
operands another. Square blocks of such operands are read along the operand's axis, turned in
registers, and kept in scratch memory, of which the results are made along their own axis: both
sides touch whole lines, and of a row of the operand several at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xcube.ir import Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.device.base import Facts
from xcube.lowering.expression import COSTLY, Node
from xcube.lowering.kernels.lanes import size_of, streams, widest
from xcube.lowering.kernels.nodes import Arguments, Emitter
from xcube.lowering.kernels.rows_turned import turned_loads
from xcube.lowering.kernels.space import Axis, Space
from xcube.lowering.kernels.work import Work

LEAST = 1 << 13  # elements from which turning in registers pays
MOST = 4  # operands that blocks are kept of
MOST_LANES = 16  # a block has as many rows, all in straight code
STRIP = 256  # bytes that a cube reads of a row of the operand
LENGTH = 512  # elements that a cube writes of a row of the result
TASK = 50_000  # operations worth handing to a thread


@dataclass(frozen=True, eq=False)
class Tiles:
    """The comptime choices: results lie along `along`, the loads in `turned` along `against`; how
    many lanes a line has, which of the axes end in a partial line, whether results bypass the
    caches."""

    along: Axis
    against: Axis
    turned: tuple[Node, ...]
    lanes: int
    ragged_along: bool
    ragged_against: bool
    streaming: bool


def choose(space: Space, facts: Facts) -> Tiles | None:
    """The blocks of a map that transposes; None for every other program."""
    if space.columns or space.folds or len(space.rows) < 2 or size_of(space.rows) < LEAST:
        return None
    along = space.rows[-1]
    if any(along.stride(result.position) != 1 for result in space.results):
        return None
    against = max(space.rows[:-1], key=lambda axis: len(turned_loads(space, along, axis)))
    turned = turned_loads(space, along, against)
    lanes = min(MOST_LANES, facts.vector_bytes // _bytes(space, turned))
    if not 0 < len(turned) <= MOST or min(along.extent, against.extent) < lanes or lanes < 2:
        return None
    return Tiles(
        along,
        against,
        turned,
        lanes,
        along.extent % lanes != 0,
        against.extent % lanes != 0,
        streams(space, along, lanes),
    )


def _bytes(space: Space, turned: Sequence[Node]) -> int:
    """Bytes of the elements that fill a line: the widest computed with, or those only moved."""
    if len(space.order) == len(turned):
        return max([1, *(node.attr[0].aval.dtype.itemsize for node in turned)])
    return widest(space)


def build(group: Group, space: Space, tiles: Tiles, sources: frozenset[Var]) -> Work:
    """The launch of a map that transposes; `sources` share memory with results."""
    return _Template(group, space, tiles, sources).build()


class _Template:
    def __init__(self, group: Group, space: Space, tiles: Tiles, sources: frozenset[Var]) -> None:
        self.space, self.tiles, self.sources = space, tiles, sources
        self.b = Builder(group.name)
        self.arguments = Arguments(self.b, sources)
        self.emit = Emitter(self.arguments, space.axes, tiles.along, tiles.lanes)
        self.reader = self.emit.along(tiles.against)
        self.blocks = [
            self.b.shared(node.dtype, tiles.lanes * tiles.lanes) for node in tiles.turned
        ]

    def build(self) -> Work:
        tiles, b = self.tiles, self.b
        shared = "inout" if self.sources else "out"
        for result in self.space.results:  # results are the first buffers
            self.arguments.buffer(result.var, shared)
        outer = [axis for axis in self.space.rows if axis not in (tiles.along, tiles.against)]
        itemsize = max(node.attr[0].aval.dtype.itemsize for node in tiles.turned)
        strip = max(tiles.lanes, STRIP // itemsize)
        cube = b.place("cube_pos.x")
        cube, (start_against, stop_against) = self._cut(cube, tiles.against, strip)
        cube, (start_along, stop_along) = self._cut(cube, tiles.along, LENGTH)
        self.emit.place(outer, cube)
        self.reader.at.update(self.emit.at)
        for p in b.range(start_along, stop_along, tiles.lanes):
            for q in b.range(start_against, stop_against, tiles.lanes):
                self._turn(p, q)
                self._write(p, q, stop_against)
        cubes = size_of(outer) * self._parts(tiles.along, LENGTH)
        cubes *= self._parts(tiles.against, strip)
        costly = sum(12 if node.op in COSTLY else 1 for node in self.space.order)
        grain = max(1, math.ceil(TASK / (costly * LENGTH * strip)))
        cells, variables = tuple(self.arguments.cells), tuple(self.arguments.variables)
        return Work(b.finish(), variables, cells, cubes, grain)

    def _parts(self, axis: Axis, size: int) -> int:
        return -(-axis.extent // size)

    def _cut(self, number: Value, axis: Axis, size: int) -> tuple[Value, tuple[Value, Value]]:
        """What is left of a cube's number, and the stretch of an axis that it says."""
        count = self.arguments.scalar((axis.dims, "parts"), self._parts(axis, size))
        start = number % count * size
        stop = self.b.op("min", start + size, self._extent(axis))
        return number // count, (start, stop)

    def _extent(self, axis: Axis) -> Value:
        return self.arguments.scalar((axis.dims, "extent"), axis.extent)

    def _turn(self, p: Value, q: Value) -> None:
        """The block of every turned operand from a place on, its columns as rows of scratch."""
        tiles, reader, b = self.tiles, self.reader, self.b
        last = self._extent(tiles.along) - 1
        reader.open()
        reader.at[id(tiles.against)] = q
        reader.mask_from(q, self._extent(tiles.against), tiles.ragged_against)
        for number in b.range(0, tiles.lanes):
            reader.open()
            place = p + number
            reader.at[id(tiles.along)] = b.op("min", place, last) if tiles.ragged_along else place
            lines = reader.values(tiles.turned)
            for block, line in zip(self.blocks, lines, strict=True):
                b.store(block, number * tiles.lanes, line)
            reader.close()
        reader.close()

    def _write(self, p: Value, q: Value, stop: Value) -> None:
        """The results of a block, a line for each of its places against."""
        tiles, emit, b = self.tiles, self.emit, self.b
        emit.open()
        emit.at[id(tiles.along)] = p
        emit.mask_from(p, self._extent(tiles.along), tiles.ragged_along)
        column = b.lane(tiles.lanes) * tiles.lanes
        end = b.op("min", q + tiles.lanes, stop) if tiles.ragged_against else q + tiles.lanes
        for place in b.range(q, end):
            emit.open()
            emit.at[id(tiles.against)] = place
            for node, block in zip(tiles.turned, self.blocks, strict=True):
                emit.known(node, b.load(block, column + (place - q)))
            emit.write(self.space.results, tiles.streaming)
            emit.close()
        emit.close()
