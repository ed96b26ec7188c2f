"""The primitive while: a body applied to a carry as long as a condition on it holds. Its forward
derivative is one loop over primals and tangents; it has no reverse one, for nobody knows how many
steps to save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from xcube.ir import Aval, Axis, Jaxpr, Primitive, Var, at_user_line
from xcube.primitives.bits import bitwise_and
from xcube.primitives.lowered import Structured
from xcube.primitives.reduce import reduce_or
from xcube.primitives.select import select
from xcube.primitives.shape import broadcast_in_dim
from xcube.trace import bind, evaluate, stage
from xcube.transforms.checkify.programs import guarded_jaxpr
from xcube.transforms.control.agreement import check_closed, check_inputs, check_outputs
from xcube.transforms.control.bodies import (
    Flags,
    cached,
    carried,
    rearranged,
    settled,
    split_at,
    spread,
)
from xcube.transforms.effects import without
from xcube.transforms.linearize import instantiated, is_linearizing, jvp_jaxpr
from xcube.transforms.vmap import batch_jaxpr, to_batch

PREDICATE = Aval((), np.bool_)


def _abstract(
    *avals: Aval, cond_jaxpr: Jaxpr, cond_nconsts: int, body_jaxpr: Jaxpr, body_nconsts: int
) -> tuple[Aval, ...]:
    check_closed("while_loop", cond_jaxpr, body_jaxpr)
    cond_consts, body_consts, carry = split_at(avals, cond_nconsts, body_nconsts)
    check_inputs("while_loop", "the condition", cond_jaxpr, [*cond_consts, *carry])
    check_inputs("while_loop", "the body", body_jaxpr, [*body_consts, *carry])
    check_outputs("while_loop", "the condition", cond_jaxpr, [PREDICATE])
    check_outputs("while_loop", "the body", body_jaxpr, carry)
    return body_jaxpr.out_avals


def bind_while(
    cond_jaxpr: Jaxpr,
    body_jaxpr: Jaxpr,
    cond_consts: Sequence[Any],
    body_consts: Sequence[Any],
    carry: Sequence[Any],
) -> list[Any]:
    """Last carries; values that the jaxprs captured become constants of the loop."""
    cond_consts = [*cond_jaxpr.consts, *cond_consts]
    body_consts = [*body_jaxpr.consts, *body_consts]
    return bind(
        while_p,
        *cond_consts,
        *body_consts,
        *carry,
        cond_jaxpr=cond_jaxpr.closed(),
        cond_nconsts=len(cond_consts),
        body_jaxpr=body_jaxpr.closed(),
        body_nconsts=len(body_consts),
    )


# forward mode ---------------------------------------------------------------------------------


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    cond_jaxpr: Jaxpr,
    cond_nconsts: int,
    body_jaxpr: Jaxpr,
    body_nconsts: int,
) -> tuple[list[Any], list[Any]]:
    """One loop over primals and tangents. Under `linearize` the linear program has that loop, and a
    second one is known: what it gives is known too."""
    cond_consts, body_consts, carry = split_at(primals, cond_nconsts, body_nconsts)
    _, *dxs = split_at(tangents, cond_nconsts, body_nconsts)
    given = tuple([dx is not None for part in dxs for dx in part])
    joint, nonzero = cached(
        body_jaxpr, ("while jvp", given), lambda: _joint_body(body_jaxpr, given, body_nconsts)
    )
    plain = {"cond_jaxpr": cond_jaxpr, "cond_nconsts": cond_nconsts}
    plain |= {"body_jaxpr": body_jaxpr, "body_nconsts": body_nconsts}
    if not any(nonzero):
        return bind(while_p, *primals, **plain), [None] * len(carry)
    test = cached(cond_jaxpr, ("while jvp", nonzero), lambda: _joint_test(cond_jaxpr, nonzero))
    dcarry = instantiated(carry, dxs[1], nonzero)
    linearizing = is_linearizing(primals, tangents)
    if linearizing:  # what watches a step watches it once
        test, joint = without(test, "debug"), without(joint, "debug")
    outs = bind_while(
        test,
        joint,
        cond_consts,
        [*body_consts, *[dx for dx in dxs[0] if dx is not None]],
        [*carry, *[dx for dx in dcarry if dx is not None]],
    )
    known = bind(while_p, *primals, **plain) if linearizing else outs[: len(carry)]
    return known, spread(nonzero, outs[len(carry) :])


def _joint_body(jaxpr: Jaxpr, given: Flags, num_consts: int) -> tuple[Jaxpr, Flags]:
    """The body over primals and tangents, and which carries have tangents."""
    consts, start, num_carry = given[:num_consts], given[num_consts:], len(jaxpr.outputs)
    guess = carried(jaxpr, given, num_consts, num_carry, smooth=True)
    nonzero = settled(start, guess, lambda carry: jvp_jaxpr(jaxpr, (*consts, *carry)).nonzero)
    joint, flags = jvp_jaxpr(jaxpr, (*consts, *nonzero))
    if flags != nonzero:
        joint, _ = jvp_jaxpr(jaxpr, (*consts, *nonzero), nonzero)
    xs, carry, dxs, dcarry = split_at(range(len(joint.inputs)), num_consts, num_carry, sum(consts))
    return rearranged(joint, [*xs, *dxs, *carry, *dcarry], range(len(joint.outputs))), nonzero


def _joint_test(jaxpr: Jaxpr, nonzero: Flags) -> Jaxpr:
    """The condition, which takes tangents and does not look at them."""
    carry = jaxpr.inputs[len(jaxpr.inputs) - len(nonzero) :]
    unused = [Var(var.aval) for var, flag in zip(carry, nonzero, strict=True) if flag]
    inputs = (*jaxpr.inputs, *unused)
    return Jaxpr(inputs, jaxpr.equations, jaxpr.outputs, jaxpr.captured, jaxpr.name)


def _transpose(cts: Sequence[Any], *args: Any, **params: Any) -> NoReturn:
    raise ValueError(
        "while_loop: there is no reverse-mode derivative, for the number of steps, and with it the "
        f"memory that the way back needs, is not known.{at_user_line()} Use scan, fori_loop with "
        "bounds that are known while tracing, or forward mode (jvp, jacfwd)."
    )


# batches --------------------------------------------------------------------------------------


def _batch(
    axis: Axis,
    args: Sequence[Any],
    batched: Sequence[bool],
    *,
    cond_jaxpr: Jaxpr,
    cond_nconsts: int,
    body_jaxpr: Jaxpr,
    body_nconsts: int,
) -> tuple[list[Any], Sequence[bool]]:
    cond_consts, body_consts, carry = split_at(args, cond_nconsts, body_nconsts)
    test_flags, body_flags, start = map(tuple, split_at(batched, cond_nconsts, body_nconsts))
    moving = cached(
        body_jaxpr,
        ("while batch", axis, body_flags, start),
        lambda: _batched_carry(body_jaxpr, axis, body_flags, start),
    )
    test, (differs,) = batch_jaxpr(cond_jaxpr, axis, (*test_flags, *moving))
    if differs:
        moving = (True,) * len(carry)
        test, _ = batch_jaxpr(cond_jaxpr, axis, (*test_flags, *moving), True)
    flags = (*body_flags, *moving)
    if guarded := differs and "check" in body_jaxpr.effects:
        body_jaxpr, flags = guarded_jaxpr(body_jaxpr), (True, *flags)
    body, _ = batch_jaxpr(body_jaxpr, axis, flags, moving)
    carry = [
        to_batch(x, axis.size) if flag and not have else x
        for x, have, flag in zip(carry, start, moving, strict=True)
    ]
    if differs:
        return _bind_while_any(test, body, cond_consts, body_consts, carry, guarded), moving
    return bind_while(test, body, cond_consts, body_consts, carry), moving


def _batched_carry(jaxpr: Jaxpr, axis: Axis, consts: Flags, start: Flags) -> Flags:
    """The carries that are batched in the course of the loop."""
    guess = carried(jaxpr, (*consts, *start), len(consts), len(start))
    return settled(start, guess, lambda carry: batch_jaxpr(jaxpr, axis, (*consts, *carry))[1])


def _bind_while_any(
    test: Jaxpr,
    body: Jaxpr,
    cond_consts: Sequence[Any],
    body_consts: Sequence[Any],
    carry: Sequence[Any],
    guarded: bool,
) -> list[Any]:
    """The loop of a batch whose examples end at different times: it goes on as long as any does,
    and examples that ended keep their values. Which ones are active is a carry, in front; a guarded
    body takes it too, before all else."""
    if any("io" in jaxpr.effects for jaxpr in (test, body)):
        raise NotImplementedError(
            "while_loop: under vmap with a condition that differs among examples, ordered and "
            f"unordered I/O callbacks cannot run.{at_user_line()} Map with lax.map instead."
        )
    counts = len(cond_consts), len(body_consts)
    any_active, step = cached(
        body,
        ("while any", test, *counts, guarded),
        lambda: _while_any(test, body, *counts, guarded),
    )
    active = evaluate(test, [*cond_consts, *carry])
    return bind_while(any_active, step, [], [*cond_consts, *body_consts], [*active, *carry])[1:]


def _while_any(
    test: Jaxpr, body: Jaxpr, num_test: int, num_body: int, guarded: bool
) -> tuple[Jaxpr, Jaxpr]:
    body_avals, (active,) = body.in_avals[guarded:], test.out_avals
    test_consts, body_consts = test.in_avals[:num_test], body_avals[:num_body]
    carry = body_avals[num_body:]

    def step(*args: Any) -> list[Any]:
        consts, more, (now,), before = split_at(args, num_test, num_body, 1)
        results = evaluate(body, [*[now] * guarded, *more, *before])
        after = [_select_rows(now, new, old) for new, old in zip(results, before, strict=True)]
        (wanted,) = evaluate(test, [*consts, *after])
        return [bitwise_and(now, wanted), *after]

    any_active = stage(lambda now, *_: [reduce_or(now, (0,))], [active, *carry], test.name)
    return any_active, stage(step, [*test_consts, *body_consts, active, *carry], body.name)


def _select_rows(rows: Any, new: Any, old: Any) -> Any:
    """new in the rows that are flagged, old in the others."""
    return select(broadcast_in_dim(rows, new.shape, (0,)), new, old)


while_p = Primitive(
    "while",
    _abstract,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    lower=Structured("while"),
    multiple=True,
)
