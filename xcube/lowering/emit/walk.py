"""The walk over a cube kernel's statements that every emitter shares: it dispatches each statement
to a hook, tracks which statements can be reached, and keeps the text of every name. A target
implements the hooks; hooks of statements with bodies call `block` for each body."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from xcube.errors import LoweringError
from xcube.lowering.cube import ir
from xcube.lowering.cube.ir import Atom, Buffer, Const, Name, Stmt


class Emitter(ABC):
    """Turns statements into text of one target. `names` holds the text of each bound name."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self._visit: dict[type, Callable[..., bool | None]] = {
            ir.Let: self._let,
            ir.Load: self._load,
            ir.Store: self.store,
            ir.Declare: self._declare,
            ir.Assign: self._assign,
            ir.Read: self._read,
            ir.For: self.loop,
            ir.If: self.branch,
            ir.Loop: self.forever,
            ir.Break: self._leave,
            ir.Continue: self._again,
            ir.Return: self._finish,
            ir.Allocate: self._allocate,
            ir.Atomic: self._atomic,
            ir.CompareExchange: self._compare_exchange,
            ir.Sync: self._sync,
            ir.Plane: self._plane,
            ir.Print: self._words,
            ir.Assert: self._words,
            **dict.fromkeys(ir.MATRIX, self.matrix),
            **dict.fromkeys(ir.TILE, self.tile),
        }

    def block(self, body: Iterable[Stmt]) -> bool:
        """Emit statements up to the first that never falls through (its hook gives False); true
        if the end is reached."""
        visit = self._visit
        return all(visit[type(statement)](statement) is not False for statement in body)

    def atom(self, atom: Atom) -> str:
        """The operand text of a literal or a name."""
        if type(atom) is Name:
            return self.names[atom.number]
        return self.constant(atom)  # type: ignore[arg-type]

    # hooks: values ----------------------------------------------------------------------------

    @abstractmethod
    def constant(self, constant: Const) -> str:
        """The text of a literal."""

    @abstractmethod
    def operate(self, let: ir.Let) -> str:
        """Emit an operation; the text of its result."""

    @abstractmethod
    def place(self, place: str, axis: str) -> str:
        """The text of a coordinate: place is cube_pos, cube_count, unit_pos or cube_dim."""

    # hooks: memory ----------------------------------------------------------------------------

    @abstractmethod
    def load(self, load: ir.Load) -> str:
        """Emit a load; the text of the loaded value."""

    @abstractmethod
    def store(self, store: ir.Store) -> None:
        """Emit a store."""

    @abstractmethod
    def atomic(self, atomic: ir.Atomic) -> str:
        """Emit an indivisible update; the text of the old value."""

    @abstractmethod
    def compare_exchange(self, exchange: ir.CompareExchange) -> str:
        """Emit an indivisible comparison and exchange; the text of the old value."""

    @abstractmethod
    def allocate(self, buffer: Buffer) -> None:
        """Emit a shared or local array."""

    @abstractmethod
    def barrier(self) -> None:
        """Emit a meeting of all units of the cube."""

    @abstractmethod
    def plane(self, plane: ir.Plane) -> str:
        """Emit what the units of a plane do together; the text of this unit's result."""

    # hooks: matrix units ----------------------------------------------------------------------

    def matrix(self, statement: ir.Matrix) -> None:
        """Emit a copy on its way or an operation of matrix units, if the target has them."""
        raise LoweringError(
            f"emit: {type(statement).__name__} takes matrix units or asynchronous copies, which "
            f"{type(self).__module__} does not know; choose kernels by the device's features."
        )

    def tile(self, statement: ir.Tile) -> None:
        """Emit what a unit does with its tiles, if the target has them."""
        raise LoweringError(
            f"emit: {type(statement).__name__} takes tiles, which {type(self).__module__} does not "
            f"know; choose kernels by the device's features."
        )

    # hooks: variables -------------------------------------------------------------------------

    @abstractmethod
    def declare(self, variable: Name) -> None:
        """Emit room for a variable."""

    @abstractmethod
    def assign(self, variable: Name, value: Atom) -> None:
        """Emit an assignment."""

    @abstractmethod
    def read(self, variable: Name) -> str:
        """Emit a read; the text of the value."""

    # hooks: control flow ----------------------------------------------------------------------

    @abstractmethod
    def loop(self, loop: ir.For) -> None:
        """Emit a counted loop around its `block`."""

    @abstractmethod
    def branch(self, branch: ir.If) -> bool:
        """Emit both `block`s of a branch; true if one of them is left at its end."""

    @abstractmethod
    def forever(self, loop: ir.Loop) -> None:
        """Emit a loop that only Break and Return leave, around its `block`."""

    @abstractmethod
    def leave(self) -> None:
        """Emit a jump behind the innermost loop."""

    @abstractmethod
    def again(self) -> None:
        """Emit a jump to the next round of the innermost loop."""

    @abstractmethod
    def finish(self) -> None:
        """Emit the end of the unit."""

    # inside -----------------------------------------------------------------------------------

    def _let(self, let: ir.Let) -> None:
        place, dot, axis = let.op.partition(".")
        self.names[let.target.number] = self.place(place, axis) if dot else self.operate(let)

    def _load(self, load: ir.Load) -> None:
        self.names[load.target.number] = self.load(load)

    def _atomic(self, atomic: ir.Atomic) -> None:
        self.names[atomic.target.number] = self.atomic(atomic)

    def _compare_exchange(self, exchange: ir.CompareExchange) -> None:
        self.names[exchange.target.number] = self.compare_exchange(exchange)

    def _plane(self, plane: ir.Plane) -> None:
        self.names[plane.target.number] = self.plane(plane)

    def _words(self, statement: ir.Print | ir.Assert) -> None:
        raise LoweringError(
            f"emit: {type(statement).__name__} speaks to people, whom devices do not reach; let "
            f"`checked` make records of it, or `unchecked` leave it out."
        )

    def _declare(self, declare: ir.Declare) -> None:
        self.declare(declare.variable)
        self.assign(declare.variable, declare.init)

    def _assign(self, assign: ir.Assign) -> None:
        self.assign(assign.variable, assign.value)

    def _read(self, read: ir.Read) -> None:
        self.names[read.target.number] = self.read(read.variable)

    def _allocate(self, allocate: ir.Allocate) -> None:
        self.allocate(allocate.buffer)

    def _leave(self, _: ir.Break) -> bool:
        self.leave()
        return False

    def _again(self, _: ir.Continue) -> bool:
        self.again()
        return False

    def _finish(self, _: ir.Return) -> bool:
        self.finish()
        return False

    def _sync(self, _: ir.Sync) -> None:
        self.barrier()
