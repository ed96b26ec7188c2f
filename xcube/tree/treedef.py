"""`TreeDef`: the structure of a tree. Equal structures are almost always one object, which a table
finds by its flat tuple of tokens. A structure builds trees, and takes apart those that match it."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import NoneType
from typing import Any

from xcube.tree.keys import KeyPath, keystr
from xcube.tree.nodes import (
    flatten_one_level,
    flatten_one_level_with_keys,
    is_tree_node,
    named_tuple_classes,
    node_class_of,
)
from xcube.tree.tokens import has_identity, keys_token, token_of


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class TreeDef:
    """The structure of a tree: its containers without the leaves. Immutable and hashable.

    >>> from xcube.tree import structure
    >>> structure({"a": 1, "b": (2, 3)})
    PyTreeDef({'a': *, 'b': (*, *)})
    """

    _type: type | None
    _metadata: Any
    _children: tuple[TreeDef, ...]
    _spec: tuple[Any, ...]
    _hash: int
    _is_flat: bool
    num_leaves: int
    num_nodes: int

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, TreeDef):
            return NotImplemented
        return (
            self._hash == other._hash
            and self._type is other._type
            and len(self._children) == len(other._children)
            and _is_same(self._type, self._metadata, other._metadata)
            and self._children == other._children
        )

    def __repr__(self) -> str:
        return f"PyTreeDef({_text(self)})"

    def __reduce__(self) -> tuple:
        return node_of, (self._type, self._metadata, self._children)

    def __copy__(self) -> TreeDef:
        return self

    def __deepcopy__(self, memo: dict) -> TreeDef:
        return self

    def children(self) -> list[TreeDef]:
        """The structures of the children of the root, in order.

        >>> from xcube.tree import structure
        >>> structure((1, [2])).children()
        [PyTreeDef(*), PyTreeDef([*])]
        """
        return list(self._children)

    def node_data(self) -> tuple[type, Any] | None:
        """The class and metadata of the root, None if it is a leaf.

        >>> from xcube.tree import structure
        >>> structure({"a": 1}).node_data()
        (<class 'dict'>, ['a'])
        """
        if self._type is None:
            return None
        return self._type, list(self._metadata) if self._type is dict else self._metadata

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The tree of this structure with the given leaves.

        Raises ValueError if their number is not `num_leaves`.

        >>> from xcube.tree import structure
        >>> structure((0, [0])).unflatten([1, 2])
        (1, [2])
        """
        if type(leaves) is not list and type(leaves) is not tuple:
            leaves = list(leaves)
        if len(leaves) != self.num_leaves:
            amount = "few" if len(leaves) < self.num_leaves else "many"
            raise ValueError(
                f"tree.unflatten: Too {amount} leaves for {self}; expected {self.num_leaves}, "
                f"got {len(leaves)}."
            )
        if self._type is None:
            return leaves[0]
        return _build(self, iter(leaves))

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """The subtrees of `tree` at the places where this structure has leaves.

        Raises ValueError if `tree` does not have this structure down to there; the message names
        the key path of the first difference and both sides.

        >>> from xcube.tree import structure
        >>> structure((0, 0)).flatten_up_to((1, [2, 3]))
        [1, [2, 3]]
        """
        return flatten_up_to(self, tree, "TreeDef.flatten_up_to", "the structure", "tree")

    def compose(self, inner: TreeDef) -> TreeDef:
        """This structure with `inner` in the place of each leaf.

        >>> from xcube.tree import structure
        >>> structure([1, 2]).compose(structure((3, 4)))
        PyTreeDef([(*, *), (*, *)])
        """
        if self._type is None:
            return inner
        children = tuple(child.compose(inner) for child in self._children)
        return node_of(self._type, self._metadata, children)

    def walk(
        self,
        visit_node: Callable[[tuple[Any, ...], Any], Any],
        visit_leaf: Callable[[Any], Any] | None,
        leaves: Iterable[Any],
    ) -> Any:
        """Fold the tree bottom-up: `visit_leaf(leaf)`, then `visit_node(results, metadata)`.

        Raises ValueError if the number of leaves is not `num_leaves`.

        >>> from xcube.tree import structure
        >>> structure((0, [0, 0])).walk(lambda results, _: sum(results), None, [1, 2, 3])
        6
        """
        values = list(leaves)
        if len(values) != self.num_leaves:
            raise ValueError(
                f"TreeDef.walk: expected {self.num_leaves} leaves for {self}; got {len(values)}."
            )
        return _fold(self, visit_node, visit_leaf, iter(values))


