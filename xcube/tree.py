"""Pytrees: nested containers taken apart into a list of leaves and a structure, and put together
again. `flatten` is on the path of every dispatch, so a tree is scanned once into a flat tuple of
tokens, and a table maps these to the one `TreeDef` of that structure: equal structures are almost
always the same object. Rules and order are those of `jax.tree`."""

from __future__ import annotations

import builtins
import collections
import dataclasses
import functools
import itertools
import operator
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

_map, _all = builtins.map, builtins.all
_NoneType = type(None)

KeyPath = tuple[Any, ...]
IsLeaf = Callable[..., bool] | None


# --- Key paths -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class DictKey:
    """The step of a key path into a dictionary.

    >>> str(DictKey("weight"))
    "['weight']"
    """

    key: Hashable

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclasses.dataclass(frozen=True)
class SequenceKey:
    """The step of a key path into a tuple or list.

    >>> str(SequenceKey(2))
    '[2]'
    """

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx}]"


@dataclasses.dataclass(frozen=True)
class GetAttrKey:
    """The step of a key path into an attribute.

    >>> str(GetAttrKey("bias"))
    '.bias'
    """

    name: str

    def __str__(self) -> str:
        return f".{self.name}"


@dataclasses.dataclass(frozen=True)
class FlattenedIndexKey:
    """The step of a key path into a child of a class that gives its children no names.

    >>> str(FlattenedIndexKey(0))
    '[<flat index 0>]'
    """

    key: int

    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


def keystr(path: KeyPath, *, simple: bool = False, separator: str = "") -> str:
    """A key path as text; `simple` leaves out brackets, quotes and dots.

    >>> keystr((DictKey("layers"), SequenceKey(2), GetAttrKey("bias")))
    "['layers'][2].bias"
    >>> keystr((DictKey("layers"), SequenceKey(2)), simple=True, separator="/")
    'layers/2'
    """
    return separator.join(_simple_key(key) if simple else str(key) for key in path)


