"""Kernels in Python: one readable source for every device, launched at once, inside `jit`, under
`vmap` and, made `differentiable`, under `grad`.

A decorated function says what one *unit* does. A launch is a grid of *cubes*, a cube a block of
units that share memory and meet at barriers, a *plane* `PLANE_DIM` units of a cube that exchange
values. What is known when the kernel is expanded is ordinary Python: `if` and `for` on Python
values run then, functions and dataclasses are passed as they are, and parameters annotated
`cube.comptime` are a part of the kernel. `if`, `for`, `while`, `and` and their like on run-time
values become control flow of the kernel.

>>> import numpy as np
>>> from xcube import cube, ShapeDtypeStruct
>>> @cube.kernel
... def axpy(x: cube.Array, y: cube.Array, out: cube.Array, alpha: cube.f32):
...     i = cube.ABSOLUTE_POS
...     if i < out.length:
...         out[i] = alpha * x[i] + y[i]
>>> x = np.arange(5, dtype=np.float32)
>>> axpy[1, 8](x, x, ShapeDtypeStruct(x.shape, x.dtype), 2.0)
Array([ 0.,  3.,  6.,  9., 12.], dtype=float32)

Arrays are immutable for the caller: a parameter that the kernel writes is a result. The launch is
given its shape and dtype (memory that nothing was written to), or an array (what it begins as).

Numbers. A Python number takes the dtype of the other operand; two values must have one dtype, but
integers become `index` (of positions, lengths and loops) beside an index. `/` is for floats, `//`
and `%` round down, as in Python. `for i in range(...)` with known bounds is expanded turn by turn,
`cube.range` is always a loop of the kernel. A number that a loop or branch changes lives in a
variable: one that begins as a Python number takes the dtype of what is assigned, else i32 or f32.
Lists, dicts and objects of Python hold such numbers; in a branch or loop at run time they are made
anew, `g = [g[1], g[0]]`, never changed, `g[0] = g[1]`.

Where: ABSOLUTE_POS, CUBE_POS, UNIT_POS, CUBE_DIM, CUBE_COUNT (flat, and by .x .y .z), PLANE_POS,
UNIT_POS_PLANE, PLANE_DIM. Memory: parameters `Array`, `Tensor` (in `lines`), `SharedMemory`,
`LocalArray`, `constants`; each a view with `shape`, `length`, `stride`, `slice`, `as_lines`,
`view`, `permuted`, `transposed`, `tile`, `get(..., fill=)` and `put`.

A tiled product of matrices, in shared memory:

>>> @cube.kernel
... def matmul(a: cube.Tensor, b: cube.Tensor, out: cube.Tensor):
...     size = cube.CUBE_DIM.x
...     row, column = cube.ABSOLUTE_POS.y, cube.ABSOLUTE_POS.x
...     left = cube.SharedMemory(a.dtype, (size, size))
...     right = cube.SharedMemory(a.dtype, (size, size))
...     i, j = cube.UNIT_POS.y, cube.UNIT_POS.x
...     total = a.dtype(0)
...     for k in range(0, a.shape[1], size):
...         left[i, j] = a.get(row, k + j)
...         right[i, j] = b.get(k + i, column)
...         cube.sync_cube()
...         for n in range(size):
...             total += left[i, n] * right[n, j]
...         cube.sync_cube()
...     out.put(row, column, value=total)
>>> a, b = np.ones((3, 5), np.float32), np.full((5, 2), 2, np.float32)
>>> cube.interpret(matmul)[(1, 1), (4, 4)](a, b, ShapeDtypeStruct((3, 2), np.float32)).tolist()
[[10.0, 10.0], [10.0, 10.0], [10.0, 10.0]]

A softmax of rows, a unit for each:

>>> @cube.kernel
... def softmax(x: cube.Tensor, out: cube.Tensor):
...     row = cube.ABSOLUTE_POS
...     if row < x.shape[0]:
...         high, total = -cube.INFINITY, 0.0
...         for j in range(x.shape[1]):
...             high = max(high, x[row, j])
...         for j in range(x.shape[1]):
...             total += cube.exp(x[row, j] - high)
...         for j in range(x.shape[1]):
...             out[row, j] = cube.exp(x[row, j] - high) / total
>>> softmax[3, 1](np.zeros((3, 4), np.float32), ShapeDtypeStruct((3, 4), np.float32))[0]
Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
"""

