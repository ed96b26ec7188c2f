"""Rows of discrete Fourier transforms: single and many, of powers of two, of other lengths, of a
prime, in two dimensions, of real terms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from kernels import Case


def cases() -> list[Case]:
    """Complex and real transforms of several shapes."""
    shapes = [(256,), (4096,), (1 << 20,), (1000,), (997,), (10007,), (1024, 1024)]
    rows = [_case("fft", shape) for shape in shapes]
    return [*rows, _case("fft2", (1024, 1024)), _case("rfft", (1024, 1024)), _case("rfft", (4096,))]


def _case(name: str, shape: tuple[int, ...]) -> Case:
    is_real = name == "rfft"

    def draw(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        x = rng.standard_normal((2, *shape)).astype(np.float32)
        return (x[0] if is_real else (x[0] + 1j * x[1]).astype(np.complex64),)

    size = math.prod(shape)
    terms = size if name == "fft2" else shape[-1]
    flops = 5.0 * size * math.log2(terms) / (2 if is_real else 1)

    def ours(lib: Any, x: Any) -> Any:
        return getattr(lib.jnp.fft, name)(x)

    def torch_fft(torch: Any, x: Any) -> Any:
        return getattr(torch.fft, name)(x)

    text = f"{name} of {' x '.join(map(str, shape))}"
    return Case(text, (shape,), ours, getattr(np.fft, name), torch_fft, "flops", flops, draw=draw)
