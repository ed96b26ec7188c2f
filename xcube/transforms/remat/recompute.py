"""Which equations run again so that wanted variables are there, when some may be saved: one walk
backward. Control flow is split inside: what is saved of each turn of a loop is stacked by the
forward loop and handed to the loop that computes the rest again; what is saved of the branch that
ran is handed to the same branch of the second run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from xcube.ir import Atom, Aval, Equation, Jaxpr, Var, effects_of
from xcube.primitives.lowered import Structured
from xcube.primitives.shape import broadcast_in_dim_p
from xcube.trace import literal
from xcube.transforms.remat.programs import inlined, narrowed, reads, variables

Saves = Callable[[Equation, Var], bool]


@dataclass(frozen=True, eq=False)
class Again:
    """The equations that run again, the variables that are saved for them, and equations of the
    forward program with those that take their places there, in order to save more."""

    equations: list[Equation] = field(default_factory=list)
    saved: list[Var] = field(default_factory=list)
    replaced: dict[Equation, Equation] = field(default_factory=dict)

    def forward(self, equations: Iterable[Equation]) -> tuple[Equation, ...]:
        """The forward program that saves what is to be saved."""
        return tuple([self.replaced.get(eqn, eqn) for eqn in equations])


def again(equations: Sequence[Equation], wanted: Iterable[Var], saves: Saves) -> Again:
    """How to have the wanted variables again, from inputs and from what may be saved. What has
    effects is saved: it must not run twice."""
    found, needed = Again(), set(wanted)
    for eqn in reversed(equations):
        asked = [var for var in eqn.outputs if var in needed]
        kept = [var for var in asked if effects_of(eqn) or saves(eqn, var)]
        found.saved.extend(kept)
        if len(kept) == len(asked):
            continue
        needed.difference_update(kept)
        split = _SPLIT.get(control_kind(eqn))
        part = split(eqn, needed, saves, found) if split else narrowed(eqn, needed)
        found.equations.append(part)
        needed.update(variables(part.inputs))
    found.equations.reverse()
    found.saved.reverse()
    return found


def control_kind(eqn: Equation) -> str:
    """Which control flow an equation is: "scan", "while", "cond", or none ("")."""
    lower = eqn.primitive.lower
    return lower.kind if isinstance(lower, Structured) else ""


# loops ----------------------------------------------------------------------------------------


def _scan_again(eqn: Equation, needed: set[Var], saves: Saves, found: Again) -> Equation:
    """The loop that computes the needed results again: of its carries and equations those that are
    not saved turn by turn. `found` learns what the forward loop saves for it."""
    body, consts = inlined(eqn.params["jaxpr"]), eqn.params["num_consts"]
    asked = [n for n, var in enumerate(eqn.outputs) if var in needed]
    while True:
        atoms = [body.outputs[n] for n in asked]
        inner = again(body.equations, variables(atoms), saves)
        read = reads(inner.equations, atoms)
        carried = [n for n in range(eqn.params["num_carry"]) if body.inputs[consts + n] in read]
        if set(carried) <= set(asked):
            break
        asked = sorted({*asked, *carried})
    stacks = _stack(eqn, body, inner, found)
    results = [eqn.outputs[n] for n in asked]
    outputs = [var if var in needed else Var(var.aval) for var in results]
    return _remaining_scan(eqn, body, inner, asked, stacks, outputs)


def _stack(eqn: Equation, body: Jaxpr, inner: Again, found: Again) -> list[Var]:
    """The stacked values of what a loop saves in each turn; some may be results already."""
    first = eqn.params["num_carry"]
    ys = dict(zip(body.outputs[first:], eqn.outputs[first:], strict=True))
    fresh = [var for var in inner.saved if var not in ys]
    ys.update((var, Var(_stacked(var, eqn))) for var in fresh)
    if fresh or inner.replaced:
        outputs = (*body.outputs, *fresh)
        jaxpr = Jaxpr(body.inputs, inner.forward(body.equations), outputs, (), body.name)
        results = (*eqn.outputs, *[ys[var] for var in fresh])
        params = {**eqn.params, "jaxpr": jaxpr}
        found.replaced[eqn] = Equation(results, eqn.primitive, eqn.inputs, params, eqn.source)
    stacks = [ys[var] for var in inner.saved]
    found.saved.extend([var for var in stacks if var not in found.saved])
    return stacks


def _stacked(var: Var, eqn: Equation) -> Aval:
    return var.aval.update(shape=(eqn.params["length"], *var.aval.shape))


def _remaining_scan(
    eqn: Equation,
    body: Jaxpr,
    inner: Again,
    asked: Sequence[int],
    stacks: Sequence[Var],
    outputs: Sequence[Var],
) -> Equation:
    """The loop with the asked results alone, given the stacks of what is saved."""
    consts, carry = eqn.params["num_consts"], eqn.params["num_carry"]
    atoms = [body.outputs[n] for n in asked]
    read = reads(inner.equations, atoms)
    fixed = [n for n in range(consts) if body.inputs[n] in read]
    moving = [consts + n for n in asked if n < carry]
    rows = [n for n in range(consts + carry, len(body.inputs)) if body.inputs[n] in read]
    chosen = [*fixed, *moving, *rows]
    jaxpr = Jaxpr(
        (*[body.inputs[n] for n in chosen], *inner.saved),
        tuple(inner.equations),
        tuple(atoms),
        (),
        body.name,
    )
    counts = {"num_consts": len(fixed), "num_carry": len(moving)}
    params = {**eqn.params, **counts, "jaxpr": jaxpr}
    inputs = (*[eqn.inputs[n] for n in chosen], *stacks)
    return Equation(tuple(outputs), eqn.primitive, inputs, params, eqn.source)


# branches -------------------------------------------------------------------------------------


def _cond_again(eqn: Equation, needed: set[Var], saves: Saves, found: Again) -> Equation:
    """The branches that compute the needed results again, given what each of them saved. `found`
    learns what the forward branches save: variables that all branches share, type by type."""
    bodies = [inlined(branch) for branch in eqn.params["branches"]]
    asked = [n for n, var in enumerate(eqn.outputs) if var in needed]
    wanted = [[body.outputs[n] for n in asked] for body in bodies]
    inner = [
        again(body.equations, variables(atoms), saves)
        for body, atoms in zip(bodies, wanted, strict=True)
    ]
    slots = _slots(part.saved for part in inner)
    places = [_placed(part.saved, slots) for part in inner]
    if slots or any(part.replaced for part in inner):
        whole = map(_branch_that_saves, bodies, inner, places)
        params = {**eqn.params, "branches": tuple(whole)}
        results = (*eqn.outputs, *slots)
        found.replaced[eqn] = Equation(results, eqn.primitive, eqn.inputs, params, eqn.source)
        found.saved.extend(slots)
    rest = tuple(map(_remaining_branch, bodies, inner, places, wanted))
    outputs = tuple([eqn.outputs[n] for n in asked])
    inputs, params = (*eqn.inputs, *slots), {**eqn.params, "branches": rest}
    return Equation(outputs, eqn.primitive, inputs, params, eqn.source)


def _slots(saved: Iterable[Sequence[Var]]) -> list[Var]:
    """Variables enough for what any one branch saves."""
    most: Counter[Aval] = Counter()
    for of_one in saved:
        most |= Counter(var.aval for var in of_one)
    return [Var(aval) for aval in most.elements()]


def _placed(saved: Sequence[Var], slots: Sequence[Var]) -> list[Var | Aval]:
    """For each slot, the variable of a branch that goes there, or what else the slot is."""
    left = list(saved)
    placed: list[Var | Aval] = []
    for slot in slots:
        fit = next((var for var in left if var.aval == slot.aval), None)
        placed.append(slot.aval if fit is None else fit)
        left = [var for var in left if var is not fit]
    return placed


def _branch_that_saves(body: Jaxpr, inner: Again, placed: Sequence[Var | Aval]) -> Jaxpr:
    """A branch that gives what it saves besides its results, and zeros where it saves nothing."""
    zeros = [_zeros(item) for item in placed if isinstance(item, Aval)]
    fill = iter(zeros)
    saved = [next(fill).outputs[0] if isinstance(item, Aval) else item for item in placed]
    equations = (*inner.forward(body.equations), *zeros)
    return Jaxpr(body.inputs, equations, (*body.outputs, *saved), (), body.name)


def _zeros(aval: Aval) -> Equation:
    zero = literal(np.zeros((), aval.dtype)[()])
    params = {"shape": aval.shape, "broadcast_dimensions": ()}
    return Equation((Var(aval),), broadcast_in_dim_p, (zero,), params)


def _remaining_branch(
    body: Jaxpr, inner: Again, placed: Sequence[Var | Aval], wanted: Sequence[Atom]
) -> Jaxpr:
    """A branch with the wanted results alone, given what it saved."""
    given = [Var(item) if isinstance(item, Aval) else item for item in placed]
    return Jaxpr((*body.inputs, *given), tuple(inner.equations), tuple(wanted), (), body.name)


_SPLIT = {"scan": _scan_again, "cond": _cond_again}
