"""What a program costs after fusion: the arithmetic of its simplified jaxpr, and the bytes that its
launches read and write, of which values that stay inside a kernel are no part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xcube.ir import Equation, Jaxpr
from xcube.lowering import blocks
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.work import Block, Control, Work
from xcube.lowering.program import Program
from xcube.lowering.simplify import simplify
from xcube.primitives.cost import Cost, jaxpr_cost
from xcube.primitives.lowered import Barrier, Structured


def program_cost(jaxpr: Jaxpr, program: Program, facts: Facts) -> Cost:
    """The cost of a closed jaxpr that was lowered to a program for a device: operations are those
    that the user asked for, without what is shared, folded or not needed; bytes are those of the
    buffers of each launch, counted once. Conventions: `xcube.primitives.cost`."""
    arithmetic = jaxpr_cost(simplify(jaxpr))
    moved = _moved(blocks.build(program.jaxpr, facts))
    return replace(arithmetic, nbytes=moved)


def _moved(block: Block) -> int:
    return sum(map(_bytes, block.works))


def _bytes(work: Work | Control) -> int:
    if isinstance(work, Work) or not isinstance(work.equation.primitive.lower, Structured):
        is_barrier = isinstance(work, Control) and _is_barrier(work.equation)
        return 0 if is_barrier else sum(var.aval.nbytes for var in dict.fromkeys(work.buffers))
    return _structured(work.equation, [_moved(block) for block in work.blocks])


def _structured(eqn: Equation, moved: Sequence[int]) -> int:
    """Bytes of control flow, by those of its bodies: of one turn of a while loop."""
    kind = eqn.primitive.lower.kind
    if kind == "cond":
        return max(moved)
    return sum(moved) * (eqn.params["length"] if kind == "scan" else 1)


def _is_barrier(eqn: Equation) -> bool:
    return isinstance(eqn.primitive.lower, Barrier)
