"""Kernels for devices whose cubes have many units, in the interpreter: it checks every access and
looks for races."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import ops_index
import pytest
from run_program import run

import xcube
import xcube.numpy as jnp
from xcube import lax, nn
from xcube.lowering.kernels import contract_packed

Array = np.ndarray[Any, Any]

RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((5, 67)).astype(np.float32)
EVEN = RANDOM.standard_normal((6, 64)).astype(np.float32)
A, B = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((33, 40), (40, 67)))
BATCHED = RANDOM.standard_normal((2, 3, 40, 20)).astype(np.float32)


def agree(function: Callable[..., Any], *args: Array, rtol: float = 1e-5, **facts: Any) -> None:
    """The program for a device of these facts gives what the CPU gives."""
    jaxpr = xcube.make_jaxpr(function)(*args)
    inputs = [np.asarray(x) for x in (*jaxpr.consts, *args)]
    found = run(jaxpr.closed(), inputs, vector_bits=128, **facts)
    expected = xcube.tree.leaves(xcube.jit(function)(*args))
    assert len(found) == len(expected)
    for got, want in zip(found, map(np.asarray, expected), strict=True):
        wide = np.complex128 if want.dtype.kind == "c" else np.float64
        scale = max(1.0, float(np.abs(want.astype(wide)).max(initial=0)))
        np.testing.assert_allclose(
            got.astype(wide), want.astype(wide), rtol=rtol, atol=rtol * scale
        )


ROWS: dict[str, Callable[..., Any]] = {
    "flat": lambda x: x * 2 + 1,
    "of another shape": lambda x: x + x.T[0, 0],
    "transposed": lambda x: x.T * 2,
    "softmax": nn.softmax,
    "sum": jnp.sum,
    "sum of columns": lambda x: jnp.sum(x, 0),
    "sum of rows": lambda x: jnp.sum(x, 1),
    "argmax": lambda x: jnp.argmax(x, 1),
    "norm": lambda x: (x - jnp.mean(x, 1)[:, None]) / jnp.sqrt(jnp.var(x, 1, keepdims=True) + 1),
    "complex": lambda x: jnp.sum((x + 1j * x) ** 2, 1),
    "bfloat16": lambda x: (x.astype("bfloat16") * 2).sum(1).astype("float32"),
    "concatenated": lambda x: jnp.concatenate([x, x * 2], 0)[::2],
    "cumulative": lambda x: jnp.cumsum(x, 1),
    "sorted": lambda x: jnp.sort(x, 1),
    "scan": lambda x: lax.scan(lambda c, r: (c * 0.9 + r, c.sum()), jnp.zeros(x.shape[1]), x),
    "while": lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, x)),
}


EMPTY = ("flat", "transposed", "sum", "sum of columns", "sum of rows", "complex", "cumulative")


@pytest.mark.parametrize("units", [1, 8, 32])
@pytest.mark.parametrize("name", ROWS)
def test_units_share_rows(name: str, units: int) -> None:
    tolerance = 2e-2 if name == "bfloat16" else 1e-5
    for x in (X, EVEN, X[:, :0], X[:0]) if name in EMPTY else (X, EVEN):
        agree(ROWS[name], x, rtol=tolerance, units=units)


@pytest.mark.parametrize("cores", [1, 1000])
def test_units_share_a_block_of_a_product(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(contract_packed, "BLOCK", 32)  # the same kernel, small enough to interpret
    facts = {"units": 64, "cores": cores}
    agree(lambda a, b: nn.relu(a @ b + 1) * 2, A, B, rtol=1e-4, **facts)
    agree(lambda a, b: jnp.einsum("xk,yk->yx", a, b), A, A, rtol=1e-4, **facts)
    agree(lambda x: jnp.einsum("abmk,abnk->bamn", x, x), BATCHED, rtol=1e-4, **facts)
    agree(lambda x: jnp.dot(x, x.T).astype(jnp.int32), (A * 9).astype(np.int32), **facts)


@pytest.mark.parametrize("mode", ["clip", "drop", "promise_in_bounds"])
def test_the_last_of_overlapping_updates_stays(mode: str) -> None:
    row = next(row for row in ops_index.ROWS if row.name == f"scatter crossed batch {mode}")
    for sample in row.samples:
        agree(row.function, *sample(np.random.default_rng(0)), units=256)
