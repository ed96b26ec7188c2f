"""The door to NVIDIA's driver: loads its Python bindings when the first device is asked for, says
why there is none, and turns the driver's codes into exceptions. Nothing else of the package imports
the bindings, and a stand-in with the same functions can take their place."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from xcube import errors

SUCCESS, OUT_OF_MEMORY, NOT_READY = 0, 2, 600

NEEDED = 12_040
"""The oldest driver: CUDA 12.4 has conditional graph nodes."""

CONTEXT_EVENTS, SWITCHES = 12_050, 12_080
"""Drivers from which events of whole contexts, and graph nodes with several branches, are there."""

# After these the driver refuses everything in the context, until the process ends.
_FATAL = frozenset(
    (
        *(214, 220),  # memory or links with errors that cannot be corrected
        *(700, 702, 710, 714, 715, 716, 717, 718, 719),  # faults of a running kernel
        *(4, 201, 709),  # the context is gone
    )
)

_MEANING = {
    214: "the memory of the GPU has an error that cannot be corrected",
    700: "a kernel read or wrote memory that is not there",
    701: "the kernel needs more registers, shared memory or units than a block may have",
    702: "a kernel ran longer than the system allows",
    710: "an assertion failed inside a kernel",
    714: "a kernel's stack is damaged",
    715: "a kernel met an illegal instruction",
    716: "a kernel read or wrote at an address that is not aligned",
    717: "a kernel used an address in the wrong kind of memory",
    718: "a kernel jumped out of its code",
    719: "a kernel failed while it ran",
}


@functools.cache
def bindings() -> Any:
    """The module `cuda.bindings.driver`, after cuInit.

    Raises DeviceError, which says what is missing, if there is no package, driver or GPU.
    """
    try:
        driver = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise errors.DeviceError(
            f"cuda: the package cuda-bindings must be installed; {error}. "
            "Install it with: pip install 'xcube[cuda]'."
        ) from None
    initialize(driver)
    return driver


def initialize(driver: Any) -> None:
    """Start the driver, and see that it is new enough. Raises DeviceError if it cannot be used."""
    try:
        code = driver.cuInit(0)[0]
    except RuntimeError as error:  # the bindings found no library
        raise errors.DeviceError(
            f"cuda: NVIDIA's driver must be installed; {error}. It comes with the GPU's driver "
            "package, not with pip."
        ) from None
    if code:
        raise errors.DeviceError(f"cuda: the driver must start; it answered {_told(driver, code)}.")
    version = driver.cuDriverGetVersion()[1]
    if version < NEEDED:
        raise errors.DeviceError(
            f"cuda: the driver must be of CUDA {_dotted(NEEDED)} or newer; got {_dotted(version)}. "
            "Install a newer driver."
        )


def count(driver: Any) -> int:
    """How many GPUs the driver lets this process use."""
    code, found = driver.cuDeviceGetCount()
    return 0 if code else found


def is_fatal(code: int) -> bool:
    """Whether the context is lost with this error."""
    return int(code) in _FATAL


def described(driver: Any, code: int) -> str:
    """What an error means, with the driver's name for it."""
    meaning = _MEANING.get(int(code))
    return f"{meaning} ({_name(driver, code)})" if meaning else _told(driver, code)


def _told(driver: Any, code: int) -> str:
    failed, text = driver.cuGetErrorString(code)
    told = "" if failed or text is None else f": {text.decode()}"
    return f"{_name(driver, code)}{told}"


def _name(driver: Any, code: int) -> str:
    failed, name = driver.cuGetErrorName(code)
    return f"error {int(code)}" if failed or name is None else name.decode()


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
