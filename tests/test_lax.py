"""`xcube.lax` under JAX's names: same values as JAX, NumPy arrays accepted, strict errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xcube import lax, tree
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import Primitive
from xcube.transforms.grad import grad
from xcube.transforms.jit import make_jaxpr

jax = pytest.importorskip("jax")

GENERATOR = np.random.default_rng(0)
F = GENERATOR.normal(size=(3, 4)).astype(np.float32)
G = GENERATOR.normal(size=(3, 4)).astype(np.float32)
POSITIVE, UNIT = np.abs(F) + np.float32(0.1), np.tanh(F)
N, J = (GENERATOR.integers(-50, 50, (3, 4)).astype(np.int32) for _ in range(2))
U = GENERATOR.integers(0, 2**32, (3, 4), dtype=np.uint32)
B = F > 0
C = (F + 1j * G).astype(np.complex64)

NAMES = {  # operands, and the functions that are called on them
    "F": ((F,), "abs cbrt ceil cos cosh erf erfc exp exp2 expm1 floor logistic neg round sign"),
    "F again": ((F,), "sin sinh square tan tanh atan asinh cumsum cumprod cummax cummin"),
    "positive": ((POSITIVE,), "log log1p sqrt rsqrt lgamma digamma reciprocal"),
    "unit": ((UNIT,), "acos asin atanh erf_inv"),
    "two": ((F, G), "add sub mul div max min atan2 nextafter eq ne lt le gt ge"),
    "integers": ((N, J), "bitwise_and bitwise_or bitwise_xor"),
    "unsigned": ((U,), "bitwise_not clz population_count"),
    "complex": ((C,), "real imag conj"),
    "reduced": ((F, (0,)), "reduce_sum reduce_prod reduce_max reduce_min"),
    "bools": ((B, (1,)), "reduce_and reduce_or"),
}
CALLS: dict[str, tuple[Any, ...]] = {
    **{name: operands for operands, names in NAMES.values() for name in names.split()},
    "acosh": (POSITIVE + 1,),
    "argmax": (F, 1, np.int32),
    "argmin": (F, 0, np.int32),
    "batch_matmul": (F[None].repeat(2, 0), G.T[None].repeat(2, 0)),
    "bitcast_convert_type": (F, np.int32),
    "broadcast": (F, (2, 5)),
    "broadcast_in_dim": (F, (3, 2, 4), (0, 2)),
    "broadcast_shapes": ((2, 1), (1, 3), ()),
    "broadcast_to_rank": (F, 4),
    "broadcasted_iota": (np.int32, (2, 3), 1),
    "cumlogsumexp": (F,),
    "clamp": (np.float32(-0.5), F, np.float32(0.5)),
    "collapse": (F[None], 1),
    "complex": (F, G),
    "concatenate": ([F, G], 1),
    "convert_element_type": (F, np.int32),
    "dot": (F, G.T),
    "dot_general": (F, G, (((1,), (1,)), ((), ()))),
    "dynamic_index_in_dim": (F, 2, 1, False),
    "dynamic_slice": (F, (1, 2), (2, 2)),
    "dynamic_slice_in_dim": (F, 9, 2, 1),
    "dynamic_update_index_in_dim": (F, G[0], 1, 0),
    "dynamic_update_slice": (F, G[:2, :2], (1, 1)),
    "dynamic_update_slice_in_dim": (F, G[:, :2], 3, 1),
    "expand_dims": (F, (0, -1)),
    "full": ((2, 3), np.float32(7)),
    "full_like": (F, 3),
    "index_in_dim": (F, -1, 1, False),
    "integer_pow": (F, 3),
    "iota": (np.int32, 5),
    "is_finite": (np.array([1, np.inf, np.nan], np.float32),),
    "pad": (F, np.float32(1), ((1, 2, 1), (-1, 0, 0))),
    "pow": (POSITIVE, G),
    "reduce_precision": (F, 5, 4),
    "reduce_xor": (N, (0,)),
    "rem": (N, np.where(J == 0, 1, J)),
    "reshape": (F, (2, 6)),
    "rev": (F, (0, 1)),
    "select": (B, F, G),
    "select_n": (N % 3, F, G, F + G),
    "shift_left": (N, np.abs(J) % 31),
    "shift_right_arithmetic": (N, np.abs(J) % 31),
    "shift_right_logical": (N, np.abs(J) % 31),
    "slice": (F, (0, 1), (3, 4), (2, 1)),
    "slice_in_dim": (F, 1, 4, 2, 1),
    "sort": (F,),
    "sort_key_val": (N % 5, F),
    "split": (F, (1, 3), 1),
    "squeeze": (F[None], (0,)),
    "stop_gradient": (F,),
    "tile": (F, (2, 1)),
    "top_k": (F, 2),
    "transpose": (F, (1, 0)),
}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_functions_give_what_jax_gives(name: str) -> None:
    ours = tree.leaves(getattr(lax, name)(*CALLS[name]))
    theirs = jax.tree.leaves(getattr(jax.lax, name)(*CALLS[name]))
    assert len(ours) == len(theirs)
    for x, y in zip(ours, theirs, strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=2e-6)


RENAMED = {"linear_solve_p": "custom_linear_solve"}  # in JAX too


def test_primitives_have_their_names() -> None:
    found = {name: value for name, value in vars(lax).items() if name.endswith("_p")}
    assert len(found) > 80
    for name, value in found.items():
        assert isinstance(value, Primitive)
        expected = RENAMED.get(name, name.removesuffix("_p"))
        assert value.name.replace("-", "_") == expected.replace("-", "_")


def test_functions_keep_the_documentation_of_what_they_open() -> None:
    public = [f for name, f in vars(lax).items() if callable(f) and not name.startswith("_")]
    assert all(f.__doc__ for f in public if getattr(f, "__module__", "").startswith("xcube"))


def test_a_call_is_one_equation() -> None:
    assert len(make_jaxpr(lax.add)(F, G).eqns) == 1
    assert len(make_jaxpr(lambda x: lax.mul(x, 2.0))(F).eqns) == 1


def test_gather_and_scatter_take_jax_s_forms() -> None:
    indices = np.array([[2], [0]], np.int32)
    ours = lax.gather(F, indices, lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 4), mode="clip")
    np.testing.assert_array_equal(ours, F[[2, 0]])
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    total = lax.scatter_add(F, indices, np.ones((2, 4), np.float32), numbers)
    np.testing.assert_array_equal(total, F + np.array([[1], [0], [1]], np.float32))


def test_approximate_extrema_are_exact() -> None:
    values, places = lax.approx_max_k(F, 2, 0)
    np.testing.assert_array_equal(values, -np.sort(-F, axis=0)[:2])
    np.testing.assert_array_equal(np.take_along_axis(F, np.asarray(places), 0), values)
    least, _ = lax.approx_min_k(F, 3)
    np.testing.assert_array_equal(least, np.sort(F, axis=1)[:, :3])


def test_stop_gradient_and_barriers_take_trees() -> None:
    slope = grad(lambda x: lax.mul(x, lax.stop_gradient({"x": x})["x"]))(3.0)
    assert slope.item() == 3.0
    kept = lax.optimization_barrier({"a": F, "b": [G]})
    np.testing.assert_array_equal(kept["b"][0], G)
    assert isinstance(kept["a"], Array)


def test_stack_and_unstack_are_inverse() -> None:
    parts = lax.unstack(F, 1)
    assert [part.shape for part in parts] == [(3,)] * 4
    np.testing.assert_array_equal(lax.stack(parts, 1), F)


def test_dtype_is_what_an_operand_becomes() -> None:
    assert lax.dtype(np.zeros(2)) == np.float32
    assert lax.dtype(1) == np.int32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lax.add(F, G[0]), "add: the operands must have one shape"),
        (lambda: lax.dot(F, F), "dot: takes vectors and matrices"),
        (lambda: lax.batch_matmul(F, F[None]), "batch_matmul: both must have the same number"),
        (lambda: lax.index_in_dim(F, 3), "index_in_dim: an axis must lie in|index_in_dim"),
        (lambda: lax.reshape(F, (5,)), "reshape: the new shape must hold the 12 elements"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        call()
