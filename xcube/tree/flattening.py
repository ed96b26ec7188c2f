"""Trees into leaves and structure. `flatten` is on the path of every dispatch: it scans a tree once
into a flat tuple of tokens, by which the structure is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import NoneType
from typing import Any

from xcube.tree.keys import KeyPath
from xcube.tree.nodes import (
    NodeClass,
    are_leaf_classes,
    child_keys,
    leaf_classes,
    node_class_of,
    split_node,
    unsortable,
)
from xcube.tree.tokens import are_strings, keys_token, token_of
from xcube.tree.treedef import LEAF, TreeDef, find_interned, treedef_of

IsLeaf = Callable[..., bool] | None


def flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], TreeDef]:
    """The leaves of a tree, depth first, and its structure.

    A subtree for which `is_leaf` holds is a leaf.
    Raises ValueError if the keys of a dictionary cannot be sorted.

    >>> flatten({"b": (2, None), "a": 1})
    ([1, 2], PyTreeDef({'a': *, 'b': (*, None)}))
    """
    leaves: list[Any] = []
    tokens: list[Any] = []
    metadata: list[Any] = []
    if is_leaf is None:
        _scan(tree, leaves, tokens, metadata)
    else:
        _scan_until(is_leaf, tree, leaves, tokens, metadata)
    spec = tuple(tokens)
    treedef = find_interned(spec)
    return leaves, treedef_of(spec, metadata) if treedef is None else treedef


def _scan(tree: Any, leaves: list[Any], tokens: list[Any], metadata: list[Any]) -> None:
    """Append the leaves of a tree, its tokens (three for a node: type, number of children, token
    of the metadata; None for a leaf), and the metadata of nodes other than tuple, list, None."""
    kind = type(tree)
    if kind is tuple or kind is list:
        children = tree
        tokens += (kind, len(tree), None)
    elif kind is dict:
        try:
            keys = tuple(sorted(tree))
        except TypeError as error:
            raise unsortable(tree) from error
        children = [tree[key] for key in keys]
        token = keys if are_strings(map(type, keys)) else token_of(keys)
        tokens += (dict, len(keys), token)
        metadata.append(keys)
    elif tree is None:
        tokens += (NoneType, 0, None)
        return
    else:
        node_class = None if kind in leaf_classes else node_class_of(kind)
        if node_class is None:
            leaves.append(tree)
            tokens.append(None)
            return
        children, own = split_node(node_class, tree)
        tokens += (kind, len(children), token_of(own))
        metadata.append(own)
    if len(children) > 4 and are_leaf_classes(map(type, children)):
        leaves += children
        tokens += (None,) * len(children)
        return
    for child in children:
        if type(child) in leaf_classes:
            leaves.append(child)
            tokens.append(None)
        else:
            _scan(child, leaves, tokens, metadata)


def _scan_until(
    is_leaf: Callable[[Any], bool], tree: Any, leaves: list, tokens: list, metadata: list
) -> None:
    kind = type(tree)
    node_class = None if is_leaf(tree) else node_class_of(kind)
    if node_class is None:
        leaves.append(tree)
        tokens.append(None)
        return
    children = _enter(node_class, tree, tokens, metadata)
    for child in children:
        _scan_until(is_leaf, child, leaves, tokens, metadata)


def _enter(node_class: NodeClass, tree: Any, tokens: list, metadata: list) -> Sequence[Any]:
    kind = type(tree)
    children, own = split_node(node_class, tree)
    tokens += (kind, len(children), keys_token(own) if kind is dict else token_of(own))
    if kind is not tuple and kind is not list and kind is not NoneType:
        metadata.append(own)
    return children


def flatten_with_path(
    tree: Any, is_leaf: IsLeaf = None, is_leaf_takes_path: bool = False
) -> tuple[list[tuple[KeyPath, Any]], TreeDef]:
    """The pairs (key path, leaf) of a tree, depth first, and its structure.

    With `is_leaf_takes_path`, the predicate is called as `is_leaf(path, subtree)`.

    >>> flatten_with_path({"a": [1]})[0]
    [((DictKey(key='a'), SequenceKey(idx=0)), 1)]
    """
    stops = is_leaf
    if is_leaf is not None and not is_leaf_takes_path:
        stops = lambda _, subtree: is_leaf(subtree)  # noqa: E731
    pairs: list[tuple[KeyPath, Any]] = []
    tokens: list[Any] = []
    metadata: list[Any] = []
    _scan_paths(stops, tree, (), pairs, tokens, metadata)
    spec = tuple(tokens)
    return pairs, find_interned(spec) or treedef_of(spec, metadata)


def _scan_paths(
    stops: IsLeaf, tree: Any, path: KeyPath, pairs: list, tokens: list, metadata: list
) -> None:
    stop = stops is not None and stops(path, tree)
    node_class = None if stop else node_class_of(type(tree))
    if node_class is None:
        pairs.append((path, tree))
        tokens.append(None)
        return
    children = _enter(node_class, tree, tokens, metadata)
    for key, child in zip(child_keys(node_class, tree, len(children)), children, strict=True):
        _scan_paths(stops, child, (*path, key), pairs, tokens, metadata)


def leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves of a tree, depth first.

    >>> leaves({"b": (2, None), "a": 1})
    [1, 2]
    """
    return flatten(tree, is_leaf)[0]


def leaves_with_path(
    tree: Any, is_leaf: IsLeaf = None, is_leaf_takes_path: bool = False
) -> list[tuple[KeyPath, Any]]:
    """The pairs (key path, leaf) of a tree, depth first.

    >>> leaves_with_path([7])
    [((SequenceKey(idx=0),), 7)]
    """
    return flatten_with_path(tree, is_leaf, is_leaf_takes_path)[0]


def structure(tree: Any, is_leaf: IsLeaf = None) -> TreeDef:
    """The structure of a tree.

    >>> structure([1, None])
    PyTreeDef([*, None])
    """
    return flatten(tree, is_leaf)[1]


def unflatten(treedef: TreeDef, leaves: Iterable[Any]) -> Any:
    """The tree of the given structure and leaves.

    Raises ValueError if the number of leaves does not fit.

    >>> unflatten(structure((0, [0])), [1, 2])
    (1, [2])
    """
    return treedef.unflatten(leaves)


def all_leaves(iterable: Iterable[Any], is_leaf: IsLeaf = None) -> bool:
    """Whether each element is a leaf.

    >>> all_leaves([1, 2]), all_leaves([1, (2,)])
    (True, False)
    """
    return all(structure(element, is_leaf) is LEAF for element in iterable)
