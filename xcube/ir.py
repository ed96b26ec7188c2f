"""The tensor IR: avals, variables, equations, jaxprs and the primitives that equations apply.

    jaxpr    = Jaxpr(inputs: Var*, equations: Equation*, outputs: atom*, captured: (Var, value)*)
    equation = Equation(outputs: Var*, primitive, inputs: atom*, params, source)
    atom     = Var(aval) | Literal(value, aval)
    aval     = Aval(shape, dtype, weak_type)

Everything is immutable. Avals are interned (equal avals are one object); variables, equations and
jaxprs have identity. `text` prints in JAX's look, `check` types every equation anew.
"""

from __future__ import annotations

import math
import os
import sys
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from xcube import dtypes, scopes
from xcube.errors import JaxprTypeError

Shape = tuple[int, ...]


class Aval:
    """What is known of an array while tracing: shape, dtype and whether the dtype is weak."""

    __slots__ = ("__weakref__", "_text", "dtype", "ndim", "shape", "size", "weak_type")
    _interned: ClassVar[weakref.WeakValueDictionary[Any, Aval]] = weakref.WeakValueDictionary()

    shape: Shape
    dtype: np.dtype
    weak_type: bool
    ndim: int
    size: int

    def __new__(cls, shape: Shape, dtype: Any, weak_type: bool = False) -> Aval:
        dtype = dtype if isinstance(dtype, np.dtype) else np.dtype(dtype)
        key = (shape, dtype, weak_type)
        if (aval := cls._interned.get(key)) is not None:
            return aval
        aval = object.__new__(cls)
        aval.shape, aval.dtype, aval.weak_type = tuple(map(int, shape)), dtype, bool(weak_type)
        aval.ndim, aval.size = len(shape), math.prod(shape)
        aval._text = f"{dtypes.short_name(dtype)}[{','.join(map(str, shape))}]"
        return cls._interned.setdefault(key, aval)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.itemsize

    def update(self, **changes: Any) -> Aval:
        """The aval with some fields changed."""
        fields = {"shape": self.shape, "dtype": self.dtype, "weak_type": self.weak_type}
        return Aval(**{**fields, **changes})

    def strengthen(self) -> Aval:
        """The aval without weak type."""
        return Aval(self.shape, self.dtype) if self.weak_type else self

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        name = self.dtype.name
        return f"ShapedArray({name}[{','.join(map(str, self.shape))}]{weak})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Aval, (self.shape, self.dtype, self.weak_type)


class Source(NamedTuple):
    """A place in the user's code: the function is named below the scopes in force there."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


_INSIDE = tuple(str(Path(module).parent) + os.sep for module in (__file__, np.__file__))


_STANDARD = str(Path(os.__file__).parent) + os.sep
_SITE = tuple(f"{_STANDARD}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def _is_users(file: str) -> bool:
    """Whether a file is neither of this package, nor of NumPy, nor of the standard library."""
    if file.startswith(_INSIDE):
        return False
    return not file.startswith(_STANDARD) or file.startswith(_SITE)


def user_source() -> Source | None:
    """The innermost frame of the user's own code; None when there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if _is_users(code.co_filename):
            return Source(code.co_filename, frame.f_lineno, scopes.within(code.co_name))
        frame = frame.f_back
    return None


def at_user_line() -> str:
    """The end of an error message, " At file.py:12."; empty where no user line is known."""
    source = user_source()
    return f" At {source}." if source else ""


class Axis(NamedTuple):
    """The axis that a batch runs along: how long it is, and under which name the function that is
    mapped can ask for it."""

    size: int
    name: Hashable = None


class Var:
    """A variable of a jaxpr; identity is its name."""

    __slots__ = ("aval",)

    def __init__(self, aval: Aval) -> None:
        self.aval = aval


class Literal:
    """A scalar written into the program."""

    __slots__ = ("aval", "value")

    def __init__(self, value: Any, aval: Aval) -> None:
        self.value, self.aval = value, aval


Atom = Var | Literal


