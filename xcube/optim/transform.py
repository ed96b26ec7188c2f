"""Gradient transformations: pairs of functions that turn gradients into updates. A state is a
pytree that the caller carries along; nothing is hidden. Conventions and numbers are optax's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import xcube.numpy as jnp
from xcube import tree
from xcube.array import Array
from xcube.ir import at_user_line
from xcube.optim.schedule import Schedule

ScalarOrSchedule = float | Array | Schedule


class GradientTransformation(NamedTuple):
    """`init(params) -> state` and `update(updates, state, params=None) -> (updates, state)`."""

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


class EmptyState(NamedTuple):
    """The state of a transformation that remembers nothing."""


def stateless(function: Callable[[Any, Any], Any]) -> GradientTransformation:
    """A transformation without state from a function of updates and params.

    >>> halve = stateless(lambda updates, params: tree.map(lambda g: g / 2, updates))
    >>> halve.update({"w": 3.0}, halve.init(None))
    ({'w': 1.5}, EmptyState())
    """

    def update(updates: Any, state: EmptyState, params: Any = None) -> tuple[Any, EmptyState]:
        return function(updates, params), state

    return GradientTransformation(lambda params: EmptyState(), update)


def identity() -> GradientTransformation:
    """Updates as they are."""
    return stateless(lambda updates, params: updates)


def chain(*transformations: GradientTransformation) -> GradientTransformation:
    """Transformations one after another; the state is the tuple of their states.

    Raises ValueError if the state does not fit the chain.

    >>> twice = chain(scale(2.0), scale(3.0))
    >>> twice.update(1.0, twice.init(1.0))[0]
    6.0
    """

    def init(params: Any) -> tuple[Any, ...]:
        return tuple(one.init(params) for one in transformations)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, tuple[Any, ...]]:
        if len(state) != len(transformations):
            raise ValueError(
                f"chain: the state must have one part for each of the {len(transformations)} "
                f"transformations; got {len(state)}.{at_user_line()} Make it with its init."
            )
        states = []
        for one, part in zip(transformations, state, strict=True):
            updates, part = one.update(updates, part, params)
            states.append(part)
        return updates, tuple(states)

    return GradientTransformation(init, update)


# scaling --------------------------------------------------------------------------------------


def scale(step_size: Any) -> GradientTransformation:
    """Updates times a number."""
    return stateless(lambda updates, params: tree.map(lambda g: step_size * g, updates))


class ScaleByScheduleState(NamedTuple):
    """How many updates were made."""

    count: Any


def scale_by_schedule(step_size: Schedule) -> GradientTransformation:
    """Updates times a number that depends on how many were made before."""

    def update(updates: Any, state: ScaleByScheduleState, params: Any = None) -> Any:
        factor = step_size(state.count)
        scaled = tree.map(lambda g: jnp.asarray(factor, _dtype(g)) * g, updates)
        return scaled, ScaleByScheduleState(_next(state.count))

    return GradientTransformation(lambda params: ScaleByScheduleState(_zero_count()), update)


def scale_by_learning_rate(
    learning_rate: ScalarOrSchedule, *, flip_sign: bool = True
) -> GradientTransformation:
    """Updates times the learning rate, a number or a schedule; negated, so that they descend."""
    sign = -1 if flip_sign else 1
    if callable(learning_rate):
        return scale_by_schedule(lambda count: sign * learning_rate(count))
    return scale(sign * learning_rate)


def _dtype(x: Any) -> Any:
    return jnp.asarray(x).dtype


def _zero_count() -> Any:
    return jnp.zeros((), np.int32)


def _next(count: Any) -> Any:
    """count + 1, which stays at the largest integer rather than wrap."""
    limit = np.iinfo(np.int32).max
    return jnp.where(count < limit, count + 1, limit)


# moments --------------------------------------------------------------------------------------


class TraceState(NamedTuple):
    """The decaying sum of updates."""

    trace: Any


def trace(
    decay: float, nesterov: bool = False, accumulator_dtype: Any = None
) -> GradientTransformation:
    """Momentum: the decaying sum of the updates, one step ahead of itself if `nesterov`."""

    def init(params: Any) -> TraceState:
        return TraceState(zeros_like(params, accumulator_dtype))

    def update(updates: Any, state: TraceState, params: Any = None) -> tuple[Any, TraceState]:
        def follow(g: Any, t: Any) -> Any:
            return g + decay * t

        summed = tree.map(follow, updates, state.trace)
        ahead = tree.map(follow, updates, summed) if nesterov else summed
        return ahead, TraceState(cast(summed, accumulator_dtype))

    return GradientTransformation(init, update)


class ScaleByAdamState(NamedTuple):
    """Number of updates, decaying means of the updates and of their squares."""

    count: Any
    mu: Any
    nu: Any


def scale_by_adam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Adam: the mean of the updates over the root of their mean square, both without the bias of
    their start at zero. Source: Kingma and Ba, 2014; Dozat, 2016, for `nesterov`.

    `eps` is added outside of the root, `eps_root` inside. `mu_dtype`: dtype of the mean.
    """

    def init(params: Any) -> ScaleByAdamState:
        return ScaleByAdamState(_zero_count(), zeros_like(params, mu_dtype), zeros_like(params))

    def update(updates: Any, state: ScaleByAdamState, params: Any = None) -> Any:
        mu = tree.map(lambda g, m: (1 - b1) * g + b1 * m, updates, state.mu)
        nu = tree.map(lambda g, v: (1 - b2) * _squared(g) + b2 * v, updates, state.nu)
        count = _next(state.count)
        rest1, rest2 = 1 - b1**count, 1 - b2**count

        def direction(g: Any, m: Any, v: Any) -> Any:
            mean = m / rest1.astype(m.dtype)
            if nesterov:
                ahead = m / (1 - b1 ** _next(count)).astype(m.dtype)
                mean = b1 * ahead + (1 - b1) * (g / rest1.astype(g.dtype))
            return mean / (jnp.sqrt(v / rest2.astype(v.dtype) + eps_root) + eps)

        scaled = tree.map(direction, updates, mu, nu)
        return scaled, ScaleByAdamState(count, cast(mu, mu_dtype), nu)

    return GradientTransformation(init, update)


