"""Memory of a GPU: free lists in front of a pool of the driver, and the buffers handed out.

All work on a GPU is enqueued on one stream, so a block may be given out again as soon as the last
work that uses it is enqueued: taking and giving back are a list's pop and append, without the
driver and without waiting. Sizes are rounded up by at most a sixteenth. What the lists lack comes
from a pool of xcube's own, which maps the same memory to other sizes once it is trimmed.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter
from typing import Any

import numpy as np

from xcube import errors
from xcube.lowering.device import cuda_driver
from xcube.lowering.device.base import Buffer, MemoryStats
from xcube.lowering.device.cuda_context import Context

GRANULE = 512
"""Capacities are multiples of this, and blocks begin at multiples of it."""

ALIGNMENT = 256
"""What kernels may take for granted of a buffer's address, foreign memory included."""

_EVER = (1 << 64) - 1
_ROWS = 8  # of the table that an error of memory shows
_CACHED_SIZES = 4096


def capacity_of(nbytes: int) -> int:
    """The capacity of the size class that serves `nbytes`.

    >>> [capacity_of(n) for n in (0, 512, 513, 100_000, 1 << 30, (1 << 30) + 1)]
    [512, 512, 1024, 102400, 1073741824, 1140850688]
    """
    step = max(GRANULE, 1 << max(0, (max(nbytes, 1) - 1).bit_length() - 5))
    return max(GRANULE, -(-nbytes // step) * step)


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
        allocator.live = live = allocator.live + self.capacity
        if live > allocator.peak:
            allocator.peak = live
        return Block(pointer, nbytes, self)


class DeviceBuffer(Buffer):
    """Memory of a GPU, whoever owns it. `host` holds a copy that was started or read, if any."""

    __slots__ = ("host",)

    host: Any

    def __init__(self, pointer: int, nbytes: int, writable: bool) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.writable = writable
        self.host = None

    @property
    def allocator(self) -> Allocator:
        """The allocator of the buffer's GPU."""
        raise NotImplementedError

    @property
    def context(self) -> Context:
        """The GPU that the memory is on."""
        return self.allocator.context

    def numpy(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return self.allocator.reader.read(self, shape, dtype)

    def copy_to_host_async(self) -> None:
        """Start to copy the contents to the host, so that `numpy` finds them there."""
        self.allocator.reader.start(self)

    def is_ready(self) -> bool:
        """Whether everything enqueued on the GPU has run."""
        return self.context.is_idle()


class Block(DeviceBuffer):
    """Memory of a size class, which gets it back when the block is collected."""

    __slots__ = ("_home", "_seen")

    def __init__(self, pointer: int, nbytes: int, home: SizeClass) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.writable = True
        self.host = None
        self._home = home
        self._seen = False

    def __del__(self) -> None:
        home = self._home
        if self._seen:
            home.allocator.take_back()
        home.allocator.live -= home.capacity
        home.free.append(self.pointer)

    @property
    def capacity(self) -> int:
        return self._home.capacity

    @property
    def foreign(self) -> bool:
        return False

    @property
    def allocator(self) -> Allocator:
        return self._home.allocator

    def share(self) -> None:
        """Another library is about to see the memory: programs no longer overwrite it, and it is
        given out again only after what that library has enqueued."""
        self.writable = False
        self._seen = True


class Foreign(DeviceBuffer):
    """Memory of another library on a GPU, read only, that lives as long as its `owner` is held.

    Its capacity ends with the line of its last byte: a line lies within one page, so that reading
    the rest of it is harmless. The owner gets its memory back in the order of streams: what any of
    them is given later waits for the programs that read it here.
    """

    __slots__ = ("_allocator", "_owner")

    def __init__(self, pointer: int, nbytes: int, owner: object, allocator: Allocator) -> None:
        if pointer % ALIGNMENT:
            raise errors.DeviceError(
                f"foreign buffer: the address must be a multiple of {ALIGNMENT}; got "
                f"{pointer:#x}. Copy the array first."
            )
        super().__init__(pointer, nbytes, writable=False)
        self._allocator = allocator
        self._owner = owner

    def __del__(self) -> None:
        if getattr(self, "_owner", None) is not None and not self.context.is_over:
            self.context.lead_all()

    @property
    def capacity(self) -> int:
        return -(-self.nbytes // ALIGNMENT) * ALIGNMENT

    @property
    def foreign(self) -> bool:
        return True

    @property
    def allocator(self) -> Allocator:
        return self._allocator

    def share(self) -> None:
        """Another library is about to see the memory, which nobody overwrites anyway."""


class Allocator:
    """Hands out blocks of one GPU, keeps what comes back, and says who holds all when none is left.

    `reader` copies buffers to the host (`cuda_transfer.Transfers`).
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.live = 0
        self.peak = 0
        self.reader: Any = None
        self._by_size: dict[int, SizeClass] = {}
        self._by_capacity: dict[int, SizeClass] = {}
        self._lock = threading.RLock()
        self._limit = context.memory_bytes
        with context:
            self._pool = _new_pool(context)

    def size_class(self, nbytes: int) -> SizeClass:
        """The class that serves blocks of `nbytes` bytes; the same object for equal capacities."""
        found = self._by_size.get(nbytes)
        return found if found is not None else self._new_size(nbytes)

    def allocate(self, nbytes: int) -> Block:
        """A block of at least `nbytes` bytes with undefined contents.

        Raises OutOfMemoryError if the GPU cannot hold it.
        """
        return self.size_class(nbytes).take(nbytes)

    def take_back(self) -> None:
        """What other libraries have enqueued comes before what is enqueued here from now on."""
        if not self.context.is_over:
            self.context.follow_all()

    def refill(self, home: SizeClass, nbytes: int) -> int:
        """The address of one more block of `home`."""
        self.context.check_alive()
        with self._lock, self.context:
            code, pointer = self._from_pool(home.capacity)
            if code == cuda_driver.OUT_OF_MEMORY:
                self.trim()
                code, pointer = self._from_pool(home.capacity)
            if code == cuda_driver.OUT_OF_MEMORY:
                raise self._out_of_memory(nbytes)
            self.context.check(code, "cuMemAllocFromPoolAsync")
            home.made += 1
            return int(pointer)

    def trim(self) -> int:
        """Give unused memory back to the system; returns how many bytes."""
        driver, context = self.context.driver, self.context
        with self._lock, context:
            before = self.reserved
            for home in list(self._by_capacity.values()):
                self._give_back(home)
            context.synchronize()  # a free takes place in the order of the stream
            context.check(driver.cuMemPoolTrimTo(self._pool, 0)[0], "cuMemPoolTrimTo")
            return before - self.reserved

    def stats(self) -> MemoryStats:
        """Bytes in use, their peak, bytes held from the system, and the limit."""
        with self.context:
            return MemoryStats(self.live, self.peak, self.reserved, self._limit)

    @property
    def reserved(self) -> int:
        """Bytes that the pool holds from the system. The context is current."""
        attribute = self.context.driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        result = self.context.driver.cuMemPoolGetAttribute(self._pool, attribute)
        return int(self.context.value(result, "cuMemPoolGetAttribute"))

    def open_to(self, other: Context) -> None:
        """Let another GPU read and write this one's memory, where the hardware can."""
        driver = self.context.driver
        possible = driver.cuDeviceCanAccessPeer(other.device, self.context.device)
        if not self.context.value(possible, "cuDeviceCanAccessPeer"):
            return  # the driver then copies through the host
        access = driver.CUmemAccessDesc()
        access.location = _location(driver, other.ordinal)
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        code = driver.cuMemPoolSetAccess(self._pool, [access], 1)[0]
        self.context.check(code, "cuMemPoolSetAccess")

    def _from_pool(self, capacity: int) -> tuple[int, Any]:
        driver, context = self.context.driver, self.context
        if capacity > self._limit:
            return cuda_driver.OUT_OF_MEMORY, 0
        return driver.cuMemAllocFromPoolAsync(capacity, self._pool, context.stream)

    def _give_back(self, home: SizeClass) -> None:
        """Give the free blocks of a class back to the pool."""
        context = self.context
        while True:
            try:
                pointer = home.free.pop()
            except IndexError:
                return
            code = context.driver.cuMemFreeAsync(pointer, context.stream)[0]
            context.check(code, "cuMemFreeAsync")
            home.made -= 1

    def _new_size(self, nbytes: int) -> SizeClass:
        if nbytes < 0:
            raise errors.DeviceError(f"allocate: the size must not be negative; got {nbytes}.")
        capacity = capacity_of(nbytes)
        with self._lock:
            home = self._by_capacity.get(capacity)
            if home is None:
                home = self._by_capacity[capacity] = SizeClass(self, capacity)
            if len(self._by_size) >= _CACHED_SIZES:
                self._by_size.clear()
            self._by_size[nbytes] = home
            return home

    def _out_of_memory(self, nbytes: int) -> errors.OutOfMemoryError:
        context = self.context
        free, total = context.driver.cuMemGetInfo()[1:]
        others = max(0, total - free - self.reserved)
        return errors.OutOfMemoryError(
            f"allocate: {human(nbytes)} ({nbytes} bytes) must fit into memory; {context.name} has "
            f"{human(total)}, of which xcube uses {human(self.live)}, others {human(others)}, and "
            f"{human(free)} are free.{holders(self)} Use smaller batches, free arrays with their "
            "method delete(), or let results take over arguments with jit's donate_argnums."
        )


def _new_pool(context: Context) -> Any:
    """A pool that keeps its memory until it is trimmed."""
    driver = context.driver
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location = _location(driver, context.ordinal)
    pool = context.value(driver.cuMemPoolCreate(properties), "cuMemPoolCreate")
    keep = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    code = driver.cuMemPoolSetAttribute(pool, keep, driver.cuuint64_t(_EVER))[0]
    context.check(code, "cuMemPoolSetAttribute")
    return pool


def _location(driver: Any, ordinal: int) -> Any:
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = ordinal
    return location


def holders(allocator: Allocator) -> str:
    """A table of what holds the memory: arrays by type, the largest sums first."""
    counts: Counter[tuple[str, int]] = Counter()
    for block in gc.get_objects():
        if type(block) is Block and block.allocator is allocator:
            counts[_holder(block), block.capacity] += 1
    rows = sorted(counts.items(), key=lambda row: row[0][1] * row[1], reverse=True)
    lines = [
        f"\n  {count:6} x {human(size):>12} = {human(count * size):>12}  {label}"
        for (label, size), count in rows[:_ROWS]
    ]
    rest = sum(size * count for (_, size), count in rows[_ROWS:])
    more = f"\n  and {human(rest)} in smaller ones" if rest else ""
    return f" It is held by:{''.join(lines)}{more}\n" if lines else ""


def _holder(block: Block) -> str:
    """What an array that holds the block calls itself, or that no array does."""
    found = (getattr(owner, "_aval", None) for owner in gc.get_referrers(block))
    return next((str(aval) for aval in found if aval is not None), "no array")


def human(nbytes: int) -> str:
    """A number of bytes for people.

    >>> human(512), human(3 << 29)
    ('512 bytes', '1.5 GiB')
    """
    size, unit = float(nbytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
