"""A Python function becomes one that builds a kernel: what Python would decide by truth, jump to or
walk through is handed to `flow.py`, under the name `__cube`; the rest stays as it is, and so do
lines and columns, so that tracebacks and messages show the user's text."""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
import textwrap
import types
from collections.abc import Callable, Sequence
from typing import Any

from xcube.cube.exits import single_exit
from xcube.cube.flow import Flow
from xcube.cube.liveness import Liveness, liveness
from xcube.cube.state import MARK, short
from xcube.cube.syntax import check, has, jumps, refused
from xcube.errors import KernelError

Rewritten = Callable[..., Any]
MADE = "__made"  # the function inside its maker, where its own name is a global or free one


def rewritten(function: types.FunctionType, is_kernel: bool) -> Rewritten:
    """The function that expands a kernel, or a function that kernels call.

    Raises KernelError if its text cannot be found, or holds what kernels cannot do.
    """
    definition, names = parsed(function), function.__code__.co_freevars
    file = short(function.__code__.co_filename)
    check(definition, file, is_kernel)
    made = transformed(definition, file, is_kernel)
    made.name = MADE
    maker = ast.FunctionDef("__maker", _parameters((MARK, *names)), [made], [], lineno=1)
    _into_maker(maker, MADE)
    module = ast.Module([maker], [])
    code = compile(ast.fix_missing_locations(module), function.__code__.co_filename, "exec")
    inner = _code_of(_code_of(code, "__maker"), MADE).replace(co_name=function.__name__)
    cells = dict(zip(names, function.__closure__ or (), strict=True))
    cells[MARK] = types.CellType(Flow(file))
    closure = tuple([cells[name] for name in inner.co_freevars])
    found = types.FunctionType(
        inner, function.__globals__, function.__name__, function.__defaults__, closure
    )
    found.__kwdefaults__ = function.__kwdefaults__
    return found


def _into_maker(maker: ast.FunctionDef, name: str) -> None:
    """End the function whose parameters are the free variables of the inner one."""
    maker.body.append(ast.Return(ast.Name(name, ast.Load())))


def _parameters(names: Sequence[str]) -> ast.arguments:
    arguments = [ast.arg(name) for name in names]
    return ast.arguments([], arguments, None, [], [], None, [])


def _code_of(code: types.CodeType, name: str) -> types.CodeType:
    found = [c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name]
    return found[0]


# the text -------------------------------------------------------------------------------------


def parsed(function: types.FunctionType) -> ast.FunctionDef:
    """The syntax tree of a function, with the lines and columns of its file.

    Raises KernelError if the text cannot be found.
    """
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)[code.co_firstlineno - 1 :]
    if not lines or function.__name__ == "<lambda>":
        what = "a lambda" if lines else f"no text in {code.co_filename}"
        raise KernelError(
            f"cube: a kernel must be a function whose text can be read, written with def; got "
            f"{what} for {function.__name__}. Define it in a file or a notebook's cell."
        )
    text = "".join(inspect.getblock(lines))
    flat = textwrap.dedent(text)
    definition = next(s for s in ast.parse(flat).body if isinstance(s, ast.FunctionDef))
    ast.increment_lineno(definition, code.co_firstlineno - 1)
    _indent(definition, len(text) - len(text.lstrip()))
    return definition


def _indent(tree: ast.AST, columns: int) -> None:
    for node in ast.walk(tree):
        if hasattr(node, "col_offset"):
            node.col_offset += columns  # type: ignore[attr-defined]
            node.end_col_offset += columns  # type: ignore[attr-defined]


# the tree -------------------------------------------------------------------------------------


def transformed(definition: ast.FunctionDef, file: str, is_kernel: bool) -> ast.FunctionDef:
    """The definition whose body builds what the old one did."""
    body = definition.body if is_kernel else single_exit(definition.body)
    writer = Writer(file, is_kernel, liveness(body))
    made = copy.copy(definition)
    made.body, made.decorator_list, made.returns = writer.block(body), [], None
    made.args = _plain(definition.args)
    return ast.fix_missing_locations(made)


def _plain(arguments: ast.arguments) -> ast.arguments:
    """Parameters without annotations; default values are those of the function itself."""
    plain = copy.deepcopy(arguments)
    every = [*plain.posonlyargs, *plain.args, *plain.kwonlyargs, plain.vararg, plain.kwarg]
    for argument in every:
        if argument is not None:
            argument.annotation = None
    return plain


