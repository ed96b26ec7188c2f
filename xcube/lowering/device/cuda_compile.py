"""CUDA C++ text in, machine code for one architecture out, by NVRTC: no GPU, driver or header.

Every text is compiled once: the code is kept in the cache on disk, under a key of everything that
determines it. Texts asked for together are compiled by several threads, for NVRTC runs without
Python's lock."""

from __future__ import annotations

import functools
import importlib
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from xcube.errors import DeviceError, LoweringError
from xcube.lowering import cache

try:
    nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
except ImportError:
    nvrtc = None  # `_answer` says what to install

OPTIONS = (
    "--std=c++17",
    "--fmad=false",  # a kernel says fma where it means it; a sum that is exact must stay one
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--disable-warnings",  # a value that nothing uses is no fault
)
OLDEST = 80  # bf16, and minima that keep a NaN, are instructions from sm_80 on

_TARGET = re.compile(r"sm_(\d+)[af]?")
_HEAD = re.compile(
    r"// cube_dim (?P<x>\d+) (?P<y>\d+) (?P<z>\d+) "
    r"threads (?P<threads>\d+) shared (?P<shared>\d+) scratch (?P<scratch>\d+)(?P<maps>( map \S+)*)"
)
_PLACE = re.compile(r"\((\d+)\): error")


@dataclass(frozen=True, slots=True)
class MapShape:
    """A tensor map among a kernel's parameters: the numbers of its buffer and of the scalars that
    are its sizes and strides, in elements, innermost dimension first, and the box's elements."""

    buffer: int
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """How a kernel is launched, as the first line of its text says.

    `threads` of a block, at most; `shared` bytes of dynamic shared memory of a block; `scratch`
    bytes of global memory for each thread of the grid; `maps` among the parameters.
    """

    cube_dim: tuple[int, int, int]
    threads: int
    shared: int
    scratch: int
    maps: tuple[MapShape, ...] = ()

    @property
    def single(self) -> bool:
        """Whether a cube is one thread; else it is a block."""
        return self.cube_dim == (1, 1, 1)


def shape(text: str) -> Shape:
    """The launch shape of a kernel's text.

    Raises LoweringError if the first line does not state it.

    >>> shape("// cube_dim 32 4 1 threads 128 shared 4096 scratch 0")
    Shape(cube_dim=(32, 4, 1), threads=128, shared=4096, scratch=0, maps=())
    """
    head = text.split("\n", 1)[0]
    found = _HEAD.fullmatch(head)
    if found is None:
        raise LoweringError(
            "launch: the first line of a kernel's text must be `// cube_dim X Y Z threads N shared "
            f"N scratch N`; got {head!r}. Use a text of the CUDA emitter."
        )
    cube_dim = (int(found["x"]), int(found["y"]), int(found["z"]))
    threads, shared, scratch = (int(found[name]) for name in ("threads", "shared", "scratch"))
    maps = [_map_shape(each) for each in found["maps"].split(" map ")[1:]]
    return Shape(cube_dim, threads, shared, scratch, tuple(maps))


def _map_shape(text: str) -> MapShape:
    buffer, dtype, *lists = text.split(":")
    sizes, strides, box = (tuple([int(n) for n in part.split(",")]) for part in lists)
    return MapShape(int(buffer), dtype, sizes, strides, box)


def compile(sources: Sequence[tuple[str, str]], target: str) -> list[bytes]:
    """The cubins of kernels given as (name, text), in order, for a target such as "sm_90a".

    Raises DeviceError if NVRTC is not installed or does not know the target, LoweringError if a
    text is not valid CUDA C++ or does not define its name.
    """
    _check_target(target)
    recipe = repr((version(), OPTIONS, target))
    keys = [cache.key("cuda", recipe, name, text) for name, text in sources]
    wanted = dict(zip(keys, sources, strict=True))
    store = cache.current()
    found = {key: code for key in wanted if (code := store.load(key)) is not None}
    absent = [key for key in wanted if key not in found]
    for key, code in zip(absent, _compiled([wanted[key] for key in absent], target), strict=True):
        store.store(key, code)
        found[key] = code
    return [found[key] for key in keys]


