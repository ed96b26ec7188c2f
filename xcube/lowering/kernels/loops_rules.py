"""One element of operations that have templates of their own, as scalar operations written out:
what a loop inside a kernel needs, where arrays are a few numbers each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.ir import Atom, Equation
from xcube.lowering.expression import COSTLY, EquationElements, Evaluator, Expressions, Node
from xcube.lowering.index import Index
from xcube.primitives.contract import kept_dims
from xcube.primitives.lowered import Reduction
from xcube.primitives.shape import accumulator_dtype
from xcube.primitives.windows import GatherScatterMode, window_dropped

Rule = Callable[[Evaluator, Equation, tuple[Index, ...]], Node]

MOST_TERMS = 256
"""The most elements that one element of a result is folded from."""


class Unfit(Exception):
    """The loop is none over a few scalars."""


def statements(name: str) -> int:
    """Roughly how many statements of a kernel a scalar function becomes."""
    return _STATEMENTS.get(name, 30 if name in COSTLY else 1)


_STATEMENTS = {
    "const": 0,
    "sin": 150,
    "cos": 150,
    "tan": 200,
    "div": 1,
    "rem": 1,
    "sqrt": 1,
    "rsqrt": 2,
}


class Scalars(Expressions):
    """Expressions in which whole numbers and choices known now are folded, because views of small
    arrays ask much about places that are."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most

    def make(self, op: str, dtype: str, args: tuple[Node, ...] = (), attr: Any = None) -> Node:
        known = len(self._nodes)
        node = super().make(op, dtype, args, attr)
        if len(self._nodes) > known:
            self._left -= statements(op)
            if self._left < 0:
                raise Unfit
        return node

    def apply(self, name: str, *args: Node) -> Node:
        if name == "select":
            condition, then, orelse = args
            if condition.op == "const":
                return then if condition.attr.value else orelse
            return then if then is orelse else super().apply(name, *args)
        if (function := _WHOLE.get(name)) is not None and all(map(_is_whole, args)):
            with np.errstate(over="ignore"):
                value = function(*[arg.attr.value for arg in args])
            return self.constant(value, dtypes.short_name(value.dtype))
        if name in _ABSORBED and (found := _logic(name, *args)) is not None:
            return found
        return super().apply(name, *args)


_WHOLE: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_ABSORBED = {"and": False, "or": True}
SPARSE = 512  # elements of an array for each one that is written


def _is_whole(node: Node) -> bool:
    return node.op == "const" and node.attr.value.dtype.kind in "iu"


def _logic(name: str, *args: Node) -> Node | None:
    """The conjunction or disjunction of which one side is known."""
    for this, other in (args, args[::-1]):
        if this.op == "const" and this.dtype == "bool":
            return this if bool(this.attr.value) == _ABSORBED[name] else other
    return None


def pick(nodes: Expressions, elements: Sequence[Node], position: Index) -> Node:
    """elements[position], by choices where the position is known only at run time."""
    low, high = (min(max(end, 0), len(elements) - 1) for end in position.range)
    if not position.terms:
        return elements[low]
    step = math.gcd(*(coefficient for _, coefficient in position.terms))
    places = [place for place in range(low, high + 1) if (place - position.const) % step == 0]
    number = nodes.number(position, np.int32)

    def among(places: Sequence[int]) -> Node:
        if len(places) == 1:
            return elements[places[0]]
        half = len(places) // 2
        is_before = nodes.apply("lt", number, nodes.constant(places[half], np.int32))
        return nodes.apply("select", is_before, among(places[:half]), among(places[half:]))

    return among(places)


# folds ----------------------------------------------------------------------------------------


def reduction(evaluator: Evaluator, eqn: Equation, index: tuple[Index, ...]) -> tuple[Node, ...]:
    """The results of a reduction at an index of what it keeps."""
    rule: Reduction = eqn.primitive.lower
    elements = EquationElements(evaluator, eqn)
    shape, axes = eqn.inputs[0].aval.shape, eqn.params["axes"]
    kept = iter(index)
    at = [None if axis in axes else next(kept) for axis in range(len(shape))]
    sizes = [shape[axis] for axis in axes]
    if math.prod(sizes) > MOST_TERMS:
        raise Unfit
    states = []
    for position, place in enumerate(_places(sizes)):
        for axis, i in zip(axes, place, strict=True):
            at[axis] = i
        operands = [evaluator.read(atom, tuple(at)) for atom in eqn.inputs]  # type: ignore[arg-type]
        states.append(tuple(rule.lift(elements, Index(position), *operands)))
    outs = tuple(var.aval for var in eqn.outputs)
    if not states:
        return tuple(rule.finish(elements, tuple(rule.init(elements, *elements.inputs)), outs))
    if eqn.primitive.name == "reduce_sum":
        total = (sum_of(evaluator.nodes, [state[0] for state in states]),)
    else:
        total = _pairwise(lambda a, b: tuple(rule.combine(elements, a, b)), states)
    return tuple(rule.finish(elements, total, outs))


