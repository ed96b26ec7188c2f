"""The table of node classes as an object with methods, as JAX has it in `default_registry`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xcube.tree import flattening, nodes, registration
from xcube.tree.keys import KeyPath
from xcube.tree.treedef import TreeDef


class Registry:
    """What is a node, and how trees come apart.

    >>> default_registry.is_node(dict), default_registry.is_node(float)
    (True, False)
    """

    __slots__ = ()

    def is_node(self, node_type: type) -> bool:
        """Whether values of a type are nodes."""
        return nodes.is_tree_node(node_type)

    def flatten(
        self, tree: Any, leaf_predicate: Callable[[Any], bool] | None = None
    ) -> tuple[list[Any], TreeDef]:
        """The leaves of a tree and its structure."""
        return flattening.flatten(tree, leaf_predicate)

    def flatten_with_path(
        self, tree: Any, leaf_predicate: Callable[[Any, Any], bool] | None = None
    ) -> tuple[list[tuple[KeyPath, Any]], TreeDef]:
        """The pairs (key path, leaf) of a tree and its structure; the predicate takes paths too."""
        return flattening.flatten_with_path(tree, leaf_predicate, is_leaf_takes_path=True)

    def flatten_one_level(self, tree: Any) -> tuple[Sequence[Any], Any] | None:
        """The children of the root and its metadata; None for a leaf."""
        return nodes.flatten_one_level(tree) if self.is_node(type(tree)) else None

    def flatten_one_level_with_keys(
        self, tree: Any
    ) -> tuple[tuple[tuple[Any, Any], ...], Any] | None:
        """The pairs (key, child) of the root and its metadata; None for a leaf."""
        if not self.is_node(type(tree)):
            return None
        pairs, metadata = nodes.flatten_one_level_with_keys(tree)
        return tuple(pairs), metadata

    def register_node(
        self,
        node_type: type,
        to_iterable: Callable[[Any], tuple[Any, Any]],
        from_iterable: Callable[[Any, Any], Any],
        to_iterable_with_keys: Callable[[Any], tuple[Any, Any]] | None = None,
    ) -> None:
        """Make a class a node; see `register_pytree_node`."""
        registration.register_pytree_node(
            node_type, to_iterable, from_iterable, to_iterable_with_keys
        )

    def register_dataclass_node(
        self, node_type: type, data_fields: Sequence[str], meta_fields: Sequence[str]
    ) -> None:
        """Make a dataclass a node; see `register_dataclass`."""
        registration.register_dataclass(node_type, data_fields, meta_fields)


default_registry = Registry()
