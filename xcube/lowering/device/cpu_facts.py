"""What the host's processor is: vector width, native formats, caches, cores."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence

from xcube.lowering.device import cpu_tiles
from xcube.lowering.device.base import Facts
from xcube.lowering.device.cpu_code import Code
from xcube.lowering.device.cpu_pool import available_cores

_DEFAULT_L1 = 32 << 10
_DEFAULT_L2 = 512 << 10
_CACHES = "/sys/devices/system/cpu/cpu0/cache/index*"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

# What the hardware does without conversion: our word, and LLVM's names for it on x86 and Arm.
_NATIVE = {
    "f16": ("avx512fp16", "fullfp16"),
    "bf16": ("avx512bf16", "bf16"),
    "f16_convert": ("f16c", "neon"),
    "i8_dot": ("avx512vnni", "avxvnni", "dotprod"),
    "gather": ("avx2", "sve"),
    "masked_store": ("avx2", "sve"),
}
_TILES = {"amx_bf16": ("amx-bf16",), "amx_int8": ("amx-int8",)}  # which take the system's leave


def facts(name: str, code: Code, memory_bytes: int) -> Facts:
    """The facts of the machine that `code` compiles for."""
    caches = _cache_sizes()
    return Facts(
        name=name,
        kind="cpu",
        model=_model() or code.cpu,
        cores=available_cores(),
        vector_bits=_vector_bits(code.features),
        l1_bytes=caches.get(1, _DEFAULT_L1),
        l2_bytes=caches.get(2, _DEFAULT_L2),
        memory_bytes=memory_bytes,
        features=_native(code.features),
    )


def _vector_bits(features: Mapping[str, bool]) -> int:
    if features.get("avx512f"):
        return 512
    return 256 if features.get("avx2") else 128


def _native(features: Mapping[str, bool]) -> frozenset[str]:
    found = _named(_NATIVE, features)
    tiles = _named(_TILES, features)
    return found | tiles if tiles and cpu_tiles.allowed() else found


def _named(table: Mapping[str, Sequence[str]], features: Mapping[str, bool]) -> frozenset[str]:
    return frozenset(
        word for word, names in table.items() if any(features.get(name) for name in names)
    )


def _cache_sizes() -> dict[int, int]:
    """Bytes of the data cache of each level, as far as the system tells."""
    sizes: dict[int, int] = {}
    for folder in glob.glob(_CACHES):
        level, kind, size = (_line(folder, name) for name in ("level", "type", "size"))
        if kind in ("Data", "Unified") and level.isdigit() and size[:-1].isdigit():
            sizes[int(level)] = int(size[:-1]) * _UNITS.get(size[-1], 1)
    return sizes


def _line(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _model() -> str:
    """The processor's name as its maker gives it, if the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("model name")]
    except OSError:
        return ""
    return lines[0].partition(":")[2].strip() if lines else ""
