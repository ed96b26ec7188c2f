"""The doors of control flow: types and weakness as in JAX, what is traced and how often, options,
empty loops, effects, running as Python under disable_jit; what the loops of a derivative hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jax_numpy
import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube import lax, tree
from xcube.ir import Equation, Jaxpr, Linear, check, subjaxprs
from xcube.transforms.control.scan import scan_p
from xcube.transforms.transpose import backward

XS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
X = XS[1]
W = np.array([[0.5, -0.2, 0.1], [0.3, 0.4, -0.7], [-0.1, 0.6, 0.2]], np.float32)

# types ----------------------------------------------------------------------------------------

TYPED: dict[str, Callable[[Any, Any], Any]] = {
    "weak carry, strong sum": lambda n, flow: flow.scan(lambda c, x: (c + x, c), 0, n.arange(3)),
    "weak carry stays weak": lambda n, flow: flow.scan(lambda c, _: (c * 2, c), 1.0, None, 2),
    "weak integer meets bfloat16": lambda n, flow: flow.scan(
        lambda c, x: (c + x, c), 0.0, n.ones(2, n.bfloat16)
    ),
    "weak integer becomes float": lambda n, flow: flow.scan(lambda c, x: (c + x, x), 0, n.ones(2)),
    "fixed weak carry": lambda n, flow: flow.scan(lambda c, x: (c, c + x), 2, n.ones(2)),
    "two carries, one promoted": lambda n, flow: flow.scan(
        lambda c, x: ((c[1], c[1] + x), None), (0, 0.0), n.ones(2)
    ),
    "numpy scalars are strong": lambda n, flow: flow.scan(
        lambda c, _: (c * 2, c), np.float16(1), None, 2
    ),
    "numpy doubles are narrowed": lambda n, flow: flow.while_loop(
        lambda c: c < 9, lambda c: c * 2, np.float64(1)
    ),
    "bool carry": lambda n, flow: flow.scan(lambda c, x: (c & (x > 0), c), True, n.arange(3)),
    "complex carry": lambda n, flow: flow.fori_loop(
        0, 2, lambda i, c: c * 1j, n.ones(2, n.complex64)
    ),
    "weak while": lambda n, flow: flow.while_loop(lambda c: c < 9, lambda c: c * 2, 1),
    "promoted while": lambda n, flow: flow.while_loop(lambda c: c < 9, lambda c: c * 2.5, 1),
    "number of a loop is weak": lambda n, flow: flow.fori_loop(
        0, 3, lambda i, c: c + i, n.zeros(2, n.int8)
    ),
    "number of a loop is an integer": lambda n, flow: flow.scan(
        lambda c, _: flow.fori_loop(np.int8(1), 3, lambda i, c: (i, c[1] + 1), c) and (c, None),
        (0, 0),
        None,
        1,
    ),
    "number of a traced loop": lambda n, flow: flow.fori_loop(
        n.int8(0), n.int8(3) + n.int8(0), lambda i, c: c + i, 0
    ),
    "cond of weak results": lambda n, flow: flow.cond(True, lambda: 1, lambda: 2),
    "cond passes an operand": lambda n, flow: flow.cond(
        False, lambda x: (x, 1), lambda x: (x, 2), 3.0
    ),
    "switch": lambda n, flow: flow.switch(5, [lambda x: x, lambda x: x * 2], n.float16(3)),
    "switch with one branch": lambda n, flow: flow.switch(5, [lambda x: x * 2], 3),
    "cond, old form": lambda n, flow: flow.cond(
        n.array(2) > 1, 1.0, lambda x: x + 1, 2.0, lambda x: x
    ),
    "cond, operand by keyword": lambda n, flow: flow.cond(
        1, lambda x: x + 1, lambda x: x, operand=4
    ),
    "cond on a float": lambda n, flow: flow.cond(0.0, lambda: n.float32(1), lambda: n.float32(2)),
    "map": lambda n, flow: flow.map(lambda x: (x > 1, 1), n.arange(3, dtype=n.uint8)),
    "associative_scan": lambda n, flow: flow.associative_scan(n.logical_or, n.array([False, True])),
}


@pytest.mark.parametrize("name", TYPED)
def test_values_types_and_weakness_are_those_of_jax(name: str) -> None:
    ours, theirs = TYPED[name](jnp, lax), TYPED[name](jax_numpy, jax.lax)
    for x, y in zip(tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        x, y = jnp.asarray(x), jax_numpy.asarray(y)
        assert (str(x.dtype), x.weak_type) == (str(y.dtype), y.weak_type)
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y).astype(x.dtype))


def test_structures_are_kept() -> None:
    init = {"a": (1.0, [X]), "none": None}
    last, ys = lax.scan(lambda c, x: (c, {"y": x, "n": None}), init, {"x": XS, "none": None})
    assert tree.structure(last) == tree.structure(init)
    assert tree.structure(ys) == tree.structure({"y": {"x": 0, "none": None}, "n": None})
    np.testing.assert_array_equal(ys["y"]["x"], XS)
    assert lax.cond(True, lambda: {"a": None}, lambda: {"a": None}) == {"a": None}
    assert lax.while_loop(lambda c: False, lambda c: c, ()) == ()


# what is traced -------------------------------------------------------------------------------


def test_bodies_are_traced_once_for_a_signature() -> None:
    calls: list[str] = []

    def body(c: Any, x: Any) -> Any:
        calls.append("body")
        return c + x, None

    def test(c: Any) -> Any:
        calls.append("test")
        return c < 5

    def branch(c: Any) -> Any:
        calls.append("branch")
        return c * 2

    for _ in range(3):
        lax.scan(body, jnp.float32(0), X)
        lax.while_loop(test, branch, 1)
        lax.cond(True, branch, branch, 1)
    assert sorted(calls) == ["body", "branch", "branch", "test"]
    lax.scan(body, jnp.float32(0), XS[:, 0])  # the same rows, more of them
    assert calls.count("body") == 1
    lax.scan(body, jnp.zeros(3), XS)
    assert calls.count("body") == 2


def test_bodies_that_close_over_traced_values_are_traced_anew() -> None:
    scale: Any = None

    def body(c: Any, x: Any) -> Any:
        return c + scale * x, None

    @xcube.jit
    def scaled(s: Any) -> Any:
        nonlocal scale
        scale = s
        return lax.scan(body, jnp.float32(0), X + 1)[0]

    np.testing.assert_allclose(scaled(2.0), 2 * (X + 1).sum(), rtol=1e-6)
    np.testing.assert_allclose(scaled(jnp.float32(3.0)), 3 * (X + 1).sum(), rtol=1e-6)


def test_a_body_is_traced_once_for_a_gradient() -> None:
    calls = []

    def body(c: Any, x: Any) -> Any:
        calls.append(c)
        return jnp.sin(c * x), None

    xcube.grad(lambda c: lax.scan(body, c, XS)[0].sum())(X)
    assert len(calls) == 1


# options --------------------------------------------------------------------------------------


@pytest.mark.parametrize("unroll", [True, False, 0, 1, 2, 3, 9])
@pytest.mark.parametrize("reverse", [False, True])
def test_unrolling_changes_nothing(unroll: Any, reverse: bool) -> None:
    step = lambda c, x: (jnp.sin(c) + x, c)  # noqa: E731

    def run(unroll: Any) -> Any:
        return lambda c: lax.scan(step, c, XS, reverse=reverse, unroll=unroll)

    one, other = run(1)(X), run(unroll)(X)
    for x, y in zip(tree.leaves(one), tree.leaves(other), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    found = xcube.grad(lambda c: run(unroll)(c)[0].sum())(X)
    np.testing.assert_allclose(found, xcube.grad(lambda c: run(1)(c)[0].sum())(X), rtol=1e-5)


def test_loops_without_steps() -> None:
    step = lambda c, x: (c * 2, {"y": c * x})  # noqa: E731
    last, ys = lax.scan(step, X, XS[:0])
    np.testing.assert_array_equal(last, X)
    assert ys["y"].shape == (0, 3)
    np.testing.assert_array_equal(lax.fori_loop(3, 1, lambda i, c: c * 2, X), X)
    np.testing.assert_array_equal(lax.while_loop(lambda c: False, lambda c: c * 2, X), X)
    found = xcube.grad(lambda c: lax.scan(step, c, XS[:0])[0].sum())(X)
    np.testing.assert_array_equal(found, np.ones(3))
    assert lax.map(lambda x: x * 2, XS[:0]).shape == (0, 3)
    assert lax.map(lambda x: x * 2, XS[:0], batch_size=2).shape == (0, 3)


@pytest.mark.parametrize("size", [0, 1, 2, 4, 7])
def test_map_in_batches_of_any_size(size: int) -> None:
    found = lax.map(lambda x: {"y": jnp.sin(x), "n": x.sum()}, XS, batch_size=size)
    np.testing.assert_allclose(found["y"], np.sin(XS), rtol=1e-6)
    np.testing.assert_allclose(found["n"], XS.sum(1), atol=1e-6)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize(("reverse", "axis"), [(False, 0), (True, 0), (False, -1), (True, 1)])
def test_associative_scans_of_any_length(length: int, reverse: bool, axis: int) -> None:
    """Products of matrices do not commute: order shows."""
    rng = np.random.default_rng(0)
    mats = rng.normal(size=(length, 2, 2)).astype(np.float32)
    moved = np.moveaxis(np.stack([mats, mats + 1]), 1, axis)  # beside an axis of two problems

    def product(a: Any, b: Any) -> Any:
        rows = (jnp.moveaxis(x, axis, 1) for x in (a, b))
        return jnp.moveaxis(jnp.matmul(*rows), 1, axis)

    found = np.moveaxis(np.asarray(lax.associative_scan(product, moved, reverse, axis)), axis, 1)
    for problem, start in zip(found, (mats, mats + 1), strict=True):
        order = range(length)[::-1] if reverse else range(length)
        total = np.eye(2, dtype=np.float32)
        for k in order:
            total = total @ start[k]
            np.testing.assert_allclose(problem[k], total, rtol=1e-4, atol=1e-4)


# disable_jit ----------------------------------------------------------------------------------


def test_without_jit_bodies_see_values() -> None:
    seen: list[Any] = []

    def step(c: Any, x: Any) -> Any:
        seen.append(float(c))
        return c + x, c * 2

    with xcube.disable_jit():
        last, ys = lax.scan(step, jnp.float32(0), np.array([1, 2, 3], np.float32), reverse=True)
        assert seen == [0, 3, 5]
        assert float(last) == 6
        np.testing.assert_array_equal(ys, [10, 6, 0])
        assert float(lax.while_loop(lambda c: float(c) < 10, lambda c: c * 2, 1)) == 16
        assert int(lax.fori_loop(0, 4, lambda i, c: c + int(i), 0)) == 6
        assert lax.fori_loop(0, 0, lambda i, c: 1 / 0, "untouched") == "untouched"
        assert lax.cond(True, lambda: 1, lambda: 1 / 0) == 1
        assert lax.switch(1, [lambda: 1 / 0, lambda: 2]) == 2
        assert lax.map(lambda x: float(x), X).shape == (3,)


def test_without_jit_loops_can_still_be_transformed() -> None:
    def doubled(x: Any) -> Any:
        return lax.while_loop(lambda c: c < 10, lambda c: c * 2, x)

    with xcube.disable_jit():
        np.testing.assert_array_equal(xcube.vmap(doubled)(np.array([1, 3], np.float32)), [16, 12])
        assert float(xcube.grad(doubled)(3.0)) == 4
        found = xcube.vmap(lambda p: lax.cond(p, lambda: 1, lambda: 2))(np.array([True, False]))
        np.testing.assert_array_equal(found, [1, 2])


# effects --------------------------------------------------------------------------------------


def prints(function: Callable[..., Any], *args: Any, capsys: Any) -> list[str]:
    function(*args)
    xcube.effects_barrier()
    return capsys.readouterr().out.split()


def test_every_step_prints_in_order(capsys: Any) -> None:
    def noisy(x: Any) -> Any:
        def step(c: Any, k: Any) -> Any:
            xcube.debug.print("{}", k, ordered=True)
            return c * 2, None

        return lax.scan(step, x, jnp.arange(3))[0].sum()

    assert prints(noisy, X, capsys=capsys) == ["0", "1", "2"]
    assert prints(xcube.jit(noisy), X, capsys=capsys) == ["0", "1", "2"]
    assert prints(xcube.grad(noisy), X, capsys=capsys) == ["0", "1", "2"]


def test_the_branch_that_runs_prints(capsys: Any) -> None:
    def noisy(p: Any) -> Any:
        def branch(word: str) -> Any:
            return lambda: xcube.debug.print(word)

        return lax.cond(p, branch("yes"), branch("no"))

    assert prints(xcube.jit(noisy), True, capsys=capsys) == ["yes"]
    assert prints(noisy, False, capsys=capsys) == ["no"]
    both = prints(xcube.vmap(noisy), np.array([True, True]), capsys=capsys)
    assert sorted(both) == ["no", "yes"]  # as in JAX: all branches run for a batch


def test_a_loop_that_only_prints_runs(capsys: Any) -> None:
    def noisy(n: Any) -> Any:
        return lax.fori_loop(0, n, lambda i, _: xcube.debug.print("{}", i), None)

    assert prints(xcube.jit(noisy), 3, capsys=capsys) == ["0", "1", "2"]
    assert prints(noisy, 2, capsys=capsys) == ["0", "1"]


def test_a_step_prints_once_under_linearize(capsys: Any) -> None:
    """The linear program of a while_loop goes through its steps again, and is silent."""

    def noisy(x: Any) -> Any:
        def body(c: Any) -> Any:
            xcube.debug.print("{}", c)
            return c * 2

        return lax.while_loop(lambda c: c < 5, body, x)

    def twice(x: Any) -> None:
        _, linear = xcube.linearize(noisy, x)
        assert float(linear(1.0)) == 8

    assert prints(twice, 1.0, capsys=capsys) == ["1.0", "2.0", "4.0"]
    assert prints(lambda x: xcube.jvp(noisy, (x,), (x,)), 2.0, capsys=capsys) == ["2.0", "4.0"]


# the loops of a derivative --------------------------------------------------------------------


def equations(jaxpr: Jaxpr, name: str) -> list[Equation]:
    found = [eqn for eqn in jaxpr.equations if eqn.primitive.name == name]
    inner = (equations(sub, name) for eqn in jaxpr.equations for sub in subjaxprs(eqn))
    return found + [eqn for eqns in inner for eqn in eqns]


def grad_loops(form: Callable[..., Any], *args: Any) -> list[Equation]:
    """The scans of a gradient, in order."""
    jaxpr = xcube.make_jaxpr(xcube.grad(form, tuple(range(len(args)))))(*args)
    check(jaxpr)
    return equations(jaxpr, "scan")


def stacked(eqn: Equation) -> list[str]:
    return [str(var.aval) for var in eqn.outputs[eqn.params["num_carry"] :]]


def test_residuals_are_stored_where_they_cost_least() -> None:
    """Stacked is what changes from step to step: the carry, and its product with the matrix. The
    exponential of the matrix is computed before the loops, a constant of both; xs are xs."""

    def form(w: Any, c: Any, xs: Any) -> Any:
        return lax.scan(lambda c, x: (jnp.exp(w) @ c * x, None), c, xs)[0].sum()

    forward, back = grad_loops(form, W, X, XS)
    assert stacked(forward) == ["f32[4,3]", "f32[4,3]"]
    assert equations(forward.params["jaxpr"], "exp") == []
    assert equations(back.params["jaxpr"], "exp") == []
    assert back.params["reverse"] and not forward.params["reverse"]
    rows = [
        str(a.aval) for a in back.inputs[back.params["num_consts"] + back.params["num_carry"] :]
    ]
    assert rows == ["f32[4,3]"] * 3  # those two and the xs


def test_residuals_that_are_views_are_not_stored() -> None:
    def form(c: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            return jnp.sum(c * x[:, None] * jnp.ones((3, 3)), 0), None

        return lax.scan(step, c, xs)[0].sum()

    forward, _ = grad_loops(form, X, XS)
    assert all(aval in ("f32[4,3]",) for aval in stacked(forward))


def test_what_has_no_tangent_is_not_differentiated() -> None:
    """Only the carry that depends on x has a tangent; ys without cotangents go nowhere."""

    def form(x: Any) -> Any:
        def step(c: Any, k: Any) -> Any:
            return (c[0] * x, jnp.sin(c[1]), c[2] + 1), (jnp.cos(c[1]), k)

        return lax.scan(step, (x, x * 0 + 1.0, 0), jnp.arange(3))[0][0].sum()

    joint = xcube.make_jaxpr(lambda x: xcube.jvp(form, (x,), (x,)))(X)
    (loop,) = equations(joint, "scan")
    assert loop.params["num_carry"] == 3 + 2
    _, back = grad_loops(form, X)
    assert back.params["num_carry"] == 1 + 1  # the cotangent of c[0], and the sum for x


def test_fixed_carries_become_constants_and_forwarded_rows_are_not_copied() -> None:
    @xcube.make_jaxpr
    def looped(c: Any, w: Any, xs: Any) -> Any:
        return lax.scan(lambda c, x: ((c[0] * c[1], c[1]), (x, c[0])), (c, w), xs)

    jaxpr = looped(X, X, XS)
    (loop,) = equations(jaxpr, "scan")
    assert (loop.params["num_consts"], loop.params["num_carry"]) == (1, 1)
    assert jaxpr.outputs[1] is jaxpr.inputs[1]
    assert jaxpr.outputs[2] is jaxpr.inputs[2]


def test_forward_mode_of_while_is_one_loop() -> None:
    form = lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c * 2 + 1, x)  # noqa: E731
    joint = xcube.make_jaxpr(lambda x: xcube.jvp(form, (x,), (x,)))(X)
    assert len(equations(joint, "while")) == 1


@pytest.mark.parametrize("reverse", [False, True])
def test_a_linear_loop_with_a_known_counter_is_transposed(reverse: bool) -> None:
    """The counter depends on nothing linear: a loop of its own gives its values."""

    def form(x: Any, xs: Any, k: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            total, count, scale = c
            total = total * jnp.sin(count) + row * scale
            return (total, count + 1.0, scale), total * count

        return lax.scan(step, (x, k, k * 3), xs, reverse=reverse)

    def flat(x: Any, xs: Any, k: Any) -> list[Any]:
        (last, count, scale), ys = form(x, xs, k)
        return [last, count, scale, ys]

    k = np.float32(0.5)
    jaxpr = xcube.make_jaxpr(flat)(X, XS, k)
    check(jaxpr)
    cts = [jnp.asarray(X), None, None, jnp.asarray(np.cos(XS))]
    args = [Linear(jaxpr.in_avals[0]), Linear(jaxpr.in_avals[1]), jnp.asarray(k)]
    found = backward(jaxpr, args, cts)

    def loss(x: Any, xs: Any) -> Any:
        last, _, _, ys = flat(x, xs, k)
        return (last * X).sum() + (ys * np.cos(XS)).sum()

    wanted = xcube.grad(loss, (0, 1))(X, XS)
    assert found[2] is None
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-5, atol=1e-6)


def test_every_derived_program_is_well_typed() -> None:
    def form(w: Any, x: Any, p: Any) -> Any:
        def step(c: Any, r: Any) -> Any:
            c = lax.cond(p, lambda c: jnp.sin(w @ c), lambda c: c * r, c)
            return c, lax.fori_loop(0, 2, lambda i, t: t * r, c)

        return sum(part.sum() for part in lax.scan(step, x, XS))

    grad = xcube.grad(form, (0, 1))
    programs = [
        xcube.make_jaxpr(grad)(W, X, True),
        xcube.make_jaxpr(xcube.vmap(grad, (None, 0, 0)))(W, XS, np.array([True, False] * 2)),
        xcube.make_jaxpr(lambda *a: xcube.jvp(grad, a, a))(W, X, 1.0),
        xcube.make_jaxpr(xcube.grad(lambda *a: grad(*a)[0].sum()))(W, X, True),
    ]
    for program in programs:
        check(program)
        assert equations(program, "scan")


def test_a_scan_is_checked() -> None:
    jaxpr = xcube.make_jaxpr(lambda x: lax.scan(lambda c, x: (c + x, c), x, XS))(X)
    (eqn,) = equations(jaxpr, "scan")
    avals = [atom.aval for atom in eqn.inputs]
    assert [str(a) for a in scan_p.abstract(*avals, **eqn.params)] == ["f32[3]", "f32[4,3]"]
    for wrong in ({"length": 3}, {"num_carry": 0}, {"num_consts": 1}):
        with pytest.raises((TypeError, ValueError), match="scan"):
            scan_p.abstract(*avals, **{**eqn.params, **wrong})
