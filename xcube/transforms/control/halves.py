"""Bodies of scans taken apart: into a known half, which runs first, and a linear one that takes
what the known half saved; and a linear body turned round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xcube.ir import Equation, Jaxpr, Literal, Var, effects_of
from xcube.primitives.kinds import add
from xcube.transforms.control.bodies import (
    Flags,
    either,
    needed,
    picked,
    pruned,
    reached_vars,
    rearranged,
    settled,
    split_at,
)
from xcube.transforms.transpose import transpose_jaxpr

# a known and a linear half --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Parted:
    """A body in two halves.

    once: consts -> what is computed before the loop. known: (consts, that; carry; xs) ->
    (carry; ys, saved). linear: (fixed residuals, linear consts; linear carry; residual rows,
    linear xs) -> (linear carry; linear ys). `captured` are leading consts of the known half.
    `const_sources` says where the fixed residuals are among (consts, once), `x_sources` where the
    rows are among (xs, ys, saved).
    """

    captured: list[Any]
    once: Jaxpr
    known: Jaxpr
    linear: Jaxpr
    const_sources: tuple[int, ...]
    x_sources: tuple[int, ...]


def part(
    known: Jaxpr,
    residuals: Sequence[Var],
    linear: Jaxpr,
    num_consts: int,
    num_carry: int,
    num_linear: tuple[int, int],
) -> Parted:
    """The halves, with each residual where it costs least.

    `known` gives (carry; ys), and `residuals` are variables of it. `linear` takes them first, then
    consts and carries, as many as `num_linear` says, then xs. A residual that is the same in every
    step is saved once; the others are stacked, unless they are xs or ys.
    """
    captured, known = known.consts, known.closed()
    consts, carry, xs = split_at(known.inputs, len(captured) + num_consts, num_carry)
    unchanging, fixed = _unchanging(known, consts)
    wanted = set(residuals)
    early = [eqn for eqn in unchanging if any(var in wanted for var in eqn.outputs)]
    made = [var for eqn in early for var in eqn.outputs]
    places = {var: k for k, var in enumerate([*consts, *made])}
    stacked = [*xs, *known.outputs[num_carry:]]
    saved = [var for var in residuals if var not in fixed and var not in set(stacked)]
    rows = {var: k for k, var in reversed([*enumerate([*stacked, *saved])])}
    late = tuple([eqn for eqn in known.equations if eqn not in set(early)])
    inputs, outputs = (*consts, *made, *carry, *xs), (*known.outputs, *saved)
    is_fixed = [var in fixed for var in residuals]
    return Parted(
        captured,
        pruned(Jaxpr(tuple(consts), tuple(unchanging), tuple(made), (), known.name)),
        pruned(Jaxpr(inputs, late, outputs, (), known.name)),
        _sorted(linear, is_fixed, num_linear),
        tuple([places[var] for var in picked(residuals, is_fixed)]),
        tuple([rows[var] for var in residuals if var not in fixed]),
    )


def _unchanging(jaxpr: Jaxpr, consts: Sequence[Var]) -> tuple[list[Equation], set[Var]]:
    """The equations that give the same in every step, and all variables that are the same."""
    fixed, equations = set(consts), []
    for eqn in jaxpr.equations:
        if all(isinstance(a, Literal) or a in fixed for a in eqn.inputs) and not effects_of(eqn):
            equations.append(eqn)
            fixed.update(eqn.outputs)
    return equations, fixed


def _sorted(linear: Jaxpr, is_fixed: Sequence[bool], num_linear: tuple[int, int]) -> Jaxpr:
    """The linear half with its residuals among its consts and its xs."""
    residuals, consts, carry, xs = split_at(range(len(linear.inputs)), len(is_fixed), *num_linear)
    rows = picked(residuals, [not flag for flag in is_fixed])
    order = [*picked(residuals, is_fixed), *consts, *carry, *rows, *xs]
    return rearranged(linear, order, range(len(linear.outputs)))


def known_part(
    jaxpr: Jaxpr, linear: Flags, num_consts: int, num_carry: int
) -> tuple[Parted, list[bool]]:
    """The halves of a body that is linear in flagged operands, some of the carries not among them;
    and which of the body's results the linear half gives."""
    found = reached_vars(jaxpr, linear)
    carry = linear[num_consts : num_consts + num_carry]
    kept = [*carry, *[atom in found for atom in jaxpr.outputs[num_carry:]]]
    outputs = picked(jaxpr.outputs, kept)
    is_linear = [any(var in found for var in eqn.outputs) for eqn in jaxpr.equations]
    equations = picked(jaxpr.equations, is_linear)
    used = [atom for eqn in equations for atom in eqn.inputs] + outputs
    residuals = [a for a in dict.fromkeys(used) if isinstance(a, Var) and a not in found]
    is_known = [not flag for flag in linear]
    known = Jaxpr(
        tuple(picked(jaxpr.inputs, is_known)),
        tuple(picked(jaxpr.equations, [not flag for flag in is_linear])),
        tuple(picked(jaxpr.outputs[:num_carry], [not flag for flag in carry])),
        (),
        jaxpr.name,
    )
    inputs = (*residuals, *picked(jaxpr.inputs, linear))
    half = Jaxpr(inputs, tuple(equations), tuple(outputs), (), jaxpr.name)
    counts = [sum(flags) for flags in split_at(is_known, num_consts, num_carry)]
    linear_counts = sum(linear[:num_consts]), sum(carry)
    return part(known, residuals, half, counts[0], counts[1], linear_counts), kept


