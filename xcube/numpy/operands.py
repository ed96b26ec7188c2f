"""The door of every NumPy function: arguments become operands (arrays and program scalars), get one
dtype by promotion and one shape by broadcasting. Errors name the function that the user called."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import dtypes, eager
from xcube.array import Array, DeviceArray
from xcube.errors import ConcretizationTypeError, DeviceError, DtypeError, ShapeError
from xcube.ir import Aval, Literal, Shape, at_user_line
from xcube.lowering.device import default_device
from xcube.lowering.device import device as find_device
from xcube.primitives.convert import convert_element_type
from xcube.primitives.shape import broadcast_in_dim, full
from xcube.trace import EVAL, Tracer, current_trace
from xcube.transforms.arguments import to_array

Operand = Any  # Array | Literal

_PYTHON_SCALARS = (int, float, bool, complex)
_SCALAR_LIMIT = 4096
_scalars: dict[Any, Literal] = {}


# --- Values --------------------------------------------------------------------------------------


def scalar(value: Any, dtype: Any, weak_type: bool = False) -> Literal:
    """A number as a program scalar of a dtype."""
    key = (value, dtype, weak_type)
    if value and (found := _scalars.get(key)) is not None:  # 0.0 and -0.0 are one key
        return found
    made = Literal(host_cast(np.asarray(value), dtype)[()], Aval((), dtype, weak_type))
    if value and value == value:
        if len(_scalars) >= _SCALAR_LIMIT:
            _scalars.clear()
        _scalars[key] = made
    return made


def host_cast(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """NumPy values in another dtype as kernels cast them: floats become the nearest integer toward
    zero that the dtype holds, NaN becomes 0; complex numbers give their real part."""
    if dtypes.is_complex(value.dtype) and not (dtypes.is_complex(dtype) or dtypes.is_bool(dtype)):
        value = np.real(value)
    if not (dtypes.is_float(value.dtype) and dtypes.is_integer(dtype)):
        return value.astype(dtype)
    limits = dtypes.iinfo(dtype)
    wide = np.trunc(value.astype(np.float64))
    low, high = float(limits.min), float(limits.max) + (dtype.itemsize < 8)  # 2.0**63 is no int64
    inside = (wide >= low) & (wide < high)
    nearest = np.where(wide > 0, dtype.type(limits.max), dtype.type(limits.min))
    whole = np.where(inside, wide, 0.0).astype(dtype)
    return np.where(inside | np.isnan(wide), whole, nearest)


def host_array(name: str, value: Any) -> np.ndarray:
    """A host value as a NumPy array that can become an array.

    Raises ValueError for a masked array, DtypeError for a dtype without computation.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(
            f"{name}: values must have no mask, for arrays have none; got a masked array of shape "
            f"{value.shape}.{at_user_line()} Use x.filled(value)."
        )
    host = np.asarray(value)
    check_supported(name, host.dtype)
    return host


def operand(name: str, value: Any, position: int = 0) -> Operand:
    """An argument as an operand: numbers become program scalars, Python's weakly typed.

    Raises TypeError if the argument is neither an array nor a number.
    """
    if isinstance(value, Array):
        return value
    if type(value) in _PYTHON_SCALARS:
        return scalar(value, dtypes.scalar_dtype(value), type(value) is not bool)
    if isinstance(value, Literal):
        return value
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        host = host_array(name, value)
        return scalar(host[()], dtypes.canonicalize_dtype(host.dtype))
    if isinstance(value, np.ndarray):
        return to_array.convert(host_array(name, value))
    if isinstance(value, _PYTHON_SCALARS):
        return scalar(value, dtypes.scalar_dtype(value), True)
    if hasattr(value, "__jax_array__"):
        return operand(name, value.__jax_array__(), position)
    raise TypeError(
        f"{name}: arguments must be arrays or numbers; argument {position} is "
        f"{type(value).__name__}.{at_user_line()} Make it an array with xcube.numpy.asarray."
    )


def typed_operand(name: str, value: Any, dtype: np.dtype, weak_type: bool = False) -> Operand:
    """An argument as an operand of a dtype. A number takes the dtype at once, so that no narrower
    default rounds it on the way."""
    return _retyped(value, operand(name, value), dtype, weak_type)


def _retyped(value: Any, x: Operand, dtype: np.dtype, weak_type: bool) -> Operand:
    if isinstance(x, Literal) and isinstance(value, (*_PYTHON_SCALARS, np.generic, np.ndarray)):
        return scalar(np.asarray(value)[()], dtype, weak_type)
    return cast(x, dtype, weak_type)


def array_operand(name: str, value: Any, position: int = 0) -> Array:
    """An argument as an array."""
    x = operand(name, value, position)
    return x if isinstance(x, Array) else as_array(x)


