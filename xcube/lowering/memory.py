"""Where the variables of a block live: in what it is given, or at offsets of an arena; and which
results take over an input's memory.

Slots of the arena are reused once nothing reads them any more. Results of a barrier are other
names of its operands, and what a loop carries begins where it ends if nothing else reads it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xcube.ir import Equation, Jaxpr, Var
from xcube.lowering.clusters import OVERWRITING, Group, carried
from xcube.lowering.kernels.work import Block, Control
from xcube.primitives.lowered import Barrier, Constant, Structured

ALIGN = 256


def rounded(nbytes: int) -> int:
    """The bytes of a slot that holds so many."""
    return max(ALIGN, -(-nbytes // ALIGN) * ALIGN)


# taking over ----------------------------------------------------------------------------------


def donations(jaxpr: Jaxpr, groups: Sequence[Group], donated: Sequence[bool]) -> dict[Var, Var]:
    """Result variables that can take over a donated input's memory: the input is read for the last
    time before the result is written, or exactly where it is."""
    if not any(donated):
        return {}
    uses = _Uses(jaxpr, groups)
    free = [v for v, flag in zip(jaxpr.inputs, donated, strict=True) if flag]
    taken: dict[Var, Var] = {}
    for var in dict.fromkeys(atom for atom in jaxpr.outputs if atom in uses.writer):
        fits = [source for source in free if uses.fits(source, var)]  # type: ignore[arg-type]
        if fits:
            taken[var] = next((x for x in fits if (x, var) in uses.pairs), fits[0])  # type: ignore[index]
            free.remove(taken[var])  # type: ignore[index]
    return taken


def shareable(groups: Sequence[Group]) -> set[tuple[Var, Var]]:
    """Pairs of an operand and a result that may share memory: their group reads the operand under
    one name only, and where it writes the result."""
    roots = _passed_on(group.root for group in groups if group.root is not None)
    found: set[tuple[Var, Var]] = set()
    for group in groups:
        if group.in_place:
            read = [roots.get(var, var) for var in group.reads]
            found.update((x, y) for x, y in group.in_place if read.count(roots.get(x, x)) == 1)
    return found


def carry_places(jaxpr: Jaxpr, groups: Sequence[Group], state: Sequence[Var]) -> dict[Var, Var]:
    """The results of a loop's body that can lie where the value is that they carry on."""
    uses = _Uses(jaxpr, groups)
    pairs = zip(jaxpr.outputs, state, strict=False)
    return {
        var: source
        for var, source in pairs
        if isinstance(var, Var) and var in uses.writer and uses.fits(source, var)
    }


def overwritten(jaxpr: Jaxpr, groups: Sequence[Group], taken: dict[Var, Var]) -> dict[Var, Var]:
    """The results of templates that begin as a copy of their operand, with that operand, where it
    is computed in the same program and nobody needs it any more: no copy is made."""
    if all(group.family not in OVERWRITING for group in groups):
        return {}
    uses = _Uses(jaxpr, groups)
    found: dict[Var, Var] = {}
    for number, group in enumerate(groups):
        for source, var in group.in_place if group.family in OVERWRITING else ():
            root = uses.roots.get(source, source)
            is_own = root in uses.written and root not in uses.results
            fits = (source, var) in uses.pairs and uses.last[root] == number
            if is_own and fits and var not in taken and root.aval.nbytes == var.aval.nbytes:
                found[var] = source
    return found


class _Uses:
    """Which group writes a variable, which reads it last, and what may share memory."""

    def __init__(self, jaxpr: Jaxpr, groups: Sequence[Group]) -> None:
        roots = _passed_on(group.root for group in groups if group.root is not None)
        self.roots = roots
        self.writer = {var: number for number, group in enumerate(groups) for var in group.outputs}
        self.written = {var for group in groups if _writes(group) for var in group.outputs}
        self.last = {
            roots.get(var, var): number
            for number, group in enumerate(groups)
            for var in group.reads
        }
        self.pairs = shareable(groups)
        self.results = {atom for atom in jaxpr.outputs if isinstance(atom, Var)}

    def fits(self, source: Var, var: Var) -> bool:
        """Whether a result may be written to the memory of an input."""
        if source in self.results or source.aval.nbytes != var.aval.nbytes:
            return False
        return self.last.get(source, -1) < self.writer[var] + ((source, var) in self.pairs)


def _writes(group: Group) -> bool:
    """Whether a group's results are written by it, and not where they always were."""
    return group.root is None or not isinstance(group.root.primitive.lower, Constant | Barrier)


def _passed_on(equations: Iterable[Equation]) -> dict[Var, Var]:
    """For each result of a barrier, the variable that it is another name of."""
    roots: dict[Var, Var] = {}
    for eqn in equations:
        if isinstance(eqn.primitive.lower, Barrier):
            for x, y in zip(eqn.inputs, eqn.outputs, strict=True):
                assert isinstance(x, Var), "a barrier has no literals"
                roots[y] = roots.get(x, x)
    return roots


# placing --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Layout:
    """Offsets in an arena of variables and of the room that control flow needs; `roots`: other
    names of variables."""

    offsets: dict[Var | Control, int]
    roots: dict[Var, Var]
    size: int


