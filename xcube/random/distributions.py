"""Samplers of distributions whose samples are one formula of uniform or normal ones. Each gives
JAX's numbers for the same key."""

from __future__ import annotations

from typing import Any

import numpy as np

import xcube.numpy as jnp
from xcube import dtypes, lax
from xcube.array import Array
from xcube.errors import DtypeError
from xcube.ir import Shape, at_user_line
from xcube.primitives.random_bits import threefry_split
from xcube.random.keys import single_key
from xcube.random.uniform import (
    compiled,
    float_dtype,
    integer_dtype,
    parameter,
    sample_shape,
    uniform_of,
)

# normal ---------------------------------------------------------------------------------------


def normal(key: Any, shape: Any = (), dtype: Any = None) -> Array:
    """Normal samples of mean 0 and variance 1, complex ones of total variance 1: d[*shape].

    Raises DtypeError if the dtype is neither float nor complex.

    >>> from xcube.random import key
    >>> normal(key(0), (2, 3)).shape
    (2, 3)
    """
    dtype = dtypes.requested_dtype(float if dtype is None else dtype, "normal")
    if not dtypes.is_inexact(dtype):
        raise DtypeError(f"normal: dtype must be float or complex; got {dtype}.{at_user_line()}")
    return _normal(single_key("normal", key), shape=sample_shape("normal", shape), dtype=dtype)


@compiled
def _normal(data: Any, *, shape: Shape, dtype: np.dtype) -> Any:
    return normal_of(data, shape, dtype)


def normal_of(data: Any, shape: Shape, dtype: np.dtype) -> Any:
    """The body of `normal`: the normal quantiles of uniform samples."""
    if dtypes.is_complex(dtype):
        part = dtypes.float_part(dtype)
        real, imag = (normal_of(k, shape, part) for k in threefry_split(data, (2,)))
        return lax.complex(real, imag) / dtype.type(np.sqrt(2))
    least = np.nextafter(np.array(-1, dtype), np.array(0, dtype))
    uniform = uniform_of(data, shape, dtype, least, 1.0)
    return lax.mul(_root_two(dtype), lax.erf_inv(uniform))


def _root_two(dtype: np.dtype) -> Any:
    return np.array(np.sqrt(2), dtype)[()]


def truncated_normal(
    key: Any, lower: Any, upper: Any, shape: Any = None, dtype: Any = None
) -> Array:
    """Normal samples given that they lie between lower and upper: f[*shape].

    Raises DtypeError if the dtype is no float, ShapeError if the bounds do not fit the shape.
    """
    dtype = float_dtype("truncated_normal", dtype)
    shape = sample_shape("truncated_normal", shape, lower, upper)
    data = single_key("truncated_normal", key)
    return _truncated_normal(data, lower, upper, shape=shape, dtype=dtype)


@compiled
def _truncated_normal(data: Any, lower: Any, upper: Any, *, shape: Shape, dtype: np.dtype) -> Any:
    root, infinity = _root_two(dtype), np.array(np.inf, dtype)[()]
    lower, upper = parameter(lower, dtype, shape), parameter(upper, dtype, shape)
    low, high = lax.erf(lax.div(lower, root)), lax.erf(lax.div(upper, root))
    samples = lax.mul(root, lax.erf_inv(uniform_of(data, shape, dtype, low, high)))
    least = lax.nextafter(lax.stop_gradient(lower), infinity)
    most = lax.nextafter(lax.stop_gradient(upper), -infinity)
    return lax.clamp(least, samples, most)


def lognormal(key: Any, sigma: Any = 1.0, shape: Any = None, dtype: Any = None) -> Array:
    """exp of normal samples times sigma: f[*shape]."""
    dtype = float_dtype("lognormal", dtype)
    shape = sample_shape("lognormal", shape, sigma)
    return _lognormal(single_key("lognormal", key), sigma, shape=shape, dtype=dtype)


@compiled
def _lognormal(data: Any, sigma: Any, *, shape: Shape, dtype: np.dtype) -> Any:
    return jnp.exp(normal_of(data, shape, dtype) * parameter(sigma, dtype, shape))


def maxwell(key: Any, shape: Any = (), dtype: Any = None) -> Array:
    """Lengths of normal vectors in three dimensions: f[*shape]."""
    dtype = float_dtype("maxwell", dtype)
    return _maxwell(single_key("maxwell", key), shape=sample_shape("maxwell", shape), dtype=dtype)


