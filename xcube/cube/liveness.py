"""Which names a branch or a loop of a function must hand on: those that it assigns and that are
read behind it, or, for a loop, in its next turn. A backward walk over the syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

Names = frozenset[str]
NONE: Names = frozenset()

Functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Loop:
    """What is live where `break` and `continue` of a loop go."""

    after: Names
    head: Names


@dataclass
class Liveness:
    """The walk. `names`: what an `if` or a loop hands on; `entry`: of an `if`, those and what one
    side assigns and the other one reads; `lost`: targets of a `for` that are read behind it."""

    captured: Names = NONE
    names: dict[ast.stmt, tuple[str, ...]] = field(default_factory=dict)
    entry: dict[ast.stmt, tuple[str, ...]] = field(default_factory=dict)
    lost: dict[ast.stmt, tuple[str, ...]] = field(default_factory=dict)

    def block(self, body: Sequence[ast.stmt], after: Names, loop: Loop | None = None) -> Names:
        """What is live before some statements."""
        for statement in reversed(body):
            after = self.statement(statement, after, loop)
        return after

    def statement(self, s: ast.stmt, after: Names, loop: Loop | None) -> Names:
        """What is live before a statement."""
        if isinstance(s, ast.If):
            then, orelse = [self.block(block, after, loop) for block in (s.body, s.orelse)]
            self.names[s] = self._ordered(assigned([s]), after)
            self.entry[s] = self._ordered(assigned([s]), after | orelse)
            return then | orelse | loaded(s.test)
        if isinstance(s, ast.For):
            return self._for(s, after)
        if isinstance(s, ast.While):
            return self._while(s, after)
        if isinstance(s, ast.Return):
            return loaded(s)
        if isinstance(s, ast.Break | ast.Continue) and loop is not None:
            return loop.after if isinstance(s, ast.Break) else loop.head
        if isinstance(s, ast.AugAssign):
            return after | loaded(s) | stored(s)
        return (after - stored(s)) | loaded(s)

    def _for(self, s: ast.For, after: Names) -> Names:
        targets, head = stored(s.target), after
        while True:
            wider = after | (self.block(s.body, head, Loop(after, head)) - targets)
            if wider == head:
                break
            head = wider
        self.names[s] = self._ordered(assigned(s.body) - targets, head)
        self.lost[s] = self._ordered(targets, after)
        return head | loaded(s.iter)

    def _while(self, s: ast.While, after: Names) -> Names:
        head = after | loaded(s.test)
        while True:
            wider = head | self.block(s.body, head, Loop(after, head))
            if wider == head:
                break
            head = wider
        self.names[s] = self._ordered(assigned(s.body), head)
        return head

    def _ordered(self, names: Names, live: Names) -> tuple[str, ...]:
        return tuple(sorted(names & (live | self.captured)))


def liveness(body: Sequence[ast.stmt]) -> Liveness:
    r"""The names that branches and loops of a function's body hand on.

    >>> body = ast.parse("if c:\n  x = 1\n  y = 2\nz = x").body
    >>> list(liveness(body).names.values())
    [('x',)]
    """
    inner = [node for s in body for node in ast.walk(s) if isinstance(node, Functions)]
    found = Liveness(frozenset().union(*map(loaded, inner)))
    found.block(body, NONE)
    return found


def loaded(node: ast.AST) -> Names:
    """Names that are read somewhere inside."""
    return frozenset(_names(node, ast.Load))


def stored(node: ast.AST) -> Names:
    """Names that a statement or target assigns, those inside its blocks included."""
    return frozenset(_names(node, ast.Store))


def assigned(body: Iterable[ast.stmt]) -> Names:
    """Names that statements assign."""
    return NONE.union(*map(stored, body))


def _names(node: ast.AST, context: type[ast.expr_context]) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, context):
        yield node.id
    if isinstance(node, ast.FunctionDef) and context is ast.Store:
        yield node.name
        return
    scopes = (*_COMPREHENSIONS, ast.Lambda)
    if isinstance(node, scopes) and context is ast.Store:
        return
    for child in ast.iter_child_nodes(node):
        yield from _names(child, context)


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
