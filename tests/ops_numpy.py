"""Rows of the NumPy functions that are compositions; oracles are NumPy's own, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from op_table import Row, Sample

import xcube.numpy as jnp

Shape = tuple[int, ...]


def normal(*shapes: Shape) -> Sample:
    """Arrays of normal numbers."""
    return lambda rng: tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)


def positive(*shapes: Shape) -> Sample:
    """Arrays of numbers from 0.5 to 2."""
    return lambda rng: tuple(rng.uniform(0.5, 2, size=shape).astype(np.float32) for shape in shapes)


def distinct(*shapes: Shape) -> Sample:
    """Arrays without equal or nearly equal elements."""

    def sample(rng: np.random.Generator) -> tuple[Any, ...]:
        return tuple(
            rng.permutation(int(np.prod(shape))).reshape(shape).astype(np.float32) / 4
            for shape in shapes
        )

    return sample


def row(
    name: str,
    *samples: Sample,
    arguments: int = 1,
    rtol: float = 5e-6,
    order: int = 2,
    call: Callable[..., Any] | None = None,
    oracle: Callable[..., Any] | None = None,
    **options: Any,
) -> Row:
    """A row whose function and oracle bear one name in both libraries."""
    ours, theirs = (call or getattr(jnp, name)), (oracle or getattr(np, name))
    return Row(
        name if not options else f"{name}-{'-'.join(f'{k}={v}' for k, v in options.items())}",
        lambda *args: ours(*args, **options),
        samples,
        lambda *args: theirs(*args, **options),
        rtol=rtol,
        atol=1e-5,
        differentiable=tuple(range(arguments)),
        order=order,
    )


def indexed(name: str, function: Callable[[Any], Any]) -> Row:
    """A row that reads parts of an array of shape (4, 5)."""
    return Row(f"index-{name}", function, [normal((4, 5))], function, differentiable=(0,))


def updated(name: str, ours: Callable[..., Any], theirs: Callable[..., None], *shape: int) -> Row:
    """A row that updates parts of an array of shape (4, 5) with values of a shape."""

    def oracle(x: Any, y: Any) -> np.ndarray:
        result = np.array(x)
        theirs(result, y)
        return result

    return Row(f"at-{name}", ours, [normal((4, 5), shape)], oracle, differentiable=(0, 1))


PLACES = np.array([3, 0, 3])
ROWS: list[Row] = [
    # elements
    row("logaddexp", normal((3, 4), (3, 4)), normal((3, 1), (4,)), arguments=2),
    row("logaddexp2", normal((3, 4), (3, 4)), arguments=2),
    row("hypot", normal((3, 4), (4,)), arguments=2),
    row("sinc", positive((3, 4)), order=1),
    row("float_power", positive((3,), (3,)), arguments=2),
    row(
        "remainder",
        distinct((3, 4)),
        call=lambda x: jnp.remainder(x + 0.03, 0.7),
        oracle=lambda x: np.remainder(x + 0.03, 0.7),
        rtol=1e-4,
    ),
    row("reciprocal", positive((3, 4))),
    row("log10", positive((3, 4))),
    row("clip", distinct((3, 4)), min=0.6, max=1.6),
    row("nan_to_num", normal((3, 4))),
    # reductions
    row("mean", normal((3, 4))),
    row("mean", normal((3, 4)), axis=1, keepdims=True),
    row("var", normal((3, 4))),
    row("var", normal((3, 4)), axis=0, ddof=1),
    row("std", normal((3, 4)), axis=1),
    row("ptp", distinct((3, 4)), axis=1),
    row("prod", positive((3, 4)), axis=1),
    row("median", distinct((3, 5)), axis=1),
    row("quantile", distinct((3, 6)), q=0.3, axis=1),
    row(
        "average",
        positive((3, 4), (3, 4)),
        call=lambda x, w: jnp.average(x, 1, weights=w),
        oracle=lambda x, w: np.average(x, 1, weights=w),
        arguments=2,
    ),
    row("cov", normal((3, 5))),
    row("corrcoef", normal((3, 5)), order=1),
    row("cumsum", normal((3, 4)), axis=1),
    row("cumprod", positive((3, 4)), axis=1),
    row("nansum", normal((3, 4)), axis=0),
    row("nanmean", normal((3, 4)), axis=0),
    # products
    row(
        "matmul",
        normal((2, 3, 4), (4, 5)),
        normal((4,), (4, 2)),
        normal((2, 1, 3, 4), (3, 4, 2)),
        arguments=2,
    ),
    row("dot", normal((2, 3, 4), (4, 5)), normal((4,), (4,)), arguments=2),
    row("tensordot", normal((2, 3, 4), (3, 4, 5)), arguments=2, axes=2),
    row("outer", normal((3,), (2, 2)), arguments=2),
    row("inner", normal((2, 3), (4, 3)), arguments=2),
    row("kron", normal((2, 3), (2, 2)), arguments=2),
    row("cross", normal((2, 3), (2, 3)), arguments=2),
    row("vdot", normal((2, 3), (2, 3)), arguments=2),
    *[
        Row(
            f"einsum-{text}",
            lambda *args, text=text: jnp.einsum(text, *args),
            [normal(*shapes)],
            lambda *args, text=text: np.einsum(text, *args),
            differentiable=tuple(range(len(shapes))),
            rtol=5e-6,
        )
        for text, shapes in {
            "ij,jk->ik": [(2, 3), (3, 4)],
            "bij,bkj->bik": [(2, 2, 3), (2, 4, 3)],
            "ii->i": [(3, 3)],
            "ij,ij->": [(2, 3), (2, 3)],
            "i,j,k->ikj": [(2,), (3,), (2,)],
            "ij,jk,kl->il": [(2, 3), (3, 4), (4, 2)],
            "...i,...i->...": [(2, 3), (1, 3)],
        }.items()
    ],
    # shapes
    row("roll", normal((3, 4)), shift=(1, -2), axis=(0, 1)),
    row("rot90", normal((3, 4)), k=3),
    row("tile", normal((2, 3)), reps=(2, 1, 2)),
    row("repeat", normal((2, 3)), repeats=2, axis=1),
    row("moveaxis", normal((2, 3, 4)), source=0, destination=-1),
    row("tril", normal((3, 4)), k=-1),
    row("triu", normal((2, 3, 3)), k=1),
    row("diag", normal((3,)), normal((3, 4)), k=1),
    row("diagonal", normal((2, 3, 4)), offset=1, axis1=1, axis2=2),
    row("trace", normal((3, 4))),
    *[
        row("pad", distinct((3, 4)), pad_width=((1, 2), (2, 0)), mode=mode)
        for mode in ("constant", "edge", "reflect", "symmetric", "wrap", "mean", "maximum")
    ],
    # sequences
    row("diff", normal((3, 5)), n=2, axis=1),
    row("gradient", normal((5,))),
    row("trapezoid", normal((3, 5))),
    row("convolve", normal((5,), (3,)), arguments=2, mode="full"),
    row("correlate", normal((5,), (3,)), arguments=2, mode="same"),
    row(
        "interp",
        positive((4,)),
        call=lambda x: jnp.interp(x, np.arange(4.0), np.arange(4.0) ** 2),
        oracle=lambda x: np.interp(x, np.arange(4.0), np.arange(4.0) ** 2),
    ),
    row("sort", distinct((3, 4)), axis=0),
    row("take", normal((4, 3)), indices=PLACES, axis=0),
    # indices
    indexed("int", lambda x: x[1]),
    indexed("slice", lambda x: x[1:3, ::-2]),
    indexed("new-axis", lambda x: x[:, None, 2]),
    indexed("array", lambda x: x[PLACES]),
    indexed(
        "arrays",
        lambda x: x[PLACES, [1, 2, 1] if isinstance(x, np.ndarray) else np.array([1, 2, 1])],
    ),
    indexed("mixed", lambda x: x[1:, PLACES]),
    updated("set-int", lambda x, y: x.at[1].set(y), lambda x, y: x.__setitem__(1, y), 5),
    updated(
        "set-slice", lambda x, y: x.at[1:3].set(y), lambda x, y: x.__setitem__(slice(1, 3), y), 5
    ),
    updated("add-int", lambda x, y: x.at[1].add(y), lambda x, y: np.add.at(x, 1, y), 5),
    updated(
        "add-array", lambda x, y: x.at[PLACES].add(y), lambda x, y: np.add.at(x, PLACES, y), 3, 5
    ),
    updated(
        "add-stride",
        lambda x, y: x.at[::2, 1].add(y),
        lambda x, y: np.add.at(x, (slice(None, None, 2), 1), y),
        2,
    ),
    updated(
        "multiply-array",
        lambda x, y: x.at[np.array([0, 2])].multiply(y, unique_indices=True),
        lambda x, y: np.multiply.at(x, np.array([0, 2]), y),
        2,
        5,
    ),
]
