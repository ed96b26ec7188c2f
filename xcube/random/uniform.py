"""The samplers on which the others stand: raw bits, uniform floats, integers of a range, and what a
sampler does with its arguments. Each gives JAX's numbers for the same key."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

import xcube.numpy as jnp
from xcube import dtypes, lax
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Shape, at_user_line
from xcube.numpy.operands import broadcast_shapes, canonical_shape
from xcube.primitives.convert import unsigned_of
from xcube.primitives.random_bits import threefry_random_bits, threefry_split
from xcube.random.keys import single_key
from xcube.transforms.jit import jit

# arguments ------------------------------------------------------------------------------------


def compiled(function: Callable[..., Any]) -> Any:
    """Jit a sampler's body: its keyword-only parameters are static."""
    parameters = inspect.signature(function).parameters.values()
    static = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    return jit(function, static_argnames=static)


def float_dtype(name: str, dtype: Any) -> np.dtype:
    """A dtype= argument of a sampler of floats; the default float for None.

    Raises DtypeError if it is no float dtype.
    """
    return _dtype(name, float if dtype is None else dtype, dtypes.is_float, "a float")


def integer_dtype(name: str, dtype: Any) -> np.dtype:
    """A dtype= argument of a sampler of integers; the default integer for None.

    Raises DtypeError if it is no integer dtype.
    """
    return _dtype(name, int if dtype is None else dtype, dtypes.is_integer, "an integer")


def _dtype(name: str, dtype: Any, accepts: Callable[[Any], bool], kind: str) -> np.dtype:
    requested = dtypes.requested_dtype(dtype, name)
    if not accepts(requested):
        raise DtypeError(f"{name}: dtype must be {kind} dtype; got {requested}.{at_user_line()}")
    return requested


def sample_shape(name: str, shape: Any, *parameters: Any) -> Shape:
    """The shape of the samples: that of the broadcast parameters for None, else the one given, to
    which they must broadcast.

    Raises ShapeError if they do not.
    """
    shapes = [np.shape(parameter) for parameter in parameters]
    if shape is None:
        return broadcast_shapes(name, *shapes)
    wanted = canonical_shape(name, shape)
    if shapes and broadcast_shapes(name, wanted, *shapes) != wanted:
        raise ShapeError(
            f"{name}: the parameters must broadcast to the shape {wanted}; got "
            f"{', '.join(map(str, shapes))}.{at_user_line()}"
        )
    return wanted


def parameter(value: Any, dtype: Any, shape: Shape) -> Array:
    """A sampler's parameter in the dtype and shape of its samples."""
    return jnp.broadcast_to(lax.convert_element_type(jnp.asarray(value), dtype), shape)


# bits -----------------------------------------------------------------------------------------


def bits(key: Any, shape: Any = (), dtype: Any = None) -> Array:
    """Random bits: unsigned integers, uint32 by default, u[*shape].

    Raises DtypeError if the dtype is not unsigned.

    >>> from xcube.random import key
    >>> bits(key(0)).dtype
    dtype('uint32')
    """
    unsigned = dtypes.requested_dtype(np.uint32 if dtype is None else dtype, "bits")
    if dtypes.kind_of(unsigned) != "uint":
        raise DtypeError(f"bits: dtype must be unsigned; got {unsigned}.{at_user_line()}")
    width = dtypes.bits_of(unsigned)
    return _bits(single_key("bits", key), width=width, shape=canonical_shape("bits", shape))


@compiled
def _bits(data: Any, *, width: int, shape: Shape) -> Any:
    return threefry_random_bits(data, width, shape)


# uniform --------------------------------------------------------------------------------------


def uniform(
    key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0
) -> Array:
    """Floats from minval (included) to maxval (not included): f[*shape].

    Raises DtypeError if the dtype is no float of 8 or more bits.

    >>> from xcube.random import key
    >>> uniform(key(0), (2,)).shape
    (2,)
    """
    dtype = float_dtype("uniform", dtype)
    shape = sample_shape("uniform", shape, minval, maxval)
    is_unit = isinstance(minval, float | int) and isinstance(maxval, float | int)
    bounds = () if is_unit and (minval, maxval) == (0, 1) else (minval, maxval)
    return _uniform(single_key("uniform", key), bounds, shape=shape, dtype=dtype)