@compiled
def _maxwell(data: Any, *, shape: Shape, dtype: np.dtype) -> Any:
    return maxwell_of(data, shape, dtype)


def maxwell_of(data: Any, shape: Shape, dtype: np.dtype) -> Any:
    """The body of `maxwell`."""
    return jnp.sqrt(jnp.sum(jnp.square(normal_of(data, (*shape, 3), dtype)), axis=-1))


def double_sided_maxwell(
    key: Any, loc: Any, scale: Any, shape: Any = (), dtype: Any = None
) -> Array:
    """loc plus scale times Maxwell samples of random sign: f[*shape, *that of loc and scale]."""
    dtype = float_dtype("double_sided_maxwell", dtype)
    inner = sample_shape("double_sided_maxwell", None, loc, scale)
    outer = sample_shape("double_sided_maxwell", shape) or inner
    data = single_key("double_sided_maxwell", key)
    return _double_sided_maxwell(data, loc, scale, shape=(*outer, *inner), dtype=dtype)


@compiled
def _double_sided_maxwell(data: Any, loc: Any, scale: Any, *, shape: Shape, dtype: np.dtype) -> Any:
    lengths, signs = threefry_split(data, (2,))
    samples = maxwell_of(lengths, shape, dtype) * rademacher_of(signs, shape, dtype)
    return samples * jnp.asarray(scale, dtype) + jnp.asarray(loc, dtype)


