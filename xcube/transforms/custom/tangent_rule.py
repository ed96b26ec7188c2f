"""Rules for tangents: as the user wrote them for one call, of a batch, and staged at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from xcube import dtypes, tree
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Axis, Jaxpr, at_user_line
from xcube.trace import aval_of, evaluate, stage
from xcube.transforms.arguments import as_result
from xcube.transforms.collectives import binding
from xcube.transforms.custom.calling import Call, Promise, closed_over, leaf_path, name_of
from xcube.transforms.custom.closures import FailedRule, staging_rule_of
from xcube.transforms.custom.constants import constants, contained
from xcube.transforms.custom.zeros import SymbolicZero, zero_of
from xcube.transforms.linearize import instantiated, tangent_aval
from xcube.transforms.vmap import batch_values, to_batch

Tangents = list[Any]  # None where zero


class Rule(Protocol):
    """From flat operands and their tangents to flat results and theirs."""

    def __call__(
        self, operands: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], Tangents]: ...


@dataclass(frozen=True, eq=False)
class UserRule:
    """The rule as the user wrote it. `promise` is there once the function is staged."""

    call: Call
    jvp: Callable[..., Any]
    symbolic_zeros: bool
    promise: Promise | None = None

    def __call__(
        self, operands: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], Tangents]:
        outs, out_tangents, _ = self.run(operands, tangents)
        return outs, out_tangents

    def run(
        self, operands: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], Tangents, Any]:
        """Results, tangents and the structure that either make up.

        Raises TypeError, ShapeError or DtypeError if they are not what a rule must give.
        """
        count = self.call.count
        leaves, dxs = operands[count:], tangents[count:]
        whole = self._whole(leaves, dxs)
        fixed = self.call.fixed(operands)
        result = self.jvp(*fixed, self.call.others(leaves), self.call.others(whole))
        primal, tangent = self._pair(result)
        outs, out_tree = self.call.flat_results(primal)
        if self.promise is not None:
            outs = self.promise.keep(f"{self.where}: the primal result", outs, out_tree)
        return outs, self._tangents(outs, out_tree, tangent), out_tree

    def _whole(self, leaves: Sequence[Any], dxs: Sequence[Any]) -> list[Any]:
        """The tangents with zeros, as the rule wants them."""
        if not self.symbolic_zeros:
            dxs = instantiated(leaves, dxs, [dtypes.is_inexact(x.dtype) for x in leaves])
        return [
            zero_of(aval_of(x), self.symbolic_zeros) if dx is None else dx
            for x, dx in zip(leaves, dxs, strict=True)
        ]

    def _pair(self, result: Any) -> tuple[Any, Any]:
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(
                f"{self.where}: it must return a pair, the primal result and its tangent; got "
                f"{result!r}.{at_user_line()}"
            )
        return result[0], result[1]

    def _tangents(self, outs: Sequence[Any], out_tree: Any, tangent: Any) -> Tangents:
        leaves, tangent_tree = tree.flatten(tangent)
        if tangent_tree != out_tree:
            raise TypeError(
                f"{self.where}: the tangent must have the structure of the primal result, "
                f"{out_tree}; got {tangent_tree}.{at_user_line()}"
            )
        return [
            self._tangent(lambda n=n: leaf_path(out_tree, n), out, dx)
            for n, (out, dx) in enumerate(zip(outs, leaves, strict=True))
        ]

    def _tangent(self, path: Callable[[], str], out: Any, dx: Any) -> Any:
        expected = tangent_aval(aval_of(out))
        is_bare = isinstance(dx, SymbolicZero) or getattr(dx, "dtype", None) == dtypes.float0
        dx = dx if is_bare else as_result(name_of(self.jvp), dx)
        if (dx.shape, dx.dtype) != (expected.shape, expected.dtype):
            error = ShapeError if dx.shape != expected.shape else DtypeError
            raise error(
                f"{self.where}: the tangent of the result{path()}, {aval_of(out)}, must be "
                f"{expected}; got {Aval(dx.shape, dx.dtype)}.{at_user_line()}"
            )
        return None if is_bare else dx

    def __str__(self) -> str:
        return name_of(self.jvp)

    @property
    def where(self) -> str:
        """The head of messages."""
        return f"custom_jvp: the rule {self} of {self.call.name}"


class _Flat:
    """A rule as a flat function: (operands, tangents that are not zero) -> (results, tangents that
    are not zero). It learns which results have a tangent when it is called."""

    def __init__(self, rule: Rule, nonzero: Sequence[bool]) -> None:
        self.rule, self.nonzero = rule, nonzero
        self.out_nonzero: tuple[bool, ...] = ()

    def __call__(self, *values: Any) -> list[Any]:
        count = len(self.nonzero)
        given = iter(values[count:])
        tangents = [next(given) if flag else None for flag in self.nonzero]
        outs, out_tangents = self.rule(values[:count], tangents)
        self.out_nonzero = tuple(dx is not None for dx in out_tangents)
        return [*outs, *(dx for dx in out_tangents if dx is not None)]

    def split(self, values: Sequence[Any]) -> tuple[list[Any], Tangents]:
        """Flat results as results and tangents."""
        count = len(self.out_nonzero)
        given = iter(values[count:])
        return list(values[:count]), [next(given) if flag else None for flag in self.out_nonzero]


def apply(
    rule: Rule, operands: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], Tangents]:
    """The rule of an equation, applied so that jaxprs that are being staged capture nothing."""
    form = _Flat(rule, [dx is not None for dx in tangents])
    values = [*operands, *(dx for dx in tangents if dx is not None)]
    return form.split(contained(form, values, str(rule)))


@dataclass(frozen=True, eq=False)
class BatchedRule:
    """The rule of a batch: the rule of one example, staged and batched. Results and tangents all
    have the batch axis."""

    rule: Rule
    axis: Axis
    batched: tuple[bool, ...]

    def __call__(
        self, operands: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], Tangents]:
        nonzero = [dx is not None for dx in tangents]
        flags = [flag for flag, has in zip(self.batched, nonzero, strict=True) if has]
        values = [*operands, *(dx for dx in tangents if dx is not None)]
        batched, form = [*self.batched, *flags], _Flat(self.rule, nonzero)
        with binding(self.axis):
            jaxpr = stage(form, example_avals(values, batched), str(self))
        return form.split(whole_batch(jaxpr, self.axis, values, batched))

    def __str__(self) -> str:
        return str(self.rule)


def example_avals(values: Sequence[Any], batched: Sequence[bool]) -> list[Aval]:
    """Avals of one example."""
    avals = [aval_of(x) for x in values]
    return [
        aval.update(shape=aval.shape[1:]) if flag else aval
        for aval, flag in zip(avals, batched, strict=True)
    ]


def batch_closed(
    jaxpr: Jaxpr, axis: Axis, values: Sequence[Any], batched: Sequence[bool]
) -> tuple[list[Any], list[bool]]:
    """`batch_values`, what the jaxpr captured as constants."""
    consts = constants(jaxpr)
    flags = [*[False] * len(consts), *batched]
    return batch_values(jaxpr.closed(), axis, [*consts, *values], flags)


def whole_batch(
    jaxpr: Jaxpr, axis: Axis, values: Sequence[Any], batched: Sequence[bool]
) -> list[Any]:
    """A jaxpr applied to a batch; every result has the batch axis."""
    outs, flags = batch_closed(jaxpr, axis, values, batched)
    return [
        out if flag else to_batch(out, axis.size) for out, flag in zip(outs, flags, strict=True)
    ]


# staged at once -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StagedRule:
    """A rule that closes over tracers, staged while their trace is open. `jaxpr`: (captured,
    operands, tangents of those that `has` flags) -> (results, tangents that are not zero)."""

    name: str
    jaxpr: Jaxpr
    count: int
    has: tuple[bool, ...]
    form: _Flat

    def __call__(
        self, operands: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[list[Any], Tangents]:
        if any(dx is not None for dx in tangents[: self.count]):
            raise closed_over("custom_jvp", self.name)
        wanted = (*[False] * self.count, *self.has)
        dxs = instantiated(operands, tangents, wanted)
        given = [dx for dx, flag in zip(dxs, wanted, strict=True) if flag]
        return self.form.split(evaluate(self.jaxpr, [*operands, *given]))

    def __str__(self) -> str:
        return self.name


def stage_rule(rule: UserRule) -> tuple[Rule, list[Any]]:
    """The rule staged for tangents of all operands that can have one, and what it captured: the
    leading operands of the staged rule. If it fails it does so when it is needed."""
    try:
        return _stage_rule(rule)
    except Exception as error:
        return FailedRule(error), []


def _stage_rule(rule: UserRule) -> tuple[StagedRule, list[Any]]:
    call = rule.call
    avals = [aval_of(x) for x in call.operands]
    has = tuple(n >= call.count and dtypes.is_inexact(a.dtype) for n, a in enumerate(avals))
    form = _Flat(rule, has)
    given = [tangent_aval(aval) for aval, flag in zip(avals, has, strict=True) if flag]
    with staging_rule_of(call.target):
        jaxpr = stage(form, [*avals, *given], str(rule))
    staged = StagedRule(str(rule), jaxpr.closed(), len(jaxpr.captured), has, form)
    return staged, jaxpr.consts
