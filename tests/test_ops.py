"""The laws that hold for every operation, over the rows of all tables (`ops_*.py`).

Derivatives are tested in float64: against central differences in a random direction, forward
against reverse by ⟨ct, J dx⟩ = ⟨Jᵀ ct, dx⟩, and second derivatives both ways.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from op_table import Row

from xcube import config, dtypes, eager, ir, tree
from xcube.array import Array
from xcube.primitives.complex import real
from xcube.primitives.convert import convert_element_type
from xcube.primitives.elementwise import mul
from xcube.primitives.kinds import add
from xcube.primitives.shape import reduce_sum
from xcube.transforms.grad import grad, jvp, vjp
from xcube.transforms.jit import jit, make_jaxpr
from xcube.transforms.vmap import vmap

TABLES = sorted(path.stem for path in Path(__file__).parent.glob("ops_*.py"))
ROWS = [
    pytest.param(row, id=f"{table.removeprefix('ops_')}-{row.name}")
    for table in TABLES
    for row in importlib.import_module(table).ROWS
]
SMOOTH = [p for p in ROWS if p.values[0].differentiable]
TWICE = [p for p in SMOOTH if p.values[0].order >= 2]
BATCHABLE = [p for p in ROWS if p.values[0].batchable]

MOST_SAMPLES = 3  # of a row, where a law compiles much
BATCH = 3


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    with config.using(check=True), np.errstate(all="ignore"):
        yield


# samples --------------------------------------------------------------------------------------


def rng_of(row: Row) -> np.random.Generator:
    """Random numbers that are the same in every run, and others for every row."""
    return np.random.default_rng(zlib.crc32(row.name.encode()))


def on_device(value: Any, dtype: Any = None) -> Any:
    """A NumPy value as an array of its own dtype; anything else as it is."""
    if not isinstance(value, np.ndarray | np.generic):
        return value
    host = np.asarray(value)
    return eager.from_host(host if dtype is None else host.astype(dtype))


def results(value: Any) -> list[Any]:
    """Every array of a result."""
    return tree.leaves(value)


def host(value: Any) -> np.ndarray:
    """An array's elements; narrow floats widened so that NumPy computes with them."""
    array = np.asarray(value)
    if dtypes.is_float(array.dtype) and array.dtype.itemsize < 4:
        return array.astype(np.float32)
    return array


def assert_close(got: Any, want: Any, rtol: float, atol: float, what: str = "") -> None:
    """Equal up to a share of the largest magnitude; exactly, for whole numbers."""
    got, want = host(got), host(want)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want.astype(got.dtype, copy=False), what)
        return
    scale = float(np.max(np.abs(want[np.isfinite(want)]), initial=0))
    np.testing.assert_allclose(got, want, rtol, atol + rtol * scale, err_msg=what)


def float64_samples(row: Row, most: int = MOST_SAMPLES) -> list[tuple[Any, ...]]:
    """Samples whose differentiable arguments are floats or complex numbers, in double width."""
    rng, found = rng_of(row), []
    for sample in row.samples:
        args = sample(rng)
        kinds = [np.asarray(args[k]).dtype for k in row.differentiable]
        if all(dtypes.is_inexact(kind) and kind.itemsize >= 4 for kind in kinds):
            found.append(tuple(map(_widened, args)))
    assert found, f"{row.name}: no sample can be differentiated"
    return found[:most]


def _widened(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic) or not dtypes.is_inexact(value.dtype):
        return value
    return np.asarray(value, np.complex128 if dtypes.is_complex(value.dtype) else np.float64)


def of_floats(row: Row, args: tuple[Any, ...]) -> tuple[Callable[..., list[Any]], list[Any]]:
    """The row's function of its differentiable arguments alone, and these. Only results that can
    have a tangent are kept."""
    positions = row.differentiable

    def function(*chosen: Any) -> list[Any]:
        whole = [on_device(arg) for arg in args]
        for position, value in zip(positions, chosen, strict=True):
            whole[position] = value
        return [y for y in results(row.function(*whole)) if dtypes.is_inexact(y.dtype)]

    return function, [args[k] for k in positions]


def directions(rng: np.random.Generator, values: list[Any]) -> list[np.ndarray]:
    """Random tangents, none of them close to zero."""

    def one(shape: tuple[int, ...]) -> np.ndarray:
        return rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape)

    return [
        one(np.shape(x)) + 1j * one(np.shape(x)) if np.iscomplexobj(x) else one(np.shape(x))
        for x in values
    ]


