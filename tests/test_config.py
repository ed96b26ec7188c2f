"""Settings: those of the process, those of a thread's blocks, those of the environment."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest

import xcube
import xcube.numpy as jnp
from xcube import config, flags


@pytest.fixture(autouse=True)
def settings_stay() -> Iterator[None]:
    before = {name: getattr(config.current, name) for name in config.NAMES}
    yield
    for name, value in before.items():
        config.update(name, value)


def in_thread(function: Callable[[], object]) -> object:
    """What a function returns in a thread of its own."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(30)
    return found[0]


def test_a_block_holds_for_its_thread_alone() -> None:
    with config.using(enable_x64=True):
        assert config.current.enable_x64
        assert in_thread(lambda: config.current.enable_x64) is False
        assert in_thread(lambda: str(jnp.ones(1).dtype)) == "float32"
        assert jnp.ones(1).dtype == "float64"
    assert not config.current.enable_x64


def test_an_update_holds_for_all_threads() -> None:
    config.update("numpy_dtype_promotion", "strict")
    assert config.current.numpy_dtype_promotion == "strict"
    assert in_thread(lambda: config.current.numpy_dtype_promotion) == "strict"


def test_a_thread_that_is_running_sees_an_update() -> None:
    started, updated, found = threading.Event(), threading.Event(), []

    def look() -> None:
        found.append(config.current.threads)
        started.set()
        updated.wait(30)
        found.append(config.current.threads)

    thread = threading.Thread(target=look)
    thread.start()
    started.wait(30)
    before = config.current.threads
    config.update("threads", before + 3)
    updated.set()
    thread.join(30)
    assert found == [before, before + 3]


def test_a_block_goes_before_an_update_until_it_ends() -> None:
    with config.using(enable_x64=False):
        config.update("enable_x64", True)
        assert not config.current.enable_x64
        assert in_thread(lambda: config.current.enable_x64) is True
    assert config.current.enable_x64


def test_blocks_nest() -> None:
    with config.using(threads=2, check=True):
        with config.using(threads=5):
            assert (config.current.threads, config.current.check) == (5, True)
        assert config.current.threads == 2
    assert vars(config.current) == {}


def test_overlapping_blocks_of_two_threads_leave_nothing() -> None:
    """The first to begin is the first to end: each once restored what the other had set."""
    first_in, second_in, first_out = (threading.Event() for _ in range(3))
    seen: list[int] = []

    def first() -> None:
        with config.using(threads=11):
            first_in.set()
            second_in.wait(30)
            seen.append(config.current.threads)
        first_out.set()

    def second() -> None:
        first_in.wait(30)
        with config.using(threads=22):
            second_in.set()
            first_out.wait(30)
            seen.append(config.current.threads)

    before = config.current.threads
    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == [11, 22]
    assert config.current.threads == before
    assert in_thread(lambda: config.current.threads) == before


def test_a_block_that_is_refused_changes_nothing() -> None:
    with pytest.raises(ValueError, match="threads must be 0 or more"):
        config.using(check=True, threads=-1).__enter__()
    assert vars(config.current) == {}


def test_an_error_ends_a_block() -> None:
    with pytest.raises(KeyError), config.using(check=True):
        raise KeyError
    assert vars(config.current) == {}


def test_jax_names_are_accepted() -> None:
    with config.using(jax_enable_x64=True):
        assert config.current.enable_x64
    config.update("jax_enable_x64", True)
    assert config.current.enable_x64


