"""The demo: it learns, validates, writes, ends cleanly on Ctrl-C, and refuses what it cannot do."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from xcube import demo, tree
from xcube.__main__ import main
from xcube.demo import command
from xcube.demo import corpus as corpora
from xcube.demo.progress import clock, progress, smoothed
from xcube.demo.training import stop_on_interrupt

TINY = demo.Config(features=16, heads=2, layers=1, length=16, batch=8, steps=60, learning_rate=1e-2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(30):
        lines = [f"def function_{number}_{k}(x):\n    return x + {k}\n\n" for k in range(20)]
        (tmp_path / f"module_{number}.py").write_text("".join(lines))
    return tmp_path


def test_the_split_is_by_file_and_repeatable(folder: Path) -> None:
    first, second = demo.load(folder), demo.load(folder)
    np.testing.assert_array_equal(first.train, second.train)
    assert first.files == 30
    assert 0 < first.validation.size < first.train.size
    held_out = first.validation.tobytes().split(b"\n\n\n")
    assert all(part not in first.train.tobytes() for part in held_out if b"_0(" in part)


def test_windows_are_pieces_of_the_text() -> None:
    text = np.arange(100, dtype=np.uint8)
    pieces = corpora.random_windows(text, 50, 10, np.random.default_rng(0))
    assert pieces.dtype == np.int32
    np.testing.assert_array_equal(np.diff(pieces), 1)
    even = corpora.even_windows(text, 3, 10)
    np.testing.assert_array_equal(even[:, 0], [0, 45, 90])


def test_the_standard_library_is_there() -> None:
    text = demo.load(least=10_000)
    assert text.train.size > 1_000_000


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(demo.CorpusError, match="must hold Python files, at least 10 bytes"):
        demo.load(tmp_path, least=10)


def test_the_loss_starts_at_chance_and_falls(folder: Path) -> None:
    text = demo.load(folder)
    state, history = demo.train(TINY, text.train)
    assert len(history.losses) == TINY.steps
    assert abs(history.losses[0] - np.log(256)) < 0.7
    assert smoothed(history.losses) < 3.0
    assert demo.validate(TINY, state.model, text.validation, 2) < 3.2


def test_training_is_repeatable(folder: Path) -> None:
    text, short = demo.load(folder), replace(TINY, steps=5)
    assert demo.train(short, text.train)[1].losses == demo.train(short, text.train)[1].losses
    other = demo.train(replace(short, seed=1), text.train)[1].losses
    assert other != demo.train(short, text.train)[1].losses


def test_a_step_is_the_gradient_step_that_it_says(folder: Path) -> None:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    config = replace(TINY, steps=10)
    state, step = demo.make_state(config), demo.make_train_step(config)
    windows = corpora.even_windows(demo.load(folder).train, config.batch, config.length + 1)
    leaves = [np.array(leaf) for leaf in tree.leaves(state.model)]
    treedef = tree.structure(state.model)
    _, gradients = value_and_gradient(state.model, windows)
    first = [np.asarray(g) for g in gradients]
    rate = optax.warmup_cosine_decay_schedule(0.0, config.learning_rate, 1, config.steps)
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.adamw(rate, b2=0.95, weight_decay=0.1, mask=lambda p: [x.ndim > 1 for x in p]),
    )
    theirs, inner = leaves, optimizer.init(leaves)
    for _ in range(2):
        updates, inner = optimizer.update(gradients, inner, theirs)
        theirs = optax.apply_updates(theirs, updates)
        state, _ = step(state, windows)
        _, gradients = value_and_gradient(
            tree.unflatten(treedef, [np.asarray(leaf) for leaf in theirs]), windows
        )
    for ours, expected, slope in zip(tree.leaves(state.model), theirs, first, strict=True):
        known = np.abs(slope) > 1e-6  # Adam makes whole steps of what rounding leaves of a zero
        difference = np.asarray(ours) - np.asarray(expected)
        assert np.abs(difference[known]).max(initial=0) < 2e-4
    assert sum((np.abs(slope) > 1e-6).sum() for slope in first) > 1000
    assert jax is not None


def value_and_gradient(model: demo.Transformer, windows: np.ndarray) -> tuple[float, list]:
    from xcube.transforms.grad import value_and_grad

    value, gradient = value_and_grad(demo.loss)(model, windows)
    return float(value), [np.asarray(leaf) for leaf in tree.leaves(gradient)]


def test_the_state_given_to_a_step_is_donated(folder: Path) -> None:
    state, step = demo.make_state(TINY), demo.make_train_step(TINY)
    windows = corpora.even_windows(demo.load(folder).train, TINY.batch, TINY.length + 1)
    step(state, windows)
    assert all(leaf.is_deleted() for leaf in tree.leaves(state.model))


def test_samples_begin_with_the_prompt_and_pass_the_window() -> None:
    model = demo.make_state(TINY).model
    text = demo.sample(TINY, model, b"def ", TINY.length + 5)
    assert text.startswith(b"def ")
    assert len(text) == 4 + TINY.length + 5
    assert text == demo.sample(TINY, model, b"def ", TINY.length + 5)


# interruption ---------------------------------------------------------------------------------


def test_the_first_interrupt_is_noted_and_the_second_raises() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            signal.sigtimedwait([], 0.1)
    assert signal.getsignal(signal.SIGINT) is before


def test_training_ends_with_what_was_reached(folder: Path) -> None:
    text, calls = demo.load(folder), []
    state, history = demo.train(
        TINY, text.train, lambda history: calls.append(1), lambda: len(calls) == 3
    )
    assert history.interrupted
    assert len(history.losses) == 3
    assert np.isfinite(demo.validate(TINY, state.model, text.validation, 1))


def test_the_command_reports_what_was_reached(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupting(config: demo.Config) -> object:
        return progress_with(
            lambda done: os.kill(os.getpid(), signal.SIGINT) if done == 4 else None
        )

    monkeypatch.setattr(command, "progress", interrupting)
    assert run_tiny(folder, "--steps", "50") == 130
    printed = capsys.readouterr().out
    assert "trained   4 steps of 50, interrupted" in printed
    assert "validation" in printed
    assert "def " in printed


def progress_with(on_step: object) -> object:
    from contextlib import nullcontext

    return nullcontext(lambda history: on_step(len(history.losses)))


def run_tiny(folder: Path, *options: str) -> int:
    parser = command.argparse.ArgumentParser()
    command.add_arguments(parser)
    arguments = parser.parse_args(["--data", str(folder), "--sample", "20", *options])
    return command.run(arguments, TINY)


# the command ----------------------------------------------------------------------------------


def test_the_command_trains_and_writes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tiny(folder, "--steps", "8", "--seed", "3") == 0
    printed = capsys.readouterr()
    assert "trained   8 steps in" in printed.out
    assert "step     8/8" in printed.err
    assert "\ndef " in printed.out


def test_the_plot_is_written(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "curve.png"
    assert run_tiny(folder, "--steps", "3", "--plot", str(picture)) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_missing_matplotlib_is_said_before_training(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "xcube.demo.plot", raising=False)
    assert run_tiny(folder, "--plot", str(folder / "curve.png")) == 2
    assert "--plot needs matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plot", "/no/such/folder/curve.png"], "--plot: there is no folder"),
        (["--device", "abacus"], "abacus"),
    ],
)
def test_what_cannot_be_done_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    from xcube import config

    with config.using(device=config.current.device):
        assert run_tiny(folder, *options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "command"),
        (["dance"], "invalid choice"),
        (["demo", "--steps", "0"], "must be at least 1; got 0"),
        (["demo", "--steps", "many"], "must be an integer; got 'many'"),
        (["demo", "--sample", "-1"], "must be at least 0; got -1"),
    ],
)
def test_wrong_arguments_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_help_names_the_options() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "xcube", "demo", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    for option in ("--steps", "--seed", "--device", "--plot", "--data", "--sample"):
        assert option in shown.stdout


def test_progress_shows_loss_speed_and_time_left() -> None:
    stream, history = io.StringIO(), demo.History()
    with progress(replace(TINY, steps=4), stream) as report:
        for number in range(1, 5):
            history.losses.append(5.0 - number)
            history.seconds = number - 1.0
            report(history)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "step     1/4  loss 4.000"
    assert lines[2] == "step     3/4  loss 3.000  128 tokens/s  0:01 left"
    assert clock(3599.6) == "60:00"
