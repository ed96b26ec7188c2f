"""Control flow of kernels: each function below runs once as Python, for every unit, and once as a
part of a kernel; the results are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xcube import ShapeDtypeStruct, cube
from xcube.lowering.cube import ir, rebuild

N = 11
X = np.random.default_rng(1).integers(-5, 6, N).astype(np.int32)


@cube.kernel
def each(x: cube.Array[cube.i32], out: cube.Array, function: cube.comptime):
    i = cube.ABSOLUTE_POS
    if i < out.length:
        out[i] = cube.i32(function(cube.i32(i), x, cube.i32(x.length)))


def run(function: Any, kernel: Any, units: int) -> list[int]:
    out = ShapeDtypeStruct((N,), np.int32)
    return np.asarray(kernel[-(-N // units), units](X, out, function)).tolist()


def python(function: Any) -> list[int]:
    values = X.tolist()
    return [int(function.function(i, values, N)) for i in range(N)]


# the functions --------------------------------------------------------------------------------


@cube.function
def branch(i, x, n):
    if x[i] > 2:
        y = x[i] * 2
    elif x[i] < -2:
        y = -x[i]
    else:
        y = 7
    return y


@cube.function
def one_sided(i, x, n):
    y = 3
    if x[i] > 0:
        y = x[i]
    if x[i] > 3:
        y += 100
    return y


@cube.function
def early_return(i, x, n):
    if x[i] == 0:
        return 1000
    if x[i] > 0:
        if i > 4:
            return x[i]
        y = 5
    else:
        y = x[i]
    return y - 1


@cube.function
def counted(i, x, n):
    total = 0
    for j in range(i):
        total += x[j] * j
    return total


@cube.function
def stepped(i, x, n):
    total = 0
    for j in range(1, n, 3):
        total = total * 2 + x[j]
    return total % 1000


@cube.function
def downwards(i, x, n):
    total = 0
    for j in range(n - 1, i, -2):
        total = total * 3 + j + x[j]
    return total % 997


@cube.function
def known_downwards(i, x, n):
    total = 0
    for j in range(7, -1, -3):
        total = total * 3 + j + x[j]
    return total


@cube.function
def breaks(i, x, n):
    total, turns = 0, 0
    for j in range(n):
        if x[j] == x[i]:
            continue
        if total > 6:
            break
        total += x[j] + 1
        turns += 1
    return total * 100 + turns


@cube.function
def nested(i, x, n):
    total = 0
    for j in range(n):
        for k in range(j):
            if x[k] > x[j]:
                continue
            if k > i:
                break
            total += 1
        if total > 20:
            break
    return total


@cube.function
def while_runs(i, x, n):
    number, steps = i + 1, 0
    while number != 1 and steps < 50:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
    return steps


@cube.function
def forever(i, x, n):
    k = 0
    while True:
        k += 1
        if k * k > i:
            break
    return k


@cube.function
def known_while(i, x, n):
    size, total = 8, 0
    while size > 0:
        total += x[size] * size
        size //= 2
    return total


@cube.function
def returns_in_loops(i, x, n):
    for j in range(n):
        if x[j] > 4:
            return j
        for k in range(j):
            if x[k] + x[j] == i:
                return 100 * j + k
    return -1


@cube.function
def returns_in_while(i, x, n):
    k = i
    while k > 0:
        k -= 1
        if x[k] < 0:
            return x[k] * 10
    return 5


@cube.function
def break_out_of_known(i, x, n):
    total = 0
    for j in range(6):
        if x[j] > i:
            break
        total += x[j]
    return total


@cube.function
def continue_known(i, x, n):
    total = 0
    for j in range(2, 9, 2):
        if j > i:
            continue
        total += x[j] * j
    return total


@cube.function
def ternary(i, x, n):
    return x[i + 1] if i + 1 < n else (-50 if x[i] > 0 else 50)


@cube.function
def booleans(i, x, n):
    a = i + 1 < n and x[i + 1] > 0
    b = i > 0 or x[i] > 2
    c = not a and (b or x[i] == 0)
    return (1 if a else 0) + (2 if b else 0) + (4 if c else 0)


@cube.function
def chained(i, x, n):
    return 1 if 0 < x[i] <= i < n - 2 else 0


@cube.function
def unpacks(i, x, n):
    a, (b, c) = x[i], (i, 2)
    a, b = b, a
    [d, *rest] = (a, b, c)
    return d * 100 + rest[0] * 10 + rest[1]


@cube.function
def augmented(i, x, n):
    a = i
    a += 3
    a *= 2
    a -= x[i]
    a //= 3
    a %= 7
    a <<= 2
    a |= 1
    a ^= i
    a &= 63
    a >>= 1
    return a


@cube.function
def floors(i, x, n):
    d = x[i] if x[i] != 0 else 1
    return (i - 5) // d * 100 + (i - 5) % d + (i - 5) // 4 * 7 + (5 - i) % 3


@cube.function
def inner_functions(i, x, n):
    scale = i + 1

    def scaled(y, by=2):
        if y > 0:
            return y * scale
        return y - by

    twice = lambda f, y: f(f(y))  # noqa: E731
    return twice(scaled, x[i]) % 1000


@cube.function
def recursive(i, x, n):
    def fold(k):
        return x[k] + fold(k - 1) if k > 0 else x[0]

    return fold(4) + i


@cube.function
def comprehension(i, x, n):
    values = [x[k] * k for k in range(4)]
    table = {"a": values[0], "b": sum(values)}
    return table["b"] + max(values) - min(values[1], i) + len(values)


@cube.function
def builtins_(i, x, n):
    a = abs(x[i]) + max(x[i], 2, i) - min(i, 3)
    return a + (1 if any([x[i] > 0, i > 8]) else 0) + (1 if all([x[i] > 0, i > 2]) else 0)


@cube.function
def tuples_in_branches(i, x, n):
    pair = (0, x[i])
    for j in range(i):
        if x[j] > pair[1]:
            pair = (j, x[j])
    return pair[0] * 100 + pair[1]


@cube.function
def sentinel(i, x, n):
    best = None
    size = 4 if best is None else 5
    return size * x[i]


@cube.function
def temporaries(i, x, n):
    total = 0
    for j in range(n):
        if x[j] > 0:
            t = x[j] * 2
            total += t
        else:
            t = j
            total -= t
    return total


@cube.function
def zero_turns(i, x, n):
    y = 9
    for j in range(i, 3):
        y = x[j]
    return y


@cube.function
def annotated(i, x, n):
    total: cube.i32 = 0
    for j in range(n):
        total = total * 2 + x[j]
    return total


@cube.function
def binary_search(i, x, n):
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if middle * middle < x[i] + 20:
            low = middle + 1
        else:
            high = middle
    return low


@cube.function
def sort_of_three(i, x, n):
    a, b, c = x[i], x[(i + 1) % n], x[(i + 2) % n]
    if a > b:
        a, b = b, a
    if b > c:
        b, c = c, b
    if a > b:
        a, b = b, a
    return a * 10000 + b * 100 + c


FUNCTIONS = [value for value in list(globals().values()) if type(value).__name__ == "Function"]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_kernel_does_what_python_does(function: Any) -> None:
    expected = python(function)
    assert run(function, cube.interpret(each), 4) == expected
    assert run(function, each, 1) == expected
    assert run(function, each, 4) == expected


def statements(kernel: Any, *kinds: Any) -> list[Any]:
    (found,) = kernel.known.values()
    return rebuild.each(found.kernel.body, *kinds)


def launch(kernel: Any, *args: Any, out: Any = None, grid: tuple[Any, Any] = (1, 1)) -> Any:
    given = ShapeDtypeStruct((4,), np.float32) if out is None else out
    return np.asarray(cube.interpret(kernel)[grid](*args, given))


def test_known_control_flow_leaves_no_trace() -> None:
    @cube.kernel
    def known(out: cube.Array, n: cube.comptime = 3):
        for k in range(n):
            if k % 2 == 0:
                out[k] = k
            else:
                out[k] = -1.0
        while n < 4:
            out[n] = 9
            n += 1

    assert launch(known).tolist() == [0, -1, 2, 9]
    assert statements(known, ir.If, ir.For, ir.Loop, ir.Declare) == []


def test_loops_of_the_kernel_stay_loops() -> None:
    @cube.kernel
    def loops(out: cube.Array):
        for k in cube.range(4):
            out[k] = cube.f32(k)

    assert launch(loops).tolist() == [0, 1, 2, 3]
    assert len(statements(loops, ir.For)) == 1


def test_unrolled_loops_may_be_long() -> None:
    @cube.kernel
    def long(out: cube.Array):
        total = 0
        for k in cube.unroll(range(2000)):
            total += k
        out[0] = out[1] = out[2] = out[3] = float(total)

    assert launch(long)[0] == sum(range(2000))


def test_only_what_is_read_later_is_handed_on() -> None:
    @cube.kernel
    def handed(x: cube.Array, out: cube.Array):
        for k in range(x.length):
            t = x[k]
            if t > 0:
                u = t * 2
                out[k] = u
            else:
                out[k] = t

    x = np.array([1, -2, 3, -4], np.float32)
    assert launch(handed, x).tolist() == [2, -2, 6, -4]
    assert statements(handed, ir.Declare) == []


def test_returns_end_a_unit() -> None:
    @cube.kernel
    def ends(x: cube.Array, out: cube.Array):
        i = cube.UNIT_POS
        out[i] = 0
        for k in range(x.length):
            if x[k] > cube.f32(i):
                return
            out[i] = cube.f32(k)
        if i == 3:
            cube.terminate()
        out[i] += 10

    x = np.array([0, 1, 2, 0], np.float32)
    expected = []
    for i in range(4):
        seen = [k for k in range(4) if all(x[: k + 1] <= i)]
        expected.append(max(seen, default=0) + (10 if len(seen) == 4 and i != 3 else 0))
    assert launch(ends, x, grid=(1, 4)).tolist() == expected


def test_what_is_not_chosen_is_not_read() -> None:
    @cube.kernel
    def guarded(x: cube.Array, out: cube.Array):
        i = cube.UNIT_POS
        out[i] = x[i] if i < x.length else -1.0
        if i + 1 < x.length and x[i + 1] > 0:
            out[i] += 10

    x = np.array([1, 2], np.float32)
    assert launch(guarded, x, grid=(1, 4)).tolist() == [11, 2, -1, -1]


def test_a_condition_without_memory_is_computed_without_branches() -> None:
    @cube.kernel
    def pure(x: cube.Array, out: cube.Array):
        i = cube.UNIT_POS
        a = x[i]
        out[i] = a * 2 if (0 < a < 3 and i != 2) or a == -1 else -a

    x = np.array([1, -1, 2, 5], np.float32)
    assert launch(pure, x, grid=(1, 4)).tolist() == [2, -2, -2, -5]
    assert statements(pure, ir.If) == []


@pytest.mark.parametrize(
    ("dtype", "begin"), [("f16", 0), ("f32", 0), ("f64", 0.0), ("i32", 0), ("i64", 0), ("u8", 1)]
)
def test_a_number_takes_the_dtype_of_what_is_added(dtype: str, begin: Any) -> None:
    @cube.kernel
    def total(x: cube.Array, out: cube.Array, begin: cube.comptime):
        most = total = begin
        for k in range(x.length):
            total = total + 2 * x[k] if x[k] > 0 else total
            if x[k] > most:
                most = x[k]
        out[0] = total
        out[1] = most

    numpy = cube.dtype(dtype).numpy
    x = np.array([3, 0, 5, 1]).astype(numpy)
    out = np.asarray(cube.interpret(total)[1, 1](x, ShapeDtypeStruct((2,), numpy), begin))
    assert out.tolist() == [begin + 18, 5]


def test_lines_and_views_are_carried() -> None:
    @cube.kernel
    def carried(x: cube.Array, out: cube.Array):
        lines, total, window = x.as_lines(2), 0.0, x.slice(0, 2)
        for k in range(lines.length):
            total += lines[k]
            if k > 0:
                window = x.slice(2 * k, 2 * k + 2)
        out[0] = total[0]
        out[1] = total[1]
        out[2] = window[1]
        out[3] = cube.f32(window.length)

    x = np.arange(6, dtype=np.float32)
    assert launch(carried, x).tolist() == [6, 9, 5, 2]


def test_source_lines_are_those_of_the_file() -> None:
    @cube.kernel
    def lines(x: cube.Array, out: cube.Array):
        value = branch_line(x, 0)  # +2
        out[0] = value  # +3
        for k in range(x.length):  # +4
            out[k] = 1  # +5

    first = lines.function.__code__.co_firstlineno
    launch(lines, np.ones(4, np.float32))
    stores = [s.source for s in statements(lines, ir.Store)]
    loops = [s.source for s in statements(lines, ir.For)]
    loads = [s.source for s in statements(lines, ir.Load)]
    here = "test_cube_language.py"
    assert stores == [f"{here}:{first + 3}", f"{here}:{first + 5}"]
    assert loops == [f"{here}:{first + 4}"]
    assert loads == [f"{here}:{branch_line.function.__code__.co_firstlineno + 2}"]


@cube.function
def branch_line(x, i):
    return x[i]


def test_kernels_are_expanded_once_for_each_signature() -> None:
    count = []

    @cube.kernel
    def counted(x: cube.Array, out: cube.Array, alpha: cube.f32, block: cube.comptime = 1):
        count.append(block)
        out[0] = x[0] * alpha

    x, out = np.ones(3, np.float32), ShapeDtypeStruct((1,), np.float32)
    run: Callable[..., Any] = cube.interpret(counted)[1, 1]
    run(x, out, 1.0)
    run(np.ones(9, np.float32), out, 2.0)
    assert count == [1]
    run(x, out, 1.0, block=2)
    run(x, out, 1.0, block=True)
    assert count == [1, 2, True]


def test_comptime_values_choose_code() -> None:
    @cube.kernel
    def generic(x: cube.Array, out: cube.Array, op: cube.comptime, names: cube.comptime = ("a",)):
        for k, name in enumerate(names):
            out[k] = op(x[k]) if name == "a" else x[k]

    x = np.array([-1, -2, -3, -4], np.float32)
    out = ShapeDtypeStruct((2,), np.float32)
    found = cube.interpret(generic)[1, 1](x, out, lambda v: v * v, names=["a", "b"])
    assert np.asarray(found).tolist() == [1, -2]


@pytest.mark.parametrize("name", ["exp", "double", "max", "größe"])
def test_kernels_may_have_any_name(name: str) -> None:
    """Also that of a function or word of the language that a device is spoken to in."""

    def plain(x: cube.Array, out: cube.Array):
        out[0] = cube.exp(x[0])

    plain.__name__ = name
    named = cube.kernel(plain)
    assert named.name == name
    found = named[1, 1](np.zeros(1, np.float32), ShapeDtypeStruct((1,), np.float32))
    assert np.asarray(found).tolist() == [1.0]
