"""Launches of kernels: at once and as functions in programs, over batches, checked; arguments and
grids that do not fit are refused with the parameter's name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from cube_kernels import CASES, Body, Case, Expansion, Scalar
from run_program import Pretended, run

import xcube
import xcube.numpy as jnp
from xcube import config, cube, export, lax
from xcube.cube.call import Options, call, launch
from xcube.cube.calls import Call
from xcube.cube.derivative import differentiable
from xcube.errors import DeviceError, DtypeError, ExportError, KernelError, ShapeError, TraceError
from xcube.lowering import lower
from xcube.lowering.cube import math
from xcube.lowering.cube.build import Builder
from xcube.lowering.device import cuda_compile
from xcube.lowering.emit.cuda import emit
from xcube.transforms.jit import make_jaxpr

CHECKED, UNCHECKED = Options(), Options(checked=False)


@dataclass(frozen=True)
class Axpy:
    """out = alpha tanh(x) + y, at the places below a limit, or added to what `out` begins as."""

    name: str = "axpy"
    adds: bool = False
    guarded: bool = True
    parameters: tuple[str, ...] = ("x", "y", "out", "alpha", "block")
    options: Options = CHECKED

    def bind(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        def axpy(x: Any, y: Any, out: Any, alpha: Any = 2.0, block: int = 1) -> None: ...

        bound = inspect.signature(axpy).bind(*args, **named)
        bound.apply_defaults()
        return dict(bound.arguments)

    def kind(self, parameter: str) -> str:
        return {"alpha": "scalar", "block": "comptime"}.get(parameter, "array")

    def expand(self, call: Call, facts: Any) -> Expansion:
        b = Builder(self.name)
        b.keeps_calls = True
        x, y = b.buffer("f32"), b.buffer("f32")
        out = b.buffer("f32", "inout" if self.adds else "out")
        n, alpha = b.scalar(), b.scalar("f32")
        i = b.place("cube_pos.x")
        with b.when(i < n if self.guarded else b.constant(True, "bool")):
            value = math.apply(b, "tanh", b.load(x, i)) * alpha + b.load(y, i)  # type: ignore[operator]
            b.store(out, i, b.load(out, i) + value if self.adds else value)
        scalars = (Scalar("length", "out"), Scalar("scalar", "alpha"))
        return Expansion(b.finish(), ("x", "y", "out"), ("out",), scalars)


N = 7
X, Y = (np.random.default_rng(k).uniform(-1, 1, N).astype(np.float32) for k in range(2))
OUT = xcube.ShapeDtypeStruct((N,), np.float32)


def axpy(
    x: Any, y: Any, alpha: Any = 2.0, kernel: Any = Axpy(), options: Options = UNCHECKED
) -> Any:
    kernel = differentiable(kernel)
    options = replace(kernel.options, checked=options.checked)
    return call(kernel, out=OUT, grid=(N, 1), options=options, alpha=alpha)(x, y)


def same(x: Any, y: Any, alpha: Any = 2.0) -> Any:
    return alpha * jnp.tanh(x) + y


def close(found: Any, wanted: Any) -> None:
    for x, y in zip(xcube.tree.leaves(found), xcube.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-5, atol=2e-6)


checked = pytest.mark.parametrize("options", [UNCHECKED, Options()], ids=["plain", "checked"])

# at once ----------------------------------------------------------------------------------------


@checked
def test_launch_gives_what_it_writes(options: Options) -> None:
    x = jnp.asarray(X)
    close(launch(Axpy(), N, 1, (x, Y, OUT), {"alpha": 3.0, "block": 4}, options), same(X, Y, 3.0))
    close(x, X)


@checked
def test_result_begins_as_an_array_that_stays(options: Options) -> None:
    before = jnp.asarray(Y)
    found = launch(Axpy(adds=True), (N, 1), (1, 1, 1), (X, Y, before), {}, options)
    close(found, same(X, Y) + Y)
    close(before, Y)


class Exchanged:
    """An array of another library that offers DLPack alone."""

    shape, dtype = Y.shape, Y.dtype

    def __dlpack__(self, **options: Any) -> Any:
        return Y.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return Y.__dlpack_device__()


class Protocol:
    """An array of another library that offers `__array__` alone."""

    shape, dtype = Y.shape, Y.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return Y


@pytest.mark.parametrize("other", [Exchanged(), Protocol()], ids=lambda x: type(x).__name__)
def test_arrays_of_others_have_values(other: Any) -> None:
    close(launch(Axpy(adds=True), N, 1, (X, other, other), {}, CHECKED), same(X, Y) + Y)


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64"])
def test_64_bits_asked_for_by_name_are_kept(dtype: str) -> None:
    @cube.kernel
    def double(x: Any, out: Any) -> None:
        i = cube.ABSOLUTE_POS
        out[i] = x[i] + x[i]

    x = jnp.asarray(np.arange(N) + (1 << 40), dtype)
    found = double[1, N](x, xcube.ShapeDtypeStruct((N,), dtype))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, 2 * (np.arange(N) + (1 << 40)))


def test_a_barrier_that_only_some_units_reach_is_refused() -> None:
    @cube.kernel
    def branch(x: Any, out: Any) -> None:
        i = cube.ABSOLUTE_POS
        if i < 5:
            cube.sync_cube()
            out[i] = x[i]

    @cube.kernel
    def turns(x: Any, out: Any) -> None:
        for k in range(cube.UNIT_POS, 20, 3):
            out[cube.UNIT_POS] = x[k % 8]
            cube.sync_cube()

    for each, word in ((branch, "if"), (turns, "for")):
        said = rf"{each.name}: all units .* the `{word}` .* At .*test_cube_call.py:\d+.*sync_cube"
        with pytest.raises(KernelError, match=said):
            each[1, N](X, OUT)


def test_no_cubes_is_no_launch() -> None:
    close(launch(Axpy(adds=True), 0, 1, (X, Y, jnp.asarray(Y)), {}, Options()), Y)


@pytest.mark.parametrize("where", ["eager", "jit", "vmap", "grad"])
def test_access_out_of_bounds_is_reported(where: str) -> None:
    short, kernel = jnp.asarray(X[: N - 2]), Axpy(guarded=False)

    def function(x: Any) -> Any:
        return axpy(x, Y, kernel=kernel, options=Options())

    calls = {
        "eager": lambda: function(short),
        "jit": lambda: xcube.jit(function)(short),
        "vmap": lambda: xcube.jit(xcube.vmap(function))(jnp.stack([short, short])),
        "grad": lambda: xcube.grad(lambda x: jnp.sum(function(x)))(short),
    }
    rule = r"axpy: an index must lie in 0..4 for x: f32\[5\]; it reads element [56]\."
    rule += rf"[\s\S]* {3 if where == 'vmap' else 1} more such accesses"
    with pytest.raises(IndexError, match=rule):
        calls[where]()


# in programs ------------------------------------------------------------------------------------


@checked
def test_jit_vmap_and_control_flow(options: Options) -> None:
    def f(x: Any, y: Any, alpha: Any = 2.0) -> Any:
        return axpy(x, y, alpha, options=options)

    xs = jnp.stack([X, Y, X + Y])
    close(xcube.jit(f)(X, Y, 0.5), same(X, Y, 0.5))
    close(xcube.jit(xcube.vmap(f, (0, None)))(xs, Y), same(xs, Y))
    close(
        xcube.vmap(f, (None, None, 0))(X, Y, jnp.arange(3.0)), same(X, Y, jnp.arange(3.0)[:, None])
    )
    nested = xcube.vmap(xcube.vmap(f, (0, None)), (None, 0))
    close(nested(xs, xs), xs[:, None] + same(xs, 0.0))
    scanned = lax.scan(lambda c, x: (f(c, x), c), jnp.asarray(X), xs)
    close(scanned, lax.scan(lambda c, x: (same(c, x), c), jnp.asarray(X), xs))
    chosen = lax.cond(jnp.sum(xs) > 0, f, lambda x, y: x, X, Y)
    close(chosen, same(X, Y) if xs.sum() > 0 else X)
    remat = xcube.grad(lambda x: jnp.sum(xcube.checkpoint(f)(x, Y) ** 2))
    close(remat(X), xcube.grad(lambda x: jnp.sum(same(x, Y) ** 2))(X))


@checked
def test_gradients_through_control_flow(options: Options) -> None:
    xs, x = jnp.stack([X, Y, X + Y]), jnp.asarray(X)

    def f(x: Any, y: Any) -> Any:
        return axpy(x, y, options=options)

    def scanned(f: Any) -> Any:
        return lambda x: jnp.sum(lax.scan(lambda c, v: (jnp.sin(f(c, v)), c), x, xs)[0])

    def chosen(f: Any) -> Any:
        return lambda x: jnp.sum(lax.cond(x[0] > 0, lambda x: f(x, Y), lambda x: f(Y, x), x))

    for program in (scanned, chosen):
        close(xcube.grad(program(f))(x), xcube.grad(program(same))(x))
        close(
            xcube.jit(xcube.vmap(xcube.grad(program(f))))(xs),
            xcube.vmap(xcube.grad(program(same)))(xs),
        )
    looped = [
        xcube.jvp(lambda x, f=f: lax.fori_loop(0, 3, lambda i, x: f(x, Y), x), (x,), (x,))
        for f in (f, same)
    ]
    close(*looped)


@dataclass(frozen=True)
class Pair:
    """Two results, of floats of some dtype and of integers."""

    dtype: str
    name: str = "pair"
    parameters: tuple[str, ...] = ("x", "w", "y", "k")
    options: Options = CHECKED

    def bind(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self.parameters, args)), **named}  # noqa: B905

    def kind(self, parameter: str) -> str:
        return "array"

    def expand(self, call: Call, facts: Any) -> Expansion:
        b = Builder("pair")
        b.keeps_calls = True
        x, w, y = b.buffer(self.dtype), b.buffer(self.dtype), b.buffer(self.dtype, "out")
        k, i = b.buffer("i32", "out"), b.place("cube_pos.x")
        value = b.load(x, i)
        b.store(y, i, math.apply(b, "exp", value) * b.load(w, 0) + value)  # type: ignore[operator]
        b.store(k, i, b.op("floor", value).cast("i32"))
        return Expansion(b.finish(), self.parameters, ("y", "k"), ())


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_several_results_and_dtypes(dtype: str) -> None:
    kernel = differentiable(Pair(dtype))
    real = {"f32": np.float32, "f16": np.float16, "bf16": jnp.bfloat16}[dtype]
    x, w = jnp.linspace(-1, 2, 9).astype(real), jnp.full(1, 2, real)
    outs = tuple([xcube.ShapeDtypeStruct((9,), d) for d in (real, np.int32)])
    f = call(kernel, out=outs, grid=(9, 1))
    np.testing.assert_array_equal(np.asarray(f(x, w)[1]), np.floor(np.asarray(x, np.float32)))
    found, wanted = (
        xcube.grad(lambda x, w, g=g: jnp.sum(g(x, w).astype(np.float32)), (0, 1))(x, w)
        for g in (lambda x, w: f(x, w)[0], lambda x, w: jnp.exp(x) * w + x)
    )
    for a, b in zip(found, wanted, strict=True):
        wide = [np.asarray(v, np.float32) for v in (a, b)]
        np.testing.assert_allclose(*wide, rtol=1e-5 if dtype == "f32" else 2e-2)


def test_vmap_of_what_begins_as_an_array() -> None:
    kernel, ys = Axpy(adds=True), jnp.stack([Y, X])

    def f(x: Any, begin: Any) -> Any:
        return call(kernel, out=begin, grid=(N, 1), options=UNCHECKED)(x, Y)

    close(xcube.vmap(f)(ys, ys), same(ys, Y) + ys)
    close(xcube.vmap(f, (0, None))(ys, X), same(ys, Y) + X)
    close(xcube.jit(f, donate_argnums=1)(X, jnp.asarray(Y)), same(X, Y) + Y)


def test_donated_memory_is_written_in_place() -> None:
    def f(x: Any, begin: Any) -> Any:
        return call(Axpy(adds=True), out=begin, grid=(N, 1), options=UNCHECKED)(x, Y)

    program = xcube.inspect(xcube.jit(f, donate_argnums=1))(X, jnp.asarray(Y)).program
    assert len([step for step in program.launches if step.cubes]) == 1


@pytest.mark.parametrize("case", CASES, ids=str)
def test_batches(case: Case) -> None:
    """A batch of one operand, and of all, are the stacked examples."""
    arrays, others = case.arrays(), case.arrays(1)
    stacked = [jnp.stack([x, y]) for x, y in zip(arrays, others, strict=True)]
    wanted = [case.run(*arrays), case.run(*others)]
    close(xcube.vmap(case.run)(*stacked), jnp.stack(wanted))
    first = xcube.vmap(case.run, (0, *[None] * (len(arrays) - 1)))(stacked[0], *arrays[1:])
    close(first, jnp.stack([wanted[0], case.run(others[0], *arrays[1:])]))


def test_custom_vjp_over_a_launch() -> None:
    kernel = Axpy()

    @xcube.custom_vjp
    def f(x: Any, y: Any) -> Any:
        return call(kernel, out=OUT, grid=(N, 1))(x, y)

    f.defvjp(lambda x, y: (f(x, y), x), lambda x, ct: (10 * ct * x, ct))
    close(xcube.grad(lambda x, y: jnp.sum(f(x, y)), (0, 1))(X, Y), (10 * X, np.ones(N)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient_elsewhere(case: Case) -> None:
    """In the interpreter, which checks kernels and finds races, as for a device whose cubes have
    many units."""
    arrays, which = case.arrays(), case.floats()
    gradient = xcube.grad(lambda *args: jnp.sum(case.run(*args) ** 2), which)
    jaxpr = make_jaxpr(gradient)(*arrays).closed()
    close(run(jaxpr, arrays, units=256), gradient(*map(jnp.asarray, arrays)))


def shared_sum(k: Body) -> None:
    """Units of a cube through shared memory."""
    shared, unit = k.b.shared("f32", 8), k.at - k.b.place("cube_pos.x") * 8
    k.b.store(shared, unit, k.apply("sin", k.load(k.inputs[0], k.at)))
    k.b.sync()
    k.b.store(k.out, k.at, k.load(shared, 7 - unit) * k.load(shared, unit))


def test_tangents_through_shared_memory() -> None:
    case = Case("shared_sum", shared_sum, None, (16,), 16, 2, dim=(4, 2, 1))

    def same(x: Any) -> Any:
        y = jnp.sin(x).reshape(2, 8)
        return (y[:, ::-1] * y).reshape(-1)

    x, dx = case.arrays()[0], case.arrays(1)[0]
    jaxpr = make_jaxpr(lambda x, dx: xcube.jvp(case.run, (x,), (dx,)))(x, dx).closed()
    close(run(jaxpr, [x, dx], units=256), xcube.jvp(same, (jnp.asarray(x),), (jnp.asarray(dx),)))


def planes(k: Body) -> None:
    """Units of a plane together; all that the way back knows."""
    x, y = (k.load(buffer, k.at) for buffer in k.inputs)
    total = k.b.plane("sum", x * y)
    first = k.b.plane("broadcast", x, 3)
    across = k.b.plane("shuffle_xor", y, 5)
    before, so_far = k.b.plane("exclusive_sum", x), k.b.plane("inclusive_sum", y * y)
    k.b.store(k.out, k.at, total * first + across * x + before * so_far)


def _planes(x: Any, y: Any) -> Any:
    x, y = x.reshape(-1, 32), y.reshape(-1, 32)
    first, total = x[:, 3:4], jnp.sum(x * y, 1, keepdims=True)
    across = y[:, np.arange(32) ^ 5]
    before, so_far = jnp.cumsum(x, 1) - x, jnp.cumsum(y * y, 1)
    return (total * first + across * x + before * so_far).reshape(-1)


def test_derivatives_through_planes() -> None:
    case = Case("planes", planes, _planes, (128, 128), 128, 2, dim=(32, 2, 1))
    arrays, along = case.arrays(), case.arrays(1)

    def derivatives(f: Any) -> Any:
        def found(x: Any, y: Any, dx: Any, dy: Any) -> Any:
            gradient = xcube.grad(lambda x, y: jnp.sum(jnp.sin(f(x, y))), (0, 1))
            return xcube.jvp(f, (x, y), (dx, dy)), gradient(x, y)

        return found

    jaxpr = make_jaxpr(derivatives(case.run))(*arrays, *along).closed()
    found = run(jaxpr, [*arrays, *along], units=256)
    wanted = derivatives(_planes)(*map(jnp.asarray, [*arrays, *along]))
    for x, y in zip(found, xcube.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, np.asarray(y), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["elementwise", "guarded", "stencil", "dot", "branchy", "lines"])
def test_gradients_of_many_units(name: str) -> None:
    """Cubes of several units, in the interpreter: the same kernels, no two units in each other's
    way."""
    case = next(case for case in CASES if case.name == name)
    shape = case.out // 4 if name == "lines" else case.out
    many = replace(case, cubes=1, dim=(shape, 1, 1))
    arrays, which = case.arrays(), case.floats()

    def gradient(case: Case) -> Any:
        return xcube.grad(lambda *args: jnp.sum(case.run(*args) ** 2), which)

    jaxpr = make_jaxpr(gradient(many))(*arrays).closed()
    close(run(jaxpr, arrays, units=256), gradient(case)(*map(jnp.asarray, arrays)))


def test_kernels_of_gradients_compile_for_gpus(tmp_path: Any) -> None:
    try:
        cuda_compile.version()
    except DeviceError as error:
        pytest.skip(str(error))
    texts = []
    for case in CASES[::3]:
        gradient = xcube.grad(lambda *args, c=case: jnp.sum(c.run(*args) ** 2), case.floats())
        program = lower(make_jaxpr(gradient)(*case.arrays()).closed(), Pretended(units=256))  # type: ignore[arg-type]
        texts += [("kernel", emit(k)) for k in program.kernels if "cotangent" in k.name]
    with config.using(cache=str(tmp_path)):
        assert all(code.startswith(b"\x7fELF") for code in cuda_compile.compile(texts, "sm_90a"))


def test_export_says_that_it_cannot() -> None:
    exported = export.export(xcube.jit(lambda x: axpy(x, Y)))(X)
    with pytest.raises(ExportError, match=r"launch cannot be exported"):
        exported.serialize()


def test_cost_and_text() -> None:
    jitted = xcube.jit(lambda x, y: axpy(x, y))
    assert jitted.lower(X, Y).cost_analysis()["bytes accessed"] == 3 * 4 * N
    assert "launch[handle=axpy]" in str(make_jaxpr(jitted)(X, Y))


def test_an_undifferentiable_kernel_says_how_to_make_it_so() -> None:
    def f(x: Any) -> Any:
        return jnp.sum(launch(Axpy(), N, 1, (x, Y, OUT), {}, UNCHECKED))

    with pytest.raises(TraceError, match=r"axpy: a kernel must be differentiable.*custom_vjp"):
        xcube.grad(f)(X)


# refusals ---------------------------------------------------------------------------------------

BIG = xcube.ShapeDtypeStruct((N,), np.complex64)


@pytest.mark.parametrize(
    ("count", "dim", "args", "error", "message"),
    [
        (-1, 1, (X, Y, OUT), ValueError, r"axpy: the count .* integers >= 0; got -1"),
        (1, 0, (X, Y, OUT), ValueError, r"axpy: the dim .* integers >= 1; got 0"),
        (1.5, 1, (X, Y, OUT), ValueError, r"got 1\.5"),
        ((1, 1, 1, 1), 1, (X, Y, OUT), ValueError, r"1 to 3 integers"),
        (1, (64, 64), (X, Y, OUT), ValueError, r"at most 1024 units; got \(64, 64\), .* 4096"),
        ((1 << 20, 1 << 20), 1, (X, Y, OUT), ValueError, r"at most 2147483647 cubes"),
        (1, 1, (X, 3.0, OUT), TypeError, r"axpy: y must be an array, .*; got 3\.0"),
        (1, 1, (X, Y), TypeError, "missing a required argument: 'out'"),
        (
            1,
            1,
            (X, OUT, OUT),
            ShapeError,
            r"axpy: y must be an array, .* only reads it; got .*f32\[7\]",
        ),
        (1, 1, (X, Y, BIG), DtypeError, r"axpy: out must be of numbers that are not complex"),
    ],
)
def test_refusals(count: Any, dim: Any, args: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        launch(Axpy(), count, dim, args, {}, UNCHECKED)
