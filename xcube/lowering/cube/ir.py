"""The kernel IR: structured SSA over scalars and lines. It knows dtypes and nothing of tensors.

    kernel  = Kernel(name, buffers: Buffer*, scalars: Name*, body: stmt*, maps: TileMap*)
    stmt    = Let(target: Name, op, args: atom*, attrs)       a pure operation, see OPS
            | Load(target: Name, buffer, index: atom, mask: atom?)
            | Store(buffer, index: atom, value: atom, mask: atom?, streaming)
            | Declare(variable: Name, init: atom) | Assign(variable: Name, value: atom)
            | Read(target: Name, variable: Name)
            | For(index: Name, start: atom, stop: atom, step: atom, body: stmt*)
            | If(condition: atom, then: stmt*, orelse: stmt*)
            | Loop(body: stmt*) | Break | Continue | Return   Loop runs until Break
            | Allocate(buffer)                                a shared or local array
            | Atomic(target: Name, op, buffer, index: atom, value: atom) | Sync
            | CompareExchange(target: Name, buffer, index: atom, expected: atom, value: atom)
            | Plane(target: Name, op, value: atom, argument: atom?)               by a plane
            | Print(format, args: atom*) | Assert(condition: atom, message, args: atom*)
            | CopyAsync(target: buffer, at: atom, source: buffer, index: atom, lanes, valid: atom?)
            | CommitCopies | WaitCopies(pending)              cp.async: 16 bytes at a time
            | LoadMatrices(target: Name, buffer, index: atom, transposed)           by a plane
            | MultiplyMatrices(target: Name, left: atom, right: atom, sum: atom)    by a plane
            | MultiplyPanels(sums: Name, left: Panel | Name, right: Panel, steps, fresh: atom)
            | WaitProducts(pending, sums: Name*)              both by a group of planes
            | CopyTile(target: buffer, at: atom, map, place: atom*, barriers: buffer, barrier: atom)
            | SetBarrier(barriers: buffer, barrier: atom, arrivals)
            | Arrive(barriers: buffer, barrier: atom, nbytes)
            | Await(barriers: buffer, barrier: atom, parity: atom)
            | SyncPlane | SetRegisters(count, grows)
            | ZeroTile(tile) | MultiplyTiles(sum, left, right, kinds)       see `tiles.py`
            | LoadTile(tile, buffer, index: atom, stride: atom) | StoreTile(alike)
    atom    = Const(value, type) | Name(number, type)
    type    = Type(dtype, lanes)                              dtype as in printed jaxprs, or "index"

A load or store with a scalar index and a value of n lanes touches n neighbouring elements; with a
line of n indices it gathers or scatters. Masked-off lanes are neither read nor written and load
as zero. `index` is the target's address arithmetic: 64-bit on the CPU. A plane is PLANE units that
follow one another, fewer at the end of a cube, a group GROUP of them; what matrix units do with
their operands: `matrix.py`. `source` of a statement is the user's line that it comes from,
"file.py:31"; it is no part of what the statement is, nor of a kernel's text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal as OneOf
from typing import NamedTuple, get_args

FLOATS = ("f8_e4m3fn", "f8_e5m2", "f16", "bf16", "f32", "f64")
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = (*SIGNED, *UNSIGNED)
DTYPES = ("bool", *INTEGERS, *FLOATS, "index")

BITS = {
    **{"bool": 8, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "u8": 8, "u16": 16, "u32": 32},
    **{"u64": 64, "f8_e4m3fn": 8, "f8_e5m2": 8, "f16": 16, "bf16": 16, "f32": 32, "f64": 64},
    "index": 64,
}


class Type(NamedTuple):
    """A scalar (one lane) or a line of `lanes` elements of one dtype."""

    dtype: str
    lanes: int = 1

    def __str__(self) -> str:
        return self.dtype if self.lanes == 1 else f"{self.dtype}x{self.lanes}"

    def of(self, dtype: str) -> Type:
        return Type(dtype, self.lanes)


@dataclass(frozen=True, slots=True)
class Const:
    """A literal; a line constant has the value in every lane."""

    value: int | float | bool
    type: Type


class Name(NamedTuple):
    """An SSA value, a loop index, a scalar parameter or a variable; unique in its kernel."""

    number: int
    type: Type


Atom = Const | Name
Space = OneOf["global", "shared", "local"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of one dtype: a parameter (global), or an array of `size` elements of a cube (shared)
    or a unit (local). `over`: the number of a shared array whose memory this one takes over."""

    number: int
    dtype: str
    space: Space = "global"
    access: OneOf["in", "out", "inout"] = "in"
    size: int = 0
    over: int | None = None


