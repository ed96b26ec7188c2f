"""Single operations in every library that is installed, and the machine's limit, in turn, in one
process. Prints one JSON list: for each case the seconds per call of each library, and the seconds
that the limit allows.

Run by run.py, which sets the number of threads.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from limits import Machine
from timing import low_percentiles

Function = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """`jax(lib, *inputs)` serves xcube and JAX, which have the same names; `numpy` and `torch` may
    be absent. `bound` names the limit ("copy", "read", "flops"), `work` is in its unit. A case is
    compared with NumPy's or JAX's values to `rtol` of the largest. `draw` gives the inputs of a
    random generator where they are not normal floats of `dtype`."""

    name: str
    inputs: tuple[tuple[int, ...], ...]
    jax: Function
    numpy: Function | None = None
    torch: Function | None = None
    bound: str = ""
    work: float = 0.0
    jitted: bool = True
    rtol: float = 1e-4
    dtype: str = "float32"
    draw: Callable[[np.random.Generator], tuple[np.ndarray, ...]] | None = None


@dataclass(frozen=True)
class Library:
    """What has JAX's names."""

    top: Any
    jnp: Any
    nn: Any

    @classmethod
    def load(cls, name: str) -> Library:
        return cls(*(importlib.import_module(name + part) for part in ("", ".numpy", ".nn")))


def chain(x: Any) -> Any:
    """Twelve operations on each element."""
    for _ in range(6):
        x = x * 1.01 + 0.5
    return x


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(lib: Any, x: Any, rsqrt: Function) -> Any:
    centred = x - lib.mean(x, -1, keepdims=True)
    return centred * rsqrt(lib.mean(centred * centred, -1, keepdims=True) + 1e-5)


def cases() -> list[Case]:
    wide, square, rows = (1 << 24,), (4096, 4096), (4096, 1024)
    moved = {shape: 8.0 * math.prod(shape) for shape in (wide, rows)}
    found = [
        Case(
            "12-op chain, 16M",
            (wide,),
            lambda lib, x: chain(x),
            numpy=chain,
            torch=lambda torch, x: chain(x),
            bound="copy",
            work=moved[wide],
        ),
        Case(
            "gelu (erf), 16M",
            (wide,),
            lambda lib, x: lib.nn.gelu(x, approximate=False),
            torch=lambda torch, x: torch.nn.functional.gelu(x),
            bound="copy",
            work=moved[wide],
        ),
        *(_sum(square, axis) for axis in (0, 1, None)),
        Case(
            "softmax, 4096x1024",
            (rows,),
            lambda lib, x: lib.nn.softmax(x, axis=-1),
            numpy=softmax,
            torch=lambda torch, x: torch.softmax(x, -1),
            bound="copy",
            work=moved[rows],
        ),
        Case(
            "layer norm, 4096x1024",
            (rows,),
            lambda lib, x: layer_norm(lib.jnp, x, lambda v: 1 / lib.jnp.sqrt(v)),
            numpy=lambda x: layer_norm(np, x, lambda v: 1 / np.sqrt(v)),
            torch=lambda torch, x: torch.nn.functional.layer_norm(x, (rows[1],)),
            bound="copy",
            work=moved[rows],
        ),
    ]
    found += [_matmul(n) for n in (512, 1024, 2048)]
    small = ((8,),)
    found.append(
        Case(
            "jitted x + 1, 8 elements",
            small,
            lambda lib, x: x + 1,
            numpy=lambda x: x + 1,
            torch=lambda torch, x: x + 1,
        )
    )
    found.append(
        Case(
            "eager x + y, 8 elements",
            small * 2,
            lambda lib, x, y: x + y,
            numpy=lambda x, y: x + y,
            torch=lambda torch, x, y: x + y,
            jitted=False,
        )
    )
    return found


