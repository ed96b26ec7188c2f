"""Rows of attention, its tangents and its cotangents: sizes at which it is the composition. The
kernels are tested in test_attention.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from op_table import Row

from xcube.primitives.attention import (
    LOWEST,
    Form,
    attention,
    attention_backward_p,
    attention_jvp_p,
)
from xcube.trace import bind

Array = np.ndarray[Any, Any]


def softmax_of(q: Array, k: Array, form: Form, *others: Array) -> tuple[Array, Array, Array]:
    """Weights [b, n, t, s], the logarithm of their sums, and which scores count, in float64."""
    group, rest = q.shape[2] // k.shape[2], list(others)
    scores = np.einsum("btnh,bsnh->bnts", np.float64(q), np.repeat(np.float64(k), group, 2))
    scores = scores * form.scale
    scores = scores + np.float64(rest.pop(0)) if form.bias else scores
    row, column = np.arange(q.shape[1])[:, None], np.arange(k.shape[1])
    counts = np.ones(scores.shape, bool)
    counts &= rest.pop(0) if form.mask else True
    counts &= column < rest.pop(0)[:, None, None, None] if form.lengths else True
    counts &= column >= row - form.left if form.left is not None else True
    counts &= column <= row + form.right if form.right is not None else True
    scores = np.where(counts, scores, LOWEST)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    return weights / total, (top + np.log(total))[..., 0], counts


def expected(q: Array, k: Array, v: Array, *others: Array, form: Form) -> tuple[Array, Array]:
    weights, log_total, _ = softmax_of(q, k, form, *others)
    return weighted(weights, v), log_total


def weighted(weights: Array, v: Array) -> Array:
    """[b, n, t, s] and [b, s, m, e] as [b, t, n, e]."""
    values = np.repeat(np.float64(v), weights.shape[1] // v.shape[2], 2)
    return np.einsum("bnts,bsne->btne", weights, values)


PLAIN, MASKED = Form(0.4), Form(0.3, 3, 1, bias=True, mask=True, lengths=True)


def normal(*shapes: tuple[int, ...]) -> Any:
    """Makers of float arrays, with a mask and lengths behind them if there are four."""

    def sample(generator: np.random.Generator) -> tuple[Array, ...]:
        arrays = [generator.normal(size=shape).astype(np.float32) for shape in shapes]
        return tuple(arrays)

    return sample


def masked(generator: np.random.Generator) -> tuple[Array, ...]:
    arrays = normal((2, 3, 4, 2), (2, 5, 2, 2), (2, 5, 2, 3), (1, 4, 3, 1))(generator)
    mask = generator.random((2, 1, 3, 5)) < 0.7
    mask[0, 0, 1] = False
    return (*arrays, mask, np.array([5, 4], np.int32))


def attended(q: Any, k: Any, v: Any, *others: Any, form: Form) -> Any:
    names = (form.bias, form.mask, form.lengths)
    rest = iter(others)
    given = [next(rest) if flag else None for flag in names]
    return attention(q, k, v, *given, scale=form.scale, left=form.left, right=form.right)


def tangents(q: Any, k: Any, v: Any, dq: Any, dk: Any, dv: Any) -> Any:
    out, log_total = attention(q, k, v, scale=PLAIN.scale)
    nonzero = (True, True, True, False)
    return bind(attention_jvp_p, q, k, v, out, log_total, dq, dk, dv, form=PLAIN, nonzero=nonzero)


def expected_tangents(
    q: Array, k: Array, v: Array, dq: Array, dk: Array, dv: Array
) -> tuple[Array, Array]:
    """By central differences in float64."""
    steps, size = [], 1e-5
    for sign in (size, -size):
        moved = [x.astype(float) + sign * dx for x, dx in ((q, dq), (k, dk), (v, dv))]
        steps.append(expected(*moved, form=PLAIN))
    found = [(x - y) / (2 * size) for x, y in zip(*steps, strict=True)]
    return found[0], found[1]


def cotangents(q: Any, k: Any, v: Any, ct: Any, delta: Any) -> Any:
    _, log_total = attention(q, k, v, scale=PLAIN.scale)
    return bind(attention_backward_p, q, k, v, log_total, delta, ct, form=PLAIN, bias_too=False)


def expected_cotangents(q: Array, k: Array, v: Array, ct: Array, delta: Array) -> tuple[Array, ...]:
    weights, _, _ = softmax_of(q, k, PLAIN)
    group = q.shape[2] // k.shape[2]
    q, k, v, ct = (x.astype(float) for x in (q, k, v, ct))
    products = np.einsum("btne,bsne->bnts", ct, np.repeat(v, group, 2))
    slopes = weights * (products - delta[..., None]) * PLAIN.scale
    dq = np.einsum("bnts,bsnh->btnh", slopes, np.repeat(k, group, 2))
    pairs = np.einsum("bnts,btnh->bsnh", slopes, q), np.einsum("bnts,btne->bsne", weights, ct)
    grouped = [x.reshape(*x.shape[:2], -1, group, x.shape[3]).sum(3) for x in pairs]
    return dq, *grouped


Q, K, V = (2, 3, 4, 2), (2, 5, 2, 2), (2, 5, 2, 3)

ROWS = [
    Row(
        "attention",
        lambda q, k, v: attended(q, k, v, form=PLAIN),
        [normal(Q, K, V), normal((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1))],
        lambda q, k, v: expected(q, k, v, form=PLAIN),
        differentiable=(0, 1, 2),
    ),
    Row(
        "attention[masked]",
        lambda *args: attended(*args, form=MASKED),
        [masked],
        lambda *args: expected(*args, form=MASKED),
        differentiable=(0, 1, 2, 3),
    ),
    Row(
        "attention_jvp",
        tangents,
        [normal(Q, K, V, Q, K, V)],
        expected_tangents,
        differentiable=(0, 1, 2, 3, 4, 5),
        order=1,
    ),
    Row(
        "attention_backward",
        cotangents,
        [normal(Q, K, V, (2, 3, 4, 3), (2, 4, 3))],
        expected_cotangents,
        differentiable=(0, 1, 2, 3, 4),
        order=1,
    ),
]
