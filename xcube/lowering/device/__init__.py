"""Devices, found at run time."""

from __future__ import annotations

import importlib

from xcube import config
from xcube.errors import DeviceError
from xcube.lowering.device.base import Device


def device(name: str) -> Device:
    """The device of a name, e.g. "cpu". Raises DeviceError for a name that is not there.

    >>> device("cpu").kind
    'cpu'
    """
    if name not in ("cpu", "cpu:0"):
        raise DeviceError(f"device: there is no {name!r}; the only device is 'cpu'.")
    # a backend's compiler is loaded with its first array, not before
    return importlib.import_module("xcube.lowering.device.cpu").device()


def default_device() -> Device:
    """The device that new arrays go to: the setting `device` (XCUBE_DEVICE), else the CPU."""
    return device(config.current.device or "cpu")
