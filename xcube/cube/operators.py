"""Python's operators for what stands for a number of a kernel, and what Python asks of numbers that
only known ones can answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from xcube.cube.state import fail
from xcube.errors import KernelError

INDEX = (  # what an index of Python's must be, and the way out
    "a Python int",
    "Use a comptime number, or cube.range; to read a table by it, pass the table as an argument of "
    "the kernel, or write cube.constants(table)[i].",
)


class Operators(ABC):
    """What has operators; subclasses say what they give."""

    __slots__ = ()

    @abstractmethod
    def operate(self, symbol: str, first: Any, second: Any) -> Any:
        """`first + second`, and all other operations of two."""

    @abstractmethod
    def changed(self, symbol: str) -> Any:
        """`-self`, and all other operations of one."""

    @abstractmethod
    def given(self) -> Any:
        """The number or value that this stands for."""

    @abstractmethod
    def known(self, what: str, way: str) -> Any:
        """The Python number that this is; an error that names `what` is asked, and the way out, if
        it is a run-time value."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    def __add__(self, other: Any) -> Any:
        return self.operate("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return self.operate("+", other, self)

    def __sub__(self, other: Any) -> Any:
        return self.operate("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self.operate("-", other, self)

    def __mul__(self, other: Any) -> Any:
        return self.operate("*", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self.operate("*", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self.operate("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.operate("/", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return self.operate("//", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self.operate("//", other, self)

    def __mod__(self, other: Any) -> Any:
        return self.operate("%", self, other)

    def __rmod__(self, other: Any) -> Any:
        return self.operate("%", other, self)

    def __divmod__(self, other: Any) -> Any:
        return self.operate("//", self, other), self.operate("%", self, other)

    def __rdivmod__(self, other: Any) -> Any:
        return self.operate("//", other, self), self.operate("%", other, self)

    def __pow__(self, other: Any) -> Any:
        return self.operate("**", self, other)

    def __rpow__(self, other: Any) -> Any:
        return self.operate("**", other, self)

    def __and__(self, other: Any) -> Any:
        return self.operate("&", self, other)

    def __rand__(self, other: Any) -> Any:
        return self.operate("&", other, self)

    def __or__(self, other: Any) -> Any:
        return self.operate("|", self, other)

    def __ror__(self, other: Any) -> Any:
        return self.operate("|", other, self)

    def __xor__(self, other: Any) -> Any:
        return self.operate("^", self, other)

    def __rxor__(self, other: Any) -> Any:
        return self.operate("^", other, self)

    def __lshift__(self, other: Any) -> Any:
        return self.operate("<<", self, other)

    def __rlshift__(self, other: Any) -> Any:
        return self.operate("<<", other, self)

    def __rshift__(self, other: Any) -> Any:
        return self.operate(">>", self, other)

    def __rrshift__(self, other: Any) -> Any:
        return self.operate(">>", other, self)

    def __lt__(self, other: Any) -> Any:
        return self.operate("<", self, other)

    def __le__(self, other: Any) -> Any:
        return self.operate("<=", self, other)

    def __gt__(self, other: Any) -> Any:
        return self.operate(">", self, other)

    def __ge__(self, other: Any) -> Any:
        return self.operate(">=", self, other)

    def __eq__(self, other: object) -> Any:
        return self.operate("==", self, other)

    def __ne__(self, other: object) -> Any:
        return self.operate("!=", self, other)

    def __neg__(self) -> Any:
        return self.changed("-")

    def __pos__(self) -> Any:
        return self.given()

    def __invert__(self) -> Any:
        return self.changed("~")

    def __abs__(self) -> Any:
        return self.changed("abs")

    def __round__(self, digits: int | None = None) -> Any:
        if digits is not None:
            fail(KernelError, "round: digits must not be given", f"{digits}", "Scale the number.")
        return self.changed("round")

    def __hash__(self) -> int:
        return hash(self.known("a key of a dict or set", "Use an array, or a comptime number."))

    def __bool__(self) -> bool:
        return bool(self.known("true or false", "Decorate the function with @cube.function."))

    def __index__(self) -> int:
        return int(self.known(*INDEX))

    def __int__(self) -> int:
        return int(self.known("a Python int", "Cast it: x.cast(cube.i32)."))

    def __float__(self) -> float:
        return float(self.known("a Python float", "Use cube.sqrt and its like, or a cast."))

    def __format__(self, spec: str) -> str:
        way = 'Print at run time: cube.debug_print("{}", x).'
        return format(self.known("text", way), spec)
