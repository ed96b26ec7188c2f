"""Samplers that pick and arrange: permutation, choice, categorical. Each gives JAX's numbers for
the same key."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

import xcube.numpy as jnp
from xcube import dtypes, lax
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import Shape, at_user_line
from xcube.numpy.operands import canonical_axis, canonical_shape
from xcube.primitives.random_bits import threefry_random_bits, threefry_split
from xcube.random.distributions import gumbel, gumbel_mode, gumbel_of
from xcube.random.keys import single_key
from xcube.random.uniform import compiled, randint, sample_shape, uniform

# arranging ------------------------------------------------------------------------------------


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False) -> Array:
    """x with its entries along an axis in random order; the numbers below x if x is an integer.

    `independent`: whether each line along the axis gets an order of its own.
    Raises TypeError if a scalar x is no integer, ShapeError if there is no such axis.

    >>> from xcube.random import key
    >>> sorted(permutation(key(0), 4).tolist())
    [0, 1, 2, 3]
    """
    data = single_key("permutation", key)
    if np.ndim(x) == 0:
        x = jnp.arange(_count("permutation", x))
    x = jnp.asarray(x)
    axis = canonical_axis("permutation", axis, x.ndim, x.aval)
    if independent or x.ndim == 1:
        return _shuffled(data, x, axis=axis)
    order = _shuffled(data, jnp.arange(x.shape[axis]), axis=0)
    return jnp.take(x, order, axis=axis)


def _count(name: str, x: Any) -> int:
    try:
        return operator.index(x)
    except TypeError as error:
        raise TypeError(
            f"{name}: a scalar must be an integer known while tracing; got {x!r}.{at_user_line()}"
        ) from error


@compiled
def _shuffled(data: Any, x: Any, *, axis: int) -> Any:
    """Sort by random words, so often that equal words cannot favour the old order."""
    rounds = math.ceil(3 * math.log(max(1, x.size)) / math.log(0xFFFFFFFF))
    for _ in range(rounds):
        data, key = threefry_split(data, (2,))
        _, x = lax.sort_key_val(threefry_random_bits(key, 32, x.shape), x, axis)
    return x


# picking --------------------------------------------------------------------------------------


def choice(
    key: Any,
    a: Any,
    shape: Sequence[int] = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    mode: str | None = None,
) -> Array:
    """Entries of a along an axis, or numbers below a if a is an integer.

    `p`: probability of each entry, all equal if None. `replace`: whether one may come again.
    Raises ShapeError if p does not fit a, ValueError if there are too few entries.

    >>> from xcube.random import key
    >>> choice(key(0), 10, (3,), replace=False).shape
    (3,)
    """
    shape = sample_shape("choice", shape)
    entries = None if np.ndim(a) == 0 else jnp.asarray(a)
    axis = 0 if entries is None else canonical_axis("choice", axis, entries.ndim, entries.aval)
    count = _count("choice", a) if entries is None else entries.shape[axis]
    draws = math.prod(shape)
    _check_draws(count, draws, replace)
    if p is None and not replace:
        mixed = permutation(key, count if entries is None else entries, axis)
        picked = lax.slice_in_dim(mixed, 0, draws, axis=axis)
    else:
        if p is None:
            places = randint(key, shape, 0, count) if draws else jnp.zeros(shape, int)
        else:
            places = _weighted(key, _probabilities(p, count), shape, replace, mode)
        picked = places if entries is None else jnp.take(entries, places, axis=axis)
    around = ((), ()) if entries is None else (entries.shape[:axis], entries.shape[axis + 1 :])
    return picked.reshape((*around[0], *shape, *around[1]))


def _check_draws(count: int, draws: int, replace: bool) -> None:
    if draws and count <= 0:
        raise ValueError(f"choice: there must be entries to choose from; got 0.{at_user_line()}")
    if not replace and draws > count:
        raise ValueError(
            f"choice: without replacement at most {count} entries can be drawn; got {draws}."
            f"{at_user_line()}"
        )


def _probabilities(p: Any, count: int) -> Array:
    p = jnp.asarray(p)
    if p.shape != (count,):
        raise ShapeError(
            f"choice: p must have one probability for each of {count} entries; got {p.aval}."
            f"{at_user_line()}"
        )
    return p if dtypes.is_inexact(p.dtype) else p.astype(float)


def _weighted(key: Any, p: Array, shape: Shape, replace: bool, mode: str | None) -> Any:
    if replace:
        sums = jnp.cumsum(p)
        wanted = sums[-1] * (1 - uniform(key, shape, sums.dtype))
        return jnp.searchsorted(sums, wanted).astype(int)
    scores = gumbel(key, p.shape, p.dtype, mode) + jnp.log(p)
    return lax.top_k(scores, math.prod(shape))[1].astype(int)


def categorical(
    key: Any,
    logits: Any,
    axis: int = -1,
    shape: Any = None,
    replace: bool = True,
    mode: str | None = None,
) -> Array:
    """Categories along an axis, with probabilities softmax(logits): i32[*shape].

    `shape` must end in the logits' shape without the axis. `replace`: whether one category may
    come again in the leading axes of the shape.
    Raises ShapeError if the shape does not fit, ValueError if there are too few categories.

    >>> from xcube.random import key
    >>> categorical(key(0), jnp.array([0.0, 0.0, 100.0]))
    Array(2, dtype=int32)
    """
    logits = jnp.asarray(logits)
    axis = canonical_axis("categorical", axis, logits.ndim, logits.aval)
    batch = logits.shape[:axis] + logits.shape[axis + 1 :]
    shape = batch if shape is None else canonical_shape("categorical", shape)
    prefix, inner = shape[: len(shape) - len(batch)], shape[len(shape) - len(batch) :]
    fits = len(inner) == len(batch) and all(
        size in (wanted, 1 if replace else wanted)
        for size, wanted in zip(batch, inner, strict=True)
    )
    if not fits:
        raise ShapeError(
            f"categorical: the shape must end in {batch}, that of the logits {logits.aval} without "
            f"the axis {axis}; got {shape}.{at_user_line()}"
        )
    mode, data = gumbel_mode("categorical", mode), single_key("categorical", key)
    if replace:
        noise = (*prefix, *inner[:axis], logits.shape[axis], *inner[axis:])
        return _categorical(data, logits, axis=len(prefix) + axis, shape=noise, mode=mode)
    if (draws := math.prod(prefix)) > logits.shape[axis]:
        raise ValueError(
            f"categorical: without replacement at most {logits.shape[axis]} categories can be "
            f"drawn; got {draws}.{at_user_line()}"
        )
    return _distinct(data, logits, axis=axis, shape=shape, draws=draws, mode=mode)


@compiled
def _categorical(data: Any, logits: Any, *, axis: int, shape: Shape, mode: str) -> Any:
    return jnp.argmax(gumbel_of(data, shape, logits.dtype, mode) + logits, axis=axis)


@compiled
def _distinct(data: Any, logits: Any, *, axis: int, shape: Shape, draws: int, mode: str) -> Any:
    scores = logits + gumbel_of(data, logits.shape, logits.dtype, mode)
    _, places = lax.top_k(jnp.moveaxis(scores, axis, -1), draws)
    return jnp.moveaxis(places, -1, 0).reshape(shape)