@dataclass(frozen=True, slots=True)
class Let:
    target: Name
    op: str
    args: tuple[Atom, ...]
    attrs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    target: Name
    buffer: Buffer
    index: Atom
    mask: Atom | None = None
    source: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Store:
    """`streaming` promises that the address is a multiple of the line's size and asks the target
    not to keep the written line in its caches."""

    buffer: Buffer
    index: Atom
    value: Atom
    mask: Atom | None = None
    streaming: bool = False
    source: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Declare:
    variable: Name
    init: Atom


@dataclass(frozen=True, slots=True)
class Assign:
    variable: Name
    value: Atom


@dataclass(frozen=True, slots=True)
class Read:
    target: Name
    variable: Name


@dataclass(frozen=True, slots=True)
class For:
    """`index` runs from start up to stop (exclusive) by a positive step."""

    index: Name
    start: Atom
    stop: Atom
    step: Atom
    body: tuple[Stmt, ...]
    source: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class If:
    condition: Atom
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()
    source: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Loop:
    body: tuple[Stmt, ...]
    source: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Break:
    pass


@dataclass(frozen=True, slots=True)
class Continue:
    pass


@dataclass(frozen=True, slots=True)
class Return:
    pass


@dataclass(frozen=True, slots=True)
class Allocate:
    buffer: Buffer
    source: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Atomic:
    """buffer[index] = op(buffer[index], value), indivisibly; the target is the old value. A load
    changes nothing and makes no use of the value; the target of a store is the value."""

    target: Name
    op: OneOf["add", "sub", "min", "max", "and", "or", "xor", "exchange", "load", "store"]
    buffer: Buffer
    index: Atom
    value: Atom
    source: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class CompareExchange:
    """buffer[index] = value where the bits of the element are those of `expected`, indivisibly; the
    target is the old value."""

    target: Name
    buffer: Buffer
    index: Atom
    expected: Atom
    value: Atom
    source: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Sync:
    source: str | None = field(default=None, compare=False)


# planes, and words to people ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plane:
    """What all units of a plane do together, lane by lane; see `planes.py`. `argument`: the number
    of a unit in its plane, or the distance to it, where the operation takes one."""

    target: Name
    op: str
    value: Atom
    argument: Atom | None = None
    source: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Print:
    """A line of text for people; `format` has a place {} for each scalar."""

    format: str
    args: tuple[Atom, ...] = ()
    source: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Assert:
    """A condition that holds; `message` says otherwise, with a place {} for each scalar."""

    condition: Atom
    message: str
    args: tuple[Atom, ...] = ()
    source: str | None = field(default=None, compare=False)


# copies on their way, and matrix units -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CopyAsync:
    """`lanes` neighbours, 16 bytes of them, begin to move from global to shared memory: zeros where
    `valid` does not hold. Both places are multiples of `lanes`. The copy belongs to the next
    CommitCopies of the unit, and is done when WaitCopies says so."""

    target: Buffer
    at: Atom
    source: Buffer
    index: Atom
    lanes: int
    valid: Atom | None = None


@dataclass(frozen=True, slots=True)
class CommitCopies:
    """The copies that the unit began since the last one are one batch, which may be empty."""


@dataclass(frozen=True, slots=True)
class WaitCopies:
    """Wait until at most the `pending` youngest batches of the unit are on their way; other units
    see the rest behind the next Sync, their matrix units included."""

    pending: int


@dataclass(frozen=True, slots=True)
class LoadMatrices:
    """A plane loads matrices of 8 rows of 16 bytes from shared memory: unit u says where row u % 8
    of matrix u / 8 begins. `matrix.loaded` says which elements each unit gets."""

    target: Name
    buffer: Buffer
    index: Atom
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class MultiplyMatrices:
    """target = left @ right + sum, by a plane: 16 rows, 8 columns, 32 bytes of depth.
    `matrix.left`, `right` and `sum_of` say which elements each unit holds."""

    target: Name
    left: Atom
    right: Atom
    sum: Atom


@dataclass(frozen=True, slots=True)
class Panel:
    """An operand of MultiplyPanels in shared memory, from element `index` on, as `matrix.exchanged`
    lays it out; `deep`: rows lie along the depth, else the depth lies along rows, in blocks of one
    span that are `apart` elements apart."""

    buffer: Buffer
    index: Atom
    deep: bool
    apart: int


@dataclass(frozen=True, slots=True)
class MultiplyPanels:
    """A group begins to add left @ right to its sums, a variable of n / 2 lanes for 64 rows and n
    columns; `steps` times 32 bytes of depth, the first of them replacing the sums if `fresh`. The
    left operand may be a line of 16-bit elements that units hold like sums of as many columns.
    Nobody may touch the sums or write the panels before WaitProducts says that it is done."""

    sums: Name
    left: Panel | Name
    right: Panel
    steps: int
    fresh: Atom


