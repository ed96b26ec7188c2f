"""Functions that return from inside branches and loops as functions that return at their end: the
statements behind a branch that returns move into the other branch, and a return inside a loop is a
flag and a break."""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence

from xcube.cube.loops import RESULT

RETURNED = "__returned"

Block = list[ast.stmt]


def single_exit(body: Sequence[ast.stmt]) -> Block:
    r"""The statements of a function with one return, the last of them.

    >>> body = ast.parse("if c:\n  return 1\nreturn 2").body
    >>> print("\n".join(map(ast.unparse, single_exit(body))))
    if c:
        __result = 1
    else:
        __result = 2
    return __result
    """
    if not any(_returns(s) and not isinstance(s, ast.Return) for s in body):
        return list(body)
    block = _tail(_out_of_loops(body))
    end = ast.Return(ast.Name(RESULT, ast.Load()))
    return [*block, _like(end, body[-1])]


def _returns(node: ast.AST) -> bool:
    """Whether a statement returns somewhere inside."""
    if isinstance(node, ast.Return):
        return True
    if isinstance(node, ast.FunctionDef | ast.Lambda):
        return False
    return any(map(_returns, ast.iter_child_nodes(node)))


def _like(new: ast.stmt, old: ast.stmt) -> ast.stmt:
    return ast.fix_missing_locations(ast.copy_location(new, old))


def _assign(name: str, value: ast.expr, old: ast.stmt) -> ast.stmt:
    return _like(ast.Assign([ast.Name(name, ast.Store())], value), old)


def _tail(body: Sequence[ast.stmt]) -> Block:
    """The block with its result assigned where it ends."""
    for number, s in enumerate(body):
        if isinstance(s, ast.Return):
            return [*body[:number], _assign(RESULT, s.value or ast.Constant(None), s)]
        if isinstance(s, ast.If) and _returns(s):
            rest = body[number + 1 :]
            made = copy.copy(s)
            made.body = _tail([*s.body, *rest])
            made.orelse = _tail([*s.orelse, *copy.deepcopy(rest)])
            if not s.orelse and not rest:
                made.orelse = [_assign(RESULT, ast.Constant(None), s)]
            return [*body[:number], made]
    if not body:
        return []
    return [*body, _assign(RESULT, ast.Constant(None), body[-1])]


def _out_of_loops(body: Sequence[ast.stmt]) -> Block:
    """The block whose loops do not return: they break, and what is behind them returns."""
    block: Block = []
    for s in body:
        if isinstance(s, ast.For | ast.While) and _returns(s):
            block.append(_assign(RETURNED, ast.Constant(False), s))
            block.append(_breaking(s))
            end = ast.Return(ast.Name(RESULT, ast.Load()))
            block.append(_if_returned(end, s))
        elif isinstance(s, ast.If) and _returns(s):
            made = copy.copy(s)
            made.body, made.orelse = _out_of_loops(s.body), _out_of_loops(s.orelse)
            block.append(made)
        else:
            block.append(s)
    return block


def _if_returned(then: ast.stmt, old: ast.stmt) -> ast.stmt:
    return _like(ast.If(ast.Name(RETURNED, ast.Load()), [then], []), old)


def _breaking(loop: ast.For | ast.While) -> ast.stmt:
    """A loop that breaks where it returned."""
    made = copy.copy(loop)
    made.body = _broken(loop.body)
    return made


def _broken(body: Sequence[ast.stmt]) -> Block:
    block: Block = []
    for s in body:
        if isinstance(s, ast.Return):
            block.append(_assign(RETURNED, ast.Constant(True), s))
            block.append(_assign(RESULT, s.value or ast.Constant(None), s))
            block.append(_like(ast.Break(), s))
        elif isinstance(s, ast.If) and _returns(s):
            made = copy.copy(s)
            made.body, made.orelse = _broken(s.body), _broken(s.orelse)
            block.append(made)
        elif isinstance(s, ast.For | ast.While) and _returns(s):
            block += [_breaking(s), _if_returned(ast.Break(), s)]
        else:
            block.append(s)
    return block
