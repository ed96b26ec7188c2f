"""Programs for checkpoint, written for xcube and for JAX alike, and the policies to try on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.ad_checkpoint
import jax.numpy
import numpy as np

import xcube
import xcube.ad_checkpoint as remat
import xcube.numpy as jnp
from xcube import checkpoint, lax
from xcube import checkpoint_policies as policies

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 8)).astype(np.float32)
W = (RNG.normal(size=(3, 8, 8)) / 3).astype(np.float32)
V = RNG.normal(size=8).astype(np.float32)


@dataclass(frozen=True)
class Library:
    """The names that a program below uses, of xcube or of JAX."""

    np: Any
    lax: Any
    jit: Any
    checkpoint: Any
    name: Any
    policies: Any


XCUBE = Library(jnp, lax, xcube.jit, checkpoint, remat.checkpoint_name, policies)
JAX = Library(
    jax.numpy,
    jax.lax,
    jax.jit,
    jax.checkpoint,
    jax.ad_checkpoint.checkpoint_name,
    jax.checkpoint_policies,
)

# programs -------------------------------------------------------------------------------------


def sines(lib: Library) -> Callable[..., Any]:
    return lambda x: lib.np.sin(lib.np.sin(lib.np.sin(x)))


def two_layers(lib: Library) -> Callable[..., Any]:
    def function(x: Any, w: Any) -> Any:
        hidden = lib.name(lib.np.exp(x @ w[0]), "hidden")
        return lib.np.sin(hidden @ w[1])

    return function


def calls(lib: Library) -> Callable[..., Any]:
    inner = lib.jit(lambda x, w: lib.np.sin(x @ w))
    return lambda x, w: lib.np.cos(inner(inner(x, w[0]), w[1]))


def loop(lib: Library) -> Callable[..., Any]:
    def turn(h: Any, w: Any) -> tuple[Any, Any]:
        return lib.np.sin(h @ w), lib.np.sum(h * h)

    def function(x: Any, w: Any) -> Any:
        h, ys = lib.lax.scan(turn, x, w)
        return lib.np.sum(h) + lib.np.sum(ys * ys)

    return function


def attention(lib: Library) -> Callable[..., Any]:
    def function(x: Any, w: Any) -> Any:
        q, k, v = (lib.name(x @ w[n], "qkv") for n in range(3))
        scores = lib.np.einsum("td,sd->ts", q, k)
        weights = lib.np.exp(scores - lib.np.max(scores, axis=-1, keepdims=True))
        return (weights / lib.np.sum(weights, axis=-1, keepdims=True)) @ v

    return function


def branches(lib: Library) -> Callable[..., Any]:
    def function(x: Any, w: Any) -> Any:
        picked = lib.lax.cond(x[0, 0] > 0, lambda h: lib.np.sin(h @ w[0]), lib.np.cos, x)
        return picked * lib.lax.cond(x[0, 0] > 9, lib.np.sin, lib.np.exp, x)

    return function


PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "sines": (sines, (X,)),
    "two_layers": (two_layers, (X, W)),
    "calls": (calls, (X, W)),
    "loop": (loop, (X, W)),
    "attention": (attention, (X, W)),
    "branches": (branches, (X, W)),
}

POLICIES: dict[str, Callable[[Library], Any]] = {
    "default": lambda lib: None,
    "nothing": lambda lib: lib.policies.nothing_saveable,
    "everything": lambda lib: lib.policies.everything_saveable,
    "dots": lambda lib: lib.policies.dots_saveable,
    "dots without batch": lambda lib: lib.policies.dots_with_no_batch_dims_saveable,
    "names": lambda lib: lib.policies.save_only_these_names("hidden", "qkv"),
    "unknown names": lambda lib: lib.policies.save_only_these_names("nobody"),
    "other names": lambda lib: lib.policies.save_any_names_but_these("qkv"),
    "both": lambda lib: lib.policies.save_from_both_policies(
        lib.policies.dots_saveable, lib.policies.save_only_these_names("hidden")
    ),
}


def arrays(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(jnp.asarray, args))


def total(function: Callable[..., Any]) -> Callable[..., Any]:
    """A scalar that is no symmetric function of the results."""

    def scalar(*args: Any) -> Any:
        out = function(*args)
        return jnp.sum(out * jnp.arange(1.0, 1.0 + out.size).reshape(out.shape))

    return scalar
