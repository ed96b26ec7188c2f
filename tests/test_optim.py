"""Optimizers against their formulas in NumPy, and against optax where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import xcube.numpy as jnp
from xcube import optim, tree
from xcube.transforms.grad import grad
from xcube.transforms.jit import jit

PARAMS = {
    "w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    "b": np.array([0.5, -0.25, 3.0], np.float32),
}
STEPS = 7


def gradients(step: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(step)
    return tree.map(lambda p: generator.normal(size=p.shape).astype(np.float32), PARAMS)


def follow(optimizer: Any, apply: Callable[[Any, Any], Any]) -> Any:
    params, state = PARAMS, optimizer.init(PARAMS)
    for step in range(STEPS):
        updates, state = optimizer.update(gradients(step), state, params)
        params = apply(params, updates)
    return params


def assert_trees_close(ours: Any, theirs: Any, rtol: float = 2e-6) -> None:
    assert tree.structure(ours) == tree.structure(theirs)
    for x, y in zip(tree.leaves(ours), tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=rtol, atol=1e-7)


def matrices(params: Any) -> Any:
    return {"w": True, "b": False}


OPTIMIZERS = {
    "sgd": lambda o: o.sgd(0.1),
    "momentum": lambda o: o.sgd(0.1, momentum=0.9),
    "nesterov": lambda o: o.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda o: o.adam(0.01),
    "adam with nesterov": lambda o: o.adam(0.01, nesterov=True),
    "adam with roots": lambda o: o.adam(0.01, b1=0.8, b2=0.95, eps=1e-6, eps_root=1e-5),
    "adamw": lambda o: o.adamw(0.01, weight_decay=0.1),
    "adamw masked": lambda o: o.adamw(0.01, weight_decay=0.1, mask={"w": True, "b": False}),
    "adamw masked by function": lambda o: o.adamw(0.01, weight_decay=0.1, mask=matrices),
    "schedule": lambda o: o.adam(o.linear_schedule(0.1, 0.01, 5)),
    "clipped": lambda o: o.chain(o.clip_by_global_norm(0.5), o.sgd(0.1)),
    "hardly clipped": lambda o: o.chain(o.clip_by_global_norm(1e3), o.sgd(0.1)),
    "decayed": lambda o: o.chain(o.add_decayed_weights(0.3), o.scale(-0.1)),
    "scaled": lambda o: o.chain(o.scale_by_schedule(lambda count: 1.0 / (count + 1)), o.scale(-1)),
    "identity": lambda o: o.identity(),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_are_those_of_optax(name: str) -> None:
    optax, jax = pytest.importorskip("optax"), pytest.importorskip("jax")
    ours = follow(OPTIMIZERS[name](optim), optim.apply_updates)
    theirs = follow(OPTIMIZERS[name](optax), optax.apply_updates)
    assert_trees_close(ours, jax.tree.map(np.asarray, theirs))


def numpy_adamw(
    rate: float, b1: float, b2: float, eps: float, decay: float, masked: bool
) -> dict[str, np.ndarray]:
    params = {name: value.astype(np.float64) for name, value in PARAMS.items()}
    mean = {name: np.zeros_like(value) for name, value in params.items()}
    square = {name: np.zeros_like(value) for name, value in params.items()}
    for step in range(STEPS):
        for name, g in gradients(step).items():
            g = g.astype(np.float64)
            mean[name] = b1 * mean[name] + (1 - b1) * g
            square[name] = b2 * square[name] + (1 - b2) * g * g
            m = mean[name] / (1 - b1 ** (step + 1))
            v = square[name] / (1 - b2 ** (step + 1))
            weights = params[name] if name == "w" or not masked else 0
            params[name] = params[name] - rate * (m / (np.sqrt(v) + eps) + decay * weights)
    return params


@pytest.mark.parametrize("masked", [False, True])
def test_adamw_follows_its_formula(masked: bool) -> None:
    mask = matrices if masked else None
    ours = follow(
        optim.adamw(0.02, 0.8, 0.9, 1e-7, weight_decay=0.2, mask=mask), optim.apply_updates
    )
    assert_trees_close(ours, numpy_adamw(0.02, 0.8, 0.9, 1e-7, 0.2, masked), 1e-5)


def test_momentum_follows_its_formula() -> None:
    ours = follow(optim.sgd(0.1, momentum=0.9), optim.apply_updates)
    params = {name: value.astype(np.float64) for name, value in PARAMS.items()}
    speed = {name: np.zeros_like(value) for name, value in params.items()}
    for step in range(STEPS):
        for name, g in gradients(step).items():
            speed[name] = 0.9 * speed[name] + g
            params[name] = params[name] - 0.1 * speed[name]
    assert_trees_close(ours, params, 1e-5)


def test_clipping_keeps_the_direction_and_bounds_the_norm() -> None:
    clip = optim.clip_by_global_norm(0.5)
    given = gradients(0)
    clipped, _ = clip.update(given, clip.init(PARAMS))
    norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in given.values()))
    assert_trees_close(clipped, tree.map(lambda g: g * (0.5 / norm), given), 1e-5)
    np.testing.assert_allclose(float(optim.global_norm(given)), norm, rtol=1e-6)
    small = tree.map(lambda g: g * 1e-3, given)
    assert_trees_close(clip.update(small, clip.init(PARAMS))[0], small, 0)


SCHEDULES = {
    "constant": lambda o: o.constant_schedule(0.3),
    "linear": lambda o: o.linear_schedule(1.0, 0.1, 20, 5),
    "quadratic": lambda o: o.polynomial_schedule(1.0, 0.1, 2, 20),
    "cosine": lambda o: o.cosine_decay_schedule(2.0, 30, alpha=0.1),
    "cosine squared": lambda o: o.cosine_decay_schedule(2.0, 30, exponent=2.0),
    "warm-up": lambda o: o.warmup_cosine_decay_schedule(0.0, 1.0, 10, 40, 0.05),
    "joined": lambda o: o.join_schedules(
        [o.constant_schedule(1.0), o.linear_schedule(1.0, 0.0, 10)], [15]
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_those_of_optax(name: str) -> None:
    optax = pytest.importorskip("optax")
    ours, theirs = SCHEDULES[name](optim), SCHEDULES[name](optax)
    for step in (0, 1, 4, 5, 9, 10, 11, 15, 25, 39, 40, 100):
        np.testing.assert_allclose(
            float(ours(jnp.int32(step))), float(theirs(step)), rtol=1e-5, atol=1e-6
        )


def test_schedules_at_their_corners() -> None:
    rate = optim.warmup_cosine_decay_schedule(0.1, 1.0, 10, 50, 0.2)
    values = [float(rate(step)) for step in (0, 10, 30, 50, 1000)]
    np.testing.assert_allclose(values, [0.1, 1.0, 0.6, 0.2, 0.2], rtol=1e-6)


def test_a_jitted_optimizer_descends() -> None:
    optimizer = optim.adamw(optim.cosine_decay_schedule(0.1, 100), weight_decay=0.0)

    def distance(params: Any) -> Any:
        return jnp.sum((params["w"] - 2.0) ** 2) + jnp.sum((params["b"] + 1.0) ** 2)

    @jit
    def step(params: Any, state: Any) -> Any:
        updates, state = optimizer.update(grad(distance)(params), state, params)
        return optim.apply_updates(params, updates), state

    params = tree.map(jnp.asarray, PARAMS)
    start, state = float(distance(params)), optimizer.init(params)
    for _ in range(100):
        params, state = step(params, state)
    assert float(distance(params)) < start / 100
    assert int(state[0].count) == 100


def test_states_keep_their_dtypes() -> None:
    params = {"w": jnp.ones((2,), jnp.bfloat16)}
    optimizer = optim.adam(0.1, mu_dtype=jnp.float32)
    state = optimizer.init(params)
    updates, state = optimizer.update(params, state, params)
    assert state[0].mu["w"].dtype == jnp.float32
    assert optim.apply_updates(params, updates)["w"].dtype == jnp.bfloat16


def test_misuse_is_refused() -> None:
    decay = optim.add_decayed_weights(0.1)
    with pytest.raises(ValueError, match="update needs the params"):
        decay.update(PARAMS, decay.init(PARAMS))
    both = optim.chain(optim.scale(1.0), optim.scale(2.0))
    with pytest.raises(ValueError, match="one part for each of the 2 transformations; got 1"):
        both.update(PARAMS, (optim.EmptyState(),))
    with pytest.raises(ValueError, match="2 schedules must have 1 boundaries; got 2"):
        optim.join_schedules([optim.constant_schedule(1.0)] * 2, [1, 2])
    with pytest.raises(ValueError, match="decay_steps must be at least 11; got 10"):
        optim.warmup_cosine_decay_schedule(0.0, 1.0, 10, 10)
