"""Pytrees: nested containers taken apart into a list of leaves and a structure, and put together
again. Rules and order are those of `jax.tree`.

keys -> nodes, tokens -> treedef -> flattening -> operations; registration adds to nodes; registry
is all of it as one object.
"""

from __future__ import annotations

from xcube.tree.flattening import (
    IsLeaf,
    all_leaves,
    flatten,
    flatten_with_path,
    leaves,
    leaves_with_path,
    structure,
    unflatten,
)
from xcube.tree.keys import (
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    KeyEntry,
    KeyPath,
    SequenceKey,
    keystr,
)
from xcube.tree.nodes import (
    flatten_one_level,
    flatten_one_level_with_keys,
    is_tree_node,
)
from xcube.tree.operations import (
    all,
    broadcast,
    broadcast_prefix,
    map,
    map_with_path,
    reduce,
    reduce_associative,
    transpose,
    treedef_children,
    treedef_is_leaf,
    treedef_tuple,
)
from xcube.tree.registration import (
    Partial,
    register_dataclass,
    register_pytree_node,
    register_pytree_node_class,
    register_pytree_with_keys,
    register_pytree_with_keys_class,
    register_static,
    static,
)
from xcube.tree.registry import (
    Registry,
    default_registry,
)
from xcube.tree.treedef import (
    LEAF,
    TreeDef,
)

__all__ = [
    "LEAF",
    "DictKey",
    "FlattenedIndexKey",
    "GetAttrKey",
    "IsLeaf",
    "KeyEntry",
    "KeyPath",
    "Partial",
    "Registry",
    "SequenceKey",
    "TreeDef",
    "all",
    "all_leaves",
    "broadcast",
    "broadcast_prefix",
    "default_registry",
    "flatten",
    "flatten_one_level",
    "flatten_one_level_with_keys",
    "flatten_with_path",
    "is_tree_node",
    "keystr",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "reduce",
    "reduce_associative",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "register_pytree_with_keys",
    "register_pytree_with_keys_class",
    "register_static",
    "static",
    "structure",
    "transpose",
    "treedef_children",
    "treedef_is_leaf",
    "treedef_tuple",
    "unflatten",
]
