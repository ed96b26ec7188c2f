"""What it costs to compute an equation again, in flops: arithmetic, and memory traffic at the rate
at which machines trade one for the other. An estimate for choosing, not a count."""

from __future__ import annotations

from xcube.ir import Equation, Jaxpr, subjaxprs
from xcube.primitives.cost import equation_cost
from xcube.primitives.lowered import Element, HostCall, Reduction, Structured

BALANCE = 16  # flops that a machine does while it moves a byte: 10 to 20 on CPUs and GPUs
HEAVY = 16  # flops of a transcendental function
TURNS = 100  # of a while loop, which nobody knows
HOST = 1 << 20  # flops that fit into a call of Python


def recompute_cost(eqn: Equation) -> int:
    """Flops of computing an equation again. Elements fuse with what reads them, so they move no
    bytes of their own; views and conversions are free."""
    lower = eqn.primitive.lower
    if isinstance(lower, Element):
        return 0 if lower.cheap else max(_elements(eqn), _arithmetic(eqn))
    if isinstance(lower, Structured):
        return _structured(lower.kind, eqn)
    if isinstance(lower, HostCall):
        return HOST + BALANCE * _bytes(eqn)
    if bodies := list(subjaxprs(eqn)):
        return sum(map(program_cost, bodies))
    if isinstance(lower, Reduction):
        return _read(eqn) + BALANCE * sum(var.aval.nbytes for var in eqn.outputs)
    return _arithmetic(eqn) + BALANCE * _bytes(eqn)


def program_cost(jaxpr: Jaxpr) -> int:
    """Flops of a program."""
    return sum(map(recompute_cost, jaxpr.equations))


def _structured(kind: str, eqn: Equation) -> int:
    costs = [program_cost(body) for body in subjaxprs(eqn)]
    if kind == "cond":
        return max(costs)
    turns = eqn.params["length"] if kind == "scan" else TURNS
    return turns * sum(costs) + BALANCE * _bytes(eqn)


def _arithmetic(eqn: Equation) -> int:
    cost = equation_cost(eqn)
    return cost.flops + HEAVY * cost.transcendentals


def _elements(eqn: Equation) -> int:
    return max((var.aval.size for var in eqn.outputs), default=0)


def _read(eqn: Equation) -> int:
    return sum(atom.aval.size for atom in eqn.inputs)


def _bytes(eqn: Equation) -> int:
    return sum(atom.aval.nbytes for atom in (*eqn.inputs, *eqn.outputs))
