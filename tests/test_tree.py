"""Pytrees against jax.tree: leaves, order, structures, texts, key paths, prefixes and errors."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import gc
import operator
import pickle
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xcube import tree, tree_util

Pair = collections.namedtuple("Pair", "first second")


class Parent(Pair):
    """A class below a named tuple is a named tuple."""


class Box:
    def __init__(self, content, label):
        self.content, self.label = content, label

    def __eq__(self, other):
        return type(other) is Box and (self.content, self.label) == (other.content, other.label)

    __hash__ = None

    def tree_flatten(self):
        return (self.content,), self.label

    @classmethod
    def tree_unflatten(cls, label, children):
        return cls(*children, label)


@dataclasses.dataclass
class Layer:
    weight: object
    bias: object = None
    name: str = tree.static(default="layer")


@dataclasses.dataclass
class Chain:
    layers: object


class Keyed:
    def __init__(self, *children):
        self.children = children

    def __eq__(self, other):
        return type(other) is Keyed and self.children == other.children

    __hash__ = None


@dataclasses.dataclass(frozen=True)
class Mode:
    name: str


def flatten_keyed(node):
    return [(tree.DictKey(f"k{i}"), child) for i, child in enumerate(node.children)], None


tree.register_pytree_node_class(Box)
tree.register_dataclass(Layer)
tree.register_dataclass(Chain, ["layers"], [])
tree.register_pytree_with_keys(Keyed, flatten_keyed, lambda _, children: Keyed(*children))
tree.register_static(Mode)


@pytest.fixture(scope="module")
def jax_util():
    util = pytest.importorskip("jax.tree_util")
    util.register_pytree_node_class(Box)
    util.register_dataclass(Layer, ["weight", "bias"], ["name"])
    util.register_dataclass(Chain, ["layers"], [])
    util.register_static(Mode)
    util.register_pytree_with_keys(
        Keyed,
        lambda node: ([(util.DictKey(f"k{i}"), c) for i, c in enumerate(node.children)], None),
        lambda _, children: Keyed(*children),
    )
    return util


names = st.sampled_from(["a", "b", "weight", "bias", "z"])
leaf_values = st.integers(0, 9) | st.sampled_from([1.5, "text", True])


def containers(child):
    lists = st.lists(child, max_size=6)
    dicts = st.dictionaries(names, child, max_size=4)
    return st.one_of(
        lists,
        lists.map(tuple),
        dicts,
        st.dictionaries(st.integers(0, 20), child, max_size=3),
        dicts.map(collections.OrderedDict),
        dicts.map(lambda node: collections.defaultdict(int, node)),
        st.builds(Pair, child, child),
        st.builds(Parent, child, child),
        st.builds(Box, child, names),
        st.builds(Layer, child, child, names),
        st.builds(Chain, child),
        lists.map(lambda children: Keyed(*children)),
        st.builds(Mode, names),
    )


trees = st.recursive(st.none() | leaf_values, containers, max_leaves=25)


def keys_of(path):
    return [(type(key).__name__, str(key)) for key in path]


def fails(function, *arguments):
    try:
        function(*arguments)
    except (TypeError, ValueError) as error:
        return type(error)
    return None


# --- Laws over random trees ----------------------------------------------------------------------


@given(trees)
def test_flatten_gives_the_leaves_and_text_of_jax(jax_util, value):
    leaves, treedef = tree.flatten(value)
    expected_leaves, expected = jax_util.tree_flatten(value)
    assert leaves == expected_leaves
    assert repr(treedef) == repr(expected)
    assert (treedef.num_leaves, treedef.num_nodes) == (expected.num_leaves, expected.num_nodes)
    assert treedef.node_data() == expected.node_data()
    assert repr(treedef.children()) == repr(expected.children())


@given(trees)
def test_unflatten_inverts_flatten(value):
    leaves, treedef = tree.flatten(value)
    again = treedef.unflatten(iter(leaves))
    assert again == value and type(again) is type(value)
    assert tree.structure(again) is treedef or tree.structure(again) == treedef


@given(trees)
def test_key_paths_are_those_of_jax(jax_util, value):
    pairs, treedef = tree.flatten_with_path(value)
    expected, _ = jax_util.tree_flatten_with_path(value)
    assert [(keys_of(path), leaf) for path, leaf in pairs] == [
        (keys_of(path), leaf) for path, leaf in expected
    ]
    for (path, _), (other, _) in zip(pairs, expected, strict=True):
        assert tree.keystr(path) == jax_util.keystr(other)
        assert tree.keystr(path, simple=True, separator="/") == jax_util.keystr(
            other, simple=True, separator="/"
        )
    assert treedef == tree.structure(value)


@given(trees)
def test_is_leaf_stops_where_jax_stops(jax_util, value):
    def stop(node):
        return node is None or isinstance(node, tuple | Layer)

    leaves, treedef = tree.flatten(value, stop)
    expected_leaves, expected = jax_util.tree_flatten(value, stop)
    assert leaves == expected_leaves and repr(treedef) == repr(expected)
    assert tree.flatten_with_path(value, stop) == (
        list(zip([path for path, _ in tree.leaves_with_path(value, stop)], leaves, strict=True)),
        treedef,
    )


@given(trees)
def test_is_leaf_may_take_the_path(jax_util, value):
    def stop(path, node):
        return len(path) == 2

    expected = jax_util.tree_leaves_with_path(value, stop, is_leaf_takes_path=True)
    result = tree.leaves_with_path(value, stop, is_leaf_takes_path=True)
    assert [(keys_of(path), leaf) for path, leaf in result] == [
        (keys_of(path), leaf) for path, leaf in expected
    ]


@given(trees, trees)
def test_structures_are_equal_as_in_jax(jax_util, one, other):
    expected = jax_util.tree_structure(one) == jax_util.tree_structure(other)
    mine, theirs = tree.structure(one), tree.structure(other)
    assert (mine == theirs) == expected
    assert not expected or hash(mine) == hash(theirs)


@given(trees)
def test_equal_structures_are_one_object(value):
    treedef = tree.structure(value)
    assert tree.structure(tree.map(lambda leaf: leaf, value)) is treedef
    assert tree.structure(copy.deepcopy(value)) == treedef
    assert tree.structure(value, lambda node: False) is treedef
    assert tree.flatten_with_path(value)[1] is treedef


@given(trees)
def test_structures_survive_pickle_and_copy(value):
    treedef = tree.structure(value)
    assert pickle.loads(pickle.dumps(treedef)) == treedef
    assert copy.deepcopy(treedef) is treedef and copy.copy(treedef) is treedef


@given(trees, trees)
def test_compose_is_nesting(jax_util, outer, inner):
    composed = tree.structure(outer).compose(tree.structure(inner))
    expected = jax_util.tree_structure(outer).compose(jax_util.tree_structure(inner))
    assert repr(composed) == repr(expected)
    nested = tree.map(lambda _: inner, outer)
    assert composed == tree.structure(nested)


@given(trees, trees)
def test_flatten_up_to_agrees_with_jax(jax_util, prefix, full):
    treedef, expected = tree.structure(prefix), jax_util.tree_structure(prefix)
    error = fails(expected.flatten_up_to, full)
    assert fails(treedef.flatten_up_to, full) is error
    if error is None:
        assert treedef.flatten_up_to(full) == expected.flatten_up_to(full)


@given(trees, st.data())
def test_broadcast_agrees_with_jax(jax_util, prefix, data):
    full = tree.map(lambda _: data.draw(trees), prefix)
    assert tree.broadcast(prefix, full) == jax_util.tree_broadcast(prefix, full)
    assert tree.broadcast_prefix(prefix, full) == tree.leaves(tree.broadcast(prefix, full))


@given(trees)
def test_map_agrees_with_jax(jax_util, value):
    assert tree.map(repr, value) == jax_util.tree_map(repr, value)
    pair = tree.map(lambda x, y: (x, y), value, value)
    assert pair == jax_util.tree_map(lambda x, y: (x, y), value, value)
    named = tree.map_with_path(lambda path, x, y: (tree.keystr(path), x, y), value, value)
    assert named == jax_util.tree_map_with_path(
        lambda path, x, y: (jax_util.keystr(path), x, y), value, value
    )


@given(trees)
def test_folds_agree_with_jax(jax_util, value):
    text = tree.map(str, value)
    assert tree.all(value) == jax_util.tree_all(value)
    assert tree.reduce(operator.add, text, "") == jax_util.tree_reduce(operator.add, text, "")
    fold = {"identity": "none"}
    assert tree.reduce_associative(lambda x, y: f"({x}{y})", text, **fold) == (
        jax_util.tree_reduce_associative(lambda x, y: f"({x}{y})", text, **fold)
    )


@given(trees)
def test_walk_rebuilds_the_leaves_in_order(value):
    leaves, treedef = tree.flatten(value)
    visited = []

    def visit_leaf(leaf):
        visited.append(leaf)
        return 1

    assert treedef.walk(lambda counts, _: 1 + sum(counts), visit_leaf, leaves) == treedef.num_nodes
    assert visited == leaves


@settings(max_examples=50)
@given(trees, trees)
def test_transpose_turns_inside_out_and_back(outer, inner):
    outer_def, inner_def = tree.structure(outer), tree.structure(inner)
    value = outer_def.compose(inner_def).unflatten(
        range(outer_def.num_leaves * inner_def.num_leaves)
    )
    turned = tree.transpose(outer_def, inner_def, value)
    assert tree.structure(turned) == inner_def.compose(outer_def)
    assert tree.transpose(inner_def, outer_def, turned) == value


# --- Metadata and identity -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (0.0, -0.0), (1, 1.0), ((1,), (True,)), (0, False)]
)
def test_equal_metadata_of_another_kind_is_not_exchanged(one, other):
    for label in (one, other, one):
        again = tree.map(lambda x: x, Box(0, label)).label
        assert repr(again) == repr(label)
        assert repr(next(iter(tree.map(lambda x: x, {label: 0})))) == repr(label)
    assert tree.structure(Box(0, one)) == tree.structure(Box(0, other))


def test_keys_of_a_string_enum_stay_what_they_are():
    class Color(enum.StrEnum):
        RED = "red"

    tree.flatten({"red": 1})
    assert next(iter(tree.map(lambda x: x, {Color.RED: 1}))) is Color.RED


def test_a_structure_with_arbitrary_metadata_is_shared_while_it_lives():
    def closure():
        return Pair

    label = functools.partial(closure)
    treedef = tree.structure(Box(1, label))
    assert tree.structure(Box(2, label)) is treedef


def test_metadata_is_not_kept_alive():
    class Big:
        pass

    label = Big()
    gone = weakref.ref(label)
    assert tree.leaves(Box(1, label)) == [1]
    del label
    gc.collect()
    assert gone() is None


def test_many_structures_do_not_pile_up():
    first = tree.structure({"first": 0})
    for i in range(5000):
        tree.structure({f"key{i}": 0})
    assert tree.structure({"first": 0}) == first
    assert hash(tree.structure({"first": 0})) == hash(first)
    assert tree.structure(0) is tree.structure("leaf")


def test_unhashable_metadata_still_hashes_and_compares():
    one, other = tree.structure(Box(1, [1])), tree.structure(Box(1, [1]))
    assert one == other and hash(one) == hash(other)
    assert one != tree.structure(Box(1, [2]))


def test_array_metadata_is_refused_with_the_class_named():
    one, other = (tree.structure(Box(1, np.arange(2))) for _ in range(2))
    with pytest.raises(ValueError, match=r"metadata of Box must compare equal.*children"):
        assert one == other


def test_a_structure_cannot_be_changed_and_differs_from_other_things():
    treedef = tree.structure([1])
    with pytest.raises(dataclasses.FrozenInstanceError):
        treedef.num_leaves = 3
    assert treedef != [1] and treedef != tree.structure((1,))


def test_long_containers_mix_leaves_and_nodes():
    value = [*range(50), (51, {"b": 52, "a": 53}), None, *range(60)]
    leaves, treedef = tree.flatten(value)
    assert leaves == [*range(50), 51, 53, 52, *range(60)]
    assert treedef.unflatten(leaves) == value


# --- Errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ((1, 2), (1,), r"at the root tree has a tuple of length 2, rest\[0\] has .* of length 1"),
        ({"a": (1, 2)}, {"a": [1, 2]}, r"at \['a'\] tree has a tuple of .*, .* has a list of"),
        ({"a": (1, 2)}, {"a": 3}, r"at \['a'\] .* has a leaf of type int"),
        ([{"a": 1}], [{"b": 1}], r"at \[0\] tree has a dict with keys \['a'\], .* \['b'\]"),
        ((None, 1), (2, 1), r"at \[0\] tree has None, .*is_leaf=lambda x: x is None"),
        (Layer((1,)), Layer([1]), r"at \.weight tree has a tuple .* a list"),
        (Pair(1, (2,)), Pair(1, 2), r"at \.second "),
        (Box(1, "x"), Box(1, "y"), r"Box of 1 children with metadata x, .* with metadata y"),
        ({"p": Chain([Layer(1)])}, {"p": Chain([Layer((), 1)])}, r"at \['p'\]\.layers\[0\]\.bias"),
    ],
)
def test_a_mismatch_names_the_key_path_and_both_sides(jax_util, one, other, message):
    with pytest.raises(ValueError, match=message):
        tree.map(lambda x, y: x, one, other)
    with pytest.raises(ValueError):
        jax_util.tree_map(lambda x, y: x, one, other)


def test_a_mismatch_of_a_later_tree_names_its_position():
    with pytest.raises(ValueError, match=r"rest\[1\] has a tuple of length 3"):
        tree.map(lambda *x: x, (1, 2), (1, 2), (1, 2, 3))


def test_a_prefix_error_names_the_prefix():
    with pytest.raises(ValueError, match=r"at \[1\] in_axes has a tuple of length 2, the full"):
        tree.broadcast_prefix((0, (0, 1)), (1, 2), name="in_axes")


def test_keys_that_cannot_be_sorted_are_named():
    for value in ({"a": 1, 2: 3}, collections.defaultdict(int, {"a": 1, 2: 3})):
        for function in (tree.flatten, tree.flatten_with_path):
            with pytest.raises(ValueError, match=r"must be comparable.*int, str.*OrderedDict"):
                function(value)


@pytest.mark.parametrize(("leaves", "amount"), [([1], "few"), ([1, 2, 3], "many")])
def test_the_number_of_leaves_must_fit(leaves, amount):
    treedef = tree.structure((0, 0))
    with pytest.raises(ValueError, match=rf"Too {amount} leaves.*expected 2, got {len(leaves)}"):
        treedef.unflatten(leaves)
    with pytest.raises(ValueError, match="expected 2 leaves"):
        treedef.walk(lambda results, _: None, None, leaves)


def test_transpose_errors():
    outer, inner = tree.structure((0, 0)), tree.structure([0, 0])
    with pytest.raises(TypeError, match=r"must have the structure.*got"):
        tree.transpose(outer, inner, ([1, 2], [1]))
    with pytest.raises(TypeError, match="must have a leaf"):
        tree.transpose(tree.structure(()), None, ())


def test_empty_folds_need_a_start():
    with pytest.raises(TypeError, match="initializer"):
        tree.reduce(operator.add, [])
    with pytest.raises(TypeError, match="identity"):
        tree.reduce_associative(operator.add, [])
    assert tree.reduce(operator.add, [], 5) == tree.reduce_associative(max, [], identity=5) == 5


def test_a_flatten_function_must_return_children_and_metadata():
    class NoPair: ...

    class NoChildren: ...

    tree.register_pytree_node(NoPair, lambda node: [1], lambda _, children: NoPair())
    tree.register_pytree_node(NoChildren, lambda node: (3, None), lambda _, c: NoChildren())
    with pytest.raises(ValueError, match=r"NoPair must return a pair"):
        tree.flatten(NoPair())
    with pytest.raises(ValueError, match=r"NoChildren must return children that can be iterated"):
        tree.flatten(NoChildren())


# --- Registration --------------------------------------------------------------------------------


def test_a_class_is_registered_once():
    with pytest.raises(ValueError, match=r"once.*Box"):
        tree.register_pytree_node_class(Box)
    with pytest.raises(ValueError, match="once"):
        tree.register_static(dict)
    with pytest.raises(TypeError, match="must be a class"):
        tree.register_static(3)
    with pytest.raises(TypeError, match="flatten_func must be callable"):
        tree.register_pytree_node(set, 1, 2)


def test_registration_takes_effect_after_a_class_was_seen_as_a_leaf_or_named_tuple():
    class Late:
        content = 1

    Named = collections.namedtuple("Named", "x y")
    assert tree.structure(Late()) is tree.structure(0)
    assert tree.leaves(Named(1, 2)) == [1, 2]
    tree.register_pytree_node(Late, lambda node: ([node.content], None), lambda _, c: Late())
    tree.register_pytree_node(Named, lambda node: ([node.y], node.x), lambda x, c: Named(x, *c))
    assert tree.leaves(Late()) == [1]
    assert tree.leaves(Named(1, 2)) == [2]
    assert repr(tree.structure(Named(1, 2))) == "PyTreeDef(CustomNode(Named[1], [*]))"


def test_a_dataclass_takes_its_fields_from_the_declaration():
    @tree.register_dataclass
    @dataclasses.dataclass
    class Model:
        weight: int
        size: int = tree.static(metadata={"doc": "units"})
        cache: int = dataclasses.field(default=0, init=False)

    model = Model(1, 2)
    assert repr(tree.structure(model)) == "PyTreeDef(CustomNode(Model[(2,)], [*]))"
    assert tree.map(lambda x: x + 1, model) == Model(2, 2)
    assert tree.keystr(tree.leaves_with_path(model)[0][0]) == ".weight"
    assert dataclasses.fields(Model)[1].metadata == {"doc": "units", "static": True}


@pytest.mark.parametrize(
    ("data", "meta", "message"),
    [
        (["x"], [], r"\['y'\] are missing.*drop_fields"),
        (["x", "z"], ["y"], r"got \['z'\] besides"),
        (["x", "y"], ["y"], r"overlap; got \['y'\]"),
        (["x", "y"], None, "both or neither"),
    ],
)
def test_a_dataclass_must_name_its_fields(jax_util, data, meta, message):
    for register in (tree.register_dataclass, jax_util.register_dataclass):
        node_type = dataclasses.make_dataclass("Node", ["x", "y"])
        with pytest.raises((TypeError, ValueError)) as error:
            register(node_type, data, meta)
        if register is tree.register_dataclass:
            error.match(message)


def test_dropped_fields_and_plain_classes():
    Node = dataclasses.make_dataclass("Node", ["x", ("y", int, 7)])
    tree.register_dataclass(Node, ["x"], [], ["y"])
    assert tree.map(lambda x: x, Node(1, 2)) == Node(1, 7)

    class Plain:
        def __init__(self, x):
            self.x = x

    with pytest.raises(TypeError, match="no dataclass"):
        tree.register_dataclass(Plain)
    assert tree.map(str, tree.register_dataclass(Plain, ["x"], [])(3)).x == "3"


def test_a_keyed_class_may_leave_out_the_plain_flatten():
    @tree.register_pytree_with_keys_class
    class Both:
        def __init__(self, x):
            self.x = x

        def tree_flatten(self):
            return (self.x,), "plain"

        def tree_flatten_with_keys(self):
            return [(tree.GetAttrKey("x"), self.x)], "plain"

        @classmethod
        def tree_unflatten(cls, metadata, children):
            return cls(*children)

    assert tree.flatten_one_level(Both(1)) == ((1,), "plain")
    assert tree.flatten_one_level_with_keys(Both(1)) == ([(tree.GetAttrKey("x"), 1)], "plain")


def test_one_level_agrees_with_jax(jax_util):
    for value in ({"b": (1, 2), "a": 3}, (1, [2]), None, Box(1, "x"), Layer(1)):
        mine, theirs = tree.flatten_one_level(value), jax_util.flatten_one_level(value)
        assert list(mine[0]) == list(theirs[0])
        assert mine[1] == theirs[1]
    with pytest.raises(ValueError, match="a leaf, a int"):
        tree.flatten_one_level(1)


# --- Partial, helpers, names ---------------------------------------------------------------------


def test_partial_is_a_node_as_in_jax(jax_util):
    mine, theirs = (part(max, 1, (2,), key=None) for part in (tree.Partial, jax_util.Partial))
    assert repr(tree.structure(mine)) == repr(jax_util.tree_structure(theirs))
    again = tree.map(lambda x: x + 1, tree.Partial(operator.sub, 5, k=1))
    assert (again.func, again.args, again.keywords) == (operator.sub, (6,), {"k": 2})


def test_a_partial_of_a_partial_keeps_the_inner_one_whole(jax_util):
    for inner in (tree.Partial(operator.sub, 10), functools.partial(operator.sub, 10)):
        outer = tree.Partial(inner, 3)
        assert outer() == 7
        assert tree.leaves(outer) == [3]
        assert tree.structure(outer) == tree.structure(tree.Partial(inner, 4))
    assert jax_util.tree_leaves(jax_util.Partial(jax_util.Partial(operator.sub, 10), 3)) == [3]


def test_structures_of_tuples_and_leaves(jax_util):
    parts = [tree.structure(1), tree.structure({"a": None})]
    assert tree.treedef_tuple(parts) == tree.structure((1, {"a": None}))
    assert tree.treedef_children(tree.treedef_tuple(parts)) == parts
    for value in (1, None, (), [1], {"a": {}}):
        expected = jax_util.treedef_is_leaf(jax_util.tree_structure(value))
        assert tree.treedef_is_leaf(tree.structure(value)) == expected
    for values in ([1, 2], [1, None], [(1,)], []):
        assert tree.all_leaves(values) == jax_util.all_leaves(values)
    for node_type in (dict, int, Pair, Layer, set, type(None)):
        assert tree.is_tree_node(node_type) == jax_util.is_tree_node(node_type) or node_type is Pair


def test_the_registry_agrees_with_jax(jax_util):
    mine, theirs = tree_util.default_registry, jax_util.default_registry
    for value in ({"b": (1, 2), "a": 3}, (1, [2]), None, 1):
        assert mine.is_node(type(value)) == theirs.is_node(type(value))
        for method in ("flatten_one_level", "flatten_one_level_with_keys"):
            one, other = getattr(mine, method)(value), getattr(theirs, method)(value)
            assert str(one and (*one[0], one[1])) == str(other and (*other[0], other[1]))
        assert mine.flatten(value)[0] == theirs.flatten(value)[0]
        assert str(mine.flatten_with_path(value)[0]) == str(theirs.flatten_with_path(value)[0])
    assert mine.flatten([1, [2]], lambda x: x == [2])[0] == [1, [2]]
    assert mine.flatten_with_path([1, [2]], lambda path, x: x == [2])[0][1][1] == [2]


def test_the_registry_registers():
    class Both:
        def __init__(self, x, y):
            self.x, self.y = x, y

    class Fields(Both):
        pass

    registry = tree_util.default_registry
    registry.register_node(Both, lambda b: ((b.x, b.y), None), lambda _, xs: Both(*xs))
    registry.register_dataclass_node(Fields, ["x"], ["y"])
    assert tree.leaves((Both(1, 2), Fields(3, 4))) == [1, 2, 3]


def test_keys_of_a_path_may_be_anything(jax_util):
    for arguments in ({}, {"simple": True, "separator": "/"}):
        mine = tree.keystr((tree.DictKey("a"), "x", 3), **arguments)
        assert mine == jax_util.keystr((jax_util.DictKey("a"), "x", 3), **arguments)


def test_tree_util_has_the_names_of_jax_and_the_functions_of_tree(jax_util):
    missing = {name for name in dir(jax_util) if name[0] != "_"} - set(tree_util.__all__)
    assert missing == set()
    assert tree_util.tree_map is tree.map and tree_util.PyTreeDef is tree.TreeDef
