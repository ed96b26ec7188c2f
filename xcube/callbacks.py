"""Python functions called out of programs, for their results: `pure_callback`, `io_callback`. The
functions get arrays, whatever runs the program. `debug.py` has those that only look at values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import xcube.operators  # noqa: F401  (callbacks compute with the arrays that they get)
from xcube import eager, tree
from xcube.ir import Primitive, at_user_line, user_source
from xcube.lowering.device import default_device
from xcube.primitives.callback import (
    VMAP_METHODS,
    HostFunction,
    io_callback_p,
    pure_callback_p,
)
from xcube.trace import bind
from xcube.transforms.arguments import abstract, check_callable, flatten_call, leaf_arrays


@dataclass(frozen=True, eq=False)
class FlatCallback:
    """A user's function on flat operands, which become arrays of its own: they may outlive the
    call, while the memory that they are read from is used again. `fixed`: leaves of the arguments
    that are no operands, by their number."""

    function: Callable[..., Any]
    treedef: tree.TreeDef
    fixed: dict[int, Any] = field(default_factory=dict)

    def __call__(self, operands: Sequence[np.ndarray]) -> list[Any]:
        return tree.leaves(self.apply(operands))

    def apply(self, operands: Sequence[np.ndarray]) -> Any:
        """What the user's function returns."""
        arrays = iter([eager.from_host(x) for x in operands])
        count = len(self.fixed) + len(operands)
        leaves = [self.fixed[n] if n in self.fixed else next(arrays) for n in range(count)]
        args, kwargs = tree.unflatten(self.treedef, leaves)
        return self.function(*args, **kwargs)

    @property
    def __name__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


def pure_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    sharding: None = None,
    vmap_method: str | None = None,
    **kwargs: Any,
) -> Any:
    """callback(*args, **kwargs), a function of Python without effects, which programs call: it may
    be called again, or not at all where nothing needs its results.

    `result_shape_dtypes`: pytree of what has shape and dtype (`ShapeDtypeStruct`, arrays); the
    callback must give arrays like these. `vmap_method`: what becomes of it under vmap:
    "sequential" calls it for one example after the other, "expand_dims" once with leading axes of
    size 1 on operands that are not mapped, "broadcast_all" once with leading axes of the full size
    on all, "legacy_vectorized" once with operands as they are; None refuses. It has no derivative:
    give it one with `custom_jvp` or `custom_vjp`.
    Raises TypeError for operands that are no arrays, ShapeError or DtypeError where the callback
    does not keep to the declaration, ValueError where it is differentiated.

    >>> import numpy as np
    >>> import xcube.numpy as jnp
    >>> from xcube import ShapeDtypeStruct, jit
    >>> x = jnp.arange(3.0)
    >>> jit(lambda x: pure_callback(np.cumsum, ShapeDtypeStruct((3,), np.float32), x))(x)
    Array([0., 1., 3.], dtype=float32)
    """
    if vmap_method not in VMAP_METHODS:
        raise ValueError(
            f"pure_callback: vmap_method must be one of {', '.join(map(repr, VMAP_METHODS))}; got "
            f"{vmap_method!r}.{at_user_line()}"
        )
    _check_sharding("pure_callback", sharding)
    params = {"vmap_method": vmap_method}
    return _called(pure_callback_p, callback, result_shape_dtypes, args, kwargs, params)


def io_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    sharding: None = None,
    ordered: bool = False,
    **kwargs: Any,
) -> Any:
    """callback(*args, **kwargs), a function of Python with effects, which programs call exactly as
    often as they come to it, and in the order in which they were written.

    `result_shape_dtypes`: as for `pure_callback`; None where nothing is given back. `ordered`: also
    promises the order to other programs, so that it cannot be mapped by `vmap`; otherwise vmap
    calls it for one example after the other. It has no derivative.
    Raises TypeError for operands that are no arrays, ShapeError or DtypeError where the callback
    does not keep to the declaration, ValueError where it is differentiated, or ordered and mapped.

    >>> import xcube.numpy as jnp
    >>> from xcube import jit
    >>> seen = []
    >>> jit(lambda x: io_callback(lambda y: seen.append(int(y)), None, x + 1))(1)
    >>> seen
    [2]
    """
    _check_sharding("io_callback", sharding)
    params = {"ordered": bool(ordered)}
    return _called(io_callback_p, callback, result_shape_dtypes, args, kwargs, params)


def effects_barrier() -> None:
    """Wait until the effects of everything that was started are there.

    >>> effects_barrier()
    """
    default_device().synchronize()


def _check_sharding(name: str, sharding: Any) -> None:
    if sharding is not None:
        raise NotImplementedError(
            f"{name}: sharding must be None, for a program runs on one device; got {sharding!r}."
            f"{at_user_line()}"
        )


def _called(
    primitive: Primitive,
    callback: Callable[..., Any],
    declared: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    params: dict[str, Any],
) -> Any:
    check_callable(primitive.name, callback)
    call = flatten_call(callback, args, kwargs)
    flat = FlatCallback(callback, call.treedef)
    arrays = leaf_arrays(primitive.name, flat.__name__, call)
    leaves = tree.leaves_with_path(declared)
    results = tuple([abstract(leaf).strengthen() for _, leaf in leaves])
    paths = tuple([tree.keystr(path) for path, _ in leaves])
    function = HostFunction(primitive.name, flat, results, paths, user_source())
    outs = bind(primitive, *arrays, function=function, results=results, **params)
    return tree.unflatten(tree.structure(declared), outs)
