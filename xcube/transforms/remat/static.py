"""Arguments that stay Python values while the others are traced."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xcube import tree
from xcube.ir import at_user_line


@tree.register_static
class Static:
    """An argument that stays a Python value; equal values share what was traced, and what cannot
    be hashed is equal to itself alone."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Static):
            return False
        if self.value is other.value:
            return True
        is_known = _is_hashable(self.value) and _is_hashable(other.value)
        return is_known and type(self.value) is type(other.value) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value) if _is_hashable(self.value) else id(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def unmarked(arg: Any) -> Any:
    """The Python value of an argument."""
    return arg.value if isinstance(arg, Static) else arg


@dataclass(frozen=True)
class StaticArguments:
    """Which arguments of a function are static: by position, which must be there, by position if
    it is there, and by name."""

    operation: str
    function: str
    numbers: tuple[int, ...]
    places: tuple[int, ...]
    names: tuple[str, ...]

    @classmethod
    def of(
        cls, operation: str, fun: Callable[..., Any], static_argnums: Any, static_argnames: Any
    ) -> StaticArguments:
        """From what the user declares.

        Raises TypeError for numbers that are none, ValueError for names that fun does not have.
        """
        name = getattr(fun, "__name__", type(fun).__name__)
        numbers = _numbers(operation, static_argnums)
        by_name = isinstance(static_argnames, str)
        names = (static_argnames,) if by_name else tuple(static_argnames)
        return cls(operation, name, numbers, _places(operation, name, fun, names), names)

    def marked(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call with its static arguments marked.

        Raises ValueError if there is no argument at a position.
        """
        if not self.numbers and not self.names:
            return args, kwargs
        count = len(args)
        if any(not -count <= number < count for number in self.numbers):
            raise ValueError(
                f"{self.operation}: static_argnums must name positional arguments of "
                f"{self.function}, which got {count}; got {self.numbers}.{at_user_line()}"
            )
        static = {number % count for number in self.numbers}.union(self.places)
        marked = tuple([Static(arg) if n in static else arg for n, arg in enumerate(args)])
        return marked, {k: Static(arg) if k in self.names else arg for k, arg in kwargs.items()}


def _numbers(operation: str, static_argnums: Any) -> tuple[int, ...]:
    numbers = (static_argnums,) if isinstance(static_argnums, int) else static_argnums
    if isinstance(numbers, tuple | list) and all(type(number) is int for number in numbers):
        return tuple(numbers)
    raise TypeError(
        f"{operation}: static_argnums must be an int or a tuple of ints; got {static_argnums!r}."
        f"{at_user_line()}"
    )


def _places(
    operation: str, name: str, fun: Callable[..., Any], names: tuple[str, ...]
) -> tuple[int, ...]:
    """Where arguments with these names stand if they are passed by position."""
    if not names:
        return ()
    parameters = list(inspect.signature(fun).parameters.values())
    unknown = set(names) - {p.name for p in parameters}
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise ValueError(
            f"{operation}: static_argnames must name parameters of {name}; got "
            f"{', '.join(sorted(unknown))}.{at_user_line()}"
        )
    plain = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return tuple([plain.index(name) for name in names if name in plain])
