"""The transpose of a function that is linear: it is traced once and walked backward, nothing of it
runs. Before that each equation is asked whether it is linear in what depends on the arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from xcube import dtypes, tree
from xcube.errors import DtypeError, TraceError
from xcube.ir import Atom, Aval, Equation, Jaxpr, Linear, Var, at_user_line
from xcube.primitives.lowered import Inline, Structured
from xcube.primitives.shape import zeros_of
from xcube.trace import StagedTracer, StagingTrace, set_current
from xcube.transforms.arguments import abstract, as_leaf, check_callable, flatten_call, stage_flat
from xcube.transforms.grad import check_reduce_axes
from xcube.transforms.linear_maps import name_of
from xcube.transforms.linearize import apply_jvp
from xcube.transforms.transpose import backward


def linear_transpose(
    fun: Callable[..., Any], *primals: Any, reduce_axes: Sequence[Any] = ()
) -> Callable[[Any], tuple[Any, ...]]:
    """The transpose of a linear function: from a cotangent of its result to cotangents of its
    arguments, one for each, which cost no forward pass.

    `primals`: arrays, or anything with a shape and dtype; only these count. All arguments and
    results are float or complex, or all are integers. Of an affine function it is the transpose of
    the linear part. Raises TraceError if `fun` is not linear, DtypeError for other dtypes; the
    transpose raises TypeError for a cotangent that is not like the result.

    >>> import xcube.numpy as jnp
    >>> transposed = linear_transpose(lambda x: 2 * x[1:], jnp.zeros(3))
    >>> transposed(jnp.array([1.0, 2.0]))
    (Array([0., 2., 4.], dtype=float32),)
    """
    check_callable("linear_transpose", fun)
    check_reduce_axes("linear_transpose", reduce_axes)
    call = flatten_call(fun, primals, {})
    jaxpr, out_tree = stage_flat(call, [abstract(leaf) for leaf in call.leaves])
    name = name_of(fun)
    _check_dtypes(name, jaxpr)
    _check_linear(name, jaxpr)

    def transposed(cotangent: Any) -> tuple[Any, ...]:
        cts = _cotangents(name, out_tree, jaxpr.out_avals, cotangent)
        parts = backward(jaxpr, [Linear(aval) for aval in jaxpr.in_avals], cts)
        whole = [
            zeros_of(aval) if ct is None else ct
            for ct, aval in zip(parts, jaxpr.in_avals, strict=True)
        ]
        return tree.unflatten(call.treedef, whole)[0]

    return transposed


# checks ---------------------------------------------------------------------------------------


def _check_dtypes(name: str, jaxpr: Jaxpr) -> None:
    avals = [*jaxpr.in_avals, *jaxpr.out_avals]
    inexact = [dtypes.is_inexact(aval.dtype) for aval in avals]
    integer = [dtypes.is_integer(aval.dtype) for aval in avals]
    if not all(inexact) and not all(integer):
        shown = [", ".join(map(str, some)) for some in (jaxpr.in_avals, jaxpr.out_avals)]
        raise DtypeError(
            f"linear_transpose: arguments and results of {name} must all be float or complex, or "
            f"all integers; got ({shown[0]}) -> ({shown[1]}).{at_user_line()}"
        )


def _cotangents(name: str, out_tree: Any, avals: Sequence[Aval], cotangent: Any) -> list[Any]:
    leaves, found = tree.flatten(cotangent)
    if found != out_tree:
        raise TypeError(
            f"linear_transpose: the cotangent must have the structure of the result of {name}, "
            f"{out_tree}; got {found}.{at_user_line()}"
        )
    cts = [as_leaf("linear_transpose", name, ct, lambda: "the cotangent") for ct in leaves]
    for ct, aval in zip(cts, avals, strict=True):
        if (ct.shape, ct.dtype) != (aval.shape, aval.dtype):
            raise TypeError(
                f"linear_transpose: the cotangent must be {aval} like the result of {name}; got "
                f"{ct.aval}.{at_user_line()}"
            )
    return cts


class _Known:
    """Of a value: it does not depend on the arguments."""


# What a value is: known, linear in the arguments (None), or not so by an equation.
_Class = _Known | Equation | None
_KNOWN = _Known()


def _check_linear(name: str, jaxpr: Jaxpr) -> None:
    culprit = _worst(_classified(jaxpr, [None] * len(jaxpr.inputs)))
    if isinstance(culprit, Equation):
        operands = ", ".join(str(atom.aval) for atom in culprit.inputs)
        where = f", written at {culprit.source}," if culprit.source else ""
        raise TraceError(
            f"linear_transpose: {name} must be linear in its arguments; "
            f"{culprit.primitive.name}({operands}){where} is not.{at_user_line()} Use vjp for "
            f"functions that are not linear."
        )


def _worst(kinds: Iterable[_Class]) -> _Class:
    """What a value is that may be any of several."""
    kinds = list(kinds)
    culprit = next((kind for kind in kinds if isinstance(kind, Equation)), None)
    return culprit or (None if None in kinds else _KNOWN)


def _classified(jaxpr: Jaxpr, inputs: Sequence[_Class]) -> list[_Class]:
    """What each output is, given what the inputs are."""
    found: dict[Var, _Class] = dict(zip(jaxpr.inputs, inputs, strict=True))

    def read(atom: Atom) -> _Class:
        return found.get(atom, _KNOWN) if isinstance(atom, Var) else _KNOWN

    for eqn in jaxpr.equations:
        given = [read(atom) for atom in eqn.inputs]
        if not all(kind is _KNOWN for kind in given):
            found.update(zip(eqn.outputs, _results(eqn, given), strict=True))
    return [read(atom) for atom in jaxpr.outputs]


def _results(eqn: Equation, given: list[_Class]) -> list[_Class]:
    """What the results of an equation are."""
    lower, params = eqn.primitive.lower, eqn.params
    if isinstance(lower, Inline):
        return _classified(params[lower.name], given)
    if isinstance(lower, Structured) and lower.kind == "scan":
        return _scanned(given, **params)
    worst = _worst(given)
    if worst is None and not _is_linear(eqn, [kind is None for kind in given]):
        worst = eqn
    return [worst] * len(eqn.outputs)


def _scanned(
    given: list[_Class], *, jaxpr: Jaxpr, num_consts: int, num_carry: int, **params: Any
) -> list[_Class]:
    """What a loop gives, once what it carries stays what it is."""
    end = num_consts + num_carry
    while True:
        outs = _classified(jaxpr, given)
        pairs = zip(given[num_consts:end], outs, strict=False)
        carry = [_worst(pair) for pair in pairs]
        if carry == given[num_consts:end]:
            return outs
        given = [*given[:num_consts], *carry, *given[end:]]


def _is_linear(eqn: Equation, linear: list[bool]) -> bool:
    """Whether an equation is linear in some of its inputs: its derivative by them is no function of
    them. Branches are taken at their word; the walk backward looks into them."""
    primitive = eqn.primitive
    if primitive.jvp == "linear" or isinstance(primitive.lower, Structured):
        return True
    if primitive.jvp == "zero" or primitive.transpose is None:
        return False
    known, tangents = StagingTrace(), StagingTrace()
    with set_current(known):
        primals = [known.new_input(a.aval) if isinstance(a, Var) else a for a in eqn.inputs]
        pairs = list(zip(primals, linear, strict=True))
        dxs = [tangents.new_input(x.aval) if flag else None for x, flag in pairs]
        apply_jvp(primitive, primals, dxs, eqn.params)
    dependent = {x._var for x, flag in pairs if flag and isinstance(x, StagedTracer)}
    for inner in known.equations:
        if dependent.intersection(inner.inputs):
            dependent.update(inner.outputs)
    return not any(known.atom(value) in dependent for _, value in tangents.captured.values())
