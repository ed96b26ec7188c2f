"""Optimizers: chains of gradient transformations under the names by which they are known."""

from __future__ import annotations

from typing import Any

from xcube.optim.transform import (
    GradientTransformation,
    ScalarOrSchedule,
    add_decayed_weights,
    chain,
    identity,
    scale_by_adam,
    scale_by_learning_rate,
    trace,
)


def sgd(
    learning_rate: ScalarOrSchedule,
    momentum: float | None = None,
    nesterov: bool = False,
    accumulator_dtype: Any = None,
) -> GradientTransformation:
    """Gradient descent, with momentum if one is given.

    >>> descend = sgd(0.5)
    >>> descend.update(2.0, descend.init(1.0))[0]
    -1.0
    """
    follow = identity() if momentum is None else trace(momentum, nesterov, accumulator_dtype)
    return chain(follow, scale_by_learning_rate(learning_rate))


def adam(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Adam. Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014."""
    moments = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    return chain(moments, scale_by_learning_rate(learning_rate))


def adamw(
    learning_rate: ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    weight_decay: float = 1e-4,
    mask: Any = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Adam with decoupled weight decay.

    `mask`: which params decay, a pytree prefix of bools or a function from params to one.
    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2017.
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )
