"""Element expressions -> cube code: values of nodes and indices at a place in a kernel's loops.

Sizes, strides and offsets become scalars of the launch, so that one kernel serves all shapes of a
class; what is comptime is which strides are 0, which is 1 along the lanes, and the structure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.ir import Var
from xcube.lowering.cube import math as cube_math
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.complex import Complex
from xcube.lowering.cube.ir import Buffer
from xcube.lowering.cube.math_float import SMALLEST_NORMAL
from xcube.lowering.expression import Node, index_dims, indices_in, walk
from xcube.lowering.index import (
    NESTED,
    Clamped,
    Dim,
    Dynamic,
    Index,
    Quotient,
)
from xcube.lowering.kernels.space import Axis, Fold, Result

PARTS = {"c64": "f32", "c128": "f64"}


class Arguments:
    """Buffers and scalars of a kernel in launch order, with what they stand for. `sources` are
    operands that a result shares memory with."""

    def __init__(self, build: Builder, sources: frozenset[Var] = frozenset()) -> None:
        self.build, self.sources = build, sources
        self.variables: list[Var] = []
        self.cells: list[int] = []
        self._buffers: dict[Var, Buffer] = {}
        self._scalars: dict[Any, Value] = {}

    def buffer(self, var: Var, access: str = "in") -> Buffer:
        """The buffer parameter behind a variable; complex ones hold pairs of floats."""
        if (buffer := self._buffers.get(var)) is None:
            short = dtypes.short_name(var.aval.dtype)
            access = "inout" if var in self.sources else access
            buffer = self._buffers[var] = self.build.buffer(PARTS.get(short, short), access)
            self.variables.append(var)
        return buffer

    def scalar(self, key: Any, number: int) -> Value:
        """A number of this launch as a scalar parameter; one parameter per key."""
        if (value := self._scalars.get(key)) is None:
            value = self._scalars[key] = self.build.scalar("index")
            self.cells.append(number)
        return value


class Emitter:
    """Values of nodes at the current place: `at` gives each axis's loop index, and along the lane
    axis a line of `lanes` neighbours, of which `mask` says which exist. `aligned` promises that
    lines begin at multiples of `lanes`, and shows it where memory has them at such multiples, too;
    `narrow`, that all places are below 2^31, where division is cheaper."""

    def __init__(
        self,
        arguments: Arguments,
        axes: Sequence[Axis],
        lane: Axis | None,
        lanes: int,
        aligned: bool = False,
        narrow: bool = False,
    ) -> None:
        self.build, self.arguments = arguments.build, arguments
        self.axes, self.lane, self.lanes = axes, lane, lanes
        self.lane_mask = lane.mask if lane is not None and lanes > 1 else 0
        self.aligned, self.narrow = aligned, narrow
        self.at: dict[int, Value] = {}
        self.mask: Value | None = None
        self.folds: dict[Fold, Sequence[Any]] = {}
        self._memo: list[dict[Any, Any]] = [{}]
        self._numbers: dict[Index, int] = {}

    def along(self, lane: Axis) -> Emitter:
        """An emitter of the same kernel whose lines lie along another axis."""
        other = Emitter(
            self.arguments, self.axes, lane, self.lanes, aligned=self.aligned, narrow=self.narrow
        )
        other._numbers = self._numbers
        return other

    # scopes

    def open(self, scope: dict[Any, Any] | None = None) -> dict[Any, Any]:
        """Enter a loop: what is computed inside is forgotten at `close`, unless the scope that this
        gives is opened again, where its values are still to be had."""
        scope = {} if scope is None else scope
        self._memo.append(scope)
        return scope

    def close(self) -> None:
        self._memo.pop()

    def hoist(self, roots: Sequence[Node], inside: int) -> None:
        """Compute now what does not vary along the axes of the loops about to be opened."""
        seen: set[int] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if id(node) in seen or node.op == "const":
                continue
            seen.add(id(node))
            if not node.dims & inside:
                self.values([node])
                continue
            stack += node.below
            for index in indices_in(node.op, node.attr):
                self._base(index, inside)

    # places

    def place(self, axes: Sequence[Axis], number: Value) -> None:
        """Loop indices of axes from the row-major number of a row."""
        for axis in reversed(axes[1:]):
            extent = self.arguments.scalar(("extent", axis.dims), axis.extent)
            self.at[id(axis)] = self.remainder(number, extent)
            number = self.quotient(number, extent)
        if axes:
            self.at[id(axes[0])] = number

    def quotient(self, number: Value, divisor: Value) -> Value:
        """Of two indices that are not negative."""
        if not self.narrow:
            return number // divisor
        return (number.cast("u32") // divisor.cast("u32")).cast("index")

    def remainder(self, number: Value, divisor: Value) -> Value:
        """Of two indices that are not negative."""
        if not self.narrow:
            return number % divisor
        return number - self.quotient(number, divisor) * divisor

    def mask_from(self, start: Value, end: Value, ragged: bool) -> None:
        """Which lanes of the line at `start` exist; all of them unless lines are ragged."""
        if not ragged or self.lanes == 1:
            self.mask = None
            return
        lane = self.build.lane(self.lanes, "i32")
        self.mask = lane < (end - start).cast("i32")

    # values

    def value(self, node: Node) -> Any:
        """The node as a scalar or line; a `Complex` for complex dtypes."""
        for known in reversed(self._memo):
            if node in known:
                return known[node]
        value = self._memo[-1][node] = self._compute(node)
        return value

    def values(self, roots: Sequence[Node]) -> list[Any]:
        """Values of nodes, operands first, so that no expression is too deep."""
        for node in walk(roots):
            self.value(node)
        return [self.value(root) for root in roots]

    def known(self, node: Node, value: Any) -> None:
        """Say what a node's value is in this scope."""
        self._memo[-1][node] = value

    def _compute(self, node: Node) -> Any:
        if node.op == "const":
            return self._constant(node)
        if node.op == "load":
            return self._load(node)
        if node.op == "number":
            return self.index(node.attr).cast(node.dtype)
        if node.op == "inside":
            return self._inside(node)
        if node.op == "fold":
            fold, part = node.attr
            return self.folds[fold][part]
        args = [self.value(arg) for arg in node.args]
        if node.op == "cast":
            return cast(self.build, args[0], node.dtype)
        if node.op == "bitcast":
            return args[0].bitcast(node.dtype)
        if node.op == "div" and node.dtype == "bf16" and self._is_repeated(node.args[1], node):
            return _times_reciprocal(*args)
        return cube_math.apply(self.build, node.op, *_alike(self.build, args))

    def _is_repeated(self, arg: Node, node: Node) -> bool:
        """Whether an operand is the same for all lanes, and for other places of a loop."""
        return arg.dims != node.dims and not arg.dims & self.lane_mask

    def _constant(self, node: Node) -> Any:
        return constant(self.build, node.attr.value, node.dtype)

    def _inside(self, node: Node) -> Value:
        return self._between(*node.attr)

    def _load(self, node: Node) -> Any:
        var, index, guards = node.attr
        buffer = self.arguments.buffer(var)
        inside = self._guards(guards)
        if node.dtype in PARTS:
            at = self.index(index) * 2
            at, mask = self._masked(at, inside)
            real = self.build.load(buffer, at, mask=mask)
            return Complex(real, self.build.load(buffer, at + 1, mask=mask))
        if self._is_contiguous(index):
            start = self._line_start(index)
            mask = _both(self.mask, inside)
            if mask is not None:
                mask = self.build.splat(mask, self.lanes)
            return self.build.load(buffer, start, lanes=self.lanes, mask=mask)
        at, mask = self._masked(self.index(index), inside)
        return self.build.load(buffer, at, mask=mask)

    def _masked(self, at: Value, inside: Value | None) -> tuple[Value, Value | None]:
        """A position and the mask of a load there; guards along the lanes make a line of it."""
        mask = _both(self._line_mask(at), inside)
        lanes = max(at.lanes, 1 if mask is None else mask.lanes)
        at = self.build.splat(at, lanes)
        return at, None if mask is None else self.build.splat(mask, lanes)

    def _guards(self, guards: Sequence[Any]) -> Value | None:
        """Whether all guards hold here; None where there are none."""
        total = None
        for index, low, high in guards:
            total = _both(total, self._between(index, low, high))
        return total

    def _between(self, index: Index, low: int, high: int) -> Value:
        """low <= index < high, as far as the index's range leaves it open."""
        value, name, total = self.index(index), self._number(index), None
        least, most = index.range
        if least < low:
            bound = self.arguments.scalar((name, "from", low), low)
            total = _both(total, value >= bound)
        if most >= high:
            bound = self.arguments.scalar((name, "below", high), high)
            total = _both(total, value < bound)
        assert total is not None, "an index that is always inside needs no test"
        return total

    def write(self, results: Sequence[Result], streaming: bool = False) -> None:
        """Compute elements of results, then write them: an operand may share their memory."""
        values = self.values([result.node for result in results])
        for result, value in zip(results, values, strict=True):
            self.store(result.var, result.position, value, streaming)

    def store(self, var: Var, index: Index, value: Any, streaming: bool = False) -> None:
        """Write an element, or a line of elements, of a result."""
        buffer = self.arguments.buffer(var, "out")
        if isinstance(value, Complex):
            at = self.index(index) * 2
            mask = self._line_mask(at)
            self.build.store(buffer, at, value.real, mask=mask)
            self.build.store(buffer, at + 1, value.imag, mask=mask)
            return
        if self._is_contiguous(index):
            start = self._line_start(index)
            line = self.build.splat(value, self.lanes)
            self.build.store(buffer, start, line, mask=self.mask, streaming=streaming)
            return
        at = self.index(index)
        self.build.store(buffer, at, value, mask=self._line_mask(at))

    def _line_mask(self, at: Value) -> Value | None:
        return self.mask if at.lanes > 1 else None

    # indices

    def _is_contiguous(self, index: Index) -> bool:
        """Whether the lanes are neighbours in memory."""
        if self.lane is None or self.lanes == 1 or self.lane.stride(index) != 1:
            return False
        return not any(
            _symbol_dims(symbol) & self.lane_mask
            for symbol in index.symbols
            if not isinstance(symbol, Dim)
        )

    def _line_start(self, index: Index) -> Value:
        """Where a line of neighbours begins."""
        unit = self.lanes if self.aligned and self._is_aligned(index) else 1
        base = self._base(index, self.lane_mask, unit)
        return base * unit + self.at[id(self.lane)]

    def _is_aligned(self, index: Index) -> bool:
        """Whether lines begin at multiples of the lanes in memory."""
        assert self.lane is not None
        others = [
            coefficient
            for symbol, coefficient in index.terms
            if not (isinstance(symbol, Dim) and symbol.number in self.lane.dims)
        ]
        return all(number % self.lanes == 0 for number in (index.const, *others))

    def index(self, index: Index) -> Value:
        """An index as a scalar, or as a line where it varies along the lanes."""
        if not index_dims(index) & self.lane_mask:
            return self._base(index, 0)
        value = self._base(index, self.lane_mask)
        if self.lane is not None and (stride := self.lane.stride(index)):
            line = self.at[id(self.lane)] + self.build.lane(self.lanes)
            key = (self._number(index), "lane")
            value = value + (line if stride == 1 else line * self.arguments.scalar(key, stride))
        for symbol, coefficient in index.terms:
            if not isinstance(symbol, Dim) and _symbol_dims(symbol) & self.lane_mask:
                value = value + self._scaled(index, symbol, coefficient)
        return value

    def _base(self, index: Index, inside: int, unit: int = 1) -> Value:
        """The part of an index that does not vary along the axes in `inside`, in units of so many
        elements."""
        key = ("base", index, inside, unit)
        for known in reversed(self._memo):
            if key in known:
                return known[key]
        value = self._memo[-1][key] = self._base_value(index, inside, unit)
        return value

    def _base_value(self, index: Index, inside: int, unit: int) -> Value:
        name = self._number(index)
        total = self.build.constant(0, "index")
        if index.const:
            total = self.arguments.scalar((name, "const", unit), index.const // unit)
        for axis in self.axes:
            if axis.mask & inside or id(axis) not in self.at:
                continue
            if stride := axis.stride(index):
                place = self.at[id(axis)]
                total = total + place * self.arguments.scalar(
                    (name, axis.dims, unit), stride // unit
                )
        for symbol, coefficient in index.terms:
            if not isinstance(symbol, Dim) and not _symbol_dims(symbol) & inside:
                total = total + self._scaled(index, symbol, coefficient // unit, unit)
        return total

    def _scaled(self, index: Index, symbol: Any, coefficient: int, unit: int = 1) -> Value:
        value = self._symbol(symbol)
        if coefficient == 1:
            return value
        key = (self._number(index), "symbol", index.symbols.index(symbol), unit)
        return value * self.arguments.scalar(key, coefficient)

    def _symbol(self, symbol: Any) -> Value:
        if isinstance(symbol, Dynamic):
            value: Value = self.value(symbol.node)  # an integer, never complex
            if symbol.node.dtype in ("u64", "u32"):  # beyond every extent once the sign is lost
                most = self.build.constant(2**31 - 1, symbol.node.dtype)
                value = self.build.op("min", value, most)
            return self._limited(value.cast("index"), symbol, symbol.low, symbol.high)
        inner = self.index(symbol.index)
        if isinstance(symbol, Clamped):
            return self._limited(inner, symbol, symbol.low, symbol.high)
        return self._divided(inner, symbol)

    def _limited(self, value: Value, symbol: Any, low: int, high: int) -> Value:
        least = self.arguments.scalar((self._ordinal(symbol), "least"), low)
        most = self.arguments.scalar((self._ordinal(symbol), "most"), high)
        return self.build.op("min", self.build.op("max", value, least), most)

    def _divided(self, value: Value, symbol: Any) -> Value:
        divisor = self.arguments.scalar((self._ordinal(symbol), "divisor"), symbol.divisor)
        if symbol.index.range[0] < 0:  # floor division of a negative index: shift it up first
            shift = -(symbol.index.range[0] // symbol.divisor)
            lift = self.arguments.scalar((self._ordinal(symbol), "lift"), shift * symbol.divisor)
            back = self.arguments.scalar((self._ordinal(symbol), "back"), shift)
            value = value + lift
            if isinstance(symbol, Quotient):
                return self.quotient(value, divisor) - back
        divide = self.quotient if isinstance(symbol, Quotient) else self.remainder
        return divide(value, divisor)

    def _ordinal(self, symbol: Any) -> Any:
        return ("symbol", self._numbers.setdefault(symbol, len(self._numbers)))

    def _number(self, index: Index) -> int:
        """A name for an index that depends on its order of appearance only."""
        return self._numbers.setdefault(index, len(self._numbers))


def _alike(build: Builder, args: Sequence[Any]) -> list[Any]:
    """Operands of one number of lanes: what does not vary along them is repeated."""
    lanes = max(_lanes(arg) for arg in args)
    return [_repeated(build, arg, lanes) for arg in args]


def _lanes(value: Any) -> int:
    if isinstance(value, Complex):
        return max(value.real.lanes, value.imag.lanes)
    return value.lanes


def _repeated(build: Builder, value: Any, lanes: int) -> Any:
    if isinstance(value, Complex):
        return Complex(build.splat(value.real, lanes), build.splat(value.imag, lanes))
    return build.splat(value, lanes)


def _times_reciprocal(x: Value, y: Value) -> Value:
    """x / y of bf16, exactly: a quotient of significands of 8 bits is 2^-17 or more of itself away
    from where rounding turns, and this product is 2^-23 off at most. A subnormal y, whose inverse
    could overflow, is scaled."""
    build, divisor = x.build, y.cast("f32")
    small = build.op("abs", divisor) < SMALLEST_NORMAL
    scale = build.select(small, build.constant(2.0**24, "f32"), 1.0)
    return (x.cast("f32") * scale * (1.0 / (divisor * scale))).cast("bf16")


@contextlib.contextmanager
def where(build: Builder, *tests: Value | None) -> Iterator[None]:
    """Statements of the `with` block run where all tests hold; None always does."""
    total = None
    for test in tests:
        total = _both(total, test)
    with contextlib.nullcontext() if total is None else build.when(total):
        yield


def _both(a: Value | None, b: Value | None) -> Value | None:
    return b if a is None else a if b is None else a & b


def _symbol_dims(symbol: Any) -> int:
    if isinstance(symbol, Dim):
        return 1 << symbol.number
    if isinstance(symbol, Dynamic):
        return symbol.node.dims
    assert isinstance(symbol, NESTED)
    return index_dims(symbol.index)


def constant(build: Builder, value: Any, short: str) -> Any:
    """A NumPy scalar as a constant of a dtype."""
    if short in PARTS:
        part = PARTS[short]
        real, imag = float(np.real(value)), float(np.imag(value))
        return Complex(build.constant(real, part), build.constant(imag, part))
    if short in ("bool",):
        return build.constant(bool(value), short)
    number = int(value) if np.dtype(dtypes.BY_SHORT[short]).kind in "iu" else float(value)
    return build.constant(number, short)


def cast(build: Builder, value: Any, short: str) -> Any:
    """A value in another dtype, complex ones included."""
    if short in PARTS:
        part = PARTS[short]
        if isinstance(value, Complex):
            return Complex(value.real.cast(part), value.imag.cast(part))
        real = value.cast(part)
        return Complex(real, build.splat(build.constant(0.0, part), real.lanes))
    if isinstance(value, Complex):
        value = value.real
    return value.cast(short)
