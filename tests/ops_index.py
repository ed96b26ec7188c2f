"""Rows of indexing at run time: dynamic_slice, dynamic_update_slice, gather and the scatters.
Oracles walk over the indices one by one in NumPy, by the definitions of StableHLO."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from op_table import Row, Sample

from xcube.primitives import gather, index, scatter
from xcube.primitives.windows import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
)

Shape = tuple[int, ...]
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.int32, np.bool_, np.complex64)
INDEX_DTYPES = (np.int8, np.uint8, np.int64)


def array(rng: np.random.Generator, shape: Shape, dtype: Any = np.float32) -> np.ndarray:
    """Random elements that every dtype can hold."""
    numbers = rng.normal(size=shape) if dtype == np.float32 else rng.integers(0, 9, shape)
    return np.asarray(numbers).astype(dtype)


# dynamic slices -------------------------------------------------------------------------------

WINDOWS: tuple[tuple[Shape, Shape], ...] = (
    ((5,), (2,)),
    ((5,), (5,)),
    ((5,), (0,)),
    ((4, 6), (2, 3)),
    ((4, 40), (1, 33)),
    ((2, 3, 4), (1, 3, 2)),
    ((), ()),
)


def _window(shape: Shape, sizes: Shape, starts: Any) -> tuple[slice, ...]:
    """The window of dynamic_slice: negative starts count from the end, then all are clamped."""
    wrapped = [int(s) + n if s < 0 else int(s) for s, n in zip(starts, shape, strict=True)]
    limits = [n - size for n, size in zip(shape, sizes, strict=True)]
    inside = [min(max(s, 0), limit) for s, limit in zip(wrapped, limits, strict=True)]
    return tuple(slice(s, s + size) for s, size in zip(inside, sizes, strict=True))


def _updated(x: np.ndarray, update: np.ndarray, starts: Any) -> np.ndarray:
    out = x.copy()
    out[_window(x.shape, update.shape, starts)] = update
    return out


def _start(rng: np.random.Generator, dtype: Any) -> Any:
    return np.asarray(rng.integers(-12, 12) if np.dtype(dtype).kind == "i" else 3, dtype)


def _slice_sample(shape: Shape, *others: Shape, dtype: Any, start: Any = np.int32) -> Sample:
    def sample(rng: np.random.Generator) -> tuple[Any, ...]:
        operands = [array(rng, s, dtype) for s in (shape, *others)]
        return (*operands, *[_start(rng, start) for _ in shape])

    return sample


def dynamic_rows() -> list[Row]:
    rows = []
    for shape, sizes in WINDOWS:
        for start in (np.int32, np.int8, np.uint8):
            kinds = DTYPES if start is np.int32 else (np.float32,)
            name = f"{shape}{sizes}{np.dtype(start)}"
            rows += [
                Row(
                    f"dynamic_slice{name}",
                    lambda x, *starts, sizes=sizes: index.dynamic_slice(x, starts, sizes),
                    [_slice_sample(shape, dtype=dtype, start=start) for dtype in kinds],
                    lambda x, *starts, sizes=sizes: x[_window(x.shape, sizes, starts)],
                    differentiable=(0,),
                ),
                Row(
                    f"dynamic_update_slice{name}",
                    lambda x, update, *starts: index.dynamic_update_slice(x, update, starts),
                    [_slice_sample(shape, sizes, dtype=dtype, start=start) for dtype in kinds],
                    lambda x, update, *starts: _updated(x, update, starts),
                    differentiable=(0, 1),
                ),
            ]
    return rows


# gather ---------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Operand, shape of the indices, dimension numbers (as of a gather) and window."""

    name: str
    operand: Shape
    indices: Shape
    numbers: tuple[Shape, ...]
    sizes: Shape


