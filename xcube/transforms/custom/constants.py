"""Arrays that rules bring along. A rule that belongs to an equation runs while others stage jaxprs
around it, and these must hold no values: what the rule captures becomes an equation that gives it.

`contained` is the door: it runs a flat function so that nothing is captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube.array import Array
from xcube.ir import Jaxpr, Literal, Primitive
from xcube.primitives.lowered import Constant
from xcube.primitives.shape import full
from xcube.trace import StagingTrace, Tracer, aval_of, bind, current_trace, evaluate, stage


@dataclass(frozen=True, eq=False)
class Held:
    """An array as a parameter of an equation: equal to itself only."""

    value: Array

    def __str__(self) -> str:
        return str(self.value.aval)


constant_p = Primitive(
    "constant", abstract=lambda *, held: held.value.aval.strengthen(), lower=Constant()
)


def contained(function: Callable[..., list[Any]], values: Sequence[Any], name: str) -> list[Any]:
    """The flat results of a function of flat values, captured arrays as equations. What is not
    traced among the values stays as it is, so that the function may look at it."""
    if not isinstance(current_trace(), StagingTrace):
        return function(*values)
    traced = [x for x in values if isinstance(x, Tracer)]

    def example(*leaves: Any) -> list[Any]:
        given = iter(leaves)
        return function(*[next(given) if isinstance(x, Tracer) else x for x in values])

    jaxpr = stage(example, [aval_of(x) for x in traced], name)
    return evaluate(jaxpr.closed(), [*constants(jaxpr), *traced])


def constants(jaxpr: Jaxpr) -> list[Any]:
    """The values that a jaxpr captured, as equations while something is being staged."""
    if not isinstance(current_trace(), StagingTrace):
        return jaxpr.consts
    return [x if isinstance(x, Tracer) else _constant(x) for x in jaxpr.consts]


def _constant(value: Array) -> Any:
    if value.aval.ndim == 0:
        return full((), Literal(np.asarray(value)[()], value.aval))
    return bind(constant_p, held=Held(value))
