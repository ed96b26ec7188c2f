"""The iteration space of a group: its element expressions, with dimensions cut where indices need
it and merged where every index walks them alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from xcube import dtypes
from xcube.ir import Equation, Var
from xcube.lowering.clusters import Group
from xcube.lowering.expression import (
    EquationElements,
    Evaluator,
    Expressions,
    Node,
    indices_in,
    walk,
)
from xcube.lowering.index import NESTED, Dim, Index, Split, fit, ravel
from xcube.primitives.lowered import Reduction


@dataclass(frozen=True, eq=False)
class Fold:
    """A reduction of the group: its neutral state, one element as a state, and how two combine."""

    equation: Equation
    init: tuple[Node, ...]
    lifted: tuple[Node, ...]
    dtypes: tuple[str, ...]
    dims: int  # the rows' dimensions, as a bit mask
    depth: int  # how many folds must run before

    def combine(self, nodes: Expressions, a: Sequence[Node], b: Sequence[Node]) -> tuple[Node, ...]:
        rule: Reduction = self.equation.primitive.lower
        evaluator = Evaluator(nodes, {}, lambda var, index: None)
        return rule.combine(EquationElements(evaluator, self.equation), tuple(a), tuple(b))


@dataclass(frozen=True, eq=False)
class Result:
    """A variable to write: its element and the position of that element in memory."""

    var: Var
    node: Node
    position: Index


@dataclass(frozen=True, eq=False)
class Axis:
    """A loop: neighbouring dimensions that every index walks alike. `dims`: numbers, outermost
    first; strides are those of the last. `kind`: "row", "column", or what a template names its
    dimensions."""

    dims: tuple[int, ...]
    extent: int
    kind: str

    @property
    def mask(self) -> int:
        return sum(1 << number for number in self.dims)

    def stride(self, index: Index) -> int:
        return index.coefficient(self.dims[-1])


@dataclass(eq=False)
class Space:
    """Expressions of a group over refined dimensions, and the loops that remain."""

    nodes: Expressions
    results: list[Result]
    folds: list[Fold]
    axes: list[Axis] = field(default_factory=list)

    @cached_property
    def roots(self) -> list[Node]:
        """The elements of the results and of the reductions."""
        lifted = [node for fold in self.folds for node in fold.lifted]
        return [*(result.node for result in self.results), *lifted]

    @cached_property
    def order(self) -> list[Node]:
        """Every node below the roots, operands first."""
        return walk(self.roots)

    @property
    def rows(self) -> list[Axis]:
        return self.of("row")

    @property
    def columns(self) -> list[Axis]:
        return self.of("column")

    def of(self, kind: str) -> list[Axis]:
        """The loops of one kind, outermost first."""
        return [axis for axis in self.axes if axis.kind == kind]


def analyse(group: Group, kinds: Sequence[str] | None = None) -> Space:
    """The group's expressions, with as few loops as its indices allow. `kinds` names the kind of
    each dimension; dimensions of different kinds never merge."""
    kinds = kinds or ["column" if a in group.axes else "row" for a in range(len(group.shape))]
    cuts: list[list[int]] = [[size] for size in group.shape]
    while True:
        builder = _Builder(group, cuts, kinds)
        try:
            space = builder.build()
        except Split as split:
            cuts = _cut(cuts, builder.owner(split.number), split)
            continue
        space.axes = _merge(builder, space)
        return space


def _cut(cuts: list[list[int]], where: tuple[int, int], split: Split) -> list[list[int]]:
    dimension, part = where
    parts = list(cuts[dimension])
    parts[part : part + 1] = [parts[part] // split.inner, split.inner]
    return [*cuts[:dimension], parts, *cuts[dimension + 1 :]]


class _Builder:
    """Evaluates a group's results over dimensions cut into parts."""

    def __init__(self, group: Group, cuts: list[list[int]], kinds: Sequence[str]) -> None:
        self.group, self.cuts = group, cuts
        self.nodes = Expressions()
        self.folds: dict[int, Fold] = {}
        self.extents: list[int] = []
        self.kinds: list[str] = []
        self.full: list[Index] = []
        for axis, parts in enumerate(cuts):
            index, stride = Index(0), 1
            numbers = range(len(self.extents), len(self.extents) + len(parts))
            for number, size in reversed(list(zip(numbers, parts, strict=True))):
                if size != 1:
                    index = index + Index(0, ((Dim(number, size), stride),))
                stride *= size
            self.extents += parts
            self.kinds += [kinds[axis]] * len(parts)
            self.full.append(index)
        self.row = [i for axis, i in enumerate(self.full) if axis not in group.axes]
        self.evaluator = Evaluator(self.nodes, group.producers, self._intercept, may_split=True)

    def owner(self, number: int) -> tuple[int, int]:
        """Which dimension of the group a part belongs to, and which of its parts it is."""
        for dimension, parts in enumerate(self.cuts):
            if number < len(parts):
                return dimension, number
            number -= len(parts)
        raise AssertionError("no such dimension")

    def build(self) -> Space:
        results = []
        for var in self.group.order:  # operands first, so that no expression is too deep
            self.evaluator.read(var, self._place(var))
        for var in self.group.outputs:
            index = self._place(var)
            node = self.evaluator.read(var, index)
            results.append(Result(var, node, ravel(index, var.aval.shape)))
        return Space(self.nodes, results, list(self.folds.values()))

    def _place(self, var: Var) -> tuple[Index, ...]:
        """The index of a result's element in this space, or in its rows."""
        sizes, shape = self.group.shape, var.aval.shape
        if (index := fit(self.full, sizes, shape)) is None:
            rows = [size for axis, size in enumerate(sizes) if axis not in self.group.axes]
            index = fit(self.row, rows, shape)
        if index is None and len(shape) == len(sizes):  # a result with padding around the space
            return tuple(self.full)
        assert index is not None, f"{var.aval} has no place in {sizes}"
        return index

    def _intercept(self, var: Var, index: tuple[Index, ...]) -> Node | None:
        eqn = self.group.producers.get(var)
        if eqn is not None and eqn is self.group.root:
            assert list(index) == self.full, "a template's result is read where it is not known"
            everything = (1 << len(self.extents)) - 1
            return self.nodes.make("tile", _short(var), (), (var, everything))
        if eqn is None or not isinstance(eqn.primitive.lower, Reduction):
            return None
        assert list(index) == self.row, "a reduction is read where it is not known"
        fold = self._fold(eqn)
        state = tuple(
            self.nodes.make("fold", dtype, (), (fold, part))
            for part, dtype in enumerate(fold.dtypes)
        )
        elements = EquationElements(self.evaluator, eqn)
        outs = tuple(v.aval for v in eqn.outputs)
        return eqn.primitive.lower.finish(elements, state, outs)[eqn.outputs.index(var)]

    def _fold(self, eqn: Equation) -> Fold:
        if (fold := self.folds.get(id(eqn))) is not None:
            return fold
        rule: Reduction = eqn.primitive.lower
        elements = EquationElements(self.evaluator, eqn)
        columns = [i for axis, i in enumerate(self.full) if axis in self.group.axes]
        sizes = tuple([s for axis, s in enumerate(self.group.shape) if axis in self.group.axes])
        position = ravel(columns, sizes)
        operands = [self.evaluator.read(atom, self.full) for atom in eqn.inputs]
        lifted = tuple(rule.lift(elements, position, *operands))
        names = tuple(dtypes.short_name(d) for d in rule.state(*elements.inputs))
        init = tuple(rule.init(elements, *elements.inputs))
        mask = sum(1 << n for n, kind in enumerate(self.kinds) if kind != "column")
        depth = 1 + max((fold_depth(node) for node in lifted), default=0)
        self.folds[id(eqn)] = fold = Fold(eqn, init, lifted, names, mask, depth)
        return fold


