"""Emits a cube kernel as CUDA C++ without headers, for NVRTC.

The first line of a text says how to launch it, for the device and for readers:

    // cube_dim 1 1 1 threads 256 shared 0 scratch 0

The parameters are the buffers' pointers, then every scalar as a cell of 64 bits (its value in the
low bits), then the number of cubes as a 64-bit integer, then, if `scratch` is not 0, one pointer
more. Every buffer starts at a multiple of 256 bytes.

A text that reads buffers by boxes has more on that line, ` map B:dtype:sizes:strides:box` for each
map, where B is the number of the buffer, sizes and strides are the numbers of scalars (innermost
dimension first), and the maps are the last parameters, each a tensor map of the driver.

- A cube of one unit is one thread: blocks of up to `threads` threads, as many as the cubes take; a
  thread without a cube returns. Its shared and local arrays are the thread's own local memory. If
  they exceed PRIVATE_LIMIT, for which the driver would reserve room for all threads that fit the
  device, they lie in `scratch` bytes for each thread of the grid, in global memory that the launch
  brings; the grid may then have fewer threads than there are cubes, and each takes every n-th cube.
- A cube of several units is a block of dimensions `cube_dim`, and the grid has a block for each
  cube. Shared arrays lie in `shared` bytes of dynamic shared memory.

An access to neighbours moves up to 16 bytes at once: outright if the index arithmetic shows that it
is aligned, else after asking the address. So let a kernel multiply by the lanes last."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from xcube.errors import LoweringError
from xcube.lowering.cube import ir
from xcube.lowering.cube.ir import Atom, Buffer, Kernel
from xcube.lowering.emit import cuda_matrix, cuda_ops, cuda_planes
from xcube.lowering.emit.c_like import CLike, Lanes
from xcube.lowering.emit.cuda_definitions import definitions, size_of, word_byte

THREADS = 256  # the most threads of a block that runs cubes of one unit
PRIVATE_LIMIT = 4096  # bytes of a thread's own arrays that stay in its local memory
SHARED_LIMIT = 227 * 1024  # bytes of shared memory that a block of the largest devices may have
UNITS_LIMIT = 1024
ACCESS = 16  # bytes of the widest access, and the alignment of every array


def emit(kernel: Kernel, name: str = "kernel") -> str:
    """The CUDA C++ text of a kernel whose entry is called `name`.

    Raises LoweringError if a cube has more units or shared memory than any block can have.

    >>> from xcube.lowering.cube.build import Builder
    >>> build = Builder("twice")
    >>> x, y = build.buffer("f32"), build.buffer("f32", "out")
    >>> at = build.place("cube_pos.x")
    >>> build.store(y, at, build.load(x, at) * 2.0)
    >>> print(emit(build.finish()))
    // cube_dim 1 1 1 threads 256 shared 0 scratch 0
    typedef float f32;
    typedef long long index;
    <BLANKLINE>
    extern "C" __global__ void __launch_bounds__(256)
    kernel(const f32* __restrict__ b0, f32* __restrict__ b1, index cubes) {
      const index cube = (index)blockIdx.x * blockDim.x + threadIdx.x;
      if (cube >= cubes) return;
      const f32 v1 = b0[cube];
      const f32 v2 = v1 * 2.0f;
      b1[cube] = v2;
    }
    <BLANKLINE>
    """
    return _Text(kernel, name).text()


class _Text(CLike):
    """One kernel on its way to text."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        super().__init__()
        self.kernel = kernel
        self.name = name
        self.units = math.prod(kernel.cube_dim)
        self.matrices = cuda_matrix.Matrices(self)
        arrays = list(_arrays(kernel.body))
        own = [b for b in arrays if self._is_private(b)]
        self.shared, shared_bytes = _laid_out([b for b in arrays if not self._is_private(b)])
        self.scratch, own_bytes = _laid_out(own)
        if self.units > 1 or own_bytes <= PRIVATE_LIMIT:
            self.scratch, own_bytes = {}, 0
        self.shared_bytes, self.scratch_bytes = shared_bytes, own_bytes
        _check(kernel, self.units, shared_bytes)

    def text(self) -> str:
        """The whole text."""
        arguments, decoded = self._arguments()
        self.depth += self.scratch_bytes > 0
        self.block(self.kernel.body)
        x, y, z = self.kernel.cube_dim
        head = (
            f"// cube_dim {x} {y} {z} threads {self._threads()} "
            f"shared {self.shared_bytes} scratch {self.scratch_bytes}"
            f"{cuda_matrix.described(self.kernel)}"
        )
        function = [
            f'extern "C" __global__ void __launch_bounds__({self._bounds()})',
            f"{self.name}({', '.join(arguments)}) {{",
            *decoded,
            *self._around(self.code),
            "}",
            "",
        ]
        whole = "\n".join(function)
        return "\n".join([head, *definitions(whole), "", whole])

    def _bounds(self) -> str:
        """Threads of a block, and how many blocks share a core where the kernel says so."""
        resident = self.kernel.resident
        return f"{self._threads()}, {resident}" if resident else f"{self._threads()}"

    def _threads(self) -> int:
        return THREADS if self.units == 1 else self.units

    def _arguments(self) -> tuple[list[str], list[str]]:
        """Parameters, and the lines that make scalars of their cells."""
        arguments, decoded = [_parameter(buffer) for buffer in self.kernel.buffers], []
        for scalar in self.kernel.scalars:
            name, dtype = self.fresh("s"), scalar.type.dtype
            self.names[scalar.number] = name
            if ir.BITS[dtype] == 64:
                arguments.append(f"{dtype} {name}")
                continue
            arguments.append(f"u64 {name}_cell")
            decoded.append(f"  {self.named(dtype, name)} = {_decoded(f'{name}_cell', dtype)};")
        scratch = ["u8* scratch"] if self.scratch_bytes else []
        maps = cuda_matrix.parameters(self.kernel)
        return [*arguments, "index cubes", *scratch, *maps], decoded

    def _around(self, body: list[str]) -> list[str]:
        """The body for the cube, or the cubes, of this thread."""
        thread = "(index)blockIdx.x * blockDim.x + threadIdx.x"
        if self.units > 1:
            align = cuda_matrix.ALIGN if self.matrices.panels else ACCESS
            shared = f"  extern __shared__ __align__({align}) u8 shared[];"
            return [*([shared] if self.shared else []), "  const index cube = blockIdx.x;", *body]
        if not self.scratch_bytes:
            return [f"  const index cube = {thread};", "  if (cube >= cubes) return;", *body]
        step = "(index)gridDim.x * blockDim.x"
        return [
            f"  const index thread = {thread};",
            f"  scratch += thread * {self.scratch_bytes};",
            f"  for (index cube = thread; cube < cubes; cube += {step}) {{{{",
            *body,
            f"  }}{' next:;' if _returns(body) else ''}}}",
        ]

    def _is_private(self, buffer: Buffer) -> bool:
        """Whether no other unit sees an array."""
        return buffer.space == "local" or (buffer.space == "shared" and self.units == 1)

    # values -------------------------------------------------------------------------------------

    def number(self, value: int | float | bool, dtype: str) -> str:
        return cuda_ops.number(value, dtype)

    def named(self, dtype: str, name: str) -> str:
        return f"const {dtype} {name}"

    def variable(self, dtype: str, name: str) -> str:
        return f"{dtype} {name}"

    def operate(self, let: ir.Let) -> str:
        types = [let.args[0].type, let.target.type] if let.args else []
        if let.op == "bitcast" and types[0].lanes != types[1].lanes:
            return " ".join(self._regrouped(self.lanes(let.args[0]), types[0].dtype, types[1]))
        if let.op == "cast" and self.matrices.packs(*types):
            return " ".join(self.matrices.packed(self.lanes(let.args[0]), types[1].dtype))
        return super().operate(let)

    def _regrouped(self, lanes: Lanes, source: str, target: ir.Type) -> list[str]:
        """The same bits in lanes of another width."""
        if len(lanes) < target.lanes:
            parts = target.lanes // len(lanes)
            rows = [cuda_ops.parted(lane, source, target.dtype, parts) for lane in lanes]
            return [part for row in rows for part in row]
        parts = len(lanes) // target.lanes
        rows = [lanes[k : k + parts] for k in range(0, len(lanes), parts)]
        return [self.bind(target.dtype, cuda_ops.joined(row, source, target.dtype)) for row in rows]

    def expression(self, let: ir.Let, args: Lanes) -> str:
        return cuda_ops.expression(let, args)

    def combined(self, op: str, dtype: str, x: str, y: str) -> str:
        return cuda_ops.compute(op, dtype, (x, y))

    def place(self, place: str, axis: str) -> str:
        number = "xyz".index(axis)
        if place == "cube_dim":
            return str(self.kernel.cube_dim[number])
        if place == "unit_pos":
            alone = self.kernel.cube_dim[number] == 1
            return "0" if alone else f"(index)threadIdx.{axis}"
        if axis == "x":
            return "cube" if place == "cube_pos" else "cubes"
        return "0" if place == "cube_pos" else "1"

    # memory -------------------------------------------------------------------------------------

    def element(self, buffer: Buffer, place: str) -> str:
        text = f"{_pointer(buffer)}[{place}]"
        return f"{text} != 0" if buffer.dtype == "bool" else text

    def guarded(self, mask: str, value: str, dtype: str) -> str:
        return f"{mask} ? {value} : {self.number(0, dtype)}"

    def write(self, buffer: Buffer, place: str, value: str) -> str:
        return f"{_pointer(buffer)}[{place}] = {value}"

    def load_line(self, buffer: Buffer, start: Atom, lanes: int) -> list[str]:
        width = _chunk(buffer, lanes)
        chunk = f"{_stored(buffer.dtype)}x{width}"
        found: list[str] = []
        for place in self._chunks(start, lanes, width):
            if width == 1:
                found.append(self.bind(buffer.dtype, self.element(buffer, place)))
                continue
            at = f"{_pointer(buffer)} + {place}"
            aligned = self.indices.divisor(start) % width == 0
            if aligned and size_of(buffer.dtype) == 1 and width >= 4:
                words = f"u32x{width // 4}"
                line = self.bind(words, f"*(const {words}*)({at})")
                byte = _stored(buffer.dtype)
                parts = [f"({byte})({word_byte(line, lane)})" for lane in range(width)]
                found += [self.bind(byte, part) for part in parts]
                continue
            line = self.bind(
                chunk, f"*(const {chunk}*)({at})" if aligned else f"load_{chunk}({at})"
            )
            found += [f"{line}.at[{lane}]" for lane in range(width)]
        if buffer.dtype != "bool" or width == 1:
            return found
        return [self.bind("bool", f"{lane} != 0") for lane in found]

    def store_line(self, store: ir.Store, start: Atom, values: Lanes) -> None:
        width = _chunk(store.buffer, len(values))
        chunk = f"{_stored(store.buffer.dtype)}x{width}"
        aligned = store.streaming or self.indices.divisor(start) % width == 0
        for number, place in enumerate(self._chunks(start, len(values), width)):
            part = values[number * width : (number + 1) * width]
            at, line = f"{_pointer(store.buffer)} + {place}", f"{chunk}{{{', '.join(part)}}}"
            if width == 1:
                self.do(f"{self.write(store.buffer, place, part[0])};")
            elif aligned:
                self.do(f"*({chunk}*)({at}) = {line};")
            else:
                self.do(f"store_{chunk}({at}, {line});")

    def _chunks(self, start: Atom, lanes: int, width: int) -> list[str]:
        """Where the accesses of a line begin."""
        first = self.atom(start)
        return [f"{first} + {k}" if k else first for k in range(0, lanes, width)]

    def update(self, atomic: ir.Atomic, place: str, value: str) -> str:
        buffer, dtype = atomic.buffer, atomic.buffer.dtype
        if atomic.op in ("load", "store"):
            return self._moved(atomic, f"{_pointer(buffer)} + {place}", value)
        if self._is_private(buffer):
            old = self.bind(dtype, self.element(buffer, place))
            new = value if atomic.op == "exchange" else self.combined(atomic.op, dtype, old, value)
            self.do(f"{self.write(buffer, place, new)};")
            return old
        at = f"{_pointer(buffer)} + {place}"
        if (native := _native_atomic(atomic.op, dtype, at, value)) is not None:
            return self.bind(dtype, native)
        return self._exchange_until_alone(atomic, at, value)

    def _moved(self, atomic: ir.Atomic, at: str, value: str) -> str:
        """A load or a store that is one access."""
        dtype = atomic.buffer.dtype
        element = f"*(volatile {_stored(dtype)}*)({at})"
        if atomic.op == "store":
            self.do(f"{element} = {value};")
            return value
        return self.bind(dtype, f"{element} != 0" if dtype == "bool" else element)

    def exchange(self, exchange: ir.CompareExchange, place: str, pair: Lanes) -> str:
        buffer, dtype = exchange.buffer, exchange.buffer.dtype
        bits = f"u{ir.BITS[dtype]}"
        raw = [self.bind(bits, cuda_ops.to_bits(value, dtype)) for value in pair]
        if self._is_private(buffer):
            old = self.bind(dtype, self.element(buffer, place))
            seen = self.bind(bits, cuda_ops.to_bits(old, dtype))
            self.do(f"if ({seen} == {raw[0]}) {self.write(buffer, place, pair[1])};")
            return old
        function = "cas_u8" if bits == "u8" else "atomicCAS"
        at = f"({bits}*)({_pointer(buffer)} + {place})"
        seen = self.bind(bits, f"{function}({at}, {', '.join(raw)})")
        return self.bind(dtype, cuda_ops.from_bits(seen, dtype))

    def plane(self, plane: ir.Plane) -> str:
        return cuda_planes.emit(self, plane)

    def _exchange_until_alone(self, atomic: ir.Atomic, at: str, value: str) -> str:
        """Compare and exchange until no other thread came between; the old value."""
        op, dtype = atomic.op, atomic.buffer.dtype
        bits = f"u{ir.BITS[dtype]}"
        seen, before = self.fresh("w"), self.fresh("w")
        exchange = "cas_u8" if bits == "u8" else "atomicCAS"
        self.do(f"{bits} {seen} = *(const volatile {bits}*)({at}), {before};")
        self.do("do {")
        self.depth += 1
        self.do(f"{before} = {seen};")
        old = self.bind(dtype, cuda_ops.from_bits(before, dtype))
        new = value
        if op != "exchange":
            new = self.bind(dtype, self.combined(op, dtype, old, value))
        raw = cuda_ops.to_bits(new, dtype)
        self.do(f"{seen} = {exchange}(({bits}*)({at}), {before}, {raw});")
        self.depth -= 1
        self.do(f"}} while ({seen} != {before});")
        return self.bind(dtype, cuda_ops.from_bits(before, dtype))

    def allocate(self, buffer: Buffer) -> None:
        name, dtype = _pointer(buffer), _stored(buffer.dtype)
        if buffer in self.shared:
            self.do(f"{dtype}* const {name} = ({dtype}*)(shared + {self.shared[buffer]});")
        elif buffer in self.scratch:
            self.do(f"{dtype}* const {name} = ({dtype}*)(scratch + {self.scratch[buffer]});")
        else:
            self.do(f"alignas({ACCESS}) {dtype} {name}[{buffer.size}];")

    def barrier(self) -> None:
        if self.units > 1:
            self.do("__syncthreads();")

    def matrix(self, statement: ir.Matrix) -> None:
        self.matrices.emit(statement)

    def finish(self) -> None:
        self.do("goto next;" if self.scratch_bytes else "return;")