def _squared(x: Any) -> Any:
    """|x|^2, real for complex x."""
    return jnp.square(x.real) + jnp.square(x.imag) if jnp.iscomplexobj(x) else jnp.square(x)


def zeros_like(values: Any, dtype: Any = None) -> Any:
    """Zeros for every leaf."""
    return tree.map(lambda x: jnp.zeros_like(x, dtype=dtype), values)


def cast(values: Any, dtype: Any) -> Any:
    """Every leaf in a dtype; None leaves them as they are."""
    return values if dtype is None else tree.map(lambda x: x.astype(dtype), values)


# regularisation -------------------------------------------------------------------------------


def add_decayed_weights(weight_decay: Any = 0.0, mask: Any = None) -> GradientTransformation:
    """Adds a share of the params to the updates.

    `mask`: which params decay, a pytree prefix of bools or a function from params to one.
    Raises ValueError if `update` is called without params.
    """

    def decay(updates: Any, params: Any) -> Any:
        if params is None:
            raise ValueError(
                f"add_decayed_weights: update needs the params; got None.{at_user_line()} Call "
                f"update(updates, state, params)."
            )
        return tree.map(lambda g, p: g + weight_decay * p, updates, params)

    inner = stateless(decay)
    return inner if mask is None else masked(inner, mask)


class MaskedNode(NamedTuple):
    """Stands for a part of a tree that a masked transformation does not see."""


class MaskedState(NamedTuple):
    """The state of the transformation under a mask."""

    inner_state: Any


def masked(inner: GradientTransformation, mask: Any) -> GradientTransformation:
    """A transformation of some leaves; the other updates stay as they are.

    `mask`: a pytree prefix of bools, or a function from params to one.

    >>> only_a = masked(scale(10.0), {"a": True, "b": False})
    >>> only_a.update({"a": 1.0, "b": 1.0}, only_a.init({"a": 1.0, "b": 1.0}))[0]
    {'a': 10.0, 'b': 1.0}
    """

    def flags(values: Any) -> Any:
        return mask(values) if callable(mask) else mask

    def visible(chosen: Any, values: Any) -> Any:
        return tree.map(lambda flag, part: part if flag else MaskedNode(), chosen, values)

    def init(params: Any) -> MaskedState:
        return MaskedState(inner.init(visible(flags(params), params)))

    def update(updates: Any, state: MaskedState, params: Any = None) -> tuple[Any, MaskedState]:
        chosen = flags(updates if params is None else params)
        seen = None if params is None else visible(chosen, params)
        changed, state_inside = inner.update(visible(chosen, updates), state.inner_state, seen)
        merged = tree.map(lambda flag, new, old: new if flag else old, chosen, changed, updates)
        return merged, MaskedState(state_inside)

    return GradientTransformation(init, update)


def clip_by_global_norm(max_norm: Any) -> GradientTransformation:
    """Updates shrunk by one factor so that their joint norm is at most `max_norm`."""

    def clip(updates: Any, params: Any) -> Any:
        norm = global_norm(updates)
        short = norm < max_norm
        return tree.map(
            lambda g: jnp.where(short, g, (g / norm.astype(_dtype(g))) * max_norm),
            updates,
        )

    return stateless(clip)


def global_norm(values: Any) -> Any:
    """The Euclidean norm of all leaves as one vector.

    >>> global_norm({"a": 3.0, "b": 4.0}).item()
    5.0
    """
    squares = [jnp.sum(_squared(jnp.asarray(x))) for x in tree.leaves(values)]
    return jnp.sqrt(sum(squares[1:], squares[0]) if squares else jnp.zeros(()))


def apply_updates(params: Any, updates: Any) -> Any:
    """params + updates, each in its own dtype.

    >>> apply_updates({"w": jnp.float32(1.0)}, {"w": 0.5})
    {'w': Array(1.5, dtype=float32)}
    """
    return tree.map(lambda p, u: jnp.asarray(p + u).astype(_dtype(p)), params, updates)
