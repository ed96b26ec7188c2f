"""Jaxpr in, jaxpr out: calls opened, dead equations dropped, a barrier put in front. Structural, so
that every equation keeps the line at which the user wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from xcube.ir import Atom, Equation, Jaxpr, Var, effects_of
from xcube.primitives.convert import optimization_barrier_p

JIT = frozenset(("jit",))
CALLS = JIT | {"checkpoint"}  # calls whose derivatives are those of their bodies


def is_call(eqn: Equation) -> bool:
    """Whether an equation may be replaced by its body without changing any derivative."""
    return eqn.primitive.name in CALLS


def variables(atoms: Iterable[Atom]) -> Iterator[Var]:
    """The variables among atoms."""
    return (atom for atom in atoms if isinstance(atom, Var))


def inlined(jaxpr: Jaxpr) -> Jaxpr:
    """The program without calls; every equation's results are new variables."""
    if "inlined" not in jaxpr._cache:
        jaxpr._cache["inlined"] = applied(jaxpr, {})
    return jaxpr._cache["inlined"]


def applied(jaxpr: Jaxpr, given: Mapping[Var, Atom], calls: frozenset[str] = CALLS) -> Jaxpr:
    """The program without those calls, with atoms in the place of some inputs."""
    assert not jaxpr.captured, "calls hold closed jaxprs"
    equations: list[Equation] = []
    outputs = _inline(jaxpr, dict(given), calls, equations)
    inputs = tuple([var for var in jaxpr.inputs if var not in given])
    return Jaxpr(inputs, tuple(equations), outputs, (), jaxpr.name)


def _inline(
    jaxpr: Jaxpr, env: dict[Var, Atom], calls: frozenset[str], into: list[Equation]
) -> tuple[Atom, ...]:
    def read(atoms: Sequence[Atom]) -> tuple[Atom, ...]:
        return tuple([env.get(atom, atom) if isinstance(atom, Var) else atom for atom in atoms])

    for eqn in jaxpr.equations:
        inputs = read(eqn.inputs)
        if eqn.primitive.name in calls:
            body = eqn.params["jaxpr"]
            results = _inline(body, dict(zip(body.inputs, inputs, strict=True)), calls, into)
        else:
            results = tuple([Var(var.aval) for var in eqn.outputs])
            into.append(Equation(results, eqn.primitive, inputs, eqn.params, eqn.source))
        env.update(zip(eqn.outputs, results, strict=True))
    return read(jaxpr.outputs)


def live(equations: Sequence[Equation], wanted: Iterable[Atom]) -> list[Equation]:
    """The equations that the wanted atoms depend on, and those with effects."""
    needed, kept = set(variables(wanted)), []
    for eqn in reversed(equations):
        if effects_of(eqn) or not needed.isdisjoint(eqn.outputs):
            kept.append(narrowed(eqn, needed))
            needed.update(variables(kept[-1].inputs))
    return kept[::-1]


def narrowed(eqn: Equation, needed: set[Var]) -> Equation:
    """An equation without those operands that only serve results that nobody needs: a barrier
    passes each operand on by itself."""
    if eqn.primitive is not optimization_barrier_p:
        return eqn
    pairs = [pair for pair in zip(eqn.outputs, eqn.inputs, strict=True) if pair[0] in needed]
    outputs, inputs = tuple([out for out, _ in pairs]), tuple([atom for _, atom in pairs])
    return Equation(outputs, eqn.primitive, inputs, eqn.params, eqn.source)


def reads(equations: Iterable[Equation], outputs: Iterable[Atom] = ()) -> set[Var]:
    """The variables that equations and outputs read."""
    read = {var for eqn in equations for var in variables(eqn.inputs)}
    return read.union(variables(outputs))


def behind_barrier(jaxpr: Jaxpr, held: bool | tuple[bool, ...], known: int) -> Jaxpr:
    """The program with a barrier over those of its inputs that are held and that it reads: no
    equation that reads them can run before all of them are there, or be merged with equations
    outside. Without a held one among the first `known` inputs there is nothing to protect."""
    flags = (held,) * len(jaxpr.inputs) if isinstance(held, bool) else held
    if not any(flags[:known]):
        return jaxpr
    key = ("behind barrier", flags)
    if key not in jaxpr._cache:
        jaxpr._cache[key] = _behind_barrier(jaxpr, flags)
    return jaxpr._cache[key]


def _behind_barrier(jaxpr: Jaxpr, held: tuple[bool, ...]) -> Jaxpr:
    read = reads(jaxpr.equations, jaxpr.outputs)
    inside = [var for var, flag in zip(jaxpr.inputs, held, strict=True) if flag and var in read]
    outside = {var: Var(var.aval) for var in inside}
    barrier = Equation(tuple(inside), optimization_barrier_p, tuple(outside.values()), {})
    inputs = tuple([outside.get(var, var) for var in jaxpr.inputs])
    return Jaxpr(inputs, (barrier, *jaxpr.equations), jaxpr.outputs, (), jaxpr.name)


def late(jaxpr: Jaxpr, count: int) -> Jaxpr:
    """The program with each equation that depends on its first `count` inputs alone put just
    before the first one that needs it: its results are not there longer than they must be."""
    key = ("late", count)
    if key not in jaxpr._cache:
        jaxpr._cache[key] = _late(jaxpr, set(jaxpr.inputs[count:]))
    return jaxpr._cache[key]


def _late(jaxpr: Jaxpr, found: set[Var]) -> Jaxpr:
    makers: dict[Var, Equation] = {}
    ordered: dict[Equation, None] = {}
    for eqn in jaxpr.equations:
        if found.isdisjoint(eqn.inputs) and not effects_of(eqn):
            makers.update((var, eqn) for var in eqn.outputs)
            continue
        demand(eqn.inputs, makers, ordered)
        ordered[eqn] = None
        found.update(eqn.outputs)
    demand(jaxpr.outputs, makers, ordered)
    return Jaxpr(jaxpr.inputs, tuple(ordered), jaxpr.outputs, (), jaxpr.name)


def demand(
    atoms: Iterable[Atom], makers: Mapping[Var, Equation], ordered: dict[Equation, None]
) -> None:
    """Append the equations that make atoms, operands first, except those that are there."""
    stack = [makers[var] for var in variables(atoms) if var in makers][::-1]
    while stack:
        eqn = stack[-1]
        missing = [makers[var] for var in variables(eqn.inputs) if var in makers]
        missing = [maker for maker in missing if maker not in ordered]
        if eqn in ordered or not missing:
            ordered[stack.pop()] = None
        else:
            stack.extend(reversed(missing))
