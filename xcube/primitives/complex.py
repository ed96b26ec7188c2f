"""Complex numbers from and to their parts. All are real-linear; their transposes follow JAX's
convention, in which a cotangent pairs with a tangent without conjugation."""

from __future__ import annotations

from typing import Any

import numpy as np

from xcube import dtypes
from xcube.primitives.kinds import elementwise, is_linear, match, unary
from xcube.trace import bind

_HAS_COMPLEX = frozenset({np.dtype(np.float32), np.dtype(np.float64)})


def _is_part(dtype: Any) -> bool:
    return dtype in _HAS_COMPLEX


def _complex_transpose(ct: Any, x: Any, y: Any) -> list[Any]:
    return [
        real(ct) if is_linear(x) else None,
        imag(conj(ct)) if is_linear(y) else None,
    ]


complex_p = elementwise(
    "complex",
    accepts=_is_part,
    result=dtypes.complex_of,
    jvp="linear",
    transpose=_complex_transpose,
)


def complex(x: Any, y: Any) -> Any:
    """x + iy: f[*d], f[*d] -> c[*d].

    Raises DtypeError unless both are float32 or both float64, ShapeError if the shapes differ.

    >>> complex(np.float32(1), np.float32(2)).dtype
    dtype('complex64')
    """
    return bind(complex_p, *match(x, y))


real = unary(
    "real",
    accepts=dtypes.is_complex,
    result=dtypes.float_part,
    linear=lambda ct: complex(ct, 0.0),
    doc="The real part: c[*d] -> f[*d].",
)
imag = unary(
    "imag",
    accepts=dtypes.is_complex,
    result=dtypes.float_part,
    linear=lambda ct: conj(complex(0.0, ct)),
    doc="The imaginary part: c[*d] -> f[*d].",
)


def _conj_element(e: Any, index: Any) -> Any:
    x = e.read(0, index)
    if dtypes.is_complex(e.inputs[0].dtype):
        return e.apply("conj", x)
    return e.apply("complex", x, e.constant(0, e.inputs[0].dtype))


def _conj_transpose(ct: Any, x: Any) -> list[Any]:
    return [conj(ct) if dtypes.is_complex(x.aval.dtype) else real(ct)]


conj_p = elementwise(
    "conj",
    accepts=lambda dtype: dtypes.is_complex(dtype) or _is_part(dtype),
    result=dtypes.complex_of,
    jvp="linear",
    transpose=_conj_transpose,
    rule=_conj_element,
)


def conj(x: Any) -> Any:
    """x with the imaginary part negated: c[*d] -> c[*d]; a real x becomes complex.

    Raises DtypeError if x is neither complex nor float32 or float64.

    >>> conj(np.complex64(1 + 2j)).dtype
    dtype('complex64')
    """
    return bind(conj_p, x)
