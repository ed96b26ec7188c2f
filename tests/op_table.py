"""One row per operation: how to call it, on what samples, and an independent oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Sample = Callable[[np.random.Generator], tuple[Any, ...]]


@dataclass(frozen=True)
class Row:
    """`function(*args)` must equal `oracle(*args)` on every sample.

    `samples`: makers of positional NumPy arguments. `oracle`: NumPy/SciPy values in float64 (or a
    tuple of arrays for several results); None where another law fixes the value. `differentiable`:
    positions of arguments whose derivative is tested against finite differences (on samples
    whose arguments are float); `order`: how often to differentiate. `batchable`: whether the
    vmap law runs. Tolerances are relative to the largest magnitude of the expected value.
    """

    name: str
    function: Callable[..., Any]
    samples: Sequence[Sample]
    oracle: Callable[..., Any] | None = None
    rtol: float = 2e-6
    atol: float = 1e-6
    differentiable: tuple[int, ...] = ()
    order: int = 2
    batchable: bool = True
    batch_arguments: tuple[int, ...] | None = None
    tags: frozenset[str] = field(default_factory=frozenset)
