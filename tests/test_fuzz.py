"""Random small programs: compiled as one, run operation by operation, and computed by NumPy.

A program is a list of steps over earlier values. Integer programs are exact, wrap-around
included, so every difference is a fault; float programs keep their values within about two, so
that rounding cannot grow, and are differentiated too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from xcube import config, eager
from xcube.primitives import contract, cumulative, gather, index, reduce, sort, view
from xcube.primitives import elementwise as ew
from xcube.primitives import select as choose
from xcube.primitives import shape as sh
from xcube.primitives import transcendental as tr
from xcube.primitives.convert import convert_element_type
from xcube.primitives.kinds import add
from xcube.transforms.grad import grad
from xcube.transforms.jit import jit

Shape = tuple[int, ...]
Draw = Callable[[st.SearchStrategy[Any]], Any]

SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
LARGEST = 3000  # elements of a value


@dataclass(frozen=True)
class Step:
    """One operation: `label` to read it, the operands' numbers, and its two meanings."""

    label: str
    operands: tuple[int, ...]
    compiled: Callable[..., Any]
    reference: Callable[..., Any]


@dataclass
class Program:
    """Inputs, steps, and which values are results."""

    dtype: np.dtype
    inputs: list[np.ndarray]
    steps: list[Step] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        names = [f"v{n}" for n in range(len(self.shapes))]
        lines = [f"{names[n]} = input {x.dtype}{list(x.shape)}" for n, x in enumerate(self.inputs)]
        for number, step in enumerate(self.steps, len(self.inputs)):
            operands = ", ".join(names[k] for k in step.operands)
            lines.append(f"{names[number]} = {step.label}({operands})  {self.shapes[number]}")
        return "\n".join([*lines, f"return {', '.join(names[n] for n in self.outputs)}"])

    def run(self, *inputs: Any) -> list[Any]:
        """The results, by the operations of this library."""
        values = list(inputs)
        for step in self.steps:
            values.append(step.compiled(*[values[k] for k in step.operands]))
        return [values[n] for n in self.outputs]

    def expected(self) -> list[np.ndarray]:
        """The results by NumPy: integers exactly, floats in float64."""
        wide = np.float64 if self.dtype.kind == "f" else self.dtype
        values = [x.astype(wide) for x in self.inputs]
        for step in self.steps:
            value = np.asarray(step.reference(*[values[k] for k in step.operands]))
            values.append(value.astype(wide))
        return [values[n] for n in self.outputs]


