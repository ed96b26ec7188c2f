"""Random numbers are JAX's: equal bits for equal seeds, floats within a few units in the last
place; keys behave the same typed and untyped, and under every transform."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

import xcube.numpy as jnp
from xcube import config, random, tree
from xcube.errors import DtypeError, ShapeError
from xcube.transforms.grad import grad
from xcube.transforms.jit import eval_shape, jit
from xcube.transforms.vmap import vmap

jax = pytest.importorskip("jax")

SEEDS = (0, 1, 42, 2**31 - 1)


def data(key: object) -> np.ndarray:
    return np.asarray(random.key_data(key))


def jax_data(key: object) -> np.ndarray:
    return np.asarray(jax.random.key_data(key))


def assert_close(ours: object, theirs: object, ulps: int = 2) -> None:
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    if ours.dtype.kind in "fcV":
        eps = float(ml_dtypes.finfo(ours.real.dtype).eps)
        wide = np.complex128 if ours.dtype.kind == "c" else np.float64
        tiny = float(ml_dtypes.finfo(ours.real.dtype).tiny)
        np.testing.assert_allclose(
            ours.astype(wide), theirs.astype(wide), rtol=ulps * eps, atol=tiny
        )
    else:
        np.testing.assert_array_equal(ours, theirs)


# keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*SEEDS, -1, -(2**31), 2**31, 2**40 + 5, True])
def test_seeds_make_the_same_keys(seed: int) -> None:
    np.testing.assert_array_equal(data(random.PRNGKey(seed)), jax_data(jax.random.PRNGKey(seed)))
    np.testing.assert_array_equal(data(random.key(seed)), jax_data(jax.random.key(seed)))


@pytest.mark.parametrize("seed", [np.int64(2**40 + 5), np.uint32(2**32 - 1), np.int8(-3)])
def test_numpy_seeds_make_the_same_keys(seed: np.integer) -> None:
    np.testing.assert_array_equal(data(random.PRNGKey(seed)), jax_data(jax.random.PRNGKey(seed)))


@pytest.mark.parametrize("seed", [0, 2**40 + 5, -1])
def test_seeds_have_64_bits_where_64_bit_types_are_enabled(seed: int) -> None:
    with config.using(enable_x64=True), jax.enable_x64(True):
        np.testing.assert_array_equal(
            data(random.PRNGKey(seed)), jax_data(jax.random.PRNGKey(seed))
        )


def test_a_traced_seed_makes_the_same_key() -> None:
    traced = jit(random.key)(7)
    assert bool(traced == random.key(7))


@pytest.mark.parametrize("num", [2, 1, 5, (2, 3), 0])
def test_split_is_the_same(num: object) -> None:
    ours, theirs = random.split(random.key(3), num), jax.random.split(jax.random.key(3), num)
    assert ours.shape == theirs.shape
    np.testing.assert_array_equal(data(ours), jax_data(theirs))
    np.testing.assert_array_equal(data(random.split(random.PRNGKey(3), num)), jax_data(theirs))


@pytest.mark.parametrize("number", [0, 1, 12345, 2**31 - 1])
def test_fold_in_is_the_same(number: int) -> None:
    theirs = jax_data(jax.random.fold_in(jax.random.key(3), number))
    np.testing.assert_array_equal(data(random.fold_in(random.key(3), number)), theirs)
    np.testing.assert_array_equal(data(random.fold_in(random.PRNGKey(3), number)), theirs)
    np.testing.assert_array_equal(data(jit(random.fold_in)(random.key(3), number)), theirs)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_typed_keys_print_as_in_jax(shape: tuple[int, ...]) -> None:
    ours, theirs = random.key(0), jax.random.key(0)
    if shape:
        ours, theirs = random.split(ours, shape), jax.random.split(theirs, shape)
    assert repr(ours) == repr(theirs)
    assert repr(ours.dtype) == repr(theirs.dtype)
    assert (ours.shape, ours.ndim, ours.size) == (theirs.shape, theirs.ndim, theirs.size)


def test_typed_keys_are_indexed_like_arrays() -> None:
    ours, theirs = random.split(random.key(0), (3, 4)), jax.random.split(jax.random.key(0), (3, 4))
    for index in (0, -1, (1, 2), (slice(None), 1), (Ellipsis, 0), slice(1, 3)):
        np.testing.assert_array_equal(data(ours[index]), jax_data(theirs[index]))
    with pytest.raises((IndexError, ShapeError)):
        ours[0, 0, 0]
    np.testing.assert_array_equal(data(ours.reshape(4, -1)), jax_data(theirs.reshape(4, -1)))
    np.testing.assert_array_equal(data(ours.ravel()), jax_data(theirs.ravel()))
    assert [k.shape for k in ours] == [(4,)] * 3
    assert len(ours) == 3


def test_typed_keys_compare_and_survive_copies() -> None:
    key = random.key(5)
    assert bool(key == random.key(5))
    assert bool(key != random.key(6))
    assert bool(random.clone(key) == key)
    assert bool(pickle.loads(pickle.dumps(key)) == key)
    assert bool(copy.copy(key) == key)
    assert bool(random.wrap_key_data(random.key_data(key)) == key)
    assert random.key_impl(key) == "threefry2x32"
    assert random.key_dtype() == key.dtype


def test_typed_keys_go_through_transforms() -> None:
    keys = random.split(random.key(0), 3)
    mapped = vmap(lambda k: random.normal(k, (2,)))(keys)
    looped = np.stack([random.normal(keys[k], (2,)) for k in range(3)])
    np.testing.assert_array_equal(mapped, looped)
    nested = vmap(random.split)(keys)
    np.testing.assert_array_equal(data(nested[1]), data(random.split(keys[1])))
    slope = grad(lambda x, k: (x * random.normal(k)).sum())(jnp.ones(2), keys[0])
    np.testing.assert_allclose(slope, np.full(2, float(random.normal(keys[0]))), rtol=1e-6)
    assert eval_shape(random.split, random.key(0)).shape == (2,)
    assert tree.leaves(random.key(0))[0].shape == (2,)


def test_a_sample_is_the_same_for_both_kinds_of_key_and_under_jit() -> None:
    plain = np.asarray(random.uniform(random.key(1), (5,)))
    np.testing.assert_array_equal(plain, random.uniform(random.PRNGKey(1), (5,)))
    np.testing.assert_array_equal(plain, jit(lambda k: random.uniform(k, (5,)))(random.key(1)))
    np.testing.assert_array_equal(plain, random.uniform(np.array([0, 1], np.uint32), (5,)))


def test_wrong_keys_and_seeds_are_refused() -> None:
    with pytest.raises(TypeError, match=r"seed must be an integer; got 1\.5"):
        random.key(1.5)
    with pytest.raises(ShapeError, match="seed must be a scalar"):
        random.key(np.arange(3))
    with pytest.raises(ValueError, match="impl must be one of 'threefry2x32'; got 'dice'"):
        random.key(0, impl="dice")
    with pytest.raises(ShapeError, match=r"normal: takes a single key; got keys of shape \(3,\)"):
        random.normal(random.split(random.key(0), 3))
    with pytest.raises(TypeError, match="must be given a key; got int"):
        random.normal(0)
    with pytest.raises(DtypeError, match="a key must be u32"):
        random.normal(jnp.zeros(2))
    with pytest.raises(TypeError, match="keys are neither true nor false"):
        bool(random.key(0))
    with pytest.raises(TypeError, match="no NumPy form"):
        np.asarray(random.key(0))
    with pytest.raises(TypeError):
        hash(random.key(0))


# bits and uniform -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (0,)])
def test_bits_are_the_same(dtype: str, shape: tuple[int, ...]) -> None:
    ours, theirs = (
        random.bits(random.key(9), shape, dtype),
        jax.random.bits(jax.random.key(9), shape, dtype),
    )
    assert_close(ours, theirs)


def test_wide_bits_are_the_same() -> None:
    with jax.enable_x64(True):
        theirs = np.asarray(jax.random.bits(jax.random.key(9), (6,), "uint64"))
    assert_close(random.bits(random.key(9), (6,), "uint64"), theirs)


FLOATS = ["float32", "float16", "bfloat16"]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-2.0, 5.0)])
def test_uniform_is_the_same(dtype: str, bounds: tuple[float, float]) -> None:
    ours = random.uniform(random.key(2), (100,), dtype, *bounds)
    theirs = jax.random.uniform(jax.random.key(2), (100,), dtype, *bounds)
    wide = np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)
    assert ours.dtype == theirs.dtype
    assert np.abs(wide).max() <= 5 * float(ml_dtypes.finfo(ours.dtype).eps)
    if bounds == (0.0, 1.0):
        assert_close(ours, theirs, 0)


def test_uniform_is_the_same_in_double_precision() -> None:
    with jax.enable_x64(True):
        theirs = np.asarray(jax.random.uniform(jax.random.key(2), (50,), "float64"))
    assert_close(random.uniform(random.key(2), (50,), "float64"), theirs, 0)


RANGES = [
    (0, 10, "int32"),
    (-5, 7, "int32"),
    (-(2**31), 2**31 - 1, "int32"),
    (5, 5, "int32"),
    (9, 3, "int32"),
    (0, 256, "uint8"),
    (-128, 128, "int8"),
    (-300, 300, "int16"),
    (0, 2**31 - 1, "uint32"),
    (0, 1000003, "int32"),
]


@pytest.mark.parametrize(("low", "high", "dtype"), RANGES)
def test_randint_is_the_same(low: int, high: int, dtype: str) -> None:
    ours = random.randint(random.key(4), (200,), low, high, dtype)
    assert_close(ours, jax.random.randint(jax.random.key(4), (200,), low, high, dtype))


def test_randint_takes_arrays_of_bounds() -> None:
    low, high = np.array([0, 10, -5]), np.array([[3], [20]])
    ours = random.randint(random.key(4), (2, 3), low, high)
    assert_close(ours, jax.random.randint(jax.random.key(4), (2, 3), low, high))


# distributions --------------------------------------------------------------------------------

SAMPLERS = {  # units in the last place
    "normal": 2,
    "exponential": 2,
    "laplace": 4,
    "logistic": 8,  # ours rounds once where XLA keeps an excess of digits
    "cauchy": 4,
    "gumbel": 4,
    "maxwell": 4,
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (200,), (3, 50)])
def test_samplers_are_the_same(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    ulps = SAMPLERS[name]
    ours = getattr(random, name)(random.key(11), shape, dtype)
    theirs = getattr(jax.random, name)(jax.random.key(11), shape, dtype)
    near_zero = float(ml_dtypes.finfo(ours.dtype).eps) * ulps
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(
        np.asarray(ours, np.float64), np.asarray(theirs, np.float64), rtol=near_zero, atol=near_zero
    )


PARAMETERS = {
    "truncated_normal": (-1.5, 2.0),
    "pareto": (2.5,),
    "rayleigh": (np.float32(2.0),),
    "wald": (np.float32(1.5),),
    "lognormal": (np.float32(0.5),),
    "triangular": (-1.0, 0.5, 2.0),
    "weibull_min": (2.0, 1.5),
    "double_sided_maxwell": (1.0, 2.0),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_samplers_with_parameters_are_the_same(name: str) -> None:
    ours = getattr(random, name)(random.key(8), *PARAMETERS[name], (300,))
    theirs = getattr(jax.random, name)(jax.random.key(8), *PARAMETERS[name], (300,))
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, rtol=3e-6, atol=1e-6)


def test_parameters_broadcast_to_the_shape() -> None:
    lower = np.array([[-1.0], [0.0]], np.float32)
    ours = random.truncated_normal(random.key(8), lower, 2.0)
    assert_close(ours, jax.random.truncated_normal(jax.random.key(8), lower, 2.0), 4)
    with pytest.raises(ShapeError, match="must broadcast"):
        random.truncated_normal(random.key(8), np.zeros(3), 2.0, (2,))


def test_truncated_samples_keep_inside_their_bounds() -> None:
    samples = np.asarray(random.truncated_normal(random.key(1), -0.5, 0.25, (5000,)))
    assert samples.min() > -0.5
    assert samples.max() < 0.25


def test_complex_normal_samples_are_the_same() -> None:
    ours = random.normal(random.key(6), (40,), "complex64")
    theirs = jax.random.normal(jax.random.key(6), (40,), "complex64")
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("mode", ["low", "high"])
def test_bernoulli_is_the_same(mode: str) -> None:
    p = np.linspace(0, 1, 100, dtype=np.float32)
    ours = random.bernoulli(random.key(3), p, (20, 100), mode)
    assert_close(ours, jax.random.bernoulli(jax.random.key(3), p, (20, 100), mode))
    assert_close(random.bernoulli(random.key(3)), jax.random.bernoulli(jax.random.key(3)))


@pytest.mark.parametrize("dtype", ["int32", "float32", "int8"])
def test_rademacher_is_the_same(dtype: str) -> None:
    ours = random.rademacher(random.key(3), (50,), dtype)
    assert_close(ours, jax.random.rademacher(jax.random.key(3), (50,), dtype))


def test_geometric_is_the_same() -> None:
    ours = random.geometric(random.key(3), np.float32(0.2), (200,))
    assert_close(ours, jax.random.geometric(jax.random.key(3), np.float32(0.2), (200,)))


def test_moments_are_those_of_the_distributions() -> None:
    key, n = random.key(123), 100_000
    cases = {
        "normal": (random.normal(key, (n,)), 0.0, 1.0),
        "uniform": (random.uniform(key, (n,)), 0.5, 1 / 12),
        "exponential": (random.exponential(key, (n,)), 1.0, 1.0),
        "laplace": (random.laplace(key, (n,)), 0.0, 2.0),
        "gumbel": (random.gumbel(key, (n,)), np.euler_gamma, np.pi**2 / 6),
        "logistic": (random.logistic(key, (n,)), 0.0, np.pi**2 / 3),
    }
    for name, (samples, mean, variance) in cases.items():
        samples = np.asarray(samples, np.float64)
        assert abs(samples.mean() - mean) < 5 * np.sqrt(variance / n), name
        assert abs(samples.var() / variance - 1) < 0.05, name


# choices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [10, 1, 0, 1000])
def test_permutations_of_a_range_are_the_same(x: int) -> None:
    assert_close(random.permutation(random.key(5), x), jax.random.permutation(jax.random.key(5), x))


@pytest.mark.parametrize(("axis", "independent"), [(0, False), (1, False), (0, True), (-1, True)])
def test_permutations_of_arrays_are_the_same(axis: int, independent: bool) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    ours = random.permutation(random.key(5), x, axis, independent)
    assert_close(ours, jax.random.permutation(jax.random.key(5), x, axis, independent))


CHOICES = [
    {"a": 10, "shape": (20,)},
    {"a": 10, "shape": (3, 3), "replace": False},
    {"a": 5, "shape": (40,), "p": np.array([0.1, 0.2, 0.3, 0.0, 0.4], np.float32)},
    {"a": 5, "shape": (3,), "replace": False, "p": np.array([0.1, 0.2, 0.3, 0.1, 0.3], np.float32)},
    {"a": np.arange(12.0, dtype=np.float32).reshape(3, 4), "shape": (2,), "axis": 1},
    {"a": np.arange(6, dtype=np.int32), "shape": ()},
    {"a": np.arange(6, dtype=np.int32), "shape": (0,)},
    {
        "a": np.arange(12, dtype=np.int32).reshape(3, 4),
        "shape": (2, 2),
        "axis": 1,
        "replace": False,
    },
]


@pytest.mark.parametrize("case", CHOICES, ids=range(len(CHOICES)))
def test_choices_are_the_same(case: dict[str, object]) -> None:
    assert_close(random.choice(random.key(5), **case), jax.random.choice(jax.random.key(5), **case))


def test_impossible_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 3 entries can be drawn; got 4"):
        random.choice(random.key(0), 3, (4,), replace=False)
    with pytest.raises(ValueError, match="there must be entries"):
        random.choice(random.key(0), 0, (4,))
    with pytest.raises(ShapeError, match="one probability for each of 3 entries"):
        random.choice(random.key(0), 3, (4,), p=np.ones(2))


LOGITS = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)


@pytest.mark.parametrize(
    ("logits", "axis", "shape", "replace"),
    [
        (LOGITS, -1, None, True),
        (LOGITS, 0, None, True),
        (LOGITS, -1, (7, 3), True),
        (LOGITS, 0, (2, 5), True),
        (LOGITS[0], -1, (50,), True),
        (LOGITS[:1], -1, (4, 6), True),
        (LOGITS, -1, (4, 3), False),
        (LOGITS, 0, (2, 5), False),
    ],
)
def test_categorical_is_the_same(
    logits: np.ndarray, axis: int, shape: tuple[int, ...] | None, replace: bool
) -> None:
    ours = random.categorical(random.key(5), logits, axis, shape, replace)
    assert_close(ours, jax.random.categorical(jax.random.key(5), logits, axis, shape, replace))


def test_impossible_categories_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"categorical: the shape must end in \(3,\)"):
        random.categorical(random.key(0), LOGITS, shape=(2,))
    with pytest.raises(ValueError, match="at most 5 categories can be drawn; got 6"):
        random.categorical(random.key(0), LOGITS, shape=(6, 3), replace=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda key: random.uniform(key, dtype="int32"), "uniform: dtype must be a float"),
        (lambda key: random.normal(key, dtype="int32"), "normal: dtype must be float or complex"),
        (lambda key: random.bits(key, dtype="int32"), "bits: dtype must be unsigned"),
        (lambda key: random.randint(key, (), 0, 1, "float32"), "randint: dtype must be an integer"),
        (lambda key: random.bernoulli(key, 1), "bernoulli: p must be a float"),
    ],
)
def test_wrong_dtypes_are_refused(call: object, message: str) -> None:
    with pytest.raises(DtypeError, match=message):
        call(random.key(0))
