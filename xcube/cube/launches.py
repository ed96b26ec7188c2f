"""A launch of a user's kernel as an immutable value, the handle that `launch_p` holds: the kernel
with its arguments, the derivatives that were taken of it, and the batches it was mapped over. The
kernel of a device is made of it by passes, in that order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from xcube.cube import checks
from xcube.cube.calls import Avals, Call, Signature, Stage, base
from xcube.cube.passes import Cotangent, Tangent, floats, guarded, over_batch, silent
from xcube.errors import TraceError
from xcube.ir import Aval, at_user_line
from xcube.lowering.device import default_device
from xcube.primitives.launch import Flags, Launched


@dataclass(frozen=True)
class Launch:
    """The handle of `launch_p`. `batches`: the sizes of the batches and which operands are batched,
    innermost first. See `xcube.primitives.launch.Handle` for its methods."""

    call: Call
    passes: tuple[Tangent | Cotangent, ...] = ()
    batches: tuple[tuple[int, Flags], ...] = ()

    @property
    def name(self) -> str:
        return self.call.source.name

    def __str__(self) -> str:
        return self.name

    @property
    def is_reported(self) -> bool:
        """Whether the last result is the record of what went wrong."""
        return self.call.checked and not self.passes

    def signature(self, passes: Sequence[Tangent | Cotangent]) -> Signature:
        """Operands and results after some passes, of one example."""
        found = self.call.signature
        for each in passes:
            found = each.signature(found)
        return found

    def outputs(self, operands: Sequence[Aval]) -> Avals:
        sizes = tuple([size for size, _ in reversed(self.batches)])
        found = self.signature(self.passes).outputs
        batched_avals = [aval.update(shape=(*sizes, *aval.shape)) for aval in found]
        return (*batched_avals, *self._record())

    def _record(self) -> Avals:
        return (checks.record_aval(checks.kernel_of(self.call)),) if self.is_reported else ()

    def in_place(self) -> tuple[tuple[int, int], ...]:
        return tuple(self.signature(self.passes).begun.items())

    def started(self) -> frozenset[int]:
        slots = staged(self.call, self.passes, default_device().facts()).launched.slots
        written = [slot for slot in slots if slot.output is not None or slot.aval is not None]
        return frozenset([slot.operand for slot in written if slot.operand is not None])

    def launched(self, operands: Sequence[Aval], facts: Any) -> Launched:
        stage = staged(self.call, self.passes, facts)
        stage = guarded(stage, self.is_reported) if self.call.checked else silent(stage)
        for size, flags in self.batches:
            stage = over_batch(stage, size, flags)
        return stage.launched

    def batched(self, size: int, flags: Flags) -> tuple[Launch, Flags]:
        found = replace(self, batches=(*self.batches, (size, flags)))
        count = len(self.signature(self.passes).outputs)
        return found, (*[True] * count, *[False] * self.is_reported)

    def tangent(self, operands: Sequence[Aval], active: Flags) -> tuple[Launch, tuple[int, ...]]:
        self._require_derivative()
        numbers = tuple([number for number, flag in enumerate(active) if flag])
        below = self.signature(self.passes[:-1])
        last = self.passes[-1] if self.passes else None
        whole = self.signature(self.passes)
        first = below.count + len(last.unused) if last is not None else whole.count
        if last is not None and min(numbers) >= first:  # it is linear in these already
            picked = _picked(last, [number - first for number in numbers])
            rest = replace(picked, unused=whole.operands[below.count :])
            found = replace(self, passes=(*self.passes[:-1], rest))
            results = tuple(range(len(whole.outputs)))
        else:
            found = replace(self, passes=(*self.passes, Tangent(numbers)))
            results = tuple(floats(whole.outputs))
        batches = tuple(
            [(size, (*flags, *[flags[n] for n in numbers])) for size, flags in self.batches]
        )
        return replace(found, batches=batches), results

    def transposed(
        self, operands: Sequence[Aval], linear: Flags, present: Flags
    ) -> tuple[Launch, tuple[tuple[int, tuple[int, ...]], ...]]:
        self._require_derivative()
        last = self.passes[-1] if self.passes else None
        below, whole = self.signature(self.passes[:-1]), self.signature(self.passes)
        numbers = [number for number, flag in enumerate(linear) if flag]
        first = whole.count if last is None else below.count + len(last.unused)
        if last is None or min(numbers) < first:
            raise TraceError(f"{self.name}: it is not linear in all of these operands.")
        known = [n for n in range(below.count, whole.count) if not linear[n]]
        unused = tuple([whole.operands[n] for n in known])
        chosen = [number - first for number in numbers]
        given = [number for number, flag in enumerate(present[: len(whole.outputs)]) if flag]
        back, results = self._back(last, below, chosen, given, unused)
        places = [*range(below.count), *known]
        batches = tuple(
            [(s, (*[flags[n] for n in places], *[True] * len(given))) for s, flags in self.batches]
        )
        found = Launch(self.call, (*self.passes[:-1], back), batches)
        return found, tuple(
            [(result, self._axes(number)) for result, number in zip(results, numbers, strict=True)]
        )

    def _back(
        self,
        last: Tangent | Cotangent,
        below: Signature,
        chosen: Sequence[int],
        given: Sequence[int],
        unused: Avals,
    ) -> tuple[Tangent | Cotangent, list[int]]:
        """The transpose of a pass, by the `chosen` operands it is linear in, and which of its
        results are their cotangents."""
        inexact = floats(below.outputs)
        if isinstance(last, Tangent):
            wanted = tuple([last.active[k] for k in chosen])
            given = [inexact[k] for k in given]
            back = Cotangent(wanted, tuple(given), unused, self._is_disjoint)
            return back, list(range(len(wanted)))
        active = tuple([last.wanted[k] for k in given])
        return Tangent(active, unused), [inexact.index(last.present[k]) for k in chosen]

    @property
    def _is_disjoint(self) -> bool:
        """Whether it is known that no two units write one element: what goes back through units
        writes where they wrote."""
        return self.call.disjoint or any(isinstance(each, Cotangent) for each in self.passes)

    def _axes(self, operand: int) -> tuple[int, ...]:
        """The axes of a cotangent over which an operand that is not batched has its sum."""
        outermost = reversed([flags[operand] for _, flags in self.batches])
        return tuple([axis for axis, flag in enumerate(outermost) if not flag])

    def _require_derivative(self) -> None:
        if not self.call.differentiable:
            raise TraceError(
                f"{self.name}: a kernel must be differentiable where its operands depend on what "
                f"is differentiated; it is not.{at_user_line()} Make it so with "
                f"cube.differentiable(kernel), or give the call a rule with custom_vjp."
            )


@lru_cache(maxsize=1024)
def staged(call: Call, passes: tuple[Tangent | Cotangent, ...], facts: Any) -> Stage:
    """The kernel of a call after some passes, of one example."""
    if not passes:
        return base(call, facts)
    *before, last = passes
    return last.apply(staged(call, tuple(before), facts))


def _picked(last: Tangent | Cotangent, chosen: Sequence[int]) -> Tangent | Cotangent:
    """A pass by some of the operands that it is linear in."""
    if isinstance(last, Tangent):
        return replace(last, active=tuple([last.active[k] for k in chosen]))
    return replace(last, present=tuple([last.present[k] for k in chosen]))
