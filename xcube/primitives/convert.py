"""Changes of representation: dtype conversion, reinterpretation of bits, rounding to fewer bits;
and the identities that mean something to transforms or to the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Axis, Linear, Primitive, at_user_line
from xcube.primitives.complex import real
from xcube.primitives.kinds import FLOAT, elementwise
from xcube.primitives.lowered import Barrier, Element
from xcube.trace import aval_of, bind

# convert_element_type -------------------------------------------------------------------------


def _convert_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    new_dtype: np.dtype,
    weak_type: bool,
) -> tuple[Any, Any]:
    (x,), (dx,) = primals, tangents
    y = convert_element_type(x, new_dtype, weak_type)
    if dx is None or not dtypes.is_inexact(new_dtype):
        return y, None
    return y, convert_element_type(dx, new_dtype, weak_type)


def _convert_transpose(ct: Any, x: Linear, *, new_dtype: Any, weak_type: bool) -> list[Any]:
    return [convert_element_type(ct, x.aval.dtype, x.aval.weak_type)]


def _convert_batch(
    axis: Axis, args: Sequence[Any], batched: Sequence[bool], **params: Any
) -> tuple[Any, bool]:
    return convert_element_type(args[0], **params), True


def _convert_element(e: Any, index: Any, *, new_dtype: np.dtype, weak_type: bool) -> Any:
    x, dtype = e.read(0, index), e.inputs[0].dtype
    if dtype == new_dtype:
        return x
    if dtypes.is_bool(new_dtype):
        return e.apply("ne", x, e.constant(0, dtype))
    if dtypes.is_complex(new_dtype) and not dtypes.is_complex(dtype):
        part = dtypes.float_part(new_dtype)
        return e.apply("complex", e.cast(x, part), e.constant(0, part))
    return e.cast(x, new_dtype)


convert_element_type_p = Primitive(
    "convert_element_type",
    abstract=lambda x, *, new_dtype, weak_type: Aval(x.shape, new_dtype, weak_type),
    jvp=_convert_jvp,
    transpose=_convert_transpose,
    batch=_convert_batch,
    lower=Element(_convert_element, cheap=True),
)


def convert_element_type(x: Any, new_dtype: Any, weak_type: bool = False) -> Any:
    """x: d[*s] -> new_dtype[*s]. Floats truncate toward zero to integers; a complex number that
    becomes real loses its imaginary part; to bool means "is not zero".

    Raises DtypeError if xcube has no such dtype.

    >>> convert_element_type(np.float32(1.5), np.int32).dtype
    dtype('int32')
    """
    dtype, aval = dtypes.requested_dtype(new_dtype, "convert_element_type"), aval_of(x)
    if isinstance(x, Array) and (aval.dtype, aval.weak_type) == (dtype, weak_type):
        return x
    if dtypes.is_complex(aval.dtype) and not (dtypes.is_complex(dtype) or dtypes.is_bool(dtype)):
        return convert_element_type(real(x), dtype, weak_type)
    return bind(convert_element_type_p, x, new_dtype=dtype, weak_type=bool(weak_type))


# bitcast_convert_type -------------------------------------------------------------------------

_UNSIGNED = {
    2: dtypes.uint2,
    4: dtypes.uint4,
    8: np.uint8,
    16: np.uint16,
    32: np.uint32,
}
_UNSIGNED |= {64: np.uint64}


def unsigned_of(dtype: np.dtype) -> np.dtype:
    """The unsigned integer dtype with as many bits as a dtype."""
    return np.dtype(_UNSIGNED[dtypes.bits_of(dtype)])


def _bitcast_abstract(x: Aval, *, new_dtype: np.dtype) -> Aval:
    opaque = any(dtypes.is_bool(d) or dtypes.is_complex(d) for d in (x.dtype, new_dtype))
    if opaque and x.dtype != new_dtype:
        raise DtypeError(
            f"bitcast_convert_type: bools and complex numbers have no other form; got {x} to "
            f"{new_dtype}.{at_user_line()}"
        )
    old, new = dtypes.bits_of(x.dtype), dtypes.bits_of(new_dtype)
    if old >= new:
        return Aval(x.shape if old == new else (*x.shape, old // new), new_dtype)
    if x.shape[-1:] != (new // old,):
        raise ShapeError(
            f"bitcast_convert_type: the last axis must hold the {new // old} parts of one "
            f"{new_dtype}; got {x}.{at_user_line()}"
        )
    return Aval(x.shape[:-1], new_dtype)


def _bitcast_element(e: Any, index: Any, *, new_dtype: np.dtype) -> Any:
    dtype = e.inputs[0].dtype
    if dtype == new_dtype:
        return e.read(0, index)
    old, new = dtypes.bits_of(dtype), dtypes.bits_of(new_dtype)
    if old == new:
        return e.bitcast(e.read(0, index), new_dtype)
    wide = unsigned_of(dtype if old > new else new_dtype)
    if old > new:
        whole = e.bitcast(e.read(0, index[:-1]), wide)
        shift = e.apply("mul", e.number(index[-1], wide), e.constant(new, wide))
        part = e.cast(e.apply("shift_right_logical", whole, shift), unsigned_of(new_dtype))
        return e.bitcast(part, new_dtype)
    whole = e.constant(0, wide)
    for k in range(new // old):
        part = e.cast(e.bitcast(e.read(0, [*index, k]), unsigned_of(dtype)), wide)
        whole = e.apply("or", whole, e.apply("shift_left", part, e.constant(k * old, wide)))
    return e.bitcast(whole, new_dtype)


bitcast_convert_type_p = Primitive(
    "bitcast_convert_type",
    abstract=_bitcast_abstract,
    jvp="zero",
    batch=lambda axis, args, batched, **params: (
        bitcast_convert_type(args[0], **params),
        True,
    ),
    lower=Element(_bitcast_element),
)


def bitcast_convert_type(x: Any, new_dtype: Any) -> Any:
    """x's bits read as another dtype: d[*s] -> new_dtype[*s]. A narrower dtype adds a last axis
    with the parts, lowest bits first; a wider one takes that axis away.

    Raises DtypeError for bools and complex numbers, ShapeError if the last axis does not hold the
    parts of one element.

    >>> bitcast_convert_type(np.float32(1), np.uint8).shape
    (4,)
    """
    dtype = dtypes.requested_dtype(new_dtype, "bitcast_convert_type")
    return bind(bitcast_convert_type_p, x, new_dtype=dtype)


# reduce_precision -----------------------------------------------------------------------------


def _reduce_precision_element(e: Any, index: Any, *, exponent_bits: int, mantissa_bits: int) -> Any:
    x, dtype = e.read(0, index), e.inputs[0].dtype
    info, unsigned = dtypes.finfo(dtype), unsigned_of(dtype)

    def bits(value: int) -> Any:
        return e.constant(value, unsigned)

    exponent_mask = ((1 << info.nexp) - 1) << info.nmant
    u = e.bitcast(x, unsigned)
    sign, y = e.apply("and", u, bits(1 << (info.bits - 1))), u
    if (drop := info.nmant - mantissa_bits) > 0:  # half to even: half an ulp less one, plus odd
        odd = e.apply("and", e.apply("shift_right_logical", y, bits(drop)), bits(1))
        y = e.apply("add", e.apply("add", y, bits((1 << (drop - 1)) - 1)), odd)
        y = e.apply("and", y, bits((1 << info.bits) - (1 << drop)))
    if exponent_bits < info.nexp:
        bias, reduced = (1 << (info.nexp - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        exponent = e.apply("and", y, bits(exponent_mask))
        too_large = e.apply("gt", exponent, bits((bias + reduced) << info.nmant))
        too_small = e.apply("le", exponent, bits((bias - reduced) << info.nmant))
        y = e.apply("select", too_large, e.apply("or", sign, bits(exponent_mask)), y)
        y = e.apply("select", too_small, sign, y)
    return e.bitcast(e.apply("select", e.apply("ne", x, x), u, y), dtype)


reduce_precision_p = elementwise(
    "reduce_precision",
    accepts=lambda dtype: FLOAT(dtype) and dtype.itemsize > 1,
    jvp="linear",
    transpose=lambda ct, x, **params: [reduce_precision(ct, **params)],
    rule=_reduce_precision_element,
)


def reduce_precision(x: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """x rounded to a float of so many bits, still in its own dtype: f[*s] -> f[*s]. Too large
    becomes infinite, too small becomes zero.

    Raises ValueError unless exponent_bits >= 1 and mantissa_bits >= 0, DtypeError if x is no float.

    >>> reduce_precision(np.float32(1), 5, 10).dtype
    dtype('float32')
    """
    if exponent_bits < 1 or mantissa_bits < 0:
        raise ValueError(
            "reduce_precision: exponent_bits must be at least 1 and mantissa_bits at least 0; got "
            f"{exponent_bits} and {mantissa_bits}.{at_user_line()}"
        )
    sizes = {"exponent_bits": int(exponent_bits), "mantissa_bits": int(mantissa_bits)}
    return bind(reduce_precision_p, x, **sizes)


# identities -----------------------------------------------------------------------------------


def _same(e: Any, index: Any) -> Any:
    return e.read(0, index)


copy_p = elementwise("copy", jvp="linear", transpose=lambda ct, x: [ct], rule=_same, cheap=True)


def copy(x: Any) -> Any:
    """x in a buffer of its own: d[*s] -> d[*s].

    >>> copy(np.float32(2)).dtype
    dtype('float32')
    """
    return bind(copy_p, x)


stop_gradient_p = elementwise("stop_gradient", jvp="zero", rule=_same, cheap=True)


def stop_gradient(x: Any) -> Any:
    """x as a constant of differentiation: d[*s] -> d[*s], the tangent is zero.

    >>> stop_gradient(np.float32(2)).dtype
    dtype('float32')
    """
    return bind(stop_gradient_p, x) if dtypes.is_inexact(aval_of(x).dtype) else x


def _barrier_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    outputs = bind(optimization_barrier_p, *primals)
    known = [t for t in tangents if t is not None]
    passed = iter(bind(optimization_barrier_p, *known) if known else ())
    return outputs, [None if t is None else next(passed) for t in tangents]


def _barrier_transpose(cts: Sequence[Any], *args: Any) -> list[Any]:
    known = [ct for ct in cts if ct is not None]
    passed = iter(bind(optimization_barrier_p, *known) if known else ())
    return [None if ct is None else next(passed) for ct in cts]


optimization_barrier_p = Primitive(
    "optimization_barrier",
    abstract=lambda *avals: avals,
    jvp=_barrier_jvp,
    transpose=_barrier_transpose,
    batch=lambda axis, args, batched: (bind(optimization_barrier_p, *args), batched),
    lower=Barrier(),
    multiple=True,
)


def optimization_barrier(*operands: Any) -> list[Any]:
    """The operands as they are, d[*s]... -> d[*s]...; what was computed before them is not merged
    with what is computed after.

    >>> [x.dtype.name for x in optimization_barrier(1.0, 2)]
    ['float32', 'int32']
    """
    return bind(optimization_barrier_p, *operands)
