"""Families that derive a primitive's rules from what is particular to it: unary, binary and
comparison operations, element by element. Each returns the function that binds the primitive;
its `primitive` attribute is the primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Axis, Linear, Literal, Primitive, at_user_line
from xcube.primitives.lowered import Element
from xcube.primitives.shape import batch_all, full
from xcube.trace import bind, literal

Operation = Callable[..., Any]
Accepts = Callable[[Any], bool]
Derivative = Callable[..., Any] | None

ANY: Accepts = lambda dtype: True  # noqa: E731
NUMBER: Accepts = lambda dtype: not dtypes.is_bool(dtype)  # noqa: E731
FLOAT: Accepts = dtypes.is_float
INEXACT: Accepts = dtypes.is_inexact
INTEGER: Accepts = dtypes.is_integer
WHOLE: Accepts = lambda dtype: dtypes.is_integer(dtype) or dtypes.is_bool(dtype)  # noqa: E731
REAL: Accepts = lambda dtype: not dtypes.is_complex(dtype)  # noqa: E731


def is_linear(x: Any) -> bool:
    """Whether a transpose rule is asked for this argument's cotangent."""
    return isinstance(x, Linear)


def elementwise(
    name: str,
    *,
    accepts: Accepts = ANY,
    result: Callable[[Any], Any] | None = None,
    jvp: Any = "zero",
    transpose: Any = None,
    rule: Callable[..., Any] | None = None,
    scalar: str | None = None,
    cheap: bool = False,
) -> Primitive:
    """A primitive that maps equal shapes element by element; literals may stand for any shape."""

    def abstract(*avals: Aval, **params: Any) -> Aval:
        first = avals[0]
        for aval in avals[1:]:
            if aval.dtype != first.dtype:
                raise DtypeError(
                    f"{name}: the operands must have one dtype; got "
                    f"{', '.join(map(str, avals))}.{at_user_line()}"
                )
        if not accepts(first.dtype):
            raise DtypeError(f"{name}: does not accept {first}.{at_user_line()}")
        dtype = first.dtype if result is None else result(first.dtype)
        weak = all(aval.weak_type for aval in avals)
        return Aval(common_shape(name, avals), dtype, weak)

    def batch(axis: Axis, args: Sequence[Any], batched: Sequence[bool], **params: Any) -> Any:
        front = batch_all(axis, args, batched)
        return bind(primitive, *front, **params), True

    element = rule or (lambda e, index, **params: e.apply(scalar or name, *_elements(e, index)))
    primitive = Primitive(name, abstract, jvp, transpose, batch, Element(element, cheap))
    return primitive


def _elements(e: Any, index: Any) -> list[Any]:
    return [e.read(k, index) for k in range(len(e.inputs))]


def common_shape(name: str, avals: Sequence[Aval]) -> tuple[int, ...]:
    """The one shape of the operands that are not scalars."""
    shapes = {aval.shape for aval in avals if aval.shape}
    if len(shapes) > 1:
        raise ShapeError(
            f"{name}: the operands must have one shape; got {', '.join(map(str, avals))}."
            f"{at_user_line()}"
        )
    return shapes.pop() if shapes else ()


def named(primitive: Primitive, function: Operation, doc: str = "") -> Operation:
    """A function that binds a primitive, under the primitive's name."""
    function.primitive = primitive  # type: ignore[attr-defined]
    function.__name__ = function.__qualname__ = primitive.name
    function.__doc__ = doc or None
    return function


def unary(
    name: str,
    derivative: Derivative = None,
    *,
    accepts: Accepts = INEXACT,
    result: Callable[[Any], Any] | None = None,
    linear: Callable[..., Any] | None = None,
    scalar: str | None = None,
    doc: str = "",
) -> Operation:
    """y = f(x). `derivative(dx, y, x)` is the tangent; None means zero.

    `linear(ct)` makes it a linear operation with that transpose.
    """

    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        (x,), (dx,) = primals, tangents
        y = bind(primitive, x, **params)
        return y, derivative(dx, y, x, **params)  # type: ignore[misc]

    rule = "linear" if linear else jvp if derivative else "zero"
    back = (lambda ct, x, **params: [linear(ct, **params)]) if linear else None  # type: ignore[misc]
    primitive = elementwise(
        name, accepts=accepts, result=result, jvp=rule, transpose=back, scalar=scalar
    )
    return named(primitive, lambda x, **params: bind(primitive, x, **params), doc)


def binary(
    name: str,
    left: Derivative = None,
    right: Derivative = None,
    *,
    accepts: Accepts = NUMBER,
    result: Callable[[Any], Any] | None = None,
    transpose: Any = None,
    scalar: str | None = None,
    doc: str = "",
) -> Operation:
    """z = f(x, y). `left(dx, z, x, y)` and `right(dy, z, x, y)` are the tangent's terms.

    A Python number becomes a literal of the other operand's dtype.
    """

    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        z = bind(primitive, *primals, **params)
        terms = [
            derivative(tangent, z, *primals)
            for derivative, tangent in zip((left, right), tangents, strict=True)
            if derivative is not None and tangent is not None
        ]
        return z, add_tangents(terms, z)

    primitive = elementwise(
        name,
        accepts=accepts,
        result=result,
        jvp=jvp if left or right else "zero",
        transpose=transpose,
        scalar=scalar,
    )
    return named(primitive, lambda x, y: bind(primitive, *match(x, y)), doc)


def compare(name: str, *, accepts: Accepts = ANY, doc: str = "") -> Operation:
    """b = x ? y, a bool."""
    return binary(name, accepts=accepts, result=lambda dtype: dtypes.bool_, doc=doc)


def match(x: Any, y: Any) -> tuple[Any, Any]:
    """Operands of one binary operation: a Python number takes the other's dtype and a scalar
    array the other's shape. Raises DtypeError for a number that the dtype cannot hold."""
    if not isinstance(x, Array | Literal):
        x = _scalar_like(x, y)
    if not isinstance(y, Array | Literal):
        y = _scalar_like(y, x)
    if isinstance(x, Array) and isinstance(y, Array) and x.ndim != y.ndim:
        if x.ndim == 0:
            x = full(y.shape, x)
        elif y.ndim == 0:
            y = full(x.shape, y)
    return x, y


def _scalar_like(value: Any, other: Any) -> Literal:
    if isinstance(value, np.generic | np.ndarray) or not isinstance(other, Array | Literal):
        return literal(value)
    dtype = other.aval.dtype
    fits = dtypes.is_complex(dtype) or not isinstance(value, complex)
    fits &= dtypes.is_inexact(dtype) or not isinstance(value, float)
    if not fits or (dtypes.is_bool(dtype) and not isinstance(value, bool)):
        raise DtypeError(
            f"a Python number takes the dtype of the other operand, {other.aval}, which cannot "
            f"hold {value!r}.{at_user_line()} Convert one of them."
        )
    return literal(value, dtype)


def add_tangents(terms: Sequence[Any], result: Any) -> Any:
    """Sum of a tangent's terms, None where there are none."""
    if not terms:
        return None
    total = terms[0]
    for term in terms[1:]:
        total = add(total, term)
    return total


add = binary(
    "add",
    lambda dx, z, x, y: dx,
    lambda dy, z, x, y: dy,
    transpose=lambda ct, x, y: [ct if is_linear(x) else None, ct if is_linear(y) else None],
    doc="x + y, element by element.",
)
