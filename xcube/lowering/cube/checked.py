"""kernel -> kernel that stays inside its arrays and says what went wrong: an access out of bounds
is not done, loads give 0 there. The first fault, be it such an access or an assertion that does not
hold, and all that the kernel prints, are recorded in a buffer that is appended to the kernel's own.

    record = count of faults | number of the first one's statement | index | size | cube | unit
           | values of its message (VALUES) | words printed | prints: number, cube, unit, values
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube.lowering.cube import ir, rebuild
from xcube.lowering.cube.arithmetic import NUMPY
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Buffer, Kernel, Stmt

VALUES = 4  # of a message that are kept
FIELDS = 7 + VALUES  # words of a record before what is printed
PRINTED = 1 << 13  # words of prints that are kept
LOWEST = -(1 << 62)

Message = ir.Print | ir.Assert
ACCESSES = (ir.Load, ir.Store, ir.Atomic, ir.CompareExchange, ir.CopyAsync)
_DOES = {ir.Load: "reads", ir.CopyAsync: "reads", ir.Store: "writes"}


def checked(kernel: Kernel) -> Kernel:
    """The kernel with its accesses, assertions and prints on record. It has one more buffer, the
    record (i64, `size(kernel)` elements, zeros at first), and one more scalar for each old buffer,
    its elements.

    >>> build = Builder("second")
    >>> build.store(build.buffer("f32", "out"), 1, build.load(build.buffer("f32"), 1))
    >>> kernel = checked(build.finish())
    >>> len(kernel.buffers), len(kernel.scalars)
    (3, 2)
    """
    build = Builder(kernel.name, kernel.cube_dim, kernel.resident)
    pass_ = _Checked(kernel, build)
    pass_.block(kernel.body)
    return build.finish()


def unchecked(kernel: Kernel) -> Kernel:
    """The kernel without assertions and prints; itself if it has none.

    >>> build = Builder("loud")
    >>> build.print("here")
    >>> unchecked(build.finish()).body
    ()
    """
    if not rebuild.each(kernel.body, ir.Print, ir.Assert):
        return kernel
    build = Builder(kernel.name, kernel.cube_dim, kernel.resident)
    pass_ = _Silent(kernel, build)
    pass_.parameters()
    pass_.block(kernel.body)
    return build.finish()


def size(kernel: Kernel) -> int:
    """The elements of a kernel's record."""
    return FIELDS + PRINTED if rebuild.each(kernel.body, ir.Print) else FIELDS


# reading records --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """The first fault of a launch: an access of a buffer out of bounds, or what an assertion says
    (`message`); the user's line, the cube and unit, and how many faults there were."""

    source: str | None
    cube: int
    unit: int
    count: int
    message: str | None = None
    does: str = ""
    buffer: Buffer | None = None
    index: int = 0
    size: int = 0


def fault(kernel: Kernel, record: Sequence[int]) -> Fault | None:
    """What a record of the checked kernel says; None if nothing went wrong."""
    count, number, index, elements, cube, unit = record[:6]
    if not count:
        return None
    s = _recorded(kernel)[number]
    where = rebuild.source_of(s), cube, unit, count
    if isinstance(s, ir.Assert):
        return Fault(*where, message=_worded(s.message, s.args, record[6 : 6 + VALUES]))
    if isinstance(s, ir.CopyAsync):
        return Fault(*where, None, "reads", s.source, index, elements)
    does = _DOES.get(type(s), "updates")
    return Fault(*where, None, does, s.buffer, index, elements)  # type: ignore[union-attr]


def printed(kernel: Kernel, record: Sequence[int]) -> list[str]:
    """The lines that a launch printed: cube by cube, unit by unit, each in its order."""
    if len(record) == FIELDS:
        return []
    statements, words = _recorded(kernel), record[FIELDS:]
    lines, at, total = [], 0, record[FIELDS - 1]
    while at < min(total, PRINTED):
        number, cube, unit = words[at : at + 3]
        s = statements[number]
        assert isinstance(s, ir.Print), "a record of prints holds prints"
        if at + 3 + len(s.args) > PRINTED:
            break
        values = words[at + 3 : at + 3 + len(s.args)]
        lines.append((cube, unit, _worded(s.format, s.args, values)))
        at += 3 + len(s.args)
    lines.sort(key=lambda line: line[:2])
    lost = [f"({total - at} words more were printed than are kept)"] if at < total else []
    return [text for _, _, text in lines] + lost


def _recorded(kernel: Kernel) -> list[Stmt]:
    """The statements that records name, by number."""
    return rebuild.each(kernel.body, *ACCESSES, ir.Assert, ir.Print)


def _worded(format: str, args: Sequence[ir.Atom], words: Sequence[int]) -> str:
    pairs = list(zip(args, words, strict=False))
    missing = ["..."] * (len(args) - len(pairs))
    return format.format(*[_number(word, atom.type.dtype) for atom, word in pairs], *missing)


def _number(word: int, dtype: str) -> Any:
    """The number whose bits are the low ones of a word."""
    raw = np.array([word], np.int64).tobytes()
    return np.frombuffer(raw, NUMPY[dtype], 1)[0]


# the passes -------------------------------------------------------------------------------------


class _Silent(rebuild.Rebuilder):
    def statement(self, s: Stmt) -> None:
        if not isinstance(s, ir.Print | ir.Assert):
            super().statement(s)


