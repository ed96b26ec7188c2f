"""Structures of arguments and results. Python's containers are known; a class of the user's is
found under the name it was registered with, or, if its metadata are plain values, under its
qualified name among the modules that are loaded. Nothing is imported, and of the user's functions
only registered ones run."""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeVar

from xcube import tree
from xcube.errors import ExportError
from xcube.lowering.export.values import Found, Tables, Unstorable
from xcube.lowering.export.wire import DEEPEST, Reader, Writer, damaged
from xcube.tree.nodes import node_class_of
from xcube.tree.treedef import LEAF, TreeDef, node_of

Class = TypeVar("Class", bound=type)

# registration ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Registration:
    """How nodes of a class are stored: the name, and metadata to bytes and back."""

    nodetype: type
    name: str
    serialize: Callable[[Any], bytes]
    deserialize: Callable[[bytes], Any]
    from_children: Callable[[Any, Sequence[Any]], Any] | None


_by_type: dict[type, _Registration] = {}
_by_name: dict[str, _Registration] = {}


def register_pytree_node_serialization(
    nodetype: Class,
    *,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes],
    deserialize_auxdata: Callable[[bytes], Any],
    from_children: Callable[[Any, Sequence[Any]], Any] | None = None,
) -> Class:
    """Let exported functions take and give nodes of a class, stored under `serialized_name`, its
    metadata as bytes. Returns the class.

    `from_children(metadata, children)` makes a node where the class's own way is not to be used.
    Raises ValueError if class or name are registered already, or if the class is no node.

    >>> from xcube import tree
    >>> class Interval:
    ...     def __init__(self, low, high):
    ...         self.low, self.high = low, high
    >>> tree.register_pytree_node(
    ...     Interval, lambda node: ((node.low, node.high), None), lambda _, ends: Interval(*ends)
    ... )
    >>> _ = register_pytree_node_serialization(
    ...     Interval,
    ...     serialized_name="docs.Interval",
    ...     serialize_auxdata=lambda metadata: b"",
    ...     deserialize_auxdata=lambda data: None,
    ... )
    """
    if nodetype in _by_type or serialized_name in _by_name:
        taken = _by_type.get(nodetype) or _by_name[serialized_name]
        raise ValueError(
            f"register_pytree_node_serialization: class and name can be registered once (duplicate "
            f"serialization registration); {taken.nodetype.__qualname__} is registered as "
            f"{taken.name!r}."
        )
    if node_class_of(nodetype) is None:
        raise ValueError(
            f"register_pytree_node_serialization: the class must be a node; "
            f"{nodetype.__qualname__} is a leaf. Call register_pytree_node first."
        )
    found = _Registration(
        nodetype, serialized_name, serialize_auxdata, deserialize_auxdata, from_children
    )
    _by_type[nodetype] = _by_name[serialized_name] = found
    return nodetype


def register_namedtuple_serialization(nodetype: Class, *, serialized_name: str) -> Class:
    """Let exported functions take and give a named tuple stored under `serialized_name`, whatever
    it is called and wherever it is defined when it is read. Returns the class.

    Raises ValueError if it is none, or if class or name are registered already.

    >>> from typing import NamedTuple
    >>> class Point(NamedTuple):
    ...     x: float
    >>> register_namedtuple_serialization(Point, serialized_name="docs.Point").__name__
    'Point'
    """
    if not is_named_tuple(nodetype):
        raise ValueError(
            f"register_namedtuple_serialization: takes a named tuple; got "
            f"{nodetype.__qualname__}. Use register_pytree_node_serialization."
        )

    def restored(data: bytes) -> None:
        _check_fields(nodetype, tuple(data.decode().split()))

    return register_pytree_node_serialization(
        nodetype,
        serialized_name=serialized_name,
        serialize_auxdata=lambda metadata: " ".join(_field_names(nodetype)).encode(),
        deserialize_auxdata=restored,
    )


def is_named_tuple(nodetype: Any) -> bool:
    """Whether a class is a named tuple."""
    return issubclass(nodetype, tuple) and hasattr(nodetype, "_fields")


def _field_names(nodetype: Any) -> tuple[str, ...]:
    return tuple(nodetype._fields)


def _check_fields(nodetype: Any, stored: tuple[str, ...]) -> None:
    if _field_names(nodetype) != stored:
        raise ExportError(
            f"deserialize: {nodetype.__qualname__} must have the fields {stored} that it had when "
            f"it was exported; it has {_field_names(nodetype)}."
        )


# writing --------------------------------------------------------------------------------------

_PLAIN: dict[type, bytes] = {NoneType: b"N", tuple: b"t", list: b"l"}
_KEYED: dict[type, bytes] = {dict: b"d", collections.OrderedDict: b"o"}


