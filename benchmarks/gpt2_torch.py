"""The model of gpt2.py in PyTorch: functions of a tree of leaves, AdamW is PyTorch's fused one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from gpt2 import BETAS, DECAY, RATE, Config, inputs, parameters, timed

functional = torch.nn.functional


class Model:
    """The forward pass and the loss."""

    def __init__(self, config: Config, device: str, is_trained: bool) -> None:
        self.config, self.dtype = config, getattr(torch, config.dtype)
        self.dtype_held = torch.float32 if is_trained else self.dtype
        self.device, self.is_trained = device, is_trained
        self.parameters = self._moved(parameters(config))

    def _moved(self, x: Any) -> Any:
        if isinstance(x, dict):
            return {key: self._moved(value) for key, value in x.items()}
        if isinstance(x, list):
            return [self._moved(value) for value in x]
        held = torch.from_numpy(x).to(self.device, self.dtype_held)
        return held.requires_grad_(self.is_trained)

    def _cast(self, x: Any) -> Any:
        return x.to(self.dtype)

    def norm(self, p: Any, x: Any) -> Any:
        weights = self._cast(p["scale"]), self._cast(p["bias"])
        return functional.layer_norm(x, (self.config.width,), *weights)

    def dense(self, p: Any, x: Any) -> Any:
        return x @ self._cast(p["kernel"]) + self._cast(p["bias"])

    def layer(self, p: Any, x: Any) -> Any:
        shape = (*x.shape[:-1], 3, self.config.heads, self.config.head)
        heads = self.dense(p["qkv"], self.norm(p["norm1"], x)).reshape(shape).unbind(-3)
        turned = [y.transpose(1, 2) for y in heads]
        mixed = functional.scaled_dot_product_attention(*turned, is_causal=True)
        x = x + self.dense(p["out"], mixed.transpose(1, 2).reshape(x.shape))
        up = self.dense(p["up"], self.norm(p["norm2"], x))
        return x + self.dense(p["down"], functional.gelu(up, approximate="tanh"))

    def forward(self, tokens: Any) -> Any:
        p = self.parameters
        places = self._cast(p["places"])[: tokens.shape[-1]]
        x = self._cast(p["words"])[tokens] + places
        for layer in p["layers"]:
            x = self.layer(layer, x)
        return self.norm(p["norm"], x) @ self._cast(p["words"]).T

    def loss(self, tokens: Any) -> Any:
        logits = self.forward(tokens[:, :-1]).float()
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def leaves(x: Any) -> Iterator[Any]:
    """The tensors of a tree."""
    if isinstance(x, dict | list):
        for value in x.values() if isinstance(x, dict) else x:
            yield from leaves(value)
    else:
        yield x


def run(task: str, config: Config, on_gpu: bool, is_compiled: bool) -> list[float]:
    """The figures of `gpt2.timed` for a forward pass or a train step."""
    if not on_gpu:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    device = "cuda" if on_gpu else "cpu"
    model = Model(config, device, task == "train")
    tokens = torch.from_numpy(inputs(config)).to(device).long()

    def wait(_: Any) -> None:
        if on_gpu:
            torch.cuda.synchronize()

    if task == "forward":
        forward = torch.compile(model.forward) if is_compiled else model.forward
        with torch.no_grad():
            return timed(lambda: forward(tokens[:, :-1]), wait)
    optimizer = torch.optim.AdamW(
        [*leaves(model.parameters)], lr=RATE, betas=BETAS, weight_decay=DECAY, fused=True
    )
    loss_of = torch.compile(model.loss) if is_compiled else model.loss

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of(tokens)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return timed(step, wait)
