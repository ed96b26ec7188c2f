"""How a primitive becomes kernels: the kinds of lowering rules. Data only; `lowering` reads it.

Most primitives are an `Element`: they say how one element of the result is computed from elements
of the operands, and everything else (fusion, vectors, devices) follows. Scalar functions are
named (`apply("exp", x)`); the kernel language knows how to compute them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from xcube.ir import Aval

Scalar = Any  # a node of an element expression: one scalar of a known dtype
Index = Any  # an index expression; + - * // % by Python ints, + between indices


class ElementBuilder(Protocol):
    """What an element rule is given besides the index of the wanted element."""

    inputs: Sequence[Aval]
    outputs: Sequence[Aval]

    def read(self, operand: int, index: Sequence[Index]) -> Scalar:
        """Element of an operand; a scalar operand is read at any index."""
        ...

    def apply(self, name: str, *args: Scalar) -> Scalar:
        """A scalar function by name: "add", "exp", "select", "lt", ... (args of one dtype)."""
        ...

    def constant(self, value: Any, dtype: Any) -> Scalar: ...

    def cast(self, x: Scalar, dtype: Any) -> Scalar: ...

    def bitcast(self, x: Scalar, dtype: Any) -> Scalar: ...

    def inside(self, index: Index, low: int, high: int) -> Scalar:
        """bool: low <= index < high."""
        ...

    def number(self, index: Index, dtype: Any) -> Scalar:
        """The index as a scalar of a dtype."""
        ...

    def index(self, x: Scalar, low: int, high: int) -> Index:
        """An integer scalar, clamped to low..high (inclusive), as an index."""
        ...

    def guarded(self, tests: Sequence[tuple[Index, int, int]], function: Callable[[], Any]) -> Any:
        """The result of `function`, which will be selected only where low <= index < high holds for
        all tests: its reads may lie outside of their operands elsewhere."""
        ...

    def ravel(self, index: Sequence[Index], shape: Sequence[int]) -> Index:
        """Row-major position of an index."""
        ...

    def unravel(self, position: Index, shape: Sequence[int]) -> list[Index]:
        """Index of a row-major position."""
        ...

    def clamp(self, index: Index, low: int, high: int) -> Index:
        """An index clamped to low..high (inclusive)."""
        ...


@dataclass(frozen=True, eq=False)
class Element:
    """`rule(e, index, **params)` gives the scalar at `index` of the result (a tuple of scalars for
    several results, which then have one shape). `cheap`: free to compute twice (views, casts).
    `space(out_aval, **params)`: the elements that are computed, if not all; the others are left
    undefined."""

    rule: Callable[..., Any]
    cheap: bool = False
    space: Callable[..., tuple[int, ...]] | None = None


@dataclass(frozen=True, eq=False)
class Reduction:
    """A fold over `params["axes"]` of the operands (all of one shape).

    `state(*in_avals)`: dtypes of the accumulator's parts. `init(e, *in_avals)`: its neutral
    scalars. `lift(e, position, *elements)`: one element as an accumulator; `position` is the
    row-major index within the reduced axes (call e.number on it). `combine(e, a, b)`: associative
    and commutative. `finish(e, state, out_avals)`: the results (a tuple).
    """

    state: Callable[..., tuple[Any, ...]]
    init: Callable[..., tuple[Scalar, ...]]
    lift: Callable[..., tuple[Scalar, ...]]
    combine: Callable[..., tuple[Scalar, ...]]
    finish: Callable[..., tuple[Scalar, ...]]


@dataclass(frozen=True, eq=False)
class Template:
    """Has its own kernels: the name of a family in `lowering/kernels`. `is_plain`: only a map
    that computes and reads little shares them: few units of a cube run it while others wait."""

    family: str
    is_plain: bool = False


@dataclass(frozen=True, eq=False)
class Expand:
    """Is a composition of other primitives: `function(*args, **params)` gives the results. Devices
    with kernels of `family` may use them instead."""

    function: Callable[..., Any]
    family: str = ""


@dataclass(frozen=True, eq=False)
class Inline:
    """A call: the jaxpr under `params[name]` is inlined."""

    name: str = "jaxpr"


@dataclass(frozen=True, eq=False)
class Structured:
    """Control flow over the jaxprs among the parameters.

    "scan": jaxpr(consts, carry, x) -> (carry, y), with length, reverse, num_consts, num_carry.
    "while": cond_jaxpr(cond_consts, carry) -> bool[], body_jaxpr(body_consts, carry) -> carry, with
    cond_nconsts, body_nconsts. "cond": branches, of which the first operand, an i32[], picks one.
    """

    kind: str


@dataclass(frozen=True, eq=False)
class HostCall:
    """Python runs it: `params["function"]` maps the operands, as read-only NumPy arrays, to a
    sequence of array-likes with the shapes and dtypes of the results."""


@dataclass(frozen=True, eq=False)
class Constant:
    """The result is the array `params["held"].value`, which the program has in memory."""


@dataclass(frozen=True, eq=False)
class Barrier:
    """The results are the operands; none of them is there before all operands are, and what is
    computed behind it is not shared with what is computed before."""