class Maker:
    """Adds random steps to a program."""

    def __init__(self, draw: Draw, dtype: Any) -> None:
        self.draw = draw
        self.dtype = np.dtype(dtype)
        self.exact = self.dtype.kind == "i"
        seed = draw(st.integers(0, 2**16))
        self.rng = np.random.default_rng(seed)
        shapes = [self.shape() for _ in range(draw(st.integers(1, 3)))]
        self.program = Program(self.dtype, [self.array(shape) for shape in shapes])
        self.program.shapes += shapes

    # drawing

    def among(self, values: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(values)))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def shape(self) -> Shape:
        sizes = tuple(self.among(SIZES) for _ in range(self.number(0, 4)))
        while math.prod(sizes) > LARGEST:
            sizes = sizes[:-1]
        return sizes

    def array(self, shape: Shape) -> np.ndarray:
        if self.exact:
            return self.rng.integers(-9, 10, shape).astype(self.dtype)
        return self.rng.uniform(-2, 2, shape).astype(self.dtype)

    def value(self, fits: Callable[[Shape], bool] = lambda shape: True) -> int | None:
        """A value whose shape fits, late ones more often."""
        numbers = [n for n, shape in enumerate(self.program.shapes) if fits(shape)]
        if not numbers:
            return None
        return numbers[max(self.number(0, len(numbers) - 1), self.number(0, len(numbers) - 1))]

    def step(
        self,
        label: str,
        operands: Sequence[int],
        compiled: Callable[..., Any],
        reference: Callable[..., Any],
    ) -> int:
        shapes = self.program.shapes
        dummies = [np.zeros(shapes[k], self.dtype) for k in operands]
        with np.errstate(all="ignore"):
            shape = np.asarray(reference(*dummies)).shape
        self.program.steps.append(Step(label, tuple(operands), compiled, reference))
        shapes.append(shape)
        return len(shapes) - 1

    def grow(self, steps: int) -> Program:
        """The program after so many more steps."""
        for _ in range(steps):
            self.among(STEPS)(self)
        count = len(self.program.shapes)
        last = {count - 1, *(self.number(0, count - 1) for _ in range(self.number(0, 2)))}
        self.program.outputs = sorted(last)
        return self.program

    def like(self, shape: Shape) -> int:
        """A value of this shape: one that is there, or one broadcast from its last axes or from a
        sum."""
        source = self.value(lambda s: s == shape)
        if source is not None and self.number(0, 3):
            return source
        k = self.number(0, len(shape))
        source = self.value(lambda s: s == shape[k:])
        if source is not None:
            return self.broadcast(source, shape, tuple(range(k, len(shape))))
        source = self.value()
        assert source is not None
        axes = tuple(range(len(self.program.shapes[source])))
        return self.broadcast(self.total(source, axes), shape, ())

    def broadcast(self, source: int, shape: Shape, dims: Shape) -> int:
        if self.program.shapes[source] == shape:
            return source

        def reference(x: Any) -> Any:
            sizes = [1] * len(shape)
            for size, d in zip(x.shape, dims, strict=True):
                sizes[d] = size
            return np.broadcast_to(x.reshape(sizes), shape)

        return self.step(
            f"broadcast_in_dim[{shape}, {dims}]",
            [source],
            lambda x: sh.broadcast_in_dim(x, shape, dims),
            reference,
        )

    def total(self, source: int, axes: Shape) -> int:
        """The sum over axes; in float programs the mean."""
        count = max(1, math.prod(self.program.shapes[source][a] for a in axes))
        if self.exact:
            return self.step(
                f"reduce_sum[{axes}]",
                [source],
                lambda x: sh.reduce_sum(x, axes),
                lambda x: x.sum(axes, dtype=x.dtype),
            )
        return self.step(
            f"mean[{axes}]",
            [source],
            lambda x: ew.mul(sh.reduce_sum(x, axes), 1 / count),
            lambda x: x.sum(axes) / count,
        )

    def axes(self, shape: Shape, least: int = 0) -> Shape:
        every = range(len(shape))
        chosen = self.draw(
            st.sets(st.sampled_from(list(every)), min_size=least) if shape else st.just(set())
        )
        return tuple(sorted(chosen))


# steps ----------------------------------------------------------------------------------------

EXACT_UNARY: dict[str, tuple[Any, Any]] = {
    "neg": (ew.neg, np.negative),
    "abs": (ew.abs, np.abs),
    "sign": (ew.sign, np.sign),
    "square": (ew.square, np.square),
    "cube": (lambda x: ew.integer_pow(x, 3), lambda x: x * x * x),
    "to bool and back": (
        lambda x: convert_element_type(choose.gt(x, 0), np.int32),
        lambda x: (x > 0).astype(np.int32),
    ),
    "through int8": (
        lambda x: convert_element_type(convert_element_type(x, np.int8), np.int32),
        lambda x: x.astype(np.int8).astype(np.int32),
    ),
}
FLOAT_UNARY: dict[str, tuple[Any, Any]] = {
    "neg": (ew.neg, np.negative),
    "sin": (tr.sin, np.sin),
    "cos": (tr.cos, np.cos),
    "tanh": (tr.tanh, np.tanh),
    "logistic": (tr.logistic, lambda x: 1 / (1 + np.exp(-x))),
    "exp/4": (lambda x: ew.mul(tr.exp(x), 0.25), lambda x: np.exp(x) * 0.25),
    "square/2": (lambda x: ew.mul(ew.square(x), 0.5), lambda x: x * x * 0.5),
    "root": (lambda x: ew.sqrt(add(ew.square(x), 1.0)), lambda x: np.sqrt(x * x + 1)),
    "scaled": (lambda x: ew.mul(x, 1.0), lambda x: x),
}
EXACT_BINARY: dict[str, tuple[Any, Any]] = {
    "add": (add, np.add),
    "sub": (ew.sub, np.subtract),
    "mul": (ew.mul, np.multiply),
    "max": (ew.max, np.maximum),
    "min": (ew.min, np.minimum),
    "select": (
        lambda x, y: choose.select(choose.lt(x, y), x, ew.neg(y)),
        lambda x, y: np.where(x < y, x, -y),
    ),
}
FLOAT_BINARY: dict[str, tuple[Any, Any]] = {
    "add/2": (lambda x, y: ew.mul(add(x, y), 0.5), lambda x, y: (x + y) / 2),
    "sub/2": (lambda x, y: ew.mul(ew.sub(x, y), 0.5), lambda x, y: (x - y) / 2),
    "mul/2": (lambda x, y: ew.mul(ew.mul(x, y), 0.5), lambda x, y: x * y / 2),
    "max": (ew.max, np.maximum),
    "min": (ew.min, np.minimum),
    "div": (
        lambda x, y: ew.div(x, add(ew.square(y), 1.0)),
        lambda x, y: x / (y * y + 1),
    ),
}


