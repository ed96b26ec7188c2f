"""What kernels cannot do is refused with the construct or the types, the user's line and
expression, and the way out."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from xcube import ShapeDtypeStruct, cube
from xcube.errors import DtypeError, KernelError, ShapeError

FILE = "<kernels.py>"

HEADER = """
def kernel(x: cube.Array, y: cube.Array[cube.i32], out: cube.Array, k: cube.comptime = 3):
    i = cube.ABSOLUTE_POS
"""


def made(body: str, header: str = HEADER) -> Any:
    """The kernel whose body is a text; the body begins at line 4."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    text = header + lines
    linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)
    space: dict[str, Any] = {"cube": cube, "np": np, "plain": plain, "Pair": Pair}
    exec(compile(text, FILE, "exec"), space)
    return cube.kernel(space["kernel"])


def launch(kernel: Any) -> None:
    x, y = np.ones(4, np.float32), np.ones(4, np.int32)
    cube.interpret(kernel)[4, 1](x, y, ShapeDtypeStruct((4,), np.float32))


def plain(v: Any) -> Any:
    return v if v > 0 else -v


@dataclass(frozen=True)
class Pair:
    a: Any
    b: Any


# constructs that are refused where a kernel is decorated: body, construct, part of the way out
SYNTAX = [
    (
        "try:\n    out[i] = 1\nexcept ValueError:\n    out[i] = 2",
        "try",
        "Test the condition with `if`",
    ),
    ("with open('a'):\n    out[i] = 1", "with", "as functions"),
    ("yield i", "yield", "Return a tuple, or store"),
    ("yield from (i,)", "yield from", "Return a tuple"),
    ("global total", "global", "as a parameter"),
    ("del i", "del", "Leave the name"),
    ("class A:\n    pass", "class", "outside of the kernel"),
    ("import os", "import", "top of the file"),
    ("from os import path", "import", "top of the file"),
    ("match k:\n    case 1:\n        out[i] = 1", "match", "if and elif"),
    ("if (n := i) > 2:\n    out[n] = 1", ":=", "statement of its own"),
    ("for j in range(3):\n    pass\nelse:\n    out[i] = 1", "else of a loop", "Set a flag"),
    ("while i > 3:\n    pass\nelse:\n    out[i] = 1", "else of a loop", "Set a flag"),
    ("return x[i]", "return with a value", "Store to an array"),
    ("out[i] = 1 if k is None is None else 2", "a chain of `is` or `in`", "one by one"),
    ("__cube = 3", "names like __cube", "another name"),
    (
        "@plain\ndef f(v):\n    return v\nout[i] = f(1)",
        "a decorated function inside",
        "Leave the decorator",
    ),
    ("def f(v):\n    nonlocal i\n    i = v\nf(1)", "nonlocal", "Return the value"),
    ("async def f():\n    pass", "async def", "plain def"),
]


@pytest.mark.parametrize(("body", "construct", "way"), SYNTAX)
def test_syntax_is_refused(body: str, construct: str, way: str) -> None:
    with pytest.raises(KernelError) as caught:
        made(body)
    message = str(caught.value)
    assert f"must do without `{construct}`" in message and way in message
    assert f"At {FILE}:" in message


