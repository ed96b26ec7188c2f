"""Contractions: which road a dot_general takes, and the program that it becomes.

Large ones are packed, then computed by a tiled kernel (`contract_packed`, `contract_units`), or
read by matrix units (`contract_matrix`); where that does not pay, they are the sum of products,
element by element, which has kernels of its own (`contract_direct`). A result that is small is
summed in parts of the depth."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.ir import Aval, Equation, Jaxpr, Shape, Var
from xcube.lowering.clusters import Group
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels import (
    contract_matrix,
    contract_packed,
    contract_tiles,
    contract_units,
    rows,
)
from xcube.lowering.kernels.contract_matrix import Sizes
from xcube.lowering.kernels.contract_packed import choose, matmul, pack_a, pack_b
from xcube.lowering.kernels.space import analyse
from xcube.lowering.kernels.work import Work
from xcube.primitives.convert import convert_element_type
from xcube.primitives.elementwise import mul
from xcube.primitives.kinds import add
from xcube.primitives.shape import broadcast_in_dim, reduce_sum, reshape, transpose
from xcube.primitives.view import slice_in_dim
from xcube.trace import bind, stage

SMALL = 1 << 15  # products below which packing costs more than it gains
FEW = 8  # rows or columns that read a matrix once, where it lies
FEW_RESULTS, PARTS, SHORTEST = 1 << 10, 64, 1 << 11  # when and how the depth is cut


@dataclass(frozen=True)
class Lies:
    """Whether neighbours of the left operand lie along its rows or along the depth, those of the
    right one along its columns."""

    rows: bool
    depth: bool
    columns: bool


# dot_general -> jaxpr -------------------------------------------------------------------------


def expand(eqn: Equation, facts: Facts) -> Jaxpr | None:
    """The program that computes a dot_general on a device; None for other equations."""
    if eqn.primitive.name != "dot_general":
        return None
    lhs, rhs = (atom.aval for atom in eqn.inputs)
    out = eqn.outputs[0].aval
    function = functools.partial(_contraction, params=eqn.params, out=out, facts=facts)
    return stage(function, [lhs, rhs], "dot_general")


def _contraction(
    lhs: Any, rhs: Any, *, params: dict[str, Any], out: Aval, facts: Facts
) -> list[Any]:
    found = contract_matrix.product(lhs, rhs, params, out, facts)
    if found is not None:
        return [found]
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = params["dimension_numbers"]
    lhs_free = _others(lhs.ndim, lhs_contract, lhs_batch)
    rhs_free = _others(rhs.ndim, rhs_contract, rhs_batch)
    sizes = Sizes(
        _size(lhs, lhs_batch), _size(lhs, lhs_free), _size(rhs, rhs_free), _size(lhs, lhs_contract)
    )
    a = transpose(lhs, (*lhs_batch, *lhs_free, *lhs_contract))
    b = transpose(rhs, (*rhs_batch, *rhs_free, *rhs_contract))
    a = reshape(a, (sizes.batch, sizes.rows, sizes.depth))
    b = reshape(b, (sizes.batch, sizes.columns, sizes.depth))
    accumulator = _accumulator(out.dtype)
    kinds = ("batch",) * len(lhs_batch) + ("m",) * len(lhs_free) + ("n",) * len(rhs_free)
    last = lhs.ndim - 1
    lies = Lies(last in lhs_free, last in lhs_contract, rhs.ndim - 1 in rhs_free)
    parts, inner = _parts(sizes, accumulator, facts), accumulator
    tile = contract_tiles.choose(lhs.dtype, rhs.dtype, accumulator, sizes, facts)
    if tile is not None and parts == 1 and _tiles(sizes, accumulator):
        deep = not lies.rows, not lies.columns
        found = contract_tiles.product(a, b, deep, tile, sizes, out.shape, kinds)
        return [convert_element_type(found, out.dtype)]
    if (most := _exact_depth(lhs.dtype, rhs.dtype, accumulator, facts)) > 0:
        parts, inner = max(parts, math.ceil(sizes.depth / most)), np.dtype(np.float32)
    if parts > 1:
        total = _in_parts(a, b, parts, inner, accumulator, lies, facts)
        return [reshape(convert_element_type(total, out.dtype), out.shape)]
    result = _product(a, b, sizes, inner, out.shape, kinds, lies, facts)
    return [convert_element_type(result, out.dtype)]


def _exact_depth(left: np.dtype, right: np.dtype, accumulator: np.dtype, facts: Facts) -> int:
    """Over how much depth products of bytes are summed in f32 without rounding, which multiplies
    and adds in one instruction; 0 if this is no sum of bytes."""
    bytes_ = all(dtype.kind in "iu" and dtype.itemsize == 1 for dtype in (left, right))
    if facts.units > 1 or not bytes_ or accumulator.itemsize < 4 or accumulator.kind not in "iu":
        return 0
    largest = math.prod(128 if dtype.kind == "i" else 255 for dtype in (left, right))
    return (1 << 24) // largest


def _product(
    a: Any,
    b: Any,
    sizes: Sizes,
    accumulator: np.dtype,
    shape: Shape,
    kinds: tuple[str, ...],
    lies: Lies,
    facts: Facts,
) -> Any:
    """a[batch, rows, depth], b[batch, columns, depth] -> sums of the accumulator's dtype."""
    if not _tiles(sizes, accumulator) or _is_direct(sizes, lies, a.dtype, facts):
        return _pulled(a, b, sizes, accumulator, shape)
    tile = choose(sizes, accumulator, facts)
    if tile.units == 1 and lies.rows:
        tile = replace(tile, turned=True)
        packed_a = bind(pack_b, a, tile=tile.right, dtype=accumulator)
    else:
        packed_a = bind(pack_a if tile.units == 1 else pack_b, a, tile=tile, dtype=accumulator)
    packed_b = bind(pack_b, b, tile=tile, dtype=accumulator)
    return bind(matmul, packed_a, packed_b, tile=tile, sizes=sizes, shape=shape, kinds=kinds)


