"""Devices, found at run time."""

from __future__ import annotations

import importlib

from xcube.lowering.device.base import Device


def default_device() -> Device:
    """The device that new arrays go to. Its compiler is loaded with the first array, not before."""
    return importlib.import_module("xcube.lowering.device.cpu").device()
