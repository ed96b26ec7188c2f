"""Attention on matrix units: its kernels in the interpreter, which looks for races, and on whatever
device there is, against formulas in double precision; which attentions take that road; what NVRTC
says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from run_program import Pretended, run

import xcube
import xcube.numpy as jnp
from xcube.errors import DeviceError
from xcube.lowering import lower
from xcube.lowering.device import cuda_compile
from xcube.lowering.emit import cuda
from xcube.lowering.kernels import attention_matrix, repeats
from xcube.lowering.kernels.attention_matrix_tile import Plan
from xcube.nn import dot_product_attention

Array = np.ndarray[Any, Any]
Heads = tuple[int, int, int, int]  # of queries, of keys, their size, that of values
BF16, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
FACTS = {
    "vector_bits": 128, "units": 256, "cores": 1, "l1_bytes": 228 << 10,
    "features": frozenset({"matrix_bf16", "matrix_f16", "matrix_tf32", "sm_90a"}),
}  # fmt: skip
CASES = {
    "all keys": ((1, 128, 150, (1, 1, 64, 64)), {}),
    "causal": ((1, 200, 200, (2, 1, 32, 40)), {"is_causal": True}),
    "window": ((2, 130, 100, (1, 1, 64, 24)), {"local_window_size": (60, 10)}),
    "more keys": ((1, 70, 300, (2, 2, 136, 96)), {"is_causal": True}),
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """Operands and what the oracle makes of them."""

    q: Array
    k: Array
    v: Array
    ct: Array
    seen: Array

    @classmethod
    def of(
        cls, batch: int, queries: int, keys: int, heads: Heads, options: Any, dtype: Any = BF16
    ) -> Problem:
        random, (n, m, h, e) = np.random.default_rng(3), heads
        shapes = [(queries, n, h), (keys, m, h), (keys, m, e), (queries, n, e)]
        operands = [random.standard_normal((batch, *shape)).astype(dtype) for shape in shapes]
        row, column = np.arange(queries)[:, None], np.arange(keys)
        seen = np.ones((queries, keys), np.bool_)
        if options.get("is_causal"):
            seen &= column <= row
        if (window := options.get("local_window_size")) is not None:
            seen &= (column >= row - window[0]) & (column <= row + window[1])
        return cls(*operands, seen)

    def wide(self) -> list[Array]:
        """The operands in double precision, keys and values for each head of queries."""
        times = self.q.shape[2] // self.k.shape[2]
        q, k, v, ct = (x.astype(np.float64) for x in (self.q, self.k, self.v, self.ct))
        return [q, np.repeat(k, times, 2), np.repeat(v, times, 2), ct]

    def chances(self) -> tuple[Array, Array]:
        """The softmax of the scores, and the logarithms of its denominators."""
        q, k, _, _ = self.wide()
        scores = np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(q.shape[-1])
        scores = np.where(self.seen, scores, -np.inf)
        top = scores.max(-1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(-1, keepdims=True)
        return weights / total, (top + np.log(total))[..., 0].swapaxes(1, 2)

    def result(self) -> list[Array]:
        """The attention, and its residual."""
        chances, logarithms = self.chances()
        return [np.einsum("bnts,bsne->btne", chances, self.wide()[2]), logarithms]

    def gradients(self) -> list[Array]:
        """Of the sum of result times ct."""
        q, k, v, ct = self.wide()
        chances, _ = self.chances()
        slopes = np.einsum("btne,bsne->bnts", ct, v)
        slopes = chances * (slopes - (chances * slopes).sum(-1, keepdims=True))
        slopes /= np.sqrt(q.shape[-1])
        of_keys = np.einsum("bnts,btnh->bsnh", slopes, q), np.einsum("bnts,btne->bsne", chances, ct)
        summed = [x.reshape(*self.k.shape[:3], -1, x.shape[-1]).sum(3) for x in of_keys]
        return [np.einsum("bnts,bsnh->btnh", slopes, k), *summed]


def gradients(options: Any) -> Callable[..., Any]:
    """dq, dk and dv for operands and a cotangent."""

    def function(q: Any, k: Any, v: Any, ct: Any) -> Any:
        _, pull = xcube.vjp(lambda *args: dot_product_attention(*args, **options), q, k, v)
        return pull(ct)

    return function


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that the interpreter runs in a moment, in more than one block of every sort."""
    for name, turns in (("FORWARD", True), ("BACKWARD", False)):
        monkeypatch.setattr(attention_matrix, name, {256: Plan(2, 64, 2, turns)})
    repeats.clear()


