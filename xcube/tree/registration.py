"""Classes made nodes: by a pair of functions, by methods, as dataclasses, as constants; and
`Partial`, a function with arguments that is a node itself."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from xcube.tree.keys import GetAttrKey
from xcube.tree.nodes import NodeClass, register


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

    >>> from xcube.tree import leaves
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
    register(nodetype, NodeClass(flatten_func, unflatten_func, keys))


def _keys_from(flatten_with_keys: Callable[[Any], tuple[Iterable[Any], Any]]) -> Callable:
    return lambda node: [key for key, _ in flatten_with_keys(node)[0]]


def register_pytree_node_class(cls: type) -> type:
    """Class decorator: a node by its methods `tree_flatten(self) -> (children, metadata)` and
    `tree_unflatten(cls, metadata, children)`.

    >>> from xcube.tree import structure
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

    >>> from xcube.tree import leaves_with_path
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

    >>> from xcube.tree import keystr, leaves_with_path
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

    >>> from xcube.tree import leaves
    >>> @register_static
    ... class Mode(str):
    ...     pass
    >>> leaves((1, Mode("train")))
    [1]
    """
    register(cls, NodeClass(lambda node: ((), node), lambda node, _: node))
    return cls


def static(**kwargs: Any) -> Any:
    """A dataclass field that is metadata rather than a child; arguments of `dataclasses.field`.

    >>> from xcube.tree import structure
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

    >>> from xcube.tree import map
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
    names, keys = (*data, *meta), tuple(map(GetAttrKey, data))

    def join(metadata: tuple[Any, ...], children: Iterable[Any]) -> Any:
        return nodetype(**dict(zip(names, (*children, *metadata), strict=True)))

    def split(node: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return read_data(node), read_meta(node)

    register(nodetype, NodeClass(split, join, lambda node: keys))
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

    >>> from xcube.tree import leaves
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
