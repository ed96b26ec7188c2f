"""Activation functions and what stands with them in `jax.nn`: softmax and its kin, one_hot,
standardize. Values and derivatives are JAX's, at corners too: those of relu and relu6 are 0 at
their kinks. Each is jitted, so that outside of `jit` it is one kernel rather than several."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

import xcube.numpy as jnp
from xcube import dtypes, lax
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import at_user_line
from xcube.numpy.operands import array_operand, canonical_axis, cast, inexact_of
from xcube.transforms.jit import jit

Axis = int | Sequence[int] | None

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _inexact(name: str, x: Any) -> Array:
    """The argument as an array of floats or complex numbers."""
    array = array_operand(name, x)
    return cast(array, inexact_of(array.dtype), array.weak_type)


# rectifiers -----------------------------------------------------------------------------------


@jit
def identity(x: Any) -> Array:
    """x."""
    return array_operand("identity", x)


@jit
def relu(x: Any) -> Array:
    """max(x, 0), with derivative 0 at 0.

    >>> relu(jnp.array([-1.0, 2.0]))
    Array([0., 2.], dtype=float32)
    """
    x = array_operand("relu", x)
    return jnp.where(x <= 0, 0, x)


@jit
def relu6(x: Any) -> Array:
    """min(max(x, 0), 6), with derivative 0 at 0 and 6."""
    x = _inexact("relu6", x)
    return jnp.where(x <= 0, 0, jnp.where(x >= 6, 6, x))


@jit
def leaky_relu(x: Any, negative_slope: Any = 1e-2) -> Array:
    """x where it is not negative, else negative_slope x."""
    x = _inexact("leaky_relu", x)
    return jnp.where(x >= 0, x, negative_slope * x)


@jit
def elu(x: Any, alpha: Any = 1.0) -> Array:
    """x where it is positive, else alpha (exp(x) - 1)."""
    x = _inexact("elu", x)
    positive = x > 0
    return jnp.where(positive, x, alpha * jnp.expm1(jnp.where(positive, 0, x)))


@jit
def celu(x: Any, alpha: Any = 1.0) -> Array:
    """max(x, 0) + alpha (exp(min(x, 0) / alpha) - 1)."""
    x = _inexact("celu", x)
    return jnp.maximum(x, 0) + alpha * jnp.expm1(jnp.minimum(x, 0) / alpha)


@jit
def selu(x: Any) -> Array:
    """The self-normalising elu. Source: Klambauer et al., 2017."""
    return _SELU_SCALE * elu(x, _SELU_ALPHA)


@jit
def hard_tanh(x: Any) -> Array:
    """x kept within -1 and 1."""
    x = array_operand("hard_tanh", x)
    return jnp.where(x > 1, 1, jnp.where(x < -1, -1, x))


@jit
def hard_sigmoid(x: Any) -> Array:
    """relu6(x + 3) / 6."""
    return relu6(_inexact("hard_sigmoid", x) + 3) / 6


@jit
def hard_silu(x: Any) -> Array:
    """x hard_sigmoid(x)."""
    x = _inexact("hard_silu", x)
    return x * hard_sigmoid(x)


hard_swish = hard_silu

# smooth ones ----------------------------------------------------------------------------------


@jit
def sigmoid(x: Any) -> Array:
    """1 / (1 + exp(-x)).

    >>> sigmoid(0.0).item()
    0.5
    """
    return lax.logistic(_inexact("sigmoid", x))


@jit
def tanh(x: Any) -> Array:
    """The hyperbolic tangent."""
    return lax.tanh(_inexact("tanh", x))


@jit
def softplus(x: Any) -> Array:
    """log(1 + exp(x))."""
    x = _inexact("softplus", x)
    upper = jnp.where(x >= 0, x, 0)  # not max: its slope of 1 at 0 makes the whole slope 1/2
    return upper + jnp.log1p(jnp.exp(-jnp.abs(x)))


@jit
def log_sigmoid(x: Any) -> Array:
    """log(sigmoid(x)), accurate for very negative x."""
    return -softplus(-_inexact("log_sigmoid", x))


@jit
def soft_sign(x: Any) -> Array:
    """x / (|x| + 1)."""
    x = _inexact("soft_sign", x)
    return x / (jnp.abs(x) + 1)


@jit
def silu(x: Any) -> Array:
    """x sigmoid(x), also known as swish."""
    x = _inexact("silu", x)
    return x * sigmoid(x)


swish = silu


@jit
def mish(x: Any) -> Array:
    """x tanh(softplus(x))."""
    x = _inexact("mish", x)
    return x * jnp.tanh(softplus(x))


@functools.partial(jit, static_argnames="approximate")
def gelu(x: Any, approximate: bool = True) -> Array:
    """x times the normal distribution function at x, by tanh if `approximate`.

    Source: Hendrycks and Gimpel, 2016.
    """
    x = _inexact("gelu", x)
    if not approximate:
        return 0.5 * x * lax.erfc(-x * math.sqrt(0.5))
    return x * (0.5 * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


@jit
def squareplus(x: Any, b: Any = 4) -> Array:
    """(x + sqrt(x^2 + b)) / 2."""
    x = _inexact("squareplus", x)
    return (x + jnp.sqrt(jnp.square(x) + b)) / 2


@jit
def sparse_plus(x: Any) -> Array:
    """0 up to -1, x from 1 on, (x + 1)^2 / 4 between."""
    x = _inexact("sparse_plus", x)
    return jnp.where(x <= -1, 0, jnp.where(x >= 1, x, (x + 1) ** 2 / 4))


@jit
def sparse_sigmoid(x: Any) -> Array:
    """0 up to -1, 1 from 1 on, (x + 1) / 2 between."""
    return 0.5 * jnp.clip(_inexact("sparse_sigmoid", x) + 1, 0, 2)


@jit
def log1mexp(x: Any) -> Array:
    """log(1 - exp(-x)) for positive x, accurate for small and for large ones.

    Source: Mächler, "Accurately Computing log(1 - exp(-|a|))", 2012.
    """
    x = _inexact("log1mexp", x)
    small = x < math.log(2)
    near, far = jnp.where(small, x, 1), jnp.where(small, 1, x)
    return jnp.where(small, jnp.log(-jnp.expm1(-near)), jnp.log1p(-jnp.exp(-far)))


@functools.partial(jit, static_argnames="axis")
def glu(x: Any, axis: int = -1) -> Array:
    """The first half of x along an axis times sigmoid of the second half.

    Raises ShapeError if the axis has an odd length.
    """
    x = _inexact("glu", x)
    axis = canonical_axis("glu", axis, x.ndim, x.aval)
    half, odd = divmod(x.shape[axis], 2)
    if odd:
        raise ShapeError(
            f"glu: axis {axis} must have an even length; got {x.aval}.{at_user_line()}"
        )
    first = lax.slice_in_dim(x, 0, half, axis=axis)
    return first * sigmoid(lax.slice_in_dim(x, half, 2 * half, axis=axis))


# softmax and its kin --------------------------------------------------------------------------


def _static_axis(axis: Any) -> Axis:
    if axis is None:
        return None
    return operator.index(axis) if np.ndim(axis) == 0 else tuple(map(operator.index, axis))


def _shift(x: Array, axis: Axis, where: Any) -> Any:
    """The largest element along the axis, 0 where it is not finite; a constant of derivatives."""
    largest = jnp.max(x, axis=axis, keepdims=True, where=where, initial=-jnp.inf)
    return lax.stop_gradient(jnp.where(jnp.isfinite(largest), largest, 0))


def softmax(x: Any, axis: Axis = -1, where: Any = None) -> Array:
    """exp(x) / sum(exp(x)) along an axis or several.

    `where`: the elements that count; the others become 0.

    >>> softmax(jnp.zeros(4))
    Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """
    return _softmax(x, where, axis=_static_axis(axis))


@functools.partial(jit, static_argnames="axis")
def _softmax(x: Any, where: Any, axis: Axis) -> Array:
    x = _inexact("softmax", x)
    largest = jnp.max(x, axis=axis, keepdims=True, where=where, initial=-jnp.inf)
    shown = x if where is None else jnp.where(where, x, -jnp.inf)
    weights = jnp.exp(shown - lax.stop_gradient(largest))
    result = weights / jnp.sum(weights, axis=axis, keepdims=True, where=where)
    return result if where is None else jnp.where(where, result, 0)


def log_softmax(x: Any, axis: Axis = -1, where: Any = None) -> Array:
    """log(softmax(x)) along an axis or several.

    `where`: the elements that count; the others become -inf.
    """
    return _log_softmax(x, where, axis=_static_axis(axis))


@functools.partial(jit, static_argnames="axis")
def _log_softmax(x: Any, where: Any, axis: Axis) -> Array:
    x = _inexact("log_softmax", x)
    largest = jnp.max(x, axis=axis, keepdims=True, where=where, initial=-jnp.inf)
    shown = x if where is None else jnp.where(where, x, -jnp.inf)
    shifted = shown - lax.stop_gradient(largest)
    total = jnp.sum(jnp.exp(shifted), axis=axis, keepdims=True, where=where)
    result = shifted - jnp.log(total)
    return result if where is None else jnp.where(where, result, -jnp.inf)


def logsumexp(
    a: Any,
    axis: Axis = None,
    b: Any = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: Any = None,
) -> Any:
    """log(sum(b exp(a))) over an axis, several, or all.

    `return_sign`: give the pair (log of the absolute value, sign of the sum), for negative b.

    >>> logsumexp(jnp.zeros(4)).round(3)
    Array(1.386, dtype=float32)
    """
    axis = _static_axis(axis)
    return _logsumexp(a, b, where, axis=axis, keepdims=keepdims, return_sign=return_sign)


@functools.partial(jit, static_argnames=("axis", "keepdims", "return_sign"))
def _logsumexp(a: Any, b: Any, where: Any, axis: Axis, keepdims: bool, return_sign: bool) -> Any:
    a = _inexact("logsumexp", a)
    if b is not None:
        a, b = jnp.broadcast_arrays(jnp.where(jnp.asarray(b) != 0, a, -jnp.inf), b)
    shift = _shift(a.real if dtypes.is_complex(a.dtype) else a, axis, where)
    weights = jnp.exp(a - shift.astype(a.dtype))
    total = jnp.sum(weights if b is None else b * weights, axis=axis, keepdims=True, where=where)
    sign = jnp.sign(total)
    size = total if dtypes.is_complex(total.dtype) and not return_sign else jnp.abs(total)
    result = jnp.log(size) + shift.astype(size.dtype)
    if not return_sign and b is not None and not dtypes.is_complex(total.dtype):
        result = jnp.where(sign < 0, jnp.nan, result)
    if not keepdims:
        result, sign = (
            jnp.squeeze(x, axis=axis) if axis is not None else x.reshape(()) for x in (result, sign)
        )
    return (result, sign) if return_sign else result


def logmeanexp(x: Any, axis: Axis = None, where: Any = None, keepdims: bool = False) -> Array:
    """log(mean(exp(x))) over an axis, several, or all."""
    x = _inexact("logmeanexp", x)
    counted = jnp.ones(x.shape, bool) if where is None else jnp.broadcast_to(where, x.shape)
    count = jnp.sum(counted, axis=_static_axis(axis), keepdims=keepdims, dtype=x.dtype)
    return logsumexp(x, axis=axis, keepdims=keepdims, where=where) - jnp.log(count)


def standardize(
    x: Any,
    axis: Axis = -1,
    mean: Any = None,
    variance: Any = None,
    epsilon: Any = 1e-5,
    where: Any = None,
    *,
    algorithm: str = "fast",
) -> Array:
    """(x - mean) / sqrt(variance + epsilon) along an axis or several.

    `algorithm`: "fast" takes the variance as mean of squares minus square of the mean, "stable" as
    mean of the squared distances. Raises ValueError for any other.
    """
    if algorithm not in ("fast", "stable"):
        raise ValueError(
            f"standardize: algorithm must be 'fast' or 'stable'; got {algorithm!r}.{at_user_line()}"
        )
    axis = _static_axis(axis)
    return _standardize(x, mean, variance, epsilon, where, axis=axis, algorithm=algorithm)


@functools.partial(jit, static_argnames=("axis", "algorithm"))
def _standardize(
    x: Any, mean: Any, variance: Any, epsilon: Any, where: Any, axis: Axis, algorithm: str
) -> Array:
    x = _inexact("standardize", x)

    def average(values: Any) -> Any:
        return jnp.mean(values, axis=axis, keepdims=True, where=where)

    mean = average(x) if mean is None else mean
    if variance is None and algorithm == "stable":
        variance = average(jnp.square(x - mean))
    elif variance is None:
        variance = jnp.clip(average(jnp.square(x)) - jnp.square(mean), 0)
    return (x - mean) * lax.rsqrt(jnp.asarray(variance + epsilon))


# encoding -------------------------------------------------------------------------------------


def one_hot(x: Any, num_classes: int, *, dtype: Any = None, axis: int = -1) -> Array:
    """1 at the class that x names, else 0, along a new axis: i[*d] -> f[*d, num_classes].

    A number that is no class has zeros only. Raises ShapeError if there is no such axis.

    >>> one_hot(jnp.array([0, 2]), 3)
    Array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    x = array_operand("one_hot", x)
    position = canonical_axis("one_hot", axis, x.ndim + 1)
    shape = (*x.shape[:position], operator.index(num_classes), *x.shape[position:])
    classes = lax.broadcasted_iota(x.dtype, shape, position)
    named = lax.broadcast_in_dim(x, shape, tuple(d for d in range(len(shape)) if d != position))
    return lax.eq(named, classes).astype(float if dtype is None else dtype)
