"""Python's lists, dicts and objects may not change inside run-time branches and loops, where that
would happen once; what a branch or loop makes for itself may. Recursion, and words for mistakes."""

from __future__ import annotations

import pydoc
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from test_cube_language_errors import FILE, made

import xcube
from xcube import ShapeDtypeStruct, cube
from xcube.errors import KernelError

X = np.asarray([1, 2, 5, 7], np.float32)
OUT = ShapeDtypeStruct((4,), np.float32)
SEEN: list[float] = []


@dataclass
class Box:
    value: Any = 0.0


class Wrapped:
    """Items of a view, two further on."""

    def __init__(self, view: Any) -> None:
        self.view = view

    def __setitem__(self, key: Any, value: Any) -> None:
        self.view[key] = value + 2.0


CHANGES = [
    ("g = [0.0, 0.0]\nfor n in cube.range(4):\n    g[0] += 1.0\nout[i] = g[0]", "g[0]"),
    ("g = [0.0]\nfor n in range(i):\n    g[0] = x[n]\nout[i] = g[0]", "g[0]"),
    ("g = [0.0]\nn = 0\nwhile n < i:\n    g[0] = x[n]\n    n += 1\nout[i] = g[0]", "g[0]"),
    ("g = [0.0, 0.0]\nif x[i] > 3:\n    h, g[1] = 1.0, 2.0\nout[i] = g[1]", "g[1]"),
    ("g = [[0.0]]\nh = g[0]\nif x[i] > 3:\n    g[0][0] = 1.0\nout[i] = h[0]", "g[0][0]"),
    ("g = [0.0]\nif x[i] > 3:\n    pass\nelse:\n    g[0:1] = [1.0]\nout[i] = g[0]", "g[0:1]"),
    ("g = [0.0]\nif x[i] > 3:\n    g += [1.0]\nout[i] = len(g)", "g += [1.0]"),
    ("g = [0.0]\nif x[i] > 3:\n    for g[0] in (1.0, 2.0):\n        pass\nout[i] = g[0]", "g[0]"),
    ("seen = []\nif x[i] > 3:\n    seen.append(1)\nout[i] = len(seen)", "seen.append"),
    ("d = {'a': 1.0}\nif x[i] > 3:\n    d['a'] = 2.0\nout[i] = d['a']", "d['a']"),
    ("d = {'a': 1.0}\nif x[i] > 3:\n    d.update(a=2.0)\nout[i] = d['a']", "d.update"),
    ("s = {1}\nif x[i] > 3:\n    [s.add(k) for k in (2, 3)]\nout[i] = len(s)", "s.add"),
    ("b = Box()\nif x[i] > 3:\n    b.value = 1.0\nout[i] = b.value", "b.value"),
    (
        "b = (Box(),)\nfor n in cube.range(2):\n    b[0].value += 1\nout[i] = b[0].value",
        "b[0].value",
    ),
    ("g = np.zeros(2)\nif x[i] > 3:\n    g[0] = 1.0\nout[i] = float(g[0])", "g[0]"),
    ("g = np.zeros(2)\nif x[i] > 3:\n    g += 1.0\nout[i] = float(g[0])", "g += 1.0"),
    ("if x[i] > 3:\n    SEEN.append(1)\nout[i] = 1", "SEEN.append"),
    ("g = [1.0]\nout[i] = g.pop() if x[i] > 3 else 2.0", "g.pop"),
    ("g = [0.0]\ndef f():\n    g[0] = 1.0\nif x[i] > 3:\n    f()\nout[i] = g[0]", "g[0]"),
    ("g = [0.0]\ndef f(h):\n    h[0] = 1.0\nif x[i] > 3:\n    f(g)\nout[i] = g[0]", "h[0]"),
    (
        "g = [0.0]\nfor v in range(4):\n    g[0] += v\n    if x[i] > v:\n"
        "        break\nout[i] = g[0]",
        "g[0]",
    ),
]


def prepared(body: str) -> Any:
    kernel = made(body)
    kernel.function.__globals__.update(Box=Box, SEEN=SEEN, Wrapped=Wrapped)
    return kernel


@pytest.mark.parametrize(("body", "text"), CHANGES, ids=[row[0] for row in CHANGES])
def test_changes_are_refused(body: str, text: str) -> None:
    with pytest.raises(KernelError, match="must not change inside a run-time branch") as caught:
        cube.interpret(prepared(body))[4, 1](X, np.ones(4, np.int32), OUT)
    lines = body.splitlines()
    number = 4 + max(
        n
        for n, line in enumerate(lines)
        if (text in line and line.startswith(" ")) or text == "g.pop" in line
    )
    message = str(caught.value)
    assert f" At {FILE}:{number}: `{text}" in message and "LocalArray" in message
    assert not SEEN


# what is as new as the branch or loop itself, or known: body, value for x = 1, 2, 5, 7
FINE = [
    ("g = [0.0, 1.0]\nfor n in cube.range(3):\n    g = [g[1], g[0]]\nout[i] = g[0]", [1, 1, 1, 1]),
    ("g = [0.0]\nfor n in cube.range(3):\n    g[0] += 2.0\n    g = [g[0]]\nout[i] = g[0]", [6] * 4),
    (
        "r = 0.0\nif x[i] > 3:\n    g = [0.0]\n    g[0] = x[i]\n"
        "    g.append(1.0)\n    r = g[0] + g[1]\nout[i] = r",
        [0, 0, 6, 8],
    ),
    (
        "r = 0.0\nfor n in cube.range(2):\n    t = []\n"
        "    for u in range(3):\n        t.append(x[i])\n    t[1] += 1.0\n"
        "    r += t[1] + t[2]\nout[i] = r",
        [6, 10, 22, 30],
    ),
    (
        "def f(v):\n    g = {}\n    g['a'] = v\n    return g['a']\nr = 0.0\n"
        "if x[i] > 3:\n    r = f(x[i])\nout[i] = r",
        [0, 0, 5, 7],
    ),
    (
        "g = [0.0]\nfor u in range(3):\n    g[0] += x[i]\n    g.append(0.0)\n"
        "if k == 3:\n    g[0] += 1.0\nout[i] = g[0]",
        [4, 7, 16, 22],
    ),
    (
        "a = cube.LocalArray(cube.f32, 2)\na[0] = 0.0\n"
        "for n in cube.range(3):\n    a[0] += x[i]\nout[i] = a[0]",
        [3, 6, 15, 21],
    ),
    ("w = Wrapped(out)\nout[i] = 0.0\nif x[i] > 3:\n    w[i] = x[i]", [0, 0, 7, 9]),
]


