"""The primitive operations under JAX's names: strict about dtypes and shapes, as the primitives
are. NumPy arrays become arrays at this door; Python numbers take the other operand's dtype. The
`*_p` names are the primitives themselves."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube import tree
from xcube.array import Array
from xcube.errors import ShapeError
from xcube.ir import Shape, at_user_line
from xcube.numpy import operands
from xcube.primitives import (
    bits,
    contract,
    convert,
    convolution,
    convolution_forms,
    convolution_numbers,
    cumulative,
    elementwise,
    index,
    kinds,
    random_bits,
    transcendental,
    view,
    windows,
)
from xcube.primitives import complex as parts
from xcube.primitives import (
    gather as gathers,
)
from xcube.primitives import (
    reduce as reductions,
)
from xcube.primitives import (
    scatter as scatters,
)
from xcube.primitives import (
    select as choices,
)
from xcube.primitives import (
    shape as shapes,
)
from xcube.primitives import (
    sort as sorts,
)
from xcube.trace import aval_of
from xcube.transforms import collectives, parallel
from xcube.transforms import fft as fourier
from xcube.transforms import reduce_window as windowed
from xcube.transforms.arguments import to_array
from xcube.transforms.control import branches, fori, loops, mapping
from xcube.transforms.control import cond as branching
from xcube.transforms.control import scan as scanning
from xcube.transforms.control import while_loop as looping
from xcube.transforms.custom import custom_root as roots
from xcube.transforms.custom import linear_solve as linear

Function = Callable[..., Any]
_range = slice  # the built-in, before `slice` becomes the operation


def _door(function: Function) -> Function:
    """A primitive's function that takes NumPy arrays too, alone or in a list or tuple."""

    @functools.wraps(function)
    def opened(*args: Any, **params: Any) -> Any:
        return function(*[_operand(arg) for arg in args], **params)

    return opened


def _operand(value: Any) -> Any:
    if isinstance(value, Array):
        return value
    if isinstance(value, np.ndarray):
        return to_array.convert(value) if value.ndim else value[()]
    if type(value) in (list, tuple) and any(isinstance(item, np.ndarray) for item in value):
        return type(value)(_operand(item) for item in value)
    return value


def _array(name: str, value: Any) -> Array:
    return operands.array_operand(name, value)


# arithmetic -----------------------------------------------------------------------------------

abs = _door(elementwise.abs)
add = _door(kinds.add)
cbrt = _door(elementwise.cbrt)
ceil = _door(elementwise.ceil)
clamp = _door(choices.clamp)
div = _door(elementwise.div)
floor = _door(elementwise.floor)
integer_pow = _door(elementwise.integer_pow)
max = _door(elementwise.max)
min = _door(elementwise.min)
mul = _door(elementwise.mul)
mulhi = _door(bits.mulhi)
neg = _door(elementwise.neg)
nextafter = _door(elementwise.nextafter)
pow = _door(transcendental.pow)
reciprocal = _door(elementwise.reciprocal)
rem = _door(elementwise.rem)
round = _door(elementwise.round)
rsqrt = _door(elementwise.rsqrt)
sign = _door(elementwise.sign)
sqrt = _door(elementwise.sqrt)
square = _door(elementwise.square)
sub = _door(elementwise.sub)
RoundingMethod = elementwise.RoundingMethod

# transcendental -------------------------------------------------------------------------------

acos = _door(transcendental.acos)
acosh = _door(transcendental.acosh)
asin = _door(transcendental.asin)
asinh = _door(transcendental.asinh)
atan = _door(transcendental.atan)
atan2 = _door(transcendental.atan2)
atanh = _door(transcendental.atanh)
cos = _door(transcendental.cos)
cosh = _door(transcendental.cosh)
digamma = _door(transcendental.digamma)
erf = _door(transcendental.erf)
erf_inv = _door(transcendental.erf_inv)
erfc = _door(transcendental.erfc)
exp = _door(transcendental.exp)
exp2 = _door(transcendental.exp2)
expm1 = _door(transcendental.expm1)
lgamma = _door(transcendental.lgamma)
log = _door(transcendental.log)
log1p = _door(transcendental.log1p)
log2 = _door(transcendental.log2)
logistic = _door(transcendental.logistic)
polygamma = _door(transcendental.polygamma)
sin = _door(transcendental.sin)
sinh = _door(transcendental.sinh)
tan = _door(transcendental.tan)
tanh = _door(transcendental.tanh)

