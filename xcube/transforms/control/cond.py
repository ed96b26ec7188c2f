"""The primitive cond: one of several branches runs, picked by a number. Its derivatives are conds
again; a batch whose examples pick different branches runs all of them and selects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import DtypeError
from xcube.ir import Atom, Aval, Axis, Equation, Jaxpr, Linear, Primitive, Var, at_user_line
from xcube.primitives.convert import stop_gradient
from xcube.primitives.lowered import Structured
from xcube.primitives.reduce import reduce_or
from xcube.primitives.select import eq, select, select_n
from xcube.primitives.shape import broadcast_in_dim, broadcast_in_dim_p
from xcube.trace import aval_of, bind, evaluate, literal
from xcube.transforms.checkify.programs import guarded_jaxpr
from xcube.transforms.control.agreement import (
    check_closed,
    check_inputs,
    check_outputs,
    same_type,
)
from xcube.transforms.control.bodies import Flags, cached, either, spread
from xcube.transforms.linearize import Halves, is_linearizing, jvp_jaxpr, linearize_jaxpr
from xcube.transforms.transpose import transpose_jaxpr
from xcube.transforms.vmap import batch_jaxpr

INDEX = Aval((), np.int32)
Branches = tuple[Jaxpr, ...]
Derive = Callable[..., tuple[Any, Flags]]


def _abstract(index: Aval, *avals: Aval, branches: Branches) -> tuple[Aval, ...]:
    check_closed("cond", *branches)
    if not same_type(index, INDEX):
        raise DtypeError(f"cond: the index must be {INDEX}; got {index}.{at_user_line()}")
    for number, branch in enumerate(branches):
        check_inputs("cond", f"branch {number}", branch, avals)
        check_outputs("cond", f"branch {number}", branch, branches[0].out_avals)
    return branches[0].out_avals


def bind_cond(index: Any, branches: Branches, args: Sequence[Any]) -> list[Any]:
    """The results of a branch; values that the branches captured become operands of all."""
    if not branches[0].outputs and not any(branch.effects for branch in branches):
        return []
    consts = [value for branch in branches for value in branch.consts]
    if consts:
        branches = _cached(branches, "cond closed", lambda: _closed(branches))
    return bind(cond_p, index, *consts, *args, branches=branches)


def _closed(branches: Branches) -> Branches:
    """Branches whose leading inputs are what any of them captured."""

    def closed(mine: int, branch: Jaxpr) -> Jaxpr:
        leading = [
            var if number == mine else Var(var.aval)
            for number, other in enumerate(branches)
            for var, _ in other.captured
        ]
        inputs = (*leading, *branch.inputs)
        return Jaxpr(inputs, branch.equations, branch.outputs, (), branch.name)

    return tuple([closed(number, branch) for number, branch in enumerate(branches)])


def _cached(branches: Branches, key: Any, make: Any) -> Any:
    return cached(branches[0], (key, branches[1:]), make)


def _agreeing(derive: Derive, branches: Branches, *args: Any) -> tuple[list[Any], Flags]:
    """What `derive(branch, *args)` makes of each branch, of flags that one has all branches having
    them; and the flags."""
    plain = [derive(branch, *args) for branch in branches]
    flags = functools.reduce(either, [flags for _, flags in plain])
    return [
        found if own == flags else derive(branch, *args, flags)[0]
        for branch, (found, own) in zip(branches, plain, strict=True)
    ], flags


# forward mode ---------------------------------------------------------------------------------


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, branches: Branches
) -> tuple[list[Any], list[Any]]:
    nonzero = tuple([dx is not None for dx in tangents[1:]])
    given = [dx for dx in tangents if dx is not None]
    if is_linearizing(primals, tangents):
        return _linearized(primals, given, branches, nonzero)
    joint, flags = _cached(
        branches, ("cond jvp", nonzero), lambda: _agreeing(jvp_jaxpr, branches, nonzero)
    )
    outs = bind_cond(primals[0], tuple(joint), [*primals[1:], *given])
    count = len(flags)
    return outs[:count], spread(flags, outs[count:])


def _linearized(
    primals: Sequence[Any], given: list[Any], branches: Branches, nonzero: Flags
) -> tuple[list[Any], list[Any]]:
    """A known cond that gives residuals too, and a linear one that takes them."""
    parted = _cached(branches, ("cond linearize", nonzero), lambda: _parted(branches, nonzero))
    index, *args = primals
    outs, count = bind_cond(index, parted.known, args), len(parted.nonzero)
    residuals = [*[args[p] for p in parted.passed], *outs[count:]]
    dys = bind_cond(index, parted.linear, [*residuals, *given])
    return outs[:count], spread(parted.nonzero, dys)


@dataclass(frozen=True, slots=True, eq=False)
class _Parted:
    """Branches in two halves. known: operands -> (results, residuals); linear: (operands at
    `passed`, residuals, tangents) -> the tangents of those results that `nonzero` flags. Branches
    share the places of residuals of one type; a branch fills those that it does not use with
    zeros."""

    known: Branches
    linear: Branches
    passed: tuple[int, ...]
    nonzero: Flags


def _parted(branches: Branches, nonzero: Flags) -> _Parted:
    def derive(branch: Jaxpr, *args: Any) -> tuple[Halves, Flags]:
        halves = linearize_jaxpr(branch, *args)
        return halves, halves.nonzero

    halves, flags = _agreeing(derive, branches, nonzero)
    passed = sorted({p for half in halves for p in half.forwarded if p >= 0})
    places: list[Aval] = []
    taken = [_take_places(half.known.outputs[len(flags) :], places) for half in halves]
    return _Parted(
        tuple([_filled(h, t, places) for h, t in zip(halves, taken, strict=True)]),
        tuple([_placed(h, t, passed, places) for h, t in zip(halves, taken, strict=True)]),
        tuple(passed),
        flags,
    )


def _take_places(residuals: Sequence[Atom], places: list[Aval]) -> list[int]:
    """Places for a branch's residuals, of their types; new ones are added where they run out."""
    free, taken = list(range(len(places))), []
    for atom in residuals:
        place = next((n for n in free if same_type(places[n], atom.aval)), len(places))
        if place == len(places):
            places.append(atom.aval)
        else:
            free.remove(place)
        taken.append(place)
    return taken


