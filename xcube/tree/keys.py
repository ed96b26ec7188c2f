"""Key paths: the steps from the root of a tree to one of its leaves, and their text."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any, TypeVar

KeyEntry = TypeVar("KeyEntry", bound=Any)  # one step, of whatever type
KeyPath = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class DictKey:
    """The step of a key path into a dictionary.

    >>> str(DictKey("weight"))
    "['weight']"
    """

    key: Hashable

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclasses.dataclass(frozen=True)
class SequenceKey:
    """The step of a key path into a tuple or list.

    >>> str(SequenceKey(2))
    '[2]'
    """

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx}]"


@dataclasses.dataclass(frozen=True)
class GetAttrKey:
    """The step of a key path into an attribute.

    >>> str(GetAttrKey("bias"))
    '.bias'
    """

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@dataclasses.dataclass(frozen=True)
class FlattenedIndexKey:
    """The step of a key path into a child of a class that gives its children no names.

    >>> str(FlattenedIndexKey(0))
    '[<flat index 0>]'
    """

    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


def keystr(path: KeyPath, *, simple: bool = False, separator: str = "") -> str:
    """A key path as text; `simple` leaves out brackets, quotes and dots.

    >>> keystr((DictKey("layers"), SequenceKey(2), GetAttrKey("bias")))
    "['layers'][2].bias"
    >>> keystr((DictKey("layers"), SequenceKey(2)), simple=True, separator="/")
    'layers/2'
    """
    return separator.join(_simple_key(key) if simple else str(key) for key in path)


def _simple_key(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
