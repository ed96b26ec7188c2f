"""The curve of a training as a picture. Needs matplotlib, of the extra `train`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from xcube.demo.model import Config
from xcube.demo.progress import count
from xcube.demo.training import History


def save(path: Path, config: Config, history: History, validation: float) -> None:
    """Write the curve to a picture."""
    draw(config, history, validation).savefig(path, dpi=150)


def draw(config: Config, history: History, validation: float) -> Figure:
    """The loss of each step, its running mean where there are steps enough, and the validation
    loss, on axes that follow the losses."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    steps = np.arange(1, len(history.losses) + 1)
    window = len(steps) // 50
    if window > 1:
        mean = np.convolve(history.losses, np.ones(window) / window, mode="valid")
        axes.plot(steps, history.losses, color="0.8", label="each step")
        axes.plot(steps[window - 1 :], mean, label=f"mean of {window} steps")
    else:
        axes.plot(steps, history.losses, marker=".")
    axes.axhline(validation, color="0.3", linestyle="--", label="validation")
    axes.set(xlabel="step", ylabel="loss (nats per byte)", title=title(config, history, validation))
    if window > 1:
        axes.legend()
    return figure


def title(config: Config, history: History, validation: float) -> str:
    """How long what was trained, and where it ended.

    >>> print(title(Config(), History(losses=[5.5]), 5.25))
    1 step of 8 x 64 bytes; 2 layers of 128 features
    validation loss (dashed) 5.250
    """
    return (
        f"{count(len(history.losses), 'step')} of {config.batch} x {config.length} bytes; "
        f"{count(config.layers, 'layer')} of {config.features} features\n"
        f"validation loss (dashed) {validation:.3f}"
    )
