"""The base of layers and models: immutable dataclasses that are pytree nodes, so that every
transform works on them, and the text that shows them as a tree of shapes."""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Callable, Iterable
from typing import Any, Self, dataclass_transform

import numpy as np

from xcube import dtypes, tree
from xcube.array import Array
from xcube.ir import at_user_line
from xcube.tree import static

__all__ = ["Module", "static"]


@dataclass_transform(eq_default=False, field_specifiers=(static, dataclasses.field))
class Module:
    """A layer or a model: its fields are parameters and parts, those declared with `static` are
    structure.

    A subclass becomes a dataclass without a decorator. Without an `__init__` of its own it takes
    its fields as arguments; an own `__init__` assigns each field once. Afterwards nothing changes:
    `replace` gives a copy with other values.

    >>> class Scale(Module):
    ...     factor: float
    ...     name: str = static(default="scale")
    ...     def __call__(self, x):
    ...         return self.factor * x
    >>> Scale(2.0)
    Scale(factor=2.0, name='scale')
    >>> tree.map(lambda leaf: leaf + 1, Scale(2.0))(10.0)
    30.0
    """

    __dataclass_fields__: dict[str, dataclasses.Field[Any]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        new_fields = bool(inspect.get_annotations(cls))
        generated = "__init__" not in cls.__dict__ and (new_fields or not _has_own_init(cls))
        dataclasses.dataclass(cls, init=generated, eq=False, repr=False)  # type: ignore[call-overload]
        _register(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        owner = type(self).__name__
        if name not in self.__dataclass_fields__:
            raise AttributeError(
                f"{owner}: only the fields {', '.join(self.__dataclass_fields__)} can be assigned; "
                f"got {name!r}.{at_user_line()} Declare it in the class body."
            )
        if name in self.__dict__:
            raise dataclasses.FrozenInstanceError(
                f"{owner}: modules are immutable; {name!r} has its value already."
                f"{at_user_line()} Use module.replace({name}=...)."
            )
        self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(
            f"{type(self).__name__}: modules are immutable; {name!r} cannot be deleted."
            f"{at_user_line()}"
        )

    def replace(self, **changes: Any) -> Self:
        """A copy with other values in some fields.

        Raises AttributeError if there is no such field.

        >>> class Pair(Module):
        ...     a: float
        ...     b: float
        >>> Pair(1.0, 2.0).replace(b=3.0)
        Pair(a=1.0, b=3.0)
        """
        copy = object.__new__(type(self))
        for name, value in ({**self.__dict__, **changes}).items():
            setattr(copy, name, value)
        return copy

    def __repr__(self) -> str:
        return text(self)


def _has_own_init(cls: type) -> bool:
    """Whether the class inherits an `__init__` that someone wrote."""
    return any(
        "__init__" in base.__dict__ and not _is_generated(base)
        for base in cls.__mro__[1:]
        if base is not object
    )


def _is_generated(cls: type) -> bool:
    parameters = cls.__dict__.get("__dataclass_params__")
    return parameters is not None and parameters.init


def _register(cls: type) -> None:
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    meta = tuple(field.name for field in fields if field.metadata.get("static", False))
    data = tuple(field.name for field in fields if field.name not in meta)
    read_data, read_meta = _reader(data), _reader(meta)
    keys = tuple(map(tree.GetAttrKey, data))

    def join(metadata: tuple[Any, ...], children: Iterable[Any]) -> Any:
        node = object.__new__(cls)
        node.__dict__.update(zip(data, children, strict=True))
        node.__dict__.update(zip(meta, metadata, strict=True))
        return node

    def split(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return read_data(node), read_meta(node)

    def split_with_keys(node: Any) -> tuple[Any, tuple[Any, ...]]:
        return tuple(zip(keys, read_data(node), strict=True)), read_meta(node)

    tree.register_pytree_with_keys(cls, split_with_keys, join, split)


def _reader(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """All attributes of these names, as a tuple."""
    if not names:
        return lambda node: ()
    getter = operator.attrgetter(*names)
    return getter if len(names) > 1 else lambda node: (getter(node),)


# text -----------------------------------------------------------------------------------------

_WIDTH = 88


def text(value: Any, indent: int = 0) -> str:
    """A pytree as text: arrays by dtype and shape, one line where it fits, else a line for each
    part.

    >>> text({"w": np.zeros((2, 3), np.float32)})
    "{'w': f32[2,3]}"
    """
    parts = _parts(value)
    if parts is None:
        return _leaf_text(value)
    opening, items, closing = parts
    flat = opening + ", ".join(label + text(item) for label, item in items) + closing
    if indent + len(flat) <= _WIDTH and "\n" not in flat:
        return flat
    margin = " " * (indent + 2)
    lines = (f"{margin}{label}{text(item, indent + 2)}," for label, item in items)
    return "\n".join([opening, *lines, " " * indent + closing])


def _parts(value: Any) -> tuple[str, list[tuple[str, Any]], str] | None:
    """How a container opens, its labelled items, how it closes; None for a leaf."""
    if isinstance(value, Module):
        names = [field.name for field in dataclasses.fields(value)]  # type: ignore[arg-type]
        items = [(f"{name}=", getattr(value, name, None)) for name in names]
        return f"{type(value).__name__}(", items, ")"
    if type(value) is dict:
        return "{", [(f"{key!r}: ", item) for key, item in value.items()], "}"
    if type(value) is list:
        return "[", [("", item) for item in value], "]"
    if type(value) is tuple:
        return "(", [("", item) for item in value], ",)" if len(value) == 1 else ")"
    return None


def _leaf_text(value: Any) -> str:
    if isinstance(value, Array):
        return str(value.aval)
    if isinstance(value, np.ndarray) and value.dtype in dtypes.SHORT:
        return f"{dtypes.short_name(value.dtype)}[{','.join(map(str, value.shape))}]"
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    return repr(value)
