"""Asynchronous copies and matrix units of NVIDIA GPUs as inline PTX: cp.async, ldmatrix and
mma.sync for sm_80 and later; wgmma, mbarriers and copies of boxes by tensor maps for sm_90a.
`matrix.py` of the kernel language says what the statements mean.

A unit's elements of 16 bits travel in pairs, in registers of 32 bits: a lane that was loaded by
ldmatrix is spelled as half of its register, so that a multiplication finds the register again.
Products of panels are asynchronous: their sums are named as operands of the instruction in place,
and an empty instruction behind the wait keeps the compiler from reading them before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xcube.lowering.cube import ir, matrix
from xcube.lowering.cube.ir import Atom, Buffer, Kernel, Panel
from xcube.lowering.emit import cuda_ops
from xcube.lowering.emit.c_like import CLike

ALIGN = 1024  # bytes of which a panel's place in shared memory is a multiple
_NAMES = {"bf16": "bf16", "f16": "f16", "f32": "tf32"}


class Matrices:
    """Prints the statements of one kernel into its text."""

    def __init__(self, text: CLike) -> None:
        self._text = text
        body = text.kernel.body  # type: ignore[attr-defined]
        self.panels = _has(body, ir.MultiplyPanels)

    def emit(self, statement: ir.Matrix) -> None:
        """Append the text of a statement."""
        _EMIT[type(statement)](self, statement)

    # copies

    def copy(self, s: ir.CopyAsync) -> None:
        target = self._shared(s.target, s.at)
        source = f"b{s.source.number} + {self._text.atom(s.index)}"
        nbytes = "16" if s.valid is None else f"{self._text.atom(s.valid)} ? 16 : 0"
        self._asm(
            "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;",
            [],
            [f'"r"({target})', f'"l"({source})', f'"r"({nbytes})'],
        )

    def commit(self, s: ir.CommitCopies) -> None:
        self._asm("cp.async.commit_group;")

    def wait(self, s: ir.WaitCopies) -> None:
        self._asm(f"cp.async.wait_group {s.pending};")
        if self.panels:  # wgmma reads shared memory by another way than stores
            self._asm("fence.proxy.async.shared::cta;")

    # a plane

    def load(self, s: ir.LoadMatrices) -> None:
        pair = 32 // ir.BITS[s.buffer.dtype]
        count = s.target.type.lanes // pair
        words = self._words(count)
        places = ", ".join([f"%{k}" for k in range(count)])
        way = ".trans" if s.transposed else ""
        self._asm(
            f"ldmatrix.sync.aligned.m8n8.x{count}{way}.shared.b16 {{{places}}}, [%{count}];",
            [f'"=r"({word})' for word in words],
            [f'"r"({self._shared(s.buffer, s.index)})'],
        )
        dtype = s.buffer.dtype
        lanes = [half for word in words for half in cuda_ops.parted(word, "u32", dtype, pair)]
        self._text.names[s.target.number] = " ".join(lanes)

    def multiply(self, s: ir.MultiplyMatrices) -> None:
        dtype = s.left.type.dtype
        left, right = self._registers(s.left), self._registers(s.right)
        sums = [self._text.fresh("d") for _ in range(4)]
        starts = self._text.lanes(s.sum)
        pairs = ", ".join([f"{d} = {c}" for d, c in zip(sums, starts, strict=True)])
        self._text.do(f"f32 {pairs};")
        deep, name = matrix.depth(dtype), _NAMES[dtype]
        self._asm(
            f"mma.sync.aligned.m16n8k{deep}.row.col.f32.{name}.{name}.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};",
            [f'"+f"({d})' for d in sums],
            [f'"r"({word})' for word in (*left, *right)],
        )
        self._text.names[s.target.number] = " ".join(sums)

    def _registers(self, atom: Atom) -> list[str]:
        """The 32-bit registers that hold a unit's elements."""
        lanes, dtype = self._text.lanes(atom), atom.type.dtype
        if dtype == "f32":
            return [self._rounded(lane) for lane in lanes]
        pairs = [lanes[k : k + 2] for k in range(0, len(lanes), 2)]
        return [cuda_ops.joined(pair, dtype, "u32") for pair in pairs]

    def _rounded(self, lane: str) -> str:
        (word,) = self._words(1)
        self._asm("cvt.rna.tf32.f32 %0, %1;", [f'"=r"({word})'], [f'"f"({lane})'])
        return word

    def packs(self, source: ir.Type, target: ir.Type) -> bool:
        """Whether a cast to 16 bits is written in pairs, as products take them."""
        pairs = source.dtype == "f32" and source.lanes % 2 == 0
        return self.panels and pairs and target.dtype in ("bf16", "f16")

    def packed(self, lanes: Sequence[str], dtype: str) -> list[str]:
        """Pairs rounded to nearest even, each in one register."""
        pairs = [lanes[k : k + 2] for k in range(0, len(lanes), 2)]
        function = f"pair_of_{dtype}"
        words = [self._text.bind("u32", f"{function}({low}, {high})") for low, high in pairs]
        return [half for word in words for half in cuda_ops.parted(word, "u32", dtype, 2)]

    # a group

    def multiply_panels(self, s: ir.MultiplyPanels) -> None:
        """All steps, as one committed set; the first one takes its sums as they are or as zeros."""
        text = self._text
        operands = [self._steps_of(s.left, s.steps), self._steps_of(s.right, s.steps)]
        sums = text.lanes(s.sums)
        fresh = text.bind("u32", f"{text.atom(s.fresh)} ? 0 : 1")
        self._asm("wgmma.fence.sync.aligned;")
        for step in range(s.steps):
            inputs = [*operands[0][step], *operands[1][step]]
            inputs.append(f'"r"({fresh if step == 0 else "1"})')
            self._asm(_wgmma(s), [f'"+f"({x})' for x in sums], inputs)
        self._asm("wgmma.commit_group.sync.aligned;")

    def _steps_of(self, operand: Panel | ir.Name, steps: int) -> list[list[str]]:
        """The arguments of each step: a place in shared memory, or registers."""
        if isinstance(operand, Panel):
            base, advance = self._descriptor(operand), _advance(operand)
            places = [f"{base} + {k * advance >> 4}" if k else base for k in range(steps)]
            return [[f'"l"({place})'] for place in places]
        words = [self._text.bind("u32", word) for word in self._registers(operand)]
        return [[f'"r"({word})' for word in words[4 * k : 4 * k + 4]] for k in range(steps)]

    def _descriptor(self, panel: Panel) -> str:
        """Where a panel lies, as wgmma wants it: 128-byte exchange, distances in 16 bytes."""
        leading = 1 if panel.deep else panel.apart * ir.BITS[panel.buffer.dtype] // 8 >> 4
        constant = 1 << 62 | matrix.LINES * matrix.LINE >> 4 << 32 | leading << 16
        at = self._shared(panel.buffer, panel.index)
        return self._text.bind("u64", f"(u64)(({at} & 0x3ffff) >> 4) | {hex(constant)}ull")

    def wait_products(self, s: ir.WaitProducts) -> None:
        self._asm(f"wgmma.wait_group.sync.aligned {s.pending};")
        for name in s.sums:
            for lane in self._text.lanes(name):
                self._text.do(f'asm volatile("" : "+f"({lane}) :: "memory");')

    # boxes and barriers

    def copy_tile(self, s: ir.CopyTile) -> None:
        rank = len(s.place)
        places = ", ".join([f"%{k + 3}" for k in range(rank)])
        self._asm(
            f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile"
            f".mbarrier::complete_tx::bytes [%0], [%1, {{{places}}}], [%2];",
            [],
            [
                f'"r"({self._shared(s.target, s.at)})',
                f'"l"(&m{s.map.number})',
                f'"r"({self._shared(s.barriers, s.barrier)})',
                *[f'"r"((i32)({self._text.atom(place)}))' for place in s.place],
            ],
        )

    def set_barrier(self, s: ir.SetBarrier) -> None:
        place = self._shared(s.barriers, s.barrier)
        self._asm(f"mbarrier.init.shared::cta.b64 [%0], {s.arrivals};", [], [f'"r"({place})'])
        self._asm("fence.mbarrier_init.release.cluster;")
        self._asm("fence.proxy.async.shared::cta;")

    def arrive(self, s: ir.Arrive) -> None:
        way, tail = (".expect_tx", f", {s.nbytes}") if s.nbytes else ("", "")
        self._asm(
            f"mbarrier.arrive{way}.shared::cta.b64 _, [%0]{tail};",
            [],
            [f'"r"({self._shared(s.barriers, s.barrier)})'],
        )

    def await_(self, s: ir.Await) -> None:
        self._asm(
            "{.reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; "
            "@p bra DONE; bra AGAIN; DONE:}",
            [],
            [
                f'"r"({self._shared(s.barriers, s.barrier)})',
                f'"r"((u32)({self._text.atom(s.parity)}))',
            ],
        )

    def sync_plane(self, s: ir.SyncPlane) -> None:
        self._text.do("__syncwarp();")

    def set_registers(self, s: ir.SetRegisters) -> None:
        way = "inc" if s.grows else "dec"
        self._asm(f"setmaxnreg.{way}.sync.aligned.u32 {s.count};")

    # inside

    def _shared(self, buffer: Buffer, index: Atom) -> str:
        return f"(u32)__cvta_generic_to_shared(a{buffer.number} + {self._text.atom(index)})"

    def _words(self, count: int) -> list[str]:
        words = [self._text.fresh("w") for _ in range(count)]
        self._text.do(f"u32 {', '.join(words)};")
        return words

    def _asm(self, code: str, outputs: Sequence[str] = (), inputs: Sequence[str] = ()) -> None:
        lists = f"{', '.join(outputs)} : {', '.join(inputs)}"
        self._text.do(f'asm volatile("{code}" : {lists} : "memory");')


