"""Arithmetic of truncated Taylor series. A series is the list of its coefficients, those of t^0 to
t^K; None is a coefficient that is zero, the first one never is. Recurrences are those of Griewank &
Walther, Evaluating Derivatives, 2nd edition, chapter 13."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from xcube.primitives.elementwise import div, integer_pow, mul, neg, rsqrt, sub
from xcube.primitives.elementwise import square as square_of
from xcube.primitives.kinds import add
from xcube.primitives.select import eq, select
from xcube.primitives.transcendental import digamma as digamma_of
from xcube.primitives.transcendental import exp as exp_of
from xcube.primitives.transcendental import log as log_of
from xcube.primitives.transcendental import polygamma as polygamma_of

Series = list[Any]
Slope = Callable[[Series, int], Any]

# coefficients ---------------------------------------------------------------------------------


def total(terms: Sequence[Any]) -> Any:
    """The sum of coefficients."""
    found = [term for term in terms if term is not None]
    if not found:
        return None
    result = found[0]
    for term in found[1:]:
        result = add(result, term)
    return result


def product(x: Any, y: Any) -> Any:
    """The product of two coefficients."""
    return None if x is None or y is None else mul(x, y)


def scaled(factor: float, x: Any) -> Any:
    """A coefficient times a number."""
    return x if x is None or factor == 1 else mul(factor, x)


def is_constant(x: Series) -> bool:
    """Whether all coefficients but the first are zero."""
    return all(term is None for term in x[1:])


# sums and products ----------------------------------------------------------------------------


def plus(x: Series, y: Series) -> Series:
    """x + y."""
    return [total(pair) for pair in zip(x, y, strict=True)]


def minus(x: Series, y: Series) -> Series:
    """x - y."""
    return [
        neg(b) if a is None and b is not None else a if b is None else sub(a, b)
        for a, b in zip(x, y, strict=True)
    ]


def shifted(number: float, factor: float, x: Series) -> Series:
    """number + factor * x."""
    first, *rest = [scaled(factor, term) for term in x]
    return [add(first, number), *rest]


def times_number(factor: float, x: Series) -> Series:
    """factor * x."""
    return [scaled(factor, term) for term in x]


def convolved(x: Series, y: Series, k: int, multiply: Callable[[Any, Any], Any] = product) -> Any:
    """Coefficient k of a product that is linear in both factors."""
    return total([multiply(x[j], y[k - j]) for j in range(k + 1)])


def times(x: Series, y: Series) -> Series:
    """x * y."""
    return [convolved(x, y, k) for k in range(len(x))]


def square(x: Series) -> Series:
    """x * x, each product of two coefficients once."""
    return [_square_term(x, k) for k in range(len(x))]


def _square_term(x: Series, k: int) -> Any:
    twice = scaled(2, total([product(x[j], x[k - j]) for j in range((k + 1) // 2)]))
    middle = x[k // 2] if k % 2 == 0 else None
    return total([twice, None if middle is None else square_of(middle)])


def over(x: Series, y: Series) -> Series:
    """x / y."""
    result: Series = []
    for k in range(len(x)):
        known = total([product(result[j], y[k - j]) for j in range(k)])
        (top,) = minus([x[k]], [known])
        result.append(None if top is None else div(top, y[0]))
    return result


# functions by their differential equations ----------------------------------------------------


def integral_term(u: Series, w: Series, k: int) -> Any:
    """Coefficient k of the integral of w u'."""
    return total([scaled(j / k, product(u[j], w[k - j])) for j in range(1, k + 1)])


def integral(first: Any, *pairs: tuple[Series, Series]) -> Series:
    """The series that begins with a value and has the derivative w u', summed over pairs (u, w)."""
    order = len(pairs[0][0])
    rest = [total([integral_term(u, w, k) for u, w in pairs]) for k in range(1, order)]
    return [first, *rest]


def grown(first: Any, u: Series, slope: Slope) -> Series:
    """v of which v' = w u' with w a function of v: slope(v, k) is coefficient k of w, from those of
    v up to k."""
    v, w = [first], []
    for k in range(1, len(u)):
        w.append(slope(v, k - 1))
        v.append(integral_term(u, w, k))
    return v


def exp(u: Series, first: Any = None) -> Series:
    """The exponential; `first`: its value, if that is known."""
    return grown(exp_of(u[0]) if first is None else first, u, lambda v, k: v[k])


def log(u: Series, first: Any = None) -> Series:
    """The logarithm, with v' u = u'; `first`: its value, if that is known."""
    v = [log_of(u[0]) if first is None else first]
    for k in range(1, len(u)):
        known = total([scaled(j / k, product(v[j], u[k - j])) for j in range(1, k)])
        (top,) = minus([u[k]], [known])
        v.append(None if top is None else div(top, u[0]))
    return v


def power(first: Any, u: Series, r: Any) -> Series:
    """u to the power of a constant, a number or an array, from its value, with v' u = r v u'; u is
    not zero."""
    v = [first]
    for k in range(1, len(u)):
        products = [product(u[j], v[k - j]) for j in range(1, k + 1)]
        up = total([scaled(j / k, x) for j, x in enumerate(products, 1)])
        down = total([scaled((k - j) / k, x) for j, x in enumerate(products[:-1], 1)])
        grown_by = scaled(r, up) if isinstance(r, float | int) else product(r, up)
        (top,) = minus([grown_by], [down])
        v.append(None if top is None else div(top, u[0]))
    return v


def whole_power(u: Series, n: int) -> Series:
    """u to the power of an integer, by repeated squaring, which holds where u is zero too."""
    if n < 0:
        return power(integer_pow(u[0], n), u, n)
    result: Series | None = None
    while n:
        if n & 1:
            result = u if result is None else times(result, u)
        n >>= 1
        u = square(u) if n else u
    return [integer_pow(u[0], 0), *[None] * (len(u) - 1)] if result is None else result


def reciprocal_root(u: Series) -> Series:
    """1 / sqrt(u)."""
    return power(rsqrt(u[0]), u, -0.5)


def pair(u: Series, first: Any, other: Any, sign: float) -> tuple[Series, Series]:
    """s and c with s' = c u', c' = sign s u': sine and cosine, of either kind."""
    s, c = [first], [other]
    for k in range(1, len(u)):
        s_k, c_k = integral_term(u, c, k), scaled(sign, integral_term(u, s, k))
        s.append(s_k)
        c.append(c_k)
    return s, c


def raised(x: Series, y: Series, first: Any) -> Series:
    """x to the power of y, from its value: exp(y log x)."""
    base = [select(eq(x[0], 0), 1, x[0]), *x[1:]]
    return exp(times(y, log(base)), first)


def polygamma(m: int, u: Series) -> Series:
    """The m-th derivative of digamma: its derivative is the next one."""
    first = digamma_of(u[0]) if m == 0 else polygamma_of(m, u[0])
    if len(u) == 1:
        return [first]
    return integral(first, (u, [*polygamma(m + 1, u[:-1])]))


def gauss(u: Series, factor: float, sign: float) -> Series:
    """factor exp(sign u^2)."""
    return times_number(factor, exp(times_number(sign, square(u))))


ROOT_PI = math.sqrt(math.pi)
LOG_2 = math.log(2)
