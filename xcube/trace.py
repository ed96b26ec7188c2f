"""Tracing: `bind` hands an operation to the youngest trace concerned; a staging trace records it.

One rule decides who records: the youngest trace (by birth number) among the current one and the
operands' owners. A value of an older trace is captured as a constant. Only staging traces are
ever current; outside them the current trace evaluates eagerly.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import (
    ConcretizationTypeError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
    UnexpectedTracerError,
)
from xcube.ir import (
    Atom,
    Aval,
    Equation,
    Jaxpr,
    Literal,
    Primitive,
    Source,
    Var,
    at_user_line,
    user_source,
)

_births = itertools.count(1)


def new_birth() -> int:
    """The next birth number."""
    return next(_births)


class Trace:
    """Somewhere to send operations; `birth` orders traces by age."""

    birth: int

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Apply a primitive to values of this trace and of older ones."""
        raise NotImplementedError


class EvalTrace(Trace):
    """Evaluates at once. `evaluate` is set by eager.py: the one knot in the import order."""

    birth = 0
    evaluate: Callable[[Primitive, Sequence[Any], dict[str, Any]], Any]

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Evaluate now."""
        return self.evaluate(primitive, args, params)


class _Current(threading.local):
    """The current trace, and the source of the equation that is being applied again."""

    def __init__(self) -> None:
        self.trace: Trace = EVAL
        self.source: Source | None = None


EVAL = EvalTrace()
_current = _Current()


def current_trace() -> Trace:
    """The trace that records operations on constants."""
    return _current.trace


@contextlib.contextmanager
def set_current(trace: Trace) -> Iterator[None]:
    """Make a trace current inside a `with` block."""
    before = _current.trace, _current.source
    _current.trace, _current.source = trace, None
    try:
        yield
    finally:
        _current.trace, _current.source = before


class Tracer(Array):
    """A value inside a trace; its aval is known, its elements are not."""

    __slots__ = ("_aval", "_trace")

    def __init__(self, trace: Trace, aval: Aval) -> None:
        self._trace, self._aval = trace, aval

    @property
    def aval(self) -> Aval:
        return self._aval

    @property
    def known(self) -> Any:
        """The concrete array behind this tracer where there is one, else None."""
        return None

    def _concrete(self, error: type[Exception], asked: str, way_out: str) -> Any:
        if (value := self.known) is not None:
            return value
        raise self._unknown(error, asked, way_out)

    def _unknown(self, error: type[Exception], asked: str, way_out: str) -> Exception:
        return error(
            f"{asked} a traced array {self.aval}{self._origin()}, but its value is not known "
            f"while tracing.{at_user_line()} {way_out}"
        )

    def _lost(self, error: type[Exception], asked: str, way_out: str) -> Exception:
        """The error for what would make a plain number of this array: where it is known, its
        derivative would be lost."""
        if self.known is None:
            return self._unknown(error, asked, way_out)
        return error(
            f"{asked} an array under differentiation, {self.aval}{self._origin()}: what is made of "
            f"it would have no derivative.{at_user_line()} Use xcube.numpy in place of numpy and "
            f"math, or stop_gradient(x) where no derivative is meant."
        )

    def _origin(self) -> str:
        return ""

    def __bool__(self) -> bool:
        return bool(self._concrete(TracerBoolConversionError, "Python branched on", _BRANCH))

    def __int__(self) -> int:
        return int(self._concrete(ConcretizationTypeError, "int() was called on", _STATIC))

    def __float__(self) -> float:
        raise self._lost(ConcretizationTypeError, "float() was called on", _STATIC)

    def __complex__(self) -> complex:
        raise self._lost(ConcretizationTypeError, "complex() was called on", _STATIC)

    def __index__(self) -> int:
        ask = "an integer (an index, a size, a range) was asked of"
        return self._concrete(TracerIntegerConversionError, ask, _STATIC).__index__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise self._lost(TracerArrayConversionError, "NumPy asked for the values of", _NUMPY)

    def item(self, *args: int) -> Any:
        """The element as a Python number; raises where it is not known."""
        return self._concrete(ConcretizationTypeError, "item() was called on", _STATIC).item(*args)

    def tolist(self) -> Any:
        """Raises: what is made of the numbers would have no derivative."""
        raise self._lost(ConcretizationTypeError, "tolist() was called on", _STATIC)


_BRANCH = (
    "Use xcube.numpy.where, or mark the argument that decides the branch as static "
    "(static_argnums, static_argnames)."
)
_STATIC = "Mark the argument it depends on as static (static_argnums, static_argnames)."
_NUMPY = "Use xcube.numpy in place of numpy inside traced functions."


class StagedTracer(Tracer):
    """A variable of the jaxpr that a staging trace is recording."""

    __slots__ = ("_var", "source")

    def __init__(self, trace: StagingTrace, var: Var, source: Source | None) -> None:
        super().__init__(trace, var.aval)
        self._var, self.source = var, source

    def __repr__(self) -> str:
        shape = ",".join(map(str, self.aval.shape))
        return f"JitTracer({self.aval.dtype.name}[{shape}])"

    def _origin(self) -> str:
        owner = self._trace.name if isinstance(self._trace, StagingTrace) else ""
        made = f", made at {self.source}" if self.source else ""
        return f" (in {owner}{made})" if owner else made


class StagingTrace(Trace):
    """Records equations; closed by `jaxpr`, after which it refuses to record."""

    def __init__(self, name: str = "") -> None:
        self.birth = new_birth()
        self.name = name
        self.inputs: list[Var] = []
        self.equations: list[Equation] = []
        self.captured: dict[int, tuple[Var, Any]] = {}
        self.open = True

    def new_input(self, aval: Aval) -> StagedTracer:
        """The next input of the jaxpr."""
        var = Var(aval)
        self.inputs.append(var)
        return StagedTracer(self, var, None)

    def process(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if not self.open:
            raise _leak(self, args)
        atoms = tuple([self.atom(arg) for arg in args])
        avals = primitive.abstract(*[atom.aval for atom in atoms], **params)
        source = _current.source or user_source()
        outputs = tuple(map(Var, avals)) if primitive.multiple else (Var(avals),)
        self.equations.append(Equation(outputs, primitive, atoms, params, source))
        tracers = [StagedTracer(self, var, source) for var in outputs]
        return tracers if primitive.multiple else tracers[0]

    def atom(self, value: Any) -> Atom:
        """The atom that stands for a value here: own variable, literal or captured constant."""
        if isinstance(value, StagedTracer) and value._trace is self:
            return value._var
        if isinstance(value, Literal):
            return value
        if isinstance(value, Array):
            if isinstance(value, StagedTracer) and not value._trace.open:  # type: ignore[attr-defined]
                raise _leak(value._trace, [value])
            return self.capture(value)
        return literal(value)

    def capture(self, value: Array) -> Var:
        """The variable of a captured constant, one per object."""
        if (entry := self.captured.get(id(value))) is None:
            entry = self.captured[id(value)] = (Var(value.aval), value)
        return entry[0]

    def jaxpr(self, outputs: Sequence[Any]) -> Jaxpr:
        """Close the trace."""
        atoms = tuple([self.atom(output) for output in outputs])
        self.open = False
        captured = tuple(self.captured.values())
        return Jaxpr(tuple(self.inputs), tuple(self.equations), atoms, captured, self.name)


def literal(value: Any, dtype: np.dtype | None = None) -> Literal:
    """A scalar as a literal: Python numbers are weakly typed, bools and NumPy scalars are not."""
    weak = not isinstance(value, np.generic | np.ndarray | bool)
    if dtype is None:
        typed = isinstance(value, np.generic | np.ndarray)
        dtype = value.dtype if typed else dtypes.scalar_dtype(value)
    assert np.ndim(value) == 0, "only scalars can be literals"
    return Literal(np.asarray(value).astype(dtype)[()], Aval((), dtype, weak))


def aval_of(value: Any) -> Aval:
    """Aval of anything that `bind` takes."""
    return value.aval if isinstance(value, Array | Literal) else literal(value).aval


def _leak(trace: Any, args: Sequence[Any]) -> UnexpectedTracerError:
    owned = (arg for arg in args if isinstance(arg, StagedTracer) and arg._trace is trace)
    tracer = next(owned, None)
    made = f", made at {tracer.source}," if tracer is not None and tracer.source else ""
    what = f" {tracer.aval}{made}" if tracer is not None else ""
    return UnexpectedTracerError(
        f"a traced value{what} outlived the function {trace.name or 'that was traced'}."
        f"{at_user_line()} Return values from the traced function instead of storing them outside."
    )


def bind(primitive: Primitive, *args: Any, **params: Any) -> Any:
    """Apply a primitive: the youngest trace among the current one and the operands' owners does it.

    Operands are Arrays, Tracers, or Python and NumPy scalars. Gives a list if the primitive has
    multiple results.
    """
    trace = _current.trace  # `owner` written out: every operation comes this way
    for arg in args:
        if isinstance(arg, Tracer) and arg._trace.birth > trace.birth:
            trace = arg._trace
    return trace.process(primitive, args, params)


def owner(args: Sequence[Any]) -> Trace:
    """The trace that records an operation on these operands: the youngest concerned."""
    trace = _current.trace
    for arg in args:
        if isinstance(arg, Tracer) and arg._trace.birth > trace.birth:
            trace = arg._trace
    return trace


def stage(function: Callable[..., Sequence[Any]], avals: Sequence[Aval], name: str = "") -> Jaxpr:
    """Trace a function of flat arguments to a flat sequence of results."""
    trace = StagingTrace(name)
    with set_current(trace):
        outputs = function(*[trace.new_input(aval) for aval in avals])
        return trace.jaxpr(outputs)


Rule = Callable[[Equation, list[Any]], Sequence[Any]]


def _itself(value: Any) -> Any:
    return value


def interpret(
    jaxpr: Jaxpr, args: Sequence[Any], rule: Rule, lift: Callable[[Any], Any] = _itself
) -> list[Any]:
    """The one walk forward over a jaxpr: `rule` maps an equation and its inputs to its outputs.

    `lift` makes an input of a literal or of a captured constant's value.
    """
    env: dict[Atom, Any] = {var: lift(value) for var, value in jaxpr.captured}
    env.update(zip(jaxpr.inputs, args, strict=True))

    def read(atom: Atom) -> Any:
        return env[atom] if isinstance(atom, Var) else lift(atom)

    for eqn in jaxpr.equations:
        outputs = rule(eqn, [read(atom) for atom in eqn.inputs])
        env.update(zip(eqn.outputs, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outputs]


def bind_equation(eqn: Equation, args: Sequence[Any]) -> Sequence[Any]:
    """The rule that applies an equation as it is: evaluation, inlining, restaging."""
    with written_at(eqn.source):
        outputs = bind(eqn.primitive, *args, **eqn.params)
    return outputs if eqn.primitive.multiple else (outputs,)


class written_at:
    """Equations recorded inside the block are the user's at `source`, if that is known."""

    __slots__ = ("_before", "_source")

    def __init__(self, source: Source | None) -> None:
        self._source = source

    def __enter__(self) -> None:
        self._before = _current.source
        _current.source = self._source or self._before

    def __exit__(self, *_: object) -> None:
        _current.source = self._before


def evaluate(jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
    """Apply a jaxpr to values, equation by equation."""
    return interpret(jaxpr, args, bind_equation)
