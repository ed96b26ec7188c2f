"""Launches over planned memory: the last stage before a device links a program.

Every variable of the program lives in an input, an output, or a slot of one arena; slots are
reused once nothing reads them any more. A donated input's memory becomes an output's where
the program allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xcube.ir import Jaxpr, Var
from xcube.lowering.cube.ir import Kernel
from xcube.lowering.device.base import Launch, Ref
from xcube.lowering.kernels.work import Work
from xcube.lowering.schedule import Group

ALIGN = 256


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """Kernels and launches with their memory.

    `keys`: the texts that identify the kernels. `outputs`: for each result of the jaxpr, which
    output buffer or which input it is. `donated`: output buffer -> input whose memory it takes.
    """

    jaxpr: Jaxpr
    kernels: tuple[Kernel, ...]
    keys: tuple[str, ...]
    launches: tuple[Launch, ...]
    outputs: tuple[Ref, ...]
    output_nbytes: tuple[int, ...]
    arena_nbytes: int
    donated: dict[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            f"program {self.jaxpr.name}: {len(self.launches)} launches, "
            f"{len(self.kernels)} kernels, arena {self.arena_nbytes} bytes"
        ]
        for number, launch in enumerate(self.launches):
            buffers = " ".join(_place(ref) for ref in launch.buffers)
            name = self.kernels[launch.kernel].name
            lines.append(f"{number:4} {name:<16} cubes={launch.cubes:<8} {buffers}")
        for output, source in self.donated.items():
            lines.append(f"     output {output} takes the memory of input {source}")
        return "\n".join(lines)

    __repr__ = __str__


def _place(ref: Ref) -> str:
    return f"arena+{ref.offset}" if ref.space == "arena" else f"{ref.space}{ref.index}"


def donations(jaxpr: Jaxpr, groups: Sequence[Group], donated: Sequence[bool]) -> dict[Var, Var]:
    """Result variables that can take over a donated input's memory: the input is read for the last
    time before the result is written, or exactly where it is."""
    writer = {var: number for number, group in enumerate(groups) for var in group.outputs}
    last = {var: number for number, group in enumerate(groups) for var in group.reads}
    pairs = {pair for group in groups for pair in group.in_place}
    results = {atom for atom in jaxpr.outputs if isinstance(atom, Var)}
    free = [v for v, flag in zip(jaxpr.inputs, donated, strict=True) if flag and v not in results]
    taken: dict[Var, Var] = {}
    for var in dict.fromkeys(atom for atom in jaxpr.outputs if atom in writer):
        fits = [
            source
            for source in free
            if source.aval.nbytes == var.aval.nbytes
            and last.get(source, -1) < writer[var] + ((source, var) in pairs)
        ]
        if fits:
            taken[var] = next((source for source in fits if (source, var) in pairs), fits[0])
            free.remove(taken[var])
    return taken


def plan(jaxpr: Jaxpr, works: Sequence[Work], taken: dict[Var, Var]) -> Program:
    """Place every variable and make the launches."""
    places = _Places(jaxpr, works, taken)
    kernels: dict[str, int] = {}
    unique: list[Kernel] = []
    launches = []
    for work in works:
        key = work.key
        if key not in kernels:
            kernels[key] = len(unique)
            unique.append(work.kernel)
        refs = tuple([places.refs[var] for var in work.buffers])
        launches.append(Launch(kernels[key], refs, work.scalars, work.cubes, work.grain))
    return Program(
        jaxpr,
        tuple(unique),
        tuple(kernels),
        tuple(launches),
        tuple([places.refs[atom] for atom in jaxpr.outputs if isinstance(atom, Var)]),
        tuple([var.aval.nbytes for var in places.results]),
        places.size,
        places.donated,
    )


class _Places:
    """Where every variable lives."""

    def __init__(self, jaxpr: Jaxpr, works: Sequence[Work], taken: dict[Var, Var]) -> None:
        self.refs: dict[Var, Ref] = {v: Ref("input", n) for n, v in enumerate(jaxpr.inputs)}
        results = (a for a in jaxpr.outputs if isinstance(a, Var) and a not in self.refs)
        self.results = list(dict.fromkeys(results))
        self.refs.update((var, Ref("output", n)) for n, var in enumerate(self.results))
        numbers = {var: n for n, var in enumerate(jaxpr.inputs)}
        self.donated = {
            n: numbers[taken[var]] for n, var in enumerate(self.results) if var in taken
        }
        self.size = 0
        self._holes: list[tuple[int, int]] = []  # (offset, bytes), by offset
        self._allocate(works)

    def _allocate(self, works: Sequence[Work]) -> None:
        last: dict[Var, int] = {}
        for number, work in enumerate(works):
            last.update((var, number) for var in work.buffers)
        dying: dict[int, list[Var]] = {}
        for var, number in last.items():
            if var not in self.refs:
                dying.setdefault(number, []).append(var)
        for number, work in enumerate(works):
            for var in work.buffers:
                if var not in self.refs:
                    self.refs[var] = Ref("arena", 0, self._take(_rounded(var)))
            for var in dying.get(number, ()):
                self._give(self.refs[var].offset, _rounded(var))

    def _take(self, size: int) -> int:
        """The smallest hole that fits, or the end of the arena."""
        fits = [(room, offset) for offset, room in self._holes if room >= size]
        if fits:
            room, offset = min(fits)
            self._holes.remove((offset, room))
            if room > size:
                self._holes.append((offset + size, room - size))
            return offset
        if self._holes and (tail := max(self._holes))[0] + tail[1] == self.size:
            self._holes.remove(tail)
            self.size = tail[0]
        offset, self.size = self.size, self.size + size
        return offset

    def _give(self, offset: int, size: int) -> None:
        for start, room in sorted(self._holes):
            if start + room == offset:
                self._holes.remove((start, room))
                offset, size = start, room + size
            elif offset + size == start:
                self._holes.remove((start, room))
                size += room
        self._holes.append((offset, size))


def _rounded(var: Var) -> int:
    return max(ALIGN, -(-var.aval.nbytes // ALIGN) * ALIGN)
