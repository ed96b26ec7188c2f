"""Arrays that other libraries and xcube see in the same memory of a GPU: by DLPack capsules out and
in (PyTorch, CuPy, JAX) and by `__cuda_array_interface__` out and in (CuPy, Numba, PyTorch). DLPack
says which stream uses the memory; on the other road xcube waits, since not all consumers do."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube import dtypes, errors
from xcube.lowering.device.cuda_memory import (
    ALIGNMENT,
    Allocator,
    Block,
    DeviceBuffer,
    Foreign,
)

CUDA = 2
"""DLPack's number for the memory of NVIDIA's GPUs."""

_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
_USED = {_PLAIN: b"used_dltensor", _VERSIONED: b"used_dltensor_versioned"}
_VERSION = (1, 0)
_NO_ORDER = -1  # a consumer's stream that wants no order
_LEGACY = 1  # the stream of who names none

# dlpack.h, DLDataTypeCode
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT = 4
_KINDS = {code: kind for kind, code in _CODES.items()}


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _PlainTensor(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _VersionedTensor(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_FORMS = {_PLAIN: _PlainTensor, _VERSIONED: _VersionedTensor}

_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(
    ("PyCapsule_New", _api)
)
# By address too: a destructor is given an object that must not be referenced again.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_SetName", _api)
)

_exported: dict[int, tuple[Any, ...]] = {}  # address of a struct -> what it needs


@_Deleter
def _delete(address: int) -> None:
    """Called by a consumer that is done."""
    _exported.pop(address, None)


@_Destructor
def _destroy(capsule: int) -> None:
    """Called when a capsule dies: nobody took the tensor if its name is still the first one."""
    for name in _FORMS:
        if _is_valid(capsule, name):
            _exported.pop(_pointer(capsule, name), None)


# out ------------------------------------------------------------------------------------------


def capsule(
    buffer: Block | Foreign,
    shape: Sequence[int],
    dtype: np.dtype,
    stream: int | None = None,
    max_version: tuple[int, int] | None = None,
) -> Any:
    """A DLPack capsule of a dense array in the buffer's memory, ready on the consumer's `stream`
    (None: the default stream, -1: the consumer orders by itself)."""
    code, bits = _code(dtype)
    buffer.share()
    if stream != _NO_ORDER:
        buffer.context.lead_stream(stream or _LEGACY)
    name = _VERSIONED if max_version is not None and max_version[0] >= 1 else _PLAIN
    lengths = (ctypes.c_int64 * len(shape))(*shape)
    strides = (ctypes.c_int64 * len(shape))(*_strides(shape))
    made = _FORMS[name]()
    made.deleter = ctypes.cast(_delete, ctypes.c_void_p).value
    if isinstance(made, _VersionedTensor):
        made.major, made.minor = _VERSION
        made.flags = 0  # PyTorch takes no array that says it is only to be read
    tensor = made.tensor
    tensor.data, tensor.ndim = buffer.pointer, len(shape)
    tensor.device = _Device(CUDA, buffer.context.ordinal)
    tensor.code, tensor.bits, tensor.lanes = code, bits, 1
    tensor.shape = ctypes.cast(lengths, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    address = ctypes.addressof(made)
    _exported[address] = made, lengths, strides, buffer
    return _new(address, name, _destroy)


def interface(buffer: Block | Foreign, shape: Sequence[int], dtype: np.dtype) -> dict[str, Any]:
    """The value of `__cuda_array_interface__` for a dense array in the buffer's memory, once it is
    computed. Raises BufferError for a dtype that the protocol has no name for."""
    if dtype.kind not in _CODES:
        raise BufferError(
            f"__cuda_array_interface__: the protocol has no name for {dtype}. Use DLPack, "
            "which has, or convert with astype."
        )
    buffer.share()
    buffer.context.synchronize()
    return {
        "shape": tuple(shape),
        "typestr": dtype.str,
        "data": (buffer.pointer, True),
        "strides": None,
        "stream": None,
        "version": 3,
    }


def _strides(shape: Sequence[int]) -> list[int]:
    """Strides of a dense array in row-major order, in elements."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return strides[::-1]


def _code(dtype: np.dtype) -> tuple[int, int]:
    if dtype == dtypes.bfloat16:
        return _BFLOAT, 16
    if dtype.kind not in _CODES:
        raise BufferError(f"dlpack: {dtype} has no code that this version of DLPack knows.")
    return _CODES[dtype.kind], 8 * dtype.itemsize


# in -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Given:
    """A dense array in another library's memory: `owner` keeps it."""

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype
    owner: object

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def is_on_gpu(x: Any) -> bool:
    """Whether another library's array says that it is on one of NVIDIA's GPUs."""
    place = getattr(x, "__dlpack_device__", None)
    if place is not None:
        return place()[0] == CUDA
    return hasattr(x, "__cuda_array_interface__")


