"""Kernels run unit by unit in the interpreter, which finds what devices let pass: races, access out
of bounds, reads of memory that nothing was written to, barriers that only some units reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.cube.call import Kernel, Options, Sizes, prepared
from xcube.cube.calls import Call, base
from xcube.lowering.cube import decompose, ir, scalars
from xcube.lowering.cube.interpreter import interpret as run
from xcube.lowering.device import default_device
from xcube.transforms.arguments import to_array


@dataclass(frozen=True)
class Interpreted:
    """A kernel that is launched in the interpreter."""

    kernel: Kernel

    def __getitem__(self, grid: tuple[Sizes, Sizes]) -> Callable[..., Any]:
        count, dim = grid

        def launched(*args: Any, **named: Any) -> Any:
            values = self.kernel.bind(args, named)
            call, operands = prepared(self.kernel, count, dim, values, Options(checked=False))
            outs = interpreted(call, [np.asarray(x) for x in operands])
            arrays = [to_array.convert(out) for out in outs]
            return arrays[0] if len(arrays) == 1 else tuple(arrays)

        return launched


def interpret(kernel: Kernel) -> Interpreted:
    """The kernel, launched in the interpreter: `cube.interpret(kernel)[cubes, units](arrays, ...)`
    gives what `kernel[cubes, units](...)` gives, slowly.

    Its launches raise KernelError, with the line of the kernel, at the first fault.

    >>> import numpy as np
    >>> from xcube import cube, ShapeDtypeStruct
    >>> @cube.kernel
    ... def shift(x: cube.Array, out: cube.Array):
    ...     out[cube.ABSOLUTE_POS] = x[cube.ABSOLUTE_POS + 1]
    >>> x = np.arange(4, dtype=np.float32)
    >>> cube.interpret(shift)[1, 3](x, ShapeDtypeStruct((3,), x.dtype))
    Array([1., 2., 3.], dtype=float32)
    >>> cube.interpret(shift)[1, 4](x, ShapeDtypeStruct((4,), x.dtype))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    xcube.errors.KernelError: interpret: an index must be at least 0 and below 4; got 4 in lane 0...
    """
    return Interpreted(kernel)


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
