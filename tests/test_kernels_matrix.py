"""Contractions on matrix units: the library's kernels with small tiles in the interpreter, which
looks for races, against NumPy; how operands may lie; which tile a problem gets; what NVRTC says."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from run_program import Pretended, run

import xcube
import xcube.numpy as jnp
from xcube import nn
from xcube.errors import DeviceError
from xcube.ir import Aval, Equation, Var
from xcube.lowering import lower
from xcube.lowering.device import cuda_compile
from xcube.lowering.device.base import Facts
from xcube.lowering.emit import cuda
from xcube.lowering.kernels import contract_matrix, repeats
from xcube.lowering.kernels.contract_matrix import Layout, Plan, Sizes

Array = np.ndarray[Any, Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
FEATURES = frozenset({"matrix_bf16", "matrix_f16", "matrix_tf32", "sm_90a"})
FACTS = {
    "vector_bits": 128, "units": 256, "cores": 1, "features": FEATURES, "l1_bytes": 228 << 10,
}  # fmt: skip
ROADS = {
    "planes": Plan(64, 64, 3, (2, 2), "planes", 2, 1000),
    "few rows": Plan(16, 64, 3, (1, 4), "planes", 2, 1000),
    "panels": Plan(128, 64, 4, (8, 1), "panels", 2, 1000),
    "stream": Plan(128, 64, 2, (12, 1), "stream", 1, 1000),
    "shared stream": Plan(128, 64, 2, (9, 1), "stream", 2, 1000),
}
RANDOM = np.random.default_rng(7)


def random(*shape: int, dtype: Any = BF16) -> Array:
    return RANDOM.standard_normal(shape).astype(dtype)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes one plan the only one, with the depth in so many parts."""

    def choose(plan: Plan, splits: int = 1) -> None:
        monkeypatch.setattr(contract_matrix, "PLANS", (plan,))
        monkeypatch.setattr(contract_matrix, "_splits", lambda *_: [splits])
        repeats.clear()

    return choose


def agree(function: Callable[..., Any], oracle: Any, *args: Array, tolerance: float = 1e-2) -> None:
    """One kernel of matrix units gives what NumPy gives."""
    jaxpr = xcube.make_jaxpr(function)(*args).closed()
    assert "matrix_product" in str(lower(jaxpr, Pretended(**FACTS), forward=False).jaxpr)  # type: ignore[arg-type]
    (found,) = run(jaxpr, list(args), **FACTS)
    expected = np.asarray(oracle(*[x.astype(np.float64) for x in args]))
    scale = float(np.abs(expected).max())
    np.testing.assert_allclose(found.astype(np.float64) / scale, expected / scale, atol=tolerance)


def einsum(spec: str, **params: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    ours = lambda *args: jnp.einsum(spec, *args, **params)  # noqa: E731
    return ours, lambda *args: np.einsum(spec, *args)


@pytest.mark.parametrize("spec", ["mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,nk->mn"])
@pytest.mark.parametrize("road", ROADS)
def test_operands_lie_either_way(road: str, spec: str, only: Any) -> None:
    only(ROADS[road])
    sizes = {"m": 24 if road == "few rows" else 72, "n": 72, "k": 72}
    left, right = (tuple(sizes[name] for name in part) for part in spec[:5].split(","))
    agree(*einsum(spec), random(*left), random(*right))


@pytest.mark.parametrize("road", ROADS)
def test_sizes_may_be_odd_and_maps_follow(road: str, only: Any) -> None:
    only(ROADS[road])
    rows = 19 if road == "few rows" else 67
    a, b, bias = random(rows, 131), random(131, 67), random(67)
    agree(
        lambda a, b, v: nn.relu(a @ b + v) * 2,
        lambda a, b, v: np.maximum(a @ b + v, 0) * 2,
        *(a, b, bias),
    )


@pytest.mark.parametrize("road", ["planes", "stream"])
def test_batches_are_read_where_they_lie(road: str, only: Any) -> None:
    only(ROADS[road])
    agree(*einsum("bthd,bshd->bhts"), *[random(2, 40, 2, 64) for _ in "xy"])


@pytest.mark.parametrize("road", ["planes", "panels", "stream"])
def test_the_depth_is_summed_in_parts(road: str, only: Any) -> None:
    only(ROADS[road], splits=3)
    agree(*einsum("mk,kn->mn"), random(16, 328), random(328, 64))


def test_one_row_or_column_leaves_matrix_units_alone(only: Any) -> None:
    only(ROADS["few rows"])
    for function, shapes in (
        (lambda x, w: x @ w, ((264,), (264, 136))),
        (lambda w, x: w @ x, ((136, 264), (264,))),
        (lambda x, w: jnp.einsum("bk,bkn->bn", x, w), ((3, 64), (3, 64, 40))),
    ):
        args = [random(*shape) for shape in shapes]
        jaxpr = xcube.make_jaxpr(function)(*args).closed()
        assert "matrix_product" not in str(lower(jaxpr, Pretended(**FACTS), forward=False).jaxpr)  # type: ignore[arg-type]
        (found,) = run(jaxpr, args, **FACTS)
        wide = [x.astype(np.float64) for x in args]
        spec = "bk,bkn->bn" if args[1].ndim == 3 else None
        expected = np.einsum(spec, *wide) if spec else wide[0] @ wide[1]
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found.astype(np.float64) / scale, expected / scale, atol=1e-2)