def _simple_key(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


# --- Node classes --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _NodeClass:
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
        raise _unsortable(node) from error


def _unsortable(node: dict) -> ValueError:
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
    return _map(DictKey, _sorted_keys(node))


def _sequence_keys(node: Sequence) -> Iterator[SequenceKey]:
    return _map(SequenceKey, range(len(node)))


def _named_tuple(node_class: Any) -> _NodeClass:
    return _NodeClass(
        split=lambda node: (tuple(node), None),
        join=lambda _, children: node_class(*children),
        keys=lambda node: _map(GetAttrKey, node._fields),
    )


_node_classes: dict[type, _NodeClass] = {
    _NoneType: _NodeClass(lambda node: ((), None), lambda _, children: None),
    tuple: _NodeClass(lambda node: (node, None), lambda _, c: tuple(c), _sequence_keys),
    list: _NodeClass(lambda node: (node, None), lambda _, c: list(c), _sequence_keys),
    dict: _NodeClass(_split_dict, _join_dict, _dict_keys),
    collections.OrderedDict: _NodeClass(
        _split_ordered, _join_ordered, lambda node: _map(DictKey, node)
    ),
    collections.defaultdict: _NodeClass(_split_default, _join_default, _dict_keys),
}
_named_tuple_classes: dict[type, _NodeClass] = {}
_leaf_classes: set[type] = {bool, int, float, complex, str}
_MAX_LEAF_CLASSES = 4096


def _node_class_of(node_type: type) -> _NodeClass | None:
    """The node class of a type, None for a type of leaves; remembers the answer."""
    found = _node_classes.get(node_type) or _named_tuple_classes.get(node_type)
    if found is not None:
        return found
    if issubclass(node_type, tuple) and hasattr(node_type, "_fields"):
        return _named_tuple_classes.setdefault(node_type, _named_tuple(node_type))
    if len(_leaf_classes) >= _MAX_LEAF_CLASSES:
        _leaf_classes.clear()
    _leaf_classes.add(node_type)
    return None


def _split(node_class: _NodeClass, node: Any) -> tuple[Sequence[Any], Any]:
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


def _keys(node_class: _NodeClass, node: Any, count: int) -> Iterable[Any]:
    if node_class.keys is None:
        return _map(FlattenedIndexKey, range(count))
    return node_class.keys(node)


# --- Structures ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class TreeDef:
    """The structure of a tree: its containers without the leaves. Immutable and hashable.

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
        return _node, (self._type, self._metadata, self._children)

    def __copy__(self) -> TreeDef:
        return self

    def __deepcopy__(self, memo: dict) -> TreeDef:
        return self

    def children(self) -> list[TreeDef]:
        """The structures of the children of the root, in order.

        >>> structure((1, [2])).children()
        [PyTreeDef(*), PyTreeDef([*])]
        """
        return list(self._children)

    def node_data(self) -> tuple[type, Any] | None:
        """The class and metadata of the root, None if it is a leaf.

        >>> structure({"a": 1}).node_data()
        (<class 'dict'>, ['a'])
        """
        if self._type is None:
            return None
        return self._type, list(self._metadata) if self._type is dict else self._metadata

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The tree of this structure with the given leaves.

        Raises ValueError if their number is not `num_leaves`.

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

        >>> structure((0, 0)).flatten_up_to((1, [2, 3]))
        [1, [2, 3]]
        """
        return _flatten_up_to(self, tree, "TreeDef.flatten_up_to", "the structure", "tree")

    def compose(self, inner: TreeDef) -> TreeDef:
        """This structure with `inner` in the place of each leaf.

        >>> structure([1, 2]).compose(structure((3, 4)))
        PyTreeDef([(*, *), (*, *)])
        """
        if self._type is None:
            return inner
        children = tuple(child.compose(inner) for child in self._children)
        return _node(self._type, self._metadata, children)

    def walk(
        self,
        visit_node: Callable[[tuple[Any, ...], Any], Any],
        visit_leaf: Callable[[Any], Any] | None,
        leaves: Iterable[Any],
    ) -> Any:
        """Fold the tree bottom-up: `visit_leaf(leaf)`, then `visit_node(results, metadata)`.

        Raises ValueError if the number of leaves is not `num_leaves`.

        >>> structure((0, [0, 0])).walk(lambda results, _: sum(results), None, [1, 2, 3])
        6
        """
        values = list(leaves)
        if len(values) != self.num_leaves:
            raise ValueError(
                f"TreeDef.walk: expected {self.num_leaves} leaves for {self}; got {len(values)}."
            )
        return _fold(self, visit_node, visit_leaf, iter(values))


class _Identity(int):
    """The token of metadata that only its identity can stand for."""


# Structures whose tokens are plain values are held strongly, up to a bound; those that hold
# arbitrary metadata, which may be large, live as long as somebody else holds them.
_interned: dict[tuple[Any, ...], TreeDef] = {}
_interned_weakly: weakref.WeakValueDictionary[tuple[Any, ...], TreeDef] = (
    weakref.WeakValueDictionary()
)
_MAX_INTERNED = 4096


_STRINGS = frozenset({str})


def _token(metadata: Any) -> Any:
    """A hashable stand-in: equal tokens mean interchangeable metadata, so 1 is not True."""
    kind = type(metadata)
    if kind is str or metadata is None:
        return metadata
    if kind is tuple:
        return (tuple, *_map(_token, metadata))
    if kind in (bool, int, bytes, type) or _is_plain_function(metadata):
        return kind, metadata
    if kind is float or kind is complex:
        return kind, repr(metadata)
    return _Identity(id(metadata))


def _is_plain_function(value: Any) -> bool:
    return (
        type(value) is types.FunctionType
        and value.__closure__ is None
        and value.__defaults__ is None
        and value.__kwdefaults__ is None
    )


def _keys_token(keys: tuple) -> tuple:
    return keys if _STRINGS.issuperset(_map(type, keys)) else _token(keys)


def _has_identity(token: Any) -> bool:
    if type(token) is tuple:
        return any(_has_identity(part) for part in token)
    return type(token) is _Identity


def _node(node_type: type | None, metadata: Any, children: tuple[TreeDef, ...]) -> TreeDef:
    """The TreeDef of a node: the one that exists, or a new one."""
    if node_type is None:
        return LEAF
    token = _keys_token(metadata) if node_type is dict else _token(metadata)
    parts = itertools.chain.from_iterable(child._spec for child in children)
    spec = (node_type, len(children), token, *parts)
    return _lookup(spec) or _remember(_new_treedef(node_type, metadata, children, spec))


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
        _is_flat=_all(child is LEAF for child in children),
        num_leaves=sum(child.num_leaves for child in children),
        num_nodes=1 + sum(child.num_nodes for child in children),
    )