@dataclass(frozen=True, eq=False)
class Primitive:
    """A tensor operation with all its rules, defined in one place.

    `abstract(*avals, **params)`: the result's Aval (a tuple of them if `multiple`).
    `jvp(primals, tangents, **params) -> (outs, out_tangents)`: a tangent that is None is zero;
    outs and tangents are lists if `multiple`. "linear": the primitive itself maps tangents;
    "zero": the derivative is zero; "expand": that of the composition in `lower`.
    `transpose(ct, *args, **params) -> [ct or None per arg]`: linear arguments come as
    `Linear(aval)`, the others as values; `ct` is a list with Nones if `multiple`.
    `batch(axis, args, batched, **params) -> (outs, outs_batched)`: what is batched along the mapped
    `Axis` has it in front. Nothing is, where the inner jaxprs ask for the axis by its name alone.
    `lower`: how it becomes kernels, an object of `xcube.primitives.lowered`.
    `effects`: names of side effects; an equation with effects is never removed or reordered.
    """

    name: str
    abstract: Callable[..., Any]
    jvp: Callable[..., Any] | str | None = None
    transpose: Callable[..., Any] | None = None
    batch: Callable[..., Any] | None = None
    lower: Any = None
    multiple: bool = False
    effects: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Linear:
    """Stands for a linear argument in a transpose rule: only its aval is known."""

    aval: Aval


@dataclass(frozen=True, slots=True, eq=False)
class Equation:
    """outputs = primitive(inputs, **params), written by the user at `source`."""

    outputs: tuple[Var, ...]
    primitive: Primitive
    inputs: tuple[Atom, ...]
    params: dict[str, Any]
    source: Source | None = None


@dataclass(frozen=True, eq=False)
class Jaxpr:
    """A typed SSA program over tensors. `captured` pairs variables with the values they stand
    for."""

    inputs: tuple[Var, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]
    captured: tuple[tuple[Var, Any], ...] = ()
    name: str = ""
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def in_avals(self) -> tuple[Aval, ...]:
        """Avals of the inputs, captured values apart."""
        return tuple(var.aval for var in self.inputs)

    @property
    def out_avals(self) -> tuple[Aval, ...]:
        """Avals of the results."""
        return tuple(atom.aval for atom in self.outputs)

    @property
    def consts(self) -> list[Any]:
        """The captured values."""
        return [value for _, value in self.captured]

    @property
    def eqns(self) -> tuple[Equation, ...]:
        """JAX's name of `equations`."""
        return self.equations

    @property
    def invars(self) -> tuple[Var, ...]:
        """JAX's name of `inputs`."""
        return self.inputs

    @property
    def outvars(self) -> tuple[Atom, ...]:
        """JAX's name of `outputs`."""
        return self.outputs

    @property
    def effects(self) -> set[str]:
        """Names of the side effects of its equations, inner jaxprs included."""
        if "effects" not in self._cache:
            self._cache["effects"] = set().union(*map(effects_of, self.equations))
        return self._cache["effects"]

    def closed(self) -> Jaxpr:
        """The same program with captured values as leading inputs; always the same object."""
        if not self.captured:
            return self
        if "closed" not in self._cache:
            inputs = (*(var for var, _ in self.captured), *self.inputs)
            self._cache["closed"] = Jaxpr(inputs, self.equations, self.outputs, (), self.name)
        return self._cache["closed"]

    def __str__(self) -> str:
        return text(self)

    __repr__ = __str__


def subjaxprs(equation: Equation) -> Iterator[Jaxpr]:
    """The jaxprs among an equation's parameters."""
    for value in equation.params.values():
        if isinstance(value, Jaxpr):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Jaxpr))


def effects_of(equation: Equation) -> set[str]:
    """Names of an equation's side effects, those of its inner jaxprs included."""
    return set(equation.primitive.effects).union(*(sub.effects for sub in subjaxprs(equation)))


# text -----------------------------------------------------------------------------------------


def _letters(number: int) -> str:
    name = ""
    while True:
        number, digit = divmod(number, 26)
        name = chr(97 + digit) + name
        if number == 0:
            return name
        number -= 1


class _Names:
    def __init__(self) -> None:
        self._names: dict[Var, str] = {}

    def define(self, var: Var) -> str:
        name = self._names.setdefault(var, _letters(len(self._names)))
        return f"{name}:{var.aval}"

    def use(self, atom: Atom) -> str:
        if isinstance(atom, Literal):
            return f"{_scalar(atom.value)}:{atom.aval}"
        return self._names.setdefault(atom, _letters(len(self._names)))


def _scalar(value: Any) -> str:
    if isinstance(value, np.generic | np.ndarray):
        value = value.item()
    return str(value)


def text(jaxpr: Jaxpr) -> str:
    """The program in JAX's notation."""
    return "\n".join(_lines(jaxpr, _Names(), ""))


