"""A call of a kernel in the interpreter: what `cube.interpret` gives, and what the setting
`sanitize` runs before every launch, so that a fault is an error before anything of it is seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.cube.calls import Call, base
from xcube.lowering.cube import decompose, ir, scalars
from xcube.lowering.cube.interpreter import interpret as run
from xcube.lowering.device import default_device
from xcube.primitives.callback import debug_callback_p
from xcube.trace import bind


@dataclass(frozen=True)
class Sanitizer:
    """Runs a call in the interpreter for what it finds."""

    call: Call

    def __call__(self, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        interpreted(self.call, operands)
        return []

    def __str__(self) -> str:
        return f"interpreter of {self.call.source.name}"


def sanitize(call: Call, operands: Sequence[Any]) -> None:
    """Run a call in the interpreter, also where it is a part of a program.

    Raises KernelError at the first fault, when the program runs.
    """
    bind(debug_callback_p, *operands, function=Sanitizer(call), results=())


def interpreted(call: Call, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a call.

    Raises KernelError at the first fault.
    """
    stage = base(call, default_device().facts())
    launched = stage.launched
    kernel = decompose.decompose(launched.kernel)
    cells = list(launched.cells)
    if scalars.asks_count(kernel):
        kernel, cells = scalars.count_given(kernel), [*cells, launched.cubes]
    outs: list[Any] = [None] * len(stage.outputs)
    buffers = []
    for slot in launched.slots:
        aval = stage.aval(slot)
        source = None if slot.operand is None else operands[slot.operand]
        array = np.zeros(aval.size, aval.dtype) if source is None else source.reshape(-1).copy()
        if slot.output is not None:
            outs[slot.output] = array
        buffers.append(array)
    run(kernel, launched.cubes, buffers, [_number(*pair) for pair in zip(kernel.scalars, cells)])  # noqa: B905
    return [out.reshape(aval.shape) for out, aval in zip(outs, stage.outputs, strict=True)]


def _number(scalar: ir.Name, cell: int) -> Any:
    """The number in a 64-bit cell of a launch."""
    dtype = scalar.type.dtype
    if dtype not in ir.FLOATS:
        return bool(cell) if dtype == "bool" else cell
    raw = np.array([cell], np.uint64).tobytes()[: ir.BITS[dtype] // 8]
    return float(np.frombuffer(raw, dtypes.BY_SHORT[dtype])[0])
