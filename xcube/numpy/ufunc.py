"""Universal functions: binary functions that broadcast, with `reduce`, `accumulate`, `outer`, `at`
and `reduceat`. The call with equal avals goes straight to the primitive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array, DeviceArray
from xcube.ir import at_user_line
from xcube.numpy import operands
from xcube.numpy.fused import number, run
from xcube.primitives.select import select
from xcube.primitives.shape import reshape
from xcube.primitives.view import concatenate, slice_in_dim
from xcube.trace import EVAL, bind, current_trace

Binary = Callable[[Any, Any], Any]

# Dtypes that a Python number of a type takes over when it meets an array of them.
_INEXACT = frozenset((*dtypes.FLOATS, *dtypes.COMPLEXES))
_ABSORBING: dict[type, frozenset[Any]] = {
    int: _INEXACT | frozenset(dtypes.INTEGERS),
    float: _INEXACT,
}


class Ufunc:
    """A binary function that broadcasts; called with two arrays or numbers.

    `direct`: dtypes on which `function` needs no promotion when both avals are equal.
    """

    nin = 2
    nout = 1
    nargs = 3

    def __init__(
        self,
        name: str,
        general: Binary,
        primitive: Any = None,
        direct: frozenset[Any] = frozenset(),
        identity: Any = None,
        reduction: Callable[..., Any] | None = None,
        accumulation: Callable[..., Any] | None = None,
        scatter: str = "",
        associative: bool = False,
    ) -> None:
        self.__name__ = self.__qualname__ = name
        self.__doc__ = general.__doc__
        self.__module__ = "xcube.numpy"
        self.identity = identity
        self._general, self._primitive, self._direct = general, primitive, direct
        self._reduction, self._accumulation, self._scatter = reduction, accumulation, scatter
        self._associative = associative

    def __call__(self, x: Any, y: Any, /) -> Any:
        """The function of two arrays or numbers, element by element."""
        if isinstance(x, Array):
            aval = x.aval
            if isinstance(y, Array):
                if aval is y.aval and aval.dtype in self._direct:
                    return bind(self._primitive, x, y)
                if type(x) is DeviceArray and type(y) is DeviceArray:
                    return self._together(x, y)
            elif aval.dtype in self._direct and aval.dtype in _ABSORBING.get(type(y), ()):
                dtypes.scalar_dtype(y)
                return bind(self._primitive, x, number(y, aval.dtype))
        elif isinstance(y, Array):
            aval = y.aval
            if aval.dtype in self._direct and aval.dtype in _ABSORBING.get(type(x), ()):
                dtypes.scalar_dtype(x)
                return bind(self._primitive, number(x, aval.dtype), y)
        return self._general(x, y)

    def _together(self, x: DeviceArray, y: DeviceArray) -> Any:
        """Promotion, broadcasting and operation of concrete arrays as one program."""
        if current_trace() is not EVAL:
            return self._general(x, y)
        return run(self.__name__, self._general, (x, y))

    def __repr__(self) -> str:
        return f"<xcube.numpy.ufunc '{self.__name__}'>"

    def __reduce__(self) -> str:
        return self.__name__

    def reduce(
        self,
        a: Any,
        axis: Any = 0,
        dtype: Any = None,
        out: None = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
    ) -> Any:
        """The function applied along an axis from left to right: d[*s] -> d[s without axis].

        Raises ValueError if the axis is empty and the function has no identity.

        >>> import xcube.numpy as jnp
        >>> jnp.add.reduce(jnp.arange(4))
        Array(6, dtype=int32)
        """
        name = f"{self.__name__}.reduce"
        x = operands.array_operand(name, a)
        x = x if dtype is None else operands.cast(x, operands.requested(name, dtype))
        axes = operands.canonical_axes(name, axis, x.aval)
        if self._reduction is not None:
            options = {} if initial is None else {"initial": initial}
            options |= {} if where is None else {"where": where}
            return self._reduction(x, axis=axes, keepdims=keepdims, **options)
        return self._fold(x, axes, keepdims, initial, where)

    def _fold(
        self, x: Array, axes: tuple[int, ...], keepdims: bool, initial: Any, where: Any
    ) -> Any:
        if where is not None:
            x = _replace_where(x, where, self._neutral(initial))
        for axis in reversed(axes):
            x = (self._halve if self._associative else self._in_order)(x, axis, initial)
        kept = tuple(1 if k in axes else n for k, n in enumerate(_with_ones(x.shape, axes)))
        result = reshape(x, kept) if keepdims else x
        return result if initial is None else self(initial, result)

    def _neutral(self, initial: Any) -> Any:
        value = self.identity if initial is None else initial
        if value is None:
            raise ValueError(
                f"{self.__name__}.reduce: initial must be given, for the function has no identity."
                f"{at_user_line()}"
            )
        return value

    def _in_order(self, x: Array, axis: int, initial: Any) -> Array:
        parts = _slices(x, axis)
        if not parts:
            return self._halve(x, axis, initial)
        result = parts[0]
        for part in parts[1:]:
            result = self(result, part)
        return reshape(result, tuple(n for k, n in enumerate(x.shape) if k != axis))

    def _halve(self, x: Array, axis: int, initial: Any) -> Array:
        size = x.shape[axis]
        if size == 0:
            rest = tuple(n for k, n in enumerate(x.shape) if k != axis)
            neutral = operands.scalar(self._neutral(initial), x.dtype)
            return operands.stretch(operands.as_array(neutral), rest)
        while size > 1:
            even = slice_in_dim(x, 0, size - size % 2, 2, axis)
            odd = slice_in_dim(x, 1, size - size % 2, 2, axis)
            joined = self(even, odd)
            if size % 2:
                rest = slice_in_dim(x, size - 1, size, 1, axis)
                joined = concatenate([joined, operands.cast(rest, joined.dtype)], axis)
            x, size = joined, joined.shape[axis]
        return reshape(x, tuple(n for k, n in enumerate(x.shape) if k != axis))

    def accumulate(self, a: Any, axis: int = 0, dtype: Any = None, out: None = None) -> Any:
        """The results of applying the function to ever more elements of an axis: d[*s] -> d[*s].

        >>> import xcube.numpy as jnp
        >>> jnp.multiply.accumulate(jnp.array([1, 2, 3]))
        Array([1, 2, 6], dtype=int32)
        """
        name = f"{self.__name__}.accumulate"
        x = operands.array_operand(name, a)
        x = x if dtype is None else operands.cast(x, operands.requested(name, dtype))
        k = operands.canonical_axis(name, axis, x.ndim, x.aval)
        if self._accumulation is not None:
            return self._accumulation(x, axis=k)
        if x.shape[k] > 1:
            first = slice_in_dim(x, 0, 1, 1, k)
            x = operands.cast(x, self(first, first).dtype)
        if not self._associative:
            parts = _slices(x, k)
            for number_ in range(1, len(parts)):
                parts[number_] = self(parts[number_ - 1], parts[number_])
            return concatenate([operands.cast(part, x.dtype) for part in parts], k) if parts else x
        step = 1
        while step < x.shape[k]:  # doubling: after each pass, spans of twice the length are done
            head = slice_in_dim(x, 0, step, 1, k)
            before = slice_in_dim(x, 0, x.shape[k] - step, 1, k)
            after = slice_in_dim(x, step, x.shape[k], 1, k)
            x = concatenate([head, operands.cast(self(before, after), x.dtype)], k)
            step *= 2
        return x

    def outer(self, A: Any, B: Any, /) -> Any:
        """The function of every pair: d[*s], d[*t] -> d[*s, *t].

        >>> import xcube.numpy as jnp
        >>> jnp.add.outer(jnp.arange(2), jnp.arange(2))
        Array([[0, 1],
               [1, 2]], dtype=int32)
        """
        a, b = operands.array_operands(f"{self.__name__}.outer", (A, B))
        return self(reshape(a, a.shape + (1,) * b.ndim), b)

    def at(self, a: Any, indices: Any, b: Any = None, /, *, inplace: bool = True) -> Any:
        """A new array with the function applied to the elements at `indices` and to `b`.

        Raises ValueError unless `inplace=False` states that `a` itself does not change.

        >>> import xcube.numpy as jnp
        >>> jnp.add.at(jnp.zeros(2), 0, 5.0, inplace=False)
        Array([5., 0.], dtype=float32)
        """
        if inplace:
            raise ValueError(
                f"{self.__name__}.at: arrays are immutable, so inplace must be False; got True."
                f"{at_user_line()} Use the array that it returns."
            )
        target = operands.array_operand(f"{self.__name__}.at", a).at[indices]  # type: ignore[attr-defined]
        if self._scatter:
            return getattr(target, self._scatter)(b)
        return target.set(self(target.get(), b))

    def reduceat(self, a: Any, indices: Any, axis: int = 0, dtype: Any = None) -> Any:
        """Reductions of the spans that begin at `indices`, which must be known while tracing.

        >>> import xcube.numpy as jnp
        >>> jnp.add.reduceat(jnp.arange(6), [0, 4])
        Array([6, 9], dtype=int32)
        """
        name = f"{self.__name__}.reduceat"
        x = operands.array_operand(name, a)
        k = operands.canonical_axis(name, axis, x.ndim, x.aval)
        starts = [int(i) for i in np.asarray(operands.concrete(name, indices, "indices"))]
        ends = [*starts[1:], x.shape[k]]
        parts = [
            self.reduce(slice_in_dim(x, low, max(high, low + 1), 1, k), k, dtype, keepdims=True)
            for low, high in zip(starts, ends, strict=True)
        ]
        return concatenate(parts, k)


def _slices(x: Array, axis: int) -> list[Array]:
    return [slice_in_dim(x, k, k + 1, 1, axis) for k in range(x.shape[axis])]


def _with_ones(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    sizes = iter(shape)
    return tuple(1 if k in axes else next(sizes) for k in range(len(shape) + len(axes)))


def _replace_where(x: Array, where: Any, value: Any) -> Array:
    mask = operands.cast(operands.array_operand("where", where), dtypes.BOOL)
    mask, x = operands.broadcast("where", [mask, x])
    return select(mask, x, operands.scalar(value, x.dtype))
