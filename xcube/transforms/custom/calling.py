"""What the decorators of custom rules share: a call is resolved to positional arguments and taken
apart into flat operands, results are flattened and compared with what was promised."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xcube import tree
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError, UnexpectedTracerError
from xcube.ir import Aval, Jaxpr, Primitive, Var, at_user_line
from xcube.primitives.convert import convert_element_type
from xcube.trace import EVAL, Trace, Tracer, aval_of, bind, evaluate, owner, stage
from xcube.transforms.arguments import FlatCall, abstract, as_leaf, as_result, stage_flat
from xcube.transforms.linearize import TangentTracer

Results = tuple[list[Any], Any]  # flat results and the structure that they make up


def name_of(function: Any) -> str:
    """What messages call a function."""
    return getattr(function, "__name__", type(function).__name__)


class Target:
    """A decorated function: its name, its signature, and which arguments have no derivative.

    Raises TypeError if it is no function.
    """

    def __init__(
        self,
        kind: str,
        fun: Callable[..., Any],
        nondiff_argnums: Sequence[int] = (),
        nondiff_argnames: Sequence[str] = (),
    ) -> None:
        if not callable(fun):
            raise TypeError(
                f"{kind}: the first argument must be a function; got {type(fun).__name__}."
                f"{at_user_line()}"
            )
        self.kind, self.fun, self.name = kind, fun, name_of(fun)
        numbers = {nondiff_argnums} if isinstance(nondiff_argnums, int) else set(nondiff_argnums)
        names = (nondiff_argnames,) if isinstance(nondiff_argnames, str) else nondiff_argnames
        places = list(self.signature.parameters) if names and self.signature else []
        numbers |= {places.index(name) for name in names if name in places}
        self.nondiff = tuple(sorted(numbers))

    @functools.cached_property
    def signature(self) -> inspect.Signature | None:
        """The signature, where keyword arguments can be resolved to positions."""
        if isinstance(self.fun, functools.partial):
            return inspect.signature(lambda *args, **kwargs: None)
        try:
            return inspect.signature(self.fun)
        except (TypeError, ValueError):  # built in: takes what it is given
            return None

    def positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments by position, defaults filled in. Raises TypeError where they do not fit."""
        if self.signature is None and not kwargs:
            return args
        try:
            if self.signature is None:
                raise TypeError("the function has no signature, so it takes no keyword arguments")
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self._unresolved(str(error)) from error
        bound.apply_defaults()
        if passed := [key for key in bound.kwargs if key in kwargs]:
            raise self._unresolved(f"{', '.join(passed)} can only be passed by keyword")
        return bound.args

    def _unresolved(self, reason: str) -> TypeError:
        return TypeError(
            f"{self.kind}: the arguments of {self.name} must be resolved to positions, for its "
            f"rules take them so; {reason}.{at_user_line()}"
        )

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """One call, taken apart."""
        args = self.positional(args, kwargs)
        numbers = {n % len(args) for n in self.nondiff if -len(args) <= n < len(args)}
        fixed_leaves, fixed_tree = tree.flatten(tuple(args[n] for n in sorted(numbers)))
        traced = [leaf for leaf in fixed_leaves if isinstance(leaf, Tracer)]
        kept = tuple(_TRACED if isinstance(leaf, Tracer) else leaf for leaf in fixed_leaves)
        given = tuple(arg for n, arg in enumerate(args) if n not in numbers)
        leaves, in_tree = tree.flatten(given)
        whole = [
            leaf if isinstance(leaf, Array) else self._as_array(leaf, n, in_tree)
            for n, leaf in enumerate(leaves)
        ]
        places = tuple(sorted(numbers)), len(args)
        return Call(self, (*traced, *whole), len(traced), kept, fixed_tree, places, in_tree)

    def _as_array(self, leaf: Any, number: int, in_tree: Any) -> Array:
        where = lambda: f"the argument at {leaf_path(in_tree, number)}"  # noqa: E731
        return as_leaf(self.kind, self.name, leaf, where)


_TRACED = object()  # stands where a traced leaf of an argument without derivative goes