@dataclass(frozen=True, slots=True)
class WaitProducts:
    """Wait until at most the `pending` youngest MultiplyPanels of the group go on; `sums` are the
    variables that are read from here on."""

    pending: int
    sums: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True)
class TileMap:
    """How a global buffer is read by boxes: scalars of the kernel that are the sizes of its
    dimensions, innermost first, and the distances of neighbours along the outer ones, in elements;
    a box has `box` elements along each, the innermost a line of 128 bytes."""

    number: int
    buffer: Buffer
    sizes: tuple[Name, ...]
    strides: tuple[Name, ...]
    box: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CopyTile:
    """One unit asks for the box at `place` to be copied to element `at` of a shared array, as
    `matrix.exchanged` lays it out, with zeros for what lies outside the buffer's sizes. The bytes
    of the whole box count at the barrier once they are there."""

    target: Buffer
    at: Atom
    map: TileMap
    place: tuple[Atom, ...]
    barriers: Buffer
    barrier: Atom


@dataclass(frozen=True, slots=True)
class SetBarrier:
    """Makes an element of a shared array a barrier, in phase 0, whose phases take so many
    arrivals; units see it behind the next Sync."""

    barriers: Buffer
    barrier: Atom
    arrivals: int


@dataclass(frozen=True, slots=True)
class Arrive:
    """One arrival in the current phase, which then also waits for `nbytes` bytes of boxes. A phase
    ends when all arrivals and bytes are there."""

    barriers: Buffer
    barrier: Atom
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Await:
    """Wait until the phase of a parity has ended: 0 for the first, third, ...; 1 passes at once
    while the first goes on. What units did before they arrived has happened then."""

    barriers: Buffer
    barrier: Atom
    parity: Atom


@dataclass(frozen=True, slots=True)
class SyncPlane:
    """All units of the plane meet here."""


@dataclass(frozen=True, slots=True)
class SetRegisters:
    """The planes of a group give registers back, or take more: `count` for each unit from here on.
    All groups of a cube together must not take more than the kernel began with."""

    count: int
    grows: bool


@dataclass(frozen=True, slots=True)
class ZeroTile:
    """All bytes of a tile are zero. A unit has TILES tiles, by number: 16 rows of 64 bytes each."""

    tile: int


@dataclass(frozen=True, slots=True)
class LoadTile:
    """Row r of a tile becomes the 64 bytes from element index + r * stride on."""

    tile: int
    buffer: Buffer
    index: Atom
    stride: Atom


@dataclass(frozen=True, slots=True)
class StoreTile:
    """The 64 bytes from element index + r * stride on become row r of a tile."""

    tile: int
    buffer: Buffer
    index: Atom
    stride: Atom


@dataclass(frozen=True, slots=True)
class MultiplyTiles:
    """sum += left @ right, where `kinds` are the dtypes of the left and right elements;
    `tiles.py` says how they lie, and what the sums are."""

    sum: int
    left: int
    right: int
    kinds: tuple[str, str]


PLANE = 32
GROUP = 128
TILES = 8

Tile = ZeroTile | LoadTile | StoreTile | MultiplyTiles
TILE: tuple[type, ...] = get_args(Tile)

Matrix = (
    CopyAsync | CommitCopies | WaitCopies | LoadMatrices | MultiplyMatrices | MultiplyPanels
    | WaitProducts | CopyTile | SetBarrier | Arrive | Await | SyncPlane | SetRegisters
)  # fmt: skip
MATRIX: tuple[type, ...] = get_args(Matrix)

