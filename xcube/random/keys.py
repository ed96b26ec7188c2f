"""Keys of the random number generator: made from seeds, split, folded, wrapped. A key is two
uint32 words for threefry2x32. A typed key (`key`) is a `KeyArray`, a pytree node around the words;
a legacy key (`PRNGKey`) is the words themselves; everything here takes both and gives back the kind
that it got. The bits are JAX's for the same seed."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import xcube.numpy as jnp
from xcube import config, lax, tree
from xcube.array import Array, DeviceArray
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Shape, at_user_line
from xcube.primitives.random_bits import threefry_fold_in, threefry_seed, threefry_split
from xcube.transforms.arguments import to_array
from xcube.transforms.jit import jit

_IMPLEMENTATIONS = {"threefry2x32": "fry"}
_DEFAULT = "threefry2x32"
_WORDS = 2


@dataclasses.dataclass(frozen=True)
class KeyType:
    """The dtype of typed keys; prints as `key<fry>`."""

    implementation: str

    @property
    def name(self) -> str:
        """The name in printed arrays."""
        return f"key<{_IMPLEMENTATIONS[self.implementation]}>"

    @property
    def itemsize(self) -> int:
        """Bytes of one key."""
        return 4 * _WORDS

    def __repr__(self) -> str:
        return self.name


class KeyArray:
    """An array of typed keys: words u32[*shape, 2] under a type of their own.

    It is a pytree node whose one leaf is the words, so that it goes through every transform. Its
    axes are the leading ones of the words: give `vmap` axes counted from the front.
    """

    __slots__ = ("_data", "_implementation")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, data: Any, implementation: str = _DEFAULT) -> None:
        self._data, self._implementation = data, implementation

    @property
    def shape(self) -> Shape:
        """Length of each axis."""
        return tuple(self._data.shape[:-1])

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of keys."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> KeyType:
        """The type of the keys."""
        return KeyType(self._implementation)

    def _with(self, data: Any) -> KeyArray:
        return KeyArray(data, self._implementation)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len: the keys must have an axis; got a single key.{at_user_line()}")
        return self.shape[0]

    def __iter__(self) -> Iterator[KeyArray]:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, index: Any) -> KeyArray:
        parts = index if isinstance(index, tuple) else (index,)
        rest = () if any(part is Ellipsis for part in parts) else (Ellipsis,)
        return self._with(self._data[(*parts, *rest, slice(None))])

    def reshape(self, *shape: Any) -> KeyArray:
        """The same keys in row-major order under another shape; one size may be -1."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        return self._with(self._data.reshape((*sizes, _WORDS)))

    def ravel(self) -> KeyArray:
        """The keys along one axis."""
        return self.reshape(-1)

    flatten = ravel

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, KeyArray):
            return NotImplemented
        return (self._data == other._data).all(-1)

    def __ne__(self, other: object) -> Any:
        if not isinstance(other, KeyArray):
            return NotImplemented
        return (self._data != other._data).any(-1)

    def __bool__(self) -> bool:
        raise TypeError(f"bool: keys are neither true nor false.{at_user_line()}")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError(
            f"array: keys have no NumPy form; got {self.dtype}{list(self.shape)}.{at_user_line()} "
            f"Use xcube.random.key_data for their words."
        )

    def block_until_ready(self) -> KeyArray:
        """These keys, once their words are computed."""
        self._data.block_until_ready()
        return self

    def __repr__(self) -> str:
        if not isinstance(self._data, DeviceArray):
            return f"KeyArray({self.dtype}[{','.join(map(str, self.shape))}], traced)"
        return f"Array({self.shape}, dtype={self.dtype}) overlaying:\n{self._data}"


def _join(implementation: str, children: Iterable[Any]) -> KeyArray:
    (data,) = children
    return KeyArray(data, implementation)


tree.register_pytree_with_keys(
    KeyArray,
    lambda keys: (((tree.GetAttrKey("data"), keys._data),), keys._implementation),
    _join,
    lambda keys: ((keys._data,), keys._implementation),
)

Key = KeyArray | Array


# making keys ----------------------------------------------------------------------------------


def key(seed: Any, *, impl: str | None = None) -> KeyArray:
    """A typed key from an integer.

    Raises TypeError if the seed is no integer, ShapeError if it is no scalar, ValueError if there
    is no such implementation.

    >>> key(0)
    Array((), dtype=key<fry>) overlaying:
    [0 0]
    """
    return KeyArray(_words("key", seed), _implementation("key", impl))


def PRNGKey(seed: Any, *, impl: str | None = None) -> Array:
    """A legacy key from an integer: its two words, u32[2].

    Raises TypeError if the seed is no integer, ShapeError if it is no scalar, ValueError if there
    is no such implementation.

    >>> PRNGKey(42)
    Array([ 0, 42], dtype=uint32)
    """
    _implementation("PRNGKey", impl)
    return _words("PRNGKey", seed)


def _implementation(name: str, impl: Any) -> str:
    chosen = _DEFAULT if impl is None else getattr(impl, "implementation", impl)
    if chosen not in _IMPLEMENTATIONS:
        raise ValueError(
            f"{name}: impl must be one of {', '.join(map(repr, _IMPLEMENTATIONS))}; got {impl!r}."
            f"{at_user_line()}"
        )
    return chosen