def _call(method: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(_name(MARK), method, ast.Load()), list(args), [])


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _locals() -> ast.expr:
    return ast.Call(_name("locals"), [], [])


def _names(names: Sequence[str]) -> ast.expr:
    return ast.Tuple([ast.Constant(name) for name in names], ast.Load())


def _method(handle: str, method: str, *args: ast.expr) -> ast.expr:
    return ast.Call(ast.Attribute(_name(handle), method, ast.Load()), list(args), [])


def _set(names: Sequence[str], value: ast.expr) -> list[ast.stmt]:
    """`[x, y] = value`; nothing where there are no names."""
    if not names:
        return []
    return [ast.Assign([ast.List([ast.Name(n, ast.Store()) for n in names], ast.Store())], value)]


def _thunk(value: ast.expr) -> ast.expr:
    nothing = ast.arguments([], [], None, [], [], None, [])
    return ast.copy_location(ast.Lambda(nothing, value), value)


class Expressions(ast.NodeTransformer):
    """Expressions that Python decides by truth, and calls."""

    def __init__(self, file: str) -> None:
        self.file = file

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        first, *others = [self.visit(value) for value in node.values]
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        return ast.copy_location(_call(name, first, *map(_thunk, others)), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.copy_location(_call("not_", node.operand), node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        test, then, orelse = [self.visit(part) for part in (node.test, node.body, node.orelse)]
        return ast.copy_location(_call("choose", test, _thunk(then), _thunk(orelse)), node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) == 1:
            return ast.copy_location(_comparison(node), node)
        links = [
            ast.Tuple([ast.Constant(_symbol(op, node, self.file)), _thunk(operand)], ast.Load())
            for op, operand in zip(node.ops, node.comparators, strict=True)
        ]
        return ast.copy_location(_call("chain", node.left, *links), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.func = ast.copy_location(_call("callee", node.func), node.func)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        method = "items" if isinstance(node.ctx, ast.Load) else "holder"
        node.value = ast.copy_location(_call(method, node.value), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            node.value = ast.copy_location(_call("owner", node.value), node)
        return node


def _comparison(node: ast.Compare) -> ast.expr:
    method = {ast.Is: "is_", ast.IsNot: "is_", ast.In: "contains", ast.NotIn: "contains"}
    (op,), (other,) = node.ops, node.comparators
    if type(op) not in method:
        return node
    found = _call(method[type(op)], node.left, other)
    return found if isinstance(op, ast.Is | ast.In) else ast.UnaryOp(ast.Not(), found)


_SYMBOLS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


def _symbol(op: ast.cmpop, node: ast.Compare, file: str) -> str:
    if type(op) not in _SYMBOLS:
        raise refused(node, file, "a chain of `is` or `in`", "Write the comparisons one by one.")
    return _SYMBOLS[type(op)]


class Writer(Expressions):
    """Statements of one function. `depth`: how many loops of Python the statement at hand is in;
    `loops`: the handles of the user's loops around it."""

    def __init__(self, file: str, is_kernel: bool, live: Liveness) -> None:
        super().__init__(file)
        self.is_kernel, self.live = is_kernel, live
        self.depth, self.count = 0, 0
        self.loops: list[str] = []

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Statements, each with its line before it."""
        written: list[ast.stmt] = []
        for statement in body:
            line = ast.Expr(_call("line", ast.Constant(statement.lineno)))
            made = self.visit(statement)
            for new in (line, *(made if isinstance(made, list) else [made])):
                written.append(_filled(_at(new, statement)))
        return written or [ast.Pass()]

    def _handle(self) -> str:
        self.count += 1
        return f"__{self.count}"

    def _inner(self, body: Sequence[ast.stmt], loop: str | None = None) -> list[ast.stmt]:
        self.depth += 1
        self.loops += [loop] if loop else []
        written = self.block(body)
        self.depth -= 1
        del self.loops[len(self.loops) - (1 if loop else 0) :]
        return written

    def _out(self) -> ast.stmt:
        """Leave the innermost loop of Python's, or the function."""
        return ast.Continue() if self.depth else ast.Return(None)

    def _after_jumps(self, node: ast.stmt) -> list[ast.stmt]:
        if not has(node, ast.Break, ast.Continue, ast.Return):
            return []
        return [ast.If(_call("is_dead"), [self._out()], [])]

    # compound statements

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        handle, side = self._handle(), self._handle()
        names, entry = self.live.names[node], self.live.entry[node]
        start = _call("branches", self.visit(node.test), _names(names), _names(entry))
        choice = ast.If(_name(side), self._inner(node.body), self._inner(node.orelse))
        turn = [
            *_set(entry, _method(handle, "begin", _locals())),
            choice,
            ast.Expr(_method(handle, "end", _locals())),
        ]
        return [
            ast.Assign([ast.Name(handle, ast.Store())], start),
            ast.For(ast.Name(side, ast.Store()), _name(handle), turn, []),
            *_set(names, _method(handle, "merged", _locals())),
            *self._after_jumps(node),
        ]

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        handle, item = self._handle(), self._handle()
        names, lost = self.live.names[node], self.live.lost[node]
        leaves = any(jumps(s) for s in node.body)
        given = (_names(names), _names(lost), ast.Constant(leaves), _locals())
        turn = [
            *_set(names, _method(handle, "begin", _locals())),
            ast.Assign([self.visit(node.target)], _name(item)),
            *self._inner(node.body, handle),
            ast.Expr(_method(handle, "end", _locals())),
        ]
        return [
            ast.Assign(
                [ast.Name(handle, ast.Store())], _call("loop", self.visit(node.iter), *given)
            ),
            ast.For(ast.Name(item, ast.Store()), _name(handle), turn, []),
            *_set([*names, *lost], _method(handle, "merged", _locals())),
            *self._after_jumps(node),
        ]

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        handle, turn = self._handle(), self._handle()
        names = self.live.names[node]
        body = [*self._inner(node.body, handle), ast.Expr(_method(handle, "end", _locals()))]
        once = [
            *_set(names, _method(handle, "begin", _locals())),
            ast.If(_method(handle, "test", self.visit(node.test)), body, []),
        ]
        start = _call("while_", _names(names), _locals())
        return [
            ast.Assign([ast.Name(handle, ast.Store())], start),
            ast.For(ast.Name(turn, ast.Store()), _name(handle), once, []),
            *_set(names, _method(handle, "merged", _locals())),
            *self._after_jumps(node),
        ]

    # jumps

    def visit_Break(self, node: ast.Break) -> list[ast.stmt]:
        return self._leave("break")

    def visit_Continue(self, node: ast.Continue) -> list[ast.stmt]:
        return self._leave("continue")

    def _leave(self, jump: str) -> list[ast.stmt]:
        leave = _method(self.loops[-1], "leave", ast.Constant(jump), _locals())
        return [ast.Expr(leave), self._out()]

    def visit_Return(self, node: ast.Return) -> Any:
        if not self.is_kernel or not self.depth:
            return self.generic_visit(node)
        return [ast.Expr(_call("return_")), self._out()]

    # simple statements

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        made = transformed(node, self.file, is_kernel=False)
        made.args.defaults = [self.visit(value) for value in made.args.defaults]
        return made

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        message = node.msg or ast.Constant(f"assert {ast.unparse(node.test)}")
        test = self.visit(node.test)
        return ast.Expr(_call("assert_", test, _thunk(self.visit(message))))

    def visit_Raise(self, node: ast.Raise) -> list[ast.stmt]:
        self.generic_visit(node)
        return [ast.Expr(_call("raises")), node]

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return [node]
        return [ast.Expr(_call("grown", _name(node.target.id))), node]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None:
            return ast.Pass()
        value = _call("annotated", self.visit(node.value), self.visit(node.annotation))
        return ast.Assign([self.visit(node.target)], value)


def _at(new: ast.stmt, old: ast.stmt) -> ast.stmt:
    """A statement with the place where the one begins that it stands for, if it has none."""
    if not hasattr(new, "lineno"):
        new.lineno = new.end_lineno = old.lineno
        new.col_offset = new.end_col_offset = old.col_offset
    return new


def _filled(tree: ast.stmt) -> ast.stmt:
    """The statement whose parts are all somewhere: where the part around them begins."""
    _fill(tree, tree.lineno, tree.col_offset)
    return tree


def _fill(node: ast.AST, line: int, column: int) -> None:
    if "lineno" in node._attributes and not hasattr(node, "lineno"):
        node.lineno = node.end_lineno = line  # type: ignore[attr-defined]
        node.col_offset = node.end_col_offset = column  # type: ignore[attr-defined]
    line, column = getattr(node, "lineno", line), getattr(node, "col_offset", column)
    for child in ast.iter_child_nodes(node):
        _fill(child, line, column)
