"""Reverse mode: the one walk backward over a jaxpr, from output cotangents to input cotangents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xcube.errors import TraceError
from xcube.ir import Atom, Equation, Jaxpr, Linear, Literal, Var
from xcube.primitives.kinds import add
from xcube.trace import aval_of, bind_equation, stage


def backward(jaxpr: Jaxpr, args: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """Cotangents of the linear arguments of a jaxpr.

    `args`: a value for each known argument, `Linear(aval)` for each linear one. `cotangents`: one
    per output, None for zero. Gives one per argument: None for known ones and for zeros.
    Equations that depend on no linear argument are evaluated forward first.
    """
    env: dict[Var, Any] = dict(jaxpr.captured)
    env.update(zip(jaxpr.inputs, args, strict=True))
    linear_equations = _forward(jaxpr, env)
    sums: dict[Var, Any] = {}
    for atom, ct in zip(jaxpr.outputs, cotangents, strict=True):
        _accumulate(sums, env, atom, ct)
    for eqn in reversed(linear_equations):
        cts = [sums.pop(var, None) for var in eqn.outputs]
        if all(ct is None for ct in cts):
            continue
        if eqn.primitive.transpose is None:
            where = f" Written at {eqn.source}." if eqn.source else ""
            raise TraceError(f"{eqn.primitive.name} cannot be transposed: it is not linear.{where}")
        values = [_read(env, atom) for atom in eqn.inputs]
        ct = cts if eqn.primitive.multiple else cts[0]
        for atom, part in zip(
            eqn.inputs, eqn.primitive.transpose(ct, *values, **eqn.params), strict=True
        ):
            _accumulate(sums, env, atom, part)
    return [sums.get(var) if isinstance(env[var], Linear) else None for var in jaxpr.inputs]


def _forward(jaxpr: Jaxpr, env: dict[Var, Any]) -> list[Equation]:
    """Evaluate what depends on known values alone; the other equations, in order."""
    linear: list[Equation] = []
    for eqn in jaxpr.equations:
        values = [_read(env, atom) for atom in eqn.inputs]
        if any(isinstance(value, Linear) for value in values):
            env.update((var, Linear(var.aval)) for var in eqn.outputs)
            linear.append(eqn)
        else:
            env.update(zip(eqn.outputs, bind_equation(eqn, values), strict=True))
    return linear


def _read(env: dict[Var, Any], atom: Atom) -> Any:
    return atom if isinstance(atom, Literal) else env[atom]


def _accumulate(sums: dict[Var, Any], env: dict[Var, Any], atom: Atom, ct: Any) -> None:
    if ct is None or isinstance(atom, Literal) or not isinstance(env[atom], Linear):
        return
    assert aval_of(ct).shape == atom.aval.shape, f"{aval_of(ct)} is no cotangent of {atom.aval}"
    sums[atom] = ct if atom not in sums else add(sums[atom], ct)


def transpose_jaxpr(
    jaxpr: Jaxpr, linear: tuple[bool, ...], nonzero: tuple[bool, ...]
) -> tuple[Jaxpr, tuple[bool, ...]]:
    """The jaxpr form: (known arguments, nonzero output cotangents) -> nonzero input cotangents,
    and which linear arguments have one."""
    key = ("transpose", linear, nonzero)
    if key not in jaxpr._cache:
        jaxpr._cache[key] = _transpose_jaxpr(jaxpr, linear, nonzero)
    return jaxpr._cache[key]


def _transpose_jaxpr(jaxpr: Jaxpr, linear: tuple[bool, ...], nonzero: tuple[bool, ...]) -> Any:
    found: dict[str, Any] = {}
    known_avals = [a for a, flag in zip(jaxpr.in_avals, linear, strict=True) if not flag]
    ct_avals = [a for a, flag in zip(jaxpr.out_avals, nonzero, strict=True) if flag]

    def transposed(*values: Any) -> list[Any]:
        known, cts = iter(values[: len(known_avals)]), iter(values[len(known_avals) :])
        args = [
            Linear(aval) if flag else next(known)
            for aval, flag in zip(jaxpr.in_avals, linear, strict=True)
        ]
        results = backward(jaxpr, args, [next(cts) if flag else None for flag in nonzero])
        linear_results = [ct for ct, flag in zip(results, linear, strict=True) if flag]
        found["nonzero"] = tuple(ct is not None for ct in linear_results)
        return [ct for ct in linear_results if ct is not None]

    return stage(transposed, [*known_avals, *ct_avals], jaxpr.name), found["nonzero"]