def devices(values: list[Any]) -> tuple[Any, ...]:
    return tuple(on_device(np.asarray(value)) for value in values)


def inner(xs: Any, ys: Any) -> float:
    """⟨xs, ys⟩ over all arrays: the real part of the sum of products."""
    return float(sum(np.real(np.sum(host(x) * host(y))) for x, y in zip(xs, ys, strict=True)))


def moved(values: list[Any], tangents: list[np.ndarray], step: float) -> tuple[Any, ...]:
    return devices([x + step * dx for x, dx in zip(values, tangents, strict=True)])


def precision(ys: list[Any]) -> tuple[float, float]:
    """The step of central differences that suits results of these dtypes, and their error: where
    a row fixes the result's dtype, it may be float32."""
    narrow = any(y.dtype in (np.float32, np.complex64) for y in ys)
    return (1e-2, 1e-3) if narrow else (1e-6, 1e-6)


def difference(function: Callable[..., list[Any]], xs: list[Any], dxs: list[Any]) -> list[Any]:
    """Central difference of a function along a direction."""
    step, _ = precision(function(*devices(xs)))
    above, below = (function(*moved(xs, dxs, sign * step)) for sign in (1, -1))
    return [(host(a) - host(b)) / (2 * step) for a, b in zip(above, below, strict=True)]


def weighted_sum(ys: list[Any], weights: list[Any]) -> Any:
    """A scalar of everything: the real part of the sum of all elements times their weights."""
    total = on_device(np.zeros(()))
    for y, weight in zip(ys, weights, strict=True):
        weighed = mul(convert_element_type(y, weight.dtype), weight)
        part = reduce_sum(weighed, tuple(range(y.ndim)))
        total = add(total, real(part) if dtypes.is_complex(part.dtype) else part)
    return total


# laws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [p for p in ROWS if p.values[0].oracle])
def test_value_equals_the_oracle(row: Row) -> None:
    rng = rng_of(row)
    for number, sample in enumerate(row.samples):
        args = sample(rng)
        got = results(row.function(*map(on_device, args)))
        want = row.oracle(*args)  # type: ignore[misc]
        wants = list(want) if isinstance(want, tuple | list) else [want]
        assert len(got) == len(wants)
        for one, expected in zip(got, wants, strict=True):
            assert_close(one, expected, row.rtol, row.atol, f"{row.name}, sample {number}")


@pytest.mark.parametrize("row", ROWS)
def test_shape_rule_tells_the_result_and_jit_gives_it(row: Row) -> None:
    rng = rng_of(row)
    for number, sample in list(enumerate(row.samples))[:MOST_SAMPLES]:
        args = tuple(map(on_device, sample(rng)))
        function, arrays = _of_arrays(row, args)
        once = results(function(*arrays))
        jaxpr = make_jaxpr(function)(*arrays)
        ir.check(jaxpr)
        found = [(aval.shape, aval.dtype) for aval in jaxpr.out_avals]
        assert found == [(y.shape, y.dtype) for y in once], f"sample {number}"
        assert found == [(np.shape(y), np.asarray(y).dtype) for y in once], f"sample {number}"
        for one, whole in zip(once, results(jit(function)(*arrays)), strict=True):
            assert whole.aval is one.aval
            rtol = max(row.rtol, 1e-6)
            assert_close(whole, one, rtol, row.atol, f"{row.name}, sample {number}")


def _of_arrays(row: Row, args: tuple[Any, ...]) -> tuple[Callable[..., Any], list[Any]]:
    """The row's function of its array arguments alone."""
    positions = [k for k, arg in enumerate(args) if isinstance(arg, Array)]

    def function(*arrays: Any) -> Any:
        whole = list(args)
        for position, value in zip(positions, arrays, strict=True):
            whole[position] = value
        return row.function(*whole)

    return function, [args[k] for k in positions]


@pytest.mark.parametrize("row", SMOOTH)
def test_jvp_is_the_central_difference(row: Row) -> None:
    rng = rng_of(row)
    for args in float64_samples(row):
        function, xs = of_floats(row, args)
        dxs = directions(rng, xs)
        ys, tangents = jvp(function, devices(xs), devices(dxs))
        _, error = precision(ys)
        for got, want in zip(tangents, difference(function, xs, dxs), strict=True):
            assert_close(got, want, error, error / 10, row.name)


