"""Attention in every library: whole sequences, forward and with all three gradients, and decoding:
one query on keys and values that are kept."""

from __future__ import annotations

from typing import Any

from kernels import Case

HEADS, SIZE = 8, 64


def cases() -> list[Case]:
    """Causal attention by length, its gradient, the shapes of GPT-2 small, and decoding."""
    found = [_forward(1, length, HEADS, True) for length in (512, 1024, 2048)]
    found += [_forward(1, 1024, HEADS, False), _gradient(1, 1024, HEADS)]
    found += [_forward(1, 128, 12, True), _gradient(1, 128, 12)]
    return [*found, *(_decode(length, 12) for length in (128, 1024, 4096))]


def _forward(examples: int, length: int, heads: int, is_causal: bool) -> Case:
    shape = (examples, length, heads, SIZE)
    title = "causal attention" if is_causal else "attention"
    return Case(
        f"{title}, {heads}x{length}x{SIZE}",
        (shape,) * 3,
        lambda lib, q, k, v: lib.nn.dot_product_attention(q, k, v, is_causal=is_causal),
        torch=lambda torch, q, k, v: _torch(torch, q, k, v, is_causal),
        bound="flops",
        work=_flops(examples, length, length, heads) / (2 if is_causal else 1),
    )


def _gradient(examples: int, length: int, heads: int) -> Case:
    shape = (examples, length, heads, SIZE)

    def loss(lib: Any, q: Any, k: Any, v: Any, weights: Any) -> Any:
        return lib.jnp.sum(lib.nn.dot_product_attention(q, k, v, is_causal=True) * weights)

    def gradient(lib: Any, *args: Any) -> Any:
        found = lib.top.grad(lambda *a: loss(lib, *a), (0, 1, 2))(*args)
        return lib.jnp.stack(found)

    return Case(
        f"gradient of causal attention, {heads}x{length}x{SIZE}",
        (shape,) * 4,
        gradient,
        torch=_torch_gradient,
        bound="flops",
        work=3.5 * _flops(examples, length, length, heads) / 2,
    )


def _decode(length: int, heads: int) -> Case:
    kept = (1, length, heads, SIZE)
    return Case(
        f"decoding attention, {heads}x{length}x{SIZE}",
        ((1, 1, heads, SIZE), kept, kept),
        lambda lib, q, k, v: lib.nn.dot_product_attention(q, k, v),
        torch=lambda torch, q, k, v: _torch(torch, q, k, v, False),
        bound="read",
        work=8.0 * length * heads * SIZE,
    )


def _flops(examples: int, queries: int, keys: int, heads: int) -> float:
    return 4.0 * examples * heads * queries * keys * SIZE


def _torch(torch: Any, q: Any, k: Any, v: Any, is_causal: bool) -> Any:
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(*heads_first, is_causal=is_causal).transpose(1, 2)


def _torch_gradient(torch: Any, q: Any, k: Any, v: Any, weights: Any) -> Any:
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = _torch(torch, leaves[0], leaves[1], leaves[2], True)
        return torch.stack(torch.autograd.grad(out, leaves, weights.clone()))
