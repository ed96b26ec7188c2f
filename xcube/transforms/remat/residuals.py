"""What a function keeps for its derivative, and where each of it comes from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from xcube import dtypes, tree
from xcube.ir import Aval, Equation, Jaxpr, Literal, Var, subjaxprs
from xcube.trace import StagingTrace, set_current
from xcube.transforms.arguments import FlatCall, abstract, as_result, check_callable, flatten_call
from xcube.transforms.linearize import linearize_flat
from xcube.transforms.remat.budget import Budget
from xcube.transforms.remat.policies import name_p
from xcube.transforms.remat.programs import is_call, live, reads


def saved_residuals(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> list[tuple[Aval, str]]:
    """What `vjp` of a function keeps until the cotangents come: avals, and what each of them is.

    The arguments may be arrays or anything with shape and dtype; nothing is computed.

    >>> import xcube.numpy as jnp
    >>> [(str(aval), what) for aval, what in saved_residuals(lambda x: x * x, jnp.ones(3))]
    [('f32[3]', 'from the argument x')]
    """
    return _saved(fun, args, kwargs)[0]


def print_saved_residuals(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Print what `vjp` of a function keeps, a line for each array, then the plans of its budgets.

    >>> import xcube.numpy as jnp
    >>> print_saved_residuals(lambda x: jnp.sum(x * x), jnp.ones(3))
    f32[3] from the argument x
    """
    residuals, linear = _saved(fun, args, kwargs)
    for aval, what in residuals:
        print(f"{aval} {what}")
    for policy in dict.fromkeys(_budgets(linear)):
        print(policy.report())


def _saved(fun: Any, args: Any, kwargs: Any) -> tuple[list[tuple[Aval, str]], Jaxpr]:
    check_callable("saved_residuals", fun)
    call = flatten_call(fun, args, kwargs)
    avals = [abstract(leaf) for leaf in call.leaves]
    trace = StagingTrace(getattr(fun, "__name__", "function"))
    with set_current(trace):
        inputs = [trace.new_input(aval) for aval in avals]
        nonzero = [dtypes.is_inexact(aval.dtype) for aval in avals]
        _, linear, _ = linearize_flat(_flat(call), inputs, nonzero)
        read = reads(live(linear.equations, linear.outputs), linear.outputs)
        residuals = [trace.atom(value) for var, value in linear.captured if var in read]
        known = trace.jaxpr([])
    sources = _Sources(known, _argument_names(fun, call))
    listed = sorted(dict.fromkeys(residuals), key=sources.place)
    return [(atom.aval, sources.of(atom)) for atom in listed], linear


def _flat(call: FlatCall) -> Callable[..., list[Any]]:
    name = getattr(call.fun, "__name__", "function")
    return lambda *leaves: [as_result(name, out) for out in tree.leaves(call.apply(leaves))]


def _argument_names(fun: Any, call: FlatCall) -> list[str]:
    """Parameter and path of every leaf, e.g. "params['w']"."""
    args, kwargs = tree.unflatten(call.treedef, list(range(len(call.leaves))))
    try:
        named = inspect.signature(fun).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # a builtin says nothing of its parameters
        return [call.describe(number) for number in range(len(call.leaves))]
    found = {}
    for path, number in tree.leaves_with_path(dict(named)):
        found[number] = f"the argument {path[0].key}{tree.keystr(path[1:])}"
    return [found[number] for number in range(len(call.leaves))]


class _Sources:
    """Where the variables of a program come from, and in which order."""

    def __init__(self, jaxpr: Jaxpr, names: list[str]) -> None:
        self._known = {var: f"from {name}" for var, name in zip(jaxpr.inputs, names, strict=True)}
        self._known.update((var, "from a constant") for var, _ in jaxpr.captured)
        self._makers = _makers(jaxpr)
        self._places = {var: n for n, var in enumerate([*self._known, *self._makers])}

    def place(self, atom: Var | Literal) -> int:
        return self._places.get(atom, -1)

    def of(self, atom: Var | Literal) -> str:
        if isinstance(atom, Literal):
            return "from a literal"
        return self._known[atom] if atom in self._known else _made(*self._makers[atom])


def _makers(jaxpr: Jaxpr) -> dict[Any, tuple[Equation, int]]:
    return {var: (eqn, n) for eqn in jaxpr.equations for n, var in enumerate(eqn.outputs)}


def _made(eqn: Equation, number: int) -> str:
    """Which operation makes a result; for a call, the one inside."""
    where = f" from {eqn.source} ({eqn.source.function})" if eqn.source else ""
    if is_call(eqn):
        body = eqn.params["jaxpr"]
        maker = _makers(body).get(body.outputs[number])
        return _made(*maker) if maker else f"argument of {body.name}{where}"
    if eqn.primitive is name_p:
        return f"named '{eqn.params['name']}'{where}"
    return f"output of {eqn.primitive}{where}"


def _budgets(jaxpr: Jaxpr) -> Iterator[Budget]:
    """The budgets of the checkpointed functions in a program."""
    for eqn in jaxpr.equations:
        if isinstance(policy := eqn.params.get("policy"), Budget):
            yield policy
        for inner in subjaxprs(eqn):
            yield from _budgets(inner)
