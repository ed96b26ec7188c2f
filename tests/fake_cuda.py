"""A stand-in for NVIDIA's driver and its Python bindings: as many GPUs as one likes, in the host's
memory, with kernels that are Python functions. Like the driver it is lazy: what is enqueued on a
stream runs when somebody waits for it, in the stream's order and not before, so that whoever reads,
frees or reuses memory too early is found out. Accesses outside of allocations end the context."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

OUT_OF_MEMORY, NOT_READY, ILLEGAL_ADDRESS, LAUNCH_FAILED = 2, 600, 700, 719
_ALIGN = 512
_NAMES = {
    OUT_OF_MEMORY: b"CUDA_ERROR_OUT_OF_MEMORY",
    ILLEGAL_ADDRESS: b"CUDA_ERROR_ILLEGAL_ADDRESS",
    LAUNCH_FAILED: b"CUDA_ERROR_LAUNCH_FAILED",
    1: b"CUDA_ERROR_INVALID_VALUE",
}
_ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 4,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
    "L2_CACHE_SIZE": 1 << 22,
}

Kernel = Callable[[Any, Sequence[int]], None]  # of the driver, for memory, and the parameters


class Fault(Exception):
    """A kernel or copy touched memory that is not there."""


class _Names:
    """An enumeration: a member is its name."""

    def __getattr__(self, name: str) -> str:
        return name


class Handle:
    """What the driver gives for its objects: a number that Python can compare."""

    _numbers = itertools.count(4096)

    def __init__(self, number: int | None = None) -> None:
        self.number = next(self._numbers) if number is None else number

    def __int__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and self.number == other.number

    def __hash__(self) -> int:
        return hash(self.number)


class Stream(Handle):
    _lock = threading.RLock()  # one worker runs everything, whoever waits

    def __init__(self, number: int | None = None) -> None:
        super().__init__(number)
        self.queue: list[Callable[[], None]] = []
        self.done = 0

    def run(self, until: int | None = None) -> None:
        end = len(self.queue) if until is None else until
        with self._lock:
            while self.done < end:
                self.done += 1
                self.queue[self.done - 1]()


class Event(Handle):
    targets: tuple[tuple[Stream, int], ...] = ()

    def run(self) -> None:
        for stream, until in self.targets:
            stream.run(until)


class Graph(Handle):
    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[tuple[Handle, Any]] = []  # a Launch, or (handle, kind, graphs)


class Launch:
    def __init__(self, function: Handle, cells: list[int]) -> None:
        self.function, self.cells = function, cells


class FakeDriver:
    """The functions of `cuda.bindings.driver` that the package uses. `kernels`: name -> (number of
    parameters, function); `calls` counts what was called; `errors` maps a name to the code that its
    next call gives."""

    def __init__(self, kernels: dict[str, tuple[int, Kernel]], gpus: int = 1) -> None:
        self.kernels = {**kernels, **_OWN}
        self.gpus, self.version, self.limit = gpus, 13_000, 1 << 27
        self.calls: Counter[str] = Counter()
        self.errors: dict[str, int] = {}
        self.fault = 0
        self.memory: dict[int, tuple[int, Any, Any]] = {}  # start -> size, bytes, pool
        self.pinned: dict[int, tuple[int, Any]] = {}
        self.pools: dict[Handle, list[int]] = {}
        self.streams: dict[int, Stream] = {}
        self.functions: dict[Handle, str] = {}
        self.conditions: dict[int, int] = {}
        self.current: list[Handle] = []
        for name in (
            "CUdevice_attribute",
            "CUstream_flags",
            "CUevent_flags",
            "CUmemPool_attribute",
        ):
            setattr(self, name, _Names())
        for name in ("CUmemAllocationType", "CUmemLocationType", "CUmemAccess_flags"):
            setattr(self, name, _Names())
        for name in ("CUgraphNodeType", "CUgraphConditionalNodeType", "CUfunction_attribute"):
            setattr(self, name, _Names())
        self.CUpointer_attribute = _Names()
        self.CUmemPoolProps = self.CUmemLocation = self.CUmemAccessDesc = SimpleNamespace
        self.CUDA_KERNEL_NODE_PARAMS = SimpleNamespace
        self.CUgraphNodeParams = lambda: SimpleNamespace(conditional=SimpleNamespace())
        self.cuuint64_t = int

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        function = getattr(self, f"_{name}")

        def call(*args: Any) -> tuple[Any, ...]:
            self.calls[name] += 1
            code = self.fault or self.errors.pop(name, 0)
            if code and not name.startswith("cuGetError"):
                return (code, None)
            try:
                given = function(*args)
            except Fault:
                self.fault = ILLEGAL_ADDRESS
                return (self.fault, None)
            if isinstance(given, int) and given in (OUT_OF_MEMORY, NOT_READY):
                return (given, None)
            return (0, *given) if isinstance(given, tuple) else (0, given)

        return call

    # memory as kernels see it ---------------------------------------------------------------

    def bytes_at(self, pointer: int, nbytes: int) -> np.ndarray:
        """Memory of a GPU or pinned memory, if it is all within one allocation."""
        for table in (self.memory, self.pinned):
            for start, (size, *_) in table.items():
                if start <= pointer and pointer + nbytes <= start + size:
                    return _host(pointer, nbytes)
        raise Fault

    def array(self, pointer: int, count: int, dtype: Any = np.int32) -> np.ndarray:
        """Elements at an address of a GPU."""
        return self.bytes_at(pointer, count * np.dtype(dtype).itemsize).view(dtype)

    # devices and contexts -------------------------------------------------------------------

    def _cuInit(self, flags: int) -> None: ...

    def _cuDriverGetVersion(self) -> int:
        return self.version

    def _cuDeviceGetCount(self) -> int:
        return self.gpus

    def _cuDeviceGet(self, ordinal: int) -> Handle:
        return Handle(ordinal)

    def _cuDeviceGetName(self, length: int, device: Handle) -> bytes:
        return b"Fake GPU".ljust(length, b"\0")

    def _cuDeviceTotalMem(self, device: Handle) -> int:
        return self.limit

    def _cuDeviceGetAttribute(self, attribute: str, device: Handle) -> int:
        return _ATTRIBUTES[attribute.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def _cuDevicePrimaryCtxRetain(self, device: Handle) -> Handle:
        return Handle(100 + int(device))

    def _cuCtxPushCurrent(self, context: Handle) -> None:
        self.current.append(context)

    def _cuCtxPopCurrent(self) -> Handle:
        return self.current.pop()

    def _cuCtxSynchronize(self) -> None:
        for stream in list(self.streams.values()):
            stream.run()

    def _cuGetErrorName(self, code: int) -> bytes:
        return _NAMES.get(code, b"CUDA_ERROR_UNKNOWN")

    def _cuGetErrorString(self, code: int) -> bytes:
        return b"no text"

    def _cuDeviceCanAccessPeer(self, device: Handle, peer: Handle) -> int:
        return 1

    # streams and events ---------------------------------------------------------------------

    def CUstream(self, number: int) -> Stream:
        return self.streams.setdefault(number, Stream(number))

    def _cuStreamCreate(self, flags: str) -> Stream:
        stream = Stream()
        self.streams[int(stream)] = stream
        return stream

    def _cuStreamSynchronize(self, stream: Stream) -> None:
        stream.run()

    def _cuStreamQuery(self, stream: Stream) -> int | None:
        return NOT_READY if stream.done < len(stream.queue) else None

    def _cuEventCreate(self, flags: str) -> Event:
        return Event()

    def _cuEventDestroy(self, event: Event) -> None: ...

    def _cuEventRecord(self, event: Event, stream: Stream) -> None:
        event.targets = ((stream, len(stream.queue)),)

    def _cuEventSynchronize(self, event: Event) -> None:
        event.run()

    def _cuStreamWaitEvent(self, stream: Stream, event: Event, flags: int) -> None:
        targets = event.targets
        stream.queue.append(lambda: [other.run(until) for other, until in targets])  # type: ignore

    def _cuCtxRecordEvent(self, context: Handle, event: Event) -> None:
        event.targets = tuple((stream, len(stream.queue)) for stream in self.streams.values())

    def _cuCtxWaitEvent(self, context: Handle, event: Event) -> None:
        for stream in self.streams.values():
            self._cuStreamWaitEvent(stream, event, 0)

    # memory ---------------------------------------------------------------------------------

    def _cuMemPoolCreate(self, properties: Any) -> Handle:
        pool = Handle()
        self.pools[pool] = []
        return pool

    def _cuMemPoolSetAttribute(self, pool: Handle, attribute: str, value: int) -> None: ...

    def _cuMemPoolGetAttribute(self, pool: Handle, attribute: str) -> int:
        kept = sum(self.pools[pool])
        return kept + sum(size for size, _, home in self.memory.values() if home == pool)

    def _cuMemPoolSetAccess(self, pool: Handle, accesses: list[Any], count: int) -> None: ...

    def _cuMemPoolTrimTo(self, pool: Handle, nbytes: int) -> None:
        self.pools[pool].clear()

    def _cuMemAllocFromPoolAsync(self, nbytes: int, pool: Handle, stream: Stream) -> Any:
        if self._cuMemPoolGetAttribute(pool, "reserved") + nbytes > self.limit:
            return OUT_OF_MEMORY
        memory = (ctypes.c_uint8 * (nbytes + _ALIGN))()
        start = -(-ctypes.addressof(memory) // _ALIGN) * _ALIGN
        self.memory[start] = nbytes, memory, pool
        return Handle(start)

    def _cuMemFreeAsync(self, pointer: int, stream: Stream) -> None:
        def free() -> None:
            size, _, pool = self.memory.pop(pointer)
            self.pools[pool].append(size)

        stream.queue.append(free)

    def _cuMemGetInfo(self) -> tuple[int, int]:
        return self.limit - sum(size for size, *_ in self.memory.values()), self.limit

    def _cuMemHostAlloc(self, nbytes: int, flags: int) -> int:
        memory = (ctypes.c_uint8 * nbytes)()
        self.pinned[ctypes.addressof(memory)] = nbytes, memory
        return ctypes.addressof(memory)

    def _cuMemFreeHost(self, pointer: int) -> None:
        del self.pinned[pointer]

    def _cuPointerGetAttribute(self, attribute: str, pointer: int) -> int:
        self.bytes_at(pointer, 0)
        return 0

    def _cuMemcpyHtoDAsync(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        """The driver reads ordinary memory at once, pinned memory when the copy's turn comes."""
        now = _host(source, nbytes).copy() if not self._is_pinned(source) else None

        def copy() -> None:
            data = _host(source, nbytes) if now is None else now
            self.bytes_at(target, nbytes)[:] = data

        stream.queue.append(copy)

    def _cuMemcpyDtoHAsync(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        def copy() -> None:
            _host(target, nbytes)[:] = self.bytes_at(source, nbytes)

        stream.queue.append(copy)
        if not self._is_pinned(target):
            stream.run()

    def _cuMemcpyDtoDAsync(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        def copy() -> None:
            self.bytes_at(target, nbytes)[:] = self.bytes_at(source, nbytes)

        stream.queue.append(copy)

    def _cuMemcpyPeerAsync(
        self, target: int, to: Handle, source: int, there: Handle, nbytes: int, stream: Stream
    ) -> None:
        self._cuMemcpyDtoDAsync(target, source, nbytes, stream)

    def _is_pinned(self, pointer: int) -> bool:
        pinned = self.pinned.items()
        return any(start <= pointer < start + size for start, (size, _) in pinned)

    # kernels and graphs ---------------------------------------------------------------------

    def _cuModuleLoadData(self, image: bytes) -> Handle:
        return Handle()

    def _cuModuleGetFunction(self, module: Handle, name: bytes) -> Handle:
        function = Handle()
        self.functions[function] = name.decode()
        return function

    def _cuFuncSetAttribute(self, function: Handle, attribute: str, value: int) -> None: ...

    def _cuLaunchKernel(self, function: Handle, *rest: Any) -> None:
        stream, parameters = rest[-3:-1]
        launch = self._launch(function, parameters)
        stream.queue.append(lambda: self._execute(launch))

    def _launch(self, function: Handle, parameters: int) -> Launch:
        count, _ = self.kernels[self.functions[function]]
        if count < 0:  # one struct of so many cells
            address = ctypes.c_uint64.from_address(parameters).value
            return Launch(function, list((ctypes.c_uint64 * -count).from_address(address)))
        addresses = (ctypes.c_uint64 * count).from_address(parameters)
        return Launch(function, [ctypes.c_uint64.from_address(a).value for a in addresses])

    def _execute(self, launch: Launch) -> None:
        _, function = self.kernels[self.functions[launch.function]]
        function(self, launch.cells)

    def _cuGraphCreate(self, flags: int) -> Graph:
        return Graph()

    def _cuGraphDestroy(self, graph: Graph) -> None: ...

    def _cuGraphExecDestroy(self, graph: Graph) -> None: ...

    def _cuGraphAddKernelNode(
        self, graph: Graph, after: list[Any], count: int, node: Any
    ) -> Handle:
        self._check_order(graph, after)
        graph.nodes.append((Handle(), self._launch(node.func, node.kernelParams)))
        return graph.nodes[-1][0]

    def _cuGraphConditionalHandleCreate(
        self, graph: Graph, context: Handle, value: int, flags: int
    ) -> Handle:
        return Handle()

    def _cuGraphAddNode(
        self, graph: Graph, after: list[Any], data: None, count: int, node: Any
    ) -> Handle:
        self._check_order(graph, after)
        choice = node.conditional
        choice.phGraph_out = [Graph() for _ in range(choice.size)]
        entry = (int(choice.handle), choice.type, choice.phGraph_out)
        graph.nodes.append((Handle(), entry))
        return graph.nodes[-1][0]

    def _check_order(self, graph: Graph, after: list[Any]) -> None:
        assert after == [node for node, _ in graph.nodes[-1:]], "nodes are not one after the other"

    def _cuGraphInstantiate(self, graph: Graph, flags: int) -> Graph:
        return graph

    def _cuGraphExecKernelNodeSetParams(self, graph: Graph, handle: Handle, node: Any) -> None:
        index = [known for known, _ in graph.nodes].index(handle)
        graph.nodes[index] = handle, self._launch(node.func, node.kernelParams)

    def _cuGraphLaunch(self, graph: Graph, stream: Stream) -> None:
        nodes = list(graph.nodes)
        stream.queue.append(lambda: self._run(nodes))

    def _run(self, nodes: list[tuple[Handle, Any]]) -> None:
        for _, node in nodes:
            if isinstance(node, Launch):
                self._execute(node)
                continue
            handle, kind, graphs = node
            if kind.endswith("WHILE"):
                while self.conditions[handle]:
                    self._run(graphs[0].nodes)
            elif self.conditions[handle] < len(graphs):
                self._run(graphs[self.conditions[handle]].nodes)


def _host(pointer: int, nbytes: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer))


# the device's own kernels ---------------------------------------------------------------------


def _copy(driver: FakeDriver, cells: Sequence[int]) -> None:
    for target, source, nbytes in zip(cells[::3], cells[1::3], cells[2::3], strict=True):
        if nbytes:
            driver.bytes_at(target, nbytes)[:] = driver.bytes_at(source, nbytes)


def _test(driver: FakeDriver, cells: Sequence[int]) -> None:
    driver.conditions[cells[0]] = int(driver.bytes_at(cells[1], 1)[0] != 0)


def _pick(driver: FakeDriver, cells: Sequence[int]) -> None:
    handle, index, count = cells
    driver.conditions[handle] = min(max(int(driver.array(index, 1)[0]), 0), count - 1)


_OWN: dict[str, tuple[int, Kernel]] = {
    "xcube_copy": (-24, _copy),
    "xcube_test": (2, _test),
    "xcube_pick": (3, _pick),
}
