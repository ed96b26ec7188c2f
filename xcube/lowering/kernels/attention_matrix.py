"""Attention on the matrix units of devices that copy boxes of a buffer by themselves: which
attentions take that road, and by which tiles. Others, with a bias, a mask or lengths, of other
dtypes or sizes, or of a few queries, are the composition that their primitive states.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.ir import Aval, Equation, Jaxpr, Primitive, Var
from xcube.lowering.clusters import Group
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.attention_matrix_backward import STATISTICS, Backward
from xcube.lowering.kernels.attention_matrix_forward import Forward
from xcube.lowering.kernels.attention_matrix_tile import LOG2_E, Plan, Window
from xcube.lowering.kernels.work import Work
from xcube.primitives.attention import Form
from xcube.primitives.elementwise import mul
from xcube.primitives.lowered import Template
from xcube.primitives.shape import reshape
from xcube.primitives.view import concatenate, pad
from xcube.trace import bind, stage

DTYPES = ("bf16", "f16")
FEW = 32  # queries below which tiles are mostly empty
PAST = 1e30  # logarithm of the sum of weights of a query that does not exist: none weighs anything
BLOCK = 64  # queries of which statistics are whole
LARGEST = {"attention": 256, "attention_backward": 128}  # size of a head
CHUNK = 8  # elements of which a head's size is a multiple

# By the largest size of a head. Measured on an H200.
FORWARD = {64: Plan(3, 128, 2, turns=True), 128: Plan(2, 128, 2), 256: Plan(2, 64, 2)}
BACKWARD = {64: Plan(2, 128, 2), 128: Plan(2, 64, 2)}


def expand(eqn: Equation, facts: Facts) -> Jaxpr | None:
    """The program of an attention on matrix units; None where it takes another road."""
    rule = RULES.get(eqn.primitive.name)
    if rule is None or not _is_taken(eqn, facts):
        return None
    avals = [atom.aval for atom in eqn.inputs]
    function = functools.partial(rule, form=eqn.params["form"])
    return stage(function, avals, eqn.primitive.name)


def _is_taken(eqn: Equation, facts: Facts) -> bool:
    form: Form = eqn.params["form"]
    q, k, v = (atom.aval for atom in eqn.inputs[:3])
    if "sm_90a" not in facts.features or form.operands > 3 or form.scale <= 0:
        return False
    alike = q.dtype == k.dtype == v.dtype and dtypes.short_name(q.dtype) in DTYPES
    sizes, most = (q.shape[3], v.shape[3]), LARGEST[eqn.primitive.name]
    fits = all(0 < size <= most and size % CHUNK == 0 for size in sizes)
    lengths = q.shape[1], k.shape[1]
    return alike and fits and q.size > 0 and _all_see(form, *lengths) and min(lengths) >= FEW


def _all_see(form: Form, queries: int, keys: int) -> bool:
    """Whether every query sees a key."""
    left = 0 if form.left is None else form.left
    right = 0 if form.right is None else form.right
    reaches = form.left is None or queries - left <= keys
    return left >= 0 and right >= 0 and reaches


def _by_size(plans: dict[int, Plan], *shapes: Sequence[int]) -> Plan:
    size = max(shape[-1] for shape in shapes)
    return next(plan for most, plan in plans.items() if size <= most)


def _forward(q: Any, k: Any, v: Any, *, form: Form) -> list[Any]:
    plan = _by_size(FORWARD, q.shape, v.shape)
    window = Window(form.left, form.right)
    return bind(attention_tiles, q, k, v, plan=plan, window=window, scale=form.scale)


def _backward(
    q: Any, k: Any, v: Any, logarithms: Any, products: Any, ct: Any, *, form: Form
) -> list[Any]:
    plan, window = _by_size(BACKWARD, q.shape, v.shape), Window(form.left, form.right)
    known = (q, k, v, ct, _statistics(logarithms, products))
    dk, dv = bind(attention_keys, *known, plan=plan, window=window, scale=form.scale)
    (dq,) = bind(attention_queries, *known, plan=plan, window=window, scale=form.scale)
    return [dq, dk, dv]


def _statistics(logarithms: Any, products: Any) -> Any:
    """f[b, n, t] and f[b, n, t] as f[b, n, lines, 2, 32]."""
    b, n, t = logarithms.shape
    missing = -t % BLOCK
    config, lines = ((0, 0, 0), (0, 0, 0), (0, missing, 0)), (t + missing) // STATISTICS
    logarithms = pad(mul(logarithms, np.float32(LOG2_E)), np.float32(PAST), config)
    products = pad(products, np.float32(0), config)
    parts = [reshape(x, (b, n, lines, 1, STATISTICS)) for x in (logarithms, products)]
    return concatenate(parts, 3)


RULES: dict[str, Callable[..., list[Any]]] = {
    "attention": _forward,
    "attention_backward": _backward,
}


# the primitives -----------------------------------------------------------------------------------


def _tiles_abstract(q: Aval, k: Aval, v: Aval, **_: Any) -> tuple[Aval, Aval]:
    b, t, n, _h = q.shape
    return Aval((b, t, n, v.shape[3]), v.dtype), Aval((b, n, t), np.dtype(np.float32))


def _keys_abstract(q: Aval, k: Aval, v: Aval, *_: Aval, **__: Any) -> tuple[Aval, Aval]:
    return Aval(k.shape, k.dtype), Aval(v.shape, v.dtype)


def _queries_abstract(q: Aval, *_: Aval, **__: Any) -> tuple[Aval]:
    return (Aval(q.shape, q.dtype),)


FAMILY = Template("attention_matrix")
attention_tiles = Primitive("attention_tiles", _tiles_abstract, lower=FAMILY, multiple=True)
attention_keys = Primitive("attention_keys", _keys_abstract, lower=FAMILY, multiple=True)
attention_queries = Primitive("attention_queries", _queries_abstract, lower=FAMILY, multiple=True)


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launch of an attention, or of a part of its gradients."""
    root = group.root
    assert root is not None
    if root.primitive is attention_tiles:
        return [Forward(root).build()]
    return [Backward(root, of_keys=root.primitive is attention_keys).build()]