def _places(sizes: Sequence[int]) -> Iterator[tuple[Index, ...]]:
    """Every index of a shape, in row-major order."""
    return itertools.product(*([Index(i) for i in range(size)] for size in sizes))


def _pairwise(combine: Callable[[Any, Any], Any], items: Sequence[Any]) -> Any:
    """Neighbours combined until one is left: the shortest chain of operations."""
    while len(items) > 1:
        pairs = [combine(a, b) for a, b in zip(items[::2], items[1::2], strict=False)]
        items = [*pairs, *items[2 * len(pairs) :]]
    return items[0]


def sum_of(nodes: Expressions, terms: Sequence[Node]) -> Node:
    """A sum; products in it are added with one rounding."""

    def add(a: Node, b: Node) -> Node:
        if b.op == "mul" and b.dtype in ("f32", "f64"):
            return nodes.make("fma", b.dtype, (*b.args, a))
        return nodes.apply("add", a, b)

    return _pairwise(add, terms)


# contraction ----------------------------------------------------------------------------------


def contraction(evaluator: Evaluator, eqn: Equation, index: tuple[Index, ...]) -> Node:
    """dot_general: a sum of products."""
    nodes, (x, y), out = evaluator.nodes, eqn.inputs, eqn.outputs[0].aval
    (x_sum, y_sum), (x_batch, y_batch) = eqn.params["dimension_numbers"]
    x_kept, y_kept = (
        kept_dims(atom.aval.ndim, summed, batch)
        for atom, summed, batch in ((x, x_sum, x_batch), (y, y_sum, y_batch))
    )
    batch, rest = index[: len(x_batch)], index[len(x_batch) :]
    left, right = rest[: len(x_kept)], rest[len(x_kept) :]
    sizes = [x.aval.shape[d] for d in x_sum]
    number = np.dtype(np.int32) if out.dtype.kind == "b" else accumulator_dtype(out)
    if math.prod(sizes) > MOST_TERMS:
        raise Unfit

    def element(atom: Atom, *places: tuple[Sequence[int], Sequence[Index]]) -> Node:
        at = {d: i for dims, indices in places for d, i in zip(dims, indices, strict=True)}
        return nodes.cast(evaluator.read(atom, [at[d] for d in range(len(at))]), number)

    terms = [
        nodes.apply(
            "mul",
            element(x, (x_batch, batch), (x_kept, left), (x_sum, place)),
            element(y, (y_batch, batch), (y_kept, right), (y_sum, place)),
        )
        for place in _places(sizes)
    ]
    total = sum_of(nodes, terms) if terms else nodes.constant(0, number)
    return nodes.cast(total, out.dtype)


# cumulative operations ------------------------------------------------------------------------

_CUMULATIVE = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}


def cumulative(evaluator: Evaluator, eqn: Equation, index: tuple[Index, ...]) -> Node:
    """Everything up to a place along an axis, folded."""
    nodes, (x,), axis = evaluator.nodes, eqn.inputs, eqn.params["axis"]
    if index[axis].terms or eqn.primitive.name not in _CUMULATIVE or x.aval.dtype.kind == "c":
        raise Unfit
    place, size = index[axis].const, x.aval.shape[axis]
    before = range(size - 1, place - 1, -1) if eqn.params["reverse"] else range(place + 1)
    if len(before) > MOST_TERMS:
        raise Unfit
    total = None
    for k in before:
        at = (*index[:axis], Index(k), *index[axis + 1 :])
        element = nodes.cast(evaluator.read(x, at), accumulator_dtype(x.aval))
        name = _CUMULATIVE[eqn.primitive.name]
        total = element if total is None else nodes.apply(name, total, element)
    assert total is not None, "an element is among those up to itself"
    return nodes.cast(total, x.aval.dtype)


