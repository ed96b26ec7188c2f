"""Random programs of nested control flow against their unrolled Python loops, which JAX runs and
differentiates: values, forward and reverse derivatives, batches whose examples go other ways."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jax_numpy
import numpy as np
import python_loops
from hypothesis import given, settings
from hypothesis import strategies as st

import xcube
import xcube.numpy as xcube_numpy
from xcube import lax

State = tuple[Any, Any, Any]  # x: f32[3], k: i32[], y: f32[]; every operation is a contraction
Program = list[tuple[Any, ...]]

leaf = st.sampled_from([("mix",), ("count", 1), ("count", 2), ("sum",), ("turn",)])


def block(inner: Any) -> Any:
    ops = st.lists(inner, min_size=1, max_size=2)
    small = st.integers(0, 3)
    return st.one_of(
        st.tuples(st.just("scan"), small, st.booleans(), ops),
        st.tuples(st.just("fori"), small, ops),
        st.tuples(st.just("cond"), ops, ops),
        st.tuples(st.just("switch"), ops, ops, ops),
        st.tuples(st.just("while"), st.integers(1, 4), ops),
        st.tuples(st.just("jit"), ops),
    )


operation = st.recursive(leaf, block, max_leaves=6)
programs = st.lists(operation, min_size=1, max_size=3).filter(lambda ops: has(ops, "scan"))


def has(value: Any, name: str) -> bool:
    if isinstance(value, str):
        return value == name
    return isinstance(value, list | tuple) and any(has(item, name) for item in value)


class Machine:
    """Runs programs with the functions of one library."""

    def __init__(self, np_: Any, flow: Any, jit: Any) -> None:
        self.np, self.flow, self.jit = np_, flow, jit

    def run(self, program: Program, state: State) -> State:
        for name, *args in program:
            state = getattr(self, f"op_{name}")(state, *args)
        return state

    def op_mix(self, state: State) -> State:
        x, k, y = state
        return self.np.sin(x) * 0.8 + y * 0.1, k, y

    def op_count(self, state: State, step: int) -> State:
        x, k, y = state
        return x, k + step, y

    def op_sum(self, state: State) -> State:
        x, k, y = state
        return x, k, self.np.cos(y) * 0.5 + self.np.sum(x) * 0.2 + k * 0.01

    def op_turn(self, state: State) -> State:
        x, k, y = state
        return self.np.roll(x, 1) * 0.9, k, y * y * 0.1

    def op_scan(self, state: State, length: int, reverse: bool, ops: Program) -> State:
        rows = np.linspace(-1, 1, 3 * (length + 1), dtype=np.float32).reshape(-1, 3)

        def step(carry: State, row: Any) -> tuple[State, Any]:
            x, k, y = self.run(ops, carry)
            return (x + row * 0.1, k, y), (x * row, k)

        carry, (ys, counts) = self.flow.scan(step, state, rows, reverse=reverse)
        x, k, y = carry
        return x + self.np.sum(ys, 0) * 0.1, k + self.np.max(counts) % 2, y

    def op_fori(self, state: State, steps: int, ops: Program) -> State:
        def body(i: Any, carry: State) -> State:
            x, k, y = self.run(ops, carry)
            return x, k, y + i * 0.1

        return self.flow.fori_loop(0, steps, body, state)

    def op_cond(self, state: State, yes: Program, no: Program) -> State:
        branches = [lambda state, ops=ops: self.run(ops, state) for ops in (yes, no)]
        return self.flow.cond(state[1] % 2 == 0, *branches, state)

    def op_switch(self, state: State, *branches: Program) -> State:
        functions = [lambda state, ops=ops: self.run(ops, state) for ops in branches]
        return self.flow.switch(state[1] - 1, functions, state)

    def op_while(self, state: State, limit: int, ops: Program) -> State:
        def body(carry: tuple[Any, State]) -> tuple[Any, State]:
            return carry[0] + 1, self.run(ops, carry[1])

        return self.flow.while_loop(lambda c: c[0] < limit, body, (state[1] % 3, state))[1]

    def op_jit(self, state: State, ops: Program) -> State:
        return self.jit(lambda state: self.run(ops, state))(state)


OURS = Machine(xcube_numpy, lax, xcube.jit)
UNROLLED = Machine(jax_numpy, python_loops, lambda function: function)
XS = np.array([[0.3, -0.6, 0.9], [1.2, 0.1, -0.4]], np.float32)
KS, YS = np.array([0, 3], np.int32), np.array([0.5, -0.7], np.float32)


def assert_same(found: Any, wanted: Any) -> None:
    for x, y in zip(xcube.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), 1e-4, 1e-5)


def stacked(parts: list[Any]) -> Any:
    return jax.tree.map(lambda *rows: np.stack(rows), *parts)


@settings(max_examples=6, deadline=None, derandomize=True, database=None)
@given(programs)
def test_random_programs(program: Program) -> None:
    def ours(x: Any, k: Any, y: Any) -> Any:
        return OURS.run(program, (x, k, y))

    def theirs(x: Any, k: Any, y: Any) -> Any:
        return UNROLLED.run(program, (x, k, y))

    examples = list(zip(XS, KS, YS, strict=True))
    wanted = [theirs(*example) for example in examples]
    assert_same(xcube.jit(ours)(*examples[0]), wanted[0])
    assert_same(xcube.jit(xcube.vmap(ours))(XS, KS, YS), stacked(wanted))

    def slope(machine: Machine, np_: Any) -> Any:
        def loss(x: Any, k: Any, y: Any) -> Any:
            x, _, y = machine.run(program, (x, k, y))
            return np_.sum(x * np.array([1, 2, 3], np.float32)) + y

        return loss

    grads = [jax.grad(slope(UNROLLED, jax_numpy), (0, 2))(*example) for example in examples]
    loss = slope(OURS, xcube_numpy)

    def along(x: Any, k: Any, y: Any) -> Any:
        return xcube.jvp(lambda x, y: loss(x, k, y), (x, y), (x, y))[1]

    dots = [np.sum(g[0] * x) + g[1] * y for g, (x, _, y) in zip(grads, examples, strict=True)]
    assert_same(xcube.jit(xcube.vmap(along))(XS, KS, YS), np.stack(dots))
    if not has(program, "while"):
        assert_same(xcube.jit(xcube.grad(loss, (0, 2)))(*examples[0]), grads[0])
        assert_same(xcube.jit(xcube.vmap(xcube.grad(loss, (0, 2))))(XS, KS, YS), stacked(grads))