from __future__ import annotations

import math
import types

from xcube.cube import functions, parameters, ranges, values, views
from xcube.cube.call import call as call
from xcube.cube.comptime import device as device
from xcube.cube.comptime import static_assert as static_assert
from xcube.cube.derivative import differentiable as differentiable
from xcube.cube.fast_division import FastDivmod as FastDivmod
from xcube.cube.functions import acos as acos
from xcube.cube.functions import acosh as acosh
from xcube.cube.functions import asin as asin
from xcube.cube.functions import asinh as asinh
from xcube.cube.functions import atan as atan
from xcube.cube.functions import atan2 as atan2
from xcube.cube.functions import atanh as atanh
from xcube.cube.functions import cbrt as cbrt
from xcube.cube.functions import ceil as ceil
from xcube.cube.functions import clamp as clamp
from xcube.cube.functions import clz as clz
from xcube.cube.functions import cos as cos
from xcube.cube.functions import cosh as cosh
from xcube.cube.functions import ctz as ctz
from xcube.cube.functions import degrees as degrees
from xcube.cube.functions import erf as erf
from xcube.cube.functions import erfc as erfc
from xcube.cube.functions import exp as exp
from xcube.cube.functions import exp2 as exp2
from xcube.cube.functions import expm1 as expm1
from xcube.cube.functions import ffs as ffs
from xcube.cube.functions import floor as floor
from xcube.cube.functions import floor_mod as floor_mod
from xcube.cube.functions import fma as fma
from xcube.cube.functions import full as full
from xcube.cube.functions import hypot as hypot
from xcube.cube.functions import is_finite as is_finite
from xcube.cube.functions import is_inf as is_inf
from xcube.cube.functions import is_nan as is_nan
from xcube.cube.functions import lane_numbers as lane_numbers
from xcube.cube.functions import lgamma as lgamma
from xcube.cube.functions import line as line
from xcube.cube.functions import log as log
from xcube.cube.functions import log1p as log1p
from xcube.cube.functions import log2 as log2
from xcube.cube.functions import mulhi as mulhi
from xcube.cube.functions import popcount as popcount
from xcube.cube.functions import power as power
from xcube.cube.functions import radians as radians
from xcube.cube.functions import reciprocal as reciprocal
from xcube.cube.functions import rem as rem
from xcube.cube.functions import reverse_bits as reverse_bits
from xcube.cube.functions import rhypot as rhypot
from xcube.cube.functions import rsqrt as rsqrt
from xcube.cube.functions import saturating_add as saturating_add
from xcube.cube.functions import saturating_sub as saturating_sub
from xcube.cube.functions import select as select
from xcube.cube.functions import sigmoid as sigmoid
from xcube.cube.functions import sign as sign
from xcube.cube.functions import sin as sin
from xcube.cube.functions import sinh as sinh
from xcube.cube.functions import sqrt as sqrt
from xcube.cube.functions import tan as tan
from xcube.cube.functions import tanh as tanh
from xcube.cube.functions import trunc as trunc
from xcube.cube.interpret import interpret as interpret
from xcube.cube.kernel import function as function
from xcube.cube.kernel import kernel as kernel
from xcube.cube.matrices import Matrix as Matrix
from xcube.cube.matrices import accumulator as accumulator
from xcube.cube.matrices import barriers as barriers
from xcube.cube.matrices import boxes as boxes
from xcube.cube.matrices import commit_copies as commit_copies
from xcube.cube.matrices import copy_async as copy_async
from xcube.cube.matrices import matrix_a as matrix_a
from xcube.cube.matrices import matrix_b as matrix_b
from xcube.cube.matrices import multiply_add as multiply_add
from xcube.cube.matrices import wait_copies as wait_copies
from xcube.cube.parameters import lines as lines
from xcube.cube.places import ABSOLUTE_POS as ABSOLUTE_POS
from xcube.cube.places import CUBE_COUNT as CUBE_COUNT
from xcube.cube.places import CUBE_DIM as CUBE_DIM
from xcube.cube.places import CUBE_POS as CUBE_POS
from xcube.cube.places import PLANE_DIM as PLANE_DIM
from xcube.cube.places import PLANE_POS as PLANE_POS
from xcube.cube.places import UNIT_POS as UNIT_POS
from xcube.cube.places import UNIT_POS_PLANE as UNIT_POS_PLANE
from xcube.cube.ranges import unroll as unroll
from xcube.cube.tune import tune as tune
from xcube.cube.units import atomic_add as atomic_add
from xcube.cube.units import atomic_and as atomic_and
from xcube.cube.units import atomic_compare_exchange as atomic_compare_exchange
from xcube.cube.units import atomic_exchange as atomic_exchange
from xcube.cube.units import atomic_load as atomic_load
from xcube.cube.units import atomic_max as atomic_max
from xcube.cube.units import atomic_min as atomic_min
from xcube.cube.units import atomic_or as atomic_or
from xcube.cube.units import atomic_store as atomic_store
from xcube.cube.units import atomic_sub as atomic_sub
from xcube.cube.units import atomic_xor as atomic_xor
from xcube.cube.units import debug_print as debug_print
from xcube.cube.units import plane_all as plane_all
from xcube.cube.units import plane_any as plane_any
from xcube.cube.units import plane_ballot as plane_ballot
from xcube.cube.units import plane_broadcast as plane_broadcast
from xcube.cube.units import plane_elect as plane_elect
from xcube.cube.units import plane_exclusive_prod as plane_exclusive_prod
from xcube.cube.units import plane_exclusive_sum as plane_exclusive_sum
from xcube.cube.units import plane_inclusive_prod as plane_inclusive_prod
from xcube.cube.units import plane_inclusive_sum as plane_inclusive_sum
from xcube.cube.units import plane_max as plane_max
from xcube.cube.units import plane_min as plane_min
from xcube.cube.units import plane_prod as plane_prod
from xcube.cube.units import plane_shuffle as plane_shuffle
from xcube.cube.units import plane_shuffle_down as plane_shuffle_down
from xcube.cube.units import plane_shuffle_up as plane_shuffle_up
from xcube.cube.units import plane_shuffle_xor as plane_shuffle_xor
from xcube.cube.units import plane_sum as plane_sum
from xcube.cube.units import sync_cube as sync_cube
from xcube.cube.units import sync_plane as sync_plane
from xcube.cube.units import terminate as terminate
from xcube.cube.values import DTYPES as DTYPES
from xcube.cube.values import DType as DType
from xcube.cube.values import Value as Value
from xcube.cube.views import View as View

# names of Python's own that mean more in kernels, and short ones
abs = functions.absolute
all = functions.all_of
any = functions.any_of
max = functions.maximum
min = functions.minimum
range = ranges.run_time_range
Array = parameters.ARRAY
comptime = parameters.COMPTIME
Tensor = parameters.TENSOR
dtype = values.dtype_of
constants = views.constant_array
LocalArray = views.local_array
SharedMemory = views.shared_memory
INFINITY, PI = math.inf, math.pi

bool_, index = DTYPES["bool"], DTYPES["index"]
i8, i16, i32, i64 = [DTYPES[name] for name in ("i8", "i16", "i32", "i64")]
u8, u16, u32, u64 = [DTYPES[name] for name in ("u8", "u16", "u32", "u64")]
f16, bf16, f32, f64 = [DTYPES[name] for name in ("f16", "bf16", "f32", "f64")]
f8_e4m3fn, f8_e5m2 = [DTYPES[name] for name in ("f8_e4m3fn", "f8_e5m2")]

# the names of the language, for `help`, `dir` and completion
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    name
    for name, found in sorted(globals().items())
    if not name.startswith("_") and not isinstance(found, types.ModuleType)
]
__all__.remove("annotations")


def __dir__() -> list[str]:
    return list(__all__)
