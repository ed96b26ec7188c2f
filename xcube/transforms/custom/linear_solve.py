"""`custom_linear_solve`: the solution of a linear system, however it is found. The derivatives
follow from A x = b: dx = A^-1 (db - dA x), and the transpose of A^-1 is the inverse of A's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from xcube import tree
from xcube.errors import TraceError
from xcube.ir import Axis, Jaxpr, Linear, Primitive, at_user_line
from xcube.primitives.elementwise import neg, sub
from xcube.primitives.kinds import is_linear
from xcube.primitives.lowered import Expand
from xcube.primitives.shape import zeros_of
from xcube.trace import EVAL, aval_of, bind, evaluate, owner
from xcube.transforms.arguments import check_callable
from xcube.transforms.custom.staged import Staged, arrays, stage_like
from xcube.transforms.linearize import instantiate, jvp_flat
from xcube.transforms.transpose import backward
from xcube.transforms.vmap import batch_jaxpr, to_batch


class Four(NamedTuple):
    """Something for each of the four functions of a solve."""

    matvec: Any
    vecmat: Any
    solve: Any
    transpose_solve: Any

    def swapped(self) -> Four:
        """The same for the transposed system."""
        return Four(self.vecmat, self.matvec, self.transpose_solve, self.solve)

    def values(self) -> list[Any]:
        """All that four lists hold."""
        return [value for part in self for value in part]


def _split(args: Sequence[Any], lengths: Four) -> tuple[Four, list[Any]]:
    """What each function closes over, and the right-hand side."""
    parts, start = [], 0
    for length in lengths:
        parts.append(list(args[start : start + length]))
        start += length
    return Four(*parts), list(args[start:])


def _solve(args: Sequence[Any], const_lengths: Four, jaxprs: Four) -> list[Any]:
    params = {"const_lengths": const_lengths, "jaxprs": jaxprs}
    if owner(args) is EVAL:
        return _evaluated(*args, **params)
    return bind(custom_linear_solve_p, *args, **params)


def _evaluated(*args: Any, const_lengths: Four, jaxprs: Four) -> list[Any]:
    consts, b = _split(args, const_lengths)
    return evaluate(jaxprs.solve, [*consts.solve, *b])


# the primitive --------------------------------------------------------------------------------


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, const_lengths: Four, jaxprs: Four
) -> tuple[list[Any], list[Any]]:
    outs = _solve(primals, const_lengths, jaxprs)
    consts, b = _split(primals, const_lengths)
    dots, db = _split(tangents, const_lengths)
    x = outs[: len(b)]
    _, product = jvp_flat(
        lambda *values: evaluate(jaxprs.matvec, [*values, *x]), consts.matvec, dots.matvec
    )
    rhs = [_difference(*pair) for pair in zip(db, product, strict=True)]
    if all(part is None for part in rhs):
        return outs, [None] * len(outs)
    whole = [instantiate(part, x) for part, x in zip(rhs, b, strict=True)]
    dx = _solve([*consts.values(), *whole], const_lengths, jaxprs)[: len(b)]
    return outs, [*dx, *[None] * (len(outs) - len(b))]


def _difference(x: Any, y: Any) -> Any:
    """x - y, where None is zero."""
    if y is None:
        return x
    return neg(y) if x is None else sub(x, y)


def _transpose(cts: Sequence[Any], *args: Any, const_lengths: Four, jaxprs: Four) -> list[Any]:
    consts, b = _split(args, const_lengths)
    if jaxprs.transpose_solve is None:
        raise TypeError(
            f"custom_linear_solve: reverse mode needs transpose_solve, or symmetric=True; got "
            f"neither.{at_user_line()}"
        )
    if any(is_linear(x) for x in consts.values()):
        raise TraceError(
            f"custom_linear_solve: it cannot be transposed with respect to what its functions "
            f"close over, for it is not linear in that.{at_user_line()}"
        )
    rhs = [
        zeros_of(x.aval if is_linear(x) else aval_of(x)) if ct is None else ct
        for ct, x in zip(cts[: len(b)], b, strict=True)
    ]
    swapped = const_lengths.swapped(), jaxprs.swapped()
    results = _solve([*consts.swapped().values(), *rhs], *swapped)
    return [*[None] * len(consts.values()), *results[: len(b)]]


def _batch(
    axis: Axis, args: Sequence[Any], batched: Sequence[bool], *, const_lengths: Four, jaxprs: Four
) -> tuple[list[Any], list[bool]]:
    """Solutions and right-hand sides are all batched, so that the four functions agree on them."""
    consts, b = _split(args, const_lengths)
    flags, b_flags = _split(batched, const_lengths)

    def whole(jaxpr: Jaxpr | None, known: list[bool]) -> Jaxpr | None:
        if jaxpr is None:
            return None
        return batch_jaxpr(jaxpr, axis, (*known, *[True] * len(b)), force=True)[0]

    batched_jaxprs = Four(*map(whole, jaxprs, flags))
    rhs = [x if flag else to_batch(x, axis.size) for x, flag in zip(b, b_flags, strict=True)]
    outs = _solve([*consts.values(), *rhs], const_lengths, batched_jaxprs)
    return outs, [True] * len(outs)


custom_linear_solve_p = Primitive(
    "custom_linear_solve",
    abstract=lambda *avals, const_lengths, jaxprs: jaxprs.solve.out_avals,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    lower=Expand(_evaluated),
    multiple=True,
)


# the function ---------------------------------------------------------------------------------


def custom_linear_solve(
    matvec: Callable[..., Any],
    b: Any,
    solve: Callable[..., Any],
    transpose_solve: Callable[..., Any] | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """`solve(matvec, b)`, which must be an x with matvec(x) = b, matvec linear; differentiable with
    respect to b and to what matvec closes over, whatever solve does.

    `transpose_solve(vecmat, b)` solves the transposed system and is what reverse mode needs; if
    `symmetric` it is solve. With `has_aux` both return (x, auxiliary data). Raises TypeError or
    ShapeError if a function returns something unlike b.

    >>> import xcube
    >>> divide = lambda a, b: custom_linear_solve(
    ...     lambda x: a * x, b, lambda matvec, b: b / matvec(1.0), symmetric=True
    ... )
    >>> [float(g) for g in xcube.grad(divide, (0, 1))(2.0, 3.0)]
    [-0.75, 0.5]
    """
    check_callable("custom_linear_solve", matvec)
    check_callable("custom_linear_solve", solve)
    b = arrays("custom_linear_solve", "b", b)
    where = "custom_linear_solve: "
    product, _ = stage_like(f"{where}matvec", matvec, b, [b])
    solver, out_tree = stage_like(f"{where}solve", lambda y: solve(matvec, y), b, [b], has_aux)
    four: list[Staged | None] = [product, None, solver, None]
    if transpose_solve is not None or symmetric:
        vecmat = matvec if symmetric else _transposed(product, b)
        inverse = transpose_solve or solve
        four[1] = product if symmetric else stage_like(f"{where}vecmat", vecmat, b, [b])[0]
        four[3], _ = stage_like(
            f"{where}transpose_solve", lambda y: inverse(vecmat, y), b, [b], has_aux
        )
    consts = Four(*[part.consts if part else [] for part in four])
    jaxprs = Four(*[part.jaxpr if part else None for part in four])
    outs = _solve([*consts.values(), *tree.leaves(b)], Four(*map(len, consts)), jaxprs)
    return tree.unflatten(out_tree, outs)


def _transposed(product: Staged, like: Any) -> Callable[[Any], Any]:
    """The transpose of a staged linear function between trees of one structure."""
    leaves, treedef = tree.flatten(like)
    linear = [Linear(aval_of(x)) for x in leaves]

    def vecmat(cotangent: Any) -> Any:
        cts = backward(product.jaxpr, [*product.consts, *linear], tree.leaves(cotangent))
        found = cts[len(product.consts) :]
        whole = [instantiate(ct, x) for ct, x in zip(found, leaves, strict=True)]
        return tree.unflatten(treedef, whole)

    return vecmat
