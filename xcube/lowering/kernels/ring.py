"""The stages of a ring in shared memory, with the two barriers of each: full and empty."""

from __future__ import annotations

from xcube.lowering.cube import matrix
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Buffer


class Turn:
    """The stage of a ring that comes next, and the parity of its phase: 1 to begin with for who
    fills stages, which are empty then, 0 for who reads them."""

    def __init__(self, b: Builder, stages: int, parity: int) -> None:
        self.b, self.stages = b, stages
        self.stage = b.variable(b.constant(0, "index"))
        self.parity = b.variable(b.constant(parity, "index"))

    def next(self) -> None:
        """Go on to the next stage."""
        b, following = self.b, self.stage.get() + 1
        wraps, parity = following.eq(self.stages), self.parity.get()
        self.stage.set(b.select(wraps, b.constant(0, "index"), following))
        self.parity.set(b.select(wraps, 1 - parity, parity))


class Ring:
    """Stages and their barriers, at which one unit arrives that fills a stage, and one of each of
    `readers` when it was read. `set` by one unit before the others see them."""

    def __init__(self, b: Builder, stages: int, readers: int) -> None:
        self.b, self.stages, self.readers = b, stages, readers
        self.barriers: Buffer = b.shared("u64", 2 * stages)

    def set(self) -> None:
        """Make the barriers."""
        for stage in range(self.stages):
            matrix.set_barrier(self.b, self.barriers, stage, 1)
            matrix.set_barrier(self.b, self.barriers, self.stages + stage, self.readers)

    def turn(self, fills: bool) -> Turn:
        """Where who fills or reads the ring begins."""
        return Turn(self.b, self.stages, int(fills))

    def begin(self, turn: Turn, nbytes: int) -> Value:
        """Wait until the next stage is empty and announce its bytes; its number."""
        stage = turn.stage.get()
        matrix.wait_for(self.b, self.barriers, stage + self.stages, turn.parity.get())
        matrix.arrive(self.b, self.barriers, stage, nbytes)
        return stage

    def full(self, turn: Turn) -> Value:
        """Wait until the next stage is full; its number."""
        stage = turn.stage.get()
        matrix.wait_for(self.b, self.barriers, stage, turn.parity.get())
        return stage

    def done(self, stage: Value) -> None:
        """One reader needs a stage no more; one unit of it says so."""
        matrix.arrive(self.b, self.barriers, stage + self.stages)
