"""Looking into programs while they run: `print`, `log`, `callback` and `breakpoint` see the values
of traced arrays, under every transform, and change nothing. A transform that runs a part of a
program twice, or drops it, does so to them too; vmap calls them once for each example."""

from __future__ import annotations

import bdb
import builtins
import contextlib
import logging
import pdb
import string
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from xcube import tree
from xcube.callbacks import FlatCallback
from xcube.ir import Source, at_user_line, user_source
from xcube.primitives.callback import HostFunction, debug_callback_p
from xcube.trace import Tracer, bind
from xcube.transforms.arguments import check_callable, is_array_like, to_array

_LOGGER = logging.getLogger("xcube.debug")


@dataclass(frozen=True, eq=False)
class _Watcher:
    """A function of operands whose result is dropped."""

    call: FlatCallback

    def __call__(self, operands: Sequence[np.ndarray]) -> tuple[()]:
        self.call.apply(operands)
        return ()

    @property
    def __name__(self) -> str:
        return self.call.__name__


def _watch(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], ordered: bool
) -> None:
    leaves, treedef = tree.flatten((args, kwargs))
    fixed = {n: leaf for n, leaf in enumerate(leaves) if not _is_operand(leaf)}
    arrays = [to_array.convert(leaf) for n, leaf in enumerate(leaves) if n not in fixed]
    watcher = _Watcher(FlatCallback(function, treedef, fixed))
    host = HostFunction("debug", watcher, source=user_source())
    bind(debug_callback_p, *arrays, function=host, results=(), ordered=bool(ordered))


def _is_operand(leaf: Any) -> bool:
    return is_array_like(leaf) and not isinstance(leaf, type)


