"""The functions scan and while_loop: a body applied along the leading axis of xs, or as long as a
condition holds."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from xcube import config, tree
from xcube.errors import ConcretizationTypeError, ShapeError
from xcube.ir import Aval, Jaxpr, at_user_line
from xcube.primitives.view import concatenate, expand_dims, slice_in_dim, squeeze
from xcube.trace import Tracer, aval_of
from xcube.transforms.arguments import to_array
from xcube.transforms.control.agreement import (
    check_carry,
    check_functions,
    paths_of,
    promoted,
    same_type,
)
from xcube.transforms.control.bodies import (
    Body,
    as_array,
    cached,
    forwarded_inputs,
    merged,
    name_of,
    operands,
    picked,
    rearranged,
    split_at,
    stage_body,
)
from xcube.transforms.control.scan import bind_scan, row_aval
from xcube.transforms.control.while_loop import PREDICATE, bind_while

# scan -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loop:
    """What to scan: `step(carry, x) -> (carry, y)`, which the user's function `origin`, the
    operation that the user called and its variant decide."""

    operation: str
    origin: Callable[..., Any]
    step: Callable[[Any, Any], Any]
    length: int
    reverse: bool = False
    unroll: int = 1
    variant: Hashable = None


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
) -> tuple[Any, Any]:
    """Carry a value along the leading axis of xs: the last carry, and the ys that f gave, stacked.

    `f(carry, x) -> (carry, y)` is traced once; carries, x and y are pytrees, and the carry keeps
    its structure, shapes and dtypes. xs: leaves d[length, *s], of which f gets rows d[*s]; without
    xs, `length` says how often f is applied. `reverse`: from the last row to the first. `unroll`:
    how many steps become one of the loop, all if it is True or 0. `_split_transpose` is accepted
    for compatibility. Raises TypeError if the carry changes its type or f returns no pair,
    ValueError if lengths differ.

    >>> import xcube.numpy as jnp
    >>> scan(lambda total, x: (total + x, 2 * x), jnp.int32(0), jnp.arange(4))
    (Array(6, dtype=int32), Array([0, 2, 4, 6], dtype=int32))
    """
    check_functions("scan", f=f)
    rows, xs_tree = operands("scan", name_of(f), "xs", xs)
    count = steps("scan", rows, xs_tree, length)
    loop = Loop("scan", f, f, count, bool(reverse), unrolled("scan", unroll, count))
    return run_scan(loop, init, tree.unflatten(xs_tree, rows))


def steps(operation: str, rows: Sequence[Any], xs_tree: tree.TreeDef, length: Any = None) -> int:
    """How many steps to do. Raises ShapeError unless all that is known of it agrees."""
    avals = [aval_of(x) for x in rows]
    if any(not aval.shape for aval in avals):
        raise ShapeError(
            f"{operation}: xs must have a leading axis to run along; got {_named(xs_tree, avals)}."
            f"{at_user_line()}"
        )
    found = {aval.shape[0] for aval in avals} | set(() if length is None else (_number(length),))
    if len(found) == 1:
        return found.pop()
    if not found:
        raise ValueError(
            f"{operation}: without xs the length must be given; got none.{at_user_line()}"
        )
    given = "" if length is None else f" and length={length}"
    raise ShapeError(
        f"{operation}: the leading axes of xs must have one length; got "
        f"{_named(xs_tree, avals)}{given}.{at_user_line()}"
    )


def _number(length: Any) -> int:
    if isinstance(length, Tracer) and length.known is None:
        raise ConcretizationTypeError(
            f"scan: the length must be known while tracing; got a traced {length.aval}."
            f"{at_user_line()} Use fori_loop or while_loop for a number of steps that is not."
        )
    try:
        count = operator.index(length)
    except TypeError:
        count = -1
    if count < 0:
        raise ValueError(
            f"scan: the length must be a whole number of at least 0; got {length!r}."
            f"{at_user_line()}"
        )
    return count


def _named(treedef: tree.TreeDef, avals: Sequence[Aval]) -> str:
    pairs = zip(paths_of(treedef), avals, strict=True)
    return ", ".join(f"xs{path}: {aval}" for path, aval in pairs)


def unrolled(operation: str, unroll: Any, length: int) -> int:
    """How many steps one step of the loop does, from what the user asks for."""
    if isinstance(unroll, bool) or unroll == 0:
        return max(length, 1) if unroll is not False else 1
    if operator.index(unroll) < 0:
        raise ValueError(
            f"{operation}: unroll must be a bool or an integer >= 0; got {unroll}.{at_user_line()}"
        )
    return operator.index(unroll)


def run_scan(loop: Loop, init: Any, xs: Any) -> tuple[Any, Any]:
    """The last carry and the stacked ys of a loop over pytrees."""
    if config.current.disable_jit:
        return _run_scan_in_python(loop, init, xs)
    name = name_of(loop.origin)
    carry, carry_tree = operands(loop.operation, name, "the carry", init)
    rows, xs_tree = operands(loop.operation, name, "xs", xs)
    body = _stage_scan_body(loop, (carry_tree, xs_tree), carry, rows)
    carry_out, y_tree = body.out_tree.children()
    if carry_out == carry_tree:
        carry, changed = promoted(carry, body.out_avals[: len(carry)])
        body = _stage_scan_body(loop, (carry_tree, xs_tree), carry, rows) if changed else body
    returned = carry_out, body.out_avals[: carry_out.num_leaves]
    check_carry(loop.operation, name, (carry_tree, [aval_of(x) for x in carry]), returned)
    last, ys = split_at(_bind_scan(loop, body, carry, rows), len(carry))
    return tree.unflatten(carry_out, last), tree.unflatten(y_tree, ys)


def _stage_scan_body(
    loop: Loop, trees: Sequence[tree.TreeDef], carry: Sequence[Any], rows: Sequence[Any]
) -> Body:
    avals = [*[aval_of(x) for x in carry], *[row_aval(aval_of(x)) for x in rows]]
    body = stage_body((loop.operation, loop.variant), loop.origin, loop.step, trees, avals)
    kind = body.out_tree.node_data()
    if kind is None or kind[0] not in (tuple, list) or len(body.out_tree.children()) != 2:
        raise TypeError(
            f"{loop.operation}: {name_of(loop.origin)} must return a pair (carry, y); it returns "
            f"{body.out_tree}.{at_user_line()}"
        )
    return body


def _bind_scan(loop: Loop, body: Body, carry: list[Any], rows: list[Any]) -> list[Any]:
    """The loop's results. A carry that the body leaves as it is becomes a constant of the loop, and
    ys that are xs are these."""
    jaxpr, is_fixed, sources = cached(
        body.jaxpr,
        ("without forwarding", len(carry)),
        lambda: _without_forwarding(body.jaxpr, len(body.consts), len(carry)),
    )
    fixed, moving = picked(carry, is_fixed), picked(carry, [not flag for flag in is_fixed])
    params = {"length": loop.length, "reverse": loop.reverse, "unroll": loop.unroll}
    last, made = bind_scan(jaxpr, [*body.consts, *fixed], moving, rows, **params)
    ys = iter(made)
    return [
        *merged(is_fixed, map(as_array, fixed), last),
        *[next(ys) if source is None else rows[source] for source in sources],
    ]


def _without_forwarding(
    jaxpr: Jaxpr, num_consts: int, num_carry: int
) -> tuple[Jaxpr, list[bool], list[int | None]]:
    """The body without the results that are its own operands: which carries are fixed, and, for
    each y, which x it is, if it is one."""
    first_x = num_consts + num_carry
    carry, ys = split_at(forwarded_inputs(jaxpr), num_carry)
    is_fixed = [source == num_consts + k for k, source in enumerate(carry)]
    sources = [None if s is None or s < first_x else s - first_x for s in ys]
    carries = range(num_consts, first_x)
    inputs = [
        *range(num_consts),
        *picked(carries, is_fixed),
        *picked(carries, [not flag for flag in is_fixed]),
        *range(first_x, len(jaxpr.inputs)),
    ]
    kept = [not flag for flag in is_fixed] + [source is None for source in sources]
    outputs = picked(range(len(jaxpr.outputs)), kept)
    return rearranged(jaxpr, inputs, outputs), is_fixed, sources


def _run_scan_in_python(loop: Loop, init: Any, xs: Any) -> tuple[Any, Any]:
    if loop.length == 0:
        raise ValueError(
            f"{loop.operation}: a loop of length 0 cannot run under disable_jit, for the types of "
            f"its results are not known.{at_user_line()}"
        )
    steps = range(loop.length)
    carry, ys = init, []
    for k in reversed(steps) if loop.reverse else steps:
        carry, y = loop.step(carry, tree.map(lambda x, k=k: row(x, k), xs))
        ys.append(y)
    return carry, tree.map(_stacked, *(reversed(ys) if loop.reverse else ys))


def row(x: Any, k: int) -> Any:
    """Row k of an array."""
    return squeeze(slice_in_dim(x, k, k + 1), (0,))


def _stacked(*values: Any) -> Any:
    return concatenate([expand_dims(as_array(x), (0,)) for x in values], 0)


# while_loop -----------------------------------------------------------------------------------


def while_loop(
    cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any
) -> Any:
    """Apply body_fun to a value as long as cond_fun of it is true.

    Both are traced once; the value is a pytree that keeps its structure, shapes and dtypes.
    `cond_fun(value) -> bool[]`. There is no reverse-mode derivative, for the number of steps is not
    known; scan and fori_loop with static bounds have one. Raises TypeError if the value changes its
    type, or cond_fun returns anything but one boolean scalar.

    >>> while_loop(lambda x: x < 100, lambda x: x * 2, 1)
    Array(128, dtype=int32, weak_type=True)
    """
    check_functions("while_loop", cond_fun=cond_fun, body_fun=body_fun)
    value = init_val
    if config.current.disable_jit:
        value, is_done = _run_while_in_python(cond_fun, body_fun, init_val)
        if is_done:
            return value
    return run_while("while_loop", (cond_fun, body_fun), (cond_fun, body_fun), value)


def _run_while_in_python(cond_fun: Any, body_fun: Any, value: Any) -> tuple[Any, bool]:
    """The value when the condition ends to hold, or when it is not known."""
    value = tree.map(to_array.convert, value)
    while True:
        condition = cond_fun(value)
        if isinstance(condition, Tracer) and condition.known is None:
            return value, False
        if not condition:
            return value, True
        value = tree.map(to_array.convert, body_fun(value))


def run_while(
    operation: str,
    origins: tuple[Any, Any],
    functions: tuple[Callable[..., Any], Callable[..., Any]],
    init: Any,
) -> Any:
    """The last carry of a loop (condition, body), decided by the user's functions `origins`."""
    name = name_of(origins[1])
    carry, treedef = operands(operation, name, "the carry", init)
    body = _stage_while_body(operation, origins, functions, treedef, carry)
    if body.out_tree == treedef:
        carry, changed = promoted(carry, body.out_avals)
        body = _stage_while_body(operation, origins, functions, treedef, carry) if changed else body
    given = treedef, [aval_of(x) for x in carry]
    check_carry(operation, name, given, (body.out_tree, body.out_avals))
    cond = stage_body((operation, "condition"), origins[0], functions[0], (treedef,), given[1])
    _check_condition(operation, name_of(origins[0]), cond)
    return tree.unflatten(body.out_tree, _bind_while(cond, body, carry))