# buffers and arrays -----------------------------------------------------------------------------


def _arrays(body: Sequence[ir.Stmt]) -> Iterator[Buffer]:
    """Every array that statements allocate."""
    for statement in body:
        if isinstance(statement, ir.Allocate):
            yield statement.buffer
        elif isinstance(statement, ir.For | ir.Loop):
            yield from _arrays(statement.body)
        elif isinstance(statement, ir.If):
            yield from _arrays((*statement.then, *statement.orelse))


def _laid_out(buffers: Sequence[Buffer]) -> tuple[dict[Buffer, int], int]:
    """Offsets of arrays one behind the other, and the bytes of all."""
    offsets, total = dict[Buffer, int](), 0
    for buffer in buffers:
        if buffer.over is not None:
            offsets[buffer] = next(at for b, at in offsets.items() if b.number == buffer.over)
            continue
        offsets[buffer] = total
        total += -(-buffer.size * size_of(buffer.dtype) // ACCESS) * ACCESS
    return offsets, total


def _check(kernel: Kernel, units: int, shared_bytes: int) -> None:
    if units > UNITS_LIMIT:
        raise LoweringError(
            f"{kernel.name}: a cube on CUDA must have at most {UNITS_LIMIT} units; got {units} of "
            f"cube_dim {kernel.cube_dim}; give each unit more work."
        )
    if shared_bytes > SHARED_LIMIT:
        raise LoweringError(
            f"{kernel.name}: shared arrays must fit {SHARED_LIMIT} bytes; got {shared_bytes}; "
            "use smaller tiles."
        )


def _pointer(buffer: Buffer) -> str:
    return f"{'b' if buffer.space == 'global' else 'a'}{buffer.number}"


def _stored(dtype: str) -> str:
    """The type of one element in memory."""
    return "u8" if dtype == "bool" else dtype


def _parameter(buffer: Buffer) -> str:
    """An `inout` buffer may be another `inout` buffer, too."""
    type = f"{_stored(buffer.dtype)}*"
    return {
        "in": f"const {type} __restrict__ {_pointer(buffer)}",
        "out": f"{type} __restrict__ {_pointer(buffer)}",
        "inout": f"{type} {_pointer(buffer)}",
    }[buffer.access]


def _decoded(cell: str, dtype: str) -> str:
    """A scalar from the low bits of its cell."""
    if dtype == "bool":
        return f"(u8){cell} != 0"
    return cuda_ops.from_bits(f"(u32){cell}" if dtype == "f32" else cell, dtype)


def _chunk(buffer: Buffer, lanes: int) -> int:
    """How many neighbours one access moves: a power of two that divides the lanes."""
    return math.gcd(lanes, ACCESS // size_of(buffer.dtype))


def _returns(body: Sequence[str]) -> bool:
    return any(line.endswith("goto next;") for line in body)


# atomics ----------------------------------------------------------------------------------------

_ATOMICS = {
    "add": ("atomicAdd", ("i32", "u32", "u64", "f32", "f64")),
    "min": ("atomicMin", ("i32", "u32", "i64", "u64")),
    "max": ("atomicMax", ("i32", "u32", "i64", "u64")),
    "and": ("atomicAnd", ("i32", "u32", "u64")),
    "or": ("atomicOr", ("i32", "u32", "u64")),
    "xor": ("atomicXor", ("i32", "u32", "u64")),
    "exchange": ("atomicExch", ("i32", "u32", "u64", "f32")),
}


def _native_atomic(op: str, dtype: str, at: str, value: str) -> str | None:
    """The function of CUDA's library, where one is; 64-bit integers are mostly unsigned there."""
    if op == "sub":
        bits = f"u{ir.BITS[dtype]}"
        negative = f"-{value}" if dtype in ir.FLOATS else f"({dtype})(0 - ({bits}){value})"
        return _native_atomic("add", dtype, at, negative)
    function, dtypes = _ATOMICS[op]
    if dtype in dtypes:
        return f"{function}({at}, {value})"
    if dtype in ("i64", "index"):
        signed = op in ("min", "max")
        bits = "i64" if signed else "u64"
        return f"{function}(({bits}*)({at}), ({bits}){value})"
    return None