def array_operands(name: str, values: Sequence[Any]) -> list[Array]:
    """Several arguments as arrays."""
    return [array_operand(name, value, k) for k, value in enumerate(values)]


def as_array(x: Operand) -> Array:
    """A program scalar as an array; arrays are themselves."""
    if isinstance(x, Array):
        return x
    if current_trace() is not EVAL:
        return full((), x)
    return eager.from_host(np.asarray(x.value), x.aval)  # a buffer of its own: users may see it


def shape_of(name: str, x: Any) -> Shape:
    """Shape of an argument."""
    return operand(name, x).aval.shape


# --- Dtypes --------------------------------------------------------------------------------------


def cast(x: Operand, dtype: Any, weak_type: bool = False) -> Operand:
    """An operand in another dtype; a program scalar stays one."""
    aval = x.aval
    if aval.dtype == dtype and aval.weak_type == weak_type:
        return x
    if isinstance(x, Literal):
        return scalar(x.value.item() if aval.dtype.kind != "V" else x.value, dtype, weak_type)
    return convert_element_type(x, dtype, weak_type)


def result_type_of(operands: Sequence[Operand]) -> tuple[np.dtype, bool]:
    """The common dtype of operands and whether it is weak."""
    return dtypes.lattice_result_type(*[(x.aval.dtype, x.aval.weak_type) for x in operands])


def to_dtype(operands: Sequence[Operand], dtype: np.dtype, weak: bool) -> list[Operand]:
    """Operands in a common dtype. The weakness of the result follows from theirs, so that arrays
    which have the dtype already stay as they are."""
    return [x if x.aval.dtype == dtype else cast(x, dtype, weak) for x in operands]


def promoted(name: str, *values: Any) -> list[Operand]:
    """Arguments as operands of one dtype."""
    operands = [operand(name, value, k) for k, value in enumerate(values)]
    return _in_common(values, operands, *result_type_of(operands))


def _in_common(
    values: Sequence[Any], operands: Sequence[Operand], dtype: np.dtype, weak: bool
) -> list[Operand]:
    pairs = zip(values, operands, strict=True)
    return [x if x.aval.dtype == dtype else _retyped(value, x, dtype, weak) for value, x in pairs]


def inexact_of(dtype: np.dtype) -> np.dtype:
    """The dtype itself if it is floating or complex, else the default floating dtype."""
    return dtype if dtypes.is_inexact(dtype) else dtypes.default_dtype("float")


def promoted_inexact(name: str, *values: Any) -> list[Operand]:
    """Arguments as operands of one floating or complex dtype."""
    operands = [operand(name, value, k) for k, value in enumerate(values)]
    dtype, weak = result_type_of(operands)
    return _in_common(values, operands, inexact_of(dtype), weak)


def dtype_argument(name: str, dtype: Any, default: Any) -> np.dtype:
    """A dtype= argument, or the default where it is None."""
    return default if dtype is None else requested(name, dtype)


_UNSUPPORTED = frozenset(
    dtype
    for dtype in (*dtypes.NARROW_INTEGERS, *dtypes.NARROW_FLOATS)
    if dtypes.SHORT[dtype] not in eager.STORED
)


def requested(name: str, dtype: Any) -> np.dtype:
    """The dtype that an argument asks for. Raises DtypeError for one without computation."""
    found = dtypes.requested_dtype(dtype, name)
    check_supported(name, found)
    return found


def check_supported(name: str, dtype: np.dtype) -> None:
    """Raises DtypeError for the narrow dtypes whose elements no kernel can hold."""
    if dtype in _UNSUPPORTED:
        raise DtypeError(
            f"{name}: arrays must have a dtype that kernels hold; got {dtype}, in which storage "
            f"and computation are not supported yet.{at_user_line()} Use int8 or uint8 for "
            f"integers, float8_e4m3fn, float8_e5m2 or wider for floats."
        )


def require(name: str, condition: bool, rule: str, *operands: Operand) -> None:
    """Raise DtypeError with a rule that the operands' dtypes break."""
    if not condition:
        got = ", ".join(str(x.aval) for x in operands)
        raise DtypeError(f"{name}: {rule}; got {got}.{at_user_line()}")


def concrete(name: str, value: Any, what: str) -> Any:
    """A value that must be known while tracing, as a NumPy array.

    Raises ConcretizationTypeError for a traced array.
    """
    if isinstance(value, Array) and not isinstance(value, DeviceArray):
        known = getattr(value, "known", None)
        if known is None:
            raise_unknown(name, value, what)
        return np.asarray(known)
    return np.asarray(value)


