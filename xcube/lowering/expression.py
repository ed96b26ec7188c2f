"""Element expressions: what one element of a group's results is, as a graph of scalar operations
over loads. A kernel template turns it into cube code.

Nodes are hash-consed: the same operation on the same nodes is one node. dtypes are the short
names of the kernel language; complex numbers ("c64", "c128") are scalars here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.ir import Aval, Equation, Literal, Var
from xcube.lowering.index import NESTED, Dim, Dynamic, Index, clamp, ravel, unravel
from xcube.primitives.lowered import Element


@dataclass(slots=True, eq=False)
class Node:
    """op is "const" (attr: value), "load" (attr: (var, Index, guards)), "number" (attr: Index),
    "inside" (attr: (Index, low, high)), "fold" (attr: (fold, part): a part of a reduction's state),
    "tile" (attr: (var, dims): the element of a template's own result), "cast", "bitcast", or the
    name of a scalar function. `dims`: numbers of the dimensions it varies along, as a bit mask.
    `below`: the nodes it needs, those in its indices included."""

    op: str
    dtype: str
    args: tuple[Node, ...]
    attr: Any
    dims: int
    below: tuple[Node, ...]


COSTLY = frozenset(
    "exp exp2 expm1 log log2 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh "
    "atanh pow cbrt logistic erf erfc erf_inv lgamma digamma div rem rsqrt sqrt".split()
)
_SIZED = frozenset(map(np.dtype, (np.float32, np.float64, np.int32, np.int64)))
_LEAST_SIZE = 33  # whole numbers below are taken for constants of a formula
_BOOLEAN = frozenset("eq ne lt le gt ge is_finite isnan".split())
_REAL_OF = {"c64": "f32", "c128": "f64"}
_COMPLEX_OF = {"f32": "c64", "f64": "c128"}


class Expressions:
    """Makes nodes, each once."""

    def __init__(self) -> None:
        self._nodes: dict[Any, Node] = {}

    def make(self, op: str, dtype: str, args: tuple[Node, ...] = (), attr: Any = None) -> Node:
        key = (op, dtype, args, attr)
        if (node := self._nodes.get(key)) is None:
            mask = 0
            for arg in args:
                mask |= arg.dims
            mask |= _attr_dims(op, attr)
            dynamic = [node for index in indices_in(op, attr) for node in dynamic_nodes(index)]
            below = (*args, *dynamic) if dynamic else args
            node = self._nodes[key] = Node(op, dtype, args, attr, mask, below)
        return node

    def constant(self, value: Any, dtype: Any) -> Node:
        short = _short(dtype)
        value = np.asarray(value).astype(dtypes.BY_SHORT[short])[()]
        return self.make("const", short, (), _Bits(value))

    def apply(self, name: str, *args: Node) -> Node:
        return self.make(name, result_dtype(name, args), args)

    def cast(self, x: Node, dtype: Any) -> Node:
        short = _short(dtype)
        if x.dtype == short:
            return x
        if x.op == "const" and not isinstance(x.attr.value, np.complexfloating):
            return self.constant(_cast_scalar(x.attr.value, short), short)
        return self.make("cast", short, (x,))

    def bitcast(self, x: Node, dtype: Any) -> Node:
        short = _short(dtype)
        return x if x.dtype == short else self.make("bitcast", short, (x,))

    def inside(self, index: Index, low: int, high: int) -> Node:
        a, b = index.range
        if low <= a and b < high:
            return self.constant(True, "bool")
        if b < low or a >= high:
            return self.constant(False, "bool")
        return self.make("inside", "bool", (), (index, low, high))

    def number(self, index: Index, dtype: Any) -> Node:
        if not index.terms:
            return self.constant(index.const, dtype)
        return self.make("number", _short(dtype), (), index)

    def size(self, value: int, dtype: Any) -> Node:
        """A whole number that the launch brings along, so that other sizes need no new kernel."""
        return self.make("number", _short(dtype), (), Index(value))

    def index(self, x: Node, low: int, high: int) -> Index:
        if x.op == "const":
            return Index(min(max(int(x.attr.value), low), high))
        if low >= high:
            return Index(low)
        if x.op == "number":
            return clamp(x.attr, low, high)
        return Index(0, ((Dynamic(x, low, high), 1),))


@dataclass(frozen=True, slots=True, eq=False)
class _Bits:
    """A NumPy scalar compared by its bits, so that -0.0 and NaN are constants like others."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bits) and self.value.tobytes() == other.value.tobytes()

    def __hash__(self) -> int:
        return hash(self.value.tobytes())


def _cast_scalar(value: Any, short: str) -> Any:
    target = dtypes.BY_SHORT[short]
    if target.kind in "iu" and value.dtype.kind not in "iub":
        number = float(value)
        if np.isnan(number):
            return 0
        info = np.iinfo(target)
        return int(min(max(number, info.min), info.max))
    return value


def _short(dtype: Any) -> str:
    return dtype if isinstance(dtype, str) and dtype in dtypes.BY_SHORT else dtypes.short_name(
        np.dtype(dtype)
    )  # fmt: skip


def result_dtype(name: str, args: Sequence[Node]) -> str:
    """Dtype of a scalar function's result."""
    first = args[0].dtype
    if name in _BOOLEAN:
        return "bool"
    if name == "select":
        return args[1].dtype
    if name in ("real", "imag") or (name == "abs" and first in _REAL_OF):
        return _REAL_OF.get(first, first)
    if name == "complex":
        return _COMPLEX_OF[first]
    return first


def index_dims(index: Index) -> int:
    """Dimensions that an index varies along, as a bit mask."""
    mask = 0
    for symbol in index.symbols:
        if isinstance(symbol, Dim):
            mask |= 1 << symbol.number
        elif isinstance(symbol, Dynamic):
            mask |= symbol.node.dims
        else:
            mask |= index_dims(symbol.index)
    return mask


def _attr_dims(op: str, attr: Any) -> int:
    if op == "load":
        mask = index_dims(attr[1])
        for index, _, _ in attr[2]:
            mask |= index_dims(index)
        return mask
    if op == "number":
        return index_dims(attr)
    if op == "inside":
        return index_dims(attr[0])
    if op == "tile":
        return attr[1]
    return attr[0].dims if op == "fold" else 0


def indices_in(op: str, attr: Any) -> Sequence[Index]:
    """The index expressions in a node's attribute."""
    if op == "load":
        return [attr[1], *(index for index, _, _ in attr[2])]
    if op == "number":
        return [attr]
    return [attr[0]] if op == "inside" else ()


def dynamic_nodes(index: Index) -> Iterator[Node]:
    """The nodes whose values an index depends on."""
    for symbol in index.symbols:
        if isinstance(symbol, Dynamic):
            yield symbol.node
        elif isinstance(symbol, NESTED):
            yield from dynamic_nodes(symbol.index)


def walk(roots: Sequence[Node]) -> list[Node]:
    """Every node below some roots, operands first."""
    order: dict[Node, None] = {}
    opened: set[Node] = set()
    stack = list(reversed(roots))
    while stack:
        node = stack[-1]
        if node in opened:
            stack.pop()
            order[node] = None  # keeps the first place where a node stands twice on the stack
            continue
        opened.add(node)
        stack += [child for child in reversed(node.below) if child not in opened]
    return list(order)


Test = tuple[Any, int, int]  # low <= index < high
Lookup = Callable[[Var, tuple[Index, ...]], "Node | None"]


class Evaluator:
    """Pulls elements of variables: through the equations of a group, down to loads.

    `producers`: equations of the group by output variable. `intercept(var, index)` may supply
    the node of a variable itself (results of reductions and contractions of the group).
    `may_split`: whether indices may ask to cut dimensions.
    """

    def __init__(
        self,
        nodes: Expressions,
        producers: dict[Var, Equation],
        intercept: Lookup,
        may_split: bool = False,
    ) -> None:
        self.nodes, self._producers, self._intercept = nodes, producers, intercept
        self._may_split = may_split
        self._memo: dict[Any, Any] = {}
        self._guards: tuple[Test, ...] = ()
        self._limits: dict[int, tuple[int, int]] = {}

    def guarded(self, tests: Sequence[Test], function: Callable[[], Any]) -> Any:
        """What `function` reads is used only where all tests hold: loads are masked by them."""
        before, limits = self._guards, self._limits
        needed = [t for t in tests if not (t[1] <= t[0].range[0] and t[0].range[1] < t[2])]
        self._guards = (*before, *(test for test in needed if test not in before))
        self._limits = _limits(limits, needed)
        try:
            return function()
        finally:
            self._guards, self._limits = before, limits

    def read(self, atom: Var | Literal, index: Sequence[Index]) -> Node:
        """The element of a variable or literal at an index."""
        if isinstance(atom, Literal):
            return self.nodes.constant(atom.value, atom.aval.dtype)
        at = tuple([as_index(i) for i in index]) if atom.aval.ndim else ()
        if self._limits:
            at = tuple([i.limited(self._limits) for i in at])
        key = (atom, at, self._guards)
        if (node := self._memo.get(key)) is None:
            node = self._memo[key] = self._element(atom, at)
        return node

    def _element(self, var: Var, index: tuple[Index, ...]) -> Node:
        if (node := self._intercept(var, index)) is not None:
            return node
        if (eqn := self._producers.get(var)) is None:
            position = ravel(index, var.aval.shape)
            attr = (var, position, self._guards)
            return self.nodes.make("load", dtypes.short_name(var.aval.dtype), (), attr)
        if len(eqn.outputs) == 1:
            return self._rule(eqn, index)
        key = (eqn, index, self._guards)
        if key not in self._memo:
            self._memo[key] = self._rule(eqn, index)
        return self._memo[key][eqn.outputs.index(var)]

    def _rule(self, eqn: Equation, index: tuple[Index, ...]) -> Any:
        rule: Element = eqn.primitive.lower
        return rule.rule(EquationElements(self, eqn), index, **eqn.params)

    def split_allowed(self) -> bool:
        return self._may_split


def _limits(
    limits: dict[int, tuple[int, int]], tests: Sequence[Test]
) -> dict[int, tuple[int, int]]:
    """What tests of single dimensions say of their ranges."""
    found = dict(limits)
    for index, low, high in tests:
        if len(index.terms) != 1:
            continue
        symbol, step = index.terms[0]
        if isinstance(symbol, Dim) and step > 0:
            a, b = found.get(symbol.number, symbol.range)
            least, most = -((index.const - low) // step), (high - 1 - index.const) // step
            if max(a, least) <= min(b, most):
                found[symbol.number] = max(a, least), min(b, most)
    return found


class EquationElements:
    """What an element rule sees: the protocol of `primitives.lowered.ElementBuilder`."""

    __slots__ = ("_eqn", "_evaluator", "_nodes", "apply", "bitcast", "cast", "constant", "index")

    def __init__(self, evaluator: Evaluator, eqn: Equation) -> None:
        self._evaluator, self._eqn = evaluator, eqn
        self._nodes = nodes = evaluator.nodes
        self.apply, self.constant, self.cast = nodes.apply, nodes.constant, nodes.cast
        self.bitcast, self.index = nodes.bitcast, nodes.index

    @property
    def inputs(self) -> tuple[Aval, ...]:
        return tuple([atom.aval for atom in self._eqn.inputs])

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return tuple([var.aval for var in self._eqn.outputs])

    def inside(self, index: Index | int, low: int, high: int) -> Node:
        return self._nodes.inside(as_index(index), low, high)

    def number(self, index: Index | int, dtype: Any) -> Node:
        return self._nodes.number(as_index(index), dtype)

    def read(self, operand: int, index: Sequence[Index]) -> Node:
        atom = self._eqn.inputs[operand]
        if isinstance(atom, Literal) and _may_be_size(atom, self._eqn):
            return self._nodes.size(int(atom.value), atom.aval.dtype)
        return self._evaluator.read(atom, index)

    def clamp(self, index: Index, low: int, high: int) -> Index:
        return clamp(as_index(index), low, high)

    def guarded(self, tests: Sequence[Test], function: Callable[[], Any]) -> Any:
        checked = [(as_index(index), low, high) for index, low, high in tests]
        return self._evaluator.guarded(checked, function)

    def ravel(self, index: Sequence[Index], shape: tuple[int, ...]) -> Index:
        return ravel([as_index(i) for i in index], shape)

    def unravel(self, position: Index, shape: tuple[int, ...]) -> list[Index]:
        return unravel(position, shape, self._evaluator.split_allowed())


def _may_be_size(literal: Literal, eqn: Equation) -> bool:
    """Whether a literal may come from a shape, as the divisor of a mean does. Integers are divided
    by constants much faster, so those stay."""
    kind, value = literal.aval.dtype, literal.value
    if kind not in _SIZED or not _LEAST_SIZE <= abs(float(value)) < 1 << 24:
        return False
    if value != int(value):
        return False
    return kind.kind == "f" or eqn.primitive.name not in ("div", "rem")


def as_index(index: Index | int) -> Index:
    """A Python int as an index."""
    return index if isinstance(index, Index) else Index(index)