@pytest.mark.parametrize(("body", "expected"), FINE, ids=[row[0] for row in FINE])
def test_what_is_new_may_change(body: str, expected: list[float]) -> None:
    found = cube.interpret(prepared(body))[4, 1](X, np.ones(4, np.int32), OUT)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected, np.float32))


# recursion ------------------------------------------------------------------------------------


@cube.function
def power_of(x: Any, n: int) -> Any:
    if n == 0:
        return 1.0
    half = power_of(x, n // 2)
    return half * half * (x if n % 2 else 1.0)


@cube.function
def endless(n: Any) -> Any:
    if n > 0:
        return endless(n - 1.0)
    return n


def test_recursion_that_ends_at_expansion() -> None:
    @cube.kernel
    def kernel(x: cube.Array, out: cube.Array, n: cube.comptime):
        out[cube.ABSOLUTE_POS] = power_of(x[cube.ABSOLUTE_POS], n)

    np.testing.assert_array_equal(np.asarray(kernel[4, 1](X, OUT, 5)), X**5)
    assert power_of(2.0, 10) == 1024.0


def test_recursion_that_does_not_end() -> None:
    @cube.kernel
    def kernel(x: cube.Array, out: cube.Array):
        out[cube.ABSOLUTE_POS] = endless(x[cube.ABSOLUTE_POS])

    for _ in range(2):  # an error leaves nothing behind
        with pytest.raises(KernelError, match=r"endless: recursion must end at expansion.*`endl"):
            kernel[4, 1](X, OUT)


# words for mistakes ---------------------------------------------------------------------------

NUMPY, OURS, LIST = np.arange(4.0), xcube.numpy.arange(4.0), [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("table", [NUMPY, OURS, LIST, NUMPY.reshape(2, 2)])
@pytest.mark.parametrize("at", ["table[i]", "table[y[i], 0]"])
def test_tables_that_are_no_arguments(table: Any, at: str) -> None:
    if "," in at and table is not NUMPY and table is not OURS:
        at = at.replace(", 0", "")
    kernel = made(f"out[i] = {at}")
    kernel.function.__globals__["table"] = table
    with pytest.raises(KernelError, match=r"pass the table as an argument.*cube\.constants"):
        cube.interpret(kernel)[4, 1](X, np.ones(4, np.int32), OUT)


def test_numpy_of_what_is_known() -> None:
    kernel = made("out[i] = x[i] + float(np.exp(NUMPY[0])) + float(NUMPY[1:][k - 2])")
    kernel.function.__globals__["NUMPY"] = NUMPY
    found = cube.interpret(kernel)[4, 1](X, np.ones(4, np.int32), OUT)
    np.testing.assert_array_equal(np.asarray(found), X + 3)


@pytest.mark.parametrize(
    ("call", "way"), [("exp(x[i])", "cube.exp("), ("arctan2(x[i], 2.0)", "cube.atan2(")]
)
def test_numpy_of_run_time_values(call: str, way: str) -> None:
    with pytest.raises(TypeError) as caught:
        cube.interpret(made(f"out[i] = np.{call}"))[4, 1](X, np.ones(4, np.int32), OUT)
    assert way in str(caught.value) and f"4: `np.{call}`" in str(caught.value)


@cube.kernel
def filled(out: cube.Array, value: cube.f32, times: cube.comptime = 1):
    out[cube.ABSOLUTE_POS] = value * times


@pytest.mark.parametrize("value", ["a", None, [1.0], 1j])
def test_scalars_that_are_no_numbers(value: Any) -> None:
    with pytest.raises(TypeError, match=r"value must be a number, for it is f32; got"):
        filled[4, 1](OUT, value)


@pytest.mark.parametrize("array", [xcube.numpy.ones(()), jnp.ones(())])
def test_traced_comptime_values(array: Any) -> None:
    with pytest.raises(KernelError, match=r"f32\[\] for times.*static_argnums"):
        xcube.jit(lambda n: filled[4, 1](OUT, 2.0, n))(array)
    found = xcube.jit(lambda n: filled[4, 1](OUT, 2.0, n), static_argnums=0)(3)
    np.testing.assert_array_equal(np.asarray(found), np.full(4, 6, np.float32))


# what the module shows ------------------------------------------------------------------------


def test_the_module_lists_the_language() -> None:
    assert dir(cube) == sorted(cube.__all__)
    assert {"kernel", "atomic_add", "plane_sum", "f32", "ABSOLUTE_POS"} <= {*cube.__all__}
    assert not {"math", "types", "annotations", "functions", "views"} & {*cube.__all__}
    text = pydoc.plain(pydoc.render_doc(cube))
    functions = text[text.index("\nFUNCTIONS") : text.index("\nDATA")]
    for name in ("atomic_add", "plane_sum", "kernel", "exp"):
        assert f"    {name}(" in functions
        assert getattr(cube, name).__doc__.splitlines()[0] in functions