def parameters(kernel: Kernel) -> list[str]:
    """The parameters that are maps of a kernel's buffers."""
    return [f"const __grid_constant__ tile_map m{map.number}" for map in kernel.maps]


def described(kernel: Kernel) -> str:
    """The end of a text's first line: of each map the numbers of its buffer, of the scalars that
    are its sizes and strides, and its box."""
    numbers = {scalar: number for number, scalar in enumerate(kernel.scalars)}
    return "".join([f" map {_described(map, numbers)}" for map in kernel.maps])


def _described(map: ir.TileMap, numbers: dict[ir.Name, int]) -> str:
    sizes, strides = ([numbers[name] for name in names] for names in (map.sizes, map.strides))
    lists = [",".join([str(n) for n in part]) for part in (sizes, strides, map.box)]
    return ":".join([str(map.buffer.number), map.buffer.dtype, *lists])


def _has(body: Sequence[ir.Stmt], kind: type) -> bool:
    """Whether there is a statement of a kind."""
    for s in body:
        inner: tuple[tuple[ir.Stmt, ...], ...] = ()
        if isinstance(s, ir.For | ir.Loop):
            inner = (s.body,)
        elif isinstance(s, ir.If):
            inner = (s.then, s.orelse)
        if isinstance(s, kind) or any(_has(each, kind) for each in inner):
            return True
    return False