# scatter --------------------------------------------------------------------------------------

_UPDATES = {
    "scatter-add": "add",
    "scatter-sub": "sub",
    "scatter-mul": "mul",
    "scatter-min": "min",
    "scatter-max": "max",
}


def scatter(evaluator: Evaluator, eqn: Equation, index: tuple[Index, ...]) -> Node:
    """An element with all updates that may meet it applied in order."""
    nodes, (x, _, updates) = evaluator.nodes, eqn.inputs
    if x.aval.size >= SPARSE * max(1, updates.aval.size):
        raise Unfit  # every place would look for the few that are written
    element = evaluator.read(x, index)
    if updates.aval.size == 0:
        return element
    for tests, at in _meetings(evaluator, eqn, index):
        update = evaluator.read(updates, at)
        if (name := _UPDATES.get(eqn.primitive.name)) is not None:
            update = nodes.apply(name, element, update)
        element = nodes.apply("select", _all_of(nodes, tests), update, element)
    return element


def _meetings(
    evaluator: Evaluator, eqn: Equation, index: tuple[Index, ...]
) -> Iterator[tuple[list[Node], list[Index]]]:
    """Elements of the updates, in order, with the tests for that they fall on an index."""
    numbers, mode = eqn.params["dimension_numbers"], eqn.params["mode"]
    x, starts, updates = (atom.aval for atom in eqn.inputs)
    window, mapped = numbers.update_window_dims, numbers.scatter_dims_to_operand_dims
    kept = [d for d in range(x.ndim) if d not in window_dropped(numbers)]
    sizes = {d: updates.shape[w] for d, w in zip(kept, window, strict=True)}
    walked = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    fixed = {b: [index[d]] for d, b in walked}
    counts = starts.shape[:-1]
    choices = [fixed.get(b) or list(map(Index, range(n))) for b, n in enumerate(counts)]
    moved = [range(sizes.get(d, 1)) for d in mapped]
    if math.prod([len(c) for c in (*choices, *moved)]) > MOST_TERMS:
        raise Unfit
    for position in itertools.product(*choices):
        begin = [
            _start(evaluator, eqn.inputs[1], (*position, Index(k)), x.shape[d] - sizes.get(d, 1))
            for k, d in enumerate(mapped)
        ]
        tests = [] if mode is GatherScatterMode.CLIP else [t for _, found in begin for t in found]
        for offsets in itertools.product(*moved):
            hits = [
                _is_zero(evaluator.nodes, index[d] - start - offset)
                for d, (start, _), offset in zip(mapped, begin, offsets, strict=True)
            ]
            place = {**{d: index[d] for d in kept}, **dict(zip(mapped, offsets, strict=True))}
            inside, outside = iter([place[d] for d in kept]), iter(position)
            yield (
                [*tests, *hits],
                [next(inside if d in window else outside) for d in range(updates.ndim)],
            )


def _start(
    evaluator: Evaluator, indices: Atom, at: tuple[Index, ...], last: int
) -> tuple[Index, list[Node]]:
    """Where a window starts, moved inside, and the tests for that it need not be."""
    nodes, dtype = evaluator.nodes, indices.aval.dtype
    start = evaluator.read(indices, at)
    tests = []
    if dtypes.is_signed(dtype):
        tests.append(nodes.apply("ge", start, nodes.constant(0, dtype)))
    if last < dtypes.iinfo(dtype).max:
        tests.append(nodes.apply("le", start, nodes.constant(max(last, 0), dtype)))
    return nodes.index(start, 0, max(last, 0)), tests


def _is_zero(nodes: Expressions, index: Index) -> Node:
    low, high = index.range
    if not low <= 0 <= high:
        return nodes.constant(False, "bool")
    zero = nodes.constant(0, np.int32)
    return nodes.apply("eq", nodes.number(index, np.int32), zero)


def _all_of(nodes: Expressions, tests: Sequence[Node]) -> Node:
    holds = nodes.constant(True, "bool")
    for test in tests:
        holds = nodes.apply("and", holds, test)
    return holds


RULES: dict[str, Rule] = {
    "dot_general": contraction,
    **dict.fromkeys(_CUMULATIVE, cumulative),
    **dict.fromkeys(("scatter", *_UPDATES), scatter),
}
