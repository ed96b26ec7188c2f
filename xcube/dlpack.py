"""DLPack capsules of bfloat16, which NumPy's capsules cannot carry: the elements travel as 16-bit
words whose type code is set to DLPack's own for bfloat16 (dlpack.h, DLDataTypeCode)."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from xcube import dtypes

_UINT, _BFLOAT = 1, 4
_TENSOR = {b"dltensor": 0, b"dltensor_versioned": 32}  # capsule name -> offset of the DLTensor
_CODE, _BITS = 20, 21  # offsets of the type in a DLTensor
_WORD, _BFLOAT16 = np.dtype(np.uint16), np.dtype(dtypes.bfloat16)

_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


def capsule(host: np.ndarray, **options: Any) -> Any:
    """The DLPack capsule of a NumPy array, bfloat16 included."""
    if host.dtype != _BFLOAT16:
        return host.__dlpack__(**options)
    made = host.view(_WORD).__dlpack__(**options)
    _byte(made, _CODE).value = _BFLOAT
    return made


def import_array(x: Any) -> np.ndarray:
    """A NumPy array on the memory of an object that offers DLPack, bfloat16 included."""
    words = _Words(x)
    host = np.from_dlpack(words)
    return host.view(_BFLOAT16) if words.are_bfloat16 else host


def _byte(made: Any, offset: int) -> ctypes.c_uint8:
    for name, start in _TENSOR.items():
        if _is_valid(made, name):
            return ctypes.c_uint8.from_address(_pointer(made, name) + start + offset)
    raise BufferError("dlpack: the capsule must hold a tensor that nobody has taken yet")


class _Words:
    """Another library's array, its bfloat16 elements shown as 16-bit words."""

    def __init__(self, source: Any) -> None:
        self.source, self.are_bfloat16 = source, False

    def __dlpack__(self, **options: Any) -> Any:
        made = self.source.__dlpack__(**options)
        code = _byte(made, _CODE)
        if code.value == _BFLOAT and _byte(made, _BITS).value == 16:
            code.value, self.are_bfloat16 = _UINT, True
        return made

    def __dlpack_device__(self) -> Any:
        return self.source.__dlpack_device__()