def _sum(shape: tuple[int, int], axis: int | None) -> Case:
    title = "all" if axis is None else f"axis {axis}"
    return Case(
        f"sum {title}, {shape[0]}x{shape[1]}",
        (shape,),
        lambda lib, x: lib.jnp.sum(x, axis=axis),
        numpy=lambda x: x.sum(axis=axis),
        torch=lambda torch, x: x.sum() if axis is None else x.sum(axis),
        bound="read",
        work=4.0 * math.prod(shape),
        rtol=1e-2,
    )


def _matmul(n: int) -> Case:
    return Case(
        f"matmul {n}",
        ((n, n),) * 2,
        lambda lib, x, y: lib.jnp.matmul(x, y),
        numpy=np.matmul,
        torch=lambda torch, x, y: torch.matmul(x, y),
        bound="flops",
        work=2.0 * n**3,
    )


def calls(case: Case, threads: int) -> dict[str, Callable[[], Any]]:
    """What to call for each library that can do the case; their values agree."""
    generator = np.random.default_rng(0)
    if case.draw is not None:
        inputs = list(case.draw(generator))
    else:
        inputs = [_input(generator, shape, case.dtype) for shape in case.inputs]
    found: dict[str, Callable[[], Any]] = {}
    for name in ("xcube", "jax"):
        if installed(name):
            found[name] = _jax_call(case, Library.load(name), inputs)
    if case.numpy is not None:
        found["numpy"] = lambda function=case.numpy: function(*inputs)
    if case.torch is not None and installed("torch"):
        found["torch"] = _torch_call(case, inputs, threads)
    _compare(case, found)
    return found


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _jax_call(case: Case, lib: Library, inputs: list[np.ndarray]) -> Callable[[], Any]:
    arrays = [lib.jnp.asarray(x) for x in inputs]

    def function(*args: Any) -> Any:
        return case.jax(lib, *args)

    wanted = lib.top.jit(function) if case.jitted else function
    return lambda: wanted(*arrays).block_until_ready()


def _torch_call(case: Case, inputs: list[np.ndarray], threads: int) -> Callable[[], Any]:
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    if case.draw is not None:
        tensors = [torch.from_numpy(x) for x in inputs]
    else:
        dtype = getattr(torch, case.dtype)
        tensors = [torch.from_numpy(x.astype(np.float32)).to(dtype) for x in inputs]

    def call() -> Any:
        with torch.inference_mode():
            return case.torch(torch, *tensors)  # type: ignore[misc]

    return call


def _input(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "int8":
        return generator.integers(-100, 100, shape, np.int8)
    return generator.standard_normal(shape, dtype=np.float32).astype(ml_dtypes.finfo(dtype).dtype)


def _wide(value: Any) -> np.ndarray:
    """A result of any library in double precision; torch's need to be asked."""
    return np.asarray(value.double() if hasattr(value, "double") else value).astype(np.float64)


def _compare(case: Case, found: dict[str, Callable[[], Any]]) -> None:
    values = {name: _wide(call()) for name, call in found.items()}
    expected = values["numpy"] if "numpy" in values else next(reversed(values.values()))
    for name, value in values.items():
        error = np.abs(value - expected).max() / np.abs(expected).max()
        if not error <= case.rtol:
            raise AssertionError(f"{case.name}: {name} differs by {error:.1e} of the largest value")


def main(family: str) -> None:
    """The rows of a family, whose module has `cases`."""
    threads = len(os.sched_getaffinity(0))
    machine = Machine(threads)
    rows = []
    for case in cases() if family == "kernels" else importlib.import_module(family).cases():
        print(case.name, file=sys.stderr, flush=True)
        wanted = calls(case, threads)
        if case.bound:
            wanted["limit"] = machine.calls[case.bound]
        seconds = low_percentiles(wanted)
        row: dict[str, Any] = {"name": case.name, "seconds": seconds}
        if case.bound:
            row["bound"] = case.bound
            row["rate"] = machine.work[case.bound] / seconds.pop("limit")
            row["limit"] = case.work / row["rate"]
        rows.append(row)
    print(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["kernels"])
