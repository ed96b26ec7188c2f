"""Maps that transpose, where a cube has many units: results walk one axis in memory, operands
another. A cube reads a square tile of each such operand along the operand's axis into shared
memory, and then computes and writes along the results' axis, so that both touch whole stretches."""

from __future__ import annotations

from dataclasses import dataclass

from xcube.ir import Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import BITS, Buffer
from xcube.lowering.device.base import Facts
from xcube.lowering.expression import Node
from xcube.lowering.kernels.lanes import is_narrow, is_plain, size_of
from xcube.lowering.kernels.nodes import PARTS, Arguments, Emitter, where
from xcube.lowering.kernels.space import Axis, Space
from xcube.lowering.kernels.work import Work

WORD = 4  # bytes of a bank of shared memory, and of what a unit moves at once
MOST = 8  # operands that tiles are kept of


@dataclass(frozen=True, eq=False)
class Turn:
    """The comptime choices: results lie along `along`, the loads in `turned` along `against`; units
    `wide` and `deep` of a cube, elements a unit moves at once, and whether tiles fit the space."""

    along: Axis
    against: Axis
    turned: tuple[Node, ...]
    wide: int
    deep: int
    lanes: int
    exact: bool

    @property
    def side(self) -> int:
        """Rows and columns of a tile."""
        return self.wide * self.lanes


def choose(space: Space, facts: Facts) -> Turn | None:
    """The tiles of a map that transposes; None for every other program."""
    if space.columns or space.folds or len(space.rows) < 2:
        return None
    along = space.rows[-1]
    if any(along.stride(result.position) != 1 for result in space.results):
        return None
    against = max(space.rows[:-1], key=lambda axis: len(turned_loads(space, along, axis)))
    turned = turned_loads(space, along, against)
    wide = 1 << (facts.units.bit_length() + 1) // 2  # four times as wide as deep
    shortest = min(along.extent, against.extent)
    if not 0 < len(turned) <= MOST or shortest < wide // 2:
        return None
    lanes = max(1, WORD // max(_bytes(space, turned)))
    while lanes > 1 and (along.extent % lanes or against.extent % lanes):
        lanes //= 2
    exact = along.extent % (wide * lanes) == against.extent % (wide * lanes) == 0
    return Turn(along, against, turned, wide, facts.units // wide, lanes, exact)


def turned_loads(space: Space, along: Axis, against: Axis) -> tuple[Node, ...]:
    """Loads that walk `against` with stride one, and `along` with another."""
    found = []
    for node in space.order:
        if node.op == "load" and node.dtype not in PARTS:
            _, index, guards = node.attr
            strides = (along.stride(index) not in (0, 1), against.stride(index) == 1)
            if all(strides) and is_plain(index) and not guards:
                found.append(node)
    return tuple(found)


def _bytes(space: Space, turned: tuple[Node, ...]) -> list[int]:
    """Bytes of the elements that are turned, and of the results."""
    results = [result.var.aval.dtype.itemsize for result in space.results]
    return [*results, *(BITS[node.dtype] // 8 for node in turned)]


def build(group: Group, space: Space, turn: Turn, sources: frozenset[Var]) -> Work:
    """The launch of a map that transposes; `sources` share memory with results."""
    return _Template(group, space, turn, sources).build()


class _Template:
    def __init__(self, group: Group, space: Space, turn: Turn, sources: frozenset[Var]) -> None:
        self.space, self.turn, self.sources = space, turn, sources
        self.b = Builder(group.name, (turn.wide, turn.deep, 1))
        self.arguments = Arguments(self.b, sources)
        self.emit = Emitter(
            self.arguments,
            space.axes,
            turn.along,
            turn.lanes,
            aligned=True,
            narrow=is_narrow(space),
        )
        self.x, self.y = self.b.place("unit_pos.x"), self.b.place("unit_pos.y")

    def build(self) -> Work:
        turn = self.turn
        shared = "inout" if self.sources else "out"
        for result in self.space.results:  # results are the first buffers
            self.arguments.buffer(result.var, shared)
        outer = [axis for axis in self.space.rows if axis not in (turn.along, turn.against)]
        tiles_along, tiles_against = (
            -(-axis.extent // turn.side) for axis in (turn.along, turn.against)
        )
        cube = self.b.place("cube_pos.x")
        cube, column = self._cut(cube, "along", tiles_along)
        cube, row = self._cut(cube, "against", tiles_against)
        self.emit.place(outer, cube)
        tiles = self._read(row * turn.side, column * turn.side)
        self.b.sync()
        self._write(row * turn.side, column * turn.side, tiles)
        cubes = size_of(outer) * tiles_along * tiles_against
        cells, variables = tuple(self.arguments.cells), tuple(self.arguments.variables)
        return Work(self.b.finish(), variables, cells, cubes, 1)

    def _cut(self, number: Value, name: str, tiles: int) -> tuple[Value, Value]:
        count = self.arguments.scalar(("tiles", name), tiles)
        return self.emit.quotient(number, count), self.emit.remainder(number, count)

    @property
    def _pitch(self) -> int:
        """Elements from one row of a tile to the next: neighbours in a column share no bank."""
        return self.turn.side + self.turn.lanes

    def _read(self, first_against: Value, first_along: Value) -> list[Buffer]:
        """Tiles with a row for every place along the results' axis."""
        turn, b = self.turn, self.b
        emit = self.emit.along(turn.against)
        emit.at.update(self.emit.at)
        emit.at[id(turn.against)] = self._inside(
            first_against + self.x * turn.lanes, turn.against, turn.lanes
        )
        rows = [self.y + number for number in range(0, turn.side, turn.deep)]
        lines = []
        for row in rows:
            emit.open()
            emit.at[id(turn.along)] = self._inside(first_along + row, turn.along, 1)
            lines.append(emit.values(turn.turned))
            emit.close()
        tiles = [b.shared(node.dtype, turn.side * self._pitch) for node in turn.turned]
        for row, values in zip(rows, lines, strict=True):
            for tile, value in zip(tiles, values, strict=True):
                b.store(tile, (row * (self._pitch // turn.lanes) + self.x) * turn.lanes, value)
        return tiles

    def _inside(self, place: Value, axis: Axis, lanes: int) -> Value:
        """A place that exists: what lies beyond the space is read elsewhere and not used."""
        if self.turn.exact:
            return place
        last = self.arguments.scalar((axis.dims, "last"), axis.extent // lanes - 1)
        return self.b.op("min", place, last * lanes)

    def _write(self, first_against: Value, first_along: Value, tiles: list[Buffer]) -> None:
        """Results row by row, along their own axis."""
        turn, b, emit = self.turn, self.b, self.emit
        column = self.x * turn.lanes
        emit.at[id(turn.along)] = first_along + column
        rows_of_tile = column + b.lane(turn.lanes) if turn.lanes > 1 else column
        for number in range(0, turn.side, turn.deep):
            row = self.y + number
            place = first_against + row
            with where(b, *self._exist(place, first_along + column)):
                emit.open()
                emit.at[id(turn.against)] = place
                for node, tile in zip(turn.turned, tiles, strict=True):
                    emit.known(node, b.load(tile, rows_of_tile * self._pitch + row))
                emit.write(self.space.results)
                emit.close()

    def _exist(self, against: Value, along: Value) -> list[Value]:
        """Tests of whether an element of a tile lies in the space."""
        turn = self.turn
        if turn.exact:
            return []
        return [
            place < self.arguments.scalar((axis.dims, "extent"), axis.extent)
            for place, axis in ((against, turn.against), (along, turn.along))
        ]
