"""The array type: text, conversions, exchange with other libraries, immutability, deletion."""

from __future__ import annotations

import copy
import operator
import pickle

import numpy as np
import pytest

import xcube.numpy as jnp
from xcube.array import Array
from xcube.errors import ConcretizationTypeError, TracerBoolConversionError
from xcube.transforms.jit import jit

jax = pytest.importorskip("jax")

SAMPLES = [
    np.zeros(2, np.float32),
    np.arange(6, dtype=np.int32).reshape(2, 3),
    np.zeros((0, 3), np.float32),
    np.array(True),
    np.arange(3000, dtype=np.int32),
    np.linspace(0, 1, 40, dtype=np.float32).reshape(4, 10),
    np.array([1 + 2j], np.complex64),
    np.float32(1.5),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda a: f"{a.dtype}{a.shape}")
def test_repr_and_str_are_those_of_jax(sample):
    ours, theirs = jnp.asarray(sample), jax.numpy.asarray(sample)
    assert repr(ours) == repr(theirs)
    assert str(ours) == str(theirs)


def test_repr_shows_weak_types():
    assert repr(jnp.asarray(2.0)) == "Array(2., dtype=float32, weak_type=True)"


def test_numpy_view_is_zero_copy_and_read_only():
    x = jnp.arange(4.0)
    view = np.asarray(x)
    assert not view.flags.writeable
    assert np.shares_memory(view, np.asarray(x))
    assert np.array(x, copy=True).flags.writeable


def test_numpy_view_outlives_a_deleted_array():
    x = jnp.arange(4.0)
    view = np.asarray(x)
    x.delete()
    assert x.is_deleted()
    np.testing.assert_array_equal(view, [0, 1, 2, 3])
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(x)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "bfloat16", "complex64"])
@pytest.mark.parametrize("weak", [False, True])
def test_pickle_keeps_values_dtype_and_weakness(dtype, weak):
    x = jnp.asarray(2.0) if weak else jnp.arange(3).astype(dtype)
    y = pickle.loads(pickle.dumps(x))
    assert (y.dtype, y.weak_type, y.shape) == (x.dtype, x.weak_type, x.shape)
    np.testing.assert_array_equal(np.asarray(y), np.asarray(x))


def test_copies_survive_the_deletion_of_the_original():
    x = jnp.arange(3)
    copies = [copy.copy(x), copy.deepcopy(x), x.copy(), jnp.array(x)]
    x.delete()
    for other in copies:
        np.testing.assert_array_equal(np.asarray(other), [0, 1, 2])


def test_scalars_convert_to_python():
    assert int(jnp.array(3)) == 3
    assert float(jnp.array(2.5)) == 2.5
    assert complex(jnp.array(1j)) == 1j
    assert [10, 20, 30][jnp.array(1)] == 20
    assert list(range(jnp.array(2))) == [0, 1]
    assert f"{jnp.array(2.567):.2f}" == "2.57"
    assert bool(jnp.array([5]))
    assert float(round(jnp.array(2.567), 1)) == pytest.approx(2.6)
    assert jnp.array([[7]]).item() == 7
    assert jnp.array([[1, 2]]).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("action", "error", "text"),
    [
        (lambda x: bool(x), ValueError, "any"),
        (lambda x: float(x), TypeError, "scalar"),
        (lambda x: hash(x), TypeError, "keys"),
        (lambda x: x.__setitem__(0, 1), TypeError, r"\.at\["),
        (lambda x: x.__delitem__(0), TypeError, "immutable"),
        (lambda x: len(x[0]), TypeError, "axis"),
        (lambda x: iter(x[0]), TypeError, "axis"),
        (lambda x: [1][jnp.array(0.0)], TypeError, "integer"),
    ],
)
def test_misuse_is_explained_with_the_users_line(action, error, text):
    with pytest.raises(error, match=text) as caught:
        action(jnp.arange(3.0))
    assert "test_array.py:" in str(caught.value)


def test_iteration_yields_scalar_arrays():
    assert [type(x) for x in jnp.arange(2)] == [type(jnp.arange(2))] * 2
    assert len(jnp.zeros((3, 2))) == 3


def test_numpy_arrays_defer_to_ours():
    x = jnp.arange(3.0)
    assert isinstance(np.ones(3) + x, Array)
    assert isinstance(np.float32(2) * x, Array)
    assert isinstance(np.sin(x), np.ndarray)


