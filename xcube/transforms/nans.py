"""The search behind `debug_nans` and `debug_infs`: where a program's results hold what must not be
there, it is run again, equation by equation, into calls, branches and turns of loops, and the
equation where it arose is reported with its operands and the user's line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from xcube import config, dtypes
from xcube.ir import Atom, Equation, Jaxpr, Literal, Primitive, Source, Var, at_user_line
from xcube.primitives.index import dynamic_index_in_dim
from xcube.primitives.lowered import Inline, Structured
from xcube.trace import EVAL, aval_of, bind_equation, evaluate, interpret, set_current
from xcube.transforms.effects import without

_KINDS = {"nan": ("debug_nans", np.isnan), "inf": ("debug_infs", np.isinf)}


def kinds() -> tuple[str, ...]:
    """What the settings forbid: some of "nan" and "inf"."""
    settings = config.current
    if not settings.debug_nans and not settings.debug_infs:
        return ()
    return ("nan",) * settings.debug_nans + ("inf",) * settings.debug_infs


def check_operation(
    primitive: Primitive, args: Sequence[Any], params: dict[str, Any], outs: Sequence[Any]
) -> None:
    """Raises FloatingPointError if a result of an operation on arrays holds what is forbidden."""
    settings = config.current
    if not settings.debug_nans and not settings.debug_infs:
        return
    if kind := _held(kinds(), outs):
        inputs = tuple([Var(aval_of(x)) for x in args])
        outputs = tuple([Var(aval_of(x)) for x in outs])
        eqn = Equation(outputs, primitive, inputs, params)
        _report(kind, Search(kind).inside(Step(eqn, list(args), list(outs))))


def check_program(
    forbidden: Sequence[str], jaxpr: Jaxpr, args: Sequence[Any], outs: Sequence[Any]
) -> None:
    """Raises FloatingPointError if a result of a closed program holds what is forbidden."""
    if kind := _held(forbidden, outs):
        if effects := jaxpr.effects - {"debug"}:
            raise FloatingPointError(
                f"{_opening(kind, jaxpr.name)}. It is not run again to find the operation, for it "
                f"has effects ({', '.join(sorted(effects))}).{at_user_line()}"
            )
        _report(kind, Search(kind).within(_silent(jaxpr), args), jaxpr.name)


def _held(forbidden: Sequence[str], values: Sequence[Any]) -> str:
    """The first kind that one of the values holds; "" if none does."""
    return next((kind for kind in forbidden for value in values if holds(kind, value)), "")


def holds(kind: str, value: Any) -> bool:
    """Whether an array has a NaN, or an infinity."""
    dtype = aval_of(value).dtype
    return dtypes.is_inexact(dtype) and bool(_KINDS[kind][1](_host(value)).any())


def _host(value: Any) -> np.ndarray:
    return np.asarray(value.value if isinstance(value, Literal) else value)


# the search -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """An equation with the values that went in and came out, and the way to it from outside."""

    eqn: Equation
    args: list[Any]
    outs: list[Any]
    way: tuple[str, ...] = ()


@dataclass(frozen=True)
class Turn:
    """One run of a program that an equation holds: a call, a turn of a loop, a branch."""

    name: str
    jaxpr: Jaxpr
    args: Sequence[Any]
    outs: Sequence[Any]


@dataclass(frozen=True)
class Search:
    """For the equation whose results are the first to hold a kind of value."""

    kind: str

    def within(self, jaxpr: Jaxpr, args: Sequence[Any]) -> Step | None:
        """The equation in a program; None if its arguments bring the value in."""
        steps: dict[Var, Step] = {}

        def record(eqn: Equation, inputs: list[Any]) -> Sequence[Any]:
            outs = bind_equation(eqn, inputs)
            steps.update(dict.fromkeys(eqn.outputs, Step(eqn, inputs, list(outs))))
            return outs

        with set_current(EVAL), config.using(debug_nans=False, debug_infs=False):
            outs = interpret(jaxpr, args, record)
        origin = self._first(jaxpr.outputs, outs)
        while origin in steps:
            step = steps[origin]
            origin = self._first(step.eqn.inputs, step.args)
            if origin is None:
                return self.inside(step)
        return None

    def _first(self, atoms: Sequence[Atom], values: Sequence[Any]) -> Var | None:
        pairs = zip(atoms, values, strict=True)
        return next((a for a, x in pairs if isinstance(a, Var) and holds(self.kind, x)), None)

    def inside(self, step: Step) -> Step:
        """The equation inside another that holds programs, or the step itself."""
        with set_current(EVAL), config.using(debug_nans=False, debug_infs=False):
            for turn in _turns(step.eqn, step.args):
                if any(holds(self.kind, out) for out in turn.outs):
                    found = self.within(turn.jaxpr, turn.args) or step
                    return replace(found, way=(turn.name, *found.way))
        return step


def _turns(eqn: Equation, args: Sequence[Any]) -> Iterator[Turn]:
    """The programs that an equation runs, in order."""
    lower, params = eqn.primitive.lower, eqn.params
    if isinstance(lower, Inline):
        jaxpr = _silent(params[lower.name])
        yield Turn(jaxpr.name or eqn.primitive.name, jaxpr, args, evaluate(jaxpr, args))
    elif isinstance(lower, Structured):
        of = f" of {eqn.primitive.name}{_written(eqn.source)}"
        for turn in _STRUCTURED[lower.kind](params, args):
            yield replace(turn, name=turn.name + of)


def _scan_turns(params: dict[str, Any], args: Sequence[Any]) -> Iterator[Turn]:
    jaxpr, length = _silent(params["jaxpr"]), params["length"]
    n, m = params["num_consts"], params["num_consts"] + params["num_carry"]
    consts, carry, xs = args[:n], args[n:m], args[m:]
    for turn in range(length):
        at = np.int32(length - 1 - turn if params["reverse"] else turn)
        given = [*consts, *carry, *[dynamic_index_in_dim(x, at, keepdims=False) for x in xs]]
        outs = evaluate(jaxpr, given)
        yield Turn(f"turn {turn}", jaxpr, given, outs)
        carry = outs[: m - n]


def _while_turns(params: dict[str, Any], args: Sequence[Any]) -> Iterator[Turn]:
    test, body = _silent(params["cond_jaxpr"]), _silent(params["body_jaxpr"])
    n, m = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    cond_consts, body_consts, carry, turn = args[:n], args[n:m], args[m:], 0
    while _host(evaluate(test, [*cond_consts, *carry])[0]):
        given = [*body_consts, *carry]
        carry = evaluate(body, given)
        yield Turn(f"turn {turn}", body, given, carry)
        turn += 1


def _branch(params: dict[str, Any], args: Sequence[Any]) -> Iterator[Turn]:
    branches = params["branches"]
    chosen = min(max(int(_host(args[0])), 0), len(branches) - 1)
    jaxpr = _silent(branches[chosen])
    yield Turn(f"branch {chosen}", jaxpr, args[1:], evaluate(jaxpr, args[1:]))


_STRUCTURED = {"scan": _scan_turns, "while": _while_turns, "cond": _branch}


def _silent(jaxpr: Jaxpr) -> Jaxpr:
    """The program without its debug callbacks, which were called already."""
    return without(jaxpr, "debug")


# the message ----------------------------------------------------------------------------------


def _opening(kind: str, name: str) -> str:
    setting = _KINDS[kind][0]
    return f"{setting}: no result may hold {kind}; invalid value ({kind}) encountered in {name}"


def _report(kind: str, step: Step | None, name: str = "") -> NoReturn:
    off = f"Set {_KINDS[kind][0]} to False to let it pass."
    if step is None:
        raise FloatingPointError(
            f"{_opening(kind, name)}: its arguments hold it already.{at_user_line()} {off}"
        )
    eqn = step.eqn
    outs, args = (", ".join(map(_described, values)) for values in (step.outs, step.args))
    way = "".join(f", in {where}" for where in reversed(step.way))
    written = _written(eqn.source)
    raise FloatingPointError(
        f"{_opening(kind, eqn.primitive.name)}{written}{way}: {outs} = "
        f"{eqn.primitive.name}({args}).{at_user_line()} {off}"
    )


def _written(source: Source | None) -> str:
    return f" at {source}" if source else ""


def _described(value: Any) -> str:
    """An aval, the range of the numbers in it, and how many are none, e.g. "f32[3] in 0..2"."""
    aval, host = aval_of(value), _host(value)
    if not aval.size or dtypes.is_complex(aval.dtype) or not dtypes.is_inexact(aval.dtype):
        return str(aval)
    numbers = host.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    spread = f" in {finite.min():g}..{finite.max():g}" if finite.size else ""
    counts = {kind: int(test(numbers).sum()) for kind, (_, test) in _KINDS.items()}
    odd = "".join(f", {count} {kind}" for kind, count in counts.items() if count)
    return f"{aval}{spread}{odd}"
