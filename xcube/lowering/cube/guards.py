"""kernel -> kernel that stays inside its buffers: an access out of bounds is not done, loads give 0
there, and the first one is recorded in a buffer that is appended to the kernel's own."""

from __future__ import annotations

from dataclasses import dataclass

from xcube.lowering.cube import ir, rebuild
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Buffer, Kernel, Stmt

FIELDS = 4  # of a record: how many accesses were refused, and of the first: statement, index, size
LOWEST = -(1 << 62)


def guard(kernel: Kernel) -> Kernel:
    """The kernel with its accesses of global buffers guarded. It has one more buffer, the record
    (i64, FIELDS elements, zeros at first), and one more scalar for each old buffer, its elements.

    >>> build = Builder("second")
    >>> build.store(build.buffer("f32", "out"), 1, build.load(build.buffer("f32"), 1))
    >>> guarded = guard(build.finish())
    >>> len(guarded.buffers), len(guarded.scalars)
    (3, 2)
    """
    build = Builder(kernel.name, kernel.cube_dim, kernel.resident)
    pass_ = _Guard(kernel, build)
    pass_.block(kernel.body)
    return build.finish()


@dataclass(frozen=True)
class Fault:
    """The first access that was refused: where, and how many there were."""

    source: str | None
    does: str
    buffer: int
    index: int
    size: int
    count: int


def fault(kernel: Kernel, record: list[int]) -> Fault | None:
    """What a record of the guarded kernel says; None if nothing was refused."""
    count, number, index, size = record
    if not count:
        return None
    s = [x for x in rebuild.every(kernel.body) if _is_guarded(x)][number]
    does = {ir.Load: "reads", ir.Store: "writes"}.get(type(s), "updates")
    return Fault(rebuild.source_of(s), does, s.buffer.number, index, size, count)  # type: ignore[union-attr]


def _is_guarded(s: Stmt) -> bool:
    return isinstance(s, ir.Load | ir.Store | ir.Atomic) and s.buffer.space == "global"


class _Guard(rebuild.Rebuilder):
    def __init__(self, kernel: Kernel, build: Builder) -> None:
        super().__init__(kernel, build)
        guarded = [s for s in rebuild.every(kernel.body) if _is_guarded(s)]
        self.number = {id(s): number for number, s in enumerate(guarded)}
        for buffer in kernel.buffers:
            self.memories["global", buffer.number] = build.buffer(buffer.dtype, buffer.access)
        self.record = build.buffer("i64", "inout")
        self.scalars()
        self.sizes = [build.scalar() for _ in kernel.buffers]

    def load(self, s: ir.Load) -> None:
        if not _is_guarded(s):
            super().load(s)
            return
        index, lanes = self.value(s.index), s.target.type.lanes
        mask = self._inside(s, s.buffer, index, lanes, self.mask(s.mask))
        found = self.build.load(self.memory(s.buffer), index, lanes, mask)
        self.values[s.target.number] = found

    def store(self, s: ir.Store) -> None:
        if not _is_guarded(s):
            super().store(s)
            return
        index, value = self.value(s.index), self.value(s.value)
        mask = self._inside(s, s.buffer, index, value.lanes, self.mask(s.mask))
        self.build.store(self.memory(s.buffer), index, value, mask)

    def copy(self, s: Stmt) -> None:
        if not (isinstance(s, ir.Atomic) and _is_guarded(s)):
            super().copy(s)
            return
        build, value = self.build, self.value(s.value)
        inside = self._inside(s, s.buffer, self.value(s.index), value.lanes, None)
        old = build.variable(build.constant(0, value.dtype, value.lanes))
        with build.when(build.reduce("and", inside)):
            super().copy(s)
            old.set(self.values[s.target.number])
        self.values[s.target.number] = old.get()

    def _inside(
        self, s: Stmt, buffer: Buffer, index: Value, lanes: int, mask: Value | None
    ) -> Value:
        """Which lanes may be accessed; the others that are not masked are recorded."""
        build, size = self.build, self.sizes[buffer.number]
        places = index if index.lanes == lanes else build.splat(index, lanes) + build.lane(lanes)
        inside = (places >= 0) & (places < size)
        asked = inside if mask is None else inside | ~mask
        with build.when(~build.reduce("and", asked)):
            outside = build.select(asked, build.constant(LOWEST, "index", lanes), places)
            self._note(self.number[id(s)], build.reduce("max", outside), size)
        return inside if mask is None else inside & mask

    def _note(self, number: int, index: Value, size: Value) -> None:
        build = self.build
        one = build.constant(1, "i64")
        before = build.atomic("add", self.record, 0, one)
        with build.when(before.eq(0)):
            for place, value in enumerate((build.constant(number, "i64"), index, size), 1):
                build.store(self.record, place, value.cast("i64"))
