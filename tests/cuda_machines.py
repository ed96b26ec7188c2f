"""Where the text of the CUDA emitter runs in tests: on a GPU, or, as what it is, namely C++, on the
host. A shim stands in for CUDA there: its builtin functions, one thread for each unit of a block,
and the few instructions of PTX. The host compiler also watches for undefined behaviour, misaligned
accesses among it."""

from __future__ import annotations

import contextlib
import ctypes
import math
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xcube.lowering.cube import ir
from xcube.lowering.cube.arithmetic import NUMPY
from xcube.lowering.device import cuda_compile
from xcube.lowering.emit.cuda import emit

try:
    from cuda.bindings import driver
except ImportError:
    driver = None

Array = np.ndarray[Any, Any]
ALIGN = 256
BLOCK = 32  # threads of a block where a cube is a thread
FLAGS = (
    *("-std=c++17", "-O0", "-w", "-fPIC", "-shared", "-pthread", "-mf16c"),
    *("-ffp-contract=off", "-frounding-math", "-fno-strict-aliasing"),
    *("-fsanitize=undefined,float-cast-overflow", "-fno-sanitize=vptr"),
)

SHIM = r"""
#include <fenv.h>
#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <functional>
#include <limits>
#include <thread>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(n)
struct dim3 { unsigned x, y, z; };
static thread_local dim3 blockIdx, threadIdx;
static dim3 blockDim, gridDim;
static pthread_barrier_t barrier;
alignas(256) static unsigned char shared_memory[1 << 18];
static void __syncthreads() { pthread_barrier_wait(&barrier); }

static pthread_barrier_t planes[32];
static unsigned exchanged[1024];
static unsigned unit_number() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
template <class F> static unsigned by_plane(unsigned x, F function) {
  const unsigned unit = unit_number();
  exchanged[unit] = x;
  pthread_barrier_wait(&planes[unit / 32]);
  const unsigned result = function(exchanged + unit / 32 * 32);
  pthread_barrier_wait(&planes[unit / 32]);
  return result;
}
static unsigned __shfl_sync(unsigned members, unsigned x, unsigned origin) {
  if (origin > 31 || !(members >> origin & 1)) abort();
  return by_plane(x, [&](unsigned* values) { return values[origin]; });
}
static unsigned __ballot_sync(unsigned members, bool x) {
  return by_plane(x, [&](unsigned* values) {
    unsigned votes = 0;
    for (unsigned k = 0; k < 32; ++k) if (members >> k & 1) votes |= values[k] << k;
    return votes;
  });
}

static void launch(const std::function<void()>& unit, unsigned grid, dim3 block, bool meet) {
  const unsigned units = block.x * block.y * block.z;
  blockDim = block; gridDim = {grid, 1, 1};
  for (unsigned b = 0; b < grid; ++b) {
    auto run = [&](unsigned t) {
      blockIdx = {b, 0, 0};
      threadIdx = {t % block.x, t / block.x % block.y, t / (block.x * block.y)};
      unit();
    };
    if (!meet) { for (unsigned t = 0; t < units; ++t) run(t); continue; }
    pthread_barrier_init(&barrier, nullptr, units);
    for (unsigned p = 0; p * 32 < units; ++p)
      pthread_barrier_init(&planes[p], nullptr, units - p * 32 < 32 ? units - p * 32 : 32);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < units; ++t) threads.emplace_back(run, t);
    for (auto& thread : threads) thread.join();
    pthread_barrier_destroy(&barrier);
  }
}

template <class To, class From> static To same_bits(From x) {
  To y; static_assert(sizeof x == sizeof y); memcpy(&y, &x, sizeof y); return y;
}
static unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
static float __uint_as_float(unsigned x) { return same_bits<float>(x); }
static long long __double_as_longlong(double x) { return same_bits<long long>(x); }
static double __longlong_as_double(long long x) { return same_bits<double>(x); }
static int __popc(unsigned x) { return __builtin_popcount(x); }
static int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static int __mulhi(int x, int y) { return (long long)x * y >> 32; }
static unsigned __umulhi(unsigned x, unsigned y) { return (unsigned long long)x * y >> 32; }
static long long __mul64hi(long long x, long long y) { return (__int128)x * y >> 64; }
static unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return (unsigned __int128)x * y >> 64;
}

template <class To, class From> static To cut(From x) {  // as the hardware has it
  using limits = std::numeric_limits<To>;
  if (x != x) return sizeof(From) + sizeof(To) == 8 ? To(0) : To(1ull << (8 * sizeof(To) - 1));
  if (trunc(x) < (From)limits::min()) return limits::min();
  if (x >= ldexp((From)1, limits::digits)) return limits::max();
  return (To)x;
}
#define CUT(name, from, to) static to name(from x) { return cut<to, from>(x); }
CUT(__float2int_rz, float, int) CUT(__float2uint_rz, float, unsigned)
CUT(__float2ll_rz, float, long long) CUT(__float2ull_rz, float, unsigned long long)
CUT(__double2int_rz, double, int) CUT(__double2uint_rz, double, unsigned)
CUT(__double2ll_rz, double, long long) CUT(__double2ull_rz, double, unsigned long long)

template <class To, class From> static To directed(int mode, From x) {
  volatile From from = x; fesetround(mode); volatile To to = (To)from; fesetround(FE_TONEAREST);
  return to;
}
static double sum(int mode, double x, double y) {
  volatile double a = x, b = y; fesetround(mode); volatile double c = a + b;
  fesetround(FE_TONEAREST); return c;
}
#define TO_SINGLE(name, from) \
  static float name(from x) { return directed<float>(FE_TOWARDZERO, x); }
TO_SINGLE(__int2float_rz, int) TO_SINGLE(__uint2float_rz, unsigned)
TO_SINGLE(__ll2float_rz, long long) TO_SINGLE(__ull2float_rz, unsigned long long)
TO_SINGLE(__double2float_rz, double)
static double __dadd_rz(double x, double y) { return sum(FE_TOWARDZERO, x, y); }
static double __dadd_ru(double x, double y) { return sum(FE_UPWARD, x, y); }
static double __dadd_rd(double x, double y) { return sum(FE_DOWNWARD, x, y); }

static float ptx_min_NaN_f32(float x, float y) { return x < y || x != x ? x : y; }
static float ptx_max_NaN_f32(float x, float y) { return x > y || x != x ? x : y; }
static float ptx_ex2_approx_ftz_f32(float x) { return exp2f(x); }
static float ptx_cvt_f32_f16(unsigned short x) { return _cvtsh_ss(x); }
static unsigned short ptx_cvt_rn_f16_f32(float x) { return _cvtss_sh(x, 0); }
static unsigned short ptx_cvt_rn_bf16_f32(float x) {
  const unsigned bits = __float_as_uint(x);
  return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static float exact_sum(double x, double y) {  // rounded to odd, twice
  double s = __dadd_rz(x, y);
  if (__dadd_ru(x, y) != __dadd_rd(x, y)) s = __longlong_as_double(__double_as_longlong(s) | 1);
  const float f = __double2float_rz(s);
  return f == s || s != s ? f : __uint_as_float(__float_as_uint(f) | 1);
}
static float bf16(unsigned short x) { return __uint_as_float((unsigned)x << 16); }
static unsigned short ptx_fma_rn_f16(unsigned short x, unsigned short y, unsigned short z) {
  return _cvtss_sh(exact_sum((double)_cvtsh_ss(x) * _cvtsh_ss(y), _cvtsh_ss(z)), 0);
}
static unsigned short ptx_fma_rn_bf16(unsigned short x, unsigned short y, unsigned short z) {
  return ptx_cvt_rn_bf16_f32(exact_sum((double)bf16(x) * bf16(y), bf16(z)));
}

template <class T> struct as { using type = T; };
template <class T> using as_is = typename as<T>::type;  // an operand converts to what is there
template <class T> static T atomicCAS(T* at, as_is<T> old, as_is<T> value) {
  __atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return old;
}
template <class T, class F> static T changed(T* at, F function) {
  T old; __atomic_load(at, &old, __ATOMIC_SEQ_CST);
  for (T value = function(old);
       !__atomic_compare_exchange(at, &old, &value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);)
    value = function(old);
  return old;
}
template <class T> static T plus(T x, T y) { T z; __builtin_add_overflow(x, y, &z); return z; }
static float plus(float x, float y) { return x + y; }
static double plus(double x, double y) { return x + y; }
#define ATOMIC(name, value) \
  template <class T> static T name(T* at, as_is<T> y) { \
    return changed(at, [&](T x) { return value; }); \
  }
ATOMIC(atomicAdd, plus(x, y)) ATOMIC(atomicMin, x < y ? x : y) ATOMIC(atomicMax, x > y ? x : y)
ATOMIC(atomicAnd, x & y) ATOMIC(atomicOr, x | y) ATOMIC(atomicXor, x ^ y) ATOMIC(atomicExch, y)
"""

