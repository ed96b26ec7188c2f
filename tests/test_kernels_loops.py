"""Loops inside a kernel against the same loops in NumPy and JAX, interpreted with every access
checked and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jjnp
import ml_dtypes
import numpy as np
import pytest
from run_works import Array, Compiled, interpreted

import xcube
import xcube.numpy as jnp
from xcube import lax
from xcube.ir import Equation, Jaxpr
from xcube.lowering.cube import ir
from xcube.lowering.device.cpu import device
from xcube.lowering.kernels import contract, loops
from xcube.lowering.kernels.work import Work
from xcube.lowering.simplify import simplify
from xcube.primitives.lowered import Structured
from xcube.trace import bind_equation, interpret

WAYS = pytest.mark.parametrize("way", ["interpreted", "compiled"])


def program(
    function: Callable[..., Any], args: Sequence[Any], expands: bool = True
) -> tuple[list[Any], Jaxpr]:
    """A function's jaxpr as lowering sees it: captured values are its first inputs."""
    jaxpr = xcube.make_jaxpr(function)(*args)
    facts = device().facts()
    return jaxpr.consts, simplify(
        jaxpr.closed(), (lambda eqn: contract.expand(eqn, facts)) if expands else None
    )


def loop_in(jaxpr: Jaxpr) -> Equation:
    (eqn,) = [eqn for eqn in jaxpr.equations if isinstance(eqn.primitive.lower, Structured)]
    return eqn


def launch(eqn: Equation, vector_bytes: int = 16) -> Work:
    works = loops.build(eqn, vector_bytes)
    assert works is not None, "no loop over a few scalars"
    (work,) = works
    return work


def run(
    function: Callable[..., Any],
    *args: Array,
    way: str = "interpreted",
    vector_bytes: int = 16,
    expands: bool = True,
) -> list[Array]:
    """The results of a function whose loop runs as a kernel, everything else eagerly."""

    def rule(eqn: Equation, inputs: list[Any]) -> Sequence[Any]:
        if not isinstance(eqn.primitive.lower, Structured):
            return bind_equation(eqn, inputs)
        work, operands = launch(eqn, vector_bytes), [np.asarray(x) for x in inputs]
        if way == "interpreted":
            results = interpreted([work], eqn, operands)
        else:
            results = Compiled([work], eqn, eqn.outputs)(operands)
        return [jnp.asarray(x) for x in results]

    consts, jaxpr = program(function, args, expands)
    inputs = consts + [jnp.asarray(x) for x in jax.tree.leaves(args)]
    return [np.asarray(x) for x in interpret(jaxpr, inputs, rule)]


def agree(got: Sequence[Array], wanted: Any, tolerance: float = 1e-5) -> None:
    leaves = jax.tree.leaves(wanted)
    assert len(got) == len(leaves)
    for x, y in zip(got, leaves, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, np.asarray(y), rtol=tolerance, atol=tolerance)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def like_jax(
    function: Callable[..., Any], *args: Array, tolerance: float = 1e-5, **how: Any
) -> None:
    """The kernel's results are those of the same function in JAX; `function(jnp, lax)` gives it."""
    wanted = function(jjnp, jax.lax)(*jax.tree.map(jjnp.asarray, args))
    agree(run(function(jnp, lax), *args, **how), wanted, tolerance)


# programs: each gives a function for one library ----------------------------------------------


def orbit(np_: Any, lax_: Any) -> Callable[..., Any]:
    def slope(state: Any) -> Any:
        place, speed = state[:2], state[2:]
        r2 = np_.sum(place * place)
        return np_.concatenate([speed, -place / (r2 * np_.sqrt(r2))])

    def step(y: Any, dt: Any) -> Any:
        a = slope(y)
        b = slope(y + 0.5 * dt * a)
        c = slope(y + 0.5 * dt * b)
        d = slope(y + dt * c)
        y = y + dt / 6 * (a + 2 * b + 2 * c + d)
        return y, y

    return lambda y, dt: lax_.scan(step, y, dt)


