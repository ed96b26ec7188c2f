"""Runs a kernel in NumPy, unit by unit, and reports what a device would let pass: access out of
bounds, reads of memory never written, races between barriers, barriers that part of a cube
misses, broken promises. It is the oracle for the emitters. Every unit is a generator that stops
where units meet: planes and groups go on as soon as all of their units are there, a cube at `sync`;
one cube runs after another. Matrix units: `interpret_matrix.py`; planes: `interpret_plane.py`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from xcube.errors import KernelError
from xcube.lowering.cube import interpret_matrix, interpret_plane, interpret_tiles, ir, text
from xcube.lowering.cube.arithmetic import NUMPY, Line, evaluate, literal
from xcube.lowering.cube.check import check
from xcube.lowering.cube.ir import Atom, Buffer, Const, Kernel, Name, Stmt, Type
from xcube.lowering.cube.memory import Memory, borrow

Position = tuple[int, int, int]
Signal = str | None  # how a body ended: "break", "continue", "return", or None at its end
Run = Generator[Stmt, None, Signal]  # stops where units meet


def interpret(
    kernel: Kernel,
    cube_count: int | Sequence[int],
    buffers: Sequence[np.ndarray[Any, Any]],
    scalars: Sequence[float] = (),
    *,
    padding: int = 0,
    budget: int = 100_000,
) -> None:
    """Run every unit of `cube_count` cubes; written buffers are updated in place.

    `buffers`: one 1-D array per global buffer, of its NumPy dtype; the same array may stand for
    two buffers. `padding`: elements past the end of each buffer that may be touched (their
    content is arbitrary). `budget`: how often one `loop` may repeat.

    Raises KernelError at the first fault, with the statement, the unit and the cube; buffers are
    unchanged then.

    >>> from xcube.lowering.cube.build import Builder
    >>> build = Builder("double")
    >>> data = build.buffer("i32", "inout")
    >>> at = build.place("cube_pos.x")
    >>> build.store(data, at, build.load(data, at) * 2)
    >>> values = np.array([1, 2, 3], np.int32)
    >>> interpret(build.finish(), 3, [values])
    >>> values.tolist()
    [2, 4, 6]
    """
    check(kernel)
    count = _three(cube_count)
    memories = borrow(kernel, buffers, math.prod(count), padding)
    with np.errstate(all="ignore"):
        launch = Launch(kernel, count, memories, _scalars(kernel, scalars), budget)
        for number, position in enumerate(_positions(count)):
            _run_cube(Cube(launch, number, position))
    for buffer, array in zip(kernel.buffers, buffers, strict=True):
        if buffer.access != "in":
            memories[buffer.number].copy_to(array)


# the hierarchy ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """What all cubes share."""

    kernel: Kernel
    count: Position
    memories: dict[int, Memory]
    scalars: dict[int, Line]
    budget: int


@dataclasses.dataclass(frozen=True, slots=True)
class Cube:
    """One cube and its shared arrays."""

    launch: Launch
    number: int
    position: Position
    shared: dict[int, Memory] = dataclasses.field(default_factory=dict)
    barriers: interpret_matrix.Barriers = dataclasses.field(default_factory=dict)
    reading: dict[int, list[interpret_matrix.Product]] = dataclasses.field(default_factory=dict)

    def advance(self) -> None:
        """A barrier: what units touched before it is ordered before what they touch after it."""
        for memory in (*self.launch.memories.values(), *self.shared.values()):
            memory.advance()


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """One unit: its values, variables (by number, like values) and local arrays."""

    cube: Cube
    number: int
    position: Position
    values: dict[int, Line]
    local: dict[int, Memory] = dataclasses.field(default_factory=dict)
    flight: interpret_matrix.Flight = dataclasses.field(default_factory=interpret_matrix.Flight)
    tiles: dict[int, Line] = dataclasses.field(default_factory=dict)

    def value(self, atom: Atom) -> Line:
        return literal(atom) if isinstance(atom, Const) else self.values[atom.number]

    def whole(self, atom: Atom) -> int:
        return int(self.value(atom)[0])

    def memory(self, buffer: Buffer) -> Memory:
        memories = {
            "global": self.cube.launch.memories,
            "shared": self.cube.shared,
            "local": self.local,
        }
        return memories[buffer.space][buffer.number]

    def fault(self, statement: Stmt, rule: str) -> KernelError:
        """The error for a rule that this unit broke at a statement."""
        place = f"At unit {self.position} of cube {self.cube.position}."
        listing = text.excerpt(self.cube.launch.kernel, statement)
        source = getattr(statement, "source", None)
        line = f" At {source}." if isinstance(source, str) else ""
        return KernelError(f"interpret: {rule}.{line} {place}\n{listing}")

    def places(
        self, s: Stmt, memory: Memory, index: Atom, lanes: int, mask: Atom | None
    ) -> tuple[Line, Line]:
        """Element numbers of the lanes of an access, and which lanes are active."""
        places = self.value(index)
        if len(places) < lanes:
            places = places + np.arange(lanes)
        active = np.ones(lanes, np.bool_) if mask is None else self.value(mask)
        self.inside(s, memory, places, active)
        return places, active

    def inside(self, s: Stmt, memory: Memory, places: Line, active: Line | bool = True) -> Line:
        """The places, which must lie in a memory."""
        size = len(memory.values)
        for lane in np.flatnonzero(active & ((places < 0) | (places >= size)))[:1]:
            raise self.fault(
                s,
                f"an index must be at least 0 and below {size}; got {places[lane]} in lane {lane}",
            )
        return places

    def touch(self, s: Stmt, memory: Memory, kind: str, places: Line) -> None:
        """Note an access; raises if another unit or cube races for an element."""
        if (race := memory.touch(kind, places, self.number, self.cube.number)) is None:
            return
        place, what, whom = race
        raise self.fault(
            s, f"a race: element {place} is touched here ({kind}) and by another {whom} ({what}) "
            "with no barrier between them; atomics or another split of the work avoid it"
        )  # fmt: skip


def _three(count: int | Sequence[int]) -> Position:
    sizes = tuple(int(size) for size in np.atleast_1d(np.asarray(count)))
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0:
        raise KernelError(f"interpret: cube_count must be 1 to 3 sizes of at least 0; got {count}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _positions(sizes: Position) -> list[Position]:
    """All positions, x fastest."""
    x, y, z = map(range, sizes)
    return [(i, j, k) for k, j, i in itertools.product(z, y, x)]


def _scalars(kernel: Kernel, scalars: Sequence[float]) -> dict[int, Line]:
    if len(scalars) != len(kernel.scalars):
        raise KernelError(
            f"interpret: kernel {kernel.name} takes {len(kernel.scalars)} scalars; "
            f"got {len(scalars)}"
        )
    pairs = zip(kernel.scalars, scalars, strict=True)
    return {name.number: literal(Const(value, name.type)) for name, value in pairs}


# running ----------------------------------------------------------------------------------------


def _run_cube(cube: Cube) -> None:
    kernel = cube.launch.kernel
    units = [
        Unit(cube, number, position, dict(cube.launch.scalars))
        for number, position in enumerate(_positions(kernel.cube_dim))
    ]
    runs = [_body(unit, kernel.body) for unit in units]
    stops = [next(run, None) for run in runs]
    while any(stop is not None for stop in stops):
        if not _meet(units, runs, stops):
            _check_barrier(units, stops)
            cube.advance()
            stops = [next(run, None) for run in runs]
    cube.advance()


def _meet(units: list[Unit], runs: list[Run], stops: list[Stmt | None]) -> bool:
    """Let sets of units that are all there do what they do together, again and again, the first
    units first: who fills memory does so as soon as barriers allow it. Whether any went on."""
    met, first = False, 0
    while first < len(units):
        statement = stops[first]
        size, function = _TOGETHER.get(type(statement), (1, None))
        members = slice(first // size * size, first // size * size + size)
        here = all(stop is statement for stop in stops[members])
        if here and function is not None and function(units[members], statement):
            stops[members] = [next(run, None) for run in runs[members]]
            met = True
        else:
            first += 1
    return met


def _check_barrier(units: list[Unit], stops: list[Stmt | None]) -> None:
    """All units must stop at one sync; what planes and groups wait for in vain comes first."""
    order = sorted(range(len(stops)), key=lambda k: type(stops[k]) not in _TOGETHER)
    here = next(k for k in order if stops[k] is not None)
    statement = stops[here]
    assert statement is not None
    size, function = _TOGETHER.get(type(statement), (len(units), None))
    members = slice(here // size * size, here // size * size + size)
    whole = "a cube must reach a sync" if function is None else f"a set of {size} must meet here"
    for unit, stop in zip(units[members], stops[members], strict=True):
        if stop is statement:
            continue
        other = "sync" if isinstance(stop, ir.Sync) else "meeting"
        instead = "ended without it" if stop is None else f"stopped at another {other}"
        raise units[here].fault(statement, f"all units of {whole}; unit {unit.position} {instead}")
    if function is not None:
        raise units[here].fault(statement, "nobody goes on, and this phase of a barrier never ends")


def _body(unit: Unit, body: tuple[Stmt, ...]) -> Run:
    for statement in body:
        kind = type(statement)
        if (step := _STEPS.get(kind)) is not None:
            step(unit, statement)
        elif kind in _TOGETHER:
            yield statement
        elif kind in _SIGNALS:
            return _SIGNALS[kind]
        elif (signal := (yield from _CONTROL[kind](unit, statement))) is not None:
            return signal
    return None


def _for(unit: Unit, s: ir.For) -> Run:
    start, stop, step = map(unit.whole, (s.start, s.stop, s.step))
    if step <= 0:
        raise unit.fault(s, f"the step of a for must be positive; got {step}")
    for index in range(start, stop, step):
        unit.values[s.index.number] = np.array([index], np.int64)
        signal = yield from _body(unit, s.body)
        if signal == "break":
            break
        if signal == "return":
            return signal
    return None


def _loop(unit: Unit, s: ir.Loop) -> Run:
    for _ in range(unit.cube.launch.budget):
        signal = yield from _body(unit, s.body)
        if signal == "break":
            return None
        if signal == "return":
            return signal
    budget = unit.cube.launch.budget
    raise unit.fault(s, f"a loop must break within {budget} rounds (`budget`); it did not")


def _if(unit: Unit, s: ir.If) -> Run:
    return (yield from _body(unit, s.then if unit.value(s.condition)[0] else s.orelse))


def _sync(unit: Unit, s: ir.Sync) -> Run:
    yield s
    return None


# statements -------------------------------------------------------------------------------------


def _let(unit: Unit, s: ir.Let) -> None:
    if s.op in ir.PLACES:
        value = np.array([_place(unit, s.op)], np.int64)
    else:
        try:
            value = evaluate(s.op, [unit.value(a) for a in s.args], s.target.type, s.attrs)
        except ZeroDivisionError as error:
            raise unit.fault(s, str(error)) from None
    unit.values[s.target.number] = value


def _place(unit: Unit, op: str) -> int:
    place, axis = op.split(".")
    launch = unit.cube.launch
    positions = {
        "cube_pos": unit.cube.position,
        "cube_count": launch.count,
        "unit_pos": unit.position,
        "cube_dim": launch.kernel.cube_dim,
    }
    return positions[place]["xyz".index(axis)]


def _load(unit: Unit, s: ir.Load) -> None:
    memory, lanes = unit.memory(s.buffer), s.target.type.lanes
    places, active = unit.places(s, memory, s.index, lanes, s.mask)
    if len(unread := places[active & ~memory.is_written(places, active)]):
        raise unit.fault(
            s, f"an element must be written before it is read; element {unread[0]} is not"
        )
    unit.touch(s, memory, "read", places[active])
    value = np.zeros(lanes, memory.values.dtype)
    value[active] = memory.values[places[active]]
    unit.values[s.target.number] = value


def _store(unit: Unit, s: ir.Store) -> None:
    memory, value = unit.memory(s.buffer), unit.value(s.value)
    places, active = unit.places(s, memory, s.index, len(value), s.mask)
    if s.streaming and places[0] % len(value):
        raise unit.fault(
            s, f"a streaming store must start at a multiple of its {len(value)} lanes; "
            f"got index {places[0]}"
        )  # fmt: skip
    unit.touch(s, memory, "write", places[active])
    memory.write(places[active], value[active])


def _atomic(unit: Unit, s: ir.Atomic) -> None:
    memory, value = unit.memory(s.buffer), unit.value(s.value)
    places, active = unit.places(s, memory, s.index, len(value), None)
    if s.op != "store" and not memory.is_written(places, active).all():
        raise unit.fault(s, "an element must be written before an atomic updates it")
    unit.touch(s, memory, "atomic", places)
    if s.op == "store":
        memory.write(places, value)
    old = np.zeros_like(value)
    for lane, place in enumerate(places):
        old[lane] = memory.values[place]
        memory.values[place] = _combined(s, old[lane : lane + 1], value[lane : lane + 1])[0]
    unit.values[s.target.number] = value if s.op == "store" else old


def _combined(s: ir.Atomic, old: Line, value: Line) -> Line:
    if s.op in ("load", "store", "exchange"):
        return old if s.op == "load" else value
    return evaluate(s.op, (old, value), Type(s.buffer.dtype))


def _compare_exchange(unit: Unit, s: ir.CompareExchange) -> None:
    memory = unit.memory(s.buffer)
    places, active = unit.places(s, memory, s.index, 1, None)
    if not memory.is_written(places, active).all():
        raise unit.fault(s, "an element must be written before an atomic compares it")
    unit.touch(s, memory, "atomic", places)
    old = memory.values[places]
    if old.tobytes() == unit.value(s.expected).tobytes():
        memory.values[places] = unit.value(s.value)
    unit.values[s.target.number] = old


def _print(unit: Unit, s: ir.Print) -> None:
    print(_worded(unit, s.format, s.args))


def _assert(unit: Unit, s: ir.Assert) -> None:
    if not unit.value(s.condition)[0]:
        raise unit.fault(s, _worded(unit, s.message, s.args))


def _worded(unit: Unit, format: str, args: tuple[Atom, ...]) -> str:
    return format.format(*[unit.value(atom)[0] for atom in args])


def _allocate(unit: Unit, s: ir.Allocate) -> None:
    buffer, units = s.buffer, math.prod(unit.cube.launch.kernel.cube_dim)
    if buffer.space == "local":
        unit.local[buffer.number] = Memory.unwritten(buffer.size, NUMPY[buffer.dtype])
    elif buffer.number not in unit.cube.shared:
        if buffer.over is not None:
            _take_over(unit, s, unit.cube.shared[buffer.over])
        unit.cube.shared[buffer.number] = Memory.unwritten(buffer.size, NUMPY[buffer.dtype], units)


def _take_over(unit: Unit, s: ir.Allocate, memory: Memory) -> None:
    """Whoever touches the array from here on races with the one that takes its memory over."""
    everything = np.arange(len(memory.values))
    unit.touch(s, memory, "write", everything)
    assert memory.written is not None
    memory.written[:] = False


def _set(unit: Unit, target: Name, value: Atom) -> None:
    unit.values[target.number] = unit.value(value)


def _assign(unit: Unit, s: ir.Assign) -> None:
    _check_idle(unit, s, s.variable)
    _set(unit, s.variable, s.value)


def _read(unit: Unit, s: ir.Read) -> None:
    _check_idle(unit, s, s.variable)
    _set(unit, s.target, s.variable)


def _check_idle(unit: Unit, s: Stmt, variable: Name) -> None:
    if variable.number in unit.flight.busy:
        raise unit.fault(s, "sums must not be touched until a wait for products names them")


_TOGETHER = {**interpret_matrix.TOGETHER, ir.Plane: (ir.PLANE, interpret_plane.plane)}
_STEPS: dict[type, Callable[[Unit, Any], None]] = {
    ir.Let: _let,
    ir.Load: _load,
    ir.Store: _store,
    ir.Declare: lambda unit, s: _set(unit, s.variable, s.init),
    ir.Assign: _assign,
    ir.Read: _read,
    ir.Allocate: _allocate,
    ir.Atomic: _atomic,
    ir.CompareExchange: _compare_exchange,
    ir.Print: _print,
    ir.Assert: _assert,
    **interpret_matrix.STEPS,
    **interpret_tiles.STEPS,
}
_CONTROL: dict[type, Callable[[Unit, Any], Run]] = {
    ir.For: _for,
    ir.If: _if,
    ir.Loop: _loop,
    ir.Sync: _sync,
}
_SIGNALS: dict[type, str] = {ir.Break: "break", ir.Continue: "continue", ir.Return: "return"}
