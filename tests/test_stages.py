"""Stages: what trace, lower and compile show, what compiled functions take, what things cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax as jlax
from jax import numpy as jjnp

import xcube
import xcube.numpy as jnp
from xcube import lax, stages
from xcube.array import DeviceArray
from xcube.errors import DeviceError, TraceError
from xcube.lowering.device.cpu import Cpu
from xcube.primitives.cost import Cost, jaxpr_cost

S = xcube.ShapeDtypeStruct
X, Y = S((3, 4), np.float32), S((4, 5), np.float32)


def model(x: Any, y: Any, *, k: Any = 1.0) -> Any:
    return {"a": (x @ y) * k, "b": [x.sum()]}


class Counted:
    """A function that counts how often it runs, that is, is traced."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, x: Any) -> Any:
        self.count += 1
        return x * 2


# what the stages show -------------------------------------------------------------------------

SHOWN = ("in_tree", "out_tree", "in_avals", "args_info", "donate_argnums", "out_info")


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("stage", ["trace", "lower"])
def test_stages_show_what_jax_shows(stage: str, name: str) -> None:
    found = []
    for library in (jax, xcube):
        x, y = (library.ShapeDtypeStruct(s.shape, s.dtype) for s in (X, Y))
        jitted = library.jit(model, donate_argnums=0)
        found.append(str(getattr(getattr(jitted, stage)(x, y, k=2.0), name)))
    assert found[1] == found[0]


def test_a_traced_function_has_its_program() -> None:
    weights = jnp.arange(4.0)
    traced = xcube.jit(lambda x: x * weights).trace(X)
    assert str(traced.jaxpr) == str(xcube.make_jaxpr(lambda x: x * weights)(X))
    assert traced.jaxpr.consts[0] is weights
    assert traced.fun_name == "<lambda>"
    assert traced.out_avals.shape == (3, 4)
    np.testing.assert_array_equal(traced(jnp.ones((3, 4)))[0], [0, 1, 2, 3])
    assert repr(traced) == "<Traced <lambda>(f32[3,4]) -> f32[3,4]>"


def test_eval_shape_of_a_jitted_function_runs_nothing() -> None:
    huge = S((1 << 20, 1 << 20), np.float32)
    assert xcube.jit(lambda x: x.sum(0)).eval_shape(huge) == S((1 << 20,), np.float32)


def test_static_arguments_are_left_out() -> None:
    lowered = xcube.jit(lambda x, n: x * n, static_argnums=1).lower(X, 3)
    assert str(lowered.in_tree) == "PyTreeDef(((*,), {}))"
    np.testing.assert_array_equal(lowered.compile()(jnp.ones((3, 4))), np.full((3, 4), 3))


def test_text_of_each_dialect() -> None:
    lowered = xcube.jit(lambda x: jnp.exp(x) * 2.0).lower(X)
    assert "exp a" in lowered.as_text("jaxpr")
    assert lowered.as_text("program").startswith("program <lambda>: 1 launches")
    assert lowered.as_text("cube").startswith("kernel ")
    assert lowered.as_text() == f"{lowered.as_text('jaxpr')}\n\n{lowered.as_text('program')}"
    assert lowered.compiler_ir().launches
    compiled = lowered.compile()
    assert "program <lambda>" in compiled.as_text() and "fmul" in compiled.as_text()
    assert compiled.as_text("cube") == lowered.as_text("cube")
    with pytest.raises(ValueError, match=r"jaxpr, program, cube.*'hlo'.*test_stages.py"):
        lowered.as_text("hlo")


def test_what_jit_gives_is_wrapped() -> None:
    assert isinstance(xcube.jit(model), stages.Wrapped)
    assert not isinstance(model, stages.Wrapped)


def test_a_program_holds_no_tracer() -> None:
    def outer(x: Any) -> Any:
        return xcube.jit(lambda y: y * x).lower(1.0).compile()(1.0)

    with pytest.raises(TraceError, match=r"close over.*f32\[\].*test_stages.py"):
        xcube.jit(outer)(2.0)


# calling --------------------------------------------------------------------------------------


def test_a_compiled_function_never_traces_and_shares_its_code() -> None:
    counted = Counted()
    f = xcube.jit(counted)
    compiled = f.lower(X).compile()
    for _ in range(2):
        np.testing.assert_array_equal(compiled(np.ones((3, 4), np.float32)), np.full((3, 4), 2))
    entry = compiled._entry
    linked = dict(entry.linked)
    f(jnp.ones((3, 4)))
    assert (counted.count, f._cache_size()) == (1, 1)
    assert entry.linked == linked and len(linked) == 1
    assert compiled.runtime_executable() is next(iter(linked.values())).executable
    f.clear_cache()
    np.testing.assert_array_equal(compiled(jnp.ones((3, 4))), np.full((3, 4), 2))


