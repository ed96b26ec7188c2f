"""Kernels of one GPU: from texts to cubins (`cuda_compile`) to functions that the driver has
loaded, and how many blocks and threads a launch takes. Cubes of one unit share blocks, one thread
each; others are a block of their own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xcube import errors
from xcube.lowering.device import cuda_compile
from xcube.lowering.device.cuda_compile import Shape
from xcube.lowering.device.cuda_context import Context

_STATIC_SHARED = 48 << 10  # bytes of shared memory that need no permission
_BLOCKS = (256, 128, 64, 32)  # threads of a block, for cubes of one unit
_SCRATCH = 256 << 20  # bytes that the threads of one launch may have together
_COPY_THREADS = 256
_COPY_BYTES = 16  # that a thread moves at a time
_COPY_BLOCKS = 8  # for each core, at most

COPIES = 8
"""Copies of one launch of `xcube_copy`, at most."""

OWN = f"""\
// cube_dim {_COPY_THREADS} 1 1 threads {_COPY_THREADS} shared 0 scratch 0
// What graphs need beside the program's kernels: copies, and values of conditional nodes.
typedef unsigned long long u64;
struct Copies {{ u64 cells[{3 * COPIES}]; }};
extern "C" __device__ void cudaGraphSetConditional(u64 handle, unsigned int value);

extern "C" __global__ void xcube_copy(const Copies copies) {{
  char* target = (char*)copies.cells[3 * blockIdx.y];
  const char* source = (const char*)copies.cells[3 * blockIdx.y + 1];
  const u64 nbytes = copies.cells[3 * blockIdx.y + 2];
  const u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
  const u64 step = gridDim.x * (u64)blockDim.x;
  u64 done = 0;
  if (((u64)target | (u64)source) % 16 == 0) {{
    done = nbytes / 16;
    for (u64 i = first; i < done; i += step) ((uint4*)target)[i] = ((const uint4*)source)[i];
    done *= 16;
  }}
  for (u64 i = done + first; i < nbytes; i += step) target[i] = source[i];
}}

extern "C" __global__ void xcube_test(u64 handle, const unsigned char* predicate) {{
  cudaGraphSetConditional(handle, *predicate != 0);
}}

extern "C" __global__ void xcube_pick(u64 handle, const int* index, u64 count) {{
  const int last = (int)count - 1;
  cudaGraphSetConditional(handle, *index < 0 ? 0 : *index > last ? last : *index);
}}
"""


Dim = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Extent:
    """Blocks of a launch, threads of a block, and bytes of scratch memory for all of them."""

    grid: Dim
    block: Dim
    scratch: int = 0


ONE = Extent((1, 1, 1), (1, 1, 1))


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel that is loaded, and how its text says it is launched."""

    name: str
    handle: Any
    shape: Shape

    def extent(self, cubes: int, cores: int) -> Extent:
        """What so many cubes take; few cubes of one unit are spread over all cores."""
        shape = self.shape
        if not shape.single:
            return Extent((cubes, 1, 1), shape.cube_dim)
        sizes = [block for block in _BLOCKS if block <= shape.threads]
        fitting = (block for block in sizes if cubes >= 2 * cores * block)
        block = next(fitting, sizes[-1])
        grid = -(-cubes // block)
        if shape.scratch:
            grid = max(1, min(grid, _SCRATCH // (shape.scratch * block)))
        return Extent((grid, 1, 1), (block, 1, 1), grid * block * shape.scratch)


def copy_extent(nbytes: int, copies: int, cores: int) -> Extent:
    """What `xcube_copy` takes for so many copies, the largest of `nbytes` bytes."""
    blocks = min(-(-nbytes // (_COPY_BYTES * _COPY_THREADS)), _COPY_BLOCKS * cores)
    return Extent((max(1, blocks), copies, 1), (_COPY_THREADS, 1, 1))


@dataclass(slots=True)
class _Kernel:
    name: str
    cubin: bytes
    shape: Shape
    function: Function | None = None


class Code:
    """The kernels that one GPU has compiled, by handle; modules are loaded when first used."""

    def __init__(self, context: Context, target: str) -> None:
        self._context, self.target = context, target
        self._kernels: list[_Kernel] = []
        self._own: dict[str, Function] = {}

    @property
    def driver(self) -> Any:
        """The module of bindings."""
        return self._context.driver

    def handles(self, sources: Sequence[tuple[str, str]]) -> list[int]:
        """Handles of kernels given as (name, text). Raises LoweringError if a text is not valid."""
        shapes = [cuda_compile.shape(text) for _, text in sources]
        cubins = cuda_compile.compile(list(sources), self.target) if sources else []
        with self._context.lock:
            first = len(self._kernels)
            for (name, _), cubin, shape in zip(sources, cubins, shapes, strict=True):
                self._kernels.append(_Kernel(name, cubin, shape))
            return list(range(first, len(self._kernels)))

    def function(self, handle: int) -> Function:
        """The loaded kernel of a handle."""
        kernel = self._kernels[handle]
        if kernel.function is None:
            with self._context.lock, self._context:
                kernel.function = self._load(kernel)
        return kernel.function

    def own(self, name: str) -> Function:
        """One of the kernels of `OWN`."""
        if not self._own:
            names = ("xcube_copy", "xcube_test", "xcube_pick")
            (cubin,) = cuda_compile.compile([(names[0], OWN)], self.target)
            shape = cuda_compile.shape(OWN)
            with self._context.lock, self._context:
                module = self._module(names[0], cubin)
                for each in names:
                    self._own[each] = Function(each, self._find(module, each), shape)
        return self._own[name]

    def assembly(self, name: str, text: str) -> str:
        """The machine code of a kernel's text, by the disassembler of the CUDA toolkit.

        Raises DeviceError if there is no disassembler, LoweringError if the text is not valid.
        """
        tool = shutil.which("nvdisasm")
        if tool is None:
            raise errors.DeviceError(
                "assembly: the program nvdisasm must be on the path; it was not found. Install "
                "the CUDA toolkit, or the package nvidia-cuda-nvdisasm."
            )
        (cubin,) = cuda_compile.compile([(name, text)], self.target)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.cubin"
            path.write_bytes(cubin)
            found = subprocess.run([tool, str(path)], capture_output=True, text=True, check=False)
        if found.returncode:
            raise errors.DeviceError(f"assembly: nvdisasm failed: {found.stderr.strip()}")
        return found.stdout

    def _load(self, kernel: _Kernel) -> Function:
        handle = self._find(self._module(kernel.name, kernel.cubin), kernel.name)
        shared = kernel.shape.shared
        if shared > _STATIC_SHARED:
            driver = self._context.driver
            most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            code = driver.cuFuncSetAttribute(handle, most, shared)[0]
            self._context.check(code, f"{shared} bytes of shared memory for {kernel.name}")
        return Function(kernel.name, handle, kernel.shape)

    def _module(self, name: str, cubin: bytes) -> Any:
        driver = self._context.driver
        return self._context.value(driver.cuModuleLoadData(cubin), f"loading kernel {name}")

    def _find(self, module: Any, name: str) -> Any:
        found = self._context.driver.cuModuleGetFunction(module, name.encode())
        return self._context.value(found, f"finding kernel {name}")
