"""kernel -> kernel with other scalars: some are read from memory, where a program computes them,
and the number of cubes is given."""

from __future__ import annotations

from collections.abc import Sequence

from xcube.lowering.cube import ir, rebuild
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Kernel


def from_memory(kernel: Kernel, numbers: Sequence[int]) -> Kernel:
    """The kernel with the scalars of these numbers, in order, as the first elements of buffers that
    are appended to its own.

    >>> build = Builder("fill")
    >>> target, value = build.buffer("f32", "out"), build.scalar("f32")
    >>> build.store(target, build.place("cube_pos.x"), value)
    >>> moved = from_memory(build.finish(), [0])
    >>> len(moved.buffers), len(moved.scalars)
    (2, 0)
    """
    build = Builder(kernel.name, kernel.cube_dim, kernel.resident)
    pass_ = rebuild.Rebuilder(kernel, build)
    for buffer in kernel.buffers:
        pass_.memories["global", buffer.number] = build.buffer(buffer.dtype, buffer.access)
    held = {number: build.buffer(kernel.scalars[number].type.dtype) for number in numbers}
    for number, scalar in enumerate(kernel.scalars):
        if number not in held:
            pass_.values[scalar.number] = build.scalar(scalar.type.dtype)
    for number, buffer in held.items():
        pass_.values[kernel.scalars[number].number] = build.load(buffer, 0)
    pass_.block(kernel.body)
    return build.finish()


def asks_count(kernel: Kernel) -> bool:
    """Whether a kernel asks how many cubes there are."""
    return any(isinstance(s, ir.Let) and s.op == "cube_count.x" for s in rebuild.every(kernel.body))


def count_given(kernel: Kernel) -> Kernel:
    """The kernel with the number of cubes as its last scalar, for targets that do not know it."""
    build = Builder(kernel.name, kernel.cube_dim, kernel.resident)
    pass_ = _Counted(kernel, build)
    pass_.parameters()
    pass_.count = build.scalar()
    pass_.block(kernel.body)
    return build.finish()


class _Counted(rebuild.Rebuilder):
    count: Value

    def let(self, s: ir.Let) -> None:
        if s.op == "cube_count.x":
            self.values[s.target.number] = self.count
        else:
            super().let(s)
