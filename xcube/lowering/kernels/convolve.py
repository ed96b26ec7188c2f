"""Convolutions: which of them get kernels of their own, and the programs that they become.

The input is laid out by ordinary maps as [batch, group, block of channels, *space, channel], padded,
the kernel as [group, panel of outputs, block, *window, channel, output], so whatever produces them
fuses into the packing, and an input that lies so already is read where it is. Where a cube has many
units, and where results are few, a convolution is the composition that its primitive states.
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
from xcube.lowering.kernels.convolve_direct import Tile
from xcube.lowering.kernels.convolve_swept import Sweep, parts_of
from xcube.lowering.kernels.space import analyse
from xcube.lowering.kernels.work import Work
from xcube.primitives.convert import convert_element_type
from xcube.primitives.convolution import conv_general_dilated_p
from xcube.primitives.convolution_pull import Parameters, Walk, convolved, gaps, places_in, walk_of
from xcube.primitives.lowered import Template
from xcube.primitives.shape import reduce_sum, reshape, transpose
from xcube.primitives.view import pad
from xcube.trace import bind, stage

SMALL = 1 << 16  # products below which packing costs more than it gains
LEAST = 4  # outputs of a group that are worth a line
MORE = 4  # times as many places in a window as in the result
CHANNELS = 64  # of a block, at most: places of a tile lie in different sets of the cache


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
    if not _pays(x.shape, w.shape, walk, sums, params):
        return None
    left, right, out = params.dimension_numbers
    tile = choose(walk, w.shape[right[0]] // params.groups, w.shape[right[1]], sums, facts)
    packed = (
        _packed_input(transpose(x, (left[0], *left[2:], left[1])), tile, params, sums),
        _packed_kernel(transpose(w, (right[0], *right[2:], right[1])), tile, params.groups, sums),
    )
    shape = (x.shape[left[0]], *walk.counts, w.shape[right[0]])
    found = bind(convolve_p, *packed, walk=walk, tile=tile, shape=shape)
    return transpose(convert_element_type(found, dtype), places_in(out))


def _pays(x: Shape, w: Shape, walk: Walk, sums: np.dtype, params: Parameters) -> bool:
    """Whether windows overlap in an input of numbers that are summed as they are, and there is
    enough to do in lines of outputs."""
    if sums.kind not in "fiu" or sums.itemsize < 4 or params.batch_group_count > 1:
        return False
    right = params.dimension_numbers.rhs_spec
    outputs, channels = w[right[0]] // params.groups, w[right[1]]
    places = x[params.dimension_numbers.lhs_spec[0]] * math.prod(walk.counts)
    overlaps = any(
        size > 1 and stride < (size - 1) * step + 1
        for size, stride, step in zip(walk.window, walk.strides, walk.dilation, strict=True)
    )
    products = places * outputs * channels * math.prod(walk.window)
    return overlaps and outputs >= LEAST and products >= SMALL and products > 0


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
    return window >= MORE * places and min(rows, outputs) >= LEAST and products >= SMALL


def _swept(
    x: Any, w: Any, walk: Walk, sums: np.dtype, params: Parameters, facts: Facts
) -> Any:
    left, right, out = params.dimension_numbers
    groups, space = params.groups, len(walk.counts)
    x = transpose(convert_element_type(x, sums), (left[1], *left[2:], left[0]))
    x = reshape(x, (*x.shape[:-1], groups, x.shape[-1] // groups))
    x = pad(x, 0, [(0, 0, 0), *gaps(params), (0, 0, 0), (0, 0, 0)])
    x = transpose(x, (space + 1, *range(space + 1), space + 2))
    w = transpose(convert_element_type(w, sums), (right[1], *right[2:], right[0]))
    outputs = w.shape[-1] // groups
    w = reshape(w, (*w.shape[:-1], groups, outputs))
    sweep = choose_sweep(walk, x.shape[-1], outputs, w.shape[0], sums, facts)
    w = pad(w, 0, [*[(0, 0, 0)] * (space + 2), (0, -outputs % sweep.outputs, 0)])
    w = transpose(w, (space + 1, *range(space + 1), space + 2))
    found = bind(convolve_swept_p, x, w, walk=walk, sweep=sweep, outputs=outputs)
    total = reduce_sum(found, (0,)) if sweep.parts > 1 else reshape(found, found.shape[1:])
    total = reshape(total, (groups, *walk.counts, x.shape[-1], outputs))
    total = transpose(total, (space + 1, *range(1, space + 1), 0, space + 2))
    total = reshape(total, (*total.shape[: space + 1], groups * outputs))
    return transpose(convert_element_type(total, params.dtype(x)), places_in(out))


def choose_sweep(
    walk: Walk, rows: int, outputs: int, features: int, dtype: np.dtype, facts: Facts
) -> Sweep:
    """The tile for a window that is larger than its result."""
    lanes, lines, most = _lines(outputs, dtype, facts)
    merged = walk.strides[-1] == 1
    run = walk.counts[-1] * rows if merged else rows
    high = math.ceil(run / math.ceil(run / most))
    tiles = math.ceil(run / high) * math.ceil(outputs / (lines * lanes))
    products = features * math.prod(walk.window) * math.prod(walk.counts) * rows * outputs
    parts = parts_of(features * math.prod(walk.window[:-1]), tiles, products)
    return Sweep(high, lines, lanes, merged, parts)


def _swept_abstract(x: Aval, w: Aval, *, walk: Walk, sweep: Sweep, outputs: int) -> Aval:
    turns, run = sweep.taken(walk.counts, x.shape[-1])
    return Aval((sweep.parts, x.shape[0], *turns, run, outputs), x.dtype)


convolve_swept_p = Primitive(
    "convolve_swept", _swept_abstract, lower=Template("convolve_swept")
)


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


def _convolve_abstract(x: Aval, w: Aval, *, walk: Walk, tile: Tile, shape: Shape) -> Aval:
    return Aval(shape, x.dtype)


convolve_p = Primitive("convolve", _convolve_abstract, lower=Template("convolve"))


# kernels ----------------------------------------------------------------------------------------


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launch of a convolution of packed operands with the map behind it."""
    root = group.root
    assert root is not None
    kinds = (*("line",) * (len(group.shape) - 2), "place", "output")
    space = analyse(group, kinds)
    if len(space.of("output")) > 1:
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
