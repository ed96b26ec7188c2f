"""Runs the launches of a kernel template by themselves: in the interpreter or compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from xcube import dtypes
from xcube.ir import Aval, Equation, Jaxpr, Literal, Primitive, Var
from xcube.lowering.clusters import Group
from xcube.lowering.cube.arithmetic import NUMPY
from xcube.lowering.cube.check import check
from xcube.lowering.cube.interpreter import interpret
from xcube.lowering.device.base import Facts
from xcube.lowering.device.cpu import device
from xcube.lowering.emit.llvm import emit
from xcube.lowering.kernels.work import Block, Work
from xcube.lowering.program import plan

Array = np.ndarray[Any, Any]


def lines(vector_bytes: int = 64) -> Facts:
    """A device whose lines have so many bytes."""
    sizes = (1 << 15, 1 << 20, 1 << 30)
    return Facts("test", "cpu", "any", 1, vector_bytes * 8, *sizes, frozenset())


def equation(name: str, operands: list[Any], outputs: list[Aval], **params: Any) -> Equation:
    """An equation on arrays; NumPy scalars become literals."""
    inputs = [
        Literal(x, Aval((), x.dtype)) if isinstance(x, np.generic) else Var(Aval(x.shape, x.dtype))
        for x in operands
    ]
    primitive = Primitive(name, abstract=lambda *avals, **params: tuple(outputs), multiple=True)
    return Equation(tuple(Var(aval) for aval in outputs), primitive, tuple(inputs), params)


def group(eqn: Equation, outputs: tuple[Var, ...] | None = None) -> Group:
    """The group of one template's equation."""
    outputs = eqn.outputs if outputs is None else outputs
    producers = {var: eqn for var in eqn.outputs}
    return Group("template", eqn.outputs[0].aval.shape, (), outputs, producers, eqn)


def interpreted(works: list[Work], eqn: Equation, operands: list[Any]) -> list[Array]:
    """Results of the launches, unit by unit, with every access checked."""
    memory: dict[Var, Array] = {}
    for atom, x in zip(eqn.inputs, operands, strict=True):
        if isinstance(atom, Var):
            memory[atom] = _flat(x).copy()
    for work in works:
        check(work.kernel)
        for var, buffer in zip(work.buffers, work.kernel.buffers, strict=True):
            if var not in memory:
                count = var.aval.nbytes // np.dtype(NUMPY[buffer.dtype]).itemsize
                memory[var] = np.zeros(count, NUMPY[buffer.dtype])
        if work.cubes:
            arrays = [memory[var] for var in work.buffers]
            interpret(work.kernel, work.cubes, arrays, work.scalars)
    return [_shaped(memory[var], var) for var in eqn.outputs if var in memory]


class Compiled:
    """The launches as one program of the CPU."""

    def __init__(self, works: list[Work], eqn: Equation, outputs: tuple[Var, ...]) -> None:
        self.atoms = eqn.inputs
        self.inputs = list(dict.fromkeys(a for a in eqn.inputs if isinstance(a, Var)))
        self.outputs = outputs
        jaxpr = Jaxpr(tuple(self.inputs), (eqn,), outputs)
        program = plan(Block(jaxpr, tuple(works), {}))
        cpu = device()
        sources = [("kernel", emit(kernel, name="kernel")) for kernel in program.kernels]
        self.executable = cpu.link(
            cpu.compile(sources),
            program.launches,
            len(self.inputs),
            program.output_nbytes,
            arena_nbytes=program.arena_nbytes,
        )

    def __call__(self, operands: list[Any]) -> list[Array]:
        values = dict(zip(self.atoms, operands, strict=True))
        buffers = [device().from_host(values[var]) for var in self.inputs]
        results = self.executable(buffers)
        pairs = zip(results, self.outputs, strict=True)
        return [buffer.numpy(var.aval.shape, var.aval.dtype) for buffer, var in pairs]


def _flat(x: Array) -> Array:
    flat = np.ascontiguousarray(x).reshape(-1)
    parts = {"c64": np.float32, "c128": np.float64}
    short = dtypes.short_name(x.dtype)
    return flat.view(parts[short]) if short in parts else flat


def _shaped(array: Array, var: Var) -> Array:
    return array.view(var.aval.dtype).reshape(var.aval.shape)
