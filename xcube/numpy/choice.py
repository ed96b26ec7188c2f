"""Choice between arrays, element by element: `where`, select, choose, piecewise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import Literal, at_user_line
from xcube.numpy import elementwise as e
from xcube.numpy.fused import fused
from xcube.numpy.operands import (
    array_operand,
    as_array,
    broadcast,
    cast,
    operand,
    promoted,
    scalar,
    stretch,
    typed_operand,
)
from xcube.primitives import select as primitive


@fused(3)
def chosen(condition: Any, x: Any, y: Any, name: str = "where") -> Array:
    """x where the condition is not zero, else y: bool[*s], d[*s], d[*s] -> d[*s]."""
    test = e.to_bool(operand(name, condition))
    test, x, y = broadcast(name, [test, *promoted(name, x, y)])
    if isinstance(x, Literal) and isinstance(y, Literal):
        x = as_array(x)
    if isinstance(test, Array) and test.ndim:
        x, y = (stretch(v, test.shape) if isinstance(v, Array) else v for v in (x, y))
    return primitive.select(as_array(test), x, y)


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Array:
    """For each element the choice of the first condition that holds there, else the default.

    Raises ValueError unless there are as many conditions as choices, and one at least.
    """
    if len(condlist) != len(choicelist) or not len(condlist):
        raise ValueError(
            f"select: there must be as many conditions as choices, and one at least; got "
            f"{len(condlist)} and {len(choicelist)}.{at_user_line()}"
        )
    choices = promoted("select", *choicelist, default)
    result = choices[-1]
    for condition, choice in zip(reversed(condlist), reversed(choices[:-1]), strict=True):
        result = chosen(condition, choice, result, "select")
    return as_array(result)


def choose(a: Any, choices: Any, out: None = None, mode: str = "raise") -> Array:
    """Element by element, the choice that an integer names: i[*s], [d[*s]] -> d[*s].

    `mode`: "clip", "wrap", or "raise", which clips traced integers.
    """
    which = array_operand("choose", a)
    items = (
        list(choices)
        if isinstance(choices, list | tuple)
        else list(array_operand("choose", choices))
    )
    if mode == "wrap":
        which = e.remainder(which, len(items))
    which = cast(e.clip(which, 0, len(items) - 1), scalar(0, "int32").aval.dtype)
    cases = [as_array(x) for x in promoted("choose", *items)]
    which, *cases = broadcast("choose", [which, *cases])
    return primitive.select_n(which, *cases) if len(cases) > 1 else cases[0]


def piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kwargs: Any) -> Array:
    """For each element the function (or constant) of the last condition that holds there; one more
    function than conditions is the default, which is 0 otherwise.

    Raises ValueError if the numbers of conditions and functions do not fit.
    """
    array = array_operand("piecewise", x)
    conditions = _conditions(condlist, array)
    functions = list(funclist)
    if len(functions) == len(conditions):
        functions.append(0)
    if len(functions) != len(conditions) + 1:
        raise ValueError(
            f"piecewise: there must be as many functions as conditions, or one more; got "
            f"{len(functions)} and {len(conditions)}.{at_user_line()}"
        )
    result: Any = _value(functions[-1], array, args, kwargs)
    for condition, function in zip(conditions, functions[:-1], strict=True):
        result = chosen(condition, _value(function, array, args, kwargs), result, "piecewise")
    return result


def _conditions(condlist: Any, x: Array) -> list[Any]:
    if isinstance(condlist, Array) and condlist.ndim == x.ndim:
        return [condlist]
    if isinstance(condlist, list | tuple) and condlist and isinstance(condlist[0], bool):
        return [condlist if x.ndim else condlist[0]]
    return list(condlist)


def _value(function: Callable[..., Any] | Any, x: Array, args: Any, kwargs: Any) -> Array:
    value = function(x, *args, **kwargs) if callable(function) else function
    array = as_array(typed_operand("piecewise", value, x.dtype))
    if array.shape not in ((), x.shape):
        raise ShapeError(
            f"piecewise: functions must keep the shape of {x.aval}; got {array.aval}."
            f"{at_user_line()}"
        )
    return stretch(array, x.shape)
