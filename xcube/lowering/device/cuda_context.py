"""One GPU as the driver sees it: its primary context, the stream on which all of xcube's work for
it is enqueued in order, events, and its faults. Whoever enqueues holds the lock; whoever waits does
not. What other libraries run on their own streams of the same context is ordered by events."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any

from xcube import errors
from xcube.lowering.device import cuda_driver

_NAME_LENGTH = 256


class Context:
    """Everything of one GPU that is not memory. As a context manager: makes it current.

    `fault` is the message of the error that ended the context, if one did; `running` names what
    was enqueued last, for messages.
    """

    def __init__(self, driver: Any, ordinal: int) -> None:
        self.driver, self.ordinal = driver, ordinal
        self.name = f"cuda:{ordinal}"
        self.lock = threading.RLock()
        self.fault = ""
        self.running = ""
        self.device = self.value(driver.cuDeviceGet(ordinal), "cuDeviceGet")
        self.handle = self.value(driver.cuDevicePrimaryCtxRetain(self.device), "context")
        self.version: int = self.value(driver.cuDriverGetVersion(), "cuDriverGetVersion")
        with self:
            flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
            self.stream = self.value(driver.cuStreamCreate(flags), "cuStreamCreate")
            self._order = self.new_event()

    def __enter__(self) -> Context:
        self.check(self.driver.cuCtxPushCurrent(self.handle)[0], "cuCtxPushCurrent")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.driver.cuCtxPopCurrent()

    # facts ------------------------------------------------------------------------------------

    def attribute(self, name: str) -> int:
        """An attribute of the device, by the end of the driver's name for it."""
        attribute = getattr(self.driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return self.value(self.driver.cuDeviceGetAttribute(attribute, self.device), name)

    @property
    def model(self) -> str:
        """The name that the maker gave the GPU."""
        name = self.value(self.driver.cuDeviceGetName(_NAME_LENGTH, self.device), "name")
        return name.split(b"\0")[0].decode()

    @property
    def memory_bytes(self) -> int:
        """Bytes of the GPU's memory."""
        return self.value(self.driver.cuDeviceTotalMem(self.device), "cuDeviceTotalMem")

    # errors -----------------------------------------------------------------------------------

    def value(self, result: tuple[Any, ...], action: str) -> Any:
        """What a call of the driver gave. Raises DeviceError if it failed."""
        if result[0]:
            raise self.failure(result[0], action)
        return result[1]

    def check(self, code: int, action: str) -> None:
        """Raises DeviceError if a call of the driver failed."""
        if code:
            raise self.failure(code, action)

    def check_alive(self) -> None:
        """Raises DeviceError if an earlier error ended the context."""
        if self.fault:
            raise errors.DeviceError(self.fault)

    @property
    def is_over(self) -> bool:
        """Whether nothing must be given back any more: the context or the process is at its end."""
        return bool(self.fault) or sys is None or sys.is_finalizing()  # modules go first

    def failure(self, code: int, action: str) -> errors.DeviceError:
        """The exception for an error of the driver; a fatal one is remembered."""
        if self.fault:
            return errors.DeviceError(self.fault)
        told = cuda_driver.described(self.driver, code)
        if not cuda_driver.is_fatal(code):
            kind = errors.OutOfMemoryError if code == cuda_driver.OUT_OF_MEMORY else None
            return (kind or errors.DeviceError)(f"{self.name}: {action} failed: {told}.")
        last = f" Enqueued last: {self.running}." if self.running else ""
        self.fault = (
            f"{self.name}: {told}; seen in {action}.{last} The driver gives this GPU back to the "
            "process only after a restart: arrays on it are lost, those elsewhere are not."
        )
        return errors.DeviceError(self.fault)

    # order and waiting ------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait until everything enqueued here has run. Raises DeviceError if some of it failed."""
        self.check_alive()
        with self:
            self.check(self.driver.cuStreamSynchronize(self.stream)[0], "waiting for results")

    def is_idle(self) -> bool:
        """Whether everything enqueued here has run. Raises DeviceError if some of it failed."""
        self.check_alive()
        with self:
            code = self.driver.cuStreamQuery(self.stream)[0]
        if code == cuda_driver.NOT_READY:
            return False
        self.check(code, "asking for results")
        return True

    def new_event(self) -> Any:
        """An event that takes no time of its own. The context is current."""
        flags = self.driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        return self.value(self.driver.cuEventCreate(flags), "cuEventCreate")

    def record(self, event: Any) -> None:
        """Let the event happen when what is enqueued so far has run. The context is current."""
        self.check(self.driver.cuEventRecord(event, self.stream)[0], "cuEventRecord")

    def wait(self, event: Any, action: str) -> None:
        """Wait for an event, the last one that does. The context is current."""
        self.check(self.driver.cuEventSynchronize(event)[0], action)
        self.driver.cuEventDestroy(event)

    def follow(self, other: Context) -> None:
        """What is enqueued here from now on waits for what is enqueued on another GPU so far."""
        with other:
            event = other.new_event()  # its own: holding two locks at once invites deadlock
            other.record(event)
        with self:
            self._wait(self.stream, event)
            self.driver.cuEventDestroy(event)

    def follow_stream(self, stream: int) -> None:
        """What is enqueued here from now on waits for what is on a stream of this context."""
        handle = self.driver.CUstream(stream)
        with self.lock, self:
            self.check(self.driver.cuEventRecord(self._order, handle)[0], "cuEventRecord")
            self._wait(self.stream, self._order)

    def lead_stream(self, stream: int) -> None:
        """What a stream of this context is given from now on waits for what is enqueued here."""
        with self.lock, self:
            self.record(self._order)
            self._wait(self.driver.CUstream(stream), self._order)

    def follow_all(self) -> None:
        """What is enqueued here from now on waits for all streams of the context so far."""
        with self.lock, self:
            if self.version < cuda_driver.CONTEXT_EVENTS:
                self.check(self.driver.cuCtxSynchronize()[0], "waiting for other libraries")
                return
            code = self.driver.cuCtxRecordEvent(self.handle, self._order)[0]
            self.check(code, "cuCtxRecordEvent")
            self._wait(self.stream, self._order)

    def lead_all(self) -> None:
        """What any stream of the context is given from now on waits for what is enqueued here."""
        if self.version < cuda_driver.CONTEXT_EVENTS:
            self.synchronize()
            return
        with self.lock, self:
            self.record(self._order)
            code = self.driver.cuCtxWaitEvent(self.handle, self._order)[0]
            self.check(code, "cuCtxWaitEvent")

    def _wait(self, stream: Any, event: Any) -> None:
        self.check(self.driver.cuStreamWaitEvent(stream, event, 0)[0], "cuStreamWaitEvent")
