"""Settings, read once from the environment. `update` changes them for the process, `using` for the
current thread inside a `with` block; `current` shows those in force where it is read. JAX's flags
are taken too: those that mean something here under the setting that they mean, the others for what
they are by default."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Iterator
from typing import Any, cast

from xcube import flags

STAGES = ("jaxpr", "simplify", "program", "cube", "source", "cache")  # what `log` may name
PROMOTIONS = ("standard", "strict")
AUTOTUNE = ("off", "kernels", "all")
PRECISIONS = (
    *("default", "fastest", "bfloat16", "high", "bfloat16_3x", "tensorfloat32"),
    *("highest", "float32"),
)

_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")


@dataclasses.dataclass(frozen=True)
class Settings:
    """All settings, with their defaults.

    `enable_x64`: 64-bit default dtypes. `numpy_dtype_promotion`: "standard" or "strict".
    `disable_jit`: run jitted functions operation by operation. `debug_nans`, `debug_infs`: raise
    FloatingPointError where a result holds a NaN or an infinity. `check_tracer_leaks`: raise
    UnexpectedTracerError where a traced value outlives its function. `log_compiles`: log what is
    compiled. `default_matmul_precision`: of products that name none, None for the device's choice.
    `autotune`: which candidates are timed on the device, "off" for none, "kernels" for those of
    `cube.tune`, "all" for those of the kernel library too.
    `check`: verify both IRs after every stage. `sanitize`: run users' kernels in the interpreter,
    which finds races. `log`: names of the stages to print. `device`:
    default device, e.g. "cpu".
    `cache`: folder of compiled code, "" for the user's cache folder. `threads`: worker threads
    of the CPU device, 0 for all cores.
    """

    enable_x64: bool = False
    numpy_dtype_promotion: str = "standard"
    disable_jit: bool = False
    debug_nans: bool = False
    debug_infs: bool = False
    check_tracer_leaks: bool = False
    log_compiles: bool = False
    default_matmul_precision: str | None = None
    autotune: str = AUTOTUNE[1]
    check: bool = False
    sanitize: bool = False
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
    "check_tracer_leaks": (False, True),
    "log_compiles": (False, True),
    "default_matmul_precision": (None, *PRECISIONS),
    "autotune": AUTOTUNE,
    "check": (False, True),
    "sanitize": (False, True),
}


# the environment ------------------------------------------------------------------------------


def _text(name: str) -> str:
    return os.environ.get(name, "").strip()


def _refuse(name: str, allowed: str) -> ValueError:
    return ValueError(f"config: {name} must be {allowed}; got {_text(name)!r}.")


def _flag(name: str) -> bool:
    """A variable of xcube or, where that is not set, of JAX."""
    name = _own_or_jax(name)
    text = _text(name).lower()
    if text not in ("", *_ON, *_OFF):
        raise _refuse(name, f"one of {', '.join(_ON)} or {', '.join(_OFF)}")
    return text in _ON


def _own_or_jax(name: str) -> str:
    own, jax = f"XCUBE_{name}", f"JAX_{name}"
    return own if _text(own) or not _text(jax) else jax


def _number(name: str) -> int:
    text = _text(name)
    if text and not (text.isascii() and text.isdigit()):
        raise _refuse(name, "a whole number, 0 or more")
    return int(text or 0)


def _choice(name: str, choices: tuple[str, ...]) -> str | None:
    name = _own_or_jax(name)
    text = _text(name) or None
    if text is not None and text not in choices:
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
        enable_x64=_flag("ENABLE_X64"),
        numpy_dtype_promotion=_choice("NUMPY_DTYPE_PROMOTION", PROMOTIONS) or PROMOTIONS[0],
        disable_jit=_flag("DISABLE_JIT"),
        debug_nans=_flag("DEBUG_NANS"),
        debug_infs=_flag("DEBUG_INFS"),
        check_tracer_leaks=_flag("CHECK_TRACER_LEAKS"),
        log_compiles=_flag("LOG_COMPILES"),
        default_matmul_precision=_choice("DEFAULT_MATMUL_PRECISION", PRECISIONS),
        autotune=_choice("AUTOTUNE", AUTOTUNE) or AUTOTUNE[1],
        check=_flag("CHECK"),
        sanitize=_flag("SANITIZE"),
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


_accepted: dict[str, Any] = dict(flags.FIXED)  # flags of JAX that change nothing here


def update(name: str, value: Any) -> None:
    """Change one setting for the whole process. JAX's flags are taken under their own names.

    A `using` block that sets it keeps its own value until it ends. A flag that JAX's runtime alone
    has a use for is remembered and changes nothing. Raises AttributeError if there is no such
    setting or flag, ValueError if it cannot have the value.

    >>> update("numpy_dtype_promotion", "standard")
    >>> update("jax_traceback_filtering", "off")
    """
    values = _checked("config.update", {name: value})
    _set_process(values)
    if not values:
        _accepted[name] = value


def read(name: str) -> Any:
    """The value in force of a setting, or of a flag of JAX; None for one that was never set.

    Raises AttributeError if there is no such setting or flag.

    >>> read("jax_enable_x64"), read("jax_default_prng_impl")
    (False, 'threefry2x32')
    """
    if (setting := flags.setting_of(name)) in NAMES:
        return getattr(current, setting)
    if name in _accepted or name in flags.WITHOUT_EFFECT:
        return _accepted.get(name)
    raise _unknown("config.read", name)


def __getattr__(name: str) -> Any:
    """A flag of JAX as an attribute of this module, e.g. `config.jax_enable_x64`."""
    if name.startswith("jax_"):
        return read(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
    """The changes under xcube's names, if each is one that its setting may have; flags of JAX that
    mean no setting are left out."""
    values = {}
    for name, value in changes.items():
        if (setting := flags.setting_of(name)) in NAMES:
            values[setting] = _value(setting, flags.value_for(name, value))
        elif not flags.check(name, value):
            raise _unknown(operation, name)
    return values


def _unknown(operation: str, name: str) -> AttributeError:
    known = ", ".join(NAMES)
    return AttributeError(
        f"{operation}: no setting {name!r}; the settings are {known}, and JAX's flags."
    )


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
    if not any(type(value) is type(choice) and value == choice for choice in CHOICES[name]):
        raise ValueError(f"config: {name} must be one of {CHOICES[name]}; got {value!r}.")
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
