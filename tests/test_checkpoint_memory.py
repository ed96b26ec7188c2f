"""What checkpoint saves is what JAX saves under the same policy; the memory plan shrinks by what
theory says; budgets keep within their bytes and come near the best choice."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax._src.ad_checkpoint import saved_residuals as jax_saved_residuals
from remat_programs import JAX, POLICIES, PROGRAMS, RNG, XCUBE, V, W, X, loop, sines, two_layers
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

import xcube
import xcube.ad_checkpoint as remat
import xcube.numpy as jnp
from xcube import checkpoint, lax
from xcube import checkpoint_policies as policies
from xcube.ir import Aval, Equation, Jaxpr, Primitive, Var, subjaxprs
from xcube.primitives.lowered import Element
from xcube.trace import bind
from xcube.transforms.remat.budget import Problem
from xcube.transforms.remat.costs import recompute_cost
from xcube.transforms.remat.min_cut import Network

# what is saved --------------------------------------------------------------------------------


def shapes(residuals: Any) -> list[str]:
    return sorted(str(aval) for aval, _ in residuals)


def jax_shapes(function: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    found = jax_saved_residuals(function, *args)
    return sorted(aval.str_short(short_dtypes=True) for aval, _ in found)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "everything"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_saved_is_what_jax_saves(program: str, policy: str) -> None:
    make, args = PROGRAMS[program]
    ours = checkpoint(make(XCUBE), policy=POLICIES[policy](XCUBE))
    theirs = jax.checkpoint(make(JAX), policy=POLICIES[policy](JAX))
    assert shapes(remat.saved_residuals(ours, *args)) == jax_shapes(theirs, args)


@pytest.mark.parametrize("program", ["sines", "two_layers", "calls"])
def test_everything_is_what_is_saved_without(program: str) -> None:
    make, args = PROGRAMS[program]
    function = make(XCUBE)
    whole = checkpoint(function, policy=policies.everything_saveable)
    plain, kept = (remat.saved_residuals(f, *args) for f in (function, whole))
    assert shapes(kept).count("f32[4,8]") >= 3
    assert sum(aval.nbytes for aval, _ in kept) == sum(aval.nbytes for aval, _ in plain)


def test_anything_but_a_name_is_not_saved_under_another() -> None:
    policy = policies.save_anything_except_these_names("hidden")
    kept = checkpoint(two_layers(XCUBE), policy=policy)
    saved = [what.split(" from")[0] for _, what in remat.saved_residuals(kept, X, W)]
    made = sorted(what for what in saved if "slice" not in what and what.startswith("output"))
    assert made == ["output of cos", "output of dot_general"]


def test_saved_values_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    def function(params: Any, x: Any) -> Any:
        y = remat.checkpoint_name(jnp.exp(params["w"][0] * x), "y")
        return jnp.sum(jnp.sin(xcube.jit(jnp.cos)(y)) * V)

    policy = policies.save_from_both_policies(
        policies.save_only_these_names("y"), lambda primitive, *_, **__: primitive.name == "cos"
    )
    remat.print_saved_residuals(checkpoint(function, policy=policy), {"w": [V]}, x=V)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["f32[8] from the argument params['w'][0]", "f32[8] from the argument x"]
    assert lines[2] == "f32[8] from a constant"
    assert lines[3].startswith("f32[8] named 'y' from test_checkpoint_memory.py:")
    assert "f32[8] output of cos from " in lines[4]


def equations(jaxpr: Jaxpr) -> list[Equation]:
    """All equations, those of inner programs included."""
    return [
        inner
        for eqn in jaxpr.equations
        for inner in (eqn, *(e for sub in subjaxprs(eqn) for e in equations(sub)))
    ]


def names(jaxpr: Jaxpr) -> list[str]:
    return [eqn.primitive.name for eqn in equations(jaxpr)]


def test_the_second_computation_stands_behind_the_cotangents() -> None:
    jaxpr = xcube.make_jaxpr(xcube.grad(lambda x: jnp.sum(checkpoint(sines(XCUBE))(x))))(V)
    first, *_, last = (eqn for eqn in jaxpr.equations if eqn.primitive.name == "checkpoint")
    assert names(first.params["jaxpr"]) == ["sin"] * 3
    assert not first.params["differentiated"]
    assert last.params["differentiated"]
    barrier, *rest = last.params["jaxpr"].equations
    assert barrier.primitive.name == "optimization_barrier"
    assert len(barrier.inputs) == 2  # the input and the cotangent: nothing else was kept
    assert sorted(eqn.primitive.name for eqn in rest) == ["cos"] * 3 + ["mul"] * 3 + ["sin"] * 2
    inside = {atom for eqn in rest for atom in eqn.inputs}
    assert inside.isdisjoint(barrier.inputs)


@pytest.mark.parametrize(
    ("flags", "held"), [(True, 4), (False, 0), ((True, False), 2), ((False, False), 0)]
)
def test_a_barrier_can_be_left_out(flags: Any, held: int) -> None:
    captured = jnp.asarray(V)
    function = checkpoint(lambda x, y: jnp.sin(jnp.sin(x * y * captured)), prevent_cse=flags)
    jaxpr = xcube.make_jaxpr(xcube.grad(lambda *xs: jnp.sum(function(*xs)), (0, 1)))(V, V)
    barriers = [e for e in equations(jaxpr) if e.primitive.name == "optimization_barrier"]
    assert sum(len(eqn.inputs) for eqn in barriers) == held


def test_nothing_computed_again_needs_no_barrier() -> None:
    function = checkpoint(sines(XCUBE), policy=policies.everything_saveable)
    jaxpr = xcube.make_jaxpr(xcube.grad(lambda x: jnp.sum(function(x))))(V)
    assert "optimization_barrier" not in names(jaxpr)


def test_what_has_effects_runs_once() -> None:
    noisy = Primitive(
        "noisy",
        abstract=lambda x: x,
        jvp=lambda primals, tangents: (bind(noisy, *primals), tangents[0]),
        lower=Element(lambda e, index: e.read(0, index)),
        effects=("noise",),
    )
    function = checkpoint(lambda x: jnp.sin(bind(noisy, jnp.sin(x))))
    assert names(xcube.make_jaxpr(xcube.grad(function))(1.0)).count("noisy") == 1
    np.testing.assert_allclose(xcube.grad(function)(1.0), np.cos(np.sin(1.0)) * np.cos(1.0), 1e-5)


def test_a_loop_saves_of_each_turn_what_the_policy_says() -> None:
    function = checkpoint(loop(XCUBE), policy=policies.dots_saveable)
    jaxpr = xcube.make_jaxpr(xcube.grad(function))(X, W)
    forward, *others = (eqn for eqn in equations(jaxpr) if eqn.primitive.name == "scan")
    assert names(forward.params["jaxpr"]).count("dot_general") == 1
    again = [eqn for eqn in others if not eqn.params["reverse"]]
    assert len(again) == 1
    assert "dot_general" not in names(again[0].params["jaxpr"])


# memory ---------------------------------------------------------------------------------------

LAYERS, BATCH, LENGTH, FEATURES, HEADS = 12, 2, 32, 32, 2


def normalized(x: Any) -> Any:
    centered = x - jnp.mean(x, -1, keepdims=True)
    return centered / jnp.sqrt(jnp.mean(centered**2, -1, keepdims=True) + 1e-5)


def block(params: dict[str, Any], x: Any) -> Any:
    """Attention and a two-layer perceptron, each added to what it reads."""
    q, k, v = jnp.einsum("btd,dnhe->nbhte", normalized(x), params["qkv"])
    scores = jnp.einsum("bhte,bhse->bhts", q, k) / FEATURES**0.5
    weights = jnp.exp(scores - jnp.max(scores, -1, keepdims=True))
    weights = weights / jnp.sum(weights, -1, keepdims=True)
    x = x + jnp.einsum("bhts,bhse,hed->btd", weights, v, params["out"])
    hidden = jnp.tanh(normalized(x) @ params["up"])
    return x + hidden @ params["down"]


def transformer(layer: Callable[..., Any]) -> Callable[..., Any]:
    def loss(params: Any, x: Any) -> Any:
        for each in params:
            x = layer(each, x)
        return jnp.sum(x * x)

    return loss


def parameters(layers: int = LAYERS) -> list[dict[str, Any]]:
    head = FEATURES // HEADS
    sizes = {
        "qkv": (FEATURES, 3, HEADS, head),
        "out": (HEADS, head, FEATURES),
        "up": (FEATURES, 4 * FEATURES),
        "down": (4 * FEATURES, FEATURES),
    }
    rng = np.random.default_rng(1)
    return [
        {name: jnp.asarray(rng.normal(size=s).astype(np.float32) / 6) for name, s in sizes.items()}
        for _ in range(layers)
    ]


TOKENS = np.random.default_rng(2).normal(size=(BATCH, LENGTH, FEATURES)).astype(np.float32)


def arena(loss: Callable[..., Any], params: Any) -> int:
    """Bytes of the memory plan of a gradient, inputs and results apart."""
    return xcube.inspect(xcube.grad(loss))(params, TOKENS).program.arena_nbytes


@functools.cache
def plain_arena() -> int:
    return arena(transformer(block), parameters())


def test_memory_shrinks_by_what_theory_says() -> None:
    """Of L layers that keep A bytes each besides the x that they are given, and of which the
    gradient of one takes S: (L - 1) A + S without, (L - 1) x + S with checkpoints."""
    kept = arena(transformer(checkpoint(block)), parameters())
    theory = (LAYERS - 1) * TOKENS.nbytes + arena(transformer(block), parameters(1))
    assert 0.9 * theory < kept < 1.25 * theory
    assert plain_arena() / kept > 5


def test_without_a_barrier_memory_stays() -> None:
    loose, plain = transformer(checkpoint(block, prevent_cse=False)), transformer(block)
    assert arena(loose, parameters(2)) == arena(plain, parameters(2))


def test_memory_shrinks_in_a_loop_over_layers() -> None:
    """The loop stacks x of each turn in place of A."""

    def loss(layer: Callable[..., Any]) -> Callable[..., Any]:
        return lambda params, x: jnp.sum(
            lax.scan(lambda h, each: (layer(each, h), None), x, params)[0] ** 2
        )

    stacked = xcube.tree.map(lambda *leaves: jnp.stack(leaves), *parameters())
    plain, kept = (arena(loss(layer), stacked) for layer in (block, checkpoint(block)))
    stacks = [
        [
            aval.nbytes
            for aval, what in remat.saved_residuals(loss(layer), stacked, TOKENS)
            if "argument" not in what and aval.shape[:1] == (LAYERS,)
        ]
        for layer in (block, checkpoint(block))
    ]
    assert stacks[1] == [LAYERS * TOKENS.nbytes]
    turns = (LAYERS - 1) / LAYERS
    assert 0.8 < (plain - kept) / (turns * (sum(stacks[0]) - sum(stacks[1]))) < 1.2


def test_checkpoints_inside_of_checkpoints_shrink_it_further() -> None:
    """Of N layers that keep two arrays each: 2 N without; N + 2; in groups of sqrt(N) layers
    2 sqrt(N) + 2; and halved again and again about 2 log2 N."""
    weights = [jnp.asarray(RNG.normal(size=(64, 64)).astype(np.float32) / 8) for _ in range(16)]
    x = np.ones((256, 64), np.float32)

    def layer(w: Any, h: Any) -> Any:
        return jnp.sin(jnp.exp(-h @ w))

    def plain(ws: Any, h: Any) -> Any:
        for w in ws:
            h = layer(w, h)
        return h

    def flat(ws: Any, h: Any) -> Any:
        for w in ws:
            h = checkpoint(layer)(w, h)
        return h

    def grouped(ws: Any, h: Any) -> Any:
        for first in range(0, len(ws), 4):
            h = checkpoint(flat)(ws[first : first + 4], h)
        return h

    def halved(ws: Any, h: Any) -> Any:
        if len(ws) == 1:
            return layer(ws[0], h)
        half = len(ws) // 2
        return halved(ws[half:], checkpoint(halved)(ws[:half], h))

    for model, arrays_kept in ((plain, 32), (flat, 18), (grouped, 10), (halved, 8)):
        gradient = xcube.grad(lambda ws, model=model: jnp.sum(model(ws, x) ** 2))
        found = xcube.inspect(gradient)(weights).program.arena_nbytes / x.nbytes
        assert abs(found - arrays_kept) < 2, model.__name__


def test_a_gradient_of_a_transformer_is_the_same() -> None:
    args = parameters(3), TOKENS
    plain = xcube.jit(xcube.grad(transformer(block)))(*args)
    for layer in (checkpoint(block), checkpoint(block, policy=policies.budget(30_000))):
        kept = xcube.jit(xcube.grad(transformer(layer)))(*args)
        for ours, theirs in zip(xcube.tree.leaves(kept), xcube.tree.leaves(plain), strict=True):
            np.testing.assert_allclose(ours, theirs, 1e-3, 1e-2)


# budgets --------------------------------------------------------------------------------------


def test_a_budget_for_the_whole_model_shrinks_its_memory() -> None:
    nbytes = 2 * LAYERS * TOKENS.nbytes
    budget = policies.budget(nbytes)
    kept = checkpoint(transformer(block), policy=budget)
    assert plain_arena() / arena(kept, parameters()) > 3
    (plan,) = budget.plans
    assert plan.saved_nbytes <= nbytes < plan.needed_nbytes
    assert 0.3 < plan.flops / plan.forward_flops < 0.8


def test_a_larger_budget_computes_less_again() -> None:
    flops = []
    for nbytes in (0, 128, 256, 384, 1 << 20):
        budget = policies.budget(nbytes)
        function = checkpoint(two_layers(XCUBE), policy=budget)
        saved = remat.saved_residuals(function, X, W)
        own = sum(aval.nbytes for aval, what in saved if "argument" not in what)
        (plan,) = budget.plans
        assert own == plan.saved_nbytes <= nbytes
        flops.append(plan.flops)
    assert flops == sorted(flops, reverse=True)
    assert flops[-1] == 0
    assert len(set(flops)) == 4


def test_a_budget_reports_what_it_chose(capsys: pytest.CaptureFixture[str]) -> None:
    budget = policies.budget(200)
    assert budget.report() == "budget(200): nothing planned yet"
    function = checkpoint(two_layers(XCUBE), policy=budget)
    remat.print_saved_residuals(lambda x, w: function(x, w), X, W)
    printed = capsys.readouterr().out
    assert budget.report() in printed
    assert "function: saves 128 of 896 bytes within a budget of 200; computes " in printed
    remat.saved_residuals(checkpoint(sines(XCUBE), policy=budget), V)
    assert len(budget.report().splitlines()) == 2 + 1 + 3  # the plans, and what they save


def test_a_budget_chooses_the_same_every_time() -> None:
    reports = []
    for _ in range(2):
        budget = policies.budget(4 * TOKENS.nbytes)
        remat.saved_residuals(
            checkpoint(lambda p, x: block(p, x), policy=budget), parameters(1)[0], TOKENS
        )
        reports.append(budget.report())
    assert reports[0] == reports[1]
    assert "output of dot_general" in reports[0]


def test_a_budget_in_a_loop_is_that_of_a_turn() -> None:
    def turn(h: Any, w: Any) -> tuple[Any, Any]:
        return jnp.sin(jnp.exp(jnp.sin(h @ w))), None

    kept = checkpoint(turn, policy=policies.budget(X.nbytes))
    saved = remat.saved_residuals(lambda x, w: lax.scan(kept, x, w)[0], X, W)
    assert shapes(saved).count("f32[3,4,8]") == 2  # the carry and what the budget allows


UNARY = (lax.sin_p, lax.exp_p, lax.neg_p)
BINARY = (lax.add_p, lax.mul_p)


@st.composite
def small_programs(draw: st.DrawFn) -> tuple[list[Equation], set[Var]]:
    """Equations over vectors of different lengths, and some of their results."""
    values = [Var(Aval((draw(st.integers(1, 40)),), np.dtype("float32"))) for _ in range(2)]
    equations = []
    for _ in range(draw(st.integers(1, 7))):
        picked = draw(st.sampled_from((UNARY, BINARY)))
        primitive = draw(st.sampled_from(picked))
        inputs = tuple(draw(st.sampled_from(values)) for _ in range(2 if picked is BINARY else 1))
        output = Var(Aval((draw(st.integers(1, 40)),), np.dtype("float32")))
        equations.append(Equation((output,), primitive, inputs, {}))
        values.append(output)
    made = values[2:]
    return equations, {var for var in made if draw(st.booleans())} or {made[-1]}


@settings(deadline=None, max_examples=60)
@given(program=small_programs(), nbytes=st.integers(0, 400))
def test_a_plan_is_nearly_the_best_of_all_choices(program: Any, nbytes: int) -> None:
    """Never over the budget, and never worse than the best choice within the bytes that it uses
    itself or, at least, than what any price per byte would buy within the budget."""
    equations, wanted = program
    problem = Problem(equations, wanted)
    made = [var for eqn in equations for var in eqn.outputs]
    every = [
        problem.choice(chosen)
        for count in range(len(made) + 1)
        for chosen in itertools.combinations(made, count)
    ]
    found = problem.within(nbytes)
    assert found.nbytes <= nbytes
    fitting = [choice for choice in every if choice.nbytes <= nbytes]
    assert found.cost >= min(choice.cost for choice in fitting)
    assert found.cost <= min(choice.cost for choice in every if _on_hull(choice, every, nbytes))


def _on_hull(choice: Any, every: list[Any], nbytes: int) -> bool:
    """Whether a choice within the bytes is the cheapest one at some price per byte."""
    if choice.nbytes > nbytes:
        return False
    prices = {
        abs((other.cost - choice.cost) / (choice.nbytes - other.nbytes))
        for other in every
        if other.nbytes != choice.nbytes
    }
    tried = [0.0, *prices, 1e12]
    return any(
        all(choice.cost + p * choice.nbytes <= o.cost + p * o.nbytes for o in every) for p in tried
    )


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_cut_holds_as_much_as_can_flow(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 8))
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    edges = data.draw(st.lists(pairs.filter(lambda e: e[0] != e[1]), max_size=24, unique=True))
    capacities = data.draw(st.lists(st.integers(0, 9), min_size=len(edges), max_size=len(edges)))
    side = Network(size, edges).source_side(0, size - 1, capacities)
    assert side[0]
    assert not side[-1]
    cut = sum(c for (a, b), c in zip(edges, capacities, strict=True) if side[a] and not side[b])
    matrix = np.zeros((size, size), np.int32)
    for (a, b), c in zip(edges, capacities, strict=True):
        matrix[a, b] = c
    assert cut == maximum_flow(csr_matrix(matrix), 0, size - 1).flow_value


@pytest.mark.parametrize(
    ("function", "flops"),
    [
        (lambda x: jnp.sin(x), 16 * 32),
        (lambda x: x * 2, 32),
        (lambda x: x.reshape(32), 0),
        (lambda x: x @ W[0], 2 * 4 * 8 * 8 + 16 * 4 * (32 + 64 + 32)),
        (lambda x: jnp.sum(x), 32 + 16 * 4),
        (lambda x: lax.scan(lambda h, _: (h * 2, None), x, None, length=5)[0], 5 * 32 + 4096),
        (lambda x: lax.cond(True, lambda h: h * 2, jnp.sin, x), 16 * 32),
    ],
)
def test_costs_count_arithmetic_and_bytes(function: Any, flops: int) -> None:
    jaxpr = xcube.make_jaxpr(function)(X)
    assert sum(map(recompute_cost, jaxpr.equations)) == flops
