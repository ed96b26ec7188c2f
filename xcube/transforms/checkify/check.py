"""Errors as a value, `Error`, and as an effect: check, debug_check, check_error. Outside of
programs these raise at once; within one they are equations, which `checkify` must turn into a value
before the program is compiled."""

from __future__ import annotations

import itertools
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube import dtypes, tree
from xcube.array import Array
from xcube.ir import Axis, Primitive, at_user_line, user_source
from xcube.primitives.bits import bitwise_not
from xcube.primitives.callback import HostOnly
from xcube.primitives.convert import convert_element_type
from xcube.primitives.index import dynamic_index_in_dim
from xcube.primitives.reduce import argmax
from xcube.primitives.select import ne
from xcube.primitives.shape import reshape
from xcube.trace import EVAL, Tracer, aval_of, bind, owner
from xcube.transforms.arguments import to_array
from xcube.transforms.checkify.errors import (
    BatchedError,
    CheckError,
    FailedCheckError,
    JaxRuntimeError,
    Site,
)
from xcube.transforms.vmap import to_batch

# the value ------------------------------------------------------------------------------------


@tree.register_pytree_node_class
@dataclass(frozen=True, repr=False)
class Error:
    """The first error of a run, or none: a pytree, which transforms and control flow carry along.

    `code`: i32[*batch], 0 for none, else the position of the site, counted from 1. `payloads`: the
    arrays for the message of each site.
    """

    code: Any
    payloads: tuple[tuple[Any, ...], ...] = ()
    sites: tuple[Site, ...] = ()

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.code, self.payloads), self.sites

    @classmethod
    def tree_unflatten(cls, sites: Any, children: Any) -> Error:
        code, payloads = children
        return cls(code, payloads, sites)

    def get(self) -> str | None:
        """The message of the error; None if there is none. Raises ConcretizationTypeError while
        tracing, where it is not known."""
        error = self.get_exception()
        return None if error is None else str(error)

    def get_exception(self) -> CheckError | None:
        """The error as an exception, for a batch a `BatchedError`; None if there is none."""
        codes = np.asarray(self.code)
        if not codes.ndim:
            return self._example((), int(codes)) if codes else None
        failed = [tuple(map(int, index)) for index in np.argwhere(codes)]
        errors = {index: self._example(index, int(codes[index])) for index in failed}
        return BatchedError(errors) if errors else None

    def throw(self) -> None:
        """Raise JaxRuntimeError if there is an error; the same as `check_error`."""
        check_error(self)

    def _example(self, index: tuple[int, ...], code: int) -> CheckError:
        payload = [np.asarray(leaf)[index] for leaf in self.payloads[code - 1]]
        return self.sites[code - 1].error(payload)

    def __repr__(self) -> str:
        return f"Error({self.code if isinstance(self.code, Tracer) else self.get()})"


init_error = Error(np.int32(0))


def taken_apart(
    values: Sequence[Any], sites: Sequence[Site]
) -> tuple[Any, tuple[tuple[Any, ...], ...], list[Any]]:
    """Code and payloads from a flat list that begins with them, and its rest."""
    code, *rest = values
    payloads = []
    for site in sites:
        payloads.append(tuple(rest[: site.count]))
        rest = rest[site.count :]
    return code, tuple(payloads), rest


# the primitive --------------------------------------------------------------------------------


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    return bind(check_p, *primals, **params), []


def _batch(
    axis: Axis, args: Sequence[Any], batched: Sequence[bool], **params: Any
) -> tuple[list[Any], list[bool]]:
    """The first example that failed speaks for all."""
    if axis.size:
        whole = [
            to_batch(x, axis.size) if not flag else x for x, flag in zip(args, batched, strict=True)
        ]
        bind(check_p, *_first_failed(whole, 1), **params)
    return [], []


def _first_failed(values: Sequence[Any], ndim: int) -> list[Any]:
    """Of a code and payloads with so many leading batch axes, those of the first that failed."""
    size = values[0].size
    flat = [reshape(x, (size, *x.shape[ndim:])) for x in values]
    first = argmax(ne(flat[0], 0), (0,))
    return [dynamic_index_in_dim(x, first, keepdims=False) for x in flat]


def _refuse(*args: Any, sites: tuple[Site, ...], **params: Any) -> list[Any]:
    """What stands for a check in a program: nothing for a debug_check."""
    if (first := next((site for site in sites if not site.debug), None)) is None:
        return []
    written = f" Written at {first.source}." if first.source else ""
    raise ValueError(
        f"check: a program cannot raise, so a check in a jitted function must be functionalized "
        f"by checkify; got one that is not.{at_user_line()}{written} Wrap the outermost function: "
        f"err, out = jit(checkify(f))(x), then err.throw()."
    )


