"""Names that users give to parts of their functions: a stack, of which the path goes into the
source of every operation that is recorded inside."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

_names: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("names", default=())


def within(function: str) -> str:
    """The name of a function below the scopes in force, e.g. "encoder/attention/forward".

    >>> with named_scope("encoder"):
    ...     within("forward")
    'encoder/forward'
    """
    return "/".join((*_names.get(), function))


@contextlib.contextmanager
def _entered(name: str) -> Iterator[None]:
    token = _names.set((*_names.get(), name))
    try:
        yield
    finally:
        _names.reset(token)


def named_scope(name: str) -> contextlib.AbstractContextManager[None]:
    """A `with` block, or a decorator, that gives its operations a name.

    Raises TypeError if the name is no string.

    >>> with named_scope("encoder"), named_scope("attention"):
    ...     within("forward")
    'encoder/attention/forward'
    """
    if not isinstance(name, str):
        raise TypeError(f"named_scope: the name must be a string; got {name!r}.")
    return _entered(name)


def named_call(fun: Callable[..., Any], *, name: str | None = None) -> Callable[..., Any]:
    """The function, with its operations in a scope: of its own name, or of the one that is given.

    Raises TypeError if the name is no string.

    >>> named_call(lambda: within("step"), name="layer")()
    'layer/step'
    """
    scope = getattr(fun, "__name__", "function") if name is None else name
    named_scope(scope)

    def call(*args: Any, **kwargs: Any) -> Any:
        with _entered(scope):
            return fun(*args, **kwargs)

    return functools.wraps(fun)(call) if hasattr(fun, "__name__") else call
