"""Builds kernels: operators and control flow on `Value`s append statements to the open block.

What is known at comptime is folded here, and equal pure operations of a scope are built once, so
templates can be written plainly. `apply` is the one door for arithmetic: core operations go
into the IR as they are, other functions through their decomposition in `math.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import math as pymath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xcube.lowering.cube import arithmetic, ir
from xcube.lowering.cube.fold import fold
from xcube.lowering.cube.ir import Atom, Buffer, Const, Kernel, Name, Stmt, Type

Scalar = bool | int | float


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """An atom and its builder; Python operators build operations."""

    atom: Atom
    build: Builder

    @property
    def type(self) -> Type:
        return self.atom.type

    @property
    def dtype(self) -> str:
        return self.atom.type.dtype

    @property
    def lanes(self) -> int:
        return self.atom.type.lanes

    @property
    def constant(self) -> Scalar | None:
        """The comptime value, or None."""
        return self.atom.value if isinstance(self.atom, Const) else None

    def __add__(self, other: Operand) -> Value:
        return self.build.op("add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self.build.op("add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return self.build.op("sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self.build.op("sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return self.build.op("mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self.build.op("mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self.build.op("div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self.build.op("div", other, self)

    def __floordiv__(self, other: Operand) -> Value:
        return self.build.op("div", self, other)

    def __mod__(self, other: Operand) -> Value:
        return self.build.op("rem", self, other)

    def __and__(self, other: Operand) -> Value:
        return self.build.op("and", self, other)

    def __or__(self, other: Operand) -> Value:
        return self.build.op("or", self, other)

    def __xor__(self, other: Operand) -> Value:
        return self.build.op("xor", self, other)

    def __lshift__(self, other: Operand) -> Value:
        return self.build.op("shl", self, other)

    def __rshift__(self, other: Operand) -> Value:
        return self.build.op("shr", self, other)

    def __neg__(self) -> Value:
        return self.build.op("neg", self)

    def __invert__(self) -> Value:
        return self.build.op("not", self)

    def __lt__(self, other: Operand) -> Value:
        return self.build.op("lt", self, other)

    def __le__(self, other: Operand) -> Value:
        return self.build.op("le", self, other)

    def __gt__(self, other: Operand) -> Value:
        return self.build.op("gt", self, other)

    def __ge__(self, other: Operand) -> Value:
        return self.build.op("ge", self, other)

    def eq(self, other: Operand) -> Value:
        return self.build.op("eq", self, other)

    def ne(self, other: Operand) -> Value:
        return self.build.op("ne", self, other)

    def cast(self, dtype: str) -> Value:
        return self.build.cast(self, dtype)

    def bitcast(self, dtype: str) -> Value:
        return self.build.bitcast(self, dtype)

    def __bool__(self) -> bool:
        if (value := self.constant) is None:
            raise TypeError(
                "a kernel value has no truth at comptime; branch with `with build.when(condition):`"
            )
        return bool(value)


Operand = Value | bool | int | float


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A mutable scalar or line."""

    name: Name
    build: Builder

    def get(self) -> Value:
        return self.build.read(self.name)

    def set(self, value: Operand) -> None:
        self.build.assign(self.name, value)


