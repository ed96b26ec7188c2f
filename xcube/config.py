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
    threads: int = int(os.environ.get("XCUBE_THREADS", "0") or 0)


current: Settings = Settings()
_lock = threading.Lock()


def update(name: str, value: Any) -> None:
    """Change one setting for the whole process; JAX's `jax_` prefix is accepted.

    Raises AttributeError if there is no such setting.

    >>> update("numpy_dtype_promotion", "standard")
    """
    global current
    name = name.removeprefix("jax_")
    if name not in Settings.__dataclass_fields__:
        known = ", ".join(Settings.__dataclass_fields__)
        raise AttributeError(f"config.update: no setting {name!r}; the settings are {known}.")
    with _lock:
        current = dataclasses.replace(current, **{name: value})


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
