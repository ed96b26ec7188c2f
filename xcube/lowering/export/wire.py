"""Bytes written and read one item after another. A reader trusts nothing: whatever is not there, or
is larger than what is left, is an `ExportError`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

from xcube.errors import ExportError

Item = TypeVar("Item")

_FLOAT = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")
_BITS = 7
_LONGEST = 19  # bytes of a number: what fits into 128 bits and a sign
DEEPEST = 128  # levels of values in values and of trees in trees


class Writer:
    """Bytes in the making."""

    def __init__(self) -> None:
        self.data = bytearray()

    def number(self, value: int) -> None:
        """A number >= 0, in groups of seven bits, the lowest first."""
        while value >= 1 << _BITS:
            self.data.append(value & 0x7F | 0x80)
            value >>= _BITS
        self.data.append(value)

    def integer(self, value: int) -> None:
        """A number with a sign, which is its lowest bit."""
        if value.bit_length() >= _BITS * _LONGEST - 1:
            raise ExportError(f"export: integers must be shorter than 128 bits; got {value}.")
        self.number(value << 1 if value >= 0 else (-value << 1) - 1)

    def real(self, value: float) -> None:
        """A double."""
        self.data += _FLOAT.pack(value)

    def complex(self, value: complex) -> None:
        """Two doubles."""
        self.data += _COMPLEX.pack(value.real, value.imag)

    def raw(self, value: bytes) -> None:
        """Bytes with their number."""
        self.number(len(value))
        self.data += value

    def string(self, value: str) -> None:
        """A string in UTF-8."""
        self.raw(value.encode())


class Reader:
    """A walk over bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def take(self, count: int) -> bytes:
        """The next bytes."""
        end = self.position + count
        if end > len(self.data):
            raise damaged(f"{count} bytes wanted at {self.position}, {len(self.data)} there")
        found, self.position = self.data[self.position : end], end
        return found

    def number(self) -> int:
        """A number >= 0."""
        value = 0
        for place in range(_LONGEST):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (place * _BITS)
            if byte < 0x80:
                return value
        raise damaged(f"a number without end at {self.position}")

    def integer(self) -> int:
        """A number with a sign."""
        value = self.number()
        return -(value + 1 >> 1) if value & 1 else value >> 1

    def real(self) -> float:
        """A double."""
        return _FLOAT.unpack(self.take(_FLOAT.size))[0]

    def complex(self) -> complex:
        """Two doubles."""
        return complex(*_COMPLEX.unpack(self.take(_COMPLEX.size)))

    def raw(self) -> bytes:
        """Bytes with their number."""
        return self.take(self.number())

    def string(self) -> str:
        """A string in UTF-8."""
        return self.raw().decode()

    def pick(self, items: list[Item]) -> Item:
        """The item of a list that a number names."""
        number = self.number()
        if number >= len(items):
            raise damaged(f"entry {number} of a table of {len(items)}")
        return items[number]

    def many(self, read: Callable[[], Item]) -> list[Item]:
        """As many items as a number says; each takes at least one byte."""
        count = self.number()
        if count > len(self.data) - self.position:
            raise damaged(f"{count} items in {len(self.data) - self.position} bytes")
        return [read() for _ in range(count)]

    def finish(self) -> None:
        """Raises ExportError unless everything has been read."""
        if self.position != len(self.data):
            raise damaged(f"{len(self.data) - self.position} bytes are left over")


def damaged(what: Any) -> ExportError:
    """The error for bytes that make no sense."""
    return ExportError(f"deserialize: the bytes must be as serialize made them; found {what}.")