class Builder:
    """Appends statements to one kernel. `keeps_calls`: functions with a decomposition stay single
    operations, which `decompose` replaces later."""

    keeps_calls = False

    def __init__(
        self, name: str, cube_dim: tuple[int, int, int] = (1, 1, 1), resident: int = 0
    ) -> None:
        self.name = name
        self.cube_dim, self.resident = cube_dim, resident
        self._count = 0
        self._buffers: list[Buffer] = []
        self._scalars: list[Name] = []
        self._maps: list[ir.TileMap] = []
        self._arrays = 0
        self._blocks: list[list[Stmt]] = [[]]
        self._known: list[dict[object, Value]] = [{}]
        self.source: str | None = None  # the user's line that the next statements come from

    # parameters -------------------------------------------------------------------------------

    def buffer(self, dtype: str, access: str = "in") -> Buffer:
        """Declare the next global buffer of the launch."""
        buffer = Buffer(len(self._buffers), dtype, "global", access)  # type: ignore[arg-type]
        self._buffers.append(buffer)
        return buffer

    def scalar(self, dtype: str = "index") -> Value:
        """Declare the next scalar of the launch."""
        name = self._name(Type(dtype))
        self._scalars.append(name)
        return Value(name, self)

    def shared(self, dtype: str, size: int, over: Buffer | None = None) -> Buffer:
        """An array of `size` elements that the units of a cube share; `over` is not used again."""
        return self._array(dtype, size, "shared", None if over is None else over.number)

    def local(self, dtype: str, size: int, outermost: bool = False) -> Buffer:
        """An array of `size` elements that belongs to a unit; `outermost`: in scope everywhere."""
        if not outermost:
            return self._array(dtype, size, "local")
        self._blocks.append([])
        buffer = self._array(dtype, size, "local")
        self._blocks[0][:0] = self._blocks.pop()
        return buffer

    def finish(self) -> Kernel:
        """The kernel built so far."""
        assert len(self._blocks) == 1, "finish: a block is still open"
        return Kernel(
            self.name,
            tuple(self._buffers),
            tuple(self._scalars),
            tuple(self._blocks[0]),
            self.cube_dim,
            tuple(self._maps),
            self.resident,
        )

    # values -----------------------------------------------------------------------------------

    def constant(self, value: Scalar, dtype: str, lanes: int = 1) -> Value:
        """A literal of a dtype."""
        return Value(Const(_as(value, dtype), Type(dtype, lanes)), self)

    def place(self, name: str) -> Value:
        """Where this unit is: "cube_pos.x", "unit_pos.y", "cube_count.x", ..."""
        return self._let(name, (), Type("index"))

    def lane(self, lanes: int, dtype: str = "index") -> Value:
        """0, 1, 2, ... along a line."""
        if lanes == 1:
            return self.constant(0, dtype)
        return self._let("lane", (), Type(dtype, lanes))

    def lift(self, value: Operand, like: Value) -> Value:
        """A Python number as a constant of another value's dtype; a value as it is."""
        return value if isinstance(value, Value) else self.constant(value, like.dtype)

    def splat(self, value: Value, lanes: int) -> Value:
        """The same scalar in every lane."""
        if value.lanes == lanes:
            return value
        assert value.lanes == 1, f"splat: a line of {value.lanes} cannot become {lanes} lanes"
        if isinstance(value.atom, Const):
            return self.constant(value.atom.value, value.dtype, lanes)
        return self._let("splat", (value.atom,), Type(value.dtype, lanes))

    def op(self, name: str, *operands: Operand) -> Value:
        """A core operation; Python numbers take the dtype, scalars the lanes of the others."""
        typed = operands[1:] if name == "select" else operands
        model = next((value for value in typed if isinstance(value, Value)), None)
        if model is None:
            raise TypeError(
                f"{name}: at least one operand must have a dtype; got the Python numbers "
                f"{', '.join(map(repr, typed))}. Make one with build.constant."
            )
        values = [v if isinstance(v, Value) else self.lift(v, model) for v in operands]
        if name == "select" and not isinstance(operands[0], Value):
            values[0] = self.constant(operands[0], "bool")
        lanes = max([value.atom.type.lanes for value in values])
        values = [v if v.atom.type.lanes == lanes else self.splat(v, lanes) for v in values]
        if (folded := fold(self, name, values)) is not None:
            return folded
        atoms = tuple([value.atom for value in values])
        return self._let(name, atoms, ir.result_type(name, atoms))

    def operate(
        self, name: str, operands: Sequence[Value], type: Type, attrs: tuple[int, ...] = ()
    ) -> Value:
        """Any operation of the table, whose result is of a type."""
        row = ir.OPS.get(name)
        if row is not None and row.result in ("same", "bool", "select") and operands:
            return self.op(name, *operands)
        return self._let(name, tuple([value.atom for value in operands]), type, attrs)

    def call(self, name: str, *operands: Value) -> Value:
        """A function by its name, which the table of operations need not have."""
        return self._let(name, tuple([x.atom for x in operands]), operands[0].type)

    def select(self, condition: Operand, then: Operand, orelse: Operand) -> Value:
        """`then` where the condition holds, `orelse` elsewhere."""
        return self.op("select", condition, then, orelse)

    def fma(self, x: Operand, y: Operand, z: Operand) -> Value:
        """x * y + z, rounded once."""
        return self.op("fma", x, y, z)

    def cast(self, value: Value, dtype: str) -> Value:
        """The same number in another dtype (see the table's note on casts)."""
        if value.dtype == dtype:
            return value
        if value.constant is not None and _casts_exactly(value.constant, value.dtype, dtype):
            return self.constant(value.constant, dtype, value.lanes)
        return self._let("cast", (value.atom,), value.type.of(dtype))

    def bitcast(self, value: Value, dtype: str) -> Value:
        """The same bits as another dtype; a line of as many bits, its low lanes first."""
        if value.dtype == dtype:
            return value
        bits = value.lanes * ir.BITS[value.dtype]
        assert bits % ir.BITS[dtype] == 0, f"bitcast {value.type} to {dtype}"
        return self._let("bitcast", (value.atom,), Type(dtype, bits // ir.BITS[dtype]))

    def extract(self, value: Value, lane: int) -> Value:
        """One lane of a line."""
        if value.lanes == 1:
            return value
        return self._let("extract", (value.atom,), Type(value.dtype), (lane,))

    def shuffle(self, value: Value, lanes: Sequence[int]) -> Value:
        """A line whose lane k is the source's lane lanes[k]."""
        return self._let("shuffle", (value.atom,), Type(value.dtype, len(lanes)), tuple(lanes))

    def join(self, values: Sequence[Value]) -> Value:
        """A line of the lanes of scalars and lines, one behind the other."""
        while len(values) > 1:
            pairs = [values[k : k + 2] for k in range(0, len(values), 2)]
            values = [self._joined(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        return values[0]

    def _joined(self, low: Value, high: Value) -> Value:
        type = Type(low.dtype, low.lanes + high.lanes)
        return self._let("join", (low.atom, high.atom), type)

    def reduce(self, name: str, value: Value) -> Value:
        """All lanes combined: add, mul, min, max, and, or, xor."""
        return value if value.lanes == 1 else self._let(
            f"reduce_{name}", (value.atom,), Type(value.dtype)
        )  # fmt: skip

    # memory and variables ---------------------------------------------------------------------

    def load(
        self, buffer: Buffer, index: Operand, lanes: int = 1, mask: Value | None = None
    ) -> Value:
        """`lanes` neighbouring elements from a scalar index, or a gather by a line of indices."""
        at = self._index(index)
        target = Type(buffer.dtype, max(lanes, at.lanes))
        mask_atom = mask.atom if mask is not None else None
        key = ("load", buffer, at.atom, mask_atom, target)
        reusable = buffer.access == "in" and buffer.space == "global"
        if reusable and (old := self._lookup(key)) is not None:
            return old
        name = self._name(target)
        self._emit(ir.Load(name, buffer, at.atom, mask_atom, self.source))
        return self._remember(key, Value(name, self))

    def store(
        self,
        buffer: Buffer,
        index: Operand,
        value: Value,
        mask: Value | None = None,
        streaming: bool = False,
    ) -> None:
        """Write a scalar, a line of neighbours, or a scatter by a line of indices."""
        at = self._index(index)
        value = self.splat(value, max(value.lanes, at.lanes))
        mask_atom = mask.atom if mask is not None else None
        self._emit(ir.Store(buffer, at.atom, value.atom, mask_atom, streaming, self.source))

    def atomic(
        self, op: str, buffer: Buffer, index: Operand, value: Operand | None = None
    ) -> Value:
        """Indivisible update; gives the old value. A load needs no value."""
        given = self._element(buffer, 0 if value is None else value)
        name = self._name(given.type)
        at = self._index(index).atom
        self._emit(ir.Atomic(name, op, buffer, at, given.atom, self.source))  # type: ignore[arg-type]
        return Value(name, self)

    def compare_exchange(
        self, buffer: Buffer, index: Operand, expected: Operand, value: Operand
    ) -> Value:
        """Replace an element if it is what is expected; gives the old value."""
        name, at = self._name(Type(buffer.dtype)), self._index(index).atom
        old, new = (self._element(buffer, operand).atom for operand in (expected, value))
        self._emit(ir.CompareExchange(name, buffer, at, old, new, self.source))
        return Value(name, self)

    def _element(self, buffer: Buffer, value: Operand) -> Value:
        """A Python number as an element of a buffer; a value as it is."""
        return value if isinstance(value, Value) else self.constant(value, buffer.dtype)

    def variable(self, init: Value) -> Variable:
        """A mutable copy of a value."""
        name = self._name(init.type)
        self._emit(ir.Declare(name, init.atom))
        return Variable(name, self)

    def read(self, variable: Name) -> Value:
        name = self._name(variable.type)
        self._emit(ir.Read(name, variable))
        return Value(name, self)

    def assign(self, variable: Name, value: Operand) -> None:
        lifted = (
            value
            if isinstance(value, Value)
            else self.constant(value, variable.type.dtype, variable.type.lanes)
        )
        lifted = self.splat(lifted, variable.type.lanes)
        assert lifted.type == variable.type, f"assign {lifted.type} to {variable.type}"
        self._emit(ir.Assign(variable, lifted.atom))

    # control flow -----------------------------------------------------------------------------

    def range(self, start: Operand, stop: Operand, step: Operand = 1) -> Iterator[Value]:
        """`for i in build.range(start, stop, step):` builds one loop; its body is expanded once."""
        first, last, by = [self._index(bound).atom for bound in (start, stop, step)]
        index, source = self._name(Type("index")), self.source
        self._open()
        yield Value(index, self)
        self._emit(ir.For(index, first, last, by, self._close(), source))

    @contextlib.contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Statements of the `with` block run where the condition holds."""
        source = self.source
        self._open()
        yield
        self._emit(ir.If(condition.atom, self._close(), (), source))

    @contextlib.contextmanager
    def otherwise(self) -> Iterator[None]:
        """The other branch of the `when` just closed."""
        branch = self._blocks[-1].pop()
        assert isinstance(branch, ir.If) and not branch.orelse, "otherwise: no `when` before it"
        self._open()
        yield
        self._emit(ir.If(branch.condition, branch.then, self._close(), branch.source))

    @contextlib.contextmanager
    def loop(self) -> Iterator[None]:
        """Statements of the `with` block run until `break_when`."""
        source = self.source
        self._open()
        yield
        self._emit(ir.Loop(self._close(), source))

    def break_when(self, condition: Value) -> None:
        """Leave the innermost loop where the condition holds."""
        self._emit(ir.If(condition.atom, (ir.Break(),), (), self.source))

    # what units do together, and words to people ----------------------------------------------

    def sync(self) -> None:
        """All units of the cube meet here."""
        self._emit(ir.Sync(self.source))

    def plane(self, op: str, value: Value, argument: Operand | None = None) -> Value:
        """What all units of a plane do together: see `planes.py`."""
        type = Type("u32", value.lanes) if op == "ballot" else value.type
        name = self._name(type)
        at = None if argument is None else self._index(argument).atom
        self._emit(ir.Plane(name, op, value.atom, at, self.source))
        return Value(name, self)

    def print(self, format: str, *args: Value) -> None:
        """A line of text with a place {} for each scalar."""
        self._emit(ir.Print(format, tuple([x.atom for x in args]), self.source))

    def check(self, condition: Value, message: str, *args: Value) -> None:
        """A condition that must hold; the message has a place {} for each scalar."""
        atoms = tuple([x.atom for x in args])
        self._emit(ir.Assert(condition.atom, message, atoms, self.source))

    # inside -----------------------------------------------------------------------------------

    def map(
        self, buffer: Buffer, sizes: Sequence[Value], strides: Sequence[Value], box: Sequence[int]
    ) -> ir.TileMap:
        """A way to read a global buffer by boxes; sizes and strides are scalars of the launch."""
        names = [tuple([value.atom for value in values]) for values in (sizes, strides)]
        map = ir.TileMap(len(self._maps), buffer, *names, tuple(box))  # type: ignore[arg-type]
        self._maps.append(map)
        return map

    def emit(self, statement: Stmt) -> None:
        """Append a statement that has no method of its own: see `matrix.py`."""
        self._emit(statement)

    def named(self, type: Type) -> Name:
        """A name that nothing has yet, for the target of such a statement."""
        return self._name(type)

    def _array(self, dtype: str, size: int, space: str, over: int | None = None) -> Buffer:
        self._arrays += 1
        number = self._arrays - 1
        buffer = Buffer(number, dtype, space, "inout", size, over)  # type: ignore[arg-type]
        self._emit(ir.Allocate(buffer, self.source))
        return buffer

    def _index(self, index: Operand) -> Value:
        if not isinstance(index, Value):
            return self.constant(index, "index")
        return index if index.dtype == "index" else self.cast(index, "index")

    def _name(self, type: Type) -> Name:
        self._count += 1
        return Name(self._count - 1, type)

    def _emit(self, statement: Stmt) -> None:
        self._blocks[-1].append(statement)

    def _open(self) -> None:
        self._blocks.append([])
        self._known.append({})

    def _close(self) -> tuple[Stmt, ...]:
        self._known.pop()
        return tuple(self._blocks.pop())

    def _lookup(self, key: object) -> Value | None:
        for known in reversed(self._known):
            if (value := known.get(key)) is not None:
                return value
        return None

    def _remember(self, key: object, value: Value) -> Value:
        self._known[-1][key] = value
        return value

    def _let(
        self, op: str, args: tuple[Atom, ...], type: Type, attrs: tuple[int, ...] = ()
    ) -> Value:
        key: object = (op, args, type, attrs)
        if any([isinstance(atom, Const) and atom.value == 0 for atom in args]):
            zeros = tuple([_is_negative_zero(atom) for atom in args])  # equal, but they differ
            key = (key, zeros)
        if (old := self._lookup(key)) is not None:
            return old
        name = self._name(type)
        self._emit(ir.Let(name, op, args, attrs))
        return self._remember(key, Value(name, self))


def _as(value: Scalar, dtype: str) -> Scalar:
    if dtype == "bool":
        return bool(value)
    if dtype in ir.FLOATS:
        return _rounded(float(value), dtype)
    return wrap(int(value), dtype)


def _rounded(value: float, dtype: str) -> float:
    """The value of a float dtype nearest to a double."""
    if dtype == "f64":
        return value
    return ctypes.c_float(value).value if dtype == "f32" else arithmetic.rounded(value, dtype)


def _casts_exactly(value: Scalar, source: str, dtype: str) -> bool:
    """Whether `constant` of the value is its cast: floats saturate, wide integers round once."""
    if source in ir.FLOATS:
        return dtype in ir.FLOATS or dtype == "bool"
    return dtype not in ir.FLOATS or abs(value) <= 1 << 53


def _is_negative_zero(atom: Atom) -> bool:
    return isinstance(atom, Const) and atom.value == 0 and pymath.copysign(1, atom.value) < 0


def wrap(value: int, dtype: str) -> int:
    """An integer reduced to the range of its dtype, two's complement."""
    bits = ir.BITS[dtype]
    value &= (1 << bits) - 1
    signed = dtype in ir.SIGNED or dtype == "index"
    return value - (1 << bits) if signed and value >> (bits - 1) else value
