"""What differs between the arguments of a call and a signature, in words: for functions that were
compiled or exported for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xcube import tree
from xcube.array import Array
from xcube.ir import Aval
from xcube.tree.treedef import flatten_up_to


def places(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Where each leaf of a call stands, e.g. "args[0]['w']"."""
    found = []
    for (which, *rest), _ in tree.leaves_with_path((args, kwargs)):
        found.append(("kwargs" if which.idx else "args") + tree.keystr(tuple(rest)))
    return found


def structure_fault(expected: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What differs between the structure of (args, kwargs) of a call and the expected one."""
    parts = zip(("args", "kwargs"), expected.children(), (args, kwargs), strict=True)
    for name, treedef, given in parts:
        sides = f"the expected {name}", f"the given {name}"
        try:
            subtrees = flatten_up_to(treedef, given, "call", *sides)
        except ValueError as error:
            return str(error).removeprefix("call: ")
        deeper = next((tree.structure(x) for x in subtrees if not tree.all_leaves([x])), None)
        if deeper is not None:
            return f"structures must match; {sides[0]} has a leaf where {sides[1]} has {deeper}."
    return f"structures must match; expected {expected}, got {tree.structure((args, kwargs))}."


def type_faults(
    expected: Sequence[Aval], arrays: Sequence[Array], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[str]:
    """Of each leaf whose shape or dtype is not the expected one, what it is; weak types are as
    good as others."""
    for x, aval in zip(arrays, expected, strict=True):
        if x.aval is not aval and not _fits(x.aval, aval):
            break
    else:
        return []
    rows = zip(places(args, kwargs), arrays, expected, strict=True)
    return [
        f"{place} must be {aval}, got {x.aval}"
        for place, x, aval in rows
        if not _fits(x.aval, aval)
    ]


def _fits(aval: Aval, expected: Aval) -> bool:
    return aval.shape == expected.shape and aval.dtype == expected.dtype
