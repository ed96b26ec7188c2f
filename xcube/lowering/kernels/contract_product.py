"""Which rows programs are contractions: one sum over products of two factors, of which one varies
along a row that the other does not see. Factors are expressions, not arrays: whatever makes them is
computed where they are read. What comes out says along which loop lines of elements may lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xcube.ir import Var
from xcube.lowering.clusters import Group
from xcube.lowering.expression import Node, index_dims, walk
from xcube.lowering.kernels.lanes import mask_of
from xcube.lowering.kernels.space import Axis, Fold, Space

SUMMED = frozenset({"f32", "f64", "i32", "u32", "i64", "u64"})
LEAST = 4  # elements along the lanes


@dataclass(frozen=True, eq=False)
class Product:
    """What a contraction is made of: `line` is the factor of which lines are loaded, `other` the
    one of which each tile takes `tile.rows` places along the axis `along`. `across`: where lines
    lie along the depth, the axis of which a tile takes places of `line`."""

    fold: Fold
    line: Node
    other: Node
    lane: Axis
    along: Axis | None
    across: Axis | None


def may_be_product(group: Group) -> bool:
    """A cheap look at the equations before the space is analysed."""
    sums = [eqn for eqn in group.members if eqn.primitive.name == "reduce_sum"]
    if len(sums) != 1 or any(var.aval.size == 0 for var in group.outputs):
        return False
    source = sums[0].inputs[0]
    made = group.producers.get(source) if isinstance(source, Var) else None
    return made is not None and made.primitive.name == "mul"


def recognise(space: Space) -> Product | None:
    """The product that a space computes; None if it is none, or has no axis for lines."""
    if len(space.folds) != 1 or not space.columns:
        return None
    fold = space.folds[0]
    node, columns = fold.lifted[0], mask_of(space.columns)
    if len(fold.lifted) != 1 or node.op != "mul" or fold.dtypes != (node.dtype,):
        return None
    if node.dtype not in SUMMED or any(r.node.dims & columns for r in space.results):
        return None
    first, second = node.args
    options = [
        *_along_rows(space, fold, second, first),
        *_along_rows(space, fold, first, second),
        *_along_depth(space, fold, first, second),
    ]
    return max(options, key=_preference, default=None)


def _only(space: Space, of: Node, without: Node) -> list[Axis]:
    """The rows that one factor varies along and the other does not, outermost first."""
    return [a for a in space.rows if a.mask & of.dims and not a.mask & without.dims]


def _along_rows(space: Space, fold: Fold, line: Node, other: Node) -> Iterator[Product]:
    for axis in _only(space, line, other):
        written = all(axis.stride(result.position) == 1 for result in space.results)
        if axis.extent >= LEAST and written and _is_neighbourly(line, axis):
            alongs = _only(space, other, line)
            yield Product(fold, line, other, axis, alongs[-1] if alongs else None, None)


def _along_depth(space: Space, fold: Fold, first: Node, second: Node) -> Iterator[Product]:
    axis = space.columns[-1]
    if axis.extent < LEAST or not all(_is_neighbourly(x, axis) for x in (first, second)):
        return
    pairs = [_only(space, first, second), _only(space, second, first)]
    if not any(pairs):
        return
    along, across = [axes[-1] if axes else None for axes in pairs]
    if across is None or (along is not None and along.extent > across.extent):
        yield Product(fold, first, second, axis, across, along)
    else:
        yield Product(fold, second, first, axis, along, across)


def _is_neighbourly(factor: Node, axis: Axis) -> bool:
    """Whether all that a factor reads along an axis lies side by side in memory."""
    loads = [n.attr[1] for n in walk([factor]) if n.op == "load" and n.dims & axis.mask]
    plain = all(axis.stride(index) == 1 or not index_dims(index) & axis.mask for index in loads)
    return plain and any(axis.stride(index) == 1 for index in loads)


def _preference(product: Product) -> tuple[bool, bool, int]:
    """Long lines, then lines along rows, which need no sum over lanes."""
    return product.lane.extent >= 8, product.lane.kind == "row", product.lane.extent
