"""`python -m xcube demo`: train the demo's model on the standard library and show what it says."""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from xcube import config as settings
from xcube import tree
from xcube.demo import corpus
from xcube.demo.model import Config
from xcube.demo.progress import WINDOW, clock, count, progress, smoothed
from xcube.demo.training import History, make_state, sample, stop_on_interrupt, train, validate
from xcube.errors import DeviceError
from xcube.lowering.device import default_device, device
from xcube.transforms.jit import eval_shape

_PROMPT = b"def "
_RULE = "-" * 60
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
    with settings.using(device=_device(arguments.device)):
        text = corpus.load(arguments.data, least=config.length + 1)
        _announce(config, text)
        with stop_on_interrupt() as stop, progress(config) as report:
            state, history = train(config, text.train, report, stop)
        if not history.losses:
            print("xcube demo: interrupted before the first step", file=sys.stderr)
            return _INTERRUPTED
        validation = validate(config, state.model, text.validation)
        _summarise(config, history, validation)
        if save_plot is not None:
            save_plot(arguments.plot, config, history, validation)
            _say("plot", str(arguments.plot))
        if arguments.sample:
            written = sample(config, state.model, _PROMPT, arguments.sample)
            _say("sample", f"{count(arguments.sample, 'byte')} after {_PROMPT.decode()!r}")
            print(f"{_RULE}\n{legible(written, sys.stdout.encoding)}")
    return _INTERRUPTED if history.interrupted else 0


def _device(name: str) -> str:
    """The setting `device` that the option asks for."""
    if not name:
        return settings.current.device
    try:
        return device(name).name
    except DeviceError as error:
        raise _UsageError(f"--device: {error}") from None


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


def _announce(config: Config, text: corpus.Corpus) -> None:
    """What is about to be trained, on what and where."""
    model = eval_shape(lambda: make_state(config).model)
    size = sum(math.prod(leaf.shape) for leaf in tree.leaves(model))
    layers = count(config.layers, "layer")
    _say("corpus", f"{count(text.files, 'file')} of {text.folder}")
    _say("", f"{text.train.size:,} bytes to train on, {text.validation.size:,} to validate on")
    _say("model", f"{size:,} parameters, {layers} of {config.features} features")
    _say("device", default_device().name)
    _say("training", f"{count(config.steps, 'step')}; loss is the mean of the last {WINDOW}")


def _summarise(config: Config, history: History, validation: float) -> None:
    done = len(history.losses)
    ending = f" of {config.steps:,}, interrupted" if history.interrupted else ""
    took = clock(history.first_seconds + history.seconds)
    _say("trained", f"{count(done, 'step')}{ending} in {took}")
    if done > 1:
        _say("speed", f"{history.tokens_per_second(config):,.0f} tokens/s")
    _say("compiled", f"in {history.first_seconds:.1f} s, the first step included")
    mean = f" (mean of the last {min(done, WINDOW)} steps)" if done > 1 else ""
    _say("loss", f"{smoothed(history.losses):.3f} nats per byte{mean}")
    _say("", f"{validation:.3f} in validation, on files that it has not seen")


def legible(written: bytes, encoding: str | None = None) -> str:
    r"""A sample as a text for a terminal of that encoding: what is no character of it, or would
    steer the terminal, is `?`; lines and the text end where their words do.

    >>> legible(b"def f(x):  \n    \xff\x1b[1m \n \n")
    'def f(x):\n    ??[1m'
    """
    encoding = encoding or "utf-8"
    text = written.decode("utf-8", errors="replace").replace("\N{REPLACEMENT CHARACTER}", "?")
    text = text.encode(encoding, errors="replace").decode(encoding)
    text = "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip()


def _say(label: str, text: str) -> None:
    print(f"{label:<10}{text}", flush=True)
