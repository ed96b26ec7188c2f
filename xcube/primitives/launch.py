"""The launch of a user's kernel as an operation: what it reads are operands, what it writes are
results. Its parameter is a handle, an immutable object that knows the kernel, what becomes of it
under vmap, and its derivatives if it has any; this file knows nothing of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from xcube.ir import Aval, Axis, Linear, Primitive
from xcube.primitives.kinds import is_linear
from xcube.primitives.lowered import Template
from xcube.primitives.shape import batch_front, full, reduce_sum
from xcube.trace import aval_of, bind

Flags = tuple[bool, ...]


@dataclass(frozen=True)
class Slot:
    """What lies behind a buffer of a kernel: an operand that it reads, a result that it writes, or
    a result that begins as an operand; memory of its own, of `aval`, where there is no result but
    something is written. `zeroed`: written with zeros before. `shared`: by all examples of a
    batch."""

    operand: int | None = None
    output: int | None = None
    aval: Aval | None = None
    zeroed: bool = False
    shared: bool = False


@dataclass(frozen=True)
class Launched:
    """A kernel (`lowering.cube.ir.Kernel`) ready to be launched: a slot for each of its buffers, a
    64-bit cell for each of its scalars, and the number of its cubes. `blank`: results that have no
    buffer, for they are zeros."""

    kernel: Any
    slots: tuple[Slot, ...]
    cells: tuple[int, ...]
    cubes: int
    blank: tuple[Slot, ...] = ()


class Handle(Protocol):
    """What `launch_p` asks of a kernel. Equal handles are the same kernel, launched alike."""

    @property
    def name(self) -> str:
        """The kernel's name, for people to read."""
        ...

    def outputs(self, operands: Sequence[Aval]) -> tuple[Aval, ...]:
        """Avals of the results."""
        ...

    def launched(self, operands: Sequence[Aval], facts: Any) -> Launched:
        """The kernel for a device of such facts."""
        ...

    def in_place(self) -> tuple[tuple[int, int], ...]:
        """Pairs (operand, result) of results that begin as an operand."""
        ...

    def started(self) -> frozenset[int]:
        """Operands as which something begins that is written: in a batch, all have their own."""
        ...

    def batched(self, size: int, flags: Flags) -> tuple[Self, Flags]:
        """The launch over a batch of which `flags` says which operands have it in front, and which
        results have."""
        ...

    def tangent(self, operands: Sequence[Aval], active: Flags) -> tuple[Self, tuple[int, ...]]:
        """The launch that takes the operands, and tangents of the `active` ones behind them, to the
        tangents of the results whose numbers come with it.

        Raises TraceError if the kernel has no derivative.
        """
        ...

    def transposed(
        self, operands: Sequence[Aval], linear: Flags, present: Flags
    ) -> tuple[Self, tuple[tuple[int, tuple[int, ...]], ...]]:
        """The launch that takes the operands that are not linear, and cotangents of the results
        that are `present`, to cotangents of the linear operands: of each, the number of a result
        and the axes over which it is to be summed.

        Raises TraceError if there is none.
        """
        ...


def launch(handle: Handle, operands: Sequence[Any]) -> list[Any]:
    """The results of a launch."""
    return bind(launch_p, *operands, handle=handle)


def _abstract(*operands: Aval, handle: Handle) -> tuple[Aval, ...]:
    return handle.outputs(operands)


def _batch(
    axis: Axis, args: Sequence[Any], batched: Sequence[bool], *, handle: Handle
) -> tuple[list[Any], list[bool]]:
    flags, values = list(batched), list(args)
    for number in handle.started():
        if not flags[number]:
            flags[number], values[number] = True, _repeated(args[number], axis.size)
    over, outs = handle.batched(axis.size, tuple(flags))
    return launch(over, values), list(outs)


def _repeated(x: Any, size: int) -> Any:
    return batch_front(x, size) if aval_of(x).shape else full((size,), x)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, handle: Handle
) -> tuple[list[Any], list[Any]]:
    active = tuple([tangent is not None for tangent in tangents])
    along, numbers = handle.tangent([aval_of(x) for x in primals], active)
    outs = launch(handle, primals)
    given = [tangent for tangent in tangents if tangent is not None]
    found = dict(zip(numbers, launch(along, [*primals, *given]), strict=True)) if numbers else {}
    return outs, [found.get(number) for number in range(len(outs))]


def _transpose(cts: Sequence[Any], *args: Any, handle: Handle) -> list[Any]:
    linear = tuple(map(is_linear, args))
    present = tuple([ct is not None for ct in cts])
    avals = [x.aval if isinstance(x, Linear) else aval_of(x) for x in args]
    back, results = handle.transposed(avals, linear, present)
    known = [x for x in args if not is_linear(x)]
    outs = launch(back, [*known, *[ct for ct in cts if ct is not None]])
    sums = iter([reduce_sum(outs[number], axes) for number, axes in results])
    return [next(sums) if flag else None for flag in linear]


launch_p = Primitive(
    "launch",
    abstract=_abstract,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    lower=Template("cube"),
    multiple=True,
)
