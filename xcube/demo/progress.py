"""How training shows where it is: a bar where tqdm is installed and someone watches, else lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from xcube.demo.model import Config
from xcube.demo.training import History

try:
    from tqdm import tqdm
except ImportError:  # the extra `train` is not installed
    tqdm = None

Report = Callable[[History], None]

_LINES = 20

WINDOW = 20
"""The loss that is shown is the mean of so many last steps."""


@contextmanager
def progress(config: Config, output: TextIO | None = None) -> Iterator[Report]:
    """A function to call after each step, which shows loss, speed and the time that is left."""
    stream = sys.stderr if output is None else output
    if tqdm is None or not stream.isatty():
        yield lambda history: _line(config, history, stream)
        return
    with tqdm(total=config.steps, desc="training", unit="step", file=stream) as bar:

        def report(history: History) -> None:
            rate = history.tokens_per_second(config)
            bar.set_postfix_str(f"{shown(history)}, {rate:,.0f} tokens/s", False)
            bar.update()

        yield report


def _line(config: Config, history: History, stream: TextIO) -> None:
    done = len(history.losses)
    if done % max(1, config.steps // _LINES) and done not in (1, config.steps):
        return
    left = "" if done == 1 else f"  {clock(_seconds_left(config, history))} left"
    rate = history.tokens_per_second(config)
    speed = "" if done == 1 else f"  {rate:,.0f} tokens/s"
    line = f"step {done:>5}/{config.steps}  {shown(history)}{speed}{left}"
    print(line, file=stream, flush=True)


def _seconds_left(config: Config, history: History) -> float:
    done = len(history.losses)
    return history.seconds / (done - 1) * (config.steps - done)


def shown(history: History) -> str:
    """The loss that stands for the last steps.

    >>> shown(History(losses=[4.0, 2.0]))
    'loss 3.000'
    """
    return f"loss {smoothed(history.losses):.3f}"


def smoothed(losses: list[float], window: int = WINDOW) -> float:
    """The mean of the last losses."""
    return sum(losses[-window:]) / len(losses[-window:])


def clock(seconds: float) -> str:
    """Minutes and seconds.

    >>> clock(75.2)
    '1:15'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def count(number: int, noun: str) -> str:
    """So many of a thing.

    >>> count(1, "step"), count(1500, "step")
    ('1 step', '1,500 steps')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"