ONES = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
WRONG = {
    "a keyword is missing": (ONES, {}, "keys"),
    "an argument is missing": (ONES[:1], {"k": 1.0}, "length"),
    "a shape": (
        (ONES[0], ONES[1][:, :3]),
        {"k": 1.0},
        r"args\[1\] must be f32\[4,5\], got f32\[4,3\]",
    ),
    "a dtype": ((ONES[0].astype(np.int32), ONES[1]), {"k": 1.0}, r"args\[0\].*i32\[3,4\]"),
    "a kind of number": (ONES, {"k": 1}, r"kwargs\['k'\] must be f32\[\], got i32\[\]"),
    "a tuple for an array": (((ONES[0],), ONES[1]), {"k": 1.0}, r"leaf where.*\(\*,\)"),
    "no array": ((ONES[0], "a"), {"k": 1.0}, r"args\[1\] is str"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_compiled_function_takes_its_signature_only(fault: str) -> None:
    args, kwargs, message = WRONG[fault]
    theirs = jax.jit(model).lower(X, Y, k=1.0).compile()
    with pytest.raises(TypeError):
        theirs(*args, **kwargs)
    ours = xcube.jit(model).lower(X, Y, k=1.0).compile()
    with pytest.raises(TypeError, match=rf"(?s){message}.*test_stages.py"):
        ours(*args, **kwargs)


def test_weak_types_and_numpy_arrays_are_as_good() -> None:
    compiled = xcube.jit(model).lower(X, Y, k=1.0).compile()
    for k in (2.0, jnp.float32(2), np.float32(2)):
        np.testing.assert_array_equal(compiled(*ONES, k=k)["a"], np.full((3, 5), 8))


@pytest.mark.parametrize(
    "transform",
    [xcube.vmap, xcube.jit, lambda f: xcube.grad(lambda x: f(x).sum())],
    ids=["vmap", "jit", "grad"],
)
def test_a_compiled_function_cannot_be_transformed(transform: Callable[..., Any]) -> None:
    compiled = xcube.jit(lambda x: x * 2).lower(X).compile()
    with pytest.raises(TypeError, match="compiled function cannot be transformed"):
        transform(compiled)(jnp.ones((3, 4)))


def test_donation_holds_ahead_of_time() -> None:
    compiled = (
        xcube.jit(lambda x: x + 1, donate_argnums=0).lower(S((1 << 18,), np.float32)).compile()
    )
    x: Any = jnp.ones(1 << 18) + 0
    pointer = x.unsafe_buffer_pointer()
    assert compiled(x).unsafe_buffer_pointer() == pointer
    assert x.is_deleted()


def test_arguments_come_to_the_device_of_the_program() -> None:
    compiled = xcube.jit(lambda x: x + 1).lower(S((3,), np.float32)).compile()
    x, other = jnp.zeros(3), Cpu()
    elsewhere = DeviceArray(x.aval, other.from_host(np.zeros(3, np.float32)), other)
    with pytest.raises(DeviceError, match=r"must be on cpu.*f32\[3\].*test_stages.py"):
        compiled(elsewhere)
    there = stages.Compiled(compiled._entry, other)
    for given in (x, np.zeros(3, np.float32), elsewhere):
        result = there(given)
        assert result._device is other
        np.testing.assert_array_equal(result, [1, 1, 1])


# options --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["in_shardings", "out_shardings", "device", "backend"])
def test_places_must_be_none(name: str) -> None:
    none: Any = {name: None}
    some: Any = {name: "cpu"}
    assert float(xcube.jit(lambda x: x + 1, **none)(1.0)) == 2
    with pytest.raises(DeviceError, match=rf"{name} must be None.*'cpu'.*test_stages.py"):
        xcube.jit(lambda x: x + 1, **some)


def test_there_are_no_compiler_options() -> None:
    f = xcube.jit(lambda x: x + 1, compiler_options={})
    with pytest.raises(RuntimeError, match=r"'fast'.*no such compile option"):
        f.lower(1.0).compile(compiler_options={"fast": True})
    with pytest.raises(RuntimeError, match="'fast'"):
        xcube.jit(lambda x: x + 1, compiler_options={"fast": True})


def test_an_argument_is_not_both_static_and_donated() -> None:
    with pytest.raises(ValueError, match=r"both static and donated|in both"):
        xcube.jit(lambda x: x, static_argnums=0, donate_argnums=0)


@pytest.mark.parametrize("inline", [False, True])
def test_inline_leaves_equations_in_place_of_a_call(inline: bool) -> None:
    scale = jnp.arange(3.0)
    inner = xcube.jit(lambda x: jnp.sin(x) * scale, inline=inline)
    jaxpr = xcube.make_jaxpr(lambda x: inner(x) + 1)(jnp.zeros(3))
    names = [eqn.primitive.name for eqn in jaxpr.eqns]
    assert names == (["sin", "mul", "add"] if inline else ["jit", "add"])
    x = jnp.ones(3)
    np.testing.assert_allclose(inner(x), np.sin(1) * np.arange(3), 1e-6)
    grad = xcube.grad(lambda x: inner(x).sum())(x)
    np.testing.assert_allclose(grad, np.cos(1) * np.arange(3), 1e-6)


@pytest.mark.parametrize("value", [1.0, True, np.ones(3, np.int32), np.float32(2)])
def test_typeof_is_the_aval(value: Any) -> None:
    assert repr(xcube.typeof(value)) == repr(jax.typeof(value))
    assert repr(xcube.typeof(jnp.asarray(value))) == repr(jax.typeof(jjnp.asarray(value)))


def test_typeof_refuses_what_is_no_array() -> None:
    with pytest.raises(TypeError, match=r"typeof.*str.*test_stages.py"):
        xcube.typeof("text")


def test_a_jitted_object_keeps_its_attributes_and_its_own_methods() -> None:
    counted = Counted()
    vars(counted).update(lower="mine", label="kept")
    f = xcube.jit(counted)
    assert f.label == "kept"
    assert f.lower(X).out_info == X


# cost -----------------------------------------------------------------------------------------

F, N, B = (S((8, 16), dtype) for dtype in (np.float32, np.int32, np.bool_))
ROW = S((16,), np.float32)
COUNTED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{
        name: (lambda lax, x, name=name: getattr(lax, name)(x), (F,))
        for name in "exp log expm1 sin tan tanh sqrt rsqrt cbrt erf neg abs floor is_finite".split()
    },
    **{
        name: (lambda lax, x, y, name=name: getattr(lax, name)(x, y), (F, F))
        for name in "add mul div rem pow max atan2 lt".split()
    },
    "bitwise": (lambda lax, x, y: lax.bitwise_and(x, y), (N, N)),
    "select": (lambda lax, p, x, y: lax.select(p, x, y), (B, F, F)),
    "broadcast": (lambda lax, x: lax.broadcast_in_dim(x, (8, 16), (1,)), (ROW,)),
    "reshape": (lambda lax, x: lax.reshape(x, (128,)), (F,)),
    "slice": (lambda lax, x: lax.slice(x, (2, 0), (4, 16)), (F,)),
    "concatenate": (lambda lax, x, y: lax.concatenate([x, y], 0), (F, F)),
    "rev": (lambda lax, x: lax.rev(x, (0,)), (F,)),
    "dot": (lambda lax, x, y: lax.dot_general(x, y, (((1,), (1,)), ((), ()))), (F, F)),
    "batched dot": (
        lambda lax, x, y: lax.dot_general(x, y, (((2,), (2,)), ((0,), (0,)))),
        (S((3, 4, 5), np.float32), S((3, 6, 5), np.float32)),
    ),
    "sort": (lambda lax, x: lax.sort(x), (ROW,)),
}


@pytest.mark.parametrize("name", COUNTED)
def test_costs_are_those_of_xla(name: str) -> None:
    function, args = COUNTED[name]
    theirs: Any = jax.jit(lambda *xs: function(jlax, *xs)).lower(*args).cost_analysis()
    ours = xcube.jit(lambda *xs: function(lax, *xs)).lower(*args).cost_analysis()
    assert ours == {key: theirs.get(key, 0.0) for key in ours}


def cost(function: Callable[..., Any], *args: Any) -> Cost:
    return jaxpr_cost(xcube.make_jaxpr(function)(*args))


def test_a_reduction_and_powers_are_counted_as_by_xla() -> None:
    for power in (2, 3, 7, 10, -3):
        theirs: Any = jax.jit(lambda x, p=power: jlax.integer_pow(x, p)).lower(F).cost_analysis()
        assert cost(lambda x, p=power: lax.integer_pow(x, p), F).flops == theirs["flops"]
    for axis in (None, 0, 1):
        theirs = jax.jit(lambda x, a=axis: jjnp.sum(x, a)).lower(F).cost_analysis()
        assert cost(lambda x, a=axis: jnp.sum(x, a), F).flops == theirs["flops"]


def test_what_is_written_in_place_touches_only_that() -> None:
    row, at = S((2, 16), np.float32), S((), np.int32)
    found = cost(lambda x, y, k: lax.dynamic_update_slice(x, y, (k, np.int32(0))), F, row, at)
    assert 2 * 128 <= found.nbytes <= 2 * 128 + 40
    added = cost(
        lambda x, k, y: x.at[k].add(y),
        S((1 << 20, 16), np.float32),
        S((3,), np.int32),
        S((3, 16), np.float32),
    )
    assert added.nbytes < 1 << 12


def test_a_scan_costs_its_length() -> None:
    body = cost(lambda c, x: (c * x, jnp.exp(c)), ROW, ROW)
    whole = cost(lambda x: lax.scan(lambda c, y: (c * y, jnp.exp(c)), x[0] * 1, x), F)
    first = cost(lambda x: x[0] * 1, F)
    assert whole == body.times(8) + first
    assert (whole.transcendentals, whole.loops) == (8 * 16, 0)


def test_a_while_loop_costs_one_turn_and_says_so() -> None:
    def loop(x: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, jnp.exp(c[1])), (0, x))

    found = xcube.jit(loop).lower(ROW).cost_analysis()
    assert (found["transcendentals"], found["while loops"]) == (16, 1)
    twice = xcube.jit(lambda x: loop(loop(x)[1])).lower(ROW).cost_analysis()
    assert (twice["transcendentals"], twice["while loops"]) == (32, 2)