def test_two_rows_are_products(only: Any) -> None:
    only(ROADS["few rows"])
    agree(lambda x, w: x @ w, lambda x, w: x @ w, random(2, 264), random(264, 136))
    agree(lambda w, x: w @ x, lambda w, x: w @ x, random(136, 264), random(264, 2))


def test_long_functions_behind_a_product_are_a_kernel_of_their_own(only: Any) -> None:
    """And so are maps that read several arrays; sums of a few parts share the product's kernel."""
    only(ROADS["stream"])
    x, w, y, z = random(128, 64), random(64, 64), random(128, 64), random(128, 64)

    def kernels(function: Callable[..., Any]) -> list[str]:
        jaxpr = xcube.make_jaxpr(function)(x, w, y, z).closed()
        return [kernel.name for kernel in lower(jaxpr, Pretended(**FACTS), forward=False).kernels]  # type: ignore[arg-type]

    assert kernels(lambda x, w, y, z: nn.relu(x @ w + y)) == ["matmul"]
    assert len(kernels(lambda x, w, y, z: jnp.tanh(x @ w))) == 2
    assert len(kernels(lambda x, w, y, z: x @ w * y + z)) == 2


def test_half_precision_and_wide_results(only: Any) -> None:
    only(ROADS["planes"])
    a, b = random(64, 72, dtype="f2"), random(72, 64, dtype="f2")
    ours, oracle = einsum("mk,kn->mn", preferred_element_type="float32")
    agree(ours, oracle, a, b, tolerance=1e-6)


@pytest.mark.parametrize("spec", ["mk,kn->mn", "mk,nk->mn"])
def test_tf32_where_it_is_asked_for(spec: str, only: Any) -> None:
    only(ROADS["planes"])
    ours, oracle = einsum(spec, precision="tensorfloat32")
    a, b = (random(52, 52, dtype="f4") for _ in "xy")
    agree(ours, oracle, a, b, tolerance=2e-3)
    jaxpr = xcube.make_jaxpr(einsum(spec)[0])(a, b).closed()
    assert "matrix_product" not in str(lower(jaxpr, Pretended(**FACTS), forward=False).jaxpr)  # type: ignore[arg-type]


# how operands lie -------------------------------------------------------------------------------