# what is wrong once types are known: body, error, parts of the message, the quoted expression
TYPES: list[tuple[str, type[Exception], tuple[str, ...], str]] = [
    ("out[i] = x[i] + y[i]", DtypeError, ("f32 and i32", "x.cast(cube.i32)"), "x[i] + y[i]"),
    (
        "out[i] = y[i]",
        DtypeError,
        ("stored to out must be f32; got i32", "x.cast(cube.f32)"),
        "out[i]",
    ),
    ("out[i] = i", DtypeError, ("must be f32; got index",), "out[i]"),
    ("out[i] = cube.f32(y[i] / 2)", DtypeError, ("must be floats; got i32", "x // y"), "y[i] / 2"),
    ("out[i] = cube.f32(y[i] * 1.5)", DtypeError, ("beside floats", "i32", "1.5"), "y[i] * 1.5"),
    ("out[i] = x[i] & 1", DtypeError, ("integers or bools; got f32", "bitcast"), "x[i] & 1"),
    ("out[i] = ~x[i]", DtypeError, ("integer or bool; got f32",), "~x[i]"),
    (
        "out[i] = cube.f32((x[i] > 0) + (x[i] < 1))",
        DtypeError,
        ("must be numbers; got bool",),
        "(x[i] > 0) + (x[i] < 1)",
    ),
    ("out[i] = cube.f32(y[i] ** -2)", DtypeError, ("below zero; got -2",), "y[i] ** -2"),
    (
        "out[i] = cube.f32(y[i] ** y[i])",
        DtypeError,
        ("must be of floats", "i32 and i32"),
        "y[i] ** y[i]",
    ),
    ("out[i] = x[x[i]]", DtypeError, ("index must be an integer; got f32",), "x[x[i]]"),
    ("out[i] = x[1.0]", DtypeError, ("index must be an integer", "1.0"), "x[1.0]"),
    ("out[i] = x[i, 0]", ShapeError, ("at most 1 indices; got 2",), "x[i, 0]"),
    ("out[0:2] = 1", ShapeError, ("must be to one element", "Write a loop"), "out[0:2]"),
    ("out[i] = x[0:4:2][0]", KernelError, ("a slice must have no step",), "x[0:4:2]"),
    (
        "if x[i]:\n    out[i] = 1",
        DtypeError,
        ("if: a condition must be bool; got f32", "x != 0"),
        "if x[i]:",
    ),
    (
        "if x[i] > 0 and y[i]:\n    out[i] = 1",
        DtypeError,
        ("and: a condition must be bool; got i32",),
        "x[i] > 0 and y[i]",
    ),
    (
        "while y[i]:\n    out[i] = 1",
        DtypeError,
        ("while: a condition must be bool; got i32",),
        "while y[i]:",
    ),
    (
        "out[i] = 1 if not x[i] else 2",
        DtypeError,
        ("not: a condition must be bool; got f32",),
        "not x[i]",
    ),
    (
        "a = x[i]\nif a > 0:\n    a = y[i]\nout[i] = cube.f32(a)",
        DtypeError,
        ("`a` must have one dtype", "i32 and f32"),
        "if a > 0:",
    ),
    (
        "out[i] = x[i] if i > 2 else y[i]",
        DtypeError,
        ("must have one dtype", "f32 and i32"),
        "x[i] if i > 2 else y[i]",
    ),
    (
        "if x[i] > 0:\n    a = 1.0\nout[i] = a",
        KernelError,
        ("`a` must have a value on every path", "only one branch"),
        "out[i]",
    ),
    (
        "if x[i] > 0:\n    a = x\nelse:\n    a = None\nout[i] = a[0]",
        KernelError,
        ("`a` must be alike in both branches", "View"),
        "if x[i] > 0:",
    ),
    (
        "a = y[i]\nfor j in range(i):\n    a = x[j]\nout[i] = a",
        DtypeError,
        ("`a` must keep its type", "i32 before, then f32"),
        "for j in range(i):",
    ),
    (
        "a = None\nfor j in range(i):\n    a = x[j]\nout[i] = a",
        KernelError,
        ("`a` must stay alike", "None before, then f32"),
        "for j in range(i):",
    ),
    (
        "for j in range(i):\n    a = x[j]\nout[i] = a",
        KernelError,
        ("`a` must have a value on every path",),
        "out[i]",
    ),
    (
        "for j in range(i):\n    pass\nout[i] = x[j]",
        KernelError,
        ("`j` must have a value", "its loop has ended"),
        "x[j]",
    ),
    (
        "for j in range(5000):\n    out[i] = 1",
        KernelError,
        ("at most 1024 turns", "cube.range"),
        "for j in range(5000):",
    ),
    (
        "for v in x:\n    out[i] = v",
        KernelError,
        ("loop over a range", "range(x.length)"),
        "for v in x:",
    ),
    ("for v in i:\n    out[i] = 1", KernelError, ("must be a range", "index"), "for v in i:"),
    (
        "for v in (1, 2):\n    if x[i] > v:\n        break\n    out[i] = v",
        KernelError,
        ("leave by what is known", "a loop over tuple"),
        "for v in (1, 2):",
    ),
    (
        "a = [x[j] for j in range(i)]\nout[i] = a[0]",
        KernelError,
        ("must be a `for` statement", "Write the loop out"),
        "[x[j] for j in range(i)]",
    ),
    (
        "for j in cube.unroll(range(i)):\n    out[j] = 1",
        KernelError,
        ("unroll: the turns must be known",),
        "cube.unroll(range(i))",
    ),
    ("out[i] = plain(x[i])", KernelError, ("true or false", "@cube.function"), "plain(x[i])"),
    ("out[i] = np.sin(x[i])", TypeError, (), ""),
    ("import_ = {x[i]: 1}\nout[i] = 1", KernelError, ("a key of a dict or set",), "{x[i]: 1}"),
    ("out[i] = len(f'{x[i]}')", KernelError, ("text", "debug_print"), "f'{x[i]}'"),
    ("a, b = x[i]\nout[i] = a", KernelError, ("unpacked or walked through",), "a, b"),
    (
        "if x[i] is y:\n    out[i] = 1",
        KernelError,
        ("is: identity", "Compare with =="),
        "x[i] is y",
    ),
    (
        "if x[i] in (1, 2):\n    out[i] = 1",
        KernelError,
        ("in: what is looked for", "x == a or x == b"),
        "x[i] in (1, 2)",
    ),
    (
        "if x[i] > 0:\n    raise ValueError('no')",
        KernelError,
        ("raise", "Write an assert"),
        "raise ValueError('no')",
    ),
    (
        "a = cube.SharedMemory(cube.f32, i)\nout[i] = 1",
        KernelError,
        ("SharedMemory: sizes must be known", "index"),
        "cube.SharedMemory(cube.f32, i)",
    ),
    (
        "a = cube.SharedMemory(cube.f64, 50000)\nout[i] = 1",
        KernelError,
        ("must fit 232448 bytes; got 400000",),
        "cube.SharedMemory(cube.f64, 50000)",
    ),
    (
        "if x[i] > 0:\n    a = cube.SharedMemory(cube.f32, 4)",
        KernelError,
        ("all units of a cube",),
        "cube.SharedMemory(cube.f32, 4)",
    ),
    ("a = cube.LocalArray(cube.f32, 4)\nout[i] = a[7]", IndexError, ("0..3; got 7",), "a[7]"),
    ("out[i] = x.as_lines(4)[i]", ShapeError, ("4 lanes for 1",), "out[i]"),
    (
        "out[i] = (x.as_lines(4)[0] + x.as_lines(2)[0])[0]",
        ShapeError,
        ("as many lanes", "f32x4 and f32x2"),
        "x.as_lines(4)[0] + x.as_lines(2)[0]",
    ),
    ("out[i] = x.as_lines(4)[0][9]", IndexError, ("0..3; got 9",), "x.as_lines(4)[0][9]"),
    (
        "out[i] = x.tile((2, 2), (0, 0)).get(0, 0)",
        ShapeError,
        ("1 sizes and places; got 2 and 2",),
        "x.tile((2, 2), (0, 0))",
    ),
    ("out[i] = x.permuted(1, 0)[0, 0]", ShapeError, ("0..0, each once",), "x.permuted(1, 0)"),
    (
        "out[i] = cube.exp(y[i])",
        DtypeError,
        ("exp: the operand must be a float; got i32",),
        "cube.exp(y[i])",
    ),
    (
        "out[i] = cube.f32(cube.popcount(i))",
        DtypeError,
        ("popcount", "not an index; got index"),
        "cube.popcount(i)",
    ),
    (
        "out[i] = x[i].bitcast(cube.u64)",
        DtypeError,
        ("bitcast", "f32 to u64"),
        "x[i].bitcast(cube.u64)",
    ),
    ("out[i] = cube.u8(300)", DtypeError, ("0..255; got 300",), "cube.u8(300)"),
    (
        "out[i] = x[i].cast('f31')",
        DtypeError,
        ("a dtype must be one of", "'f31'"),
        "x[i].cast('f31')",
    ),
    (
        "out[i] = cube.plane_sum(x[i] > 0)",
        DtypeError,
        ("plane_sum", "got bool", "plane_any"),
        "cube.plane_sum(x[i] > 0)",
    ),
    (
        "cube.atomic_and(out, i, 1.0)",
        DtypeError,
        ("atomic_and: elements must be integers; got f32",),
        "cube.atomic_and(out, i, 1.0)",
    ),
    (
        "cube.atomic_add(x[i], i, 1.0)",
        KernelError,
        ("the first argument must be an array",),
        "cube.atomic_add(x[i], i, 1.0)",
    ),
    (
        "cube.debug_print('{} {}', x[i])",
        KernelError,
        ("a place {} for each of 1 values",),
        "cube.debug_print('{} {}', x[i])",
    ),
    (
        "cube.static_assert(k == 4, 'k must be 4')",
        KernelError,
        ("static_assert: k must be 4",),
        "cube.static_assert(k == 4, 'k must be 4')",
    ),
    (
        "cube.static_assert(x[i] > 4, 'x')",
        KernelError,
        ("known at expansion",),
        "cube.static_assert(x[i] > 4, 'x')",
    ),
    ("assert k == 4, 'only four'", AssertionError, ("only four",), ""),
    (
        "out[i] = cube.f32(cube.comptime(y[i]))",
        KernelError,
        ("a Python int",),
        "cube.comptime(y[i])",
    ),
    (
        "a: cube.i32 = x[i]\nout[i] = 1",
        DtypeError,
        ("annotated name must be i32; got f32",),
        "a: cube.i32 = x[i]",
    ),
    (
        "out[i] = 'text' + x[i]",
        KernelError,
        ("a number or a value of the kernel; got 'text'",),
        "'text' + x[i]",
    ),
    ("out[i] = x + 1", TypeError, (), ""),
    ("if x:\n    out[i] = 1", KernelError, ("whether it is true",), "if x:"),
    (
        "def f(v):\n    if v > 0:\n        return v\nout[i] = f(x[i])",
        KernelError,
        ("what a function returns must be alike",),
        "if v > 0:",
    ),
]


