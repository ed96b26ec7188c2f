"""Memory of the CPU device: a caching allocator with size classes, and the buffers it hands out.

A size is rounded up to one of four classes per power of two, so that at most a quarter of a block
is unused beyond the first 256 bytes. Every class keeps a list of free addresses: taking a block is
one list pop, and a buffer that dies appends its address again; both are atomic, so no lock is
taken on that road. Small classes are carved from chunks; blocks of a MiB and more are mapped
one by one, aligned for huge pages, because touching fresh pages costs more than most kernels.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import os
import sys
import threading
from dataclasses import dataclass

import numpy as np

from xcube import errors
from xcube.lowering.device.base import Buffer, MemoryStats

GRANULE = 256
"""Capacities are multiples of this; kernels may touch lanes up to the capacity."""

ALIGNMENT = 64
"""Every buffer starts on a cache line, foreign memory included."""

_LARGE = 1 << 20
_CHUNK = 1 << 20
_HUGE_PAGE = 1 << 21
_LOOK_AT_AVAILABLE = 1 << 28
_UNLIMITED = 1 << 60


def round_up(nbytes: int, multiple: int) -> int:
    """The smallest multiple of `multiple` (a power of two) that is at least `nbytes`.

    >>> round_up(257, 256)
    512
    """
    return (nbytes + multiple - 1) & -multiple


def capacity_of(nbytes: int) -> int:
    """The capacity of the size class that serves `nbytes`.

    >>> [capacity_of(n) for n in (0, 256, 257, 5000, 1 << 20, (1 << 20) + 1)]
    [256, 256, 512, 5120, 1048576, 1310720]
    """
    step = 1 << max(8, (max(nbytes, 1) - 1).bit_length() - 3)
    return max(GRANULE, round_up(nbytes, step))


class SizeClass:
    """The blocks of one capacity: the addresses that are free, and how many were ever made."""

    __slots__ = ("allocator", "capacity", "free", "made")

    def __init__(self, allocator: Allocator, capacity: int) -> None:
        self.allocator = allocator
        self.capacity = capacity
        self.free: list[int] = []
        self.made = 0

    def take(self, nbytes: int) -> Block:
        """A block for `nbytes` bytes, which must not exceed the capacity.

        Raises OutOfMemoryError if none is free and no more can be had.
        """
        allocator = self.allocator
        try:
            pointer = self.free.pop()
        except IndexError:
            pointer = allocator.refill(self, nbytes)
        # One statement each: the interpreter does not switch threads inside them.
        allocator.live = live = allocator.live + self.capacity
        if live > allocator.peak:
            allocator.peak = live
        return Block(pointer, nbytes, self)


class Block(Buffer):
    """Memory of a size class, which gets it back when the block is collected."""

    __slots__ = ("_home",)

    def __init__(self, pointer: int, nbytes: int, home: SizeClass) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.writable = True
        self._home = home

    def __del__(self) -> None:
        home = self._home
        home.allocator.live -= home.capacity
        home.free.append(self.pointer)

    @property
    def capacity(self) -> int:
        return self._home.capacity

    @property
    def foreign(self) -> bool:
        return False

    @property
    def __array_interface__(self) -> dict[str, object]:
        return _interface(self)

    def numpy(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        # Once somebody can see the contents, no program may overwrite them in place.
        self.writable = False
        return _view(self, shape, dtype)


class Foreign(Buffer):
    """Memory of another library, read only, that lives as long as its `owner` is referenced.

    Its capacity ends with the cache line of its last byte: a line lies within one page, so reading
    the rest of it is harmless.
    """

    __slots__ = ("owner",)

    def __init__(self, pointer: int, nbytes: int, owner: object) -> None:
        if pointer % ALIGNMENT:
            raise errors.DeviceError(
                f"foreign buffer: the address must be a multiple of {ALIGNMENT}; got {pointer:#x}. "
                "Copy the array with Device.from_host instead."
            )
        self.pointer = pointer
        self.nbytes = nbytes
        self.writable = False
        self.owner = owner

    @property
    def capacity(self) -> int:
        return round_up(self.nbytes, ALIGNMENT)

    @property
    def foreign(self) -> bool:
        return True

    @property
    def __array_interface__(self) -> dict[str, object]:
        return _interface(self)

    def numpy(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return _view(self, shape, dtype)


def _interface(buffer: Buffer) -> dict[str, object]:
    return {
        "data": (buffer.pointer, True),
        "shape": (buffer.nbytes,),
        "typestr": "|u1",
        "version": 3,
    }


def _view(buffer: Buffer, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    try:
        return np.ndarray(shape, dtype, np.asarray(buffer))
    except TypeError:
        raise errors.DeviceError(
            f"Buffer.numpy: the array must fit into the {buffer.nbytes} bytes of the buffer; "
            f"got shape {shape} of {np.dtype(dtype)}."
        ) from None


@dataclass(slots=True)
class _Chunk:
    """One mapping that small blocks of one class were carved from."""

    mapping: mmap.mmap
    start: int
    blocks: int


class Allocator:
    """Hands out blocks, keeps what comes back, and refuses what the machine cannot hold."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit or memory_limit()
        self.live = 0
        self.peak = 0
        self._reserved = 0
        self._by_size: dict[int, SizeClass] = {}
        self._by_capacity: dict[int, SizeClass] = {}
        self._large: dict[int, mmap.mmap] = {}
        self._chunks: dict[int, list[_Chunk]] = {}
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            # Nobody is in the middle of refilling when a child is made.
            os.register_at_fork(
                before=self._lock.acquire,
                after_in_parent=self._lock.release,
                after_in_child=self._lock.release,
            )

    def size_class(self, nbytes: int) -> SizeClass:
        """The class that serves blocks of `nbytes` bytes; the same object for equal capacities."""
        found = self._by_size.get(nbytes)
        return found if found is not None else self._new_size(nbytes)

    def allocate(self, nbytes: int) -> Block:
        """A block of at least `nbytes` bytes with undefined contents.

        Raises OutOfMemoryError if the machine cannot hold it.
        """
        found = self._by_size.get(nbytes)
        return (found if found is not None else self._new_size(nbytes)).take(nbytes)

    def refill(self, home: SizeClass, nbytes: int) -> int:
        """The address of one more block of `home`; further ones may be added to its free list."""
        with self._lock:
            if home.free:
                return home.free.pop()
            self._make_room(home.capacity, nbytes)
            try:
                return self._refill(home)
            except (OSError, ValueError, OverflowError):
                self.trim()
            try:
                return self._refill(home)
            except (OSError, ValueError, OverflowError) as error:
                raise self._out_of_memory(nbytes, str(error)) from error

    def trim(self) -> int:
        """Give unused memory back to the system; returns how many bytes."""
        with self._lock:
            before = self._reserved
            for home in list(self._by_capacity.values()):
                if home.capacity >= _LARGE:
                    self._trim_large(home)
                else:
                    self._trim_small(home)
            return before - self._reserved

    def stats(self) -> MemoryStats:
        """Bytes in use, their peak, bytes held from the system, and the limit."""
        return MemoryStats(self.live, self.peak, self._reserved, self.limit)

    def _new_size(self, nbytes: int) -> SizeClass:
        if nbytes < 0:
            raise errors.DeviceError(f"allocate: the size must not be negative; got {nbytes}.")
        capacity = capacity_of(nbytes)
        with self._lock:
            home = self._by_capacity.get(capacity)
            if home is None:
                home = self._by_capacity[capacity] = SizeClass(self, capacity)
            if len(self._by_size) >= 4096:
                self._by_size.clear()
            self._by_size[nbytes] = home
            return home

    def _make_room(self, capacity: int, nbytes: int) -> None:
        """Trim if the block does not fit beside what is held; refuse it if that is not enough."""
        held = self._reserved - self.live
        if self._reserved + capacity > self.limit or held > self.limit // 4:
            self.trim()
        if self._reserved + capacity > self.limit:
            raise self._out_of_memory(nbytes, f"the limit is {_human(self.limit)}")
        if capacity < _LOOK_AT_AVAILABLE:
            return
        if capacity > available_memory():
            self.trim()
        available = available_memory()
        if capacity > available:
            raise self._out_of_memory(nbytes, f"the system has {_human(available)} left")

    def _out_of_memory(self, nbytes: int, reason: str) -> errors.OutOfMemoryError:
        return errors.OutOfMemoryError(
            f"allocate: {_human(nbytes)} ({nbytes} bytes) must fit into memory; xcube uses "
            f"{_human(self.live)} and {reason}. Use smaller batches, free arrays with their "
            "method delete(), or let results take over arguments with jit's donate_argnums."
        )

    def _refill(self, home: SizeClass) -> int:
        if home.capacity < _LARGE:
            return self._carve(home)
        mapping, pointer = _map(home.capacity, _HUGE_PAGE)
        self._large[pointer] = mapping
        self._reserved += home.capacity
        home.made += 1
        return pointer

    def _carve(self, home: SizeClass) -> int:
        # A class starts with a few blocks and doubles, up to a chunk at a time.
        capacity = home.capacity
        blocks = max(1, min(_CHUNK, max(1 << 16, home.made * capacity)) // capacity)
        mapping, start = _map(blocks * capacity, mmap.PAGESIZE)
        self._chunks.setdefault(capacity, []).append(_Chunk(mapping, start, blocks))
        self._reserved += blocks * capacity
        home.made += blocks
        home.free.extend(range(start + (blocks - 1) * capacity, start, -capacity))
        return start

    def _trim_large(self, home: SizeClass) -> None:
        while True:
            try:
                pointer = home.free.pop()
            except IndexError:
                return
            del self._large[pointer]
            self._reserved -= home.capacity
            home.made -= 1

    def _trim_small(self, home: SizeClass) -> None:
        """Unmap the chunks all of whose blocks are free."""
        free = []
        for _ in range(len(home.free)):
            try:
                free.append(home.free.pop())
            except IndexError:
                break
        free.sort()
        kept = []
        for chunk in self._chunks.get(home.capacity, []):
            low = bisect.bisect_left(free, chunk.start)
            high = bisect.bisect_left(free, chunk.start + chunk.blocks * home.capacity)
            if high - low < chunk.blocks:
                kept.append(chunk)
                continue
            del free[low:high]
            self._reserved -= chunk.blocks * home.capacity
            home.made -= chunk.blocks
        self._chunks[home.capacity] = kept
        home.free.extend(reversed(free))


def _map(nbytes: int, alignment: int) -> tuple[mmap.mmap, int]:
    """Fresh private memory: the mapping, unmapped when collected, and an aligned address in it."""
    size = nbytes + (alignment if alignment > mmap.PAGESIZE else 0)
    if sys.platform == "win32":
        mapping = mmap.mmap(-1, size)
    else:
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size > _LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        _advise_huge_pages(mapping)
    base = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    return mapping, round_up(base, alignment)


def _advise_huge_pages(mapping: mmap.mmap) -> None:
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return  # A kernel without transparent huge pages: slower, not wrong.


def memory_limit() -> int:
    """Bytes of physical memory, or the limit of the control group if that is lower."""
    limit = _physical_memory()
    for path in (
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ):
        text = _read(path).strip()
        if text.isdigit():
            limit = min(limit, int(text))
    return limit


def available_memory() -> int:
    """Bytes that can be had without failing, as the system estimates them."""
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return _physical_memory()


def _physical_memory() -> int:
    if sys.platform == "win32":
        return _physical_memory_of_windows()
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _physical_memory_of_windows() -> int:
    kilobytes = ctypes.c_ulonglong()
    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    known = kernel.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
    return kilobytes.value * 1024 if known else _UNLIMITED


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""


def _human(nbytes: int) -> str:
    size = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
