"""Indexing and `.at`: every kind of index against NumPy, out of bounds against JAX, errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import xcube
import xcube.numpy as jnp
from xcube.array import DeviceArray
from xcube.errors import NonConcreteBooleanIndexError
from xcube.ir import Aval
from xcube.numpy import index_entries, indexing, updating
from xcube.transforms.grad import grad
from xcube.transforms.jit import jit, make_jaxpr
from xcube.transforms.vmap import vmap

jax = pytest.importorskip("jax")

SHAPE = (3, 4, 2)
HOST = np.arange(24, dtype=np.float32).reshape(SHAPE)
BLOCKS = [(2,), (1,), (3, 1), ()]
RULES = settings(max_examples=60, deadline=None)


@st.composite
def indices(draw, in_bounds=True):
    """An index of an array of shape SHAPE: any mix of the kinds that NumPy has."""
    block = draw(st.sampled_from(BLOCKS))
    items, axis = [], 0
    while axis < len(SHAPE) and draw(st.integers(0, 9)) < 8:
        length = SHAPE[axis]
        kind = draw(st.sampled_from(["int", "slice", "slice", "new", "array", "mask", "rest"]))
        if kind == "rest":
            items.append(Ellipsis)
            break
        if kind == "new":
            items.append(None)
            continue
        extra = 0 if in_bounds else 2
        places = st.integers(-length - extra, length - 1 + extra)
        if kind == "int":
            items.append(draw(places))
        elif kind == "slice":
            bound = st.none() | st.integers(-length - 1, length + 1)
            items.append(
                slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, -1, -2])))
            )
        elif kind == "array":
            count = int(np.prod(block))
            values = draw(st.lists(places, min_size=count, max_size=count))
            dtype = draw(st.sampled_from(["int8", "int32", "int64"]))
            items.append(np.array(values, dtype).reshape(block))
        else:
            mask = draw(st.lists(st.booleans(), min_size=length, max_size=length))
            items.append(np.array(mask))
        axis += 1
    return tuple(items)


def in_numpy(index):
    try:
        return HOST[index]
    except IndexError:
        return None


@RULES
@given(indices())
def test_reading_agrees_with_numpy(index):
    expected = in_numpy(index)
    if expected is None:
        return
    found = np.asarray(jnp.asarray(HOST)[index])
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@RULES
@given(indices(in_bounds=False))
def test_reading_out_of_bounds_agrees_with_jax(index):
    try:
        expected = np.asarray(jax.numpy.asarray(HOST)[index])
    except (IndexError, ValueError, TypeError):
        return
    np.testing.assert_array_equal(np.asarray(jnp.asarray(HOST)[index]), expected)


@RULES
@given(indices())
def test_reading_with_traced_indices_agrees_with_numpy(index):
    expected = in_numpy(index)
    if expected is None:
        return
    traced = [
        k
        for k, item in enumerate(index)
        if type(item) is int or (isinstance(item, np.ndarray) and item.dtype != bool)
    ]

    def read(x, *values):
        given = iter(values)
        return x[tuple(next(given) if k in traced else item for k, item in enumerate(index))]

    found = jit(read)(jnp.asarray(HOST), *[jnp.asarray(index[k]) for k in traced])
    np.testing.assert_array_equal(np.asarray(found), expected)


@RULES
@given(indices(), st.sampled_from(["set", "add", "multiply", "min", "max"]), st.booleans())
def test_updates_agree_with_numpy(index, operation, scalar):
    block = in_numpy(index)
    if block is None:
        return
    values = np.float32(0.5) if scalar or operation == "set" else 0.25 * block - 2
    expected = HOST.copy()
    if operation == "set":
        expected[index] = values
    else:
        ufunc = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}
        ufunc[operation].at(expected, index, values)
    found = getattr(jnp.asarray(HOST).at[index], operation)(values)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)


@RULES
@given(indices(in_bounds=False))
def test_updates_out_of_bounds_are_dropped(index):
    x, y = jnp.asarray(HOST), jax.numpy.asarray(HOST)
    try:
        expected = np.asarray(y.at[index].add(1.0))
    except (IndexError, ValueError, TypeError):
        return
    np.testing.assert_array_equal(np.asarray(x.at[index].add(1.0)), expected)


@pytest.mark.parametrize("mode", ["fill", "clip", "promise_in_bounds"])
@pytest.mark.parametrize("index", [1, np.array([0, 2]), (slice(None), np.array([3, 1]))])
def test_modes_agree_in_bounds(mode, index):
    found = jnp.asarray(HOST).at[index].get(mode=mode)
    np.testing.assert_array_equal(np.asarray(found), HOST[index])


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool"])
def test_fill_mode_fills_like_jax(dtype):
    host = np.arange(3).astype(dtype)
    index = np.array([0, 3, -4, -1])
    for value in (None, 1):
        expected = jax.numpy.asarray(host).at[index].get(mode="fill", fill_value=value)
        found = jnp.asarray(host).at[index].get(mode="fill", fill_value=value)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))
    found = jnp.asarray(host).at[7].get(mode="fill", fill_value=1)
    assert np.asarray(found) == np.asarray(1, dtype)


def test_divide_power_subtract_and_apply():
    x, index = jnp.asarray(HOST), np.array([0, 2])
    for name, value in (("divide", 2.0), ("power", 2.0), ("subtract", 3.0)):
        expected = HOST.copy()
        operation = {"divide": np.divide, "power": np.power, "subtract": np.subtract}[name]
        expected[index] = operation(expected[index], value)
        found = getattr(x.at[index], name)(value)
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)
    expected = HOST.copy()
    expected[1] = np.sqrt(expected[1])
    np.testing.assert_allclose(np.asarray(x.at[1].apply(jnp.sqrt)), expected, rtol=1e-6)


@pytest.mark.parametrize("operation", ["set", "add", "multiply", "min", "max"])
@pytest.mark.parametrize("values", [2, 2.5, np.float32(2.5), np.arange(4, dtype=np.int8)])
@pytest.mark.parametrize("dtype", ["int32", "float16", "uint8"])
@pytest.mark.filterwarnings("ignore")
def test_updates_keep_the_dtype(operation, values, dtype):
    host = np.arange(4).astype(dtype)
    expected = getattr(jax.numpy.asarray(host).at[:], operation)(values)
    found = getattr(jnp.asarray(host).at[:], operation)(values)
    assert (found.dtype, found.weak_type) == (expected.dtype, expected.weak_type)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def test_scalar_masks_add_an_axis():
    for mask in (True, False, np.True_, jnp.array(True)):
        np.testing.assert_array_equal(np.asarray(jnp.asarray(HOST)[mask]), HOST[bool(mask)])


def test_traced_masks_ask_for_where():
    with pytest.raises(NonConcreteBooleanIndexError, match="where"):
        jit(lambda x: x[x > 0])(jnp.arange(3.0))


def test_traced_masks_update_with_one_value():
    x = jnp.arange(4.0)
    found = jit(lambda x: x.at[x > 1].set(0.0))(x)
    np.testing.assert_array_equal(np.asarray(found), [0, 1, 0, 0])
    found = jit(lambda x: x.at[x > 1].multiply(2))(x)
    np.testing.assert_array_equal(np.asarray(found), [0, 1, 4, 6])


def test_static_and_traced_positions_agree_under_vmap():
    x = jnp.asarray(HOST)
    rows = vmap(lambda row, k: row[k])(x, jnp.array([0, 3, 1]))
    np.testing.assert_array_equal(np.asarray(rows), HOST[np.arange(3), [0, 3, 1]])
    new = vmap(lambda row, k: row.at[k].set(-1.0))(x, jnp.array([0, 3, 9]))
    expected = HOST.copy()
    expected[0, 0], expected[1, 3] = -1, -1
    np.testing.assert_array_equal(np.asarray(new), expected)


def test_gradients_count_how_often_an_element_is_read():
    index = np.array([0, 0, 2])
    found = grad(lambda x: x[index].sum())(jnp.arange(3.0))
    np.testing.assert_array_equal(np.asarray(found), [2, 0, 1])
    found = grad(lambda x: (x[1:] * x[:-1]).sum())(jnp.arange(3.0))
    np.testing.assert_array_equal(np.asarray(found), [1, 2, 1])
    found = grad(lambda v: jnp.zeros(3).at[index].add(v).sum())(jnp.ones(3))
    np.testing.assert_array_equal(np.asarray(found), [1, 1, 1])


@pytest.mark.parametrize(
    ("index", "error"),
    [
        ([0, 1], TypeError),
        (1.0, TypeError),
        ("a", TypeError),
        (np.array([0.5]), TypeError),
        ((0, 0, 0, 0), IndexError),
        ((..., ...), IndexError),
        (np.array([True, False]), IndexError),
        (slice(0, 1.5), IndexError),
    ],
)
def test_bad_indices_are_explained_with_the_users_line(index, error):
    with pytest.raises(error) as caught:
        jnp.asarray(HOST)[index]
    assert "test_indexing.py:" in str(caught.value)


def test_values_must_fit_the_elements():
    with pytest.raises(ValueError, match=r"f32\[3,4,2\]"):
        jnp.asarray(HOST).at[0].set(jnp.ones(3))


def test_slice_bounds_must_be_static():
    with pytest.raises(IndexError, match="dynamic_slice"):
        jit(lambda x, n: x[:n])(jnp.arange(3.0), 2)


@RULES
@given(
    st.sampled_from([0, 1, 2, -1]),
    st.sampled_from(["fill", "clip", "wrap"]),
    st.lists(st.integers(-6, 6), min_size=1, max_size=5),
)
def test_take_agrees_with_jax(axis, mode, places):
    index = np.array(places)
    expected = jax.numpy.take(HOST, index, axis=axis, mode=mode)
    found = jnp.take(HOST, index, axis=axis, mode=mode)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


@RULES
@given(st.sampled_from([0, 1, 2]), st.integers(0, 2**16))
def test_take_along_axis_agrees_with_numpy(axis, seed):
    order = np.argsort(np.random.default_rng(seed).normal(size=SHAPE), axis=axis)
    expected = np.take_along_axis(HOST, order, axis)
    np.testing.assert_array_equal(np.asarray(jnp.take_along_axis(HOST, order, axis)), expected)


ALONG = [
    ((4, 5, 6), (4, 5, 1), 2),
    ((4, 5, 6), (4, 5, 3), 2),
    ((4, 5, 6), (4, 1, 6), 1),
    ((4, 5, 6), (1, 5, 1), 2),
    ((1, 5, 6), (4, 5, 1), 2),
    ((4, 5, 6), (1, 1, 1), 0),
    ((4, 5, 6), (2, 5, 6), 0),
    ((7,), (1,), 0),
    ((4, 1, 6), (4, 3, 1), 2),
]


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
@pytest.mark.parametrize("mode", ["fill", "clip"])
@pytest.mark.parametrize(("shape", "places", "axis"), ALONG)
def test_take_along_axis_and_its_gradient_agree_with_jax(shape, places, axis, mode, dtype):
    random = np.random.default_rng(3)
    x = random.standard_normal(shape).astype(np.float32)
    low, high = (-shape[axis], shape[axis] + 2) if dtype == np.int32 else (0, shape[axis])
    index = random.integers(low, high, places).astype(dtype)

    def both(library):
        def function(x):
            return library.numpy.take_along_axis(x, library.numpy.asarray(index), axis, mode=mode)

        y, pull = library.vjp(function, x)
        ct = np.arange(y.size, dtype=np.float32).reshape(y.shape)
        return np.asarray(y), np.asarray(pull(library.numpy.asarray(ct))[0])

    for found, expected in zip(both(xcube), both(jax), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


# --- Empty axes, long axes, lists ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "axis"),
    [
        (lambda x: x[0], 0),
        (lambda x: x[-1], 0),
        (lambda x: x[jnp.int32(0)], 0),
        (lambda x: x[jnp.array([0])], 0),
        (lambda x: x.at[0].get(mode="fill"), 0),
        (lambda x: x.at[0].set(1.0), 0),
        (lambda x: x.T[:, 0], 1),
        (lambda x: x.T[True, :, 0], 1),
    ],
)
def test_an_index_into_an_empty_axis_is_refused(read, axis):
    for function in (read, jit(read)):
        with pytest.raises(IndexError, match=rf"axis {axis} of .* has size 0.*test_indexing.py:"):
            function(jnp.zeros((0, 3)))


def test_an_empty_axis_can_be_read_where_nothing_is_read():
    x = jnp.zeros((0, 3))
    assert x[:, 1].shape == (0,)
    assert x[jnp.zeros((0,), int)].shape == (0, 3)


LONG = (1 << 31) + 8


def traced_text(function, place):
    return str(make_jaxpr(function)(jax.ShapeDtypeStruct((LONG, 3), np.int8), place))


def test_starts_on_axes_beyond_int32_are_int64():
    at = np.int32(5)
    assert "i64" in traced_text(lambda x, k: x[k], at)
    assert "i64" in traced_text(lambda x, k: x.at[k].set(1), at)
    assert "i64" in traced_text(lambda x, k: x[k[None]], at)
    assert "i64" not in traced_text(lambda x, k: x[:5, k], at)


def test_static_places_beyond_int32_are_kept():
    x = DeviceArray(Aval((LONG, 3), np.dtype(np.int8)), None, None)
    for index, place in (
        (LONG - 1, LONG - 1),
        (-2, LONG - 2),
        (slice(LONG - 4, LONG - 2), LONG - 4),
    ):
        jaxpr, starts = indexing._plan(x, index)
        assert starts[0].dtype == np.int64 and int(starts[0]) == place
        assert jaxpr.in_avals[1].dtype == np.int64
    moved = updating._moving(*index_entries.parse(x, (LONG - 1, 2)))
    assert [(int(k), k.dtype) for k in moved] == [(LONG - 1, np.int64), (2, np.int32)]


@pytest.mark.parametrize(
    "index",
    [
        ([0, 1], 2),
        ((0, 2), (1, 3)),
        ([0, 1],),
        ([[0, 1], [1, 2]], 2),
        ([True, False, True], 2),
        ([], 2),
        (0, [0, 1]),
    ],
)
def test_lists_within_an_index_are_arrays_as_in_numpy(index):
    expected = HOST[index]
    np.testing.assert_array_equal(jnp.asarray(HOST)[index], expected)
    np.testing.assert_array_equal(jit(lambda x: x[index])(jnp.asarray(HOST)), expected)
    host = HOST.copy()
    host[index] = 9
    np.testing.assert_array_equal(jnp.asarray(HOST).at[index].set(9), host)


def test_an_index_that_is_a_list_is_refused_as_in_jax():
    for library in (jax.numpy, jnp):
        with pytest.raises(TypeError):
            library.asarray(HOST)[[0, 1]]
    with pytest.raises(TypeError, match="dtype float32"):
        jnp.asarray(HOST)[[0.5], 1]