def callback(
    callback: Callable[..., Any] | None = None,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    **kwargs: Any,
) -> Any:
    """Call a function of Python on the values of args and kwargs, pytrees of arrays and of anything
    else, when the program comes to it; what it returns is dropped.

    Without a function, the options come first: `callback(ordered=True)(function, *args)`. Calls
    keep the order in which they were written, `ordered` or not. `partitioned` is for arrays spread
    over devices and changes nothing here. Raises TypeError if there is nothing to call.

    >>> import xcube
    >>> seen = []
    >>> @xcube.jit
    ... def double(x):
    ...     callback(seen.append, x)
    ...     return 2 * x
    >>> double(3), seen
    (Array(6, dtype=int32, weak_type=True), [Array(3, dtype=int32)])
    """

    def watch(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        check_callable("debug.callback", function)
        _watch(function, args, kwargs, ordered)

    if callback is not None:
        return watch(callback, *args, **kwargs)
    _check_two_calls("callback", args, kwargs)
    return watch


def _check_two_calls(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if args or kwargs:
        raise TypeError(
            f"debug.{name}: without its first argument it takes options only; got args={args}, "
            f"kwargs={kwargs}.{at_user_line()}"
        )


# print ----------------------------------------------------------------------------------------


class _Fields(string.Formatter):
    """Reads a format and refuses arguments that it does not use. `where`: the end of messages."""

    def __init__(self, where: str) -> None:
        self.where = where

    def format_field(self, value: Any, format_spec: str) -> str:
        return ""

    def check_unused_args(
        self, used_args: Sequence[int | str], args: Sequence[Any], kwargs: Any
    ) -> None:
        unused = [str(n) for n in range(len(args)) if n not in used_args]
        unused += [name for name in kwargs if name not in used_args]
        if unused:
            raise ValueError(
                f"debug.print: every argument must have a field in the format; got none for "
                f"{', '.join(unused)}.{self.where} Write fields like {{x}}, and pass the "
                f"format as a plain string, not as an f-string."
            )


@dataclass(frozen=True)
class _Line:
    """A line of text to come, with NumPy's print options of the time when it was written."""

    format: str
    options: dict[str, Any]
    write: Callable[[str], Any]

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if _has_fields(self.format):
            with np.printoptions(**self.options):
                return self.write(self.format.format(*args, **kwargs))
        return self.write(" ".join([self.format, *map(str, args)]))

    @property
    def __name__(self) -> str:
        return repr(self.format)


def _has_fields(format: str) -> bool:
    return any(field is not None for _, field, *_ in string.Formatter().parse(format))


def _printer(
    name: str,
    write: Callable[[Source | None], Callable[[str], Any]],
    ordered: bool,
    skip_format_check: bool,
) -> Callable[..., None]:
    def watch(fmt: str, *args: Any, **kwargs: Any) -> None:
        if not isinstance(fmt, str):
            raise TypeError(
                f"debug.{name}: the format must be a string; got {type(fmt).__name__}."
                f"{at_user_line()}"
            )
        if not skip_format_check:
            _Fields(at_user_line()).format(fmt, *args, **kwargs)
        line = _Line(fmt, dict(np.get_printoptions()), write(user_source()))
        _watch(line, args, kwargs, ordered)

    return watch


def print(
    fmt: str | None = None,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    skip_format_check: bool = False,
    **kwargs: Any,
) -> Any:
    """Print `fmt.format(*args, **kwargs)` when the program comes to it, with the values of arrays
    in place of tracers.

    Without a format, the options come first: `print(ordered=True)("x is {x}", x=x)`. The format
    is checked when it is traced. With `skip_format_check`, a format without fields is followed by
    the arguments. Raises ValueError for arguments without a field (that of an f-string would be
    such), IndexError or KeyError for fields without an argument.

    >>> import xcube
    >>> @xcube.jit
    ... def double(x):
    ...     print("x is {x:.2f}", x=x)
    ...     return 2 * x
    >>> y = double(1.5)
    x is 1.50
    """
    watch = _printer("print", lambda source: builtins.print, ordered, skip_format_check)
    if fmt is not None:
        return watch(fmt, *args, **kwargs)
    _check_two_calls("print", args, kwargs)
    return watch


def log(
    fmt: str | None = None,
    *args: Any,
    ordered: bool = False,
    partitioned: bool = False,
    skip_format_check: bool = False,
    **kwargs: Any,
) -> Any:
    """What `print` prints, as a record of level INFO of the logger "xcube.debug", which names the
    line of the call.

    >>> log("x is {}", 3)
    """
    watch = _printer("log", _recorder, ordered, skip_format_check)
    if fmt is not None:
        return watch(fmt, *args, **kwargs)
    _check_two_calls("log", args, kwargs)
    return watch


def _recorder(source: Source | None) -> Callable[[str], None]:
    file, line, function = source or ("", 0, "")

    def record(message: str) -> None:
        if _LOGGER.isEnabledFor(logging.INFO):
            _LOGGER.handle(
                _LOGGER.makeRecord(
                    _LOGGER.name, logging.INFO, file, line, message, (), None, function
                )
            )

    return record


# breakpoint -----------------------------------------------------------------------------------


class _Debugger(pdb.Pdb):
    """Python's debugger, which remembers whether the user quit."""

    has_quit = False

    def do_quit(self, arg: str) -> Any:
        self.has_quit = True
        return super().do_quit(arg)

    do_q = do_exit = do_EOF = do_quit


@dataclass(frozen=True)
class _Stop:
    """Opens the debugger at a line, where the names of that time have their values of now."""

    source: Source
    globals: dict[str, Any]
    locals: dict[str, Any]
    stdin: IO[str] | None
    stdout: IO[str] | None

    def __call__(self, values: dict[str, Any]) -> None:
        place = compile("\n" * (self.source.line - 1) + "pass", self.source.file, "exec")
        debugger = _Debugger(stdin=self.stdin, stdout=self.stdout, nosigint=True)
        if self.stdin is not None:
            debugger.use_rawinput = False
        with _kept_trace_function():
            debugger.run(place, dict(self.globals), {**self.locals, **values})
        if debugger.has_quit:
            raise bdb.BdbQuit


@contextlib.contextmanager
def _kept_trace_function() -> Iterator[None]:
    """A debugger takes the place of whatever traces the interpreter; give it back."""
    before = sys.gettrace()
    try:
        yield
    finally:
        sys.settrace(before)


def breakpoint(
    *, ordered: bool = False, stdin: IO[str] | None = None, stdout: IO[str] | None = None
) -> None:
    r"""Open Python's debugger when the program comes to this line. The local variables of the
    function have the values that they have there: `p x` prints one, `c` goes on, `q` ends the
    program.

    `stdin`, `stdout`: where its commands come from and its answers go to. Raises BdbQuit in the
    program when the user quits.

    >>> import io
    >>> import xcube
    >>> out = io.StringIO()
    >>> @xcube.jit
    ... def double(x):
    ...     y = 2 * x
    ...     breakpoint(stdin=io.StringIO("p y\nc\n"), stdout=out)
    ...     return y
    >>> y = double(3)
    >>> "Array(6, dtype=int32)" in out.getvalue()
    True
    """
    frame = sys._getframe(1)
    source = Source(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    names = frame.f_locals
    traced = {name: value for name, value in names.items() if _has_tracers(value)}
    known = {name: value for name, value in names.items() if name not in traced}
    _watch(_Stop(source, frame.f_globals, known, stdin, stdout), (traced,), {}, ordered)


def _has_tracers(value: Any) -> bool:
    try:
        return any(isinstance(leaf, Tracer) for leaf in tree.leaves(value))
    except (TypeError, ValueError):  # no pytree: a dict whose keys have no order, say
        return False
