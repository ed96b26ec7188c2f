"""What is sorted: operands along an axis, the keys among them, and the results they become; and
where a row's elements lie for a kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from xcube import dtypes
from xcube.ir import Var
from xcube.lowering.cube.build import Value
from xcube.lowering.kernels.nodes import PARTS, Arguments
from xcube.lowering.kernels.sort_keys import Order

_NOTHING: Mapping[Var, Value] = {}


@dataclass(frozen=True, eq=False)
class Key:
    """One key: a real operand, or the real (0) or imaginary (1) part of a complex one."""

    var: Var
    part: int
    order: Order

    @property
    def is_part(self) -> bool:
        """Whether it is a part of a complex operand."""
        return dtypes.short_name(self.var.aval.dtype) in PARTS


@dataclass(frozen=True, eq=False)
class Problem:
    """What is sorted along an axis, by what: the first key counts most.

    `wanted` pairs operands with the results they become; `kept` elements of each row are written,
    and if `indices` is a variable, where they were. `descending` puts the largest first.
    """

    shape: tuple[int, ...]
    axis: int
    keys: tuple[Key, ...]
    wanted: tuple[tuple[Var, Var], ...]
    kept: int
    descending: bool = False
    indices: Var | None = None

    @property
    def n(self) -> int:
        return self.shape[self.axis]

    @property
    def inner(self) -> int:
        return math.prod(self.shape[self.axis + 1 :])

    @cached_property
    def rows(self) -> int:
        return math.prod(self.shape) // self.n

    @property
    def index_dtype(self) -> str:
        """The dtype of places in a row."""
        return "u32" if self.n <= 1 << 32 else "u64"


def keys_of(operands: Sequence[Var], signed_zeros: bool = False) -> tuple[Key, ...]:
    """The keys that operands stand for."""
    keys = []
    for var in operands:
        short = dtypes.short_name(var.aval.dtype)
        order = Order(PARTS.get(short, short), signed_zeros)
        keys += [Key(var, part, order) for part in range(2 if short in PARTS else 1)]
    return tuple(keys)


class Row:
    """The elements of one row in operands and results: `first` and `out_first`, then every
    `step`-th."""

    def __init__(self, arguments: Arguments, problem: Problem, number: Value) -> None:
        self.b, self.arguments, self.problem = arguments.build, arguments, problem
        self.number = number
        self.n = self.kept = arguments.scalar("n", problem.n)
        if problem.kept != problem.n:
            self.kept = arguments.scalar("kept", problem.kept)
        if problem.inner == 1:
            self.step = self.b.constant(1, "index")
            self.first, self.out_first = number * self.n, number * self.kept
            return
        self.step = arguments.scalar("inner", problem.inner)
        outer, column = number // self.step, number % self.step
        self.first = outer * self.n * self.step + column
        self.out_first = outer * self.kept * self.step + column

    def number_at(self, key: Key, i: Value, mask: Value | None = None) -> Value:
        """The number behind the i-th key."""
        at = self.first + i * self.step
        if key.is_part:
            at = at * 2 + key.part
        return self.b.load(self.arguments.buffer(key.var), at, mask=mask)

    def key(self, key: Key, i: Value, mask: Value | None = None) -> Value:
        """The i-th key."""
        value = key.order.key(self.b, self.number_at(key, i, mask))
        return ~value if self.problem.descending else value

    def word(self, key: Key, i: Value, mask: Value | None = None) -> Value:
        """The i-th key with the sign of its zero, so that the number can be made of it again."""
        value = key.order.signed.key(self.b, self.number_at(key, i, mask))
        return ~value if self.problem.descending else value

    def write(
        self,
        i: Value,
        index: Value,
        word: Value | None = None,
        known: Mapping[Var, Value] = _NOTHING,
    ) -> None:
        """Make the element at an index of the row the i-th of every result. What is known of it
        is not read: `word`, that of the first key, and values of operands."""
        b, first_key = self.b, self.problem.keys[0]
        if word is not None and not first_key.is_part:
            known = {first_key.var: self._number_of(word), **known}
        at, out_at = self.first + index * self.step, self.out_first + i * self.step
        for x, out in self.problem.wanted:
            target = self.arguments.buffer(out, "out")
            if x in known:
                b.store(target, out_at, known[x])
                continue
            source = self.arguments.buffer(x)
            if dtypes.short_name(x.aval.dtype) in PARTS:
                b.store(target, out_at * 2, b.load(source, at * 2))
                b.store(target, out_at * 2 + 1, b.load(source, at * 2 + 1))
            else:
                b.store(target, out_at, b.load(source, at))
        if (indices := self.problem.indices) is not None:
            target = self.arguments.buffer(indices, "out")
            b.store(target, out_at, index.cast(target.dtype))

    def _number_of(self, word: Value) -> Value:
        order = self.problem.keys[0].order.signed
        word = word.cast(order.key_dtype)
        return order.number(self.b, ~word if self.problem.descending else word)
