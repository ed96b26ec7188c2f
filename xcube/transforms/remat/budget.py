"""A budget of bytes for residuals, and the plan that computes least again within it.

To save a value costs its bytes; to compute an equation again costs its flops and needs its
operands, which are saved or computed again. The least work within a budget is an integer program
(Checkmate, Jain et al., arXiv:1910.02653; for chains Chen et al., arXiv:1604.06174). With a price
per byte in place of the budget it is a minimum cut (project selection, Picard 1976; as PyTorch's
partitioner uses it), so the budget is relaxed to a price: the walk along the convex hull of (bytes,
flops) ends at the two neighbours between which the budget lies, each of them optimal for its own
bytes. What the cheaper one leaves of the budget is filled with values that the dearer one saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from xcube.errors import TraceError
from xcube.ir import Atom, Aval, Equation, Jaxpr, Primitive, Source, Var, at_user_line, effects_of
from xcube.transforms.remat.costs import recompute_cost
from xcube.transforms.remat.min_cut import Network
from xcube.transforms.remat.programs import demand, variables

TIES = 1000  # parts by which equal costs differ, later ones being dearer


@dataclass(frozen=True)
class Plan:
    """What a budget chose for one program."""

    name: str
    budget: int
    saved: tuple[tuple[Aval, str, Source | None], ...]
    needed_nbytes: int
    recomputed: int
    equations: int
    flops: int
    forward_flops: int
    peak_nbytes: int

    @property
    def saved_nbytes(self) -> int:
        """Bytes of what is saved besides the inputs."""
        return sum(aval.nbytes for aval, _, _ in self.saved)

    def __str__(self) -> str:
        share = self.flops / self.forward_flops if self.forward_flops else 0.0
        lines = [
            f"{self.name or 'program'}: saves {self.saved_nbytes} of {self.needed_nbytes} bytes "
            f"within a budget of {self.budget}; computes {self.recomputed} of {self.equations} "
            f"equations again, {share:.1%} of the forward work, in {self.peak_nbytes} bytes"
        ]
        for aval, primitive, source in self.saved:
            lines.append(f"  {aval} output of {primitive}{f' from {source}' if source else ''}")
        return "\n".join(lines)


class Budget:
    """A policy that plans; made by `budget`."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.plans: tuple[Plan, ...] = ()

    def __repr__(self) -> str:
        return f"budget({self.nbytes})"

    def __call__(self, primitive: Primitive, *avals: Aval, **params: object) -> bool:
        raise TraceError(
            f"{self!r}: decides on whole functions and cannot answer for {primitive} alone."
            f"{at_user_line()} Give it to checkpoint by itself."
        )

    def choose(self, known: Jaxpr, wanted: Iterable[Var]) -> frozenset[Var]:
        """The variables to save so that the wanted ones can be had again."""
        problem = Problem(known.equations, set(wanted))
        best = problem.within(self.nbytes)
        plan = _plan(known.name, problem, best, self.nbytes)
        if plan not in self.plans:
            self.plans = (*self.plans, plan)
        return best.saved

    def report(self) -> str:
        """What was saved and what is computed again, for every function planned so far."""
        return "\n".join(map(str, self.plans)) or f"{self!r}: nothing planned yet"


def budget(nbytes: int) -> Budget:
    """A policy that saves at most so many bytes besides the function's inputs and computes as
    little as it can again. Inside a loop the budget is that of one turn.

    The choice depends on the program alone; `report()` says what it was. Raises ValueError unless
    nbytes is an integer >= 0.

    >>> budget(1 << 20)
    budget(1048576)
    """
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise ValueError(
            f"budget: the bytes to save must be an integer >= 0; got {nbytes!r}.{at_user_line()}"
        )
    return Budget(nbytes)


# the plan -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """A set of saved variables, its bytes, the equations that run again and what they cost."""

    saved: frozenset[Var]
    nbytes: int
    again: tuple[int, ...]
    cost: int