@pytest.mark.parametrize("row", SMOOTH)
def test_vjp_is_the_transpose_of_jvp(row: Row) -> None:
    rng = rng_of(row)
    for args in float64_samples(row):
        function, xs = of_floats(row, args)
        dxs = directions(rng, xs)
        ys, tangents = jvp(function, devices(xs), devices(dxs))
        again, pull_back = vjp(function, *devices(xs))
        for one, two in zip(ys, again, strict=True):
            assert_close(one, two, 1e-14, 0)
        if not all(np.isfinite(host(t)).all() for t in tangents):
            continue  # the extremum of nothing has no slope
        cts = directions(rng, [host(y) for y in ys])
        grads = pull_back([on_device(ct, y.dtype) for ct, y in zip(cts, ys, strict=True)])
        left, right = inner(cts, tangents), inner(grads, dxs)
        size = 1 + sum(float(np.sum(np.abs(host(t)))) for t in tangents)
        assert abs(left - right) <= precision(ys)[1] * 1e-3 * size, (
            f"⟨ct, J dx⟩ = {left}, ⟨Jᵀ ct, dx⟩ = {right}"
        )


@pytest.mark.parametrize("row", TWICE)
def test_second_derivatives_agree(row: Row) -> None:
    """Forward over reverse, reverse over reverse and differences of the gradient."""
    rng = rng_of(row)
    for args in float64_samples(row, 2):
        function, xs = of_floats(row, args)
        if any(np.size(x) == 0 for x in xs):
            continue
        dxs = directions(rng, xs)
        weights = devices(directions(rng, [host(y) for y in function(*devices(xs))]))
        every = tuple(range(len(xs)))
        gradient = grad(lambda *xs, f=function, w=weights: weighted_sum(f(*xs), w), every)
        direction = devices(dxs)
        _, forward = jvp(gradient, devices(xs), direction)
        want = difference(lambda *xs, g=gradient: list(g(*xs)), xs, dxs)
        for got, expected in zip(forward, want, strict=True):
            assert_close(got, expected, 1e-5, 1e-6, row.name)
        reverse = grad(lambda *xs, g=gradient, d=direction: weighted_sum(g(*xs), d), every)
        for got, expected in zip(reverse(*devices(xs)), forward, strict=True):
            assert_close(got, expected, 1e-8, 1e-8, row.name)


@pytest.mark.parametrize("row", BATCHABLE)
def test_vmap_is_the_stacked_loop(row: Row) -> None:
    rng = rng_of(row)
    for sample in list(row.samples)[:2]:
        examples = [sample(rng) for _ in range(BATCH)]
        arrays = [
            k for k, arg in enumerate(examples[0]) if isinstance(arg, np.ndarray | np.generic)
        ]
        positions = arrays if row.batch_arguments is None else list(row.batch_arguments)
        for batched in _subsets(positions):
            if all(_same_shapes(examples, k) for k in batched):
                _assert_batches(row, examples, batched)


def _subsets(positions: list[int]) -> list[list[int]]:
    """Every argument alone, and all together."""
    alone = [[k] for k in positions]
    return alone if len(positions) < 2 else [*alone, positions]


def _same_shapes(examples: list[tuple[Any, ...]], k: int) -> bool:
    return len({np.shape(example[k]) for example in examples}) == 1


def _assert_batches(row: Row, examples: list[tuple[Any, ...]], batched: list[int]) -> None:
    first = examples[0]
    whole = [
        on_device(np.stack([e[k] for e in examples])) if k in batched else on_device(arg)
        for k, arg in enumerate(first)
    ]
    function, arrays = _of_arrays(row, tuple(whole))
    positions = [k for k, arg in enumerate(whole) if isinstance(arg, Array)]
    axes = tuple(0 if k in batched else None for k in positions)
    got = results(vmap(function, axes)(*arrays))
    loop = []
    for example in examples:
        args = [example[k] if k in batched else arg for k, arg in enumerate(first)]
        loop.append(results(row.function(*map(on_device, args))))
    for number, one in enumerate(got):
        want = np.stack([np.asarray(example[number]) for example in loop])
        rtol = max(row.rtol, 1e-6)
        assert_close(one, want, rtol, row.atol, f"{row.name}, batched {batched}")
