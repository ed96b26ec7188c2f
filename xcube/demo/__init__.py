"""The demo: a small transformer learns the sources of the standard library in about a minute."""

from __future__ import annotations

from xcube.demo.corpus import Corpus, CorpusError, load
from xcube.demo.model import Config, Transformer, loss
from xcube.demo.training import (
    History,
    State,
    make_optimizer,
    make_state,
    make_train_step,
    sample,
    train,
    validate,
)

__all__ = [
    "Config",
    "Corpus",
    "CorpusError",
    "History",
    "State",
    "Transformer",
    "load",
    "loss",
    "make_optimizer",
    "make_state",
    "make_train_step",
    "sample",
    "train",
    "validate",
]
