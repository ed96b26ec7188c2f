"""Attention on devices where a cube is a task of one thread: operands are packed by ordinary maps,
so whatever produces them fuses into the packing, and kernels walk the packed ones without a matrix
of scores. Queries lie as [example, head, tile, place, query] in units of log 2, keys and values as
[example, head, row, place]. Elsewhere, and where scores are few, attention is the composition that
its primitive states.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.ir import Aval, Equation, Jaxpr, Primitive, Var
from xcube.lowering.clusters import Group
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels import (
    attention_backward,
    attention_few,
    attention_forward,
    attention_rows,
)
from xcube.lowering.kernels.attention_tile import LOG2_E, UNSEEN, Problem, Sizes, Tile
from xcube.lowering.kernels.work import Work
from xcube.primitives.attention import (
    LOWEST,
    attention_backward_p,
    attention_p,
    summed,
    wide,
)
from xcube.primitives.convert import convert_element_type
from xcube.primitives.elementwise import div, mul, sub
from xcube.primitives.kinds import add
from xcube.primitives.lowered import Element, Template
from xcube.primitives.reduce import reduce_max
from xcube.primitives.select import lt, select
from xcube.primitives.shape import broadcast_in_dim, full, reduce_sum, reshape, transpose
from xcube.primitives.transcendental import exp2, log2
from xcube.primitives.view import slice_in_dim
from xcube.trace import aval_of, bind, stage

FEW = 1 << 10  # scores of a head below which the composition is quicker
BLOCK = 112  # keys of a block, about
FEW_QUERIES = 32  # of a head, which are worth other kernels where there are
MANY_KEYS = 4  # times as many keys
HANDFUL = 8  # queries of a group of heads
LARGE = 512  # places of a head beyond which arrays of a cube would be too large
SHARE = 4  # cubes for each core, if there are enough keys


Rule = Callable[..., list[Any]]


def expand(eqn: Equation, facts: Facts) -> Jaxpr | None:
    """The program of an attention on packed operands; None for other equations, and where the
    composition is to be had."""
    if facts.units > 1 or eqn.primitive not in (attention_p, attention_backward_p):
        return None
    problem, avals = _problem(eqn, facts), [atom.aval for atom in eqn.inputs]
    sizes = problem.sizes
    if sizes.t * sizes.s < FEW or max(sizes.h, sizes.e) > LARGE:
        return None
    rule = _backward if eqn.primitive is attention_backward_p else choose_rule(problem, avals)
    if rule is None:
        return None
    function = functools.partial(rule, problem=problem, params=eqn.params, cores=facts.cores)
    return stage(function, avals, eqn.primitive.name)


def choose_rule(problem: Problem, avals: Sequence[Aval]) -> Rule | None:
    """The way to compute an attention; None for the composition. A tile of few queries would be
    nearly empty. For a handful on all keys a product is as good; kernels pass over keys that do not
    count."""
    sizes, form, lanes = problem.sizes, problem.form, problem.tile.lanes
    if sizes.t > FEW_QUERIES or sizes.s < MANY_KEYS * sizes.t:
        return _forward
    rows = sizes.group * sizes.t
    skips = form.lengths or form.left is not None or form.right is not None
    whole_lines = sizes.h % lanes == 0 and sizes.e % lanes == 0
    if whole_lines and rows <= (HANDFUL // 2 if skips else 1):
        return _rows
    if rows <= HANDFUL and not skips:
        return None
    optional = avals[3 : 3 + form.bias + form.mask]
    alike = sizes.group == 1 or all(aval.shape[1] == 1 for aval in optional)
    return _few if alike else _forward  # heads that share rows share a bias and a mask


def _problem(eqn: Equation, facts: Facts) -> Problem:
    q, _, v = (atom.aval for atom in eqn.inputs[:3])
    (b, t, n, h), (_, s, m, e) = q.shape, v.shape
    sizes = Sizes(b, t, n, h, s, m, e)
    dtype = wide(q.dtype)
    names = dtypes.short_name(dtype), dtypes.short_name(v.dtype)
    return Problem(eqn.params["form"], sizes, choose_tile(dtype, facts), *names)


def choose_tile(dtype: np.dtype, facts: Facts) -> Tile:
    """The tile: as many sums as registers hold."""
    many = facts.vector_bits == 512 or facts.vector_bits == 128  # 32 registers, else 16
    keys = 14 if many else 6
    return Tile(keys, 2, facts.lanes(dtype.itemsize), BLOCK // keys * keys)


def _forward(*args: Any, problem: Problem, params: dict[str, Any], cores: int) -> list[Any]:
    q, k, v, *others = args
    queries = bind(pack_queries, q, problem=problem, factor=problem.form.scale * LOG2_E)
    packed = queries, *_packed_keys(k, v, problem)
    return bind(attention_forward_p, *packed, *others, problem=problem)


def _rows(*args: Any, problem: Problem, params: dict[str, Any], cores: int) -> list[Any]:
    """Few queries: stretches of keys, put together by their largest scores."""
    sums, tops, totals = bind(
        attention_rows_p, *args, problem=problem, stretch=_stretch(problem, cores)
    )
    out, log_total = _joined(sums, tops, totals, (0, 1, 2, 3))
    out = transpose(out, (0, 2, 1, 3))
    return [convert_element_type(out, dtypes.BY_SHORT[problem.result]), log_total]


def _few(*args: Any, problem: Problem, params: dict[str, Any], cores: int) -> list[Any]:
    """Few queries of groups: the heads of a group are rows of one head, keys as they lie."""
    q, k, v, *others = args
    sizes = problem.sizes
    b, t, m, group = sizes.b, sizes.t, sizes.m, sizes.group
    rows = reshape(
        transpose(reshape(q, (b, t, m, group, sizes.h)), (0, 3, 1, 2, 4)),
        (b, group * t, m, sizes.h),
    )
    lines = 1 if group * t <= problem.tile.lanes else 2
    merged = replace(
        problem,
        sizes=replace(sizes, t=group * t, n=m),
        tile=replace(problem.tile, lines=lines),
        period=t if group > 1 else 0,
    )
    queries = bind(pack_queries, rows, problem=merged, factor=problem.form.scale * LOG2_E)
    sums, tops, totals = bind(
        attention_few_p, queries, k, v, *others, problem=merged, stretch=_stretch(problem, cores)
    )
    out, log_total = _joined(sums, tops, totals, (0, 1, 2, 3, 5))
    out = bind(unpack_queries, out, problem=merged, factor=1.0)
    out = transpose(reshape(out, (b, group, t, m, sizes.e)), (0, 2, 3, 1, 4))
    out = convert_element_type(out, dtypes.BY_SHORT[problem.result])
    log_total = reshape(log_total, (b, m, merged.tiles * merged.tile.width))
    log_total = slice_in_dim(log_total, 0, group * t, axis=2)
    return [reshape(out, (b, t, sizes.n, sizes.e)), reshape(log_total, (b, sizes.n, t))]


def _joined(sums: Any, tops: Any, totals: Any, kept: tuple[int, ...]) -> tuple[Any, Any]:
    """Weighted values and logarithms of stretches put together; `kept`: where the dimensions of
    `tops` are in `sums`."""
    top = reduce_max(tops, (0,))
    shares = exp2(sub(tops, broadcast_in_dim(top, tops.shape, range(1, tops.ndim))))
    total = reduce_sum(mul(totals, shares), (0,))
    out = reduce_sum(mul(sums, broadcast_in_dim(shares, sums.shape, kept)), (0,))
    inside = [axis - 1 for axis in kept[1:]]
    out = div(out, broadcast_in_dim(total, out.shape, inside))
    log_total = mul(add(top, log2(total)), math.log(2))
    lowest = full(top.shape, LOWEST, top.dtype)
    return out, select(lt(top, UNSEEN), lowest, log_total)


def _stretch(problem: Problem, cores: int) -> int:
    """Keys that a cube takes: fewer where there are few heads."""
    sizes, block = problem.sizes, problem.tile.block
    wanted = max(1, SHARE * cores // (sizes.b * sizes.m))
    return max(1, -(-sizes.s // (wanted * block))) * block


def _backward(*args: Any, problem: Problem, params: dict[str, Any], cores: int) -> list[Any]:
    form, count = problem.form, problem.form.operands
    (q, k, v, *others), (log_total, delta, ct) = args[:count], args[count:]
    rows, scale = problem.tiles * problem.tile.width, form.scale
    packed = [
        bind(pack_queries, q, problem=problem, factor=scale * LOG2_E),
        bind(pack_rows, q, problem=problem, rows=rows, is_padded=True, factor=scale),
        *_packed_keys(k, v, problem),
        bind(pack_queries, ct, problem=problem, factor=1.0),
        bind(pack_rows, ct, problem=problem, rows=rows, is_padded=True, factor=1.0),
    ]
    chunks = _chunks(problem, cores)
    dq, dk, dv, *dbias = bind(
        attention_cotangents_p, *packed, log_total, delta, *others,
        problem=problem, chunks=chunks, bias_too=params["bias_too"],
    )  # fmt: skip
    dq = reduce_sum(dq, (0,)) if chunks > 1 else reshape(dq, dq.shape[1:])
    dq = bind(unpack_queries, dq, problem=problem, factor=scale)
    results = [convert_element_type(dq, q.dtype), dk, dv]
    if dbias:
        parts = reduce_sum(dbias[0], (0,))
        results.append(summed(parts, aval_of(others[0])))
    return results


def _packed_keys(k: Any, v: Any, problem: Problem) -> list[Any]:
    rows = problem.rows
    return [
        bind(pack_rows, x, problem=problem, rows=rows, is_padded=False, factor=1.0) for x in (k, v)
    ]


def _chunks(problem: Problem, cores: int) -> int:
    """Cubes that share the keys of a head, where there are few heads."""
    blocks = -(-problem.rows // problem.tile.block)
    return max(1, min(blocks, SHARE * cores // (problem.sizes.b * problem.sizes.m)))


# packing --------------------------------------------------------------------------------------


def _queries_shape(x: Aval, *, problem: Problem, factor: float) -> Aval:
    b, _, n, h = x.shape
    shape = (b, n, problem.tiles, h, problem.tile.width)
    return Aval(shape, dtypes.BY_SHORT[problem.dtype])


def _queries_element(e: Any, index: Any, *, problem: Problem, factor: float) -> Any:
    batch, head, tile, place, query = index
    row = tile * problem.tile.width + query
    return _times(e, _inside(e, row, place, (batch, row, head, place), problem.dtype), factor)


def _rows_shape(x: Aval, *, problem: Problem, rows: int, is_padded: bool, factor: float) -> Aval:
    b, _, heads, size = x.shape
    size = problem.padded(size) if is_padded else size
    return Aval((b, heads, rows, size), dtypes.BY_SHORT[problem.dtype])


def _rows_element(
    e: Any, index: Any, *, problem: Problem, rows: int, is_padded: bool, factor: float
) -> Any:
    batch, head, row, place = index
    value = _inside(e, row, place, (batch, row, head, place), problem.dtype)
    return _times(e, value, factor)


def _inside(e: Any, row: Any, place: Any, at: tuple[Any, ...], dtype: str) -> Any:
    """The operand's element as a wide one, zero for rows and places that it does not have."""
    _, length, _, size = e.inputs[0].shape
    tests = [(row, 0, length), (place, 0, size)]
    value = e.guarded(tests, lambda: e.cast(e.read(0, at), dtype))
    for test in [node for test in tests if (node := e.inside(*test)).op != "const"]:
        value = e.apply("select", test, value, e.constant(0, dtype))
    return value


