"""The process that programs run in: its devices, values on their way to a device and back, the
caches, and settings for a block of code. JAX's names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from xcube import config, eager, tree
from xcube.array import Array, DeviceArray
from xcube.errors import DeviceError
from xcube.lowering.device import default_device
from xcube.lowering.device.base import Device
from xcube.numpy import fused, indexing
from xcube.transforms import jit


def devices(backend: str | None = None) -> list[Device]:
    """The devices of this process, or those of one kind.

    Raises DeviceError if there is no device of that kind.

    >>> [device.kind for device in devices()]
    ['cpu']
    """
    found = [default_device()]
    chosen = [device for device in found if backend in (None, device.kind)]
    if not chosen:
        kinds = ", ".join(sorted({device.kind for device in found}))
        raise DeviceError(f"devices: the kind must be one of {kinds}; got {backend!r}.")
    return chosen


def default_backend() -> str:
    """Kind of the device that new arrays go to.

    >>> default_backend()
    'cpu'
    """
    return default_device().kind


def device_put(x: Any, device: Device | None = None) -> Any:
    """The pytree x with every leaf an array on a device.

    Raises DeviceError if the device is not one of `devices()`, TypeError for a leaf that is no
    array.

    >>> device_put([1.0, 2.0])[0]
    Array(1., dtype=float32, weak_type=True)
    """
    if device is not None and device not in devices():
        raise DeviceError(f"device_put: the device must be one of {devices()}; got {device!r}.")
    return tree.map(eager.convert, x)


def device_get(x: Any) -> Any:
    """The pytree x with every array a NumPy array; other leaves stay as they are.

    >>> import xcube.numpy as jnp
    >>> device_get({"a": jnp.arange(3)})
    {'a': array([0, 1, 2], dtype=int32)}
    """
    return tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, Array) else leaf, x)


def block_until_ready(x: Any) -> Any:
    """The pytree x, once all of its arrays are computed.

    >>> import xcube.numpy as jnp
    >>> block_until_ready(jnp.ones(2))
    Array([1., 1.], dtype=float32)
    """
    for leaf in tree.leaves(x):
        if isinstance(leaf, DeviceArray):
            leaf.block_until_ready()
    return x


def clear_caches() -> None:
    """Forget everything that was traced and compiled in this process.

    Compiled kernels on disk stay.

    >>> clear_caches()
    """
    jit.clear_caches()
    eager.clear()
    fused.clear()
    indexing.clear()


@contextlib.contextmanager
def enable_x64(enabled: bool = True) -> Iterator[None]:
    """64-bit default dtypes inside a `with` block, for the thread that runs it.

    >>> import xcube.numpy as jnp
    >>> with enable_x64():
    ...     jnp.ones(2).dtype
    dtype('float64')
    """
    with config.using(enable_x64=enabled):
        yield


@contextlib.contextmanager
def disable_jit(disabled: bool = True) -> Iterator[None]:
    """Jitted functions run operation by operation inside a `with` block, for the thread that runs
    it, so that one can print and step through them.

    >>> import xcube.numpy as jnp
    >>> from xcube import jit
    >>> with disable_jit():
    ...     jit(lambda x: print("x is", x))(jnp.ones(2))
    x is [1. 1.]
    """
    with config.using(disable_jit=disabled):
        yield
