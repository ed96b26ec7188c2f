"""Every stage of a function's way to the device, to look at: its jaxpr, the program of launches
over planned memory, and each kernel as cube IR, as the device's source and as machine code. As text
at the prompt, as folding sections in a notebook."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from xcube.errors import DeviceError
from xcube.ir import Jaxpr
from xcube.lowering import lower
from xcube.lowering.cost import program_cost
from xcube.lowering.cube import text
from xcube.lowering.cube.ir import Kernel
from xcube.lowering.device import default_device
from xcube.lowering.device.base import Device
from xcube.lowering.program import Program
from xcube.primitives.cost import Cost
from xcube.trace import EVAL, set_current
from xcube.transforms.jit import Jitted, jit

_SYMBOL = "kernel"


@dataclass(frozen=True)
class InspectedKernel:
    """One kernel of a program in each of its forms."""

    kernel: Kernel = field(repr=False)
    device: Device = field(repr=False)
    launches: int

    @property
    def name(self) -> str:
        """What the kernel computes, in the words of its template."""
        return self.kernel.name

    @cached_property
    def cube(self) -> str:
        """The kernel in the cube language."""
        return text.text(self.kernel)

    @cached_property
    def source(self) -> str:
        """The text that the device compiles: LLVM IR on the CPU, CUDA C++ on a GPU."""
        return self.device.emit(self.kernel, _SYMBOL)

    @cached_property
    def assembly(self) -> str:
        """The machine code.

        Raises DeviceError if the device does not show it.
        """
        show = getattr(self.device, "assembly", None)
        if show is None:
            raise DeviceError(f"assembly: device {self.device.name} does not show machine code.")
        return show(_SYMBOL, self.source)

    def __repr__(self) -> str:
        return f"kernel {self.name}: {_times(self.launches)}, {_lines(self.cube)} lines of cube"


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found; prints as text, shows as HTML in a notebook."""

    jaxpr: Jaxpr
    program: Program
    device: Device

    @cached_property
    def cost(self) -> Cost:
        """Operations of the simplified program, and bytes that its launches read and write; of a
        while loop those of one turn."""
        with set_current(EVAL):
            return program_cost(self.jaxpr, self.program, self.device.facts())

    @cached_property
    def kernels(self) -> tuple[InspectedKernel, ...]:
        """The different kernels of the program, in the order of their first launch."""
        counts = [launch.kernel for launch in self.program.launches]
        return tuple(
            InspectedKernel(kernel, self.device, counts.count(number))
            for number, kernel in enumerate(self.program.kernels)
        )

    def __repr__(self) -> str:
        listed = "\n".join(f"{number:4} {kernel}" for number, kernel in enumerate(self.kernels))
        return f"{self.jaxpr}\n\n{self.program}\n\n{listed}".rstrip()

    def _repr_html_(self) -> str:
        parts = [
            _section(f"jaxpr: {len(self.jaxpr.equations)} equations", str(self.jaxpr), True),
            _section(f"program: {_times(len(self.program.launches))}", str(self.program), True),
            *(_kernel_section(kernel) for kernel in self.kernels),
        ]
        return f"<div>{''.join(parts)}</div>"


def inspect(fun: Callable[..., Any]) -> Callable[..., Inspection]:
    """A function of fun's arguments that shows how fun is computed for them, without computing it.

    The arguments may be arrays or anything with shape and dtype. A jitted function keeps its
    static and donated arguments. The result has `.jaxpr`, `.program`, `.cost` and `.kernels`, each
    kernel with `.cube`, `.source` and `.assembly`.

    >>> import xcube.numpy as jnp
    >>> found = inspect(lambda x: jnp.exp(x) * 2.0)(jnp.ones(1000))
    >>> found.jaxpr
    { lambda ; a:f32[1000]. let
        b:f32[1000] = exp a
        c:f32[1000] = mul b 2.0:f32[]
      in (c,) }
    >>> found.cost
    Cost(flops=1000, transcendentals=1000, nbytes=8000, loops=0)
    >>> len(found.kernels)
    1
    >>> "fmul" in found.kernels[0].source
    True
    """
    jitted = fun if isinstance(fun, Jitted) else jit(fun)

    def inspector(*args: Any, **kwargs: Any) -> Inspection:
        _, entry = jitted._entry(args, kwargs, abstract_only=True)
        device = default_device()
        with set_current(EVAL):
            program = lower(entry.jaxpr, device, entry.donated)
        return Inspection(entry.jaxpr, program, device)

    return inspector


def _kernel_section(kernel: InspectedKernel) -> str:
    forms = _section("cube", kernel.cube) + _section("source", kernel.source)
    title = f"kernel {kernel.name}: {_times(kernel.launches)}"
    return f"<details><summary>{html.escape(title)}</summary>{forms}</details>"


def _section(title: str, content: str, is_open: bool = False) -> str:
    state = " open" if is_open else ""
    body = f"<pre style='overflow-x:auto'>{html.escape(content)}</pre>"
    return f"<details{state}><summary>{html.escape(title)}</summary>{body}</details>"


def _times(launches: int) -> str:
    return "1 launch" if launches == 1 else f"{launches} launches"


def _lines(content: str) -> int:
    return content.count("\n") + 1
