"""Arrays from values, ranges, and rules: array, zeros, arange, linspace, eye, triangles, grids."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube import dlpack, dtypes, eager, tree
from xcube.array import Array, DeviceArray
from xcube.errors import ShapeError
from xcube.ir import Aval, at_user_line
from xcube.lowering.device import default_device, holder
from xcube.numpy import elementwise as e
from xcube.numpy.fused import fused
from xcube.numpy.operands import (
    array_operand,
    as_array,
    broadcast,
    canonical_axis,
    canonical_shape,
    cast,
    check_device,
    concrete,
    dtype_argument,
    host_array,
    host_cast,
    is_unknown,
    operand,
    promoted,
    raise_unknown,
    requested,
    require,
    scalar,
    stretch,
    typed_operand,
)
from xcube.primitives import select, view
from xcube.primitives.convert import copy as copy_primitive
from xcube.primitives.shape import broadcast_in_dim, reshape, transpose
from xcube.primitives.shape import full as filled
from xcube.transforms.arguments import abstract, to_array

# --- From values ---------------------------------------------------------------------------------


def array(
    object: Any,
    dtype: Any = None,
    copy: bool | None = True,
    order: str | None = "K",
    ndmin: int = 0,
    *,
    device: Any = None,
) -> Array:
    """An array of anything array-like: numbers, nested lists, NumPy arrays, arrays in lists.

    Floats become the nearest integers toward zero that an integer dtype holds, NaN becomes 0.

    Raises TypeError if a leaf is neither an array nor a number, ValueError if lists are ragged or
    values are masked, DtypeError for a dtype that kernels do not hold, such as int4.

    >>> array([[1, 2], [3, 4]])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    """
    check_device("array", device)
    if order not in (None, "K", "C"):
        raise NotImplementedError(
            f"array: order must be 'K' or 'C', for arrays are row-major; got {order!r}."
            f"{at_user_line()}"
        )
    given = None if dtype is None else requested("array", dtype)
    x = _from_object(object, given)
    if copy and isinstance(object, Array) and x is object:
        x = copy_primitive(x)
    return reshape(x, (1,) * (ndmin - x.ndim) + x.shape) if ndmin > x.ndim else x


def asarray(
    a: Any,
    dtype: Any = None,
    order: str | None = None,
    *,
    copy: bool | None = None,
    device: Any = None,
) -> Array:
    """An array of anything array-like; an array of that dtype is itself.

    >>> asarray(2.0)
    Array(2., dtype=float32, weak_type=True)
    """
    check_device("asarray", device)
    if isinstance(a, Array) and dtype is None and not copy:
        return a
    return array(a, dtype, bool(copy), order)


def _from_object(value: Any, dtype: np.dtype | None) -> Array:
    if hasattr(value, "__jax_array__"):
        value = value.__jax_array__()
    if isinstance(value, Array):
        return value if dtype is None else cast(value, dtype)
    if isinstance(value, bool | int | float | complex) and not isinstance(value, np.generic):
        return _from_number(value, dtype)
    if isinstance(value, list | tuple):
        return _from_sequence(value, dtype)
    host = host_array("array", value)
    if host.dtype.kind in "OUSM":
        raise TypeError(
            f"array: values must be numbers; got {type(value).__name__} of dtype {host.dtype}."
            f"{at_user_line()}"
        )
    return _from_host(host, dtype)


def _from_number(value: Any, dtype: np.dtype | None) -> Array:
    if dtype is None:
        return to_array.convert(value)
    if isinstance(value, int) and dtypes.is_integer(dtype):
        _check_fits(value, dtype)
    return _from_host(np.asarray(value), dtype)


def _check_fits(value: int, dtype: np.dtype) -> None:
    limits = dtypes.iinfo(dtype)
    if not limits.min <= value <= limits.max:
        raise OverflowError(
            f"array: Python int {value} must lie in {limits.min}..{limits.max} for {dtype}."
            f"{at_user_line()}"
        )


def _from_host(host: np.ndarray, dtype: np.dtype | None) -> Array:
    if dtype is None:
        return to_array.convert(host)
    return eager.from_host(host_cast(host, dtype))  # 64 bits that were asked for by name are kept


def _from_sequence(value: Sequence[Any], dtype: np.dtype | None) -> Array:
    leaves = tree.leaves(list(value), is_leaf=lambda x: x is None)
    if not any(isinstance(leaf, Array) or hasattr(leaf, "__jax_array__") for leaf in leaves):
        return _from_lists(value, leaves, dtype)
    parts = [_from_object(item, None) for item in value]
    return _stacked(parts, dtype)


def _from_lists(value: Sequence[Any], leaves: Sequence[Any], dtype: np.dtype | None) -> Array:
    for leaf in leaves:
        if isinstance(leaf, np.ndarray | np.generic):
            host_array("array", leaf)
    try:
        host = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"array: nested lists must be of equal lengths.{at_user_line()}"
        ) from error
    if host.dtype == object or host.dtype.kind in "US":
        bad = next((x for x in leaves if not isinstance(x, int | float | complex)), value)
        if isinstance(bad, list | tuple | int):
            raise OverflowError(f"array: integers must fit 64 bits; got {bad}.{at_user_line()}")
        raise TypeError(
            f"array: values must be numbers or arrays; got {type(bad).__name__}.{at_user_line()}"
        )
    if dtype is None and leaves:
        _check_default(host, leaves)
        dtype = dtypes.result_type(*{_key(leaf) for leaf in leaves})
    elif dtype is None:
        dtype = dtypes.default_dtype("float")
    return _from_host(host, dtype)


def _key(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray | np.generic):
        return dtypes.canonicalize_dtype(leaf.dtype)
    python_type = dtypes.python_type_of(leaf)
    return dtypes.BOOL if python_type is bool else python_type


def _check_default(host: np.ndarray, leaves: Sequence[Any]) -> None:
    if host.dtype.kind in "iu" and host.size:
        largest = max((int(x) for x in leaves if type(x) is int), key=abs, default=0)
        dtypes.scalar_dtype(largest)


def _stacked(parts: Sequence[Array], dtype: np.dtype | None) -> Array:
    shapes = {x.shape for x in parts}
    if len(shapes) > 1:
        raise ValueError(
            f"array: items of a list must have one shape; got {', '.join(map(str, shapes))}."
            f"{at_user_line()}"
        )
    items = promoted("array", *parts)
    rows = [reshape(as_array(x), (1, *x.aval.shape)) for x in items]
    joined = rows[0] if len(rows) == 1 else view.concatenate(rows, 0)
    joined = cast(joined, joined.dtype)
    return joined if dtype is None else cast(joined, dtype)


def copy(a: Any, order: str | None = None) -> Array:
    """The array in a buffer of its own: d[*s] -> d[*s]."""
    return array(a, copy=True)


def frombuffer(buffer: Any, dtype: Any = float, count: int = -1, offset: int = 0) -> Array:
    """A one-dimensional array of the bytes of a buffer.

    >>> frombuffer(bytes([1, 2]), "uint8")
    Array([1, 2], dtype=uint8)
    """
    wanted = requested("frombuffer", dtype)
    return to_array.convert(np.frombuffer(buffer, wanted, count, offset))


def fromiter(iterable: Any, dtype: Any, count: int = -1) -> Array:
    """A one-dimensional array of the numbers of an iterable."""
    return to_array.convert(np.fromiter(iterable, requested("fromiter", dtype), count))


def fromstring(string: str, dtype: Any = float, count: int = -1, *, sep: str) -> Array:
    """A one-dimensional array of the numbers in a text."""
    return to_array.convert(np.fromstring(string, requested("fromstring", dtype), count, sep=sep))


def fromfile(*args: Any, **kwargs: Any) -> Array:
    """A one-dimensional array of a file's numbers; arguments of `numpy.fromfile`."""
    return to_array.convert(np.fromfile(*args, **kwargs))