def _lookup(spec: tuple) -> TreeDef | None:
    found = _interned.get(spec)
    return _interned_weakly.get(spec) if found is None else found


def _remember(treedef: TreeDef) -> TreeDef:
    if _has_identity(treedef._spec):
        return _interned_weakly.setdefault(treedef._spec, treedef)
    if len(_interned) >= _MAX_INTERNED:
        _interned.clear()
        _interned[LEAF._spec] = LEAF
    return _interned.setdefault(treedef._spec, treedef)


def _parse(spec: tuple, start: int, metadata: Iterator[Any]) -> tuple[TreeDef, int]:
    """The TreeDef whose tokens begin at `start`, and the position after them."""
    node_type = spec[start]
    if node_type is None:
        return LEAF, start + 1
    own = None if node_type in (tuple, list, _NoneType) else next(metadata)
    children, position = [], start + 3
    for _ in range(spec[start + 1]):
        child, position = _parse(spec, position, metadata)
        children.append(child)
    return _node(node_type, own, tuple(children)), position


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
    if node_type is _NoneType:
        return "None"
    if node_type is tuple:
        return f"({inside},)" if len(parts) == 1 else f"({inside})"
    if node_type is list:
        return f"[{inside}]"
    if node_type is dict:
        pairs = zip(metadata, parts, strict=True)
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in pairs) + "}"
    if node_type in _named_tuple_classes:
        return f"CustomNode(namedtuple[{node_type.__name__}], [{inside}])"
    return f"CustomNode({node_type.__name__}[{metadata}], [{inside}])"


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
    node_class = _node_class_of(node_type)
    assert node_class is not None, node_type
    return node_class.join(metadata, children)


def _fold(treedef: TreeDef, visit_node: Any, visit_leaf: Any, leaves: Iterator[Any]) -> Any:
    if treedef is LEAF:
        leaf = next(leaves)
        return leaf if visit_leaf is None else visit_leaf(leaf)
    results = tuple(_fold(child, visit_node, visit_leaf, leaves) for child in treedef._children)
    data = treedef.node_data()
    return visit_node(results, data[1] if data else None)


# --- Flattening ----------------------------------------------------------------------------------


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
    treedef = _interned.get(spec)
    return leaves, _treedef(spec, metadata) if treedef is None else treedef


def _treedef(spec: tuple, metadata: list[Any]) -> TreeDef:
    return _interned_weakly.get(spec) or _parse(spec, 0, iter(metadata))[0]


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
            raise _unsortable(tree) from error
        children = [tree[key] for key in keys]
        token = keys if _STRINGS.issuperset(_map(type, keys)) else _token(keys)
        tokens += (dict, len(keys), token)
        metadata.append(keys)
    elif tree is None:
        tokens += (_NoneType, 0, None)
        return
    else:
        node_class = None if kind in _leaf_classes else _node_class_of(kind)
        if node_class is None:
            leaves.append(tree)
            tokens.append(None)
            return
        children, own = _split(node_class, tree)
        tokens += (kind, len(children), _token(own))
        metadata.append(own)
    if len(children) > 4 and _leaf_classes.issuperset(_map(type, children)):
        leaves += children
        tokens += (None,) * len(children)
        return
    for child in children:
        if type(child) in _leaf_classes:
            leaves.append(child)
            tokens.append(None)
        else:
            _scan(child, leaves, tokens, metadata)


def _scan_until(
    is_leaf: Callable[[Any], bool], tree: Any, leaves: list, tokens: list, metadata: list
) -> None:
    kind = type(tree)
    node_class = None if is_leaf(tree) else _node_class_of(kind)
    if node_class is None:
        leaves.append(tree)
        tokens.append(None)
        return
    children = _enter(node_class, tree, tokens, metadata)
    for child in children:
        _scan_until(is_leaf, child, leaves, tokens, metadata)


