"""Complex functions of the kernel language, compiled for the host: errors against extended
precision, branch cuts and infinities against NumPy, scaling, comparison and promotion."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from formula import Array, Formula, run, short

from xcube.errors import LoweringError
from xcube.lowering.cube import math as kernel_math
from xcube.lowering.cube.build import Builder, Value
from xcube.lowering.cube.complex import Complex


@functools.cache
def complex_part(name: str, part: str, count: int, comptime: tuple[int, ...] = ()) -> Formula:
    def formula(build: Builder, *parts: Value) -> Value:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        args = [Complex(real, imag) for real, imag in pairs]
        result = kernel_math.apply(build, name, *args, *comptime)
        return getattr(result, part) if isinstance(result, Complex) else result

    assert count > 0
    return formula


def call_complex(name: str, *args: Array, comptime: tuple[int, ...] = ()) -> Array:
    parts = [np.ascontiguousarray(part) for z in args for part in (z.real, z.imag)]
    result = np.empty(len(args[0]), args[0].dtype)
    for part in ("real", "imag"):
        formula = complex_part(name, part, len(args), comptime)
        setattr(result, part, run(formula, parts, short(parts[0]), 8))
    return result


COMPLEX = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log1p": lambda z: np.log(1 + z),
    "expm1": np.expm1,
    "sqrt": np.sqrt,
    "rsqrt": lambda z: 1 / np.sqrt(z),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "sign": lambda z: z / np.abs(z),
    "neg": lambda z: -z,
    "conj": np.conj,
    "square": lambda z: z * z,
    "reciprocal": lambda z: 1 / z,
}
complex_dtypes = pytest.mark.parametrize("dtype", [np.complex64, np.complex128])


def complex_samples(dtype: Any, scale: float, count: int = 3000, seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    return (random.normal(0, scale, count) + 1j * random.normal(0, scale, count)).astype(dtype)


@complex_dtypes
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_functions(name: str, dtype: Any) -> None:
    for scale in (0.5, 8):
        z = complex_samples(dtype, scale)
        want = COMPLEX[name](z.astype(np.clongdouble))
        error = np.abs(call_complex(name, z) - want) / np.abs(want)
        error /= 1 + np.abs(z) if name == "exp2" else 1
        assert np.max(error) < 8 * np.finfo(dtype).eps / 2


@complex_dtypes
def test_complex_functions_without_a_bound_near_their_poles(dtype: Any) -> None:
    z = complex_samples(dtype, 2)
    eps = np.finfo(dtype).eps
    wide = z.astype(np.clongdouble)
    near = 1 + np.exp(-wide)
    error = np.abs(call_complex("logistic", z) - 1 / near) * np.abs(near) ** 2
    assert np.max(error / (np.abs(near) + np.abs(near - 1))) < 8 * eps
    other = complex_samples(dtype, 1, seed=1)
    power = np.exp(other.astype(np.clongdouble) * np.log(wide))
    turn = 1 + np.abs(other * np.log(z))
    assert np.max(np.abs(call_complex("pow", z, other) - power) / np.abs(power) / turn) < 8 * eps


@complex_dtypes
def test_complex_arithmetic(dtype: Any) -> None:
    x, y = complex_samples(dtype, 3), complex_samples(dtype, 3, seed=1)
    wide = [x.astype(np.clongdouble), y.astype(np.clongdouble)]
    eps = np.finfo(dtype).eps
    for name, function in (("mul", np.multiply), ("div", np.divide), ("add", np.add)):
        want = function(*wide)
        scale = np.abs(wide[0]) + np.abs(wide[1]) if name == "add" else np.abs(want)
        assert np.max(np.abs(call_complex(name, x, y) - want) / scale) < 3 * eps
    cube = call_complex("integer_pow", x, comptime=(-3,))
    np.testing.assert_allclose(cube, wide[0] ** -3, rtol=8 * eps)


@complex_dtypes
def test_the_quotient_and_the_modulus_do_not_overflow(dtype: Any) -> None:
    top = np.finfo(dtype).max / 4
    tiny = np.finfo(dtype).tiny
    z = np.array([top + 1j * top, tiny + 1j * tiny, top + 1j * tiny, 3 + 4j], dtype)
    np.testing.assert_allclose(call_complex("div", z, z), np.ones(4), rtol=1e-6)
    real = [np.ascontiguousarray(z.real), np.ascontiguousarray(z.imag)]
    size = run(complex_part("abs", "real", 1), real, short(real[0]), 8)
    np.testing.assert_allclose(size, np.abs(z.astype(np.clongdouble)).astype(float), rtol=1e-6)
    root = call_complex("sqrt", z)
    np.testing.assert_allclose(root, np.sqrt(z.astype(np.clongdouble)).astype(dtype), rtol=1e-6)


@complex_dtypes
@pytest.mark.parametrize(
    "name",
    ["log", "sqrt", "asin", "acos", "atan", "asinh", "acosh", "atanh", "exp", "sinh", "tanh"],
)
def test_branch_cuts_and_signed_zeros(name: str, dtype: Any) -> None:
    parts = np.array([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0])
    real, imag = (part.ravel() for part in np.meshgrid(parts, parts))
    z = np.empty(len(real), dtype)
    z.real, z.imag = real, imag
    with np.errstate(all="ignore"):
        want = COMPLEX[name](z)
    got = call_complex(name, z)
    for part in ("real", "imag"):
        a, b = getattr(got, part), getattr(want, part)
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-30)
        np.testing.assert_array_equal(np.signbit(a), np.signbit(b))


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "acos", "asin", "acosh", "asinh"])
def test_infinities(name: str) -> None:
    parts = [np.inf, -np.inf, 1.0, -2.0]
    z = np.array([complex(a, b) for a in parts for b in parts if math.isinf(a) or math.isinf(b)])
    with np.errstate(all="ignore"):
        want = COMPLEX[name](z)
    got = call_complex(name, z)
    known = ~(np.isnan(want.real) | np.isnan(want.imag))
    np.testing.assert_allclose(got[known].real, want[known].real, rtol=1e-14)
    np.testing.assert_allclose(got[known].imag, want[known].imag, rtol=1e-14)


def test_complex_comparison_selection_and_promotion() -> None:
    z = np.array([1 + 2j, 1 + 2j, 3 + 0j], np.complex64)
    w = np.array([1 + 2j, 1 - 2j, 3 + 0j], np.complex64)
    parts = [np.ascontiguousarray(p) for v in (z, w) for p in (v.real, v.imag)]
    equal = run(complex_part("eq", "real", 2), parts, "bool", 8)
    np.testing.assert_array_equal(equal, z == w)
    np.testing.assert_array_equal(run(complex_part("ne", "real", 2), parts, "bool", 8), z != w)
    real = run(_select_and_add_real, parts, "f32", 8)
    np.testing.assert_array_equal(real, np.where(z == w, z, w + z.real).real)


def _select_and_add_real(build: Builder, *parts: Value) -> Value:
    z, w = Complex(*parts[:2]), Complex(*parts[2:])
    moved = kernel_math.apply(build, "add", w, z.real)
    chosen = kernel_math.apply(build, "select", kernel_math.apply(build, "eq", z, w), z, moved)
    return kernel_math.apply(build, "real", chosen)


def test_a_function_without_a_complex_form_is_named() -> None:
    build = Builder("probe")
    z = kernel_math.apply(build, "complex", build.load(build.buffer("f32"), 0), 0.0)
    with pytest.raises(LoweringError, match="erf: must be a function of complex numbers"):
        kernel_math.apply(build, "erf", z)
