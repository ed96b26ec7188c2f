"""From a jaxpr to something that runs. `compile` is the pipeline, top to bottom.

jaxpr -> simplify -> schedule -> kernels (templates) -> program (memory plan) -> emit -> device
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from xcube import config
from xcube.ir import Equation, Jaxpr, Literal, Var, check
from xcube.lowering import split
from xcube.lowering.cube.check import check as check_kernel
from xcube.lowering.cube.ir import Kernel
from xcube.lowering.cube.text import text as kernel_text
from xcube.lowering.device.base import Buffer, Device
from xcube.lowering.device.base import Executable as Linked
from xcube.lowering.emit.llvm import emit
from xcube.lowering.kernels import contract, select
from xcube.lowering.program import Program, donations, plan
from xcube.lowering.schedule import Group, schedule
from xcube.lowering.simplify import simplify
from xcube.primitives.convert import copy_p
from xcube.primitives.shape import broadcast_in_dim_p

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
    with _without_collection():
        program = lower(jaxpr, device, donated, forward)
        handles = _compile_kernels(program, device)
    linked = device.link(
        handles,
        program.launches,
        len(program.jaxpr.inputs),
        program.output_nbytes,
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
    flat = simplify(
        _with_computed_outputs(jaxpr),
        lambda eqn: contract.expand(eqn, facts) or split.expand(eqn),
    )
    flat = flat if forward else _with_own_outputs(flat)
    _log("simplify", flat)
    if config.current.check:
        check(flat)
    groups = schedule(flat)
    taken = donations(flat, groups, donated) if any(donated) else {}
    works = [work for group in groups for work in select.build(group, facts, _shared(group, taken))]
    program = plan(flat, works, taken)
    _log("program", program)
    return program


def _with_computed_outputs(jaxpr: Jaxpr) -> Jaxpr:
    """Results that are literals become results of equations."""
    if not any(isinstance(atom, Literal) for atom in jaxpr.outputs):
        return jaxpr
    equations, outputs = list(jaxpr.equations), []
    params = {"shape": (), "broadcast_dimensions": ()}
    for atom in jaxpr.outputs:
        if isinstance(atom, Literal):
            var = Var(atom.aval)
            equations.append(Equation((var,), broadcast_in_dim_p, (atom,), params))
            atom = var
        outputs.append(atom)
    return Jaxpr(jaxpr.inputs, tuple(equations), tuple(outputs), jaxpr.captured, jaxpr.name)


def _with_own_outputs(jaxpr: Jaxpr) -> Jaxpr:
    """Results that are inputs become copies of them."""
    given = set(jaxpr.inputs)
    equations, outputs = list(jaxpr.equations), []
    for atom in jaxpr.outputs:
        if isinstance(atom, Var) and atom in given:
            equations.append(Equation((Var(atom.aval),), copy_p, (atom,), {}))
            atom = equations[-1].outputs[0]
        outputs.append(atom)
    return Jaxpr(jaxpr.inputs, tuple(equations), tuple(outputs), jaxpr.captured, jaxpr.name)


def _shared(group: Group, taken: dict[Var, Var]) -> frozenset[Var]:
    """Operands of a group whose memory its results take over."""
    pairs = ((taken[var], var) for var in group.outputs if var in taken)
    return frozenset(source for source, var in pairs if (source, var) in group.in_place)


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
        text = emit(kernel)
        _log("llvm", text)
        sources.append(("kernel", text))
    known.update(zip(missing, device.compile(sources), strict=True))
    return [known[key] for key in program.keys]


def _is_light(program: Program) -> bool:
    total = sum(program.output_nbytes) + program.arena_nbytes
    total += sum(var.aval.nbytes for var in program.jaxpr.inputs)
    return total <= LIGHT and all(launch.cubes <= launch.grain for launch in program.launches)


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
