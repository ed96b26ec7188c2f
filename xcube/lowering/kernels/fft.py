"""The template of discrete Fourier transforms along one axis, where a cube is a task of one thread.

The operand is seen as (outer, n, inner). With inner == 1 a cube transforms a row, with lines along
the terms; else, and where rows are short, it transforms as many columns as a line has lanes, side
by side. The first pass reads the operand, the last writes the result, and what is between lies in
two arrays, real parts before imaginary ones. The inverse transform exchanges them on both ends.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.ir import Aval, Equation, Jaxpr, Primitive, Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Buffer
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels import fft_real
from xcube.lowering.kernels.fft_butterfly import Pair, butterfly, times
from xcube.lowering.kernels.fft_lines import load_pairs, store_pairs
from xcube.lowering.kernels.fft_plan import Pass, Plan, table
from xcube.lowering.kernels.nodes import Arguments
from xcube.lowering.kernels.work import Work
from xcube.primitives.elementwise import mul
from xcube.primitives.fft import composed, fft_p
from xcube.primitives.fft_steps import bluestein, is_smooth, twists
from xcube.primitives.fft_steps import table as held
from xcube.primitives.lowered import Template
from xcube.primitives.shape import broadcast_in_dim, reshape, transpose
from xcube.trace import bind, stage

TASK = 20_000  # operations worth handing to a thread
SHORT = 64  # terms of a row that is transformed beside others
LOCAL = 1 << 18  # bytes of arrays that a cube may have of its own

# fft -> jaxpr -----------------------------------------------------------------------------------


def expand(eqn: Equation, facts: Facts) -> Jaxpr | None:
    """The program of a transform by passes; None for other equations, and where cubes have many
    units."""
    if facts.units > 1 or eqn.primitive is not fft_p:
        return None
    core = functools.partial(_transformed, facts=facts)
    avals = [atom.aval for atom in eqn.inputs]
    real = functools.partial(_transformed_real, facts=facts)
    return stage(lambda x: [composed(x, **eqn.params, core=core, real_core=real)], avals, "fft")


def _transformed_real(
    x: Any, axis: int, n: int, inverse: bool, scale: float, *, facts: Facts
) -> Any | None:
    """A transform of 2n real terms, or back, in one launch; None where that is not its form."""
    part = dtypes.float_part(x.dtype) if inverse else x.dtype
    plan = Plan(n, 1, facts.lanes(part.itemsize), inverse, scale, True)
    if axis != x.ndim - 1 or n < SHORT or not is_smooth(n) or not _fits(plan, part):
        return None
    factors = held(table, (plan,), (plan.size,), part)
    return bind(fft_passes_p, x, factors, axis=axis, plan=plan)


def _fits(plan: Plan, dtype: np.dtype) -> bool:
    return 4 * plan.room * dtype.itemsize <= LOCAL


def _transformed(x: Any, axis: int, inverse: bool, scale: float = 1.0, *, facts: Facts) -> Any:
    """`scale` times the transform along an axis."""
    core = functools.partial(_transformed, facts=facts)
    n = x.shape[axis]
    if not is_smooth(n):
        return bluestein(x, axis, inverse, scale, core)
    part = dtypes.float_part(x.dtype)
    lanes = facts.lanes(part.itemsize)
    walk = Walk.of(x.shape, axis, lanes)
    plan = Plan(n, walk.width, lanes if walk.columns == 1 else walk.width, inverse, scale)
    if not _fits(plan, part):
        return _in_two_steps(x, axis, inverse, scale, core)
    factors = held(table, (plan,), (plan.size,), part)
    return bind(fft_passes_p, x, factors, axis=axis, plan=plan)


def _in_two_steps(x: Any, axis: int, inverse: bool, scale: float, core: Any) -> Any:
    """The columns of a matrix of the terms, then its rows."""
    n = x.shape[axis]
    rows = max(d for d in range(1, math.isqrt(n) + 1) if n % d == 0)
    columns = n // rows
    terms = reshape(x, (*x.shape[:axis], rows, columns, *x.shape[axis + 1 :]))
    terms = core(terms, axis, inverse)
    twist = held(twists, (rows, columns, inverse), (rows, columns), x.dtype)
    terms = mul(terms, broadcast_in_dim(twist, terms.shape, (axis, axis + 1)))
    terms = core(terms, axis + 1, inverse, scale)
    order = list(range(terms.ndim))
    order[axis], order[axis + 1] = axis + 1, axis
    return reshape(transpose(terms, order), x.shape)


def _passes_abstract(x: Aval, factors: Aval, *, axis: int, plan: Plan) -> Aval:
    if not plan.real:
        return Aval(x.shape, x.dtype)
    if plan.inverse:
        return Aval((*x.shape[:-1], 2 * plan.n), factors.dtype)
    return Aval((*x.shape[:-1], plan.n + 1), dtypes.complex_of(x.dtype))


fft_passes_p = Primitive("fft_passes", _passes_abstract, lower=Template("fft"))

# kernels ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Walk:
    """Where terms lie: term t of column c of block o at o * apart + t * stride + c * step; there
    are `outer` blocks of `columns`, of which `width` are handled together."""

    outer: int
    columns: int
    width: int
    stride: int
    step: int
    apart: int

    @staticmethod
    def of(shape: tuple[int, ...], axis: int, lanes: int) -> Walk:
        """The walk along an axis of an array."""
        outer, n = math.prod(shape[:axis]), shape[axis]
        inner = math.prod(shape[axis + 1 :])
        if inner > 1:
            return Walk(outer, inner, _width(inner, lanes), inner, 1, n * inner)
        if n < SHORT and outer > 1:
            return Walk(1, outer, _width(outer, lanes), 1, n, 0)
        return Walk(outer, 1, 1, 1, 1, n)

    @property
    def blocks(self) -> int:
        """Cubes for the columns."""
        return -(-self.columns // self.width)


def _width(columns: int, lanes: int) -> int:
    while lanes // 2 >= columns:
        lanes //= 2
    return lanes


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launch of a transform; `sources`, whose memory results take over, are never operands."""
    root = group.root
    assert root is not None
    x, factors = root.inputs
    assert isinstance(x, Var) and isinstance(factors, Var)
    plan = root.params["plan"]
    shape = root.outputs[0].aval.shape if plan.real and plan.inverse else x.aval.shape
    if plan.real:
        shape = (*shape[:-1], shape[-1] // 2)
    walk = Walk.of(shape, root.params["axis"], plan.widest)
    return [_Launch(plan, walk, x, factors, root.outputs[0]).work()]


class _Launch:
    """The kernel in the making."""

    def __init__(self, plan: Plan, walk: Walk, x: Var, factors: Var, out: Var) -> None:
        self.plan, self.walk = plan, walk
        self.b = b = Builder("fft")
        self.arguments = Arguments(b)
        self.out = self.arguments.buffer(out, "out")
        self.x, self.factors = self.arguments.buffer(x), self.arguments.buffer(factors)
        self.dtype = dtypes.short_name(factors.aval.dtype)
        size = 1 << (2 * plan.room - 1).bit_length()
        count = 2 if plan.real else min(2, len(plan.passes) - 1)
        self.arrays = [b.local(self.dtype, size) for _ in range(count)]
        self.half = size // 2 if count else 0
        self.stride = self.scalar("stride", walk.stride)
        self.step = self.scalar("step", walk.step) if walk.step > 1 else None
        self._place()

    def scalar(self, name: Any, number: int) -> Value:
        """A number of this launch."""
        return self.arguments.scalar(name, number)

    def _place(self) -> None:
        """Where the cube's columns lie, and which of their lanes there are."""
        b, walk = self.b, self.walk
        cube, self.mask = b.place("cube_pos.x"), None
        block = b.constant(0, "index")
        if walk.columns > 1:
            blocks = self.scalar("blocks", walk.blocks)
            cube, block = cube // blocks, cube % blocks
        first = block * walk.width
        self.cube = cube
        self.base = cube * self.scalar("apart", walk.apart)
        self.base = self.base + (first if self.step is None else first * self.step)
        if walk.columns % walk.width:
            left = (self.scalar("columns", walk.columns) - first).cast("i32")
            self.mask = b.lane(walk.width, "i32") < left

    def array(self, number: int) -> Buffer:
        """Where a pass writes to, and -1, what comes before the first one."""
        return self.arrays[number % 2]

    def work(self) -> Work:
        """The launch with all passes."""
        plan, offset = self.plan, self.b.constant(0, "index")
        if plan.real and plan.inverse:
            fft_real.pack(self)
        for number, p in enumerate(self.plan.passes):
            _PassCode(self, number, p, offset).build()
            offset = offset + self.scalar(("factors", number), p.factors)
        if plan.real and not plan.inverse:
            fft_real.unpack(self)
        cubes = self.walk.outer * self.walk.blocks
        cost = 2 * len(self.plan.passes) * self.plan.n * self.plan.width
        grain = max(1, math.ceil(TASK / cost))
        variables, cells = tuple(self.arguments.variables), tuple(self.arguments.cells)
        return Work(self.b.finish(), variables, cells, cubes, grain)


class _PassCode:
    """One pass of the kernel."""

    def __init__(self, launch: _Launch, number: int, p: Pass, offset: Value) -> None:
        self.launch, self.b, self.p, self.offset = launch, launch.b, p, offset
        plan, packs = launch.plan, launch.plan.real and launch.plan.inverse
        self.first = number == 0 and not packs
        last = number == len(plan.passes) - 1 and (packs or not plan.real)
        self.source = None if self.first else launch.array(number - 1)
        self.target = None if last else launch.array(number)
        self.span = launch.scalar(("span", number), p.span)
        self.rest = launch.scalar(("rest", number), p.rest)

    def build(self) -> None:
        """All lines of the pass."""
        if self.p.woven:
            self._weave()
            return
        b, lanes = self.b, self.p.lanes
        for p in b.range(0, self.rest):
            factors = self._factors(p, 1)
            for q in b.range(0, self.span, lanes):
                mask = None
                if self.p.ragged:
                    mask = b.lane(lanes, "i32") < (self.span - q).cast("i32")
                terms = self._terms(q + p * self.span, mask)
                start = q + p * (self.span * self.p.radix)
                for k, value in enumerate(self._results(terms, factors)):
                    self._store(start + self.span * k, value, mask)

    def _weave(self) -> None:
        """Lines with several p: results are neighbours of each other."""
        b, lanes, radix, span = self.b, self.p.lanes, self.p.radix, self.p.span
        terms_of = self.span * self.rest
        order = [0] * (lanes * radix)
        for lane in range(lanes):
            for k in range(radix):
                order[lane % span + span * (radix * (lane // span) + k)] = k * lanes + lane
        is_partial = self.p.span * self.p.rest % lanes != 0
        for at in b.range(0, terms_of, lanes):
            mask = None
            if is_partial:
                mask = b.lane(lanes, "i32") < (terms_of - at).cast("i32")
            results = self._results(self._terms(at, mask), self._factors(at, lanes))
            parts = [b.shuffle(b.join([x[part] for x in results]), order) for part in (0, 1)]
            for k in range(radix):
                line = [b.shuffle(x, range(k * lanes, (k + 1) * lanes)) for x in parts]
                self._store(at * radix + k * lanes, (line[0], line[1]), None)

    def _factors(self, at: Value, lanes: int) -> list[Pair]:
        """The factors of results 1, 2, ... for the p at hand, or for a line of them."""
        if self.p.rest == 1:
            return []
        start = self.offset + at * (2 * (self.p.radix - 1))
        buffer = self.launch.factors
        numbers = [
            self.b.load(buffer, start + k * lanes, lanes) for k in range(2 * (self.p.radix - 1))
        ]
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def _results(self, terms: list[Pair], factors: list[Pair]) -> list[Pair]:
        b, lanes = self.b, self.p.lanes
        first, *others = butterfly(b, terms)
        if not factors:
            return [first, *others]
        wide = [(b.splat(real, lanes), b.splat(imag, lanes)) for real, imag in factors]
        return [first, *(times(b, x, y) for x, y in zip(others, wide, strict=True))]

    # memory

    def _terms(self, at: Value, mask: Value | None) -> list[Pair]:
        distance = self.span * self.rest
        return [self._load(at + distance * j, mask) for j in range(self.p.radix)]

    def _load(self, at: Value, mask: Value | None) -> Pair:
        b, lanes = self.b, self.p.lanes
        if self.source is not None:
            at = at + self.launch.plan.front
            imag = at + self.launch.half
            return b.load(self.source, at, lanes, mask), b.load(self.source, imag, lanes, mask)
        start, mask = self._memory(at, mask)
        real, imag = load_pairs(b, self.launch.x, start, lanes, mask)
        return (imag, real) if self.launch.plan.inverse else (real, imag)

    def _store(self, at: Value, value: Pair, mask: Value | None) -> None:
        b, lanes, launch = self.b, self.p.lanes, self.launch
        if self.target is not None:
            at = at + launch.plan.front
            for part, x in enumerate(value):
                b.store(self.target, at + launch.half * part, x, mask)
            return
        if launch.plan.scale != 1.0:
            scale = b.load(launch.factors, self.launch.scalar("scale", launch.plan.scale_at))
            value = value[0] * b.splat(scale, lanes), value[1] * b.splat(scale, lanes)
        if launch.plan.inverse:
            value = value[1], value[0]
        start, mask = self._memory(at, mask)
        store_pairs(b, launch.out, start, value, mask)

    def _memory(self, at: Value, mask: Value | None) -> tuple[Value, Value | None]:
        """Where a line of terms lies in global memory, and which of it exists."""
        launch = self.launch
        if launch.walk.columns == 1:
            return launch.base + at, mask
        start = launch.base + at // launch.walk.width * launch.stride
        if launch.step is not None and self.p.lanes > 1:
            start = start + self.b.lane(self.p.lanes) * launch.step
        return start, launch.mask
