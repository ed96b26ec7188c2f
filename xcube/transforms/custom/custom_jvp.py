"""`custom_jvp`: a function with its own rule for tangents.

Under a differentiation the rule runs on the values at hand. While a function is staged the call
becomes one equation that holds the jaxpr of the function, which is what runs, and the rule, which
is called when the equation is differentiated. The rule of a batched equation is staged for one
example and batched then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from xcube import dtypes, tree
from xcube.ir import Axis, Jaxpr, Primitive, at_user_line
from xcube.primitives.convert import stop_gradient
from xcube.primitives.kinds import add
from xcube.primitives.lowered import Inline
from xcube.trace import EVAL, StagingTrace, aval_of, bind, owner
from xcube.transforms.custom.calling import (
    Call,
    Promise,
    Results,
    Target,
    check_closed,
    closed_over,
    with_unused,
)
from xcube.transforms.custom.closures import must_stage
from xcube.transforms.custom.tangent_rule import BatchedRule, Rule, UserRule, apply, stage_rule
from xcube.transforms.custom.zeros import zero_from_primal
from xcube.transforms.linearize import TangentTrace
from xcube.transforms.transpose import backward
from xcube.transforms.vmap import batch_jaxpr, batch_values

# the primitive --------------------------------------------------------------------------------


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    call_jaxpr: Jaxpr,
    rule: Rule,
    num_consts: int,
) -> tuple[list[Any], list[Any]]:
    if any(dx is not None for dx in tangents[:num_consts]):
        raise closed_over("custom_jvp", call_jaxpr.name)
    return apply(rule, primals[num_consts:], tangents[num_consts:])


def _batch(
    axis: Axis,
    args: Sequence[Any],
    batched: Sequence[bool],
    *,
    call_jaxpr: Jaxpr,
    rule: Rule,
    num_consts: int,
) -> tuple[list[Any], list[bool]]:
    if owner(args) is EVAL:
        return batch_values(call_jaxpr, axis, args, batched)
    batched_jaxpr, flags = batch_jaxpr(call_jaxpr, axis, tuple(batched), force=True)
    batched_rule = BatchedRule(rule, axis, tuple(batched[num_consts:]))
    params = {"call_jaxpr": batched_jaxpr, "rule": batched_rule, "num_consts": num_consts}
    return bind(custom_jvp_call_p, *args, **params), list(flags)


custom_jvp_call_p = Primitive(
    "custom_jvp_call",
    abstract=lambda *avals, call_jaxpr, **params: call_jaxpr.out_avals,
    jvp=_jvp,
    transpose=lambda cts, *args, call_jaxpr, **params: backward(call_jaxpr, args, cts),
    batch=_batch,
    lower=Inline("call_jaxpr"),
    multiple=True,
)


# the function ---------------------------------------------------------------------------------


class custom_jvp:
    """A function whose derivative is given by a rule of its own, in forward and reverse mode.

    `nondiff_argnums`, `nondiff_argnames`: arguments that have no derivative, which need not be
    arrays; the rule takes them in front. Keyword arguments are resolved to positions. Calling it
    raises AttributeError before `defjvp` or `defjvps`.

    >>> import xcube
    >>> import xcube.numpy as jnp
    >>> @custom_jvp
    ... def f(x, y):
    ...     return jnp.sin(x) * y
    >>> @f.defjvp
    ... def f_jvp(primals, tangents):
    ...     (x, y), (dx, dy) = primals, tangents
    ...     return f(x, y), 10.0 * dx + dy
    >>> xcube.grad(f)(1.0, 2.0)
    Array(10., dtype=float32, weak_type=True)
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        nondiff_argnums: Sequence[int] = (),
        nondiff_argnames: Sequence[str] = (),
    ) -> None:
        functools.update_wrapper(self, fun)  # first: it may bring attributes of the same names
        self._target = Target("custom_jvp", fun, nondiff_argnums, nondiff_argnames)
        self.fun, self.nondiff_argnums = fun, self._target.nondiff
        self.jvp: Callable[..., Any] | None = None
        self.symbolic_zeros = False

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Set the rule, `jvp(*nondiff, primals, tangents) -> (result, tangent)`, and return it.

        `primals` and `tangents` are tuples, one entry for each differentiated argument. With
        `symbolic_zeros` tangents that are known to be zero come as `SymbolicZero`, else as arrays.
        """
        self.jvp, self.symbolic_zeros = jvp, symbolic_zeros
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Set the rule by one function for each argument, `jvp(tangent, result, *primals)`, whose
        results are added; None stands for zero. Raises TypeError if there are nondiff arguments."""
        if self.nondiff_argnums:
            raise TypeError(
                f"custom_jvp: defjvps cannot be used with nondiff_argnums, here "
                f"{self.nondiff_argnums}.{at_user_line()} Use defjvp."
            )

        def jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
            result = self(*primals)
            terms = [
                rule(dx, result, *primals)
                for dx, rule in zip(tangents, jvps, strict=False)
                if rule is not None
            ]
            total = terms[0] if terms else zero_from_primal(result)
            for term in terms[1:]:
                total = tree.map(_sum, total, term)
            return result, total

        self.defjvp(jvp)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.jvp is None:
            raise AttributeError(
                f"custom_jvp: {self._target.name} has no rule.{at_user_line()} Give it one with "
                f"defjvp."
            )
        call = _without_fixed_tangents(self._target.call(args, kwargs))
        outs, out_tree = _apply(UserRule(call, self.jvp, self.symbolic_zeros))
        return tree.unflatten(out_tree, outs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("def"):  # custom_jvp(custom_vmap(f)).def_vmap
            return getattr(self.fun, name)
        raise AttributeError(f"custom_jvp has no attribute {name!r}")


def _sum(x: Any, y: Any) -> Any:
    return x if getattr(x, "dtype", None) == dtypes.float0 else add(x, y)


def _without_fixed_tangents(call: Call) -> Call:
    """The call with the traced leaves of its nondiff arguments made constants."""
    if not call.count:
        return call
    constants = [stop_gradient(x) for x in call.operands[: call.count]]
    return replace(call, operands=(*constants, *call.operands[call.count :]))


def _apply(rule: UserRule) -> Results:
    call = rule.call
    trace = owner(call.operands)
    if isinstance(trace, StagingTrace):
        return _record(rule)
    if not isinstance(trace, TangentTrace):
        outs, out_tree = call.run(call.operands)
        check_closed(call, trace, outs)
        return outs, out_tree
    pairs = [trace.split(x) for x in call.operands]
    outs, tangents, out_tree = rule.run([x for x, _ in pairs], [dx for _, dx in pairs])
    check_closed(call, trace, [*outs, *tangents])
    return [trace.join(x, dx) for x, dx in zip(outs, tangents, strict=True)], out_tree


def _record(rule: UserRule) -> Results:
    call = rule.call
    jaxpr, consts, out_tree = call.staged()
    rule = replace(rule, promise=Promise(out_tree, jaxpr.out_avals))
    kept, captured = rule, []
    if must_stage(call.target, consts, rule.jvp):
        kept, captured = stage_rule(rule)
        jaxpr = with_unused(jaxpr, len(consts), [aval_of(x) for x in captured])
    params = {"call_jaxpr": jaxpr, "rule": kept, "num_consts": len(consts)}
    return bind(custom_jvp_call_p, *consts, *captured, *call.operands, **params), out_tree