@pytest.mark.parametrize(
    "change", [config.update, lambda name, value: config.using(**{name: value})]
)
def test_an_unknown_setting_is_named(change: Callable) -> None:
    with pytest.raises(AttributeError, match=r"no setting 'colour'; the settings are enable_x64"):
        enter = change("colour", 1)
        enter.__enter__()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("enable_x64", "yes", r"enable_x64 must be one of \(False, True\); got 'yes'"),
        ("check", 1, r"check must be one of \(False, True\); got 1"),
        ("numpy_dtype_promotion", "loose", r"one of \('standard', 'strict'\); got 'loose'"),
        ("threads", -1, "threads must be 0 or more; got -1"),
        ("threads", True, "threads must be 0 or more; got True"),
        ("log", "jaxpr,foo", "log may name jaxpr, .*; got foo"),
        ("log", 3, "log may name jaxpr, .*; got 3"),
        ("device", None, "device must be a string; got None"),
        ("cache", 3, "cache must be a string; got 3"),
    ],
)
def test_values_are_checked(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.update(name, value)
    with pytest.raises(ValueError, match=message), config.using(**{name: value}):
        pass


def test_log_takes_a_text_or_a_collection() -> None:
    for value in ("jaxpr, source", ["source", "jaxpr"], frozenset({"jaxpr", "source"})):
        with config.using(log=value):
            assert config.current.log == frozenset({"jaxpr", "source"})


def test_settings_cannot_be_assigned() -> None:
    with pytest.raises(AttributeError, match=r"use config.update\('check', True\)"):
        config.current.check = True  # pyright: ignore
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.Settings().check = True  # pyright: ignore


def test_current_prints_what_is_in_force() -> None:
    with config.using(threads=7):
        assert repr(config.current).startswith("Settings(enable_x64=")
        assert "threads=7" in repr(config.current)


# the environment ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("XCUBE_LOG", "foo", "some of jaxpr, simplify, program, cube, source, cache"),
        ("XCUBE_THREADS", "abc", "a whole number, 0 or more"),
        ("XCUBE_THREADS", "-1", "a whole number, 0 or more"),
        ("XCUBE_ENABLE_X64", "maybe", "one of 1, true, yes, on or 0, false, no, off"),
        ("JAX_ENABLE_X64", "maybe", "one of 1, true, yes, on or 0, false, no, off"),
        ("XCUBE_DISABLE_JIT", "2", "one of 1, true, yes, on or 0, false, no, off"),
        ("XCUBE_CHECK", "2", "one of 1, true, yes, on or 0, false, no, off"),
        ("XCUBE_NUMPY_DTYPE_PROMOTION", "loose", "one of standard, strict"),
        ("XCUBE_CHECK_TRACER_LEAKS", "2", "one of 1, true, yes, on or 0, false, no, off"),
        ("XCUBE_LOG_COMPILES", "2", "one of 1, true, yes, on or 0, false, no, off"),
        ("XCUBE_DEFAULT_MATMUL_PRECISION", "exact", f"one of {', '.join(config.PRECISIONS)}"),
    ],
)
def test_a_wrong_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, allowed: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ValueError) as caught:
        config.from_environment()
    start = f"config: {variable} must be {allowed}"
    assert str(caught.value).startswith(start)
    assert str(caught.value).endswith(f"; got {text!r}.")


def test_a_wrong_variable_is_said_at_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import xcube.config"],
        capture_output=True,
        text=True,
        cwd=Path(xcube.__file__).parents[1],
        env={**os.environ, "XCUBE_THREADS": "abc"},
        timeout=60,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == "ValueError: config: XCUBE_THREADS must be a whole number, 0 or more; got 'abc'."


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, text in {
        "XCUBE_ENABLE_X64": "Yes",
        "XCUBE_CHECK": "off",
        "XCUBE_LOG": "jaxpr, cube",
        "XCUBE_THREADS": "3",
        "XCUBE_NUMPY_DTYPE_PROMOTION": "strict",
        "XCUBE_DEVICE": "cpu",
    }.items():
        monkeypatch.setenv(variable, text)
    found = config.from_environment()
    assert (found.enable_x64, found.check, found.threads) == (True, False, 3)
    assert found.log == {"jaxpr", "cube"}
    assert (found.numpy_dtype_promotion, found.device) == ("strict", "cpu")


def test_the_own_variable_goes_before_that_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XCUBE_ENABLE_X64", raising=False)
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    assert config.from_environment().enable_x64
    monkeypatch.setenv("XCUBE_ENABLE_X64", "0")
    assert not config.from_environment().enable_x64


