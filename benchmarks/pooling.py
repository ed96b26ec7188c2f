"""Rows of pooling: windows over images in both layouts."""

from __future__ import annotations

import math
from typing import Any

from kernels import Case

SHAPE = (2, 32, 512, 512)  # batch, features, height, width


def cases() -> list[Case]:
    """The largest under windows of several sizes, in both layouts."""
    found = []
    for size, stride in ((5, 1), (3, 1), (2, 2)):
        found += [_largest(size, stride, last) for last in (True, False)]
    return found


def _largest(size: int, stride: int, last: bool) -> Case:
    """Max pooling; `last`: features lie side by side in memory."""
    batch, features, height, width = SHAPE
    shape = (batch, height, width, features) if last else SHAPE
    low = size // 2 if stride == 1 else 0

    def around(inner: Any) -> tuple[Any, ...]:
        return (1, *inner, 1) if last else (1, 1, *inner)

    def pad(inner: Any) -> list[tuple[int, int]]:
        pairs = [(low, low)] * 2
        return [(0, 0), *pairs, (0, 0)] if last else [(0, 0), (0, 0), *pairs]

    def ours(lib: Any, x: Any) -> Any:
        sizes, strides = around((size, size)), around((stride, stride))
        lax = lib.top.lax
        return lax.reduce_window(x, -lib.jnp.inf, lax.max, sizes, strides, pad(low))

    def torch_pool(torch: Any, x: Any) -> Any:
        seen = x.permute(0, 3, 1, 2) if last else x
        out = torch.nn.functional.max_pool2d(seen, size, stride, low)
        return out.permute(0, 2, 3, 1) if last else out

    moved = 4.0 * math.prod(SHAPE) * (1 + 1 / stride**2)
    layout = "channels last" if last else "channels first"
    name = f"max pool {size}x{size} stride {stride}, {layout}"
    return Case(name, (shape,), ours, None, torch_pool, "copy", moved)
