"""Launches of kernels: `kernel[count, dim](...)` at once, and `call`, a function of arrays for
programs and their transforms. Arguments are checked here, before anything runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

import numpy as np

from xcube import config, dlpack, dtypes
from xcube.array import Array
from xcube.cube import checks
from xcube.cube.calls import Argument, Call, Expanded
from xcube.cube.launches import Launch
from xcube.cube.sanitize import sanitize
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, at_user_line
from xcube.lowering.device import default_device, holder
from xcube.primitives.launch import launch as bind_launch
from xcube.transforms.arguments import to_array

UNITS = 1024  # of a cube at most
CUBES = (1 << 31) - 1  # of a launch at most

_HOST, _DEVICE = ("__array__", "__jax_array__"), "__dlpack__"  # what arrays of others offer

Sizes = int | Sequence[int]


class Kernel(Protocol):
    """What can be launched: a decorated function (`@cube.kernel`)."""

    @property
    def name(self) -> str:
        """The function's name."""
        ...

    @property
    def parameters(self) -> Sequence[str]:
        """Names of its parameters."""
        ...

    @property
    def options(self) -> Options:
        """How it is launched."""
        ...

    def bind(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Values of all parameters, in their order; TypeError if they do not fit."""
        ...

    def kind(self, parameter: str) -> str:
        """What a parameter takes: "array", "scalar", "comptime", or "" for whatever comes."""
        ...

    def expand(self, call: Call, facts: Any) -> Expanded:
        """The kernel for a call."""
        ...


@dataclass(frozen=True)
class Options:
    """What a launch was told besides its arguments. `checked`: an access out of bounds is not done,
    loads give 0 there, and IndexError says where; in a program a call of the host behind each
    launch looks, so that no result of a fault is seen. It costs some 10 us, and keeps loops around
    the launch from running without the host; unchecked launches do neither. `differentiable`,
    `disjoint`: see `cube.differentiable`."""

    checked: bool = True
    differentiable: bool = False
    disjoint: bool = False


def launch(
    kernel: Kernel,
    count: Sizes,
    dim: Sizes,
    args: Sequence[Any],
    named: Mapping[str, Any],
    options: Options,
) -> Any:
    """The arrays that a launch writes, in the order of their parameters: one, or a tuple.

    Raises TypeError, ShapeError, DtypeError or ValueError if the arguments or the grid do not fit;
    IndexError, with the kernel's line, if a checked launch leaves an array.
    """
    if config.current.sanitize:
        options = replace(options, checked=True)
    call, operands = prepared(kernel, count, dim, kernel.bind(args, named), options)
    if config.current.sanitize:
        sanitize(call, operands)
    outs = bind_launch(Launch(call), operands)
    if call.checked:
        *outs, record = outs
        checks.report(record, call)
    return outs[0] if len(outs) == 1 else tuple(outs)


def call(
    kernel: Kernel,
    *,
    out: Any,
    grid: tuple[Sizes, Sizes],
    options: Options | None = None,
    **named: Any,
) -> Callable[..., Any]:
    """A function of the arrays that a kernel reads, for `jit`, `vmap` and `grad`.

    `out`: what the kernel writes, an array or its shape and dtype, for the last parameters that
    are arrays: one, a tuple, or a dict by parameter. `grid`: (cubes, units of a cube). `named`:
    values of other parameters. The function takes the other parameters, in order.

    Raises ValueError if the grid is none; what a launch raises, when it is called.
    """
    chosen = options or kernel.options
    count, dim = grid

    @functools.wraps(call, assigned=(), updated=())
    def function(*args: Any) -> Any:
        given = {**named, **_outputs(kernel, out, named, len(args))}
        return launch(kernel, count, dim, args, given, chosen)

    function.__name__ = kernel.name
    return function


def _outputs(kernel: Kernel, out: Any, named: Mapping[str, Any], count: int) -> dict[str, Any]:
    """What is written, by parameter."""
    if isinstance(out, Mapping):
        return dict(out)
    outs = tuple(out) if isinstance(out, tuple | list) else (out,)
    names = [name for name in kernel.parameters if name not in named]
    last = names[count : count + len(outs)]
    if len(last) != len(outs):
        raise TypeError(
            f"{kernel.name}: its parameters that are not named must be {count} arrays to read and "
            f"{len(outs)} to write; it has {', '.join(names) or 'none'}.{at_user_line()} Name the "
            f"others, or give `out` as a dict."
        )
    return dict(zip(last, outs, strict=True))


# arguments ------------------------------------------------------------------------------------


def prepared(
    kernel: Kernel, count: Sizes, dim: Sizes, values: Mapping[str, Any], options: Options
) -> tuple[Call, list[Any]]:
    """The launch with its operands."""
    operands: list[Any] = []
    arguments = [_argument(kernel, name, x, operands) for name, x in values.items()]
    cubes, units = sizes(kernel.name, "count", count, 0), sizes(kernel.name, "dim", dim, 1)
    _check_grid(kernel.name, cubes, units)
    found = Call(
        kernel,
        tuple(arguments),
        cubes,
        (*units, 1, 1)[:3],  # type: ignore[arg-type]
        (),
        options.checked,
        options.differentiable,
        options.disjoint,
    )
    written = kernel.expand(found, default_device().facts()).written
    _check_written(kernel.name, arguments, written)
    return replace(found, written=tuple(written)), operands


def _argument(kernel: Kernel, name: str, value: Any, operands: list[Any]) -> Argument:
    """What a parameter is given; arrays become operands."""
    kind = kernel.kind(name)
    if kind == "comptime":
        return Argument(name, value=value)
    if _is_array(value):
        return _operand(kernel, name, value, operands)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return Argument(name, Aval(tuple(value.shape), _stored(kernel, name, value.dtype)))
    if kind == "array":
        _refuse(TypeError, kernel, name, "be an array, or the shape and dtype of one", value)
    return Argument(name, value=value, is_scalar=isinstance(value, bool | int | float))


def _operand(kernel: Kernel, name: str, value: Any, operands: list[Any]) -> Argument:
    array = _array(value)
    _stored(kernel, name, array.dtype)
    operands.append(array)
    is_scalar = array.ndim == 0 and kernel.kind(name) != "array"
    aval = array.aval.strengthen()
    return Argument(name, aval, len(operands) - 1, is_scalar=is_scalar)


def _is_array(value: Any) -> bool:
    return isinstance(value, Array) or any(hasattr(value, offer) for offer in (*_HOST, _DEVICE))


def _array(value: Any) -> Array:
    """An array of anything that has values, which stay on its device."""
    is_known = any(hasattr(value, offer) for offer in _HOST) or holder(value) is not None
    if isinstance(value, Array) or is_known:
        return to_array.convert(value)
    return to_array.convert(dlpack.import_array(value).copy())


def _stored(kernel: Kernel, name: str, dtype: Any) -> np.dtype:
    """A dtype that kernels can load."""
    found = dtypes.requested_dtype(dtype, kernel.name)
    if dtypes.is_complex(found) or found not in dtypes.SHORT:
        _refuse(DtypeError, kernel, name, "be of numbers that are not complex", found)
    return found


def _refuse(error: type[Exception], kernel: Kernel, name: str, what: str, got: Any) -> NoReturn:
    raise error(f"{kernel.name}: {name} must {what}; got {got}.{at_user_line()}")


def _check_written(name: str, arguments: Sequence[Argument], written: Sequence[str]) -> None:
    """Memory that nothing was written to is of use only to be written."""
    for argument in arguments:
        fresh = argument.aval is not None and argument.operand is None
        if fresh and argument.name not in written:
            raise ShapeError(
                f"{name}: {argument.name} must be an array, for the kernel only reads it; got the "
                f"shape and dtype {argument.aval}.{at_user_line()} Pass the array."
            )
    if not written:
        raise ShapeError(
            f"{name}: a kernel must write at least one of its arrays; it writes none."
            f"{at_user_line()} Store to a parameter, and pass its shape and dtype."
        )


# the grid -------------------------------------------------------------------------------------


def sizes(name: str, what: str, given: Sizes, least: int) -> tuple[int, ...]:
    """One to three sizes.

    Raises ValueError if they are others, or below the least.
    """
    found: tuple[Any, ...] = tuple(given) if isinstance(given, tuple | list) else (given,)
    whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in found)
    if not 1 <= len(found) <= 3 or not whole or min(found) < least:
        raise ValueError(
            f"{name}: the {what} of a launch must be 1 to 3 integers >= {least}; got {given!r}."
            f"{at_user_line()} Launch with {name}[cubes, units of a cube](...)."
        )
    return tuple(map(int, found))


def _check_grid(name: str, count: Sequence[int], dim: Sequence[int]) -> None:
    cubes, units = int(np.prod(count, dtype=object)), int(np.prod(dim, dtype=object))
    if units > UNITS:
        raise ValueError(
            f"{name}: a cube must have at most {UNITS} units; got {tuple(dim)}, which is {units}."
            f"{at_user_line()} Launch more cubes of fewer units."
        )
    if cubes > CUBES:
        raise ValueError(
            f"{name}: a launch must have at most {CUBES} cubes; got {tuple(count)}, which is "
            f"{cubes}.{at_user_line()} Let each unit do more, by a loop."
        )
