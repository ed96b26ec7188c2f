"""What a body gives must fit what it takes: structures of trees and types of leaves are compared
here, and every difference is named by its path, with both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xcube import dtypes, tree
from xcube.errors import TraceError
from xcube.ir import Aval, Jaxpr, at_user_line
from xcube.primitives.convert import convert_element_type
from xcube.trace import aval_of


def same_type(a: Aval, b: Aval) -> bool:
    """Whether two avals agree in shape and dtype; weakness does not matter."""
    return a.dtype == b.dtype and a.shape == b.shape


def paths_of(treedef: tree.TreeDef) -> list[str]:
    """The path of each leaf, in text."""
    numbered = tree.unflatten(treedef, range(treedef.num_leaves))
    return [tree.keystr(path) for path, _ in tree.leaves_with_path(numbered)]


def promoted(values: Sequence[Any], out_avals: Sequence[Aval]) -> tuple[list[Any], bool]:
    """Initial values, of which the weakly typed ones take the dtype that they have together with
    what the body makes of them; and whether any changed."""
    changed, whole = False, []
    for value, out in zip(values, out_avals, strict=True):
        aval = aval_of(value)
        if aval.weak_type and not same_type(aval, out):
            pairs = (aval.dtype, True), (out.dtype, out.weak_type)
            dtype, _ = dtypes.lattice_result_type(*pairs)
            value, changed = convert_element_type(value, dtype), True
        whole.append(value)
    return whole, changed


def check_carry(
    operation: str,
    name: str,
    given: tuple[tree.TreeDef, Sequence[Aval]],
    returned: tuple[tree.TreeDef, Sequence[Aval]],
) -> None:
    """Raises TypeError unless a body returns a carry like the one that it is given."""
    if given[0] != returned[0]:
        raise TypeError(
            f"{operation}: the carry that {name} returns must have the structure of the carry that "
            f"it is given; {_structures(given[0], 'given', returned[0], 'returned')}."
            f"{at_user_line()}"
        )
    if found := _types("carry", given, "given", returned[1], "returned"):
        raise TypeError(
            f"{operation}: the carry that {name} returns must have the types of the carry that it "
            f"is given; {found}.{at_user_line()} Give an initial value of the type that {name} "
            f"returns, or convert what it returns, as in x.astype(dtype)."
        )


def check_result(
    operation: str,
    name: str,
    expected: tuple[tree.TreeDef, Sequence[Aval]],
    found: tuple[tree.TreeDef, Sequence[Aval]],
) -> None:
    """Raises TypeError unless a function returns a tree like those that it is given."""
    if expected[0] != found[0]:
        difference = _structures(expected[0], "given", found[0], "returned")
    else:
        difference = _types("leaf", expected, "given", found[1], "returned")
    if difference:
        raise TypeError(
            f"{operation}: {name} must return a tree like the two that it is given; {difference}."
            f"{at_user_line()}"
        )


def check_branches(
    operation: str, names: Sequence[str], results: Sequence[tuple[tree.TreeDef, Sequence[Aval]]]
) -> None:
    """Raises TypeError unless all branches return one structure of the same types."""
    first = results[0]
    for name, result in zip(names[1:], results[1:], strict=True):
        if result[0] != first[0]:
            raise TypeError(
                f"{operation}: all branches must return one structure; "
                f"{_structures(first[0], f'from {names[0]}', result[0], f'from {name}')}."
                f"{at_user_line()}"
            )
        found = _types("result", first, f"from {names[0]}", result[1], f"from {name}")
        if found:
            raise TypeError(
                f"{operation}: all branches must return the same types; {found}.{at_user_line()} "
                f"Convert what one of them returns, as in x.astype(dtype)."
            )


def _types(
    what: str,
    first: tuple[tree.TreeDef, Sequence[Aval]],
    one: str,
    second: Sequence[Aval],
    two: str,
) -> str:
    """Every leaf that differs in type, with both sides."""
    treedef, avals = first
    differences = [
        f"{what}{path} is {a} {one}, {b} {two}"
        for path, a, b in zip(paths_of(treedef), avals, second, strict=True)
        if not same_type(a, b)
    ]
    return "; ".join(differences)


def _structures(first: tree.TreeDef, one: str, second: tree.TreeDef, two: str) -> str:
    """Where two structures differ first, and both of them."""
    path = _first_difference(first, second, ())
    where = f"at {tree.keystr(path)} they differ: " if path else ""
    return f"{where}{_tree_text(first)} {one}, {_tree_text(second)} {two}"


def _tree_text(treedef: tree.TreeDef) -> str:
    return str(treedef).removeprefix("PyTreeDef(").removesuffix(")")


def _first_difference(first: tree.TreeDef, second: tree.TreeDef, path: Any) -> tree.KeyPath:
    ours, theirs = first.children(), second.children()
    if first.node_data() != second.node_data() or len(ours) != len(theirs) or not ours:
        return path
    numbered = tree.unflatten(first, range(first.num_leaves))
    keys = [key for key, _ in tree.flatten_one_level_with_keys(numbered)[0]]
    for key, a, b in zip(keys, ours, theirs, strict=True):
        if a != b:
            return _first_difference(a, b, (*path, key))
    return path


# the primitives' own checks -------------------------------------------------------------------


def check_inputs(operation: str, what: str, jaxpr: Jaxpr, avals: Sequence[Aval]) -> None:
    """Raises TypeError unless a jaxpr takes operands of these types."""
    expected = jaxpr.in_avals
    fits = len(expected) == len(avals) and all(map(same_type, expected, avals))
    if not fits:
        raise TypeError(
            f"{operation}: {what} takes {_avals(expected)}; got {_avals(avals)}.{at_user_line()}"
        )


def check_outputs(operation: str, what: str, jaxpr: Jaxpr, avals: Sequence[Aval]) -> None:
    """Raises TypeError unless the first results of a jaxpr have these types."""
    found = jaxpr.out_avals[: len(avals)]
    if not (len(found) == len(avals) and all(map(same_type, found, avals))):
        raise TypeError(
            f"{operation}: {what} must give {_avals(avals)}; it gives {_avals(found)}."
            f"{at_user_line()}"
        )


def check_closed(operation: str, *jaxprs: Jaxpr) -> None:
    """Raises TraceError if a jaxpr of an equation captured values instead of taking them."""
    if any(jaxpr.captured for jaxpr in jaxprs):
        raise TraceError(f"{operation}: its jaxprs must be closed.{at_user_line()}")


def _avals(avals: Sequence[Aval]) -> str:
    return f"({', '.join(map(str, avals))})"


def check_functions(operation: str, **functions: Callable[..., Any]) -> None:
    """Raises TypeError unless all of these are functions; the keywords are their names."""
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(
                f"{operation}: {name} must be a function; got {type(function).__name__}."
                f"{at_user_line()}"
            )
