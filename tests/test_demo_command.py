"""What the demo's command prints and draws, and how it says what is wrong."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from xcube import config as settings
from xcube import demo, tree
from xcube.demo import command

TINY = demo.Config(features=16, heads=2, layers=1, length=16, batch=8, steps=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(30):
        (tmp_path / f"module_{number}.py").write_text("def function(x):\n    return x\n\n" * 20)
    return tmp_path


def run(folder: Path, *options: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(["--data", str(folder), "--sample", "20", *options]), TINY)


def test_the_report_says_what_before_how_it_went(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = settings.current.device
    assert run(folder, "--steps", "1", "--device", "cpu") == 0
    assert settings.current.device == before
    printed = capsys.readouterr().out
    labels = [line.split()[0] for line in printed.splitlines() if line[:1].isalpha()]
    order = ["corpus", "model", "device", "training", "trained", "compiled", "loss", "sample"]
    assert labels[: len(order)] == order
    count = sum(leaf.size for leaf in tree.leaves(demo.make_state(TINY).model))
    assert f"model     {count:,} parameters, 1 layer of 16 features\n" in printed
    assert "trained   1 step in" in printed
    assert "1 step; loss is the mean of the last 20\n" in printed
    assert f"sample    20 bytes after 'def '\n{'-' * 60}\ndef " in printed


NO_DEVICE = (
    "xcube demo: --device: device: must be 'cpu', 'cuda' or 'cuda:0' and so on; got 'abacus'.\n"
)


@pytest.mark.parametrize(
    ("written", "encoding", "shown"),
    [
        (b"def f(x): \n  y\t\n \n", "utf-8", "def f(x):\n  y"),
        (b"a\xff\xc3b", "utf-8", "a??b"),
        ("é\x1b[2J\x00".encode(), "utf-8", "é?[2J?"),
        ("é".encode(), "ascii", "?"),
        (b"a", None, "a"),
    ],
)
def test_samples_are_legible(written: bytes, encoding: str | None, shown: str) -> None:
    assert command.legible(written, encoding) == shown


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("missing", [], "xcube demo: there is no folder {}. Name another with --data.\n"),
        ("", ["--device", "abacus"], NO_DEVICE),
    ],
)
def test_errors_say_what_is_wrong_once(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    data: str,
    options: list[str],
    message: str,
) -> None:
    assert run(tmp_path / data, *options) == 2
    assert capsys.readouterr().err == message.format(tmp_path / data)


def test_an_empty_folder_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 2
    assert capsys.readouterr().err.startswith(f"xcube demo: {tmp_path} must hold Python files")


def test_a_short_curve_is_drawn_as_it_is() -> None:
    pytest.importorskip("matplotlib")
    from xcube.demo import plot

    axes = plot.draw(TINY, demo.History(losses=[5.5, 5.4, 5.3]), 5.35).axes[0]
    assert len(axes.lines) == 2  # the losses, the validation loss
    assert axes.get_legend() is None
    assert axes.get_ylim()[0] > 5.0
    assert axes.get_title().startswith("3 steps of 8 x 16 bytes; 1 layer of 16 features")


def test_a_long_curve_has_its_running_mean() -> None:
    pytest.importorskip("matplotlib")
    from xcube.demo import plot

    losses = np.linspace(5.0, 2.0, 200)
    axes = plot.draw(TINY, demo.History(losses=list(losses)), 2.5).axes[0]
    each, mean, _ = axes.lines
    np.testing.assert_allclose(each.get_ydata(), losses)
    np.testing.assert_allclose(mean.get_ydata()[0], losses[:4].mean())
    assert mean.get_xdata()[0] == 4
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "each step",
        "mean of 4 steps",
        "validation",
    ]
