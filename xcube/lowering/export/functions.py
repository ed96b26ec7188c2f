"""An exported function as data, with its derivative where that is stored too, to bytes and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xcube import dtypes
from xcube.array import Array
from xcube.errors import ExportError, XcubeError
from xcube.ir import Aval, Jaxpr
from xcube.lowering.export.jaxprs import pack_jaxpr, read_jaxpr
from xcube.lowering.export.sealing import opened, sealed
from xcube.lowering.export.trees import read_tree, write_tree
from xcube.lowering.export.values import Found, Tables, Vocabulary, packed
from xcube.lowering.export.wire import DEEPEST, Reader, Writer, damaged
from xcube.tree.treedef import TreeDef


@dataclass(frozen=True, eq=False)
class Stored:
    """A function: its signature, the jaxpr that computes it, and the arrays that this captured.

    The jaxpr's inputs are those arrays, then the leaves of the arguments; its outputs are the
    leaves of the result. Leaves of dtype float0 are no part of it. `checks`: names of the safety
    checks that are off. `vjp`: the function of leaves and cotangents that gives cotangents.
    """

    name: str
    in_tree: TreeDef
    in_avals: tuple[Aval, ...]
    out_tree: TreeDef
    out_avals: tuple[Aval, ...]
    platforms: tuple[str, ...]
    checks: tuple[str, ...]
    jaxpr: Jaxpr
    constants: tuple[Array, ...]
    vjp: Stored | None = None


def pack(function: Stored, vocabulary: Vocabulary, writer_version: str) -> bytearray:
    """The sealed bytes of a function. Raises ExportError if it cannot be stored."""
    tables = Tables(vocabulary, pack_jaxpr)
    body = packed(lambda w: _write(w, function, tables))

    def whole(w: Writer) -> None:
        w.string(writer_version)
        kinds = (tables.strings, tables.avals, tables.sources, tables.arrays, tables.jaxprs)
        for table in kinds:
            w.number(len(table.entries))
            for entry in table.entries:
                w.data += entry
        w.data += body

    return sealed(packed(whole))


def unpack(data: bytes | bytearray | memoryview, vocabulary: Vocabulary) -> Stored:
    """The function in sealed bytes.

    Raises ExportError for bytes that are none, are of another version, or do not make sense.
    """
    reader = Reader(opened(data))
    try:
        return _read_whole(reader, vocabulary)
    except ExportError:
        raise
    except XcubeError as error:  # an equation that its primitive does not allow
        raise damaged(f"an equation that cannot be: {error}") from error
    except Exception as error:  # whatever a rule says to parameters that no program has
        raise damaged(f"{type(error).__name__}: {error}") from error


def _read_whole(r: Reader, vocabulary: Vocabulary) -> Stored:
    found = Found(vocabulary)
    r.string()
    found.strings = r.many(r.string)
    found.avals = r.many(lambda: found.aval(r))
    found.sources = r.many(lambda: found.source(r))
    found.arrays = r.many(lambda: found.array(r))
    r.many(lambda: found.jaxprs.append(read_jaxpr(r, found)))
    function = _read(r, found)
    r.finish()
    return function


def _write(w: Writer, function: Stored, tables: Tables) -> None:
    w.number(tables.string(function.name))
    for treedef in (function.in_tree, function.out_tree):
        write_tree(w, treedef, tables)
    for avals in (function.in_avals, function.out_avals):
        w.number(len(avals))
        for aval in avals:
            w.number(tables.aval(aval))
    for names in (function.platforms, function.checks):
        tables.value(w, names)
    w.number(tables.jaxpr(function.jaxpr))
    w.number(len(function.constants))
    for value in function.constants:
        w.number(tables.array(value))
    w.number(function.vjp is not None)
    if function.vjp is not None:
        _write(w, function.vjp, tables)


def _read(r: Reader, found: Found, depth: int = 0) -> Stored:
    if depth > DEEPEST:
        raise damaged(f"derivatives of derivatives, more than {DEEPEST}")
    name = r.pick(found.strings)
    in_tree, out_tree = read_tree(r, found), read_tree(r, found)
    in_avals, out_avals = (tuple(r.many(lambda: r.pick(found.avals))) for _ in range(2))
    platforms, checks = _names(found.value(r)), _names(found.value(r))
    jaxpr = r.pick(found.jaxprs)
    constants = tuple(r.many(lambda: r.pick(found.arrays)))
    vjp = _read(r, found, depth + 1) if r.number() else None
    trees = in_tree, in_avals, out_tree, out_avals
    function = Stored(name, *trees, platforms, checks, jaxpr, constants, vjp)
    _check(function)
    return function


def _names(value: Any) -> tuple[str, ...]:
    if type(value) is not tuple or not all(type(name) is str for name in value):
        raise damaged(f"{value!r:.60} for a list of names")
    return value


def _check(function: Stored) -> None:
    """Raises ExportError unless the parts of a signature agree."""
    constants = [x.aval for x in function.constants]
    sides = (
        ([*constants, *computed(function.in_avals)], function.jaxpr.in_avals),
        (computed(function.out_avals), function.jaxpr.out_avals),
    )
    for expected, given in sides:
        if [(x.shape, x.dtype) for x in expected] != [(x.shape, x.dtype) for x in given]:
            raise damaged(f"a signature {expected} for a program {list(given)}")
    counts = function.in_tree.num_leaves, function.out_tree.num_leaves
    if counts != (len(function.in_avals), len(function.out_avals)):
        raise damaged(f"structures of {counts} leaves for another number of avals")
    if len(function.in_tree.children()) != 2:
        raise damaged(f"{function.in_tree} for (args, kwargs)")


def computed(avals: tuple[Aval, ...]) -> list[Aval]:
    """The avals that a program computes with: all but float0."""
    return [aval for aval in avals if aval.dtype != dtypes.float0]
