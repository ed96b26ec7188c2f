"""Verifies that a kernel is well formed: names, scopes, the operation table, types, memory access
and control flow. It runs in tests and under `XCUBE_CHECK=1`; emitters rely on what it promises."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from xcube.errors import KernelError
from xcube.lowering.cube import check_matrix, check_tiles, check_units, ir, text
from xcube.lowering.cube.ir import Atom, Buffer, Const, Kernel, Name, Stmt, Type

_INDEX, _BOOL = Type("index"), Type("bool")
_ATOMICS: dict[str, tuple[str, ...]] = {
    **{op: ir.OPS[op].dtypes for op in ("add", "min", "max", "and", "or", "xor")},
    "sub": ir.OPS["sub"].dtypes,
    **dict.fromkeys(("exchange", "load", "store"), ir.DTYPES),
}


def check(kernel: Kernel) -> None:
    """Verify a kernel.

    Raises KernelError with the rule, the statement that breaks it and the lines around it.

    >>> check(Kernel("stray", (), (), (ir.Break(),)))
    Traceback (most recent call last):
        ...
    xcube.errors.KernelError: check: break must be inside a loop.
    In kernel stray, line 2: break
        1 | kernel stray() cube_dim 1 1 1 {
      > 2 |   break
        3 | }
    """
    checker = Checker(kernel)
    checker.header()
    checker.block(kernel.body)


class Checker:
    """Walks one kernel; others stand in `check_matrix.py` and `check_units.py`."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.at: Stmt | None = None  # the statement being checked; None is the header
        self.scope: dict[int, Name] = {}
        self.variables: set[int] = set()
        self.defined: set[int] = set()
        self.memories: dict[tuple[str, int], Buffer] = {}
        self.allocated: set[int] = set()
        self.differing: set[int] = set()  # names whose value evidently differs between units
        self.loops = 0
        self.branches = 0  # open branches that evidently only some units of a cube take

    def fail(self, rule: str) -> NoReturn:
        raise KernelError(f"check: {rule}.\n{text.excerpt(self.kernel, self.at)}")

    def require(self, holds: bool, rule: str) -> None:
        if not holds:
            self.fail(rule)

    # names and scopes -------------------------------------------------------------------------

    def header(self) -> None:
        dim = self.kernel.cube_dim
        self.require(len(dim) == 3 and min(dim) >= 1, f"cube_dim must be 3 sizes >= 1; got {dim}")
        for number, buffer in enumerate(self.kernel.buffers):
            got = f"{buffer.space} {buffer.number}"
            rule = f"buffer {number} of a kernel must be global {number}; got {got}"
            self.require(got == f"global {number}", rule)
            self.storable(buffer)
            self.memories["global", number] = buffer
        for scalar in self.kernel.scalars:
            self.require(scalar.type.lanes == 1, f"a scalar must have 1 lane; got {scalar.type}")
            self.define(scalar)
        for number, map in enumerate(self.kernel.maps):
            check_matrix.check_map(self, number, map)

    def storable(self, buffer: Buffer) -> None:
        self.require(buffer.dtype in ir.DTYPES, f"a buffer must have a dtype; got {buffer.dtype}")
        self.require(
            buffer.space != "global" or buffer.dtype != "index",
            "a global buffer must not hold indices, whose width is the target's; use i32 or i64",
        )
        self.require(
            buffer.access in ("in", "out", "inout"),
            f'access of a buffer must be "in", "out" or "inout"; got {buffer.access!r}',
        )

    def define(self, target: Name, variable: bool = False) -> None:
        self.proper(target.type)
        number = target.number
        self.require(number not in self.defined, "a name must be defined once; it is again here")
        self.defined.add(number)
        self.scope[number] = target
        if variable:
            self.variables.add(number)

    def proper(self, type: Type) -> None:
        self.require(type.dtype in ir.DTYPES, f"a type must have a known dtype; got {type.dtype}")
        self.require(type.lanes >= 1, f"a type must have 1 lane or more; got {type.lanes}")

    def use(self, atom: Atom) -> Type:
        """The type of a literal or of a value in scope."""
        _USES[type(atom)](self, atom)
        return atom.type

    def use_literal(self, const: Const) -> None:
        self.proper(const.type)
        dtype, value = const.type.dtype, const.value
        low, high = _bounds(dtype)
        if dtype == "bool":
            self.require(type(value) is bool, f"a literal of bool must be a bool; got {value!r}")
        elif dtype in ir.FLOATS:
            good = isinstance(value, float)
            self.require(good, f"a literal of {dtype} must be a float; got {value!r}")
        else:
            good = type(value) is int and low <= value <= high
            rule = f"a literal of {dtype} must be an int in {low}..{high}; got {value!r}"
            self.require(good, rule)

    def use_name(self, name: Name) -> None:
        if self.named(name).number in self.variables:
            self.fail("a variable must be read by a Read; it is an operand here")

    def named(self, name: Name) -> Name:
        known = self.scope.get(name.number)
        if known is None:
            where = "left its scope" if name.number in self.defined else "is not defined"
            self.fail(
                f"a name must be defined before its use, in scope; name {name.number} {where}"
            )
        self.require(
            known.type == name.type,
            f"a name must be used at its type {known.type}; got {name.type}",
        )
        return known

    def variable(self, name: Name) -> Type:
        self.named(name)
        self.require(name.number in self.variables, "only a declared variable is read or assigned")
        return name.type

    def scalar_of(self, atom: Atom, wanted: Type, what: str) -> None:
        type = self.use(atom)
        self.require(type == wanted, f"{what} must be {wanted}; got {type}")

    def block(self, body: tuple[Stmt, ...]) -> None:
        with self.inner():
            for statement in body:
                self.at = statement
                if type(statement) not in _CHECKS:
                    raise TypeError(f"check: not a statement: {statement!r}")
                _CHECKS[type(statement)](self, statement)

    @contextlib.contextmanager
    def inner(self) -> Iterator[None]:
        scope, memories = self.scope, self.memories
        self.scope, self.memories = dict(scope), dict(memories)
        yield
        self.scope, self.memories = scope, memories

    # operations -------------------------------------------------------------------------------

    def let(self, s: ir.Let) -> None:
        row = ir.OPS.get(s.op)
        if row is None:
            self.fail(f"an operation must be in the table; got {s.op!r}")
        self.require(
            len(s.args) == row.arity, f"{s.op} must have {row.arity} operands; got {len(s.args)}"
        )
        self.proper(s.target.type)
        types = [self.use(atom) for atom in s.args]
        for type in types if s.args else [s.target.type]:
            self.require(
                type.dtype in row.dtypes,
                f"{s.op} must have a dtype of {', '.join(row.dtypes)}; got {type.dtype}",
            )
        self.require(
            not s.attrs or s.op in ("extract", "shuffle"), f"{s.op} must have no attributes"
        )
        _RESULTS[row.result](self, s, types)
        self.spread(s)
        self.define(s.target)

    def spread(self, s: ir.Let) -> None:
        """Note a value that evidently differs between the units of a cube."""
        axis = "xyz".find(s.op.removeprefix("unit_pos.")) if s.op.startswith("unit_pos.") else -1
        places = axis >= 0 and self.kernel.cube_dim[axis] > 1
        if places or any(type(a) is Name and a.number in self.differing for a in s.args):
            self.differing.add(s.target.number)

    def result(self, s: ir.Let, wanted: Type) -> None:
        got = s.target.type
        self.require(got == wanted, f"the result of {s.op} must be {wanted}; got {got}")

    def alike(self, s: ir.Let, types: list[Type]) -> None:
        self.require(
            len(set(types)) == 1,
            f"the operands of {s.op} must have one type; got {', '.join(map(str, types))}",
        )

    def elementwise(self, s: ir.Let, types: list[Type]) -> None:
        self.alike(s, types)
        self.result(s, ir.result_type(s.op, s.args))

    def select(self, s: ir.Let, types: list[Type]) -> None:
        condition, *branches = types
        self.alike(s, branches)
        wanted = branches[0].of("bool")
        self.require(
            condition == wanted, f"the condition of select must be {wanted}; got {condition}"
        )
        self.result(s, branches[0])

    def to_scalar(self, s: ir.Let, types: list[Type]) -> None:
        (line,) = types
        if s.op == "extract":
            self.lanes_exist(s, line, 1)
        else:
            power = line.lanes & (line.lanes - 1) == 0
            self.require(
                power, f"{s.op} must have a power of two of lanes, to halve; got {line.lanes}"
            )
        self.result(s, Type(line.dtype))

    def lanes_exist(self, s: ir.Let, line: Type, count: int) -> None:
        self.require(
            len(s.attrs) == count, f"{s.op} must state {count} source lanes; got {len(s.attrs)}"
        )
        self.require(
            all(0 <= lane < line.lanes for lane in s.attrs),
            f"the lanes of {s.op} must lie in 0..{line.lanes - 1}; got {list(s.attrs)}",
        )

    def given(self, s: ir.Let, types: list[Type]) -> None:
        target = s.target.type
        if s.op in ir.PLACES:
            self.result(s, _INDEX)
        elif s.op == "shuffle":
            self.lanes_exist(s, types[0], target.lanes)
            self.result(s, Type(types[0].dtype, target.lanes))
        elif s.op == "join":
            alike = types[0].dtype == types[1].dtype
            self.require(alike, f"join must have operands of one dtype; got {types[0]}, {types[1]}")
            self.result(s, Type(types[0].dtype, types[0].lanes + types[1].lanes))
        elif s.op == "splat":
            self.require(types[0].lanes == 1, f"splat must have a scalar operand; got {types[0]}")
            self.result(s, Type(types[0].dtype, target.lanes))
        elif s.op == "cast":
            self.result(s, types[0].of(target.dtype))
        elif s.op == "bitcast":
            self.require(
                _same_bits(types[0], target),
                f"bitcast must join types of as many bits, not bool or index; "
                f"got {types[0]} to {target}",
            )

    # memory -----------------------------------------------------------------------------------

    def access(self, buffer: Buffer, index: Atom, lanes: int, mask: Atom | None) -> None:
        known = self.memories.get((buffer.space, buffer.number))
        rule = f"a buffer must be a parameter or allocated, in scope; got {buffer}"
        self.require(known == buffer, rule)
        type = self.use(index)
        self.require(type.dtype == "index", f"an address must be of dtype index; got {type}")
        self.require(
            type.lanes in (1, lanes),
            f"an address must have 1 lane or the value's {lanes}; got {type.lanes}",
        )
        if mask is not None:
            self.scalar_of(mask, Type("bool", lanes), "a mask")

    def element(self, buffer: Buffer, type: Type, written: bool = True) -> None:
        rule = f"a value must have the buffer's dtype {buffer.dtype}; got {type.dtype}"
        self.require(type.dtype == buffer.dtype, rule)
        readonly = written and buffer.access == "in"
        self.require(not readonly, 'a buffer with access "in" must not be written')

    def load(self, s: ir.Load) -> None:
        self.access(s.buffer, s.index, s.target.type.lanes, s.mask)
        self.element(s.buffer, s.target.type, written=False)
        self.define(s.target)

    def store(self, s: ir.Store) -> None:
        type = self.use(s.value)
        self.access(s.buffer, s.index, type.lanes, s.mask)
        self.element(s.buffer, type)
        self.require(
            not s.streaming or s.index.type.lanes == 1,
            f"a streaming store must have a scalar address; got {s.index.type}",
        )

    def atomic(self, s: ir.Atomic) -> None:
        type = self.use(s.value)
        self.access(s.buffer, s.index, type.lanes, None)
        self.element(s.buffer, type, written=s.op != "load")
        allowed = _ATOMICS.get(s.op, ())
        self.require(
            type.dtype in allowed, f"atomic {s.op} must have a dtype of {allowed}; got {type.dtype}"
        )
        self.require(s.target.type == type, f"an atomic gives {type}; got {s.target.type}")
        self.define(s.target)

    def allocate(self, s: ir.Allocate) -> None:
        buffer = s.buffer
        self.require(
            buffer.space in ("shared", "local"),
            f"an array must be shared or local; got {buffer.space}",
        )
        self.storable(buffer)
        self.require(buffer.size > 0, f"an array must have a size above 0; got {buffer.size}")
        self.require(
            buffer.number not in self.allocated, f"an array must be allocated once; got {buffer}"
        )
        self.takes_over(buffer)
        self.allocated.add(buffer.number)
        self.memories[buffer.space, buffer.number] = buffer

    def takes_over(self, buffer: Buffer) -> None:
        """An array that lies over another one has room there; the other is out of scope then."""
        if buffer.over is None:
            return
        other = self.memories.pop(("shared", buffer.over), None)
        if other is None or buffer.space != "shared":
            self.fail("an array must be shared, as the one whose memory it takes over, in scope")
        sizes = [b.size * ir.BITS[b.dtype] // 8 for b in (buffer, other)]
        rule = f"an array must fit the {sizes[1]} bytes that it takes over; got {sizes[0]}"
        self.require(sizes[0] <= sizes[1], rule)

    # variables and control flow ---------------------------------------------------------------

    def declare(self, s: ir.Declare) -> None:
        self.scalar_of(s.init, s.variable.type, "the first value of a variable")
        self.define(s.variable, variable=True)

    def assign(self, s: ir.Assign) -> None:
        self.scalar_of(s.value, self.variable(s.variable), "an assigned value")

    def read(self, s: ir.Read) -> None:
        wanted = self.variable(s.variable)
        got = s.target.type
        self.require(got == wanted, f"a read must have its variable's type {wanted}; got {got}")
        self.define(s.target)

    def for_(self, s: ir.For) -> None:
        for what, bound in (("start", s.start), ("stop", s.stop), ("step", s.step)):
            self.scalar_of(bound, _INDEX, f"the {what} of a for")
        if isinstance(s.step, Const):
            self.require(s.step.value > 0, f"a step must be positive; got {s.step.value}")
        self.require(s.index.type == _INDEX, f"a loop index must be index; got {s.index.type}")
        with self.inner():
            self.define(s.index)
            self.repeated(s.body)

    def loop(self, s: ir.Loop) -> None:
        self.repeated(s.body)

    def repeated(self, body: tuple[Stmt, ...]) -> None:
        self.loops += 1
        self.block(body)
        self.loops -= 1

    def if_(self, s: ir.If) -> None:
        self.scalar_of(s.condition, _BOOL, "the condition of an if")
        condition = s.condition
        differs = type(condition) is Name and condition.number in self.differing
        self.branches += differs
        self.block(s.then)
        self.block(s.orelse)
        self.branches -= differs

    def leave(self, s: ir.Break | ir.Continue) -> None:
        self.require(self.loops > 0, f"{type(s).__name__.lower()} must be inside a loop")

    def sync(self, s: ir.Sync) -> None:
        self.require(
            not self.branches,
            "all units of a cube must reach a sync; the if around this one depends on unit_pos",
        )


def _bounds(dtype: str) -> tuple[int, int]:
    bits = ir.BITS[dtype]
    if dtype in ir.UNSIGNED:
        return 0, (1 << bits) - 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _same_bits(source: Type, target: Type) -> bool:
    plain = not {source.dtype, target.dtype} & {"bool", "index"}
    return plain and _bits(source) == _bits(target)


def _bits(type: Type) -> int:
    return type.lanes * ir.BITS[type.dtype]


_USES: dict[type, Callable[[Checker, Any], None]] = {
    Const: Checker.use_literal,
    Name: Checker.use_name,
}
_RESULTS: dict[str, Callable[[Checker, ir.Let, list[Type]], None]] = {
    "same": Checker.elementwise,
    "bool": Checker.elementwise,
    "select": Checker.select,
    "scalar": Checker.to_scalar,
    "given": Checker.given,
}
_CHECKS: dict[type, Callable[[Checker, Any], None]] = {
    ir.Let: Checker.let,
    ir.Load: Checker.load,
    ir.Store: Checker.store,
    ir.Declare: Checker.declare,
    ir.Assign: Checker.assign,
    ir.Read: Checker.read,
    ir.For: Checker.for_,
    ir.If: Checker.if_,
    ir.Loop: Checker.loop,
    ir.Break: Checker.leave,
    ir.Continue: Checker.leave,
    ir.Return: lambda checker, s: None,
    ir.Allocate: Checker.allocate,
    ir.Atomic: Checker.atomic,
    ir.Sync: Checker.sync,
    **check_units.CHECKS,
    **check_matrix.CHECKS,
    **check_tiles.CHECKS,
}
