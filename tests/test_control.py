"""Every form of control flow against its unrolled Python loop, which JAX evaluates and
differentiates: values, first and second derivatives, batches of each operand alone and of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jax_numpy
import numpy as np
import pytest
import python_loops

import xcube
import xcube.numpy as xcube_numpy
from xcube import lax, tree

Form = Callable[..., Any]


@dataclass(frozen=True)
class Row:
    """A form: `make(np, lax)` gives the function of the operands; `reverse`: it has a reverse-mode
    derivative."""

    name: str
    make: Callable[[Any, Any], Form]
    operands: tuple[Any, ...]
    reverse: bool = True

    @property
    def ours(self) -> Form:
        return self.make(xcube_numpy, lax)

    @property
    def unrolled(self) -> Form:
        return self.make(jax_numpy, python_loops)


X = np.array([0.3, -0.6, 0.9], np.float32)
W = np.array([[0.5, -0.2, 0.1], [0.3, 0.4, -0.7], [-0.1, 0.6, 0.2]], np.float32)
XS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def cell(np_: Any, lax_: Any) -> Form:
    """Residuals of all kinds: consts (w, also hoisted through exp), xs, carries, and ys."""

    def form(w: Any, h: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            new = np_.tanh(np_.exp(w) @ c * 0.2 + x * w[0])
            return new, (new * 2, x * c, c)

        return lax_.scan(step, h, xs)

    return form


def trees(np_: Any, lax_: Any) -> Form:
    """Pytrees, a carry of integers beside one of floats, a fixed carry, no xs, backwards."""

    def form(x: Any, w: Any) -> Any:
        def step(c: Any, _: None) -> Any:
            grown = {"v": np_.sin(c["v"]) + w[0] * c["k"], "k": c["k"] + 1, "fixed": c["fixed"]}
            return grown, (c["v"] * c["fixed"], c["k"] % 2 == 0)

        init = {"v": x, "k": np_.asarray(0), "fixed": w[1]}
        return lax_.scan(step, init, None, length=3, reverse=True)

    return form


def backwards(np_: Any, lax_: Any) -> Form:
    def form(x: Any, xs: Any) -> Any:
        step = lambda c, x: (c * x + 0.1, np_.sum(c))  # noqa: E731
        return lax_.scan(step, x, xs, reverse=True, unroll=2)

    return form


def known(np_: Any, lax_: Any) -> Form:
    def form(x: Any, w: Any) -> Any:
        return lax_.fori_loop(1, 4, lambda i, c: np_.sin(c) * i + w @ c, x)

    return form


def counted(np_: Any, lax_: Any) -> Form:
    return lambda x, n: lax_.fori_loop(0, n, lambda i, c: np_.sin(c) * i + c, x)


def doubling(np_: Any, lax_: Any) -> Form:
    """The condition depends on the carry: examples of a batch end at different times."""

    def form(x: Any, w: Any) -> Any:
        def body(c: Any) -> Any:
            return c[0] * 1.5 + np_.abs(w[0]), c[1] + 1

        return lax_.while_loop(lambda c: np_.sum(c[0] ** 2) < 30, body, (x, np_.asarray(0)))

    return form


def choice(np_: Any, lax_: Any) -> Form:
    """The branch that is not taken has an infinite derivative where the other one is taken."""

    def form(p: Any, x: Any, w: Any) -> Any:
        rooted = lambda x: (np_.sqrt(x) + w[0], w)  # noqa: E731
        plain = lambda x: (np_.sin(x) * w[1], w)  # noqa: E731
        return lax_.cond(p > 0, rooted, plain, x * x * p)

    return form


def choices(np_: Any, lax_: Any) -> Form:
    def form(k: Any, x: Any, w: Any) -> Any:
        branches = [lambda x: x * w[0], np_.sin, lambda x: w[2], lambda x: x**3 + np_.exp(w[1])]
        return lax_.switch(k, branches, x)

    return form


def mapped(np_: Any, lax_: Any) -> Form:
    return lambda xs, w: lax_.map(lambda x: {"y": np_.tanh(w @ x), "n": np_.sum(x)}, xs)


def batched(np_: Any, lax_: Any) -> Form:
    return lambda xs, w: lax_.map(lambda x: np_.tanh(w @ x), xs, batch_size=3)


def products(np_: Any, lax_: Any) -> Form:
    """Affine maps under composition, along the last axis."""

    def form(a: Any, b: Any) -> Any:
        def compose(f: Any, g: Any) -> Any:
            return f[0] * g[0], f[1] * g[0] + g[1]

        return lax_.associative_scan(compose, (a, b), axis=1, reverse=True)

    return form


def nested(np_: Any, lax_: Any) -> Form:
    """Branches and loops inside of a loop, under jit."""

    def form(x: Any, w: Any) -> Any:
        def inner(c: Any) -> Any:
            return lax_.fori_loop(0, 2, lambda k, d: np_.sin(d) * w[0] + k * 0.1, c)

        def step(c: Any, i: Any) -> Any:
            c = lax_.cond(i % 2 == 0, lambda c: np_.cos(c) * w[1], inner, c)
            return c, lax_.switch(i, [lambda: c, lambda: c * c, lambda: w[2]])

        return lax_.scan(step, x, np_.arange(4))

    return form


def scan_in_while(np_: Any, lax_: Any) -> Form:
    def form(x: Any, w: Any) -> Any:
        def body(c: Any) -> Any:
            total, _ = lax_.scan(lambda t, r: (np_.sin(t) + np_.sum(r * c[1]), None), c[0], w)
            return total, c[1] + 1.0

        return lax_.while_loop(lambda c: c[1][0] < 3, body, (x, np_.ones(3)))

    return form


ROWS = [
    Row("scan", cell, (W, X, XS)),
    Row("scan of trees", trees, (X, W)),
    Row("scan backwards", backwards, (X, XS)),
    Row("fori_loop, known bounds", known, (X, W)),
    Row("fori_loop, traced bounds", counted, (X, np.int32(3)), reverse=False),
    Row("while_loop", doubling, (X, W), reverse=False),
    Row("cond", choice, (np.float32(1.5), np.abs(X), W)),
    Row("switch", choices, (np.int32(1), X, W)),
    Row("map", mapped, (XS, W)),
    Row("map in batches", batched, (XS, W)),
    Row("associative_scan", products, (XS, XS[::-1].copy())),
    Row("nested", nested, (X, W)),
    Row("scan in while_loop", scan_in_while, (X, W), reverse=False),
]

every_form = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
every_reverse_form = pytest.mark.parametrize(
    "row", [row for row in ROWS if row.reverse], ids=lambda row: row.name
)


def assert_same(ours: Any, theirs: Any, tolerance: float = 2e-5) -> None:
    found, wanted = tree.leaves(ours), jax.tree.leaves(theirs)
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), tolerance, tolerance)


def floats(row: Row) -> tuple[int, ...]:
    return tuple(n for n, x in enumerate(row.operands) if np.asarray(x).dtype.kind == "f")


def loss(form: Form, np_: ModuleType) -> Form:
    """A scalar in which every element of every float result has another weight."""

    def total(*operands: Any) -> Any:
        leaves = jax.tree.leaves(form(*operands), is_leaf=lambda x: hasattr(x, "dtype"))
        smooth = [x for x in leaves if x.dtype.kind == "f"]
        weighted = [np_.sum(x * weights(x.shape)) for x in smooth]
        return sum(weighted[1:], weighted[0])

    return total


def weights(shape: Sequence[int]) -> np.ndarray:
    size = int(np.prod(shape))
    return np.cos(np.arange(size, dtype=np.float32) + 1).reshape(shape)


def of_floats(function: Form, row: Row) -> tuple[Form, tuple[Any, ...]]:
    """The function of the float operands alone, and these."""
    places = floats(row)

    def smooth(*chosen: Any) -> Any:
        given = dict(zip(places, chosen, strict=True))
        return function(*[given.get(n, x) for n, x in enumerate(row.operands)])

    return smooth, tuple(row.operands[n] for n in places)


def direction(x: Any) -> Any:
    return np.asarray(weights(np.shape(x)))[()]


@every_form
def test_values(row: Row) -> None:
    wanted = row.unrolled(*row.operands)
    assert_same(row.ours(*row.operands), wanted)
    assert_same(xcube.jit(row.ours)(*row.operands), wanted)


@every_form
def test_forward_derivatives(row: Row) -> None:
    ours, primals = of_floats(row.ours, row)
    theirs, _ = of_floats(row.unrolled, row)
    tangents = tuple(map(direction, primals))
    wanted = jax.jvp(theirs, primals, tangents)
    smooth = [x.dtype != jax.dtypes.float0 for x in jax.tree.leaves(wanted[1])]

    def same_pair(found: Any, want: Any) -> None:
        assert_same(found[0], want[0])
        pairs = zip(tree.leaves(found[1]), jax.tree.leaves(want[1]), smooth, strict=True)
        for x, y, is_smooth in pairs:
            assert is_smooth == (np.asarray(x).dtype != jax.dtypes.float0)
            if is_smooth:
                assert_same(x, y)

    same_pair(xcube.jvp(ours, primals, tangents), wanted)
    value, linear = xcube.linearize(ours, *primals)
    same_pair((value, linear(*tangents)), wanted)


@every_reverse_form
def test_gradients_of_each_operand_alone_and_of_all(row: Row) -> None:
    ours, theirs = loss(row.ours, xcube_numpy), loss(row.unrolled, jax_numpy)
    wanted = jax.grad(theirs, floats(row))(*row.operands)
    assert_same(xcube.jit(xcube.grad(ours, floats(row)))(*row.operands), wanted)
    for place, want in zip(floats(row), wanted, strict=True):
        assert_same(xcube.grad(ours, place)(*row.operands), want)


@every_reverse_form
def test_second_derivatives(row: Row) -> None:
    """Forward over reverse and reverse over reverse, in one direction."""
    ours, primals = of_floats(loss(row.ours, xcube_numpy), row)
    theirs, _ = of_floats(loss(row.unrolled, jax_numpy), row)
    tangents = tuple(map(direction, primals))
    places = tuple(range(len(primals)))
    wanted = jax.jvp(jax.grad(theirs, places), primals, tangents)[1]

    @xcube.jit
    def along(*given: Any) -> Any:
        return xcube.jvp(xcube.grad(ours, places), given, tangents)[1]

    def slope(*given: Any) -> Any:
        grads = xcube.grad(ours, places)(*given)
        return sum(xcube_numpy.sum(g * t) for g, t in zip(grads, tangents, strict=True))

    assert_same(along(*primals), wanted, 1e-4)
    assert_same(xcube.jit(xcube.grad(slope, places))(*primals), wanted, 1e-4)


def batch_of(row: Row) -> list[np.ndarray]:
    """Three examples of each operand, among them such as take other branches and more turns."""
    shifts = np.array([0, 0.25, -2.5], np.float32)
    batch = [np.stack([x + s for s in shifts]) for x in map(np.asarray, row.operands)]
    return [x.astype(np.asarray(y).dtype) for x, y in zip(batch, row.operands, strict=True)]


def axes_of(row: Row) -> list[tuple[int | None, ...]]:
    count = len(row.operands)
    alone = [tuple(0 if n == k else None for n in range(count)) for k in range(count)]
    return [*alone, (0,) * count]


def example(args: Sequence[Any], axes: Sequence[int | None], k: int) -> list[Any]:
    return [x if axis is None else x[k] for x, axis in zip(args, axes, strict=True)]


@every_form
def test_batches_of_each_operand_alone_and_of_all(row: Row) -> None:
    batch = batch_of(row)
    for axes in axes_of(row):
        args = [x if a is None else b for x, b, a in zip(row.operands, batch, axes, strict=True)]
        examples = [row.unrolled(*example(args, axes, k)) for k in range(3)]
        wanted = jax.tree.map(lambda *rows: np.stack(rows), *examples)
        assert_same(xcube.jit(xcube.vmap(row.ours, axes))(*args), wanted)


@every_reverse_form
def test_gradients_of_batches_and_batches_of_gradients(row: Row) -> None:
    ours, theirs = loss(row.ours, xcube_numpy), loss(row.unrolled, jax_numpy)
    batch, places = batch_of(row), floats(row)
    for axes in axes_of(row):
        args = [x if a is None else b for x, b, a in zip(row.operands, batch, axes, strict=True)]
        grads = [jax.grad(theirs, places)(*example(args, axes, k)) for k in range(3)]
        wanted = jax.tree.map(lambda *rows: np.stack(rows), *grads)
        many = xcube.vmap(xcube.grad(ours, places), axes)
        assert_same(xcube.jit(many)(*args), wanted)
    total = xcube.grad(lambda *args: xcube.vmap(ours)(*args).sum(), places)
    assert_same(xcube.jit(total)(*batch), wanted, 1e-4)
