"""Random structured programs: as Python for every unit, and as kernels in the interpreter, they
give the same numbers."""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from xcube import ShapeDtypeStruct, cube

N = 6
NAMES = ("a", "b", "c")


@cube.kernel
def each(x: cube.Array[cube.i32], out: cube.Array, function: cube.comptime):
    i = cube.ABSOLUTE_POS
    out[i] = cube.i32(function(cube.i32(i), x, cube.i32(x.length)))


def whole(j: Any) -> Any:
    """A loop's index as a number like all others."""
    return j if isinstance(j, int) else cube.i32(j)


class Writer:
    """Draws a program; numbers stay small, loops end."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.loops, self.lines = draw, 0, []

    def pick(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def number(self, depth: int = 0) -> str:
        kind = self.draw(st.integers(0, 8 if depth < 2 else 3))
        if kind < 2:
            return self.pick(*NAMES, "i")
        if kind == 2:
            return str(self.draw(st.integers(-4, 9)))
        if kind == 3:
            return f"x[({self.pick(*NAMES, 'i')}) % n]"
        if kind == 4:
            return f"({self.number(2)} if {self.test(1)} else {self.number(2)})"
        if kind == 5:
            return f"min({self.number(1)}, max({self.number(2)}, i))"
        op = self.pick("+", "-", "*", "//", "%")
        right = self.pick("3", "-2", "n", "5") if op in ("//", "%") else self.number(depth + 1)
        return f"({self.number(depth + 1)} {op} {right})"

    def test(self, depth: int = 0) -> str:
        kind = self.draw(st.integers(0, 5 if depth < 2 else 1))
        op = self.pick("<", "<=", ">", ">=", "==", "!=")
        if kind < 3:
            return f"{self.number(1)} {op} {self.number(1)}"
        if kind == 3:
            return f"not ({self.test(2)})"
        if kind == 4:
            return f"{self.number(2)} {op} {self.number(2)} < {self.number(2)}"
        return f"({self.test(depth + 1)} {self.pick('and', 'or')} {self.test(depth + 1)})"

    def block(self, indent: int, depth: int, in_loop: bool) -> None:
        for _ in range(self.draw(st.integers(1, 3))):
            if self.statement(indent, depth, in_loop):
                return

    def write(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def statement(self, indent: int, depth: int, in_loop: bool) -> bool:
        """One statement; whether it leaves the block."""
        kind = self.draw(st.integers(0, 9))
        if kind < 4 or depth > 2:
            op = self.pick("=", "=", "+=", "-=")
            value = f"({self.number()}) % 101"
            self.write(indent, f"{self.pick(*NAMES)} {op} {value}")
        elif kind < 6:
            self.branch(indent, depth, in_loop)
        elif kind < 8:
            self.loop(indent, depth)
        elif kind == 8:
            a, b = self.pick(("a", "b"), ("b", "c"), ("c", "a"))
            self.write(indent, f"{a}, {b} = {b}, {a}")
        else:
            leaves = self.pick(*(("break", "continue") if in_loop else ()), "return a + 2 * b")
            self.write(indent, f"if {self.test()}:")
            self.write(indent + 1, leaves)
        return False

    def branch(self, indent: int, depth: int, in_loop: bool) -> None:
        self.write(indent, f"if {self.test()}:")
        self.block(indent + 1, depth + 1, in_loop)
        if self.draw(st.booleans()):
            self.write(indent, f"elif {self.test()}:")
            self.block(indent + 1, depth + 1, in_loop)
        if self.draw(st.booleans()):
            self.write(indent, "else:")
            self.block(indent + 1, depth + 1, in_loop)

    def loop(self, indent: int, depth: int) -> None:
        self.loops += 1
        j = f"j{self.loops}"
        header = self.pick(
            "range(3)", "range(n)", "range(i)", "range(4, 0, -1)", "range(n, i, -2)", "while"
        )
        if header == "while":
            self.write(indent, f"{j} = 0")
            self.write(indent, f"while {j} < 4 and {self.test(1)}:")
            self.write(indent + 1, f"{j} += 1")
        else:
            self.write(indent, f"for {j} in {header}:")
        self.write(indent + 1, f"{self.pick(*NAMES)} += x[{j} % n] + whole({j}) % 3")
        self.block(indent + 1, depth + 1, True)


@st.composite
def programs(draw: Any) -> str:
    writer = Writer(draw)
    writer.write(0, "def program(i, x, n):")
    writer.write(1, "a, b, c = i, 1, x[i]")
    writer.block(1, 0, False)
    writer.block(1, 0, False)
    writer.write(1, "return (a * 10007 + b * 101 + c) % 100003")
    return "\n".join(writer.lines) + "\n"


def made(text: str) -> Any:
    """The function of a text, which is found as that of a notebook's cell is."""
    file = f"<program {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {"whole": whole}
    exec(compile(text, file, "exec"), space)
    return cube.function(space["program"])


class Whole(int):
    """A Python number that refuses to leave 32 bits, where kernels wrap."""


def _bounded(name: str) -> Any:
    def operate(x: int, y: int) -> Any:
        result = getattr(int, name)(int(x), int(y))
        if result is NotImplemented:
            return result
        if not -(1 << 31) <= result < 1 << 31:
            raise OverflowError(f"{result} takes more than 32 bits")
        return Whole(result)

    return operate


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    for _side in ("", "r"):
        setattr(Whole, f"__{_side}{_name}__", _bounded(f"__{_side}{_name}__"))


def compare(text: str, x: np.ndarray, *launchers: Any) -> None:
    each.known.clear()
    function = made(text)
    values = [Whole(value) for value in x.tolist()]
    try:
        expected = [function.function(Whole(i), values, Whole(N)) for i in range(N)]
    except OverflowError:
        assume(False)
    for launcher in launchers:
        out = launcher(x, ShapeDtypeStruct((N,), np.int32), function)
        assert np.asarray(out).tolist() == expected, text


X = st.lists(st.integers(-9, 9), min_size=N, max_size=N).map(lambda v: np.array(v, np.int32))
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


@settings(max_examples=60, **QUIET)  # type: ignore[arg-type]
@given(programs(), X)
def test_random_programs(text: str, x: np.ndarray) -> None:
    compare(text, x, cube.interpret(each)[2, 3])


@pytest.mark.slow
@settings(max_examples=500, **QUIET)  # type: ignore[arg-type]
@given(programs(), X)
def test_many_random_programs(text: str, x: np.ndarray) -> None:
    compare(text, x, cube.interpret(each)[2, 3])


@pytest.mark.slow
@settings(max_examples=60, **QUIET)  # type: ignore[arg-type]
@given(programs(), X)
def test_random_programs_on_the_device(text: str, x: np.ndarray) -> None:
    compare(text, x, each[6, 1], each[2, 3])
