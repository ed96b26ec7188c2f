"""The demo's train step in one library and one fresh process: how long until the first step is
done, how long a step takes, how much memory it needs. Prints one JSON object.

Run: python benchmarks/step.py xcube|jax CACHE_FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import xcube
from xcube import demo

STEPS = 30
Setup = tuple[Callable[..., Any], Any, Callable[[Any, Any], int]]


def setup_xcube(config: demo.Config, cache: str) -> Setup:
    """The step, its state, and the bytes that it plans to use."""
    xcube.config.update("cache", cache)

    def planned(state: Any, windows: Any) -> int:
        program = xcube.inspect(step)(state, windows).program
        inputs = [var.aval.nbytes for var in program.jaxpr.inputs]
        fresh = sum(program.output_nbytes) - sum(inputs[n] for n in program.donated.values())
        return sum(inputs) + fresh + program.arena_nbytes

    step = demo.make_train_step(config)
    return step, demo.make_state(config), planned


def setup_jax(config: demo.Config, cache: str) -> Setup:
    import demo_jax
    import jax

    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    def planned(state: Any, windows: Any) -> int:
        found = step.lower(state, windows).compile().memory_analysis()
        fresh = found.output_size_in_bytes - found.alias_size_in_bytes
        return found.argument_size_in_bytes + fresh + found.temp_size_in_bytes

    leaves = [np.asarray(leaf) for leaf in xcube.tree.leaves(demo.make_state(config).model)]
    parameters = demo_jax.parameters(config, leaves)
    step = demo_jax.make_train_step(config)
    return step, (parameters, demo_jax.make_optimizer(config).init(parameters)), planned


def resident(field: str) -> int:
    """Bytes of this process that are in memory (VmRSS), or were at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def measure(library: str, cache: str) -> dict[str, Any]:
    config = demo.Config()
    generator = np.random.default_rng(0)
    shape = (STEPS + 1, config.batch, config.length + 1)
    batches = generator.integers(0, config.vocabulary, shape, np.int32)
    setup = setup_xcube if library == "xcube" else setup_jax
    step, state, planned = setup(config, cache)
    losses, seconds = [], []
    for number, windows in enumerate(batches):
        if number == 2:
            forget_peak()
        start = time.perf_counter()
        state, value = step(state, windows)
        losses.append(float(value))
        seconds.append(time.perf_counter() - start)
    steady = sorted(seconds[2:])[len(seconds) // 10]
    return {
        "compile": seconds[0] - steady,
        "step": steady,
        "losses": losses,
        "peak": resident("VmHWM"),
        "planned": planned(state, batches[0]),
        "threads": len(os.sched_getaffinity(0)),
    }


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:3])))