check_p = Primitive(
    "check",
    abstract=lambda *avals, **params: (),
    jvp=_jvp,
    transpose=lambda cts, *args, **params: [None] * len(args),
    batch=_batch,
    lower=HostOnly(_refuse),
    multiple=True,
    effects=("check",),
)


@dataclass(frozen=True)
class _Raise:
    """Raises the error that flat values hold, unless it is one of a debug_check."""

    sites: tuple[Site, ...]

    def __call__(self, operands: Sequence[np.ndarray]) -> tuple[()]:
        code, payloads, _ = taken_apart(operands, self.sites)
        silent = [number for number, site in enumerate(self.sites, 1) if site.debug]
        _throw(Error(np.where(np.isin(code, silent), 0, code), payloads, self.sites))
        return ()

    def __str__(self) -> str:
        return "raise"


def _throw(error: Error) -> None:
    if (exception := error.get_exception()) is not None:
        raise JaxRuntimeError(str(exception)) from exception


# the functions --------------------------------------------------------------------------------


def check(pred: Any, msg: str, *fmt_args: Any, debug: bool = False, **fmt_kwargs: Any) -> None:
    """Check a predicate, bool[]; where it is false, there is an error with the message
    `msg.format(*fmt_args, **fmt_kwargs)`, of which the arguments are pytrees of arrays.

    Outside of jit it raises JaxRuntimeError. In a function under jit it must be functionalized:
    `jit(checkify(f))` gives the error back. Under vmap it is an error of any example. Raises
    TypeError if pred is no boolean scalar or an argument no array, ValueError from jit without
    checkify.

    >>> import xcube.numpy as jnp
    >>> x = jnp.float32(2)
    >>> check(x > 0, "x must be positive, is {}", x)
    """
    name = "debug_check" if debug else "check"
    aval = aval_of(pred) if isinstance(pred, Array | bool | np.bool_) else None
    if aval is None or aval.shape or not dtypes.is_bool(aval.dtype):
        raise TypeError(
            f"{name}: takes a boolean scalar, bool[], as predicate; got "
            f"{aval or type(pred).__name__}.{at_user_line()} Reduce it with all or any."
        )
    leaves, treedef = tree.flatten((fmt_args, fmt_kwargs))
    for leaf in leaves:
        if not isinstance(leaf, Array | np.ndarray | np.generic):
            raise TypeError(
                f"{name}: formatting arguments must be pytrees of arrays; got {leaf!r} of type "
                f"{type(leaf).__name__}.{at_user_line()} Write it into the message."
            )
    _Fields().format(msg, *fmt_args, **fmt_kwargs)
    site = Site(FailedCheckError, msg + " (`check` failed).", treedef, user_source(), debug)
    payload = tuple([to_array.convert(leaf) for leaf in leaves])
    check_error(Error(_code(pred), (payload,), (site,)))


class _Fields(string.Formatter):
    """Reads a format: raises IndexError or KeyError for a field without an argument."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return ""


def _code(pred: Any) -> Any:
    if isinstance(pred, Array):
        return convert_element_type(bitwise_not(pred), np.int32)
    return np.int32(not pred)


def debug_check(pred: Any, msg: str, *fmt_args: Any, **fmt_kwargs: Any) -> None:
    """A `check` that counts under `checkify` only, and is nothing elsewhere.

    >>> debug_check(False, "never seen outside of checkify")
    """
    check(pred, msg, *fmt_args, debug=True, **fmt_kwargs)


def check_error(error: Error) -> None:
    """Turn an error that `checkify` gave back into an effect again: outside of jit it raises
    JaxRuntimeError if there is one; under another `checkify` it joins that one's errors.

    Raises TypeError unless it is given an Error.

    >>> from xcube.experimental.checkify import init_error
    >>> check_error(init_error)
    """
    if not isinstance(error, Error):
        raise TypeError(
            f"check_error: takes an Error, as checkify gives it; got {type(error).__name__}."
            f"{at_user_line()}"
        )
    values, aval = [error.code, *itertools.chain(*error.payloads)], aval_of(error.code)
    if owner(values) is EVAL:
        _Raise(error.sites)([np.asarray(value) for value in values])
        return
    if aval.ndim:
        values = _first_failed(values, aval.ndim) if aval.size else []
    if values:
        bind_check(values, error.sites)


def bind_check(values: Sequence[Any], sites: tuple[Site, ...]) -> None:
    """An effect from code and payloads."""
    bind(check_p, *values, sites=sites, function=_Raise(sites), results=())