def _enter(node_class: _NodeClass, tree: Any, tokens: list, metadata: list) -> Sequence[Any]:
    kind = type(tree)
    children, own = _split(node_class, tree)
    tokens += (kind, len(children), _keys_token(own) if kind is dict else _token(own))
    if kind is not tuple and kind is not list and kind is not _NoneType:
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
    return pairs, _interned.get(spec) or _treedef(spec, metadata)


def _scan_paths(
    stops: IsLeaf, tree: Any, path: KeyPath, pairs: list, tokens: list, metadata: list
) -> None:
    stop = stops is not None and stops(path, tree)
    node_class = None if stop else _node_class_of(type(tree))
    if node_class is None:
        pairs.append((path, tree))
        tokens.append(None)
        return
    children = _enter(node_class, tree, tokens, metadata)
    for key, child in zip(_keys(node_class, tree, len(children)), children, strict=True):
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
    return _all(structure(element, is_leaf) is LEAF for element in iterable)


def is_tree_node(node_type: type) -> bool:
    """Whether values of a type are nodes of trees rather than leaves.

    >>> is_tree_node(dict), is_tree_node(float)
    (True, False)
    """
    return _node_class_of(node_type) is not None


def flatten_one_level(tree: Any) -> tuple[Sequence[Any], Hashable]:
    """The children of the root and its metadata.

    Raises ValueError if the tree is a leaf.

    >>> flatten_one_level({"b": (1, 2), "a": 3})
    ([3, (1, 2)], ('a', 'b'))
    """
    return _split(_require_node(tree, "flatten_one_level"), tree)


def flatten_one_level_with_keys(tree: Any) -> tuple[list[tuple[Any, Any]], Hashable]:
    """The pairs (key, child) of the root, and its metadata.

    Raises ValueError if the tree is a leaf.

    >>> flatten_one_level_with_keys([5])
    ([(SequenceKey(idx=0), 5)], None)
    """
    node_class = _require_node(tree, "flatten_one_level_with_keys")
    children, metadata = _split(node_class, tree)
    keys = _keys(node_class, tree, len(children))
    return list(zip(keys, children, strict=True)), metadata


def _require_node(tree: Any, operation: str) -> _NodeClass:
    node_class = _node_class_of(type(tree))
    if node_class is None:
        raise ValueError(
            f"tree.{operation}: the tree must be a container; got a leaf, "
            f"a {type(tree).__name__}. Register its class to make it one."
        )
    return node_class


# --- Trees of one structure ----------------------------------------------------------------------


def map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """The tree of `f(leaf, *subtrees)`, where `rest` has the structure of `tree` or reaches deeper.

    Raises ValueError if a structure differs, naming the key path of the first difference.

    >>> map(lambda x, y: x + y, {"a": 1, "b": (2,)}, {"a": 10, "b": (20,)})
    {'a': 11, 'b': (22,)}
    """
    leaves, treedef = flatten(tree, is_leaf)
    if not rest:
        return treedef.unflatten([f(leaf) for leaf in leaves])
    columns = [_column(treedef, other, i) for i, other in enumerate(rest)]
    return treedef.unflatten(list(_map(f, leaves, *columns)))


def _column(treedef: TreeDef, tree: Any, position: int) -> list[Any]:
    leaves: list[Any] = []
    if _collect(treedef, tree, leaves):
        return leaves
    return _flatten_up_to(treedef, tree, "tree.map", "tree", f"rest[{position}]")


def map_with_path(
    f: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: IsLeaf = None,
    is_leaf_takes_path: bool = False,
) -> Any:
    """The tree of `f(path, leaf, *subtrees)`.

    Raises ValueError if a structure differs, naming the key path of the first difference.

    >>> map_with_path(lambda path, x: f"{keystr(path)}={x}", {"a": [1]})
    {'a': ["['a'][0]=1"]}
    """
    pairs, treedef = flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    columns = [_column(treedef, other, i) for i, other in enumerate(rest)]
    rows = zip(pairs, *columns, strict=True)
    return treedef.unflatten([f(*pair, *others) for pair, *others in rows])


def all(tree: Any, *, is_leaf: IsLeaf = None) -> bool:
    """Whether each leaf is true.

    >>> all({"a": True, "b": [1, 0]})
    False
    """
    return _all(leaves(tree, is_leaf))