def _stage_while_body(
    operation: str, origins: Any, functions: Any, treedef: tree.TreeDef, carry: Sequence[Any]
) -> Body:
    avals = [aval_of(x) for x in carry]
    return stage_body(operation, origins[1], functions[1], (treedef,), avals)


def _check_condition(operation: str, name: str, cond: Body) -> None:
    if cond.out_tree is tree.LEAF and same_type(cond.out_avals[0], PREDICATE):
        return
    results = tree.unflatten(cond.out_tree, [*map(str, cond.out_avals)])
    raise TypeError(
        f"{operation}: {name} must return one boolean scalar, bool[]; it returns {results}."
        f"{at_user_line()} Reduce it with all or any."
    )


def _bind_while(cond: Body, body: Body, carry: list[Any]) -> list[Any]:
    """The loop's results. A carry that the body leaves as it is becomes a constant of the loop."""
    cond_jaxpr, body_jaxpr, is_fixed = cached(
        body.jaxpr,
        ("without forwarding", cond.jaxpr),
        lambda: _without_fixed(cond, body, len(carry)),
    )
    fixed, moving = picked(carry, is_fixed), picked(carry, [not flag for flag in is_fixed])
    consts = [*cond.consts, *fixed], [*body.consts, *fixed]
    outs = bind_while(cond_jaxpr, body_jaxpr, *consts, moving)
    return merged(is_fixed, map(as_array, fixed), outs)


def _without_fixed(cond: Body, body: Body, num_carry: int) -> tuple[Jaxpr, Jaxpr, list[bool]]:
    """Condition and body with carries that never change as constants; and which these are."""
    first = len(body.consts)
    sources = forwarded_inputs(body.jaxpr)
    is_fixed = [source == first + k for k, source in enumerate(sources)]
    is_moving = [not flag for flag in is_fixed]

    def order(first: int) -> list[int]:
        carries = range(first, first + num_carry)
        return [*range(first), *picked(carries, is_fixed), *picked(carries, is_moving)]

    cond_jaxpr = rearranged(cond.jaxpr, order(len(cond.consts)), [0])
    outputs = picked(range(num_carry), is_moving)
    return cond_jaxpr, rearranged(body.jaxpr, order(first), outputs), is_fixed
