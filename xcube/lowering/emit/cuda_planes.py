"""Operations of planes in CUDA C++: a plane is a warp, and everything is made of shuffles between
its threads and of ballots. Where a cube is a thread, its plane has one unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xcube.lowering.cube import ir, planes
from xcube.lowering.emit import cuda_ops

if TYPE_CHECKING:
    from xcube.lowering.emit.cuda import _Text

_ALL = 0xFFFFFFFF
_DISTANCES = (16, 8, 4, 2, 1)


def emit(text: _Text, s: ir.Plane) -> str:
    """Emit an operation of a plane; the text of this unit's result."""
    lanes = text.lanes(s.value)
    if text.units == 1:
        return " ".join([_alone(text, s, lane) for lane in lanes])
    plane = _Plane.of(text)
    return " ".join([plane.result(s, lane) for lane in lanes])


def _alone(text: _Text, s: ir.Plane, value: str) -> str:
    """The result in a plane of one unit."""
    if s.op == "ballot":
        return text.bind("u32", value)
    if s.op.startswith("exclusive"):
        return text.number(planes.SCANS[s.op] == "mul", s.target.type.dtype)
    return value


@dataclass(frozen=True, slots=True)
class _Plane:
    """Where a unit is in its plane. `members`: a bit for each unit that is there; `count`: their
    number, None if the plane is whole."""

    text: _Text
    lane: str
    members: str
    count: str | None

    @classmethod
    def of(cls, text: _Text) -> _Plane:
        """The names of a plane's properties, defined here."""
        wide, high, _ = text.kernel.cube_dim
        unit = text.bind("u32", f"threadIdx.x + threadIdx.y * {wide} + threadIdx.z * {wide * high}")
        lane = text.bind("u32", f"{unit} % {ir.PLANE}")
        if text.units % ir.PLANE == 0:
            return cls(text, lane, f"0x{_ALL:x}u", None)
        rest, whole = text.units % ir.PLANE, text.units // ir.PLANE
        is_last = f"{unit} / {ir.PLANE} == {whole}"
        count = text.bind("u32", f"{is_last} ? {rest} : {ir.PLANE}")
        members = text.bind("u32", f"{is_last} ? 0x{(1 << rest) - 1:x}u : 0x{_ALL:x}u")
        return cls(text, lane, members, count)

    def result(self, s: ir.Plane, value: str) -> str:
        """One lane of an operation."""
        if s.op in planes.SHUFFLES:
            assert s.argument is not None
            origin = _ORIGINS[s.op].format(lane=self.lane, argument=self.text.atom(s.argument))
            known = self.text.bind("i64", origin)
            inside = f"(u64){known} < {self.count or ir.PLANE} ? (u32){known} : {self.lane}"
            return self._from(value, s.value.type.dtype, self.text.bind("u32", inside))
        if (vote := _VOTES.get(s.op)) is not None:
            return self._voted(s, vote, value)
        if s.op in planes.SCANS:
            return self._scanned(s, value)
        return self._reduced(planes.REDUCTIONS[s.op], s.value.type.dtype, value)

    def _from(self, value: str, dtype: str, origin: str) -> str:
        """The value of another unit."""
        wide = ir.BITS[dtype] == 64
        word = f"({'u64' if wide else 'u32'}){cuda_ops.to_bits(value, dtype)}"
        function = "shuffle_u64" if wide else "shuffle_u32"
        found = self.text.bind(
            "u64" if wide else "u32", f"{function}({self.members}, {word}, {origin})"
        )
        if dtype == "bool":
            return self.text.bind(dtype, f"{found} != 0")
        return self.text.bind(dtype, cuda_ops.from_bits(found, dtype))

    def _voted(self, s: ir.Plane, rule: str, value: str) -> str:
        votes = self.text.bind("u32", f"__ballot_sync({self.members}, {value})")
        text = rule.format(votes=votes, members=self.members, lane=self.lane)
        return self.text.bind(s.target.type.dtype, text)

    def _reduced(self, op: str, dtype: str, value: str) -> str:
        """Halves combined; the first unit has all of them in order, and gives its result to all."""
        for distance in _DISTANCES:
            origin = self.text.bind("u32", f"{self.lane} ^ {distance}")
            if self.count is not None:
                origin = self.text.bind("u32", f"{origin} < {self.count} ? {origin} : {self.lane}")
            other = self._from(value, dtype, origin)
            if self.count is not None:
                missing = self.text.number(planes.identity(op, dtype), dtype)
                other = self.text.bind(dtype, f"{origin} != {self.lane} ? {other} : {missing}")
            value = self.text.bind(dtype, self.text.combined(op, dtype, value, other))
        is_ordered = op in ("min", "max") and dtype in ir.FLOATS
        return self._from(value, dtype, "0") if self.count is not None or is_ordered else value

    def _scanned(self, s: ir.Plane, value: str) -> str:
        op, dtype = planes.SCANS[s.op], s.value.type.dtype
        for distance in reversed(_DISTANCES):
            before = self._before(value, dtype, distance)
            sums = self.text.bind(dtype, self.text.combined(op, dtype, before, value))
            value = self.text.bind(dtype, f"{self.lane} >= {distance} ? {sums} : {value}")
        if s.op.startswith("inclusive"):
            return value
        before, first = self._before(value, dtype, 1), self.text.number(op == "mul", dtype)
        return self.text.bind(dtype, f"{self.lane} >= 1 ? {before} : {first}")

    def _before(self, value: str, dtype: str, distance: int) -> str:
        """The value of a unit that is so far before; of itself where there is none."""
        near = f"{self.lane} >= {distance} ? {self.lane} - {distance} : {self.lane}"
        return self._from(value, dtype, self.text.bind("u32", near))


_ORIGINS = {
    **dict.fromkeys(("broadcast", "shuffle"), "{argument}"),
    "shuffle_xor": "(i64){lane} ^ {argument}",
    "shuffle_up": "(i64){lane} - {argument}",
    "shuffle_down": "(i64){lane} + {argument}",
}
_VOTES = {
    "all": "{votes} == {members}",
    "any": "{votes} != 0",
    "ballot": "{votes}",
    "elect": "{votes} << (31 - {lane}) == 0x80000000u",
}