@dataclass(frozen=True, eq=False)
class Call:
    """A call with its arguments flattened. Its operands are the traced leaves of the arguments that
    have no derivative, `count` of them, and then the leaves of the others."""

    target: Target
    operands: tuple[Any, ...]
    count: int
    kept: tuple[Any, ...]
    fixed_tree: Any
    places: tuple[tuple[int, ...], int]
    in_tree: Any

    @property
    def name(self) -> str:
        """The function's name."""
        return self.target.name

    def fixed(self, operands: Sequence[Any]) -> list[Any]:
        """The arguments that have no derivative, in order."""
        traced = iter(operands[: self.count])
        leaves = [next(traced) if leaf is _TRACED else leaf for leaf in self.kept]
        return list(tree.unflatten(self.fixed_tree, leaves))

    def others(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """The other arguments, or a tree like them, from their leaves."""
        return tree.unflatten(self.in_tree, leaves)

    def arguments(self, operands: Sequence[Any], leaves: Sequence[Any] | None = None) -> list[Any]:
        """All arguments in order; `leaves` may stand for those of the differentiated ones."""
        numbers, total = self.places
        fixed = iter(self.fixed(operands))
        others = iter(self.others(operands[self.count :] if leaves is None else leaves))
        return [next(fixed) if n in numbers else next(others) for n in range(total)]

    def run(self, operands: Sequence[Any]) -> Results:
        """The function itself."""
        return self.flat_results(self.target.fun(*self.arguments(operands)))

    def flat_results(self, result: Any) -> Results:
        """Leaves of a result as arrays. Raises TraceError for one that cannot be."""
        leaves, out_tree = tree.flatten(result)
        return [as_result(self.name, leaf) for leaf in leaves], out_tree

    def staged(self) -> tuple[Jaxpr, list[Any], Any]:
        """The function's closed jaxpr, whose first inputs are what it closes over; those values;
        the structure of its results."""
        found: dict[str, Any] = {}

        def function(*operands: Any) -> list[Any]:
            outs, found["tree"] = self.run(operands)
            return outs

        jaxpr = stage(function, [aval_of(x) for x in self.operands], self.name)
        return jaxpr.closed(), jaxpr.consts, found["tree"]


def stage_tree(name: str, function: Callable[..., Any], *args: Any) -> tuple[Jaxpr, list[Any], Any]:
    """The closed jaxpr of a function of trees of arrays or avals, whose first inputs are what
    it closes over; those values; the structure of its result."""
    leaves, in_tree = tree.flatten((args, {}))
    jaxpr, out_tree = stage_flat(FlatCall(function, leaves, in_tree), [abstract(x) for x in leaves])
    return replace(jaxpr.closed(), name=name), jaxpr.consts, out_tree


def bind_call(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Bind a primitive that is a call. Outside of traces the jaxpr, which nobody will see again, is
    evaluated equation by equation instead of compiled."""
    if owner(args) is EVAL:
        return evaluate(params[primitive.lower.name], args)
    return bind(primitive, *args, **params)


def with_unused(jaxpr: Jaxpr, position: int, avals: Sequence[Aval]) -> Jaxpr:
    """The program with further inputs from a position on, which it does not use."""
    unused = tuple(Var(aval) for aval in avals)
    return replace(
        jaxpr, inputs=(*jaxpr.inputs[:position], *unused, *jaxpr.inputs[position:]), _cache={}
    )


def leaf_path(treedef: Any, number: int) -> str:
    """The path of a leaf of a structure, e.g. "[0]['w']"."""
    dummy = tree.unflatten(treedef, [0] * treedef.num_leaves)
    return tree.keystr(tree.leaves_with_path(dummy)[number][0])


@dataclass(frozen=True)
class Promise:
    """What the results of a rule must agree with: those of the function."""

    out_tree: Any
    avals: tuple[Aval, ...]

    def keep(self, where: str, outs: Sequence[Any], out_tree: Any) -> list[Any]:
        """The results, with the function's weak types.

        Raises TypeError if the structures differ, ShapeError or DtypeError if a leaf does.
        """
        if out_tree != self.out_tree:
            raise TypeError(
                f"{where} must have the structure of the function's result, {self.out_tree}; "
                f"got {out_tree}.{at_user_line()}"
            )
        return [
            fit(lambda n=n: f"{where}{leaf_path(out_tree, n)}", out, aval, "the function's result")
            for n, (out, aval) in enumerate(zip(outs, self.avals, strict=True))
        ]


def fit(where: Callable[[], str], value: Any, expected: Aval, whose: str) -> Any:
    """A value that must have an aval; its weak type is made the expected one.

    Raises ShapeError or DtypeError naming both.
    """
    aval = aval_of(value)
    if (aval.shape, aval.dtype) != (expected.shape, expected.dtype):
        error = ShapeError if aval.shape != expected.shape else DtypeError
        raise error(f"{where()} must be {expected} like {whose}; got {aval}.{at_user_line()}")
    if aval.weak_type == expected.weak_type:
        return value
    return convert_element_type(value, expected.dtype, expected.weak_type)


def check_closed(call: Call, trace: Trace, values: Sequence[Any]) -> None:
    """Raises UnexpectedTracerError if results are under a differentiation that the operands are not
    under: a rule says nothing about values that its function closes over."""
    if any(isinstance(x, TangentTracer) and x._trace.birth >= trace.birth for x in values):
        raise closed_over(call.target.kind, call.name)


def closed_over(kind: str, name: str) -> UnexpectedTracerError:
    """The error of a derivative with respect to a value that a function closes over."""
    return UnexpectedTracerError(
        f"{kind}: detected differentiation of {name} with respect to a closed-over value, but its "
        f"rule says only how to differentiate it with respect to its arguments.{at_user_line()} "
        f"Pass the value as an argument and extend the rule."
    )
