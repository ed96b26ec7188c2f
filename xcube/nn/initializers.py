"""Initializers: functions of a key, a shape and a dtype, with JAX's names and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

import xcube.numpy as jnp
from xcube import dtypes, random
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import Shape, at_user_line
from xcube.numpy.operands import canonical_shape

Axes = int | Sequence[int]

# Standard deviations of the standard normal distribution, real and complex, cut off at 2.
_CUT_REAL, _CUT_COMPLEX = 0.87962566103423978, 0.95311164380491208


@runtime_checkable
class Initializer(Protocol):
    """What makes the first value of a parameter."""

    def __call__(self, key: Any, shape: Any, dtype: Any = None) -> Array:
        """An array of that shape and dtype, the default float for None."""
        ...


def _dtype(*choices: Any) -> np.dtype:
    chosen = next((dtype for dtype in choices if dtype is not None), float)
    return dtypes.requested_dtype(chosen, "initializer")


# fixed ----------------------------------------------------------------------------------------


def zeros(key: Any, shape: Any, dtype: Any = None) -> Array:
    """All 0; the key is not used."""
    return jnp.zeros(shape, _dtype(dtype))


def ones(key: Any, shape: Any, dtype: Any = None) -> Array:
    """All 1; the key is not used."""
    return jnp.ones(shape, _dtype(dtype))


def constant(value: Any, dtype: Any = None) -> Initializer:
    """All one value."""
    own = dtype
    return lambda key, shape, dtype=None: jnp.full(shape, value, _dtype(dtype, own))


# plain distributions --------------------------------------------------------------------------


def uniform(scale: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Uniform from 0 to scale."""
    own = dtype

    def init(key: Any, shape: Any, dtype: Any = None) -> Array:
        dtype = _dtype(dtype, own)
        return random.uniform(key, shape, dtype) * jnp.asarray(scale, dtype)

    return init


def normal(stddev: Any = 1e-2, dtype: Any = None) -> Initializer:
    """Normal of mean 0."""
    own = dtype

    def init(key: Any, shape: Any, dtype: Any = None) -> Array:
        dtype = _dtype(dtype, own)
        return random.normal(key, shape, dtype) * jnp.asarray(stddev, dtype)

    return init


def truncated_normal(
    stddev: Any = 1e-2, dtype: Any = None, lower: Any = -2.0, upper: Any = 2.0
) -> Initializer:
    """Normal of mean 0, cut off at `lower` and `upper` standard deviations."""
    own = dtype

    def init(key: Any, shape: Any, dtype: Any = None) -> Array:
        dtype = _dtype(dtype, own)
        sample = random.truncated_normal(key, lower, upper, shape, dtype)
        return sample * jnp.asarray(stddev, dtype)

    return init


# variance scaling -----------------------------------------------------------------------------


def variance_scaling(
    scale: Any,
    mode: str,
    distribution: str,
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: Any = None,
) -> Initializer:
    """Samples of variance scale / n, where n counts the inputs of a unit ("fan_in"), its outputs
    ("fan_out"), their mean ("fan_avg") or their geometric mean ("fan_geo_avg").

    `distribution`: "truncated_normal", "normal" or "uniform". Raises ValueError for an unknown
    mode or distribution; the initializer raises ShapeError if the shape lacks an axis.
    """
    _check_choice("mode", mode, ("fan_in", "fan_out", "fan_avg", "fan_geo_avg"))
    _check_choice("distribution", distribution, ("truncated_normal", "normal", "uniform"))
    own = dtype

    def init(key: Any, shape: Any, dtype: Any = None) -> Array:
        dtype, shape = _dtype(dtype, own), canonical_shape("variance_scaling", shape)
        fan_in, fan_out = _fans(shape, in_axis, out_axis, batch_axis)
        count = {
            "fan_in": fan_in,
            "fan_out": fan_out,
            "fan_avg": (fan_in + fan_out) / 2,
            "fan_geo_avg": (fan_in * fan_out) ** 0.5,
        }[mode]
        return _scaled(key, shape, dtype, jnp.asarray(scale / count, dtype), distribution)

    return init