def _short(var: Var) -> str:
    return dtypes.short_name(var.aval.dtype)


def fold_depth(node: Node) -> int:
    """How many folds, one after another, a node needs."""
    return max((n.attr[0].depth for n in walk([node]) if n.op == "fold"), default=0)


def _nested(index: Index) -> Iterator[Index]:
    yield index
    for symbol in index.symbols:
        if isinstance(symbol, NESTED):
            yield from _nested(symbol.index)


def all_indices(space: Space) -> set[Index]:
    """Every index expression of a space."""
    roots = [result.node for result in space.results]
    for fold in space.folds:
        roots += [*fold.lifted, *fold.init]
    found = {result.position for result in space.results}
    for node in walk(roots):
        for index in indices_in(node.op, node.attr):
            found.update(_nested(index))
    return found


def _merge(builder: _Builder, space: Space) -> list[Axis]:
    """Loops: dimensions of one element vanish, neighbours that every index walks alike merge."""
    indices = all_indices(space)
    axes: list[Axis] = []
    for kind in dict.fromkeys(builder.kinds):
        kept = [
            number
            for number, size in enumerate(builder.extents)
            if size != 1 and builder.kinds[number] == kind
        ]
        merged: list[list[int]] = []
        for number in kept:
            size = builder.extents[number]
            if merged and all(
                index.coefficient(merged[-1][-1]) == index.coefficient(number) * size
                for index in indices
            ):
                merged[-1].append(number)
            else:
                merged.append([number])
        for numbers in merged:
            extent = 1
            for number in numbers:
                extent *= builder.extents[number]
            axes.append(Axis(tuple(numbers), extent, kind))
    return axes