@pytest.mark.parametrize(("body", "error", "parts", "text"), TYPES, ids=[row[0] for row in TYPES])
def test_types_are_refused(
    body: str, error: type[Exception], parts: tuple[str, ...], text: str
) -> None:
    kernel = made(body)
    with pytest.raises(error) as caught:
        launch(kernel)
    message = str(caught.value)
    assert [part for part in parts if part not in message] == [], message
    if text:
        number = 4 + next(n for n, line in enumerate(body.splitlines()) if text in line)
        assert f" At {FILE}:{number}: `" in message
        if sys.version_info < (3, 12):  # later ones quote a part of it
            assert f"`{text}`." in message


# launches -------------------------------------------------------------------------------------

X = np.ones(6, np.float32)
OUT = ShapeDtypeStruct((6,), np.float32)


@cube.kernel
def annotated(
    x: cube.Tensor[cube.f32, 2], y: cube.Array[cube.lines(4)], out: cube.Array, n: cube.i32 = 3
):
    out[0] = x[0, 0] + y[0].sum()


@cube.kernel
def known(out: cube.Array, f: cube.comptime):
    out[0] = 1.0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: annotated(X, X, OUT),
            KernelError,
            r"launched with its grid.*annotated\[cubes, units\]",
        ),
        (lambda: annotated[4](X, X, OUT), ValueError, r"cubes and the units of a cube; got 4"),
        (
            lambda: annotated[1, 1](X, X),
            TypeError,
            r"annotated: missing a required argument: 'out'",
        ),
        (
            lambda: annotated[1, 1](X, X, OUT),
            ShapeError,
            r"x must be an array of 2 axes; got f32\[6\]",
        ),
        (
            lambda: annotated[1, 1](X.astype(np.int32), X, OUT),
            DtypeError,
            r"x must be an array of f32; got i32\[6\]",
        ),
        (
            lambda: annotated[1, 1](X[None], X, OUT),
            ShapeError,
            r"y must be an array whose length is a multiple of 4; got f32\[6\]",
        ),
        (
            lambda: annotated[1, 1](X[None], X[:4], OUT, 2.5),
            DtypeError,
            r"n must be a whole number .* for it is i32; got 2\.5",
        ),
        (
            lambda: annotated[1, 1](X[None], X[:4], OUT, 1 << 40),
            DtypeError,
            r"n must be a whole number",
        ),
        (
            lambda: annotated[1, 1](X[None], X[:4], OUT, np.float32(1)),
            DtypeError,
            r"n must be a number of i32; got f32\[\]",
        ),
        (lambda: known[1, 1](OUT, {"a": 1}), KernelError, r"hashable.*got dict for f"),
        (lambda: known[1, 2000](OUT, 1), ValueError, r"at most 1024 units"),
        (lambda: cube.kernel(3), KernelError, r"must be a function; got int"),
        (lambda: cube.kernel(lambda x: x), KernelError, r"written with def; got a lambda"),
        (lambda: cube.function(len), KernelError, r"must be a function; got builtin"),
        (lambda: cube.FastDivmod.of(0), DtypeError, r"1\.\.2147483647; got 0"),
        (lambda: cube.lines(65), ShapeError, r"1 to 64 lanes; got 65"),
        (lambda: cube.sync_cube(), KernelError, r"used inside a kernel"),
        (lambda: cube.ABSOLUTE_POS + 1, KernelError, r"used inside a kernel"),
    ],
)
def test_launches_are_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_annotations_are_refused() -> None:
    with pytest.raises(KernelError, match=r"x must be annotated as .*; got <class 'str'>"):
        made("out[i] = 1", "\ndef kernel(x: str, out: cube.Array):\n    i = 0\n")
    with pytest.raises(KernelError, match=r"`\*args and \*\*kwargs`"):
        made("out[i] = 1", "\ndef kernel(out: cube.Array, *x):\n    i = 0\n")


