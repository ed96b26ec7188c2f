"""The decorators: `kernel` makes a function something to launch, `function` something that kernels
call."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xcube.cube import parameters
from xcube.cube.call import Options, Sizes, launch
from xcube.cube.expand import Expansion, Request, expand
from xcube.cube.rewrite import rewritten
from xcube.cube.state import current, fail, is_expanding
from xcube.errors import KernelError
from xcube.ir import at_user_line

REMEMBERED = 256  # expansions of one kernel
DEEPEST = 64  # calls of one function inside each other


@dataclass(frozen=True, eq=False)
class Kernel:
    """A function that every unit of a launch runs: `kernel[cubes, units](arrays, ...)` launches it
    and gives the arrays that it writes."""

    function: types.FunctionType
    options: Options
    expanded: Callable[..., Any]
    kinds: Mapping[str, Any]
    signature: inspect.Signature
    known: dict[Request, Expansion] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of its parameters."""
        return tuple(self.kinds)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.function.__doc__

    def __repr__(self) -> str:
        return f"<kernel {self.name}>"

    def bind(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Values of all parameters, bundles by their fields.

        Raises TypeError if they do not fit the function.
        """
        try:
            bound = self.signature.bind(*args, **named)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}.{at_user_line()}") from None
        bound.apply_defaults()
        pairs = [
            parameters.flattened(name, self.kinds[name], value, self.kinds)
            for name, value in bound.arguments.items()
        ]
        return dict([pair for many in pairs for pair in many])

    def kind(self, parameter: str) -> str:
        """What a parameter takes: "array", "scalar", "comptime", or "" for whatever comes."""
        return parameters.word(parameters.kind_of(self.kinds, parameter))

    def expand(self, call: Any, facts: Any) -> Expansion:
        """The kernel for a call (`calls.Call`), on a device of such facts.

        Raises KernelError, DtypeError or ShapeError, with the user's line, if it cannot be built.
        """
        specs = [
            parameters.spec(self.name, parameters.kind_of(self.kinds, argument.name), argument)
            for argument in call.arguments
        ]
        request = Request(tuple(specs), call.dim, len(call.count), facts)
        found = self.known.get(request)
        if found is None:
            found = expand(self.name, self.expanded, request)
            if len(self.known) >= REMEMBERED:
                self.known.pop(next(iter(self.known)))
            self.known[request] = found
        return found

    def __getitem__(self, grid: tuple[Sizes, Sizes]) -> Callable[..., Any]:
        """The launch of so many cubes of so many units: each a number or up to three."""
        if not isinstance(grid, tuple) or len(grid) != 2:
            raise ValueError(
                f"{self.name}: a launch must name cubes and the units of a cube; got {grid!r}."
                f"{at_user_line()} Write {self.name}[cubes, units](...)."
            )
        return Launcher(self, *grid)

    def __call__(self, *args: Any, **named: Any) -> Any:
        if is_expanding():
            raise KernelError(
                f"{self.name}: what a kernel calls must be a function; got a kernel."
                f"{at_user_line()} Decorate it with @cube.function."
            )
        raise KernelError(
            f"{self.name}: a kernel must be launched with its grid; got a plain call."
            f"{at_user_line()} Write {self.name}[cubes, units](...)."
        )


@dataclass(frozen=True)
class Launcher:
    """A kernel with its grid."""

    kernel: Kernel
    count: Sizes
    dim: Sizes

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Launch; gives the arrays that the kernel writes: one, or a tuple."""
        return launch(self.kernel, self.count, self.dim, args, named, self.kernel.options)


def kernel(function: Any = None, *, checked: bool = True) -> Any:
    """Make a function a kernel, which `kernel[cubes, units](...)` launches. `checked`: an access
    out of bounds harms nothing and raises IndexError.

    Raises KernelError if the function holds what kernels cannot do, with the line.

    >>> import numpy as np
    >>> from xcube import cube, ShapeDtypeStruct
    >>> @cube.kernel
    ... def double(x: cube.Array, out: cube.Array):
    ...     i = cube.ABSOLUTE_POS
    ...     if i < out.length:
    ...         out[i] = 2 * x[i]
    >>> x = np.arange(5, dtype=np.float32)
    >>> double[2, 4](x, ShapeDtypeStruct(x.shape, x.dtype))
    Array([0., 2., 4., 6., 8.], dtype=float32)
    """
    if function is None:
        return functools.partial(kernel, checked=checked)
    if not isinstance(function, types.FunctionType):
        raise KernelError(
            f"cube.kernel: what is decorated must be a function; got {type(function).__name__}."
            f"{at_user_line()} Write @cube.kernel above a def."
        )
    expanded, kinds = rewritten(function, is_kernel=True), parameters.kinds(function)
    return Kernel(function, Options(checked=checked), expanded, kinds, inspect.signature(function))


@dataclass(frozen=True, eq=False)
class Function:
    """A function that kernels call; outside of kernels it is the Python function."""

    function: types.FunctionType
    expanded: Callable[..., Any]

    @property
    def __name__(self) -> str:
        return self.function.__name__

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.function.__doc__

    def __repr__(self) -> str:
        return f"<function {self.__name__} of kernels>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """What the function returns; in a kernel its statements become the kernel's."""
        if not is_expanding():
            return self.function(*args, **named)
        state = current()
        source = state.build.source
        if state.calls.count(self) == DEEPEST:
            must = f"{self.__name__}: recursion must end at expansion, by comptime values"
            way = "Write a loop, or stop by a comptime number."
            fail(KernelError, must, f"{DEEPEST} calls inside each other", way)
        state.calls.append(self)
        try:
            return self.expanded(*args, **named)
        finally:
            state.calls.pop()
            state.build.source = source


def function(function: Any) -> Function:
    """Make a function one that kernels call: its branches and loops may depend on run-time values.

    Raises KernelError if it holds what kernels cannot do, with the line.

    >>> from xcube import cube
    >>> @cube.function
    ... def larger(x, y):
    ...     if x > y:
    ...         return x
    ...     return y
    >>> larger(1, 2)
    2
    """
    if not isinstance(function, types.FunctionType):
        raise KernelError(
            f"cube.function: what is decorated must be a function; got "
            f"{type(function).__name__}.{at_user_line()} Write @cube.function above a def."
        )
    return Function(function, rewritten(function, is_kernel=False))
