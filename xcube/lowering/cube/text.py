"""The canonical text of a kernel: debug view, golden test and cache key in one.

Names are renumbered in order of appearance and literals are written in full, so two kernels have
the same text exactly when they are the same program. A literal carries its type, except scalar
indices, which stand bare.

    kernel scale(b0: in f32, b1: out f32, %0: index) cube_dim 1 1 1 {
      %1:index = cube_pos.x
      %2:bool = lt %1, %0
      if %2 {
        %3:f32 = load b0[%1]
        %4:f32 = mul %3, 2.0:f32
        store b1[%1] = %4
      }
    }
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from xcube.lowering.cube import ir
from xcube.lowering.cube.ir import Atom, Buffer, Const, Kernel, Name, Stmt, Type

_INDENT = "  "
_SPELLING = {"global": "b", "shared": "shared", "local": "local"}
_FLOAT = frozenset(ir.FLOATS)
_NAN = "7ff8000000000000"


def text(kernel: Kernel) -> str:
    """The canonical text of a kernel under its own name.

    >>> from xcube.lowering.cube.build import Builder
    >>> build = Builder("one")
    >>> out = build.buffer("f32", "out")
    >>> build.store(out, 0, build.constant(1, "f32"))
    >>> print(text(build.finish()))
    kernel one(b0: out f32) cube_dim 1 1 1 {
      store b0[0] = 1.0:f32
    }
    """
    return _render(kernel, kernel.name)


def key(kernel: Kernel) -> str:
    """The canonical text under a fixed name: equal for kernels that differ in name alone.

    >>> from xcube.lowering.cube.build import Builder
    >>> key(Builder("one").finish()) == key(Builder("two").finish())
    True
    """
    return _render(kernel, "_")


def excerpt(kernel: Kernel, statement: Stmt | None, around: int = 5) -> str:
    """The numbered lines around a statement (by identity; None is the header), it marked by `>`.

    >>> from xcube.lowering.cube.build import Builder
    >>> build = Builder("meet")
    >>> build.sync()
    >>> kernel = build.finish()
    >>> print(excerpt(kernel, kernel.body[0]))
    In kernel meet, line 2: sync
        1 | kernel meet() cube_dim 1 1 1 {
      > 2 |   sync
        3 | }
    """
    lines = text(kernel).split("\n")
    here = 0 if statement is None else _find(kernel.body, statement, 1)
    assert here is not None, "excerpt: the statement is not in the kernel"
    shown = range(max(0, here - around), min(len(lines), here + around + 1))
    width = len(str(shown[-1] + 1))
    marked = [f"  {'>' if k == here else ' '} {k + 1:{width}} | {lines[k]}" for k in shown]
    return "\n".join([f"In kernel {kernel.name}, line {here + 1}: {lines[here].strip()}", *marked])


def _find(body: tuple[Stmt, ...], wanted: Stmt, line: int) -> int | None:
    """Line number of a statement (from 0), where the body starts at `line`."""
    for statement in body:
        if statement is wanted:
            return line
        line += 1
        for block in _blocks(statement):
            if (found := _find(block, wanted, line)) is not None:
                return found
            line += _height(block) + 1
    return None


def _height(body: tuple[Stmt, ...]) -> int:
    return sum(1 + sum(_height(block) + 1 for block in _blocks(s)) for s in body)


def _blocks(statement: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    match statement:
        case ir.For(body=body) | ir.Loop(body=body):
            return (body,)
        case ir.If(then=then, orelse=orelse):
            return (then, orelse) if orelse else (then,)
        case _:
            return ()


class _Numbers(dict[int, str]):
    """Number of a value to its printed name, given at first sight."""

    def __missing__(self, number: int) -> str:
        name = self[number] = f"%{len(self)}"
        return name


class _Memories(dict[tuple[str, int], str]):
    """Space and number of a buffer to its printed name, given at first sight."""

    def __missing__(self, place: tuple[str, int]) -> str:
        name = self[place] = f"{_SPELLING[place[0]]}{len(self)}"
        return name


class _Writer:
    __slots__ = ("buffers", "lines", "names")

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names = _Numbers()
        self.buffers = _Memories()

    def atom(self, atom: Atom) -> str:
        return self.names[atom.number] if isinstance(atom, Name) else _literal(atom)

    def define(self, target: Name) -> str:
        type = target.type
        if type.lanes == 1:
            return f"{self.names[target.number]}:{type.dtype}"
        return f"{self.names[target.number]}:{type.dtype}x{type.lanes}"

    def memory(self, buffer: Buffer) -> str:
        return self.buffers[buffer.space, buffer.number]

    def block(self, body: tuple[Stmt, ...], pad: str) -> None:
        for statement in body:
            _WRITE[type(statement)](self, statement, pad)


def _render(kernel: Kernel, name: str) -> str:
    writer = _Writer()
    heads = [f"{writer.memory(b)}: {b.access} {b.dtype}" for b in kernel.buffers]
    heads += [f"{writer.atom(scalar)}: {scalar.type}" for scalar in kernel.scalars]
    dim = " ".join(map(str, kernel.cube_dim))
    tail = "".join([_map(writer, each) for each in kernel.maps])
    tail += f" resident {kernel.resident}" if kernel.resident else ""
    writer.lines.append(f"kernel {name}({', '.join(heads)}) cube_dim {dim}{tail} {{")
    writer.block(kernel.body, _INDENT)
    writer.lines.append("}")
    return "\n".join(writer.lines)


def _literal(const: Const) -> str:
    value, type = const.value, const.type
    if type.dtype in _FLOAT:
        return f"{_float(float(value))}:{_type(type)}"
    if type.dtype == "bool":
        return f"{'true' if value else 'false'}:{_type(type)}"
    bare = type.dtype == "index" and type.lanes == 1
    return f"{int(value)}" if bare else f"{int(value)}:{_type(type)}"


def _float(value: float) -> str:
    if value == value:
        return repr(value)
    bits = struct.pack(">d", value).hex()
    return "nan" if bits == _NAN else f"nan(0x{bits})"


def _type(type: Type) -> str:
    return type.dtype if type.lanes == 1 else f"{type.dtype}x{type.lanes}"


def _let(w: _Writer, s: ir.Let, pad: str) -> None:
    names = w.names
    args = [names[a.number] if isinstance(a, Name) else _literal(a) for a in s.args]
    tail = f" {', '.join(args)}" if args else ""
    if s.attrs:
        tail += f" {list(s.attrs)}"
    w.lines.append(f"{pad}{w.define(s.target)} = {s.op}{tail}")


def _load(w: _Writer, s: ir.Load, pad: str) -> None:
    mask = "" if s.mask is None else f" mask {w.atom(s.mask)}"
    target = w.define(s.target)
    w.lines.append(f"{pad}{target} = load {w.memory(s.buffer)}[{w.atom(s.index)}]{mask}")


def _store(w: _Writer, s: ir.Store, pad: str) -> None:
    mask = "" if s.mask is None else f" mask {w.atom(s.mask)}"
    streaming = " streaming" if s.streaming else ""
    place = f"{w.memory(s.buffer)}[{w.atom(s.index)}]"
    w.lines.append(f"{pad}store {place} = {w.atom(s.value)}{mask}{streaming}")


def _declare(w: _Writer, s: ir.Declare, pad: str) -> None:
    w.lines.append(f"{pad}var {w.define(s.variable)} = {w.atom(s.init)}")


def _assign(w: _Writer, s: ir.Assign, pad: str) -> None:
    w.lines.append(f"{pad}{w.atom(s.variable)} := {w.atom(s.value)}")


def _read(w: _Writer, s: ir.Read, pad: str) -> None:
    w.lines.append(f"{pad}{w.define(s.target)} = read {w.atom(s.variable)}")


def _for(w: _Writer, s: ir.For, pad: str) -> None:
    bounds = f"{w.atom(s.start)} .. {w.atom(s.stop)} step {w.atom(s.step)}"
    w.lines.append(f"{pad}for {w.define(s.index)} in {bounds} {{")
    w.block(s.body, pad + _INDENT)
    w.lines.append(pad + "}")


def _if(w: _Writer, s: ir.If, pad: str) -> None:
    w.lines.append(f"{pad}if {w.atom(s.condition)} {{")
    w.block(s.then, pad + _INDENT)
    if s.orelse:
        w.lines.append(pad + "} else {")
        w.block(s.orelse, pad + _INDENT)
    w.lines.append(pad + "}")


def _loop(w: _Writer, s: ir.Loop, pad: str) -> None:
    w.lines.append(pad + "loop {")
    w.block(s.body, pad + _INDENT)
    w.lines.append(pad + "}")


def _allocate(w: _Writer, s: ir.Allocate, pad: str) -> None:
    over = s.buffer.over
    tail = "" if over is None else f" over {w.buffers['shared', over]}"
    w.lines.append(f"{pad}{w.memory(s.buffer)} = allocate {s.buffer.dtype}[{s.buffer.size}]{tail}")


def _atomic(w: _Writer, s: ir.Atomic, pad: str) -> None:
    place = f"{w.memory(s.buffer)}[{w.atom(s.index)}]"
    w.lines.append(f"{pad}{w.define(s.target)} = atomic {s.op} {place}, {w.atom(s.value)}")


def _compare_exchange(w: _Writer, s: ir.CompareExchange, pad: str) -> None:
    place = f"{w.memory(s.buffer)}[{w.atom(s.index)}]"
    operands = f"{w.atom(s.expected)}, {w.atom(s.value)}"
    w.lines.append(f"{pad}{w.define(s.target)} = compare_exchange {place}, {operands}")


def _plane(w: _Writer, s: ir.Plane, pad: str) -> None:
    operands = ", ".join([w.atom(x) for x in (s.value, s.argument) if x is not None])
    w.lines.append(f"{pad}{w.define(s.target)} = plane {s.op} {operands}")


def _message(w: _Writer, format: str, args: tuple[Atom, ...]) -> str:
    return ", ".join([repr(format), *map(w.atom, args)])


def _map(w: _Writer, map: ir.TileMap) -> str:
    sizes, strides = (", ".join([w.atom(name) for name in names])
                      for names in (map.sizes, map.strides))  # fmt: skip
    box = " ".join([str(size) for size in map.box])
    return f" map m{map.number}({w.memory(map.buffer)}; {sizes}; {strides}) box {box}"


def _copy_tile(w: _Writer, s: ir.CopyTile, pad: str) -> None:
    place = ", ".join([w.atom(atom) for atom in s.place])
    target, barrier = f"{w.memory(s.target)}[{w.atom(s.at)}]", _barrier(w, s)
    w.lines.append(f"{pad}copy {target} <- m{s.map.number}[{place}] at {barrier}")


def _barrier(w: _Writer, s: ir.CopyTile | ir.SetBarrier | ir.Arrive | ir.Await) -> str:
    return f"{w.memory(s.barriers)}[{w.atom(s.barrier)}]"


def _set_registers(w: _Writer, s: ir.SetRegisters, pad: str) -> None:
    w.lines.append(f"{pad}registers {'up' if s.grows else 'down'} to {s.count}")


def _line(text: Callable[[_Writer, Any], str]) -> Callable[[_Writer, Any, str], None]:
    return lambda w, s, pad: w.lines.append(pad + text(w, s))


def _copy_async(w: _Writer, s: ir.CopyAsync, pad: str) -> None:
    target, source = (
        f"{w.memory(buffer)}[{w.atom(at)}]"
        for buffer, at in ((s.target, s.at), (s.source, s.index))
    )
    valid = "" if s.valid is None else f" where {w.atom(s.valid)}"
    w.lines.append(f"{pad}copy {target} <- {source} x{s.lanes}{valid}")


def _load_matrices(w: _Writer, s: ir.LoadMatrices, pad: str) -> None:
    place = f"{w.memory(s.buffer)}[{w.atom(s.index)}]"
    transposed = " transposed" if s.transposed else ""
    w.lines.append(f"{pad}{w.define(s.target)} = load matrices {place}{transposed}")


def _multiply_matrices(w: _Writer, s: ir.MultiplyMatrices, pad: str) -> None:
    operands = ", ".join(map(w.atom, (s.left, s.right, s.sum)))
    w.lines.append(f"{pad}{w.define(s.target)} = multiply matrices {operands}")


def _panel(w: _Writer, panel: ir.Panel) -> str:
    layout = "deep" if panel.deep else f"wide {panel.apart}"
    return f"{w.memory(panel.buffer)}[{w.atom(panel.index)}] {layout}"


def _multiply_panels(w: _Writer, s: ir.MultiplyPanels, pad: str) -> None:
    left = _panel(w, s.left) if isinstance(s.left, ir.Panel) else w.atom(s.left)
    operands = f"{left}, {_panel(w, s.right)}"
    tail = f"steps {s.steps} fresh {w.atom(s.fresh)}"
    w.lines.append(f"{pad}multiply panels {w.atom(s.sums)} += {operands} {tail}")


def _wait_products(w: _Writer, s: ir.WaitProducts, pad: str) -> None:
    names = "".join([f" {w.atom(name)}" for name in s.sums])
    w.lines.append(f"{pad}wait products {s.pending}{names}")


def _tile(word: str) -> Callable[[_Writer, Any, str], None]:
    return _line(
        lambda w, s: (
            f"{word} tile {s.tile}, {w.memory(s.buffer)}[{w.atom(s.index)}] by {w.atom(s.stride)}"
        )
    )


def _multiply_tiles(s: ir.MultiplyTiles) -> str:
    left, right = s.kinds
    return f"multiply tiles {s.sum} += {s.left} {left}, {s.right} {right}"


def _word(word: str) -> Callable[[_Writer, Any, str], None]:
    return lambda w, s, pad: w.lines.append(pad + word)


_WRITE: dict[type, Callable[[_Writer, Any, str], None]] = {
    ir.Let: _let,
    ir.Load: _load,
    ir.Store: _store,
    ir.Declare: _declare,
    ir.Assign: _assign,
    ir.Read: _read,
    ir.For: _for,
    ir.If: _if,
    ir.Loop: _loop,
    ir.Break: _word("break"),
    ir.Continue: _word("continue"),
    ir.Return: _word("return"),
    ir.Allocate: _allocate,
    ir.Atomic: _atomic,
    ir.CompareExchange: _compare_exchange,
    ir.Sync: _word("sync"),
    ir.Plane: _plane,
    ir.Print: _line(lambda w, s: f"print {_message(w, s.format, s.args)}"),
    ir.Assert: _line(lambda w, s: f"assert {w.atom(s.condition)} {_message(w, s.message, s.args)}"),
    ir.CopyAsync: _copy_async,
    ir.CommitCopies: _word("commit copies"),
    ir.WaitCopies: _line(lambda w, s: f"wait copies {s.pending}"),
    ir.LoadMatrices: _load_matrices,
    ir.MultiplyMatrices: _multiply_matrices,
    ir.MultiplyPanels: _multiply_panels,
    ir.WaitProducts: _wait_products,
    ir.CopyTile: _copy_tile,
    ir.SetBarrier: _line(lambda w, s: f"barrier {_barrier(w, s)} of {s.arrivals}"),
    ir.Arrive: _line(lambda w, s: f"arrive {_barrier(w, s)} bytes {s.nbytes}"),
    ir.Await: _line(lambda w, s: f"await {_barrier(w, s)} parity {w.atom(s.parity)}"),
    ir.SyncPlane: _word("sync plane"),
    ir.SetRegisters: _set_registers,
    ir.ZeroTile: _line(lambda w, s: f"zero tile {s.tile}"),
    ir.LoadTile: _tile("load"),
    ir.StoreTile: _tile("store"),
    ir.MultiplyTiles: _line(lambda w, s: _multiply_tiles(s)),
}
