"""Operators and methods of arrays, concrete and traced: one table of NumPy functions, installed on
`Array` when this module is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import xcube.numpy
from xcube import eager
from xcube.array import Array, DeviceArray
from xcube.errors import DtypeError
from xcube.ir import Aval, at_user_line
from xcube.numpy import (
    choice,
    contraction,
    elementwise,
    extending,
    indexing,
    reductions,
    searching,
    shaping,
    sorting,
    taking,
    updating,
)
from xcube.numpy.operands import cast, requested
from xcube.primitives.convert import bitcast_convert_type
from xcube.primitives.convert import copy as copy_primitive

_OPERANDS = (Array, int, float, complex, np.ndarray, np.generic)


def _is_operand(value: Any) -> bool:
    return isinstance(value, _OPERANDS) or hasattr(value, "__jax_array__")


def _forward(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def operator(self: Array, other: Any) -> Any:
        if isinstance(other, Array) or _is_operand(other):
            return function(self, other)
        return NotImplemented

    return operator


def _reflected(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def operator(self: Array, other: Any) -> Any:
        if _is_operand(other):
            return function(other, self)
        return NotImplemented

    return operator


# --- The table -----------------------------------------------------------------------------------

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": elementwise.add,
    "sub": elementwise.subtract,
    "mul": elementwise.multiply,
    "truediv": elementwise.divide,
    "floordiv": elementwise.floor_divide,
    "mod": elementwise.remainder,
    "divmod": elementwise.divmod,
    "pow": elementwise.power,
    "matmul": contraction.matmul,
    "and": elementwise.bitwise_and,
    "or": elementwise.bitwise_or,
    "xor": elementwise.bitwise_xor,
    "lshift": elementwise.left_shift,
    "rshift": elementwise.right_shift,
}
_COMPARISON: dict[str, Callable[[Any, Any], Any]] = {
    "eq": elementwise.equal,
    "ne": elementwise.not_equal,
    "lt": elementwise.less,
    "le": elementwise.less_equal,
    "gt": elementwise.greater,
    "ge": elementwise.greater_equal,
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": elementwise.negative,
    "pos": elementwise.positive,
    "abs": elementwise.absolute,
    "invert": elementwise.invert,
}
_METHODS: dict[str, Callable[..., Any]] = {
    "all": reductions.all,
    "any": reductions.any,
    "argmax": reductions.argmax,
    "argmin": reductions.argmin,
    "argpartition": sorting.argpartition,
    "argsort": sorting.argsort,
    "choose": choice.choose,
    "clip": elementwise.clip,
    "conj": elementwise.conjugate,
    "conjugate": elementwise.conjugate,
    "cumprod": reductions.cumprod,
    "cumsum": reductions.cumsum,
    "diagonal": taking.diagonal,
    "dot": contraction.dot,
    "max": reductions.max,
    "mean": reductions.mean,
    "min": reductions.min,
    "nonzero": searching.nonzero,
    "prod": reductions.prod,
    "ptp": reductions.ptp,
    "ravel": shaping.ravel,
    "repeat": extending.repeat,
    "round": elementwise.round,
    "searchsorted": sorting.searchsorted,
    "sort": sorting.sort,
    "squeeze": shaping.squeeze,
    "std": reductions.std,
    "sum": reductions.sum,
    "swapaxes": shaping.swapaxes,
    "take": taking.take,
    "trace": taking.trace,
    "var": reductions.var,
}
_PROPERTIES: dict[str, Callable[[Any], Any]] = {
    "T": shaping.transpose,
    "mT": shaping.matrix_transpose,
    "real": elementwise.real,
    "imag": elementwise.imag,
    "at": updating.At,
}


# --- Methods with a form of their own ------------------------------------------------------------


def _astype(self: Array, dtype: Any, copy: bool = False, device: Any = None) -> Array:
    """The elements in another dtype: floats are truncated toward zero to integers."""
    return cast(self, requested("astype", float if dtype is None else dtype))


def _reshape(self: Array, *shape: Any, order: str = "C", copy: bool | None = None) -> Array:
    """The same elements under another shape, given as one tuple or as several sizes."""
    given = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    return shaping.reshape(self, given, order)


def _transpose(self: Array, *axes: Any) -> Array:
    """Axes permuted, reversed by default; given as one tuple or as several numbers."""
    given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
    return shaping.transpose(self, given if axes and given is not None else None)


def _flatten(self: Array, order: str = "C") -> Array:
    """All elements along one axis."""
    return shaping.ravel(self, order)


def _compress(self: Array, condition: Any, axis: int | None = None, **options: Any) -> Array:
    """The slices along an axis for which a condition holds."""
    return searching.compress(condition, self, axis, **options)


def _copy(self: Array) -> Array:
    """The array in a buffer of its own."""
    return copy_primitive(self)


def _view(self: Array, dtype: Any = None) -> Array:
    """The bits read as another dtype; the last axis changes with the width.

    Raises DtypeError if the last axis does not hold whole elements.
    """
    if dtype is None:
        return self
    wanted = requested("view", dtype)
    old, new = self.dtype.itemsize, wanted.itemsize
    if wanted == self.dtype:
        return self
    if old == new:
        return bitcast_convert_type(self, wanted)
    length = self.shape[-1] if self.ndim else 0
    if self.ndim == 0 or (length * old) % new:
        raise DtypeError(
            f"view: the last axis must hold whole elements of {wanted}; got {self.aval}."
            f"{at_user_line()}"
        )
    if old > new:
        return shaping.reshape(bitcast_convert_type(self, wanted), (*self.shape[:-1], -1))
    parts = shaping.reshape(self, (*self.shape[:-1], length * old // new, new // old))
    return bitcast_convert_type(parts, wanted)


def _round(self: Array, ndigits: int | None = None) -> Any:
    return elementwise.round(self, ndigits or 0)


def _to_device(self: Array, device: Any, *, stream: Any = None) -> Array:
    """The array on a device."""
    if not isinstance(self, DeviceArray) or device is self.device:
        return self
    return DeviceArray(self.aval, device.from_host(self.__array__()), device)


def _array_namespace(self: Array, *, api_version: str | None = None) -> Any:
    """The module whose functions take this array."""
    return xcube.numpy


def _restored(host: np.ndarray, weak_type: bool) -> DeviceArray:
    """The array that was pickled."""
    return eager.from_host(host, Aval(host.shape, host.dtype, weak_type))


def _reduce(self: DeviceArray) -> tuple[Any, ...]:
    return _restored, (self.__array__(), self.aval.weak_type)


_OWN: dict[str, Callable[..., Any]] = {
    "astype": _astype,
    "reshape": _reshape,
    "transpose": _transpose,
    "flatten": _flatten,
    "compress": _compress,
    "copy": _copy,
    "clone": _copy,
    "view": _view,
    "to_device": _to_device,
    "__copy__": _copy,
    "__round__": _round,
    "__getitem__": indexing.getitem,
    "__array_namespace__": _array_namespace,
}


# --- Installation --------------------------------------------------------------------------------


def _method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Array, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    method.__name__, method.__qualname__ = name, f"Array.{name}"
    method.__doc__ = function.__doc__
    return method


def install(array_type: type = Array) -> None:
    """Give an array type its operators and methods."""
    for name, function in _BINARY.items():
        setattr(array_type, f"__{name}__", _forward(function))
        setattr(array_type, f"__r{name}__", _reflected(function))
    for name, function in _COMPARISON.items():
        setattr(array_type, f"__{name}__", _forward(function))
    for name, function in _UNARY.items():
        setattr(array_type, f"__{name}__", _method(f"__{name}__", function))
    for name, function in _METHODS.items():
        setattr(array_type, name, _method(name, function))
    for name, function in _PROPERTIES.items():
        setattr(array_type, name, property(function))
    for name, function in _OWN.items():
        setattr(array_type, name, function)


install()
DeviceArray.__reduce__ = _reduce  # type: ignore[method-assign]
