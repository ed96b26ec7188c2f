"""Functions of trees, staged for operations that are defined by equations; what they return must
be like a given tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from xcube import tree
from xcube.errors import ShapeError
from xcube.ir import Jaxpr, at_user_line
from xcube.trace import aval_of, evaluate
from xcube.transforms.arguments import flatten_call, leaf_arrays
from xcube.transforms.custom.calling import leaf_path, stage_tree


class Staged(NamedTuple):
    """A staged function: its closed jaxpr, and the values it closes over, the leading inputs."""

    jaxpr: Jaxpr
    consts: list[Any]

    def __call__(self, *leaves: Any) -> list[Any]:
        return evaluate(self.jaxpr, [*self.consts, *leaves])


def arrays(operation: str, what: str, value: Any) -> Any:
    """A tree with its leaves as arrays."""
    call = flatten_call(lambda given: given, (value,), {})
    return call.apply(leaf_arrays(operation, what, call))


def stage_like(
    where: str, function: Callable[..., Any], like: Any, args: Sequence[Any], has_aux: bool = False
) -> tuple[Staged, Any]:
    """A function of trees, staged, whose result (the first of a pair, if `has_aux`) must be like a
    tree of arrays; and the structure of all it gives."""
    jaxpr, consts, out_tree = stage_tree(where, function, *args)
    result = tree.unflatten(out_tree, jaxpr.out_avals)
    if has_aux and (not isinstance(result, tuple | list) or len(result) != 2):
        raise ValueError(
            f"{where}: with has_aux it must return a pair, the solution and auxiliary data; got "
            f"{out_tree}.{at_user_line()}"
        )
    solution = result[0] if has_aux else result
    _check_like(where, solution, like)
    return Staged(jaxpr, consts), out_tree


def _check_like(where: str, avals: Any, like: Any) -> None:
    treedef, expected = tree.structure(avals), tree.structure(like)
    if treedef != expected:
        raise TypeError(
            f"{where}: its result must have the structure {expected}; got {treedef}."
            f"{at_user_line()}"
        )
    rows = zip(tree.leaves(avals), tree.leaves(like), strict=True)
    for number, (aval, x) in enumerate(rows):
        if aval.shape != x.shape:
            raise ShapeError(
                f"{where}: its result{leaf_path(treedef, number)} must have the shape of "
                f"{aval_of(x)}; got {aval}."
                f"{at_user_line()}"
            )
