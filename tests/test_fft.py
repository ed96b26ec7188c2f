"""Discrete Fourier transforms: the kernels at every form of length against NumPy in double
precision, the functions and their derivatives against JAX, and devices of many units."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_program import run

import xcube
import xcube.numpy as jnp
from xcube import lax
from xcube.errors import DtypeError, ShapeError
from xcube.lowering import lower
from xcube.lowering.device.cpu import device
from xcube.lowering.kernels.fft_plan import Plan
from xcube.primitives import fft as primitive
from xcube.primitives.fft_steps import factors, roomy, roots
from xcube.trace import aval_of, stage

Array = np.ndarray[Any, Any]

SLOW = pytest.mark.slow
LENGTHS = [1, 2, 3, 4, 5, 7, 9, 13, 16, 17, 48, 60, 63, 64, 65, 81, 100, 169, 360, 512, 997, 1000]
MORE = [6, 8, 11, 15, 31, 32, 49, 66, 96, 97, 121, 128, 243, 256, 343, 625, 720, 1001, 1024, 2310]
LONG = [4096, 5**5, 3 * 2**12, 1 << 16, 10007]
LONGER = [2048, 8192, 1 << 15, 7**6, 1 << 20, 1 << 21]


def each(names: str, quick: list[int], slow: list[int]) -> Any:
    """Tests at lengths, some of them among the slow ones."""
    return pytest.mark.parametrize(names, [*quick, *(pytest.param(n, marks=SLOW) for n in slow)])


def numbers(*shape: int, seed: int = 0, dtype: Any = np.complex64) -> Array:
    rng = np.random.default_rng([seed, *shape])
    values = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    return values.astype(dtype) if np.dtype(dtype).kind == "c" else values.real.astype(dtype)


def assert_near(found: Any, expected: Array, n: int) -> None:
    """Within a few roundings for each of log2(n) steps, relative to the root of the mean square."""
    found = np.asarray(found)
    assert found.shape == expected.shape
    size = math.sqrt(np.mean(np.abs(expected) ** 2)) if expected.size else 1.0
    error = np.max(np.abs(found - expected), initial=0.0)
    assert error <= 3 * np.finfo(found.dtype).eps * (2 + math.log2(n)) * size


# kernels ------------------------------------------------------------------------------------------


@each("n", LENGTHS, MORE)
def test_a_transform_of_any_length_along_any_axis(n: int) -> None:
    for shape, axis in (((n,), 0), ((3, n), 1), ((n, 5), 0), ((2, n, 17), 1)):
        x = numbers(*shape)
        function = xcube.jit(functools.partial(jnp.fft.fft, axis=axis))
        assert_near(function(x), np.fft.fft(x.astype(np.complex128), axis=axis), n)


@each("n", LENGTHS[::3], MORE)
def test_real_and_inverse_transforms(n: int) -> None:
    x = numbers(3, n, dtype=np.float32)
    wide = x.astype(np.float64)
    assert_near(jnp.fft.rfft(x), np.fft.rfft(wide), n)
    spectrum = np.fft.rfft(wide)
    assert_near(jnp.fft.irfft(spectrum.astype(np.complex64), n), wide, n)
    z = numbers(n, 3)
    assert_near(jnp.fft.ifft(z, axis=0), np.fft.ifft(z.astype(np.complex128), axis=0), n)


@each("n", LONG, LONGER)
def test_long_transforms(n: int) -> None:
    x = numbers(n)
    assert_near(jnp.fft.fft(x), np.fft.fft(x.astype(np.complex128)), n)
    assert_near(jnp.fft.rfft(x.real), np.fft.rfft(x.real.astype(np.float64)), n)


@pytest.mark.parametrize("n", [1, 7, 60, 97, 512, 997])
def test_double_precision(n: int) -> None:
    with xcube.enable_x64(True):
        x = numbers(4, n, dtype=np.complex128)
        assert_near(jnp.fft.fft(x), np.fft.fft(x), n)
        assert_near(jnp.fft.rfft(x.real), np.fft.rfft(x.real), n)


@pytest.mark.parametrize("outer", [1, 2, 3, 15, 16, 17, 33])
def test_short_rows_lie_side_by_side(outer: int) -> None:
    x = numbers(outer, 12)
    assert_near(jnp.fft.fft(x), np.fft.fft(x.astype(np.complex128)), 12)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 400), st.integers(1, 5), st.integers(1, 20), st.booleans())
def test_random_shapes(n: int, outer: int, inner: int, inverse: bool) -> None:
    x = numbers(outer, n, inner)
    ours, theirs = (jnp.fft.ifft, np.fft.ifft) if inverse else (jnp.fft.fft, np.fft.fft)
    assert_near(ours(x, axis=1), theirs(x.astype(np.complex128), axis=1), n)


def test_nothing_transforms_to_nothing() -> None:
    assert jnp.fft.fft(np.ones((0, 4), np.complex64)).shape == (0, 4)
    assert jnp.fft.rfft(np.ones((0, 4), np.float32)).shape == (0, 3)
    assert jnp.fft.irfft(np.ones((3, 0, 4), np.complex64)).shape == (3, 0, 6)


def test_the_first_and_the_last_frequency_of_real_terms_are_real() -> None:
    for n in (6, 7):
        x = numbers(n // 2 + 1)
        assert_near(jnp.fft.irfft(x, n), np.fft.irfft(x.astype(np.complex128), n), n)


@pytest.mark.parametrize("n", [64, 100, 360])
def test_lengths_of_one_form_share_a_kernel(n: int) -> None:
    def keys(shape: tuple[int, ...]) -> list[str]:
        jaxpr = stage(lambda x: [jnp.fft.fft(x, axis=1)], [aval_of(jnp.zeros(shape, "complex64"))])
        return lower(jaxpr, device()).keys

    assert keys((2, n, 32)) == keys((5, n, 48))


@pytest.mark.parametrize("n", [1, 16, 24, 1000, 1001, 3 * 2**12])
@pytest.mark.parametrize("width", [1, 16])
def test_passes_multiply_to_the_length(n: int, width: int) -> None:
    plan = Plan(n, width, 16, False, 1.0)
    assert math.prod(p.radix for p in plan.passes) == n
    assert all(p.radix * p.span * p.rest == n * width for p in plan.passes)


def test_roots_are_exact_at_eighths_and_near_elsewhere() -> None:
    assert list(roots(np.arange(4), 4)) == [1, -1j, -1, 1j]
    k = np.arange(1000)
    assert np.max(np.abs(roots(k, 1000) - np.exp(-2j * np.pi * k / 1000))) < 1e-15


@given(st.integers(1, 10**6))
def test_roomy_lengths_are_smooth_and_little_longer(n: int) -> None:
    assert n <= roomy(n) < 1.25 * n + 1 and max(factors(roomy(n)), default=1) <= 5


# functions and derivatives ------------------------------------------------------------------------

ONE = [{}, {"n": 7}, {"n": 4}, {"axis": 0}, {"axis": 1, "n": 9}]
SEVERAL = [{}, {"s": (7, 3)}, {"axes": (0, 1)}, {"axes": (2, 0), "s": (3, 6)}]
CASES = [
    pytest.param(name, options, id=f"{name}-{options}")
    for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    for options in ONE
] + [
    pytest.param(name + kind, options, id=f"{name}{kind}-{options}")
    for name in ("fft", "ifft", "rfft", "irfft")
    for kind in ("2", "n")
    for options in SEVERAL
]
TAKES_REAL = ("rfft", "rfft2", "rfftn", "ihfft")


@pytest.mark.parametrize(("name", "options"), CASES)
def test_functions_and_gradients_are_those_of_jax(name: str, options: dict[str, Any]) -> None:
    x = numbers(4, 6, 5, dtype=np.float32 if name in TAKES_REAL else np.complex64)
    norm = (None, "ortho", "forward", "backward")[len(str(options)) % 4]
    expected = np.asarray(getattr(oracle.fft, name)(x, norm=norm, **options))
    found = np.asarray(getattr(jnp.fft, name)(x, norm=norm, **options))
    assert found.dtype == expected.dtype
    assert_near(found, expected, 100)
    weights = numbers(*expected.shape, dtype=np.float32)

    def gradient(lib: Any, functions: Any) -> Array:
        def loss(x: Any) -> Any:
            y = getattr(functions.fft, name)(x, norm=norm, **options)
            return functions.sum(functions.abs(y * y * weights))

        return np.asarray(lib.grad(loss)(functions.asarray(x)))

    assert_near(gradient(xcube, jnp), gradient(jax, oracle), 1000)


@pytest.mark.parametrize("norm", [None, "ortho", "forward", "backward"])
def test_norms(norm: str | None) -> None:
    x = numbers(3, 6)
    for name in ("fft", "ifft", "irfft", "hfft"):
        expected = getattr(np.fft, name)(x.astype(np.complex128), norm=norm)
        assert_near(getattr(jnp.fft, name)(x, norm=norm), expected, 6)


@pytest.mark.parametrize("axes", [None, 0, -1, (0, 1)])
def test_frequencies_and_shifts(axes: Any) -> None:
    x = numbers(4, 5)
    for name in ("fftshift", "ifftshift"):
        found = getattr(jnp.fft, name)(x, axes)
        np.testing.assert_array_equal(np.asarray(found), getattr(np.fft, name)(x, axes))
    for n in (1, 4, 5):
        for name in ("fftfreq", "rfftfreq"):
            found = np.asarray(getattr(jnp.fft, name)(n, 0.3))
            np.testing.assert_allclose(found, getattr(np.fft, name)(n, 0.3), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.float16, np.float32, np.bool_])
def test_other_numbers_become_complex(dtype: Any) -> None:
    x = (numbers(6, dtype=np.float32) > 0).astype(dtype)
    for name in ("fft", "rfft", "ihfft"):
        found = getattr(jnp.fft, name)(x)
        expected = getattr(np.fft, name)(x.astype(np.float32))
        assert found.dtype == np.complex64
        assert_near(found, expected, 6)


@pytest.mark.parametrize("kind", ["FFT", "IFFT", "RFFT", "IRFFT", "fft"])
@pytest.mark.parametrize("lengths", [(6,), (5, 6), ()])
def test_lax_transforms_the_last_axes(kind: str, lengths: tuple[int, ...]) -> None:
    x = numbers(2, 5, 6, dtype=np.float32 if kind == "RFFT" else np.complex64)
    x = x[..., :4] if kind == "IRFFT" and lengths else x
    expected = np.asarray(jax.lax.fft(x, kind, lengths))
    assert_near(lax.fft(x, kind, lengths), expected, 30)


def test_vmap_and_jvp() -> None:
    x, dx = numbers(3, 8), numbers(3, 8, seed=1)
    mapped = xcube.vmap(jnp.fft.fft, in_axes=1, out_axes=1)(x)
    assert_near(mapped, np.fft.fft(x.astype(np.complex128), axis=0), 3)
    value, tangent = xcube.jvp(jnp.fft.irfft, (jnp.asarray(x),), (jnp.asarray(dx),))
    assert_near(value, np.fft.irfft(x.astype(np.complex128)), 14)
    assert_near(tangent, np.fft.irfft(dx.astype(np.complex128)), 14)


# errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: jnp.fft.rfft(x), ValueError, "rfft: takes real numbers; got c64"),
        (lambda x: jnp.fft.fft(x, n=0), ValueError, "fft: lengths must be >= 1; got (0,)"),
        (lambda x: jnp.fft.fft(x, axis=(0, 1)), ValueError, "Use fftn for several"),
        (lambda x: jnp.fft.fft2(x, axes=(0,)), ValueError, "fft2: takes 2 axes; got (0,)"),
        (lambda x: jnp.fft.fftn(x, axes=(0, 0)), ValueError, "fftn: axes must differ; got (0, 0)"),
        (lambda x: jnp.fft.fftn(x, (1,), (0, 1)), ValueError, "needs a length for each axis"),
        (lambda x: jnp.fft.fft(x, norm="half"), ValueError, "got 'half'"),
        (lambda x: jnp.fft.fftfreq([3]), ValueError, "fftfreq: n and d must be numbers"),
        (lambda x: lax.fft(x, "DCT", (3,)), ValueError, "got 'DCT'"),
        (lambda x: lax.fft(x, "RFFT", (3,)), ValueError, "RFFT takes real numbers"),
        (lambda x: lax.fft(x, "FFT", (4,)), ShapeError, "needs sizes (4,) along the axes (1,)"),
        (lambda x: lax.fft(x, "FFT", (1, 2, 3)), ShapeError, "at most 2 axes"),
        (
            lambda x: primitive.fft(x, primitive.FftType.RFFT, (3,), axes=(1,)),
            DtypeError,
            "RFFT takes float32 or float64; got c64[2,3]",
        ),
    ],
)
def test_errors_say_what_must_hold(call: Callable[[Any], Any], error: Any, text: str) -> None:
    with pytest.raises(error) as caught:
        call(jnp.asarray(numbers(2, 3)))
    assert text in str(caught.value)


# devices of many units ----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 6, 7, 17])
def test_many_units(n: int) -> None:
    kinds = primitive.FftType
    for kind, dtype in ((kinds.FFT, np.complex64), (kinds.IFFT, np.complex64), (kinds.RFFT, "f4")):
        x = numbers(2, n, dtype=dtype)
        function = functools.partial(primitive.fft, fft_type=kind, fft_lengths=(n,), axes=(1,))
        jaxpr = stage(lambda x, f=function: [f(x)], [aval_of(jnp.asarray(x))])
        (found,) = run(jaxpr, [x], units=256, kind="cuda", name="pretended")
        expected = {kinds.FFT: np.fft.fft, kinds.IFFT: np.fft.ifft, kinds.RFFT: np.fft.rfft}[kind]
        assert_near(found, expected(x), n)


@pytest.mark.parametrize("bits", [64, 128, 256])
def test_narrow_vectors(bits: int) -> None:
    kinds = primitive.FftType
    for n in (12, 128):
        for kind, x in ((kinds.FFT, numbers(3, n)), (kinds.RFFT, numbers(3, n, dtype="f4"))):
            function = functools.partial(primitive.fft, fft_type=kind, fft_lengths=(n,), axes=(1,))
            jaxpr = stage(lambda x, f=function: [f(x)], [aval_of(jnp.asarray(x))])
            (found,) = run(jaxpr, [x], vector_bits=bits)
            assert_near(found, (np.fft.rfft if kind is kinds.RFFT else np.fft.fft)(x), n)


@pytest.mark.parametrize("n", [64, 67, 100, 128])
def test_the_composition_is_the_transform(n: int) -> None:
    x = numbers(2, n)
    for kind, expected in (("FFT", np.fft.fft), ("IFFT", np.fft.ifft)):
        function = functools.partial(
            primitive.composed,
            fft_type=primitive.FftType[kind],
            fft_lengths=(n,),
            axes=(1,),
        )
        assert_near(xcube.jit(function)(jnp.asarray(x)), expected(x.astype(np.complex128)), n)
