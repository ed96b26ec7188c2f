"""Attention: softmax(query keyᵀ scale + bias) value for each head, with the logarithm of the
softmax's denominator; its tangents and its cotangents. Each of the three is a composition of other
primitives; a device with kernels of the family need not hold the scores in memory.

query: f[b, t, n, h]; key: f[b, s, m, h]; value: f[b, s, m, e]; each of the m heads of key and value
serves n / m heads of query. Behind them come, where the form says so, a bias and a mask,
[b or 1, n or 1, t or 1, s or 1], and how many keys each example has, i32[b]. A score that does not
count is replaced by one that no softmax notices, so that a row without any that counts is the
average of all values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import Aval, Axis, Primitive, Shape, at_user_line
from xcube.primitives.bits import bitwise_and
from xcube.primitives.contract import dot_general
from xcube.primitives.convert import convert_element_type
from xcube.primitives.elementwise import div, mul, sub
from xcube.primitives.kinds import add, add_tangents, is_linear
from xcube.primitives.lowered import Expand
from xcube.primitives.reduce import reduce_max
from xcube.primitives.select import ge, le, lt, select
from xcube.primitives.shape import broadcast_in_dim, full, reduce_sum, reshape, transpose
from xcube.primitives.transcendental import exp, log
from xcube.primitives.view import iota, squeeze
from xcube.trace import aval_of, bind

LOWEST = -0.7 * float(np.finfo(np.float32).max)  # far below any score, yet far from overflow

_BY_SCORES = (((4,), (3,)), ((0, 2), (0, 2)))  # [b, t, m, g, h] . [b, s, m, h]
_BY_KEYS = (((4,), (1,)), ((0, 1), (0, 2)))  # [b, m, t, g, s] . [b, s, m, e]
_BY_QUERIES = (((2, 3), (1, 3)), ((0, 1), (0, 2)))  # [b, m, t, g, s] . [b, t, m, g, e]


class Form(NamedTuple):
    """What an attention computes: query i sees the keys from i - left to i + right, all on a side
    that is None; which of bias, mask and lengths are operands."""

    scale: float
    left: int | None = None
    right: int | None = None
    bias: bool = False
    mask: bool = False
    lengths: bool = False

    @property
    def operands(self) -> int:
        """How many operands an attention has."""
        return 3 + self.bias + self.mask + self.lengths

    def bound(self, args: Sequence[Any]) -> Operands:
        """The operands by name."""
        q, k, v, *rest = args[: self.operands]
        others = iter(rest)
        flags = (self.bias, self.mask, self.lengths)
        return Operands(q, k, v, *[next(others) if flag else None for flag in flags])


@dataclass(frozen=True)
class Operands:
    """The operands of an attention; None for those that the form does not have."""

    query: Any
    key: Any
    value: Any
    bias: Any = None
    mask: Any = None
    lengths: Any = None


def wide(dtype: np.dtype) -> np.dtype:
    """The dtype of scores, sums and logarithms."""
    return np.dtype(dtypes.promote_types(dtype, np.float32))


# the composition ------------------------------------------------------------------------------


def _grouped(x: Any, heads: int) -> Any:
    """[b, t, n, h] as [b, t, m, g, h]."""
    b, t, n, h = x.shape
    return reshape(x, (b, t, heads, n // heads, h))


def _scores(x: Any, y: Any, form: Form) -> Any:
    """[b, t, n, h] and [b, s, m, h] as scaled products [b, m, t, g, s]."""
    dtype, heads = wide(x.dtype), y.shape[2]
    return mul(dot_general(_grouped(x, heads), y, _BY_SCORES, None, dtype), form.scale)


def _weighted(weights: Any, value: Any) -> Any:
    """[b, m, t, g, s] and [b, s, m, e] as [b, t, n, e]."""
    mixed = dot_general(convert_element_type(weights, value.dtype), value, _BY_KEYS)
    b, m, t, g, e = mixed.shape
    return reshape(transpose(mixed, (0, 2, 1, 3, 4)), (b, t, m * g, e))


def _spread(x: Any, shape: Shape) -> Any:
    """[b or 1, n or 1, t or 1, s or 1] as [b, m, t, g, s]."""
    b, n, t, s = x.shape
    heads = (shape[1], shape[3]) if n > 1 else (1, 1)
    turned = transpose(reshape(x, (b, *heads, t, s)), (0, 1, 3, 2, 4))
    kept = [axis for axis in range(5) if turned.shape[axis] == shape[axis]]
    lost = [axis for axis in range(5) if axis not in kept]
    return broadcast_in_dim(squeeze(turned, lost) if lost else turned, shape, kept)


def _gathered(x: Any, aval: Aval) -> Any:
    """What was spread, summed again."""
    b, m, t, g, s = x.shape
    flat = reshape(transpose(x, (0, 1, 3, 2, 4)), (b, m * g, t, s))
    return summed(flat, aval)


def summed(x: Any, aval: Aval) -> Any:
    """x summed over the axes along which an aval has one element."""
    axes = [axis for axis in range(x.ndim) if aval.shape[axis] != x.shape[axis]]
    x = reshape(reduce_sum(x, axes), aval.shape) if axes else x
    return convert_element_type(x, aval.dtype)


def _counts(args: Operands, form: Form, shape: Shape) -> Any:
    """Which scores count, bool[b, m, t, g, s]; None if all do."""
    row, column = (iota(np.int32, shape, axis) for axis in (2, 4))
    tests = [] if args.mask is None else [_spread(args.mask, shape)]
    tests += [] if form.left is None else [ge(column, sub(row, form.left))]
    tests += [] if form.right is None else [le(column, add(row, form.right))]
    if args.lengths is not None:
        tests.append(lt(column, broadcast_in_dim(args.lengths, shape, (0,))))
    if not tests:
        return None
    found = tests[0]
    for test in tests[1:]:
        found = bitwise_and(found, test)
    return found


def _chances(args: Operands, form: Form) -> tuple[Any, Any, Any]:
    """The softmax of the scores, the logarithm of its denominator, and which scores count."""
    scores = _scores(args.query, args.key, form)
    if args.bias is not None:
        scores = add(scores, convert_element_type(_spread(args.bias, scores.shape), scores.dtype))
    counts = _counts(args, form, scores.shape)
    if counts is not None:
        scores = select(counts, scores, full(scores.shape, LOWEST, scores.dtype))
    rows = tuple(range(4))
    top = reduce_max(scores, (4,))
    weights = exp(sub(scores, broadcast_in_dim(top, scores.shape, rows)))
    total = reduce_sum(weights, (4,))
    return div(weights, broadcast_in_dim(total, scores.shape, rows)), add(top, log(total)), counts


def _by_heads(x: Any) -> Any:
    """[b, m, t, g] as [b, n, t]."""
    b, m, t, g = x.shape
    return reshape(transpose(x, (0, 1, 3, 2)), (b, m * g, t))


def _by_groups(x: Any, heads: int) -> Any:
    """[b, n, t] as [b, m, t, g]."""
    b, n, t = x.shape
    return transpose(reshape(x, (b, heads, n // heads, t)), (0, 1, 3, 2))


def _attention(*args: Any, form: Form) -> list[Any]:
    operands = form.bound(args)
    chances, log_total, _ = _chances(operands, form)
    return [_weighted(chances, operands.value), _by_heads(log_total)]


def _tangents(*args: Any, form: Form, nonzero: tuple[bool, ...]) -> list[Any]:
    operands, given = form.bound(args), iter(args[form.operands + 2 :])
    dq, dk, dv, dbias = [next(given) if flag else None for flag in nonzero]
    chances, _, counts = _chances(operands, form)
    terms = [] if dq is None else [_scores(dq, operands.key, form)]
    terms += [] if dk is None else [_scores(operands.query, dk, form)]
    if dbias is not None:
        terms.append(convert_element_type(_spread(dbias, chances.shape), chances.dtype))
    outs = [] if dv is None else [_weighted(chances, dv)]
    slopes = add_tangents(terms, chances)
    if slopes is None:
        return [outs[0], full(_by_heads(reduce_sum(chances, (4,))).shape, 0, chances.dtype)]
    if counts is not None:
        slopes = select(counts, slopes, full(slopes.shape, 0, slopes.dtype))
    parts = mul(chances, slopes)
    mean = reduce_sum(parts, (4,))
    slopes = sub(parts, mul(chances, broadcast_in_dim(mean, chances.shape, range(4))))
    outs.append(_weighted(slopes, operands.value))
    return [add_tangents(outs, None), _by_heads(mean)]


def _cotangents(*args: Any, form: Form, bias_too: bool) -> list[Any]:
    operands, (_, delta, ct) = form.bound(args), args[form.operands :]
    q, k, v = operands.query, operands.key, operands.value
    chances, _, counts = _chances(operands, form)
    plain = Form(1.0)
    inner = broadcast_in_dim(_by_groups(delta, k.shape[2]), chances.shape, range(4))
    slopes = mul(chances, sub(_scores(ct, v, plain), inner))
    if counts is not None:
        slopes = select(counts, slopes, full(slopes.shape, 0, slopes.dtype))
    results = [_weighted(convert_element_type(mul(slopes, form.scale), k.dtype), k)]
    for weights, x in ((mul(slopes, form.scale), q), (chances, ct)):
        mixed = dot_general(
            convert_element_type(weights, x.dtype), _grouped(x, k.shape[2]), _BY_QUERIES
        )
        results.append(transpose(mixed, (0, 2, 1, 3)))
    results = [convert_element_type(x, y.dtype) for x, y in zip(results, (q, k, v), strict=True)]
    return [*results, *([_gathered(slopes, aval_of(operands.bias))] if bias_too else [])]


# rules ----------------------------------------------------------------------------------------


def _check(args: Operands) -> None:
    q, k, v = args.query, args.key, args.value
    fits = (
        q.ndim == k.ndim == v.ndim == 4
        and k.shape[:3] == v.shape[:3]
        and (q.shape[0], q.shape[3]) == (k.shape[0], k.shape[3])
        and k.shape[2] > 0
        and q.shape[2] % k.shape[2] == 0
    )
    if not fits:
        raise ShapeError(
            f"attention: shapes must be [b, t, n, h], [b, s, m, h], [b, s, m, e], n a multiple of "
            f"m; got {q}, {k}, {v}.{at_user_line()}"
        )
    scores = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    for name, x in (("bias", args.bias), ("mask", args.mask)):
        if x is None:
            continue
        if x.ndim != 4 or any(a not in (1, b) for a, b in zip(x.shape, scores, strict=True)):
            raise ShapeError(
                f"attention: {name} must broadcast to [b, n, t, s] = {list(scores)}; got {x}."
                f"{at_user_line()}"
            )


def _attention_abstract(*avals: Aval, form: Form) -> tuple[Aval, Aval]:
    args = form.bound(avals)
    _check(args)
    (b, t, n, _), e = args.query.shape, args.value.shape[3]
    out = Aval((b, t, n, e), args.value.dtype)
    return out, Aval((b, n, t), wide(args.query.dtype))


def _attention_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, form: Form
) -> tuple[list[Any], list[Any]]:
    outs = bind(attention_p, *primals, form=form)
    given = [*tangents[:3], tangents[3] if form.bias else None]
    nonzero = tuple([tangent is not None for tangent in given])
    if not any(nonzero):
        return outs, [None, None]
    linear = [tangent for tangent in given if tangent is not None]
    return outs, bind(attention_jvp_p, *primals, *outs, *linear, form=form, nonzero=nonzero)


def _tangents_abstract(*avals: Aval, form: Form, nonzero: tuple[bool, ...]) -> tuple[Aval, Aval]:
    return _attention_abstract(*avals[: form.operands], form=form)


def _tangents_transpose(
    cts: Sequence[Any], *args: Any, form: Form, nonzero: tuple[bool, ...]
) -> list[Any]:
    operands, (out, log_total, *linear) = args[: form.operands], args[form.operands :]
    ct, ct_log = cts
    dtype = wide(out.dtype)
    ct = full(out.shape, 0, out.dtype) if ct is None else ct
    products = mul(convert_element_type(ct, dtype), convert_element_type(out, dtype))
    delta = transpose(reduce_sum(products, (3,)), (0, 2, 1))
    delta = delta if ct_log is None else sub(delta, ct_log)
    bias_too = nonzero[3] and is_linear(linear[-1])
    known = (*operands, log_total, delta, ct)
    found = iter(bind(attention_backward_p, *known, form=form, bias_too=bias_too))
    wanted = [next(found) for _ in range(3)] + [next(found, None)]
    wanted = [x for x, flag in zip(wanted, nonzero, strict=True) if flag]
    pairs = zip(linear, wanted, strict=True)
    return [None] * (len(operands) + 2) + [y if is_linear(x) else None for x, y in pairs]


def _cotangents_abstract(*avals: Aval, form: Form, bias_too: bool) -> tuple[Aval, ...]:
    args = form.bound(avals)
    wanted = (args.query, args.key, args.value, *([args.bias] if bias_too else []))
    return tuple([aval.strengthen() for aval in wanted])


# batches --------------------------------------------------------------------------------------


def _merged(x: Any, batched: bool, size: int, examples: int, whole: bool) -> Any:
    """An operand of many batches as one of a single batch of all their examples; one that is the
    same for all examples stays so unless it must be `whole`."""
    lead = x.shape[1] if batched else x.shape[0]
    if not batched and lead == 1 and not whole:
        return x
    rest = x.shape[2:] if batched else x.shape[1:]
    if lead == examples and batched:
        return reshape(x, (size * examples, *rest))
    shape = (size, examples, *rest)
    kept = ([0] if batched else []) + ([1] if lead == examples else []) + [*range(2, len(shape))]
    x = x if lead == examples else squeeze(x, (1,) if batched else (0,))
    return reshape(broadcast_in_dim(x, shape, kept), (size * examples, *rest))


def _batch(primitive: Any, bias_leads: Any) -> Any:
    """The batching rule: batches are merged into the examples. `bias_leads`: whether there are a
    bias and a result as large, which must then tell the examples apart."""

    def rule(
        axis: Axis, args: Sequence[Any], batched: Sequence[bool], *, form: Form, **params: Any
    ) -> tuple[list[Any], list[bool]]:
        examples = args[0].shape[1 if batched[0] else 0]
        optional = range(3, 3 + form.bias + form.mask)
        apart = [3] if bias_leads(form, **params) else []
        merged = [
            _merged(x, flag, axis.size, examples, place not in optional or place in apart)
            for place, (x, flag) in enumerate(zip(args, batched, strict=True))
        ]
        outs = bind(primitive(), *merged, form=form, **params)
        outs = [reshape(out, (axis.size, examples, *out.shape[1:])) for out in outs]
        if apart and len(outs) > 3 and args[3].shape[1 if batched[3] else 0] != examples:
            outs[3] = reshape(reduce_sum(outs[3], (1,)), (axis.size, 1, *outs[3].shape[2:]))
        return outs, [True] * len(outs)

    return rule


attention_p = Primitive(
    "attention",
    abstract=_attention_abstract,
    jvp=_attention_jvp,
    batch=_batch(lambda: attention_p, lambda form: False),
    lower=Expand(_attention, family="attention"),
    multiple=True,
)
attention_jvp_p = Primitive(
    "attention_jvp",
    abstract=_tangents_abstract,
    jvp="expand",
    transpose=_tangents_transpose,
    batch=_batch(lambda: attention_jvp_p, lambda form, nonzero: nonzero[3]),
    lower=Expand(_tangents),
    multiple=True,
)
attention_backward_p = Primitive(
    "attention_backward",
    abstract=_cotangents_abstract,
    jvp="expand",
    batch=_batch(lambda: attention_backward_p, lambda form, bias_too: bias_too),
    lower=Expand(_cotangents, family="attention"),
    multiple=True,
)


def attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Any = None,
    mask: Any = None,
    lengths: Any = None,
    *,
    scale: float,
    left: int | None = None,
    right: int | None = None,
    is_composed: bool = False,
) -> tuple[Any, Any]:
    """softmax(query keyᵀ scale + bias) value and the logarithm of the softmax's denominator:
    f[b, t, n, h], f[b, s, m, h], f[b, s, m, e] -> f[b, t, n, e], f[b, n, t].

    `is_composed`: by the composition of other primitives, whatever kernels a device has.
    Raises ShapeError if the operands do not fit.

    >>> x = full((1, 4, 2, 8), 1.0)
    >>> [y.shape for y in attention(x, x, x, scale=0.5, right=0)]
    [(1, 4, 2, 8), (1, 2, 4)]
    """
    others = [bias, mask, lengths]
    flags = [x is not None for x in others]
    form = Form(float(scale), left, right, *flags)
    given = [x for x in others if x is not None]
    operands = (query, key, value, *given)
    if is_composed:
        _check(form.bound([aval_of(x) for x in operands]))
        out, log_total = _attention(*operands, form=form)
    else:
        out, log_total = bind(attention_p, *operands, form=form)
    return out, log_total
