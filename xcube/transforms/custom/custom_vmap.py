"""`custom_vmap`: a function with its own rule for batches. Wherever a `vmap` may follow, a call is
one equation that holds the function's jaxpr and the rule."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from xcube import dtypes, tree
from xcube.errors import TraceError
from xcube.ir import Axis, Jaxpr, Primitive, at_user_line
from xcube.primitives.lowered import Inline
from xcube.trace import EVAL, owner
from xcube.transforms.arguments import as_result
from xcube.transforms.control.bodies import cached, pruned, rearranged
from xcube.transforms.control.mapping import map as map_rows
from xcube.transforms.custom.calling import Call, Target, bind_call, closed_over, fit, name_of
from xcube.transforms.custom.constants import contained
from xcube.transforms.linearize import TangentTrace, instantiate, jvp_flat, jvp_jaxpr
from xcube.transforms.transpose import backward
from xcube.transforms.vmap import to_batch

Batch = tuple[list[Any], list[bool]]  # results, and which have the batch axis


class Rule(Protocol):
    """From the size of the batch, which operands are batched, and the operands, to the results."""

    def __call__(self, size: int, batched: Sequence[bool], operands: Sequence[Any]) -> Batch: ...


@dataclass(frozen=True, eq=False)
class UserRule:
    """The rule as the user wrote it. The function closes over the first `count` operands."""

    call: Call
    rule: Callable[..., Any]
    out_tree: Any
    count: int

    def __call__(self, size: int, batched: Sequence[bool], operands: Sequence[Any]) -> Batch:
        if any(batched[: self.count]):
            raise TraceError(
                f"custom_vmap: {self.call.name} closes over a value that is batched, of which its "
                f"rule knows nothing.{at_user_line()} Pass it as an argument."
            )
        flags = list(self.call.others(batched[self.count :]))
        result = self.rule(size, flags, *self.call.others(operands[self.count :]))
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(
                f"custom_vmap: the rule {self} of {self.call.name} must return a pair, the results "
                f"and which of them are batched; got {result!r}.{at_user_line()}"
            )
        leaves, out_tree = tree.flatten(result[0])
        out_batched, flags_tree = tree.flatten(result[1])
        self._check("the results", out_tree)
        self._check("what says which results are batched,", flags_tree)
        return [as_result(str(self), leaf) for leaf in leaves], [bool(x) for x in out_batched]

    def _check(self, what: str, treedef: Any) -> None:
        if treedef != self.out_tree:
            raise ValueError(
                f"custom_vmap: {what} of the rule {self} must have the structure of the result of "
                f"{self.call.name}, {self.out_tree}; got {treedef}.{at_user_line()}"
            )

    def __str__(self) -> str:
        return name_of(self.rule)


@dataclass(frozen=True, eq=False)
class TangentRule:
    """The rule of the tangents of a call: the derivative of its rule. Operands are all primals and
    the tangents of those that are perturbed, with which they are batched together."""

    rule: Rule
    name: str
    perturbed: tuple[bool, ...]
    differentiable: tuple[bool, ...]
    is_closed: bool

    def __call__(self, size: int, batched: Sequence[bool], operands: Sequence[Any]) -> Batch:
        if not self.is_closed:
            raise closed_over("custom_vmap", self.name)
        count = len(self.perturbed)
        given = iter(zip(operands[count:], batched[count:], strict=True))
        pairs = [next(given) if flag else (None, False) for flag in self.perturbed]
        both = [p or t for p, (_, t) in zip(batched[:count], pairs, strict=True)]

        def whole(x: Any, has: bool, wanted: bool) -> Any:
            return to_batch(x, size) if wanted and not has and x is not None else x

        primals = [whole(*row) for row in zip(operands[:count], batched[:count], both, strict=True)]
        tangents = [whole(dx, t, flag) for (dx, t), flag in zip(pairs, both, strict=True)]
        found: dict[str, list[bool]] = {}

        def function(*xs: Any) -> list[Any]:
            outs, found["batched"] = self.rule(size, both, xs)
            return outs

        outs, dxs = jvp_flat(function, primals, tangents)
        rows = zip(outs, dxs, found["batched"], self.differentiable, strict=True)
        kept = [(instantiate(dx, out), flag) for out, dx, flag, has in rows if has]
        return [dx for dx, _ in kept], [flag for _, flag in kept]

    def __str__(self) -> str:
        return f"derivative of {self.rule}"


# the primitive --------------------------------------------------------------------------------


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    call_jaxpr: Jaxpr,
    rule: Rule,
    num_consts: int,
) -> tuple[list[Any], list[Any]]:
    params = {"call_jaxpr": call_jaxpr, "rule": rule, "num_consts": num_consts}
    outs = bind_call(custom_vmap_call_p, primals, params)
    perturbed = tuple(dx is not None for dx in tangents)
    has = tuple(dtypes.is_inexact(aval.dtype) for aval in call_jaxpr.out_avals)
    is_closed = not any(perturbed[:num_consts])
    params = {
        "call_jaxpr": _tangent_jaxpr(call_jaxpr, perturbed, has),
        "rule": TangentRule(rule, call_jaxpr.name, perturbed, has, is_closed),
        "num_consts": num_consts,
    }
    given = [dx for dx in tangents if dx is not None]
    dxs = iter(bind_call(custom_vmap_call_p, [*primals, *given], params))
    return outs, [next(dxs) if flag else None for flag in has]


def _tangent_jaxpr(jaxpr: Jaxpr, perturbed: tuple[bool, ...], has: tuple[bool, ...]) -> Jaxpr:
    """(operands, tangents of the perturbed ones) -> tangents of the results that have one."""
    joint = jvp_jaxpr(jaxpr, perturbed, has).jaxpr
    tangents = range(len(jaxpr.outputs), len(joint.outputs))
    return cached(
        joint, "tangents", lambda: pruned(rearranged(joint, range(len(joint.inputs)), tangents))
    )


def _batch(
    axis: Axis,
    args: Sequence[Any],
    batched: Sequence[bool],
    *,
    call_jaxpr: Jaxpr,
    rule: Rule,
    num_consts: int,
) -> Batch:
    found: dict[str, list[bool]] = {}

    def function(*operands: Any) -> list[Any]:
        outs, found["batched"] = rule(axis.size, batched, operands)
        return outs

    outs = contained(function, args, str(rule))
    flags = found["batched"]
    where = f"custom_vmap: a result of the rule {rule} of {call_jaxpr.name}"
    fitted = []
    for out, flag, aval in zip(outs, flags, call_jaxpr.out_avals, strict=True):
        expected = aval.update(shape=(axis.size, *aval.shape)) if flag else aval
        fitted.append(fit(lambda: where, out, expected, "a batch of the function's result"))
    return fitted, flags


custom_vmap_call_p = Primitive(
    "custom_vmap_call",
    abstract=lambda *avals, call_jaxpr, **params: call_jaxpr.out_avals,
    jvp=_jvp,
    transpose=lambda cts, *args, call_jaxpr, **params: backward(call_jaxpr, args, cts),
    batch=_batch,
    lower=Inline("call_jaxpr"),
    multiple=True,
)


# the function ---------------------------------------------------------------------------------


class custom_vmap:
    """A function whose `vmap` is given by a rule of its own. Its derivatives are those of the
    function; under vmap, those of the rule. Calling it raises AttributeError before `def_vmap`.

    >>> import xcube
    >>> import xcube.numpy as jnp
    >>> @custom_vmap
    ... def f(x, y):
    ...     return x + y
    >>> @f.def_vmap
    ... def f_vmap(axis_size, in_batched, xs, ys):
    ...     return xs * ys, True
    >>> xcube.vmap(f)(jnp.arange(3), jnp.arange(1, 4))
    Array([0, 2, 6], dtype=int32)
    """

    def __init__(self, fun: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fun)  # first: it may bring attributes of the same names
        self._target = Target("custom_vmap", fun)
        self.fun = fun
        self.vmap_rule: Callable[..., Any] | None = None

    def def_vmap(self, vmap_rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule, `vmap_rule(axis_size, in_batched, *args) -> (result, out_batched)`, and
        return it. `in_batched` is a list like the arguments and `out_batched` a tree like the
        result, of bools; what is batched has the new axis in front."""
        self.vmap_rule = vmap_rule
        return vmap_rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.vmap_rule is None:
            raise AttributeError(
                f"custom_vmap: {self._target.name} has no rule.{at_user_line()} Give it one with "
                f"def_vmap."
            )
        call = self._target.call(args, kwargs)
        if _is_evaluated(call.operands):
            outs, out_tree = call.run(call.operands)
            return tree.unflatten(out_tree, outs)
        jaxpr, consts, out_tree = call.staged()
        rule = UserRule(call, self.vmap_rule, out_tree, len(consts))
        params = {"call_jaxpr": jaxpr, "rule": rule, "num_consts": len(consts)}
        outs = bind_call(custom_vmap_call_p, [*consts, *call.operands], params)
        return tree.unflatten(out_tree, outs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("def"):  # custom_vmap(custom_jvp(f)).defjvp
            return getattr(self.fun, name)
        raise AttributeError(f"custom_vmap has no attribute {name!r}")


def _is_evaluated(values: Sequence[Any]) -> bool:
    """Whether no staging trace is concerned, so that no vmap can follow."""
    while isinstance(trace := owner(values), TangentTrace):
        values = [trace.split(x)[0] for x in values]
    return trace is EVAL


def sequential_vmap(f: Callable[..., Any]) -> custom_vmap:
    """A function of which a `vmap` is a loop over the batch, one example after another.

    >>> import xcube
    >>> import xcube.numpy as jnp
    >>> xcube.vmap(sequential_vmap(lambda x: x + 1))(jnp.arange(3))
    Array([1, 2, 3], dtype=int32)
    """
    wrapped = custom_vmap(f)

    def rule(axis_size: int, in_batched: list[Any], *args: Any) -> tuple[Any, Any]:
        leaves, treedef = tree.flatten(args)
        flags = tree.leaves(in_batched)
        mapped = [x for x, flag in zip(leaves, flags, strict=True) if flag]

        def example(rows: list[Any]) -> Any:
            given = iter(rows)
            merged = [next(given) if flag else x for x, flag in zip(leaves, flags, strict=True)]
            return wrapped(*tree.unflatten(treedef, merged))

        out = map_rows(example, mapped)
        return out, tree.map(lambda _: True, out)

    wrapped.def_vmap(rule)
    return wrapped
