"""xcube beside PyTorch (eager) and JAX on one GPU, in one run: milliseconds of a call when many are
enqueued, how much faster xcube is than the best of the others, and its share of the copy bandwidth
that was measured first, or of nothing where arithmetic decides (then TFLOP/s).

Run: python benchmarks/gpu.py [NAME ...]; needs the extra `cuda`, and PyTorch; JAX if it is there.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import xcube
import xcube.numpy as jnp
from xcube import nn

ROUNDS, CALLS = 5, 10
PAUSE = 0.03  # seconds in which the clock recovers from the power limit

GPU = xcube.devices("cuda")[0]
HAS_JAX = importlib.util.find_spec("jax") is not None


@dataclass(frozen=True)
class Row:
    """One operation: how each library writes it, on which arrays, and what it moves or computes."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    jaxs: Callable[[Any, Any], Callable[..., Any]] | None
    arrays: tuple[torch.Tensor, ...]
    nbytes: int = 0
    flops: int = 0


def seconds(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Of one call, in the best of several bursts."""
    for _ in range(3):
        call()
    wait()
    best = float("inf")
    for _ in range(ROUNDS):
        time.sleep(PAUSE)
        start = time.perf_counter()
        for _ in range(CALLS):
            result = call()
        wait()
        best = min(best, (time.perf_counter() - start) / CALLS)
        del result
    return best


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def bytes_rows(dtype: torch.dtype) -> Iterator[Row]:
    """What memory limits, on 16384 x 4096 elements."""
    x = normal(16384, 4096, dtype=dtype)
    size, functional = x.nbytes, torch.nn.functional
    kind = str(dtype).removeprefix("torch.").replace("float", "f").replace("bf16", "bf16")

    def row(name: str, ours: Any, theirs: Any, moved: int, jaxs: Any = None) -> Row:
        return Row(f"{name} {kind}", ours, theirs, jaxs, (x,), nbytes=moved)

    def norm(m: Any) -> Callable[[Any], Any]:
        return lambda v: (v - v.mean(-1, keepdims=True)) / m.sqrt(v.var(-1, keepdims=True) + 1e-5)

    def chain(m: Any) -> Callable[[Any], Any]:
        return lambda v: m.sin(m.exp(-v * v) * 2 + 1) * v + m.tanh(v) * 0.5

    yield row("x * 2 + 1", lambda v: v * 2 + 1, lambda v: v * 2 + 1, 2 * size)
    yield row("chain", chain(jnp), chain(torch), 2 * size, lambda np, _: chain(np))
    yield row("gelu", lambda v: nn.gelu(v, approximate=False), functional.gelu, 2 * size,
              lambda _, jnn: lambda v: jnn.gelu(v, approximate=False))  # fmt: skip
    yield row("softmax", nn.softmax, lambda v: torch.softmax(v, -1), 2 * size,
              lambda _, jnn: jnn.softmax)  # fmt: skip
    yield row("layer norm", norm(jnp), lambda v: functional.layer_norm(v, (4096,)), 2 * size,
              lambda np, _: norm(np))  # fmt: skip
    yield row("transpose", lambda v: v.T + 0, lambda v: v.T.contiguous(), 2 * size,
              lambda np, _: lambda v: v.T + 0)  # fmt: skip
    for axis, name in ((None, "all"), (1, "rows"), (0, "columns")):
        yield row(f"sum {name}", lambda v, axis=axis: jnp.sum(v, axis),
                  lambda v, axis=axis: v.sum() if axis is None else v.sum(axis), size,
                  lambda np, _, axis=axis: lambda v: np.sum(v, axis))  # fmt: skip
    yield row("argmax rows", lambda v: jnp.argmax(v, 1), lambda v: v.argmax(1), size,
              lambda np, _: lambda v: np.argmax(v, 1))  # fmt: skip
    for axis, name in ((1, "rows"), (0, "columns")):
        yield row(f"cumsum {name}", lambda v, axis=axis: jnp.cumsum(v, axis),
                  lambda v, axis=axis: v.cumsum(axis), 2 * size,
                  lambda np, _, axis=axis: lambda v: np.cumsum(v, axis))  # fmt: skip


def index_rows() -> Iterator[Row]:
    """Gather, scatter and sorts."""
    table, updates = normal(1 << 20, 64), normal(1 << 22, 64)
    places = torch.randint(0, 1 << 20, (1 << 22,), device="cuda", dtype=torch.int32)
    moved = 2 * updates.nbytes + places.nbytes
    yield Row("gather rows", lambda t, i: t[i], lambda t, i: t[i.long()],
              lambda np, _: lambda t, i: t[i], (table, places), moved)  # fmt: skip
    yield Row("scatter-add rows", lambda t, i, u: t.at[i].add(u),
              lambda t, i, u: t.index_add(0, i, u), lambda np, _: lambda t, i, u: t.at[i].add(u),
              (table, places, updates), moved + updates.nbytes)  # fmt: skip
    rows, flat = normal(4096, 4096), normal(1 << 24)
    yield Row("sort rows", lambda v: jnp.sort(v, 1), lambda v: v.sort(1).values,
              lambda np, _: lambda v: np.sort(v, 1), (rows,), 2 * rows.nbytes)  # fmt: skip
    yield Row("sort 16M", jnp.sort, lambda v: v.sort().values, lambda np, _: np.sort, (flat,),
              2 * flat.nbytes)  # fmt: skip


def product_rows() -> Iterator[Row]:
    """Matrix products: squares, and the shapes of GPT-2."""

    def row(name: str, m: int, k: int, n: int, dtype: torch.dtype) -> Row:
        a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype)
        return Row(f"{name} {m}x{k}x{n}", lambda x, y: x @ y, torch.matmul,
                   lambda np, _: lambda x, y: x @ y, (a, b), flops=2 * m * n * k)  # fmt: skip

    for side in (1024, 2048, 4096, 8192):
        yield row("bf16", side, side, side, torch.bfloat16)
    for m, k, n in ((8192, 768, 2304), (8192, 768, 768), (8192, 768, 3072), (8192, 3072, 768)):
        yield row("bf16", m, k, n, torch.bfloat16)
    for side in (1024, 2048, 4096):
        yield row("f32", side, side, side, torch.float32)
    for m in (1, 16):
        a, b = normal(m, 4096, dtype=torch.bfloat16), normal(4096, 4096, dtype=torch.bfloat16)
        yield Row(f"bf16 {m}x4096x4096", lambda x, y: x @ y, torch.matmul,
                  lambda np, _: lambda x, y: x @ y, (a, b), nbytes=b.nbytes)  # fmt: skip


def attention_rows() -> Iterator[Row]:
    """Causal attention, forward and gradient: [batch, length, heads, size]."""

    def attend(library: Any, **options: Any) -> Callable[..., Any]:
        return lambda q, k, v: library.dot_product_attention(q, k, v, is_causal=True, **options)

    def sloped(root: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda q, k, v, ct: root.vjp(function, q, k, v)[1](ct)

    def torchs(q: Any, k: Any, v: Any) -> Any:
        turned = [x.transpose(1, 2) for x in (q, k, v)]
        return torch.nn.functional.scaled_dot_product_attention(*turned, is_causal=True)

    def torchs_slope(q: Any, k: Any, v: Any, ct: Any) -> Any:
        given = [x.detach().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(torchs(*given), given, ct.transpose(1, 2))

    def jaxs(_: Any, jnn: Any) -> Callable[..., Any]:
        return attend(jnn, implementation="cudnn")

    def jaxs_slope(_: Any, jnn: Any) -> Callable[..., Any]:
        import jax

        return sloped(jax, jaxs(_, jnn))

    for shape in ((4, 4096, 16, 128), (4, 4096, 16, 64), (8, 1024, 12, 64)):
        q, k, v, ct = (normal(*shape, dtype=torch.bfloat16) for _ in range(4))
        batch, length, heads, size = shape
        flops = 2 * batch * heads * length * length * size
        name = "x".join(map(str, shape))
        yield Row(f"attend {name}", attend(nn), torchs, jaxs, (q, k, v), flops=flops)
        arrays = (q, k, v, ct)
        yield Row("  and slopes", sloped(xcube, attend(nn)), torchs_slope, jaxs_slope, arrays,
                  flops=int(3.5 * flops))  # fmt: skip


def rows() -> Iterator[Row]:
    for dtype in (torch.float32, torch.bfloat16):
        yield from bytes_rows(dtype)
    yield from index_rows()
    yield from product_rows()
    yield from attention_rows()


def jax_seconds(row: Row) -> float | None:
    """What JAX takes, on the same memory; None without it."""
    if not HAS_JAX or row.jaxs is None:
        return None
    import jax

    run = jax.jit(row.jaxs(jax.numpy, jax.nn))
    arrays = [jax.dlpack.from_dlpack(x) for x in row.arrays]
    held: list[Any] = []

    def call() -> Any:
        held[:] = [run(*arrays)]

    return seconds(call, lambda: jax.block_until_ready(held))


def copy_bandwidth() -> float:
    """Bytes per second, read and written."""
    source = normal(1 << 28)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), torch.cuda.synchronize)


def main(chosen: list[str]) -> None:
    copy = copy_bandwidth()
    print(f"copy {copy / 1e12:.2f} TB/s; milliseconds")
    print(
        f"{'':<26}{'xcube':>9}{'torch':>9}{'jax':>9}{'best/xcube':>12}{'of copy':>9}{'TFLOP/s':>9}"
    )
    for row in rows():
        if chosen and not any(word in row.name for word in chosen):
            continue
        ours = xcube.jit(row.ours)
        arrays = [jnp.from_dlpack(x) for x in row.arrays]
        mine = seconds(lambda ours=ours, arrays=arrays: ours(*arrays), GPU.synchronize)
        torchs = seconds(lambda row=row: row.theirs(*row.arrays), torch.cuda.synchronize)
        jaxs = jax_seconds(row)
        best = min(x for x in (torchs, jaxs) if x is not None)
        shown = "-" if jaxs is None else f"{jaxs * 1e3:.3f}"
        share = f"{row.nbytes / mine / copy:.2f}" if row.nbytes else ""
        rate = f"{row.flops / mine / 1e12:.0f}" if row.flops else ""
        print(
            f"{row.name:<26}{mine * 1e3:>9.3f}{torchs * 1e3:>9.3f}{shown:>9}"
            f"{best / mine:>12.2f}{share:>9}{rate:>9}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
