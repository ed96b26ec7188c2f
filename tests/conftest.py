"""Golden texts: `golden("cube/axpy.txt", text)` compares, `pytest --update-golden` rewrites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the files of tests/golden"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the golden file of that name, or rewrite the file under the flag."""
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        path = _FOLDER / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
        assert path.is_file(), f"tests/golden/{name} is missing: run pytest --update-golden"
        assert text.rstrip("\n") + "\n" == path.read_text(encoding="utf-8"), (
            f"tests/golden/{name} differs: review, then run pytest --update-golden"
        )

    return compare