def test_unknown_operands_are_left_to_python():
    x = jnp.arange(3)
    with pytest.raises(TypeError, match="unsupported operand"):
        operator.add(x, [1, 2, 3])
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "float16", "complex64"])
def test_dlpack_goes_to_numpy_torch_and_jax_and_back(dtype):
    torch = pytest.importorskip("torch")
    x = jnp.arange(6).astype(dtype).reshape(2, 3)
    host = np.asarray(x)
    np.testing.assert_array_equal(np.from_dlpack(x), host)
    np.testing.assert_array_equal(torch.from_dlpack(x).numpy(), host)
    np.testing.assert_array_equal(np.asarray(jax.numpy.from_dlpack(x)), host)
    for other in (host.copy(), torch.from_numpy(host.copy()), jax.numpy.asarray(host)):
        y = jnp.from_dlpack(other)
        assert y.dtype == host.dtype
        np.testing.assert_array_equal(np.asarray(y), host)


def test_dlpack_export_shares_memory():
    torch = pytest.importorskip("torch")
    x = jnp.arange(4.0)
    assert torch.from_dlpack(x).data_ptr() == x.unsafe_buffer_pointer()


def test_place_and_bookkeeping():
    x = jnp.zeros((2, 3), jnp.int16)
    assert x.devices() == {x.device}
    assert x.to_device(x.device) is x
    assert x.block_until_ready() is x
    assert x.is_ready()
    assert (x.nbytes, x.itemsize, x.size, x.ndim) == (12, 2, 6, 2)
    assert x.addressable_data(0) is x
    with pytest.raises(IndexError):
        x.addressable_data(1)
    assert x.__array_namespace__() is jnp


def test_view_reads_bits_as_another_dtype():
    host = np.arange(8, dtype=np.float32).reshape(2, 4)
    x = jnp.asarray(host)
    for dtype in ("int32", "uint8", "int16"):
        np.testing.assert_array_equal(np.asarray(x.view(dtype)), host.view(dtype))
    np.testing.assert_array_equal(
        np.asarray(jnp.asarray(host.view(np.uint8)).view("float32")), host
    )


def test_traced_arrays_refuse_python_values():
    with pytest.raises(TracerBoolConversionError):
        jit(lambda x: 1 if x > 0 else 2)(1.0)
    with pytest.raises(ConcretizationTypeError):
        jit(lambda x: float(x))(1.0)


def test_methods_are_those_of_jax():
    expected = {name for name in dir(jax.numpy.zeros(1)) if not name.startswith("_")}
    missing = expected - {name for name in dir(jnp.zeros(1)) if not name.startswith("_")}
    assert missing <= {
        "addressable_shards",
        "byteswap",
        "device_buffer",
        "device_buffers",
        "flat",
        "format",
        "global_shards",
        "platform",
        "sharding",
        "traceback",
        "unsafe_raw_array",
        "unsafe_raw_buffer",
    }


@pytest.mark.parametrize("function", [jnp.array, jnp.asarray, jnp.sin, lambda m: jnp.array([m])])
@pytest.mark.parametrize("mask", [np.ma.nomask, [False, True]])
def test_masked_arrays_are_refused_as_in_jax(function, mask):
    masked = np.ma.array([1.0, 2.0], mask=mask)
    with pytest.raises(ValueError, match=r"must have no mask.*test_array.py:.*filled"):
        function(masked)


def test_bfloat16_passes_through_dlpack_both_ways():
    torch = pytest.importorskip("torch")
    x = jnp.asarray([1.5, -2.0, 3.25], "bfloat16")
    theirs = torch.from_dlpack(x)
    assert theirs.dtype == torch.bfloat16
    assert theirs.tolist() == [1.5, -2.0, 3.25]
    back = jnp.from_dlpack(torch.tensor([0.5, 7.0], dtype=torch.bfloat16))
    assert back.dtype == jnp.bfloat16
    assert back.tolist() == [0.5, 7.0]


def test_bfloat16_survives_a_capsule():
    x = jnp.arange(6, dtype="bfloat16").reshape(2, 3)
    y = jnp.from_dlpack(Lent(x))
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(y), np.asarray(x))


class Lent:
    """Another library's array, as far as DLPack shows it."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()
