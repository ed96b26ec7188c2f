"""Kernels made ready for differentiation: early exits become conditions, and reductions of lines
that are no sums become operations on their lanes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NoReturn

from xcube.errors import TraceError
from xcube.lowering.cube import ir, rebuild
from xcube.lowering.cube.build import Builder
from xcube.lowering.cube.derivative_analysis import Marks, disguised
from xcube.lowering.cube.ir import Const, Kernel, Name, Stmt, Type

Block = tuple[Stmt, ...]

OLD = "the result of an atomic operation depends on the order of units"

_BOOL = Type("bool")
_FOLDS = ("reduce_mul", "reduce_min", "reduce_max")


def refuse(
    kernel: Kernel, s: Stmt | None, reason: str, way_out: str, near: str | None = None
) -> NoReturn:
    """The error for a kernel that has no derivative; `near`: the line of what came before, for
    statements that have none."""
    where = rebuild.at_source(s, near)
    raise TraceError(f"cube.differentiable: {reason}, in kernel {kernel.name}.{where} {way_out}")


def refuse_disguised(kernel: Kernel, tangents: Marks) -> None:
    """Raises TraceError if a value is made of the bits of one that has a tangent."""
    if (s := disguised(kernel, tangents)) is not None:
        reason = "a float is made of the bits of another, whose derivative cannot be seen"
        refuse(kernel, s, reason, "Use a function of cube, or give the call a rule: custom_vjp.")


def normal(kernel: Kernel) -> Kernel:
    """The kernel without returns, continues and breaks, but for those of loops that run until a
    break."""
    build = Builder(kernel.name, kernel.cube_dim, kernel.resident)
    build.keeps_calls = True
    pass_ = _Folds(kernel, build)
    pass_.parameters()
    pass_.block(kernel.body)
    plain = build.finish()
    exits = _Exits(plain)
    return dataclasses.replace(plain, body=exits.body(plain.body))


class _Folds(rebuild.Rebuilder):
    """Products and extrema of a line, lane by lane."""

    def let(self, s: ir.Let) -> None:
        if s.op not in _FOLDS or s.target.type.dtype not in ir.FLOATS:
            super().let(s)
            return
        line, op = self.value(s.args[0]), s.op.removeprefix("reduce_")
        parts = [self.build.extract(line, lane) for lane in range(line.lanes)]
        while len(parts) > 1:
            half = len(parts) // 2
            pairs = zip(parts[:half], parts[half:], strict=False)
            parts = [self.build.op(op, x, y) for x, y in pairs] + parts[2 * half :]
        self.values[s.target.number] = parts[0]


class _Exits:
    """Rewrites blocks; a flag of a kind says whether its units or turns still run."""

    def __init__(self, kernel: Kernel) -> None:
        numbers = [n.number for n in kernel.scalars]
        for s in rebuild.every(kernel.body):
            found = (getattr(s, name) for name in s.__dataclass_fields__)
            numbers += [value.number for value in found if isinstance(value, Name)]
        self.next = max(numbers, default=-1) + 1

    def body(self, body: Block) -> Block:
        """The body of a unit, without returns."""
        return self._without(ir.Return, self._loops(body))

    def _loops(self, body: Block) -> Block:
        """Loops without breaks and continues, innermost first."""
        found: list[Stmt] = []
        for s in body:
            if isinstance(s, ir.If):
                s = dataclasses.replace(s, then=self._loops(s.then), orelse=self._loops(s.orelse))
            elif isinstance(s, ir.Loop):
                s = dataclasses.replace(s, body=self._loops(s.body))
            elif isinstance(s, ir.For):
                inner = self._without(ir.Continue, self._loops(s.body))
                if _leaves(inner, ir.Break):
                    flag = self._name()
                    found.append(ir.Declare(flag, Const(True, _BOOL)))
                    inner = self._while(flag, self._flagged(ir.Break, inner, flag))
                s = dataclasses.replace(s, body=inner)
            found.append(s)
        return tuple(found)

    def _without(self, kind: type, body: Block) -> Block:
        """A block without exits of a kind: what follows one is the other branch of its condition
        where there is but one, as in a guard at the top."""
        if not _leaves(body, kind):
            return body
        at = next(k for k, s in enumerate(body) if _leaves((s,), kind))
        s, rest = body[at], body[at + 1 :]
        if isinstance(s, kind):
            return body[:at]
        if isinstance(s, ir.If):
            for mine, other in (("then", "orelse"), ("orelse", "then")):
                branch, across = getattr(s, mine), getattr(s, other)
                ends = bool(branch) and isinstance(branch[-1], kind)
                if ends and not _leaves((*branch[:-1], *across), kind):
                    follows = self._without(kind, (*across, *rest))
                    return (
                        *body[:at],
                        dataclasses.replace(s, **{mine: branch[:-1], other: follows}),
                    )
        flag = self._name()
        return (ir.Declare(flag, Const(True, _BOOL)), *self._flagged(kind, body, flag))

    def _flagged(self, kind: type, body: Block, flag: Name) -> Block:
        """A block in which exits lower a flag, behind which nothing runs."""
        for at, s in enumerate(body):
            if isinstance(s, kind):
                return (*body[:at], ir.Assign(flag, Const(False, _BOOL)))
            if _leaves((s,), kind):
                rest = self._flagged(kind, body[at + 1 :], flag)
                return (*body[:at], self._inside(kind, s, flag), *self._while(flag, rest))
        return body

    def _inside(self, kind: type, s: Stmt, flag: Name) -> Stmt:
        if isinstance(s, ir.If):
            then, orelse = (self._flagged(kind, block, flag) for block in (s.then, s.orelse))
            return dataclasses.replace(s, then=then, orelse=orelse)
        assert isinstance(s, ir.For | ir.Loop), "only these hold statements"
        inner = self._while(flag, self._flagged(kind, s.body, flag))
        if isinstance(s, ir.Loop):
            inner = (*inner[:-1], dataclasses.replace(inner[-1], orelse=(ir.Break(),)))
        return dataclasses.replace(s, body=inner)

    def _while(self, flag: Name, body: Block) -> Block:
        if not body:
            return ()
        holds = self._name()
        return ir.Read(holds, flag), ir.If(holds, body)

    def _name(self) -> Name:
        self.next += 1
        return Name(self.next - 1, _BOOL)


def _leaves(body: Sequence[Stmt], kind: type) -> bool:
    """Whether statements hold an exit of a kind that leaves what is around them."""
    for s in body:
        if isinstance(s, kind):
            return True
        if isinstance(s, ir.For | ir.Loop) and kind is not ir.Return:
            continue
        if any(_leaves(block, kind) for block in rebuild.blocks_of(s)):
            return True
    return False
