"""The house rules that ARCHITECTURE.md states: which room may import which, where imports stand,
how long a file may be, that every primitive has its row in the tables of operations; and that texts
and the README name what is there."""

from __future__ import annotations

import argparse
import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import xcube
import xcube.primitives
from xcube import config
from xcube.demo import command
from xcube.ir import Jaxpr, Primitive, subjaxprs
from xcube.transforms.jit import make_jaxpr

ROOT = Path(xcube.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# A room may import those of its own floor and of the floors above it in this list.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("config", "errors", "flags", "scopes", "dtypes", "dlpack", "tree", "tree_util"),
    ("ir",),
    ("array", "trace"),
    ("primitives",),
    ("transforms", "lowering"),
    ("transforms.entry", "transforms.jit", "transforms.fwd_and_bwd", "stages", "eager"),
    ("ad_checkpoint", "numpy", "lax", "random", "operators", "runtime", "inspection"),
    ("cube", "flatten_util", "settings"),
    ("callbacks", "custom_batching", "custom_derivatives", "debug", "experimental", "export"),
    ("nn", "optim"),
    ("demo", "__main__"),
)

# Pairs (importer, imported) that the floors alone would allow.
CLOSED_DOORS = (
    ("transforms", "lowering"),
    ("lowering", "transforms"),
    ("lowering.cube", "ir"),
    ("lowering.cube", "primitives"),
    ("lowering.cube", "trace"),
    ("lowering.cube", "array"),
    ("lowering.emit", "ir"),
    ("lowering.emit", "lowering.device"),
    ("lowering.device", "lowering.kernels"),
    ("lowering.device", "ir"),
)

# Imports that must wait until a function runs, each with its reason.
LATE_IMPORTS = {
    ("lowering.device", "xcube.lowering.device.cpu"): "llvmlite is loaded with the first array",
    ("lowering.device", "xcube.lowering.device.cuda"): "a backend is loaded when it is asked for",
    ("lowering.device.cuda_driver", "cuda.bindings.driver"): "the extra `cuda`, with the first GPU",
    ("demo.command", "xcube.demo.plot"): "matplotlib is of the extra `train`",
}

IMPORTERS = ("__import__", "import_module", "importlib.import_module")

LIMIT = 600
LONG_FILES = {
    "lax.py": "one line per name",
    "numpy/elementwise.py": "one documented function per ufunc",
    "numpy/creation.py": "one documented function per name",
    "numpy/reductions.py": "one documented function per name",
    "numpy/statistics.py": "one documented function per name",
}


def name_of(path: Path) -> str:
    """Dotted name of a file inside the package, e.g. "lowering.cube"."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_inside(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


def floor_of(module: str) -> int:
    """Number of a module's floor, by the longest name that fits."""
    fits = [
        (len(room), number)
        for number, rooms in enumerate(FLOORS)
        for room in rooms
        if is_inside(module, room)
    ]
    assert fits, f"xcube.{module} stands on no floor: add it to FLOORS and to ARCHITECTURE.md"
    return max(fits)[1]


