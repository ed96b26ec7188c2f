"""`custom_vjp`: a function with its own rule for cotangents.

Under a differentiation the forward half of the rule runs on the values at hand, and the tangents go
through a linear equation whose transpose is the backward half. While a function is staged the call
becomes one equation that holds the jaxpr of the function, which is what runs, and the rule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from xcube import tree
from xcube.errors import UnexpectedTracerError
from xcube.ir import Axis, Jaxpr, Primitive, at_user_line
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
from xcube.transforms.custom.pullback import Rule, UserRule, apply_forward
from xcube.transforms.custom.pullback_forms import BatchedRule, stage_rule
from xcube.transforms.custom.tangent_map import tangent_map
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
    optimize_remat: bool,
) -> tuple[list[Any], list[Any]]:
    if any(dx is not None for dx in tangents[:num_consts]):
        raise closed_over("custom_vjp", call_jaxpr.name)
    dxs = tangents[num_consts:]
    perturbed = [dx is not None for dx in dxs]
    outs, residuals, pullback = apply_forward(rule, primals[num_consts:], perturbed)
    if optimize_remat and owner(primals) is not EVAL:
        params = {"call_jaxpr": call_jaxpr, "rule": rule, "num_consts": num_consts}
        outs = bind(custom_vjp_call_p, *primals, **params, optimize_remat=True)
    return outs, tangent_map(pullback, residuals, dxs, outs)


def _batch(
    axis: Axis,
    args: Sequence[Any],
    batched: Sequence[bool],
    *,
    call_jaxpr: Jaxpr,
    rule: Rule,
    num_consts: int,
    optimize_remat: bool,
) -> tuple[list[Any], list[bool]]:
    if owner(args) is EVAL:
        return batch_values(call_jaxpr, axis, args, batched)
    batched_jaxpr, flags = batch_jaxpr(call_jaxpr, axis, tuple(batched), force=True)
    batched_rule = BatchedRule(rule, axis, tuple(batched[num_consts:]))
    params = {"call_jaxpr": batched_jaxpr, "rule": batched_rule, "num_consts": num_consts}
    outs = bind(custom_vjp_call_p, *args, **params, optimize_remat=optimize_remat)
    return outs, list(flags)


custom_vjp_call_p = Primitive(
    "custom_vjp_call",
    abstract=lambda *avals, call_jaxpr, **params: call_jaxpr.out_avals,
    jvp=_jvp,
    transpose=lambda cts, *args, call_jaxpr, **params: backward(call_jaxpr, args, cts),
    batch=_batch,
    lower=Inline("call_jaxpr"),
    multiple=True,
)


# the function ---------------------------------------------------------------------------------


class custom_vjp:
    """A function whose derivative is given by a rule of its own, in reverse mode only.

    `nondiff_argnums`, `nondiff_argnames`: arguments that have no derivative and must not be traced;
    both halves of the rule take them, the backward one in front. Keyword arguments are resolved to
    positions. Calling it raises AttributeError before `defvjp`.

    >>> import xcube
    >>> import xcube.numpy as jnp
    >>> @custom_vjp
    ... def f(x, y):
    ...     return jnp.sin(x) * y
    >>> f.defvjp(lambda x, y: (f(x, y), y), lambda y, ct: (10.0 * ct * y, None))
    >>> xcube.grad(f)(1.0, 2.0)
    Array(20., dtype=float32, weak_type=True)
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        nondiff_argnums: Sequence[int] = (),
        nondiff_argnames: Sequence[str] = (),
    ) -> None:
        functools.update_wrapper(self, fun)  # first: it may bring attributes of the same names
        self._target = Target("custom_vjp", fun, nondiff_argnums, nondiff_argnames)
        self.fun, self.nondiff_argnums = fun, self._target.nondiff
        self.fwd: Callable[..., Any] | None = None
        self.bwd: Callable[..., Any] | None = None
        self.symbolic_zeros = self.optimize_remat = False

    def defvjp(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Set the rule: `fwd(*args) -> (result, residuals)` and `bwd(*nondiff, residuals,
        cotangent) -> cotangents`, a tuple with one entry for each differentiated argument, where
        None is zero.

        With `symbolic_zeros` fwd is given a `CustomVJPPrimal` for each leaf, and bwd a
        `SymbolicZero` for each cotangent that is known to be zero. With `optimize_remat` results
        come from the function itself and fwd gives residuals only, so that under `checkpoint` fwd
        waits for the backward pass. Raises NotImplementedError for both at once, as in JAX.
        """
        if symbolic_zeros and optimize_remat:
            raise NotImplementedError(
                f"custom_vjp: optimize_remat cannot be combined with symbolic_zeros."
                f"{at_user_line()}"
            )
        self.fwd, self.bwd = fwd, bwd
        self.symbolic_zeros, self.optimize_remat = symbolic_zeros, optimize_remat

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.fwd is None or self.bwd is None:
            raise AttributeError(
                f"custom_vjp: {self._target.name} has no rule.{at_user_line()} Give it one with "
                f"defvjp."
            )
        call = self._target.call(args, kwargs)
        _check_fixed(call)
        rule = UserRule(call, self.fwd, self.bwd, self.symbolic_zeros)
        outs, out_tree = _apply(rule, self.optimize_remat)
        return tree.unflatten(out_tree, outs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("def"):  # custom_vjp(custom_vmap(f)).def_vmap
            return getattr(self.fun, name)
        raise AttributeError(f"custom_vjp has no attribute {name!r}")


def _check_fixed(call: Call) -> None:
    if call.count:
        raise UnexpectedTracerError(
            f"custom_vjp: the arguments of {call.name} that nondiff_argnums names must not be "
            f"traced; got {call.operands[0].aval}.{at_user_line()} Name there only what is no "
            f"array, such as functions; return None as the cotangent of the others."
        )


def _apply(rule: UserRule, optimize_remat: bool) -> Results:
    call = rule.call
    trace = owner(call.operands)
    if isinstance(trace, StagingTrace):
        return _record(rule, optimize_remat)
    if not isinstance(trace, TangentTrace):
        outs, out_tree = call.run(call.operands)
        check_closed(call, trace, outs)
        return outs, out_tree
    pairs = [trace.split(x) for x in call.operands]
    tangents = [dx for _, dx in pairs]
    outs, residuals, pullback = rule.run([x for x, _ in pairs], [dx is not None for dx in tangents])
    check_closed(call, trace, [*outs, *residuals])
    out_tangents = tangent_map(pullback, residuals, tangents, outs)
    joined = [trace.join(x, dx) for x, dx in zip(outs, out_tangents, strict=True)]
    return joined, pullback.out_tree


def _record(rule: UserRule, optimize_remat: bool) -> Results:
    call = rule.call
    jaxpr, consts, out_tree = call.staged()
    rule = replace(rule, promise=Promise(out_tree, jaxpr.out_avals))
    kept, captured = rule, []
    if must_stage(call.target, consts, rule.fwd, rule.bwd):
        kept, captured = stage_rule(rule)
        jaxpr = with_unused(jaxpr, len(consts), [aval_of(x) for x in captured])
    params = {"call_jaxpr": jaxpr, "rule": kept, "num_consts": len(consts)}
    operands = [*consts, *captured, *call.operands]
    return bind(custom_vjp_call_p, *operands, **params, optimize_remat=optimize_remat), out_tree
