"""The primitive scan: a body (carry, x) -> (carry, y) applied along the leading axis of xs. Its
derivative is a scan over primals and tangents, or, where they part, two scans (halves.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xcube.errors import ShapeError
from xcube.ir import Aval, Axis, Jaxpr, Linear, Primitive, at_user_line
from xcube.primitives.lowered import Structured
from xcube.primitives.shape import transpose, zeros_of
from xcube.trace import bind
from xcube.transforms.call import jit_p
from xcube.transforms.control.agreement import check_closed, check_inputs, check_outputs
from xcube.transforms.control.bodies import (
    Flags,
    cached,
    carried,
    picked,
    rearranged,
    settled,
    split_at,
    spread,
)
from xcube.transforms.control.halves import Parted, known_part, part, turned
from xcube.transforms.linearize import instantiated, is_linearizing, jvp_jaxpr, linearize_jaxpr
from xcube.transforms.vmap import batch_jaxpr, to_batch


def _abstract(
    *avals: Aval,
    jaxpr: Jaxpr,
    length: int,
    reverse: bool,
    unroll: int,
    num_consts: int,
    num_carry: int,
) -> tuple[Aval, ...]:
    check_closed("scan", jaxpr)
    consts, carry, xs = split_at(avals, num_consts, num_carry)
    for x in xs:
        if x.shape[:1] != (length,):
            raise ShapeError(
                f"scan: xs must have a leading axis of length {length}; got {x}.{at_user_line()}"
            )
    check_inputs("scan", "the body", jaxpr, [*consts, *carry, *map(row_aval, xs)])
    check_outputs("scan", "the body", jaxpr, carry)
    carry_out, ys = split_at(jaxpr.out_avals, num_carry)
    return (*carry_out, *[stacked_aval(y, length) for y in ys])


def row_aval(aval: Aval) -> Aval:
    """The aval of one row of an array."""
    return aval.update(shape=aval.shape[1:])


def stacked_aval(aval: Aval, length: int) -> Aval:
    """The aval of so many values along a new leading axis."""
    return aval.update(shape=(length, *aval.shape))


def bind_scan(
    jaxpr: Jaxpr, consts: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    """Last carries and ys of a body; values that it captured become constants of the loop. params:
    length, reverse, unroll."""
    if not (jaxpr.outputs or jaxpr.effects):
        return [], []
    leading = [*jaxpr.consts, *consts]
    outs = bind(
        scan_p,
        *leading,
        *carry,
        *xs,
        jaxpr=jaxpr.closed(),
        num_consts=len(leading),
        num_carry=len(carry),
        **params,
    )
    return outs[: len(carry)], outs[len(carry) :]


# forward mode ---------------------------------------------------------------------------------


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    jaxpr: Jaxpr,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> tuple[list[Any], list[Any]]:
    linearizing = is_linearizing(primals, tangents)
    given = tuple([tangent is not None for tangent in tangents])
    key = ("scan tangents", linearizing, given, num_consts, num_carry)
    nonzero = cached(
        jaxpr, key, lambda: _with_tangents(jaxpr, given, num_consts, num_carry, linearizing)
    )
    whole = instantiated(primals, tangents, nonzero)
    sizes = num_consts, num_carry
    derive = _linearized if linearizing else _joint
    return derive(jaxpr, split_at(primals, *sizes), split_at(whole, *sizes), nonzero, params)


def _with_tangents(
    jaxpr: Jaxpr, given: Flags, num_consts: int, num_carry: int, linearizing: bool
) -> Flags:
    """Which operands have tangents, carries included that get one in the course of the loop."""
    consts, start, xs = split_at(given, num_consts, num_carry)

    def step(carry: Flags) -> Flags:
        flags = (*consts, *carry, *xs)
        derived = (linearize_jaxpr if linearizing else jvp_jaxpr)(jaxpr, flags)
        return derived.nonzero[:num_carry]

    guess = carried(jaxpr, given, num_consts, num_carry, smooth=True)
    return (*consts, *settled(tuple(start), guess, step), *xs)


def _joint(
    jaxpr: Jaxpr, primals: list[list[Any]], tangents: list[list[Any]], nonzero: Flags, params: Any
) -> tuple[list[Any], list[Any]]:
    """One loop over primals and tangents."""
    sizes = [len(part) for part in primals]
    key = ("scan jvp", nonzero, *sizes)
    body, flags = cached(jaxpr, key, lambda: _joint_body(jaxpr, nonzero, sizes))
    operands = [
        [*part, *[dx for dx in dxs if dx is not None]]
        for part, dxs in zip(primals, tangents, strict=True)
    ]
    carry, ys = bind_scan(body, *operands, **params)
    num_carry, num_ys = sizes[1], len(flags) - sizes[1]
    outs = [*carry[:num_carry], *ys[:num_ys]]
    return outs, spread(flags, [*carry[num_carry:], *ys[num_ys:]])


def _joint_body(jaxpr: Jaxpr, nonzero: Flags, sizes: list[int]) -> tuple[Jaxpr, Flags]:
    """The body over primals and tangents, and which of its results have tangents."""
    count, num_carry = len(jaxpr.inputs), sizes[1]
    consts, carry, _ = split_at(nonzero, *sizes[:2])
    joint, flags = _forced(jvp_jaxpr, jaxpr, nonzero, carry)
    primals = split_at(range(count), *sizes[:2])
    dxs = split_at(range(count, len(joint.inputs)), sum(consts), sum(carry))
    inputs = [k for pair in zip(primals, dxs, strict=True) for part in pair for k in part]
    outs = split_at(range(len(flags)), num_carry)
    dys = split_at(range(len(flags), len(joint.outputs)), sum(carry))
    outputs = [k for pair in zip(outs, dys, strict=True) for part in pair for k in part]
    return rearranged(joint, inputs, outputs), flags


def _forced(derive: Any, jaxpr: Jaxpr, nonzero: Flags, carry: Sequence[bool]) -> Any:
    """The derived body, of whose carries exactly those have tangents that are given one."""
    plain = derive(jaxpr, nonzero)
    if plain.nonzero[: len(carry)] == tuple(carry):
        return plain
    ys = (False,) * (len(jaxpr.outputs) - len(carry))
    return derive(jaxpr, nonzero, (*carry, *ys))


def _linearized(
    jaxpr: Jaxpr, primals: list[list[Any]], tangents: list[list[Any]], nonzero: Flags, params: Any
) -> tuple[list[Any], list[Any]]:
    """A loop over primals that saves residuals, and a linear one over tangents."""
    sizes = [len(part) for part in primals]
    num_ys = len(jaxpr.outputs) - sizes[1]
    key = ("scan linearize", nonzero, *sizes)
    parted, flags = cached(jaxpr, key, lambda: _parted_body(jaxpr, nonzero, sizes))
    consts, carry, xs = primals
    carry_out, ys, fixed, rows = run_known(parted, consts, carry, xs, params)
    dconsts, dcarry, dxs = [[dx for dx in part if dx is not None] for part in tangents]
    dcarry, dys = bind_scan(
        parted.linear,
        [*[fixed[k] for k in parted.const_sources], *dconsts],
        dcarry,
        [*[rows[k] for k in parted.x_sources], *dxs],
        **params,
    )
    return [*carry_out, *ys[:num_ys]], spread(flags, [*dcarry, *dys])


def _parted_body(jaxpr: Jaxpr, nonzero: Flags, sizes: list[int]) -> tuple[Parted, Flags]:
    """The two bodies, and which results have tangents."""
    consts, carry, _ = split_at(nonzero, *sizes[:2])
    halves = _forced(linearize_jaxpr, jaxpr, nonzero, carry)
    count = len(jaxpr.outputs)
    fresh = iter(halves.known.outputs[count:])
    residuals = [halves.known.inputs[p] if p >= 0 else next(fresh) for p in halves.forwarded]
    known = halves.known
    known = Jaxpr(known.inputs, known.equations, known.outputs[:count], known.captured, known.name)
    parted = part(known, residuals, halves.linear, sizes[0], sizes[1], (sum(consts), sum(carry)))
    return parted, halves.nonzero


def run_known(
    parted: Parted, consts: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any], params: Any
) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """The known loop: last carries, ys with stacked residuals, and what the linear loop picks its
    constants and its xs from."""
    given = [*parted.captured, *consts]
    once = parted.once
    early = bind(jit_p, *given, jaxpr=once, name="once") if once.outputs else []
    fixed = [*given, *early]
    carry_out, ys = bind_scan(parted.known, fixed, carry, xs, **params)
    return carry_out, ys, fixed, [*xs, *ys]


# reverse mode ---------------------------------------------------------------------------------


def _transpose(
    cts: Sequence[Any],
    *args: Any,
    jaxpr: Jaxpr,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> list[Any]:
    flags = tuple([isinstance(arg, Linear) for arg in args])
    moving = carried(jaxpr, flags, num_consts, num_carry)
    linear = (*flags[:num_consts], *moving, *flags[num_consts + num_carry :])
    turn = _transpose_linear if all(moving) else _transpose_past_known
    found = turn(cts, args, jaxpr, linear, (num_consts, num_carry), params)
    pairs = zip(spread(linear, found), flags, strict=True)
    return [ct if flag else None for ct, flag in pairs]


def _transpose_linear(
    cts: Sequence[Any],
    args: Sequence[Any],
    jaxpr: Jaxpr,
    linear: Flags,
    sizes: tuple[int, int],
    params: Any,
) -> list[Any]:
    """Cotangents of the linear operands, all carries among them, by a loop the other way round."""
    nonzero = tuple([ct is not None for ct in cts])
    key = ("scan transpose", linear, nonzero, *sizes)
    back = cached(jaxpr, key, lambda: turned(jaxpr, linear, nonzero, *sizes))
    consts, _, xs = split_at(args, *sizes)
    carry_cts, y_cts = split_at(cts, sizes[1])
    avals = jaxpr.out_avals[: sizes[1]]
    start = [
        zeros_of(aval) if ct is None else ct
        for ct, aval, flag in zip(carry_cts, avals, back.carry, strict=True)
        if flag
    ]
    sums = picked([arg.aval for arg in consts if isinstance(arg, Linear)], back.consts)
    last, rows = bind_scan(
        back.jaxpr,
        [arg for arg in consts if not isinstance(arg, Linear)],
        [*start, *map(zeros_of, sums)],
        [*[x for x in xs if not isinstance(x, Linear)], *[ct for ct in y_cts if ct is not None]],
        **{**params, "reverse": not params["reverse"]},
    )
    found, totals = split_at(last, len(start))
    return [*spread(back.consts, totals), *spread(back.carry, found), *spread(back.xs, rows)]


def _transpose_past_known(
    cts: Sequence[Any],
    args: Sequence[Any],
    jaxpr: Jaxpr,
    linear: Flags,
    sizes: tuple[int, int],
    params: Any,
) -> list[Any]:
    """The same where some carries depend on nothing linear: a loop before gives their values."""
    key = ("scan known", linear, *sizes)
    parted, kept = cached(jaxpr, key, lambda: known_part(jaxpr, linear, *sizes))
    is_known = [not flag for flag in linear]
    consts, carry, xs = (picked(*pair) for pair in _zipped(args, is_known, sizes))
    *_, fixed, rows = run_known(parted, consts, carry, xs, params)
    consts, carry, xs = (picked(*pair) for pair in _zipped(args, linear, sizes))
    residuals = [fixed[k] for k in parted.const_sources], [rows[k] for k in parted.x_sources]
    found = _transpose(
        picked(cts, kept),
        *[*residuals[0], *consts, *carry, *residuals[1], *xs],
        jaxpr=parted.linear,
        num_consts=len(residuals[0]) + len(consts),
        num_carry=len(carry),
        **params,
    )
    parts = len(residuals[0]), len(consts) + len(carry), len(residuals[1])
    _, first, _, last = split_at(found, *parts)
    return [*first, *last]


def _zipped(args: Sequence[Any], flags: Sequence[bool], sizes: tuple[int, int]) -> Any:
    return zip(split_at(args, *sizes), split_at(flags, *sizes), strict=True)


# batches --------------------------------------------------------------------------------------


def _batch(
    axis: Axis,
    args: Sequence[Any],
    batched: Sequence[bool],
    *,
    jaxpr: Jaxpr,
    num_consts: int,
    num_carry: int,
    **params: Any,
) -> tuple[list[Any], Sequence[bool]]:
    key = ("scan batch", axis, tuple(batched), num_consts, num_carry)
    body, moving, flags = cached(
        jaxpr, key, lambda: _batched_body(jaxpr, axis, tuple(batched), num_consts, num_carry)
    )
    consts, carry, xs = split_at(args, num_consts, num_carry)
    _, carry_batched, xs_batched = split_at(batched, num_consts, num_carry)
    carry = [
        to_batch(x, axis.size) if flag and not have else x
        for x, have, flag in zip(carry, carry_batched, moving, strict=True)
    ]
    xs = [_swapped(x) if flag else x for x, flag in zip(xs, xs_batched, strict=True)]
    last, ys = bind_scan(body, consts, carry, xs, **params)
    ys = [_swapped(y) if flag else y for y, flag in zip(ys, flags[num_carry:], strict=True)]
    return [*last, *ys], flags


def _batched_body(
    jaxpr: Jaxpr, axis: Axis, batched: Flags, num_consts: int, num_carry: int
) -> tuple[Jaxpr, Flags, Flags]:
    """The body for a batch, the carries that are batched, and the results."""
    consts, start, xs = split_at(batched, num_consts, num_carry)

    def step(carry: Flags) -> Flags:
        return batch_jaxpr(jaxpr, axis, (*consts, *carry, *xs))[1][:num_carry]

    guess = carried(jaxpr, batched, num_consts, num_carry)
    moving = settled(tuple(start), guess, step)
    force = (*moving, *(False,) * (len(jaxpr.outputs) - num_carry))
    body, flags = batch_jaxpr(jaxpr, axis, (*consts, *moving, *xs), force)
    return body, moving, flags


def _swapped(x: Any) -> Any:
    """x with its first two axes, that of the batch and that of the loop, exchanged."""
    return transpose(x, (1, 0, *range(2, x.ndim)))


scan_p = Primitive(
    "scan",
    _abstract,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    lower=Structured("scan"),
    multiple=True,
)