def imported_by(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Modules that a statement imports; `from xcube.a import b` may mean the module xcube.a.b."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, "imports are absolute"
    module = node.module or ""
    names = [f"{module}.{alias.name}" for alias in node.names]
    return [name if is_module(name) else module for name in names]


def is_module(name: str) -> bool:
    path = ROOT.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or path.joinpath("__init__.py").is_file()


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and target (without the package's name) of every import from the package."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for module in imported_by(node):
                if is_inside(module, "xcube") and module != "xcube":
                    yield node.lineno, module.removeprefix("xcube.")


def late_imports(path: Path) -> Iterator[str]:
    """Every module whose import stands in a function, as a statement or a call."""
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from imported_by(node)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in IMPORTERS:
                yield ast.literal_eval(node.args[0])


def rooms() -> list[Path]:
    """All files but the list of public names, which imports for type checkers only."""
    return [path for path in FILES if path != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", rooms(), ids=name_of)
def test_imports_point_to_lower_floors(path: Path) -> None:
    module = name_of(path)
    wrong = [
        f"{path.name}:{line} imports xcube.{target}"
        for line, target in imports(path)
        if floor_of(target) > floor_of(module)
    ]
    assert wrong == []


@pytest.mark.parametrize(("importer", "imported"), CLOSED_DOORS)
def test_doors_stay_closed(importer: str, imported: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports xcube.{target}"
        for path in rooms()
        if is_inside(name_of(path), importer) and floor_of(name_of(path)) == floor_of(importer)
        for line, target in imports(path)
        if is_inside(target, imported)
    ]
    assert wrong == []


def test_imports_stand_at_the_top_of_files() -> None:
    found = {(name_of(path), module) for path in rooms() for module in late_imports(path)}
    assert found == set(LATE_IMPORTS)


def test_files_are_short() -> None:
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in FILES
    }
    long = {file for file, length in lengths.items() if length > LIMIT}
    assert long - set(LONG_FILES) == set()
    assert set(LONG_FILES) <= long, "no longer long: drop the row"


def names_in_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every `xcube.…` in a text, be it a message or a docstring."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for match in re.finditer(r"\bxcube((?:\.[A-Za-z_]\w*)+)", node.value):
                yield node.lineno, match[1].removeprefix(".")


def exists(name: str) -> bool:
    """Whether the package has an attribute or a module of that dotted name."""
    value: object = xcube
    for part in name.split("."):
        home = getattr(value, "__name__", "")
        if not hasattr(value, part) and is_module(f"{home}.{part}"):
            importlib.import_module(f"{home}.{part}")
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


def test_texts_name_what_exists() -> None:
    assert exists("jit")
    assert not exists("jit_of_nothing")
    wrong = [
        f"{path.relative_to(ROOT)}:{line} names xcube.{name}"
        for path in FILES
        for line, name in names_in_texts(path)
        if not exists(name)
    ]
    assert wrong == []


def test_files_say_what_they_are() -> None:
    silent = [
        path.relative_to(ROOT).as_posix()
        for path in FILES
        if (text := path.read_text(encoding="utf-8")) and not ast.get_docstring(ast.parse(text))
    ]
    assert silent == []


def primitives_defined() -> dict[str, Primitive]:
    """Every primitive that a family's file defines, by name."""
    families = [
        importlib.import_module(f"xcube.primitives.{info.name}")
        for info in pkgutil.iter_modules(xcube.primitives.__path__)
    ]
    return {
        value.name: value
        for family in families
        for value in vars(family).values()
        if isinstance(value, Primitive)
    }


def primitives_of(jaxpr: Jaxpr) -> set[str]:
    names = {eqn.primitive.name for eqn in jaxpr.equations}
    return names.union(*(primitives_of(sub) for eqn in jaxpr.equations for sub in subjaxprs(eqn)))


# Primitives that run what users wrote, for which no oracle of arrays can stand: test_callbacks.py,
# test_cube_call.py.
USERS = {"pure_callback", "io_callback", "debug_callback", "launch"}


def test_every_primitive_has_a_row() -> None:
    tables = [importlib.import_module(path.stem) for path in Path(__file__).parent.glob("ops_*.py")]
    covered: set[str] = set()
    for row in (row for table in tables for row in table.ROWS):
        for sample in row.samples:
            arguments = sample(np.random.default_rng(0))
            covered |= primitives_of(make_jaxpr(row.function)(*arguments))
    assert set(primitives_defined()) - covered == USERS


# the README -----------------------------------------------------------------------------------

README = ROOT.parent.joinpath("README.md").read_text(encoding="utf-8")

# What the README says is not there yet. A name that comes into being leaves both lists.
MISSING = (
    *("profiler", "scipy"),
    *("random.gamma", "random.beta", "random.dirichlet", "random.poisson", "random.binomial"),
    "random.t",
)


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("name", MISSING)
def test_the_readme_names_what_is_missing(name: str) -> None:
    short = name.split(".")[-1]
    assert f"`{short}`" in section("Not there yet")
    assert not exists(name), f"xcube.{name} is there: take it out of MISSING and of the README"


def test_the_readme_names_every_setting() -> None:
    text = section("Settings")
    assert [name for name in config.NAMES if f"`XCUBE_{name.upper()}` | `{name}`" not in text] == []


def test_the_readme_names_every_option_of_the_demo() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    text = section("Start")
    options = [option for action in parser._actions for option in action.option_strings]
    assert len(options) > 5
    assert [option for option in options if f"| `{option} " not in text] == []