def _check_choice(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise ValueError(
            f"variance_scaling: {what} must be one of {', '.join(map(repr, known))}; got "
            f"{given!r}.{at_user_line()}"
        )


def _fans(shape: Shape, in_axis: Axes, out_axis: Axes, batch_axis: Axes) -> tuple[float, float]:
    """Number of inputs and outputs of a unit, the receptive field counted in."""

    def size(axes: Axes) -> int:
        return math.prod(shape[axis] for axis in ([axes] if isinstance(axes, int) else axes))

    try:
        inputs, outputs, batch = size(in_axis), size(out_axis), size(batch_axis)
    except IndexError:
        raise ShapeError(
            f"variance_scaling: the shape must have the axes {in_axis}, {out_axis}, {batch_axis} "
            f"of inputs, outputs and batch; got {shape}.{at_user_line()} Say which axes they are."
        ) from None
    field = math.prod(shape) / inputs / outputs / batch
    return inputs * field, outputs * field


def _scaled(key: Any, shape: Shape, dtype: np.dtype, variance: Any, distribution: str) -> Array:
    real = dtypes.is_float(dtype)
    if distribution == "normal":
        return random.normal(key, shape, dtype) * jnp.sqrt(variance)
    if distribution == "uniform":
        if real:
            return random.uniform(key, shape, dtype, -1) * jnp.sqrt(3 * variance)
        return _disc(key, shape, dtype) * jnp.sqrt(variance)
    stddev = jnp.sqrt(variance) / jnp.asarray(_CUT_REAL if real else _CUT_COMPLEX, dtype)
    if real:
        return random.truncated_normal(key, -2, 2, shape, dtype) * stddev
    return _cut_disc(key, 2, shape, dtype) * stddev


def _disc(key: Any, shape: Shape, dtype: np.dtype) -> Array:
    """Uniform on the complex disc of variance 1."""
    part = dtypes.float_part(dtype)
    first, second = random.split(key)
    radius = jnp.sqrt(2 * random.uniform(first, shape, part))
    return _polar(radius, second, dtype)


def _cut_disc(key: Any, upper: float, shape: Shape, dtype: np.dtype) -> Array:
    """Complex normal of variance 1, cut off at a radius."""
    part = dtypes.float_part(dtype)
    first, second = random.split(key)
    reached = (1 - np.exp(part.type(-(upper**2)))) * random.uniform(first, shape, part)
    return _polar(jnp.sqrt(-jnp.log(1 - reached)), second, dtype)


def _polar(radius: Array, key: Any, dtype: np.dtype) -> Array:
    angle = 2 * np.pi * random.uniform(key, radius.shape, radius.dtype).astype(dtype)
    return radius.astype(dtype) * jnp.exp(1j * angle)


def glorot_uniform(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Any = None
) -> Initializer:
    """Uniform, scaled by the mean of inputs and outputs. Source: Glorot and Bengio, 2010."""
    return variance_scaling(1.0, "fan_avg", "uniform", in_axis, out_axis, batch_axis, dtype)


def glorot_normal(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Any = None
) -> Initializer:
    """Truncated normal, scaled by the mean of inputs and outputs. Source: Glorot and Bengio,
    2010."""
    return variance_scaling(
        1.0, "fan_avg", "truncated_normal", in_axis, out_axis, batch_axis, dtype
    )


def lecun_uniform(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Any = None
) -> Initializer:
    """Uniform, scaled by the inputs. Source: LeCun et al., 1998."""
    return variance_scaling(1.0, "fan_in", "uniform", in_axis, out_axis, batch_axis, dtype)


def lecun_normal(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Any = None
) -> Initializer:
    """Truncated normal, scaled by the inputs. Source: LeCun et al., 1998."""
    return variance_scaling(1.0, "fan_in", "truncated_normal", in_axis, out_axis, batch_axis, dtype)


def he_uniform(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Any = None
) -> Initializer:
    """Uniform, scaled by the inputs, for rectifiers. Source: He et al., 2015."""
    return variance_scaling(2.0, "fan_in", "uniform", in_axis, out_axis, batch_axis, dtype)


def he_normal(
    in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: Any = None
) -> Initializer:
    """Truncated normal, scaled by the inputs, for rectifiers. Source: He et al., 2015."""
    return variance_scaling(2.0, "fan_in", "truncated_normal", in_axis, out_axis, batch_axis, dtype)


xavier_uniform, xavier_normal = glorot_uniform, glorot_normal
kaiming_uniform, kaiming_normal = he_uniform, he_normal
