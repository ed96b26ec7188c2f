"""Which buffers a kernel of cotangents has, and who may touch them: whether units write, and read,
elements of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xcube.lowering.cube import ir
from xcube.lowering.cube.affine import Affine
from xcube.lowering.cube.derivative_forward import read_back, results
from xcube.lowering.cube.derivative_normal import refuse
from xcube.lowering.cube.ir import Atom, Buffer, Kernel
from xcube.lowering.cube.rebuild import each


@dataclass(frozen=True)
class Layout:
    """Numbers of global buffers of the kernel that is gone back through. `cotangents`: the written
    ones whose cotangents come in, which are changed on the way where `changed` says so; `sums`:
    read ones that get cotangents, which begin as zeros; `own`: those of which no two units read
    one element; `once`: those of which no element is read twice; `kept`: written ones that are also
    read."""

    cotangents: tuple[int, ...]
    changed: tuple[bool, ...]
    sums: tuple[int, ...]
    own: frozenset[int]
    once: frozenset[int]
    kept: frozenset[int]


def laid_out(
    kernel: Kernel, wanted: Sequence[int], present: Sequence[int], disjoint: bool
) -> Layout:
    """The buffers of the kernel that gives cotangents of the buffers `wanted` for those of the
    written ones `present`.

    Raises TraceError if two units may write one element, or share memory of a cube.
    """
    _refuse_shared(kernel)
    races, kept = _Races(kernel), read_back(kernel)
    through = [b for b in results(kernel) if b.number in (*wanted, *present, *kept)]
    for buffer in through:
        if not disjoint:
            races.check(buffer)
    changed = [
        b.number not in present or b.number in (*wanted, *kept) or races.repeats(b, ir.Store)
        for b in through
    ]
    sums = tuple([number for number in wanted if kernel.buffers[number].access == "in"])
    own = frozenset(number for number in sums if races.are_own(kernel.buffers[number], ir.Load))
    once = frozenset(n for n in own if not races.repeats(kernel.buffers[n], ir.Load))
    numbers = tuple([b.number for b in through])
    return Layout(numbers, tuple(changed), sums, own, once, kept)


def _refuse_shared(kernel: Kernel) -> None:
    for s in each(kernel.body, ir.Sync, ir.Allocate):
        if isinstance(s, ir.Sync) or s.buffer.space == "shared":
            reason = "what units share in a cube is not gone back through"
            way = "Give the call a rule of its own: custom_vjp. Forward mode (jvp) has it."
            refuse(kernel, s, reason, way)


class _Races:
    """Who accesses which elements of the global buffers of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.affine = kernel, Affine(kernel)
        self.loops = each(kernel.body, ir.For, ir.Loop)

    def check(self, buffer: Buffer) -> None:
        """Raises TraceError if two units may write one element."""
        stores = self._of(buffer, ir.Store)
        if not stores:
            return
        if self._of(buffer, ir.Atomic):
            reason = "a buffer is both written and added to, whose order decides what it holds"
            way = "Use a buffer for each, or assume_disjoint=True."
            refuse(self.kernel, stores[0], reason, way)
        if not self.are_own(buffer, ir.Store, ir.Load):
            reason = "two units may write one element: its index is not evidently the unit's own"
            way = (
                "An index along ABSOLUTE_POS (or ABSOLUTE_POS.x) alone is its own; of others, such "
                "as rows and columns, promise it: differentiable(kernel, assume_disjoint=True)."
            )
            refuse(self.kernel, stores[0], reason, way)

    def repeats(self, buffer: Buffer, kind: type[ir.Load] | type[ir.Store]) -> bool:
        """Whether a unit may access an element twice."""
        found = self._of(buffer, kind)
        around = [loop for loop in self.loops if any(s in found for s in each(loop.body, kind))]
        if len(found) > 1 or (around and not self.are_own(buffer, kind)):
            return True
        return not all(self.affine.goes_with(found[0].index, loop) for loop in around)

    def are_own(self, buffer: Buffer, *kinds: type[ir.Load] | type[ir.Store]) -> bool:
        """Whether units access elements of a buffer that no other unit does."""
        found: list[tuple[Atom, int]] = []
        for s in self._of(buffer, *kinds):
            value = s.target if isinstance(s, ir.Load) else s.value
            found.append((s.index, value.type.lanes))
        return bool(found) and self.affine.are_own(found)

    def _of(self, buffer: Buffer, *kinds: type) -> list[ir.Load | ir.Store | ir.Atomic]:
        return [s for s in each(self.kernel.body, *kinds) if s.buffer == buffer]
