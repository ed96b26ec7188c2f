"""Random bits: the counter-based generator threefry2x32 (Salmon et al., "Parallel random numbers:
as easy as 1, 2, 3", 2011), and keys, splits and bits made with it. A key is u32[2]."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import config, dtypes
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Axis, Literal, Primitive, at_user_line
from xcube.primitives.bits import bitwise_or, bitwise_xor, shift_left, shift_right_logical
from xcube.primitives.convert import convert_element_type
from xcube.primitives.kinds import common_shape
from xcube.primitives.lowered import Element
from xcube.primitives.shape import batch_front, broadcast_in_dim, reshape
from xcube.primitives.view import concatenate, expand_dims, integers, iota, slice, squeeze
from xcube.trace import aval_of, bind, literal

_UINT32 = np.dtype(np.uint32)
_PARITY = 0x1BD11BDA
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


# threefry2x32 ---------------------------------------------------------------------------------


def _threefry_abstract(*operands: Aval) -> tuple[Aval, Aval]:
    if any(x.dtype != _UINT32 for x in operands):
        raise DtypeError(
            f"threefry2x32: the operands must be u32; got {', '.join(map(str, operands))}."
            f"{at_user_line()}"
        )
    out = Aval(common_shape("threefry2x32", operands), _UINT32)
    return out, out


def _threefry_batch(axis: Axis, args: Sequence[Any], batched: Sequence[bool]) -> tuple[Any, Any]:
    shape = (axis.size, *common_shape("threefry2x32", [
        aval.update(shape=aval.shape[1:]) if flag else aval
        for aval, flag in zip(map(aval_of, args), batched, strict=True)
    ]))  # fmt: skip

    def front(x: Any, flag: bool) -> Any:
        if not flag:
            return batch_front(x, axis.size) if aval_of(x).shape else x
        return broadcast_in_dim(x, shape, tuple(range(x.ndim)))

    operands = [front(x, flag) for x, flag in zip(args, batched, strict=True)]
    return bind(threefry2x32_p, *operands), [True, True]


def _threefry_element(e: Any, index: Any) -> tuple[Any, Any]:
    k1, k2, x, y = (e.read(operand, index) for operand in range(4))

    def word(value: int) -> Any:
        return e.constant(value, _UINT32)

    def rotated(value: Any, distance: int) -> Any:
        high = e.apply("shift_left", value, word(distance))
        return e.apply("or", high, e.apply("shift_right_logical", value, word(32 - distance)))

    keys = (k1, k2, e.apply("xor", e.apply("xor", k1, k2), word(_PARITY)))
    x, y = e.apply("add", x, k1), e.apply("add", y, k2)
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            x = e.apply("add", x, y)
            y = e.apply("xor", x, rotated(y, distance))
        x = e.apply("add", x, keys[(group + 1) % 3])
        injected = e.apply("add", keys[(group + 2) % 3], word(group + 1))
        y = e.apply("add", y, injected)
    return x, y


threefry2x32_p = Primitive(
    "threefry2x32",
    abstract=_threefry_abstract,
    jvp="zero",
    batch=_threefry_batch,
    lower=Element(_threefry_element),
    multiple=True,
)


def threefry2x32(k1: Any, k2: Any, x1: Any, x2: Any) -> list[Any]:
    """The two words that a key of two words makes of a counter of two words, element by element:
    u32[*s] or u32[] each -> u32[*s], u32[*s].

    Raises DtypeError for other dtypes, ShapeError if shapes differ.

    >>> word = np.uint32(0)
    >>> [int(x) for x in threefry2x32(word, word, word, word)]
    [1797259609, 2579123966]
    """
    return bind(threefry2x32_p, k1, k2, x1, x2)


# keys and bits --------------------------------------------------------------------------------


def _words(key: Any) -> tuple[Any, Any]:
    if aval_of(key).shape != (2,) or aval_of(key).dtype != _UINT32:
        raise DtypeError(f"threefry: a key must be u32[2]; got {aval_of(key)}.{at_user_line()}")
    high, low = (squeeze(slice(key, (k,), (k + 1,)), (0,)) for k in range(2))
    return high, low


def _counters(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """High and low words of 0, 1, 2, ... in row-major order."""
    size = math.prod(shape)
    if not shape:
        return np.uint32(0), np.uint32(0)
    if size <= 1 << 32:
        return np.uint32(0), reshape(iota(_UINT32, (size,)), shape)
    numbers = reshape(iota(np.uint64, (size,)), shape)
    high = shift_right_logical(numbers, literal(32, np.dtype(np.uint64)))
    return convert_element_type(high, _UINT32), convert_element_type(numbers, _UINT32)


def _stacked(words: Sequence[Any]) -> Any:
    """Two arrays u32[*s] as u32[*s, 2]."""
    return concatenate([expand_dims(x, (-1,)) for x in words], aval_of(words[0]).ndim)


def threefry_seed(seed: Any) -> Any:
    """The key of an integer: its high and low word, i[] -> u32[2]. The high word of integers of 32
    bits is 0; a Python integer has 64 bits where 64-bit types are enabled, else 32.

    Raises ShapeError unless the seed is a scalar, DtypeError unless it is an integer.

    >>> threefry_seed(7).dtype
    dtype('uint32')
    """
    if not isinstance(seed, Array | Literal | np.generic | np.ndarray):
        number = operator.index(seed)
        high = number >> 32 if config.current.enable_x64 else 0
        return _stacked([np.uint32(high & 0xFFFFFFFF), np.uint32(number & 0xFFFFFFFF)])
    aval = aval_of(seed)
    if aval.shape:
        raise ShapeError(f"threefry_seed: the seed must be a scalar; got {aval}.{at_user_line()}")
    if not dtypes.is_integer(aval.dtype):
        raise DtypeError(f"threefry_seed: the seed must be an integer; got {aval}.{at_user_line()}")
    high: Any = np.uint32(0)
    if aval.dtype.itemsize == 8:
        shift = literal(32, aval.dtype)
        high = convert_element_type(shift_right_logical(seed, shift), _UINT32)
    return _stacked([high, convert_element_type(seed, _UINT32)])


def threefry_split(key: Any, shape: int | Sequence[int] = 2) -> Any:
    """New keys from one: u32[2] -> u32[*shape, 2].

    Raises DtypeError unless the key is u32[2].

    >>> threefry_split(threefry_seed(0), 3).shape
    (3, 2)
    """
    sizes = integers(shape) if isinstance(shape, Sequence) else (operator.index(shape),)
    return _stacked(threefry2x32(*_words(key), *_counters(sizes)))


def threefry_fold_in(key: Any, data: Any) -> Any:
    """The key of a key and an integer of 32 bits: u32[2], i[] -> u32[2].

    Raises DtypeError unless the key is u32[2], ShapeError unless the data is a scalar.

    >>> threefry_fold_in(threefry_seed(0), 1).shape
    (2,)
    """
    if not isinstance(data, Array | Literal | np.generic | np.ndarray):
        data = np.uint32(operator.index(data) & 0xFFFFFFFF)
    if aval_of(data).shape:
        raise ShapeError(
            f"threefry_fold_in: the data must be a scalar; got {aval_of(data)}.{at_user_line()}"
        )
    word = convert_element_type(data, _UINT32)
    return _stacked(threefry2x32(*_words(key), np.uint32(0), word))


def threefry_random_bits(key: Any, bit_width: int, shape: Sequence[int]) -> Any:
    """Uniform random bits: u32[2] -> u8, u16, u32 or u64[*shape], by the width.

    Raises ValueError for other widths, DtypeError unless the key is u32[2].

    >>> threefry_random_bits(threefry_seed(0), 16, (2, 3)).dtype
    dtype('uint16')
    """
    if bit_width not in (8, 16, 32, 64):
        raise ValueError(
            f"threefry_random_bits: bit_width must be 8, 16, 32 or 64; got {bit_width}."
            f"{at_user_line()}"
        )
    high, low = threefry2x32(*_words(key), *_counters(integers(shape)))
    if bit_width < 64:
        return convert_element_type(bitwise_xor(high, low), np.dtype(f"uint{bit_width}"))
    wide = np.dtype(np.uint64)
    upper = shift_left(convert_element_type(high, wide), literal(32, wide))
    return bitwise_or(upper, convert_element_type(low, wide))
