"""Devices, transfers, waiting, caches, and settings for a block of code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube import eager
from xcube.errors import DeviceError
from xcube.lowering.device import default_device
from xcube.numpy import fused


def test_the_default_device_is_listed() -> None:
    assert jnp.ones(2).device in xcube.devices()
    assert xcube.devices(xcube.default_backend()) == [jnp.ones(2).device]


def test_a_missing_kind_of_device_is_an_error() -> None:
    with pytest.raises(DeviceError, match=r"one of cpu, cuda; got 'abacus'"):
        xcube.devices("abacus")


class Elsewhere:
    """A device that is not this one; its buffers are."""

    def from_host(self, array: np.ndarray) -> Any:
        return default_device().from_host(array)


def test_numbers_of_one_device_are_not_used_on_another(monkeypatch: pytest.MonkeyPatch) -> None:
    here = eager.operand(1.5), fused.number(1.5, np.dtype(np.float32))
    other = Elsewhere()
    for module in (eager, fused):
        monkeypatch.setattr(module, "default_device", lambda: other)
    there = eager.operand(1.5), fused.number(1.5, np.dtype(np.float32))
    for one, two in zip(here, there, strict=True):
        assert two._device is other
        assert two.buffer is not one.buffer
    eager.clear()
    fused.clear()


def test_values_go_to_the_device_and_back() -> None:
    tree = {"a": np.arange(3.0), "b": [1, (jnp.ones(2), None)]}
    put = xcube.device_put(tree)
    assert all(isinstance(leaf, xcube.Array) for leaf in xcube.tree.leaves(put))
    assert put["a"].dtype == np.float32
    assert put["b"][0].weak_type
    back = xcube.device_get(put)
    assert type(back["a"]) is np.ndarray
    np.testing.assert_array_equal(back["a"], [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(back["b"][1][0], [1.0, 1.0])


def test_a_device_of_another_process_is_refused() -> None:
    with pytest.raises(DeviceError, match="device_put: the device must be one of"):
        xcube.device_put(1.0, "cpu:7")  # pyright: ignore


def test_device_put_is_part_of_traced_functions() -> None:
    assert xcube.jit(lambda x: xcube.device_put(x) + 1)(2.0) == 3.0


def test_waiting_gives_the_same_tree() -> None:
    tree = {"a": jnp.ones(2), "b": 3}
    assert xcube.block_until_ready(tree) is tree
    assert xcube.jit(xcube.block_until_ready)(jnp.ones(2)).shape == (2,)


def test_cleared_caches_trace_again() -> None:
    traced = []
    function = xcube.jit(lambda x: (traced.append(1), x + 1)[1])
    function(1.0)
    function(2.0)
    assert len(traced) == 1
    xcube.clear_caches()
    assert function(2.0) == 3.0
    assert len(traced) == 2


def test_64_bit_defaults_last_for_a_block() -> None:
    with xcube.enable_x64():
        assert jnp.ones(2).dtype == np.float64
        with xcube.enable_x64(False):
            assert jnp.ones(2).dtype == np.float32
    assert jnp.ones(2).dtype == np.float32


def test_jit_is_off_for_a_block() -> None:
    seen: list[object] = []
    function = xcube.jit(lambda x: (seen.append(x), x + 1)[1])
    with xcube.disable_jit():
        assert function(jnp.ones(())) == 2.0
    assert float(seen[0]) == 1.0


def test_settings_are_restored_after_an_error() -> None:
    with pytest.raises(KeyError), xcube.enable_x64():
        raise KeyError
    assert jnp.ones(2).dtype == np.float32