# --- One object for each structure ---------------------------------------------------------------

# Structures whose tokens are plain values are held strongly, up to a bound; those that hold
# arbitrary metadata, which may be large, live as long as somebody else holds them.
_interned: dict[tuple[Any, ...], TreeDef] = {}
_interned_weakly: weakref.WeakValueDictionary[tuple[Any, ...], TreeDef] = (
    weakref.WeakValueDictionary()
)
_MAX_INTERNED = 4096

# A bound method, as are `are_strings` and `are_leaf_classes`: CPython 3.11 calls a method of an
# imported name without its quick path, and these are on the path of every dispatch.
find_interned = _interned.get

LEAF = TreeDef(
    _type=None,
    _metadata=None,
    _children=(),
    _spec=(None,),
    _hash=hash("pytree leaf"),
    _is_flat=False,
    num_leaves=1,
    num_nodes=1,
)
_interned[LEAF._spec] = LEAF


def treedef_of(spec: tuple, metadata: list[Any]) -> TreeDef:
    """The TreeDef of a scanned tree that is not held strongly."""
    return _interned_weakly.get(spec) or _parse(spec, 0, iter(metadata))[0]


def node_of(node_type: type | None, metadata: Any, children: tuple[TreeDef, ...]) -> TreeDef:
    """The TreeDef of a node: the one that exists, or a new one."""
    if node_type is None:
        return LEAF
    token = keys_token(metadata) if node_type is dict else token_of(metadata)
    parts = itertools.chain.from_iterable(child._spec for child in children)
    spec = (node_type, len(children), token, *parts)
    return _lookup(spec) or _remember(_new_treedef(node_type, metadata, children, spec))


def _lookup(spec: tuple) -> TreeDef | None:
    found = find_interned(spec)
    return _interned_weakly.get(spec) if found is None else found


def _remember(treedef: TreeDef) -> TreeDef:
    if has_identity(treedef._spec):
        return _interned_weakly.setdefault(treedef._spec, treedef)
    if len(_interned) >= _MAX_INTERNED:
        _interned.clear()
        _interned[LEAF._spec] = LEAF
    return _interned.setdefault(treedef._spec, treedef)


def _new_treedef(
    node_type: type, metadata: Any, children: tuple[TreeDef, ...], spec: tuple
) -> TreeDef:
    try:
        metadata_hash = hash(metadata)
    except TypeError:
        metadata_hash = 0
    return TreeDef(
        _type=node_type,
        _metadata=metadata,
        _children=children,
        _spec=spec,
        _hash=hash((node_type, metadata_hash, children)),
        _is_flat=all(child is LEAF for child in children),
        num_leaves=sum(child.num_leaves for child in children),
        num_nodes=1 + sum(child.num_nodes for child in children),
    )


def _parse(spec: tuple, start: int, metadata: Iterator[Any]) -> tuple[TreeDef, int]:
    """The TreeDef whose tokens begin at `start`, and the position after them."""
    node_type = spec[start]
    if node_type is None:
        return LEAF, start + 1
    own = None if node_type in (tuple, list, NoneType) else next(metadata)
    children, position = [], start + 3
    for _ in range(spec[start + 1]):
        child, position = _parse(spec, position, metadata)
        children.append(child)
    return node_of(node_type, own, tuple(children)), position


def _is_same(node_type: type | None, ours: Any, theirs: Any) -> bool:
    if ours is theirs:
        return True
    try:
        return bool(ours == theirs)
    except ValueError as error:
        raise ValueError(
            f"tree: metadata of {getattr(node_type, '__name__', node_type)} must compare equal to "
            f"a single True or False; got {ours!r:.100} and {theirs!r:.100}. "
            "Arrays belong in the children of a node, not in its metadata."
        ) from error


def _text(treedef: TreeDef) -> str:
    node_type, metadata = treedef._type, treedef._metadata
    parts = [_text(child) for child in treedef._children]
    inside = ", ".join(parts)
    if node_type is None:
        return "*"
    if node_type is NoneType:
        return "None"
    if node_type is tuple:
        return f"({inside},)" if len(parts) == 1 else f"({inside})"
    if node_type is list:
        return f"[{inside}]"
    if node_type is dict:
        pairs = zip(metadata, parts, strict=True)
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in pairs) + "}"
    if node_type in named_tuple_classes:
        return f"CustomNode(namedtuple[{node_type.__name__}], [{inside}])"
    return f"CustomNode({node_type.__name__}[{metadata}], [{inside}])"


