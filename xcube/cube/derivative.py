"""Kernels with derivatives: what `jvp` and `grad` need is made of the kernel itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xcube.cube.call import Kernel, Options, Sizes, launch
from xcube.cube.calls import Call, Expanded


@dataclass(frozen=True)
class Differentiable:
    """A kernel that `jvp`, `grad` and their like can go through; launched like the kernel."""

    kernel: Any
    options: Options

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.name

    @property
    def parameters(self) -> Sequence[str]:
        """Names of the kernel's parameters."""
        return self.kernel.parameters

    def bind(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Values of the kernel's parameters."""
        return self.kernel.bind(args, named)

    def kind(self, parameter: str) -> str:
        """What a parameter takes."""
        return self.kernel.kind(parameter)

    def expand(self, call: Call, facts: Any) -> Expanded:
        """The kernel for a call."""
        return self.kernel.expand(call, facts)

    def __getitem__(self, grid: tuple[Sizes, Sizes]) -> Any:
        count, dim = grid
        return lambda *args, **named: launch(self, count, dim, args, named, self.options)


def differentiable(kernel: Kernel, *, assume_disjoint: bool = False) -> Differentiable:
    """The kernel with derivatives of every order, made of what it does.

    Forward mode goes along with the kernel: tangents beside values. Reverse mode goes back through
    each unit: what it reads becomes additions to cotangents (atomic ones, whose order is not the
    same on every run, where units read in common), what it computed in branches and loops is
    computed again. Values that are written over, integers and comparisons carry no derivative.

    `assume_disjoint` promises that no two units write one element, where that is not evident from
    the index: an index that is affine in ABSOLUTE_POS needs no promise.

    What has no derivative is refused, with the kernel's line, when it is asked for: exchanges,
    atomic extrema, loops without a limit that carry derivatives, and in reverse mode barriers.
    """
    return Differentiable(
        kernel, replace(kernel.options, differentiable=True, disjoint=assume_disjoint)
    )