def wald(key: Any, mean: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Wald samples (inverse Gaussian of scale 1): f[*shape]. Source: Michael, Schucany and Haas,
    1976."""
    dtype = float_dtype("wald", dtype)
    shape = sample_shape("wald", shape, mean)
    return _wald(single_key("wald", key), mean, shape=shape, dtype=dtype)


@compiled
def _wald(data: Any, mean: Any, *, shape: Shape, dtype: np.dtype) -> Any:
    first, second = threefry_split(data, (2,))
    mean = parameter(mean, dtype, shape)
    y, u = jnp.square(normal_of(first, shape, dtype)), uniform_of(second, shape, dtype)
    square = jnp.square(mean)
    x = mean + square * y / 2 - mean / 2 * jnp.sqrt(4 * mean * y + square * jnp.square(y))
    return jnp.where(u <= mean / (mean + x), x, square / x)


# uniform quantiles ----------------------------------------------------------------------------


def exponential(key: Any, shape: Any = (), dtype: Any = None) -> Array:
    """Exponential samples of rate 1: f[*shape]."""
    dtype = float_dtype("exponential", dtype)
    shape = sample_shape("exponential", shape)
    return _exponential(single_key("exponential", key), shape=shape, dtype=dtype)


@compiled
def _exponential(data: Any, *, shape: Shape, dtype: np.dtype) -> Any:
    return exponential_of(data, shape, dtype)


def exponential_of(data: Any, shape: Shape, dtype: np.dtype) -> Any:
    """The body of `exponential`."""
    return lax.neg(lax.log1p(lax.neg(uniform_of(data, shape, dtype))))


def pareto(key: Any, b: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Pareto samples of tail index b: f[*shape]."""
    dtype = float_dtype("pareto", dtype)
    shape = sample_shape("pareto", shape, b)
    return _pareto(single_key("pareto", key), b, shape=shape, dtype=dtype)


@compiled
def _pareto(data: Any, b: Any, *, shape: Shape, dtype: np.dtype) -> Any:
    return lax.exp(lax.div(exponential_of(data, shape, dtype), parameter(b, dtype, shape)))


def laplace(key: Any, shape: Any = (), dtype: Any = None) -> Array:
    """Laplace samples of location 0 and scale 1: f[*shape]."""
    dtype = float_dtype("laplace", dtype)
    return _laplace(single_key("laplace", key), shape=sample_shape("laplace", shape), dtype=dtype)


@compiled
def _laplace(data: Any, *, shape: Shape, dtype: np.dtype) -> Any:
    least = -1.0 + float(dtypes.finfo(dtype).epsneg)
    u = uniform_of(data, shape, dtype, least, 1.0)
    return lax.mul(lax.sign(u), lax.log1p(lax.neg(lax.abs(u))))


def logistic(key: Any, shape: Any = (), dtype: Any = None) -> Array:
    """Logistic samples of location 0 and scale 1: f[*shape]."""
    dtype = float_dtype("logistic", dtype)
    shape = sample_shape("logistic", shape)
    return _logistic(single_key("logistic", key), shape=shape, dtype=dtype)


@compiled
def _logistic(data: Any, *, shape: Shape, dtype: np.dtype) -> Any:
    u = uniform_of(data, shape, dtype, dtypes.finfo(dtype).tiny, 1.0)
    return lax.sub(lax.log(u), lax.log1p(lax.neg(u)))


def cauchy(key: Any, shape: Any = (), dtype: Any = None) -> Array:
    """Cauchy samples of location 0 and scale 1: f[*shape]."""
    dtype = float_dtype("cauchy", dtype)
    return _cauchy(single_key("cauchy", key), shape=sample_shape("cauchy", shape), dtype=dtype)


@compiled
def _cauchy(data: Any, *, shape: Shape, dtype: np.dtype) -> Any:
    u = uniform_of(data, shape, dtype, dtypes.finfo(dtype).eps, 1.0)
    return lax.tan(lax.mul(np.pi, lax.sub(u, 0.5)))


_GUMBEL_MODES = ("low", "high")


def gumbel(key: Any, shape: Any = (), dtype: Any = None, mode: str | None = None) -> Array:
    """Gumbel samples of location 0 and scale 1: f[*shape].

    `mode`: "low" takes one word per sample, "high" two, which gives the far tail its resolution.
    Raises ValueError if there is no such mode.
    """
    dtype, mode = float_dtype("gumbel", dtype), gumbel_mode("gumbel", mode)
    shape = sample_shape("gumbel", shape)
    return _gumbel(single_key("gumbel", key), shape=shape, dtype=dtype, mode=mode)


def gumbel_mode(name: str, mode: str | None) -> str:
    """A mode= argument. Raises ValueError if there is no such mode."""
    if mode is not None and mode not in _GUMBEL_MODES:
        raise ValueError(
            f"{name}: mode must be one of {', '.join(map(repr, _GUMBEL_MODES))}; got {mode!r}."
            f"{at_user_line()}"
        )
    return mode or "low"


@compiled
def _gumbel(data: Any, *, shape: Shape, dtype: np.dtype, mode: str) -> Any:
    return gumbel_of(data, shape, dtype, mode)


def gumbel_of(data: Any, shape: Shape, dtype: np.dtype, mode: str) -> Any:
    """The body of `gumbel`."""
    info = dtypes.finfo(dtype)
    if mode == "low":
        u = uniform_of(data, shape, dtype, info.tiny, 1.0)
        return -jnp.log(-jnp.log(u))
    high, low = uniform_of(data, (2, *shape), dtype)
    fine = high + 2.0**-info.nmant * low + float(info.tiny)
    u = jnp.where(high >= 0.5, high, fine)
    return -jnp.log(-jnp.log1p(-u))


def rayleigh(key: Any, scale: Any, shape: Any = None, dtype: Any = None) -> Array:
    """Rayleigh samples of a scale: f[*shape]."""
    dtype = float_dtype("rayleigh", dtype)
    shape = sample_shape("rayleigh", shape, scale)
    return _rayleigh(single_key("rayleigh", key), scale, shape=shape, dtype=dtype)


@compiled
def _rayleigh(data: Any, scale: Any, *, shape: Shape, dtype: np.dtype) -> Any:
    root = lax.sqrt(lax.mul(lax.log(uniform_of(data, shape, dtype)), -2))
    return lax.mul(parameter(scale, dtype, shape), root)


def weibull_min(
    key: Any, scale: Any, concentration: Any, shape: Any = (), dtype: Any = None
) -> Array:
    """Weibull samples of a scale and a concentration: f[*shape]."""
    dtype = float_dtype("weibull_min", dtype)
    shape = sample_shape("weibull_min", shape, scale, concentration)
    data = single_key("weibull_min", key)
    return _weibull_min(data, scale, concentration, shape=shape, dtype=dtype)


@compiled
def _weibull_min(
    data: Any, scale: Any, concentration: Any, *, shape: Shape, dtype: np.dtype
) -> Any:
    power = 1 / parameter(concentration, dtype, shape)
    return jnp.power(exponential_of(data, shape, dtype), power) * parameter(scale, dtype, shape)


def triangular(
    key: Any, left: Any, mode: Any, right: Any, shape: Any = None, dtype: Any = None
) -> Array:
    """Samples of the triangular distribution from left to right with its peak at mode:
    f[*shape]."""
    dtype = float_dtype("triangular", dtype)
    shape = sample_shape("triangular", shape, left, mode, right)
    data = single_key("triangular", key)
    return _triangular(data, left, mode, right, shape=shape, dtype=dtype)


@compiled
def _triangular(
    data: Any, left: Any, mode: Any, right: Any, *, shape: Shape, dtype: np.dtype
) -> Any:
    left, mode, right = (parameter(value, dtype, shape) for value in (left, mode, right))
    u = uniform_of(data, shape, dtype)
    rising = left + lax.sqrt(u * (right - left) * (mode - left))
    falling = right - lax.sqrt((1 - u) * (right - left) * (right - mode))
    return jnp.where(u < (mode - left) / (right - left), rising, falling)


# integers and bools ---------------------------------------------------------------------------


def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, mode: str = "low") -> Array:
    """True with probability p: bool[*shape].

    `mode`: "low" takes one word per sample, "high" two, which makes tiny probabilities right.
    Raises DtypeError if p is no float, ValueError if there is no such mode.

    >>> from xcube.random import key
    >>> bernoulli(key(0), 0.5, (3,)).dtype
    dtype('bool')
    """
    if mode not in ("low", "high"):
        raise ValueError(f"bernoulli: mode must be 'low' or 'high'; got {mode!r}.{at_user_line()}")
    dtype = jnp.asarray(p).dtype
    if not dtypes.is_float(dtype):
        raise DtypeError(f"bernoulli: p must be a float; got {dtype}.{at_user_line()}")
    shape = sample_shape("bernoulli", shape, p)
    return _bernoulli(single_key("bernoulli", key), p, shape=shape, dtype=dtype, mode=mode)


