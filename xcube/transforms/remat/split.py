"""A linearized program split by a policy: what runs forward and what it saves, and a linear program
that computes the other residuals again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xcube.ir import Atom, Equation, Jaxpr, Var, subjaxprs
from xcube.transforms.linearize import linearize_jaxpr
from xcube.transforms.remat.budget import Budget
from xcube.transforms.remat.policies import Policy, forbidden_names, is_saveable, name_p
from xcube.transforms.remat.programs import JIT, applied, inlined, live, reads, variables
from xcube.transforms.remat.recompute import Again, Saves, again, control_kind


@dataclass(frozen=True, eq=False)
class Split:
    """`known`: inputs -> results, saved. `linear`: saved, some of known's inputs, tangents ->
    tangents. `saved`: positions in known's outputs; `inputs`: positions in known's inputs.
    `nonzero`: which results have a tangent."""

    known: Jaxpr
    linear: Jaxpr
    saved: tuple[int, ...]
    inputs: tuple[int, ...]
    nonzero: tuple[bool, ...]


def split_jaxpr(jaxpr: Jaxpr, nonzero: tuple[bool, ...], policy: Policy) -> Split:
    """A program linearized and split by a policy."""
    key = ("split", nonzero, policy)
    if key not in jaxpr._cache:
        jaxpr._cache[key] = _split_jaxpr(jaxpr, nonzero, policy)
    return jaxpr._cache[key]


def _split_jaxpr(jaxpr: Jaxpr, nonzero: tuple[bool, ...], policy: Policy) -> Split:
    known, linear, out_nonzero, forwarded = linearize_jaxpr(jaxpr, nonzero)
    known = inlined(known)
    outs = known.outputs[: len(jaxpr.outputs)]
    fresh = iter(known.outputs[len(outs) :])
    residuals = [known.inputs[p] if p >= 0 else next(fresh) for p in forwarded]
    linear = applied(linear, dict(zip(linear.inputs, residuals, strict=False)), JIT)
    tail = tuple(live(linear.equations, linear.outputs))
    linear = Jaxpr(linear.inputs, tail, linear.outputs)
    wanted = _free(linear)
    saves = _choice(policy, known, wanted)
    found = again(known.equations, wanted, saves)
    return _assemble(known, outs, found, linear, out_nonzero)


def _free(jaxpr: Jaxpr) -> set[Var]:
    """The variables of other programs that a program reads."""
    own = {var for eqn in jaxpr.equations for var in eqn.outputs}.union(jaxpr.inputs)
    return reads(jaxpr.equations, jaxpr.outputs) - own


def _assemble(
    known: Jaxpr, outs: tuple[Atom, ...], found: Again, linear: Jaxpr, nonzero: tuple[bool, ...]
) -> Split:
    """The two programs; a saved value that is a result is not given twice."""
    outputs = (*outs, *[var for var in found.saved if var not in outs])
    equations = (*found.equations, *linear.equations)
    read = reads(equations, linear.outputs)
    inputs = tuple([n for n, var in enumerate(known.inputs) if var in read])
    given = (*found.saved, *[known.inputs[n] for n in inputs], *linear.inputs)
    forward = tuple(live(found.forward(known.equations), outputs))
    return Split(
        Jaxpr(known.inputs, forward, outputs, (), known.name),
        Jaxpr(given, equations, linear.outputs, (), known.name),
        tuple([outputs.index(var) for var in found.saved]),
        inputs,
        nonzero,
    )


# who decides ----------------------------------------------------------------------------------


def _choice(policy: Policy, known: Jaxpr, wanted: set[Var]) -> Saves:
    """What may be saved of a program, by a plan for the whole of it or operation by operation."""
    if isinstance(policy, Budget):
        chosen = policy.choose(known, wanted)
        return lambda eqn, var: var in chosen
    return _Answers(policy, known)


class _Answers:
    """Whether a policy lets results be saved. For a result of a loop or of branches it answers for
    what makes it inside; for what is only passed on there, for the loop or the branches."""

    def __init__(self, policy: Policy, known: Jaxpr) -> None:
        self._policy = policy
        names = forbidden_names(policy)
        self._forbidden = set(_named(known, names)) if names else set()

    def __call__(self, eqn: Equation, var: Atom) -> bool:
        if var in self._forbidden:
            return False
        bodies = _bodies(eqn)
        if not bodies:
            return is_saveable(self._policy, eqn)
        number = eqn.outputs.index(var)  # type: ignore[arg-type]
        bodies = [body for body in bodies if not _is_constant(body, number)]
        answers = [self._inside(eqn, body, number) for body in bodies]
        return bool(answers) and all(answers)

    def _inside(self, eqn: Equation, body: Jaxpr, number: int) -> bool:
        maker = _maker(body, number)
        if maker is None:
            return is_saveable(self._policy, eqn)
        return self(maker, body.outputs[number])


def _bodies(eqn: Equation) -> list[Jaxpr]:
    """The programs inside a loop of known length or inside branches."""
    kind = control_kind(eqn)
    return [inlined(inner) for inner in subjaxprs(eqn)] if kind in ("scan", "cond") else []


def _maker(body: Jaxpr, number: int) -> Equation | None:
    """The equation that makes an output."""
    atom = body.outputs[number]
    return next((eqn for eqn in body.equations if atom in eqn.outputs), None)


def _is_constant(body: Jaxpr, number: int) -> bool:
    """Whether an output is always the same, such as the zeros of a branch that saves nothing."""
    maker = _maker(body, number)
    return maker is not None and not any(variables(maker.inputs))


def _named(jaxpr: Jaxpr, names: frozenset[str]) -> Iterator[Atom]:
    """What `checkpoint_name` gives one of these names to."""
    for eqn in jaxpr.equations:
        if eqn.primitive is name_p and eqn.params["name"] in names:
            yield eqn.inputs[0]
        for body in _bodies(eqn):
            yield from _named(body, names)
