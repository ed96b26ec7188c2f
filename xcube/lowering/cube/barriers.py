"""Barriers that only some units of a cube would reach, found in a kernel as it was written."""

from __future__ import annotations

from collections.abc import Sequence

from xcube.errors import KernelError
from xcube.lowering.cube import ir, rebuild
from xcube.lowering.cube.derivative_analysis import Marks
from xcube.lowering.cube.ir import Atom, Kernel, Stmt


def require_met(kernel: Kernel) -> None:
    """Raises KernelError, with the line, if a barrier stands in a branch or loop whose condition or
    bounds evidently differ between the units of a cube.

    >>> from xcube.lowering.cube.build import Builder
    >>> build = Builder("half", (8, 1, 1))
    >>> with build.when(build.place("unit_pos.x") < 4):
    ...     build.sync()
    >>> require_met(build.finish())
    Traceback (most recent call last):
        ...
    xcube.errors.KernelError: half: all units of a cube must reach a barrier; the `if` around this \
one depends on the place of the unit. Move sync_cube() out of it.
    """
    if any(isinstance(s, ir.Sync) for s in rebuild.every(kernel.body)):
        _block(kernel, kernel.body, _differing(kernel), "")


def _differing(kernel: Kernel) -> Marks:
    """Values that are made of the place of the unit by operations alone."""
    marks = Marks()
    for s in rebuild.every(kernel.body):
        if isinstance(s, ir.Let) and (_is_place(kernel, s) or any(map(marks.has, s.args))):
            marks.add(s.target)
    return marks


def _is_place(kernel: Kernel, s: ir.Let) -> bool:
    """Whether a value is a place of a unit along an axis that has several."""
    name, _, axis = s.op.partition(".")
    return name == "unit_pos" and kernel.cube_dim["xyz".index(axis)] > 1


def _block(kernel: Kernel, body: Sequence[Stmt], marks: Marks, around: str) -> None:
    """Walk a block; `around`: the word of the statement that only some units enter, if one is."""
    for s in body:
        if isinstance(s, ir.Sync) and around:
            raise KernelError(
                f"{kernel.name}: all units of a cube must reach a barrier; the `{around}` around "
                f"this one depends on the place of the unit.{rebuild.at_source(s)} Move "
                f"sync_cube() out of it."
            )
        asked, word = _asked(s)
        inside = word if any(map(marks.has, asked)) else around
        for block in rebuild.blocks_of(s):
            _block(kernel, block, marks, inside)


def _asked(s: Stmt) -> tuple[Sequence[Atom], str]:
    """What decides whether, or how often, the blocks of a statement run, and its word."""
    if isinstance(s, ir.If):
        return (s.condition,), "if"
    return ((s.start, s.stop, s.step), "for") if isinstance(s, ir.For) else ((), "")
