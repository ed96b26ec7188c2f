"""What can go wrong in a checked program: the categories of errors, each an exception, and sites,
the places in a program where one of them can arise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xcube import tree
from xcube.errors import XcubeError
from xcube.ir import Source

# exceptions -----------------------------------------------------------------------------------


class JaxRuntimeError(ValueError):
    """A check failed; its cause is the error of the check's category."""


class CheckError(XcubeError):
    """Base of the categories of errors. The class names a category, an instance is one error."""


class FailedCheckError(CheckError):
    """A `check` of the user's failed."""


class NaNError(CheckError):
    """An operation gave a NaN."""


class DivisionByZeroError(CheckError):
    """A divisor was zero."""


class OOBError(CheckError):
    """An index was out of bounds."""


class BatchedError(CheckError):
    """Errors of several examples of a batch, by their index."""

    def __init__(self, error_mapping: Mapping[tuple[int, ...], CheckError]) -> None:
        self.error_mapping = dict(error_mapping)
        super().__init__(
            "\n".join(
                f"at mapped index {', '.join(map(str, index))}: {error}"
                for index, error in self.error_mapping.items()
            )
        )


ErrorCategory = type[CheckError]
Errors = frozenset[ErrorCategory]

user_checks: Errors = frozenset({FailedCheckError})
nan_checks: Errors = frozenset({NaNError})
index_checks: Errors = frozenset({OOBError})
div_checks: Errors = frozenset({DivisionByZeroError})
float_checks: Errors = nan_checks | div_checks
automatic_checks: Errors = float_checks | index_checks
all_checks: Errors = automatic_checks | user_checks

# sites ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    """A place in a program where something can go wrong. `text` is a format for the values of the
    payload, whose leaves `treedef` makes (args, kwargs) of. `debug`: it counts under checkify
    only."""

    category: ErrorCategory
    text: str
    treedef: tree.TreeDef
    source: Source | None = None
    debug: bool = False

    @property
    def count(self) -> int:
        """How many arrays the payload has."""
        return self.treedef.num_leaves

    def error(self, payload: Sequence[Any]) -> CheckError:
        """The error of this site."""
        args, kwargs = tree.unflatten(self.treedef, payload)
        where = f" At {self.source}." if self.source else ""
        return self.category(f"{self.text.format(*args, **kwargs)}{where}")


NO_PAYLOAD = tree.structure(((), {}))
