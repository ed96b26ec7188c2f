"""Contractions on matrix units: which of them take that road, how their operands lie, which tile
computes them, and in how many parts the depth is summed.

An operand is read as it lies if its rows and its depth are each one loop of it, one of them over
neighbours, and every chunk of 16 bytes is whole and aligned; otherwise a map copies it to
[batch, rows, depth], with zeros behind a depth that chunks do not divide. Narrow floats are summed
in f32. f32 is multiplied as tf32 only where the program asks for it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xcube import config, dtypes
from xcube.ir import Aval, Equation, Jaxpr, Primitive, Shape, Var
from xcube.lowering import tune
from xcube.lowering.clusters import Group
from xcube.lowering.cube import matrix
from xcube.lowering.cube.check_matrix import RANK
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.contract_matrix_tile import Contraction
from xcube.lowering.kernels.space import Space
from xcube.lowering.kernels.work import Work
from xcube.primitives.contract import Precision, dot_general_p
from xcube.primitives.convert import convert_element_type
from xcube.primitives.lowered import Template
from xcube.primitives.shape import reduce_sum, reshape, transpose
from xcube.primitives.view import pad
from xcube.trace import bind, stage

FEATURES = {"bf16": "matrix_bf16", "f16": "matrix_f16", "f32": "matrix_tf32"}
ROUNDED = ("tensorfloat32", "high", "bfloat16_3x", "fastest", "bfloat16")  # what lets f32 be tf32
SMALL = 1 << 15  # products below which a kernel of matrix units costs more than it gains
FEW = 16  # rows of the smallest tile
MEMORY = 48 << 10  # bytes of shared memory that every device gives a cube
TRIED = 6  # plans that race where products are tuned
RESERVED = 1 << 10  # bytes of shared memory that the device keeps of each cube


@dataclass(frozen=True)
class Layout:
    """How an operand lies in memory: the sizes of its dimensions, and which of them are walked with
    the other operand, are rows of the product, and are summed over."""

    shape: Shape
    batch: Shape
    rows: Shape
    depth: Shape

    def size(self, dims: Shape) -> int:
        """How many elements some dimensions have together."""
        return math.prod(self.shape[dim] for dim in dims)

    def stride(self, dims: Shape) -> int | None:
        """The distance of neighbours along dimensions that are one loop; None if they are not."""
        kept = [dim for dim in dims if self.shape[dim] != 1]
        steps = [math.prod(self.shape[dim + 1 :]) for dim in kept]
        pairs = zip(steps, steps[1:], kept[1:], strict=False)
        if any(outer != inner * self.shape[dim] for outer, inner, dim in pairs):
            return None
        return steps[-1] if steps else 0

    @property
    def deep(self) -> bool:
        """Whether neighbours lie along the depth."""
        return self.stride(self.depth) in (0, 1)

    def is_direct(self, dtype: str) -> bool:
        """Whether tiles can read the operand as it lies, in whole chunks."""
        rows, depth = self.stride(self.rows), self.stride(self.depth)
        if rows is None or depth is None or not (self.deep or rows == 1):
            return False
        if not self.deep and dtype == "f32":
            return False
        along, other = (self.depth, rows) if self.deep else (self.rows, depth)
        steps = [other, *(self.stride((dim,)) or 0 for dim in self.batch)]
        return all(number % matrix.width(dtype) == 0 for number in (self.size(along), *steps))

    def permuted(self, order: Shape) -> Layout:
        """The layout of what was transposed by `order` to give an operand of this layout."""
        inverse = sorted(range(len(order)), key=order.__getitem__)
        shape = tuple([self.shape[place] for place in inverse])
        groups = [tuple([order[dim] for dim in g]) for g in (self.batch, self.rows, self.depth)]
        return Layout(shape, *groups)


@dataclass(frozen=True)
class Plan:
    """The comptime choices: rows and columns of a cube's tile, slices of the depth in memory at a
    time, how its planes share the tile; its road: "planes" and "panels" multiply what all units
    copied, "stream" what one asked for; how many cubes share a core, products of a core in a cycle;
    in how many parts the depth is summed."""

    rows: int
    columns: int
    stages: int
    planes: tuple[int, int]
    road: str
    resident: int
    rate: int
    splits: int = 1

    @property
    def units(self) -> int:
        return 32 * self.planes[0] * self.planes[1]

    @property
    def nbytes(self) -> int:
        """Shared memory of a cube."""
        return self.stages * (self.rows + self.columns) * matrix.LINE

    def __str__(self) -> str:
        parts = f" in {self.splits}" if self.splits > 1 else ""
        resident = f" x{self.resident}" if self.resident > 1 else ""
        return f"{self.rows}x{self.columns} {self.road}{resident}{parts}"


PLANS = (
    Plan(128, 256, 4, (12, 1), "stream", 1, 1850),
    Plan(128, 192, 5, (12, 1), "stream", 1, 1750),
    Plan(128, 128, 6, (12, 1), "stream", 1, 1600),
    Plan(128, 256, 4, (8, 1), "panels", 1, 1650),
    Plan(128, 128, 3, (8, 1), "panels", 2, 1200),
    Plan(128, 128, 3, (2, 4), "planes", 2, 800),
    Plan(64, 64, 4, (2, 2), "planes", 3, 550),
    Plan(16, 64, 4, (1, 4), "planes", 5, 200),
)


@dataclass(frozen=True)
class Sizes:
    """batch x (rows x depth) @ (depth x columns)."""

    batch: int
    rows: int
    columns: int
    depth: int


# dot_general -> jaxpr -----------------------------------------------------------------------------


def product(lhs: Any, rhs: Any, params: dict[str, Any], out: Aval, facts: Facts) -> Any | None:
    """A dot_general on matrix units; None where it takes another road."""
    dtype = dtypes.short_name(lhs.dtype)
    if lhs.dtype != rhs.dtype or not _is_taken(dtype, params["precision"], out, facts):
        return None
    (lhs_sum, rhs_sum), (lhs_batch, rhs_batch) = params["dimension_numbers"]
    layouts = [_layout(lhs.shape, lhs_sum, lhs_batch), _layout(rhs.shape, rhs_sum, rhs_batch)]
    counts = [layout.size(layout.rows) for layout in layouts]
    batch, depth = layouts[0].size(lhs_batch), layouts[0].size(lhs_sum)
    if min(counts) < 2 or max(counts) < 8 or depth < 8:  # one row or column is read, no more
        return None
    if batch * math.prod(counts) * depth < SMALL:
        return None
    kinds = ["batch"] * len(lhs_batch)
    kinds += ["m"] * len(layouts[0].rows) + ["n"] * len(layouts[1].rows)
    operands = [lhs, rhs]
    if counts[1] < min(counts[0], FEW):  # the operand of few rows comes first
        operands, layouts, counts = operands[::-1], layouts[::-1], counts[::-1]
        kinds = [{"m": "n", "n": "m"}.get(kind, kind) for kind in kinds]
    prepared = [_direct(x, layout, dtype) for x, layout in zip(operands, layouts, strict=True)]
    (left, lies), right = prepared
    sizes = Sizes(batch, counts[0], counts[1], lies.size(lies.depth))
    rank = 2 + max(sum(x.shape[dim] != 1 for dim in x.batch) for x in (lies, right[1]))
    lie = [layout.deep for layout in (lies, right[1])]
    problem = f"{dtype} {sizes.batch} {sizes.rows} {sizes.columns} {sizes.depth} {rank} {lie}"
    example = functools.partial(_alone, lhs.aval, rhs.aval, params)
    plan = tune.pick("matmul", problem, candidates(sizes, dtype, facts, rank), facts, example)
    if not lies.deep and plan.rows % matrix.span(dtype):
        left = _copied(left, lies, dtype)
    else:
        left = left, lies
    return _bound([left[0], right[0]], [left[1], right[1]], plan, sizes, kinds, out)


def _alone(lhs: Aval, rhs: Aval, params: dict[str, Any]) -> Jaxpr:
    """The product and nothing else."""
    return stage(lambda x, y: [bind(dot_general_p, x, y, **params)], [lhs, rhs])


def _bound(
    operands: Sequence[Any],
    layouts: Sequence[Layout],
    plan: Plan,
    sizes: Sizes,
    kinds: Sequence[str],
    out: Aval,
) -> Any:
    parts = plan.splits > 1
    shape = (plan.splits, *out.shape) if parts else out.shape
    dtype = np.dtype(np.float32) if parts else out.dtype
    whole = ("split", *kinds) if parts else tuple(kinds)
    result = bind(
        matrix_product,
        *operands,
        layouts=tuple(layouts),
        plan=plan,
        sizes=sizes,
        shape=shape,
        kinds=whole,
        dtype=dtype,
    )
    return convert_element_type(reduce_sum(result, (0,)) if parts else result, out.dtype)


def _is_taken(dtype: str, precision: Any, out: Aval, facts: Facts) -> bool:
    if FEATURES.get(dtype) not in facts.features or not dtypes.is_float(out.dtype):
        return False
    if out.dtype.itemsize > 4:
        return False
    asked = precision == (Precision.HIGH, Precision.HIGH)
    named = precision is None and config.current.default_matmul_precision in ROUNDED
    return dtype != "f32" or asked or named


def _layout(shape: Shape, sums: Shape, batch: Shape) -> Layout:
    rows = tuple([dim for dim in range(len(shape)) if dim not in sums and dim not in batch])
    return Layout(shape, batch, rows, sums)


def _direct(x: Any, layout: Layout, dtype: str) -> tuple[Any, Layout]:
    """An operand that tiles can read, and its layout: itself or a copy."""
    return (x, layout) if layout.is_direct(dtype) else _copied(x, layout, dtype)


def _copied(x: Any, layout: Layout, dtype: str) -> tuple[Any, Layout]:
    """A copy as [batch, rows, depth], the depth in whole chunks."""
    x = transpose(x, (*layout.batch, *layout.rows, *layout.depth))
    sizes = tuple([layout.size(dims) for dims in (layout.batch, layout.rows, layout.depth)])
    x = reshape(x, sizes)
    if (missing := -sizes[2] % matrix.width(dtype)) > 0:
        zero = np.zeros((), x.dtype)[()]
        x = pad(x, zero, ((0, 0, 0), (0, 0, 0), (0, missing, 0)))
    return x, Layout(x.shape, (0,), (1,), (2,))


# choices ------------------------------------------------------------------------------------------


def choose(sizes: Sizes, dtype: str, facts: Facts, rank: int = 2) -> Plan:
    """The plan that should take the fewest cycles."""
    return candidates(sizes, dtype, facts, rank)[0]


def candidates(sizes: Sizes, dtype: str, facts: Facts, rank: int = 2) -> tuple[Plan, ...]:
    """The plans that should take the fewest cycles, by a model of how cubes fill the cores, the
    best first; `rank`: dimensions of an operand in memory."""
    found = [
        replace(plan, splits=splits)
        for plan in PLANS
        if _is_possible(plan, dtype, facts, rank)
        for splits in _splits(plan, sizes, dtype, facts)
    ]
    return tuple(sorted(found, key=lambda plan: _cycles(plan, sizes, dtype, facts))[:TRIED])


def _is_possible(plan: Plan, dtype: str, facts: Facts, rank: int) -> bool:
    if plan.road == "stream" and rank > RANK:
        return False
    if plan.road != "planes" and ("sm_90a" not in facts.features or dtype == "f32"):
        return False
    return plan.nbytes + RESERVED <= max(facts.l1_bytes, MEMORY)


def _splits(plan: Plan, sizes: Sizes, dtype: str, facts: Facts) -> list[int]:
    """In how many parts to sum the depth where there are too few cubes for all cores."""
    cubes, slices = _cubes(plan, sizes), math.ceil(sizes.depth / matrix.span(dtype))
    most = min(16, slices // 4, facts.cores * plan.resident // cubes)
    fitting = [n for n in (2, 3, 4, 6, 8, 12, 16) if n <= most and _all_have_work(slices, n)]
    return [1, *fitting]


def _all_have_work(slices: int, parts: int) -> bool:
    return (parts - 1) * math.ceil(slices / parts) < slices


def _cubes(plan: Plan, sizes: Sizes) -> int:
    down, across = sizes.rows / plan.rows, sizes.columns / plan.columns
    return sizes.batch * math.ceil(down) * math.ceil(across)


# What a model of a core takes: cycles of a cube before its first product, and of one launch more;
# elements of a result in a cycle, from the sums to memory; bytes in a cycle, of all cores' share of
# memory, of memory for one core alone, and of the cache that cores share. Measured on an H200.
_START, _MEET = 3000, 5000
_BEHIND = 5
_SHARE, _ALONE, _NEAR = 14, 20, 48


def _cycles(plan: Plan, sizes: Sizes, dtype: str, facts: Facts) -> float:
    """Cycles of a contraction: cubes in waves over the cores, but no faster than memory."""
    cubes = _cubes(plan, sizes) * plan.splits
    waves, last = divmod(cubes, facts.cores * plan.resident)
    shared = waves * plan.resident + math.ceil(last / facts.cores)
    products = max(shared * _products(plan, sizes, dtype), _memory(cubes, sizes, dtype, facts))
    behind = plan.rows * plan.columns / _BEHIND * (1 if _is_whole(plan, sizes) else 1.3)
    around = shared / plan.resident * behind + math.ceil(shared / plan.resident) * _START
    if plan.splits == 1:
        return products + around
    moved = 8 * plan.splits * sizes.batch * sizes.rows * sizes.columns
    return products + around + _MEET + moved / (_SHARE * facts.cores)


def _products(plan: Plan, sizes: Sizes, dtype: str) -> float:
    """Cycles of one tile's products, where operands come from the cache."""
    span = matrix.span(dtype)
    slices = math.ceil(math.ceil(sizes.depth / span) / plan.splits)
    rate = plan.rate if dtype != "f32" else plan.rate / 2
    lines = min(plan.rows, sizes.rows) + min(plan.columns, sizes.columns)
    return slices * max(plan.rows * plan.columns * span / rate, lines * matrix.LINE / _NEAR)


