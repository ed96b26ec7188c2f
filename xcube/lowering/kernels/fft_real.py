"""Real terms in pairs, between their transform as complex numbers and the frequencies.

The transform Z of n pairs gives the n + 1 frequencies X of the 2n real terms,

    X[k] = (Z[k] + conj(Z[n - k]) + t[k] (Z[k] - conj(Z[n - k]))) / 2

for turns t, and back with conjugate turns."""

from __future__ import annotations

from typing import Any

from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Buffer
from xcube.lowering.kernels.fft_butterfly import Pair, minus, plus, times
from xcube.lowering.kernels.fft_lines import load_pairs, store_pairs


def unpack(launch: Any) -> None:
    """Write the frequencies of real terms, of what the last pass left in its array."""
    b, plan, lanes = launch.b, launch.plan, launch.plan.widest
    array, half, n = launch.array(len(plan.passes) - 1), launch.half, launch.scalar("n", plan.n)
    for part in (0, 1):  # frequency n is frequency 0
        start = half * part + plan.front
        b.store(array, n + start, b.load(array, start))
    base = launch.cube * (n + 1)
    for k in b.range(0, n + 1, lanes):
        left, lane = (n - k).cast("i32"), b.lane(lanes, "i32")
        mask = lane <= left
        z = _line(b, array, half, k + plan.front, mask)
        start = n - k + (plan.front + 1 - lanes)
        mirror = _reversed(b, _line(b, array, half, start, lane >= (lanes - 1) - left))
        found = _across(launch, z, mirror, k)
        store_pairs(b, launch.out, base + k, (found[0] * 0.5, found[1] * 0.5), mask)


def pack(launch: Any) -> None:
    """Read frequencies of real terms and leave what the first pass reads in its array, with parts
    exchanged. The first and the last frequency count as real."""
    b, plan, lanes = launch.b, launch.plan, launch.plan.widest
    array, half, n = launch.array(-1), launch.half, launch.scalar("n", plan.n)
    base = launch.cube * (n + 1)
    for k in b.range(0, n, lanes):
        left, lane = (n - k).cast("i32"), b.lane(lanes, "i32")
        z = load_pairs(b, launch.x, base + k, lanes, lane < left)
        start = base + (n - k + (1 - lanes))
        mirror = _reversed(b, load_pairs(b, launch.x, start, lanes, lane >= (lanes - 1) - left))
        ends = lane.eq(b.select(k.eq(0), b.constant(0, "i32"), b.constant(-1, "i32")))
        z, mirror = [(x[0], b.select(ends, 0.0, x[1])) for x in (z, mirror)]
        real, imag = _across(launch, z, mirror, k)
        b.store(array, k + plan.front, imag)
        b.store(array, k + (half + plan.front), real)


def _across(launch: Any, z: Pair, mirror: Pair, k: Value) -> Pair:
    """z + conj(mirror) + t[k] (z - conj(mirror))."""
    b, lanes = launch.b, launch.plan.widest
    start = launch.scalar("turns", launch.plan.scale_at + 1) + k * 2
    turn = tuple([b.load(launch.factors, start + lanes * part, lanes) for part in (0, 1)])
    conjugate = mirror[0], -mirror[1]
    return plus(plus(z, conjugate), times(b, minus(z, conjugate), (turn[0], turn[1])))


def _line(b: Builder, array: Buffer, half: int, at: Value, mask: Value) -> Pair:
    lanes = mask.lanes
    return b.load(array, at, lanes, mask), b.load(array, at + half, lanes, mask)


def _reversed(b: Builder, line: Pair) -> Pair:
    real, imag = [b.shuffle(x, range(x.lanes)[::-1]) for x in line]
    return real, imag
