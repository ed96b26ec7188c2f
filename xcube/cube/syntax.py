"""Python that kernels cannot do, each with what to write instead; it is refused where a function is
decorated."""

from __future__ import annotations

import ast

from xcube.cube.state import MARK
from xcube.errors import KernelError

REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Try: ("try", "Test the condition with `if`; checked launches report what goes wrong."),
    ast.With: ("with", "Call cube.sync_cube() and its like as functions."),
    ast.AsyncWith: ("async with", "Write plain statements; use barriers to wait."),
    ast.AsyncFor: ("async for", "Write a plain for."),
    ast.AsyncFunctionDef: ("async def", "Write a plain def."),
    ast.Await: ("await", "Use barriers to wait."),
    ast.Yield: ("yield", "Return a tuple, or store to an array."),
    ast.YieldFrom: ("yield from", "Return a tuple, or store to an array."),
    ast.Global: ("global", "Pass the value as a parameter, and return it."),
    ast.Nonlocal: ("nonlocal", "Return the value, and assign it outside."),
    ast.Delete: ("del", "Leave the name; it costs nothing."),
    ast.ClassDef: ("class", "Define it outside of the kernel."),
    ast.Import: ("import", "Import at the top of the file."),
    ast.ImportFrom: ("import", "Import at the top of the file."),
    ast.Match: ("match", "Write if and elif."),
    ast.NamedExpr: (":=", "Assign in a statement of its own."),
}
if hasattr(ast, "TryStar"):
    REFUSED[ast.TryStar] = ("try", "Test the condition with `if`.")


def refused(node: ast.AST, file: str, construct: str, way: str) -> KernelError:
    """The error for what a kernel cannot do."""
    text = ast.unparse(node).splitlines()[0]
    line = getattr(node, "lineno", 0)
    return KernelError(
        f"cube: a kernel must do without `{construct}`; got it. At {file}:{line}: `{text}`. {way}"
    )


def check(definition: ast.FunctionDef, file: str, is_kernel: bool) -> None:
    """Look at a whole definition.

    Raises KernelError at the first thing that kernels cannot do.
    """
    _check_parameters(definition, file, is_kernel)
    for statement in definition.body:
        _check(statement, file, is_kernel)


def _check_parameters(definition: ast.FunctionDef, file: str, is_kernel: bool) -> None:
    arguments = definition.args
    if is_kernel and (arguments.vararg or arguments.kwarg):
        way = "Name the parameters, or pass a dataclass of arrays."
        raise refused(definition, file, "*args and **kwargs", way)


def _check(node: ast.AST, file: str, is_kernel: bool) -> None:
    if type(node) in REFUSED:
        raise refused(node, file, *REFUSED[type(node)])
    if isinstance(node, ast.FunctionDef) and node.decorator_list:
        way = "Leave the decorator away: functions inside a kernel are rewritten with it."
        raise refused(node, file, "a decorated function inside", way)
    if isinstance(node, ast.For | ast.While) and node.orelse:
        way = "Set a flag before the break, and test it behind the loop."
        raise refused(node, file, "else of a loop", way)
    if isinstance(node, ast.Return) and is_kernel and node.value is not None:
        way = "Store to an array that the launch returns: out[i] = x."
        raise refused(node, file, "return with a value", way)
    if isinstance(node, ast.Name) and node.id.startswith(MARK):
        raise refused(node, file, f"names like {MARK}", "Take another name.")
    inside = is_kernel and not isinstance(node, ast.FunctionDef)
    for child in ast.iter_child_nodes(node):
        _check(child, file, inside)


_SCOPES = (ast.FunctionDef, ast.Lambda)


def has(node: ast.AST, *kinds: type[ast.stmt]) -> bool:
    """Whether a statement holds one of these, outside of functions."""
    if isinstance(node, kinds):
        return True
    return not isinstance(node, _SCOPES) and any(
        has(child, *kinds) for child in ast.iter_child_nodes(node)
    )


def jumps(node: ast.AST) -> bool:
    """Whether a statement in a loop leaves a turn of that loop, or returns."""
    if isinstance(node, ast.For | ast.While):
        return has(node, ast.Return)
    if isinstance(node, ast.Break | ast.Continue | ast.Return):
        return True
    return not isinstance(node, _SCOPES) and any(map(jumps, ast.iter_child_nodes(node)))