_PTX = re.compile(r'asm\("([\w.]+) [^"]*" : "=\w"\((\w+)\) : (.*)\);')
_OPERAND = re.compile(r'"\w"\((\w+)\)')


@dataclass(frozen=True)
class Order:
    """How a launch is asked for: blocks, and the dimensions of a block."""

    grid: int
    block: tuple[int, int, int]
    shape: cuda_compile.Shape

    @property
    def scratch(self) -> int:
        return self.grid * math.prod(self.block) * self.shape.scratch


def order(text: str, cubes: int) -> Order:
    shape = cuda_compile.shape(text)
    if not shape.single:
        return Order(cubes, shape.cube_dim, shape)
    grid = 1 if shape.scratch else -(-cubes // BLOCK)  # with scratch, threads take several cubes
    return Order(grid, (BLOCK // 4 if shape.scratch else BLOCK, 1, 1), shape)


def cells(kernel: ir.Kernel, scalars: Sequence[int | float | bool]) -> Array:
    """One 64-bit cell for each scalar; junk above the value must not matter."""
    result = np.full(len(scalars), 0x5A5A5A5A5A5A5A5A, np.int64)
    for place, (name, value) in enumerate(zip(kernel.scalars, scalars, strict=True)):
        bits = np.array([value]).astype(NUMPY[name.type.dtype]).view(np.uint8)
        result[place : place + 1].view(np.uint8)[: len(bits)] = bits
    return result


# the host ---------------------------------------------------------------------------------------


class Host:
    """Kernels as one shared library of the host's C++ compiler."""

    def __init__(self, kernels: Mapping[str, ir.Kernel], folder: Path) -> None:
        self.kernels = kernels
        self.texts = {name: emit(kernel, name) for name, kernel in kernels.items()}
        source, target = folder / "kernels.cpp", folder / "kernels.so"
        source.write_text(SHIM + "".join([_unit(name, text) for name, text in self.texts.items()]))
        command = [_compiler(), *FLAGS, "-o", str(target), str(source)]
        found = subprocess.run(command, capture_output=True, text=True)
        assert found.returncode == 0, found.stderr[:4000]
        self.library = ctypes.CDLL(str(target))

    def run(
        self, name: str, buffers: Sequence[Array], scalars: Sequence[Any] = (), cubes: int = 1
    ) -> None:
        """Launch a kernel; written buffers are updated in place."""
        launch = order(self.texts[name], cubes)
        numbers = cells(self.kernels[name], scalars)
        with _aligned([*buffers, np.zeros(launch.scratch, np.uint8)]) as copies:
            pointers = (ctypes.c_void_p * len(copies))(*[copy.ctypes.data for copy in copies])
            getattr(self.library, f"run_{name}")(
                pointers,
                ctypes.c_void_p(numbers.ctypes.data),
                ctypes.c_longlong(cubes),
                ctypes.c_uint(launch.grid),
                *map(ctypes.c_uint, launch.block),
            )


@contextlib.contextmanager
def _aligned(arrays: Sequence[Array]) -> Iterator[list[Array]]:
    """Copies whose memory begins as a device's would; the arrays get their content back. Arrays
    that are one memory have one copy."""
    copies: dict[int, Array] = {}
    for array in arrays:
        room = np.zeros(array.nbytes + ALIGN, np.uint8)
        start = -room.ctypes.data % ALIGN
        copy = room[start : start + array.nbytes].view(array.dtype)
        copy[...] = array
        copies.setdefault(array.ctypes.data, copy)
    yield [copies[array.ctypes.data] for array in arrays]
    for array in arrays:
        array[...] = copies[array.ctypes.data]


def _unit(name: str, text: str) -> str:
    """A kernel's text and the function that launches it."""
    text = _PTX.sub(_shimmed, text)
    text = re.sub(r"extern __shared__.*", "u8* const shared = shared_memory;", text)
    found = re.search(rf"^{name}\((.*)\) {{$", text, re.MULTILINE)
    assert found is not None
    arguments, cell, buffer = [], 0, 0
    for parameter in found[1].split(", "):
        type = parameter.rsplit(" ", 1)[0].replace("__restrict__", "").strip()
        if parameter == "index cubes":
            arguments.append("cubes")
        elif type.endswith("*"):
            arguments.append(f"({type})buffers[{buffer}]")
            buffer += 1
        else:
            arguments.append(f"same_bits<{type}>(cells[{cell}])")
            cell += 1
    meet = "true" if not cuda_compile.shape(text).single else "false"
    return (
        f"\nnamespace of_{name} {{\n{text}\n"
        f'extern "C" void run_{name}(void** buffers, long long* cells, long long cubes, '
        "unsigned grid, unsigned x, unsigned y, unsigned z) {\n"
        f"  launch([&] {{ {name}({', '.join(arguments)}); }}, grid, {{x, y, z}}, {meet});\n}}\n}}\n"
    )


def _shimmed(found: re.Match[str]) -> str:
    operands = ", ".join(_OPERAND.findall(found[3]))
    return f"{found[2]} = ptx_{found[1].replace('.', '_')}({operands});"


def _compiler() -> str:
    compiler = shutil.which("g++")
    if compiler is None or platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("running CUDA's text on the host takes g++ on x86-64")
    return compiler


# the GPU ----------------------------------------------------------------------------------------


class Gpu:
    """Kernels compiled by NVRTC and launched on device 0."""

    def __init__(self, kernels: Mapping[str, ir.Kernel], _: Path) -> None:
        if (reason := _no_gpu()) is not None:
            pytest.skip(f"there is no CUDA device: {reason}")
        self.kernels = kernels
        self.texts = {name: emit(kernel, name) for name, kernel in kernels.items()}
        device = _driver("cuDeviceGet", 0)
        _driver("cuCtxSetCurrent", _driver("cuDevicePrimaryCtxRetain", device))
        attribute = driver.CUdevice_attribute
        major, minor = (
            _driver("cuDeviceGetAttribute", number, device)
            for number in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        target = f"sm_{major}{minor}"
        codes = cuda_compile.compile(list(self.texts.items()), target)
        self.functions = {}
        for name, code in zip(self.texts, codes, strict=True):
            module = _driver("cuModuleLoadData", code)
            self.functions[name] = _driver("cuModuleGetFunction", module, name.encode())

    def run(
        self, name: str, buffers: Sequence[Array], scalars: Sequence[Any] = (), cubes: int = 1
    ) -> None:
        """Launch a kernel; written buffers are updated in place."""
        launch = order(self.texts[name], cubes)
        scratch = [np.zeros(launch.scratch, np.uint8)] if launch.scratch else []
        homes = {
            array.ctypes.data: _driver("cuMemAlloc", max(array.nbytes, 1)) for array in buffers
        }
        room = [_driver("cuMemAlloc", array.nbytes) for array in scratch]
        for array in buffers:
            _driver("cuMemcpyHtoD", homes[array.ctypes.data], array.ctypes.data, array.nbytes)
        numbers = cells(self.kernels[name], scalars).tolist()
        pointers = [int(homes[array.ctypes.data]) for array in buffers]
        values = (*pointers, *numbers, cubes, *map(int, room))
        kinds = [ctypes.c_void_p] * len(pointers) + [ctypes.c_longlong] * (len(numbers) + 1)
        kinds += [ctypes.c_void_p] * len(room)
        _driver(
            "cuLaunchKernel",
            self.functions[name],
            *(launch.grid, 1, 1, *launch.block, launch.shape.shared, 0),
            *((values, tuple(kinds)), 0),
        )
        _driver("cuCtxSynchronize")
        for array in buffers:
            _driver("cuMemcpyDtoH", array.ctypes.data, homes[array.ctypes.data], array.nbytes)
        for home in (*homes.values(), *room):
            _driver("cuMemFree", home)


def _no_gpu() -> str | None:
    """Why no GPU can be used, or None."""
    if driver is None:
        return "cuda-bindings is not installed"
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:  # the driver's library is not there
        return str(error).split("\n")[0]
    return None if status == driver.CUresult.CUDA_SUCCESS else status.name


def _driver(name: str, *arguments: Any) -> Any:
    status, *values = getattr(driver, name)(*arguments)
    assert status == driver.CUresult.CUDA_SUCCESS, f"{name}: {status.name}"
    return values[0] if values else None


MACHINES = {"host": Host, "gpu": Gpu}