CASES = (
    Case("elements", (5,), (7, 1), ((), (0,), (0,)), (1,)),
    Case("one", (5,), (1,), ((), (0,), (0,)), (1,)),
    Case("rows", (5, 3), (6, 1), ((1,), (0,), (0,)), (1, 3)),
    Case("wide rows", (4, 40), (3, 1), ((1,), (0,), (0,)), (1, 40)),
    Case("columns", (5, 3), (4, 1), ((0,), (1,), (1,)), (5, 1)),
    Case("windows", (5, 4), (4, 2), ((1, 2), (), (0, 1)), (2, 3)),
    Case("windows before", (5, 4), (4, 2), ((0, 1), (), (1, 0)), (2, 3)),
    Case("points", (5, 3), (2, 3, 2), ((), (0, 1), (0, 1)), (1, 1)),
    Case("swapped", (5, 3), (4, 2), ((1,), (1,), (1, 0)), (2, 1)),
    Case("batch", (3, 5, 2), (3, 4, 1), ((2,), (1,), (1,), (0,), (0,)), (1, 1, 2)),
    Case("last axis", (2, 3, 5), (2, 3, 4, 1), ((), (2,), (2,), (0, 1), (0, 1)), (1, 1, 1)),
    Case("crossed batch", (3, 2, 5), (2, 3, 4, 1), ((3,), (), (2,), (0, 1), (1, 0)), (1, 1, 2)),
    Case("no start", (2, 3), (4, 0), ((1, 2), (), ()), (2, 2)),
    Case("no index", (5, 2), (0, 1), ((1,), (0,), (0,)), (1, 2)),
    Case("empty operand", (0, 3), (0, 1), ((1,), (0,), (0,)), (1, 3)),
    Case("empty window", (4, 3), (2, 1), ((1, 2), (), (0,)), (0, 3)),
)
MODES = ("clip", "fill", "promise_in_bounds")


def _places(case: Case, indices: np.ndarray, clip: bool) -> Iterator[tuple[Any, Any, bool]]:
    """Per index: the place among the batch dimensions, the window in the operand and whether it
    lies inside; "clip" moves it there."""
    _, collapsed, mapped, *walks = case.numbers
    batching, index_batching = walks or ((), ())
    for place in np.ndindex(*indices.shape[:-1]):
        starts = [0] * len(case.operand)
        for k, d in enumerate(mapped):
            starts[d] = int(indices[(*place, k)])
        limits = [n - size for n, size in zip(case.operand, case.sizes, strict=True)]
        if clip:
            starts = [min(max(s, 0), limit) for s, limit in zip(starts, limits, strict=True)]
        inside = all(0 <= s <= limit for s, limit in zip(starts, limits, strict=True))
        for d, b in zip(batching, index_batching, strict=True):
            starts[d] = place[b]
        dropped = {*collapsed, *batching}
        window = tuple(
            s if d in dropped else slice(s, s + case.sizes[d]) for d, s in enumerate(starts)
        )
        yield place, window, inside


def _result_shape(case: Case) -> Shape:
    offset, collapsed, _, *walks = case.numbers
    dropped = {*collapsed, *(walks[0] if walks else ())}
    window = iter([n for d, n in enumerate(case.sizes) if d not in dropped])
    batch = iter(case.indices[:-1])
    rank = len(offset) + len(case.indices) - 1
    return tuple(next(window) if d in offset else next(batch) for d in range(rank))


def _at(case: Case, place: Any) -> tuple[Any, ...]:
    """Where the window of a place lies in the result of a gather, the updates of a scatter."""
    left = iter(place)
    rank = len(case.numbers[0]) + len(place)
    return tuple(slice(None) if d in case.numbers[0] else next(left) for d in range(rank))


def _filling(dtype: Any) -> Any:
    if dtype == np.bool_:
        return True
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max
    return np.nan


