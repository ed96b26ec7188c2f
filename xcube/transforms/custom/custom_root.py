"""`custom_root`: a root of a function, however it is found; the equation gives its derivative.
Source: the implicit function theorem, f(m, u(m)) = 0 gives du = -(df/du)^-1 (df/dm) dm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xcube import tree
from xcube.primitives.elementwise import neg
from xcube.trace import evaluate
from xcube.transforms.arguments import check_callable
from xcube.transforms.custom.custom_jvp import custom_jvp
from xcube.transforms.custom.staged import Staged, arrays, stage_like
from xcube.transforms.custom.zeros import SymbolicZero, zero_from_primal
from xcube.transforms.grad import linearize
from xcube.transforms.linearize import instantiate, jvp_flat


def custom_root(
    f: Callable[..., Any],
    initial_guess: Any,
    solve: Callable[..., Any],
    tangent_solve: Callable[..., Any],
    has_aux: bool = False,
) -> Any:
    """`solve(f, initial_guess)`, which must be a root of f, differentiable with respect to what f
    closes over whatever solve does. With `has_aux` solve returns (root, auxiliary data).

    `tangent_solve(g, y)` solves g(x) = y for a linear g, f's derivative at the root: for scalars
    `lambda g, y: y / g(1.0)`. Raises TypeError or ShapeError if f, solve or tangent_solve return
    something unlike the guess.

    >>> import xcube
    >>> root = lambda a: custom_root(
    ...     lambda x: x * x - a, 1.0, lambda f, x: a**0.5, lambda g, y: y / g(1.0)
    ... )
    >>> float(xcube.grad(root)(4.0))
    0.25
    """
    for function in (f, solve, tangent_solve):
        check_callable("custom_root", function)
    guess = arrays("custom_root", "initial_guess", initial_guess)
    residual, _ = stage_like("custom_root: f", f, guess, [guess])
    solver, out_tree = stage_like(
        "custom_root: solve", lambda x: solve(f, x), guess, [guess], has_aux
    )

    def linearized(x: Any, y: Any) -> Any:
        return tangent_solve(linearize(f, x)[1], y)

    inverse, _ = stage_like("custom_root: tangent_solve", linearized, guess, [guess, guess])
    leaves = tree.leaves(guess)
    outs = _root(residual, solver, inverse)(residual.consts, solver.consts, inverse.consts, leaves)
    return tree.unflatten(out_tree, outs)


def _root(residual: Staged, solver: Staged, inverse: Staged) -> custom_jvp:
    """The root as a function of everything that the three functions close over."""

    def root(*params: list[Any]) -> list[Any]:
        _, consts, _, guess = params
        return evaluate(solver.jaxpr, [*consts, *guess])

    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        consts, _, inverse_consts, guess = primals
        outs = found(*primals)
        solution, rest = outs[: len(guess)], outs[len(guess) :]
        dots = [None if isinstance(dx, SymbolicZero) else dx for dx in tangents[0]]
        _, rhs = jvp_flat(
            lambda *values: evaluate(residual.jaxpr, [*values, *solution]), consts, dots
        )
        whole = [instantiate(dx, x) for dx, x in zip(rhs, solution, strict=True)]
        dxs = evaluate(inverse.jaxpr, [*inverse_consts, *solution, *whole])
        return outs, [*map(neg, dxs), *zero_from_primal(rest, symbolic_zeros=True)]

    found = custom_jvp(root)
    found.defjvp(rule, symbolic_zeros=True)
    return found
