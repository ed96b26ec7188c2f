"""Lines of complex numbers in memory, real parts beside imaginary ones, as pairs of lines."""

from __future__ import annotations

from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Buffer
from xcube.lowering.kernels.fft_butterfly import Pair


def load_pairs(b: Builder, buffer: Buffer, at: Value, lanes: int, mask: Value | None) -> Pair:
    """A line from number `at` on, or, where that is a line, the numbers there."""
    if at.lanes > 1:
        start = at * 2
        return b.load(buffer, start, lanes, mask), b.load(buffer, start + 1, lanes, mask)
    line = b.load(buffer, at * 2, 2 * lanes, _doubled(b, mask))
    return b.shuffle(line, range(0, 2 * lanes, 2)), b.shuffle(line, range(1, 2 * lanes, 2))


def store_pairs(b: Builder, buffer: Buffer, at: Value, value: Pair, mask: Value | None) -> None:
    """Write what `load_pairs` reads."""
    lanes = value[0].lanes
    if at.lanes > 1:
        for part, x in enumerate(value):
            b.store(buffer, at * 2 + part, x, mask)
        return
    order = [k // 2 + lanes * (k % 2) for k in range(2 * lanes)]
    b.store(buffer, at * 2, b.shuffle(b.join(value), order), _doubled(b, mask))


def _doubled(b: Builder, mask: Value | None) -> Value | None:
    """A mask of pairs as one of their parts."""
    if mask is None:
        return None
    if mask.lanes == 1:
        return b.splat(mask, 2)
    return b.shuffle(mask, [k // 2 for k in range(2 * mask.lanes)])