_UNSPECIFIED: Any = object()


def reduce(
    function: Callable[[Any, Any], Any],
    tree: Any,
    initializer: Any = _UNSPECIFIED,
    is_leaf: IsLeaf = None,
) -> Any:
    """The leaves folded from left to right.

    Raises TypeError if there is no leaf and no initializer.

    >>> reduce(lambda x, y: x + y, [1, (2, 3)])
    6
    """
    values = leaves(tree, is_leaf)
    if initializer is not _UNSPECIFIED:
        return functools.reduce(function, values, initializer)
    if not values:
        raise TypeError("tree.reduce: a tree without leaves needs an initializer; got none.")
    return functools.reduce(function, values)


def reduce_associative(
    operation: Callable[[Any, Any], Any],
    tree: Any,
    *,
    identity: Any = _UNSPECIFIED,
    is_leaf: IsLeaf = None,
) -> Any:
    """The leaves folded in a balanced way, so that the depth is logarithmic.

    Raises TypeError if there is no leaf and no identity.

    >>> reduce_associative(lambda x, y: (x, y), [1, 2, 3, 4])
    ((1, 2), (3, 4))
    """
    values = leaves(tree, is_leaf)
    if not values and identity is _UNSPECIFIED:
        raise TypeError(
            "tree.reduce_associative: a tree without leaves needs an identity; got none."
        )
    return _fold_halves(operation, values) if values else identity


