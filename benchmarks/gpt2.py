"""GPT-2 small, one source for xcube and JAX, and PyTorch beside them: a train step in bf16 with f32
weights and AdamW, the forward pass, and greedy decoding with cached keys and values.

Run: python benchmarks/gpt2.py train|forward|decode [xcube|jax|torch|compiled ...]
Each library runs in a process of its own, cold; figures are milliseconds and tokens per second.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

ROUNDS = 5
BETAS, RATE, DECAY, EPSILON = (0.9, 0.95), 3e-4, 0.1, 1e-8


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of a batch; `dtype` of the arithmetic."""

    layers: int = 12
    heads: int = 12
    width: int = 768
    words: int = 50304
    length: int = 1024
    batch: int = 8
    dtype: str = "bfloat16"
    new: int = 64  # tokens that are decoded

    @property
    def head(self) -> int:
        return self.width // self.heads


GPU = Config()
CPU = Config(length=128, batch=1, dtype="float32", new=16)


def parameters(config: Config) -> dict[str, Any]:
    """Weights as float32 NumPy arrays; every layer has its own."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return (0.02 * random.standard_normal(shape, dtype=np.float32)).astype(np.float32)

    def norm() -> dict[str, Any]:
        return {"scale": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}

    def dense(inputs: int, outputs: int) -> dict[str, Any]:
        return {"kernel": normal(inputs, outputs), "bias": np.zeros(outputs, np.float32)}

    width = config.width
    layer = lambda: {  # noqa: E731
        "norm1": norm(),
        "qkv": dense(width, 3 * width),
        "out": dense(width, width),
        "norm2": norm(),
        "up": dense(width, 4 * width),
        "down": dense(4 * width, width),
    }
    return {
        "words": normal(config.words, width),
        "places": normal(config.length, width),
        "layers": [layer() for _ in range(config.layers)],
        "norm": norm(),
    }


# xcube and JAX ------------------------------------------------------------------------------------


def libraries(name: str) -> SimpleNamespace:
    """The modules of xcube or JAX, by the same names."""
    if name == "xcube":
        import xcube
        from xcube import lax, nn, tree
        from xcube import numpy as jnp

        return SimpleNamespace(root=xcube, np=jnp, nn=nn, lax=lax, tree=tree)
    import jax
    from jax import lax, nn, tree
    from jax import numpy as jnp

    return SimpleNamespace(root=jax, np=jnp, nn=nn, lax=lax, tree=tree)


class Model:
    """The model as pure functions of its parameters."""

    def __init__(self, lib: SimpleNamespace, config: Config, attention: str | None) -> None:
        self.lib, self.config, self.attention = lib, config, attention

    def norm(self, p: Any, x: Any) -> Any:
        np = self.lib.np
        wide = x.astype("float32")
        mean = np.mean(wide, -1, keepdims=True)
        away = wide - mean
        scale = self.lib.lax.rsqrt(np.mean(away * away, -1, keepdims=True) + 1e-5)
        return (away * scale * p["scale"] + p["bias"]).astype(x.dtype)

    def dense(self, p: Any, x: Any) -> Any:
        return x @ p["kernel"].astype(x.dtype) + p["bias"].astype(x.dtype)

    def heads(self, x: Any) -> list[Any]:
        shape = (*x.shape[:-1], 3, self.config.heads, self.config.head)
        x = x.reshape(shape)
        return [x[..., k, :, :] for k in range(3)]

    def feed(self, p: Any, x: Any) -> Any:
        wide = self.lib.nn.gelu(self.dense(p["up"], self.norm(p["norm2"], x)))
        return x + self.dense(p["down"], wide)

    def layer(self, p: Any, x: Any) -> Any:
        q, k, v = self.heads(self.dense(p["qkv"], self.norm(p["norm1"], x)))
        mixed = self.lib.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation=self.attention
        )
        x = x + self.dense(p["out"], mixed.reshape(x.shape))
        return self.feed(p, x)

    def logits(self, p: Any, x: Any) -> Any:
        return self.norm(p["norm"], x) @ p["words"].astype(x.dtype).T

    def forward(self, p: Any, tokens: Any) -> Any:
        dtype = self.config.dtype
        x = p["words"].astype(dtype)[tokens] + p["places"].astype(dtype)[: tokens.shape[-1]]
        for layer in p["layers"]:
            x = self.layer(layer, x)
        return self.logits(p, x)

    def loss(self, p: Any, tokens: Any) -> Any:
        np = self.lib.np
        logits = self.forward(p, tokens[:, :-1]).astype("float32")
        top = self.lib.nn.logsumexp(logits, -1)
        wanted = np.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return np.mean(top - wanted)

    def step(self, state: Any, tokens: Any) -> tuple[Any, Any]:
        """One step of AdamW."""
        np, tree, (p, first, second, count) = self.lib.np, self.lib.tree, state
        loss, slopes = self.lib.root.value_and_grad(self.loss)(p, tokens)
        count = count + 1
        first = tree.map(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, first, slopes)
        second = tree.map(lambda v, g: BETAS[1] * v + (1 - BETAS[1]) * g * g, second, slopes)
        sizes = [1 - beta ** count.astype("float32") for beta in BETAS]

        def moved(p: Any, m: Any, v: Any) -> Any:
            away = (m / sizes[0]) / (np.sqrt(v / sizes[1]) + EPSILON)
            return p - RATE * (away + DECAY * p)

        return (tree.map(moved, p, first, second), first, second, count), loss

    # decoding

    def attend(self, q: Any, keys: Any, values: Any, place: Any) -> Any:
        """One query of each head over the keys so far: [n, h], [n, s, h], [n, s, h]."""
        np = self.lib.np
        scores = np.einsum("nh,nsh->ns", q, keys, preferred_element_type="float32")
        scores = scores * (1 / self.config.head**0.5)
        seen = np.arange(keys.shape[1]) <= place
        weights = self.lib.nn.softmax(np.where(seen, scores, -1e30), -1)
        return np.einsum("ns,nsh->nh", weights.astype(values.dtype), values)

    def token(self, p: Any, cache: Any, token: Any, place: Any) -> tuple[Any, Any]:
        """The next token, and the cache with the keys and values of this one."""
        x, found = p["words"][token] + p["places"][place], []
        for layer, (keys, values) in zip(p["layers"], cache, strict=True):
            q, k, v = self.heads(self.dense(layer["qkv"], self.norm(layer["norm1"], x)))
            keys, values = keys.at[:, place].set(k), values.at[:, place].set(v)
            found.append((keys, values))
            mixed = self.attend(q, keys, values, place)
            x = self.feed(layer, x + self.dense(layer["out"], mixed.reshape(x.shape)))
        return self.lib.np.argmax(self.logits(p, x)).astype("int32"), found

    def decode(self, p: Any, cache: Any, token: Any, first: Any) -> Any:
        """Tokens from a place on, each the likeliest."""

        def turn(carry: Any, place: Any) -> Any:
            token, cache = self.token(p, carry[1], carry[0], place)
            return (token, cache), token

        places = first + self.lib.np.arange(self.config.new, dtype="int32")
        (_, cache), tokens = self.lib.lax.scan(turn, (token, cache), places)
        return tokens, cache


def arrays_of(lib: SimpleNamespace, config: Config, task: str) -> tuple[Any, ...]:
    """The arguments of a task."""
    np, tree = lib.np, lib.tree
    p = tree.map(np.asarray, parameters(config))
    tokens = np.asarray(inputs(config))
    if task == "train":
        zeros = [tree.map(np.zeros_like, p) for _ in range(2)]
        return (p, *zeros, np.asarray(0, "int32")), tokens
    p = tree.map(lambda x: x.astype(config.dtype), p)
    if task == "forward":
        return p, tokens[:, :-1]
    shape = (config.heads, config.length, config.head)
    cache = [tuple([np.zeros(shape, config.dtype)] * 2) for _ in range(config.layers)]
    return p, cache, np.asarray(1, "int32"), np.asarray(config.length - config.new, "int32")


def inputs(config: Config) -> np.ndarray[Any, Any]:
    shape = (config.batch, config.length + 1)
    return np.random.default_rng(1).integers(0, 50257, shape).astype(np.int32)


def run_jaxlike(name: str, task: str, config: Config, on_gpu: bool) -> list[float]:
    lib = libraries(name)
    if name == "xcube" and on_gpu:
        lib.root.config.update("device", "cuda")
    model = Model(lib, config, "cudnn" if name == "jax" and on_gpu else None)
    arguments = arrays_of(lib, config, task)
    if task == "train":
        step = lib.root.jit(model.step, donate_argnums=0)
        held = [arguments[0]]

        def call() -> Any:
            held[0], loss = step(held[0], arguments[1])
            return loss

    elif task == "forward":
        forward = lib.root.jit(model.forward)
        call = lambda: forward(*arguments)  # noqa: E731
    else:
        decode = lib.root.jit(model.decode)
        call = lambda: decode(*arguments)[0]  # noqa: E731
    return timed(call, lib.root.block_until_ready)


# figures ------------------------------------------------------------------------------------------


def timed(call: Callable[[], Any], wait: Callable[[Any], Any]) -> list[float]:
    """Seconds of the first call and of a later one, and its first result as a number."""
    start = time.perf_counter()
    result = call()
    wait(result)
    first = time.perf_counter() - start
    value = last_number(result)
    wait(call())
    count = 10 if first < 30 else 3
    best = float("inf")
    for _ in range(ROUNDS):
        time.sleep(0.05)
        start = time.perf_counter()
        for _ in range(count):
            result = call()
        wait(result)
        best = min(best, (time.perf_counter() - start) / count)
    return [first, best, value]


def last_number(result: Any) -> float:
    """Of a result of any library, for people to compare."""
    on_host = result.float().cpu() if hasattr(result, "cpu") else result
    return float(np.asarray(on_host, np.float64).ravel()[-1])


def main(task: str, names: list[str]) -> None:
    on_gpu = has_gpu()
    config = GPU if on_gpu else CPU
    tokens = config.new if task == "decode" else config.batch * config.length
    for name in names or ["xcube", "jax", "torch", "compiled"][: 2 if task == "decode" else None]:
        command = [sys.executable, __file__, "--alone", task, name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{task} {name}: failed\n{done.stderr[-2000:]}", flush=True)
            continue
        first, best, value = (float(x) for x in done.stdout.split()[-3:])
        print(
            f"{task:<8}{name:<9} first {first:7.2f} s   {best * 1e3:9.3f} ms"
            f"{tokens / best:>12.0f} tokens/s   ({value:.4f})",
            flush=True,
        )


def has_gpu() -> bool:
    import xcube

    try:
        return bool(xcube.devices("cuda"))
    except RuntimeError:
        return False


def alone(task: str, name: str) -> None:
    """One library in this process."""
    on_gpu = has_gpu()
    config = GPU if on_gpu else CPU
    if name in ("xcube", "jax"):
        print(*run_jaxlike(name, task, config, on_gpu))
        return
    import gpt2_torch

    print(*gpt2_torch.run(task, config, on_gpu, name == "compiled"))


if __name__ == "__main__":
    if sys.argv[1] == "--alone":
        alone(*sys.argv[2:4])
    else:
        main(sys.argv[1], sys.argv[2:])
