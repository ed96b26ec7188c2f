"""Functions of several operations as one program: on concrete arrays a composite function is staged
once for each signature and runs as one program; inside a trace it records its operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xcube import config, dtypes, eager, tree
from xcube.array import DeviceArray
from xcube.ir import Aval, Jaxpr
from xcube.lowering.device import default_device
from xcube.numpy.operands import scalar
from xcube.trace import EVAL, bind, current_trace, stage
from xcube.transforms.call import jit_p

_PROGRAM_LIMIT = 8192
_SCALAR_LIMIT = 4096
_WIDE = frozenset({np.dtype(np.float64), np.dtype(np.complex128)})
_programs: dict[Any, tuple[Jaxpr, list[Any], Any]] = {}
_scalars: dict[Any, DeviceArray] = {}


def run(name: str, function: Callable[..., Any], arrays: Sequence[DeviceArray]) -> Any:
    """function(*arrays) as one program; `function` itself is part of the program's key."""
    return run_keyed(name, function, function, arrays)


def _stage(
    name: str, function: Callable[..., Any], arrays: Sequence[DeviceArray]
) -> tuple[Jaxpr, list[Any], Any]:
    found: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        leaves, out_tree = tree.flatten(function(*values))
        found.append(None if out_tree == tree.structure(0) else out_tree)
        return leaves

    jaxpr = stage(flat, [x._aval for x in arrays], name)
    equations = tuple([replace(eqn, source=None) for eqn in jaxpr.equations])  # of no one call
    return replace(jaxpr.closed(), equations=equations), jaxpr.consts, found[0]


def number(value: Any, dtype: np.dtype) -> Any:
    """A Python number as a weakly typed operand of a dtype: while evaluating an array that repeated
    numbers share, while tracing a scalar of the program."""
    if current_trace() is not EVAL:
        return scalar(value, dtype, True)
    key = (default_device(), value if value else repr(value), dtype)  # 0.0 and -0.0 are equal
    found = _scalars.get(key)
    if found is None:
        if len(_scalars) >= _SCALAR_LIMIT:
            _scalars.clear()
        host = np.asarray(value).astype(dtype)
        found = _scalars[key] = eager.from_host(host, Aval((), dtype, True))
    return found


def clear() -> None:
    """Forget the programs of composite functions and the shared numbers."""
    _programs.clear()
    _scalars.clear()


def fused(count: int = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: a composite function whose first `count` arguments are arrays or numbers and whose
    other arguments are static. Calls that do not look like that run operation by operation."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if current_trace() is not EVAL:
                return function(*args, **kwargs)
            arrays = _operands(args[:count])
            if arrays is None:
                return function(*args, **kwargs)
            rest = args[count:]
            try:
                key = (typed(rest), typed(tuple(kwargs.items())))
                hash(key)
            except TypeError:
                return function(*args, **kwargs)
            return run_static(name, function, arrays, rest, kwargs, key)

        return wrapper

    return decorate


def run_static(
    name: str, function: Callable[..., Any], arrays: Any, rest: Any, kwargs: Any, key: Any
) -> Any:
    """function(*arrays, *rest, **kwargs) as one program; `key` stands for the static arguments."""
    signature = (function, key)
    return run_keyed(name, lambda *values: function(*values, *rest, **kwargs), signature, arrays)


def run_keyed(
    name: str, function: Callable[..., Any], key: Any, arrays: Sequence[DeviceArray]
) -> Any:
    """function(*arrays) as one program; `key` names the function and all that it closes over."""
    settings = config.current
    modes = (settings.enable_x64, settings.numpy_dtype_promotion)
    signature = (key, tuple([x._aval for x in arrays]), modes)
    entry = _programs.get(signature)
    if entry is None:
        entry = _stage(name, function, arrays)
        if len(_programs) >= _PROGRAM_LIMIT:
            _programs.clear()
        _programs[signature] = entry
    jaxpr, constants, out_tree = entry
    outs = bind(jit_p, *constants, *arrays, jaxpr=jaxpr, name=name)
    return outs[0] if out_tree is None else tree.unflatten(out_tree, outs)


def _operands(values: Sequence[Any]) -> list[DeviceArray] | None:
    """Arguments as concrete arrays, one of which is given as one; None if they are not such, or if
    a number meets an array of more digits than its default dtype has."""
    arrays: list[DeviceArray] = []
    given = False
    if any(type(v) is float for v in values) and any(
        type(v) is DeviceArray and v.dtype in _WIDE for v in values
    ):
        return None
    for value in values:
        if type(value) is DeviceArray:
            given = True
            arrays.append(value)
        elif type(value) is float or type(value) is int:
            arrays.append(number(value, dtypes.scalar_dtype(value)))
        else:
            return None
    return arrays if given else None


def typed(values: tuple[Any, ...]) -> Any:
    """Static arguments with their types, since 1 == 1.0 == True."""
    return values, tuple([_kind(value) for value in values])


def _kind(value: Any) -> Any:
    if type(value) is tuple:
        return tuple([_kind(item) for item in value])
    return repr(value) if type(value) is float else type(value)
