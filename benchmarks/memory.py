"""Kernels that are bound by bytes: elementwise, reductions of odd shapes, scans, sorts, rows
gathered and added, copies, random numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from kernels import Case

WIDE = (1 << 24,)
SQUARE = (4096, 4096)
LONG = 5_000_000
TABLE, TAKEN, WIDTH = 100_000, 1_000_000, 64


def cases() -> list[Case]:
    return [
        _copying("add, 16M", (WIDE,) * 2, lambda np_, x, y: x + y, 12.0 * WIDE[0]),
        *_reductions(),
        *_scans(),
        *_sorts(),
        *_rows(),
        *_copies(),
        *_random(),
    ]


def _copying(name: str, shapes: tuple[tuple[int, ...], ...], function: Any, work: float) -> Case:
    """A case whose function is spelt alike in all libraries."""
    return Case(
        name,
        shapes,
        lambda lib, *args: function(lib.jnp, *args),
        numpy=lambda *args: function(np, *args),
        torch=lambda torch, *args: function(torch, *args),
        bound="copy",
        work=work,
    )


def _reductions() -> list[Case]:
    found = [
        _reading("max, 16M", WIDE, lambda np_, x: np_.max(x)),
        _reading("argmax, 16M", WIDE, lambda np_, x: np_.argmax(x)),
        _reading("mean, 16M", WIDE, lambda np_, x: np_.mean(x), rtol=10.0),
        Case(
            "variance, 16M",
            (WIDE,),
            lambda lib, x: lib.jnp.var(x),
            numpy=np.var,
            torch=lambda torch, x: torch.var(x, unbiased=False),
            bound="read",
            work=4.0 * WIDE[0],
        ),
    ]
    for shape in ((3, LONG), (LONG, 3)):
        title = "x".join(map(str, shape))
        for axis in (0, 1):
            wanted = lambda np_, x, axis=axis: np_.sum(x, axis)  # noqa: E731
            found.append(_reading(f"sum axis {axis}, {title}", shape, wanted, rtol=1e-2))
    return found


def _reading(name: str, shape: tuple[int, ...], function: Any, rtol: float = 1e-4) -> Case:
    return Case(
        name,
        (shape,),
        lambda lib, x: function(lib.jnp, x),
        numpy=lambda x: function(np, x),
        torch=lambda torch, x: function(torch, x),
        bound="read",
        work=4.0 * math.prod(shape),
        rtol=rtol,
    )


def _scans() -> list[Case]:
    return [
        Case(
            f"cumsum axis {axis}, {'x'.join(map(str, shape))}",
            (shape,),
            lambda lib, x, axis=axis: lib.jnp.cumsum(x, axis),
            numpy=lambda x, axis=axis: np.cumsum(x, axis),
            torch=lambda torch, x, axis=axis: torch.cumsum(x, axis),
            bound="copy",
            work=8.0 * math.prod(shape),
            rtol=1e-2,
        )
        for shape, axis in ((SQUARE, 1), (SQUARE, 0), (WIDE, 0))
    ]


def _sorts() -> list[Case]:
    million, batch = (1_000_000,), (4096, 1024)
    return [
        Case(
            f"sort, {'x'.join(map(str, shape))}",
            (shape,),
            lambda lib, x: lib.jnp.sort(x, -1),
            numpy=lambda x: np.sort(x, -1),
            torch=lambda torch, x: torch.sort(x, -1).values,
        )
        for shape in (million, batch)
    ] + [
        Case(
            "argsort, 1000000",
            (million,),
            lambda lib, x: lib.jnp.argsort(x),
            numpy=lambda x: np.argsort(x, kind="stable"),
            torch=lambda torch, x: torch.argsort(x, stable=True),
        ),
        Case(
            "largest 64, 4096x1024",
            (batch,),
            lambda lib, x: lib.top.lax.top_k(x, 64)[0],
            torch=lambda torch, x: torch.topk(x, 64).values,
        ),
    ]


# rows -----------------------------------------------------------------------------------------


def _rows() -> list[Case]:
    moved = 8.0 * TAKEN * WIDTH
    found = [
        Case(
            f"{TAKEN} of {TABLE} rows of {WIDTH}",
            (),
            lambda lib, x, at: x[at],
            numpy=lambda x, at: x[at],
            torch=lambda torch, x, at: x[at],
            bound="copy",
            work=moved,
            draw=lambda rng: (_floats(rng, TABLE), _indices(rng, TABLE)),
        )
    ]
    for distinct in (TABLE, 100, 1):
        found.append(
            Case(
                f"{TAKEN} rows of {WIDTH} added to {distinct} rows",
                (),
                lambda lib, x, at, new: x.at[at].add(new),
                torch=lambda torch, x, at, new: torch.index_add(x, 0, at, new),
                bound="read",
                work=moved / 2,
                rtol=1e-2,
                draw=lambda rng, distinct=distinct: (
                    *(_floats(rng, TABLE), _indices(rng, distinct)),
                    _floats(rng, TAKEN),
                ),
            )
        )
    return found


def _floats(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.standard_normal((rows, WIDTH), np.float32)


def _indices(rng: np.random.Generator, end: int) -> np.ndarray:
    return rng.integers(0, end, TAKEN, np.int32)


# copies and random numbers --------------------------------------------------------------------


def _copies() -> list[Case]:
    square = 8.0 * math.prod(SQUARE)
    transposed = Case(
        "transpose, 4096x4096",
        (SQUARE,),
        lambda lib, x: x.T,
        numpy=lambda x: x.T.copy(),
        torch=lambda torch, x: x.T.contiguous(),
        bound="copy",
        work=square,
    )
    padded = Case(
        "pad by 1, 4096x4096",
        (SQUARE,),
        lambda lib, x: lib.jnp.pad(x, 1),
        numpy=lambda x: np.pad(x, 1),
        torch=lambda torch, x: torch.nn.functional.pad(x, (1, 1, 1, 1)),
        bound="copy",
        work=square,
    )
    return [transposed, padded, *(_concatenation(axis) for axis in (0, 1))]


def _concatenation(axis: int) -> Case:
    return Case(
        f"concatenate two along {axis}, 4096x2048",
        ((4096, 2048),) * 2,
        lambda lib, x, y: lib.jnp.concatenate([x, y], axis),
        numpy=lambda x, y: np.concatenate([x, y], axis),
        torch=lambda torch, x, y: torch.cat([x, y], axis),
        bound="copy",
        work=8.0 * math.prod(SQUARE),
    )


def _random() -> list[Case]:
    """PyTorch draws other numbers, so that nothing is compared closely."""
    rows = (
        ("bits", lambda torch: torch.randint(0, 1 << 32, WIDE, dtype=torch.int64)),
        ("uniform", lambda torch: torch.rand(WIDE)),
        ("normal", lambda torch: torch.randn(WIDE)),
    )
    return [
        Case(
            f"random {name}, 16M",
            (),
            lambda lib, key, name=name: getattr(lib.top.random, name)(key, WIDE),
            torch=lambda torch, key, drawn=drawn: drawn(torch),
            rtol=math.inf,
            draw=lambda rng: (np.array([0, 42], np.uint32),),
        )
        for name, drawn in rows
    ]
