"""Views, windows, contractions, sorts and random bits beyond the laws of the tables: what is
refused and with which words, how programs print, and the bits of the reference implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xcube import eager
from xcube.errors import DtypeError, ShapeError, TraceError
from xcube.primitives import contract, gather, index, random_bits, scatter, sort, view
from xcube.primitives.shape import full
from xcube.primitives.windows import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
)
from xcube.transforms.grad import jvp
from xcube.transforms.jit import make_jaxpr

ROWS = GatherDimensionNumbers((1,), (0,), (0,))
INTO_ROWS = ScatterDimensionNumbers(*ROWS)


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    return eager.from_host(np.ones(shape, dtype))


X = (4, 5)
REFUSED: tuple[tuple[Callable[[], Any], type[Exception], str], ...] = (
    (lambda: view.slice(ones(*X), (0, 3), (4, 9)), ShapeError, r"limit_indices=\(4, 9\)"),
    (lambda: view.slice(ones(*X), (0,), (4,)), ShapeError, r"f32\[4,5\]"),
    (lambda: view.slice(ones(3), (0,), (3,), (0,)), ShapeError, r"strides=\(0,\)"),
    (lambda: view.pad(ones(3), np.int32(0), [(1, 0, 0)]), DtypeError, r"f32\[3\], i32\[\]"),
    (lambda: view.pad(ones(3), 0, [(-2, -2, 0)]), ShapeError, r"\(\(-2, -2, 0\),\)"),
    (lambda: view.pad(ones(3), 0, [(0, 0, -1)]), ShapeError, "interior >= 0"),
    (lambda: view.concatenate([ones(2), ones(2, 1)], 0), ShapeError, r"f32\[2\], f32\[2,1\]"),
    (lambda: view.concatenate([ones(2), ones(2, dtype=np.int32)], 0), DtypeError, "one dtype"),
    (lambda: view.concatenate([], 0), ValueError, "at least one operand"),
    (lambda: view.rev(ones(2), (1,)), ShapeError, r"0\.\.0"),
    (lambda: view.iota(np.bool_, (3,)), DtypeError, "bool"),
    (lambda: view.iota(np.int32, (3,), 1), ShapeError, "dimension=1"),
    (lambda: view.squeeze(ones(2, 1), (0,)), ShapeError, r"size 1 in f32\[2,1\]"),
    (lambda: view.expand_dims(ones(2), (0, 0)), ShapeError, "distinct"),
    (lambda: view.split(ones(5), (2, 2)), ShapeError, "the 5 elements"),
    (lambda: view.tile(ones(5), (2, 2)), ShapeError, r"f32\[5\]"),
    (lambda: index.dynamic_slice(ones(*X), (0, 0), (5, 1)), ShapeError, r"sizes \(5, 1\)"),
    (lambda: index.dynamic_slice(ones(*X), (0,), (1, 1)), ShapeError, "got 1"),
    (lambda: index.dynamic_slice(ones(3), (ones(),), (1,)), DtypeError, "integer scalars"),
    (
        lambda: gather.gather(ones(*X), ones(2, 1), ROWS, (1, 5)),
        DtypeError,
        "indices must be integers",
    ),
    (
        lambda: gather.gather(ones(*X), ones(2, 2, dtype=np.int32), ROWS, (1, 5)),
        ShapeError,
        "one start for each mapped dimension",
    ),
    (
        lambda: gather.gather(ones(*X), ones(2, 1, dtype=np.int32), ROWS, (2, 5)),
        ShapeError,
        "collapsed dimensions must have slice size 1",
    ),
    (
        lambda: gather.gather(ones(*X), ones(2, 1, dtype=np.int32), ROWS, (1, 6)),
        ShapeError,
        r"0\.\.size",
    ),
    (
        lambda: scatter.scatter(ones(*X), ones(2, 1, dtype=np.int32), ones(3, 5), INTO_ROWS),
        ShapeError,
        "the indices' dimensions",
    ),
    (
        lambda: scatter.scatter_add(ones(*X), ones(2, 1, dtype=np.int32), ones(2, 6), INTO_ROWS),
        ShapeError,
        "not be larger than the operand",
    ),
    (
        lambda: scatter.scatter(
            ones(*X), ones(2, 1, dtype=np.int32), ones(2, 5, dtype=np.int32), INTO_ROWS
        ),
        DtypeError,
        "one dtype",
    ),
    (
        lambda: contract.dot_general(ones(2, 3), ones(4, 5), (((1,), (0,)), ((), ()))),
        ShapeError,
        r"\[3\] in f32\[2,3\] and \[4\] in f32\[4,5\]",
    ),
    (
        lambda: contract.dot_general(ones(2, 3), ones(3), (((2,), (0,)), ((), ()))),
        ShapeError,
        r"0\.\.1",
    ),
    (
        lambda: contract.dot_general(
            ones(3, dtype=np.int32),
            ones(3, dtype=np.int32),
            (((0,), (0,)), ((), ())),
            preferred_element_type=np.int8,
        ),
        DtypeError,
        "must not be narrower",
    ),
    (
        lambda: contract.dot_general(ones(3), ones(3), (((0,), (0,)), ((), ())), precision="exact"),
        ValueError,
        "'exact'",
    ),
    (lambda: sort.sort([ones(2), ones(3)]), ShapeError, "one shape"),
    (lambda: sort.sort([ones(2)], num_keys=2), ValueError, r"1\.\.1"),
    (lambda: sort.top_k(ones(2), 3), ShapeError, "k=3"),
    (lambda: sort.top_k(ones(2, dtype=np.complex64), 1), DtypeError, "complex"),
    (lambda: random_bits.threefry_split(ones(2)), DtypeError, r"u32\[2\]"),
    (
        lambda: random_bits.threefry_random_bits(ones(2, dtype=np.uint32), 24, (3,)),
        ValueError,
        "24",
    ),
    (lambda: random_bits.threefry_seed(ones(2, dtype=np.int32)), ShapeError, "scalar"),
    (lambda: random_bits.threefry_seed(ones()), DtypeError, "integer"),
    (lambda: GatherScatterMode.from_any("wrap"), ValueError, "'wrap'"),
)


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_refuses(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        call()
    assert "test_windows.py" in str(caught.value)  # the user's line is named


def test_the_derivative_of_scatter_mul_by_overlapping_updates_is_refused() -> None:
    places = ones(2, 1, dtype=np.int32)

    def product(updates: Any) -> Any:
        return scatter.scatter_mul(ones(*X), places, updates, INTO_ROWS)

    with pytest.raises(TraceError, match="unique_indices=True"):
        jvp(product, (ones(2, 5),), (ones(2, 5),))


def test_a_nan_takes_the_tangent_of_scatter_max() -> None:
    x = eager.from_host(np.array([[np.nan, 1.0], [np.nan, 2.0]], np.float32))
    updates = eager.from_host(np.array([[3.0, np.nan]], np.float32))
    place = full((1, 1), 0, np.int32)
    out, tangent = jvp(
        lambda x, u: scatter.scatter_max(x, place, u, INTO_ROWS),
        (x, updates),
        (ones(2, 2), eager.from_host(np.full((1, 2), 10, np.float32))),
    )
    np.testing.assert_array_equal(out, np.array([[np.nan, np.nan], [np.nan, 2]], np.float32))
    np.testing.assert_array_equal(tangent, np.array([[1, 10], [1, 1]], np.float32))


def test_the_tangent_of_an_overwritten_update_is_lost() -> None:
    places = eager.from_host(np.array([[2], [2]], np.int32))
    values = eager.from_host(np.array([5, 7], np.float32))
    numbers = ScatterDimensionNumbers((), (0,), (0,))
    out, tangent = jvp(
        lambda u: scatter.scatter(ones(4), places, u, numbers), (values,), (ones(2),)
    )
    kept = int(np.asarray(out)[2] == 7)
    assert kept, "the last update wins"
    np.testing.assert_array_equal(tangent, np.array([0, 0, 1, 0], np.float32))


def test_operations_that_change_nothing_leave_no_equation() -> None:
    def function(x: Any) -> Any:
        x = view.slice(x, (0, 0), X, (1, 1))
        x = view.pad(x, 0, [(0, 0, 0), (0, 0, 0)])
        return view.squeeze(view.rev(view.concatenate([x], 0), ()), ())

    assert not make_jaxpr(function)(ones(*X)).eqns


def test_programs_print_their_parameters() -> None:
    jaxpr = make_jaxpr(lambda x, i: gather.gather(x, i, ROWS, (1, 5), mode="clip"))(
        ones(*X), ones(2, 1, dtype=np.int32)
    )
    line = str(jaxpr).splitlines()[1]
    assert "mode=GatherScatterMode.CLIP" in line
    assert "slice_sizes=(1, 5)" in line
    assert "unique_indices=False" in line


@pytest.mark.parametrize("seed", [0, 1, -1, 2**31 - 1, 123456789])
def test_bits_are_those_of_jax(seed: int) -> None:
    jax = pytest.importorskip("jax")
    theirs = jax.random.PRNGKey(seed)
    ours = random_bits.threefry_seed(seed)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(
        random_bits.threefry_split(ours, (2, 3)), jax.random.split(theirs, (2, 3))
    )
    np.testing.assert_array_equal(
        random_bits.threefry_fold_in(ours, 7), jax.random.fold_in(theirs, 7)
    )
    for width in (8, 16, 32):
        for shape in ((), (5,), (2, 3), (0,)):
            np.testing.assert_array_equal(
                random_bits.threefry_random_bits(ours, width, shape),
                jax.random.bits(theirs, shape, f"uint{width}"),
            )
