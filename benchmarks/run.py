"""One table of xcube beside NumPy, PyTorch and JAX, whichever are installed, on the same threads of
this machine in one run: seconds per call (the fifth percentile of single calls taken in turn), how
much faster xcube is than the best of the others, and how near to the machine's limit, measured in
the same turns, it comes.

Run: python benchmarks/run.py [--threads N] [--only SECTIONS], sections with commas between:
kernels, memory, contraction, convolution, pooling, attention, fft, units, imports, step, loops; all
by default. The whole models: benchmarks/gpt2.py; a GPU: benchmarks/gpu.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LIBRARIES = ("xcube", "numpy", "torch", "jax")
FAMILIES = (
    *("kernels", "memory", "contraction", "convolution", "pooling", "attention", "fft", "units"),
)
SECTIONS = (*FAMILIES, "imports", "step", "loops")


def main() -> None:
    arguments = parse()
    print_header()
    for family in FAMILIES:
        if family in arguments.only:
            kernels(family, arguments.threads)
    if "imports" in arguments.only:
        imports(arguments.threads)
    if "step" in arguments.only:
        train_step(arguments.threads)
    if "loops" in arguments.only:
        loops(arguments.threads)


def parse() -> argparse.Namespace:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, default=cores, choices=range(1, cores + 1))
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=SECTIONS, metavar="SECTIONS"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.only) - set(SECTIONS):
        parser.error(f"--only: sections are {', '.join(SECTIONS)}; got {', '.join(unknown)}")
    return arguments


def python(threads: int, *command: str, cache: str | None = None) -> str:
    """Output of a fresh interpreter that has so many cores."""
    count = str(threads)
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "XCUBE_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, count), "PYTHONPATH": str(HERE.parent)}
    if cache is not None:
        environment["XCUBE_CACHE"] = cache
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    cores = sorted(os.sched_getaffinity(0))[-threads:]
    done = subprocess.run(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return done.stdout


# the table ------------------------------------------------------------------------------------


def print_header() -> None:
    columns = "".join(f"{name:>10}" for name in LIBRARIES)
    print(f"{'':<34}{columns}{'best/xcube':>12}{'of limit':>10}")


def print_row(name: str, figures: Mapping[str, float], unit: str = "s", limit: float = 0.0) -> None:
    """`limit`: the least that the machine allows."""
    columns = "".join(f"{show(figures.get(library), unit):>10}" for library in LIBRARIES)
    ours = figures.get("xcube")
    others = [value for library, value in figures.items() if library != "xcube"]
    ratio = f"{min(others) / ours:.2f}" if ours and others else ""
    share = f"{limit / ours:.2f}" if ours and limit else ""
    print(f"{name:<34}{columns}{ratio:>12}{share:>10}", flush=True)


def show(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "MB":
        return f"{value / 1e6:.1f} MB"
    for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.3g} {name}"
    return f"{value / 1e-9:.3g} ns"


# the sections ---------------------------------------------------------------------------------


def kernels(family: str, threads: int) -> None:
    """The rows of a family of kernels."""
    rows = json.loads(python(threads, str(HERE / "kernels.py"), family).splitlines()[-1])
    for row in rows:
        print_row(row["name"], row["seconds"], limit=row.get("limit", 0.0))
    for bound, unit in (("copy", "GB/s"), ("read", "GB/s"), ("flops", "Gflop/s")):
        if not (rates := [row["rate"] for row in rows if row.get("bound") == bound]):
            continue
        print(f"limit {bound}: {min(rates) / 1e9:.1f} to {max(rates) / 1e9:.1f} {unit}")


def installed(name: str) -> bool:
    return name == "xcube" or importlib.util.find_spec(name) is not None


def imports(threads: int, repeats: int = 7) -> None:
    for suffix in ("", ".numpy"):
        modules = {"xcube": f"xcube{suffix}", "jax": f"jax{suffix}"}
        if not suffix:
            modules |= {"numpy": "numpy", "torch": "torch"}
        seconds = {
            name: min(import_time(threads, module) for _ in range(repeats))
            for name, module in modules.items()
            if installed(name)
        }
        print_row(f"import {modules['xcube']}", seconds)


def import_time(threads: int, module: str) -> float:
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    return float(python(threads, "-c", code))


def train_step(threads: int) -> None:
    libraries = ["xcube", "jax"] if installed("jax") and installed("optax") else ["xcube"]
    cold, warm = {}, {}
    for name in libraries:
        with tempfile.TemporaryDirectory() as cache:
            command = (str(HERE / "step.py"), name, cache)
            cold[name], warm[name] = (
                json.loads(python(threads, *command).splitlines()[-1]) for _ in range(2)
            )
    print_row("demo step: trace + compile, cold", pick(cold, "compile"))
    print_row("demo step: the same, warm cache", pick(warm, "compile"))
    print_row("demo step: one step", pick(warm, "step"))
    print_row("demo step: planned memory", pick(warm, "planned"), "MB")
    print_row("demo step: peak of the process", pick(warm, "peak"), "MB")
    for name in libraries:
        first, last = cold[name]["losses"][0], cold[name]["losses"][-1]
        print(f"demo step: loss in {name} from {first:.5f} to {last:.5f}")


def loops(threads: int) -> None:
    """Each library in a process of its own, with an empty cache of kernels."""
    found = {}
    for name in ("xcube", "jax"):
        if installed(name):
            with tempfile.TemporaryDirectory() as cache:
                output = python(threads, str(HERE / "loops.py"), name, cache=cache)
            found[name] = json.loads(output.splitlines()[-1])
    for program in found["xcube"]:
        figures = {name: rows[program] for name, rows in found.items()}
        print_row(f"{program}: trace + compile", pick(figures, "first"))
        print_row(f"{program}: run", pick(figures, "step"))


def pick(figures: Mapping[str, Any], field: str) -> dict[str, float]:
    return {name: found[field] for name, found in figures.items()}


if __name__ == "__main__":
    main()