def write_tree(w: Writer, treedef: TreeDef, tables: Tables) -> None:
    """A structure, its root first. Raises ExportError for a class that could not be found again."""
    data = treedef.node_data()
    if data is None:
        w.data += b"*"
        return
    nodetype, metadata = data
    if nodetype in _PLAIN:
        w.data += _PLAIN[nodetype]
    elif nodetype in _KEYED:
        w.data += _KEYED[nodetype]
        _write_metadata(w, nodetype, tuple(metadata), tables)
    elif nodetype in _by_type:
        w.data += b"r"
        w.string(_by_type[nodetype].name)
        w.raw(_by_type[nodetype].serialize(metadata))
    else:
        w.data += b"q"
        w.string(_qualified_name(nodetype))
        _write_metadata(w, nodetype, metadata, tables)
    w.number(len(treedef.children()))
    for child in treedef.children():
        write_tree(w, child, tables)


def _qualified_name(nodetype: type) -> str:
    name = f"{nodetype.__module__}:{nodetype.__qualname__}"
    if _loaded_class(name) is not nodetype:
        raise ExportError(
            f"export: a class in the arguments or the result must be found under its qualified "
            f"name; {name} (unregistered type) is not. Register it with "
            f"register_pytree_node_serialization or register_namedtuple_serialization."
        )
    return name


def _write_metadata(w: Writer, nodetype: type, metadata: Any, tables: Tables) -> None:
    is_named = is_named_tuple(nodetype)
    try:
        tables.value(w, _field_names(nodetype) if is_named else metadata)
    except Unstorable as error:
        raise ExportError(
            f"export: the metadata of {nodetype.__qualname__} must be plain values; got "
            f"{metadata!r:.100}. Register it with register_pytree_node_serialization."
        ) from error


# reading --------------------------------------------------------------------------------------


def read_tree(r: Reader, found: Found, depth: int = 0) -> TreeDef:
    """A structure. Raises ExportError for a class that is not there."""
    if depth > DEEPEST:
        raise damaged(f"trees in trees, more than {DEEPEST} deep")
    tag = r.take(1)
    if tag == b"*":
        return LEAF
    nodetype, metadata, from_children = _read_root(tag, r, found)
    children = tuple(r.many(lambda: read_tree(r, found, depth + 1)))
    expected = _count(nodetype, metadata)
    if expected not in (None, len(children)):
        raise damaged(f"{len(children)} children in a {nodetype.__qualname__} of {expected}")
    if from_children is not None:
        node = from_children(metadata, [object() for _ in children])
        _, metadata = tree.flatten_one_level(node)
    return node_of(nodetype, metadata, children)


_Root = tuple[type, Any, Callable[[Any, Sequence[Any]], Any] | None]


def _read_root(tag: bytes, r: Reader, found: Found) -> _Root:
    for kinds in (_PLAIN, _KEYED):
        for nodetype, known in kinds.items():
            if tag == known:
                return nodetype, _keys(found.value(r)) if kinds is _KEYED else None, None
    if tag == b"r":
        return _read_registered(r)
    if tag == b"q":
        return _read_qualified(r, found)
    raise damaged(f"a structure with the tag {tag!r}")


def _keys(metadata: Any) -> tuple[Any, ...]:
    if type(metadata) is not tuple:
        raise damaged(f"{metadata!r:.60} for the keys of a dictionary")
    return metadata


def _count(nodetype: Any, metadata: Any) -> int | None:
    """How many children a node has; None where any number will do."""
    if nodetype is NoneType:
        return 0
    if nodetype in _KEYED:
        return len(set(metadata))
    return len(_field_names(nodetype)) if is_named_tuple(nodetype) else None


def _read_registered(r: Reader) -> _Root:
    name, data = r.string(), r.raw()
    registration = _by_name.get(name)
    if registration is None:
        raise ExportError(
            f"deserialize: the exported function has nodes of a class that was registered as "
            f"{name!r}; none is registered so here. Register it before."
        )
    return registration.nodetype, registration.deserialize(data), registration.from_children


def _read_qualified(r: Reader, found: Found) -> _Root:
    name, metadata = r.string(), found.value(r)
    nodetype = _loaded_class(name)
    if nodetype is None or node_class_of(nodetype) is None:
        raise ExportError(
            f"deserialize: the exported function has nodes of the class {name}, which is not "
            f"loaded here, or is no node. Import its module before."
        )
    if is_named_tuple(nodetype):
        _check_fields(nodetype, metadata)
        metadata = None
    return nodetype, metadata, None


def _loaded_class(name: str) -> type | None:
    """The class of a qualified name, "module:Class", in a module that is loaded; None if none is.
    Looked up in dictionaries, so that no code of the module runs."""
    module, _, path = name.partition(":")
    value: Any = sys.modules.get(module)
    for part in path.split("."):
        value = getattr(value, "__dict__", {}).get(part)
    return value if isinstance(value, type) else None
