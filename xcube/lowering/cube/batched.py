"""kernel -> kernel over a batch: the examples are an outermost axis of the grid. An example's cubes
find their own part of the buffers that are batched, and share the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from xcube.errors import KernelError
from xcube.lowering.cube import ir, rebuild
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Atom, Buffer, Kernel, Stmt


def batched(kernel: Kernel, flags: Sequence[bool]) -> Kernel:
    """The kernel over a batch; `flags` says of each buffer whether it is batched. Scalars are
    appended: the cubes of one example, then the elements that each batched buffer has of one.

    Raises KernelError if the kernel reads a buffer by boxes.

    >>> build = Builder("double")
    >>> source, target = build.buffer("f32"), build.buffer("f32", "out")
    >>> at = build.place("cube_pos.x")
    >>> build.store(target, at, build.load(source, at) * 2)
    >>> len(batched(build.finish(), [True, True]).scalars)
    3
    """
    if kernel.maps:
        raise KernelError(
            f"vmap: a kernel that is mapped must read its buffers by elements; {kernel.name} reads "
            f"them by boxes (CopyTile). Write the batch as an axis of its grid."
        )
    build = Builder(kernel.name, kernel.cube_dim, kernel.resident)
    pass_ = _Batcher(kernel, build, flags)
    pass_.block(kernel.body)
    return build.finish()


class _Batcher(rebuild.Rebuilder):
    def __init__(self, kernel: Kernel, build: Builder, flags: Sequence[bool]) -> None:
        super().__init__(kernel, build)
        self.parameters()
        self.cubes = build.scalar()
        pairs = zip(kernel.buffers, flags, strict=True)
        sizes = {buffer.number: build.scalar() for buffer, flag in pairs if flag}
        cube = build.place("cube_pos.x")
        self.cube, example = cube % self.cubes, cube // self.cubes
        self.offsets = {number: example * size for number, size in sizes.items()}

    def let(self, s: ir.Let) -> None:
        own = {"cube_pos.x": self.cube, "cube_count.x": self.cubes}.get(s.op)
        if own is None:
            super().let(s)
        else:
            self.values[s.target.number] = own

    def load(self, s: ir.Load) -> None:
        self.copy(self._moved(s, s.buffer, s.index))

    def store(self, s: ir.Store) -> None:
        self.copy(self._moved(s, s.buffer, s.index))

    def statement(self, s: Stmt) -> None:
        if isinstance(s, ir.CopyAsync):
            s = self._moved(s, s.source, s.index)
        elif isinstance(s, ir.Atomic | ir.CompareExchange):
            s = self._moved(s, s.buffer, s.index)
        super().statement(s)

    def _moved(self, s: Stmt, buffer: Buffer, index: Atom) -> Stmt:
        """The statement with its index in the batch; the new name of it is known already."""
        offset = self.offsets.get(buffer.number) if buffer.space == "global" else None
        if offset is None:
            return s
        moved: Value = self.value(index) + offset
        if not isinstance(moved.atom, ir.Name):
            return dataclasses.replace(s, index=moved.atom)
        stand_in = ir.Name(-1 - moved.atom.number, moved.type)
        self.values[stand_in.number] = moved
        return dataclasses.replace(s, index=stand_in)