@dataclass(frozen=True, eq=False)
class Room:
    """Memory of control flow, at offsets from its own beginning: slots for what is carried in turn
    and for slices that may not be used where they are, then the arenas of its blocks."""

    slots: dict[Var, int]
    start: int
    layouts: tuple[Layout, ...]

    @property
    def size(self) -> int:
        return self.start + max([0, *(layout.size for layout in self.layouts)])


def layout(block: Block, given: Iterable[Var], rooms: dict[Control, Room]) -> Layout:
    """Offsets of the variables that are not given. `rooms` receives those of control flow."""
    controls = [work for work in block.works if isinstance(work, Control)]
    rooms.update((control, _room(control, rooms)) for control in controls)
    roots = _passed_on(control.equation for control in controls)
    homes = set(given)
    for control in controls:
        if isinstance(control.equation.primitive.lower, Constant):
            homes.update(control.equation.outputs)
    for var, source in block.overwritten.items():
        _join(roots, var, source, var in homes)
    lives: dict[Var | Control, tuple[int, int]] = {}
    for number, work in enumerate(block.works):
        for var in work.buffers:
            root = roots.get(var, var)
            if root not in homes:
                lives[root] = (lives.get(root, (number, 0))[0], number)
        if isinstance(work, Control) and rooms[work].size:
            lives[work] = (number, number)
    _join_carried(controls, lives, roots)
    sizes = {
        key: rooms[key].size if isinstance(key, Control) else rounded(key.aval.nbytes)
        for key in lives
    }
    return Layout(*_packed(lives, sizes, roots))


def _join(roots: dict[Var, Var], var: Var, source: Var, at_home: bool) -> None:
    """Give a result and the operand that it overwrites one memory: the result's home, if it has
    one."""
    first, last = roots.get(source, source), roots.get(var, var)
    kept, lost = (last, first) if at_home else (first, last)
    roots.update((name, kept) for name, root in list(roots.items()) if root is lost)
    roots[lost] = kept


def _join_carried(
    controls: Sequence[Control],
    lives: dict[Var | Control, tuple[int, int]],
    roots: dict[Var, Var],
) -> None:
    """Give what a loop ends with the memory of what it begins with, if that dies there."""
    for control in controls:
        read = [roots.get(atom, atom) for atom in control.equation.inputs]  # type: ignore[arg-type]
        for source, var in carried(control.equation):
            first = roots.get(source, source)
            if read.count(first) > 1 or first not in lives or var not in lives or var in roots:
                continue
            if lives[first][1] == lives[var][0] and first.aval.nbytes == var.aval.nbytes:
                lives[first] = (lives[first][0], lives.pop(var)[1])
                _join(roots, var, source, at_home=False)


def _packed(
    lives: dict[Var | Control, tuple[int, int]],
    sizes: dict[Var | Control, int],
    roots: dict[Var, Var],
) -> tuple[dict[Var | Control, int], dict[Var, Var], int]:
    """Large ones first, each at the lowest place that is free while it lives."""
    offsets: dict[Var | Control, int] = {}
    placed: list[tuple[int, int, int, int]] = []  # by offset: it, end, first and last use
    for key in sorted(lives, key=sizes.__getitem__, reverse=True):
        first, last = lives[key]
        size, offset = sizes[key], 0
        for start, end, begin, until in placed:
            if begin <= last and first <= until:
                if start - offset >= size:
                    break
                offset = max(offset, end)
        insort(placed, (offset, offset + size, first, last))
        offsets[key] = offset
    return offsets, roots, max([0, *(end for _, end, _, _ in placed)])


def _room(control: Control, rooms: dict[Control, Room]) -> Room:
    eqn = control.equation
    if not isinstance(eqn.primitive.lower, Structured):
        return Room({}, 0, ())
    body = control.blocks[-1]
    slots: dict[Var, int] = {}
    size = 0
    if eqn.primitive.lower.kind != "cond":
        for var in (*_rotating(control), *_staged(control)):
            slots[var] = size
            size += rounded(var.aval.nbytes)
    given = [(*block.jaxpr.inputs, *block.jaxpr.outputs) for block in control.blocks]
    if eqn.primitive.lower.kind == "while":
        given[0] = control.blocks[0].jaxpr.inputs
        given[1] = (*body.jaxpr.inputs, *body.jaxpr.outputs)
    layouts = [layout(b, g, rooms) for b, g in zip(control.blocks, given, strict=True)]  # type: ignore[arg-type]
    return Room(slots, size, tuple(layouts))


def _rotating(control: Control) -> list[Var]:
    """The results of a body that are carried on in turn between two places."""
    body = control.blocks[-1]
    count = control.equation.params.get("num_carry", len(body.jaxpr.outputs))
    return [v for v in body.jaxpr.outputs[:count] if v not in body.taken]  # type: ignore[misc]


def _staged(control: Control) -> list[Var]:
    """Slices of stacked arrays that have a slot: kernels may touch memory up to the next multiple
    of the alignment, which for them is the neighbour's."""
    params, jaxpr = control.equation.params, control.blocks[-1].jaxpr
    if "num_carry" not in params:
        return []
    xs = jaxpr.inputs[params["num_consts"] + params["num_carry"] :]
    ys = jaxpr.outputs[params["num_carry"] :]
    return [v for v in (*xs, *ys) if isinstance(v, Var) and v.aval.nbytes % ALIGN]
