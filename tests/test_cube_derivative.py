"""Derivatives of kernels are those of the same functions of arrays, in both directions, twice,
under vmap and jit; what has none is refused with the user's line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from cube_kernels import CASES, Body, Case

import xcube
import xcube.numpy as jnp
from xcube import lax
from xcube.errors import TraceError
from xcube.lowering.cube.affine import Affine
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.derivative_rules import PARTIALS


def scalar(function: Any) -> Any:
    """A sum of sines of the results, whose cotangents differ."""
    return lambda *args: jnp.sum(jnp.sin(function(*args) * 1.3 + 0.2))


def assert_close(case: Case, found: Any, wanted: Any) -> None:
    for x, y in zip(xcube.tree.leaves(found), xcube.tree.leaves(wanted), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        np.testing.assert_allclose(x, y, atol=case.tolerance * max(1, abs(y).max(initial=0)))


# Whose way back keeps arrays of its own in loops, through which there is no way back.
TAPED = ("product", "softmax", "branchy", "exits", "recurrence", "tile")
cases = pytest.mark.parametrize("case", CASES, ids=str)


@cases
def test_value(case: Case) -> None:
    arrays = case.arrays()
    assert_close(case, case.run(*arrays), case.same(*map(jnp.asarray, arrays)))
    assert_close(case, xcube.jit(case.run)(*arrays), case.same(*map(jnp.asarray, arrays)))


@cases
def test_gradient(case: Case) -> None:
    arrays = [jnp.asarray(x) for x in case.arrays()]
    wanted = xcube.grad(scalar(case.same), case.floats())(*arrays)
    assert_close(case, xcube.grad(scalar(case.run), case.floats())(*arrays), wanted)
    assert_close(case, xcube.jit(xcube.grad(scalar(case.run), case.floats()))(*arrays), wanted)


@cases
def test_tangents(case: Case) -> None:
    arrays = [jnp.asarray(x) for x in case.arrays()]
    along = [jnp.asarray(x) for x in case.arrays(1)]
    for number in case.floats():
        others = list(arrays)

        def at(function: Any, x: Any, n: int = number, others: Any = others) -> Any:
            return function(*others[:n], x, *others[n + 1 :])

        pair = (arrays[number],), (along[number],)
        found = xcube.jvp(lambda x: at(case.run, x), *pair)
        assert_close(case, found, xcube.jvp(lambda x: at(case.same, x), *pair))


@cases
def test_second_order(case: Case) -> None:
    """Reverse mode through both modes, and forward mode through reverse mode; where a unit keeps a
    tape, it is not gone back through twice."""
    arrays = [jnp.asarray(x) for x in case.arrays()]
    along = jnp.asarray(case.arrays(1)[0])
    rest = arrays[1:]

    def gradient(function: Any) -> Any:
        return xcube.grad(lambda x: scalar(function)(x, *rest))

    def twice(function: Any) -> Any:
        return xcube.jvp(gradient(function), (arrays[0],), (along,))[1]

    def slope(function: Any) -> Any:
        return lambda x: jnp.sum(xcube.jvp(lambda x: function(x, *rest), (x,), (along,))[1] ** 2)

    assert_close(case, twice(case.run), twice(case.same))
    assert_close(
        case, xcube.grad(slope(case.run))(arrays[0]), xcube.grad(slope(case.same))(arrays[0])
    )
    if case.name not in TAPED:
        back = xcube.grad(lambda x: jnp.vdot(gradient(case.run)(x), along))(arrays[0])
        assert_close(case, back, twice(case.same))


@cases
def test_batched_gradient(case: Case) -> None:
    """Gradients of a mapped kernel; what is not mapped gets the sum over the batch."""
    pairs = zip(case.arrays(), case.arrays(1), strict=True)
    first, *rest = [(jnp.asarray(x), jnp.stack([x, y])) for x, y in pairs]
    for axes, arrays in (
        ((None, *[0] * len(rest)), (first[0], *[x for _, x in rest])),
        ((0, *[None] * len(rest)), (first[1], *[x for x, _ in rest])),
    ):
        if any(axis == 0 for axis in axes):
            found, wanted = (
                xcube.grad(scalar(xcube.vmap(f, axes)))(*arrays) for f in (case.run, case.same)
            )
            assert_close(case, found, wanted)


@cases
def test_gradients_of_a_batch(case: Case) -> None:
    """Pullbacks in a batch whose cotangent all examples share, and tangents of them; what is
    changed on the way back is a copy for each."""
    arrays, others = case.arrays(), case.arrays(1)
    batch = jnp.stack([jnp.asarray(arrays[0]), jnp.asarray(others[0])])
    ct, rest = jnp.arange(1.0, case.out + 1), [jnp.asarray(x) for x in arrays[1:]]
    along = ct + 0.5

    def pulled(function: Any) -> Any:
        return lambda x, ct: xcube.vjp(lambda x: function(x, *rest), x)[1](ct)[0]

    def tangents(function: Any) -> Any:
        return lambda x: xcube.jvp(pulled(function), (x, ct), (jnp.ones_like(x), along))[1]

    if 0 not in case.floats():
        return
    found, wanted = (xcube.vmap(pulled(f), (0, None))(batch, ct) for f in (case.run, case.same))
    wide = replace(case, tolerance=case.tolerance * 4)
    assert_close(wide, found, wanted)
    if case.name not in TAPED:
        assert_close(wide, *(xcube.vmap(tangents(f))(batch) for f in (case.run, case.same)))
    np.testing.assert_array_equal(ct, np.arange(1.0, case.out + 1))
    np.testing.assert_array_equal(along, np.arange(1.0, case.out + 1) + 0.5)


def test_third_order() -> None:
    case = next(case for case in CASES if case.name == "guarded")
    x, v, w = (jnp.asarray(case.arrays(seed)[0]) for seed in range(3))

    def along(f: Any, v: Any) -> Any:
        return lambda x: xcube.jvp(f, (x,), (v,))[1]

    def third(f: Any) -> tuple[Any, ...]:
        twice = along(along(f, v), w)
        gradient = along(xcube.grad(scalar(f)), v)
        weighted = xcube.grad(lambda x: jnp.vdot(gradient(x), w))
        return along(twice, v)(x), xcube.grad(scalar(twice))(x), weighted(x), along(weighted, w)(x)

    assert_close(replace(case, tolerance=1e-4), third(case.run), third(case.same))


def test_an_operand_without_use_has_no_cotangent() -> None:
    def build(k: Body) -> None:
        k.b.store(k.out, k.at, k.load(k.inputs[0], k.at) * 2)

    @dataclass(frozen=True)
    class Idle(Case):
        def expand(self, call: Any, facts: Any) -> Any:
            used = replace(self, inputs=(4,))
            return Case.expand(used, call, facts)

    case = Idle("idle", build, lambda x, y: x * 2, (4, 3), 4, 4)
    x, y = map(jnp.asarray, case.arrays())
    stacked = jnp.stack([x, x]), jnp.stack([y, y])
    for f, (a, b) in ((case.run, (x, y)), (xcube.vmap(case.run), stacked)):
        found = xcube.grad(scalar(f), (0, 1))(a, b)
        assert_close(case, found, xcube.grad(scalar(case.same), (0, 1))(a, b))
        assert_close(case, xcube.jvp(f, (a, b), (a, b)), xcube.jvp(case.same, (a, b), (a, b)))


# rules ------------------------------------------------------------------------------------------

DOMAINS = {"acosh": (1.2, 3), "erf_inv": (-0.9, 0.9), "lgamma": (0.5, 4), "atanh": (-0.9, 0.9)}
DOMAINS |= dict.fromkeys("log log2 log1p sqrt rsqrt pow cbrt".split(), (0.2, 3))
DOMAINS |= dict.fromkeys(("asin", "acos"), (-0.9, 0.9))
FUNCTIONS = {"pow": lax.pow, "fma": lambda x, y, z: x * y + z, "exp2_approx": lax.exp2}
FUNCTIONS |= {"rem": lax.rem, "logistic": lax.logistic}


@pytest.mark.parametrize("name", sorted(PARTIALS))
def test_rule(name: str) -> None:
    """Each derivative is that of the function of arrays, forward and backward."""
    count, n = len(PARTIALS[name]), 16

    def build(k: Body) -> None:
        values = [k.load(buffer, k.at) for buffer in k.inputs]
        found = k.apply(name, *values) if name != "exp2_approx" else k.b.op(name, *values)
        k.b.store(k.out, k.at, found)

    same = FUNCTIONS.get(name) or getattr(lax, name)
    case = Case(name, build, same, (n,) * count, n, n)
    random, (low, high) = np.random.default_rng(0), DOMAINS.get(name, (-2, 2))
    arrays = [jnp.asarray(random.uniform(low, high, n).astype(np.float32)) for _ in range(count)]
    which = tuple(range(count))
    wanted = xcube.grad(scalar(same), which)(*arrays)
    assert_close(case, xcube.grad(scalar(case.run), which)(*arrays), wanted)
    along = tuple(arrays[::-1])
    found = xcube.jvp(case.run, tuple(arrays), along)[1]
    assert_close(case, found, xcube.jvp(same, tuple(arrays), along)[1])


@pytest.mark.parametrize(("name", "share"), [("min", 0.5), ("max", 0.5), ("abs", 0.0)])
def test_ties_and_kinks(name: str, share: float) -> None:
    def build(k: Body) -> None:
        values = [k.load(buffer, k.at) for buffer in k.inputs]
        k.b.store(k.out, k.at, k.apply(name, *values))

    count = 1 if name == "abs" else 2
    case = Case(name, build, None, (3,) * count, 3, 3)
    zeros = [jnp.zeros(3)] * count
    found = xcube.grad(lambda *xs: jnp.sum(case.run(*xs)), tuple(range(count)))(*zeros)
    assert_close(case, found, (jnp.full(3, share),) * count)


# refusals ---------------------------------------------------------------------------------------


def races(k: Body) -> None:
    k.b.store(k.out, k.at // 2, k.load(k.inputs[0], k.at))


def exchanges(k: Body) -> None:
    k.b.atomic("max", k.out, k.at, k.load(k.inputs[0], k.at))


def spins(k: Body) -> None:
    x = k.b.variable(k.load(k.inputs[0], k.at))
    with k.b.loop():
        k.b.break_when(x.get() > 1.0)
        x.set(x.get() * 2 + 1)
    k.b.store(k.out, k.at, x.get())


def bits(k: Body) -> None:
    x = k.load(k.inputs[0], k.at)
    k.b.store(k.out, k.at, (x.bitcast("i32") + 1).bitcast("f32"))


def meets(k: Body) -> None:
    shared = k.b.shared("f32", 4)
    k.b.store(shared, 0, k.load(k.inputs[0], k.at))
    k.b.sync()
    k.b.store(k.out, k.at, k.load(shared, 0))


def gammas(k: Body) -> None:
    k.b.store(k.out, k.at, k.apply("digamma", k.load(k.inputs[0], k.at)))


def carries_in_memory(k: Body) -> None:
    for _ in k.b.range(0, k.length("a")):
        x = k.load(k.out, k.at)
        k.b.store(k.out, k.at, x * x * k.load(k.inputs[0], k.at))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (races, r"two units may write one element.*assume_disjoint=True"),
        (exchanges, r"atomic max of floats has no derivative.*atomic_add"),
        (spins, r"a loop that runs until a break carries derivatives.*for i in range"),
        (bits, r"made of the bits of another.*custom_vjp"),
        (meets, r"what units share in a cube.*custom_vjp"),
        (gammas, r"digamma has no derivative.*custom_vjp"),
        (carries_in_memory, r"an element is read in a branch or loop and written.*variable"),
    ],
)
def test_refused(build: Any, message: str) -> None:
    case = Case(build.__name__, build, None, (4, 4), 4, 4, begins=True)
    x, y = map(jnp.asarray, case.arrays())
    line = "" if build is bits else rf"At {build.__name__}\.py:1\..*"
    first, way = message.rsplit(".*", 1)
    rule = rf"cube.differentiable: .*{first}.*{line}{way}".replace(".*", r"[\s\S]*")
    with pytest.raises(TraceError, match=rule):
        xcube.grad(lambda x, y: jnp.sum(case.run(x, y)), (0, 1))(x, y)


def test_a_promise_that_writes_do_not_meet() -> None:
    def build(k: Body) -> None:
        k.b.store(k.out, k.load(k.inputs[1], k.at), k.load(k.inputs[0], k.at) * 2)

    case = Case("permute", build, None, (4, (4, 4)), 4, 4, disjoint=True)
    x, places = jnp.arange(4.0), jnp.array([2, 0, 3, 1], np.int32)
    found = xcube.grad(lambda x: jnp.sum(case.run(x, places) * jnp.arange(4.0)))(x)
    assert_close(case, found, 2 * jnp.arange(4.0)[places])


# whose elements are whose -----------------------------------------------------------------------


def looped(bounds: Any, place: Any) -> Any:
    """The index inside a loop."""

    def index(b: Builder, at: Value, n: Value) -> Value:
        for k in b.range(*bounds(b, at, n)):
            found = place(at, n, k)
        return found

    return index


def strides(units: int) -> Any:
    return lambda b, at, n: (at, n, b.place("cube_count.x") * units)


@pytest.mark.parametrize(
    ("index", "lanes", "own"),
    [
        (lambda b, at, n: at, 1, True),
        (lambda b, at, n: at + 5, 1, True),
        (lambda b, at, n: at, 2, False),
        (lambda b, at, n: at * 4, 4, True),
        (lambda b, at, n: at * 4, 5, False),
        (lambda b, at, n: at // n * n + at % n, 1, True),
        (lambda b, at, n: at // n, 1, False),
        (lambda b, at, n: at % n, 1, False),
        (lambda b, at, n: at * n, 1, False),
        (lambda b, at, n: b.place("cube_pos.x"), 1, False),
        (lambda b, at, n: b.place("unit_pos.x"), 1, False),
        (lambda b, at, n: b.place("cube_pos.x") + b.place("unit_pos.x") * n, 1, False),
        (lambda b, at, n: b.constant(3, "index"), 1, False),
        (looped(lambda b, at, n: (0, 4), lambda at, n, k: at * 4 + k), 1, True),
        (looped(lambda b, at, n: (0, 5), lambda at, n, k: at * 4 + k), 1, False),
        (looped(lambda b, at, n: (0, 8, 4), lambda at, n, k: at * 8 + k), 4, True),
        (looped(lambda b, at, n: (0, n), lambda at, n, k: at * n + k), 1, True),
        (looped(lambda b, at, n: (1, n), lambda at, n, k: at * n + k), 1, False),
        (looped(lambda b, at, n: (0, n), lambda at, n, k: at + k), 1, False),
        (looped(strides(64), lambda at, n, k: k), 1, True),
        (looped(strides(32), lambda at, n, k: k), 1, False),
    ],
)
def test_own_elements(index: Any, lanes: int, own: bool) -> None:
    b = Builder("own", (16, 4, 1))
    n = b.scalar()
    unit = b.place("unit_pos.x") + b.place("unit_pos.y") * 16
    found = index(b, b.place("cube_pos.x") * 64 + unit, n)
    assert Affine(b.finish()).is_own(found.atom, lanes) is own
