"""checkpoint: the same values and derivatives of every order, whatever a policy saves, under every
transform; and what the door refuses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from remat_programs import POLICIES, PROGRAMS, XCUBE, V, W, X, arrays, total

import xcube
import xcube.ad_checkpoint as remat
import xcube.numpy as jnp
from xcube import checkpoint, lax
from xcube import checkpoint_policies as policies
from xcube.errors import ConcretizationTypeError, DeviceError, TraceError
from xcube.ir import Aval

# values ---------------------------------------------------------------------------------------


def derivatives(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Value, gradient, and the gradient of the gradient's squares."""

    def all_of_them(*xs: Any) -> tuple[Any, ...]:
        first = xcube.grad(total(function))
        second = xcube.grad(lambda *ys: jnp.sum(first(*ys) ** 2))
        return function(*xs), first(*xs), second(*xs)

    return xcube.jit(all_of_them)(*arrays(args))


@functools.cache
def plain_derivatives(program: str) -> tuple[Any, ...]:
    make, args = PROGRAMS[program]
    return derivatives(make(XCUBE), args)


@pytest.mark.parametrize("policy", ["default", "everything", "dots", "names", "both"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_first_and_second_derivatives_are_those_without(program: str, policy: str) -> None:
    make, args = PROGRAMS[program]
    kept = checkpoint(make(XCUBE), policy=POLICIES[policy](XCUBE))
    for ours, plain in zip(derivatives(kept, args), plain_derivatives(program), strict=True):
        np.testing.assert_allclose(ours, plain, 1e-3, 1e-3)


MODES: dict[str, Callable[[Any, Any], Any]] = {
    "eager": lambda f, x: xcube.grad(f)(x),
    "jit": lambda f, x: xcube.jit(xcube.grad(f))(x),
    "grad of jit": lambda f, x: xcube.grad(xcube.jit(f))(x),
    "jvp": lambda f, x: xcube.jvp(f, (x,), (x * 2,))[1],
    "linearize": lambda f, x: xcube.linearize(f, x)[1](x * 2),
    "vmap of grad": lambda f, x: xcube.vmap(xcube.grad(f))(jnp.stack([x, x * 2])),
    "grad of vmap": lambda f, x: xcube.grad(lambda xs: jnp.sum(xcube.vmap(f)(xs)))(
        jnp.stack([x, x * 2])
    ),
    "jvp of grad": lambda f, x: xcube.jvp(xcube.grad(f), (x,), (x * 2,))[1],
    "grad of jvp": lambda f, x: xcube.grad(lambda y: xcube.jvp(f, (y,), (y * 2,))[1])(x),
    "vjp twice": lambda f, x: [xcube.vjp(f, x)[1](jnp.float32(s))[0] for s in (1, 3)],
    "third order": lambda f, x: xcube.grad(
        lambda y: jnp.sum(xcube.grad(lambda z: jnp.sum(xcube.grad(f)(z) ** 2))(y) ** 2)
    )(x),
    "hessian": lambda f, x: xcube.vmap(lambda v: xcube.jvp(xcube.grad(f), (x,), (v,))[1])(
        jnp.eye(x.size).reshape(x.size, *x.shape)
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", ["default", "everything", "dots"])
def test_every_transform_sees_the_same_function(mode: str, policy: str) -> None:
    inner = checkpoint(jnp.sin, policy=POLICIES[policy](XCUBE))

    def plain(x: Any) -> Any:
        return jnp.sum(jnp.exp(jnp.sin(x @ W[0, :4, :4])) * x)

    def kept(x: Any) -> Any:  # one inside another
        def outer(y: Any) -> Any:
            return jnp.exp(inner(y @ W[0, :4, :4])) * y

        return jnp.sum(checkpoint(outer, policy=POLICIES[policy](XCUBE))(x))

    x = jnp.asarray(X[:2, :4])
    expected, found = (MODES[mode](f, x) for f in (plain, kept))
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4)


def test_a_checkpoint_in_the_body_of_a_scan() -> None:
    def layer(h: Any, w: Any) -> tuple[Any, Any]:
        return jnp.sin(jnp.exp(jnp.sin(h @ w))), None

    def model(turn: Any) -> Callable[..., Any]:
        return lambda x, w: jnp.sum(lax.scan(turn, x, w)[0] ** 2)

    args = arrays((X, W))
    plain = xcube.jit(xcube.grad(model(layer), (0, 1)))(*args)
    kept = xcube.jit(xcube.grad(model(checkpoint(layer)), (0, 1)))(*args)
    for ours, theirs in zip(kept, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-5, 1e-5)
    stacks = [str(a) for a, _ in remat.saved_residuals(model(checkpoint(layer)), *args)]
    assert stacks.count("f32[3,4,8]") == 1  # the carries of the turns, nothing else of them


def test_rules_of_the_user_hold_inside() -> None:
    @xcube.custom_jvp
    def tripled(x: Any) -> Any:
        return jnp.sin(x)

    tripled.defjvp(lambda xs, dxs: (tripled(xs[0]), 3 * jnp.cos(xs[0]) * dxs[0]))

    @xcube.custom_vjp
    def doubled(x: Any) -> Any:
        return jnp.exp(x)

    doubled.defvjp(lambda x: (doubled(x), 2 * jnp.exp(x)), lambda slope, ct: (slope * ct,))
    function = checkpoint(lambda x: jnp.sin(doubled(tripled(x))))
    inner = np.exp(np.sin(V))
    np.testing.assert_allclose(
        xcube.vmap(xcube.grad(function))(V), np.cos(inner) * 2 * inner * 3 * np.cos(V), 1e-4, 1e-5
    )


def test_a_mapped_axis_has_its_name_inside() -> None:
    function = checkpoint(lambda x: jnp.sin(x) * lax.axis_size("i") + lax.psum(x, "i"))
    mapped = xcube.vmap(function, axis_name="i")
    for size in (3, 5):  # one function, two sizes
        x = V[:size]
        np.testing.assert_allclose(mapped(x), np.sin(x) * size + x.sum(), 1e-5, 1e-5)
        gradient = xcube.grad(lambda x: jnp.sum(mapped(x)))(x)
        np.testing.assert_allclose(gradient, np.cos(x) * size + size, 1e-5)


# calls ----------------------------------------------------------------------------------------


def test_arguments_are_any_pytrees() -> None:
    @checkpoint
    def function(tree: Any, n: Any, *, scale: Any) -> Any:
        return {"y": jnp.sin(tree["a"][0]) * n * scale, "n": n, "none": None}

    def loss(tree: Any) -> Any:
        return jnp.sum(function(tree, jnp.arange(3), scale=2)["y"])

    x = jnp.arange(3.0)
    gradient = xcube.grad(loss)({"a": [x], "b": None})
    np.testing.assert_allclose(gradient["a"][0], np.cos(x) * 2 * np.arange(3), 1e-6)
    out = function({"a": [x]}, 3, scale=1.0)
    assert out["none"] is None
    assert int(out["n"]) == 3


def test_it_closes_over_what_is_differentiated() -> None:
    def loss(w: Any) -> Any:
        return jnp.sum(checkpoint(lambda x: jnp.sin(x * w) * w)(V))

    expected = np.sum(np.cos(V * 0.5) * V * 0.5 + np.sin(V * 0.5))
    np.testing.assert_allclose(xcube.grad(loss)(jnp.float32(0.5)), expected, 1e-5)
    np.testing.assert_allclose(xcube.jit(xcube.grad(loss))(jnp.float32(0.5)), expected, 1e-5)


def test_it_decorates_functions_and_methods() -> None:
    class Model:
        factor = 3.0

        @checkpoint(policy=policies.dots_saveable)
        def __call__(self, x: Any) -> Any:
            """Documentation."""
            return jnp.sin(x) * self.factor

    assert Model.__call__.__doc__ == "Documentation."
    assert xcube.remat is checkpoint
    with pytest.raises(TypeError, match=r"argument 0 is Model.*static"):
        Model()(1.0)


def test_a_method_works_with_its_object_static() -> None:
    class Model:
        factor = 3.0

        @checkpoint(static_argnums=0)
        def __call__(self, x: Any) -> Any:
            return jnp.sin(x) * self.factor

    np.testing.assert_allclose(xcube.grad(Model())(1.0), 3 * np.cos(1), 1e-6)


def test_static_arguments_stay_python_values() -> None:
    traced: list[Any] = []

    def power(x: Any, n: int, mode: Any = "sum") -> Any:
        traced.append((n, mode))
        y = x**n
        return jnp.sum(y) if mode == "sum" else jnp.max(y)

    function = checkpoint(power, static_argnums=1, static_argnames="mode")
    gradient = xcube.grad(lambda x, n, *mode: function(x, n, *mode))
    x = jnp.arange(3.0)
    for _ in range(2):
        np.testing.assert_allclose(gradient(x, 3), 3 * np.arange(3.0) ** 2)
        np.testing.assert_allclose(gradient(x, 2, "max"), [0, 0, 4])
    assert traced == [(3, "sum"), (2, "max")]
    last = checkpoint(lambda x, options: x * options["scale"], static_argnums=-1)
    assert float(xcube.grad(last)(2.0, {"scale": 3.0})) == 3


def test_one_signature_is_traced_once() -> None:
    traced: list[Any] = []

    def layer(x: Any) -> Any:
        traced.append(x.shape)
        return jnp.sin(x)

    function = checkpoint(layer)
    for _ in range(3):
        xcube.grad(lambda x: jnp.sum(function(function(x))))(jnp.ones(3))
    function(jnp.ones(4))
    assert traced == [(3,), (4,)]


def test_python_cannot_branch_on_values_inside() -> None:
    with pytest.raises(ConcretizationTypeError, match="static_argnums"):
        checkpoint(lambda x: x if x > 0 else -x)(1.0)


BAD_CALLS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no function": (lambda: checkpoint(3), TypeError, "must be a function; got int"),
    "policy of another kind": (
        lambda: checkpoint(jnp.sin, policy="dots_saveable"),
        TypeError,
        r"dots_saveable.*got 'dots_saveable'. At test_checkpoint.py",
    ),
    "maker of policies": (
        lambda: xcube.grad(checkpoint(jnp.sin, policy=policies.save_only_these_names))(1.0),
        TypeError,
        "name must be a string; got cos",
    ),
    "no answer": (
        lambda: xcube.grad(checkpoint(jnp.sin, policy=lambda *_, **__: None))(1.0),
        TypeError,
        "answered None for cos",
    ),
    "no answer of one of two": (
        lambda: xcube.grad(
            checkpoint(
                jnp.sin,
                policy=policies.save_from_both_policies(
                    policies.dots_saveable, lambda *_, **__: remat.Saveable
                ),
            )
        )(1.0),
        ValueError,
        "both policies must answer",
    ),
    "offloading answer": (
        lambda: xcube.grad(
            checkpoint(jnp.sin, policy=lambda *_, **__: remat.Offloadable("device", "host"))
        )(1.0),
        DeviceError,
        "two memories.*'host'",
    ),
    "offloading of dots": (
        lambda: policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
        DeviceError,
        "dots_with_no_batch_dims_saveable",
    ),
    "offloading of names": (
        lambda: policies.save_and_offload_only_these_names(
            names_which_can_be_saved=["a"],
            names_which_can_be_offloaded=["b"],
            offload_src="device",
            offload_dst="pinned_host",
        ),
        DeviceError,
        "pinned_host",
    ),
    "no name": (lambda: remat.checkpoint_name(1.0, 3), TypeError, "must be a string; got 3"),
    "no array": (lambda: remat.checkpoint_name("x", "a"), TypeError, "got str"),
    "bytes below zero": (lambda: policies.budget(-1), ValueError, ">= 0; got -1"),
    "budget asked": (
        lambda: policies.budget(1)(lax.sin_p, Aval((), np.dtype("float32"))),
        TraceError,
        "whole functions.*sin",
    ),
    "no flag": (lambda: checkpoint(jnp.sin, prevent_cse=1), TypeError, "a bool or a tuple"),
    "no number": (lambda: checkpoint(jnp.sin, static_argnums="x"), TypeError, "ints; got 'x'"),
    "no such argument": (
        lambda: checkpoint(jnp.sin, static_argnums=1)(1.0),
        ValueError,
        r"sin, which got 1; got \(1,\)",
    ),
    "no such name": (
        lambda: checkpoint(lambda x: x, static_argnames="y"),
        ValueError,
        "parameters of <lambda>; got y",
    ),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_wrong_use_is_named(case: str) -> None:
    call, error, message = BAD_CALLS[case]
    with pytest.raises(error, match=message):
        call()