def kalman(np_: Any, lax_: Any) -> Callable[..., Any]:
    def run(a: Any, h: Any, q: Any, r: Any, x: Any, p: Any, zs: Any) -> Any:
        def step(carry: Any, z: Any) -> Any:
            x, p = carry
            x, p = a @ x, a @ p @ a.T + q
            s = h @ p @ h.T + r
            det = s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0]
            rows = [np_.stack([s[1, 1], -s[0, 1]]), np_.stack([-s[1, 0], s[0, 0]])]
            gain = p @ h.T @ (np_.stack(rows) / det)
            x = x + gain @ (z - h @ x)
            p = (np_.eye(4, dtype=p.dtype) - gain @ h) @ p
            return (x, p), (x, np_.trace(p))

        return lax_.scan(step, (x, p), zs)

    return run


def fibonacci(np_: Any, lax_: Any) -> Callable[..., Any]:
    return lambda start: lax_.scan(lambda c, _: ((c[1], c[0] + c[1]), c[0]), start, length=30)


def recurrence(np_: Any, lax_: Any) -> Callable[..., Any]:
    """Elementwise over a space, with a counter that all places share."""

    def run(a: Any, h: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            count, h = carry
            h = np_.tanh(a * h + x) + 0.01 * count
            return (count + 1, h), (count, h * 2)

        return lax_.scan(step, (np_.float32(0), h), xs)

    return run


def springs(np_: Any, lax_: Any) -> Callable[..., Any]:
    """Small systems side by side: a matrix that all share mixes each one's components."""

    def step(y: Any, matrix: Any) -> Any:
        return y + 0.1 * (y @ matrix)

    def run(matrix: Any, y: Any) -> Any:
        return lax_.scan(lambda y, _: (step(y, matrix), np_.max(y, axis=1)), y, length=6)

    return run


def pendulums(np_: Any, lax_: Any) -> Callable[..., Any]:
    """Components in front, systems behind."""

    def step(y: Any, _: Any) -> Any:
        x, v = y[0], y[1]
        v = v - 0.1 * np_.sin(x)
        return np_.stack([x + 0.1 * v, v]), x

    return lambda y: lax_.scan(step, y, length=5)


def newton(np_: Any, lax_: Any) -> Callable[..., Any]:
    def run(a: Any) -> Any:
        def wants(state: Any) -> Any:
            x, before, count = state
            return (np_.abs(x - before) > 1e-6) & (count < 40)

        def step(state: Any) -> Any:
            x, _, count = state
            return 0.5 * (x + a / x), x, count + 1

        return lax_.while_loop(wants, step, (a, a * 2, 0))

    return run


def collatz(np_: Any, lax_: Any) -> Callable[..., Any]:
    def step(state: Any) -> Any:
        n, count = state
        return np_.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

    return lambda n: lax_.while_loop(lambda s: s[0] > 1, step, (n, np_.int32(0)))


def table_walk(np_: Any, lax_: Any) -> Callable[..., Any]:
    """Reads a long table, and a short carried one, at places known only at run time."""

    def run(table: Any, short: Any) -> Any:
        def step(k: Any, carry: Any) -> Any:
            place, short, total = carry
            total = total + table[place] * short[place % 3, k % 2]
            return (place * 7 + k) % 1000, short.at[k % 3, 1].add(1.0), total

        return lax_.fori_loop(0, 50, step, (np_.int32(3), short, np_.float32(0)))

    return run


def branching(np_: Any, lax_: Any) -> Callable[..., Any]:
    def step(x: Any, which: Any) -> Any:
        cases = [lambda x: x + 1, lambda x: x * x, lambda x: -x]
        x = lax_.switch(which, cases, x)
        x = lax_.cond(x[0] > 3, lambda x: x / 2, lambda x: x[::-1], x)
        return x, np_.cumsum(x)

    return lambda x, which: lax_.scan(step, x, which)


def nested(np_: Any, lax_: Any) -> Callable[..., Any]:
    """A loop of Horner's scheme, and one that decides itself, in every step."""

    def run(coefficients: Any, xs: Any) -> Any:
        def step(total: Any, x: Any) -> Any:
            value, _ = lax_.scan(lambda p, c: (p * x + c, None), np_.zeros_like(x), coefficients)
            half = lax_.while_loop(lambda v: v > 1, lambda v: v / 2, np_.abs(value))
            return total + half, value

        return lax_.scan(step, np_.float32(0), xs)

    return run


def complex_turns(np_: Any, lax_: Any) -> Callable[..., Any]:
    return lambda z, w: lax_.scan(lambda z, _: (z * w, np_.abs(z)), z, length=7)


def table_inside(np_: Any, lax_: Any) -> Callable[..., Any]:
    """Every step fills a table by a loop of its own, and reads it."""

    def run(xs: Any, y: Any) -> Any:
        def step(y: Any, x: Any) -> Any:
            _, powers = lax_.scan(lambda p, _: (p * x, np_.stack([p, y])), 1 + 0 * y, length=6)
            place = (np_.abs(x) * 10).astype(np_.int32) % 6
            return powers[place, 0] + powers[2, 1] * 0.5, np_.sum(powers, axis=(0, 1))

        return lax_.scan(step, y, xs, reverse=True)

    return run


def newton_everywhere(np_: Any, lax_: Any) -> Callable[..., Any]:
    """Places that want different numbers of steps."""

    def wish(state: Any) -> Any:
        return (np_.abs(state[0] - state[1]) > 1e-5) & (state[2] < 30)

    def step(state: Any) -> Any:
        x, _, count, a = state
        return tuple(
            np_.where(wish(state), new, old)
            for new, old in zip((0.5 * (x + a / x), x, count + 1, a), state, strict=True)
        )

    def run(a: Any) -> Any:
        start = (a, a * 2, np_.zeros(a.shape, np_.int32), a)
        return lax_.while_loop(lambda state: np_.any(wish(state)), step, start)

    return run


def collatz_everywhere(np_: Any, lax_: Any) -> Callable[..., Any]:
    """Places that carry whether they want another step."""

    def step(state: Any) -> Any:
        wants, n, count = state
        n = np_.where(wants, np_.where(n % 2 == 0, n // 2, 3 * n + 1), n)
        return wants & (n > 1), n, np_.where(wants, count + 1, count)

    def run(n: Any) -> Any:
        start = (n > 1, n, np_.zeros(n.shape, np_.int32))
        return lax_.while_loop(lambda state: np_.any(state[0]), step, start)

    return run


ODD = 0.5 * normal(13)
Z = (normal(6) + 1j * normal(6, seed=1)).astype(np.complex64)
SMALL = {
    "orbit": (orbit, [np.array([1, 0, 0, 1], np.float32), np.full(9, 0.1, np.float32)]),
    "kalman": (
        kalman,
        [np.eye(4, dtype=np.float32) + 0.1 * normal(4, 4), normal(2, 4, seed=1),
         0.1 * np.eye(4, dtype=np.float32), np.eye(2, dtype=np.float32), normal(4),
         np.eye(4, dtype=np.float32), normal(6, 2, seed=2)],
    ),
    "fibonacci": (fibonacci, [(np.int32(0), np.int32(1))]),
    "recurrence": (recurrence, [ODD, normal(13, seed=1), normal(5, 13, seed=2)]),
    "recurrence of rows": (recurrence, [normal(5, 7), normal(5, 7), normal(4, 5, 7)]),
    "springs": (springs, [normal(4, 4), normal(11, 4)]),
    "pendulums": (pendulums, [normal(2, 9)]),
    "newton": (newton, [np.float32(2)]),
    "collatz": (collatz, [np.int32(27)]),
    "table": (table_walk, [normal(1000), normal(3, 2)]),
    "branching": (branching, [normal(4), np.array([0, 1, 2, 5, -1, 1, 0], np.int32)]),
    "nested": (nested, [normal(5), normal(4, seed=1)]),
    "table inside": (table_inside, [normal(5), np.float32(0.3)]),
    "tables inside": (table_inside, [normal(5), normal(6, seed=1)]),
    "newton everywhere": (newton_everywhere, [np.abs(normal(19)) * 50 + 0.01]),
    "collatz everywhere": (collatz_everywhere, [np.arange(21, dtype=np.int32)]),
    "complex": (complex_turns, [np.complex64(1 + 2j), np.complex64(0.3 - 0.4j)]),
    "complex places": (complex_turns, [Z, np.full(6, 0.5j, np.complex64)]),
}  # fmt: skip


@WAYS
@pytest.mark.parametrize("name", SMALL)
def test_results_are_those_of_jax(name: str, way: str) -> None:
    function, args = SMALL[name]
    like_jax(function, *args, way=way, tolerance=3e-5)


@pytest.mark.parametrize("vector_bytes", [16, 64])
@pytest.mark.parametrize("name", ["kalman", "recurrence", "springs", "pendulums", "complex places"])
def test_lines_of_any_width_agree(name: str, vector_bytes: int) -> None:
    function, args = SMALL[name]
    like_jax(function, *args, vector_bytes=vector_bytes, tolerance=3e-5)


MAPPED = {
    "orbit": (orbit, (0, None), [1 + 0.1 * normal(33, 4), np.full(9, 0.1, np.float32)]),
    "kalman": (
        kalman, (None, None, None, None, 0, None, 0),
        [*SMALL["kalman"][1][:4], normal(7, 4), SMALL["kalman"][1][5], normal(7, 6, 2)],
    ),
    "table": (table_walk, (None, 0), [normal(1000), normal(9, 3, 2)]),
    "branching": (branching, (0, 0), [normal(2, 4), np.array([[0, 2, 1], [1, 0, 2]], np.int32)]),
    "table inside": (table_inside, (None, 0), [normal(5), normal(11)]),
}  # fmt: skip


@pytest.mark.parametrize("name", MAPPED)
def test_mapped_loops_are_those_of_jax(name: str) -> None:
    function, axes, args = MAPPED[name]

    def mapped(np_: Any, lax_: Any) -> Callable[..., Any]:
        library = jax if np_ is jjnp else xcube
        return library.vmap(function(np_, lax_), in_axes=axes)

    like_jax(mapped, *args, tolerance=3e-5)


@pytest.mark.parametrize("name", ["orbit", "recurrence", "springs"])
def test_gradients_are_those_of_jax(name: str) -> None:
    function, args = SMALL[name]

    def gradient(np_: Any, lax_: Any) -> Callable[..., Any]:
        library, loop = jax if np_ is jjnp else xcube, function(np_, lax_)

        def loss(*args: Any) -> Any:
            leaves = library.tree.leaves(loop(*args))
            return sum(np_.sum(np_.sin(leaf)) for leaf in leaves)

        return library.grad(loss, argnums=tuple(range(len(args))))

    like_jax(gradient, *args, tolerance=1e-4)


def test_contractions_need_no_expansion() -> None:
    function, args = SMALL["kalman"]
    like_jax(function, *args, expands=False, tolerance=3e-5)


# one operation at a time ----------------------------------------------------------------------

X = normal(3, 4)
STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda np_, x: x - 0.1 * np_.sum(x, axis=1, keepdims=True),
    "max": lambda np_, x: x - np_.max(x, axis=0),
    "argmin": lambda np_, x: x + np_.argmin(x, axis=1)[:, None],
    "any": lambda np_, x: np_.where(np_.any(x > 1, axis=0), x * 0.5, x + 0.1),
    "softmax": lambda np_, x: np_.exp(x) / np_.sum(np_.exp(x)) + x,
    "cumsum": lambda np_, x: np_.cumsum(x, axis=1) * 0.5,
    "cummax": lambda np_, x: 0.9 * np_.maximum(x, np_.cumsum(x[::-1], axis=0)[::-1]),
    "matmul": lambda np_, x: x + 0.1 * (x @ x.T) @ x,
    "outer": lambda np_, x: x + 0.1 * np_.einsum("ij,ik->ij", x, x),
    "set": lambda np_, x: x.at[1].set(x[0] * 2).at[:, 2].set(0.5),
    "add": lambda np_, x: x.at[np_.array([0, 2, 2]), np_.array([1, 1, 1])].add(x[:, 0]),
    "multiply": lambda np_, x: x.at[np_.array([0, 2])].multiply(0.5),
    "min": lambda np_, x: x.at[1, 1:3].min(0.0),
    "drop": lambda np_, x: x.at[np_.array([1, 7])].add(1.0, mode="drop"),
    "take": lambda np_, x: x[np_.array([2, 0, 1])] + x[:, np_.array([3, 3, 0, 1])],
    "pad": lambda np_, x: np_.pad(x, ((1, 0), (0, 2)))[:3, :4] + x[::-1],
    "roll": lambda np_, x: np_.roll(x, (1, 2), (0, 1)) * 1.01,
    "reshape": lambda np_, x: x.reshape(4, 3).T[:, ::-1] + x,
    "tril": lambda np_, x: np_.tril(x) + 0.5 * np_.triu(x),
    "order": lambda np_, x: np_.stack([np_.minimum(x[0], x[1]), np_.maximum(x[0], x[1]), x[2]]),
    "choice": lambda np_, x: x.at[(x[0, 0] > 0).astype(np_.int32), 0].add(1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_operations_on_a_few_numbers(name: str) -> None:
    def function(np_: Any, lax_: Any) -> Callable[..., Any]:
        def step(x: Any, _: Any) -> Any:
            x = STEPS[name](np_, x)
            return x, x[0]

        return lambda x: lax_.scan(step, x, length=3)

    like_jax(function, X, tolerance=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "uint32", "bool"])
@pytest.mark.parametrize("shape", [(2,), (9,)])
def test_dtypes(dtype: str, shape: tuple[int, ...]) -> None:
    def step(x: Any, y: Any) -> Any:
        x = x ^ y if dtype == "bool" else x * y + x
        return x, (x, x > y)

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x, ys = (3 * normal(*shape)).astype(kind), (3 * normal(4, *shape, seed=1)).astype(kind)
    with xcube.enable_x64(dtype == "float64"):
        got = run(lambda x, ys: lax.scan(step, x, ys), x, ys)
    rows = [step(x, ys[0])]
    for y in ys[1:]:
        rows.append(step(rows[-1][0], y))
    wanted = rows[-1][0], np.stack([row[1][0] for row in rows]), np.stack([r[1][1] for r in rows])
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_random_numbers_are_those_of_jax() -> None:
    def function(random: Any, lax_: Any) -> Callable[..., Any]:
        def step(key: Any, _: Any) -> Any:
            key, used = random.split(key)
            return key, random.normal(used, (3,))

        return lambda key: lax_.scan(step, key, length=4)

    key = np.array([7, 11], np.uint32)
    wanted = function(jax.random, jax.lax)(jjnp.asarray(key))
    agree(run(function(xcube.random, lax), key, way="compiled"), wanted, 2e-6)


# what qualifies, and as what ------------------------------------------------------------------


def loop_of(function: Callable[..., Any], *args: Any) -> Equation:
    return loop_in(program(function(jnp, lax), args)[1])


def test_the_kernel_does_not_depend_on_the_length() -> None:
    def key(length: int) -> str:
        return launch(loop_of(orbit, normal(4), normal(length))).key

    assert key(2) == key(10_000) == key(77)


def test_the_kernel_does_not_depend_on_the_number_of_places() -> None:
    def key(size: int, length: int = 5) -> str:
        args = normal(size), normal(size), normal(length, size)
        return launch(loop_of(recurrence, *args)).key

    assert key(301) == key(999) == key(1301, 7)
    assert key(320) == key(960)
    assert key(320) != key(321)  # the last line is not full


def test_places_lie_along_the_lanes() -> None:
    def size(function: Any, *args: Any) -> tuple[int, int]:
        work = launch(loop_of(function, *args), 64)
        lanes = max(v.type.lanes for v in _declared(work.kernel.body))
        return work.cubes, lanes

    assert size(recurrence, normal(16), normal(16), normal(3, 16)) == (1, 16)
    assert size(recurrence, normal(5, 7), normal(5, 7), normal(4, 5, 7)) == (2, 32)
    assert size(pendulums, normal(2, 4096)) == (64, 64)
    assert size(springs, normal(4, 4), normal(1000, 4)) == (16, 64)
    assert size(newton_everywhere, np.abs(normal(19))) == (1, 32)
    assert size(collatz_everywhere, np.arange(7, dtype=np.int32)) == (1, 8)
    assert size(orbit, normal(4), normal(9)) == (1, 1)


def _declared(body: Sequence[Any]) -> Iterator[Any]:
    return (s.variable for s in body if isinstance(s, ir.Declare))


def test_what_never_changes_is_computed_before_the_loop() -> None:
    function, args = SMALL["kalman"]
    work = launch(loop_of(function, *args))
    (loop,) = [s for s in work.kernel.body if isinstance(s, ir.For)]
    loads = [s for s in loop.body if isinstance(s, ir.Load)]
    assert len(loads) == 2  # the measurement


def _scan(step: Callable[[Any, Any], Any], length: int | None = 5) -> Callable[..., Any]:
    return lambda x, *xs: lax.scan(step, x, *xs, length=None if xs else length)


def bool_of(x: Any) -> Any:
    return x == x


def twice(x: Any, _: Any) -> Any:
    return 2 * x, x


REFUSED: dict[str, tuple[Callable[..., Any], list[Array]]] = {
    "neighbours of a large state": (_scan(lambda x, _: (jnp.roll(x, 1), None)), [normal(1000)]),
    "a large product": (_scan(lambda x, _: (x @ x, None)), [normal(64, 64)]),
    "a large sum": (_scan(lambda x, y: (x + jnp.sum(y), None)), [normal(), normal(5, 999)]),
    "too many operations": (
        _scan(lambda x, _: (x @ x @ x @ x @ x @ x, None)), [normal(11, 11)],
    ),
    "sort": (_scan(lambda x, _: (jnp.sort(x) + 1, None)), [normal(5)]),
    "places that are added up": (
        _scan(lambda x, _: (x / jnp.sum(x), None)), [normal(1000)],
    ),
    "a wish of one place for all": (
        lambda x: lax.while_loop(lambda x: jnp.any(x > 1), lambda x: x / 2, x), [normal(1000)],
    ),
    "places that start again with others": (
        lambda on, x: lax.while_loop(
            lambda s: jnp.any(s[0]), lambda s: (s[1] > 1, jnp.where(s[0], s[1] / 2, s[1])), (on, x)
        ),
        [normal(1000) > 0, normal(1000)],
    ),
    "an endless loop in a branch not taken": (
        _scan(
            lambda x, _: (
                lax.cond(x > 0, lambda x: x, lambda x: lax.while_loop(bool_of, abs, x), x), None
            )
        ),
        [np.float32(1)],
    ),
    "much memory inside": (
        _scan(lambda x, _: (x + lax.scan(twice, x, None, 2000)[1][3], None)), [np.float32(1)],
    ),
    "messages": (
        _scan(lambda x, _: (x + (xcube.debug.print("{}", x) or 1), None)), [normal(2)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_loops_are_refused(name: str) -> None:
    function, args = REFUSED[name]
    assert loops.build(loop_in(program(function, args)[1])) is None


def test_long_bodies_are_no_deep_expressions() -> None:
    def function(np_: Any, lax_: Any) -> Callable[..., Any]:
        def step(x: Any, _: Any) -> Any:
            for k in range(300):
                x = x[::-1] * 0.99 + k / 100
            return x, None

        return lambda x: lax_.scan(step, x, length=2)

    like_jax(function, normal(3), way="compiled", tolerance=1e-4)
