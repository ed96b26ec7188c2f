"""Exported functions: what survives the way through bytes, how it is called and differentiated, and
that damaged, foreign and newer bytes are refused and never executed."""

from __future__ import annotations

import collections
import importlib
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export as jexport

import xcube
import xcube.numpy as jnp
from xcube import dtypes, errors, export, lax, nn, random
from xcube.experimental import checkify
from xcube.ir import Jaxpr, subjaxprs
from xcube.lowering.device import default_device
from xcube.lowering.export import sealing
from xcube.transforms import portable

S = xcube.ShapeDtypeStruct
F32 = np.float32


def again(exported: export.Exported, order: int = 0) -> export.Exported:
    """The function after its way through bytes."""
    return export.deserialize(exported.serialize(order))


def exported(function: Callable[..., Any], *args: Any, order: int = 0) -> export.Exported:
    return again(export.export(xcube.jit(function))(*args), order)


# programs -------------------------------------------------------------------------------------

TABLES = [importlib.import_module(path.stem) for path in Path(__file__).parent.glob("ops_*.py")]
ROWS = [row for table in TABLES for row in table.ROWS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_operation_survives(row: Any) -> None:
    for sample in row.samples:
        args = sample(np.random.default_rng(0))
        before = export.export(xcube.jit(row.function))(*args)
        data = before.serialize()
        after = export.deserialize(data)
        assert str(after.jaxpr) == str(before.jaxpr)
        assert (after.in_avals, after.out_avals) == (before.in_avals, before.out_avals)
        assert (after.in_tree, after.out_tree) == (before.in_tree, before.out_tree)
        assert after.serialize() == data


def test_the_vocabulary_is_all_that_does_not_call_python() -> None:
    used: set[str] = set()

    def collect(jaxpr: Jaxpr) -> None:
        for eqn in jaxpr.equations:
            used.add(eqn.primitive.name)
            for inner in subjaxprs(eqn):
                collect(inner)

    for row in ROWS:
        for sample in row.samples:
            args = sample(np.random.default_rng(0))
            collect(portable.portable(xcube.make_jaxpr(row.function)(*args)))
    others = {"jit", "scan", "while", "cond", "constant", "launch"}
    assert used | others == set(portable.PRIMITIVES)


def halved(x: Any) -> Any:
    return lax.while_loop(lambda c: c.sum() > 1, lambda c: c / 2, x)


def loop(x: Any) -> Any:
    carry, ys = lax.scan(lambda c, y: (c + y, jnp.sin(c) * y), x, jnp.ones((4, 3)) * x)
    return lax.cond(carry[0] > 0, lambda c: c * 2, lambda c: -c, carry) + ys[0]


@xcube.custom_jvp
def squared(x: Any) -> Any:
    return x * x


squared.defjvp(lambda primals, tangents: (squared(*primals), 10.0 * primals[0] * tangents[0]))


@xcube.custom_vjp
def tripled(x: Any) -> Any:
    return 3 * x


tripled.defvjp(lambda x: (tripled(x), x), lambda x, ct: (ct * x,))

WEIGHTS = np.arange(9, dtype=F32).reshape(3, 3)


@xcube.custom_jvp
def ruled(x: Any) -> Any:
    return x * x


@ruled.defjvp
def ruled_jvp(primals: Any, tangents: Any) -> Any:
    return ruled(*primals), tangents[0] * jnp.asarray(WEIGHTS)[1] * primals[0]


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "control flow": loop,
    "nested calls": xcube.jit(lambda x: xcube.jit(jnp.tanh)(x) + xcube.jit(jnp.tanh)(x * 2)),
    "constants": lambda x: jnp.asarray(WEIGHTS) @ x + jnp.asarray(WEIGHTS)[1],
    "a checkpoint": xcube.checkpoint(lambda x: jnp.sin(jnp.sin(x))),
    "a custom jvp": squared,
    "a custom vjp": tripled,
    "vmap of grad": xcube.vmap(xcube.grad(lambda x: jnp.sin(x) * x)),
    "a name": lambda x: xcube.ad_checkpoint.checkpoint_name(x * 2, "doubled"),
    "random numbers": lambda x: xcube.random.normal(xcube.random.key(3), (3,)) * x,
    "a linear solve": lambda x: lax.custom_linear_solve(
        lambda y: y * 4, x, lambda matvec, b: b / matvec(1.0), symmetric=True
    ),
    "arrays of a rule": lambda x: lax.scan(lambda c, _: (ruled(c), None), x, None, length=2)[0],
    "narrow types": lambda x: x.astype(jnp.bfloat16).astype(jnp.float8_e4m3fn).astype(F32),
}
ARGUMENT = np.array([0.5, 1.0, 2.0], F32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_derivatives_survive(name: str) -> None:
    function = FUNCTIONS[name]
    found = exported(function, ARGUMENT, order=1)
    np.testing.assert_array_equal(found.call(ARGUMENT), xcube.jit(function)(ARGUMENT))
    want = xcube.grad(lambda x: function(x).sum())(ARGUMENT)
    np.testing.assert_allclose(xcube.grad(lambda x: found.call(x).sum())(ARGUMENT), want, 1e-6)


def test_a_while_loop_survives_without_a_derivative() -> None:
    source = export.export(xcube.jit(halved))(ARGUMENT)
    np.testing.assert_array_equal(again(source).call(ARGUMENT), halved(ARGUMENT))
    with pytest.raises(ValueError, match=r"while_loop: there is no reverse-mode.*test_export.py"):
        source.vjp()


def test_a_shared_program_and_a_shared_constant_are_stored_once() -> None:
    shared, big = xcube.jit(lambda x: jnp.sin(x) @ jnp.asarray(WEIGHTS)), jnp.arange(4096.0)
    x = np.ones((3, 3), F32)
    once, twice = (
        export.export(xcube.jit(f))(x).serialize()
        for f in (shared, lambda x: shared(shared(x)) + big[0] * big[1])
    )
    assert len(twice) < len(once) + 4 * 4096 + 1000
    held = export.export(xcube.jit(lambda x: x * big))(np.ones(4096, F32))
    assert len(held.serialize(1)) < len(held.serialize()) + 1000


def test_another_process_computes_the_same() -> None:
    data = export.export(xcube.jit(lambda x: loop(halved(x))))(ARGUMENT).serialize()
    program = (
        "import sys; from xcube import export; "
        "f = export.deserialize(bytes.fromhex(sys.argv[1])); "
        "import numpy as np; x = np.ones(3, np.float32); "
        "print(np.asarray(f.call(f.call(x))).tobytes().hex())"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, data.hex()],
        cwd=Path(xcube.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    ones = np.ones(3, F32)
    want = loop(halved(loop(halved(ones))))
    np.testing.assert_allclose(np.frombuffer(bytes.fromhex(result.stdout), F32), want, 1e-6)


def test_the_line_of_the_user_survives_without_its_path() -> None:
    data = export.export(xcube.jit(lambda x: jnp.sin(x)))(ARGUMENT).serialize()
    (eqn,) = export.deserialize(data).jaxpr.equations
    assert str(eqn.source).startswith("test_export.py:")
    assert str(Path(__file__).parent).encode() not in data


# the interface --------------------------------------------------------------------------------


def model(x: Any, y: Any, *, k: Any = 1.0) -> Any:
    return {"a": (x @ y) * k, "b": [x.sum()]}


SHAPES = ((3, 4), F32), ((4, 5), F32)
SHOWN = ("fun_name", "in_tree", "in_avals", "out_tree", "out_avals", "platforms", "nr_devices")


@pytest.mark.parametrize("name", SHOWN)
def test_an_exported_function_shows_what_jax_shows(name: str) -> None:
    def of(library: Any, module: Any) -> str:
        args = [library.ShapeDtypeStruct(*shape) for shape in SHAPES]
        return str(getattr(module.export(library.jit(model))(*args, k=2.0), name))

    assert of(xcube, export) == of(jax, jexport)
    args = [S(*shape) for shape in SHAPES]
    assert str(getattr(again(export.export(xcube.jit(model))(*args, k=2.0)), name)) == of(
        jax, jexport
    )


ONES = np.ones((3, 4), F32), np.ones((4, 5), F32)
WRONG = {
    "a keyword is missing": (ONES, {}, "keys"),
    "a shape": ((ONES[0], ONES[1][:, :3]), {"k": 1.0}, r"args\[1\] must be f32\[4,5\]"),
    "a dtype": ((ONES[0].astype(np.int32), ONES[1]), {"k": 1.0}, r"args\[0\].*i32\[3,4\]"),
    "a tuple for an array": (((ONES[0],), ONES[1]), {"k": 1.0}, r"leaf where.*\(\*,\)"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_call_takes_the_exported_signature_only(fault: str) -> None:
    args, kwargs, message = WRONG[fault]
    theirs = jexport.export(jax.jit(model))(*ONES, k=1.0)
    with pytest.raises(ValueError):
        theirs.call(*args, **kwargs)
    ours = export.export(xcube.jit(model))(*ONES, k=1.0)
    with pytest.raises(ValueError, match=rf"(?s){message}.*test_export.py"):
        ours.call(*args, **kwargs)


def test_only_jitted_functions_and_known_platforms_are_exported() -> None:
    with pytest.raises(ValueError, match="result of jit"):
        export.export(model)
    with pytest.raises(ValueError, match="platforms must be some of cpu, cuda"):
        export.export(xcube.jit(model), platforms=("abacus",))


def test_a_function_runs_on_its_platforms() -> None:
    jitted = xcube.jit(lambda x: x * 2)
    assert again(export.export(jitted, platforms=("cuda", "cpu"))(1.0)).call(2.0) == 4
    elsewhere = again(export.export(jitted, platforms=("cuda",))(1.0))
    for call in (elsewhere.call, xcube.jit(elsewhere.call)):
        with pytest.raises(ValueError, match=r"\('cuda',\) but it is used on 'cpu'"):
            call(2.0)
    anywhere = export.DisabledSafetyCheck.platform()
    found = again(export.export(jitted, platforms=("cuda",), disabled_checks=[anywhere])(1.0))
    assert found.disabled_safety_checks == (anywhere,)
    assert found.call(2.0) == 4


def test_static_and_donated_arguments() -> None:
    jitted = xcube.jit(lambda x, n: x * n, static_argnums=1, donate_argnums=0)
    x: Any = jnp.ones(3) + 0
    found = again(export.export(jitted)(x, 3))
    np.testing.assert_array_equal(found.call(x), [3, 3, 3])
    assert not x.is_deleted()


def test_transforms_of_a_call() -> None:
    found = exported(lambda x: jnp.sin(x).sum() * x, ARGUMENT, order=1)
    rows = np.stack([ARGUMENT, 2 * ARGUMENT])
    function = lambda x: jnp.sin(x).sum() * x  # noqa: E731
    np.testing.assert_allclose(xcube.vmap(found.call)(rows), xcube.vmap(function)(rows), 1e-6)
    np.testing.assert_allclose(xcube.jit(found.call)(ARGUMENT), function(ARGUMENT), 1e-6)
    grads = xcube.jit(xcube.vmap(xcube.grad(lambda x: found.call(x)[0])))(rows)
    np.testing.assert_allclose(grads, xcube.vmap(xcube.grad(lambda x: function(x)[0]))(rows), 1e-6)
    with pytest.raises(TypeError, match="jvp"):
        xcube.jvp(found.call, (ARGUMENT,), (ARGUMENT,))


def test_a_caller_can_be_exported_again() -> None:
    inner = exported(squared, 1.0, order=1)
    outer = exported(lambda x: inner.call(x) + 1, 1.0, order=1)
    assert float(outer.call(3.0)) == 10
    assert float(xcube.grad(outer.call)(3.0)) == 30


# derivatives ----------------------------------------------------------------------------------


def test_derivatives_are_there_to_the_order_that_was_stored() -> None:
    source = export.export(xcube.jit(lambda x: x**4))(2.0)
    assert source.has_vjp() and source.vjp().vjp().has_vjp()
    assert not again(source).has_vjp()
    found = again(source, 2)
    assert found.has_vjp() and found.vjp().has_vjp() and not found.vjp().vjp().has_vjp()
    assert float(xcube.grad(found.call)(2.0)) == 32
    assert float(xcube.grad(xcube.grad(found.call))(2.0)) == 48
    with pytest.raises(ValueError, match="no VJP is available"):
        xcube.grad(xcube.grad(xcube.grad(found.call)))(2.0)
    with pytest.raises(ValueError, match="no VJP is available"):
        found.serialize(3)
    with pytest.raises(ValueError, match="vjp_order must be >= 0; got -1"):
        found.serialize(-1)


def test_custom_rules_are_in_the_stored_derivative_only() -> None:
    found = exported(squared, 3.0, order=2)
    assert float(found.call(3.0)) == 9
    assert float(xcube.grad(found.call)(3.0)) == 30
    theirs = jax.custom_jvp(lambda x: x * x)
    theirs.defjvp(lambda p, t: (theirs(*p), 10.0 * p[0] * t[0]))
    assert float(xcube.grad(xcube.grad(found.call))(3.0)) == jax.grad(jax.grad(theirs))(3.0)


def test_the_vjp_is_jax_s() -> None:
    def function(n: Any, x: Any) -> Any:
        return x * n, n + 1

    ours = export.export(xcube.jit(function))(np.int32(2), F32(1)).vjp()
    theirs = jexport.export(jax.jit(function))(np.int32(2), F32(1)).vjp()
    assert str(ours.in_tree) == str(theirs.in_tree)
    shape = lambda avals: [(a.shape, a.dtype) for a in avals]  # noqa: E731
    assert shape(ours.in_avals) == shape(theirs.in_avals)
    assert shape(ours.out_avals) == shape(theirs.out_avals)
    zero = np.zeros((), dtypes.float0)
    for found in (ours, again(ours)):
        first, second = found.call(np.int32(2), F32(1), F32(3), zero)
        assert first.dtype == dtypes.float0
        assert float(second) == 6


def test_integers_beside_floats_in_a_differentiated_call() -> None:
    found = exported(lambda n, x: (n + 1, x * n), np.int32(3), F32(2), order=2)
    grad = xcube.grad(lambda x: found.call(np.int32(3), x)[1])
    assert float(grad(F32(2))) == 3
    assert float(xcube.grad(lambda x: grad(x) * x)(F32(2))) == 3


# trees ----------------------------------------------------------------------------------------


class Point(NamedTuple):
    x: Any
    y: Any


@xcube.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    weight: Any
    name: str = field(default="layer", metadata={"static": True})


class Hidden:
    """A node whose metadata are no plain values."""

    def __init__(self, x: Any, kind: type) -> None:
        self.x, self.kind = x, kind


xcube.tree_util.register_pytree_node(
    Hidden, lambda node: ((node.x,), node.kind), lambda kind, children: Hidden(children[0], kind)
)

TREES: dict[str, Any] = {
    "nested": {"b": 1.0, "a": (2.0, [3.0, None], ())},
    "keys that are no strings": {1: 1.0, 2: {(1, "a"): 2.0, (2, "b"): 3.0}},
    "ordered": collections.OrderedDict([("b", 1.0), ("a", 2.0)]),
    "a named tuple": Point(1.0, [Point(2.0, 3.0)]),
    "a dataclass": Layer(1.0, "first"),
    "keys of random numbers": xcube.random.key(0),
    "modules": xcube.nn.Linear(2, 3, key=xcube.random.key(0)),
}


@pytest.mark.parametrize("name", TREES)
def test_containers_survive(name: str) -> None:
    value = TREES[name]
    found = exported(lambda x: (x, x), value)
    assert found.in_tree == xcube.tree.structure(((value,), {}))
    result = found.call(value)[1]
    assert xcube.tree.structure(result) == xcube.tree.structure(value)


def test_a_class_that_cannot_be_found_again_is_refused() -> None:
    class Local(NamedTuple):
        x: Any

    with pytest.raises(errors.ExportError, match=r"Local.*register_namedtuple_serialization"):
        exported(lambda x: x, Local(1.0))
    with pytest.raises(errors.ExportError, match=r"metadata of Hidden.*register_pytree_node"):
        exported(lambda x: x, Hidden(1.0, int))
    with pytest.raises(errors.ExportError, match=r"metadata of OrderedDict must be plain"):
        exported(lambda x: x, collections.OrderedDict([(Hidden, 1.0)]))
    with pytest.raises(errors.ExportError, match=r"metadata of defaultdict"):
        exported(lambda x: x, collections.defaultdict(list, {"a": 1.0}))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations of one test."""
    trees = importlib.import_module("xcube.lowering.export.trees")
    monkeypatch.setattr(trees, "_by_type", {})
    monkeypatch.setattr(trees, "_by_name", {})


@pytest.mark.usefixtures("registry")
def test_registered_classes_survive() -> None:
    class Local(NamedTuple):
        x: Any

    kinds = {b"int": int, b"str": str}
    export.register_namedtuple_serialization(Local, serialized_name="tests.Local")
    export.register_pytree_node_serialization(
        Hidden,
        serialized_name="tests.Hidden",
        serialize_auxdata=lambda kind: kind.__name__.encode(),
        deserialize_auxdata=kinds.__getitem__,
        from_children=lambda kind, children: Hidden(children[0], kind),
    )
    result = exported(lambda x: x, Local(Hidden(1.0, str))).call(Local(Hidden(2.0, str)))
    assert (type(result), result.x.kind, float(result.x.x)) == (Local, str, 2.0)


@pytest.mark.usefixtures("registry")
def test_a_registration_is_made_once_and_needed() -> None:
    register = export.register_namedtuple_serialization
    register(Point, serialized_name="tests.Point")
    data = export.export(xcube.jit(lambda p: p))(Point(1.0, 2.0)).serialize()
    for nodetype, name in ((Point, "tests.Other"), (NamedTuple("Q", [("x", Any)]), "tests.Point")):
        with pytest.raises(ValueError, match="duplicate serialization registration"):
            register(nodetype, serialized_name=name)
    with pytest.raises(ValueError, match="takes a named tuple"):
        register(dict, serialized_name="tests.dict")
    trees = importlib.import_module("xcube.lowering.export.trees")
    trees._by_name.clear()
    with pytest.raises(errors.ExportError, match=r"'tests.Point'.*Register it"):
        export.deserialize(data)
    trees._by_type.clear()
    register(NamedTuple("Q", [("x", Any), ("z", Any)]), serialized_name="tests.Point")
    with pytest.raises(errors.ExportError, match=r"fields \('x', 'y'\)"):
        export.deserialize(data)


# what cannot be exported ----------------------------------------------------------------------

CALLS: dict[str, Callable[[Any], Any]] = {
    "pure_callback": lambda x: xcube.pure_callback(lambda v: v, S((), F32), x),
    "debug_callback": lambda x: xcube.debug.print("{}", x) or x,
    "check": lambda x: checkify.check(x > 0, "negative") or x,
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_python_are_refused_where_they_are_exported(name: str) -> None:
    function = CALLS[name]
    nested = lambda x: lax.cond(x > 0, function, lambda x: x, x)  # noqa: E731
    for exporting in (function, nested):
        with pytest.raises(errors.ExportError, match=rf"export: {name}.*test_export.py"):
            export.export(xcube.jit(exporting))(1.0)


def test_a_debug_check_is_left_out() -> None:
    check = checkify.debug_check
    assert exported(lambda x: check(x > 0, "negative") or x * 2, 1.0).call(2.0) == 4


def test_a_tracer_is_refused() -> None:
    def outer(x: Any) -> Any:
        return export.export(xcube.jit(lambda y: y * x))(1.0)

    with pytest.raises(errors.ExportError, match="close over traced values"):
        xcube.jit(outer)(1.0)


# bytes ----------------------------------------------------------------------------------------


def payload() -> bytes:
    function = FUNCTIONS["control flow"]
    whole = lambda x: (Point(function(x), WEIGHTS @ x), x[1:].sum().astype(np.int32))  # noqa: E731
    return sealing.opened(export.export(xcube.jit(whole))(ARGUMENT).serialize(1))


PAYLOAD = payload()
SEALED = bytes(sealing.sealed(PAYLOAD))


@pytest.mark.parametrize("data", [b"", b"x", pickle.dumps(1), b"xcubefun", b"PK" + bytes(99)])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="must be what serialize made"):
        export.deserialize(data)


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(errors.ExportError, match=r"version 1..1; got version 2.*newer one"):
        export.deserialize(sealing.sealed(PAYLOAD, version=2))
    lying = SEALED[:8] + struct.pack("<I", 0) + SEALED[12:]
    with pytest.raises(errors.ExportError, match="got version 0"):
        export.deserialize(lying)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_altered_bytes_are_refused(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(SEALED) - 1))
    flip = data.draw(st.integers(1, 255))
    altered = bytearray(SEALED)
    altered[at] ^= flip
    for damaged in (altered, SEALED[:at], SEALED + bytes(1 + at % 3)):
        with pytest.raises(errors.ExportError):
            export.deserialize(damaged)


@settings(deadline=None, max_examples=1000)
@given(st.data())
def test_forged_bytes_are_refused_or_a_program(data: st.DataObject) -> None:
    """With a right checksum: whatever they say, it is a clear error or a program that is typed."""
    forged = bytearray(PAYLOAD)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(forged) - 1))
        new = data.draw(st.binary(max_size=3))
        forged[at : at + data.draw(st.integers(0, 3))] = new
    try:
        found = export.deserialize(sealing.sealed(bytes(forged)))
    except errors.ExportError as error:
        assert "deserialize: " in str(error)
    else:
        assert str(found.jaxpr)


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=200))
def test_random_payloads_are_refused(data: bytes) -> None:
    with pytest.raises(errors.ExportError):
        export.deserialize(sealing.sealed(data))


def test_deep_and_long_payloads_are_refused() -> None:
    start = PAYLOAD.index(b"t")
    for forged in (b"t\x01" * 100_000, b"\xff" * 100, b"\x00" + b"\xff" * 8 + b"\x7f" + bytes(50)):
        with pytest.raises(errors.ExportError):
            export.deserialize(sealing.sealed(PAYLOAD[:start] + forged))


def test_a_program_that_does_not_fit_together_is_refused() -> None:
    data = export.export(xcube.jit(lambda x: jnp.concatenate([x, x])))(ARGUMENT).serialize()
    inside = sealing.opened(data)
    place = inside.index(b"\x01\x03\x00")  # the shape of x: one dimension, three long, not weak
    forged = inside[:place] + b"\x01\x04\x00" + inside[place + 3 :]
    with pytest.raises(errors.ExportError, match=r"f32\[6\].*f32\[8\]"):
        export.deserialize(sealing.sealed(forged))


def test_nothing_unknown_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    data = export.export(xcube.jit(lambda x: jnp.sin(x)))(ARGUMENT).serialize()
    few = {name: p for name, p in portable.PRIMITIVES.items() if name != "sin"}
    monkeypatch.setattr(export, "_VOCABULARY", export.Vocabulary(few, {}, export.from_host))
    with pytest.raises(errors.ExportError, match=r"no primitive 'sin'"):
        export.deserialize(data)


def test_a_class_is_not_imported_for_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    data = export.export(xcube.jit(lambda p: p))(Point(1.0, 2.0)).serialize()
    monkeypatch.delitem(sys.modules, __name__)
    with pytest.raises(errors.ExportError, match=r"Point, which is not loaded"):
        export.deserialize(data)
    assert __name__ not in sys.modules


def test_arrays_live_on_the_default_device() -> None:
    (held,) = exported(lambda x: x * jnp.asarray(WEIGHTS), WEIGHTS).jaxpr.consts
    assert held._device is default_device()
    np.testing.assert_array_equal(held, WEIGHTS)


def test_a_model_that_holds_an_activation_is_an_argument() -> None:
    model, x = nn.MLP(2, 8, 1, key=random.key(0)), jnp.ones((3, 2))
    data = export.export(xcube.jit(lambda model, x: model(x)))(model, x).serialize()
    np.testing.assert_array_equal(export.deserialize(data).call(model, x), model(x))
