"""Schedules: functions from the number of the step to a value, written so that they can be traced.
Names and numbers are optax's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import xcube.numpy as jnp
from xcube.ir import at_user_line

Schedule = Callable[[Any], Any]


def constant_schedule(value: Any) -> Schedule:
    """The same value at every step."""
    return lambda count: value


def polynomial_schedule(
    init_value: Any,
    end_value: Any,
    power: Any,
    transition_steps: int,
    transition_begin: int = 0,
) -> Schedule:
    """From `init_value` to `end_value` in `transition_steps` steps, the distance that is left
    falling as a power of the steps that are left; flat before `transition_begin` and afterwards.

    Raises ValueError if a number of steps is negative.

    >>> float(polynomial_schedule(1.0, 0.0, 2, 10)(5))
    0.25
    """
    _check_steps("polynomial_schedule", "transition_steps", transition_steps, 0)
    _check_steps("polynomial_schedule", "transition_begin", transition_begin, 0)
    if transition_steps == 0:
        return constant_schedule(init_value)

    def schedule(count: Any) -> Any:
        done = jnp.clip(count - transition_begin, 0, transition_steps)
        left = 1 - done / transition_steps
        return (init_value - end_value) * left**power + end_value

    return schedule


def linear_schedule(
    init_value: Any, end_value: Any, transition_steps: int, transition_begin: int = 0
) -> Schedule:
    """From `init_value` to `end_value` in equal steps; flat before and afterwards.

    Raises ValueError if a number of steps is negative.

    >>> float(linear_schedule(0.0, 1.0, 4)(1))
    0.25
    """
    return polynomial_schedule(init_value, end_value, 1, transition_steps, transition_begin)


def cosine_decay_schedule(
    init_value: Any, decay_steps: int, alpha: Any = 0.0, exponent: float = 1.0
) -> Schedule:
    """From `init_value` to `alpha * init_value` along half a cosine in `decay_steps` steps.

    Raises ValueError unless `decay_steps` is positive. Source: Loshchilov and Hutter, 2016.

    >>> float(cosine_decay_schedule(2.0, 10)(10))
    0.0
    """
    _check_steps("cosine_decay_schedule", "decay_steps", decay_steps, 1)

    def schedule(count: Any) -> Any:
        done = jnp.minimum(count, decay_steps) / decay_steps
        cosine = 0.5 * (1 + jnp.cos(np.pi * done))
        return init_value * ((1 - alpha) * cosine**exponent + alpha)

    return schedule


def join_schedules(schedules: Sequence[Schedule], boundaries: Sequence[int]) -> Schedule:
    """Schedules one after another; each counts its steps from where it begins.

    `boundaries`: where the second and each further one begins.
    Raises ValueError unless there is one boundary fewer than there are schedules.

    >>> joined = join_schedules([constant_schedule(1.0), constant_schedule(2.0)], [5])
    >>> float(joined(4)), float(joined(5))
    (1.0, 2.0)
    """
    if len(boundaries) != len(schedules) - 1:
        raise ValueError(
            f"join_schedules: {len(schedules)} schedules must have {len(schedules) - 1} "
            f"boundaries; got {len(boundaries)}.{at_user_line()}"
        )

    def schedule(count: Any) -> Any:
        value = schedules[0](count)
        for boundary, following in zip(boundaries, schedules[1:], strict=True):
            value = jnp.where(count < boundary, value, following(count - boundary))
        return value

    return schedule


def warmup_cosine_decay_schedule(
    init_value: Any,
    peak_value: Any,
    warmup_steps: int,
    decay_steps: int,
    end_value: Any = 0.0,
    exponent: float = 1.0,
) -> Schedule:
    """Up to `peak_value` in equal steps, then down to `end_value` along half a cosine.

    `decay_steps`: length of the whole schedule, the warm-up included.
    Raises ValueError unless it is longer than the warm-up.

    >>> rate = warmup_cosine_decay_schedule(0.0, 1.0, 10, 110)
    >>> float(rate(5)), float(rate(10)), float(rate(110))
    (0.5, 1.0, 0.0)
    """
    _check_steps("warmup_cosine_decay_schedule", "decay_steps", decay_steps, warmup_steps + 1)
    alpha = 0.0 if peak_value == 0.0 else end_value / peak_value
    rise = linear_schedule(init_value, peak_value, warmup_steps)
    fall = cosine_decay_schedule(peak_value, decay_steps - warmup_steps, alpha, exponent)
    return join_schedules([rise, fall], [warmup_steps])


def _check_steps(name: str, parameter: str, steps: int, least: int) -> None:
    if steps < least:
        raise ValueError(
            f"{name}: {parameter} must be at least {least}; got {steps}.{at_user_line()}"
        )
