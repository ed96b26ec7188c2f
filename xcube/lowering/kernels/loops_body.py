"""What a step of a loop computes, as scalar operations at one place."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from xcube import dtypes
from xcube.ir import Atom, Aval, Equation, Jaxpr, Literal, Var, effects_of, subjaxprs
from xcube.lowering.expression import Evaluator, Node, Test, indices_in, walk
from xcube.lowering.index import NESTED, Dim, Index, ravel
from xcube.lowering.kernels.loops_rules import RULES, Scalars, Unfit, pick, reduction, statements
from xcube.lowering.kernels.loops_state import MOST_STATE, PLACE, Loop, Spread, step_index
from xcube.lowering.kernels.nodes import PARTS
from xcube.primitives.lowered import Barrier, Element, Reduction, Structured

MOST_STATEMENTS = 4000
"""The most statements of a step at one place: more take long to compile."""

MOST_KEPT = 1024
"""The most scalars that loops inside another may write."""

LONG_BODY = 64
"""Equations from which a body is evaluated in order, so that no expression is too deep."""

Guards = tuple[Test, ...]
Given = Callable[[tuple[Index, ...], Guards], Node]


class Source(Protocol):
    """Where the operands of a loop come from."""

    def fetch(self, atom: Atom, index: tuple[Index, ...], guards: Guards) -> Node: ...


class Operands:
    """Operands in memory."""

    def __init__(self, nodes: Scalars) -> None:
        self._nodes = nodes

    def fetch(self, atom: Atom, index: tuple[Index, ...], guards: Guards) -> Node:
        if isinstance(atom, Literal):
            return self._nodes.constant(atom.value, atom.aval.dtype)
        attr = (atom, ravel(index, atom.aval.shape), guards)
        return self._nodes.make("load", dtypes.short_name(atom.aval.dtype), (), attr)


class Step(Evaluator):
    """Elements of one jaxpr of the loop with that number; `given` reads those of its inputs."""

    def __init__(self, space: Space, jaxpr: Jaxpr, given: Sequence[Given], number: int) -> None:
        producers = {var: eqn for eqn in jaxpr.equations for var in eqn.outputs}
        super().__init__(space.nodes, producers, self._special)
        self._space, self._jaxpr, self._equations = space, jaxpr, producers
        self._number = number
        self._given = dict(zip(jaxpr.inputs, given, strict=True))
        self._inner: dict[Any, Any] = {}
        self._unread = 0
        if len(jaxpr.equations) > LONG_BODY:
            self._in_order()

    def fetch(self, atom: Atom, index: tuple[Index, ...], guards: Guards) -> Node:
        """An element for a jaxpr inside this one."""
        return self.guarded(guards, lambda: self.read(atom, index))

    def output(self, number: int, index: tuple[Index, ...]) -> Node:
        """An element of a result."""
        return self.read(self._jaxpr.outputs[number], index)

    def guarded(self, tests: Sequence[Test], function: Callable[[], Any]) -> Any:
        if all(low <= i.range[1] and i.range[0] < high for i, low, high in tests):
            return super().guarded(tests, function)
        self._unread += 1  # nobody will look
        try:
            return function()
        finally:
            self._unread -= 1

    def read(self, atom: Var | Literal, index: Sequence[Index]) -> Node:
        if self._unread:
            return self.nodes.constant(0, atom.aval.dtype)
        return super().read(atom, index)

    def _in_order(self) -> None:
        """Read every element of small results, operands first, as far as their places are known."""
        spread = self._space.spread
        for eqn in self._jaxpr.equations:
            if isinstance(eqn.primitive.lower, Element) and eqn.primitive.lower.cheap:
                continue
            for var in eqn.outputs:
                with contextlib.suppress(Unfit):
                    for index in spread.elements(var.aval.shape):
                        self.read(var, index)

    def _special(self, var: Var, index: tuple[Index, ...]) -> Node | None:
        """Elements that no element rule gives."""
        if (given := self._given.get(var)) is not None:
            return given(index, self._guards)
        eqn = self._equations[var]
        lower = eqn.primitive.lower
        if isinstance(lower, Element):
            return None
        if isinstance(lower, Reduction):
            return reduction(self, eqn, index)[eqn.outputs.index(var)]
        if isinstance(lower, Structured):
            return self._structured(eqn, lower.kind, eqn.outputs.index(var), index)
        if isinstance(lower, Barrier):  # nothing here is kept from one place to the next
            return self.read(eqn.inputs[eqn.outputs.index(var)], index)
        if (rule := RULES.get(eqn.primitive.name)) is None:
            raise Unfit
        return rule(self, eqn, index)

    # control flow inside

    def _structured(self, eqn: Equation, kind: str, place: int, index: tuple[Index, ...]) -> Node:
        if kind == "cond":
            return self._branches(eqn, place, index)
        if eqn not in self._inner:
            self._inner[eqn] = self._unguarded(
                lambda: _Inside(self._space, self, eqn, self._number)
            )
        return self._inner[eqn].element(place, index)

    def _unguarded(self, function: Callable[[], Any]) -> Any:
        """A loop runs once, whoever reads its results."""
        before, self._guards, self._limits = (self._guards, self._limits), (), {}
        try:
            return function()
        finally:
            self._guards, self._limits = before

    def _branches(self, eqn: Equation, place: int, index: tuple[Index, ...]) -> Node:
        """Every branch is computed, so none may hold a loop that might not end."""
        which, *operands = eqn.inputs
        if eqn not in self._inner:
            if _has_while(eqn):
                raise Unfit
            given, number = [partial(self.fetch, atom) for atom in operands], self._number
            branches = [Step(self._space, b, given, number) for b in eqn.params["branches"]]
            self._inner[eqn] = branches
        cases = [
            branch.fetch(branch._jaxpr.outputs[place], index, self._guards)
            for branch in self._inner[eqn]
        ]
        chosen = self.nodes.index(self.read(which, ()), 0, len(cases) - 1)
        return pick(self.nodes, cases, chosen)


def _has_while(eqn: Equation) -> bool:
    inner = [e for jaxpr in subjaxprs(eqn) for e in jaxpr.equations]
    return any(e.primitive.name == "while" or _has_while(e) for e in inner)


class Space:
    """What the loops of one kernel share: their expressions, places and numbers, and how many
    scalars those inside others write."""

    def __init__(self, spread: Spread) -> None:
        self.spread = spread
        self.nodes = Scalars(2 * MOST_STATEMENTS)
        self.numbers: Iterator[int] = itertools.count(1)
        self.kept = 0

    def loop(self, eqn: Equation, source: Source) -> Loop:
        """The loop of a scan or while whose operands come from a source."""
        kind = eqn.primitive.lower.kind
        return _scan(self, eqn, source) if kind == "scan" else _while(self, eqn, source)

    def state(self, avals: Sequence[Aval], number: int) -> tuple[tuple[Node, ...], ...]:
        """Names for the scalars that a loop carries."""
        names = itertools.count()
        return tuple([
            tuple([
                self.nodes.make("tile", dtypes.short_name(aval.dtype), (), (
                    (number, next(names)),
                    1 << number | (PLACE if self.spread.covers(aval.shape) else 0),
                ))
                for _ in self.spread.elements(aval.shape)
            ])
            for aval in avals
        ])  # fmt: skip

    def reader(self, aval: Aval, elements: Sequence[Node]) -> Given:
        """Reads elements of an array of which there are scalars at this place."""

        def read(index: tuple[Index, ...], guards: Guards) -> Node:
            if not elements:
                raise Unfit
            return pick(self.nodes, elements, self.spread.position(aval.shape, index))

        return read

    def all_of(self, aval: Aval, read: Callable[[tuple[Index, ...]], Node]) -> list[Node]:
        """The elements of an array at this place; Unfit if places differ that must not."""
        found = [read(index) for index in self.spread.elements(aval.shape)]
        if not self.spread.covers(aval.shape) and any(node.dims & PLACE for node in found):
            raise Unfit
        return found


def _scan(space: Space, eqn: Equation, source: Source) -> Loop:
    jaxpr, params = eqn.params["jaxpr"], eqn.params
    number, length = next(space.numbers), params["length"]
    first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
    avals = [var.aval for var in jaxpr.inputs[first:last]]
    state = space.state(avals, number)
    time = step_index(number, length)

    def slice_of(atom: Atom) -> Given:
        return lambda index, guards: source.fetch(atom, (time, *index), guards)

    given = [partial(source.fetch, atom) for atom in eqn.inputs[:first]]
    given += [space.reader(a, elements) for a, elements in zip(avals, state, strict=True)]
    given += [slice_of(atom) for atom in eqn.inputs[last:]]
    step = Step(space, jaxpr, given, number)
    before, after = _ends(space, avals, source, eqn.inputs[first:last], step)
    kept = []
    for place, atom in enumerate(jaxpr.outputs[len(avals) :], len(avals)):
        nodes = space.all_of(atom.aval, partial(step.output, place))
        indices = space.spread.elements(atom.aval.shape)
        pairs = zip(indices, nodes, strict=True)
        kept.append(tuple([((time, *index), node) for index, node in pairs]))
    return Loop(number, length, params["reverse"], state, before, after, tuple(kept))


def _ends(
    space: Space, avals: Sequence[Aval], source: Source, atoms: Sequence[Atom], step: Step
) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """What the carried scalars are at first, and behind a step."""
    before: list[Node] = []
    after: list[Node] = []
    for place, (aval, atom) in enumerate(zip(avals, atoms, strict=True)):
        before += space.all_of(aval, lambda index, atom=atom: source.fetch(atom, index, ()))
        after += space.all_of(aval, partial(step.output, place))
    return tuple(before), tuple(after)


def _while(space: Space, eqn: Equation, source: Source) -> Loop:
    params, number = eqn.params, next(space.numbers)
    test, body = params["cond_jaxpr"], params["body_jaxpr"]
    of_test = params["cond_nconsts"]
    first = of_test + params["body_nconsts"]
    avals = [var.aval for var in body.inputs[params["body_nconsts"] :]]
    state = space.state(avals, number)
    carried = [space.reader(a, elements) for a, elements in zip(avals, state, strict=True)]
    consts = [partial(source.fetch, atom) for atom in eqn.inputs[:first]]
    step = Step(space, body, [*consts[of_test:], *carried], number)
    before, after = _ends(space, avals, source, eqn.inputs[first:], step)
    tester = Step(space, test, [*consts[:of_test], *carried], number)
    condition = _condition(space, test, tester)
    if condition.dims & PLACE:
        variables = itertools.chain(*state)
        if any(not _rests(condition, a, b) for a, b in zip(variables, after, strict=True)):
            raise Unfit
    return Loop(number, None, False, state, before, after, (), condition)


def _condition(space: Space, test: Jaxpr, tester: Step) -> Node:
    """Whether there is a step; where any place's wish decides, the wish of this place."""
    (wish,) = test.outputs
    eqn = next((eqn for eqn in test.equations if wish in eqn.outputs), None)
    if eqn is not None and eqn.primitive.name == "reduce_or":
        (x,) = eqn.inputs
        if x.aval.shape == space.spread.shape and len(eqn.params["axes"]) == x.aval.ndim > 0:
            return tester.read(x, space.spread.index)
    return tester.output(0, ())


def _rests(condition: Node, before: Node, after: Node) -> bool:
    """Whether a step leaves a scalar alone where a condition does not hold."""
    if after is before or (before is condition and after.op == "and" and before in after.args):
        return True
    return after.op == "select" and after.args[0] is condition and after.args[2] is before


class _Inside:
    """A loop inside a step of another, and its results."""

    def __init__(self, space: Space, source: Source, eqn: Equation, around: int) -> None:
        self._space, self._eqn = space, eqn
        self._loop = loop = space.loop(eqn, source)
        space.kept += (loop.length or 0) * len(loop.written)
        if space.kept > MOST_KEPT or any(node.dtype in PARTS for node in loop.written):
            raise Unfit
        nodes, needed = space.nodes, (*loop.before, *_outside(loop), *_where(space.nodes, loop))
        if loop.length is None and not any(node.dims & 1 << around for node in needed):
            raise Unfit  # it would run ahead of the loop around it, and might not end
        results = iter([
            nodes.make("loop", node.dtype, needed, (loop, place))
            for place, node in enumerate(loop.variables)
        ])  # fmt: skip
        self._carried = [[next(results) for _ in elements] for elements in loop.state]
        self._ran = nodes.make("loop", "i32", needed, (loop, None))

    def element(self, place: int, index: tuple[Index, ...]) -> Node:
        """An element of a result."""
        space, shape = self._space, self._eqn.outputs[place].aval.shape
        if place < len(self._carried):
            at = space.spread.position(shape, index)
            return pick(space.nodes, self._carried[place], at)
        place -= len(self._carried)
        kept = self._loop.kept[place]
        at = index[0] * len(kept) + space.spread.position(shape[1:], index[1:])
        number = space.nodes.number(at, np.int32)
        return space.nodes.make("kept", kept[0][1].dtype, (self._ran, number), (self._loop, place))


def _outside(loop: Loop) -> list[Node]:
    """What a step needs and does not change."""
    found: dict[Node, None] = {}
    for node in walk(loop.roots):
        if node.dims & loop.bit:
            found.update((child, None) for child in node.below if not child.dims & loop.bit)
    found.update((root, None) for root in loop.roots if not root.dims & loop.bit)
    return list(found)


def _where(nodes: Scalars, loop: Loop) -> list[Node]:
    """The places and the steps of loops around that elements read by a step depend on: with others,
    it is another loop."""
    found: dict[Dim, None] = {}
    for node in walk(loop.roots):
        for index in indices_in(node.op, node.attr):
            found.update(dict.fromkeys(_dims(index)))
    around = [dim for dim in found if not 1 << dim.number & loop.bit]
    return [nodes.number(Index(0, ((dim, 1),)), np.int32) for dim in around]


def _dims(index: Index) -> Iterator[Dim]:
    for symbol in index.symbols:
        if isinstance(symbol, Dim):
            yield symbol
        elif isinstance(symbol, NESTED):
            yield from _dims(symbol.index)


def _least(eqn: Equation, spread: Spread) -> int:
    """Roughly the fewest statements of an equation and its jaxprs at one place, views apart."""
    lower = eqn.primitive.lower
    if isinstance(lower, Structured):
        return sum(_least(e, spread) for jaxpr in subjaxprs(eqn) for e in jaxpr.equations)
    if isinstance(lower, Element) and lower.cheap:
        return 0
    atoms = eqn.outputs if isinstance(lower, Element) else (*eqn.inputs, *eqn.outputs)
    size = max(atom.aval.size for atom in atoms)
    return size // max(1, spread.size) * statements(eqn.primitive.name)


def loop_of(eqn: Equation, spread: Spread) -> Loop:
    """The loop of a scan or while at one place. Raises Unfit if it is none over a few scalars."""
    if effects_of(eqn):
        raise Unfit
    if _least(eqn, spread) > 2 * MOST_STATEMENTS:
        raise Unfit
    space = Space(spread)
    loop = space.loop(eqn, Operands(space.nodes))
    if len(loop.variables) + len(loop.written) > MOST_STATE:
        raise Unfit
    if sum(statements(node.op) for node in walk(loop.roots)) > MOST_STATEMENTS:
        raise Unfit
    return loop
