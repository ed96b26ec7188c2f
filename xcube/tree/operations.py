"""Functions of whole trees: maps, folds, transposition, prefixes."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterable
from typing import Any

from xcube.tree.flattening import IsLeaf, flatten, flatten_with_path, leaves, structure
from xcube.tree.treedef import TreeDef, collect, flatten_up_to, node_of


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
    return treedef.unflatten(list(builtins.map(f, leaves, *columns)))


def map_with_path(
    f: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: IsLeaf = None,
    is_leaf_takes_path: bool = False,
) -> Any:
    """The tree of `f(path, leaf, *subtrees)`.

    Raises ValueError if a structure differs, naming the key path of the first difference.

    >>> from xcube.tree import keystr
    >>> map_with_path(lambda path, x: f"{keystr(path)}={x}", {"a": [1]})
    {'a': ["['a'][0]=1"]}
    """
    pairs, treedef = flatten_with_path(tree, is_leaf, is_leaf_takes_path)
    columns = [_column(treedef, other, i) for i, other in enumerate(rest)]
    rows = zip(pairs, *columns, strict=True)
    return treedef.unflatten([f(*pair, *others) for pair, *others in rows])


def _column(treedef: TreeDef, tree: Any, position: int) -> list[Any]:
    leaves: list[Any] = []
    if collect(treedef, tree, leaves):
        return leaves
    return flatten_up_to(treedef, tree, "tree.map", "tree", f"rest[{position}]")


def all(tree: Any, *, is_leaf: IsLeaf = None) -> bool:
    """Whether each leaf is true.

    >>> all({"a": True, "b": [1, 0]})
    False
    """
    return builtins.all(leaves(tree, is_leaf))


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
    subtrees = flatten_up_to(treedef, full_tree, "tree.broadcast_prefix", name, "the full tree")
    result: list[Any] = []
    for value, subtree in zip(values, subtrees, strict=True):
        result += [value] * structure(subtree).num_leaves
    return result


def treedef_tuple(treedefs: Iterable[TreeDef]) -> TreeDef:
    """The structure of a tuple of trees of the given structures.

    >>> treedef_tuple([structure(1), structure([2])])
    PyTreeDef((*, [*]))
    """
    return node_of(tuple, None, tuple(treedefs))


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