def raise_unknown(name: str, value: Any, what: str) -> Any:
    """Refuse a traced array where a value is needed."""
    raise ConcretizationTypeError(
        f"{name}: {what} must be known while tracing; got the traced array {value.aval}."
        f"{at_user_line()} Mark the argument it depends on as static (static_argnums, "
        f"static_argnames)."
    )


# --- Shapes --------------------------------------------------------------------------------------


def broadcast_shapes(name: str, *shapes: Shape) -> Shape:
    """The shape to which shapes broadcast by NumPy's rule. Raises ShapeError if there is none."""
    first = shapes[0] if shapes else ()
    if all(shape == first for shape in shapes):
        return first
    rank = max(map(len, shapes))
    result = []
    for sizes in zip(*[(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes], strict=True):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            raise ShapeError(
                f"{name}: shapes must broadcast, axes from the right being equal or 1; got "
                f"{', '.join(str(tuple(shape)) for shape in shapes)}.{at_user_line()}"
            )
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def stretch(x: Array, shape: Shape) -> Array:
    """An array broadcast to a shape that it is known to fit."""
    if x.shape == shape:
        return x
    return broadcast_in_dim(x, shape, tuple(range(len(shape) - x.ndim, len(shape))))


def broadcast(name: str, operands: Sequence[Operand]) -> list[Operand]:
    """Operands in one shape; program scalars fit any shape."""
    arrays = [x for x in operands if isinstance(x, Array)]
    if not arrays:
        return list(operands)
    shape = arrays[0].aval.shape
    if all(x.aval.shape == shape for x in arrays[1:]):
        return list(operands)
    if any(_clash(x.aval.shape, shape) for x in arrays):
        _raise_mismatch(name, arrays)
    shape = broadcast_shapes(name, *[x.aval.shape for x in arrays])
    return [stretch(x, shape) if isinstance(x, Array) else x for x in operands]


def _clash(a: Shape, b: Shape) -> bool:
    return any(m != n and m != 1 and n != 1 for m, n in zip(a[::-1], b[::-1], strict=False))


def _raise_mismatch(name: str, operands: Sequence[Operand]) -> None:
    raise ShapeError(
        f"{name}: shapes must broadcast, axes from the right being equal or 1; got "
        f"{' and '.join(str(x.aval) for x in operands)}.{at_user_line()}"
    )


def canonical_axis(name: str, axis: Any, ndim: int, aval: Any = None) -> int:
    """An axis counted from the front. Raises ShapeError if there is no such axis."""
    number = operator.index(axis)
    if not -ndim <= number < ndim:
        of = f" of {aval}" if aval is not None else ""
        raise ShapeError(
            f"{name}: an axis{of} must lie in {-ndim}..{ndim - 1}; got {axis}.{at_user_line()}"
        )
    return number % ndim


def canonical_axes(name: str, axis: Any, aval: Aval) -> tuple[int, ...]:
    """An axis argument (None for all, an int, a sequence) as sorted axes counted from the front."""
    if axis is None:
        return tuple(range(aval.ndim))
    given = (axis,) if not isinstance(axis, tuple | list) else axis
    axes = tuple(sorted(canonical_axis(name, a, aval.ndim, aval) for a in given))
    if len(set(axes)) != len(axes):
        raise ShapeError(
            f"{name}: axes of {aval} must be distinct; got {tuple(given)}.{at_user_line()}"
        )
    return axes


def canonical_shape(name: str, shape: Any) -> Shape:
    """A shape argument as a tuple of ints. Raises TypeError if it is none."""
    if isinstance(shape, int):
        return (shape,)
    sizes: Any = shape if isinstance(shape, tuple | list) else [shape]
    if any(isinstance(size, Array) and is_unknown(size) for size in sizes):
        raise ConcretizationTypeError(
            f"{name}: a shape must be known while tracing; got {shape!r}.{at_user_line()} Mark the "
            f"argument it depends on as static (static_argnums, static_argnames)."
        )
    if not isinstance(shape, tuple | list):
        sizes = np.atleast_1d(np.asarray(shape))
    try:
        return tuple(operator.index(size) for size in sizes)
    except TypeError as error:
        raise TypeError(
            f"{name}: a shape must be an int or a sequence of ints; got {shape!r}.{at_user_line()}"
        ) from error


def is_unknown(x: Array) -> bool:
    """Whether the elements of an array are not known now: it is traced."""
    return isinstance(x, Tracer) and x.known is None


def check_device(name: str, device: Any) -> None:
    """Raises DeviceError unless a device argument is None or names a device that is there."""
    if isinstance(device, str):
        find_device(device)
    elif device is not None and device is not default_device():
        raise DeviceError(
            f"{name}: the device must be {default_device()!r} or its name; got {device!r}."
            f"{at_user_line()}"
        )


def size_of(shape: Shape) -> int:
    """Number of elements of a shape."""
    return math.prod(shape)
