"""What is being expanded right now: the builder of the kernel, the regions that are open in it and
what the launch is known to be; and the errors of expansion, which quote the user's expression."""

from __future__ import annotations

import contextlib
import linecache
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

from xcube.errors import KernelError
from xcube.lowering.cube import ir
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.ir import Stmt

MARK = "__cube"  # what a rewritten function calls; its code is told by it


class Scribe(Builder):
    """A builder whose blocks can be kept, thrown away and written to again."""

    keeps_calls = True

    def open(self, statements: Sequence[Stmt] = ()) -> None:
        """Begin a block, or go on with one."""
        self._open()
        self._blocks[-1].extend(statements)

    def close(self) -> tuple[Stmt, ...]:
        """End the block at hand, which is not emitted."""
        return self._close()

    def splice(self) -> None:
        """End the block at hand as a part of the one around it."""
        known, block = self._known[-1], self._close()
        self._blocks[-1].extend(block)
        self._known[-1].update(known)

    def is_pure(self) -> bool:
        """Whether the block at hand only computes, and may do so where nobody asks for it."""
        return all(
            isinstance(s, ir.Let)
            and not (s.op in ("div", "rem") and s.target.type.dtype == "index")
            for s in self._blocks[-1]
        )


@dataclass(eq=False)
class Region:
    """A branch or the body of a loop that is decided at run time, or a function; `dead`: control
    has left it, what follows in it is not reached. `names` and `shared`: local and global ones of
    the user's functions where it began; `reached`: their values, once somebody asks."""

    dead: bool = False
    names: Sequence[Mapping[str, Any]] = ()
    shared: Sequence[Mapping[str, Any]] = ()
    reached: dict[int, Any] | None = None


@dataclass
class Expanding:
    """The kernel that is being expanded."""

    build: Scribe
    facts: Any
    grid: int  # rank of the grid
    scalars: dict[Any, Value] = field(default_factory=dict)  # by Meta, in order of the launch
    written: set[str] = field(default_factory=set)
    regions: list[Region] = field(default_factory=lambda: [Region()])
    shared_bytes: int = 0
    calls: list[Any] = field(default_factory=list)  # functions that are being expanded

    @property
    def region(self) -> Region:
        """The innermost open region."""
        return self.regions[-1]

    def scalar(self, meta: Any, dtype: str = "index") -> Value:
        """The scalar of the launch that a Meta describes."""
        if meta not in self.scalars:
            self.scalars[meta] = self.build.scalar(dtype)
        return self.scalars[meta]


class _Current(threading.local):
    stack: tuple[Expanding, ...] = ()


_CURRENT = _Current()


def current() -> Expanding:
    """What is being expanded.

    Raises KernelError outside of kernels.
    """
    if not _CURRENT.stack:
        raise KernelError(
            "cube: the words of the kernel language must be used inside a kernel; no kernel is "
            "being expanded. Put them into a function decorated with @cube.kernel."
        )
    return _CURRENT.stack[-1]


def is_expanding() -> bool:
    """Whether a kernel is being expanded."""
    return bool(_CURRENT.stack)


@contextlib.contextmanager
def expanding(state: Expanding) -> Iterator[None]:
    """Make a kernel the one that is being expanded."""
    _CURRENT.stack = (*_CURRENT.stack, state)
    try:
        yield
    finally:
        _CURRENT.stack = _CURRENT.stack[:-1]


@contextlib.contextmanager
def region() -> Iterator[Region]:
    """An open region of the kernel."""
    regions, frames = current().regions, list(_frames())
    names = [_own_names(frame.f_locals) for frame in frames]
    regions.append(Region(names=names, shared=[frame.f_globals for frame in frames]))
    yield regions[-1]
    regions.pop()


def _own_names(names: Mapping[str, Any]) -> dict[str, Any]:
    """The names of the user's, without those that rewriting makes."""
    return {name: value for name, value in names.items() if not name.startswith("__")}


def _frames() -> Iterator[FrameType]:
    """Frames of rewritten functions, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if MARK in frame.f_code.co_freevars:
            yield frame
        frame = frame.f_back


# errors ---------------------------------------------------------------------------------------


def fail(error: type[Exception], must: str, got: str, way: str) -> NoReturn:
    """Raise an error that names the expression at hand: *operation: what must hold; what came; at
    the user's line; the way out*."""
    raise error(f"{must}; got {got}.{at_expression()} {way}")


def at_expression() -> str:
    """The end of a message, " At kernels.py:12: `x[i] + y`."; the line alone, or nothing, where no
    more is known."""
    return next(map(_at, _frames()), "")


def _at(frame: FrameType) -> str:
    code = frame.f_code
    place = f"{short(code.co_filename)}:{frame.f_lineno}"
    text = _expression(code, frame.f_lasti)
    return f" At {place}: `{text}`." if text else f" At {place}."


def _expression(code: CodeType, instruction: int) -> str:
    """The text behind an instruction, where it stands on one line."""
    positions = list(code.co_positions())[instruction // 2]
    line, last, start, stop = positions
    if line is None or line != last or start is None or stop is None or start == stop:
        return linecache.getline(code.co_filename, line or 0).strip()
    text = linecache.getline(code.co_filename, line).encode()
    return text[start:stop].decode().strip()


def short(file: str) -> str:
    """A file's name without its folders."""
    return Path(file).name