def fromfunction(
    function: Callable[..., Any], shape: Sequence[int], *, dtype: Any = float, **kwargs: Any
) -> Any:
    """function(i, j, ...) of the index arrays of a shape: -> d[*shape].

    >>> fromfunction(lambda i, j: i + j, (2, 2), dtype=int)
    Array([[0, 1],
           [1, 2]], dtype=int32)
    """
    return function(*indices(canonical_shape("fromfunction", shape), dtype), **kwargs)


def astype(x: Any, dtype: Any, /, *, copy: bool = False, device: Any = None) -> Array:
    """The elements in another dtype: floats become the nearest integers toward zero that an integer
    dtype holds, NaN becomes 0.

    Raises DtypeError for a dtype that kernels do not hold, such as int4.
    """
    check_device("astype", device)
    return cast(array_operand("astype", x), requested("astype", dtype))


def load(file: Any, *args: Any, **kwargs: Any) -> Any:
    """The array of a .npy file; arguments of `numpy.load`. Other files give what NumPy gives."""
    found = np.load(file, *args, **kwargs)
    return to_array.convert(found) if isinstance(found, np.ndarray) else found


# --- Filled --------------------------------------------------------------------------------------


def zeros(shape: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """Zeros: -> d[*shape], float32 by default.

    >>> zeros(2)
    Array([0., 0.], dtype=float32)
    """
    check_device("zeros", device)
    return _constant("zeros", shape, 0, dtype)


def ones(shape: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """Ones: -> d[*shape], float32 by default.

    >>> ones((1, 2), int)
    Array([[1, 1]], dtype=int32)
    """
    check_device("ones", device)
    return _constant("ones", shape, 1, dtype)


empty = zeros


def _constant(name: str, shape: Any, value: int, dtype: Any) -> Array:
    wanted = dtype_argument(name, dtype, dtypes.default_dtype("float"))
    return filled(_checked(name, canonical_shape(name, shape)), scalar(value, wanted))


def _checked(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if any(size < 0 for size in shape):
        raise ValueError(f"{name}: sizes must not be negative; got {shape}.{at_user_line()}")
    return shape


def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """A shape filled with a value, which may be an array that broadcasts to it.

    >>> full((2,), 7)
    Array([7, 7], dtype=int32, weak_type=True)
    """
    check_device("full", device)
    sizes, value = _checked("full", canonical_shape("full", shape)), operand("full", fill_value)
    wanted = dtype_argument("full", dtype, value.aval.dtype)
    value = typed_operand("full", fill_value, wanted, value.aval.weak_type and dtype is None)
    return (
        stretch(value, sizes) if isinstance(value, Array) and value.ndim else filled(sizes, value)
    )


def zeros_like(a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Array:
    """Zeros of the shape and dtype of `a`, unless these are given."""
    check_device("zeros_like", device)
    return _like("zeros_like", a, 0, dtype, shape)


def ones_like(a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None) -> Array:
    """Ones of the shape and dtype of `a`, unless these are given."""
    check_device("ones_like", device)
    return _like("ones_like", a, 1, dtype, shape)


def full_like(
    a: Any, fill_value: Any, dtype: Any = None, shape: Any = None, *, device: Any = None
) -> Array:
    """A value in the shape and dtype of `a`, unless these are given."""
    check_device("full_like", device)
    aval = _aval("full_like", a)
    sizes = aval.shape if shape is None else canonical_shape("full_like", shape)
    wanted = dtype_argument("full_like", dtype, aval.dtype)
    value = typed_operand("full_like", fill_value, wanted, aval.weak_type and dtype is None)
    return (
        stretch(value, sizes) if isinstance(value, Array) and value.ndim else filled(sizes, value)
    )


empty_like = zeros_like


def _aval(name: str, a: Any) -> Aval:
    if not isinstance(a, Array) and hasattr(a, "shape") and hasattr(a, "dtype"):
        return abstract(a)
    return operand(name, a).aval


def _like(name: str, a: Any, value: int, dtype: Any, shape: Any) -> Array:
    aval = _aval(name, a)
    sizes = aval.shape if shape is None else canonical_shape(name, shape)
    wanted = dtype_argument(name, dtype, aval.dtype)
    return filled(_checked(name, sizes), scalar(value, wanted, aval.weak_type and dtype is None))


# --- Ranges --------------------------------------------------------------------------------------


def arange(
    start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None
) -> Array:
    """start, start + step, ... below stop: -> d[n]. The bounds must be known while tracing.

    >>> arange(1, 7, 2)
    Array([1, 3, 5], dtype=int32)
    """
    check_device("arange", device)
    given = [v for v in (start, stop, step) if v is not None]
    kind = dtypes.result_type(*given) if dtype is None else requested("arange", dtype)
    if stop is None:
        start, stop = 0, start
    bounds = [
        _number("arange", v, what) for v, what in zip((start, stop, step), _BOUNDS, strict=True)
    ]
    low, high, by = bounds[0], bounds[1], 1 if step is None else bounds[2]
    if by == 0:
        raise ValueError(f"arange: step must not be 0.{at_user_line()}")
    size = max(0, math.ceil((high - low) / by))
    if dtypes.is_integer(kind) and all(isinstance(v, int) for v in (low, by)):
        return _whole_range(kind, size, low, by)
    if isinstance(low, int) and isinstance(by, int) and abs(low) + abs(by) * size < 1 << 24:
        return _whole_range(kind, size, low, by)
    return _from_host(np.arange(size) * np.asarray(by) + low, kind)


_BOUNDS = ("start", "stop", "step")


def _number(name: str, value: Any, what: str) -> Any:
    if value is None or isinstance(value, int | float | complex):
        return value
    return concrete(name, value, what).item()


def _whole_range(dtype: np.dtype, size: int, low: int, step: int) -> Array:
    x = view.iota(dtype, (size,), 0)
    if step != 1:
        x = e.multiply(x, scalar(step, dtype))
    return e.add(x, scalar(low, dtype)) if low else x


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """`num` numbers at equal distances from start to stop: d[*s], d[*s] -> d[num, *s].

    >>> linspace(0, 1, 3)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    check_device("linspace", device)
    num = _count("linspace", num)
    low, high = (operand("linspace", v, k) for k, v in enumerate((start, stop)))
    wanted = dtypes.result_type(*(cast_type(v) for v in (low, high)))
    inner = wanted if dtypes.is_inexact(wanted) else dtypes.default_dtype("float")
    result_dtype = dtype_argument("linspace", dtype, inner)
    if dtypes.is_inexact(result_dtype) and dtype is not None:
        inner = dtypes.promote_types(inner, result_dtype)
    low, high = (as_array(cast(v, inner)) for v in (low, high))
    parts = max(num - 1, 1) if endpoint else max(num, 1)
    low, high = broadcast("linspace", [low, high])
    step = e.divide(e.subtract(high, low), scalar(parts, inner))
    result = _points(low, high, num, parts, endpoint, inner)
    if dtypes.is_integer(result_dtype) and not dtypes.is_integer(inner):
        result = e.floor(result)
    result = cast(result, result_dtype)
    result = _move_first(result, axis)
    if retstep:
        return result, (step if num > 1 else filled(step.shape, scalar(np.nan, inner)))
    return result


def _points(
    low: Array, high: Array, num: int, parts: int, endpoint: bool, dtype: np.dtype
) -> Array:
    """low * (1 - t) + high * t: exact at both ends and monotonic between."""
    shape = (num, *low.shape)
    position = view.iota(dtypes.float_part(dtype), (num,), 0)
    fraction = e.divide(position, scalar(parts, position.dtype))
    t = cast(broadcast_in_dim(fraction, shape, (0,)), dtype)
    low, high = stretch(low, shape), stretch(high, shape)
    mixed = e.add(e.multiply(low, e.subtract(scalar(1, dtype), t)), e.multiply(high, t))
    if not endpoint or num <= 1:
        return mixed
    is_last = broadcast_in_dim(
        select.eq(view.iota(np.dtype(np.int32), (num,), 0), scalar(num - 1, np.dtype(np.int32))),
        shape,
        (0,),
    )
    return select.select(is_last, high, mixed)


def cast_type(x: Any) -> Any:
    """What stands for an operand in `dtypes.result_type`: its dtype, or the Python type if weak."""
    aval = x.aval
    if not aval.weak_type:
        return aval.dtype
    return {"int": int, "uint": int, "float": float, "complex": complex}[dtypes.kind_of(aval.dtype)]


def _count(name: str, num: Any) -> int:
    if isinstance(num, Array) and is_unknown(num):
        raise_unknown(name, num, "the number of elements")
    try:
        count = operator.index(num)
    except TypeError as error:
        raise TypeError(f"{name}: num must be an int; got {num!r}.{at_user_line()}") from error
    if count < 0:
        raise ValueError(f"{name}: num must not be negative; got {count}.{at_user_line()}")
    return count


def _move_first(x: Array, axis: int) -> Array:
    k = canonical_axis("linspace", axis, x.ndim)
    if k == 0:
        return x
    order = list(range(1, x.ndim))
    order.insert(k, 0)
    return transpose(x, order)


def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Array:
    """base to the power of `linspace(start, stop, num)`: -> d[num, *s]."""
    exponents = linspace(start, stop, num, endpoint, axis=axis)
    result = e.power(base, exponents)
    return result if dtype is None else cast(result, requested("logspace", dtype))


def geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0
) -> Array:
    """`num` numbers in equal ratios from start to stop: -> d[num, *s]."""
    low, high = (as_array(v) for v in promoted("geomspace", start, stop))
    result_dtype = dtype_argument(
        "geomspace",
        dtype,
        dtypes.promote_types(low.dtype, np.float32)
        if not dtypes.is_inexact(low.dtype)
        else low.dtype,
    )
    inner = result_dtype if dtypes.is_inexact(result_dtype) else dtypes.default_dtype("float")
    low, high = cast(low, inner), cast(high, inner)
    sign = e.sign(low)
    logs = linspace(e.log(e.multiply(low, sign)), e.log(e.multiply(high, sign)), num, endpoint)
    result = e.multiply(e.exp(logs), sign)
    if num > 0:
        result = _with_ends(result, low, high, endpoint)
    return cast(_move_first(result, axis), result_dtype)


def _with_ends(x: Array, low: Array, high: Array, endpoint: bool) -> Array:
    place = broadcast_in_dim(view.iota(np.dtype(np.int32), (x.shape[0],), 0), x.shape, (0,))
    x = select.select(e.equal(place, 0), stretch(low, x.shape), x)
    if endpoint and x.shape[0] > 1:
        x = select.select(e.equal(place, x.shape[0] - 1), stretch(high, x.shape), x)
    return x


# --- Diagonals and triangles ---------------------------------------------------------------------


def eye(
    N: int, M: int | None = None, k: Any = 0, dtype: Any = None, *, device: Any = None
) -> Array:
    """Ones on diagonal k: -> d[N, M].

    >>> eye(2)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    check_device("eye", device)
    rows = _count("eye", N)
    columns = rows if M is None else _count("eye", M)
    return cast(
        _diagonal_mask((rows, columns), k),
        dtype_argument("eye", dtype, dtypes.default_dtype("float")),
    )


def identity(n: int, dtype: Any = None) -> Array:
    """Ones on the diagonal: -> d[n, n]."""
    return eye(n, dtype=dtype)


def _index_grids(shape: tuple[int, int], offset: Any) -> tuple[Array, Array]:
    """Row number + offset, and column number, of every element."""
    integer = np.dtype(np.int32)
    rows, columns = view.iota(integer, shape, 0), view.iota(integer, shape, 1)
    moved = rows if isinstance(offset, int) and offset == 0 else e.add(rows, offset)
    return moved, columns


def _diagonal_mask(shape: tuple[int, int], k: Any) -> Array:
    return e.equal(*_index_grids(shape, k))


def _triangle(shape: tuple[int, int], k: Any) -> Array:
    return e.greater_equal(*_index_grids(shape, k))


def tri(N: int, M: int | None = None, k: Any = 0, dtype: Any = None) -> Array:
    """Ones on and below diagonal k: -> d[N, M]."""
    shape = (_count("tri", N), _count("tri", N if M is None else M))
    return cast(_triangle(shape, k), dtype_argument("tri", dtype, dtypes.default_dtype("float")))


@fused()
def tril(m: Any, k: Any = 0) -> Array:
    """Zero above diagonal k: d[*s, n, m] -> d[*s, n, m].

    Raises ShapeError unless there are two axes.

    >>> tril(ones((2, 2)))
    Array([[1., 0.],
           [1., 1.]], dtype=float32)
    """
    x = _matrix("tril", m)
    mask = stretch(_triangle((x.shape[-2], x.shape[-1]), k), x.shape)
    return select.select(mask, x, scalar(0, x.dtype, x.weak_type))


@fused()
def triu(m: Any, k: Any = 0) -> Array:
    """Zero below diagonal k: d[*s, n, m] -> d[*s, n, m].

    Raises ShapeError unless there are two axes.
    """
    x = _matrix("triu", m)
    below = e.subtract(k, 1) if isinstance(k, Array) else k - 1
    mask = stretch(_triangle((x.shape[-2], x.shape[-1]), below), x.shape)
    return select.select(mask, scalar(0, x.dtype, x.weak_type), x)


def _matrix(name: str, m: Any) -> Array:
    x = array_operand(name, m)
    if x.ndim < 2:
        raise ShapeError(f"{name}: the array must have two axes; got {x.aval}.{at_user_line()}")
    return x


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Rows and columns of the elements on and below diagonal k of an n by m matrix."""
    return tuple(to_array.convert(part) for part in np.tril_indices(n, k, m))  # type: ignore[return-value]


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, Array]:
    """Rows and columns of the elements on and above diagonal k of an n by m matrix."""
    return tuple(to_array.convert(part) for part in np.triu_indices(n, k, m))  # type: ignore[return-value]


def tril_indices_from(arr: Any, k: int = 0) -> tuple[Array, Array]:
    """`tril_indices` of a matrix's shape."""
    rows, columns = _matrix("tril_indices_from", arr).shape
    return tril_indices(rows, k, columns)


def triu_indices_from(arr: Any, k: int = 0) -> tuple[Array, Array]:
    """`triu_indices` of a matrix's shape."""
    rows, columns = _matrix("triu_indices_from", arr).shape
    return triu_indices(rows, k, columns)


def diag_indices(n: int, ndim: int = 2) -> tuple[Array, ...]:
    """Index arrays of the main diagonal of an array with ndim axes of length n."""
    return (view.iota(np.dtype(np.int32), (_count("diag_indices", n),), 0),) * ndim


def diag_indices_from(arr: Any) -> tuple[Array, ...]:
    """`diag_indices` of an array whose axes have one length."""
    x = array_operand("diag_indices_from", arr)
    require("diag_indices_from", len(set(x.shape)) == 1, "all axes must have one length", x)
    return diag_indices(x.shape[0], x.ndim)


def mask_indices(n: int, mask_func: Callable[..., Any], k: int = 0) -> tuple[Array, Array]:
    """Indices of the elements that a function such as `triu` keeps of an n by n matrix."""
    kept = np.asarray(mask_func(ones((n, n)), k))
    return tuple(to_array.convert(part) for part in np.nonzero(kept))  # type: ignore[return-value]


# --- Grids ---------------------------------------------------------------------------------------


def indices(dimensions: Sequence[int], dtype: Any = None, sparse: bool = False) -> Any:
    """Index of each element along each axis: -> i[len(dimensions), *dimensions]."""
    sizes = canonical_shape("indices", dimensions)
    wanted = dtype_argument("indices", dtype, dtypes.default_dtype("int"))
    if sparse:
        return tuple(
            reshape(view.iota(wanted, (n,), 0), (1,) * k + (n,) + (1,) * (len(sizes) - k - 1))
            for k, n in enumerate(sizes)
        )
    grids = [view.iota(wanted, (1, *sizes), k + 1) for k in range(len(sizes))]
    return view.concatenate(grids, 0) if grids else zeros((0,), wanted)


def meshgrid(
    *xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy"
) -> list[Array]:
    """Coordinates of a grid from those of its axes: d[n], d[m] -> [d[m, n], d[m, n]].

    Raises ValueError unless `indexing` is "xy" or "ij".
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(
            f"meshgrid: indexing must be 'xy' or 'ij'; got {indexing!r}.{at_user_line()}"
        )
    arrays = [array_operand("meshgrid", x, k) for k, x in enumerate(xi)]
    places = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) >= 2:
        places[:2] = [1, 0]
    sizes = [0] * len(arrays)
    for x, place in zip(arrays, places, strict=True):
        sizes[place] = x.size
    return [_grid(x, place, sizes, sparse) for x, place in zip(arrays, places, strict=True)]


def _grid(x: Array, place: int, sizes: Sequence[int], sparse: bool) -> Array:
    flat = reshape(x, (x.size,))
    shape = tuple(n if k == place else 1 for k, n in enumerate(sizes)) if sparse else tuple(sizes)
    return broadcast_in_dim(flat, shape, (place,))


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """An array on the memory of another library's array, which must not be changed from then on;
    a copy where the layout or the alignment differ.

    Raises TypeError if `x` does not offer DLPack.
    """
    check_device("from_dlpack", device)
    if isinstance(x, Array):
        return copy_primitive(x) if copy else x
    if not hasattr(x, "__dlpack__"):
        raise TypeError(
            f"from_dlpack: the argument must offer __dlpack__; got {type(x).__name__}."
            f"{at_user_line()}"
        )
    if holder(x) is not None:
        return eager.convert(x)
    host = dlpack.import_array(x)
    dtype = requested("from_dlpack", host.dtype)
    device_ = default_device()
    buffer = device_.from_host(np.ascontiguousarray(host), copy=bool(copy))
    return DeviceArray(Aval(host.shape, dtype), buffer, device_)