class _Checked(rebuild.Rebuilder):
    def __init__(self, kernel: Kernel, build: Builder) -> None:
        super().__init__(kernel, build)
        self.number = {id(s): number for number, s in enumerate(_recorded(kernel))}
        for buffer in kernel.buffers:
            self.memories["global", buffer.number] = build.buffer(buffer.dtype, buffer.access)
        self.record = build.buffer("i64", "inout")
        self.scalars()
        self.sizes = [build.scalar() for _ in kernel.buffers]

    # accesses

    def load(self, s: ir.Load) -> None:
        index, lanes = self.value(s.index), s.target.type.lanes
        mask = self._inside(s, s.buffer, index, lanes, self.mask(s.mask))
        found = self.build.load(self.memory(s.buffer), index, lanes, mask)
        self.values[s.target.number] = found

    def store(self, s: ir.Store) -> None:
        index, value = self.value(s.index), self.value(s.value)
        mask = self._inside(s, s.buffer, index, value.lanes, self.mask(s.mask))
        self.build.store(self.memory(s.buffer), index, value, mask, s.streaming and mask is None)

    def copy(self, s: Stmt) -> None:
        rule = _RULES.get(type(s))
        if rule is None:
            super().copy(s)
        else:
            rule(self, s)

    def update(self, s: ir.Atomic | ir.CompareExchange) -> None:
        """An update where its element is; 0 is what it finds elsewhere."""
        type, build = s.target.type, self.build
        inside = self._inside(s, s.buffer, self.value(s.index), type.lanes, None)
        if inside is None:
            super().copy(s)
            return
        old = build.variable(build.constant(0, type.dtype, type.lanes))
        with build.when(build.reduce("and", _power(build, inside))):
            super().copy(s)
            old.set(self.values[s.target.number])
        self.values[s.target.number] = old.get()

    def copy_async(self, s: ir.CopyAsync) -> None:
        """A copy whose source lies inside; zeros are copied elsewhere."""
        build, valid = self.build, self.mask(s.valid)
        wide = None if valid is None else build.splat(valid, s.lanes)
        inside = self._inside(s, s.source, self.value(s.index), s.lanes, wide)
        whole = valid if inside is None else build.reduce("and", inside)
        target, source = self.memory(s.target), self.memory(s.source)
        places = self.value(s.at).atom, self.value(s.index).atom
        where = None if whole is None else whole.atom
        build.emit(ir.CopyAsync(target, places[0], source, places[1], s.lanes, where))

    def _inside(
        self, s: Stmt, buffer: Buffer, index: Value, lanes: int, mask: Value | None
    ) -> Value | None:
        """Which lanes may be accessed, None if all; the others that are not masked are recorded."""
        build, count = self.build, self._size(buffer)
        places = index if index.lanes == lanes else build.splat(index, lanes) + build.lane(lanes)
        inside = (places >= 0) & (places < count)
        if inside.constant:
            return mask
        asked = inside if mask is None else inside | ~mask
        with build.when(~build.reduce("and", _power(build, asked))):
            outside = build.select(asked, build.constant(LOWEST, "index", lanes), places)
            self._note(s, [build.reduce("max", _power(build, outside)), count])
        return inside if mask is None else inside & mask

    def _size(self, buffer: Buffer) -> Value:
        if buffer.space == "global":
            return self.sizes[buffer.number]
        return self.build.constant(buffer.size, "index")

    # the record

    def _note(self, s: Stmt, fields: Sequence[Value], values: Sequence[Value] = ()) -> None:
        """Count a fault, and record it if it is the first."""
        build = self.build
        before = build.atomic("add", self.record, 0, 1)
        with build.when(before.eq(0)):
            for place, field in enumerate([self._named(s), *fields], 1):
                build.store(self.record, place, field.cast("i64"))
            for place, field in enumerate([*self._where(), *values], 4):
                build.store(self.record, place, field)

    def _named(self, s: Stmt) -> Value:
        return self.build.constant(self.number[id(s)], "i64")

    def _where(self) -> list[Value]:
        """The numbers of this cube and unit."""
        wide, high, _ = self.kernel.cube_dim
        x, y, z = (self.build.place(f"unit_pos.{axis}") for axis in "xyz")
        unit = x + y * wide + z * (wide * high)
        return [place.cast("i64") for place in (self.build.place("cube_pos.x"), unit)]

    def assert_(self, s: ir.Assert) -> None:
        """A condition: a fault where it does not hold."""
        holds = self.value(s.condition)
        if holds.constant:
            return
        with self.build.when(~holds):
            values = [_word(self.value(atom)) for atom in s.args[:VALUES]]
            self._note(s, [], values)

    def print_(self, s: ir.Print) -> None:
        """A line of text, if there is room."""
        build, words = self.build, 3 + len(s.args)
        at = build.atomic("add", self.record, FIELDS - 1, words)
        with build.when(at <= PRINTED - words):
            fields = [self._named(s), *self._where(), *[_word(self.value(x)) for x in s.args]]
            for place, field in enumerate(fields):
                build.store(self.record, at.cast("index") + (FIELDS + place), field)


def _word(value: Value) -> Value:
    """A scalar's bits as those of a word of 64."""
    bits = ir.BITS[value.dtype]
    if value.dtype in ("bool", "index"):
        return value.cast("i64")
    return value.bitcast(f"u{bits}").cast("i64")


def _power(build: Builder, line: Value) -> Value:
    """The lanes of a line, and its first one so often that they are a power of two."""
    missing = (1 << (line.lanes - 1).bit_length()) - line.lanes
    if not missing:
        return line
    return build.shuffle(line, [*range(line.lanes), *[0] * missing])


_RULES: dict[type, Callable[[_Checked, Any], None]] = {
    ir.Atomic: _Checked.update,
    ir.CompareExchange: _Checked.update,
    ir.CopyAsync: _Checked.copy_async,
    ir.Assert: _Checked.assert_,
    ir.Print: _Checked.print_,
}
