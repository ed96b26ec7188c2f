"""Which loops run inside a kernel: the scalars that a loop carries, and the places that have such a
loop each."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from xcube.ir import Shape
from xcube.lowering.expression import Node
from xcube.lowering.index import Dim, Index, ravel, unravel
from xcube.lowering.kernels.loops_rules import Unfit

MOST_STATE = 128
"""The most scalars, at one place, that a loop carries, reads and writes at a step."""

PLACE = 1  # the bit of what differs between places: dimension 0

Kept = tuple[tuple[tuple[Index, ...], Node], ...]  # elements of a result, with their indices


@dataclass(frozen=True)
class Spread:
    """A space of places, each with a loop of its own: the first or the last dimensions of the
    arrays that have them all. No place is known of what has not: it is the same everywhere."""

    shape: Shape
    leading: bool = True

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def index(self) -> tuple[Index, ...]:
        """Where a place is along the dimensions."""
        if not self.shape:
            return ()
        return tuple(unravel(Index(0, ((Dim(0, self.size), 1),)), self.shape))

    def covers(self, shape: Shape) -> bool:
        """Whether an array has an element, or several, for each place."""
        rank = len(self.shape)
        part = shape[:rank] if self.leading else shape[len(shape) - rank :]
        return 0 < rank <= len(shape) and part == self.shape

    def small(self, shape: Shape) -> Shape:
        """The shape of what an array has at one place."""
        if not self.covers(shape):
            return shape
        rank = len(self.shape)
        return shape[rank:] if self.leading else shape[: len(shape) - rank]

    def elements(self, shape: Shape) -> list[tuple[Index, ...]]:
        """The indices of what an array has at this place."""
        small = self.small(shape)
        if math.prod(small) > MOST_STATE:
            raise Unfit
        places = itertools.product(*([Index(i) for i in range(size)] for size in small))
        if not self.covers(shape):
            return list(places)
        here = self.index
        return [(*here, *place) if self.leading else (*place, *here) for place in places]

    def position(self, shape: Shape, index: tuple[Index, ...]) -> Index:
        """The number of an element among those of this place; Unfit if it is elsewhere."""
        small = self.small(shape)
        if not self.covers(shape):
            return ravel(index, shape)
        rank, split = len(self.shape), len(small)
        here, rest = (
            (index[:rank], index[rank:]) if self.leading else (index[split:], index[:split])
        )
        if here != self.index:
            raise Unfit
        return ravel(rest, small)


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop over scalars. `number`: of its dimension. `length` is None where `condition` decides
    before each step; that may be a wish of each place, at which steps change nothing once it has
    none. `state`: the scalars that the loop carries, by parameter; `before`, their values at first;
    `after`, those behind a step. `kept`: of each result that every step writes to, the elements
    with their indices, the step in front."""

    number: int
    length: int | None
    reverse: bool
    state: tuple[tuple[Node, ...], ...]
    before: tuple[Node, ...]
    after: tuple[Node, ...]
    kept: tuple[Kept, ...] = ()
    condition: Node | None = None

    @property
    def bit(self) -> int:
        """The bit of what differs between steps."""
        return 1 << self.number

    @property
    def variables(self) -> tuple[Node, ...]:
        """The carried scalars."""
        return tuple(itertools.chain(*self.state))

    @property
    def written(self) -> tuple[Node, ...]:
        """What a step writes."""
        return tuple([node for result in self.kept for _, node in result])

    @property
    def roots(self) -> tuple[Node, ...]:
        """What a step computes."""
        condition = () if self.condition is None else (self.condition,)
        return (*condition, *self.after, *self.written)


def step_index(number: int, length: int) -> Index:
    """The index of a step; also of the only one."""
    return Index(0, ((Dim(number, length, 0, length - 1), 1),))