def _fold_halves(operation: Callable[[Any, Any], Any], values: list[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    middle = len(values) // 2
    left, right = values[:middle], values[middle:]
    return operation(_fold_halves(operation, left), _fold_halves(operation, right))


def transpose(
    outer_treedef: TreeDef, inner_treedef: TreeDef | None, pytree_to_transpose: Any
) -> Any:
    """A tree of outer structure whose leaves are trees of inner structure, turned inside out.

    Without `inner_treedef`, the structure of the first inner tree is taken.
    Raises TypeError if the tree does not have that structure.

    >>> transpose(structure([0, 0]), None, [(1, 2), (3, 4)])
    ([1, 3], [2, 4])
    """
    values, treedef = flatten(pytree_to_transpose)
    inner = inner_treedef or _first_structure(outer_treedef, pytree_to_transpose)
    expected = outer_treedef.compose(inner)
    if treedef != expected:
        raise TypeError(
            f"tree.transpose: the tree must have the structure {expected}, outer composed with "
            f"inner; got {treedef}."
        )
    width = inner.num_leaves
    columns = [outer_treedef.unflatten(values[i::width]) for i in range(width)]
    return inner.unflatten(columns)


def _first_structure(outer_treedef: TreeDef, tree: Any) -> TreeDef:
    inner_trees = outer_treedef.flatten_up_to(tree)
    if not inner_trees:
        raise TypeError(
            f"tree.transpose: without inner_treedef the outer structure must have a leaf; "
            f"got {outer_treedef}."
        )
    return structure(inner_trees[0])


def broadcast(prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None) -> Any:
    """The tree of the structure of `full_tree` whose leaves are those of the prefix, each repeated
    over its subtree.

    Raises ValueError if `prefix_tree` is no prefix of `full_tree`.

    >>> broadcast({"a": 1, "b": 2}, {"a": (0, 0), "b": 0})
    {'a': (1, 1), 'b': 2}
    """
    return structure(full_tree).unflatten(broadcast_prefix(prefix_tree, full_tree, is_leaf))


def broadcast_prefix(
    prefix_tree: Any, full_tree: Any, is_leaf: IsLeaf = None, *, name: str = "prefix_tree"
) -> list[Any]:
    """The leaf of the prefix for each leaf of the full tree; `name` is the prefix's in messages.

    Raises ValueError if `prefix_tree` is no prefix of `full_tree`.

    >>> broadcast_prefix((0, None), ([1, 2], 3), is_leaf=lambda x: x is None)
    [0, 0, None]
    """
    values, treedef = flatten(prefix_tree, is_leaf)
    subtrees = _flatten_up_to(treedef, full_tree, "tree.broadcast_prefix", name, "the full tree")
    result: list[Any] = []
    for value, subtree in zip(values, subtrees, strict=True):
        result += [value] * structure(subtree).num_leaves
    return result


def treedef_tuple(treedefs: Iterable[TreeDef]) -> TreeDef:
    """The structure of a tuple of trees of the given structures.

    >>> treedef_tuple([structure(1), structure([2])])
    PyTreeDef((*, [*]))
    """
    return _node(tuple, None, tuple(treedefs))


def treedef_children(treedef: TreeDef) -> list[TreeDef]:
    """The structures of the children of the root.

    >>> treedef_children(structure((1, [2])))
    [PyTreeDef(*), PyTreeDef([*])]
    """
    return treedef.children()


def treedef_is_leaf(treedef: TreeDef) -> bool:
    """Whether a structure has no children: a leaf, None or an empty container.

    >>> treedef_is_leaf(structure(1)), treedef_is_leaf(structure([1]))
    (True, False)
    """
    return treedef.num_nodes == 1


# --- Mismatches ----------------------------------------------------------------------------------


def _flatten_up_to(
    treedef: TreeDef, tree: Any, operation: str, ours: str, theirs: str
) -> list[Any]:
    leaves: list[Any] = []
    if _collect(treedef, tree, leaves):
        return leaves
    path, expected, got = _difference(treedef, tree, ())
    place = keystr(path) or "the root"
    message = (
        f"{operation}: structures must match; at {place} {ours} has {expected}, {theirs} has {got}."
    )
    if expected == "None":
        message += " To treat None as a leaf, pass is_leaf=lambda x: x is None."
    raise ValueError(message)


def _collect(treedef: TreeDef, tree: Any, leaves: list[Any]) -> bool:
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
        if not _collect(child, subtree, leaves):
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
        same = len(tree) == count and _all(_map(tree.__contains__, treedef._metadata))
        return [tree[key] for key in treedef._metadata] if same else None
    children, metadata = flatten_one_level(tree)
    same = _is_same(node_type, treedef._metadata, metadata)
    return children if same and len(children) == count else None


def _difference(treedef: TreeDef, tree: Any, path: KeyPath) -> tuple[KeyPath, str, str]:
    """Where a tree that does not match first differs, what was expected there, and what came."""
    if _matching_children(treedef, tree) is None:
        got = structure(tree, is_leaf=lambda subtree: subtree is not tree)
        return path, _description(treedef, None), _description(got, tree)
    for (key, subtree), child in zip(
        flatten_one_level_with_keys(tree)[0], treedef._children, strict=True
    ):
        if not _collect(child, subtree, []):
            return _difference(child, subtree, (*path, key))
    raise AssertionError("the tree matches the structure")


def _description(treedef: TreeDef, leaf: Any) -> str:
    node_type, metadata, count = treedef._type, treedef._metadata, len(treedef._children)
    if node_type is None:
        return f"a leaf of type {type(leaf).__name__}"
    if node_type is _NoneType:
        return "None"
    if metadata is None:
        return f"a {node_type.__name__} of length {count}"
    if node_type in (dict, collections.OrderedDict):
        return f"a {node_type.__name__} with keys {list(metadata)}"
    return f"a {node_type.__name__} of {count} children with metadata {metadata}"


# --- Registration --------------------------------------------------------------------------------


def _register(node_type: type, node_class: _NodeClass) -> None:
    if not isinstance(node_type, type):
        raise TypeError(f"tree.register: a node type must be a class; got {node_type!r}.")
    if node_type in _node_classes:
        raise ValueError(
            f"tree.register: a class can be registered once; {node_type.__module__}."
            f"{node_type.__qualname__} is registered already."
        )
    _node_classes[node_type] = node_class
    _named_tuple_classes.pop(node_type, None)
    _leaf_classes.discard(node_type)


def register_pytree_node(
    nodetype: type,
    flatten_func: Callable[[Any], tuple[Iterable[Any], Any]],
    unflatten_func: Callable[[Any, Any], Any],
    flatten_with_keys_func: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]] | None = None,
) -> None:
    """Make a class a node: `flatten_func(node) -> (children, metadata)` and
    `unflatten_func(metadata, children) -> node`.

    `flatten_with_keys_func(node) -> (pairs of key and child, metadata)` names the children.
    Raises ValueError if the class is registered already, TypeError if it is no class.

    >>> class Interval:
    ...     def __init__(self, low, high):
    ...         self.low, self.high = low, high
    >>> register_pytree_node(
    ...     Interval, lambda node: ((node.low, node.high), None), lambda _, ends: Interval(*ends)
    ... )
    >>> leaves(Interval(1, 2))
    [1, 2]
    """
    for name, function in (("flatten_func", flatten_func), ("unflatten_func", unflatten_func)):
        if not callable(function):
            raise TypeError(
                f"register_pytree_node: {name} must be callable; got {type(function).__name__}."
            )
    keys = None if flatten_with_keys_func is None else _keys_from(flatten_with_keys_func)
    _register(nodetype, _NodeClass(flatten_func, unflatten_func, keys))


