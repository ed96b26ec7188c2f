"""Convolutions: which of them get kernels of their own, and the programs that they become.

Operands are laid out by ordinary maps, so whatever produces them fuses into the packing, and one
that lies so already is read where it is: the input as [batch, group, block of channels, *space,
channel], padded, the kernel as [group, panel of outputs, block, *window, channel, output]. Where a
cube has many units, and where there is little to do, a convolution is the composition that its
primitive states.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.ir import Aval, Equation, Jaxpr, Primitive, Shape, Var
from xcube.lowering.clusters import Group
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels import convolve_direct, rows
from xcube.lowering.kernels.convolve_apart import Strip
from xcube.lowering.kernels.convolve_direct import Tile
from xcube.lowering.kernels.convolve_swept import CUBES, TASK, Sweep, parts_of
from xcube.lowering.kernels.space import analyse
from xcube.lowering.kernels.work import Work
from xcube.primitives.convert import convert_element_type
from xcube.primitives.convolution import conv_general_dilated_p
from xcube.primitives.convolution_pull import (
    Parameters,
    Walk,
    convolved,
    gaps,
    places_in,
    turned,
    walk_of,
)
from xcube.primitives.lowered import Template
from xcube.primitives.shape import reduce_sum, reshape, transpose
from xcube.primitives.view import concatenate, pad, slice_in_dim
from xcube.trace import bind, stage

SMALL = 1 << 16  # products below which packing costs more than it gains
LEAST = 4  # lanes of a line
MORE = 4  # times as many places in a window as in the result
MOST_PLACES = 12  # of a row of the result, that registers hold beside each other
PARTS, STRETCH = 16, 1 << 14  # of a window of channels by themselves, and products of a part
CHANNELS = 256  # of a block, at most, so that places of a tile are not too far apart


# conv_general_dilated -> jaxpr ------------------------------------------------------------------


def expand(eqn: Equation, facts: Facts) -> Jaxpr | None:
    """The program of a convolution on packed operands; None for other equations, and where the
    composition is to be had."""
    if facts.units > 1 or eqn.primitive is not conv_general_dilated_p:
        return None
    avals = [atom.aval for atom in eqn.inputs]
    function = functools.partial(convolved, made=functools.partial(_direct, facts=facts))
    return stage(lambda *args: [function(*args, **eqn.params)], avals, eqn.primitive.name)


def _direct(x: Any, w: Any, params: Parameters, *, facts: Facts) -> Any | None:
    """A convolution without gaps in its input; None where this is not its best form."""
    walk, dtype = walk_of(x.shape, w.shape, params), params.dtype(x)
    sums = _accumulator(dtype)
    if _sweeps(x.shape, w.shape, walk, sums, params):
        return _swept(x, w, walk, sums, params, facts)
    if _is_apart(x.shape, w.shape, walk, sums, params):
        return _apart_swept(x, w, walk, sums, params, facts)
    if not _pays(x.shape, w.shape, walk, sums, params):
        return None
    left, right, out = params.dimension_numbers
    tile = choose(walk, w.shape[right[0]] // params.groups, w.shape[right[1]], sums, facts)
    packed = (
        _packed_input(transpose(x, (left[0], *left[2:], left[1])), tile, params, sums),
        _packed_kernel(transpose(w, (right[0], *right[2:], right[1])), tile, params.groups, sums),
    )
    shape = (x.shape[left[0]], *walk.counts, w.shape[right[0]])
    order = places_in(out)
    if is_turned := order[-1] == len(order) - 2 and _in_order(order):
        shape = tuple([shape[d] for d in order])
    kinds = tuple([_kind(d, len(order)) for d in (order if is_turned else range(len(order)))])
    found = bind(convolve_p, *packed, walk=walk, tile=tile, shape=shape, kinds=kinds)
    found = convert_element_type(found, dtype)
    return found if is_turned else transpose(found, order)


def _in_order(order: list[int]) -> bool:
    """Whether the batch and the dimensions of space follow each other as they do in the input."""
    lines = [d for d in order if d != len(order) - 1]
    return lines == sorted(lines)


def _kind(dim: int, ndim: int) -> str:
    """What a dimension of [batch, *space, output] is to a tile."""
    return {ndim - 1: "output", ndim - 2: "place"}.get(dim, "line")


def _pays(x: Shape, w: Shape, walk: Walk, sums: np.dtype, params: Parameters) -> bool:
    """Whether windows overlap, or are single places of an input that is read where it lies, of
    numbers that are summed as they are, and there is enough to do in lines of outputs."""
    if sums.kind not in "fiu" or sums.itemsize < 4 or params.batch_group_count > 1:
        return False
    left, right, _ = params.dimension_numbers
    outputs, channels = w[right[0]] // params.groups, w[right[1]]
    places = x[left[0]] * math.prod(walk.counts)
    overlaps = any(
        size > 1 and stride < (size - 1) * step + 1
        for size, stride, step in zip(walk.window, walk.strides, walk.dilation, strict=True)
    )
    plain = walk.window and set(walk.window) == {1} and set(walk.strides) == {1}
    lies = plain and left[1] == len(x) - 1 and channels <= CHANNELS and params.groups == 1
    products = places * outputs * channels * math.prod(walk.window)
    return (overlaps or bool(lies)) and outputs > LEAST and products >= SMALL and products > 0


def _accumulator(dtype: np.dtype) -> np.dtype:
    narrow = dtypes.is_float(dtype) and dtype.itemsize < 4
    return np.dtype(np.float32) if narrow else dtype


def choose(walk: Walk, outputs: int, channels: int, dtype: np.dtype, facts: Facts) -> Tile:
    """The tile for a convolution: as many sums as registers hold, of places along a row and, where
    rows are short, of some rows; blocks of equally many channels."""
    lanes, lines, most = _lines(outputs, dtype, facts)
    length = walk.counts[-1]
    places = math.ceil(length / math.ceil(length / most))
    blocks = math.ceil(channels / CHANNELS)
    return Tile(max(1, most // places), places, lines, lanes, math.ceil(channels / blocks))


def _lines(outputs: int, dtype: np.dtype, facts: Facts) -> tuple[int, int, int]:
    """Lanes of a line, lines of a tile that leave the fewest lanes idle, and how many of them the
    registers hold besides."""
    lanes = facts.lanes(dtype.itemsize)
    while lanes > LEAST and lanes // 2 >= outputs:
        lanes //= 2
    registers = 32 if facts.vector_bits in (128, 512) else 16
    count = math.ceil(outputs / lanes)
    lines = min((2, 3, 1), key=lambda lines: math.ceil(count / lines) * lines)
    return lanes, lines, (registers - 1 - lines) // lines


# windows that are larger than the result --------------------------------------------------------


def _sweeps(x: Shape, w: Shape, walk: Walk, sums: np.dtype, params: Parameters) -> bool:
    """Whether the window has more places than the result."""
    if sums.kind not in "fiu" or sums.itemsize < 4 or params.feature_group_count > 1:
        return False
    left, right, _ = params.dimension_numbers
    rows, outputs = x[left[0]] // params.groups, w[right[0]] // params.groups
    places, window = math.prod(walk.counts), math.prod(walk.window)
    products = x[left[0]] * outputs * places * window * w[right[1]]
    run = rows * (walk.counts[-1] if walk.counts else 1)
    return window >= MORE * places and min(run, outputs) >= LEAST and products >= SMALL


def _swept(x: Any, w: Any, walk: Walk, sums: np.dtype, params: Parameters, facts: Facts) -> Any:
    left, right, out = params.dimension_numbers
    groups, space = params.groups, len(walk.counts)
    x = transpose(convert_element_type(x, sums), (left[1], *left[2:], left[0]))
    x = reshape(x, (*x.shape[:-1], groups, x.shape[-1] // groups))
    x = pad(x, 0, [(0, 0, 0), *gaps(params), (0, 0, 0), (0, 0, 0)])
    x = transpose(x, (space + 1, *range(space + 1), space + 2))
    w = transpose(convert_element_type(w, sums), (right[1], *right[2:], right[0]))
    outputs = w.shape[-1] // groups
    w = reshape(w, (*w.shape[:-1], groups, outputs))
    w = transpose(w, (space + 1, *range(space + 1), space + 2))
    sweep = choose_sweep(x.shape, w.shape, walk, sums, facts)
    w = pad(w, 0, [*[(0, 0, 0)] * (space + 2), (0, -outputs % sweep.outputs, 0)])
    found = bind(convolve_swept_p, x, w, walk=walk, sweep=sweep)
    total = reduce_sum(found, (0,)) if sweep.parts > 1 else reshape(found, found.shape[1:])
    total = _gathered(total, sweep.taken(walk.counts, x.shape[-1])[1], outputs)
    total = reshape(total, (groups, *walk.counts, x.shape[-1], outputs))
    total = transpose(total, (space + 1, *range(1, space + 1), 0, space + 2))
    total = reshape(total, (*total.shape[: space + 1], groups * outputs))
    return turned(convert_element_type(total, params.dtype(x)), places_in(out))


def choose_sweep(x: Shape, w: Shape, walk: Walk, dtype: np.dtype, facts: Facts) -> Sweep:
    """The tile for a window that is larger than its result."""
    (groups, features), rows, outputs = x[:2], x[-1], w[-1]
    lanes, lines, most = _lines(outputs, dtype, facts)
    merged = walk.strides[-1] == 1
    run = walk.counts[-1] * rows if merged else rows
    high = math.ceil(run / math.ceil(run / most))
    panels = math.ceil(outputs / (lines * lanes))
    products = features * math.prod(walk.window) * math.prod(walk.counts) * rows * outputs
    wanted = min(math.ceil(CUBES / (groups * panels)), products // (groups * panels * TASK))
    parts = parts_of(features * math.prod(walk.window[:-1]), wanted)
    return Sweep(high, lines, lanes, merged, parts)


def _gathered(sums: Any, run: int, outputs: int) -> Any:
    """[group, panel, tile, place, row, output] -> [group, place, row, output], without what a last
    tile has once more."""
    groups, panels, tiles, places, rows, width = sums.shape
    sums = transpose(sums, (0, 3, 2, 4, 1, 5))
    sums = reshape(sums, (groups, places, tiles * rows, panels * width))
    sums = slice_in_dim(sums, 0, outputs, axis=3)
    if (rest := run % rows) == 0:
        return sums
    parts = [(0, run - rest), (tiles * rows - rest, tiles * rows)]
    return concatenate([slice_in_dim(sums, *part, axis=2) for part in parts], 2)


def _swept_abstract(x: Aval, w: Aval, *, walk: Walk, sweep: Sweep) -> Aval:
    taps, run = sweep.taken(walk.counts, x.shape[-1])
    tiles, panels = math.ceil(run / sweep.rows), w.shape[-1] // sweep.outputs
    place = math.prod(taps), sweep.rows, sweep.outputs
    return Aval((sweep.parts, x.shape[0], panels, tiles, *place), x.dtype)


convolve_swept_p = Primitive("convolve_swept", _swept_abstract, lower=Template("convolve_swept"))


# windows that are larger than the result, of channels by themselves -----------------------------


def _is_apart(x: Shape, w: Shape, walk: Walk, sums: np.dtype, params: Parameters) -> bool:
    """Whether each channel has a window of its own that is larger than the result, and channels are
    neighbours in memory."""
    left, right, _ = params.dimension_numbers
    channels, last = params.batch_group_count, len(x) - 1
    if not channels == x[left[0]] == w[right[0]] or not left[0] == right[0] == last:
        return False
    places, window = math.prod(walk.counts), math.prod(walk.window)
    products = channels * places * window * w[right[1]]
    fits = channels > LEAST and last > 1 and 0 < walk.counts[-1] <= MOST_PLACES
    return fits and sums.kind in "fiu" and sums.itemsize >= 4 and products >= SMALL


def _apart_swept(
    x: Any, w: Any, walk: Walk, sums: np.dtype, params: Parameters, facts: Facts
) -> Any:
    left, right, out = params.dimension_numbers
    x = transpose(convert_element_type(x, sums), (left[1], *left[2:], left[0]))
    x = pad(x, 0, [(0, 0, 0), *gaps(params), (0, 0, 0)])
    w = transpose(convert_element_type(w, sums), (right[1], *right[2:], right[0]))
    strip = choose_strip(w.shape, walk, sums, facts)
    found = bind(convolve_apart_p, x, w, walk=walk, strip=strip)
    found = convert_element_type(reduce_sum(found, (0,)), params.dtype(x))
    return turned(reshape(found, (1, *found.shape)), places_in(out))


def choose_strip(w: Shape, walk: Walk, dtype: np.dtype, facts: Facts) -> Strip:
    """As many lines of channels as registers hold sums of; the sizes alone decide about parts."""
    lanes, _, most = _lines(w[-1], dtype, facts)
    count = math.ceil(w[-1] / lanes)
    lines = max(1, min(count, 2 * most // (walk.counts[-1] + 1)))
    lines = math.ceil(count / math.ceil(count / lines))
    wanted = min(PARTS, math.prod(w[:-1]) * math.prod(walk.counts) // STRETCH)
    return Strip(lines, lanes, parts_of(math.prod(w[:-2]), wanted))


def _apart_abstract(x: Aval, w: Aval, *, walk: Walk, strip: Strip) -> Aval:
    return Aval((strip.parts, *walk.counts, x.shape[-1]), x.dtype)


convolve_apart_p = Primitive("convolve_apart", _apart_abstract, lower=Template("convolve_apart"))


# packing ----------------------------------------------------------------------------------------


def _packed_input(x: Any, tile: Tile, params: Parameters, dtype: np.dtype) -> Any:
    """[batch, *space, features] -> [batch, group, block, *space, channel], padded."""
    groups, space = params.feature_group_count, x.ndim - 2
    per_group = x.shape[-1] // groups
    blocks = math.ceil(per_group / tile.channels)
    x = reshape(convert_element_type(x, dtype), (*x.shape[:-1], groups, per_group))
    behind = blocks * tile.channels - per_group
    x = pad(x, 0, [(0, 0, 0), *gaps(params), (0, 0, 0), (0, behind, 0)])
    x = reshape(x, (*x.shape[:-1], blocks, tile.channels))
    return transpose(x, (0, space + 1, space + 2, *range(1, space + 1), space + 3))


def _packed_kernel(w: Any, tile: Tile, groups: int, dtype: np.dtype) -> Any:
    """[outputs, *window, channels] -> [group, panel, block, *window, channel, output], padded."""
    space, outputs, channels = w.ndim - 2, w.shape[0] // groups, w.shape[-1]
    panels, blocks = math.ceil(outputs / tile.outputs), math.ceil(channels / tile.channels)
    w = reshape(convert_element_type(w, dtype), (groups, outputs, *w.shape[1:]))
    behind = panels * tile.outputs - outputs, blocks * tile.channels - channels
    w = pad(w, 0, [(0, 0, 0), (0, behind[0], 0), *[(0, 0, 0)] * space, (0, behind[1], 0)])
    w = reshape(w, (groups, panels, tile.outputs, *w.shape[2:-1], blocks, tile.channels))
    window = range(3, space + 3)
    return transpose(w, (0, 1, space + 3, *window, space + 4, 2))


def _convolve_abstract(
    x: Aval, w: Aval, *, walk: Walk, tile: Tile, shape: Shape, kinds: tuple[str, ...]
) -> Aval:
    return Aval(shape, x.dtype)


convolve_p = Primitive("convolve", _convolve_abstract, lower=Template("convolve"))


# kernels ----------------------------------------------------------------------------------------


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launch of a convolution of packed operands with the map behind it."""
    root = group.root
    assert root is not None
    kinds = root.params["kinds"]
    space = analyse(group, kinds)
    if len(space.of(kinds[-1])) > 1:
        return _apart(group, facts, sources)
    return [convolve_direct.Convolution(group, space, sources, facts).build()]


def _apart(group: Group, facts: Facts, sources: frozenset[Var]) -> list[Work]:
    """The convolution alone, then its map: where the map's outputs are no single loop."""
    root = group.root
    assert root is not None
    result = root.outputs[0]
    alone = Group("convolve", group.shape, (), (result,), {result: root}, root)
    rest = {var: eqn for var, eqn in group.producers.items() if eqn is not root}
    outputs = tuple(var for var in group.outputs if var is not result)
    first = build(alone, facts)
    if not outputs:
        return first
    return [*first, *rows.build(Group("map", group.shape, (), outputs, rest), facts, sources)]
