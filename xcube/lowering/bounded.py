"""Loops that run inside one kernel, cut so that no kernel runs for long: between two launches a
program sees that it was interrupted. A long scan becomes a scan of scans; a while loop, of which
nobody knows how long it runs, one whose body runs a bounded while loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube.ir import Aval, Equation, Jaxpr, Var
from xcube.lowering.results import filled
from xcube.primitives.bits import bitwise_and
from xcube.primitives.kinds import add
from xcube.primitives.select import lt
from xcube.primitives.shape import reshape
from xcube.primitives.view import concatenate, slice_in_dim
from xcube.trace import bind, evaluate, literal, stage

MOST_TURNS = 1 << 22
"""Turns of a loop inside a kernel, and of those inside it: a fraction of a second."""

PIECE = 1 << 20


def in_pieces(eqn: Equation) -> Jaxpr | None:
    """The program of a long scan as a scan of shorter ones; None for one that is short."""
    length = eqn.params["length"]
    if length <= MOST_TURNS:
        return None
    return stage(lambda *args: _pieces(eqn, args), [a.aval for a in eqn.inputs], "pieces")


def _pieces(eqn: Equation, args: Sequence[Any]) -> list[Any]:
    params = eqn.params
    first, count = params["num_consts"], params["num_carry"]
    consts, carry, xs = args[:first], args[first : first + count], args[first + count :]
    pieces, rest = divmod(params["length"], PIECE)

    def piece(*values: Any) -> list[Any]:
        return bind(eqn.primitive, *values, **{**params, "length": PIECE})

    def many(state: Sequence[Any]) -> list[Any]:
        rows = [reshape(_part(x, 0, pieces * PIECE), (pieces, PIECE, *x.shape[1:])) for x in xs]
        avals = [x.aval for x in (*consts, *state)]
        inner = stage(piece, [*avals, *(Aval(x.shape[1:], x.dtype) for x in rows)], "piece")
        whole = {**params, "jaxpr": inner, "length": pieces}
        return bind(eqn.primitive, *consts, *state, *rows, **whole)

    def few(state: Sequence[Any]) -> list[Any]:
        rows = [_part(x, pieces * PIECE, params["length"]) for x in xs]
        return bind(eqn.primitive, *consts, *state, *rows, **{**params, "length": rest})

    order = [many, few] if rest else [many]
    results = {}
    for run in order[::-1] if params["reverse"] else order:
        results[run] = run(carry)
        carry = results[run][:count]
    flat = [reshape(y, (pieces * PIECE, *y.shape[2:])) for y in results[many][count:]]
    if rest:
        flat = [concatenate(pair, 0) for pair in zip(flat, results[few][count:], strict=True)]
    return [*carry, *flat]


def _part(x: Any, start: int, stop: int) -> Any:
    return slice_in_dim(x, start, stop)


def in_spells(eqn: Equation) -> tuple[Equation, Equation]:
    """A while loop over spells, and the loop of one spell in its body, whose first carried value
    counts its turns."""
    params = eqn.params
    tests, others = params["cond_nconsts"], params["body_nconsts"]
    test, body = params["cond_jaxpr"], params["body_jaxpr"]
    count_aval = Aval((), np.dtype(np.int32))
    state = body.in_avals[others:]

    def go_on(*args: Any) -> list[Any]:
        (wanted,) = evaluate(test, [*args[:tests], *args[tests + 1 :]])
        return [bitwise_and(lt(args[tests], literal(np.int32(PIECE))), wanted)]

    def turn(*args: Any) -> list[Any]:
        results = evaluate(body, [*args[:others], *args[others + 1 :]])
        return [add(args[others], literal(np.int32(1))), *results]

    spell = {
        **params,
        "cond_jaxpr": stage(go_on, [*test.in_avals[:tests], count_aval, *state], test.name),
        "body_jaxpr": stage(turn, [*body.in_avals[:others], count_aval, *state], body.name),
    }
    inputs = tuple([Var(aval) for aval in (*test.in_avals[:tests], *body.in_avals)])
    zero = filled(literal(np.int32(0)))
    outputs = tuple([Var(aval) for aval in (count_aval, *state)])
    consts = inputs[: tests + others]
    operands = (*consts, zero.outputs[0], *inputs[tests + others :])
    inner = Equation(outputs, eqn.primitive, operands, spell, eqn.source)
    around = Jaxpr(inputs, (zero, inner), outputs[1:], (), body.name)
    whole = {**params, "body_jaxpr": around, "body_nconsts": tests + others}
    given = (*eqn.inputs[:tests], *eqn.inputs[: tests + others], *eqn.inputs[tests + others :])
    return Equation(eqn.outputs, eqn.primitive, given, whole, eqn.source), inner