def _keys_from(flatten_with_keys: Callable[[Any], tuple[Iterable[Any], Any]]) -> Callable:
    return lambda node: [key for key, _ in flatten_with_keys(node)[0]]


def register_pytree_node_class(cls: type) -> type:
    """Class decorator: a node by its methods `tree_flatten(self) -> (children, metadata)` and
    `tree_unflatten(cls, metadata, children)`.

    >>> @register_pytree_node_class
    ... class Box:
    ...     def __init__(self, content):
    ...         self.content = content
    ...     def tree_flatten(self):
    ...         return (self.content,), None
    ...     @classmethod
    ...     def tree_unflatten(cls, metadata, children):
    ...         return cls(*children)
    >>> structure(Box(1))
    PyTreeDef(CustomNode(Box[None], [*]))
    """
    node_class: Any = cls
    register_pytree_node(cls, operator.methodcaller("tree_flatten"), node_class.tree_unflatten)
    return cls


def register_pytree_with_keys(
    nodetype: type,
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]],
    unflatten_func: Callable[[Any, Any], Any],
    flatten_func: Callable[[Any], tuple[Iterable[Any], Any]] | None = None,
) -> None:
    """Make a class a node whose children have names:
    `flatten_with_keys(node) -> (pairs of key and child, metadata)`.

    `flatten_func` may state the same without keys, which is quicker.
    Raises ValueError if the class is registered already.

    >>> class Point:
    ...     def __init__(self, x):
    ...         self.x = x
    >>> register_pytree_with_keys(
    ...     Point, lambda node: ([(GetAttrKey("x"), node.x)], None), lambda _, xs: Point(*xs)
    ... )
    >>> leaves_with_path(Point(1))
    [((GetAttrKey(name='x'),), 1)]
    """

    def without_keys(node: Any) -> tuple[list[Any], Any]:
        pairs, metadata = flatten_with_keys(node)
        return [child for _, child in pairs], metadata

    register_pytree_node(nodetype, flatten_func or without_keys, unflatten_func, flatten_with_keys)


def register_pytree_with_keys_class(cls: type) -> type:
    """Class decorator: a node by its methods `tree_flatten_with_keys(self)`,
    `tree_unflatten(cls, metadata, children)` and, optionally, `tree_flatten(self)`.

    >>> @register_pytree_with_keys_class
    ... class Named:
    ...     def __init__(self, content):
    ...         self.content = content
    ...     def tree_flatten_with_keys(self):
    ...         return [(GetAttrKey("content"), self.content)], None
    ...     @classmethod
    ...     def tree_unflatten(cls, metadata, children):
    ...         return cls(*children)
    >>> keystr(leaves_with_path(Named(1))[0][0])
    '.content'
    """
    node_class: Any = cls
    flat = operator.methodcaller("tree_flatten") if hasattr(cls, "tree_flatten") else None
    keyed = operator.methodcaller("tree_flatten_with_keys")
    register_pytree_with_keys(cls, keyed, node_class.tree_unflatten, flat)
    return cls


def register_static(cls: type) -> type:
    """Class decorator: a node without children, itself its metadata; it must be hashable.

    >>> @register_static
    ... class Mode(str):
    ...     pass
    >>> leaves((1, Mode("train")))
    [1]
    """
    _register(cls, _NodeClass(lambda node: ((), node), lambda node, _: node))
    return cls


