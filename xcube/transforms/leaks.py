"""The search behind `check_tracer_leaks`: once a function was traced, no tracer of that trace may
be alive. The garbage collector knows those that are, and who holds them."""

from __future__ import annotations

import gc
import types
from typing import Any

from xcube import config
from xcube.errors import UnexpectedTracerError
from xcube.ir import at_user_line
from xcube.trace import Tracer, new_birth


class NoLeaks:
    """A block in which functions are traced. If `check_tracer_leaks` is set when it ends, it raises
    UnexpectedTracerError for each tracer that is alive of a trace that began in the block."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        self._birth = new_birth()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None or not config.current.check_tracer_leaks:
            return
        if leaked := _alive_since(self._birth):
            raise UnexpectedTracerError(
                f"{self._where}: a traced value must not outlive the function that is traced; "
                f"still alive: {'; '.join(leaked)}.{at_user_line()} Return values instead of "
                f"storing them outside."
            )


def _alive_since(birth: int) -> list[str]:
    """Descriptions of the tracers that are alive of traces younger than a birth number."""
    gc.collect()
    everything = gc.get_objects()
    found = [x for x in everything if issubclass(type(x), Tracer) and x._trace.birth > birth]
    del everything
    return [text for tracer in found for text in [_described(tracer, found)] if text]


def _described(tracer: Tracer, found: list[Any]) -> str:
    """What a tracer is and who holds it; nothing if another tracer does, which tells more."""
    holders = [
        holder
        for holder in gc.get_referrers(tracer)
        if holder is not found and not isinstance(holder, types.FrameType)
    ]
    if any(issubclass(type(holder), Tracer) for holder in holders):
        return ""
    source = getattr(tracer, "source", None)
    made = f", made at {source}" if source else ""
    held = f", held by {_place(holders[0], tracer)}" if holders else ""
    return f"{type(tracer).__name__} {tracer.aval}{made}{held}"


def _place(holder: Any, value: Any) -> str:
    """Where in a holder a value is, e.g. "[0] of a list"."""
    kind = type(holder).__name__
    if isinstance(holder, dict):
        key = next((key for key in holder if holder[key] is value), None)
        return f"[{key!r}] of a {kind}"
    if isinstance(holder, list | tuple):
        return f"[{next(k for k in range(len(holder)) if holder[k] is value)}] of a {kind}"
    if isinstance(holder, types.CellType):
        return "a closure"
    return f"a {kind}"
