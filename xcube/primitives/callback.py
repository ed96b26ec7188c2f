"""Calls of Python functions out of programs: pure ones, ones with effects on the world, and ones
for debugging, which see values and give none. All hold a function of NumPy arrays as a parameter.
Mapped one by one over a batch, an equation becomes one whose function walks the examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from xcube import dtypes
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Axis, Primitive, Source, at_user_line
from xcube.primitives.lowered import Expand, HostCall
from xcube.primitives.shape import batch_front, full
from xcube.trace import aval_of, bind

Operands = Sequence[np.ndarray]

# what is called -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HostFunction:
    """A function of NumPy arrays whose results are checked: they must be `results`.

    `paths`: where each result stands in what the user's function returns, for messages; `source`:
    where the user wrote the call.
    """

    name: str
    function: Callable[[Operands], Sequence[Any]]
    results: tuple[Aval, ...] = ()
    paths: tuple[str, ...] = ()
    source: Source | None = None

    def __call__(self, operands: Operands) -> list[np.ndarray]:
        values = self.function(operands)
        if (count := len(self.results)) != len(values):
            self._refuse(ShapeError, f"give as many arrays as declared, {count}", f"{len(values)}")
        return [self._checked(number, np.asarray(value)) for number, value in enumerate(values)]

    def _checked(self, number: int, value: np.ndarray) -> np.ndarray:
        """A result in its declared dtype, which may be narrower than NumPy's default one."""
        want, path = self.results[number], self.paths[number]
        got = _printed(value)
        if value.shape != want.shape:
            self._refuse(ShapeError, f"give {want} as declared", f"{got}", path)
        if want.dtype not in (value.dtype, dtypes.canonicalize_dtype(value.dtype)):
            self._refuse(DtypeError, f"give {want} as declared", f"{got}", path)
        return value.astype(want.dtype, copy=False)

    def _refuse(self, error: type[Exception], what: str, got: str, path: str = "") -> NoReturn:
        where = f" At {self.source}." if self.source else ""
        raise error(
            f"{self.name}: the callback must {what}{f' at {path}' if path else ''}; got {got}."
            f"{where} Return that, or change the declaration."
        )

    def __str__(self) -> str:
        return getattr(self.function, "__name__", str(self.function))


def _printed(value: np.ndarray) -> str:
    known = value.dtype in dtypes.SHORT
    return str(Aval(value.shape, value.dtype)) if known else f"{value.dtype}{list(value.shape)}"


@dataclass(frozen=True, eq=False)
class Mapped:
    """A function called once for each example of a batch, in order. Operands that are not batched
    are the same for all examples."""

    function: Callable[[Operands], Sequence[np.ndarray]]
    size: int
    batched: tuple[bool, ...]
    results: tuple[Aval, ...]

    def __call__(self, operands: Operands) -> list[np.ndarray]:
        outs = [np.empty(aval.shape, aval.dtype) for aval in self.results]
        pairs = list(zip(operands, self.batched, strict=True))
        for k in range(self.size):
            row = self.function([x[k, ...] if flag else x for x, flag in pairs])
            for out, value in zip(outs, row, strict=True):
                out[k] = value
        return outs

    def __str__(self) -> str:
        return f"{self.size} x {self.function}"


@dataclass(frozen=True, eq=False)
class HostOnly(Expand):
    """Python runs `params["function"]`, as in a HostCall, but outside programs only; within one,
    the Expand's function says what stands in its place, or refuses."""


# rules ----------------------------------------------------------------------------------------


def _abstract(*avals: Aval, results: tuple[Aval, ...], **params: Any) -> tuple[Aval, ...]:
    return results


def _batched_avals(axis: Axis, avals: Sequence[Aval]) -> tuple[Aval, ...]:
    return tuple([aval.update(shape=(axis.size, *aval.shape)) for aval in avals])


def _one_by_one(
    primitive: Primitive, axis: Axis, args: Sequence[Any], batched: Sequence[bool], **params: Any
) -> tuple[list[Any], list[bool]]:
    """One call for each example."""
    results = _batched_avals(axis, params.pop("results"))
    mapped = Mapped(params.pop("function"), axis.size, tuple(batched), results)
    outs = bind(primitive, *args, function=mapped, results=results, **params)
    return outs, [True] * len(outs)


def _no_derivative(name: str) -> Callable[..., NoReturn]:
    def rule(*args: Any, **params: Any) -> NoReturn:
        raise ValueError(
            f"{name}: a callback has no derivative (callbacks do not support JVP); its operands "
            f"depend on what is differentiated.{at_user_line()} Give it one with custom_jvp or "
            f"custom_vjp, or wrap the operands in stop_gradient."
        )

    return rule


# pure -----------------------------------------------------------------------------------------

ONE_BY_ONE = ("sequential", "sequential_unrolled")
VMAP_METHODS = (*ONE_BY_ONE, "expand_dims", "broadcast_all", "legacy_vectorized", None)


def _pure_batch(
    axis: Axis,
    args: Sequence[Any],
    batched: Sequence[bool],
    *,
    function: Any,
    results: tuple[Aval, ...],
    vmap_method: str | None,
) -> tuple[list[Any], list[bool]]:
    params = {"vmap_method": vmap_method}
    if vmap_method is None:
        raise NotImplementedError(
            f"vmap: a pure_callback must say by vmap_method what becomes of it, one of "
            f"{', '.join(map(repr, VMAP_METHODS[:-1]))}; got None.{at_user_line()}"
        )
    if vmap_method in ONE_BY_ONE:
        params |= {"function": function, "results": results}
        return _one_by_one(pure_callback_p, axis, args, batched, **params)
    if vmap_method != "legacy_vectorized":
        size = axis.size if vmap_method == "broadcast_all" else 1
        args = [x if flag else _repeated(x, size) for x, flag in zip(args, batched, strict=True)]
    whole = _batched_avals(axis, results)
    outs = bind(
        pure_callback_p, *args, function=replace(function, results=whole), results=whole, **params
    )
    return outs, [True] * len(outs)


def _repeated(x: Any, size: int) -> Any:
    return batch_front(x, size) if aval_of(x).shape else full((size,), x)


pure_callback_p = Primitive(
    "pure_callback",
    abstract=_abstract,
    jvp=_no_derivative("pure_callback"),
    batch=_pure_batch,
    lower=HostCall(),
    multiple=True,
)

# with effects ---------------------------------------------------------------------------------


def _io_batch(
    axis: Axis, args: Sequence[Any], batched: Sequence[bool], *, ordered: bool, **params: Any
) -> tuple[list[Any], list[bool]]:
    if ordered:
        raise ValueError(
            f"vmap: an ordered io_callback cannot be mapped (cannot `vmap` ordered IO callback), "
            f"for examples of a batch have no order.{at_user_line()} Use ordered=False or lax.map."
        )
    return _one_by_one(io_callback_p, axis, args, batched, ordered=ordered, **params)


io_callback_p = Primitive(
    "io_callback",
    abstract=_abstract,
    jvp=_no_derivative("io_callback"),
    batch=_io_batch,
    lower=HostCall(),
    multiple=True,
    effects=("io",),
)


def _debug_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    return bind(debug_callback_p, *primals, **params), []


debug_callback_p = Primitive(
    "debug_callback",
    abstract=_abstract,
    jvp=_debug_jvp,
    transpose=lambda cts, *args, **params: [None] * len(args),
    batch=lambda axis, args, batched, **params: _one_by_one(
        debug_callback_p, axis, args, batched, **params
    ),
    lower=HostCall(),
    multiple=True,
    effects=("debug",),
)