def static(**kwargs: Any) -> Any:
    """A dataclass field that is metadata rather than a child; arguments of `dataclasses.field`.

    >>> @register_dataclass
    ... @dataclasses.dataclass
    ... class Scale:
    ...     factor: float
    ...     name: str = static(default="scale")
    >>> structure(Scale(2.0))
    PyTreeDef(CustomNode(Scale[('scale',)], [*]))
    """
    metadata = {**(kwargs.pop("metadata", None) or {}), "static": True}
    return dataclasses.field(metadata=metadata, **kwargs)


def register_dataclass(
    nodetype: type,
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> type:
    """Make a dataclass a node: data fields are its children, meta fields its metadata.

    Without a list, each field is data unless it is declared with `static`. Other classes need
    both lists and a constructor that takes the fields by keyword. Usable as a decorator.
    Raises TypeError if the lists are missing, ValueError if they are not exactly the fields.

    >>> @register_dataclass
    ... @dataclasses.dataclass
    ... class Linear:
    ...     weight: float
    ...     bias: float
    >>> map(lambda x: 2 * x, Linear(1.0, 3.0))
    Linear(weight=2.0, bias=6.0)
    """
    data, meta = _field_names(nodetype, data_fields, meta_fields, drop_fields)
    read_data, read_meta = _reader(data), _reader(meta)
    names, keys = (*data, *meta), tuple(_map(GetAttrKey, data))

    def join(metadata: tuple[Any, ...], children: Iterable[Any]) -> Any:
        return nodetype(**dict(zip(names, (*children, *metadata), strict=True)))

    def split(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return read_data(node), read_meta(node)

    _register(nodetype, _NodeClass(split, join, lambda node: keys))
    return nodetype


def _reader(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    if not names:
        return lambda node: ()
    getter = operator.attrgetter(*names)
    return getter if len(names) > 1 else lambda node: (getter(node),)


def _field_names(
    nodetype: Any, data: Sequence[str] | None, meta: Sequence[str] | None, drop: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    operation = f"register_dataclass({getattr(nodetype, '__name__', nodetype)})"
    if (data is None) != (meta is None):
        raise TypeError(f"{operation}: data_fields and meta_fields must be given both or neither.")
    if not dataclasses.is_dataclass(nodetype):
        if data is None or meta is None:
            raise TypeError(
                f"{operation}: data_fields and meta_fields must be given for a class that is no "
                "dataclass. Give them, or decorate the class with dataclasses.dataclass first."
            )
        return tuple(data), tuple(meta)
    fields = {field.name: field for field in dataclasses.fields(nodetype) if field.init}
    if data is None or meta is None:
        meta = [name for name, field in fields.items() if field.metadata.get("static", False)]
        data = [name for name in fields if name not in meta and name not in drop]
        meta = [name for name in meta if name not in drop]
    _check_fields(operation, set(fields), data, meta, drop)
    return tuple(data), tuple(meta)


def _check_fields(
    operation: str, known: set[str], data: Sequence[str], meta: Sequence[str], drop: Sequence[str]
) -> None:
    both = sorted(set(data) & set(meta))
    missing = sorted(known - {*data, *meta, *drop})
    unexpected = sorted({*data, *meta} - known)
    rule = f"{operation}: data_fields and meta_fields must"
    if both:
        raise ValueError(f"{rule} not overlap; got {both} in both.")
    if missing:
        raise ValueError(
            f"{rule} name each field with init=True; {missing} are missing. "
            "Add them to one of the two, or to drop_fields."
        )
    if unexpected:
        raise ValueError(f"{rule} name only fields with init=True; got {unexpected} besides.")


@dataclasses.dataclass(frozen=True)
class _Call:
    """A partial application kept whole, so that functools.partial does not merge it."""

    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Partial(functools.partial):
    """A partial application that is a node: arguments are children, the function is metadata.

    >>> add = Partial(lambda x, y: x + y, 1)
    >>> add(2), leaves(add)
    (3, [1])
    """

    def __new__(cls, func: Callable[..., Any], *args: Any, **kw: Any) -> Partial:
        return super().__new__(
            cls, _Call(func) if isinstance(func, functools.partial) else func, *args, **kw
        )


def _join_partial(function: Callable[..., Any], children: Any) -> Partial:
    args, keywords = children
    return Partial(function, *args, **keywords)


register_pytree_node(Partial, lambda node: ((node.args, node.keywords), node.func), _join_partial)
