"""A call of a user's kernel before any transform: its arguments, what they say of operands and
results, and the kernel that it expands to, as the first stage of passes."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from xcube import dtypes
from xcube.ir import Aval
from xcube.lowering.cube import ir
from xcube.lowering.cube.scalars import from_memory
from xcube.primitives.launch import Launched, Slot

Avals = tuple[Aval, ...]


class Meta(Protocol):
    """Where a scalar of an expanded kernel comes from."""

    @property
    def kind(self) -> str:
        """One of "shape", "stride" (of an axis), "length", "scalar" (of a parameter) or
        "cube_count" (of an axis)."""
        ...

    @property
    def name(self) -> str:
        """The parameter."""
        ...

    @property
    def axis(self) -> int:
        """The axis."""
        ...


class Expanded(Protocol):
    """A kernel of one signature."""

    @property
    def kernel(self) -> ir.Kernel:
        """The kernel; its functions may be single operations (`Builder.keeps_calls`)."""
        ...

    @property
    def arrays(self) -> tuple[str, ...]:
        """The parameters behind its buffers."""
        ...

    @property
    def written(self) -> tuple[str, ...]:
        """Those that it writes, in the order of parameters."""
        ...

    @property
    def scalars(self) -> tuple[Meta, ...]:
        """What its scalars are."""
        ...


class Source(Protocol):
    """What expands to kernels. Equal sources expand alike."""

    @property
    def name(self) -> str:
        """The kernel's name."""
        ...

    def expand(self, call: Call, facts: Any) -> Expanded:
        """The kernel for a call, on a device of such facts."""
        ...


@dataclass(frozen=True)
class Argument:
    """What a parameter is given: an operand of the launch, memory that nothing was written to, or
    a Python value. A written parameter with an operand begins as it."""

    name: str
    aval: Aval | None = None
    operand: int | None = None
    value: Any = None

    @property
    def is_array(self) -> bool:
        return self.aval is not None and not self.is_scalar

    is_scalar: bool = False


@dataclass(frozen=True)
class Call:
    """A kernel with its arguments and its grid; `written`: its results, parameters in order.
    `differentiable` and `disjoint` are what `cube.differentiable` was told."""

    source: Any
    arguments: tuple[Argument, ...]
    count: tuple[int, ...]
    dim: tuple[int, int, int]
    written: tuple[str, ...] = ()
    checked: bool = False
    differentiable: bool = False
    disjoint: bool = False

    def argument(self, name: str) -> Argument:
        """What a parameter is given."""
        return next(argument for argument in self.arguments if argument.name == name)

    @property
    def cubes(self) -> int:
        """Cubes of the whole grid."""
        return math.prod(self.count)

    @property
    def signature(self) -> Signature:
        """Operands and results of the launch."""
        given = {a.operand: a.aval for a in self.arguments if a.operand is not None}
        outputs = [self.argument(name) for name in self.written]
        begun = {a.operand: k for k, a in enumerate(outputs) if a.operand is not None}
        operands = tuple([given[number] for number in range(len(given))])
        return Signature(operands, tuple([a.aval for a in outputs]), begun)  # type: ignore[misc]


# stages ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signature:
    """Operands and results of a launch, and which results begin as an operand, by operand."""

    operands: Avals
    outputs: Avals
    begun: dict[int, int]

    @property
    def count(self) -> int:
        """How many operands there are."""
        return len(self.operands)


@dataclass(frozen=True)
class Stage:
    """A kernel somewhere on its way."""

    launched: Launched
    signature: Signature

    @property
    def operands(self) -> Avals:
        return self.signature.operands

    @property
    def outputs(self) -> Avals:
        return self.signature.outputs

    def aval(self, slot: Slot) -> Aval:
        """Aval of the memory behind a buffer."""
        if slot.output is not None:
            return self.outputs[slot.output]
        return slot.aval or self.operands[slot.operand]  # type: ignore[index]


def base(call: Call, facts: Any) -> Stage:
    """The kernel as it was written."""
    found = call.source.expand(call, facts)
    slots = [_slot(call, name) for name in found.arrays]
    cells, moved = [], []
    for number, meta in enumerate(found.scalars):
        argument = None if meta.kind != "scalar" else call.argument(meta.name)
        if argument is not None and argument.operand is not None:
            moved.append(number)
            slots.append(Slot(operand=argument.operand))
        else:
            cells.append(_cell(call, meta, found.kernel.scalars[number].type.dtype))
    kernel = from_memory(found.kernel, moved) if moved else found.kernel
    launched = Launched(kernel, tuple(slots), tuple(cells), call.cubes)
    return Stage(launched, call.signature)


def _slot(call: Call, name: str) -> Slot:
    output = call.written.index(name) if name in call.written else None
    return Slot(operand=call.argument(name).operand, output=output)


def _cell(call: Call, meta: Meta, dtype: str) -> int:
    """The number of a launch scalar, as 64 bits."""
    if meta.kind == "cube_count":
        return call.count[meta.axis]
    argument = call.argument(meta.name)
    if meta.kind == "scalar":
        return bits(argument.value, dtype)
    aval = argument.aval
    assert aval is not None, "only arrays have shapes"
    if meta.kind == "length":
        return aval.size
    if meta.kind == "stride":
        return math.prod(aval.shape[meta.axis + 1 :])
    return aval.shape[meta.axis]


def bits(value: Any, dtype: str) -> int:
    """A number of a dtype as the low bits of a cell."""
    if dtype == "index" or dtype not in ir.FLOATS:
        return int(value)
    raw = np.asarray(value, next(d for d, short in dtypes.SHORT.items() if short == dtype))
    return struct.unpack("<Q", raw.tobytes().ljust(8, b"\0"))[0]
