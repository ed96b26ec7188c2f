"""Keys that sort as unsigned integers in the order of the numbers they stand for; all NaN are equal
and above everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import BITS, FLOATS, SIGNED

# The largest magnitude that is no NaN, as bits.
_LARGEST = {
    **{"f8_e4m3fn": 0x7E, "f8_e5m2": 0x7C, "f16": 0x7C00, "bf16": 0x7F80},
    **{"f32": 0x7F80_0000, "f64": 0x7FF0_0000_0000_0000},
}


@dataclass(frozen=True)
class Order:
    """The order of a real dtype; -0 equals 0, unless `signed_zeros` puts it below."""

    dtype: str
    signed_zeros: bool = False

    @property
    def bits(self) -> int:
        return BITS[self.dtype]

    @property
    def key_dtype(self) -> str:
        return f"u{self.bits}"

    @property
    def width(self) -> int:
        """How many bits of a key differ between numbers."""
        return 1 if self.dtype == "bool" else self.bits

    @property
    def signed(self) -> Order:
        """The same order, but -0 comes below 0."""
        return Order(self.dtype, True)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def zero(self) -> int:
        """The key of the number zero."""
        return self._sign if self.is_float or self.dtype in SIGNED else 0

    @property
    def _sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def _ones(self) -> int:
        return (1 << self.bits) - 1

    def key(self, b: Builder, x: Value) -> Value:
        """The key of a number."""
        if self.dtype == "bool":
            return x.cast("u8")
        key = x.bitcast(self.key_dtype)
        if self.dtype in SIGNED:
            return key ^ self._sign
        if not self.is_float:
            return key
        magnitude = key & (self._sign - 1)
        if not self.signed_zeros:
            key = b.select(magnitude.eq(0), magnitude, key)
        nan = b.constant(self._sign - 1, self.key_dtype, key.lanes)
        key = b.select(magnitude > _LARGEST[self.dtype], nan, key)
        return key ^ self._flips(b, key, self._ones, self._sign)

    def settled(self, b: Builder, key: Value) -> Value:
        """The key of the number that has this key in the order `signed`."""
        if not self.is_float or self.signed_zeros:
            return key
        return b.select(key.eq(self._sign - 1), self._sign, key)

    def number(self, b: Builder, key: Value) -> Value:
        """The number of a key: 0 for every zero, one NaN for all."""
        if self.dtype == "bool":
            return key.ne(0)
        if self.is_float:
            key = key ^ self._flips(b, key, self._sign, self._ones)
        elif self.dtype in SIGNED:
            key = key ^ self._sign
        return key.bitcast(self.dtype)

    def _flips(self, b: Builder, key: Value, high: int, low: int) -> Value:
        """Which bits to flip in keys whose highest bit is set, and in the others."""
        patterns = [b.constant(bits, self.key_dtype, key.lanes) for bits in (high, low)]
        return b.select(key >= self._sign, *patterns)

    def is_negative_zero(self, x: Value) -> Value:
        return x.bitcast(self.key_dtype).eq(self._sign)


def follows(keys: list[Value], others: list[Value]) -> Value:
    """Whether keys, the first of them counting most, come behind others."""
    result: Any = None
    for key, other in reversed(list(zip(keys, others, strict=True))):
        behind = key > other
        result = behind if result is None else behind | (key.eq(other) & result)
    return result