def _words(name: str, seed: Any) -> Array:
    if np.ndim(seed):
        raise ShapeError(
            f"{name}: the seed must be a scalar; got shape {np.shape(seed)}.{at_user_line()} Use "
            f"vmap to make many keys from many seeds, or split to make them from one key."
        )
    if isinstance(seed, Array):
        return _words_of_array(name, seed)
    try:
        number = operator.index(seed)
    except TypeError:
        raise _no_integer(name, seed) from None
    if not -(1 << 63) <= number < 1 << 64:
        raise OverflowError(f"{name}: the seed must have 64 bits; got {number}.{at_user_line()}")
    high = number >> 32 if config.current.enable_x64 else 0
    words = [high & 0xFFFFFFFF, number & 0xFFFFFFFF]
    return to_array.convert(np.array(words, np.uint32))


def _words_of_array(name: str, seed: Array) -> Array:
    if seed.dtype.kind not in "iu":
        raise _no_integer(name, seed.aval)
    return threefry_seed(seed)


def _no_integer(name: str, got: Any) -> TypeError:
    return TypeError(f"{name}: the seed must be an integer; got {got}.{at_user_line()}")


# taking keys apart ----------------------------------------------------------------------------


def single_key(name: str, key: Any) -> Array:
    """The two words of one key, typed or legacy: what every sampler starts from.

    Raises ShapeError for an array of keys, TypeError for anything else.
    """
    data = key_words(name, key)
    if data.ndim != 1:
        raise ShapeError(
            f"{name}: takes a single key; got keys of shape {data.shape[:-1]}.{at_user_line()} Use "
            f"vmap for many keys."
        )
    return data


def key_words(name: str, keys: Any) -> Array:
    """The words of typed or legacy keys. Raises TypeError for anything else."""
    if isinstance(keys, KeyArray):
        return keys._data
    if isinstance(keys, np.ndarray):
        keys = to_array.convert(keys)
    if not isinstance(keys, Array):
        raise TypeError(
            f"{name}: must be given a key; got {type(keys).__name__}.{at_user_line()} Make one "
            f"with xcube.random.key(seed)."
        )
    if keys.dtype != np.uint32 or keys.shape[-1:] != (_WORDS,):
        raise DtypeError(
            f"{name}: a key must be u32[2]; got {keys.aval}.{at_user_line()} Make one with "
            f"xcube.random.key(seed)."
        )
    return keys


def _like(given: Any, data: Any) -> Any:
    return given._with(data) if isinstance(given, KeyArray) else data


def split(key: Any, num: int | Sequence[int] = 2) -> Any:
    """New keys from one, which must not be used again: `num` of them, or a shape full.

    Raises ShapeError if there is more than one key, TypeError if there is none.

    >>> split(PRNGKey(0))
    Array([[1797259609, 2579123966],
           [ 928981903, 3453687069]], dtype=uint32)
    """
    shape = tuple(num) if isinstance(num, Sequence) else (operator.index(num),)
    return _like(key, _split(single_key("split", key), shape))


_split = jit(threefry_split, static_argnums=1)


def fold_in(key: Any, data: Any) -> Any:
    """A new key from a key and an integer, such as the number of a step.

    Raises ShapeError if the integer is no scalar, TypeError if it is none.

    >>> fold_in(PRNGKey(0), 1)
    Array([ 928981903, 3453687069], dtype=uint32)
    """
    if np.ndim(data):
        raise ShapeError(
            f"fold_in: the data must be a scalar; got shape {np.shape(data)}.{at_user_line()}"
        )
    words = single_key("fold_in", key)
    if isinstance(data, Array):
        if data.dtype.kind not in "iu":
            raise TypeError(f"fold_in: the data must be an integer; got {data}.{at_user_line()}")
        return _like(key, _fold_in(words, lax.convert_element_type(data, np.uint32)))
    return _like(key, _fold_in(words, np.uint32(operator.index(data))))


_fold_in = jit(threefry_fold_in)


def key_data(keys: Any) -> Array:
    """The words of keys: u32[*shape, 2].

    >>> key_data(key(7))
    Array([0, 7], dtype=uint32)
    """
    return key_words("key_data", keys)


def wrap_key_data(key_bits_array: Any, *, impl: str | None = None) -> KeyArray:
    """Typed keys from their words, u32[*shape, 2].

    >>> wrap_key_data(PRNGKey(7)) == key(7)
    Array(True, dtype=bool)
    """
    words = key_words("wrap_key_data", jnp.asarray(key_bits_array))
    return KeyArray(words, _implementation("wrap_key_data", impl))


def key_impl(keys: Any) -> str:
    """The name of the generator that keys are for.

    >>> key_impl(key(0))
    'threefry2x32'
    """
    key_words("key_impl", keys)
    return keys._implementation if isinstance(keys, KeyArray) else _DEFAULT


def key_dtype(impl: str | None = None) -> KeyType:
    """The dtype of typed keys of a generator.

    >>> key_dtype()
    key<fry>
    """
    return KeyType(_implementation("key_dtype", impl))


def clone(key: Any) -> Any:
    """The same key, stated to be meant for use a second time."""
    return _like(key, key_words("clone", key))
