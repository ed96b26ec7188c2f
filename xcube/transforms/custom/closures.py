"""Values that functions close over. A rule that closes over tracers of a trace that is being
recorded cannot wait until it is needed, for that trace will be closed by then: it is staged at
once, and what it captures becomes operands. `closure_convert` does so with functions, by hand."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from xcube import dtypes, tree
from xcube.errors import ShapeError
from xcube.ir import at_user_line
from xcube.trace import Tracer, evaluate
from xcube.transforms.arguments import FlatCall, abstract, check_callable, stage_flat

_EMPTY = object()
_staging: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar("staging", default=())


@contextlib.contextmanager
def staging_rule_of(target: Any) -> Iterator[None]:
    """While the rule of a function is staged, rules of calls to that function in it wait."""
    token = _staging.set((*_staging.get(), target))
    try:
        yield
    finally:
        _staging.reset(token)


@dataclass(frozen=True, eq=False)
class FailedRule:
    """Stands for a rule that could not be staged: it raises when it is needed, if ever."""

    error: Exception

    def __call__(self, operands: Sequence[Any], tangents: Sequence[Any]) -> NoReturn:
        raise self.error

    def forward(self, operands: Sequence[Any], perturbed: Sequence[bool]) -> NoReturn:
        """Raises the error too: rules for cotangents are asked for this."""
        raise self.error

    def __str__(self) -> str:
        return f"raises {type(self.error).__name__}"


def must_stage(target: Any, consts: Sequence[Any], *rules: Callable[..., Any]) -> bool:
    """Whether a rule must be staged at once: the function (its `consts`) or the rule closes over a
    tracer, and it is not just this rule that is being staged."""
    if any(target is other for other in _staging.get()):
        return False
    return any(isinstance(x, Tracer) for x in consts) or closes_over_tracers(*rules)


def closes_over_tracers(*functions: Any) -> bool:
    """Whether tracers are within reach of functions through closures, defaults, bound arguments,
    attributes of callable objects and containers."""
    seen: set[int] = set()
    waiting = list(functions)
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tracer):
            return True
        if id(value) not in seen:
            seen.add(id(value))
            waiting += _within_reach(value)
    return False


def _within_reach(value: Any) -> Sequence[Any]:
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, types.FunctionType):
        cells = [_contents(cell) for cell in value.__closure__ or ()]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, type | types.ModuleType):
        return ()
    leaves = tree.leaves(value)
    if callable(value) and leaves and leaves[0] is value:
        return list(getattr(value, "__dict__", {}).values())
    return leaves


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _EMPTY


def closure_convert(
    fun: Callable[..., Any], *example_args: Any
) -> tuple[Callable[..., Any], list[Any]]:
    """(converted, hoisted): a function that takes what `fun` closes over as further arguments, and
    these values; `converted(*args, *hoisted)` is `fun(*args)` for arguments like the examples.

    Hoisted is what may be under differentiation, that is, tracers of floats. Calling the result
    with arguments of another structure raises TypeError.

    >>> import xcube.numpy as jnp
    >>> converted, hoisted = closure_convert(lambda x: 2 * x, 1.0)
    >>> converted(3.0, *hoisted)
    Array(6., dtype=float32, weak_type=True)
    """
    check_callable("closure_convert", fun)
    leaves, in_tree = tree.flatten((example_args, {}))
    jaxpr, out_tree = stage_flat(FlatCall(fun, leaves, in_tree), [abstract(x) for x in leaves])
    hoisted = [value for value in jaxpr.consts if _may_be_perturbed(value)]
    closed = jaxpr.closed()

    def converted(*args: Any) -> Any:
        given, later = args[: len(args) - len(hoisted)], iter(args[len(args) - len(hoisted) :])
        consts = [next(later) if _may_be_perturbed(x) else x for x in jaxpr.consts]
        values, given_tree = tree.flatten((given, {}))
        if given_tree != in_tree:
            raise ShapeError(
                f"closure_convert: the arguments must have the structure of the examples, "
                f"{tree.structure(example_args)}, followed by {len(hoisted)} hoisted values; got "
                f"{tree.structure(given)}.{at_user_line()}"
            )
        return tree.unflatten(out_tree, evaluate(closed, [*consts, *values]))

    return converted, hoisted


def _may_be_perturbed(value: Any) -> bool:
    return isinstance(value, Tracer) and dtypes.is_inexact(value.dtype)
