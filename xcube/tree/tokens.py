"""Tokens: what stands for the metadata of a node where structures are compared. Plain values stand
for themselves, so that they compare by value; all others are known by their identity."""

from __future__ import annotations

import types
from typing import Any

are_strings = frozenset({str}).issuperset


class _Identity(int):
    """The token of metadata that only its identity can stand for."""


def token_of(metadata: Any) -> Any:
    """A hashable stand-in: equal tokens mean interchangeable metadata, so 1 is not True."""
    kind = type(metadata)
    if kind is str or metadata is None:
        return metadata
    if kind is tuple:
        return (tuple, *map(token_of, metadata))
    if kind in (bool, int, bytes, type) or _is_plain_function(metadata):
        return kind, metadata
    if kind is float or kind is complex:
        return kind, repr(metadata)
    return _Identity(id(metadata))


def keys_token(keys: tuple) -> tuple:
    """The token of the keys of a dictionary, which mostly are strings."""
    return keys if are_strings(map(type, keys)) else token_of(keys)


def _is_plain_function(value: Any) -> bool:
    return (
        type(value) is types.FunctionType
        and value.__closure__ is None
        and value.__defaults__ is None
        and value.__kwdefaults__ is None
    )


def has_identity(token: Any) -> bool:
    """Whether a token stands for metadata known by identity alone."""
    if type(token) is tuple:
        return any(has_identity(part) for part in token)
    return type(token) is _Identity