@compiled
def _uniform(data: Any, bounds: tuple[Any, ...], *, shape: Shape, dtype: np.dtype) -> Any:
    return uniform_of(data, shape, dtype, *bounds)


def uniform_of(data: Any, shape: Shape, dtype: np.dtype, *bounds: Any) -> Any:
    """The body of `uniform`, from 0 to 1 without bounds: random mantissas under the exponent of 1
    give floats in [1, 2)."""
    width, mantissa = dtypes.bits_of(dtype), dtypes.finfo(dtype).nmant
    if width < 8:
        raise DtypeError(
            f"uniform: dtype must have at least 8 bits; got {dtype}.{at_user_line()} Sample "
            f"float32 and convert."
        )
    unsigned = unsigned_of(dtype)
    drawn = width if mantissa >= 8 else 8
    words = lax.convert_element_type(threefry_random_bits(data, drawn, shape), unsigned)
    exponent = int(np.ones((), dtype).view(unsigned))
    words = lax.bitwise_or(lax.shift_right_logical(words, drawn - mantissa), exponent)
    unit = lax.sub(lax.bitcast_convert_type(words, dtype), 1)
    if not bounds:
        return unit
    low, high = (parameter(bound, dtype, shape) for bound in bounds)
    return lax.max(low, lax.add(lax.mul(unit, lax.sub(high, low)), low))


# integers -------------------------------------------------------------------------------------


def randint(key: Any, shape: Any, minval: Any, maxval: Any, dtype: Any = None) -> Array:
    """Integers from minval (included) to maxval (not included): i[*shape].

    Raises DtypeError if the dtype is no integer.

    >>> from xcube.random import key
    >>> randint(key(0), (4,), 0, 10).dtype
    dtype('int32')
    """
    dtype = integer_dtype("randint", dtype)
    shape = sample_shape("randint", shape, minval, maxval)
    minval, maxval = _integers(minval), _integers(maxval)
    info, drawn = dtypes.iinfo(dtype), dtype
    if info.bits < 32:
        drawn, least, most = np.dtype(np.int32), int(info.min), int(info.max)
        minval = jnp.clip(lax.convert_element_type(minval, drawn), least, most)
        maxval = jnp.clip(lax.convert_element_type(maxval, drawn), least, most + 1)
    data = single_key("randint", key)
    samples = _randint(data, minval, maxval, shape=shape, dtype=drawn)
    return lax.convert_element_type(samples, dtype)


def _integers(value: Any) -> Array:
    array = jnp.asarray(value)
    return array if dtypes.is_integer(array.dtype) else array.astype(int)


@compiled
def _randint(data: Any, minval: Any, maxval: Any, *, shape: Shape, dtype: np.dtype) -> Any:
    """The offset is a number of twice the bits modulo the span, so that the bias is small."""
    info = dtypes.iinfo(dtype)
    unsigned = unsigned_of(dtype)
    beyond = jnp.greater(maxval, min(int(info.max), int(dtypes.iinfo(maxval.dtype).max)))
    low, high = _clipped(minval, dtype), _clipped(maxval, dtype)
    span = lax.convert_element_type(high - low, unsigned)
    span = jnp.where(high <= low, 1, jnp.where(beyond & (high > low), span + 1, span))
    factor = lax.rem(lax.full_like(span, 1 << (info.bits // 2)), span)
    factor = lax.rem(factor * factor, span)
    span, factor = jnp.broadcast_to(span, shape), jnp.broadcast_to(factor, shape)
    first, second = threefry_split(data, (2,))
    upper, lower = (threefry_random_bits(k, info.bits, shape) for k in (first, second))
    offset = lax.rem(lax.rem(upper, span) * factor + lax.rem(lower, span), span)
    return low + lax.convert_element_type(offset, dtype)


def _clipped(value: Any, dtype: np.dtype) -> Any:
    """Integers in another dtype, those out of its range at its ends."""
    if value.dtype == dtype:
        return value
    ours, theirs = dtypes.iinfo(dtype), dtypes.iinfo(value.dtype)
    least, most = max(int(ours.min), int(theirs.min)), min(int(ours.max), int(theirs.max))
    return lax.convert_element_type(jnp.clip(value, least, most), dtype)
