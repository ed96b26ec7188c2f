"""The functions cond and switch: one of several functions applied, picked as the program runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube import config, dtypes, tree
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Jaxpr, Var, at_user_line
from xcube.primitives.convert import convert_element_type
from xcube.primitives.select import clamp, ne
from xcube.trace import Tracer, aval_of
from xcube.transforms.arguments import abstract, is_array_like
from xcube.transforms.control.agreement import check_branches, check_functions
from xcube.transforms.control.bodies import (
    Body,
    as_array,
    cached,
    forwarded_inputs,
    name_of,
    operands,
    picked,
    rearranged,
    stage_body,
)
from xcube.transforms.control.cond import bind_cond


class _Missing:
    """What `operand` is when it is not given."""


_MISSING = _Missing()


def cond(
    pred: Any, true_fun: Callable[..., Any], false_fun: Any, *operands: Any, operand: Any = _MISSING
) -> Any:
    """true_fun(*operands) where pred holds, else false_fun(*operands); only one of them runs.

    `pred`: bool[], or a number, which holds if it is not zero. Operands and results are pytrees;
    both functions return the same structure, shapes and dtypes. Under vmap with a batched pred both
    run, and results are selected. The form cond(pred, x, true_fun, y, false_fun) is accepted too.
    Raises TypeError if the results differ or pred is no scalar.

    >>> cond(True, lambda x: x + 1, lambda x: x - 1, 5)
    Array(6, dtype=int32, weak_type=True)
    """
    if not (callable(true_fun) and callable(false_fun)) and _is_old_form(false_fun, operands):
        x, function, y, other = true_fun, false_fun, *operands
        return cond(pred, lambda x, _: function(x), lambda _, y: other(y), x, y)
    check_functions("cond", true_fun=true_fun, false_fun=false_fun)
    given = _given("cond", operands, operand)
    pred = _predicate(pred)
    if config.current.disable_jit and _is_known(pred):
        return true_fun(*given) if pred else false_fun(*given)
    index = convert_element_type(pred, np.int32)
    return _pick("cond", index, (false_fun, true_fun), given, ("false_fun", "true_fun"))


def _is_old_form(function: Any, operands: Sequence[Any]) -> bool:
    return callable(function) and len(operands) == 2 and callable(operands[1])


def _given(operation: str, operands: tuple[Any, ...], operand: Any) -> tuple[Any, ...]:
    if isinstance(operand, _Missing):
        return operands
    if operands:
        raise TypeError(
            f"{operation}: operands must be given by position or as operand=, not both; got "
            f"{len(operands)} by position.{at_user_line()}"
        )
    return (operand,)


def _predicate(pred: Any) -> Any:
    aval = _scalar("cond", "pred", "a boolean or a number", pred)
    if dtypes.is_bool(aval.dtype):
        return pred
    if dtypes.is_complex(aval.dtype):
        raise DtypeError(
            f"cond: pred must be a boolean or a real number; got {aval}.{at_user_line()}"
        )
    return ne(pred, 0)


def _scalar(operation: str, what: str, kind: str, value: Any) -> Aval:
    """The aval of an argument that must be a scalar."""
    if not isinstance(value, Array) and not is_array_like(value):
        raise TypeError(
            f"{operation}: {what} must be {kind}; got {type(value).__name__}.{at_user_line()}"
        )
    aval = abstract(value)
    if aval.shape:
        raise ShapeError(
            f"{operation}: {what} must be a scalar; got {aval}.{at_user_line()} Reduce it with all "
            f"or any, or map over it with vmap."
        )
    return aval


def _is_known(value: Any) -> bool:
    return not isinstance(value, Tracer) or value.known is not None


def switch(
    index: Any, branches: Sequence[Callable[..., Any]], *operands: Any, operand: Any = _MISSING
) -> Any:
    """branches[index](*operands), the index clamped to the branches; only one of them runs.

    `index`: an integer scalar. Operands and results are pytrees; all branches return the same
    structure, shapes and dtypes. Under vmap with a batched index all run, and results are selected.
    Raises TypeError if results differ or the index is no integer scalar, ValueError without
    branches.

    >>> switch(7, [lambda x: x, lambda x: x * x], 3)
    Array(9, dtype=int32, weak_type=True)
    """
    for number, branch in enumerate(branches):
        check_functions("switch", **{f"branch {number}": branch})
    given = _given("switch", operands, operand)
    aval = _scalar("switch", "the index", "an integer", index)
    if not dtypes.is_integer(aval.dtype):
        raise DtypeError(f"switch: the index must be an integer; got {aval}.{at_user_line()}")
    if not branches:
        raise ValueError(f"switch: there must be a branch; got none.{at_user_line()}")
    if len(branches) == 1:
        return branches[0](*given)
    number = clamp(np.int32(0), convert_element_type(index, np.int32), np.int32(len(branches) - 1))
    if config.current.disable_jit and _is_known(number):
        return branches[int(number)](*given)
    names = [f"branch {number}" for number in range(len(branches))]
    return _pick("switch", number, tuple(branches), given, names)


def _pick(
    operation: str,
    index: Any,
    functions: tuple[Callable[..., Any], ...],
    given: tuple[Any, ...],
    names: Sequence[str],
) -> Any:
    """The results of the function that the index picks."""
    values, treedef = operands(operation, name_of(functions[0]), "the operands", given)
    avals = [aval_of(x) for x in values]
    bodies = [
        stage_body(operation, function, function, tree.treedef_children(treedef), avals)
        for function in functions
    ]
    check_branches(operation, names, [(body.out_tree, body.out_avals) for body in bodies])
    outs = _bind(index, bodies, values)
    return tree.unflatten(bodies[0].out_tree, outs)


def _bind(index: Any, bodies: Sequence[Body], values: list[Any]) -> list[Any]:
    """The results; those that are one operand whatever the branch are that operand."""
    consts: dict[int, Any] = {id(x): x for body in bodies for x in body.consts}
    places = [tuple(list(consts).index(id(x)) for x in body.consts) for body in bodies]
    branches, sources = cached(
        bodies[0].jaxpr,
        ("branches", tuple(body.jaxpr for body in bodies), tuple(places)),
        lambda: _aligned(bodies, places, list(consts.values())),
    )
    args = [*consts.values(), *values]
    outs = iter(bind_cond(index, branches, args))
    return [next(outs) if source is None else as_array(args[source]) for source in sources]


def _aligned(
    bodies: Sequence[Body], places: Sequence[tuple[int, ...]], consts: Sequence[Any]
) -> tuple[tuple[Jaxpr, ...], list[int | None]]:
    """The branches as jaxprs of the same operands, all that any captured in front; and for each
    result the operand that it is in all of them, if there is one. Such results are left out."""
    branches = []
    for body, own in zip(bodies, places, strict=True):
        captured, rest = body.jaxpr.inputs[: len(own)], body.jaxpr.inputs[len(own) :]
        found = dict(zip(own, captured, strict=True))
        leading = [found.get(k) or Var(aval_of(value)) for k, value in enumerate(consts)]
        branches.append(
            Jaxpr((*leading, *rest), body.jaxpr.equations, body.jaxpr.outputs, (), body.jaxpr.name)
        )
    per_result = zip(*[forwarded_inputs(branch) for branch in branches], strict=True)
    sources = [first if len(set((first, *rest))) == 1 else None for first, *rest in per_result]
    inputs = range(len(branches[0].inputs))
    kept = picked(range(len(sources)), [source is None for source in sources])
    return tuple(rearranged(branch, inputs, kept) for branch in branches), sources
