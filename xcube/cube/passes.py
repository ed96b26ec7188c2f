"""From stage to stage: derivatives of kernels, kernels over batches, and kernels that stay inside
their buffers, each with what lies behind its buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xcube import dtypes
from xcube.cube import checks
from xcube.cube.calls import Avals, Signature, Stage
from xcube.ir import Aval
from xcube.lowering.cube import ir, rebuild
from xcube.lowering.cube.batched import batched
from xcube.lowering.cube.checked import checked, unchecked
from xcube.lowering.cube.derivative_forward import read_back, results, tangent
from xcube.lowering.cube.derivative_reverse import reverse
from xcube.primitives.launch import Flags, Launched, Slot


def floats(avals: Sequence[Aval]) -> list[int]:
    """The numbers of those that have tangents."""
    return [number for number, aval in enumerate(avals) if dtypes.is_float(aval.dtype)]


@dataclass(frozen=True)
class Tangent:
    """The pass from a kernel to its tangents, those of the `active` operands given; `unused`
    operands lie between the kernel's own and them."""

    active: tuple[int, ...]
    unused: Avals = ()

    def signature(self, below: Signature) -> Signature:
        """What the pass makes of operands and results."""
        places = {operand: below.count + k for k, operand in enumerate(self.active)}
        places = {operand: place + len(self.unused) for operand, place in places.items()}
        result = {number: k for k, number in enumerate(floats(below.outputs))}
        begun = {places[x]: result[y] for x, y in below.begun.items() if x in places}
        tangents = tuple([below.operands[operand] for operand in self.active])
        outputs = tuple([below.outputs[number] for number in result])
        return Signature((*below.operands, *self.unused, *tangents), outputs, begun)

    def apply(self, stage: Stage) -> Stage:
        """The stage of the tangents."""
        old, count = stage.launched, len(stage.operands) + len(self.unused)
        place = {slot.operand: n for n, slot in enumerate(old.slots) if slot.operand is not None}
        given = {place[x]: count + k for k, x in enumerate(self.active) if x in place}
        buffers = list(given)
        slots = list(_primal_slots(stage))
        result = {number: k for k, number in enumerate(floats(stage.outputs))}
        for buffer, operand in given.items():
            slot = old.slots[buffer]
            own = slot.aval and stage.aval(slot)  # what has no result is written all the same
            slots.append(Slot(operand, result.get(slot.output), own))  # type: ignore[arg-type]
        added = _added_to(old.kernel)
        for number in [b.number for b in results(old.kernel) if b.number not in buffers]:
            slot = old.slots[number]
            output = result.get(slot.output)  # type: ignore[arg-type]
            zeroed = slot.operand is not None or slot.zeroed or number in added
            own = stage.aval(slot) if output is None else None
            slots.append(Slot(output=output, aval=own, zeroed=zeroed))
        blank = tuple([replace(x, output=result[x.output]) for x in old.blank])  # type: ignore[index]
        kernel = tangent(old.kernel, buffers)
        launched = Launched(kernel, tuple(slots), old.cells, old.cubes, blank)
        return Stage(launched, self.signature(stage.signature))


@dataclass(frozen=True)
class Cotangent:
    """The pass from a kernel to cotangents of its operands `wanted`, those of its results `present`
    given; `unused` operands lie between the kernel's own and them."""

    wanted: tuple[int, ...]
    present: tuple[int, ...]
    unused: Avals
    disjoint: bool

    def signature(self, below: Signature) -> Signature:
        """What the pass makes of operands and results."""
        first = below.count + len(self.unused)
        given = {output: first + k for k, output in enumerate(self.present)}
        begun = {
            given[y]: self.wanted.index(x)
            for x, y in below.begun.items()
            if x in self.wanted and y in given
        }
        cts = tuple([below.outputs[output] for output in self.present])
        outputs = tuple([below.operands[operand] for operand in self.wanted])
        return Signature((*below.operands, *self.unused, *cts), outputs, begun)

    def apply(self, stage: Stage) -> Stage:
        """The stage of the cotangents."""
        old, first = stage.launched, len(stage.operands) + len(self.unused)
        place = {slot.operand: n for n, slot in enumerate(old.slots) if slot.operand is not None}
        buffer_of = {slot.output: n for n, slot in enumerate(old.slots) if slot.output is not None}
        wanted = {place[x]: k for k, x in enumerate(self.wanted) if x in place}
        blank = [Slot(output=k, zeroed=True) for k, x in enumerate(self.wanted) if x not in place]
        given = {buffer_of[y]: first + k for k, y in enumerate(self.present) if y in buffer_of}
        back = reverse(old.kernel, tuple(wanted), tuple(given), self.disjoint)
        slots = list(_primal_slots(stage))
        layout = back.layout
        for number, changed in zip(layout.cotangents, layout.changed, strict=True):
            operand, output = given.get(number), wanted.get(number)
            own = stage.aval(old.slots[number]) if changed and output is None else None
            slots.append(Slot(operand, output, own, zeroed=operand is None))
        slots += [Slot(output=wanted[number], zeroed=True) for number in layout.sums]
        launched = Launched(back.kernel, tuple(slots), old.cells, old.cubes, tuple(blank))
        return Stage(launched, self.signature(stage.signature))


def _primal_slots(stage: Stage) -> list[Slot]:
    """Slots of what a derivative needs of a kernel's buffers: what it reads, and copies of what it
    reads and writes."""
    kept = read_back(stage.launched.kernel)
    slots = []
    for number, slot in enumerate(stage.launched.slots):
        if stage.launched.kernel.buffers[number].access == "in":
            slots.append(slot)
        elif number in kept:
            slots.append(replace(slot, output=None, aval=stage.aval(slot)))
    return slots


def _added_to(kernel: ir.Kernel) -> set[int]:
    """Global buffers with atomic updates."""
    return {
        s.buffer.number
        for s in rebuild.every(kernel.body)
        if isinstance(s, ir.Atomic) and s.buffer.space == "global"
    }


def guarded(stage: Stage, reports: bool) -> Stage:
    """The stage that stays inside its buffers; its record is the last result, or of no interest."""
    old, signature = stage.launched, stage.signature
    output = len(signature.outputs) if reports else None
    aval = checks.record_aval(old.kernel)
    record = Slot(output=output, aval=None if reports else aval, zeroed=True, shared=True)
    sizes = [stage.aval(slot).size for slot in old.slots]
    kernel = checked(old.kernel)
    launched = Launched(kernel, (*old.slots, record), (*old.cells, *sizes), old.cubes, old.blank)
    outputs = (*signature.outputs, aval) if reports else signature.outputs
    return Stage(launched, replace(signature, outputs=outputs))


def silent(stage: Stage) -> Stage:
    """The stage without what only checked launches have: assertions and prints."""
    return replace(stage, launched=replace(stage.launched, kernel=unchecked(stage.launched.kernel)))


def over_batch(stage: Stage, size: int, flags: Flags) -> Stage:
    """The stage over a batch: what is written is batched, and operands where `flags` says so."""
    old, shape = stage.launched, (size,)
    is_batched = [_is_batched(slot, flags) for slot in old.slots]
    sizes = [stage.aval(s).size for s, flag in zip(old.slots, is_batched, strict=True) if flag]
    slots = [_grown(slot, size) for slot in old.slots]
    kernel = batched(old.kernel, is_batched)
    cells = (*old.cells, old.cubes, *sizes)
    launched = Launched(kernel, tuple(slots), cells, old.cubes * size, old.blank)
    grown = [a.update(shape=(*shape, *a.shape)) for a in stage.operands]
    operands = [b if flag else a for a, b, flag in zip(stage.operands, grown, flags, strict=True)]
    shared = {slot.output for slot in old.slots if slot.shared}
    outputs = [
        a if number in shared else a.update(shape=(*shape, *a.shape))
        for number, a in enumerate(stage.outputs)
    ]
    return Stage(launched, Signature(tuple(operands), tuple(outputs), stage.signature.begun))


def _is_batched(slot: Slot, flags: Flags) -> bool:
    if slot.shared:
        return False
    return slot.output is not None or slot.aval is not None or flags[slot.operand]  # type: ignore[index]


def _grown(slot: Slot, size: int) -> Slot:
    if slot.aval is None or slot.shared:
        return slot
    return replace(slot, aval=slot.aval.update(shape=(size, *slot.aval.shape)))