def _filled(half: Halves, taken: Sequence[int], places: Sequence[Aval]) -> Jaxpr:
    """The known half of a branch, with every residual in its place and zeros in the others."""
    known, count = half.known, len(half.nonzero)
    fills = {n: _zeros(aval) for n, aval in enumerate(places) if n not in taken}
    own = dict(zip(taken, known.outputs[count:], strict=True))
    residuals = [own[n] if n in own else fills[n].outputs[0] for n in range(len(places))]
    return Jaxpr(
        known.inputs,
        (*known.equations, *fills.values()),
        (*known.outputs[:count], *residuals),
        known.captured,
        known.name,
    )


def _zeros(aval: Aval) -> Equation:
    zero = literal(np.zeros((), aval.dtype)[()])
    params = {"shape": aval.shape, "broadcast_dimensions": ()}
    return Equation((Var(aval.strengthen()),), broadcast_in_dim_p, (zero,), params)


def _placed(
    half: Halves, taken: Sequence[int], passed: Sequence[int], places: Sequence[Aval]
) -> Jaxpr:
    """The linear half of a branch, that takes what all branches pass and save."""
    linear, count = half.linear, len(half.forwarded)
    fresh = iter(taken)
    used = {
        ("passed", p) if p >= 0 else ("saved", next(fresh)): var
        for p, var in zip(half.forwarded, linear.inputs[:count], strict=True)
    }
    inputs = (
        *[used.get(("passed", p)) or Var(half.known.inputs[p].aval) for p in passed],
        *[used.get(("saved", n)) or Var(aval) for n, aval in enumerate(places)],
        *linear.inputs[count:],
    )
    return Jaxpr(inputs, linear.equations, linear.outputs, (), linear.name)


# reverse mode ---------------------------------------------------------------------------------


def _transpose(cts: Sequence[Any], index: Any, *args: Any, branches: Branches) -> list[Any]:
    linear = tuple([isinstance(arg, Linear) for arg in args])
    nonzero = tuple([ct is not None for ct in cts])
    back, flags = _cached(
        branches,
        ("cond transpose", linear, nonzero),
        lambda: _agreeing(transpose_jaxpr, branches, linear, nonzero),
    )
    known = [arg for arg in args if not isinstance(arg, Linear)]
    outs = bind_cond(index, tuple(back), [*known, *[ct for ct in cts if ct is not None]])
    return [None, *spread(linear, spread(flags, outs))]


# batches --------------------------------------------------------------------------------------


def _batch(
    axis: Axis, args: Sequence[Any], batched: Sequence[bool], *, branches: Branches
) -> tuple[list[Any], Sequence[bool]]:
    index, *operands = args
    if batched[0]:
        return _select_branches(axis, index, operands, tuple(batched[1:]), branches)
    flags = tuple(batched[1:])
    whole, out_flags = _cached(
        branches, ("cond batch", axis, flags), lambda: _agreeing(batch_jaxpr, branches, axis, flags)
    )
    return bind_cond(index, tuple(whole), operands), out_flags


def _select_branches(
    axis: Axis, index: Any, operands: list[Any], batched: Flags, branches: Branches
) -> tuple[list[Any], Sequence[bool]]:
    """All branches for all examples, and of the results those that the index picks."""
    if any("io" in branch.effects for branch in branches):
        raise NotImplementedError(
            "cond: under vmap with a predicate or an index that differs among examples, branches "
            f"with I/O callbacks cannot run.{at_user_line()} Map with lax.map instead."
        )
    results = []
    for number, branch in enumerate(branches):
        picked = eq(index, number)
        own = [_only_where(picked, x, flag) for x, flag in zip(operands, batched, strict=True)]
        flags = batched
        if "check" in branch.effects:
            branch, own, flags = guarded_jaxpr(branch), [picked, *own], (True, *flags)
        whole, _ = batch_jaxpr(branch, axis, flags, True)
        results.append(evaluate(whole, own))
    outs = [_pick_rows(index, cases) for cases in zip(*results, strict=True)]
    return outs, [True] * len(outs)


def _only_where(picked: Any, x: Any, is_batched: bool) -> Any:
    """x, which has a derivative only in the examples that pick the branch: elsewhere its derivative
    may be infinite, and zero times infinity is no zero."""
    if not dtypes.is_inexact(aval_of(x).dtype) or not isinstance(x, Array):
        return x
    where = broadcast_in_dim(picked, x.shape, (0,)) if is_batched else reduce_or(picked, (0,))
    return select(where, x, stop_gradient(x))


def _pick_rows(index: Any, cases: Sequence[Any]) -> Any:
    return select_n(broadcast_in_dim(index, cases[0].shape, (0,)), *cases)


cond_p = Primitive(
    "cond",
    _abstract,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    lower=Structured("cond"),
    multiple=True,
)