# flags of JAX ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "value", "setting", "expected"),
    [
        ("jax_enable_x64", True, "enable_x64", True),
        ("jax_debug_nans", True, "debug_nans", True),
        ("jax_debug_infs", True, "debug_infs", True),
        ("jax_disable_jit", True, "disable_jit", True),
        ("jax_check_tracer_leaks", True, "check_tracer_leaks", True),
        ("jax_log_compiles", True, "log_compiles", True),
        ("jax_enable_checks", True, "check", True),
        ("jax_numpy_dtype_promotion", "strict", "numpy_dtype_promotion", "strict"),
        ("jax_default_matmul_precision", "float32", "default_matmul_precision", "float32"),
        ("jax_default_matmul_precision", None, "default_matmul_precision", None),
        ("jax_compilation_cache_dir", "folder", "cache", "folder"),
        ("jax_compilation_cache_dir", None, "cache", ""),
        ("jax_platforms", "cpu", "device", "cpu"),
        ("jax_platforms", "gpu, cpu", "device", "cuda"),
        ("jax_platform_name", None, "device", ""),
        ("jax_default_device", "cpu", "device", "cpu"),
    ],
)
def test_flags_of_jax_mean_settings(flag: str, value: object, setting: str, expected: str) -> None:
    with config.using(**{flag: value}):
        assert getattr(config.current, setting) == config.read(flag) == expected
    config.update(flag, value)
    assert getattr(config.current, setting) == expected
    assert getattr(config, flag) == expected


def test_a_device_is_a_value_of_the_default_device() -> None:
    config.update("jax_default_device", jnp.ones(2).device)
    assert config.current.device == jnp.ones(2).device.name


def test_the_flags_that_research_code_sets_are_taken() -> None:
    for flag, value in {
        "jax_traceback_filtering": "off",
        "jax_threefry_partitionable": True,
        "jax_default_prng_impl": "threefry2x32",
        "jax_numpy_rank_promotion": "allow",
        "jax_transfer_guard": "allow",
        "jax_enable_compilation_cache": False,
        "jax_persistent_cache_min_compile_time_secs": 0.5,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        "jax_raise_persistent_cache_errors": True,
        "jax_explain_cache_misses": True,
        "jax_softmax_custom_jvp": True,
        "jax_optimization_level": "O1",
        "jax_dump_ir_to": None,
        "jax_cpu_enable_async_dispatch": False,
    }.items():
        config.update(flag, value)
        assert config.read(flag) == getattr(config, flag) == value
        with config.using(**{flag: value}):
            pass
    assert config.read("jax_debug_log_modules") is None


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("jax_numpy_rank_promotion", "raise", "must be 'allow', which is what happens here"),
        ("jax_debug_key_reuse", True, "must be False, which is what happens here"),
        ("jax_num_cpu_devices", 8, "must be 1, which is what happens here"),
        ("jax_default_prng_impl", "rbg", "must be 'threefry2x32'"),
        ("jax_threefry_partitionable", 1, "must be True"),
        ("jax_traceback_filtering", 3, "must be of type str or None; got 3"),
        ("jax_enable_compilation_cache", 1, "must be of type bool; got 1"),
        ("jax_compilation_cache_max_size", True, "must be of type int; got True"),
        ("jax_enable_x64", 1, r"enable_x64 must be one of \(False, True\); got 1"),
        ("jax_default_matmul_precision", "exact", "default_matmul_precision must be one of"),
        ("jax_platforms", 3, "device must be a string; got 3"),
    ],
)
def test_values_that_flags_cannot_have_are_refused(flag: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.update(flag, value)
    with pytest.raises(ValueError, match=message), config.using(**{flag: value}):
        pass


@pytest.mark.parametrize("flag", ["jax_colour", "jax_", "colour"])
def test_an_unknown_flag_is_an_attribute_error(flag: str) -> None:
    for use in (
        lambda: config.update(flag, 1),
        lambda: config.read(flag),
        lambda: getattr(config, flag),
    ):
        with pytest.raises(AttributeError, match=flag):
            use()


@pytest.mark.skipif(jax.__version_info__[:2] != (0, 10), reason="flags come and go")
def test_all_flags_that_are_known_are_flags_of_jax() -> None:
    ours = {*flags.WITHOUT_EFFECT, *flags.FIXED, *flags.RENAMED}
    assert ours - set(jax.config.values) == set()


@pytest.mark.parametrize("name", ["DISABLE_JIT", "DEBUG_NANS", "DEFAULT_MATMUL_PRECISION"])
def test_variables_of_jax_are_read(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text = "highest" if name == "DEFAULT_MATMUL_PRECISION" else "1"
    monkeypatch.delenv(f"XCUBE_{name}", raising=False)
    monkeypatch.setenv(f"JAX_{name}", text)
    assert getattr(config.from_environment(), name.lower()) in (True, "highest")
    monkeypatch.setenv(f"JAX_{name}", "nonsense")
    with pytest.raises(ValueError, match=f"config: JAX_{name} must be one of"):
        config.from_environment()
