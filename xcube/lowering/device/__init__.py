"""Devices, found at run time."""

from __future__ import annotations

import functools

from xcube.lowering.device.base import Device


@functools.cache
def default_device() -> Device:
    """The device that new arrays go to."""
    from xcube.lowering.device.cpu import Cpu  # llvmlite is loaded with the first array, not before

    return Cpu()
