"""Settings for a block of code, under JAX's names: each is a `with` block, or a decorator, and
holds for the thread that runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from xcube import config
from xcube.trace import EVAL, set_current
from xcube.transforms.leaks import NoLeaks


@contextlib.contextmanager
def enable_x64(new_val: bool = True) -> Iterator[None]:
    """64-bit default dtypes inside a block.

    >>> import xcube.numpy as jnp
    >>> with enable_x64():
    ...     jnp.ones(2).dtype
    dtype('float64')
    """
    with config.using(enable_x64=new_val):
        yield


def disable_x64() -> contextlib.AbstractContextManager[None]:
    """32-bit default dtypes inside a block.

    >>> import xcube.numpy as jnp
    >>> with enable_x64(), disable_x64():
    ...     jnp.ones(2).dtype
    dtype('float32')
    """
    return enable_x64(False)


@contextlib.contextmanager
def disable_jit(disable: bool = True) -> Iterator[None]:
    """Jitted functions run operation by operation inside a block, so that one can print and step
    through them.

    >>> import xcube.numpy as jnp
    >>> from xcube import jit
    >>> with disable_jit():
    ...     jit(lambda x: print("x is", x))(jnp.ones(2))
    x is [1. 1.]
    """
    with config.using(disable_jit=disable):
        yield


@contextlib.contextmanager
def debug_nans(new_val: bool = True) -> Iterator[None]:
    """Results that hold a NaN raise FloatingPointError inside a block.

    >>> import xcube.numpy as jnp
    >>> with debug_nans():
    ...     jnp.log(-jnp.ones(2))
    Traceback (most recent call last):
    FloatingPointError: ...
    """
    with config.using(debug_nans=new_val):
        yield


@contextlib.contextmanager
def debug_infs(new_val: bool = True) -> Iterator[None]:
    """Results that hold an infinity raise FloatingPointError inside a block.

    >>> import xcube.numpy as jnp
    >>> with debug_infs():
    ...     1 / jnp.zeros(2)
    Traceback (most recent call last):
    FloatingPointError: ...
    """
    with config.using(debug_infs=new_val):
        yield


@contextlib.contextmanager
def numpy_dtype_promotion(new_val: str) -> Iterator[None]:
    """How dtypes are promoted inside a block: "standard", or "strict" to raise TypePromotionError.

    Raises ValueError for anything else.

    >>> import xcube.numpy as jnp
    >>> with numpy_dtype_promotion("strict"):
    ...     jnp.ones(2) + jnp.arange(2)
    Traceback (most recent call last):
    xcube.errors.TypePromotionError: ...
    """
    with config.using(numpy_dtype_promotion=new_val):
        yield


@contextlib.contextmanager
def default_matmul_precision(new_val: str | None) -> Iterator[None]:
    """The precision, inside a block, of products that name none: "default", "high", "highest", or
    the name of a dtype like "float32"; None for the device's choice.

    Raises ValueError for anything else.

    >>> import xcube.numpy as jnp
    >>> with default_matmul_precision("float32"):
    ...     (jnp.ones((2, 2)) @ jnp.ones(2)).shape
    (2,)
    """
    with config.using(default_matmul_precision=new_val):
        yield


@contextlib.contextmanager
def log_compiles(new_val: bool = True) -> Iterator[None]:
    """What is compiled inside a block is logged.

    >>> with log_compiles():
    ...     config.current.log_compiles
    True
    """
    with config.using(log_compiles=new_val):
        yield


class _LeakCheck(contextlib.ContextDecorator):
    """A block that checks for leaks when it ends, in the frame of whoever ends it."""

    def __init__(self, new_val: bool) -> None:
        self._settings = config.using(check_tracer_leaks=new_val)
        self._new_val, self._leaks = new_val, NoLeaks("check_tracer_leaks")

    def _recreate_cm(self) -> _LeakCheck:
        return _LeakCheck(self._new_val)

    def __enter__(self) -> None:
        self._settings.__enter__()
        self._leaks.__enter__()

    def __exit__(self, *error: Any) -> None:
        try:
            self._leaks.__exit__(*error)
        finally:
            self._settings.__exit__(None, None, None)


def check_tracer_leaks(new_val: bool = True) -> contextlib.AbstractContextManager[None]:
    """A traced value that outlives its function raises UnexpectedTracerError: where the function
    was differentiated, and at the latest at the end of the block.

    >>> from xcube import jit
    >>> seen = []
    >>> with check_tracer_leaks():
    ...     jit(lambda x: seen.append(x))(1.0)
    Traceback (most recent call last):
    xcube.errors.UnexpectedTracerError: ...
    """
    return _LeakCheck(new_val)


def checking_leaks() -> contextlib.AbstractContextManager[None]:
    """`check_tracer_leaks(True)`.

    >>> with checking_leaks():
    ...     config.current.check_tracer_leaks
    True
    """
    return check_tracer_leaks(True)


def ensure_compile_time_eval() -> contextlib.AbstractContextManager[None]:
    """Operations on known values are done at once inside a block, in traced functions too, where
    they would be recorded.

    >>> import xcube.numpy as jnp
    >>> from xcube import jit
    >>> @jit
    ... def double(x):
    ...     with ensure_compile_time_eval():
    ...         return x * int(jnp.arange(3)[2])
    >>> double(4.0)
    Array(8., dtype=float32, weak_type=True)
    """
    return set_current(EVAL)
