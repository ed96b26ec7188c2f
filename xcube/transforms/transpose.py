"""Reverse mode: the one walk backward over a jaxpr, from output cotangents to input cotangents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xcube.errors import TraceError
from xcube.ir import Atom, Equation, Jaxpr, Linear, Literal, Var
from xcube.primitives.kinds import add
from xcube.primitives.shape import zeros_of
from xcube.trace import aval_of, bind_equation, stage, written_at

Flags = tuple[bool, ...]


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
        parts = _transposed(eqn, cts, [_read(env, atom) for atom in eqn.inputs])
        for atom, part in zip(eqn.inputs, parts, strict=True):
            _accumulate(sums, env, atom, part)
    return [sums.get(var) if isinstance(env[var], Linear) else None for var in jaxpr.inputs]


def _transposed(eqn: Equation, cts: list[Any], values: list[Any]) -> Sequence[Any]:
    """Cotangents of an equation's inputs."""
    where = f"written at {eqn.source}" if eqn.source else "of the differentiated function"
    if eqn.primitive.transpose is None:
        raise TraceError(
            f"{eqn.primitive.name} cannot be transposed: it is not linear. It is {where}."
        )
    try:
        ct = cts if eqn.primitive.multiple else cts[0]
        with written_at(eqn.source):
            return eqn.primitive.transpose(ct, *values, **eqn.params)
    except Exception as error:
        error.add_note(f"This came in reverse mode, at {eqn.primitive.name} {where}.")
        raise


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
    jaxpr: Jaxpr, linear: Flags, nonzero: Flags, force: Flags = ()
) -> tuple[Jaxpr, Flags]:
    """The jaxpr form: (known arguments, nonzero output cotangents) -> nonzero input cotangents,
    and which linear arguments have one. `force`: which linear arguments have one even if it is
    zero."""
    key = ("transpose", linear, nonzero, force)
    if key not in jaxpr._cache:
        jaxpr._cache[key] = _transpose_jaxpr(jaxpr, linear, nonzero, force)
    return jaxpr._cache[key]


def _transpose_jaxpr(
    jaxpr: Jaxpr, linear: Flags, nonzero: Flags, force: Flags
) -> tuple[Jaxpr, Flags]:
    found: dict[str, Any] = {}
    known_avals = [a for a, flag in zip(jaxpr.in_avals, linear, strict=True) if not flag]
    linear_avals = [a for a, flag in zip(jaxpr.in_avals, linear, strict=True) if flag]
    ct_avals = [a for a, flag in zip(jaxpr.out_avals, nonzero, strict=True) if flag]

    def transposed(*values: Any) -> list[Any]:
        known, cts = iter(values[: len(known_avals)]), iter(values[len(known_avals) :])
        args = [
            Linear(aval) if flag else next(known)
            for aval, flag in zip(jaxpr.in_avals, linear, strict=True)
        ]
        results = backward(jaxpr, args, [next(cts) if flag else None for flag in nonzero])
        linear_results = [ct for ct, flag in zip(results, linear, strict=True) if flag]
        if True in force:
            linear_results = [
                zeros_of(aval) if ct is None and flag else ct
                for ct, aval, flag in zip(linear_results, linear_avals, force, strict=True)
            ]
        found["nonzero"] = tuple(ct is not None for ct in linear_results)
        return [ct for ct in linear_results if ct is not None]

    return stage(transposed, [*known_avals, *ct_avals], jaxpr.name), found["nonzero"]
