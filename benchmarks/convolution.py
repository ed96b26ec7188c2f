"""Convolutions of two dimensions in every library: the layers of image networks, forward and with
the gradients of input and kernel, with features first and last."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kernels import Case

ORDERS = {"NCHW": ("NCHW", "OIHW", "NCHW"), "NHWC": ("NHWC", "HWIO", "NHWC")}


@dataclass(frozen=True)
class Layer:
    """A layer's name, its sizes in the order NCHW and OIHW, and how its windows lie."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    stride: int = 1
    pad: int = 0
    groups: int = 1


LAYERS = (
    Layer("3x3, 64 to 64", (8, 64, 56, 56), (64, 64, 3, 3), pad=1),
    Layer("1x1, 64 to 64", (8, 64, 56, 56), (64, 64, 1, 1)),
    Layer("3x3 apart, 64", (8, 64, 56, 56), (64, 1, 3, 3), pad=1, groups=64),
    Layer("7x7 by 2, 3 to 64", (8, 3, 112, 112), (64, 3, 7, 7), stride=2, pad=3),
    Layer("3x3 by 2, 64 to 128", (8, 64, 56, 56), (128, 64, 3, 3), stride=2, pad=1),
)


def cases() -> list[Case]:
    """Every layer in both orders, forward and backward."""
    pairs = [(layer, order) for layer in LAYERS for order in ORDERS]
    return [_case(*pair, backward) for pair in pairs for backward in (False, True)]


def _case(layer: Layer, order: str, backward: bool) -> Case:
    is_last = order == "NHWC"
    n, c, h, w = layer.x
    o, i, kh, kw = layer.w
    places = math.prod(
        (size + 2 * layer.pad - k) // layer.stride + 1 for size, k in ((h, kh), (w, kw))
    )
    shapes = ((n, h, w, c), (kh, kw, i, o)) if is_last else (layer.x, layer.w)
    work = 2.0 * n * places * math.prod(layer.w)
    return Case(
        f"{'gradient of ' if backward else ''}convolution {layer.name}, {order}",
        shapes,
        lambda lib, *args: _ours(lib, layer, order, backward, *args),
        torch=lambda torch, *args: _torch(torch, layer, is_last, backward, *args),
        bound="flops",
        work=work * (3 if backward else 1),
    )


def _ours(lib: Any, layer: Layer, order: str, backward: bool, x: Any, w: Any) -> Any:
    def forward(x: Any, w: Any) -> Any:
        return lib.top.lax.conv_general_dilated(
            x,
            w,
            (layer.stride,) * 2,
            [(layer.pad,) * 2] * 2,
            dimension_numbers=ORDERS[order],
            feature_group_count=layer.groups,
        )

    if not backward:
        return forward(x, w)
    gradients = lib.top.grad(lambda *args: lib.jnp.sum(forward(*args) ** 2), (0, 1))(x, w)
    return lib.jnp.concatenate([lib.jnp.ravel(part) for part in gradients])


def _torch(torch: Any, layer: Layer, is_last: bool, backward: bool, x: Any, w: Any) -> Any:
    if backward:
        x, w = (part.detach().requires_grad_() for part in (x, w))
    left = x.permute(0, 3, 1, 2) if is_last else x
    right = w.permute(3, 2, 0, 1) if is_last else w
    found = torch.nn.functional.conv2d(
        left, right, stride=layer.stride, padding=layer.pad, groups=layer.groups
    )
    if backward:
        gradients = torch.autograd.grad((found**2).sum(), (x, w))
        return torch.cat([part.flatten() for part in gradients])
    return found.permute(0, 2, 3, 1) if is_last else found
