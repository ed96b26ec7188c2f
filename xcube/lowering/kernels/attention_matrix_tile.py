"""What the kernels of attention on matrix units share: operands that come by in boxes, the blocks
of columns that a tile of rows sees, and how lanes of sums lie in rows and columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from xcube import dtypes
from xcube.ir import Shape, Var
from xcube.lowering.cube import matrix
from xcube.lowering.cube.build import Builder, Value, Variable
from xcube.lowering.cube.ir import GROUP, Buffer
from xcube.lowering.kernels.nodes import Arguments

REGISTERS = {2: (24, 240), 3: (32, 160)}  # of units that ask, and that multiply, by groups
LOG2_E = math.log2(math.e)
CACHED = 24 << 20  # bytes of what passes by that the tiles at work may have in the cache


@dataclass(frozen=True)
class Plan:
    """The comptime choices: groups of 64 rows, columns of a block, blocks in memory at a time, and
    whether groups take turns at the matrix units."""

    groups: int
    columns: int
    stages: int
    turns: bool = False

    @property
    def rows(self) -> int:
        return self.groups * matrix.GROUP_ROWS

    @property
    def units(self) -> int:
        return (self.groups + 1) * GROUP

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


@dataclass(frozen=True)
class Window:
    """Which columns a row sees: from `left` before its own place to `right` behind; None: all."""

    left: int | None = None
    right: int | None = None


class Boxes:
    """An operand [batch, length, heads, size] read by boxes of one head: `lines` of its length at a
    time, each in parts of 64 elements."""

    def __init__(self, arguments: Arguments, name: str, var: Var, lines: int) -> None:
        b = self.b = arguments.build
        batch, length, heads, size = var.aval.shape
        self.size, self.lines = size, lines
        self.dtype = dtypes.short_name(var.aval.dtype)
        self.span = matrix.span(self.dtype)
        self.parts = math.ceil(size / self.span)
        sizes = {"size": size, "heads": heads, "length": length, "batch": batch}
        strides = {"head": size, "line": heads * size, "example": length * heads * size}
        self.map = b.map(
            arguments.buffer(var),
            [arguments.scalar((name, key), number) for key, number in sizes.items()],
            [arguments.scalar((name, key), number) for key, number in strides.items()],
            (self.span, 1, lines, 1),
        )

    @property
    def elements(self) -> int:
        """What a block takes in shared memory."""
        return self.parts * self.lines * self.span

    @property
    def nbytes(self) -> int:
        return self.parts * matrix.box_bytes(self.map)

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
        """Ask for the block of one head that begins at a line."""
        for part in range(self.parts):
            place = (self.b.constant(part * self.span, "index"), head, line, example)
            start = at + part * self.lines * self.span
            matrix.copy_tile(self.b, target, start, self.map, place, barriers, barrier)

    def steps(self) -> list[int]:
        """Steps of a multiplication along the size, for each part."""
        deep = matrix.depth(self.dtype)
        whole = [min(self.span, self.size - part * self.span) for part in range(self.parts)]
        return [math.ceil(size / deep) for size in whole]


@dataclass(frozen=True)
class Place:
    """Where the tile of a cube is: its first row, its example and its head."""

    first: Value
    example: Value
    head: Value

    @classmethod
    def of(
        cls, arguments: Arguments, shape: Shape, rows: int, nbytes: float, last_first: bool
    ) -> Place:
        """Of [batch, length, heads, ...] in tiles of so many rows. Heads take turns, tiles that may
        see the most first (`last_first`: the last rows do); `nbytes` of what passes by for a head
        say how many heads are at work together."""
        b, (batch, length, heads) = arguments.build, shape[:3]
        near = max(1, min(batch * heads, int(CACHED / nbytes)))
        tiles = arguments.scalar("tiles", math.ceil(length / rows))
        section, total = arguments.scalar("section", near), arguments.scalar("all", batch * heads)
        count, number = arguments.scalar("heads", heads), b.place("cube_pos.x")
        begin = number // (section * tiles) * section
        here = b.op("min", section, total - begin)
        within = number - begin * tiles
        head, tile = begin + within % here, within // here
        first = (tiles - 1 - tile if last_first else tile) * rows
        return cls(first, head // count, head % count)


def cubes(shape: Shape, rows: int) -> int:
    """How many tiles there are."""
    batch, length, heads = shape[:3]
    return math.ceil(length / rows) * batch * heads


@dataclass(frozen=True)
class Walk:
    """The blocks that a tile of rows sees, of columns from `left` before a row's place to `right`
    behind it: those of `start`..`stop` but `clear`..`whole` need a mask."""

    start: Value
    clear: Value
    whole: Value
    stop: Value
    length: Value
    left: Value | None
    right: Value | None

    @classmethod
    def of(
        cls, arguments: Arguments, first: Value, rows: int, block: int, length: int, window: Window
    ) -> Walk:
        """Those of the rows from `first` on, over a length in blocks."""
        b = arguments.build
        total = arguments.scalar("columns", length)
        stop, whole = (total + (block - 1)) // block, total // block
        start = clear = b.constant(0, "index")
        left = right = None
        if window.right is not None:
            right = arguments.scalar("right", window.right)
            stop = b.op("min", stop, (first + (rows - 1) + right) // block + 1)
            whole = b.op("min", whole, (first + right + 1) // block)
        if window.left is not None:
            left = arguments.scalar("left", window.left)
            start = b.op("min", b.op("max", first - left, 0) // block, stop)
            clear = b.op("max", first + (rows - 1) - left + (block - 1), 0) // block
            clear = b.op("min", b.op("max", clear, start), stop)
        whole = b.op("max", b.op("min", whole, stop), clear)
        return cls(start, clear, whole, stop, total, left, right)

    def shown(self, scores: Value, row: Value, column: Value) -> Value:
        """Scores whose first one is at a row and a column, minus infinity where none counts."""
        seen = self._seen(row, column, scores.lanes)
        return scores.build.select(seen, scores, -math.inf)

    def _seen(self, row: Value, column: Value, lanes: int) -> Value:
        b = row.build
        line = b.lane(lanes, "i32")
        across = (line // 4) * 8 + line % 2
        ahead = across - (line // 2 % 2) * 8  # of the row's place
        seen = across < b.splat((self.length - column).cast("i32"), lanes)
        away = (row - column).cast("i32")
        if self.right is not None:
            seen = seen & (ahead <= b.splat(away + self.right.cast("i32"), lanes))
        if self.left is not None:
            seen = seen & (ahead >= b.splat(away - self.left.cast("i32"), lanes))
        return seen


def rows_of(lanes: int) -> tuple[int, ...]:
    """Of each lane of sums, which of a unit's two rows it is in."""
    return tuple([lane // 2 % 2 for lane in range(lanes)])


def folded(b: Builder, op: str, line: Value) -> Value:
    """The two rows' results over the columns of one unit."""
    parts = [b.shuffle(line, range(k, k + 4)) for k in range(0, line.lanes, 4)]
    while len(parts) > 1:
        pairs = [parts[k : k + 2] for k in range(0, len(parts), 2)]
        parts = [b.op(op, *pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return b.op(op, b.shuffle(parts[0], (0, 2)), b.shuffle(parts[0], (1, 3)))


def share_roles(
    b: Builder, plan: Plan, unit: Value, ask: Callable[[], None], multiply: Callable[[], None]
) -> None:
    """One unit behind the groups asks for boxes; the groups take the registers of its planes and
    multiply."""
    asking = plan.groups * GROUP
    fewer, more = REGISTERS[plan.groups]
    with b.when(unit >= asking):
        matrix.set_registers(b, fewer, grows=False)
        with b.when(unit.eq(asking)):
            ask()
    with b.otherwise():
        matrix.set_registers(b, more, grows=True)
        multiply()


def begin_scores(
    sums: Variable,
    group: Value,
    tile: Boxes,
    held: Buffer,
    passing: Boxes,
    ring: Buffer,
    stage: Value,
) -> None:
    """Begin: sums = a group's rows of a tile @ the block in a stage of a ring, transposed."""
    b = tile.b
    for part, steps in enumerate(passing.steps()):
        own = group * (matrix.GROUP_ROWS * tile.span) + part * tile.lines * tile.span
        place = stage * passing.elements + part * passing.lines * passing.span
        left = matrix.panel(b, held, own, deep=True)
        right = matrix.panel(b, ring, place, deep=True)
        fresh = b.constant(part == 0, "bool")
        matrix.multiply_panels(b, sums, left, right, steps, fresh)


def begin_sums(sums: Variable, factor: Value, passing: Boxes, ring: Buffer, stage: Value) -> None:
    """Begin: sums += factor @ the block in a stage of a ring."""
    b, apart = passing.b, passing.lines * passing.span
    right = matrix.panel(b, ring, stage * passing.elements, False, apart)
    steps = passing.lines // matrix.depth(passing.dtype)
    matrix.multiply_panels(b, sums, factor, right, steps, b.constant(False, "bool"))


def store_rows(
    out: Buffer, place: Place, row: Value, column: Value, line: Value, rows: Value, heads: Value
) -> None:
    """Write a unit's lanes of sums to [batch, rows, heads, size]: the first is at a row and column,
    rows behind the last one are left out."""
    b, size = line.build, line.lanes * 2
    for half in range(2):
        own = row + half * 8
        with b.when(own < rows):
            at = ((place.example * rows + own) * heads + place.head) * size + column
            for start in range(0, size, 8):
                lane = start // 2 + half * 2
                b.store(out, at + start, b.shuffle(line, (lane, lane + 1)))
