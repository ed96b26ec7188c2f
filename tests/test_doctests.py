"""Every example in a docstring of the package, in the README and in ARCHITECTURE.md runs and prints
what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import xcube

PROJECT = Path(xcube.__file__).parents[1]
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def modules() -> list[str]:
    found = pkgutil.walk_packages(xcube.__path__, prefix="xcube.")
    return ["xcube", *(info.name for info in found if not info.name.endswith("__main__"))]


@pytest.mark.parametrize("name", modules())
def test_docstrings(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert outcome.failed == 0


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md"])
def test_documents(name: str) -> None:
    outcome = doctest.testfile(str(PROJECT / name), module_relative=False, optionflags=OPTIONS)
    assert outcome.failed == 0
