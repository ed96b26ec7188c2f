"""Devices, found at run time."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from xcube import config
from xcube.errors import DeviceError
from xcube.lowering.device.base import Device

KINDS = ("cpu", "cuda")
_CUDA = 2  # in DLPack


def device(name: str) -> Device:
    """The device of a name: "cpu", or "cuda" or "cuda:0" and so on for GPUs.

    Raises DeviceError for a name that is not there, with the reason.

    >>> device("cpu").kind
    'cpu'
    """
    kind, _, number = name.partition(":")
    if kind not in KINDS or not (number or "0").isdigit() or (kind == "cpu" and int(number or 0)):
        raise DeviceError(f"device: must be 'cpu', 'cuda' or 'cuda:0' and so on; got {name!r}.")
    return _backend(kind).device(int(number or 0)) if kind == "cuda" else _backend(kind).device()


def devices(kind: str) -> list[Device]:
    """All devices of a kind; none where its driver finds none (see `missing`)."""
    return [device("cpu")] if kind == "cpu" else _backend(kind).devices()


def missing(kind: str) -> str:
    """Why there are no devices of a kind; empty where there are some."""
    return "" if kind == "cpu" else _backend(kind).found()[1]


def _backend(kind: str) -> Any:
    """The module of a kind's device: a backend is loaded with its first array, not before."""
    if kind == "cuda":
        return importlib.import_module("xcube.lowering.device.cuda")
    return importlib.import_module("xcube.lowering.device.cpu")


def holder(x: Any) -> Any:
    """The GPU on which another library's array lies; None if it lies on none."""
    place = getattr(x, "__dlpack_device__", None)
    if place is None or isinstance(x, np.ndarray | np.generic):
        return None
    kind, number = place()
    return device(f"cuda:{number}") if kind == _CUDA else None


def default_device() -> Device:
    """The device that new arrays go to: the setting `device` (XCUBE_DEVICE), else the CPU."""
    return device(config.current.device or "cpu")