def _times(e: Any, value: Any, factor: float) -> Any:
    return value if factor == 1 else e.apply("mul", value, e.constant(factor, value.dtype))


def _unpacked_shape(x: Aval, *, problem: Problem, factor: float) -> Aval:
    sizes = problem.sizes
    return Aval((sizes.b, sizes.t, sizes.n, x.shape[3]), x.dtype)


def _unpacked_element(e: Any, index: Any, *, problem: Problem, factor: float) -> Any:
    batch, row, head, place = index
    width = problem.tile.width
    value = e.read(0, (batch, head, row // width, place, row % width))
    return _times(e, value, factor)


pack_queries = Primitive("pack_queries", _queries_shape, lower=Element(_queries_element))
pack_rows = Primitive("pack_rows", _rows_shape, lower=Element(_rows_element))
unpack_queries = Primitive("unpack_queries", _unpacked_shape, lower=Element(_unpacked_element))


# kernels --------------------------------------------------------------------------------------


def _forward_abstract(q: Aval, k: Aval, v: Aval, *others: Aval, problem: Problem) -> Any:
    sizes = problem.sizes
    out = Aval((sizes.b, sizes.t, sizes.n, sizes.e), dtypes.BY_SHORT[problem.result])
    return out, Aval((sizes.b, sizes.n, sizes.t), q.dtype)


attention_forward_p = Primitive(
    "attention_forward", _forward_abstract, lower=Template("attention"), multiple=True
)


def _cotangents_abstract(
    *avals: Aval, problem: Problem, chunks: int, bias_too: bool
) -> tuple[Aval, ...]:
    sizes, tile, wide_dtype = problem.sizes, problem.tile, avals[0].dtype
    result = dtypes.BY_SHORT[problem.result]
    found = [
        Aval((chunks, sizes.b, sizes.n, problem.tiles, sizes.h, tile.width), wide_dtype),
        Aval((sizes.b, sizes.s, sizes.m, sizes.h), result),
        Aval((sizes.b, sizes.s, sizes.m, sizes.e), result),
    ]
    if bias_too:
        t, s = avals[attention_backward.PACKED].shape[2:]
        parts = chunks if s == 1 else 1
        found.append(Aval((parts, sizes.b, sizes.n, t, s), wide_dtype))
    return tuple(found)


attention_cotangents_p = Primitive(
    "attention_cotangents", _cotangents_abstract, lower=Template("attention"), multiple=True
)


def _rows_abstract(
    q: Aval, k: Aval, v: Aval, *others: Aval, problem: Problem, stretch: int
) -> tuple[Aval, Aval, Aval]:
    sizes, dtype = problem.sizes, dtypes.BY_SHORT[problem.dtype]
    shape = (-(-sizes.s // stretch), sizes.b, sizes.n, sizes.t)
    return Aval((*shape, sizes.e), dtype), Aval(shape, dtype), Aval(shape, dtype)


def _few_abstract(
    q: Aval, k: Aval, v: Aval, *others: Aval, problem: Problem, stretch: int
) -> tuple[Aval, Aval, Aval]:
    sizes, width = problem.sizes, problem.tile.width
    shape = (-(-sizes.s // stretch), sizes.b, sizes.m, problem.tiles)
    tops = Aval((*shape, width), q.dtype)
    return Aval((*shape, sizes.e, width), q.dtype), tops, tops


attention_few_p = Primitive(
    "attention_few", _few_abstract, lower=Template("attention"), multiple=True
)
attention_rows_p = Primitive(
    "attention_rows", _rows_abstract, lower=Template("attention"), multiple=True
)


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launches of an attention on packed operands."""
    root = group.root
    assert root is not None
    return BUILDERS[root.primitive.name](group)


BUILDERS: dict[str, Callable[[Group], list[Work]]] = {
    "attention_forward": attention_forward.build,
    "attention_few": attention_few.build,
    "attention_rows": attention_rows.build,
    "attention_cotangents": attention_backward.build,
}
