"""The printer that C-like targets share: a kernel's statements in, indented lines of text out.

A line of n lanes is n scalars with names of their own, written out, since that is what keeps them
in registers; its text is the texts of its lanes with a space between, and the text of one lane (a
name or a literal) never holds a space. Moving lanes (splat, extract, shuffle) is renaming and
prints nothing. A target adds the spelling of types, literals, operations and memory."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence

from xcube.lowering.cube import ir
from xcube.lowering.cube.ir import Atom, Buffer, Const, Name
from xcube.lowering.emit.walk import Emitter

Lanes = Sequence[str]
_INDENT = "  "
_MOST = 1 << 16  # the largest divisor worth knowing
_INDEX = ir.Type("index")


class CLike(Emitter):
    """Prints the body of one unit; `code` grows line by line."""

    def __init__(self) -> None:
        super().__init__()
        self.code: list[str] = []
        self.depth = 1
        self.indices = Indices()
        self._count = 0
        self._undeclared: set[str] = set()  # variables that their first assignment declares

    # what a target spells -----------------------------------------------------------------------

    @abstractmethod
    def number(self, value: int | float | bool, dtype: str) -> str:
        """The text of a literal of one lane, without spaces."""

    @abstractmethod
    def named(self, dtype: str, name: str) -> str:
        """The left side of a definition that never changes."""

    @abstractmethod
    def variable(self, dtype: str, name: str) -> str:
        """The declaration of a variable."""

    @abstractmethod
    def expression(self, let: ir.Let, args: Lanes) -> str:
        """One lane of an operation."""

    @abstractmethod
    def combined(self, op: str, dtype: str, x: str, y: str) -> str:
        """Two operands of one dtype combined by the operation of a reduction."""

    @abstractmethod
    def element(self, buffer: Buffer, place: str) -> str:
        """The value of one element."""

    @abstractmethod
    def guarded(self, mask: str, value: str, dtype: str) -> str:
        """A value that is evaluated only where a mask holds, zero elsewhere."""

    @abstractmethod
    def write(self, buffer: Buffer, place: str, value: str) -> str:
        """The statement that sets one element."""

    @abstractmethod
    def load_line(self, buffer: Buffer, start: Atom, lanes: int) -> Lanes:
        """Emit the load of neighbours; the texts of the lanes."""

    @abstractmethod
    def store_line(self, store: ir.Store, start: Atom, values: Lanes) -> None:
        """Emit the store of neighbours."""

    @abstractmethod
    def update(self, atomic: ir.Atomic, place: str, value: str) -> str:
        """Emit the indivisible update of one element; the text of its old value."""

    @abstractmethod
    def exchange(self, exchange: ir.CompareExchange, place: str, pair: Lanes) -> str:
        """Emit the comparison and exchange of one element; the text of its old value."""

    # lines of text ------------------------------------------------------------------------------

    def do(self, text: str) -> None:
        """Append a line."""
        self.code.append(_INDENT * self.depth + text)

    def fresh(self, letter: str = "v") -> str:
        """A name that nothing has yet."""
        self._count += 1
        return f"{letter}{self._count}"

    def bind(self, dtype: str, expression: str, name: str = "") -> str:
        """Append a definition; its name."""
        name = name or self.fresh()
        self.do(f"{self.named(dtype, name)} = {expression};")
        return name

    # values -------------------------------------------------------------------------------------

    def lanes(self, atom: Atom) -> list[str]:
        """The texts of the lanes of a literal or a name."""
        return self.atom(atom).split(" ")

    def constant(self, constant: Const) -> str:
        text = self.number(constant.value, constant.type.dtype)
        return " ".join([text] * constant.type.lanes)

    def operate(self, let: ir.Let) -> str:
        self.indices.note(let)
        if (move := _MOVES.get(let.op)) is not None:
            return " ".join(move(let, [self.lanes(arg) for arg in let.args]))
        if let.op == "lane":
            dtype = let.target.type.dtype
            return " ".join([self.number(k, dtype) for k in range(let.target.type.lanes)])
        if let.op.startswith("reduce_"):
            return self._reduce(let)
        return self._lanewise(let)

    def _lanewise(self, let: ir.Let) -> str:
        rows = list(zip(*[self.lanes(arg) for arg in let.args], strict=True))
        return self._each(let.target, rows, lambda row: self.expression(let, row))

    def _each(self, target: Name, rows: Sequence[Lanes], text: Callable[[Lanes], str]) -> str:
        """One definition for every lane, a single one for lanes that are alike."""
        name, known = self.fresh(), dict[Lanes, str]()
        for row in rows:
            if row not in known:
                lane = f"{name}_{len(known)}" if len(rows) > 1 else name
                known[row] = self.bind(target.type.dtype, text(row), lane)
        return " ".join([known[row] for row in rows])

    def _reduce(self, let: ir.Let) -> str:
        """Halves, then quarters, ... in one fixed order."""
        lanes, dtype = self.lanes(let.args[0]), let.target.type.dtype
        op = let.op.removeprefix("reduce_")
        while (half := len(lanes) // 2) > 0:
            pairs = zip(lanes[:half], lanes[half:], strict=True)
            lanes = [self.bind(dtype, self.combined(op, dtype, x, y)) for x, y in pairs]
        return lanes[0]

    # memory -------------------------------------------------------------------------------------

    def load(self, load: ir.Load) -> str:
        type, buffer = load.target.type, load.buffer
        start = self.indices.start(load.index) if load.mask is None else None
        if start is not None and type.lanes > 1:
            return " ".join(self.load_line(buffer, start, type.lanes))
        places = self._places(load.index, type.lanes)
        if load.mask is None:
            rows = [(place,) for place in places]
            return self._each(load.target, rows, lambda row: self.element(buffer, row[0]))
        rows = list(zip(self.lanes(load.mask), places, strict=True))
        return self._each(
            load.target,
            rows,
            lambda row: self.guarded(row[0], self.element(buffer, row[1]), type.dtype),
        )

    def store(self, store: ir.Store) -> None:
        values = self.lanes(store.value)
        start = self.indices.start(store.index) if store.mask is None else None
        if start is not None and len(values) > 1:
            return self.store_line(store, start, values)
        places = self._places(store.index, len(values))
        masks = [""] * len(values) if store.mask is None else self.lanes(store.mask)
        for mask, place, value in zip(masks, places, values, strict=True):
            guard = f"if ({mask}) " if mask else ""
            self.do(f"{guard}{self.write(store.buffer, place, value)};")

    def atomic(self, atomic: ir.Atomic) -> str:
        values = self.lanes(atomic.value)
        places = self._places(atomic.index, len(values))
        pairs = zip(places, values, strict=True)
        return " ".join([self.update(atomic, place, value) for place, value in pairs])

    def compare_exchange(self, exchange: ir.CompareExchange) -> str:
        pair = self.atom(exchange.expected), self.atom(exchange.value)
        return self.exchange(exchange, self.atom(exchange.index), pair)

    def _places(self, index: Atom, lanes: int) -> list[str]:
        """The element numbers that an access touches."""
        places = self.lanes(index)
        return places if len(places) == lanes else neighbours(places[0], range(lanes))

    # variables ----------------------------------------------------------------------------------

    def declare(self, variable: Name) -> None:
        name, lanes = self.fresh("x"), variable.type.lanes
        names = [name] if lanes == 1 else [f"{name}_{lane}" for lane in range(lanes)]
        self.names[variable.number] = " ".join(names)
        self._undeclared.update(names)

    def assign(self, variable: Name, value: Atom) -> None:
        dtype = variable.type.dtype
        for name, lane in zip(self.lanes(variable), self.lanes(value), strict=True):
            left = self.variable(dtype, name) if name in self._undeclared else name
            self.do(f"{left} = {lane};")
            self._undeclared.discard(name)

    def read(self, variable: Name) -> str:
        rows = [(name,) for name in self.lanes(variable)]
        return self._each(variable, rows, lambda row: row[0])

    # control flow -------------------------------------------------------------------------------

    def loop(self, loop: ir.For) -> None:
        start, stop, step = self.atom(loop.start), self.atom(loop.stop), self.atom(loop.step)
        name = self.fresh("k")
        self.names[loop.index.number] = name
        self.indices.note_loop(loop)
        first = f"{self.variable('index', name)} = {start}"
        self._inside(f"for ({first}; {name} < {stop}; {name} += {step}) {{", loop.body)
        self.do("}")

    def forever(self, loop: ir.Loop) -> None:
        self._inside("for (;;) {", loop.body)
        self.do("}")

    def branch(self, branch: ir.If) -> bool:
        goes_on = self._inside(f"if ({self.atom(branch.condition)}) {{", branch.then)
        if branch.orelse:
            goes_on |= self._inside("} else {", branch.orelse)
        self.do("}")
        return goes_on or not branch.orelse

    def leave(self) -> None:
        self.do("break;")

    def again(self) -> None:
        self.do("continue;")

    def _inside(self, head: str, body: tuple[ir.Stmt, ...]) -> bool:
        self.do(head)
        self.depth += 1
        goes_on = self.block(body)
        self.depth -= 1
        return goes_on


def neighbours(start: str, offsets: Sequence[int]) -> list[str]:
    """Texts of the elements at offsets from a start."""
    return [f"{start} + {k}" if k else start for k in offsets]


# moves of lanes ---------------------------------------------------------------------------------


def _splat(let: ir.Let, args: list[list[str]]) -> Lanes:
    return args[0] * let.target.type.lanes


def _joined(let: ir.Let, args: list[list[str]]) -> Lanes:
    return args[0] + args[1]


def _picked(let: ir.Let, args: list[list[str]]) -> Lanes:
    return [args[0][lane] for lane in let.attrs]


_MOVES: dict[str, Callable[[ir.Let, list[list[str]]], Lanes]] = {
    "splat": _splat,
    "extract": _picked,
    "join": _joined,
    "shuffle": _picked,
}


# what is known of indices -----------------------------------------------------------------------


class Indices:
    """What a kernel's index arithmetic says: a number that divides an index whatever its value,
    and which lines of indices are neighbours. From the first follows how an access is aligned."""

    def __init__(self) -> None:
        self._divisors: dict[int, int] = {}
        self._lines: dict[int, ir.Let] = {}

    def note(self, let: ir.Let) -> None:
        """Learn from an operation."""
        if let.target.type.dtype != "index":
            return
        if let.op in ("splat", "lane", "add"):
            self._lines[let.target.number] = let
        if (rule := _DIVISORS.get(let.op)) is not None:
            divisor = rule(*[self.divisor(arg) for arg in let.args[-2:]], *_value(let))
            self._divisors[let.target.number] = math.gcd(divisor, _MOST)

    def note_loop(self, loop: ir.For) -> None:
        """Learn from a loop: the index is its start and a number of steps."""
        divisor = math.gcd(self.divisor(loop.start), self.divisor(loop.step))
        self._divisors[loop.index.number] = divisor

    def divisor(self, atom: Atom) -> int:
        """A power of two that divides an index (or each lane of a line of them)."""
        if isinstance(atom, Const):
            return math.gcd(int(atom.value), _MOST)
        return self._divisors.get(atom.number, 1)

    def start(self, index: Atom) -> Atom | None:
        """The first element where an access touches neighbours, else None."""
        if index.type.lanes == 1:
            return index
        let = self._line(index)
        if let is None or let.op == "splat":
            return None
        if let.op == "lane":
            return Const(0, _INDEX)
        first, second = let.args
        if self._is_lane(second):
            return self._repeated(first)
        return self._repeated(second) if self._is_lane(first) else None

    def _line(self, atom: Atom) -> ir.Let | None:
        return self._lines.get(atom.number) if isinstance(atom, Name) else None

    def _is_lane(self, atom: Atom) -> bool:
        let = self._line(atom)
        return let is not None and let.op == "lane"

    def _repeated(self, atom: Atom) -> Atom | None:
        """The scalar that a line of equal indices repeats, else None."""
        if isinstance(atom, Const):
            return Const(atom.value, _INDEX)
        let = self._line(atom)
        return let.args[0] if let is not None and let.op == "splat" else None


def _value(let: ir.Let) -> list[int]:
    """The second operand of a shift, which must be known to say anything."""
    if let.op != "shl":
        return []
    amount = let.args[1]
    known = isinstance(amount, Const) and 0 <= amount.value < 16
    return [int(amount.value) if known else 0]  # type: ignore[union-attr]


# What divides the result, by what divides the operands; of a select, its branches.
_DIVISORS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("add", "sub", "rem", "min", "max", "select"), math.gcd),
    "mul": lambda x, y: x * y,
    "and": max,
    "neg": lambda x: x,
    "splat": lambda x: x,
    "shl": lambda x, _, amount: x << amount,
}
