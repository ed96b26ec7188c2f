"""The text that the demo learns: the standard library of the running interpreter, as bytes, split
into train and validation by file. The same sources give the same split."""

from __future__ import annotations

import sysconfig
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_VALIDATION_SHARE = 10  # one file in so many
_BOUNDARY = b"\n\n\n"


class CorpusError(Exception):
    """There is no text to learn, or too little."""


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on, bytes to validate on, and where they come from."""

    train: np.ndarray
    validation: np.ndarray
    files: int
    folder: Path


def load(folder: Path | None = None, least: int = 0) -> Corpus:
    """The Python files directly in a folder, by default that of the standard library.

    `least`: how many bytes both parts must have. Raises CorpusError if they do not, or if there is
    no such folder.
    """
    folder = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    if not folder.is_dir():
        raise CorpusError(f"there is no folder {folder}. Name another with --data.")
    paths = sorted(folder.glob("*.py"), key=lambda path: path.name)
    held_out = [path for path in paths if _is_validation(path)]
    train = _joined([path for path in paths if not _is_validation(path)])
    validation = _joined(held_out)
    if min(train.size, validation.size) < least:
        raise CorpusError(
            f"{folder} must hold Python files, at least {least} bytes for training and as "
            f"many for validation; got {len(paths)} files with {train.size} and "
            f"{validation.size}. Name another folder with --data."
        )
    return Corpus(train, validation, len(paths), folder)


def _is_validation(path: Path) -> bool:
    return zlib.crc32(path.name.encode()) % _VALIDATION_SHARE == 0


def _joined(paths: Sequence[Path]) -> np.ndarray:
    return np.frombuffer(_BOUNDARY.join(path.read_bytes() for path in paths), np.uint8)


def windows(text: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """Pieces of a text that begin at `starts`: i32[len(starts), length]."""
    return np.lib.stride_tricks.sliding_window_view(text, length)[starts].astype(np.int32)


def random_windows(
    text: np.ndarray, count: int, length: int, generator: np.random.Generator
) -> np.ndarray:
    """Pieces of a text from random places: i32[count, length]."""
    return windows(text, generator.integers(0, text.size - length + 1, count), length)


def even_windows(text: np.ndarray, count: int, length: int) -> np.ndarray:
    """Pieces of a text from places evenly spread: i32[count, length]."""
    return windows(text, np.linspace(0, text.size - length, count).astype(int), length)
