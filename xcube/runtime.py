"""The process that programs run in: its devices, values on their way to a device and back, the
caches. JAX's names."""

from __future__ import annotations

from typing import Any

import numpy as np

from xcube import eager, tree
from xcube.array import Array, DeviceArray
from xcube.errors import DeviceError
from xcube.ir import at_user_line
from xcube.lowering import device as device_module
from xcube.lowering.device import KINDS, default_device
from xcube.lowering.device.base import Device
from xcube.lowering.kernels import repeats
from xcube.numpy import fused, indexing
from xcube.transforms import jit
from xcube.transforms.control import bodies


def devices(backend: str | None = None) -> list[Device]:
    """The devices of one kind; without a kind, those of the default device's.

    Raises DeviceError if there is no device of that kind, with the reason.

    >>> [device.kind for device in devices("cpu")]
    ['cpu']
    """
    kind = backend or default_device().kind
    kind = "cuda" if kind == "gpu" else kind
    if kind not in KINDS:
        raise DeviceError(f"devices: the kind must be one of {', '.join(KINDS)}; got {backend!r}.")
    found = device_module.devices(kind)
    if not found:
        raise DeviceError(f"devices: there is none of kind {kind!r}: {device_module.missing(kind)}")
    return found


def default_backend() -> str:
    """Kind of the device that new arrays go to.

    >>> default_backend()
    'cpu'
    """
    return default_device().kind


def device_put(x: Any, device: Device | None = None) -> Any:
    """The pytree x with every leaf an array on a device.

    Raises DeviceError for a device that is none, TypeError for a leaf that is no array.

    >>> device_put([1.0, 2.0])[0]
    Array(1., dtype=float32, weak_type=True)
    """
    if device is not None and not isinstance(device, Device):
        raise DeviceError(
            f"device_put: the device must be one of xcube.devices(kind); got {device!r}."
            f"{at_user_line()}"
        )
    return tree.map(lambda leaf: _put(eager.convert(leaf), device), x)


def _put(x: Array, device: Device | None) -> Array:
    if device is None or not isinstance(x, DeviceArray):  # a traced value is where its program runs
        return x
    return eager.transferred(x, device)


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
    repeats.clear()
    bodies.clear()
    fused.clear()
    indexing.clear()
