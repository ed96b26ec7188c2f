"""Emits a cube kernel as one LLVM module in text, ready for code generation after the `sroa` pass.

The module defines `NAME(buffers, scalars, begin, end)`, which fetches the launch's data pointers
and scalars and calls `NAME.body`, where they are arguments that LLVM knows not to alias; the body
runs the cubes begin..end-1 one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from xcube.errors import LoweringError
from xcube.lowering.cube import ir, planes, units
from xcube.lowering.cube.ir import Atom, Buffer, Const, Kernel, Name, Type
from xcube.lowering.emit.llvm_memory import Memory
from xcube.lowering.emit.llvm_ops import operate
from xcube.lowering.emit.llvm_text import Code, held, literal, size_of, stored
from xcube.lowering.emit.llvm_tiles import Tiles
from xcube.lowering.emit.walk import Emitter

ARRAY_LIMIT = 512 * 1024  # bytes of a thread's stack that shared and local arrays may take
ALIGNMENT = 64

LOOP = ", !llvm.loop !2"
METADATA = (
    "!0 = !{}",
    "!1 = !{i32 1}",
    "!2 = distinct !{!2, !3, !4}",
    '!3 = !{!"llvm.loop.unroll.disable"}',
    '!4 = !{!"llvm.loop.vectorize.enable", i1 false}',
)


@dataclass(frozen=True, slots=True)
class Target:
    """What code generation will know of the machine: `native_half` is arithmetic in f16."""

    native_half: bool = False


def emit(kernel: Kernel, target: Target | None = None, name: str = "kernel") -> str:
    """The LLVM module that runs ranges of a kernel's cubes.

    After the kernel's own scalars the launch may pass one more cell, the number of cubes; it is
    read only if the kernel asks for `cube_count.x`.

    A cube of several units becomes one of one unit first: see `cube/units.py`.

    Raises LoweringError if the kernel's arrays exceed the stack, or if it has statements that only
    other devices know.

    >>> from xcube.lowering.cube.build import Builder
    >>> build = Builder("twice")
    >>> x, y = build.buffer("f32"), build.buffer("f32", "out")
    >>> build.store(y, 0, build.load(x, 0) * 2.0)
    >>> "fmul float" in emit(build.finish())
    True
    """
    return _Module(units.one_unit(kernel), target or Target(), name).text()


@dataclass(frozen=True, slots=True)
class _Jumps:
    """Where Continue and Break of a loop go."""

    again: str
    leave: str


class _Module(Emitter):
    """One kernel on its way to text."""

    def __init__(self, kernel: Kernel, target: Target, name: str) -> None:
        super().__init__()
        self.kernel = kernel
        self.name = name
        self.code = Code(target.native_half)
        self.code.here = "cube"
        self.memory = Memory(self.code, self.atom)
        self.tiles = Tiles(name, self.code, self.atom)
        self.entry: list[str] = []  # allocas
        self.jumps: list[_Jumps] = []
        self.array_bytes = 0
        self.counts_cubes = False

    def text(self) -> str:
        """The whole module."""
        for scalar in self.kernel.scalars:
            self.names[scalar.number] = f"%s{scalar.number}"
        if self.block(self.kernel.body):
            self.code.go("next")
        arguments = self._arguments()
        parts = (*self.tiles.globals(), *self._body(arguments), *self._door(arguments))
        return "\n".join((*parts, *self.code.declared.values(), *METADATA, ""))

    # values -----------------------------------------------------------------------------------

    def constant(self, constant: Const) -> str:
        return literal(constant)

    def operate(self, let: ir.Let) -> str:
        self.memory.note(let)
        return operate(self.code, let, [self.atom(arg) for arg in let.args])

    def place(self, place: str, axis: str) -> str:
        if axis == "x" and place == "cube_pos":
            return "%cube.x"
        if axis == "x" and place == "cube_count":
            self.counts_cubes = True
            return "%cubes"
        return "0" if place.endswith("pos") else "1"

    # memory -----------------------------------------------------------------------------------

    def load(self, load: ir.Load) -> str:
        return self.memory.load(load)

    def store(self, store: ir.Store) -> None:
        self.memory.store(store)

    def atomic(self, atomic: ir.Atomic) -> str:
        return self.memory.atomic(atomic)

    def compare_exchange(self, exchange: ir.CompareExchange) -> str:
        return self.memory.compare_exchange(exchange)

    def plane(self, plane: ir.Plane) -> str:
        """Of one unit, which is alone in its plane."""
        value, type = self.atom(plane.value), plane.target.type
        if plane.op == "ballot":
            return self.code.add(f"zext {held(plane.value.type)} {value} to {held(type)}")
        if plane.op.startswith("exclusive"):
            first = planes.SCANS[plane.op] == "mul"
            return literal(Const(float(first) if type.dtype in ir.FLOATS else int(first), type))
        return value

    def allocate(self, buffer: Buffer) -> None:
        self.array_bytes += -(-buffer.size * size_of(buffer.dtype) // ALIGNMENT) * ALIGNMENT
        if self.array_bytes > ARRAY_LIMIT:
            raise LoweringError(
                f"{self.kernel.name}: shared and local arrays must fit {ARRAY_LIMIT} bytes; got "
                f"{self.array_bytes} with the array of {buffer.size} {buffer.dtype}; "
                "use smaller tiles."
            )
        self._room(f"%a{buffer.number}", f"[{buffer.size} x {stored(buffer.dtype)}]", ALIGNMENT)

    def tile(self, statement: ir.Tile) -> None:
        self.tiles.emit(statement)

    def _room(self, name: str, type: str, alignment: int) -> None:
        self.entry.append(f"  {name} = alloca {type}, align {alignment}")

    def barrier(self) -> None:
        """Nothing to wait for: the unit is alone in its cube."""

    # variables --------------------------------------------------------------------------------

    def declare(self, variable: Name) -> None:
        self._room(f"%x{variable.number}", held(variable.type), _alignment(variable.type))

    def assign(self, variable: Name, value: Atom) -> None:
        kind = held(variable.type)
        self.code.do(f"store {kind} {self.atom(value)}, ptr %x{variable.number}")

    def read(self, variable: Name) -> str:
        return self.code.add(f"load {held(variable.type)}, ptr %x{variable.number}")

    # control flow -----------------------------------------------------------------------------

    def loop(self, loop: ir.For) -> None:
        code, number = self.code, loop.index.number
        start, stop, step = self.atom(loop.start), self.atom(loop.stop), self.atom(loop.step)
        body, again, leave = code.label("body"), code.label("next"), code.label("done")
        index, following, before = f"%i{number}", f"%n{number}", code.here
        code.go_if(code.add(f"icmp slt i64 {start}, {stop}"), body, leave)
        code.mark(body)
        code.do(f"{index} = phi i64 [ {start}, %{before} ], [ {following}, %{again} ]")
        self.names[number] = index
        self._inside(loop.body, again, leave)
        code.mark(again)
        code.do(f"{following} = add nsw i64 {index}, {step}")
        code.go_if(code.add(f"icmp slt i64 {following}, {stop}"), body, leave, LOOP)
        code.mark(leave)

    def forever(self, loop: ir.Loop) -> None:
        code = self.code
        body, leave = code.label("body"), code.label("done")
        code.go(body)
        code.mark(body)
        self._inside(loop.body, body, leave)
        code.mark(leave)

    def branch(self, branch: ir.If) -> bool:
        code = self.code
        then, join = code.label("then"), code.label("join")
        other = code.label("else") if branch.orelse else join
        code.go_if(self.atom(branch.condition), then, other)
        sides = [self._side(then, branch.then, join)]
        sides.append(self._side(other, branch.orelse, join) if branch.orelse else True)
        if any(sides):
            code.mark(join)
        return any(sides)

    def leave(self) -> None:
        self.code.go(self.jumps[-1].leave)

    def again(self) -> None:
        self.code.go(self.jumps[-1].again)

    def finish(self) -> None:
        self.code.go("next")

    def _inside(self, body: tuple[ir.Stmt, ...], again: str, leave: str) -> None:
        self.jumps.append(_Jumps(again, leave))
        if self.block(body):
            self.code.go(again)
        self.jumps.pop()

    def _side(self, label: str, body: tuple[ir.Stmt, ...], join: str) -> bool:
        self.code.mark(label)
        goes_on = self.block(body)
        if goes_on:
            self.code.go(join)
        return goes_on

    # functions --------------------------------------------------------------------------------

    def _arguments(self) -> list[tuple[str, str, str]]:
        """Type, attributes and name of the body's arguments before begin and end."""
        buffers = [("ptr", _attributes(b), f"%b{b.number}") for b in self.kernel.buffers]
        scalars = [(held(s.type), "", f"%s{s.number}") for s in self.kernel.scalars]
        count = [("i64", "", "%cubes")] if self.counts_cubes else []
        return buffers + scalars + count

    def _body(self, arguments: list[tuple[str, str, str]]) -> list[str]:
        parameters = "".join(f"{type}{facts} {name}, " for type, facts, name in arguments)
        parameters += "i64 %begin, i64 %end"
        # x86 orders streaming stores with nothing but a fence
        fence = ["  fence seq_cst"] if self.memory.streams else []
        return [
            f'define internal void @"{self.name}.body"({parameters}) nounwind {{',
            "entry:",
            *self.entry,
            *self.tiles.prologue(),
            "  %some = icmp slt i64 %begin, %end",
            "  br i1 %some, label %cube, label %done",
            "cube:",
            "  %cube.x = phi i64 [ %begin, %entry ], [ %cube.next, %next ]",
            *self.code.lines,
            "next:",
            "  %cube.next = add nsw i64 %cube.x, 1",
            "  %more = icmp slt i64 %cube.next, %end",
            f"  br i1 %more, label %cube, label %done{LOOP}",
            "done:",
            *fence,
            *self.tiles.epilogue(),
            "  ret void",
            "}",
        ]

    def _door(self, arguments: list[tuple[str, str, str]]) -> list[str]:
        count = len(self.kernel.buffers)
        code = Code()
        for place, (_, _, name) in enumerate(arguments[:count]):
            code.do(f"{name}.at = getelementptr ptr, ptr %buffers, i64 {place}")
            code.do(f"{name} = load ptr, ptr {name}.at")
        for place, (type, _, name) in enumerate(arguments[count:]):
            code.do(f"{name}.at = getelementptr i64, ptr %scalars, i64 {place}")
            _decode(code, type, name)
        passed = "".join(f"{type} {name}, " for type, _, name in arguments)
        code.do(f'call void @"{self.name}.body"({passed}i64 %begin, i64 %end)')
        parameters = "ptr noalias readonly %buffers, ptr noalias readonly %scalars"
        parameters += ", i64 %begin, i64 %end"
        return [
            f'define void @"{self.name}"({parameters}) nounwind {{',
            *code.lines,
            "  ret void",
            "}",
        ]


def _decode(code: Code, type: str, name: str) -> None:
    """A scalar from the low bits of its cell; cells are little endian, as the machines are."""
    if type == "i1":
        byte = code.add(f"load i8, ptr {name}.at")
        code.do(f"{name} = trunc i8 {byte} to i1")
    else:
        code.do(f"{name} = load {type}, ptr {name}.at")


def _attributes(buffer: Buffer) -> str:
    """What LLVM may assume of a buffer; an `inout` buffer may be another `inout` buffer, too."""
    return {"in": " noalias readonly", "out": " noalias", "inout": ""}[buffer.access]


def _alignment(type: Type) -> int:
    """Natural alignment of a variable: its size up to a power of two, at most a cache line."""
    size = max(size_of(type.dtype) * type.lanes, 1)
    return min(1 << (size - 1).bit_length(), ALIGNMENT)
