"""Rows of sort, top_k and the random bits. Oracles: NumPy's lexsort, and the generator threefry2x32
written out with Python integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from op_table import Row, Sample

from xcube.primitives import random_bits, sort

Shape = tuple[int, ...]
DTYPES = (
    np.float16, ml_dtypes.bfloat16, np.float64, np.int8, np.uint8, np.int32, np.uint32, np.int64,
    np.bool_,
)  # fmt: skip


def distinct(rng: np.random.Generator, shape: Shape, dtype: Any = np.float32) -> np.ndarray:
    """Elements that are all different, a small step apart at least."""
    numbers = rng.permutation(int(np.prod(shape))).reshape(shape)
    return np.asarray(numbers - np.prod(shape) / 2.5).astype(dtype)


def repeated(rng: np.random.Generator, shape: Shape, dtype: Any = np.float32) -> np.ndarray:
    """Elements of which many are equal."""
    return np.asarray(rng.integers(0, 4, shape)).astype(dtype)


def special(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """NaNs of both signs, infinities and zeros of both signs among others."""
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.5, 1e-40], np.float32)
    return values[rng.integers(0, len(values), shape)]


def arrays(shape: Shape, *makers: Any) -> Sample:
    """A maker of one array per maker."""
    return lambda rng: tuple(make(rng, shape) for make in makers)


# sort -----------------------------------------------------------------------------------------


def _rank(x: np.ndarray) -> np.ndarray:
    """Numbers in the order of sort: NaN last, zeros equal, complex by real and imaginary part."""
    wide = x.astype(np.float64) if x.dtype.kind in "fV" else x
    return np.unique(wide + 0, return_inverse=True)[1].reshape(x.shape)


def _order(keys: Sequence[np.ndarray], axis: int) -> np.ndarray:
    return np.lexsort([_rank(key) for key in reversed(keys)], axis)


def _sorted(operands: Sequence[np.ndarray], axis: int, num_keys: int) -> tuple[np.ndarray, ...]:
    order = _order(operands[:num_keys], axis)
    return tuple(np.take_along_axis(x, order, axis) for x in operands)


def sort_rows() -> list[Row]:
    shapes = [((7,), 0), ((1,), 0), ((0,), 0), ((3, 5), 1), ((3, 5), 0), ((2, 40, 3), 1)]
    shapes += [((2, 0), 0), ((300,), 0), ((5000,), 0)]
    rows = [
        Row(
            f"sort{shape}{axis}",
            lambda x, axis=axis: sort.sort(x, axis),
            [arrays(shape, distinct)],
            lambda x, axis=axis: _sorted([x], axis, 1),
            differentiable=(0,) if np.prod(shape) < 200 else (),
        )
        for shape, axis in shapes
    ]
    rows += [
        Row(
            f"sort of equal ones{shape}{axis}",
            lambda x, axis=axis: sort.sort(x, axis),
            [arrays(shape, repeated), arrays(shape, special)],
            lambda x, axis=axis: _sorted([x], axis, 1),
        )
        for shape, axis in shapes
    ]
    for dtype in (*DTYPES, np.complex64):
        rows.append(
            Row(
                f"sort {np.dtype(dtype)}",
                sort.sort,
                [
                    arrays((2, 40), lambda rng, s, d=dtype: repeated(rng, s, d)),
                    arrays((2, 40), lambda rng, s, d=dtype: distinct(rng, s, np.int8).astype(d)),
                ],
                lambda x: _sorted([x], 1, 1),
            )
        )
    for num_keys in (1, 2, 3):
        for shape, axis in (((2, 9), 1), ((60, 2), 0)):
            rows.append(
                Row(
                    f"sort of three by {num_keys}{shape}{axis}",
                    lambda *xs, axis=axis, keys=num_keys: sort.sort(xs, axis, num_keys=keys),
                    [arrays(shape, repeated, lambda rng, s: repeated(rng, s, np.int32), distinct)],
                    lambda *xs, axis=axis, keys=num_keys: _sorted(xs, axis, keys),
                    differentiable=(2,) if num_keys < 3 else (),
                )
            )
    return rows


# top_k ----------------------------------------------------------------------------------------


def _top(x: np.ndarray, k: int, axis: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-_rank(x), axis, kind="stable").take(range(k), axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int32)


def top_k_rows() -> list[Row]:
    cases = [((7,), 3, 0), ((7,), 7, 0), ((7,), 0, 0), ((1,), 1, 0), ((3, 50), 4, 1)]
    cases += [((50, 3), 2, 0), ((0, 4), 2, 1), ((3000,), 20, 0)]
    rows = [
        Row(
            f"top_k{shape}{k}{axis}",
            lambda x, k=k, axis=axis: sort.top_k(x, k, axis=axis),
            [arrays(shape, distinct)],
            lambda x, k=k, axis=axis: _top(x, k, axis),
            differentiable=(0,) if np.prod(shape) < 200 else (),
        )
        for shape, k, axis in cases
    ]
    rows += [
        Row(
            f"top_k of equal ones{shape}{k}{axis}",
            lambda x, k=k, axis=axis: sort.top_k(x, k, axis=axis),
            [arrays(shape, repeated)],
            lambda x, k=k, axis=axis: _top(x, k, axis),
        )
        for shape, k, axis in cases
    ]
    return rows + [
        Row(
            f"top_k {np.dtype(dtype)}",
            lambda x: sort.top_k(x, 3),
            [arrays((2, 9), lambda rng, s, d=dtype: repeated(rng, s, d))],
            lambda x: _top(x, 3, 1),
        )
        for dtype in DTYPES
    ]


# random bits ----------------------------------------------------------------------------------

MASK = 0xFFFFFFFF


def threefry(key: Sequence[int], counter: Sequence[int]) -> tuple[int, int]:
    """Threefry-2x32 with 20 rounds."""
    k1, k2 = map(int, key)
    schedule = (k1, k2, k1 ^ k2 ^ 0x1BD11BDA)
    x, y = (int(counter[0]) + k1) & MASK, (int(counter[1]) + k2) & MASK
    for number in range(20):
        distance = (13, 15, 26, 6, 17, 29, 16, 24)[number % 8]
        x = (x + y) & MASK
        y = (y << distance | y >> (32 - distance)) & MASK ^ x
        if number % 4 == 3:
            group = number // 4 + 1
            x = (x + schedule[group % 3]) & MASK
            y = (y + schedule[(group + 1) % 3] + group) & MASK
    return x, y


def _words(k1: Any, k2: Any, x1: Any, x2: Any) -> tuple[np.ndarray, np.ndarray]:
    operands = np.broadcast_arrays(k1, k2, x1, x2)
    pairs = [threefry(row[:2], row[2:]) for row in zip(*map(np.ravel, operands), strict=True)]
    both = np.array(pairs, np.uint32).reshape(-1, 2)
    return both[:, 0].reshape(operands[0].shape), both[:, 1].reshape(operands[0].shape)


def _counted(key: np.ndarray, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    counters = np.arange(int(np.prod(shape)), dtype=np.uint32).reshape(shape)
    return _words(key[0], key[1], np.uint32(0), counters)


def _bits(key: np.ndarray, width: int, shape: Shape) -> np.ndarray:
    high, low = _counted(key, shape)
    if width == 64:
        return high.astype(np.uint64) << np.uint64(32) | low
    return (high ^ low).astype(f"uint{width}")


def words(*shapes: Shape) -> Sample:
    """Random words of 32 bits."""
    return lambda rng: tuple(
        np.asarray(rng.integers(0, 1 << 32, shape, np.uint32)) for shape in shapes
    )


def random_rows() -> list[Row]:
    rows = [
        Row(
            f"threefry2x32{shapes}",
            random_bits.threefry2x32,
            [words(*shapes)],
            _words,
        )
        for shapes in (
            ((), (), (), ()),
            ((5,), (5,), (5,), (5,)),
            ((), (), (2, 20), (2, 20)),
            ((3,), (), (), (3,)),
            ((), (), (0,), (0,)),
        )
    ]
    for width in (8, 16, 32, 64):
        for shape in ((), (7,), (2, 3), (0, 2), (33,)):
            rows.append(
                Row(
                    f"threefry_random_bits{width}{shape}",
                    lambda key, w=width, s=shape: random_bits.threefry_random_bits(key, w, s),
                    [words((2,))],
                    lambda key, w=width, s=shape: _bits(key, w, s),
                )
            )
    for shape in ((2,), (2, 3), (0,), ()):
        rows.append(
            Row(
                f"threefry_split{shape}",
                lambda key, s=shape: random_bits.threefry_split(key, s),
                [words((2,))],
                lambda key, s=shape: np.stack(_counted(key, s), -1),
            )
        )
    rows.append(
        Row(
            "threefry_fold_in",
            random_bits.threefry_fold_in,
            [words((2,), ())],
            lambda key, data: np.array(threefry(key, (0, data)), np.uint32),
        )
    )
    for dtype in (np.int8, np.int32, np.uint32, np.int64, np.uint64):
        rows.append(
            Row(
                f"threefry_seed {np.dtype(dtype)}",
                random_bits.threefry_seed,
                [
                    lambda rng, d=dtype: (np.array(np.iinfo(d).max // 3, d),),
                    lambda rng, d=dtype: (np.array(np.iinfo(d).min + 5, d),),
                ],
                _seeded,
            )
        )
    return rows


def _seeded(seed: np.ndarray) -> np.ndarray:
    number = int(seed)
    return np.array([number >> 32 & MASK if seed.itemsize == 8 else 0, number & MASK], np.uint32)


ROWS = [*sort_rows(), *top_k_rows(), *random_rows()]