Stmt = (
    Let | Load | Store | Declare | Assign | Read | For | If | Loop | Break | Continue | Return
    | Allocate | Atomic | CompareExchange | Sync | Plane | Print | Assert | Matrix | Tile
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: global buffers in launch order, scalar parameters in launch order, the body of
    one unit. `cube_dim` is the number of units of a cube. `maps`: how buffers are read by boxes.
    `resident`: how many cubes are meant to share a core's registers; 0 leaves it open."""

    name: str
    buffers: tuple[Buffer, ...]
    scalars: tuple[Name, ...]
    body: tuple[Stmt, ...]
    cube_dim: tuple[int, int, int] = (1, 1, 1)
    maps: tuple[TileMap, ...] = ()
    resident: int = 0


@dataclass(frozen=True, slots=True)
class Op:
    """A row of the closed table of scalar operations.

    `result`: "same" (type of the first argument; all arguments alike), "bool" (comparison),
    "select", "scalar" (line to scalar of the same dtype), "given" (stated by the statement).
    `dtypes`: what the operands may be.
    """

    arity: int
    result: str
    dtypes: tuple[str, ...]


_ALL = DTYPES
_NUMBERS = (*INTEGERS, *FLOATS, "index")
_WHOLE = (*INTEGERS, "index")
_BITWISE = ("bool", *INTEGERS, "index")

PLACES = tuple(
    f"{place}.{axis}"
    for place in ("cube_pos", "cube_count", "unit_pos", "cube_dim")
    for axis in "xyz"
)

# Semantics: integers wrap. Integer div truncates, x/0 is all ones (-1), MIN/-1 is MIN; rem has the
# sign of the dividend, x%0 is x, MIN%-1 is 0 (dtype "index" promises a divisor that is not zero).
# Shifts by the width or more give 0 (shr of a negative signed integer: -1). min and max propagate
# NaN. eq/ne/lt/le/gt/ge are IEEE: only ne is true of NaN. round is to nearest, ties to even.
# fma rounds once. exp2_approx is as near as the target's own instruction, 2 units in the last place
# at most, and 0 may stand for numbers below the normal ones. cast: float to integer truncates,
# saturates, NaN gives 0; to bool is x != 0; between integers wraps; between floats rounds to
# nearest even. sum-like reductions of a line combine lanes pairwise (halves, then quarters, ...):
# one fixed order on every target.
OPS: dict[str, Op] = {
    "add": Op(2, "same", _NUMBERS),
    "sub": Op(2, "same", _NUMBERS),
    "mul": Op(2, "same", _NUMBERS),
    "div": Op(2, "same", _NUMBERS),
    "rem": Op(2, "same", _NUMBERS),
    "mulhi": Op(2, "same", INTEGERS),
    "neg": Op(1, "same", _NUMBERS),
    "abs": Op(1, "same", (*SIGNED, *FLOATS)),
    "min": Op(2, "same", _NUMBERS),
    "max": Op(2, "same", _NUMBERS),
    "fma": Op(3, "same", FLOATS),
    "sqrt": Op(1, "same", FLOATS),
    "exp2_approx": Op(1, "same", ("f32",)),
    "floor": Op(1, "same", FLOATS),
    "ceil": Op(1, "same", FLOATS),
    "trunc": Op(1, "same", FLOATS),
    "round": Op(1, "same", FLOATS),
    "and": Op(2, "same", _BITWISE),
    "or": Op(2, "same", _BITWISE),
    "xor": Op(2, "same", _BITWISE),
    "not": Op(1, "same", _BITWISE),
    "shl": Op(2, "same", _WHOLE),
    "shr": Op(2, "same", _WHOLE),
    "popcount": Op(1, "same", INTEGERS),
    "clz": Op(1, "same", INTEGERS),
    "eq": Op(2, "bool", _ALL),
    "ne": Op(2, "bool", _ALL),
    "lt": Op(2, "bool", _ALL),
    "le": Op(2, "bool", _ALL),
    "gt": Op(2, "bool", _ALL),
    "ge": Op(2, "bool", _ALL),
    "select": Op(3, "select", _ALL),
    "cast": Op(1, "given", _ALL),
    "bitcast": Op(1, "given", _ALL),
    "splat": Op(1, "given", _ALL),
    "lane": Op(0, "given", _WHOLE),  # 0, 1, 2, ... along the line
    "extract": Op(1, "scalar", _ALL),  # attrs: the lane
    "join": Op(2, "given", _ALL),  # the lanes of both, one behind the other
    "shuffle": Op(1, "given", _ALL),  # attrs: for each result lane, the source lane
    "reduce_add": Op(1, "scalar", _NUMBERS),
    "reduce_mul": Op(1, "scalar", _NUMBERS),
    "reduce_min": Op(1, "scalar", _NUMBERS),
    "reduce_max": Op(1, "scalar", _NUMBERS),
    "reduce_and": Op(1, "scalar", _BITWISE),
    "reduce_or": Op(1, "scalar", _BITWISE),
    "reduce_xor": Op(1, "scalar", _BITWISE),
    **{place: Op(0, "given", ("index",)) for place in PLACES},
}

# Functions that a target may have natively in double precision; every other dtype and target
# gets them by decomposition (math.py).
LIBRARY = (
    "exp exp2 expm1 log log2 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh "
    "atanh pow erf erfc cbrt lgamma"
).split()
OPS.update({name: Op(2 if name in ("atan2", "pow") else 1, "same", ("f64",)) for name in LIBRARY})


def result_type(op: str, args: tuple[Atom, ...]) -> Type:
    """Type of an operation whose row does not leave it to the statement."""
    first = args[0].type
    rule = OPS[op].result
    if rule == "bool":
        return first.of("bool")
    if rule == "select":
        return args[1].type
    return Type(first.dtype) if rule == "scalar" else first
