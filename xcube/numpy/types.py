"""The dtypes of `xcube.numpy`: scalar types, called like `float32(3)` to make arrays, accepted as
dtype= arguments, and NumPy's abstract types."""

from __future__ import annotations

from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.numpy.creation import asarray


class _ScalarMeta(type):
    """Compares and hashes like its dtype, so that `x.dtype == float32` holds."""

    dtype: np.dtype

    def __hash__(cls) -> int:
        return hash(cls.dtype.type)

    def __eq__(cls, other: object) -> bool:
        return (
            cls is other
            or other is cls.dtype.type
            or (isinstance(other, np.dtype | str) and cls.dtype == other)
        )

    def __ne__(cls, other: object) -> bool:
        return not cls == other

    def __call__(cls, x: Any = 0) -> Array:
        return asarray(x, dtype=cls.dtype)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.dtype.type)


def _scalar_type(scalar_type: Any) -> Any:
    dtype = np.dtype(scalar_type)
    name = "bool_" if dtype.name == "bool" else dtype.name
    members = {
        "dtype": dtype,
        "__doc__": f"The dtype {dtype.name}; called, it makes an array of it.",
        "__module__": "xcube.numpy",
    }
    return _ScalarMeta(name, (), members)


bool_ = _scalar_type(np.bool_)
int2, int4 = _scalar_type(dtypes.int2), _scalar_type(dtypes.int4)
int8, int16 = _scalar_type(np.int8), _scalar_type(np.int16)
int32, int64 = _scalar_type(np.int32), _scalar_type(np.int64)
uint2, uint4 = _scalar_type(dtypes.uint2), _scalar_type(dtypes.uint4)
uint8, uint16 = _scalar_type(np.uint8), _scalar_type(np.uint16)
uint32, uint64 = _scalar_type(np.uint32), _scalar_type(np.uint64)
float4_e2m1fn = _scalar_type(dtypes.float4_e2m1fn)
float8_e3m4 = _scalar_type(dtypes.float8_e3m4)
float8_e4m3 = _scalar_type(dtypes.float8_e4m3)
float8_e4m3b11fnuz = _scalar_type(dtypes.float8_e4m3b11fnuz)
float8_e4m3fn = _scalar_type(dtypes.float8_e4m3fn)
float8_e4m3fnuz = _scalar_type(dtypes.float8_e4m3fnuz)
float8_e5m2 = _scalar_type(dtypes.float8_e5m2)
float8_e5m2fnuz = _scalar_type(dtypes.float8_e5m2fnuz)
float8_e8m0fnu = _scalar_type(dtypes.float8_e8m0fnu)
bfloat16 = _scalar_type(dtypes.bfloat16)
float16, float32 = _scalar_type(np.float16), _scalar_type(np.float32)
float64 = _scalar_type(np.float64)
complex64, complex128 = _scalar_type(np.complex64), _scalar_type(np.complex128)

single, double, csingle, cdouble = float32, float64, complex64, complex128
int_, uint, float_, complex_ = int32, uint32, float32, complex64
dtype = np.dtype
generic, number, inexact = np.generic, np.number, np.inexact
integer, floating, complexfloating = np.integer, np.floating, np.complexfloating
signedinteger, unsignedinteger = np.signedinteger, np.unsignedinteger
flexible, character, object_ = np.flexible, np.character, np.object_
ComplexWarning = np.exceptions.ComplexWarning
finfo, iinfo = dtypes.finfo, dtypes.iinfo
issubdtype, isdtype = dtypes.issubdtype, dtypes.isdtype
promote_types, result_type = dtypes.promote_types, dtypes.result_type