def _advance(panel: Panel) -> int:
    """Bytes from one step to the next."""
    deep = matrix.depth(panel.buffer.dtype)
    return deep * ir.BITS[panel.buffer.dtype] // 8 if panel.deep else deep * matrix.LINE


def _wgmma(s: ir.MultiplyPanels) -> str:
    lanes, dtype = s.sums.type.lanes, s.right.buffer.dtype
    name, left, after = _NAMES[dtype], f"%{lanes}", lanes + 1
    ways = [] if dtype == "f32" else [int(not s.right.deep)]
    if not isinstance(s.left, Panel):
        left, after = f"{{{_list(lanes, 4)}}}", lanes + 4
    elif dtype != "f32":
        ways.insert(0, int(not s.left.deep))
    shape = f"m64n{lanes * 2}k{matrix.depth(dtype)}"
    return (
        f"{{.reg .pred p; setp.ne.b32 p, %{after + 1}, 0; "
        f"wgmma.mma_async.sync.aligned.{shape}.f32.{name}.{name} {{{_list(0, lanes)}}}, "
        f"{left}, %{after}, p, {', '.join(map(str, [1, 1, *ways]))};}}"
    )


def _list(first: int, count: int) -> str:
    """Operands of an instruction that follow one another."""
    return ", ".join([f"%{k}" for k in range(first, first + count)])


_EMIT: dict[type, Callable[[Matrices, Any], None]] = {
    ir.CopyAsync: Matrices.copy,
    ir.CommitCopies: Matrices.commit,
    ir.WaitCopies: Matrices.wait,
    ir.LoadMatrices: Matrices.load,
    ir.MultiplyMatrices: Matrices.multiply,
    ir.MultiplyPanels: Matrices.multiply_panels,
    ir.WaitProducts: Matrices.wait_products,
    ir.CopyTile: Matrices.copy_tile,
    ir.SetBarrier: Matrices.set_barrier,
    ir.Arrive: Matrices.arrive,
    ir.Await: Matrices.await_,
    ir.SyncPlane: Matrices.sync_plane,
    ir.SetRegisters: Matrices.set_registers,
}