def _unary(m: Maker) -> None:
    table = EXACT_UNARY if m.exact else FLOAT_UNARY
    name = m.among(table)
    m.step(name, [m.value()], *table[name])


def _binary(m: Maker) -> None:
    table = EXACT_BINARY if m.exact else FLOAT_BINARY
    name, x = m.among(table), m.value()
    y = m.like(m.program.shapes[x])
    operands = [x, y] if m.number(0, 1) else [y, x]
    m.step(name, operands, *table[name])


def _with_number(m: Maker) -> None:
    number = m.number(-3, 3)
    if m.exact:
        m.step(f"add {number}", [m.value()], lambda x: add(x, number), lambda x: x + number)
    else:
        share = number / 3
        m.step(f"mul {share}", [m.value()], lambda x: ew.mul(x, share), lambda x: x * share)


def _broadcast(m: Maker) -> None:
    source = m.value(lambda s: len(s) < 4 and math.prod(s) <= LARGEST // 4)
    if source is None:
        return
    old = m.program.shapes[source]
    position, size = m.number(0, len(old)), m.among((0, 1, 2, 3, 4))
    shape = (*old[:position], size, *old[position:])
    m.broadcast(source, shape, tuple(d for d in range(len(shape)) if d != position))


def _stretch(m: Maker) -> None:
    source = m.value(lambda s: 1 in s and math.prod(s) <= LARGEST // 4)
    if source is None:
        return
    old = m.program.shapes[source]
    axis, size = old.index(1), m.among((0, 2, 3, 4))
    shape = (*old[:axis], size, *old[axis + 1 :])
    m.step(
        f"stretch[{shape}]",
        [source],
        lambda x: sh.broadcast_in_dim(x, shape, tuple(range(len(shape)))),
        lambda x: np.broadcast_to(x, shape),
    )


def _transpose(m: Maker) -> None:
    source = m.value(lambda s: len(s) > 1)
    if source is None:
        return
    order = tuple(m.draw(st.permutations(range(len(m.program.shapes[source])))))
    m.step(
        f"transpose[{order}]",
        [source],
        lambda x: sh.transpose(x, order),
        lambda x: x.transpose(order),
    )


def _reshape(m: Maker) -> None:
    source = m.value()
    size = math.prod(m.program.shapes[source])
    shape: list[int] = []
    rest = size
    for _ in range(m.number(0, 3)):
        factors = [d for d in range(1, max(rest, 1) + 1) if rest % d == 0][:12]
        shape.append(m.among(factors))
        rest = rest // shape[-1]
    shape.insert(m.number(0, len(shape)), rest)
    sizes = tuple(shape)
    m.step(
        f"reshape[{sizes}]",
        [source],
        lambda x: sh.reshape(x, sizes),
        lambda x: x.reshape(sizes),
    )


def _slice(m: Maker) -> None:
    source = m.value()
    parts = []
    for size in m.program.shapes[source]:
        start = m.number(0, size)
        parts.append((start, m.number(start, size), m.number(1, 3)))
    starts, stops, steps = (tuple(p[k] for p in parts) for k in range(3))
    slices = tuple(slice(*p) for p in parts)
    m.step(
        f"slice[{parts}]",
        [source],
        lambda x: view.slice(x, starts, stops, steps),
        lambda x: x[slices],
    )


def _pad(m: Maker) -> None:
    source = m.value(lambda s: math.prod(s) <= LARGEST // 8)
    if source is None:
        return
    rows = [
        (m.number(-2, 2), m.number(-2, 2), m.number(0, 2) if m.number(0, 3) == 0 else 0)
        for _ in m.program.shapes[source]
    ]
    old = m.program.shapes[source]
    if any(
        low + high + n + max(0, n - 1) * i < 0 for n, (low, high, i) in zip(old, rows, strict=True)
    ):
        return
    fill = m.number(-2, 2)
    m.step(
        f"pad[{rows}, {fill}]",
        [source],
        lambda x: view.pad(x, fill, tuple(rows)),
        lambda x: _padded(x, rows, fill),
    )


def _padded(x: np.ndarray, rows: Sequence[tuple[int, int, int]], fill: int) -> np.ndarray:
    """pad along one axis after the other, by writing the kept elements one by one."""
    for axis, (low, high, interior) in enumerate(rows):
        count = x.shape[axis]
        size = low + high + count + max(0, count - 1) * interior
        out = np.full((*x.shape[:axis], size, *x.shape[axis + 1 :]), fill, x.dtype)
        for k in range(count):
            at = low + k * (interior + 1)
            if 0 <= at < size:
                out[(slice(None),) * axis + (at,)] = x[(slice(None),) * axis + (k,)]
        x = out
    return x


def _concatenate(m: Maker) -> None:
    first = m.value(lambda s: len(s) > 0 and math.prod(s) <= LARGEST // 3)
    if first is None:
        return
    shape = m.program.shapes[first]
    axis = m.number(0, len(shape) - 1)

    def fits(s: Shape) -> bool:
        same = len(s) == len(shape) and all(
            a == b for d, (a, b) in enumerate(zip(s, shape, strict=True)) if d != axis
        )
        return same and math.prod(s) <= LARGEST // 3

    parts = [first, *(m.value(fits) for _ in range(m.number(1, 2)))]
    m.step(
        f"concatenate[{axis}]",
        parts,
        lambda *xs: view.concatenate(xs, axis),
        lambda *xs: np.concatenate(xs, axis),
    )


def _rev(m: Maker) -> None:
    source = m.value()
    axes = m.axes(m.program.shapes[source])
    m.step(f"rev[{axes}]", [source], lambda x: view.rev(x, axes), lambda x: np.flip(x, axes))


def _iota(m: Maker) -> None:
    source = m.value(lambda s: len(s) > 0)
    if source is None:
        return
    shape = m.program.shapes[source]
    axis = m.number(0, len(shape) - 1)
    sizes = [1] * len(shape)
    sizes[axis] = shape[axis]
    step = 1 if m.exact else 1 / max(1, shape[axis])

    def compiled(x: Any) -> Any:
        return add(x, ew.mul(view.iota(x.dtype, shape, axis), step))

    if m.exact:
        m.step(
            f"add iota[{axis}]",
            [source],
            compiled,
            lambda x: x + np.arange(shape[axis], dtype=x.dtype).reshape(sizes),
        )
    else:
        m.step(
            f"where even[{axis}]",
            [source],
            lambda x: choose.select(
                choose.lt(view.iota(np.int32, shape, axis), shape[axis] // 2), x, ew.neg(x)
            ),
            lambda x: np.where(np.arange(shape[axis]).reshape(sizes) < shape[axis] // 2, x, -x),
        )


def _sum(m: Maker) -> None:
    source = m.value()
    m.total(source, m.axes(m.program.shapes[source]))


def _extremum(m: Maker) -> None:
    source = m.value(lambda s: math.prod(s) > 0)
    if source is None:
        return
    axes = m.axes(m.program.shapes[source])
    name = m.among(("max", "min"))
    function = {"max": reduce.reduce_max, "min": reduce.reduce_min}[name]
    oracle = {"max": np.max, "min": np.min}[name]
    m.step(
        f"reduce_{name}[{axes}]",
        [source],
        lambda x: function(x, axes),
        lambda x: oracle(x, axis=axes) if axes else x,
    )


def _normalise(m: Maker) -> None:
    """x minus its mean or maximum over some axes: the shape of softmax and layer norm."""
    source = m.value(lambda s: len(s) > 0 and math.prod(s) > 0)
    if source is None:
        return
    shape = m.program.shapes[source]
    axes = m.axes(shape, 1)
    kept = tuple(d for d in range(len(shape)) if d not in axes)
    if m.number(0, 1):
        folded = m.total(source, axes)
    else:
        folded = m.step(
            f"reduce_max[{axes}]",
            [source],
            lambda x: reduce.reduce_max(x, axes),
            lambda x: np.max(x, axis=axes),
        )
    spread = m.broadcast(folded, shape, kept)
    table = EXACT_BINARY if m.exact else FLOAT_BINARY
    name = "sub" if m.exact else "sub/2"
    m.step(name, [source, spread], *table[name])


def _argmax(m: Maker) -> None:
    source = m.value(lambda s: len(s) > 0 and math.prod(s) > 0)
    if source is None or not m.exact:
        return
    axis = m.number(0, len(m.program.shapes[source]) - 1)
    m.step(
        f"argmax[{axis}]",
        [source],
        lambda x: reduce.argmax(x, (axis,)),
        lambda x: np.argmax(x, axis).astype(np.int32),
    )


def _dot(m: Maker) -> None:
    x = m.value(lambda s: 0 < len(s) < 4)
    if x is None:
        return
    shape = m.program.shapes[x]
    axis = m.number(0, len(shape) - 1)
    y = m.value(lambda s: 0 < len(s) < 4 and shape[axis] in s)
    assert y is not None
    other = m.program.shapes[y].index(shape[axis])
    size = math.prod(shape) * math.prod(m.program.shapes[y]) // max(1, shape[axis]) ** 2
    if size > LARGEST or len(shape) + len(m.program.shapes[y]) > 6:
        return
    share = 1 if m.exact else 1 / (2 * max(1, shape[axis]))
    numbers = (((axis,), (other,)), ((), ()))
    m.step(
        f"dot[{axis}, {other}]",
        [x, y],
        lambda a, b: ew.mul(contract.dot_general(a, b, numbers), share),
        lambda a, b: np.tensordot(a, b, (axis, other)) * share,
    )


def _batched_dot(m: Maker) -> None:
    x = m.value(lambda s: len(s) == 3)
    if x is None:
        return
    batch, rows, depth = m.program.shapes[x]
    y = m.value(lambda s: len(s) == 3 and (s[0], s[2]) == (batch, depth))
    assert y is not None
    if batch * rows * m.program.shapes[y][1] > LARGEST:
        return
    share = 1 if m.exact else 1 / (2 * max(1, depth))
    numbers = (((2,), (2,)), ((0,), (0,)))
    m.step(
        "batched dot",
        [x, y],
        lambda a, b: ew.mul(contract.dot_general(a, b, numbers), share),
        lambda a, b: np.einsum("bik,bjk->bij", a, b) * share,
    )


def _start(start: int, size: int, length: int) -> int:
    """Where a dynamic slice starts: from the end if negative, then moved inside."""
    start += size if start < 0 else 0
    return min(max(start, 0), size - length)


def _dynamic_slice(m: Maker) -> None:
    source = m.value(lambda s: len(s) > 0)
    if source is None:
        return
    shape = m.program.shapes[source]
    sizes = tuple(m.number(0, size) for size in shape)
    starts = [m.number(-2, size + 2) for size in shape]
    at = [_start(s, n, k) for s, n, k in zip(starts, shape, sizes, strict=True)]
    slices = tuple(slice(s, s + k) for s, k in zip(at, sizes, strict=True))
    if m.exact and (driver := m.value(lambda s: s == ())) is not None:

        def reference(x: Any, d: Any) -> Any:
            first = _start(int(d), shape[0], sizes[0])
            return x[(slice(first, first + sizes[0]), *slices[1:])]

        m.step(
            f"dynamic_slice[{starts[1:]}, {sizes}]",
            [source, driver],
            lambda x, d: index.dynamic_slice(x, [d, *starts[1:]], sizes),
            reference,
        )
        return
    m.step(
        f"dynamic_slice[{starts}, {sizes}]",
        [source],
        lambda x: index.dynamic_slice(x, starts, sizes),
        lambda x: x[slices],
    )


def _dynamic_update(m: Maker) -> None:
    source = m.value(lambda s: len(s) > 0)
    if source is None:
        return
    shape = m.program.shapes[source]
    update = m.value(
        lambda s: len(s) == len(shape) and all(a <= b for a, b in zip(s, shape, strict=True))
    )
    assert update is not None
    sizes = m.program.shapes[update]
    starts = [m.number(-2, size + 2) for size in shape]
    at = [_start(s, n, k) for s, n, k in zip(starts, shape, sizes, strict=True)]
    slices = tuple(slice(s, s + k) for s, k in zip(at, sizes, strict=True))

    def reference(x: Any, u: Any) -> Any:
        x = x.copy()
        x[slices] = u
        return x

    m.step(
        f"dynamic_update_slice[{starts}]",
        [source, update],
        lambda x, u: index.dynamic_update_slice(x, u, starts),
        reference,
    )


def _take(m: Maker) -> None:
    """Rows by an array of indices: the values of the program itself where they are integers."""
    source = m.value(lambda s: len(s) > 0 and s[0] > 0)
    if source is None:
        return
    shape = m.program.shapes[source]
    row = math.prod(shape[1:])
    driver = m.value(lambda s: m.exact and len(s) == 1 and s[0] * row <= LARGEST)
    numbers = gather.GatherDimensionNumbers(
        offset_dims=tuple(range(1, len(shape))), collapsed_slice_dims=(0,), start_index_map=(0,)
    )

    def compiled(x: Any, indices: Any) -> Any:
        column = sh.reshape(indices, (*indices.shape, 1))
        return gather.gather(
            x, column, numbers, (1, *shape[1:]), mode=gather.GatherScatterMode.CLIP
        )

    if driver is not None:
        m.step(
            "take",
            [source, driver],
            compiled,
            lambda x, i: x[np.clip(i.astype(np.int64), 0, shape[0] - 1)],
        )
        return
    fixed = m.rng.integers(0, shape[0], m.number(0, 4)).astype(np.int32)
    m.step(
        f"take[{fixed.tolist()}]",
        [source],
        lambda x: compiled(x, eager.convert(fixed)),
        lambda x: x[fixed],
    )


def _cumsum(m: Maker) -> None:
    source = m.value(lambda s: len(s) > 0)
    if source is None:
        return
    shape = m.program.shapes[source]
    axis, reverse = m.number(0, len(shape) - 1), bool(m.number(0, 1))
    share = 1 if m.exact else 1 / max(1, shape[axis])

    def reference(x: Any) -> Any:
        x = np.flip(x, axis) if reverse else x
        y = np.cumsum(x, axis, dtype=x.dtype)
        return (np.flip(y, axis) if reverse else y) * share

    m.step(
        f"cumsum[{axis}, {reverse}]",
        [source],
        lambda x: ew.mul(cumulative.cumsum(x, axis, reverse), share),
        reference,
    )


def _cummax(m: Maker) -> None:
    source = m.value(lambda s: len(s) > 0)
    if source is None:
        return
    axis = m.number(0, len(m.program.shapes[source]) - 1)
    m.step(
        f"cummax[{axis}]",
        [source],
        lambda x: cumulative.cummax(x, axis),
        lambda x: np.maximum.accumulate(x, axis),
    )


def _sort(m: Maker) -> None:
    source = m.value(lambda s: len(s) > 0)
    if source is None:
        return
    axis = m.number(0, len(m.program.shapes[source]) - 1)
    m.step(
        f"sort[{axis}]",
        [source],
        lambda x: sort.sort(x, dimension=axis),
        lambda x: np.sort(x, axis),
    )


STEPS: tuple[Callable[[Maker], None], ...] = (
    _unary,
    _unary,
    _unary,
    _binary,
    _binary,
    _binary,
    _binary,
    _with_number,
    _broadcast,
    _stretch,
    _transpose,
    _transpose,
    _reshape,
    _reshape,
    _slice,
    _pad,
    _concatenate,
    _rev,
    _iota,
    _sum,
    _sum,
    _extremum,
    _normalise,
    _normalise,
    _argmax,
    _dot,
    _batched_dot,
    _dynamic_slice,
    _dynamic_update,
    _take,
    _cumsum,
    _cummax,
    _sort,
)


@st.composite
def programs(draw: Draw, dtype: Any, least: int = 5, most: int = 40) -> Program:
    """Random programs of one dtype."""
    return Maker(draw, dtype).grow(draw(st.integers(least, most)))


# laws -----------------------------------------------------------------------------------------


def _outputs(program: Program, function: Callable[..., Any]) -> list[np.ndarray]:
    with config.using(check=True):
        return [np.asarray(y) for y in function(*map(eager.convert, program.inputs))]


def _assert_exact(program: Program) -> None:
    compiled = _outputs(program, jit(program.run))
    single = _outputs(program, program.run)
    every = tuple(range(len(program.inputs)))
    donated = _outputs(program, jit(program.run, donate_argnums=every))
    with np.errstate(all="ignore"):
        expected = program.expected()
    for position, (number, want) in enumerate(zip(program.outputs, expected, strict=True)):
        np.testing.assert_array_equal(single[position], want, f"op by op, v{number}")
        np.testing.assert_array_equal(compiled[position], want, f"compiled, v{number}")
        np.testing.assert_array_equal(donated[position], want, f"in place, v{number}")


def _assert_close(program: Program) -> None:
    compiled = _outputs(program, jit(program.run))
    single = _outputs(program, program.run)
    for number, want, one, whole in zip(
        program.outputs, program.expected(), single, compiled, strict=True
    ):
        np.testing.assert_allclose(one, want, 1e-4, 1e-4, err_msg=f"op by op, v{number}")
        np.testing.assert_allclose(whole, want, 1e-4, 1e-4, err_msg=f"compiled, v{number}")


def _assert_same_gradient(program: Program) -> None:
    def total(*inputs: Any) -> Any:
        sums = [sh.reduce_sum(tr.sin(y), tuple(range(y.ndim))) for y in program.run(*inputs)]
        result = sums[0]
        for part in sums[1:]:
            result = add(result, part)
        return result

    gradient = grad(total, tuple(range(len(program.inputs))))
    compiled, single = _outputs(program, jit(gradient)), _outputs(program, gradient)
    for number, (one, whole) in enumerate(zip(single, compiled, strict=True)):
        scale = max(1.0, float(np.max(np.abs(one), initial=0)))
        assert np.isfinite(one).all()
        np.testing.assert_allclose(whole, one, 1e-3, 1e-3 * scale, err_msg=f"input {number}")


def law(examples: int) -> Callable[[Any], Any]:
    """The settings of a fuzz test; the same programs in every run."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        print_blob=False,
    )


@law(60)
@given(programs(np.int32))
def test_integer_programs_are_exact(program: Program) -> None:
    _assert_exact(program)


@law(60)
@given(programs(np.float32))
def test_float_programs_are_close_to_numpy(program: Program) -> None:
    _assert_close(program)


@law(25)
@given(programs(np.float32, 3, 20))
def test_gradients_of_programs_are_the_same_compiled(program: Program) -> None:
    _assert_same_gradient(program)


@pytest.mark.slow
@law(600)
@given(programs(np.int32))
def test_many_integer_programs(program: Program) -> None:
    _assert_exact(program)


@pytest.mark.slow
@law(400)
@given(programs(np.float32))
def test_many_float_programs(program: Program) -> None:
    _assert_close(program)


@pytest.mark.slow
@law(200)
@given(programs(np.float32, 3, 30))
def test_many_gradients(program: Program) -> None:
    _assert_same_gradient(program)
