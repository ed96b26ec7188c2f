"""Loads, stores and atomic updates as LLVM instructions: neighbours as vectors, masked or not;
lines of indices as gathers and scatters, unless they turn out to be neighbours."""

from __future__ import annotations

from collections.abc import Callable

from xcube.lowering.cube import ir
from xcube.lowering.cube.ir import Atom, Buffer, Const, Name, Type
from xcube.lowering.emit import llvm_ops as ops
from xcube.lowering.emit.llvm_text import HELD, Code, held, line, overload, size_of, stored


class Memory:
    """Access to the buffers of one kernel."""

    def __init__(self, code: Code, atom: Callable[[Atom], str]) -> None:
        self._code = code
        self._atom = atom
        self.streams = False  # whether any store bypasses the caches
        self._lines: dict[int, ir.Let] = {}  # what an index may be made of
        self._masks: dict[int, int] = {}  # how many first lanes a known mask is

    def note(self, let: ir.Let) -> None:
        """Remember how a line was made, in case that it is an index."""
        if let.op in ("splat", "lane", "add"):
            self._lines[let.target.number] = let
        if (known := self._first(let)) is not None:
            self._masks[let.target.number] = known

    def load(self, load: ir.Load) -> str:
        """Emit a load; the text of the loaded value."""
        type, buffer, mask = load.target.type, load.buffer, load.mask
        if (start := self._start(load.index)) is None:
            return self._gather(load)
        if mask is None:
            return self._load_line(buffer, start, type.lanes)
        if type.lanes == 1:
            return self._load_where(buffer, start, self._atom(mask))
        memory, flags = line(stored(type.dtype), type.lanes), line("i1", type.lanes)
        function = f"llvm.masked.load.{overload(stored(type.dtype), type.lanes)}.p0"
        types = (f"ptr align {size_of(type.dtype)}", flags, memory)
        operands = (self._pointer(buffer, start), self._atom(mask), "zeroinitializer")
        return self._from_memory(self._code.call(function, memory, types, *operands), type)

    def store(self, store: ir.Store) -> None:
        """Emit a store."""
        type, mask = store.value.type, store.mask
        value = self._to_memory(self._atom(store.value), type)
        if (start := self._start(store.index)) is None:
            self._scatter(store, value)
        elif mask is None:
            self._store_line(store, start, value)
        elif type.lanes == 1:
            self._store_where(store, start, value, self._atom(mask))
        elif isinstance(mask, Name) and (count := self._masks.get(mask.number)) is not None:
            self._store_first(store, start, value, count)
        else:
            memory, flags = line(stored(type.dtype), type.lanes), line("i1", type.lanes)
            function = f"llvm.masked.store.{overload(stored(type.dtype), type.lanes)}.p0"
            types = (memory, f"ptr align {size_of(type.dtype)}", flags)
            pointer = self._pointer(store.buffer, start)
            self._code.run(function, types, value, pointer, self._atom(mask))

    def _first(self, let: ir.Let) -> int | None:
        """How many first lanes a comparison of the lanes' numbers with a literal chooses; None for
        everything else. Such a mask is written out: LLVM makes a store of one narrow lane, where it
        knows the mask, wider than the lane."""
        if let.op not in ("lt", "le") or not isinstance(let.args[1], Const):
            return None
        if not self._is_lane(let.args[0]):
            return None
        count = int(let.args[1].value) + (let.op == "le")
        return count if 0 <= count <= let.target.type.lanes else None

    def _store_first(self, store: ir.Store, start: str, value: str, count: int) -> None:
        """Store some first lanes."""
        if count == 0:
            return
        dtype = store.value.type.dtype
        type = Type("u8" if dtype == "bool" else dtype, store.value.type.lanes)
        part = (
            ops.shuffle(self._code, value, type, range(count))
            if count > 1
            else ops.extract(self._code, value, type, 0)
        )
        kind = line(stored(dtype), count)
        pointer = self._pointer(store.buffer, start)
        size = size_of(dtype)
        self._code.do(f"store {kind} {part}, ptr {pointer}, align {size}")

    def _start(self, index: Atom) -> str | None:
        """The first element where an index touches neighbours, else None."""
        if index.type.lanes == 1:
            return self._atom(index)
        let = self._lines.get(index.number) if isinstance(index, Name) else None
        if let is None or let.op == "splat":
            return None
        if let.op == "lane":
            return "0"
        first, second = let.args
        if self._is_lane(second):
            return self._repeated(first)
        return self._repeated(second) if self._is_lane(first) else None

    def _is_lane(self, atom: Atom) -> bool:
        let = self._lines.get(atom.number) if isinstance(atom, Name) else None
        return let is not None and let.op == "lane"

    def _repeated(self, index: Atom) -> str | None:
        """The scalar that a line of equal indices repeats, else None."""
        if isinstance(index, Const):
            return str(index.value)
        let = self._lines.get(index.number)
        return self._atom(let.args[0]) if let is not None and let.op == "splat" else None

    def _pointer(self, buffer: Buffer, index: str, lanes: int = 1) -> str:
        """The address of an element, or a line of addresses."""
        base = f"%b{buffer.number}" if buffer.space == "global" else f"%a{buffer.number}"
        if index == "0":
            return base
        indices = line("i64", lanes)
        return self._code.add(
            f"getelementptr {stored(buffer.dtype)}, ptr {base}, {indices} {index}"
        )

    def _load_line(self, buffer: Buffer, start: str, lanes: int) -> str:
        memory = line(stored(buffer.dtype), lanes)
        constant = buffer.space == "global" and buffer.access == "in"
        value = self._code.add(
            f"load {memory}, ptr {self._pointer(buffer, start)}, align {size_of(buffer.dtype)}"
            f"{', !invariant.load !0' if constant else ''}"
        )
        return self._from_memory(value, Type(buffer.dtype, lanes))

    def _load_where(self, buffer: Buffer, index: str, mask: str) -> str:
        code = self._code
        before, then, join = code.here, code.label("then"), code.label("join")
        code.go_if(mask, then, join)
        code.mark(then)
        value = self._load_line(buffer, index, 1)
        code.go(join)
        code.mark(join)
        kind = HELD[buffer.dtype]
        return code.add(f"phi {kind} [ {value}, %{then} ], [ zeroinitializer, %{before} ]")

    def _store_where(self, store: ir.Store, start: str, value: str, mask: str) -> None:
        code = self._code
        then, join = code.label("then"), code.label("join")
        code.go_if(mask, then, join)
        code.mark(then)
        self._store_line(store, start, value)
        code.go(join)
        code.mark(join)

    def _gather(self, load: ir.Load) -> str:
        type, buffer = load.target.type, load.buffer
        if load.mask is None and (repeated := self._repeated(load.index)) is not None:
            return ops.splat(self._code, self._load_line(buffer, repeated, 1), type)
        scalar = stored(type.dtype)
        memory = line(scalar, type.lanes)
        pointers, mask = self._scattered(buffer, load.index, load.mask)
        function = f"llvm.masked.gather.{overload(scalar, type.lanes)}.v{type.lanes}p0"
        types = (_pointers(type), line("i1", type.lanes), memory)
        value = self._code.call(function, memory, types, pointers, mask, "zeroinitializer")
        return self._from_memory(value, type)

    def _scatter(self, store: ir.Store, value: str) -> None:
        type = store.value.type
        scalar = stored(type.dtype)
        pointers, mask = self._scattered(store.buffer, store.index, store.mask)
        function = f"llvm.masked.scatter.{overload(scalar, type.lanes)}.v{type.lanes}p0"
        types = (line(scalar, type.lanes), _pointers(type), line("i1", type.lanes))
        self._code.run(function, types, value, pointers, mask)

    def _scattered(self, buffer: Buffer, index: Atom, mask: Atom | None) -> tuple[str, str]:
        pointers = self._pointer(buffer, self._atom(index), index.type.lanes)
        return pointers, "splat (i1 true)" if mask is None else self._atom(mask)

    def _store_line(self, store: ir.Store, start: str, value: str) -> None:
        type, buffer = store.value.type, store.buffer
        width = size_of(type.dtype)
        whole_line = width * type.lanes
        streaming = (
            store.streaming and buffer.space == "global" and not whole_line & (whole_line - 1)
        )
        self.streams |= streaming
        hints = f"align {whole_line}, !nontemporal !1" if streaming else f"align {width}"
        memory = line(stored(type.dtype), type.lanes)
        self._code.do(f"store {memory} {value}, ptr {self._pointer(buffer, start)}, {hints}")

    def _from_memory(self, value: str, type: Type) -> str:
        if type.dtype != "bool":
            return value
        return self._code.add(f"icmp ne {line('i8', type.lanes)} {value}, zeroinitializer")

    def _to_memory(self, value: str, type: Type) -> str:
        if type.dtype != "bool":
            return value
        return self._code.add(f"zext {held(type)} {value} to {line('i8', type.lanes)}")

    def atomic(self, atomic: ir.Atomic) -> str:
        """Emit an indivisible update of each lane's element; the text of the old values."""
        code, type = self._code, atomic.value.type
        index, value = self._atom(atomic.index), self._atom(atomic.value)
        if type.lanes == 1:
            return self._atomic_element(atomic, index, value)
        result = "poison"
        for lane in range(type.lanes):
            at = (
                code.add(f"add i64 {index}, {lane}")
                if atomic.index.type.lanes == 1
                else ops.extract(code, index, atomic.index.type, lane)
            )
            part = ops.extract(code, value, type, lane)
            old = self._atomic_element(atomic, at, part)
            result = code.add(
                f"insertelement {held(type)} {result}, {HELD[type.dtype]} {old}, i64 {lane}"
            )
        return result

    def _atomic_element(self, atomic: ir.Atomic, index: str, value: str) -> str:
        type = Type(atomic.buffer.dtype)
        pointer = self._pointer(atomic.buffer, index)
        if atomic.op in ("load", "store"):
            return self._moved(atomic, pointer, value)
        instruction = _atomic_instruction(atomic.op, type.dtype)
        if instruction is None:
            return self._update(atomic.op, type, pointer, value)
        value = self._to_memory(value, type)
        old = self._code.add(
            f"atomicrmw {instruction} ptr {pointer}, {stored(type.dtype)} {value} monotonic"
        )
        return self._from_memory(old, type)

    def _moved(self, atomic: ir.Atomic, pointer: str, value: str) -> str:
        """An atomic load or store."""
        type = Type(atomic.buffer.dtype)
        kind, align = stored(type.dtype), size_of(type.dtype)
        if atomic.op == "store":
            raw = self._to_memory(value, type)
            self._code.do(f"store atomic {kind} {raw}, ptr {pointer} monotonic, align {align}")
            return value
        found = self._code.add(f"load atomic {kind}, ptr {pointer} monotonic, align {align}")
        return self._from_memory(found, type)

    def compare_exchange(self, exchange: ir.CompareExchange) -> str:
        """Emit an indivisible comparison of bits and exchange; the text of the old value."""
        code, type = self._code, Type(exchange.buffer.dtype)
        kind, bits = stored(type.dtype), f"i{ir.BITS[type.dtype]}"
        pointer = self._pointer(exchange.buffer, self._atom(exchange.index))
        pair = [self._to_memory(self._atom(x), type) for x in (exchange.expected, exchange.value)]
        if kind != bits:
            pair = [code.add(f"bitcast {kind} {x} to {bits}") for x in pair]
        operands = f"{bits} {pair[0]}, {bits} {pair[1]}"
        found = code.add(f"cmpxchg ptr {pointer}, {operands} acq_rel monotonic")
        old = code.add(f"extractvalue {{ {bits}, i1 }} {found}, 0")
        old = old if kind == bits else code.add(f"bitcast {bits} {old} to {kind}")
        return self._from_memory(old, type)

    def _update(self, op: str, type: Type, pointer: str, value: str) -> str:
        """Compare and exchange until no other cube came between."""
        code, kind, bits = self._code, held(type), f"i{ir.BITS[type.dtype]}"
        before, again, done = code.here, code.label("again"), code.label("done")
        first = code.add(
            f"load atomic {bits}, ptr {pointer} monotonic, align {size_of(type.dtype)}"
        )
        code.go(again)
        code.mark(again)
        seen = code.label("%seen")
        old = code.add(f"phi {bits} [ {first}, %{before} ], [ {seen}, %{again} ]")
        held_old = old if kind == bits else code.add(f"bitcast {bits} {old} to {kind}")
        new = ops.compute(code, op, type, [held_old, value])
        new = new if kind == bits else code.add(f"bitcast {kind} {new} to {bits}")
        pair = code.add(f"cmpxchg ptr {pointer}, {bits} {old}, {bits} {new} monotonic monotonic")
        code.do(f"{seen} = extractvalue {{ {bits}, i1 }} {pair}, 0")
        swapped = code.add(f"extractvalue {{ {bits}, i1 }} {pair}, 1")
        code.go_if(swapped, done, again)
        code.mark(done)
        return held_old


def _pointers(type: Type) -> str:
    return f"<{type.lanes} x ptr> align {size_of(type.dtype)}"


def _atomic_instruction(op: str, dtype: str) -> str | None:
    """The instruction of an update, or None where it takes a loop."""
    if op == "exchange":
        return "xchg"
    if dtype in ir.FLOATS:
        return f"f{op}" if op in ("add", "sub") and dtype in ("f32", "f64") else None
    if op in ("min", "max"):
        return op if dtype in ir.SIGNED else f"u{op}"
    return op
