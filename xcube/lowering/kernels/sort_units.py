"""Sorting on devices whose cubes have many units. Rows of few elements are put in order by rank,
several of them in one cube; rows that fit a cube's shared memory are sorted there, by digits from
the lowest of the last key on; longer ones take several launches (`radix_units.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import BITS
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels import radix_units
from xcube.lowering.kernels.nodes import Arguments
from xcube.lowering.kernels.ranks import FEW
from xcube.lowering.kernels.sort_keys import follows
from xcube.lowering.kernels.sort_problem import Key, Problem, Row
from xcube.lowering.kernels.tile_units import DIGIT, Tile, units_of
from xcube.lowering.kernels.work import Work

UNITS = 256  # units of a cube at most
ITEMS = 16  # elements that each of them takes, at least
MOST_ITEMS = 32


def build(problem: Problem, facts: Facts) -> list[Work]:
    """The launches of a sort."""
    units = units_of(facts, UNITS)
    width = 1 << (problem.n - 1).bit_length()
    if problem.n <= FEW and width <= units:
        return [_by_ranks(problem, units, width)]
    while units > 32 and units * ITEMS >= 2 * problem.n:
        units //= 2
    for items in (ITEMS, MOST_ITEMS):
        if problem.n <= units * items:
            return [_Tiles(problem, units, items).build()]
    return radix_units.build(problem, units, ITEMS)


def _by_ranks(problem: Problem, units: int, width: int) -> Work:
    """Every element put where its rank says, by one unit for each; `width` units for a row."""
    together = units // width
    b = Builder("sort_ranks", (units, 1, 1))
    arguments = Arguments(b)
    unit = b.place("unit_pos.x")
    row = Row(arguments, problem, b.place("cube_pos.x") * together + unit // width)
    i, first = unit % width, unit // width * width
    present = (i < row.n) & (row.number < arguments.scalar("rows", problem.rows))
    keys = [row.key(key, i, present) for key in problem.keys]
    arrays = [b.shared(key.order.key_dtype, units) for key in problem.keys]
    for array, key in zip(arrays, keys, strict=True):
        b.store(array, unit, key)
    b.sync()
    with b.when(present):
        rank = b.variable(b.constant(0, "u32"))
        for j in b.range(0, row.n):
            others = [b.load(array, first + j) for array in arrays]
            before = follows(keys, others) | ((j < i) & ~follows(others, keys))
            rank.set(rank.get() + before.cast("u32"))
        with b.when(rank.get().cast("index") < row.kept):
            row.write(rank.get().cast("index"), i)
    variables, cells = tuple(arguments.variables), tuple(arguments.cells)
    return Work(b.finish(), variables, cells, -(-problem.rows // together), 1)


@dataclass(frozen=True, eq=False)
class _Tiles:
    """The kernel of rows that fit one cube of `units` units with `items` elements each."""

    problem: Problem
    units: int
    items: int

    def build(self) -> Work:
        problem, keys = self.problem, self.problem.keys
        b = Builder("sort_rows", (self.units, 1, 1))
        arguments = Arguments(b)
        row = Row(arguments, problem, b.place("cube_pos.x"))
        dtype = max([key.order.key_dtype for key in keys], key=BITS.__getitem__)
        tile = Tile(b, self.units, self.items, dtype, radix_units.is_indexed(problem))
        for number, key in enumerate(reversed(keys)):
            self._fill(row, tile, key, is_first=number == 0)
            self._sort(tile, key)
        for number in range(self.items):
            place = tile.place(number)
            with b.when(place < row.kept):
                index = place if tile.tags is None else tile.tag(number)
                row.write(place, index, tile.word(number))
        variables, cells = tuple(arguments.variables), tuple(arguments.cells)
        return Work(b.finish(), variables, cells, problem.rows, 1)

    def _fill(self, row: Row, tile: Tile, key: Key, is_first: bool) -> None:
        """The words of a key, in the order of the keys sorted by so far; behind them the highest
        word, as it would be sorted."""
        b, words = tile.b, list[Value]()
        indices = [
            tile.place(number) if is_first else tile.tag(number) for number in range(self.items)
        ]
        for number, index in enumerate(indices):
            present = tile.place(number) < row.n
            word = row.word(key, index, present).cast(tile.words.dtype)
            words.append(b.select(present, word, ~b.constant(0, word.dtype)))
        for number, word in enumerate(words):
            tile.put(number, word, indices[number] if is_first else None)
        b.sync()

    def _sort(self, tile: Tile, key: Key) -> None:
        b, order = tile.b, key.order
        for shift in b.range(0, order.width, DIGIT):
            tile.sort(lambda word, shift=shift: radix_units.digit_of(b, order, word, shift, DIGIT))
