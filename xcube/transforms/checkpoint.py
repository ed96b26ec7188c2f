"""checkpoint: a function whose derivative computes inner values again instead of keeping them.
Under `linearize` its body is split by a policy into what runs forward and a linear program that
computes the rest again; transposed, that program stands behind a barrier, so that nothing in it
runs before the cotangents are there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from xcube import tree
from xcube.errors import ShapeError
from xcube.ir import Aval, Axis, Equation, Jaxpr, Linear, Primitive, at_user_line
from xcube.primitives.lowered import Element, Inline
from xcube.trace import bind
from xcube.transforms.arguments import check_callable, flatten_call, leaf_arrays
from xcube.transforms.control.bodies import stage_body
from xcube.transforms.linearize import is_linearizing, jvp_jaxpr
from xcube.transforms.remat import budget as budgets
from xcube.transforms.remat import policies
from xcube.transforms.remat.programs import behind_barrier, late
from xcube.transforms.remat.split import split_jaxpr
from xcube.transforms.remat.static import Static, StaticArguments, unmarked
from xcube.transforms.transpose import transpose_jaxpr
from xcube.transforms.vmap import batch_jaxpr, named_like


class _Policies(SimpleNamespace):
    """Policies by name."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"checkpoint_policies: there is no policy {name!r}; there are "
            f"{', '.join(sorted(vars(self)))}.{at_user_line()}"
        )


checkpoint_policies = _Policies(
    everything_saveable=policies.everything_saveable,
    nothing_saveable=policies.nothing_saveable,
    dots_saveable=policies.dots_saveable,
    checkpoint_dots=policies.dots_saveable,
    dots_with_no_batch_dims_saveable=policies.dots_with_no_batch_dims_saveable,
    checkpoint_dots_with_no_batch_dims=policies.dots_with_no_batch_dims_saveable,
    offload_dot_with_no_batch_dims=policies.offload_dot_with_no_batch_dims,
    save_anything_except_these_names=policies.save_anything_except_these_names,
    save_any_names_but_these=policies.save_any_names_but_these,
    save_only_these_names=policies.save_only_these_names,
    save_from_both_policies=policies.save_from_both_policies,
    save_and_offload_only_these_names=policies.save_and_offload_only_these_names,
    budget=budgets.budget,
)

# the primitive --------------------------------------------------------------------------------

Flags = bool | tuple[bool, ...]  # of all operands, or of each


def _abstract(*avals: Aval, jaxpr: Jaxpr, **params: Any) -> tuple[Aval, ...]:
    expected = jaxpr.in_avals
    if [(a.shape, a.dtype) for a in avals] != [(a.shape, a.dtype) for a in expected]:
        raise ShapeError(
            f"checkpoint: the operands must be ({', '.join(map(str, expected))}) as in its jaxpr; "
            f"got ({', '.join(map(str, avals))}).{at_user_line()}"
        )
    return jaxpr.out_avals


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    rule = _linearized if is_linearizing(primals, tangents) else _joint
    return rule(primals, tangents, **params)


def _joint(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    jaxpr: Jaxpr,
    prevent_cse: Flags,
    **params: Any,
) -> tuple[list[Any], list[Any]]:
    nonzero = tuple([tangent is not None for tangent in tangents])
    joint, out_nonzero = jvp_jaxpr(jaxpr, nonzero)
    given = [tangent for tangent in tangents if tangent is not None]
    flags = _flags_of(prevent_cse, range(len(primals)), 0, len(given))
    results = bind(checkpoint_p, *primals, *given, jaxpr=joint, prevent_cse=flags, **params)
    count = len(jaxpr.outputs)
    moved = iter(results[count:])
    return results[:count], [next(moved) if flag else None for flag in out_nonzero]


def _linearized(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    jaxpr: Jaxpr,
    prevent_cse: Flags,
    policy: Any,
    differentiated: bool,
) -> tuple[list[Any], list[Any]]:
    nonzero = tuple([tangent is not None for tangent in tangents])
    split = split_jaxpr(jaxpr, nonzero, policy or policies.nothing_saveable)
    results = bind(
        checkpoint_p,
        *primals,
        jaxpr=split.known,
        prevent_cse=prevent_cse,
        policy=policy,
        differentiated=differentiated,
    )
    outs = results[: len(jaxpr.outputs)]
    if not any(split.nonzero):
        return outs, [None] * len(outs)
    saved = [results[n] for n in split.saved]
    given = [tangent for tangent in tangents if tangent is not None]
    moved = iter(
        bind(
            checkpoint_p,
            *saved,
            *[primals[n] for n in split.inputs],
            *given,
            jaxpr=split.linear,
            prevent_cse=_flags_of(prevent_cse, split.inputs, len(saved), len(given)),
            policy=policy,
            differentiated=True,
        )
    )
    return outs, [next(moved) if flag else None for flag in split.nonzero]


def _flags_of(flags: Flags, operands: Iterable[int], saved: int, given: int) -> Flags:
    """Flags of saved values, of some operands and of (co)tangents."""
    if isinstance(flags, bool):
        return flags
    return (*[True] * saved, *[flags[n] for n in operands], *[True] * given)