# logic, comparison, choice --------------------------------------------------------------------

bitwise_and = _door(bits.bitwise_and)
bitwise_not = _door(bits.bitwise_not)
bitwise_or = _door(bits.bitwise_or)
bitwise_xor = _door(bits.bitwise_xor)
clz = _door(bits.clz)
population_count = _door(bits.population_count)
shift_left = _door(bits.shift_left)
shift_right_arithmetic = _door(bits.shift_right_arithmetic)
shift_right_logical = _door(bits.shift_right_logical)
eq = _door(choices.eq)
ge = _door(choices.ge)
gt = _door(choices.gt)
is_finite = _door(choices.is_finite)
le = _door(choices.le)
lt = _door(choices.lt)
ne = _door(choices.ne)
select = _door(choices.select)
select_n = _door(choices.select_n)

# dtypes and complex numbers -------------------------------------------------------------------

bitcast_convert_type = _door(convert.bitcast_convert_type)
complex = _door(parts.complex)
conj = _door(parts.conj)
convert_element_type = _door(convert.convert_element_type)
imag = _door(parts.imag)
real = _door(parts.real)
reduce_precision = _door(convert.reduce_precision)


def dtype(x: Any) -> np.dtype:
    """The dtype that an operand has inside xcube.

    >>> dtype(1.0)
    dtype('float32')
    """
    return aval_of(_operand(x)).dtype


def stop_gradient(x: Any) -> Any:
    """A pytree whose arrays are constants of differentiation.

    >>> stop_gradient({"a": 1})
    {'a': 1}
    """
    return tree.map(lambda leaf: convert.stop_gradient(_operand(leaf)), x)


def optimization_barrier(operand: Any) -> Any:
    """A pytree of arrays, which the compiler will neither merge with equal values before this point
    nor compute only in part."""
    leaves, treedef = tree.flatten(operand)
    return tree.unflatten(treedef, convert.optimization_barrier(*[_operand(x) for x in leaves]))


# shapes ---------------------------------------------------------------------------------------

broadcast_in_dim = _door(shapes.broadcast_in_dim)
concatenate = _door(view.concatenate)
expand_dims = _door(view.expand_dims)
pad = _door(view.pad)
rev = _door(view.rev)
slice = _door(view.slice)
slice_in_dim = _door(view.slice_in_dim)
split = _door(view.split)
squeeze = _door(view.squeeze)
tile = _door(view.tile)
transpose = _door(shapes.transpose)


def reshape(operand: Any, new_sizes: Sequence[int], dimensions: Any = None) -> Array:
    """The same elements in row-major order under another shape: d[*s] -> d[*new_sizes].

    `dimensions`: permute the axes so first. Raises ShapeError if the numbers of elements differ.

    >>> reshape(np.zeros((2, 3)), (3, 2)).shape
    (3, 2)
    """
    x = _array("reshape", operand)
    return shapes.reshape(x if dimensions is None else shapes.transpose(x, dimensions), new_sizes)


def broadcast(operand: Any, sizes: Sequence[int]) -> Array:
    """The operand repeated along new leading axes: d[*s] -> d[*sizes, *s]."""
    x = _array("broadcast", operand)
    lead = len(sizes)
    return shapes.broadcast_in_dim(x, (*sizes, *x.shape), range(lead, lead + x.ndim))


