"""Random kernels: the way back is the transpose of the way along, whatever branches, loops, exits,
variables and arrays lie between, and kernels that were mapped are theirs stacked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cube_kernels import Body, Case
from hypothesis import given, settings
from hypothesis import strategies as st

import xcube
import xcube.numpy as jnp
from xcube.lowering.cube import ir
from xcube.lowering.cube.build import Value

VARIABLES, ARRAY, LENGTH, UNITS = 3, 2, 6, 3
UNARY = ("sin", "tanh", "neg", "abs", "logistic")
BINARY = ("add", "sub", "mul", "min", "max")

# A value: ("x", buffer, shift), ("v", variable), ("a", place), ("c", number), ("u", op, value),
# ("b", op, value, value). A statement: ("set", variable, value), ("put", place, value),
# ("if", value, block, block), ("for", turns, block), ("exit", value).
leaves = st.one_of(
    st.tuples(st.just("x"), st.integers(0, 1), st.integers(0, 2)),
    st.tuples(st.just("v"), st.integers(0, VARIABLES - 1)),
    st.tuples(st.just("c"), st.sampled_from([-0.7, 0.3, 1.1])),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("u"), st.sampled_from(UNARY), inner),
        st.tuples(st.just("b"), st.sampled_from(BINARY), inner, inner),
    ),
    max_leaves=4,
)
simple = st.one_of(
    st.tuples(st.just("set"), st.integers(0, VARIABLES - 1), values),
    st.tuples(st.just("sum"), st.integers(0, ARRAY - 1), values),
    st.tuples(st.just("exit"), st.sampled_from([ir.Break(), ir.Continue()]), values),
)
statements = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.tuples(st.just("if"), values, st.lists(inner, max_size=3), st.lists(inner, max_size=2)),
        st.tuples(st.just("for"), st.integers(0, 4), st.lists(inner, max_size=3)),
    ),
    max_leaves=8,
)
programs = st.lists(statements, min_size=1, max_size=4)


class Program:
    """Builds one program; `depth`: loops around."""

    def __init__(self, k: Body) -> None:
        self.k, self.b, self.depth = k, k.b, 0
        first = k.load(k.inputs[0], k.at)
        self.variables = [self.b.variable(first * (0.5 + n)) for n in range(VARIABLES)]
        self.array = self.b.local("f32", ARRAY)
        for n in range(ARRAY):
            self.b.store(self.array, n, k.zero())
        self.index: Value = k.at

    def value(self, tree: Any) -> Value:
        kind, *rest = tree
        if kind == "x":
            return self.k.load(self.k.inputs[rest[0]], (self.index + rest[1]) % LENGTH)
        if kind == "v":
            return self.variables[rest[0]].get()
        if kind == "c":
            return self.b.constant(rest[0], "f32")
        args = [self.value(inner) for inner in rest[1:]]
        found = self.k.apply(rest[0], *args)
        return self.k.apply("tanh", found) if rest[0] == "mul" else found

    def block(self, body: Any) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, tree: Any) -> None:
        kind, *rest = tree
        if kind == "set":
            self.variables[rest[0]].set(self.value(rest[1]))
        elif kind == "sum":
            old = self.b.load(self.array, rest[0])
            self.b.store(self.array, rest[0], old * 0.5 + self.value(rest[1]))
        elif kind == "exit":
            if self.depth:
                with self.b.when(self.value(rest[1]) > 0.4):
                    self.b.emit(rest[0])
        elif kind == "if":
            with self.b.when(self.value(rest[0]) > 0.1):
                self.block(rest[1])
            with self.b.otherwise():
                self.block(rest[2])
        else:
            self._for(*rest)

    def _for(self, turns: int, body: Any) -> None:
        outer, self.depth = self.index, self.depth + 1
        for i in self.b.range(0, turns):
            self.index = i + outer
            self.block(body)
        self.index, self.depth = outer, self.depth - 1

    def finish(self) -> None:
        total = self.b.load(self.array, 0) + self.b.load(self.array, 1)
        for variable in self.variables:
            total = total + variable.get()
        self.b.store(self.k.out, self.k.at, total)


def case_of(program: Any) -> Case:
    def build(k: Body) -> None:
        whole = Program(k)
        whole.block(program)
        whole.finish()

    return Case("random", build, None, (LENGTH, LENGTH), UNITS, UNITS)


def check(program: Any) -> None:
    case = case_of(program)
    x, dx = ([jnp.asarray(a) for a in case.arrays(seed)] for seed in (0, 1))
    out, along = xcube.jvp(case.run, tuple(x), tuple(dx))
    ct = jnp.asarray(np.random.default_rng(2).uniform(-1, 1, UNITS).astype(np.float32))
    again, back = xcube.vjp(case.run, *x)
    np.testing.assert_array_equal(np.asarray(out), np.asarray(again))
    cts = back(ct)
    one = float(jnp.vdot(ct, along))
    other = float(sum(jnp.vdot(a, b) for a, b in zip(cts, dx, strict=True)))
    scale = sum(float(jnp.sum(jnp.abs(a * b))) for a, b in zip(cts, dx, strict=True))
    assert abs(one - other) <= 1e-4 * max(1.0, scale), (one, other)


@settings(max_examples=15, deadline=None)
@given(programs)
def test_back_is_the_transpose(program: Any) -> None:
    check(program)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(programs)
def test_back_is_the_transpose_of_many(program: Any) -> None:
    check(program)


@settings(max_examples=10, deadline=None)
@given(programs)
def test_mapped_gradients_are_stacked(program: Any) -> None:
    case = case_of(program)
    pairs = [jnp.stack([a, b]) for a, b in zip(case.arrays(0), case.arrays(1), strict=True)]
    gradient = xcube.grad(lambda *args: jnp.sum(case.run(*args) ** 2), (0, 1))
    found = xcube.vmap(gradient)(*pairs)
    for k in range(2):
        for x, y in zip(found, gradient(*[pair[k] for pair in pairs]), strict=True):
            np.testing.assert_allclose(np.asarray(x[k]), np.asarray(y), rtol=1e-4, atol=1e-5)
