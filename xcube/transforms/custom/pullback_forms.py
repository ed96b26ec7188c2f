"""Rules for cotangents in other forms: of a batch, and staged at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from xcube import dtypes
from xcube.ir import Aval, Axis, Jaxpr
from xcube.primitives.shape import reduce_sum, zeros_of
from xcube.trace import aval_of, evaluate, stage
from xcube.transforms.collectives import binding
from xcube.transforms.custom.calling import closed_over
from xcube.transforms.custom.closures import FailedRule, staging_rule_of
from xcube.transforms.custom.pullback import (
    Cotangents,
    FlatForward,
    FlatPullback,
    Pullback,
    Rule,
    UserRule,
)
from xcube.transforms.custom.tangent_rule import batch_closed, example_avals, whole_batch
from xcube.transforms.linearize import tangent_aval
from xcube.transforms.vmap import to_batch

# for a batch ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BatchedRule:
    """The rule of a batch: the rule of one example, staged and batched. All results have the batch
    axis."""

    rule: Rule
    axis: Axis
    batched: tuple[bool, ...]

    def forward(
        self, operands: Sequence[Any], perturbed: Sequence[bool]
    ) -> tuple[list[Any], list[Any], Pullback]:
        """The forward half."""
        form = FlatForward(self.rule, perturbed)
        with binding(self.axis):
            jaxpr = stage(form, example_avals(operands, self.batched), str(self))
        values, flags = batch_closed(jaxpr, self.axis, operands, self.batched)
        outs = [
            out if flag else to_batch(out, self.axis.size)
            for out, flag in zip(values[: form.count], flags[: form.count], strict=True)
        ]
        saved = tuple(flags[form.count :])
        pullback = BatchedPullback(form.pullback, self.axis, saved, self.batched)
        return outs, values[form.count :], pullback

    def __str__(self) -> str:
        return str(self.rule)


@dataclass(frozen=True, eq=False)
class BatchedPullback:
    """The pullback of a batch. `saved` and `batched` say which residuals and operands have the
    batch axis; the cotangents of all results have it."""

    pullback: Pullback
    axis: Axis
    saved: tuple[bool, ...]
    batched: tuple[bool, ...]

    def __call__(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> Cotangents:
        given = [ct for ct in cotangents if ct is not None]
        values, flags = [*residuals, *given], [*self.saved, *[True] * len(given)]
        form = FlatPullback(self.pullback, [ct is not None for ct in cotangents])
        with binding(self.axis):
            jaxpr = stage(form, example_avals(values, flags), str(self))
        found = form.split(whole_batch(jaxpr, self.axis, values, flags))
        return [
            None if ct is None else self._of_operand(ct, flag)
            for ct, flag in zip(found, self.batched, strict=True)
        ]

    def _of_operand(self, ct: Any, batched: bool) -> Any:
        return ct if batched else reduce_sum(ct, (0,))

    def __str__(self) -> str:
        return str(self.pullback)


# staged at once -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StagedRule:
    """A rule that closes over tracers, staged while their trace is open. `forward_jaxpr`: (captured
    by the forward half, operands) -> (results, residuals); `pullback` takes what the backward half
    captured in front of the residuals. All that is captured leads the operands."""

    name: str
    forward_jaxpr: Jaxpr
    results: int
    count: int
    pullback: StagedPullback

    def forward(
        self, operands: Sequence[Any], perturbed: Sequence[bool]
    ) -> tuple[list[Any], list[Any], Pullback]:
        """The forward half."""
        first, captured = self.count, self.count + self.pullback.count
        if any(perturbed[:captured]):
            raise closed_over("custom_vjp", self.name)
        values = evaluate(self.forward_jaxpr, [*operands[:first], *operands[captured:]])
        residuals = [*operands[first:captured], *values[self.results :]]
        return values[: self.results], residuals, replace(self.pullback, skipped=captured)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class StagedPullback:
    """`jaxpr`: (captured, residuals, cotangents of the results that have one) -> cotangents of the
    operands that are not zero; none of the first `skipped` operands has one."""

    jaxpr: Jaxpr
    count: int
    form: FlatPullback
    skipped: int = 0

    def __call__(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> Cotangents:
        avals = self.jaxpr.in_avals[len(residuals) :]
        given = [ct for ct, flag in zip(cotangents, self.form.nonzero, strict=True) if flag]
        whole = [zeros_of(a) if ct is None else ct for ct, a in zip(given, avals, strict=True)]
        found = self.form.split(evaluate(self.jaxpr, [*residuals, *whole]))
        return [*[None] * self.skipped, *found]

    def __str__(self) -> str:
        return self.jaxpr.name


def stage_rule(rule: UserRule) -> tuple[Rule, list[Any]]:
    """The rule staged with all operands perturbed that can be, and what both halves captured: the
    leading operands of the staged rule. If it fails it does so when it is needed."""
    try:
        return _stage_rule(rule)
    except Exception as error:
        return FailedRule(error), []


def _stage_rule(rule: UserRule) -> tuple[StagedRule, list[Any]]:
    avals = [aval_of(x) for x in rule.call.operands]
    form = FlatForward(rule, [dtypes.is_inexact(aval.dtype) for aval in avals])
    with staging_rule_of(rule.call.target):
        jaxpr = stage(form, avals, str(rule))
        results, residuals = jaxpr.out_avals[: form.count], jaxpr.out_avals[form.count :]
        pullback, captured = _stage_pullback(form.pullback, residuals, results)
    count = len(jaxpr.captured)
    staged = StagedRule(rule.call.name, jaxpr.closed(), form.count, count, pullback)
    return staged, [*jaxpr.consts, *captured]


def _stage_pullback(
    pullback: Pullback, residuals: Sequence[Aval], results: Sequence[Aval]
) -> tuple[StagedPullback, list[Any]]:
    has = [dtypes.is_inexact(aval.dtype) for aval in results]
    cotangents = [tangent_aval(aval) for aval, flag in zip(results, has, strict=True) if flag]
    form = FlatPullback(pullback, has)
    jaxpr = stage(form, [*residuals, *cotangents], str(pullback))
    return StagedPullback(jaxpr.closed(), len(jaxpr.captured), form), jaxpr.consts
