"""Kernels run unit by unit in the interpreter, which finds what devices let pass: races, access out
of bounds, reads of memory that nothing was written to, barriers that only some units reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube.cube.call import Kernel, Options, Sizes, prepared
from xcube.cube.sanitize import interpreted
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
