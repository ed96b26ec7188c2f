"""Flat jaxpr -> works: its groups are scheduled and built, and so are the bodies of its control
flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xcube.ir import Equation, Jaxpr, Var
from xcube.lowering import results
from xcube.lowering.bounded import in_spells
from xcube.lowering.clusters import Group
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels import select
from xcube.lowering.kernels.work import Block, Control, Work
from xcube.lowering.memory import carry_places, donations, overwritten, shareable
from xcube.lowering.schedule import schedule
from xcube.primitives.lowered import Structured

Takes = Callable[[Jaxpr, Sequence[Group]], dict[Var, Var]]


def build(jaxpr: Jaxpr, facts: Facts, donated: Sequence[bool] = ()) -> Block:
    """What runs a program; results take over the memory of donated inputs."""
    return _block(jaxpr, facts, lambda flat, groups: donations(flat, groups, donated))


def _block(jaxpr: Jaxpr, facts: Facts, takes: Takes) -> Block:
    flat = results.without_aliases(results.computed(jaxpr))
    groups = schedule(flat)
    taken = takes(flat, groups)
    gone = overwritten(flat, groups, taken)
    given = {**taken, **gone}
    pairs = shareable(groups) if given else set()
    works = [
        work for group in groups for work in _works(group, facts, _shared(group, given, pairs))
    ]
    return Block(flat, tuple(works), taken, gone)


def _works(group: Group, facts: Facts, shared: frozenset[Var]) -> list[Work | Control]:
    if group.family == "control" and group.root is not None:
        return _control(group.root, facts)
    return [*select.build(group, facts, shared)]


def _shared(group: Group, taken: dict[Var, Var], pairs: set[tuple[Var, Var]]) -> frozenset[Var]:
    """Operands of a group whose memory its results take over."""
    found = ((taken[var], var) for var in group.outputs if var in taken)
    return frozenset(source for source, var in found if (source, var) in pairs)


def _control(eqn: Equation, facts: Facts) -> list[Work | Control]:
    lower, params = eqn.primitive.lower, eqn.params
    if not isinstance(lower, Structured):
        return [Control(eqn)]
    if lower.kind == "scan" and (works := select.loop(eqn, facts)) is not None:
        return [*works]
    if lower.kind == "while" and (works := select.loop(eqn, facts)) is not None:
        return _spells(eqn, facts) or [*works]
    if lower.kind == "scan":
        first, count = params["num_consts"], params["num_carry"]
        return [Control(eqn, (_body(params["jaxpr"], facts, first, count),))]
    if lower.kind == "while":
        first, count = params["body_nconsts"], len(eqn.outputs)
        return [Control(eqn, (_test(eqn, facts), _body(params["body_jaxpr"], facts, first, count)))]
    return [Control(eqn, tuple([_body(branch, facts, 0, 0) for branch in params["branches"]]))]


def _spells(eqn: Equation, facts: Facts) -> list[Work | Control]:
    """A while loop whose body runs many turns inside a kernel, so that it can be interrupted; none
    where the device does not let itself be interrupted."""
    outer, inner = in_spells(eqn)
    if facts.units > 1 or (works := select.loop(inner, facts)) is None:
        return []
    jaxpr = outer.params["body_jaxpr"]
    flat = results.own(jaxpr)
    groups = schedule(flat)
    ready = {id(inner): [*works]}
    made = [
        work
        for group in groups
        for work in ready.get(id(group.root)) or _works(group, facts, frozenset())
    ]
    return [Control(outer, (_test(outer, facts), Block(flat, tuple(made), {})))]


def _test(eqn: Equation, facts: Facts) -> Block:
    return _block(eqn.params["cond_jaxpr"], facts, lambda flat, groups: {})


def _body(jaxpr: Jaxpr, facts: Facts, first: int, count: int) -> Block:
    """The block of a body that carries `count` inputs from the one numbered `first` on."""
    flat = results.own(results.computed(jaxpr))
    state = flat.inputs[first : first + count]
    return _block(flat, facts, lambda body, groups: carry_places(body, groups, state))
