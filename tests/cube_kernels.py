"""Kernels made with the builder, each beside the same function of arrays: what derivatives of
kernels, and launches in programs, are tested with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import xcube.numpy as jnp
from xcube import lax
from xcube.cube.calls import Argument, Call
from xcube.cube.launches import Launch
from xcube.ir import Aval
from xcube.lowering.cube import ir, math
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Buffer, Kernel
from xcube.primitives.launch import launch

Dim = tuple[int, int, int]


@dataclass(frozen=True)
class Scalar:
    """Where a scalar of a kernel comes from."""

    kind: str
    name: str = ""
    axis: int = 0


@dataclass(frozen=True)
class Expansion:
    """A kernel with what its buffers and scalars stand for."""

    kernel: Kernel
    arrays: tuple[str, ...]
    written: tuple[str, ...]
    scalars: tuple[Scalar, ...]


class Body:
    """The builder of a kernel of buffers "a", "b", ..., and last "out"; scalars are lengths."""

    def __init__(self, name: str, dtypes: Sequence[str], access: str, dim: Dim) -> None:
        self.b = Builder(name, dim)
        self.b.keeps_calls = True
        self.b.source = f"{name}.py:1"
        self.scalars: list[Scalar] = []
        self.inputs = [self.b.buffer(dtype) for dtype in dtypes]
        self.out = self.b.buffer("f32", access)
        unit = self.b.place("unit_pos.x") + self.b.place("unit_pos.y") * dim[0]
        cube = self.b.place("cube_pos.x")
        self.at = cube if dim == (1, 1, 1) else cube * (dim[0] * dim[1]) + unit

    def apply(self, name: str, *args: Any) -> Value:
        return math.apply(self.b, name, *args)  # type: ignore[return-value]

    def load(self, buffer: Buffer, index: Any, lanes: int = 1) -> Value:
        return self.b.load(buffer, index, lanes)

    def length(self, name: str) -> Value:
        self.scalars.append(Scalar("length", name))
        return self.b.scalar()

    def zero(self) -> Value:
        return self.b.constant(0, "f32")


@dataclass(frozen=True)
class Case:
    """A kernel of some inputs (arrays, or integers by their upper bound), its number of cubes, its
    result's shape, and the same function of arrays. `begins`: the result begins as the last input.
    """

    name: str
    build: Callable[[Body], None]
    same: Any
    inputs: tuple[Any, ...]
    out: int
    cubes: int
    begins: bool = False
    disjoint: bool = False
    tolerance: float = 2e-5
    dim: Dim = (1, 1, 1)

    def __str__(self) -> str:
        return self.name

    def expand(self, call: Call, facts: Any) -> Expansion:
        dtypes = ["i32" if isinstance(x, tuple) else "f32" for x in self.inputs]
        given = dtypes[: len(dtypes) - self.begins]
        body = Body(self.name, given, "inout" if self.begins else "out", self.dim)
        self.build(body)
        names = (*"abcdef"[: len(given)], "out")
        return Expansion(body.b.finish(), names, ("out",), tuple(body.scalars))

    def arrays(self, seed: int = 0) -> list[Any]:
        random = np.random.default_rng(seed)
        return [
            random.integers(0, x[1], x[0], np.int32)
            if isinstance(x, tuple)
            else random.uniform(-1, 1, x).astype(np.float32)
            for x in self.inputs
        ]

    def handle(self, differentiable: bool = True) -> Launch:
        avals = [Aval(x.shape, x.dtype) for x in self.arrays()]
        read = avals[: len(avals) - self.begins]
        arguments = [Argument(n, aval, k) for k, (n, aval) in enumerate(zip("abcdef", read))]  # noqa: B905
        operand = len(read) if self.begins else None
        arguments.append(Argument("out", Aval((self.out,), np.float32), operand))
        call = Call(self, tuple(arguments), (self.cubes,), self.dim, ("out",))
        return Launch(replace(call, differentiable=differentiable, disjoint=self.disjoint))

    def run(self, *arrays: Any) -> Any:
        return launch(self.handle(), [jnp.asarray(x) for x in arrays])[0]

    def floats(self) -> tuple[int, ...]:
        return tuple([k for k, x in enumerate(self.inputs) if not isinstance(x, tuple)])


# the kernels ----------------------------------------------------------------------------------


def elementwise(k: Body) -> None:
    x, y = (k.load(buffer, k.at) for buffer in k.inputs)
    gelu = 0.5 * x * (1 + k.apply("erf", x * 0.7071))
    k.b.store(k.out, k.at, k.apply("tanh", gelu * y) / (1 + k.apply("exp", y)) - y)


def guarded(k: Body) -> None:
    with k.b.when(k.at < k.length("out")):
        x = k.load(k.inputs[0], k.at)
        k.b.store(k.out, k.at, k.b.op("abs", x) * k.b.select(x > 0, x, k.apply("sin", x)))


def stencil(k: Body) -> None:
    n = k.length("a")
    with k.b.when((k.at > 0) & (k.at < n - 1)):
        left, x, right = (k.load(k.inputs[0], k.at + d) for d in (-1, 0, 1))
        k.b.store(k.out, k.at, left * right + x * x)
    with k.b.otherwise():
        k.b.store(k.out, k.at, k.load(k.inputs[0], k.at) * 3)


def _stencil(x: Any) -> Any:
    return jnp.concatenate([x[:1] * 3, x[:-2] * x[2:] + x[1:-1] ** 2, x[-1:] * 3])


def dot(k: Body) -> None:
    n, total = k.length("b"), k.b.variable(k.zero())
    for j in k.b.range(0, n):
        total.set(total.get() + k.load(k.inputs[0], k.at * n + j) * k.load(k.inputs[1], j))
    k.b.store(k.out, k.at, k.apply("sin", total.get()))


def product(k: Body) -> None:
    n, total = k.length("b"), k.b.variable(k.b.constant(1, "f32"))
    for j in k.b.range(0, n):
        x = k.load(k.inputs[0], k.at * n + j) * k.load(k.inputs[1], j)
        total.set(total.get() * (1 + 0.01 * x))
    k.b.store(k.out, k.at, total.get())


def decay(k: Body) -> None:
    """Turns whose order matters, though their values are not needed."""
    n, total = k.length("b"), k.b.variable(k.zero())
    for j in k.b.range(0, n):
        total.set(total.get() * 0.5 + k.load(k.inputs[0], k.at) * k.load(k.inputs[1], j))
    k.b.store(k.out, k.at, total.get())


def _decay(x: Any, y: Any) -> Any:
    weights = jnp.asarray(0.5 ** np.arange(y.shape[0])[::-1].astype(np.float32))
    return x * jnp.sum(y * weights)


def rewritten(k: Body) -> None:
    """An element read twice, and one written over."""
    x = k.load(k.inputs[0], k.at)
    k.b.store(k.out, k.at, k.apply("exp", x))
    again = k.b.variable(k.zero())
    again.set(k.b.load(k.inputs[0], k.at + k.b.place("unit_pos.x")))
    k.b.store(k.out, k.at, x * again.get() * again.get())


def matmul(k: Body) -> None:
    size = k.b.constant(4, "index")
    row, column, total = k.at // size, k.at % size, k.b.variable(k.zero())
    for j in k.b.range(0, 5):
        x, y = k.load(k.inputs[0], row * 5 + j), k.load(k.inputs[1], j * 4 + column)
        total.set(k.b.fma(x, y, total.get()))
    k.b.store(k.out, row * size + column, total.get())


def branchy(k: Body) -> None:
    n, total = k.length("a"), k.b.variable(k.zero())
    for j in k.b.range(0, n):
        x = k.load(k.inputs[0], j)
        with k.b.when(x > 0.2):
            total.set(total.get() + x * x * k.load(k.inputs[1], k.at))
        with k.b.otherwise(), k.b.when(x < -0.5):
            total.set(total.get() * 0.5 - k.apply("sin", x))
    k.b.store(k.out, k.at, total.get() * total.get())


def _branchy(x: Any, y: Any) -> Any:
    total = jnp.zeros_like(y)
    for value in x:
        down = jnp.where(value < -0.5, total * 0.5 - jnp.sin(value), total)
        total = jnp.where(value > 0.2, total + value * value * y, down)
    return total * total


def softmax(k: Body) -> None:
    n = k.length("b")
    high, total = k.b.variable(k.b.constant(-np.inf, "f32")), k.b.variable(k.zero())
    for j in k.b.range(0, n):
        high.set(k.b.op("max", high.get(), k.load(k.inputs[0], k.at * n + j)))
    for j in k.b.range(0, n):
        x = k.load(k.inputs[0], k.at * n + j)
        total.set(total.get() + k.apply("exp", x - high.get()))
    for j in k.b.range(0, n):
        x = k.load(k.inputs[0], k.at * n + j) - high.get()
        k.b.store(k.out, k.at * n + j, k.apply("exp", x) / total.get() * k.load(k.inputs[1], j))


def gather(k: Body) -> None:
    place = k.load(k.inputs[1], k.at)
    k.b.store(k.out, k.at, k.load(k.inputs[0], place) * k.load(k.inputs[0], k.at))


def scatter(k: Body) -> None:
    place = k.load(k.inputs[1], k.at)
    value = k.load(k.inputs[0], k.at)
    k.b.atomic("add", k.out, k.b._index(place), value * value)


def in_place(k: Body) -> None:
    old = k.load(k.out, k.at)
    k.b.store(k.out, k.at, old * old * k.load(k.inputs[0], k.at))
    k.b.store(k.out, k.at, k.load(k.out, k.at) + 1)


def tile(k: Body) -> None:
    sums = k.b.local("f32", 3)
    for j in k.b.range(0, 3):
        k.b.store(sums, j, k.zero())
    for i in k.b.range(0, 4):
        x = k.load(k.inputs[0], k.at * 4 + i)
        for j in k.b.range(0, 3):
            w = k.load(k.inputs[1], i * 3 + j)
            k.b.store(sums, j, k.load(sums, j) + k.apply("exp", x) * w)
    for j in k.b.range(0, 3):
        k.b.store(k.out, k.at * 3 + j, k.load(sums, j))


def lines(k: Body) -> None:
    x, y = (k.load(buffer, k.at * 4, 4) for buffer in k.inputs)
    turned = k.b.shuffle(x, (3, 0, 0, 1))
    total = k.b.splat(k.b.reduce("add", x * y), 4)
    most = k.b.splat(k.b.reduce("max", x), 4)
    first = k.b.splat(k.b.extract(y, 2), 4)
    k.b.store(k.out, k.at * 4, turned * y + total * first - most)


def _lines(x: Any, y: Any) -> Any:
    x, y = x.reshape(-1, 4), y.reshape(-1, 4)
    turned = x[:, jnp.array([3, 0, 0, 1])]
    total, most = jnp.sum(x * y, 1, keepdims=True), jnp.max(x, 1, keepdims=True)
    return (turned * y + total * y[:, 2:3] - most).reshape(-1)


def masked(k: Body) -> None:
    at = k.at * 4
    mask = k.b.lane(4, "index") + at < k.length("a")
    x = k.b.load(k.inputs[0], at, 4, mask)
    k.b.store(k.out, at, x * x * x, mask)


def strided(k: Body) -> None:
    for i in k.b.range(k.at, k.length("out"), k.b.place("cube_count.x")):
        x = k.load(k.inputs[0], i)
        k.b.store(k.out, i, x / (1 + x * x))


def exits(k: Body) -> None:
    n, total = k.length("a"), k.b.variable(k.zero())
    with k.b.when(k.at >= k.length("out")):
        k.b.emit(ir.Return())
    for j in k.b.range(0, n):
        x = k.load(k.inputs[0], j)
        with k.b.when(x < -0.5):
            k.b.emit(ir.Continue())
        total.set(total.get() * 0.9 + x * total.get() + x)
        k.b.break_when(total.get() > 1.0)
    k.b.store(k.out, k.at, total.get() * k.load(k.inputs[1], k.at))


def _exits(x: Any, y: Any) -> Any:
    total, done = jnp.zeros(()), jnp.zeros((), bool)
    for value in x:
        skip = done | (value < -0.5)
        total = jnp.where(skip, total, total * 0.9 + value * total + value)
        done = done | (~skip & (total > 1))
    return total * y


def search(k: Body) -> None:
    n = k.length("a")
    low = k.b.variable(k.b.constant(0, "index"))
    with k.b.loop():
        k.b.break_when(low.get() * low.get() >= k.at)
        low.set(low.get() + 1)
    x = k.load(k.inputs[0], k.b.op("min", low.get(), n - 1))
    k.b.store(k.out, k.at, x * x)


def _search(x: Any) -> Any:
    at = jnp.ceil(jnp.sqrt(jnp.arange(9.0))).astype(int)
    return x[jnp.minimum(at, x.shape[0] - 1)] ** 2


def recurrence(k: Body) -> None:
    """State and an outer value, in loops inside loops."""
    n, scale, total = k.length("b"), k.load(k.inputs[0], k.at), k.b.variable(k.zero())
    for _ in k.b.range(0, 3):
        inner = k.b.variable(scale)
        for j in k.b.range(0, n):
            x = k.load(k.inputs[1], j)
            inner.set(k.apply("sin", inner.get() * scale + x) + total.get() * 0.1)
        total.set(total.get() + inner.get() * inner.get())
    k.b.store(k.out, k.at, total.get())


def _recurrence(x: Any, y: Any) -> Any:
    total = jnp.zeros_like(x)
    for _ in range(3):
        inner = x
        for value in y:
            inner = jnp.sin(inner * x + value) + total * 0.1
        total = total + inner * inner
    return total


def _gelu(x: Any, y: Any) -> Any:
    inner = 0.5 * x * (1 + lax.erf(x * 0.7071))
    return jnp.tanh(inner * y) / (1 + jnp.exp(y)) - y


def _tile(x: Any, w: Any) -> Any:
    return (jnp.exp(x.reshape(-1, 4)) @ w.reshape(4, 3)).reshape(-1)


def _guarded(x: Any) -> Any:
    return jnp.abs(x) * jnp.where(x > 0, x, jnp.sin(x))


def _rows(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: function(x.reshape(-1, y.shape[0]), y).reshape(-1)


def _softmax(x: Any, y: Any) -> Any:
    e = jnp.exp(x - jnp.max(x, 1, keepdims=True))
    return e / jnp.sum(e, 1, keepdims=True) * y


def _matmul(x: Any, y: Any) -> Any:
    return (x.reshape(3, 5) @ y.reshape(5, 4)).reshape(-1)


def _scatter(x: Any, i: Any, y: Any) -> Any:
    return y.at[i].add(x * x)


def _product(x: Any, y: Any) -> Any:
    return jnp.prod(1 + 0.01 * x * y, 1)


CASES = (
    Case("elementwise", elementwise, _gelu, (37, 37), 37, 37),
    Case("guarded", guarded, _guarded, (13,), 13, 16),
    Case("stencil", stencil, _stencil, (11,), 11, 11),
    Case("dot", dot, _rows(lambda x, y: jnp.sin(x @ y)), (5 * 7, 7), 5, 5),
    Case("product", product, _rows(_product), (2 * 150, 150), 2, 2, tolerance=1e-4),
    Case("decay", decay, _decay, (3, 6), 3, 3),
    Case("rewritten", rewritten, lambda x: x**3, (5,), 5, 5),
    Case("matmul", matmul, _matmul, (15, 20), 12, 12),
    Case("branchy", branchy, _branchy, (9, 3), 3, 3),
    Case("softmax", softmax, _rows(_softmax), (4 * 6, 6), 24, 4),
    Case("gather", gather, lambda x, i: x[i] * x[: i.shape[0]], (8, (6, 8)), 6, 6),
    Case("scatter", scatter, _scatter, (9, (9, 5), 5), 5, 9, begins=True),
    Case("in_place", in_place, lambda x, y: y * y * x + 1, (6, 6), 6, 6, begins=True),
    Case("tile", tile, _tile, (8, 12), 6, 2),
    Case("lines", lines, _lines, (12, 12), 12, 3),
    Case("masked", masked, lambda x: x**3, (10,), 10, 3),
    Case("strided", strided, lambda x: x / (1 + x * x), (23,), 23, 4),
    Case("exits", exits, _exits, (12, 5), 5, 7),
    Case("search", search, _search, (4,), 9, 9),
    Case("recurrence", recurrence, _recurrence, (3, 5), 3, 3),
)
