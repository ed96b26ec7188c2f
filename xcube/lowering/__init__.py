"""From a jaxpr to something that runs. `compile` is the pipeline, top to bottom.

jaxpr -> simplify -> blocks (schedule, kernels) -> program (memory plan) -> emit -> device
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from xcube import config
from xcube.array import DeviceArray
from xcube.ir import Equation, Jaxpr, check
from xcube.lowering import blocks, results, split, tune
from xcube.lowering.cube.check import check as check_kernel
from xcube.lowering.cube.ir import Kernel
from xcube.lowering.cube.text import text as kernel_text
from xcube.lowering.device.base import Buffer, Device, Facts, Launch
from xcube.lowering.device.base import Executable as Linked
from xcube.lowering.kernels import attention, attention_matrix, contract, convolve, fft
from xcube.lowering.program import Program, plan
from xcube.lowering.simplify import simplify

Executable = Callable[[Sequence[Buffer]], list[Buffer]]

_handles: dict[str, dict[str, int]] = {}  # device name -> kernel text -> handle

LIGHT = 1 << 16  # bytes below which a program runs without letting other Python threads in


def compile(
    jaxpr: Jaxpr, device: Device, donated: Sequence[bool] = (), forward: bool = True
) -> Executable:
    """An executable from input buffers to output buffers.

    `donated` says of each input whether results may take its memory over; `forward`, whether a
    result that is an input may be that input's buffer.
    """
    tune.settle(lambda: lower(jaxpr, device, donated, forward), device, compile)
    with _without_collection():
        program = lower(jaxpr, device, donated, forward)
        handles = _compile_kernels(program, device)
    linked = device.link(
        handles,
        program.steps,
        len(program.jaxpr.inputs),
        program.output_nbytes,
        [_on_device(value, device) for value in program.constants],
        arena_nbytes=program.arena_nbytes,
        donated=program.donated,
        light=_is_light(program),
    )
    return _arranged(program, linked)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Lowering makes many small objects, few of them cyclic: looking for garbage among them costs a
    sixth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def lower(
    jaxpr: Jaxpr, device: Device, donated: Sequence[bool] = (), forward: bool = True
) -> Program:
    """The program of a jaxpr: everything but the device's own code."""
    _log("jaxpr", jaxpr)
    facts = device.facts()
    flat = simplify(jaxpr, lambda eqn: _expanded(eqn, facts))
    flat = results.computed(flat)
    flat = flat if forward else results.own(flat)
    _log("simplify", flat)
    if config.current.check:
        check(flat)
    block = blocks.build(flat, facts, donated)
    program = plan(block)
    _log("program", program)
    return program


def _expanded(eqn: Equation, facts: Facts) -> Jaxpr | None:
    """What stands for an equation on a device, where that is not for all devices to know."""
    for family in (contract, convolve, attention, attention_matrix, fft, split):
        if (found := family.expand(eqn, facts)) is not None:
            return found
    return None


def _compile_kernels(program: Program, device: Device) -> list[int]:
    """Handles of a program's kernels; only those are emitted that this device has not seen."""
    known = _handles.setdefault(device.name, {})
    missing = {
        key: kernel
        for key, kernel in zip(program.keys, program.kernels, strict=True)
        if key not in known
    }
    sources = []
    for kernel in missing.values():
        _log("cube", kernel)
        if config.current.check:
            check_kernel(kernel)
        name = _entry(kernel)
        text = device.emit(kernel, name)
        _log("source", text)
        sources.append((name, text))
    known.update(zip(missing, device.compile(sources), strict=True))
    return [known[key] for key in program.keys]


def _entry(kernel: Kernel) -> str:
    """A name for a kernel's code that is no function or word of a target's language."""
    letters = [letter if letter.isascii() else f"u{ord(letter):x}" for letter in kernel.name]
    return f"{''.join(letters)}_kernel"


def _on_device(value: Any, device: Device) -> Buffer:
    """The memory of a constant on a device."""
    if isinstance(value, DeviceArray):
        home = value.device
        return value.buffer if home is device else device.receive(value.buffer, home)
    return device.from_host(np.asarray(value))


def _is_light(program: Program) -> bool:
    total = sum(program.output_nbytes) + program.arena_nbytes
    total += sum(var.aval.nbytes for var in program.jaxpr.inputs)
    flat = all(isinstance(step, Launch) for step in program.steps)
    return flat and total <= LIGHT and all(step.cubes <= step.grain for step in program.launches)


def _arranged(program: Program, linked: Linked) -> Executable:
    """The executable with results in order, those included that are inputs."""
    outputs = program.outputs
    if all(ref.space == "output" and ref.index == n for n, ref in enumerate(outputs)):
        return linked

    def arranged(inputs: Sequence[Buffer]) -> list[Buffer]:
        results = linked(inputs)
        homes = {"output": results, "input": inputs}
        return [homes[ref.space][ref.index] for ref in outputs]

    return arranged


def _log(stage: str, value: Any) -> None:
    if stage in config.current.log:
        print(f"--- {stage}\n{kernel_text(value) if isinstance(value, Kernel) else value}")
