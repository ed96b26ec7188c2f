"""What one signature of a jitted function became: its closed jaxpr and, for each device it was
called on, the executable. The one door from transforms to lowering."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from xcube import config, tree
from xcube.array import Array, DeviceArray
from xcube.eager import together, transferred
from xcube.ir import Aval, Jaxpr, at_user_line
from xcube.lowering import Executable, compile
from xcube.lowering.device.base import Buffer, Device
from xcube.trace import EVAL, bind, current_trace, set_current
from xcube.transforms import nans
from xcube.transforms.call import jit_p

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Linked:
    """What runs one signature on a device, and its constants there."""

    executable: Executable
    constants: list[Buffer]


@dataclass(slots=True, eq=False)
class Entry:
    """One signature: a closed jaxpr of the captured constants and the arguments' leaves, and the
    structures of arguments and result. `donated` is of each input. It is open if it captured
    tracers: then it can only be bound, and is of no use to later calls."""

    name: str
    jaxpr: Jaxpr
    constants: list[Any]
    in_tree: Any
    out_tree: Any
    donated: tuple[bool, ...]
    is_open: bool = False
    linked: dict[Device, Linked] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.RLock)

    @property
    def in_avals(self) -> tuple[Aval, ...]:
        """Avals of the arguments' leaves."""
        return self.jaxpr.in_avals[len(self.constants) :]

    @property
    def in_donated(self) -> tuple[bool, ...]:
        """Of the arguments' leaves, which are donated."""
        return self.donated[len(self.constants) :]

    def call(self, leaves: list[Any]) -> Any:
        """The result for arrays, or traced where one of them or the current trace is."""
        if self.is_open or current_trace() is not EVAL:
            return self.bind(leaves)
        for leaf in leaves:
            if type(leaf) is not DeviceArray:
                return self.bind(leaves)
        return self.run(leaves)

    def bind(self, leaves: Sequence[Array]) -> Any:
        """The result as one equation."""
        outs = bind(jit_p, *self.constants, *leaves, jaxpr=self.jaxpr, name=self.name)
        return tree.unflatten(self.out_tree, outs)

    def run(self, leaves: list[Any], device: Device | None = None) -> Any:
        """The result on a device: the one given, on which the leaves are then, or theirs."""
        if device is None:
            leaves, device = together(leaves)
        if (linked := self.linked.get(device)) is None:
            linked = self.link(device)
        buffers = [*linked.constants, *[leaf.buffer for leaf in leaves]]
        settings = config.current
        watched = settings.debug_nans or settings.debug_infs
        given = self._kept(leaves) if watched else []
        if True in self.donated:
            buffers = self._donate(leaves, buffers)
        results = linked.executable(buffers)
        outs = [
            DeviceArray(aval, buffer, device)
            for aval, buffer in zip(self.jaxpr.out_avals, results, strict=True)
        ]
        if watched:
            nans.check_program(nans.kinds(), self.jaxpr, given, outs)
        return tree.unflatten(self.out_tree, outs)

    def link(self, device: Device) -> Linked:
        """What runs on a device, compiled if it has not been."""
        with self.lock, set_current(EVAL):
            if device not in self.linked:
                self._log(device)
                constants = [transferred(value, device).buffer for value in self.constants]
                executable = compile(self.jaxpr, device, self.donated)
                self.linked[device] = Linked(executable, constants)
            return self.linked[device]

    def _log(self, device: Device) -> None:
        if config.current.log_compiles:
            avals = ", ".join(map(str, self.in_avals))
            _LOGGER.warning("Compiling %s(%s) for %s.", self.name, avals, device.name)

    def _kept(self, leaves: list[DeviceArray]) -> list[Any]:
        """The inputs once more: donated ones are copied while these are held."""
        return [*self.constants, *[DeviceArray(x._aval, x.buffer, x._device) for x in leaves]]

    def _donate(self, leaves: list[DeviceArray], buffers: list[Any]) -> list[Any]:
        """Take the donated buffers from their arrays. A buffer that somebody else holds (another
        array, a NumPy view) is copied, so that nobody sees it change."""
        first = len(self.constants)
        given = [leaf for leaf, flag in zip(leaves, self.in_donated, strict=True) if flag]
        if len({id(leaf) for leaf in given}) < len(given):
            raise ValueError(
                f"{self.name}: one array was passed in two donated arguments.{at_user_line()}"
            )
        for number, leaf in enumerate(leaves):
            if not self.donated[first + number]:
                continue
            leaf._buffer = None
            if _holders(buffers, first + number) > _ALONE:
                buffers[first + number] = _copied(buffers[first + number], leaf._device)
        return buffers


def _holders(values: list[Any], position: int) -> int:
    return sys.getrefcount(values[position])


_ALONE = _holders([object()], 0)  # of a value that only its list holds


def _copied(buffer: Buffer, device: Device) -> Buffer:
    return device.receive(buffer, device)
