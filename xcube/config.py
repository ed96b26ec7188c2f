"""Settings, read once from the environment and changed through `update` or a context manager."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator
from typing import Any


def _flag(name: str, default: bool = False) -> bool:
    text = os.environ.get(name, "")
    return default if text == "" else text.strip().lower() in ("1", "true", "yes", "on")


def _number(name: str) -> int:
    text = os.environ.get(name, "").strip()
    if not text.removeprefix("-").isdigit() and text:
        raise ValueError(f"config: {name} must be a whole number; got {text!r}.")
    return int(text or 0)


def _words(name: str) -> frozenset[str]:
    return frozenset(word.strip() for word in os.environ.get(name, "").split(",") if word.strip())


@dataclasses.dataclass(frozen=True)
class Settings:
    """All settings; one immutable value, replaced as a whole.

    `enable_x64`: 64-bit default dtypes. `numpy_dtype_promotion`: "standard" or "strict".
    `disable_jit`: run jitted functions operation by operation. `check`: verify both IRs after
    every stage. `log`: names of the stages to print. `device`: default device, e.g. "cpu".
    `cache`: folder of compiled code, "" for the user's cache folder. `threads`: worker threads
    of the CPU device, 0 for all cores.
    """

    enable_x64: bool = _flag("XCUBE_ENABLE_X64") or _flag("JAX_ENABLE_X64")
    numpy_dtype_promotion: str = os.environ.get("XCUBE_NUMPY_DTYPE_PROMOTION", "standard")
    disable_jit: bool = _flag("XCUBE_DISABLE_JIT")
    check: bool = _flag("XCUBE_CHECK")
    log: frozenset[str] = _words("XCUBE_LOG")
    device: str = os.environ.get("XCUBE_DEVICE", "")
    cache: str = os.environ.get("XCUBE_CACHE", "")
    threads: int = _number("XCUBE_THREADS")


STAGES = ("jaxpr", "simplify", "program", "cube", "llvm", "cache")  # what `log` may name

CHOICES: dict[str, tuple[Any, ...]] = {
    "enable_x64": (False, True),
    "numpy_dtype_promotion": ("standard", "strict"),
    "disable_jit": (False, True),
    "check": (False, True),
}


def _checked(settings: Settings) -> Settings:
    """The settings, if each value is one that it may have. Raises ValueError otherwise."""
    for name, choices in CHOICES.items():
        value = getattr(settings, name)
        if not any(value is choice or value == choice for choice in choices) or (
            isinstance(choices[0], bool) and not isinstance(value, bool)
        ):
            raise ValueError(f"config: {name} must be one of {choices}; got {value!r}.")
    if not isinstance(settings.threads, int) or settings.threads < 0:
        raise ValueError(f"config: threads must be 0 or more; got {settings.threads!r}.")
    if unknown := frozenset(settings.log) - frozenset(STAGES):
        stages = ", ".join(STAGES)
        raise ValueError(f"config: log may name {stages}; got {', '.join(sorted(unknown))}.")
    return settings


current: Settings = _checked(Settings())
_lock = threading.Lock()


def update(name: str, value: Any) -> None:
    """Change one setting for the whole process; JAX's `jax_` prefix is accepted.

    Raises AttributeError if there is no such setting, ValueError if it cannot have the value.

    >>> update("numpy_dtype_promotion", "standard")
    """
    global current
    name = name.removeprefix("jax_")
    if name not in Settings.__dataclass_fields__:
        known = ", ".join(Settings.__dataclass_fields__)
        raise AttributeError(f"config.update: no setting {name!r}; the settings are {known}.")
    with _lock:
        current = _checked(dataclasses.replace(current, **{name: value}))


@contextlib.contextmanager
def using(**changes: Any) -> Iterator[None]:
    """Settings in force inside a `with` block.

    >>> from xcube import config
    >>> with config.using(numpy_dtype_promotion="strict"):
    ...     config.current.numpy_dtype_promotion
    'strict'
    """
    before = {name: getattr(current, name) for name in changes}
    for name, value in changes.items():
        update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            update(name, value)