def _transpose(
    cts: Sequence[Any], *args: Any, jaxpr: Jaxpr, prevent_cse: Flags, **params: Any
) -> list[Any]:
    linear = tuple([isinstance(arg, Linear) for arg in args])
    nonzero = tuple([ct is not None for ct in cts])
    transposed, found = transpose_jaxpr(jaxpr, linear, nonzero)
    places = [n for n, flag in enumerate(linear) if not flag]
    given = [ct for ct in cts if ct is not None]
    flags = _flags_of(prevent_cse, places, 0, len(given))
    if _recomputes(jaxpr, linear):
        transposed = late(transposed, len(places))
        transposed = behind_barrier(transposed, flags, len(places))
    results = iter(
        bind(
            checkpoint_p,
            *[args[n] for n in places],
            *given,
            jaxpr=transposed,
            prevent_cse=flags,
            **params,
        )
    )
    grads = iter([next(results) if flag else None for flag in found])
    return [next(grads) if is_linear else None for is_linear in linear]


def _recomputes(jaxpr: Jaxpr, linear: Sequence[bool]) -> bool:
    """Whether a program does work that depends on no linear argument."""
    moving = {var for var, flag in zip(jaxpr.inputs, linear, strict=True) if flag}
    for eqn in jaxpr.equations:
        if moving.isdisjoint(eqn.inputs):
            if not _is_view(eqn):
                return True
        else:
            moving.update(eqn.outputs)
    return False


def _is_view(eqn: Equation) -> bool:
    return isinstance(eqn.primitive.lower, Element) and eqn.primitive.lower.cheap


def _batch(
    axis: Axis, args: Sequence[Any], batched: Sequence[bool], *, jaxpr: Jaxpr, **params: Any
) -> tuple[list[Any], Sequence[bool]]:
    body, flags = batch_jaxpr(jaxpr, axis, tuple(batched))
    return bind(checkpoint_p, *args, jaxpr=body, **params), flags


checkpoint_p = Primitive(
    "checkpoint",
    abstract=_abstract,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    lower=Inline(),
    multiple=True,
)

# the function ---------------------------------------------------------------------------------


def checkpoint(
    fun: Callable[..., Any] | None = None,
    *,
    prevent_cse: bool | Sequence[Any] = True,
    policy: policies.Policy | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
) -> Any:
    """The same function, whose derivative keeps its inputs and computes inner values again.

    `policy`: what else to keep, one of `checkpoint_policies` or any
    `policy(primitive, *avals, **params) -> bool`. `prevent_cse`: whether the second computation is
    kept apart from the first and behind the cotangents; without that (enough inside a loop) the
    compiler may merge the two. A tuple of flags, each for all of an argument, is taken too.
    `static_argnums`, `static_argnames`: arguments that stay Python values. Raises TypeError if fun
    or the policy is no function, ValueError if static_argnums names no argument.

    >>> import xcube
    >>> xcube.value_and_grad(checkpoint(lambda x: x * x * x))(2.0)
    (Array(8., dtype=float32, weak_type=True), Array(12., dtype=float32, weak_type=True))
    """
    if fun is None:
        return functools.partial(
            checkpoint,
            prevent_cse=prevent_cse,
            policy=policy,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
        )
    check_callable("checkpoint", fun)
    _check_policy(policy)
    flags = _checked_flags(prevent_cse)
    static = StaticArguments.of("checkpoint", fun, static_argnums, static_argnames)

    def body(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return fun(*map(unmarked, args), **{key: unmarked(arg) for key, arg in kwargs.items()})

    body = named_like(body, fun)

    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = static.marked(args, kwargs)
        call = flatten_call(fun, args, kwargs)
        leaves = leaf_arrays("checkpoint", static.function, call)
        trees = tree.structure(args), tree.structure(kwargs)
        staged = stage_body("checkpoint", fun, body, trees, [leaf.aval for leaf in leaves])
        outs = bind(
            checkpoint_p,
            *staged.consts,
            *leaves,
            jaxpr=staged.jaxpr,
            prevent_cse=_leaf_flags(flags, len(staged.consts), args, kwargs),
            policy=policy,
            differentiated=False,
        )
        return tree.unflatten(staged.out_tree, outs)

    return named_like(checkpointed, fun)


remat = checkpoint


def _check_policy(policy: Any) -> None:
    if policy is None or (callable(policy) and isinstance(policy, Hashable)):
        return
    known = ", ".join(sorted(vars(checkpoint_policies)))
    raise TypeError(
        f"checkpoint: the policy must be a hashable function of (primitive, *avals, **params), "
        f"such as one of checkpoint_policies ({known}); got {policy!r}.{at_user_line()}"
    )


def _checked_flags(prevent_cse: Any) -> bool | tuple[Any, ...]:
    if isinstance(prevent_cse, bool):
        return prevent_cse
    if isinstance(prevent_cse, tuple | list) and all(
        isinstance(flag, bool) for flag in tree.leaves(prevent_cse)
    ):
        return tuple(prevent_cse)
    raise TypeError(
        f"checkpoint: prevent_cse must be a bool or a tuple with a bool (or a tree of them) for "
        f"each argument; got {prevent_cse!r}.{at_user_line()}"
    )


def _leaf_flags(flags: Any, consts: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Flags:
    """prevent_cse of every operand of a call: captured values and leaves of arguments."""
    if isinstance(flags, bool):
        return flags
    dynamic = tuple([arg for arg in args if not isinstance(arg, Static)])
    leaves = tree.broadcast_prefix(flags, (dynamic, kwargs) if kwargs else dynamic)
    return (*[False] * consts, *leaves)
