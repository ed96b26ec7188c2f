"""The table of node classes: which types of values are containers, and how a container comes apart
into children and metadata and together again. All other types are leaves."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from types import NoneType
from typing import Any

from xcube.tree.keys import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey


@dataclasses.dataclass(frozen=True, slots=True)
class NodeClass:
    """How nodes of one class come apart and together.

    `split(node) -> (children, metadata)`, `join(metadata, children) -> node`,
    `keys(node) -> key of each child`, None where the children have no names.
    """

    split: Callable[[Any], tuple[Iterable[Any], Any]]
    join: Callable[[Any, Any], Any]
    keys: Callable[[Any], Iterable[Any]] | None = None


def _sorted_keys(node: dict) -> tuple:
    try:
        return tuple(sorted(node))
    except TypeError as error:
        raise unsortable(node) from error


def unsortable(node: dict) -> ValueError:
    """The error for a dictionary whose keys cannot be sorted."""
    kinds = ", ".join(sorted({type(key).__name__ for key in node}))
    return ValueError(
        "tree.flatten: the keys of a dictionary must be comparable with each other, for they are "
        f"sorted; got keys of types {kinds} in a {type(node).__name__} of {len(node)}: "
        f"{list(node)!r:.200}. Use keys of one type, or an OrderedDict."
    )


def _split_dict(node: dict) -> tuple[list, tuple]:
    keys = _sorted_keys(node)
    return [node[key] for key in keys], keys


def _join_dict(keys: tuple, children: Iterable) -> dict:
    return dict(zip(keys, children, strict=True))


def _split_ordered(node: collections.OrderedDict) -> tuple[list, tuple]:
    return list(node.values()), tuple(node)


def _join_ordered(keys: tuple, children: Iterable) -> collections.OrderedDict:
    return collections.OrderedDict(zip(keys, children, strict=True))


def _split_default(node: collections.defaultdict) -> tuple[list, tuple]:
    children, keys = _split_dict(node)
    return children, (node.default_factory, keys)


def _join_default(metadata: tuple, children: Iterable) -> collections.defaultdict:
    factory, keys = metadata
    return collections.defaultdict(factory, zip(keys, children, strict=True))


def _dict_keys(node: dict) -> Iterator[DictKey]:
    return map(DictKey, _sorted_keys(node))


def _sequence_keys(node: Sequence) -> Iterator[SequenceKey]:
    return map(SequenceKey, range(len(node)))


def _named_tuple(node_class: Any) -> NodeClass:
    return NodeClass(
        split=lambda node: (tuple(node), None),
        join=lambda _, children: node_class(*children),
        keys=lambda node: map(GetAttrKey, node._fields),
    )


_node_classes: dict[type, NodeClass] = {
    NoneType: NodeClass(lambda node: ((), None), lambda _, children: None),
    tuple: NodeClass(lambda node: (node, None), lambda _, c: tuple(c), _sequence_keys),
    list: NodeClass(lambda node: (node, None), lambda _, c: list(c), _sequence_keys),
    dict: NodeClass(_split_dict, _join_dict, _dict_keys),
    collections.OrderedDict: NodeClass(
        _split_ordered, _join_ordered, lambda node: map(DictKey, node)
    ),
    collections.defaultdict: NodeClass(_split_default, _join_default, _dict_keys),
}
named_tuple_classes: dict[type, NodeClass] = {}
leaf_classes: set[type] = {bool, int, float, complex, str}
are_leaf_classes = leaf_classes.issuperset
_MAX_LEAF_CLASSES = 4096


def register(node_type: type, node_class: NodeClass) -> None:
    """Enter a class into the table.

    Raises TypeError if it is no class, ValueError if it has its row already.
    """
    if not isinstance(node_type, type):
        raise TypeError(f"tree.register: a node type must be a class; got {node_type!r}.")
    if node_type in _node_classes:
        raise ValueError(
            f"tree.register: a class can be registered once; {node_type.__module__}."
            f"{node_type.__qualname__} is registered already."
        )
    _node_classes[node_type] = node_class
    named_tuple_classes.pop(node_type, None)
    leaf_classes.discard(node_type)


def node_class_of(node_type: type) -> NodeClass | None:
    """The node class of a type, None for a type of leaves; remembers the answer."""
    found = _node_classes.get(node_type) or named_tuple_classes.get(node_type)
    if found is not None:
        return found
    if issubclass(node_type, tuple) and hasattr(node_type, "_fields"):
        return named_tuple_classes.setdefault(node_type, _named_tuple(node_type))
    if len(leaf_classes) >= _MAX_LEAF_CLASSES:
        leaf_classes.clear()
    leaf_classes.add(node_type)
    return None


def split_node(node_class: NodeClass, node: Any) -> tuple[Sequence[Any], Any]:
    """The children and the metadata of a node; ValueError if its class gives anything else."""
    result = node_class.split(node)
    if not isinstance(result, tuple) or len(result) != 2:
        raise ValueError(
            f"tree.flatten: the flatten function of {type(node).__name__} must return a pair "
            f"(children, metadata); got {result!r:.200}."
        )
    children, metadata = result
    if type(children) is tuple or type(children) is list:
        return children, metadata
    try:
        return tuple(children), metadata
    except TypeError as error:
        raise ValueError(
            f"tree.flatten: the flatten function of {type(node).__name__} must return children "
            f"that can be iterated; got {children!r:.200}."
        ) from error


def child_keys(node_class: NodeClass, node: Any, count: int) -> Iterable[Any]:
    """The key of each of the `count` children of a node."""
    if node_class.keys is None:
        return map(FlattenedIndexKey, range(count))
    return node_class.keys(node)


# --- One level -----------------------------------------------------------------------------------


def is_tree_node(node_type: type) -> bool:
    """Whether values of a type are nodes of trees rather than leaves.

    >>> is_tree_node(dict), is_tree_node(float)
    (True, False)
    """
    return node_class_of(node_type) is not None


def flatten_one_level(tree: Any) -> tuple[Sequence[Any], Hashable]:
    """The children of the root and its metadata.

    Raises ValueError if the tree is a leaf.

    >>> flatten_one_level({"b": (1, 2), "a": 3})
    ([3, (1, 2)], ('a', 'b'))
    """
    return split_node(_require_node(tree, "flatten_one_level"), tree)


def flatten_one_level_with_keys(tree: Any) -> tuple[list[tuple[Any, Any]], Hashable]:
    """The pairs (key, child) of the root, and its metadata.

    Raises ValueError if the tree is a leaf.

    >>> flatten_one_level_with_keys([5])
    ([(SequenceKey(idx=0), 5)], None)
    """
    node_class = _require_node(tree, "flatten_one_level_with_keys")
    children, metadata = split_node(node_class, tree)
    keys = child_keys(node_class, tree, len(children))
    return list(zip(keys, children, strict=True)), metadata


def _require_node(tree: Any, operation: str) -> NodeClass:
    node_class = node_class_of(type(tree))
    if node_class is None:
        raise ValueError(
            f"tree.{operation}: the tree must be a container; got a leaf, "
            f"a {type(tree).__name__}. Register its class to make it one."
        )
    return node_class
