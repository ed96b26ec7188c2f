"""`python -m xcube demo`: train the demo's model on the standard library and show what it says."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from xcube import config as settings
from xcube import runtime, tree
from xcube.demo import corpus
from xcube.demo.model import Config
from xcube.demo.progress import clock, progress, smoothed
from xcube.demo.training import History, State, sample, stop_on_interrupt, train, validate
from xcube.errors import DeviceError
from xcube.lowering.device import default_device

_PROMPT = b"def "
_INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended


class _UsageError(Exception):
    """What was asked cannot be done; the text says why and what can."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    defaults = Config()
    parser.add_argument(
        "--steps", type=_positive, default=defaults.steps, help="training steps (%(default)s)"
    )
    parser.add_argument(
        "--seed",
        type=_natural,
        default=defaults.seed,
        help="of parameters and batches (%(default)s)",
    )
    parser.add_argument("--device", default="", help="where to train, such as cpu")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the loss curve as picture")
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="of *.py files (the standard library)"
    )
    parser.add_argument(
        "--sample", type=_natural, default=300, metavar="BYTES", help="to write (%(default)s)"
    )
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    return _at_least(text, 1)


def _natural(text: str) -> int:
    return _at_least(text, 0)


def _at_least(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer; got {text!r}") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}; got {number}")
    return number


def run(arguments: argparse.Namespace, config: Config | None = None) -> int:
    """Run the command; gives the exit code."""
    config = replace(config or Config(), steps=arguments.steps, seed=arguments.seed)
    try:
        return _run(arguments, config)
    except (_UsageError, corpus.CorpusError, DeviceError) as error:
        print(f"xcube demo: {error}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace, config: Config) -> int:
    save_plot = _plotter(arguments.plot)
    if arguments.device:
        runtime.devices(arguments.device)  # raises DeviceError if there is none
        settings.update("device", arguments.device)
    text = corpus.load(arguments.data, least=config.length + 1)
    _say("corpus", f"{text.files} files of {text.folder}")
    _say("", f"{text.train.size:,} bytes to train on, {text.validation.size:,} to validate on")
    _say("device", default_device().name)
    with stop_on_interrupt() as stop, progress(config) as report:
        state, history = train(config, text.train, report, stop)
    if not history.losses:
        print("xcube demo: interrupted before the first step", file=sys.stderr)
        return _INTERRUPTED
    validation = validate(config, state.model, text.validation)
    _summarise(config, state, history, validation)
    if save_plot is not None:
        save_plot(arguments.plot, history, validation)
        _say("plot", str(arguments.plot))
    if arguments.sample:
        written = sample(config, state.model, _PROMPT, arguments.sample)
        print(f"\n{written.decode('utf-8', errors='replace')}")
    return _INTERRUPTED if history.interrupted else 0


def _plotter(path: Path | None) -> Callable[..., Any] | None:
    """The function that draws, found before training rather than after it."""
    if path is None:
        return None
    if not path.absolute().parent.is_dir():
        raise _UsageError(f"--plot: there is no folder {path.absolute().parent}")
    try:
        return importlib.import_module("xcube.demo.plot").save
    except ImportError as error:
        raise _UsageError(
            f"--plot needs matplotlib ({error}). Install it with: pip install 'xcube[train]'"
        ) from error


def _summarise(config: Config, state: State, history: History, validation: float) -> None:
    done = len(history.losses)
    count = sum(leaf.size for leaf in tree.leaves(state.model))
    ending = f" of {config.steps}, interrupted" if history.interrupted else ""
    _say("model", f"{count:,} parameters, {config.layers} layers of {config.features} features")
    _say("trained", f"{done} steps{ending} in {clock(history.first_seconds + history.seconds)}")
    if done > 1:
        _say("speed", f"{history.tokens_per_second(config):,.0f} tokens/s")
    _say("compiled", f"in {history.first_seconds:.1f} s, the first step included")
    _say("loss", f"{smoothed(history.losses):.3f} nats per byte, validation {validation:.3f}")


def _say(label: str, text: str) -> None:
    print(f"{label:<10}{text}", flush=True)
