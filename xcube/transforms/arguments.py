"""The door of every transform: calls are flattened to lists of array leaves and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube import dtypes, tree
from xcube.array import Array
from xcube.errors import TraceError
from xcube.ir import Aval, Jaxpr, at_user_line
from xcube.trace import StagingTrace, literal, set_current

Convert = Callable[[Any], Array]


@dataclass(frozen=True)
class FlatCall:
    """A function with its arguments flattened."""

    fun: Callable[..., Any]
    leaves: list[Any]
    treedef: Any

    def describe(self, number: int) -> str:
        """Where a leaf stands in the call, e.g. "argument 0 at ['w']"."""
        dummy = tree.unflatten(self.treedef, list(range(len(self.leaves))))
        for path, leaf in tree.leaves_with_path(dummy):
            if leaf == number:
                which, at, *rest = path
                kind = "argument" if tree.keystr((which,)) == "[0]" else "keyword argument"
                where = f" at {tree.keystr(tuple(rest))}" if rest else ""
                return f"{kind} {tree.keystr((at,)).strip('[]')}{where}"
        return f"leaf {number}"

    def apply(self, leaves: Sequence[Any]) -> Any:
        """Call the function on other leaves."""
        args, kwargs = tree.unflatten(self.treedef, leaves)
        return self.fun(*args, **kwargs)


def check_callable(transform: str, fun: Any) -> None:
    """Raises TypeError unless a transform was given a function."""
    if not callable(fun):
        raise TypeError(
            f"{transform}: the first argument must be a function; got {type(fun).__name__}."
            f"{at_user_line()}"
        )


def flatten_call(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> FlatCall:
    """Flatten the arguments of a call."""
    leaves, treedef = tree.flatten((args, kwargs))
    return FlatCall(fun, leaves, treedef)


def leaf_arrays(transform: str, name: str, call: FlatCall) -> list[Array]:
    """The leaves as arrays. Raises TypeError for a leaf that cannot be one."""
    return [
        as_leaf(transform, name, leaf, lambda number=number: call.describe(number))
        for number, leaf in enumerate(call.leaves)
    ]


def as_leaf(transform: str, name: str, leaf: Any, describe: Callable[[], str]) -> Array:
    """One leaf as an array; Python scalars stay weakly typed."""
    if isinstance(leaf, Array):
        return leaf
    if is_array_like(leaf):
        return to_array.convert(leaf)
    raise TypeError(
        f"{transform}: every leaf of the arguments of {name} must be an array or a number; "
        f"{describe()} is {type(leaf).__name__}.{at_user_line()} Pass it as a static argument or "
        f"close over it."
    )


class _ToArray:
    """How host values become arrays; set by eager.py, the floor that knows devices."""

    convert: Convert


to_array = _ToArray()


def is_array_like(value: Any) -> bool:
    """Whether a value can become an array: a number, a NumPy value, or one that says so."""
    if isinstance(value, bool | int | float | complex | np.generic):
        return True
    if isinstance(value, np.ndarray):
        return value.dtype.kind != "O" and value.dtype.kind not in "USM"
    return hasattr(value, "__jax_array__") or hasattr(value, "__array__")


def abstract(value: Any) -> Aval:
    """Aval of an array-like or of anything with shape and dtype."""
    if isinstance(value, Array):
        return value.aval
    if isinstance(value, bool | int | float | complex):
        return literal(value).aval
    if isinstance(value, np.ndarray | np.generic):
        return Aval(value.shape, dtypes.canonicalize_dtype(value.dtype))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        weak = bool(getattr(value, "weak_type", False))
        return Aval(tuple(value.shape), dtypes.requested_dtype(value.dtype), weak)
    if is_array_like(value):
        return abstract(np.asarray(value))
    raise TypeError(f"not an array or a number: {type(value).__name__}.{at_user_line()}")


def stage_flat(call: FlatCall, avals: Sequence[Aval]) -> tuple[Jaxpr, Any]:
    """Trace a call with abstract leaves; the jaxpr and the structure of its result."""
    name = getattr(call.fun, "__name__", type(call.fun).__name__)
    trace = StagingTrace(name)
    with set_current(trace):
        result = call.apply([trace.new_input(aval) for aval in avals])
        leaves, out_tree = tree.flatten(result)
        outputs = [as_result(name, leaf) for leaf in leaves]
        return trace.jaxpr(outputs), out_tree


def as_result(name: str, leaf: Any) -> Any:
    """A leaf of a traced function's result. Raises TraceError if it is not an array or number."""
    if isinstance(leaf, Array):
        return leaf
    if is_array_like(leaf):
        return to_array.convert(leaf)
    raise TraceError(
        f"{name}: every leaf of the result must be an array or a number; got "
        f"{type(leaf).__name__}.{at_user_line()}"
    )
