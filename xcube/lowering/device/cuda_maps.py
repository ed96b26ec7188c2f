"""Tensor maps: how a kernel reads a buffer by boxes, as the driver encodes it for a pointer."""

from __future__ import annotations

import ctypes
from array import array as cell_array
from collections.abc import Sequence
from typing import Any

from xcube import errors
from xcube.lowering.device.cuda_compile import MapShape

MAP_CELLS = 16
"""Cells of 64 bits of a tensor map."""

_FORMATS = {"bf16": ("BFLOAT16", 2), "f16": ("FLOAT16", 2), "f32": ("FLOAT32", 4)}


class TensorMap:
    """The map of one launch: its sizes and strides are known, its pointer is not. `buffer` is the
    number of the parameter that it maps."""

    def __init__(self, driver: Any, shape: MapShape, scalars: Sequence[int]) -> None:
        self.buffer, self._driver = shape.buffer, driver
        name, itemsize = _FORMATS[shape.dtype]
        kind = driver.CUtensorMapDataType
        self._format = getattr(kind, f"CU_TENSOR_MAP_DATA_TYPE_{name}")
        self._rank = len(shape.box)
        self._sizes = [driver.cuuint64_t(scalars[n]) for n in shape.sizes]
        self._strides = [driver.cuuint64_t(scalars[n] * itemsize) for n in shape.strides]
        self._box = [driver.cuuint32_t(n) for n in shape.box]
        self._steps = [driver.cuuint32_t(1)] * self._rank
        self._known: dict[int, cell_array[int]] = {}

    def encoded(self, pointer: int) -> cell_array[int]:
        """The cells for a pointer. Raises DeviceError if the driver refuses."""
        if (found := self._known.get(pointer)) is not None:
            return found
        driver = self._driver
        status, made = driver.cuTensorMapEncodeTiled(
            self._format, self._rank, pointer, self._sizes, self._strides, self._box, self._steps,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )  # fmt: skip
        if int(status) != 0:
            raise errors.DeviceError(
                f"launch: a tensor map of sizes {self._sizes} and strides {self._strides} must be "
                f"one that the driver can encode; it says {status}."
            )
        cells = cell_array("Q", ctypes.string_at(int(made.getPtr()), 8 * MAP_CELLS))
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[pointer] = cells
        return cells


_KEPT = 64  # pointers whose maps are remembered
