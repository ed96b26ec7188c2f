"""Run-time numbers of a kernel while it is expanded: scalars and lines, with Python's operators.

The rules for mixed operands stand in `unified`:

    Python numbers are weak: they become the other operand's dtype, a float only a float dtype;
    two values must have one dtype, but integers become `index` beside an index;
    a scalar beside a line is in every lane of it.

`/` is for floats; `//` and `%` round down, as in Python, whatever the signs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.cube import arithmetic
from xcube.cube.operators import Operators
from xcube.cube.state import current, fail
from xcube.errors import DtypeError, KernelError, ShapeError
from xcube.lowering.cube import build as cube_build
from xcube.lowering.cube import ir

Core = cube_build.Value
Number = bool | int | float


@dataclass(frozen=True, slots=True)
class DType:
    """A dtype: annotates scalar parameters; called with a number or a value, it gives that as the
    dtype.

    >>> from xcube import cube
    >>> cube.f32, cube.bf16.bits, cube.i8.max
    (cube.f32, 16, 127)
    """

    name: str

    @property
    def bits(self) -> int:
        """Bits of an element in memory."""
        return ir.BITS[self.name]

    @property
    def is_float(self) -> bool:
        """Whether it holds floating-point numbers."""
        return self.name in ir.FLOATS

    @property
    def numpy(self) -> np.dtype:
        """The dtype of arrays that hold it; that of `index` is int64."""
        return np.dtype(np.int64) if self.name == "index" else dtypes.BY_SHORT[self.name]

    @property
    def min(self) -> Any:
        """The smallest finite number."""
        return _limits(self)[0]

    @property
    def max(self) -> Any:
        """The largest finite number."""
        return _limits(self)[1]

    def __call__(self, value: Any) -> Value:
        """A number as a constant of this dtype, a value cast to it."""
        given = resolved(value)
        return given.cast(self) if isinstance(given, Value) else constant(given, self)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"cube.{self.name}"


DTYPES = {name: DType(name) for name in ir.DTYPES}


def _limits(dtype: DType) -> tuple[Any, Any]:
    if dtype.name == "bool":
        return False, True
    info = dtypes.finfo(dtype.numpy) if dtype.is_float else np.iinfo(dtype.numpy)
    make = float if dtype.is_float else int
    return make(info.min), make(info.max)


def dtype_of(given: Any) -> DType:
    """The dtype that a DType, a NumPy dtype or scalar type, or a short name stands for.

    Raises DtypeError if it is none that kernels have.
    """
    if isinstance(given, DType):
        return given
    if isinstance(given, str) and given in DTYPES:
        return DTYPES[given]
    try:
        short = dtypes.SHORT.get(np.dtype(given), "")
    except TypeError:
        short = ""
    if short not in DTYPES:
        known = ", ".join(DTYPES)
        fail(DtypeError, f"cube: a dtype must be one of {known}", f"{given!r}", "Write cube.f32.")
    return DTYPES[short]


# values ---------------------------------------------------------------------------------------


class Numeric(Operators):
    """What stands for a number: its operators follow the rules below."""

    __slots__ = ()

    def operate(self, symbol: str, first: Any, second: Any) -> Any:
        """See `binary`."""
        return binary(symbol, first, second)

    def changed(self, symbol: str) -> Any:
        """See `unary`."""
        return unary(symbol, self)

    def given(self) -> Any:
        """See `resolved`."""
        return resolved(self)

    def known(self, what: str, way: str) -> Number:
        """The Python number."""
        value = resolved(self)
        found = value.core.constant if isinstance(value, Value) else value
        if found is None:
            must = f"cube: what is {what} at expansion must be known there"
            fail(KernelError, must, f"{typed(self)}, a run-time value", way)
        return found

    def __iter__(self) -> Iterator[Any]:
        value = resolved(self)
        if not isinstance(value, Value) or value.lanes == 1:
            way = "Index an array, or walk through a line."
            return iter((self.known("unpacked or walked through", way),))
        return iter([value[lane] for lane in range(value.lanes)])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Value(Numeric):
    """A scalar (one lane) or a line of numbers known only when the kernel runs; `natural`: it is
    evidently not below zero. `weak`: it began as a Python number, whose dtype is still open; takes
    the dtype that it turns out to have."""

    core: Core
    natural: bool = False
    weak: Callable[[DType], None] | None = None

    @property
    def dtype(self) -> DType:
        """Its dtype."""
        return DTYPES[self.core.dtype]

    @property
    def lanes(self) -> int:
        """How many numbers it holds."""
        return self.core.lanes

    def __repr__(self) -> str:
        return f"<{self.core.type} at run time>"

    def cast(self, dtype: Any) -> Value:
        """The same number in another dtype: floats round to nearest even, and truncate and saturate
        on their way to integers; integers wrap."""
        to = dtype_of(dtype)
        return Value(self.core.cast(to.name), self.natural and to.name == "index")

    def bitcast(self, dtype: Any) -> Value:
        """The same bits as another dtype.

        Raises DtypeError if they are no whole number of its elements.
        """
        to, bits = dtype_of(dtype), self.lanes * self.dtype.bits
        if bits % to.bits or {"bool", "index"} & {to.name, self.dtype.name}:
            must = "bitcast: the bits must be those of numbers that are neither bool nor index"
            fail(DtypeError, must, f"{typed(self)} to {to}", "Use cast for the same number.")
        return Value(self.core.bitcast(to.name))

    # lines

    def __getitem__(self, lane: Any) -> Value:
        """One lane of a line; `lane` may be a run-time number."""
        number = resolved(lane)
        if isinstance(number, Value):
            return Value(arithmetic.lane_at(self.core, as_index(number).core))
        return Value(self.core.build.extract(self.core, self._lane(number)))

    def with_lane(self, lane: Any, value: Any) -> Value:
        """The line with another number in one lane."""
        number = resolved(lane)
        place = as_index(number).core if isinstance(number, Value) else self._lane(number)
        return Value(arithmetic.with_lane(self.core, place, converted(value, self.dtype).core))

    def _lane(self, lane: int) -> int:
        if not -self.lanes <= lane < self.lanes:
            must = f"a line's lane must lie in 0..{self.lanes - 1}"
            fail(IndexError, must, f"{lane}", "Take another lane, or a wider line.")
        return lane % self.lanes

    def shuffle(self, lanes: Sequence[int]) -> Value:
        """A line whose lane k is lane `lanes[k]` of this one."""
        places = [self._lane(lane) for lane in lanes]
        return Value(self.core.build.shuffle(self.core, places))

    def sum(self) -> Value:
        """The lanes added, pairwise."""
        return self._reduced("add")

    def prod(self) -> Value:
        """The lanes multiplied, pairwise."""
        return self._reduced("mul")

    def min(self) -> Value:
        """The smallest lane; NaN if one is."""
        return self._reduced("min")

    def max(self) -> Value:
        """The largest lane; NaN if one is."""
        return self._reduced("max")

    def all(self) -> Value:
        """Whether all lanes of a bool line hold."""
        return as_bool("all", self)._reduced("and")

    def any(self) -> Value:
        """Whether some lane of a bool line holds."""
        return as_bool("any", self)._reduced("or")

    def _reduced(self, name: str) -> Value:
        if self.lanes & (self.lanes - 1):
            must = f"{name}: a line must have a power of two of lanes"
            fail(ShapeError, must, f"{self.lanes}", "Add the lanes one by one.")
        return Value(self.core.build.reduce(name, self.core), self.natural)

    def dot(self, other: Any) -> Value:
        """The sum of products of lanes."""
        return (self * other).sum()

    def magnitude(self) -> Value:
        """The length of a line as a vector."""
        return Value(arithmetic.apply(self.core.build, "sqrt", self.dot(self).core))

    def normalize(self) -> Value:
        """A line as a vector of length 1."""
        return self / self.magnitude()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Undefined(Numeric):
    """What a name stands for where it has no value on some path."""

    name: str
    reason: str

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return resolved(self)

    def __repr__(self) -> str:
        return f"<{self.name} without a value>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Symbol(Numeric):
    """A number that is asked for when it is used: a place in the topology, a size of an array."""

    name: str
    ask: Callable[[], Any]

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(resolved(self), attribute)

    def __repr__(self) -> str:
        return self.name


class Size(Symbol):
    """A size, stride or limit of a view: fixed until somebody changes it."""

    __slots__ = ()


# what operands are ----------------------------------------------------------------------------


def resolved(given: Any) -> Any:
    """A value, or a Python number as it is; what a symbol stands for.

    Raises KernelError if it is no number.
    """
    if isinstance(given, Symbol):
        return given.ask()
    if isinstance(given, Value | bool | int | float):
        return given
    if isinstance(given, np.generic):
        return constant(given.item(), dtype_of(given.dtype))
    if isinstance(given, Undefined):
        must = f"`{given.name}` must have a value on every path"
        fail(KernelError, must, f"none, for {given.reason}", "Give it one before.")
    must = "an operand must be a number or a value of the kernel"
    fail(KernelError, must, _described(given), "Compute it at comptime, or index the array.")


def _described(given: Any) -> str:
    return f"{given!r}" if isinstance(given, str | None) else f"{type(given).__name__}: {given!r}"


def typed(given: Any) -> str:
    """An operand for messages: its type, or the Python number."""
    if isinstance(given, Undefined):
        return repr(given)
    value = resolved(given)
    if isinstance(value, Value):
        return str(value.core.type)
    return f"the Python {type(value).__name__} {value!r}"


def constant(value: Number, dtype: DType, lanes: int = 1) -> Value:
    """A literal."""
    if not dtype.is_float and dtype.name != "bool" and not _holds(dtype, value):
        must = f"a literal of {dtype} must be a whole number in {dtype.min}..{dtype.max}"
        fail(DtypeError, must, f"{value!r}", "Use a wider dtype, or cast at run time.")
    return Value(current().build.constant(value, dtype.name, lanes), value >= 0)


def _holds(dtype: DType, value: Number) -> bool:
    """Whether an integer dtype holds a number."""
    return not isinstance(value, float) and dtype.min <= value <= dtype.max


WEAK = {bool: "bool", int: "i32", float: "f32"}


def lifted(given: Any) -> Value:
    """A value; a Python number in the dtype that it has by itself: bool, i32 or f32."""
    value = resolved(given)
    return value if isinstance(value, Value) else constant(value, DTYPES[WEAK[type(value)]])


def converted(given: Any, dtype: DType, what: str = "a value") -> Value:
    """What is stored as a dtype: a weak number becomes it, a value must have it.

    Raises DtypeError with both dtypes.
    """
    value = resolved(given)
    if not isinstance(value, Value):
        return _weak(value, dtype, 1)
    if value.dtype == dtype:
        return value
    if dtype.name == "index" and value.dtype.name in ir.INTEGERS:
        return value.cast(dtype)
    if yields(value, dtype):
        return strong(value, dtype)
    must = f"{what} must be {dtype}"
    fail(DtypeError, must, f"{typed(value)}", f"Cast it: x.cast(cube.{dtype}).")


def _weak(number: Number, dtype: DType, lanes: int) -> Value:
    """A Python number beside a dtype."""
    if isinstance(number, float) and not dtype.is_float:
        must = f"a Python float must stand beside floats; the other operand is {dtype}"
        fail(
            DtypeError, must, f"{number!r}", f"Write an int, or cast: cube.f32(x) for the {dtype}."
        )
    if dtype.name == "bool" and not isinstance(number, bool):
        must = "a number must stand beside numbers; the other operand is bool"
        fail(DtypeError, must, f"{number!r}", "Cast the bool: x.cast(cube.i32).")
    return constant(number, dtype, lanes)


def as_index(given: Any) -> Value:
    """An integer as an index.

    Raises DtypeError for other dtypes.
    """
    value = resolved(given)
    if isinstance(value, bool | float):
        fail(DtypeError, "an index must be an integer", f"{value!r}", "Write a whole number.")
    if not isinstance(value, Value):
        return constant(value, DTYPES["index"])
    if value.dtype.name not in (*ir.INTEGERS, "index"):
        fail(DtypeError, "an index must be an integer", typed(value), "Cast it: x.cast(cube.i32).")
    return value.cast(DTYPES["index"])


def as_bool(what: str, given: Any) -> Value:
    """A condition.

    Raises DtypeError if it is of numbers.
    """
    value = resolved(given)
    if not isinstance(value, Value):
        return constant(bool(value), DTYPES["bool"])
    if value.dtype.name != "bool":
        must = f"{what}: a condition must be bool"
        fail(DtypeError, must, typed(value), "Compare the number: x != 0.")
    return value


def unified(name: str, first: Any, second: Any) -> tuple[Value, Value]:
    """Two operands in one dtype and one number of lanes.

    Raises DtypeError with both dtypes, or ShapeError with both numbers of lanes.
    """
    a, b = resolved(first), resolved(second)
    if not isinstance(a, Value):
        return (_weak(a, b.dtype, b.lanes), b) if isinstance(b, Value) else (lifted(a), lifted(b))
    if not isinstance(b, Value):
        return a, _weak(b, a.dtype, a.lanes)
    if a.dtype != b.dtype:
        a, b = _to_one_dtype(name, a, b)
    if a.lanes != b.lanes:
        a, b = _to_lanes(name, a, b)
    return a, b


def _to_one_dtype(name: str, a: Value, b: Value) -> tuple[Value, Value]:
    names = {a.dtype.name, b.dtype.name}
    if "index" in names and names <= {*ir.INTEGERS, "index"}:
        return a.cast(DTYPES["index"]), b.cast(DTYPES["index"])
    if yields(a, b.dtype):
        return strong(a, b.dtype), b
    if yields(b, a.dtype):
        return a, strong(b, a.dtype)
    must = f"`{name}`: both operands must have one dtype"
    way = f"Cast one of them: x.cast(cube.{b.dtype}) or y.cast(cube.{a.dtype})."
    fail(DtypeError, must, f"{typed(a)} and {typed(b)}", way)


def yields(value: Value, dtype: DType) -> bool:
    """Whether a number whose dtype is open may take this one."""
    is_number = dtype.name != "bool" and value.dtype.name != "bool"
    return value.weak is not None and is_number and (dtype.is_float or not value.dtype.is_float)


def strong(value: Value, dtype: DType) -> Value:
    """A number whose dtype is open, as this one from the beginning."""
    assert value.weak is not None, "its dtype is open"
    value.weak(dtype)
    return value.cast(dtype)


def _to_lanes(name: str, a: Value, b: Value) -> tuple[Value, Value]:
    lanes = max(a.lanes, b.lanes)
    if min(a.lanes, b.lanes) != 1:
        must = f"`{name}`: both operands must have as many lanes, or one"
        fail(ShapeError, must, f"{typed(a)} and {typed(b)}", "Load lines of one length.")
    build = a.core.build
    return tuple([Value(build.splat(x.core, lanes), x.natural) for x in (a, b)])  # type: ignore[return-value]


# the operations of operators ------------------------------------------------------------------

_PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_CORE = {
    **{"+": "add", "-": "sub", "*": "mul", "/": "div", "&": "and", "|": "or", "^": "xor"},
    **{"<<": "shl", ">>": "shr", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"},
    **{"==": "eq", "!=": "ne"},
}
_COMPARISONS = frozenset(("<", "<=", ">", ">=", "==", "!="))
_ANY = frozenset(("&", "|", "^", "<", "<=", ">", ">=", "==", "!="))  # of bools, too
_WHOLE = frozenset(("&", "|", "^", "<<", ">>"))  # not of floats
_NATURAL = frozenset(("+", "*", "//", "%", "&", "|", "^", ">>", "<<"))


def binary(name: str, first: Any, second: Any) -> Any:
    """The operation of an operator; Python's own where both operands are known.

    Raises DtypeError or ShapeError if operands do not fit each other or the operation.
    """
    a, b = resolved(first), resolved(second)
    if not isinstance(a, Value) and not isinstance(b, Value):
        return _PYTHON[name](a, b)
    if name == "**":
        return _power(a, b)
    x, y = unified(name, a, b)
    _check(name, x)
    natural = x.natural and y.natural and x.dtype.name == "index"
    if name in ("//", "%"):
        function = arithmetic.floor_divide if name == "//" else arithmetic.modulo
        return Value(function(x.core, y.core, natural), natural)
    found = x.core.build.op(_CORE[name], x.core, y.core)
    return Value(found, natural and name in _NATURAL, _still_weak(name, a, b))


def _still_weak(name: str, a: Any, b: Any) -> Callable[[DType], None] | None:
    """What an open dtype becomes beside a Python number: it stays open."""
    if name in _COMPARISONS:
        return None
    for one, other in ((a, b), (b, a)):
        if isinstance(one, Value) and not isinstance(other, Value):
            return one.weak
    return None


def _check(name: str, x: Value) -> None:
    if name == "/" and not x.dtype.is_float:
        way = "Write x // y for the quotient rounded down, or cast: x.cast(cube.f32)."
        fail(DtypeError, "`/`: operands must be floats", typed(x), way)
    if x.dtype.name == "bool" and name not in _ANY:
        must = f"`{name}`: operands must be numbers"
        fail(DtypeError, must, typed(x), "Cast them: x.cast(cube.i32).")
    if x.dtype.is_float and name in _WHOLE:
        must = f"`{name}`: operands must be integers or bools"
        fail(DtypeError, must, typed(x), "Bits of floats: x.bitcast(cube.u32).")


def _power(a: Any, b: Any) -> Value:
    exponent = b.core.constant if isinstance(b, Value) and not b.dtype.is_float else b
    if isinstance(exponent, int) and isinstance(a, Value):
        if exponent < 0 and not a.dtype.is_float:
            must = "`**`: the exponent of an integer must not be below zero"
            fail(DtypeError, must, f"{exponent}", "Cast the base: x.cast(cube.f32).")
        _check("*", a)
        return Value(arithmetic.power(a.core, exponent), a.natural)
    if isinstance(a, int) and isinstance(b, Value) and b.dtype.is_float:
        a = float(a)
    x, y = unified("**", a, b)
    if not x.dtype.is_float:
        must = "`**`: a power at run time must be of floats"
        fail(DtypeError, must, f"{typed(a)} and {typed(b)}", "Cast both: x.cast(cube.f32).")
    return Value(arithmetic.power(x.core, y.core))


def unary(name: str, given: Any) -> Any:
    """The operation of a prefix operator, or of `abs` and `round`."""
    value = resolved(given)
    if not isinstance(value, Value):
        return {"-": operator.neg, "~": operator.invert, "abs": abs, "round": round}[name](value)
    core, build = value.core, value.core.build
    if name == "~":
        if value.dtype.is_float:
            must = "`~`: the operand must be an integer or bool"
            fail(DtypeError, must, typed(value), "Bits of floats: x.bitcast(cube.u32).")
        return Value(build.op("not", core))
    _check("*", value)
    if name == "-":
        return Value(-core)
    if name == "abs":
        return value if value.natural else Value(_magnitude(core))
    return Value(arithmetic.apply(build, "round", core)) if value.dtype.is_float else value


def _magnitude(core: Core) -> Core:
    if core.dtype == "index":
        return core.build.op("max", core, -core)
    return arithmetic.apply(core.build, "abs", core)