def close(found: list[Any], expected: list[Array], tolerance: float = 1e-2) -> None:
    for x, y in zip(found, expected, strict=True):
        scale = np.abs(y).max()
        np.testing.assert_allclose(x.astype(np.float64) / scale, y / scale, atol=tolerance)


@pytest.mark.parametrize("case", CASES)
def test_forward_in_the_interpreter(case: str, small: None) -> None:
    sizes, options = CASES[case]
    problem = Problem.of(*sizes, options)
    jaxpr = xcube.make_jaxpr(
        lambda *args: dot_product_attention(*args, **options, return_residual=True)
    )(problem.q, problem.k, problem.v).closed()
    assert "attention_tiles" in str(lower(jaxpr, Pretended(**FACTS), forward=False).jaxpr)  # type: ignore[arg-type]
    close(run(jaxpr, [problem.q, problem.k, problem.v], **FACTS), problem.result())


@pytest.mark.parametrize("case", ["all keys", "causal", "window"])
def test_gradients_in_the_interpreter(case: str, small: None) -> None:
    sizes, options = CASES[case]
    problem = Problem.of(*sizes, options, F16 if case == "window" else BF16)
    operands = [problem.q, problem.k, problem.v, problem.ct]
    jaxpr = xcube.make_jaxpr(gradients(options))(*operands).closed()
    program = str(lower(jaxpr, Pretended(**FACTS), forward=False).jaxpr)  # type: ignore[arg-type]
    assert "attention_keys" in program
    assert "attention_queries" in program
    close(run(jaxpr, operands, **FACTS), problem.gradients())


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((2, 300, 300, (4, 2, 64, 64)), {"is_causal": True}),
        ((1, 257, 513, (3, 3, 128, 64)), {}),
        ((1, 513, 300, (2, 1, 96, 128)), {"local_window_size": (300, 40)}),
        ((1, 40, 1000, (1, 1, 256, 200)), {"is_causal": True}),
    ],
)
def test_on_the_device(sizes: Any, options: Any) -> None:
    problem = Problem.of(*sizes, options)
    attend = xcube.jit(lambda *args: dot_product_attention(*args, **options, return_residual=True))
    operands = [jnp.asarray(x) for x in (problem.q, problem.k, problem.v, problem.ct)]
    close([np.asarray(x) for x in attend(*operands[:3])], problem.result())
    found = xcube.jit(gradients(options))(*operands)
    close([np.asarray(x) for x in found], problem.gradients(), 2e-2)


def road(shape: tuple[int, ...], dtype: Any, **options: Any) -> bool:
    """Whether an attention of queries, keys and values of one shape takes matrix units."""
    x = jnp.zeros(shape, dtype)
    jaxpr = xcube.make_jaxpr(lambda x: dot_product_attention(x, x, x, **options))(x).closed()
    return "attention_tiles" in str(lower(jaxpr, Pretended(**FACTS), forward=False).jaxpr)  # type: ignore[arg-type]


def test_who_takes_the_road() -> None:
    assert road((1, 64, 1, 64), BF16)
    assert road((1, 64, 1, 64), F16, local_window_size=0)
    assert not road((1, 64, 1, 64), np.float32)
    assert not road((1, 16, 1, 64), BF16)  # few queries
    assert not road((1, 64, 1, 36), BF16)  # chunks of 16 bytes would not be whole
    assert not road((1, 64, 1, 264), BF16)
    assert not road((1, 64, 1, 64), BF16, mask=np.ones((1, 1, 64, 64), np.bool_))
    assert not road((1, 64, 1, 64), BF16, scale=-1.0)


def test_kernels_compile() -> None:
    try:
        cuda_compile.version()
    except DeviceError as error:
        pytest.skip(str(error))
    for size in (64, 128):
        x = np.zeros((1, 256, 1, size), BF16)
        jaxpr = xcube.make_jaxpr(gradients({"is_causal": True}))(x, x, x, x).closed()
        kernels = lower(jaxpr, Pretended(**FACTS), forward=False).kernels  # type: ignore[arg-type]
        texts = [("kernel", cuda.emit(kernel)) for kernel in kernels]
        codes = cuda_compile.compile([text for text in texts if "wgmma" in text[1]], "sm_90a")
        assert len(codes) == 3
        assert all(code.startswith(b"\x7fELF") for code in codes)
