"""Settings, read once from the environment. `update` changes them for the process, `using` for the
current thread inside a `with` block; `current` shows those in force where it is read."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator
from typing import Any, cast

STAGES = ("jaxpr", "simplify", "program", "cube", "source", "cache")  # what `log` may name
PROMOTIONS = ("standard", "strict")

_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")


@dataclasses.dataclass(frozen=True)
class Settings:
    """All settings, with their defaults.

    `enable_x64`: 64-bit default dtypes. `numpy_dtype_promotion`: "standard" or "strict".
    `disable_jit`: run jitted functions operation by operation. `debug_nans`, `debug_infs`: raise
    FloatingPointError where a result holds a NaN or an infinity. `check`: verify both IRs after
    every stage. `log`: names of the stages to print. `device`: default device, e.g. "cpu".
    `cache`: folder of compiled code, "" for the user's cache folder. `threads`: worker threads
    of the CPU device, 0 for all cores.
    """

    enable_x64: bool = False
    numpy_dtype_promotion: str = "standard"
    disable_jit: bool = False
    debug_nans: bool = False
    debug_infs: bool = False
    check: bool = False
    log: frozenset[str] = frozenset()
    device: str = ""
    cache: str = ""
    threads: int = 0


NAMES = tuple(field.name for field in dataclasses.fields(Settings))

CHOICES: dict[str, tuple[Any, ...]] = {
    "enable_x64": (False, True),
    "numpy_dtype_promotion": PROMOTIONS,
    "disable_jit": (False, True),
    "debug_nans": (False, True),
    "debug_infs": (False, True),
    "check": (False, True),
}


# the environment ------------------------------------------------------------------------------


def _text(name: str) -> str:
    return os.environ.get(name, "").strip()


def _refuse(name: str, allowed: str) -> ValueError:
    return ValueError(f"config: {name} must be {allowed}; got {_text(name)!r}.")


def _flag(name: str, default: bool = False) -> bool:
    text = _text(name).lower()
    if text not in ("", *_ON, *_OFF):
        raise _refuse(name, f"one of {', '.join(_ON)} or {', '.join(_OFF)}")
    return text in _ON if text else default


def _number(name: str) -> int:
    text = _text(name)
    if text and not (text.isascii() and text.isdigit()):
        raise _refuse(name, "a whole number, 0 or more")
    return int(text or 0)


def _choice(name: str, choices: tuple[str, ...]) -> str:
    text = _text(name) or choices[0]
    if text not in choices:
        raise _refuse(name, f"one of {', '.join(choices)}")
    return text


def _words(name: str, known: tuple[str, ...]) -> frozenset[str]:
    words = _split(_text(name))
    if words - frozenset(known):
        raise _refuse(name, f"some of {', '.join(known)}, separated by commas")
    return words


def _split(text: str) -> frozenset[str]:
    return frozenset(word.strip() for word in text.split(",") if word.strip())


def from_environment() -> Settings:
    """The settings that the environment asks for.

    Raises ValueError, which names the variable, if one has a value that it cannot have.

    >>> from_environment().numpy_dtype_promotion
    'standard'
    """
    return Settings(
        enable_x64=_flag("XCUBE_ENABLE_X64", _flag("JAX_ENABLE_X64")),
        numpy_dtype_promotion=_choice("XCUBE_NUMPY_DTYPE_PROMOTION", PROMOTIONS),
        disable_jit=_flag("XCUBE_DISABLE_JIT"),
        debug_nans=_flag("XCUBE_DEBUG_NANS"),
        debug_infs=_flag("XCUBE_DEBUG_INFS"),
        check=_flag("XCUBE_CHECK"),
        log=_words("XCUBE_LOG", STAGES),
        device=_text("XCUBE_DEVICE"),
        cache=os.environ.get("XCUBE_CACHE", ""),
        threads=_number("XCUBE_THREADS"),
    )


# what is in force -----------------------------------------------------------------------------


class _Current(threading.local):
    """The settings in force in the thread that reads them. The class holds the values of the
    process; the `__dict__`, of which every thread has its own, those of the thread's blocks."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"config.current: {name} cannot be assigned; use config.update({name!r}, {value!r}) or "
            f"config.using({name}={value!r})."
        )

    def __repr__(self) -> str:
        return repr(Settings(**{name: getattr(self, name) for name in NAMES}))


def _set_process(values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(_Current, name, value)


_set_process(dataclasses.asdict(from_environment()))
current: Settings = cast(Settings, _Current())


def update(name: str, value: Any) -> None:
    """Change one setting for the whole process; JAX's `jax_` prefix is accepted.

    A `using` block that sets it keeps its own value until it ends. Raises AttributeError if there
    is no such setting, ValueError if it cannot have the value.

    >>> update("numpy_dtype_promotion", "standard")
    """
    _set_process(_checked("config.update", {name: value}))


@contextlib.contextmanager
def using(**changes: Any) -> Iterator[None]:
    """Settings in force inside a `with` block, for the thread that runs it and for no other.

    Raises AttributeError if there is no such setting, ValueError if it cannot have the value.

    >>> from xcube import config
    >>> with config.using(numpy_dtype_promotion="strict"):
    ...     config.current.numpy_dtype_promotion
    'strict'
    """
    overlay = vars(current)  # of this thread
    values = _checked("config.using", changes)
    before = {name: overlay[name] for name in values if name in overlay}
    overlay.update(values)
    try:
        yield
    finally:
        for name in values:
            overlay.pop(name, None)
        overlay.update(before)


def _checked(operation: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The changes under xcube's names, if each is one that its setting may have."""
    values = {name.removeprefix("jax_"): value for name, value in changes.items()}
    for name, value in values.items():
        if name not in NAMES:
            known = ", ".join(NAMES)
            raise AttributeError(f"{operation}: no setting {name!r}; the settings are {known}.")
        values[name] = _value(name, value)
    return values


def _value(name: str, value: Any) -> Any:
    if name in CHOICES:
        return _chosen(name, value)
    if name == "log":
        return _stages(value)
    if name == "threads":
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"config: threads must be 0 or more; got {value!r}.")
    elif not isinstance(value, str):
        raise ValueError(f"config: {name} must be a string; got {value!r}.")
    return value


def _chosen(name: str, value: Any) -> Any:
    kind, choices = type(CHOICES[name][0]), CHOICES[name]
    if not isinstance(value, kind) or value not in choices:
        raise ValueError(f"config: {name} must be one of {choices}; got {value!r}.")
    return value


def _stages(value: Any) -> frozenset[str]:
    """Stages, given as a collection or as a text with commas."""
    try:
        words = _split(value) if isinstance(value, str) else frozenset(value)
    except TypeError:
        words = frozenset({value})
    if unknown := words - frozenset(STAGES):
        found = ", ".join(sorted(str(word) for word in unknown))
        raise ValueError(f"config: log may name {', '.join(STAGES)}; got {found}.")
    return words