def gathered(case: Case, mode: str, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    out = np.full(_result_shape(case), _filling(x.dtype), x.dtype)
    for place, window, inside in _places(case, indices, mode != "fill"):
        if inside:
            out[_at(case, place)] = x[window]
    return out


def _indices(
    rng: np.random.Generator, case: Case, dtype: Any, mode: str, unique: bool = False
) -> np.ndarray:
    """Starts of which about half are out of bounds, where the mode allows that."""
    mapped = case.numbers[2]
    limits = [case.operand[d] - case.sizes[d] for d in mapped]
    promised = mode == "promise_in_bounds"
    low = 0 if promised or np.dtype(dtype).kind == "u" else -3
    columns = []
    for limit in limits:
        high = max(limit, 0) + (1 if promised else 4)
        draw = rng.permutation(high)[: case.indices[0]] if unique else None
        columns.append(rng.integers(low, high, case.indices[:-1]) if draw is None else draw)
    stacked = np.stack(columns, -1) if columns else np.zeros(case.indices)
    return stacked.astype(dtype)


def _gather_sample(case: Case, mode: str, dtype: Any, index_dtype: Any = np.int32) -> Sample:
    def sample(rng: np.random.Generator) -> tuple[Any, ...]:
        return array(rng, case.operand, dtype), _indices(rng, case, index_dtype, mode)

    return sample


def gather_rows() -> list[Row]:
    rows = []
    for case in CASES:
        for mode in MODES:
            samples = [_gather_sample(case, mode, np.float32)]
            if case.name in ("elements", "rows"):
                samples += [_gather_sample(case, mode, dtype) for dtype in DTYPES[1:]]
                samples += [_gather_sample(case, mode, np.float32, d) for d in INDEX_DTYPES]
            rows.append(
                Row(
                    f"gather {case.name} {mode}",
                    lambda x, i, case=case, mode=mode: gather.gather(
                        x, i, GatherDimensionNumbers(*case.numbers), case.sizes, mode=mode
                    ),
                    samples,
                    lambda x, i, case=case, mode=mode: gathered(case, mode, x, i),
                    differentiable=() if mode == "fill" else (0,),
                )
            )
        rows.append(
            Row(
                f"gather {case.name} filled with 7",
                lambda x, i, case=case: gather.gather(
                    x,
                    i,
                    GatherDimensionNumbers(*case.numbers),
                    case.sizes,
                    mode=GatherScatterMode.FILL_OR_DROP,
                    fill_value=7,
                ),
                [_gather_sample(case, "fill", np.float32)],
                lambda x, i, case=case: np.nan_to_num(gathered(case, "fill", x, i), nan=7),
                differentiable=(0,),
            )
        )
    return rows


# scatter --------------------------------------------------------------------------------------


def _join(name: str, old: np.ndarray, update: np.ndarray) -> np.ndarray:
    joins: dict[str, Callable[..., Any]] = {
        "scatter": lambda a, b: b,
        "scatter_add": np.add,
        "scatter_sub": np.subtract,
        "scatter_mul": np.multiply,
        "scatter_min": np.minimum,
        "scatter_max": np.maximum,
    }
    return joins[name](old, update)


def scattered(
    name: str, case: Case, mode: str, x: np.ndarray, indices: np.ndarray, updates: np.ndarray
) -> np.ndarray:
    wide = x.astype(np.float64) if x.dtype.kind in "fV" else x
    out = wide.copy()
    for place, window, inside in _places(case, indices, mode == "clip"):
        if inside:
            out[window] = _join(name, out[window], updates[_at(case, place)].astype(out.dtype))
    return out


def _scatter_sample(
    case: Case, mode: str, dtype: Any, index_dtype: Any = np.int32, unique: bool = False
) -> Sample:
    def sample(rng: np.random.Generator) -> tuple[Any, ...]:
        indices = _indices(rng, case, index_dtype, mode, unique)
        return array(rng, case.operand, dtype), indices, array(rng, _result_shape(case), dtype)

    return sample


def _scatter(name: str, case: Case, mode: str, unique: bool = False) -> Callable[..., Any]:
    function = getattr(scatter, name, None) or getattr(gather, name)
    numbers = ScatterDimensionNumbers(*case.numbers)
    return lambda x, i, updates: function(x, i, updates, numbers, mode=mode, unique_indices=unique)


def scatter_rows() -> list[Row]:
    """All scatters in all layouts; overlapping updates are differentiated where that is defined."""
    rows = []
    names = ("scatter", "scatter_add", "scatter_sub", "scatter_mul", "scatter_min", "scatter_max")
    for name in names:
        kinds = [d for d in DTYPES if name == "scatter" or d is not np.bool_]
        if name in ("scatter_min", "scatter_max"):
            kinds.remove(np.complex64)
        for case in CASES:
            for mode in ("clip", "drop", "promise_in_bounds"):
                samples = [_scatter_sample(case, mode, np.float32)]
                if case.name in ("elements", "rows"):
                    samples += [_scatter_sample(case, mode, dtype) for dtype in kinds[1:]]
                    samples += [_scatter_sample(case, mode, np.float32, d) for d in INDEX_DTYPES]
                rows.append(
                    Row(
                        f"{name} {case.name} {mode}",
                        _scatter(name, case, mode),
                        samples,
                        lambda *xs, n=name, c=case, m=mode: scattered(n, c, m, *xs),
                        rtol=3e-2 if case.name in ("elements", "rows") else 2e-6,
                        differentiable=(0,) if name == "scatter_mul" else (0, 2),
                    )
                )
    unique = [case for case in CASES if case.name in ("elements", "rows", "columns")]
    for name in ("scatter", "scatter_add", "scatter_mul"):
        for case in unique:
            case = case._replace(indices=(3, 1), operand=tuple(max(n, 3) for n in case.operand))
            case = case._replace(
                sizes=tuple(1 if d in case.numbers[1] else n for d, n in enumerate(case.operand))
            )
            rows.append(
                Row(
                    f"{name} {case.name} unique",
                    _scatter(name, case, "drop", unique=True),
                    [_scatter_sample(case, "drop", np.float32, unique=True)],
                    lambda *xs, n=name, c=case: scattered(n, c, "drop", *xs),
                    differentiable=(0, 2),
                )
            )
    return rows


ROWS = [*dynamic_rows(), *gather_rows(), *scatter_rows()]
