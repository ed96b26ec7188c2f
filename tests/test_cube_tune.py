"""`cube.tune`: which config runs, when there is a race, what is remembered and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube import ShapeDtypeStruct, config, cube
from xcube.errors import KernelError, LoweringError
from xcube.lowering import tune as races

CONFIGS = [{"block": 1}, {"block": 4}, {"block": 3}]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path) -> Iterator[None]:
    with config.using(cache=str(tmp_path)):
        cube.tune.clear()
        yield
        cube.tune.clear()


@pytest.fixture
def raced(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the candidates of each race; the last of them wins."""
    races_run: list[list[str]] = []

    def race(candidates: Any, *_: Any, **__: Any) -> races.Ranking:
        names = [*candidates]
        for prepare in candidates.values():
            prepare()()
        races_run.append(names)
        return races.Ranking({name: 1.0 + k for k, name in enumerate(reversed(names))})

    monkeypatch.setattr(races, "race", race)
    return races_run


@cube.kernel
def doubled(x: cube.Array, out: cube.Array, block: cube.comptime = 1):
    start = cube.ABSOLUTE_POS * block
    for k in range(block):
        if start + k < out.length:
            out[start + k] = 2 * x[start + k]


def make(calls: list[int], **options: Any) -> Any:
    @cube.tune(configs=CONFIGS, **options)
    def double(x: Any, *, block: int) -> Any:
        calls.append(block)
        cubes = -(-x.size // (32 * block))
        return doubled[cubes, 32](x, ShapeDtypeStruct(x.shape, x.dtype), block=block)

    return double


def test_the_fastest_runs_and_is_remembered(raced: list[list[str]]) -> None:
    calls: list[int] = []
    double = make(calls)
    x = jnp.arange(100.0)
    np.testing.assert_array_equal(double(x), 2 * np.arange(100.0))
    assert raced == [["block=1", "block=4", "block=3"]]
    assert calls[-1] == 3
    double(x)
    double(jnp.arange(101.0))  # of the same class
    assert len(raced) == 1
    double(jnp.arange(1000.0))
    double(jnp.arange(100))
    assert len(raced) == 3


def test_a_winner_that_is_not_legal_is_passed_over(raced: list[list[str]]) -> None:
    calls: list[int] = []
    double = make(calls, key=lambda x: "any", legal=lambda x, block: x.size % block == 0)
    double(jnp.arange(12.0))
    assert calls[-1] == 3
    double(jnp.arange(16.0))
    assert calls[-1] == 4
    double(jnp.arange(17.0))
    assert calls[-1] == 1
    assert len(raced) == 1


def test_under_transforms_the_race_is_held_with_arrays_like_the_traced(
    raced: list[list[str]],
) -> None:
    calls: list[int] = []
    double = make(calls)
    x = jnp.arange(8.0)
    np.testing.assert_array_equal(xcube.jit(double)(x), 2 * np.arange(8.0))
    assert raced == [["block=1", "block=4", "block=3"]]
    np.testing.assert_array_equal(xcube.vmap(double)(x[None]), 2 * np.arange(8.0)[None])
    assert len(raced) == 1


def test_no_race_where_it_is_switched_off(raced: list[list[str]]) -> None:
    calls: list[int] = []
    double = make(calls)
    with config.using(autotune="off"):
        double(jnp.arange(8.0))
    assert calls == [1]
    assert raced == []


def test_rankings_travel(raced: list[list[str]], tmp_path: Path) -> None:
    calls: list[int] = []
    double = make(calls)
    double(jnp.arange(8.0))
    assert cube.tune.export(tmp_path / "rankings.json") == 1
    cube.tune.clear()
    assert cube.tune.load(tmp_path / "rankings.json") == 1
    double(jnp.arange(8.0))
    assert len(raced) == 1
    with pytest.raises(ValueError, match="must be a file written by export"):
        (tmp_path / "other.json").write_text("{}")
        cube.tune.load(tmp_path / "other.json")


def test_a_real_race_finds_what_is_faster() -> None:
    @cube.tune(configs=[{"turns": 400}, {"turns": 1}])
    def slow(x: Any, *, turns: int) -> Any:
        return xcube.lax.fori_loop(0, turns, lambda _, y: jnp.sin(y @ y), x)

    x = jnp.ones((64, 64))
    assert slow.choose(x) == {"turns": 1}


def test_what_is_refused() -> None:
    def function(x: Any, **_: Any) -> Any:
        raise ValueError("not today")

    with pytest.raises(TypeError, match="configs must be mappings"):
        cube.tune(configs=[])(function)
    with pytest.raises(TypeError, match="configs must be mappings"):
        cube.tune(configs=[3])(function)  # type: ignore[list-item]
    never = cube.tune(configs=CONFIGS, legal=lambda x, block: False)(function)
    with pytest.raises(KernelError, match=r"block=1, block=4, block=3 must be legal for f32\[4\]"):
        never(jnp.ones(4))
    with pytest.raises(LoweringError, match=r"no candidate can run(.|\n)*ValueError: not today"):
        cube.tune(configs=CONFIGS)(function)(jnp.ones(4))


class Layer:
    """Tuned methods are methods."""

    scale = 3.0

    @cube.tune(configs=[{"parts": 1}, {"parts": 2}])
    def total(self, x: Any, *, parts: int) -> Any:
        return self.scale * jnp.sum(jnp.sum(x.reshape(parts, -1), 1))


def test_methods(raced: list[list[str]]) -> None:
    assert float(Layer().total(jnp.arange(4.0))) == 18.0