def ptx(name: str, text: str, target: str) -> str:
    """The PTX of one text, for people to read.

    Raises what `compile` raises.
    """
    _check_target(target)
    return _compile(name, text, target, "PTX").rstrip(b"\0").decode()


def version() -> str:
    """The version of NVRTC, such as "13.0".

    Raises DeviceError if it is not installed.
    """
    return ".".join(map(str, _call("nvrtcVersion")))


def targets() -> list[str]:
    """The architectures that the installed NVRTC compiles for, without their variants.

    Raises DeviceError if it is not installed.
    """
    return [f"sm_{number}" for number in _call("nvrtcGetSupportedArchs")[0]]


# one text ---------------------------------------------------------------------------------------


def _compiled(sources: Sequence[tuple[str, str]], target: str) -> list[bytes]:
    if len(sources) <= 1:
        return [_compile(name, text, target) for name, text in sources]
    with ThreadPoolExecutor(min(len(sources), os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda source: _compile(source[0], source[1], target), sources))


def _compile(name: str, text: str, target: str, what: str = "CUBIN") -> bytes:
    (program,) = _call("nvrtcCreateProgram", text.encode(), f"{name}.cu".encode(), 0, [], [])
    try:
        options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={target}")]
        status, *_ = _answer("nvrtcCompileProgram", program, len(options), options)
        if status != 0:
            raise _fault(name, text, target, _log(program))
        code = _read(program, what)
    finally:
        _call("nvrtcDestroyProgram", program)
    if name.encode() not in code:
        raise LoweringError(
            f"compile: the text of kernel {name!r} must define a function of that name; "
            'it does not. Declare it as `extern "C" __global__`.'
        )
    return code


def _log(program: Any) -> str:
    return _read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()


def _read(program: Any, what: str) -> bytes:
    (size,) = _call(f"nvrtcGet{what}Size", program)
    data = bytearray(size)
    _call(f"nvrtcGet{what}", program, data)
    return bytes(data)


def _fault(name: str, text: str, target: str, log: str) -> LoweringError:
    """The error of a text that does not compile, with NVRTC's log and the lines it names."""
    places = sorted({int(place) for place in _PLACE.findall(log)})
    lines = text.split("\n")
    shown = "".join([f"\n  {place:4} | {lines[place - 1]}" for place in places[:10]])
    return LoweringError(
        f"compile: the text of kernel {name!r} must be valid CUDA C++ for {target}; NVRTC "
        f"{version()} says:\n{log}{shown}\n"
        "This is a fault of xcube's CUDA emitter, please report it with the kernel."
    )


# the library ------------------------------------------------------------------------------------


def _call(function: str, *arguments: Any) -> list[Any]:
    """What a function of NVRTC gives besides its status, which must be good."""
    status, *values = _answer(function, *arguments)
    if status != 0:
        raise DeviceError(f"compile: {function} must succeed; it failed with {status.name}.")
    return values


def _answer(function: str, *arguments: Any) -> tuple[Any, ...]:
    """All that a function of NVRTC gives, its status first."""
    if nvrtc is None:
        raise DeviceError(
            "compile: CUDA kernels are compiled by NVRTC through the package cuda-bindings; it is "
            "not installed. Install the extra: pip install 'xcube[cuda]'."
        )
    try:
        return getattr(nvrtc, function)(*arguments)
    except RuntimeError as error:  # the bindings load the library at the first call
        raise DeviceError(
            f"compile: NVRTC's library must be there; {str(error).splitlines()[0]}. Install the "
            "extra: pip install 'xcube[cuda]', or nvidia-cuda-nvrtc itself."
        ) from error


@functools.cache
def _check_target(target: str) -> None:
    found = _TARGET.fullmatch(target)
    if found is None or int(found[1]) < OLDEST:
        raise DeviceError(
            f"compile: the target must be an architecture from sm_{OLDEST} on, such as 'sm_90a'; "
            f"got {target!r}."
        )
    known = targets()
    if f"sm_{found[1]}" not in known:
        raise DeviceError(
            f"compile: NVRTC {version()} compiles for {', '.join(known)}; got {target!r}. "
            "Install a newer nvidia-cuda-nvrtc."
        )
