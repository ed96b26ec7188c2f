"""The curve of a training as a picture. Needs matplotlib, of the extra `train`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from xcube.demo.training import History


def save(path: Path, history: History, validation: float) -> None:
    """Write the loss of each step, its running mean and the validation loss to a picture."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    steps = np.arange(1, len(history.losses) + 1)
    window = max(1, len(steps) // 50)
    mean = np.convolve(history.losses, np.ones(window) / window, mode="valid")
    axes.plot(steps, history.losses, color="0.8", label="each step")
    axes.plot(steps[window - 1 :], mean, label=f"mean of {window}")
    axes.axhline(validation, color="0.3", linestyle="--", label=f"validation {validation:.3f}")
    axes.set(xlabel="step", ylabel="loss (nats per byte)", ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=150)
