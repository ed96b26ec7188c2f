"""Loops and nests of transforms, the same programs for xcube and for JAX: seconds until a fresh
process has traced and compiled each, and seconds of a run.

Run: python benchmarks/loops.py xcube|jax [NAME ...]; prints one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from timing import low_percentiles

Program = tuple[Callable[..., Any], tuple[Any, ...]]


class Library:
    """The modules of one of the two libraries, under the names that they share."""

    def __init__(self, name: str) -> None:
        self.top: ModuleType = importlib.import_module(name)
        self.np: Any = importlib.import_module(f"{name}.numpy")
        self.lax: Any = importlib.import_module(f"{name}.lax")
        self.nn: Any = importlib.import_module(f"{name}.nn")
        self.random: Any = importlib.import_module(f"{name}.random")


def normal(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# loops ----------------------------------------------------------------------------------------


def lstm(lib: Library, batch: int = 8, hidden: int = 512, length: int = 256) -> Program:
    """Loss and gradients of an LSTM over a sequence."""

    def loss(parameters: Any, xs: Any) -> Any:
        wide, high, bias = parameters

        def step(state: Any, x: Any) -> Any:
            h, c = state
            i, f, g, o = lib.np.split(x @ wide + h @ high + bias, 4, axis=-1)
            c = lib.nn.sigmoid(f) * c + lib.nn.sigmoid(i) * lib.np.tanh(g)
            h = lib.nn.sigmoid(o) * lib.np.tanh(c)
            return (h, c), h

        zero = lib.np.zeros((batch, hidden))
        _, hs = lib.lax.scan(step, (zero, zero), xs)
        return lib.np.mean(hs**2)

    parameters = (
        normal(0, hidden, 4 * hidden) * 0.02,
        normal(1, hidden, 4 * hidden) * 0.02,
        normal(2, 4 * hidden),
    )
    return lib.top.value_and_grad(loss), (parameters, normal(3, length, batch, hidden))


def _acceleration(lib: Library, x: Any) -> Any:
    return -x / lib.np.sum(x**2) ** 1.5


def orbit(lib: Library, steps: int = 10_000) -> Program:
    """A planet by the classical Runge-Kutta method."""

    def slope(state: Any) -> Any:
        return state[1], _acceleration(lib, state[0])

    def moved(state: Any, by: float, along: Any) -> Any:
        return state[0] + by * along[0], state[1] + by * along[1]

    def run(x: Any, v: Any) -> Any:
        h = 1e-3

        def step(state: Any, _: Any) -> Any:
            k1 = slope(state)
            k2 = slope(moved(state, h / 2, k1))
            k3 = slope(moved(state, h / 2, k2))
            k4 = slope(moved(state, h, k3))
            sums = [a + 2 * b + 2 * c + d for a, b, c, d in zip(k1, k2, k3, k4, strict=True)]
            state = moved(state, h / 6, sums)
            return state, state[0]

        return lib.lax.scan(step, (x, v), None, length=steps)

    return run, (np.array([1.0, 0.0], np.float32), np.array([0.0, 1.0], np.float32))


def hmc(lib: Library, samples: int = 200, leaps: int = 10) -> Program:
    """Hamiltonian Monte Carlo on a logistic regression of 500 x 20."""
    features = normal(0, 500, 20)
    labels = (features @ normal(1, 20) > 0).astype(np.float32)

    def density(weights: Any) -> Any:
        logits = features @ weights
        fit = lib.np.sum(labels * logits - lib.np.logaddexp(0.0, logits))
        return fit - 0.5 * lib.np.sum(weights**2)

    slope = lib.top.grad(density)

    def run(key: Any, weights: Any) -> Any:
        size = 0.02

        def sample(weights: Any, key: Any) -> Any:
            first, second = lib.random.split(key)
            momentum = lib.random.normal(first, weights.shape)
            before = density(weights) - 0.5 * lib.np.sum(momentum**2)

            def leap(_: Any, state: Any) -> Any:
                x, p = state
                p = p + 0.5 * size * slope(x)
                x = x + size * p
                return x, p + 0.5 * size * slope(x)

            x, p = lib.lax.fori_loop(0, leaps, leap, (weights, momentum))
            after = density(x) - 0.5 * lib.np.sum(p**2)
            accept = lib.np.log(lib.random.uniform(second)) < after - before
            weights = lib.np.where(accept, x, weights)
            return weights, (weights, accept)

        return lib.lax.scan(sample, weights, lib.random.split(key, samples))

    return run, (lib.random.PRNGKey(0), np.zeros(20, np.float32))


def kalman(lib: Library, steps: int = 5_000) -> Program:
    """A Kalman filter of a moving point: four states, two measurements."""
    dt = 0.1
    move = np.eye(4, dtype=np.float32)
    move[0, 2] = move[1, 3] = dt
    look, noise = np.eye(2, 4, dtype=np.float32), 0.01 * np.eye(4, dtype=np.float32)
    blur = 0.5 * np.eye(2, dtype=np.float32)

    def inverse(m: Any) -> Any:
        a, b, c, d = m[0, 0], m[0, 1], m[1, 0], m[1, 1]
        turned = lib.np.stack([lib.np.stack([d, -b]), lib.np.stack([-c, a])])
        return turned / (a * d - b * c)

    def run(mean: Any, covariance: Any, measured: Any) -> Any:
        def step(state: Any, z: Any) -> Any:
            m, p = state
            m, p = move @ m, move @ p @ move.T + noise
            gain = p @ look.T @ inverse(look @ p @ look.T + blur)
            m = m + gain @ (z - look @ m)
            p = (lib.np.eye(4) - gain @ look) @ p
            return (m, p), m

        return lib.lax.scan(step, (mean, covariance), measured)

    return run, (np.zeros(4, np.float32), np.eye(4, dtype=np.float32), normal(0, steps, 2))


# nests ----------------------------------------------------------------------------------------


def transformer(lib: Library, layers: int = 12, width: int = 128, length: int = 64) -> Program:
    """Gradient of a transformer whose layers are written out in Python."""
    heads = 4

    def normed(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) / lib.np.sqrt(x.var(-1, keepdims=True) + 1e-5)

    def attended(p: Any, x: Any) -> Any:
        q, k, v = lib.np.split(x @ p["in"], 3, axis=-1)
        q, k, v = (y.reshape(length, heads, -1).transpose(1, 0, 2) for y in (q, k, v))
        scores = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(width // heads))
        mask = np.tril(np.ones((length, length), bool))
        weights = lib.nn.softmax(lib.np.where(mask, scores, -1e9), axis=-1)
        return (weights @ v).transpose(1, 0, 2).reshape(length, width) @ p["out"]

    def loss(parameters: Any, x: Any) -> Any:
        for p in parameters:
            x = x + attended(p, normed(x))
            x = x + lib.nn.gelu(normed(x) @ p["up"]) @ p["down"]
        return lib.np.mean(normed(x) ** 3)

    shapes = {
        "in": (width, 3 * width),
        "out": (width, width),
        "up": (width, 4 * width),
        "down": (4 * width, width),
    }
    parameters = [
        {name: normal(n, *shape) * 0.05 for name, shape in shapes.items()} for n in range(layers)
    ]
    return lib.top.grad(loss), (parameters, normal(99, length, width))


def nest(lib: Library) -> Program:
    """jit, vmap and grad inside each other, with a scan at the bottom."""

    def bottom(w: Any, x: Any) -> Any:
        step = lib.top.jit(lambda c, r: (lib.np.tanh(c @ w + r), lib.np.sum(c)))
        last, sums = lib.lax.scan(step, x[0], x)
        return lib.np.sum(last**2) + lib.np.sum(sums)

    inner = lib.top.vmap(lib.top.jit(lib.top.grad(bottom)), (None, 0))

    def outer(w: Any, xs: Any) -> Any:
        return lib.np.sum(lib.np.sin(inner(w, xs)))

    twice = lib.top.jit(lib.top.grad(outer))
    return lib.top.vmap(twice, (0, None)), (normal(0, 3, 8, 8) * 0.1, normal(1, 4, 5, 8))


PROGRAMS: dict[str, Callable[[Library], Program]] = {
    "lstm, gradient": lstm,
    "orbit, 10000 steps": orbit,
    "hmc, 200 samples": hmc,
    "kalman, 5000 steps": kalman,
    "transformer, 12 layers": transformer,
    "nest of transforms": nest,
}


def measure(lib: Library, make: Callable[[Library], Program]) -> dict[str, float]:
    """Seconds of tracing and compiling, and of a run."""
    function, arguments = make(lib)
    arguments = lib.top.tree.map(lib.np.asarray, arguments)
    run = lib.top.jit(function)
    wait = lib.top.block_until_ready
    start = time.perf_counter()
    wait(run(*arguments))
    first = time.perf_counter() - start
    step = low_percentiles({"": lambda: wait(run(*arguments))}, rounds=20, budget=5.0)[""]
    return {"first": first - step, "step": step}


if __name__ == "__main__":
    name, *chosen = sys.argv[1:]
    library = Library(name)
    library.top.jit(lambda x: x + 1)(1.0)  # the library's own start is another figure
    print(json.dumps({n: measure(library, PROGRAMS[n]) for n in chosen or PROGRAMS}))