def _in_parts(
    a: Any, b: Any, parts: int, inner: np.dtype, outer: np.dtype, lies: Lies, facts: Facts
) -> Any:
    """Products over parts of the depth, side by side, summed in the outer dtype; what is left of
    the depth behind whole parts is a product of its own."""
    batch, rows, depth = a.shape
    columns, length = b.shape[1], math.ceil(depth / parts)
    parts = depth // length
    sizes = Sizes(batch * parts, rows, columns, length)
    left, right = (_cut(x, parts, length) for x in (a, b))
    shape, kinds = (batch * parts, rows, columns), ("batch", "m", "n")
    found = convert_element_type(
        _product(left, right, sizes, inner, shape, kinds, lies, facts), outer
    )
    total = reduce_sum(reshape(found, (batch, parts, rows, columns)), (1,))
    if (rest := depth - parts * length) > 0:
        left, right = (slice_in_dim(x, depth - rest, depth, axis=2) for x in (a, b))
        sizes, shape = Sizes(batch, rows, columns, rest), (batch, rows, columns)
        behind = _product(left, right, sizes, inner, shape, kinds, lies, facts)
        total = add(total, convert_element_type(behind, outer))
    return total


def _cut(x: Any, parts: int, length: int) -> Any:
    """[batch, lines, depth] as [batch * parts, lines, length]."""
    batch, lines, _ = x.shape
    whole = slice_in_dim(x, 0, parts * length, axis=2)
    apart = transpose(reshape(whole, (batch, lines, parts, length)), (0, 2, 1, 3))
    return reshape(apart, (batch * parts, lines, length))


def _parts(sizes: Sizes, accumulator: np.dtype, facts: Facts) -> int:
    """Into how many parts the depth is cut, so that all threads have work where the result is
    small: the sizes alone decide, so that sums are the same on every machine of a kind."""
    results = sizes.batch * sizes.rows * sizes.columns
    if facts.units > 1 or not 1 < results <= FEW_RESULTS or accumulator.kind not in "fiu":
        return 1
    return max(1, min(PARTS, sizes.depth // SHORTEST)) if accumulator.itemsize >= 4 else 1


def _is_direct(sizes: Sizes, lies: Lies, dtype: np.dtype, facts: Facts) -> bool:
    """Whether operands are better read where they lie than packed: few lines of one use what is
    read of the other only once, and a small one stays in the caches as it is."""
    if facts.units > 1:
        return False
    if min(sizes.rows, sizes.columns) <= FEW:
        return lies.columns or lies.depth
    return lies.columns and sizes.depth * sizes.columns * dtype.itemsize <= facts.l2_bytes // 8


def _others(ndim: int, *taken: Sequence[int]) -> tuple[int, ...]:
    used = {axis for axes in taken for axis in axes}
    return tuple(axis for axis in range(ndim) if axis not in used)


def _size(x: Any, axes: Sequence[int]) -> int:
    return math.prod(x.shape[axis] for axis in axes)


def _accumulator(dtype: np.dtype) -> np.dtype:
    narrow = dtypes.is_float(dtype) and dtype.itemsize < 4
    return np.dtype(np.float32) if narrow else dtype


def _tiles(sizes: Sizes, accumulator: np.dtype) -> bool:
    if accumulator.kind not in "fiu" or accumulator.itemsize < 4:
        return False
    products = sizes.rows * sizes.columns * sizes.depth
    return products >= SMALL and sizes.rows >= 4 and sizes.columns >= 8 and sizes.depth >= 8


def _pulled(a: Any, b: Any, sizes: Sizes, accumulator: np.dtype, shape: Shape) -> Any:
    """The sum of products, element by element; rules of fusion apply, and where a cube is a task of
    one thread, the kernels of `contract_direct`."""
    space = (sizes.batch, sizes.rows, sizes.columns, sizes.depth)
    kind = np.dtype(np.int32) if accumulator.kind == "b" else accumulator
    a, b = convert_element_type(a, kind), convert_element_type(b, kind)
    products = mul(broadcast_in_dim(a, space, (0, 1, 3)), broadcast_in_dim(b, space, (0, 2, 3)))
    return reshape(reduce_sum(products, (3,)), shape)


# kernels ----------------------------------------------------------------------------------------


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launch of a tiled contraction with the map behind it."""
    root = group.root
    assert root is not None
    space = analyse(group, root.params["kinds"])
    if len(space.of("n")) > 1:
        return _apart(group, facts, sources)
    if root.primitive is contract_matrix.matrix_product:
        return [contract_matrix.build(group, space, sources, facts)]
    if root.primitive is contract_tiles.tile_product:
        return [contract_tiles.Contraction(group, space, sources, facts).build()]
    template = (
        contract_packed.Contraction
        if root.params["tile"].units == 1
        else contract_units.Contraction
    )
    return [template(group, space, sources).build()]


def _apart(group: Group, facts: Facts, sources: frozenset[Var]) -> list[Work]:
    """The contraction alone, then its map: where the map's columns are no single loop."""
    root = group.root
    assert root is not None
    result = root.outputs[0]
    alone = Group("matmul", group.shape, (), (result,), {result: root}, root)
    rest = {var: eqn for var, eqn in group.producers.items() if eqn is not root}
    outputs = tuple(var for var in group.outputs if var is not result)
    first = build(alone, facts)
    if not outputs:
        return first
    behind = Group("map", group.shape, (), outputs, rest)
    return [*first, *rows.build(behind, facts, sources)]