def test_text_that_is_not_there() -> None:
    space: dict[str, Any] = {}
    exec(compile("def lost(out):\n    out[0] = 1\n", "<nowhere>", "exec"), space)
    with pytest.raises(KernelError, match=r"got no text in <nowhere> for lost.*notebook's cell"):
        cube.kernel(space["lost"])


def test_kernels_do_not_call_kernels() -> None:
    @cube.kernel
    def outer(out: cube.Array):
        known(out, 1)

    with pytest.raises(KernelError, match=r"must be a function; got a kernel.*@cube\.function"):
        cube.interpret(outer)[1, 1](OUT)


# what the interpreter finds, with the kernel's line -------------------------------------------

FAULTS = [
    ("out[i] = x[i + 1]", "an index must be at least 0 and below 4"),
    ("out[0] = x[i]", "a race: element 0"),
    ("a = cube.LocalArray(cube.f32, 2)\nout[i] = a[1]", "must be written before it is read"),
]


@pytest.mark.parametrize(("body", "message"), FAULTS)
def test_faults_name_the_line(body: str, message: str) -> None:
    with pytest.raises(KernelError) as caught:
        launch(made(body))
    assert message in str(caught.value)
    assert f"{FILE}:{3 + len(body.splitlines())}" in str(caught.value)


def test_units_that_miss_a_barrier() -> None:
    @cube.kernel
    def divergent(out: cube.Array):
        if cube.UNIT_POS < 2:
            cube.sync_cube()
        out[cube.UNIT_POS] = 1.0

    with pytest.raises(KernelError, match=r"must reach a sync|sync"):
        cube.interpret(divergent)[1, 4](OUT)


def test_asserts_at_run_time() -> None:
    kernel = made("assert x[i] > 2, 'x must be large'\nout[i] = x[i]")
    with pytest.raises(KernelError, match="x must be large"):
        launch(kernel)
