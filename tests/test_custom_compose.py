"""Custom rules under compositions of transforms. The function is sine on a grid so fine that only a
derivative shows it: its own is zero, that of its rule is cosine. Whatever is done to it must give
what is given by sine itself."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube import custom_batching, lax

GRID = 2.0**20
X = np.linspace(-1.2, 1.3, 16, dtype=np.float32).reshape(2, 2, 2, 2)

Function = Callable[[Any], Any]


def _on_grid(x: Any) -> Any:
    return jnp.round(jnp.sin(x) * GRID) / GRID


def by_jvp() -> Function:
    f = xcube.custom_jvp(_on_grid)
    f.defjvp(lambda primals, tangents: (f(*primals), jnp.cos(primals[0]) * tangents[0]))
    return f


def by_jvps() -> Function:
    f = xcube.custom_jvp(_on_grid)
    f.defjvps(lambda dx, out, x: jnp.cos(x) * dx)
    return f


def by_symbolic_jvp() -> Function:
    f = xcube.custom_jvp(_on_grid)

    def rule(primals: Any, tangents: Any) -> Any:
        assert not isinstance(tangents[0], xcube.custom_derivatives.SymbolicZero)
        return f(*primals), jnp.cos(primals[0]) * tangents[0]

    f.defjvp(rule, symbolic_zeros=True)
    return f


def by_vjp() -> Function:
    f = xcube.custom_vjp(_on_grid)
    f.defvjp(lambda x: (f(x), x), lambda x, ct: (jnp.cos(x) * ct,))
    return f


def by_symbolic_vjp() -> Function:
    f = xcube.custom_vjp(_on_grid)
    f.defvjp(lambda x: (f(x.value), x.value), lambda x, ct: (jnp.cos(x) * ct,), symbolic_zeros=True)
    return f


def by_gradient() -> Function:
    value = by_jvp()  # whose derivative the second one needs
    return xcube.custom_gradient(lambda x: (value(x), lambda ct: (jnp.cos(x) * ct,)))


def by_vmap_inside() -> Function:
    inner = custom_batching.custom_vmap(_on_grid)
    inner.def_vmap(lambda size, batched, xs: (_on_grid(xs), batched[0]))
    f = xcube.custom_vjp(inner)
    f.defvjp(lambda x: (f(x), x), lambda x, ct: (jnp.cos(x) * ct,))
    return f


def sequential() -> Function:
    return custom_batching.sequential_vmap(by_jvp())


def _grad(f: Function) -> Function:
    return lambda x: (lambda out, pull: pull(jnp.ones_like(out))[0])(*xcube.vjp(f, x))


def _jvp(f: Function) -> Function:
    return lambda x: xcube.jvp(f, (x,), (jnp.ones_like(x),))[1]


def _scan(f: Function) -> Function:
    return lambda x: lax.scan(lambda c, k: (f(c) * k, None), x, jnp.array([0.5, 2.0]))[0]


def _cond(f: Function) -> Function:
    return lambda x: lax.cond(jnp.sum(x) > 0, f, lambda x: 2 * f(x), x)


TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "jit": xcube.jit,
    "vmap": xcube.vmap,
    "grad": _grad,
    "jvp": _jvp,
    "scan": _scan,
    "cond": _cond,
    "checkpoint": xcube.checkpoint,
}
REVERSE = [name for name in TRANSFORMS if name != "jvp"]
FORWARD_MAKERS = (by_jvp, by_jvps, by_symbolic_jvp, sequential)
REVERSE_MAKERS = (by_vjp, by_symbolic_vjp, by_gradient, by_vmap_inside)


def _cases() -> list[Any]:
    chance, cases = random.Random(3), []
    for makers, names in ((FORWARD_MAKERS, list(TRANSFORMS)), (REVERSE_MAKERS, REVERSE)):
        pairs = list(itertools.product(names, repeat=2))
        deep = [tuple(chance.choices(names, k=4)) for _ in range(24)]
        for n, chain in enumerate([*pairs, *deep]):
            make = makers[n % len(makers)]
            cases.append(pytest.param(make, chain, id="-".join((make.__name__, *chain))))
    return cases


@pytest.mark.parametrize(("make", "chain"), _cases())
def test_any_composition_is_that_of_the_rule(
    make: Callable[[], Function], chain: tuple[str, ...]
) -> None:
    got, want = make(), jnp.sin
    for name in chain:
        got, want = TRANSFORMS[name](got), TRANSFORMS[name](want)
    np.testing.assert_allclose(got(X), want(X), 2e-4, 2e-4)
