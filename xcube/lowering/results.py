"""Results of flat jaxprs made to have memory of their own, where whoever runs them needs that."""

from __future__ import annotations

from xcube.ir import Atom, Equation, Jaxpr, Literal, Var
from xcube.primitives.convert import copy_p
from xcube.primitives.lowered import Barrier, Constant
from xcube.primitives.shape import broadcast_in_dim_p


def filled(atom: Literal) -> Equation:
    """The equation that writes a literal to memory."""
    params = {"shape": (), "broadcast_dimensions": ()}
    return Equation((Var(atom.aval),), broadcast_in_dim_p, (atom,), params)


def computed(jaxpr: Jaxpr) -> Jaxpr:
    """Results that are literals become results of equations."""
    if not any(isinstance(atom, Literal) for atom in jaxpr.outputs):
        return jaxpr
    equations, outputs = list(jaxpr.equations), []
    for atom in jaxpr.outputs:
        if isinstance(atom, Literal):
            equations.append(filled(atom))
            atom = equations[-1].outputs[0]
        outputs.append(atom)
    return Jaxpr(jaxpr.inputs, tuple(equations), tuple(outputs), jaxpr.captured, jaxpr.name)


def without_aliases(jaxpr: Jaxpr) -> Jaxpr:
    """Results that a barrier passes on, or that are constants, become copies."""
    passed = {
        var
        for eqn in jaxpr.equations
        if isinstance(eqn.primitive.lower, Barrier | Constant)
        for var in eqn.outputs
    }
    return _with_copies(jaxpr, [atom in passed for atom in jaxpr.outputs])


def own(jaxpr: Jaxpr) -> Jaxpr:
    """Results that are inputs, or that come twice, become copies."""
    seen: set[Atom] = set(jaxpr.inputs)
    copied = []
    for atom in jaxpr.outputs:
        copied.append(atom in seen)
        seen.add(atom)
    return _with_copies(jaxpr, copied)


def _with_copies(jaxpr: Jaxpr, copied: list[bool]) -> Jaxpr:
    if not any(copied):
        return jaxpr
    equations, outputs = list(jaxpr.equations), []
    for atom, flag in zip(jaxpr.outputs, copied, strict=True):
        if flag:
            equations.append(Equation((Var(atom.aval),), copy_p, (atom,), {}))
            atom = equations[-1].outputs[0]
        outputs.append(atom)
    return Jaxpr(jaxpr.inputs, tuple(equations), tuple(outputs), jaxpr.captured, jaxpr.name)
