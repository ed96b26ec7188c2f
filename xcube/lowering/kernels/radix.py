"""A radix sort inside a kernel: keys of one row, and the index beside each, move between the two
halves of the row's scratch memory, digit by digit from the lowest. Keys of at most 32 bits share
one 64-bit word with their index, so that both move at once."""

from __future__ import annotations

from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Buffer

LONG = 1 << 16  # elements whose passes outweigh the counters of a wide digit
NARROW, WIDE = 8, 11  # bits of a digit
LANES = 64  # counters cleared at once


def passes(bits: int, n: int) -> int:
    """How many digits each of n keys has."""
    return -(-bits // (WIDE if n >= LONG else NARROW))


def digit_of(bits: int, n: int) -> int:
    """How many bits a digit of n keys has: as few as make up a key in as many passes."""
    return -(-bits // passes(bits, n))


class Radix:
    """Keys in `words` from `begin` on, behind them as much room again, `size` words each.

    Without `indices`, keys wider than 32 bits or not `packed` have none. `bits` of the widest key;
    `most`, how many there can be, decides on the digits.
    """

    def __init__(
        self,
        b: Builder,
        words: Buffer,
        indices: Buffer | None,
        begin: Value,
        size: Value,
        bits: int,
        packed: bool,
        most: int,
    ) -> None:
        self.b, self.words, self.indices, self.packed = b, words, indices, packed
        self.source, self.target = b.variable(begin), b.variable(begin + size)
        number = indices.dtype if indices is not None else "u32"
        self.digit = digit_of(bits, most)
        self.counts = b.local(number, self._size(bits))
        self.low = 32 if packed else 0  # where the key begins in a word

    def clear(self, bits: int) -> None:
        """Forget the digits counted so far."""
        zeros = self.b.constant(0, self.counts.dtype, LANES)
        for at in self.b.range(0, self._size(bits), LANES):
            self.b.store(self.counts, at, zeros)

    def put(self, i: Value, key: Value, index: Value | None = None) -> None:
        """Make a key with its index the i-th."""
        b, at, word = self.b, self.source.get() + i, key.cast(self.words.dtype)
        if self.packed:
            assert index is not None
            word = (word << self.low) | index.cast("u64")
        elif index is not None:
            assert self.indices is not None
            b.store(self.indices, at, index.cast(self.indices.dtype))
        b.store(self.words, at, word)

    def count(self, key: Value, bits: int) -> None:
        """Count the digits of a key."""
        key = key.cast(self.words.dtype)
        for number in range(self._passes(bits)):
            at = self._digit(key, number * self.digit) + (number << self.digit)
            self.b.store(self.counts, at, self.b.load(self.counts, at) + 1)

    def key(self, i: Value, bits: int, lanes: int = 1, mask: Value | None = None) -> Value:
        """The i-th key, or a line of keys."""
        word = self.b.load(self.words, self.source.get() + i, lanes, mask)
        return (word >> self.low).cast(f"u{bits}")

    def index(self, i: Value) -> Value:
        """The i-th index."""
        at = self.source.get() + i
        if self.packed:
            return self.b.load(self.words, at).cast("u32").cast("index")
        assert self.indices is not None
        return self.b.load(self.indices, at).cast("index")

    def sort(self, n: Value, bits: int) -> None:
        """Put n keys, all of them counted, in order, and the indices with them."""
        b = self.b
        for number in b.range(0, self._passes(bits)):
            first = number << self.digit
            shift = (number * self.digit + self.low).cast(self.words.dtype)
            digit = self._digit(b.load(self.words, self.source.get()), shift)
            alike = b.load(self.counts, first + digit)
            with b.when(alike.cast("index") < n):
                self._begin_digits(first)
                self._move(n, first, shift)

    def _begin_digits(self, first: Value) -> None:
        """Turn the count of each digit into the place of its first key."""
        b = self.b
        total = b.variable(b.constant(0, self.counts.dtype))
        for at in b.range(first, first + (1 << self.digit)):
            place, count = total.get(), b.load(self.counts, at)
            b.store(self.counts, at, place)
            total.set(place + count)

    def _move(self, n: Value, first: Value, shift: Value) -> None:
        b, source, target = self.b, self.source.get(), self.target.get()
        for i in b.range(0, n):
            word = b.load(self.words, source + i)
            at = first + self._digit(word, shift)
            place = b.load(self.counts, at)
            b.store(self.counts, at, place + 1)
            where = target + place.cast("index")
            b.store(self.words, where, word)
            if self.indices is not None:
                b.store(self.indices, where, b.load(self.indices, source + i))
        self.source.set(target)
        self.target.set(source)

    def _digit(self, word: Value, shift: Value | int) -> Value:
        return ((word >> shift) & ((1 << self.digit) - 1)).cast("index")

    def _passes(self, bits: int) -> int:
        return -(-bits // self.digit)

    def _size(self, bits: int) -> int:
        """How many counters there are."""
        return self._passes(bits) << self.digit


def is_packed(bits: int, n: int) -> bool:
    """Whether a key and an index below n fit one word."""
    return bits <= 32 and n <= 1 << 32