def broadcast_shapes(*shapes: Sequence[int]) -> Shape:
    """The shape to which shapes broadcast by NumPy's rule. Raises ShapeError if there is none.

    >>> broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    return operands.broadcast_shapes("broadcast_shapes", *[tuple(s) for s in shapes])


def broadcast_to_rank(x: Any, rank: int) -> Array:
    """x with axes of length 1 in front, so that it has a number of axes."""
    x = _array("broadcast_to_rank", x)
    return shapes.reshape(x, (1,) * (rank - x.ndim) + x.shape)


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Array:
    """The axes from start to stop (not included) as one.

    >>> collapse(np.zeros((2, 3, 4)), 1).shape
    (2, 12)
    """
    x = _array("collapse", operand)
    first, last, _ = _range(start_dimension, stop_dimension).indices(x.ndim)
    middle = math.prod(x.shape[first:last])
    return shapes.reshape(x, (*x.shape[:first], middle, *x.shape[last:]))


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Array:
    """One place along an axis, the axis kept with length 1 unless told otherwise.

    Raises ShapeError if there is no such place.

    >>> index_in_dim(np.zeros((2, 3)), -1, axis=1, keepdims=False).shape
    (2,)
    """
    x = _array("index_in_dim", operand)
    axis = operands.canonical_axis("index_in_dim", axis, x.ndim, x.aval)
    place = operands.canonical_axis("index_in_dim", index, x.shape[axis])
    part = view.slice_in_dim(x, place, place + 1, axis=axis)
    return part if keepdims else view.squeeze(part, (axis,))


def stack(operands: Sequence[Any], dimension: int = 0) -> Array:
    """Arrays of one shape along a new axis: d[*s]... -> d[*s with the number of them]."""
    arrays = [_array("stack", x) for x in operands]
    return view.concatenate([view.expand_dims(x, (dimension,)) for x in arrays], dimension)


def unstack(operand: Any, dimension: int = 0) -> list[Array]:
    """The parts along an axis, without it."""
    x = _array("unstack", operand)
    return [index_in_dim(x, k, dimension, keepdims=False) for k in range(x.shape[dimension])]


# making arrays --------------------------------------------------------------------------------


def full(shape: Sequence[int], fill_value: Any, dtype: Any = None) -> Array:
    """A shape filled with one scalar.

    >>> full((2,), 7)
    Array([7, 7], dtype=int32, weak_type=True)
    """
    value = _array("full", fill_value)
    if dtype is not None:
        value = convert.convert_element_type(value, dtype)
    return shapes.full(tuple(shape), value)


def full_like(x: Any, fill_value: Any, dtype: Any = None, shape: Any = None) -> Array:
    """An array like x, of its shape and dtype unless told otherwise, filled with one scalar.

    >>> full_like(np.zeros((2,), np.int8), 7)
    Array([7, 7], dtype=int8)
    """
    aval = aval_of(_operand(x))
    value = convert.convert_element_type(
        _array("full_like", fill_value),
        aval.dtype if dtype is None else dtype,
        aval.weak_type and dtype is None,
    )
    return shapes.full(aval.shape if shape is None else tuple(shape), value)


def empty(shape: Sequence[int], dtype: Any) -> Array:
    """An array whose elements mean nothing: zeros."""
    return full(shape, 0, dtype)


def iota(dtype: Any, size: int) -> Array:
    """0, 1, 2, ...: dtype[size].

    >>> iota("int32", 3)
    Array([0, 1, 2], dtype=int32)
    """
    return view.iota(dtype, (size,), 0)


def broadcasted_iota(dtype: Any, shape: Sequence[int], dimension: int) -> Array:
    """0, 1, 2, ... along an axis of a shape.

    >>> broadcasted_iota("int32", (2, 2), 1)
    Array([[0, 1],
           [0, 1]], dtype=int32)
    """
    return view.iota(dtype, tuple(shape), dimension)


# indexing -------------------------------------------------------------------------------------

GatherDimensionNumbers = windows.GatherDimensionNumbers
GatherScatterMode = windows.GatherScatterMode
ScatterDimensionNumbers = windows.ScatterDimensionNumbers
dynamic_index_in_dim = _door(index.dynamic_index_in_dim)
dynamic_slice = _door(index.dynamic_slice)
dynamic_slice_in_dim = _door(index.dynamic_slice_in_dim)
dynamic_update_index_in_dim = _door(index.dynamic_update_index_in_dim)
dynamic_update_slice = _door(index.dynamic_update_slice)
dynamic_update_slice_in_dim = _door(index.dynamic_update_slice_in_dim)
gather = _door(gathers.gather)
scatter = _door(scatters.scatter)
scatter_add = _door(gathers.scatter_add)
scatter_max = _door(scatters.scatter_max)
scatter_min = _door(scatters.scatter_min)
scatter_mul = _door(scatters.scatter_mul)
scatter_sub = _door(gathers.scatter_sub)

# reductions and cumulative operations ---------------------------------------------------------

cumlogsumexp = _door(cumulative.cumlogsumexp)
cummax = _door(cumulative.cummax)
cummin = _door(cumulative.cummin)
cumprod = _door(cumulative.cumprod)
cumsum = _door(cumulative.cumsum)
reduce_and = _door(reductions.reduce_and)
reduce_max = _door(reductions.reduce_max)
reduce_min = _door(reductions.reduce_min)
reduce_or = _door(reductions.reduce_or)
reduce_prod = _door(reductions.reduce_prod)
reduce_sum = _door(shapes.reduce_sum)
reduce_xor = _door(reductions.reduce_xor)
fft = fourier.fft
FftType = fourier.FftType
reduce_window = windowed.reduce_window
reduce_window_shape_tuple = windowed.reduce_window_shape_tuple


def argmax(operand: Any, axis: int, index_dtype: Any) -> Array:
    """The first place of the largest along an axis, or of NaN: d[*s] -> i[s without the axis].

    >>> argmax(np.array([1, 5, 2]), 0, "int32")
    Array(1, dtype=int32)
    """
    x = _array("argmax", operand)
    axis = operands.canonical_axis("argmax", axis, x.ndim, x.aval)
    return reductions.argmax(x, (axis,), index_dtype)


def argmin(operand: Any, axis: int, index_dtype: Any) -> Array:
    """The first place of the least along an axis, or of NaN: d[*s] -> i[s without the axis]."""
    x = _array("argmin", operand)
    axis = operands.canonical_axis("argmin", axis, x.ndim, x.aval)
    return reductions.argmin(x, (axis,), index_dtype)


# sorting --------------------------------------------------------------------------------------

sort = _door(sorts.sort)
top_k = _door(sorts.top_k)


def sort_key_val(
    keys: Any, values: Any, dimension: int = -1, is_stable: bool = True
) -> tuple[Array, Array]:
    """Keys in ascending order along an axis, and the values with them: d[*s], e[*s] -> the same."""
    both = (_array("sort_key_val", keys), _array("sort_key_val", values))
    first, second = sorts.sort(both, dimension=dimension, is_stable=is_stable, num_keys=1)
    return first, second


def approx_max_k(
    operand: Any, k: int, reduction_dimension: int = -1, recall_target: float = 0.95
) -> tuple[Array, Array]:
    """The k largest along an axis and their places, in descending order; here always exact."""
    x = _array("approx_max_k", operand)
    axis = operands.canonical_axis("approx_max_k", reduction_dimension, x.ndim, x.aval)
    order = [d for d in range(x.ndim) if d != axis]
    back = [*range(axis), x.ndim - 1, *range(axis, x.ndim - 1)]
    values, places = sorts.top_k(shapes.transpose(x, (*order, axis)), k)
    return shapes.transpose(values, back), shapes.transpose(places, back)


def approx_min_k(
    operand: Any, k: int, reduction_dimension: int = -1, recall_target: float = 0.95
) -> tuple[Array, Array]:
    """The k least along an axis and their places, in ascending order; here always exact."""
    values, places = approx_max_k(neg(operand), k, reduction_dimension, recall_target)
    return neg(values), places


# products -------------------------------------------------------------------------------------

DotDimensionNumbers = contract.DotDimensionNumbers
Precision = contract.Precision
dot_general = _door(contract.dot_general)


def dot(lhs: Any, rhs: Any, precision: Any = None, preferred_element_type: Any = None) -> Array:
    """The product of vectors or matrices: d[i, k] or d[k], d[k, j] or d[k] -> d[i, j], d[i], d[j]
    or d[].

    Raises ShapeError unless both have one or two axes that fit.

    >>> dot(np.ones((2, 3)), np.ones(3))
    Array([3., 3.], dtype=float32)
    """
    x, y = _array("dot", lhs), _array("dot", rhs)
    if not (1 <= x.ndim <= 2 and 1 <= y.ndim <= 2 and x.shape[-1] == y.shape[0]):
        raise ShapeError(
            f"dot: takes vectors and matrices, the last axis of the first as long as the first of "
            f"the second; got {x.aval} and {y.aval}.{at_user_line()}"
        )
    numbers = (((x.ndim - 1,), (0,)), ((), ()))
    return contract.dot_general(x, y, numbers, precision, preferred_element_type)


def batch_matmul(lhs: Any, rhs: Any, precision: Any = None) -> Array:
    """Products of matrices: d[*b, i, k], d[*b, k, j] -> d[*b, i, j].

    Raises ShapeError unless both have the same number of axes, at least two.
    """
    x, y = _array("batch_matmul", lhs), _array("batch_matmul", rhs)
    if x.ndim != y.ndim or x.ndim < 2:
        raise ShapeError(
            f"batch_matmul: both must have the same number of axes, at least 2; got {x.aval} and "
            f"{y.aval}.{at_user_line()}"
        )
    batch = tuple(range(x.ndim - 2))
    numbers = (((x.ndim - 1,), (x.ndim - 2,)), (batch, batch))
    return contract.dot_general(x, y, numbers, precision)


# convolutions ---------------------------------------------------------------------------------

ConvDimensionNumbers = convolution_numbers.ConvDimensionNumbers
ConvGeneralDilatedDimensionNumbers = convolution_numbers.ConvGeneralDilatedDimensionNumbers
conv = _door(convolution_forms.conv)
conv_dimension_numbers = convolution_numbers.conv_dimension_numbers
conv_general_dilated = _door(convolution.conv_general_dilated)
conv_general_dilated_local = _door(convolution_forms.conv_general_dilated_local)
conv_general_dilated_patches = _door(convolution_forms.conv_general_dilated_patches)
conv_general_permutations = convolution_numbers.conv_general_permutations
conv_general_shape_tuple = convolution_numbers.conv_general_shape_tuple
conv_shape_tuple = convolution_numbers.conv_shape_tuple
conv_transpose = _door(convolution_forms.conv_transpose)
conv_transpose_shape_tuple = convolution_numbers.conv_transpose_shape_tuple
conv_with_general_padding = _door(convolution_forms.conv_with_general_padding)
padtype_to_pads = convolution_numbers.padtype_to_pads

# mapped axes ----------------------------------------------------------------------------------

all_gather = parallel.all_gather
all_to_all = parallel.all_to_all
axis_index = parallel.axis_index
axis_size = parallel.axis_size
pbroadcast = parallel.pbroadcast
pmax = parallel.pmax
pmean = parallel.pmean
pmin = parallel.pmin
ppermute = parallel.ppermute
pshuffle = parallel.pshuffle
psum = parallel.psum
psum_scatter = parallel.psum_scatter
pswapaxes = parallel.pswapaxes


# control flow ---------------------------------------------------------------------------------

associative_scan = mapping.associative_scan
cond = branches.cond
fori_loop = fori.fori_loop
map = mapping.map
scan = loops.scan
switch = branches.switch
while_loop = loops.while_loop

# equations ------------------------------------------------------------------------------------

custom_linear_solve = linear.custom_linear_solve
custom_root = roots.custom_root


# primitives -----------------------------------------------------------------------------------

abs_p = elementwise.abs.primitive
acos_p = transcendental.acos.primitive
acosh_p = transcendental.acosh.primitive
add_p = kinds.add.primitive
all_gather_p = collectives.all_gather_p
all_to_all_p = collectives.all_to_all_p
and_p = bits.bitwise_and.primitive
argmax_p = reductions.argmax.primitive
argmin_p = reductions.argmin.primitive
asin_p = transcendental.asin.primitive
asinh_p = transcendental.asinh.primitive
atan2_p = transcendental.atan2.primitive
atan_p = transcendental.atan.primitive
atanh_p = transcendental.atanh.primitive
axis_index_p = collectives.axis_index_p
bitcast_convert_type_p = convert.bitcast_convert_type_p
broadcast_in_dim_p = shapes.broadcast_in_dim_p
cbrt_p = elementwise.cbrt.primitive
ceil_p = elementwise.ceil.primitive
clamp_p = choices.clamp_p
clz_p = bits.clz.primitive
complex_p = parts.complex_p
concatenate_p = view.concatenate_p
cond_p = branching.cond_p
conj_p = parts.conj_p
conv_general_dilated_p = convolution.conv_general_dilated_p
convert_element_type_p = convert.convert_element_type_p
copy_p = convert.copy_p
cos_p = transcendental.cos.primitive
cosh_p = transcendental.cosh.primitive
cumlogsumexp_p = cumulative.cumlogsumexp.primitive
cummax_p = cumulative.cummax.primitive
cummin_p = cumulative.cummin.primitive
cumprod_p = cumulative.cumprod.primitive
cumsum_p = cumulative.cumsum.primitive
digamma_p = transcendental.digamma.primitive
div_p = elementwise.div.primitive
dot_general_p = contract.dot_general_p
dynamic_slice_p = index.dynamic_slice_p
dynamic_update_slice_p = index.dynamic_update_slice_p
eq_p = choices.eq.primitive
erf_inv_p = transcendental.erf_inv.primitive
erf_p = transcendental.erf.primitive
erfc_p = transcendental.erfc.primitive
exp2_p = transcendental.exp2.primitive
exp_p = transcendental.exp.primitive
expm1_p = transcendental.expm1.primitive
floor_p = elementwise.floor.primitive
gather_p = gathers.gather_p
ge_p = choices.ge.primitive
gt_p = choices.gt.primitive
imag_p = parts.imag.primitive
integer_pow_p = elementwise.integer_pow_p
iota_p = view.iota_p
is_finite_p = choices.is_finite.primitive
le_p = choices.le.primitive
lgamma_p = transcendental.lgamma.primitive
linear_solve_p = linear.custom_linear_solve_p
log1p_p = transcendental.log1p.primitive
log2_p = transcendental.log2.primitive
log_p = transcendental.log.primitive
logistic_p = transcendental.logistic.primitive
lt_p = choices.lt.primitive
max_p = elementwise.max.primitive
min_p = elementwise.min.primitive
mul_p = elementwise.mul.primitive
mulhi_p = bits.mulhi.primitive
ne_p = choices.ne.primitive
neg_p = elementwise.neg.primitive
nextafter_p = elementwise.nextafter.primitive
not_p = bits.bitwise_not.primitive
optimization_barrier_p = convert.optimization_barrier_p
or_p = bits.bitwise_or.primitive
pad_p = view.pad_p
polygamma_p = transcendental.polygamma_p
pmax_p = collectives.pmax_p
pmin_p = collectives.pmin_p
population_count_p = bits.population_count.primitive
pow_p = transcendental.pow_p
ppermute_p = collectives.ppermute_p
psum_p = collectives.psum_p
real_p = parts.real.primitive
reduce_and_p = reductions.reduce_and.primitive
reduce_max_p = reductions.reduce_max.primitive
reduce_min_p = reductions.reduce_min.primitive
reduce_or_p = reductions.reduce_or.primitive
reduce_precision_p = convert.reduce_precision_p
reduce_prod_p = reductions.reduce_prod.primitive
reduce_scatter_p = collectives.psum_scatter_p
reduce_sum_p = shapes.reduce_sum_p
reduce_xor_p = reductions.reduce_xor.primitive
rem_p = elementwise.rem.primitive
reshape_p = shapes.reshape_p
rev_p = view.rev_p
round_p = elementwise.round_p
rsqrt_p = elementwise.rsqrt.primitive
scan_p = scanning.scan_p
scatter_add_p = gathers.scatter_add.primitive
scatter_max_p = scatters.scatter_max.primitive
scatter_min_p = scatters.scatter_min.primitive
scatter_mul_p = scatters.scatter_mul.primitive
scatter_p = scatters.scatter.primitive
scatter_sub_p = gathers.scatter_sub.primitive
select_n_p = choices.select_n_p
shift_left_p = bits.shift_left.primitive
shift_right_arithmetic_p = bits.shift_right_arithmetic.primitive
shift_right_logical_p = bits.shift_right_logical.primitive
sign_p = elementwise.sign.primitive
sin_p = transcendental.sin.primitive
sinh_p = transcendental.sinh.primitive
slice_p = view.slice_p
sort_p = sorts.sort_p
sqrt_p = elementwise.sqrt.primitive
square_p = elementwise.square.primitive
squeeze_p = view.squeeze_p
stop_gradient_p = convert.stop_gradient_p
sub_p = elementwise.sub.primitive
tan_p = transcendental.tan.primitive
tanh_p = transcendental.tanh.primitive
threefry2x32_p = random_bits.threefry2x32_p
top_k_p = sorts.top_k_p
transpose_p = shapes.transpose_p
while_p = looping.while_p
xor_p = bits.bitwise_xor.primitive
