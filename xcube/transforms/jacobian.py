"""Whole Jacobians: the function runs once and is linearized; then the standard basis of its inputs
is pushed forward through the linear program, or that of its results pulled back, as one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from xcube import dtypes, tree
from xcube.errors import DtypeError
from xcube.ir import Aval, Axis, Jaxpr, at_user_line
from xcube.primitives.convert import convert_element_type
from xcube.primitives.select import eq
from xcube.primitives.shape import reshape, transpose, zeros_of
from xcube.primitives.view import iota, slice_in_dim
from xcube.trace import aval_of
from xcube.transforms.arguments import check_callable
from xcube.transforms.grad import Chosen, chosen, is_differentiable, numbers_of
from xcube.transforms.linear_maps import Linearized, LinearProgram, linearize_call
from xcube.transforms.transpose import transpose_jaxpr
from xcube.transforms.vmap import batch_values, named_like, to_batch

# the public functions -------------------------------------------------------------------------


def jacfwd(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """A function that gives the Jacobian of fun, column by column: good where there are fewer
    inputs than results.

    For a result f[*s] and an input g[*t] it is f[*s, *t]: a tree of results with trees of inputs
    at its leaves (tuples of them if `argnums` is one). With `has_aux` fun returns
    (result, auxiliary), and the function (Jacobian, auxiliary). `holomorphic`: inputs and results
    are complex. Raises DtypeError if an input is not real (not complex, if holomorphic).

    >>> import xcube.numpy as jnp
    >>> jacfwd(lambda x: x * x[0])(jnp.array([2.0, 3.0]))
    Array([[4., 0.],
           [3., 2.]], dtype=float32)
    """
    check_callable("jacfwd", fun)
    numbers_of("jacfwd", argnums)

    def jacobian_by_columns(*args: Any, **kwargs: Any) -> Any:
        by = chosen("jacfwd", fun, argnums, args, kwargs)
        for number in range(len(by.leaves)):
            _check_pushed(by, number, holomorphic)
        found = linearize_call(by.call, by.leaves, [True] * len(by.leaves), has_aux)
        for out in found.outs if holomorphic else ():
            _check_complex("jacfwd", by.name, out)
        rows = [by.whole(blocks) for blocks in _pushed(found)]
        result = tree.unflatten(found.program.result, rows)
        return (result, found.aux) if has_aux else result

    return named_like(jacobian_by_columns, fun)


def jacrev(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """A function that gives the Jacobian of fun, row by row: good where there are fewer results
    than inputs.

    For a result f[*s] and an input g[*t] it is f[*s, *t]: a tree of results with trees of inputs
    at its leaves (tuples of them if `argnums` is one). With `has_aux` fun returns
    (result, auxiliary), and the function (Jacobian, auxiliary). `holomorphic`: inputs and results
    are complex. `allow_int`: inputs may be integers, whose blocks are zeros of their dtype.
    Raises DtypeError if an input is not float or complex, or a result not real (not complex, if
    holomorphic).

    >>> import xcube.numpy as jnp
    >>> jacrev(lambda x: x * x[0])(jnp.array([2.0, 3.0]))
    Array([[4., 0.],
           [3., 2.]], dtype=float32)
    """
    check_callable("jacrev", fun)
    numbers_of("jacrev", argnums)

    def jacobian_by_rows(*args: Any, **kwargs: Any) -> Any:
        by = chosen("jacrev", fun, argnums, args, kwargs)
        moving = [_check_pulled(by, n, holomorphic, allow_int) for n in range(len(by.leaves))]
        found = linearize_call(by.call, by.leaves, moving, has_aux)
        for out in found.outs:
            _check_result("jacrev", by.name, out, holomorphic)
        columns = list(_pulled(found))
        rows = [by.whole([blocks[n] for blocks in columns]) for n in range(len(found.outs))]
        result = tree.unflatten(found.program.result, rows)
        return (result, found.aux) if has_aux else result

    return named_like(jacobian_by_rows, fun)


jacobian = jacrev


def hessian(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """A function that gives the second derivatives of fun: forward mode over reverse mode.

    For a result f[*s] and inputs g[*t], h[*u] it is f[*s, *t, *u], in trees of results of trees of
    inputs of trees of inputs. Arguments and errors are those of `jacfwd` and `jacrev`.

    >>> import xcube.numpy as jnp
    >>> hessian(lambda x: x[0] ** 2 * x[1])(jnp.array([3.0, 5.0]))
    Array([[10.,  6.],
           [ 6.,  0.]], dtype=float32)
    """
    inner = jacrev(fun, argnums, has_aux, holomorphic)
    return jacfwd(inner, argnums, has_aux, holomorphic)


# bases ----------------------------------------------------------------------------------------


def _pushed(found: Linearized) -> Iterator[list[Any]]:
    """For each result its blocks, one per input: the basis of the inputs pushed forward."""
    program = found.program
    basis, count = _basis(program.in_avals)
    columns = iter(_through(program.jaxpr, found.residuals, basis, count))
    for out, flag in zip(program.out_avals, program.moved, strict=True):
        column = next(columns) if flag else None
        yield _column_blocks(column, out, program.in_avals)


def _column_blocks(column: Any, out: Aval, inputs: Sequence[Aval]) -> list[Any]:
    """The blocks of one result, cut along the leading axis, which goes to the end."""
    blocks, start = [], 0
    for aval in inputs:
        shape, end = (*out.shape, *aval.shape), start + aval.size
        if column is None:
            blocks.append(_zeros(shape, out))
        else:
            block = slice_in_dim(column, start, end)
            blocks.append(reshape(transpose(block, (*range(1, block.ndim), 0)), shape))
        start = end
    return blocks


def _pulled(found: Linearized) -> Iterator[list[Any]]:
    """For each input its blocks, one per result: the basis of the results pulled back."""
    program = found.program
    outs = [aval for aval, flag in zip(program.out_avals, program.moved, strict=True) if flag]
    linear = (False,) * len(found.residuals) + (True,) * sum(program.moving)
    transposed, answered = transpose_jaxpr(program.jaxpr, linear, (True,) * len(outs))
    rows = iter(_through(transposed, found.residuals, *_basis(outs)))
    depends = iter(answered)
    for aval, flag in zip(program.in_avals, program.moving, strict=True):
        row = next(rows) if flag and next(depends) else None
        yield _row_blocks(row, aval, program)


def _row_blocks(row: Any, aval: Aval, program: LinearProgram) -> list[Any]:
    """The blocks of one input, cut along the leading axis; zeros where a result has no tangent."""
    blocks, start = [], 0
    for out, flag in zip(program.out_avals, program.moved, strict=True):
        shape, end = (*out.shape, *aval.shape), start + out.size * flag
        if row is None or not flag:
            blocks.append(_zeros(shape, aval))
        else:
            block = reshape(slice_in_dim(row, start, end), shape)
            blocks.append(convert_element_type(block, block.dtype, aval.weak_type))
        start = end
    return blocks


def _through(jaxpr: Jaxpr, residuals: Sequence[Any], basis: Sequence[Any], count: int) -> list[Any]:
    """The results of a linear program for a basis of so many vectors, along their leading axis."""
    if not count:
        return [_zeros((0, *aval.shape), aval) for aval in jaxpr.out_avals]
    flags = [False] * len(residuals) + [True] * len(basis)
    outs, batched = batch_values(jaxpr, Axis(count), [*residuals, *basis], flags)
    return [x if flag else to_batch(x, count) for x, flag in zip(outs, batched, strict=True)]


def _zeros(shape: tuple[int, ...], like: Aval) -> Any:
    return zeros_of(like.update(shape=shape))


def _basis(avals: Sequence[Aval]) -> tuple[list[Any], int]:
    """The standard basis of the space of all elements of values of such avals, one vector along the
    leading axis of each, and how many vectors there are."""
    count, start = sum(aval.size for aval in avals), 0
    basis = []
    for aval in avals:
        shape = (count, aval.size)
        row, column = (iota(np.int32, shape, dimension) for dimension in (0, 1))
        unit = convert_element_type(eq(row, column + start), aval.dtype, aval.weak_type)
        basis.append(reshape(unit, (count, *aval.shape)))
        start += aval.size
    return basis, count


# checks ---------------------------------------------------------------------------------------


def _check_pushed(by: Chosen, number: int, holomorphic: bool) -> None:
    dtype = by.leaves[number].dtype
    if holomorphic and not dtypes.is_complex(dtype):
        raise by.refuse(number, "complex", "Convert it, or drop holomorphic=True.")
    if not holomorphic and not dtypes.is_float(dtype):
        way_out = "Pass holomorphic=True for holomorphic functions, or use jvp."
        raise by.refuse(number, "real floats", way_out)


def _check_pulled(by: Chosen, number: int, holomorphic: bool, allow_int: bool) -> bool:
    """Whether an input has tangents. Raises DtypeError if it must have and has not."""
    x = by.leaves[number]
    if holomorphic and not dtypes.is_complex(x.dtype):
        raise by.refuse(number, "complex", "Convert it, or drop holomorphic=True.")
    if not is_differentiable(x) and not allow_int:
        raise by.refuse(
            number, "float or complex", "Convert it, or set allow_int=True, or use vjp."
        )
    return is_differentiable(x)


def _check_result(operation: str, name: str, out: Any, holomorphic: bool) -> None:
    if holomorphic:
        _check_complex(operation, name, out)
    elif not dtypes.is_float(out.dtype):
        raise DtypeError(
            f"{operation}: results of {name} must be real floats; got {aval_of(out)}."
            f"{at_user_line()} Pass holomorphic=True for holomorphic functions, or use vjp."
        )


def _check_complex(operation: str, name: str, out: Any) -> None:
    if not dtypes.is_complex(out.dtype):
        raise DtypeError(
            f"{operation} with holomorphic=True: results of {name} must be complex; got "
            f"{aval_of(out)}.{at_user_line()}"
        )
