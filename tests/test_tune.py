"""Races and what is remembered of them: clocks are stand-ins, so that nothing is timed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube import config
from xcube.errors import LoweringError
from xcube.lowering import tune
from xcube.lowering.tune import Question, Ranking, Winners, race

QUESTION = Question("matmul", "512", "any")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with config.using(cache=str(tmp_path)):
        yield tmp_path


class Machine:
    """Candidates that take a stated time each run, and the clock that sees it."""

    def __init__(self, **seconds: float) -> None:
        self.now, self.runs = 0.0, dict.fromkeys(seconds, 0)
        self.candidates = {name: self._prepare(name, each) for name, each in seconds.items()}

    def _prepare(self, name: str, seconds: float) -> Callable[[], Callable[[], None]]:
        def run() -> None:
            self.now += seconds
            self.runs[name] += 1

        return lambda: run

    def race(self, **options: float) -> Ranking:
        return race(self.candidates, clock=lambda: self.now, **options)


def test_the_fastest_wins_and_the_ranking_holds_every_time():
    ranking = Machine(slow=3e-3, fast=1e-3, middle=2e-3).race()
    assert list(ranking.seconds) == ["fast", "middle", "slow"]
    assert ranking.seconds["middle"] == pytest.approx(2e-3)


def test_who_falls_behind_runs_no_more():
    machine = Machine(fast=1e-3, near=1.02e-3, far=9e-3, beaten=1.5e-3)
    machine.race(budget=10)
    assert machine.runs["far"] == 3  # twice to begin with, and in the first round
    assert machine.runs["near"] > machine.runs["beaten"] > machine.runs["far"]


def test_a_race_ends_in_its_budget():
    machine = Machine(a=1e-3, b=1.01e-3)
    machine.race(budget=0.011)
    assert machine.now < 0.011 + 4 * 1.01e-3 + 1e-3


def test_a_race_ends_at_the_limit_of_the_machine():
    machine = Machine(a=1e-3, b=1.01e-3)
    machine.race(limit=0.99e-3)
    assert machine.runs == {"a": 2, "b": 2}


def test_short_runs_are_repeated():
    machine = Machine(a=1e-6, b=1.01e-6)
    machine.race()
    assert machine.runs["a"] > 200


def test_who_cannot_run_is_left_out_with_the_reason():
    machine = Machine(fine=1e-3)

    def broken() -> Callable[[], None]:
        raise LoweringError("too many units")

    machine.candidates["broken"] = broken
    ranking = machine.race()
    assert ranking.winner == "fine"
    assert ranking.refused == {"broken": "LoweringError: too many units"}
    del machine.candidates["fine"]
    with pytest.raises(LoweringError, match=r"no candidate can run\n  broken: .* too many units"):
        machine.race()
    with pytest.raises(LoweringError, match="there is none"):
        race({})


def test_winners_are_kept_on_disk_and_only_legal_ones_are_found(folder: Path):
    Winners().note(QUESTION, Ranking({"big": 1.0, "small": 2.0}))
    later = Winners()
    assert later.find(QUESTION, ("small", "big")) == "big"
    assert later.find(QUESTION, ("tiny", "small")) == "small"
    assert later.find(QUESTION, ("tiny",)) is None
    assert later.find(Question("matmul", "512", "another"), ("big",)) is None
    later.clear()
    assert Winners().find(QUESTION, ("big",)) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"version": "0", "seconds": {}}',
        '{"version": "V", "seconds": {"k": {"a": []}}}',
    ],
)
def test_a_damaged_file_is_as_none(folder: Path, text: str):
    (folder / "tuned.json").write_text(text.replace('"V"', json.dumps(xcube.__version__)))
    store = Winners()
    assert store.find(QUESTION, ("a",)) is None
    store.note(QUESTION, Ranking({"a": 1.0}))
    assert Winners().find(QUESTION, ("a",)) == "a"
    with pytest.raises(ValueError, match="must be a file written by export"):
        (folder / "other.json").write_text("[]")
        store.load(folder / "other.json")


def test_winners_travel(folder: Path):
    here = Winners()
    here.note(QUESTION, Ranking({"a": 1.0}))
    assert here.export(folder / "mine.json") == 1
    with config.using(cache=str(folder / "elsewhere")):
        there = Winners()
        assert there.find(QUESTION, ("a",)) is None
        assert there.load(folder / "mine.json") == 1
        assert there.find(QUESTION, ("a",)) == "a"


# the kernel library ---------------------------------------------------------------------------


def test_a_program_asks_and_races_answer(monkeypatch: pytest.MonkeyPatch, folder: Path):
    with config.using(device="cpu"):  # f32 has one tile elsewhere
        x, y = jnp.ones((96, 200)), jnp.ones((200, 64))
    raced = []

    def first_is_slowest(candidates: dict[str, Callable[[], Callable[[], None]]]) -> Ranking:
        for prepare in candidates.values():
            prepare()()
        raced.append(tuple(candidates))
        return Ranking({name: 1.0 - n for n, name in enumerate(candidates)})

    monkeypatch.setattr(tune, "race", first_is_slowest)
    product = xcube.jit(lambda x, y: x @ y)
    with config.using(autotune="all"):
        np.testing.assert_allclose(product(x, y), 200.0)
        xcube.jit(lambda x, y: x @ y + 1.0)(x, y)
    assert len(raced) == 1
    assert len(raced[0]) > 1
    for setting in ("kernels", "off"):
        with config.using(autotune=setting):
            xcube.jit(lambda x, y: x @ y + 2.0)(x, y)
    assert len(raced) == 1