def _memory(cubes: int, sizes: Sizes, dtype: str, facts: Facts) -> float:
    """Cycles in which memory gives both operands to as many cores as there are cubes."""
    lines = sizes.batch * (sizes.rows + sizes.columns) * sizes.depth / matrix.span(dtype)
    rate = min(_SHARE * facts.cores, _ALONE * min(cubes, facts.cores))
    return lines * matrix.LINE / rate


def _is_whole(plan: Plan, sizes: Sizes) -> bool:
    return sizes.rows % plan.rows == 0 and sizes.columns % plan.columns == 0


# the primitive ------------------------------------------------------------------------------------


def _abstract(left: Aval, right: Aval, *, shape: Shape, dtype: np.dtype, **_: Any) -> Aval:
    return Aval(shape, dtype)


matrix_product = Primitive("matrix_product", _abstract, lower=Template("matmul", is_plain=True))


def build(group: Group, space: Space, sources: frozenset[Var], facts: Facts) -> Work:
    """The launch of a contraction on matrix units with the map behind it."""
    root = group.root
    assert root is not None
    return Contraction(root, space, sources, facts).build()


def absorbed(eqn: Equation, number: int, order: Shape) -> dict[str, Any] | None:
    """The parameters of a product whose operand is not transposed by `order` before; None if tiles
    could not read it as it lies then."""
    layouts, dtype = list(eqn.params["layouts"]), dtypes.short_name(eqn.inputs[0].aval.dtype)
    if layouts[number].shape != eqn.inputs[number].aval.shape:  # reshaped behind the transpose
        return None
    layouts[number] = layouts[number].permuted(order)
    plan: Plan = eqn.params["plan"]
    wide = number == 0 and not layouts[0].deep
    if not layouts[number].is_direct(dtype) or (wide and plan.rows % matrix.span(dtype)):
        return None
    return {**eqn.params, "layouts": tuple(layouts)}