class Problem:
    """A program whose wanted variables are to be saved or computed again.

    Nodes of the network: for each equation, whether it runs again; for each variable, whether it
    is asked for. What is asked for and not computed again is saved, at the price of its bytes.
    """

    def __init__(self, equations: Sequence[Equation], wanted: set[Var]) -> None:
        self.equations, self.wanted = tuple(equations), wanted
        self.makers = {var: n for n, eqn in enumerate(equations) for var in eqn.outputs}
        self.forced = [bool(effects_of(eqn)) for eqn in equations]
        self.flops = [recompute_cost(eqn) for eqn in equations]
        self.costs = [flops * (TIES * len(equations) + n) for n, flops in enumerate(self.flops)]
        self.involved = self.choice(()).again
        self._build()

    def _build(self) -> None:
        count = len(self.equations)
        self.variables = [var for n in self.involved for var in self.equations[n].outputs]
        node = {var: count + n for n, var in enumerate(self.variables)}
        source, sink = count + len(node), count + len(node) + 1
        asked = [(source, node[var]) for var in self.variables if var in self.wanted]
        for n in self.involved:
            read = dict.fromkeys(variables(self.equations[n].inputs))
            asked += [(n, node[var]) for var in read if var in node]
        saved = [(node[var], self.makers[var]) for var in self.variables]
        paid = [(n, sink) for n in self.involved]
        self.network = Network(sink + 1, [*saved, *paid, *asked])
        self.asked, self.nodes, self.ends = len(asked), node, (source, sink)

    def choice(self, saved: Iterable[Var]) -> Choice:
        """What it means to save these: those that nothing asks for then are left out, and results
        of equations with effects are added."""
        may, needed = frozenset(saved), set(self.wanted)
        kept: list[Var] = []
        again: list[int] = []
        for n in reversed(range(len(self.equations))):
            asked = [var for var in self.equations[n].outputs if var in needed]
            held = [var for var in asked if var in may or self.forced[n]]
            kept += held
            if len(held) < len(asked):
                again.append(n)
                needed.update(variables(self.equations[n].inputs))
        cost = sum(self.costs[n] for n in again)
        nbytes = sum(var.aval.nbytes for var in kept)
        return Choice(frozenset(kept), nbytes, tuple(reversed(again)), cost)

    def cut(self, price: Fraction) -> Choice:
        """The cheapest choice at a price per byte."""
        saved = [price.numerator * var.aval.nbytes for var in self.variables]
        paid = [price.denominator * self.costs[n] for n in self.involved]
        never = sum(saved) + sum(paid) + 1
        capacities = [*saved, *paid, *[never] * self.asked]
        side = self.network.source_side(*self.ends, capacities)
        return self.choice(
            var for var, at in self.nodes.items() if side[at] and not side[self.makers[var]]
        )

    def within(self, nbytes: int) -> Choice:
        """The best choice found that keeps within so many bytes; the smallest if none does."""
        total = sum(var.aval.nbytes for var in self.variables)
        rich = self.cut(Fraction(1, total + 1))
        if rich.nbytes <= nbytes:
            return rich
        poor = self.cut(Fraction(sum(self.costs) + 1))
        if poor.nbytes > nbytes:
            return poor
        while True:
            price = Fraction(poor.cost - rich.cost, rich.nbytes - poor.nbytes)
            middle = self.cut(price)
            if middle.cost + price * middle.nbytes >= poor.cost + price * poor.nbytes:
                return self._filled(poor, rich, nbytes)
            poor, rich = (middle, rich) if middle.nbytes <= nbytes else (poor, middle)

    def _filled(self, poor: Choice, rich: Choice, nbytes: int) -> Choice:
        """The poor choice with as much of what the rich one saves besides as there is room for."""
        extras = [var for var in self.variables if var in rich.saved - poor.saved]
        best = self._better(poor, _fitting(poor, extras, nbytes), nbytes)
        for var in extras:
            best = self._better(best, best.saved - {var}, nbytes)
        for var in extras:
            best = self._better(best, best.saved | {var}, nbytes)
        return best

    def _better(self, best: Choice, saved: frozenset[Var], nbytes: int) -> Choice:
        other = self.choice(saved)
        fits = other.nbytes <= nbytes
        return other if fits and (other.cost, other.nbytes) < (best.cost, best.nbytes) else best

    def peak_nbytes(self, choice: Choice) -> int:
        """Most bytes of values computed again at one time, if each wanted one is computed as late
        as it can be and used once, the last one first."""
        equations = [self.equations[n] for n in choice.again]
        makers = {var: eqn for eqn in equations for var in eqn.outputs if var not in choice.saved}
        ordered: dict[Equation, None] = {}
        steps: list[tuple[Sequence[Var], Sequence[Atom]]] = []  # what each makes, what it reads
        for var in reversed([var for var in makers if var in self.wanted]):
            count = len(ordered)
            demand((var,), makers, ordered)
            steps += [(eqn.outputs, eqn.inputs) for eqn in [*ordered][count:]]
            steps.append(((), (var,)))
        return _peak(steps)


def _peak(steps: Sequence[tuple[Sequence[Var], Sequence[Atom]]]) -> int:
    """Most bytes at one time, if every variable stays until it is read for the last time."""
    last = {var: n for n, (made, read) in enumerate(steps) for var in (*made, *variables(read))}
    dying = [0] * len(steps)
    peak = now = 0
    for n, (made, _) in enumerate(steps):
        for var in made:
            now += var.aval.nbytes
            dying[last[var]] += var.aval.nbytes
        peak = max(peak, now)
        now -= dying[n]
    return peak


def _fitting(choice: Choice, extras: Iterable[Var], nbytes: int) -> frozenset[Var]:
    """What a choice saves, and further variables in order as far as they fit."""
    taken, left = set(choice.saved), nbytes - choice.nbytes
    for var in extras:
        if var.aval.nbytes <= left:
            taken.add(var)
            left -= var.aval.nbytes
    return frozenset(taken)


def _plan(name: str, problem: Problem, choice: Choice, nbytes: int) -> Plan:
    made = [var for var in problem.makers if var in choice.saved]
    makers = [problem.equations[problem.makers[var]] for var in made]
    return Plan(
        name=name,
        budget=nbytes,
        saved=tuple(
            (var.aval, eqn.primitive.name, eqn.source)
            for var, eqn in zip(made, makers, strict=True)
        ),
        needed_nbytes=sum(var.aval.nbytes for var in problem.wanted if var in problem.makers),
        recomputed=len(choice.again),
        equations=len(problem.equations),
        flops=sum(problem.flops[n] for n in choice.again),
        forward_flops=sum(problem.flops),
        peak_nbytes=problem.peak_nbytes(choice),
    )
