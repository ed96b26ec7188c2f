"""Training of the demo's model: one jitted step that takes the state and gives the next one, the
loop around it, which ends early and cleanly on Ctrl-C, validation, and sampling."""

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from xcube import nn, optim, random, tree
from xcube.demo.corpus import even_windows, random_windows
from xcube.demo.model import Config, Transformer, loss
from xcube.transforms.grad import value_and_grad
from xcube.transforms.jit import jit


class State(NamedTuple):
    """What a step changes."""

    model: Transformer
    optimizer: Any


Step = Callable[[State, Any], tuple[State, Any]]


def make_optimizer(config: Config) -> optim.GradientTransformation:
    """AdamW on clipped gradients with warm-up and cosine decay; only matrices decay."""
    warmup = max(1, round(config.warmup * config.steps))
    rate = optim.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, warmup, max(config.steps, warmup + 1)
    )
    return optim.chain(
        optim.clip_by_global_norm(config.clip),
        optim.adamw(
            rate,
            b2=0.95,
            weight_decay=config.weight_decay,
            mask=lambda params: tree.map(lambda p: p.ndim > 1, params),
        ),
    )


def make_state(config: Config) -> State:
    """A model with random parameters and an optimizer that has seen nothing."""
    model = Transformer(config, key=random.key(config.seed))
    return State(model, make_optimizer(config).init(model))


def make_train_step(config: Config) -> Step:
    """(state, i32[batch, length + 1]) -> (state, loss): forward, backward and update in one jitted
    function. The state given is donated: its memory becomes the new one's."""
    optimizer = make_optimizer(config)

    @functools.partial(jit, donate_argnums=0)
    def train_step(state: State, windows: Any) -> tuple[State, Any]:
        value, gradients = value_and_grad(loss)(state.model, windows)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.model)
        return State(optim.apply_updates(state.model, updates), optimizer_state), value

    return train_step


# the loop -------------------------------------------------------------------------------------


@dataclass
class History:
    """What happened while training: the loss of each step, the seconds that the first one took,
    compilation included, and those of all others."""

    losses: list[float] = field(default_factory=list)
    first_seconds: float = 0.0
    seconds: float = 0.0
    interrupted: bool = False

    def tokens_per_second(self, config: Config) -> float:
        """Bytes learned per second, not counting the first step."""
        return (len(self.losses) - 1) * config.tokens_per_step / max(self.seconds, 1e-9)


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Inside, Ctrl-C does not raise: the function given says that it came. A second one raises."""
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came.is_set
        return
    before = signal.getsignal(signal.SIGINT)

    def on_interrupt(number: int, frame: Any) -> None:
        came.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield came.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def train(
    config: Config,
    text: np.ndarray,
    report: Callable[[History], None] = lambda history: None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[State, History]:
    """Train until all steps are done or `stop` says so. `report` is called after each step."""
    state, step, history = make_state(config), make_train_step(config), History()
    generator = np.random.default_rng(config.seed)
    for _ in range(config.steps):
        if stop():
            history.interrupted = True
            break
        windows = random_windows(text, config.batch, config.length + 1, generator)
        start = time.perf_counter()
        state, value = step(state, windows)
        history.losses.append(float(value))
        elapsed = time.perf_counter() - start
        if len(history.losses) == 1:
            history.first_seconds = elapsed
        else:
            history.seconds += elapsed
        report(history)
    return state, history


def validate(config: Config, model: Transformer, text: np.ndarray, batches: int = 16) -> float:
    """The mean loss on evenly spread pieces of a text."""
    pieces = even_windows(text, batches * config.batch, config.length + 1)
    parts = pieces.reshape(batches, config.batch, config.length + 1)
    return float(np.mean([float(_loss(model, part)) for part in parts]))


_loss = jit(loss)

# sampling -------------------------------------------------------------------------------------


def sample(
    config: Config, model: Transformer, prompt: bytes, count: int, temperature: float = 0.7
) -> bytes:
    """A text that begins with the prompt and goes on for `count` bytes."""
    text, key = bytearray(prompt), random.fold_in(random.key(config.seed), 1)
    for number in range(count):
        seen = text[-config.length :]
        window = np.zeros((1, config.length), np.int32)
        window[0, : len(seen)] = list(seen)
        step_key = random.fold_in(key, number)
        text.append(int(_next_byte(model, window, len(seen) - 1, step_key, temperature)))
    return bytes(text)


@jit
def _next_byte(model: Any, window: Any, last: Any, key: Any, temperature: Any) -> Any:
    scores = nn.log_softmax(model(window)[0])
    return random.categorical(key, scores[last] / temperature)