def test_a_branch_costs_the_most_of_each() -> None:
    found = cost(lambda p, x: lax.cond(p, jnp.exp, lambda x: x * x + x, x), S((), np.bool_), ROW)
    assert (found.flops, found.transcendentals) == (32, 16)


def test_calls_cost_what_they_compute() -> None:
    @xcube.custom_jvp
    def f(x: Any) -> Any:
        return jnp.exp(x)

    f.defjvp(lambda primals, tangents: (f(primals[0]), tangents[0]))
    assert cost(f, ROW) == cost(xcube.jit(jnp.exp), ROW) == cost(xcube.checkpoint(jnp.exp), ROW)
    assert cost(f, ROW) == Cost(0, 16, 128)


def test_compositions_cost_their_parts() -> None:
    assert cost(lambda x: lax.polygamma(1, x), ROW).flops > 100


def test_callbacks_move_bytes_only() -> None:
    found = cost(lambda x: xcube.pure_callback(lambda v: v, ROW, x), ROW)
    assert found == Cost(0, 0, 128)


def compiled_cost(function: Callable[..., Any], *args: Any) -> dict[str, float]:
    return xcube.jit(function).lower(*args).compile().cost_analysis()


def test_fusion_saves_bytes_and_sharing_saves_work() -> None:
    big = S((1 << 16,), np.float32)
    chain = compiled_cost(lambda x: jnp.exp(x) * 2.0 + 1.0, big)
    assert chain == {
        "flops": 2.0 * big.size,
        "transcendentals": big.size,
        "bytes accessed": 8.0 * big.size,
    }
    shared = compiled_cost(lambda x: jnp.exp(x) + jnp.exp(x), big)
    assert shared["transcendentals"] == big.size
    dead = compiled_cost(lambda x: (x + 1.0, jnp.exp(x))[0], big)
    assert dead["transcendentals"] == 0


