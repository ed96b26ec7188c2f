"""What `import xcube` loads, and that its public names are what they seem."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import xcube

HEAVY = ("llvmlite", "jax", "torch", "scipy", "matplotlib", "pandas")
FIRST_USES = {
    "xcube.numpy": "import xcube.numpy as m; x = m.arange(3.0)",
    "xcube.lax": "import xcube.lax as m; import numpy as np; x = m.add(np.ones(3, 'f'), 1.0)",
    "xcube.random": "import xcube.random as m; x = m.normal(m.key(0), (3,))",
    "xcube.nn": "import xcube.nn as m; import numpy as np; x = m.relu(np.ones(3, 'f'))",
    "xcube.grad": "import xcube; x = xcube.grad(lambda x: x * x)(3.0)",
    "xcube.jit": "import xcube; x = xcube.jit(lambda x: x * x + 1)(3.0)",
    "xcube.vmap": "import numpy as np, xcube; x = xcube.vmap(lambda x: -x)(np.ones(3, 'f'))",
    "xcube.device_put": "import xcube; x = xcube.device_put(2.0)",
}


def python(code: str) -> str:
    """Output of a fresh interpreter in which warnings are errors."""
    command = [sys.executable, "-W", "error", "-c", code]
    root = str(Path(xcube.__file__).parents[1])
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["xcube", "xcube.numpy", "xcube.nn", "xcube.optim"])
def test_import_leaves_heavy_packages_alone(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    assert python(code) == "[]"


@pytest.mark.parametrize("first", FIRST_USES.values(), ids=FIRST_USES)
def test_arrays_compute_whichever_name_comes_first(first: str) -> None:
    assert python(f"{first}; print((x + x).dtype, (x[None] * 2).ndim == x.ndim + 1)") == (
        "float32 True"
    )


@pytest.mark.parametrize("name", dir(xcube))
def test_public_name_exists(name: str) -> None:
    assert getattr(xcube, name) is not None


def test_names_are_listed_before_they_are_loaded() -> None:
    assert python("import xcube; print(dir(xcube))") == str(dir(xcube))


def test_type_checkers_see_the_same_names() -> None:
    text = Path(xcube.__file__).read_text(encoding="utf-8")
    blocks = [node for node in ast.parse(text).body if isinstance(node, ast.If)]
    typed = {
        alias.asname: f"{node.module}.{alias.name}"
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {name: f"xcube.{home}.{name}" for name, home in xcube._NAMES.items()}
    homes |= {name: f"xcube.{name}" for name in xcube._MODULES}
    assert typed == homes


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'gard'"):
        _ = xcube.gard


def test_settings_take_jax_names() -> None:
    before = xcube.config.current.enable_x64
    xcube.config.update("jax_enable_x64", not before)
    assert xcube.config.current.enable_x64 is not before
    xcube.config.update("jax_enable_x64", before)
    assert xcube.config.current.enable_x64 is before