# a linear body turned round -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Turned:
    """A body for the way back: (known consts; cotangents of carries, sums for consts; known xs,
    cotangents of ys) -> (cotangents of carries, sums; cotangents of xs). The flags say which
    carries have a cotangent, and which of the linear consts and of the linear xs get one."""

    jaxpr: Jaxpr
    consts: Flags
    carry: Flags
    xs: Flags


def turned(jaxpr: Jaxpr, linear: Flags, nonzero: Flags, num_consts: int, num_carry: int) -> Turned:
    """The body for the way back of one that is linear in flagged operands, all carries among them;
    `nonzero` says which of the results have cotangents."""
    start, ys = nonzero[:num_carry], nonzero[num_carry:]
    num_linear = sum(linear[:num_consts])

    def step(carry: Flags) -> Flags:
        _, flags = transpose_jaxpr(jaxpr, linear, (*carry, *ys))
        return flags[num_linear : num_linear + num_carry]

    carry = settled(start, _needed_carry(jaxpr, nonzero, num_consts, num_carry), step)
    back, flags = transpose_jaxpr(jaxpr, linear, (*carry, *ys))
    if flags[num_linear : num_linear + num_carry] != carry:
        others = (False,) * num_linear, (False,) * (sum(linear) - num_linear - num_carry)
        force = (*others[0], *carry, *others[1])
        back, flags = transpose_jaxpr(jaxpr, linear, (*carry, *ys), force)
    consts, xs = flags[:num_linear], flags[num_linear + num_carry :]
    counts = num_consts - num_linear, sum(not f for f in linear[num_consts + num_carry :])
    return Turned(_with_sums(back, counts, sum(carry), sum(consts)), consts, carry, xs)


def _needed_carry(jaxpr: Jaxpr, nonzero: Flags, num_consts: int, num_carry: int) -> Flags:
    """The carries that have a cotangent in the course of the way back."""
    while True:
        before = needed(jaxpr, nonzero)[num_consts : num_consts + num_carry]
        carry = either(nonzero[:num_carry], before)
        if carry == nonzero[:num_carry]:
            return carry
        nonzero = (*carry, *nonzero[num_carry:])


def _with_sums(back: Jaxpr, num_known: tuple[int, int], num_carry: int, num_sums: int) -> Jaxpr:
    """A transposed body, (known consts, known xs, cotangents of carries and of ys) -> (cotangents
    of consts, carries, xs), that adds up the cotangents of consts in further carries."""
    captured, jaxpr = len(back.captured), back.closed()
    consts, xs, carry, ys = split_at(jaxpr.inputs, captured + num_known[0], num_known[1], num_carry)
    terms, carry_out, x_out = split_at(jaxpr.outputs, num_sums, num_carry)
    sums, totals, equations = [], [], []
    for term in terms:
        total, result = Var(term.aval), Var(term.aval)
        equations.append(Equation((result,), add.primitive, (total, term), {}))
        sums.append(total)
        totals.append(result)
    return Jaxpr(
        (*consts[captured:], *carry, *sums, *xs, *ys),
        (*jaxpr.equations, *equations),
        (*carry_out, *totals, *x_out),
        back.captured,
        back.name,
    )