def test_compiled_control_flow_moves_what_its_turns_move() -> None:
    def loop(x: Any, length: int) -> Any:
        return lax.scan(lambda c, _: (jnp.sort(c) @ c * c, None), x, None, length=length)[0]

    x = S((256,), np.float32)
    short, long = (compiled_cost(lambda x, n=n: loop(x, n), x) for n in (10, 20))
    assert long["bytes accessed"] == 2 * short["bytes accessed"] > 0
    branch = compiled_cost(lambda p, x: lax.cond(p, jnp.sort, lambda x: x, x), S((), np.bool_), x)
    assert branch["bytes accessed"] >= 2 * 1024


def test_inspection_has_the_cost() -> None:
    found = xcube.inspect(lambda x: jnp.exp(x) * 2.0)(ROW)
    assert found.cost == Cost(16, 16, 128)


# memory ---------------------------------------------------------------------------------------


def test_memory_of_a_program() -> None:
    weights = jnp.arange(4096.0).reshape(64, 64)
    compiled = xcube.jit(lambda x: (jnp.sort(x @ weights) @ weights, x), donate_argnums=())
    found = compiled.lower(S((64, 64), np.float32)).compile().memory_analysis()
    array = 64 * 64 * 4
    assert found.argument_size_in_bytes == 2 * array
    assert found.output_size_in_bytes == array  # the other result is the argument
    assert found.alias_size_in_bytes == found.generated_code_size_in_bytes == 0
    assert found.temp_size_in_bytes >= array


def test_memory_of_a_donated_argument_is_an_alias() -> None:
    lowered = xcube.jit(lambda x: x + 1, donate_argnums=0).lower(S((1024,), np.float32))
    found = lowered.compile().memory_analysis()
    assert found.output_size_in_bytes == found.alias_size_in_bytes == 4096
    assert found.temp_size_in_bytes == 0
