"""Launches over planned memory: the last stage before a device links a program.

Every variable of the program lives in an input, an output, or a slot of one arena; slots are
reused once nothing reads them any more. A donated input's memory becomes an output's where
the program allows it.
"""

from __future__ import annotations

from bisect import insort
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
        self._allocate(works)

    def _allocate(self, works: Sequence[Work]) -> None:
        """Large variables first, each at the lowest place that is free while it lives."""
        lives: dict[Var, tuple[int, int]] = {}
        for number, work in enumerate(works):
            for var in work.buffers:
                if var not in self.refs:
                    lives[var] = (lives.get(var, (number, 0))[0], number)
        placed: list[tuple[int, int, int, int]] = []  # by offset: it, end, first and last use
        for var in sorted(lives, key=_rounded, reverse=True):
            first, last = lives[var]
            size, offset = _rounded(var), 0
            for start, end, begin, until in placed:
                if begin <= last and first <= until:
                    if start - offset >= size:
                        break
                    offset = max(offset, end)
            insort(placed, (offset, offset + size, first, last))
            self.refs[var] = Ref("arena", 0, offset)
            self.size = max(self.size, offset + size)


def _rounded(var: Var) -> int:
    return max(ALIGN, -(-var.aval.nbytes // ALIGN) * ALIGN)