def taken(x: Any, allocator: Allocator) -> tuple[DeviceBuffer, tuple[int, ...], np.dtype]:
    """Buffer, shape and dtype of another library's array on this GPU, without a copy if its address
    allows. Raises BufferError for an array that is not dense, DeviceError for another GPU's."""
    context = allocator.context
    given = _from_dlpack(x, context) if hasattr(x, "__dlpack__") else _from_interface(x, context)
    if given.pointer % ALIGNMENT == 0 or not given.nbytes:
        pointer = given.pointer if given.nbytes else 0
        buffer = Foreign(pointer, given.nbytes, given.owner, allocator)
        return buffer, given.shape, given.dtype
    block = allocator.allocate(given.nbytes)
    with context:
        code = context.driver.cuMemcpyDtoDAsync(
            block.pointer, given.pointer, given.nbytes, context.stream
        )[0]
        context.check(code, "copying an array that is not aligned")
    context.lead_all()  # its owner may reuse the memory from here on
    return block, given.shape, given.dtype


def _from_dlpack(x: Any, context: Any) -> Given:
    kind, number = x.__dlpack_device__()
    if (kind, number) != (CUDA, context.ordinal):
        raise errors.DeviceError(
            f"from_dlpack: the array must be on {context.name}; it is on device {number} of kind "
            f"{kind}. Move it there first."
        )
    made = x.__dlpack__(stream=int(context.stream))
    name = next((name for name in _FORMS if _is_valid(id(made), name)), None)
    if name is None:
        raise BufferError("from_dlpack: the capsule must hold a tensor that nobody has taken yet.")
    address = _pointer(id(made), name)
    managed = _FORMS[name].from_address(address)
    _rename(id(made), _USED[name])
    owner = _Taken(address, managed.deleter)
    tensor = managed.tensor
    shape = tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    strides = tensor.strides[: tensor.ndim] if tensor.ndim and tensor.strides else None
    _check_dense("from_dlpack", shape, strides, 1)
    dtype = _dtype(tensor.code, tensor.bits, tensor.lanes)
    return Given((tensor.data or 0) + tensor.byte_offset, shape, dtype, owner)


class _Taken:
    """A tensor that was taken from its capsule, given back when nobody needs it any more."""

    def __init__(self, address: int, deleter: int | None) -> None:
        self._address, self._deleter = address, deleter

    def __del__(self) -> None:
        if self._deleter:
            _Deleter(self._deleter)(self._address)


def _dtype(code: int, bits: int, lanes: int) -> np.dtype:
    if lanes == 1 and (code, bits) == (_BFLOAT, 16):
        return np.dtype(dtypes.bfloat16)
    if lanes != 1 or code not in _KINDS or bits % 8:
        raise BufferError(
            f"from_dlpack: elements must be numbers of whole bytes; got code {code}, {bits} bits, "
            f"{lanes} lanes."
        )
    kind = _KINDS[code]
    return np.dtype(np.bool_) if kind == "b" else np.dtype(f"{kind}{bits // 8}")


def _from_interface(x: Any, context: Any) -> Given:
    described = x.__cuda_array_interface__
    shape, dtype = tuple(described["shape"]), np.dtype(described["typestr"])
    _check_dense("__cuda_array_interface__", shape, described.get("strides"), dtype.itemsize)
    pointer, stream = described["data"][0] or 0, described.get("stream")
    if pointer:
        _check_place(pointer, context)
    if stream:
        context.follow_stream(stream)
    else:
        context.follow_all()
    return Given(pointer, shape, dtype, x)


def _check_place(pointer: int, context: Any) -> None:
    driver = context.driver
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    with context:
        found = driver.cuPointerGetAttribute(attribute, pointer)
        ordinal = context.value(found, "finding an array's GPU")
    if int(ordinal) != context.ordinal:
        raise errors.DeviceError(
            f"__cuda_array_interface__: the array must be on {context.name}; it is on "
            f"cuda:{int(ordinal)}. Move it there first."
        )


def _check_dense(
    operation: str, shape: Sequence[int], strides: Sequence[int] | None, unit: int
) -> None:
    """Strides of axes of length one say nothing."""
    if strides is None or 0 in shape:
        return
    wanted = [unit * stride for stride in _strides(shape)]
    axes = zip(shape, strides, wanted, strict=True)
    if any(length > 1 and stride != want for length, stride, want in axes):
        raise BufferError(
            f"{operation}: the array must be dense and in row-major order; got shape "
            f"{tuple(shape)} with strides {tuple(strides)}, not {tuple(wanted)}. Make it "
            "contiguous first."
        )
