"""What decides how a map or rows program is cut into lines: along which loop they may lie, how wide
its elements are, and whether it is flat."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xcube.lowering.cube.ir import BITS
from xcube.lowering.expression import Node, index_dims
from xcube.lowering.index import Dim, Index
from xcube.lowering.kernels.nodes import PARTS
from xcube.lowering.kernels.space import Axis, Result, Space

PLACES = 1 << 31  # from which on the division of indices takes 64 bits
STREAM_BYTES = 1 << 24  # results this large are written past the caches
STREAM_LINE = 64  # bytes written past the caches at once


def mask_of(axes: Sequence[Axis]) -> int:
    """The dimensions of all axes."""
    mask = 0
    for axis in axes:
        mask |= axis.mask
    return mask


def size_of(axes: Sequence[Axis]) -> int:
    """Places of the loops over all axes."""
    return math.prod(axis.extent for axis in axes)


def score(space: Space, axis: Axis) -> float:
    """How well lines along an axis suit the indices: those that walk it with stride one count for
    it, other strides against it."""
    indices = [n.attr[1] for n in space.order if n.op == "load"]
    indices += [result.position for result in space.results]
    unit = sum(1 for index in indices if axis.stride(index) == 1)
    strided = sum(1 for index in indices if axis.stride(index) not in (0, 1))
    return unit - 2 * strided - (2 if axis.extent < 4 else 0)


def narrowest(space: Space) -> int:
    """Bytes of the narrowest elements that are read or written; a line of these is one access."""
    loads = [_bytes(node) for node in space.order if node.op == "load"]
    results = [result.var.aval.dtype.itemsize for result in space.results]
    return max(2, min([4, *loads, *results]))


def widest(space: Space) -> int:
    """Bytes of the widest scalar computed with; indices apart."""
    return max([4, *(_bytes(node) for node in space.order)])


def _bytes(node: Node) -> int:
    return BITS[PARTS.get(node.dtype, node.dtype)] // 8


def is_flat(space: Space, lane: Axis) -> bool:
    """One loop, every element read and written where the loop is: lines may run over the end,
    into the padding of the buffers."""
    if len(space.axes) != 1 or space.folds:
        return False
    for node in space.order:
        if node.dtype in PARTS or node.op == "inside":
            return False
        if node.op == "load":
            var, index, guards = node.attr
            if guards:
                return False
            whole = index == Index(0, index.terms) and var.aval.size == lane.extent
            if index.terms and not (whole and lane.stride(index) == 1 and is_plain(index)):
                return False
    return all(
        result.position.const == 0 and lane.stride(result.position) == 1 for result in space.results
    )


def streams(space: Space, lane: Axis, lanes: int) -> bool:
    """Whether the results of a map are written past the caches: they are large, and made of whole
    lines of memory, each at a multiple of its size."""
    size = sum(result.var.aval.nbytes for result in space.results)
    if size < STREAM_BYTES or lane.extent % lanes:
        return False
    others = [axis for axis in space.axes if axis is not lane]
    return all(
        result.var.aval.dtype.itemsize * lanes % STREAM_LINE == 0
        and result.node.dtype not in PARTS
        and lane.stride(result.position) == 1
        and is_plain(result.position)
        and result.position.const % lanes == 0
        and all(axis.stride(result.position) % lanes == 0 for axis in others)
        for result in space.results
    )


def is_plain(index: Index) -> bool:
    """Whether an index is a sum of loop indices."""
    return all(isinstance(symbol, Dim) for symbol in index.symbols)


def late_results(space: Space) -> list[Result]:
    """Results that are written in a loop over the columns, after all reductions."""
    mask = mask_of(space.columns)
    return [r for r in space.results if r.node.dims & mask or index_dims(r.position) & mask]


def is_narrow(space: Space) -> bool:
    """Whether all places, in the loops and in memory, fit 31 bits."""
    loads = [node.attr[0] for node in space.order if node.op == "load"]
    sizes = [var.aval.size for var in (*loads, *(result.var for result in space.results))]
    return max(size_of(space.axes), *sizes) < PLACES


def round_up(size: int, step: int) -> int:
    """The next multiple of a step."""
    return -(-size // step) * step