def test_layouts_that_are_read_as_they_lie() -> None:
    assert Layout((4, 8, 64), (), (0, 1), (2,)).is_direct("bf16")
    assert Layout((64, 4, 8), (), (1, 2), (0,)).is_direct("bf16")
    assert not Layout((64, 4, 8), (), (1, 2), (0,)).is_direct("f32"), "not along the depth"
    assert not Layout((4, 63), (), (0,), (1,)).is_direct("bf16"), "a chunk is not whole"
    assert not Layout((4, 8, 64), (1,), (2,), (0,)).permuted((0, 2, 1)).is_direct("bf16")
    assert not Layout((4, 3, 64), (), (0,), (1, 2)).permuted((1, 0, 2)).is_direct("bf16")
    assert Layout((8, 2, 64), (), (0, 1), (2,)).stride((0, 1)) == 64
    assert Layout((8, 2, 64), (), (0, 2), (1,)).stride((0, 2)) is None


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_transposed_layouts_name_the_same_elements(order: tuple[int, ...]) -> None:
    inner = RANDOM.integers(0, 99, (2, 3, 5))
    outer = Layout(inner.transpose(order).shape, (0,), (1,), (2,))
    found = outer.permuted(order)
    assert found.shape == inner.shape
    dims = (*found.batch, *found.rows, *found.depth)
    np.testing.assert_array_equal(inner.transpose(dims), inner.transpose(order))


def product_equation(*shapes: tuple[int, ...]) -> Equation:
    """The product in the program of a @ b."""
    args = [np.zeros(shape, BF16) for shape in shapes]
    jaxpr = xcube.make_jaxpr(lambda a, b: a @ b)(*args).closed()
    program = lower(jaxpr, Pretended(**FACTS), forward=False)  # type: ignore[arg-type]
    (found,) = [e for e in program.jaxpr.equations if e.primitive.name == "matrix_product"]
    return found


def test_transposes_before_a_product_are_absorbed() -> None:
    repeats.clear()
    eqn = product_equation((128, 64), (64, 128))
    params = contract_matrix.absorbed(eqn, 1, (1, 0))
    assert params is not None
    assert params["layouts"][1] == Layout((128, 64), (), (0,), (1,))
    reshaped = dataclasses.replace(eqn, inputs=(eqn.inputs[0], Var(Aval((8, 8, 128), BF16))))
    assert contract_matrix.absorbed(reshaped, 1, (1, 0)) is None


# choices ----------------------------------------------------------------------------------------

H200 = Facts("cuda:0", "cuda", "H200", 132, 128, 228 << 10, 60 << 20, 1 << 37, FEATURES, 256)


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        (Sizes(1, 8192, 8192, 8192), "128x256 stream"),
        (Sizes(1, 512, 4096, 4096), "128x128 stream"),
        (Sizes(1, 1, 4096, 4096), "16x64 planes"),
        (Sizes(1, 64, 64, 8192), "16x64 planes"),
    ],
)
def test_tiles_suit_the_problem(sizes: Sizes, chosen: str) -> None:
    assert str(contract_matrix.choose(sizes, "bf16", H200)).startswith(chosen)


def test_parts_of_the_depth_all_have_work() -> None:
    for plan, depth in itertools.product(contract_matrix.PLANS, (64, 576, 1088, 8192)):
        sizes = Sizes(1, 64, 64, depth)
        for parts in contract_matrix._splits(plan, sizes, "bf16", H200):
            slices = math.ceil(depth / 64)
            assert (parts - 1) * math.ceil(slices / parts) < slices


def test_boxes_have_few_dimensions_and_other_devices_other_tiles() -> None:
    sizes = Sizes(1, 4096, 4096, 4096)
    assert contract_matrix.choose(sizes, "bf16", H200, rank=6).road == "panels"
    assert contract_matrix.choose(sizes, "f32", H200).road == "planes"


@pytest.mark.parametrize("plan", contract_matrix.PLANS, ids=str)
def test_kernels_compile(plan: Plan, only: Any) -> None:
    try:
        cuda_compile.version()
    except DeviceError as error:
        pytest.skip(str(error))
    only(plan)
    args = [np.zeros(shape, BF16) for shape in ((300, 264), (264, 520), (520,))]
    jaxpr = xcube.make_jaxpr(lambda a, b, v: nn.relu(a @ b + v))(*args).closed()
    program = lower(jaxpr, Pretended(**FACTS), forward=False)  # type: ignore[arg-type]
    (kernel,) = program.kernels
    targets = ["sm_80", "sm_90a"] if plan.road == "planes" else ["sm_90a"]
    for target in targets:
        (code,) = cuda_compile.compile([("kernel", cuda.emit(kernel))], target)
        assert code.startswith(b"\x7fELF")
