"""Contractions of every class: large squares, transposed, few rows, skinny, batches of small
matrices, narrow dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
from kernels import Case

SQUARES = (256, 512, 1024, 2048, 4096)
BATCHES = ((10_000, 4), (10_000, 8), (10_000, 16), (10_000, 32), (64, 64), (64, 128), (64, 256))


def cases() -> list[Case]:
    found = [_einsum(f"matmul {n}", "mk,kn->mn", (n, n), (n, n)) for n in SQUARES]
    found += [
        _einsum(f"{letters}, 1024", letters, (1024, 1024), (1024, 1024))
        for letters in ("km,kn->mn", "mk,nk->mn", "km,nk->mn")
    ]
    found += [
        _einsum(f"{m}x{k} @ {k}x{n}", "mk,kn->mn", (m, k), (k, n))
        for m, k, n in (
            (4096, 16, 4096),
            (100_000, 8, 8),
            (8, 100_000, 8),
            (1, 768, 50257),
            (4, 768, 50257),
            (8, 768, 50257),
            (32, 768, 3072),
            (4096, 4096, 1),
        )
    ]
    found += [
        _einsum(f"{m}x{k} @ ({n}x{k}).T", "mk,nk->mn", (m, k), (n, k))
        for m, k, n in ((1, 768, 50257), (8, 768, 50257))
    ]
    found += [
        _einsum(f"{count} of {n}x{n}", "bmk,bkn->bmn", (count, n, n), (count, n, n))
        for count, n in BATCHES
    ]
    return [
        *found,
        *(_narrow(dtype, n) for dtype in ("bfloat16", "float16") for n in (512, 1024)),
        *(_narrow("bfloat16", n) for n in (256, 2048)),
        *(_bytes(n) for n in (256, 512, 1024, 2048)),
    ]


def _einsum(name: str, letters: str, left: tuple[int, ...], right: tuple[int, ...]) -> Case:
    sizes = dict(zip(letters.replace(",", "").split("->")[0], (*left, *right), strict=True))
    return Case(
        name,
        (left, right),
        lambda lib, x, y: lib.jnp.einsum(letters, x, y),
        numpy=lambda x, y: np.einsum(letters, x, y, optimize=True),
        torch=lambda torch, x, y: torch.einsum(letters, x, y),
        bound="flops",
        work=2.0 * np.prod(list(sizes.values())),
        rtol=1e-4,
    )


def _narrow(dtype: str, n: int) -> Case:
    return Case(
        f"matmul {n}, {dtype}",
        ((n, n),) * 2,
        lambda lib, x, y: lib.jnp.matmul(x, y),
        torch=lambda torch, x, y: torch.matmul(x, y),
        rtol=1e-2,
        dtype=dtype,
    )


def _bytes(n: int) -> Case:
    def product(lib: Any, x: Any, y: Any) -> Any:
        return lib.jnp.matmul(x, y, preferred_element_type=lib.jnp.int32)

    return Case(
        f"matmul {n}, int8 to int32",
        ((n, n),) * 2,
        product,
        torch=lambda torch, x, y: torch._int_mm(x, y),
        rtol=0,
        dtype="int8",
    )
