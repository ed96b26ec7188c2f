"""Control flow as Python loops and branches under JAX's names: what the device's must agree with.
Bodies run on whatever arrays they are given, so that JAX differentiates the unrolled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def scan(
    f: Callable[..., Any], init: Any, xs: Any = None, length: int | None = None,
    reverse: bool = False, unroll: Any = 1,
) -> tuple[Any, Any]:  # fmt: skip
    count = length if length is not None else len(jax.tree.leaves(xs)[0])
    carry, ys = init, []
    for k in reversed(range(count)) if reverse else range(count):
        carry, y = f(carry, jax.tree.map(lambda x, k=k: x[k], xs))
        ys.append(y)
    ys = ys[::-1] if reverse else ys
    return carry, jax.tree.map(lambda *rows: jnp.stack(rows), *ys)


def while_loop(cond_fun: Callable[..., Any], body_fun: Callable[..., Any], init_val: Any) -> Any:
    value = init_val
    while cond_fun(value):
        value = body_fun(value)
    return value


def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[..., Any], init_val: Any, unroll: Any = None
) -> Any:
    value = init_val
    for k in range(int(lower), int(upper)):
        value = body_fun(k, value)
    return value


def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *args: Any) -> Any:
    return true_fun(*args) if pred else false_fun(*args)


def switch(index: Any, branches: Any, *args: Any) -> Any:
    return branches[min(max(int(index), 0), len(branches) - 1)](*args)


def map(f: Callable[..., Any], xs: Any, batch_size: int | None = None) -> Any:
    return scan(lambda _, x: (None, f(x)), None, xs)[1]


def associative_scan(
    fn: Callable[..., Any], elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
    def row(k: int) -> Any:
        return jax.tree.map(lambda x: jnp.take(x, jnp.array([k]), axis), elems)

    count = jax.tree.leaves(elems)[0].shape[axis]
    order = list(reversed(range(count))) if reverse else list(range(count))
    found = [row(order[0])]
    for k in order[1:]:
        found.append(fn(found[-1], row(k)))
    found = found[::-1] if reverse else found
    return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis), *found)