# --- Trees of a structure ------------------------------------------------------------------------


def _build(treedef: TreeDef, leaves: Iterator[Any]) -> Any:
    children: Any = (
        itertools.islice(leaves, len(treedef._children))
        if treedef._is_flat
        else [
            next(leaves) if child is LEAF else _build(child, leaves) for child in treedef._children
        ]
    )
    node_type = treedef._type
    if node_type is tuple:
        return tuple(children)
    if node_type is list:
        return list(children)
    if node_type is dict:
        return dict(zip(treedef._metadata, children, strict=False))
    return _join(node_type, treedef._metadata, tuple(children))


def _join(node_type: Any, metadata: Any, children: tuple[Any, ...]) -> Any:
    node_class = node_class_of(node_type)
    assert node_class is not None, node_type
    return node_class.join(metadata, children)


def _fold(treedef: TreeDef, visit_node: Any, visit_leaf: Any, leaves: Iterator[Any]) -> Any:
    if treedef is LEAF:
        leaf = next(leaves)
        return leaf if visit_leaf is None else visit_leaf(leaf)
    results = tuple(_fold(child, visit_node, visit_leaf, leaves) for child in treedef._children)
    data = treedef.node_data()
    return visit_node(results, data[1] if data else None)


def flatten_up_to(treedef: TreeDef, tree: Any, operation: str, ours: str, theirs: str) -> list[Any]:
    """The subtrees at the leaves of a structure; `ours` and `theirs` name the two in messages."""
    leaves: list[Any] = []
    if collect(treedef, tree, leaves):
        return leaves
    path, expected, got = _difference(treedef, tree, ())
    place = keystr(path) or "the root"
    message = (
        f"{operation}: structures must match; at {place} {ours} has {expected}, {theirs} has {got}."
    )
    if expected == "None":
        message += " To treat None as a leaf, pass is_leaf=lambda x: x is None."
    raise ValueError(message)


def collect(treedef: TreeDef, tree: Any, leaves: list[Any]) -> bool:
    """Append the subtrees at the leaves of the structure; False at the first difference."""
    if treedef is LEAF:
        leaves.append(tree)
        return True
    children = _matching_children(treedef, tree)
    if children is None:
        return False
    if treedef._is_flat:
        leaves += children
        return True
    for child, subtree in zip(treedef._children, children, strict=True):
        if not collect(child, subtree, leaves):
            return False
    return True


def _matching_children(treedef: TreeDef, tree: Any) -> Sequence[Any] | None:
    """The children of a root of the structure's class, metadata and number of children."""
    node_type, count = treedef._type, len(treedef._children)
    if type(tree) is not node_type:
        return None
    if node_type is tuple or node_type is list:
        return tree if len(tree) == count else None
    if node_type is dict:
        same = len(tree) == count and all(map(tree.__contains__, treedef._metadata))
        return [tree[key] for key in treedef._metadata] if same else None
    children, metadata = flatten_one_level(tree)
    same = _is_same(node_type, treedef._metadata, metadata)
    return children if same and len(children) == count else None


def _difference(treedef: TreeDef, tree: Any, path: KeyPath) -> tuple[KeyPath, str, str]:
    """Where a tree that does not match first differs, what was expected there, and what came."""
    if _matching_children(treedef, tree) is None:
        expected = _description(treedef._type, treedef._metadata, len(treedef._children))
        return path, expected, _root_description(tree)
    for (key, subtree), child in zip(
        flatten_one_level_with_keys(tree)[0], treedef._children, strict=True
    ):
        if not collect(child, subtree, []):
            return _difference(child, subtree, (*path, key))
    raise AssertionError("the tree matches the structure")


def _root_description(tree: Any) -> str:
    if not is_tree_node(type(tree)):
        return f"a leaf of type {type(tree).__name__}"
    children, metadata = flatten_one_level(tree)
    return _description(type(tree), metadata, len(children))


def _description(node_type: Any, metadata: Any, count: int) -> str:
    if node_type is NoneType:
        return "None"
    if metadata is None:
        return f"a {node_type.__name__} of length {count}"
    if node_type in (dict, collections.OrderedDict):
        return f"a {node_type.__name__} with keys {list(metadata)}"
    return f"a {node_type.__name__} of {count} children with metadata {metadata}"