def _lines(jaxpr: Jaxpr, names: _Names, indent: str) -> list[str]:
    captured = " ".join(names.define(var) for var, _ in jaxpr.captured)
    inputs = " ".join(names.define(var) for var in jaxpr.inputs)
    head = f"{{ lambda {captured + ' ' if captured else ''};{' ' + inputs if inputs else ''}. let"
    lines = [head]
    for eqn in jaxpr.equations:
        lines += [f"{indent}    {line}" for line in _equation_lines(eqn, names)]
    results = ", ".join(names.use(atom) for atom in jaxpr.outputs)
    comma = "," if len(jaxpr.outputs) == 1 else ""
    return [*lines, f"{indent}  in ({results}{comma}) }}"]


def _equation_lines(eqn: Equation, names: _Names) -> list[str]:
    inputs = " ".join(names.use(atom) for atom in eqn.inputs)
    params = _params(eqn)
    outputs = " ".join(names.define(var) for var in eqn.outputs) or "_"
    call = f"{eqn.primitive.name}{params[0] if len(params) == 1 else '['}"
    if len(params) <= 1:
        return [f"{outputs} = {call} {inputs}".rstrip()]
    return [f"{outputs} = {call}", *(f"  {line}" for line in params), f"] {inputs}".rstrip()]


def _params(eqn: Equation) -> list[str]:
    shown = [(key, value) for key, value in sorted(eqn.params.items()) if value is not None]
    if not shown:
        return [""]
    if not any(True for _ in subjaxprs(eqn)):
        inner = " ".join(f"{key}={_param(value)}" for key, value in shown)
        return [f"[{inner}]"]
    lines: list[str] = []
    for key, value in shown:
        if isinstance(value, Jaxpr):
            first, *rest = _lines(value, _Names(), "")
            lines += [f"{key}={first}", *rest]
        elif isinstance(value, tuple) and value and all(isinstance(v, Jaxpr) for v in value):
            lines.append(f"{key}=(")
            for item in value:
                lines += [f"  {line}" for line in _lines(item, _Names(), "")]
            lines.append(")")
        else:
            lines.append(f"{key}={_param(value)}")
    return lines


def _param(value: Any) -> str:
    if isinstance(value, np.dtype):
        return value.name
    return getattr(value, "__name__", None) or str(value)


# check ----------------------------------------------------------------------------------------


def check(jaxpr: Jaxpr) -> None:
    """Type every equation anew.

    Raises JaxprTypeError with the fault's neighbourhood and the user's line.
    """
    known = {*jaxpr.inputs, *(var for var, _ in jaxpr.captured)}
    for position, eqn in enumerate(jaxpr.equations):
        for inner in subjaxprs(eqn):
            check(inner)
        if fault := _fault(eqn, known):
            raise JaxprTypeError(_report(jaxpr, position, fault))
        known.update(eqn.outputs)
    for atom in jaxpr.outputs:
        if isinstance(atom, Var) and atom not in known:
            raise JaxprTypeError(_report(jaxpr, len(jaxpr.equations), "an output is not defined"))


def _fault(eqn: Equation, known: set[Var]) -> str:
    for number, atom in enumerate(eqn.inputs):
        if isinstance(atom, Var) and atom not in known:
            return f"input {number} is not defined before"
    if any(var in known for var in eqn.outputs):
        return "an output is defined twice"
    try:
        avals = eqn.primitive.abstract(*(atom.aval for atom in eqn.inputs), **eqn.params)
    except (TypeError, ValueError) as error:
        return str(error)
    expected = list(avals) if eqn.primitive.multiple else [avals]
    found = [var.aval for var in eqn.outputs]
    if len(expected) != len(found):
        return f"{len(found)} outputs, {len(expected)} expected"
    return next(
        (
            f"output {number} is {got}, the rule gives {want}"
            for number, (want, got) in enumerate(zip(expected, found, strict=True))
            if (want.shape, want.dtype) != (got.shape, got.dtype)
        ),
        "",
    )


def _report(jaxpr: Jaxpr, position: int, fault: str) -> str:
    names = _Names()
    for var in (*(var for var, _ in jaxpr.captured), *jaxpr.inputs):
        names.define(var)
    lines = ["; ".join(_equation_lines(eqn, names)) for eqn in jaxpr.equations]
    low, high = max(0, position - 10), position + 11
    around = "\n".join(
        f"{'>' if number == position else ' '} {line}"
        for number, line in enumerate(lines[low:high], low)
    )
    eqn = jaxpr.equations[position] if position < len(jaxpr.equations) else None
    where = f" Written at {eqn.source}." if eqn and eqn.source else ""
    return f"check: {fault}.{where}\n{around}"


def count(jaxpr: Jaxpr) -> int:
    """Number of equations, those of inner jaxprs included."""
    inner = (count(sub) for eqn in jaxpr.equations for sub in subjaxprs(eqn))
    return len(jaxpr.equations) + sum(inner)