@compiled
def _bernoulli(data: Any, p: Any, *, shape: Shape, dtype: np.dtype, mode: str) -> Any:
    return bernoulli_of(data, p, shape, dtype, mode)


def bernoulli_of(data: Any, p: Any, shape: Shape, dtype: np.dtype, mode: str) -> Any:
    """The body of `bernoulli`."""
    p = parameter(p, dtype, shape)
    if mode == "low":
        return lax.lt(uniform_of(data, shape, dtype), p)
    first, second = uniform_of(data, (2, *shape), dtype)
    return lax.lt(second * 2.0 ** -dtypes.finfo(dtype).nmant, p - first)


def rademacher(key: Any, shape: Any = (), dtype: Any = None) -> Array:
    """-1 or 1, equally likely: d[*shape]."""
    dtype = dtypes.requested_dtype(int if dtype is None else dtype, "rademacher")
    shape = sample_shape("rademacher", shape)
    return _rademacher(single_key("rademacher", key), shape=shape, dtype=dtype)


@compiled
def _rademacher(data: Any, *, shape: Shape, dtype: np.dtype) -> Any:
    return rademacher_of(data, shape, dtype)


def rademacher_of(data: Any, shape: Shape, dtype: np.dtype) -> Any:
    """The body of `rademacher`."""
    heads = bernoulli_of(data, 0.5, shape, dtypes.default_dtype("float"), "low")
    return 2 * lax.convert_element_type(heads, dtype) - 1


def geometric(key: Any, p: Any, shape: Any = None, dtype: Any = None) -> Array:
    """How many trials of probability p it takes to the first success: i[*shape]."""
    dtype = integer_dtype("geometric", dtype)
    shape = sample_shape("geometric", shape, p)
    return _geometric(single_key("geometric", key), p, shape=shape, dtype=dtype)


@compiled
def _geometric(data: Any, p: Any, *, shape: Shape, dtype: np.dtype) -> Any:
    p = jnp.asarray(p)
    p = p if dtypes.is_float(p.dtype) else p.astype(float)
    u = uniform_of(data, shape, p.dtype)
    failure = jnp.broadcast_to(lax.log1p(lax.neg(p)), shape)
    trials = lax.floor(lax.div(lax.log(jnp.where(u == 0, 1, u)), failure))
    return lax.convert_element_type(trials + 1, dtype)
