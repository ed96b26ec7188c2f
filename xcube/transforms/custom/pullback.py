"""Rules for cotangents, a forward half and a pullback: as the user wrote them for one call, and how
the rule of an equation is applied. `pullback_forms.py` has those of a batch and those staged at
once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from xcube import dtypes, tree
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, at_user_line
from xcube.primitives.convert import convert_element_type
from xcube.trace import aval_of
from xcube.transforms.arguments import as_result, is_array_like, to_array
from xcube.transforms.custom.calling import Call, Promise, leaf_path, name_of
from xcube.transforms.custom.constants import contained
from xcube.transforms.custom.zeros import SymbolicZero, zero_of
from xcube.transforms.linearize import tangent_aval

Cotangents = list[Any]  # None where zero


class Pullback(Protocol):
    """From residuals and the cotangents of all results to those of all operands."""

    def __call__(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> Cotangents: ...


class Rule(Protocol):
    """The forward half: results, residuals, and the pullback that takes the residuals.
    `perturbed` says which operands have tangents."""

    def forward(
        self, operands: Sequence[Any], perturbed: Sequence[bool]
    ) -> tuple[list[Any], list[Any], Pullback]: ...


# for one call ---------------------------------------------------------------------------------


@dataclass(slots=True)
class CustomVJPPrimal:
    """A leaf of an argument as a forward rule with `symbolic_zeros` gets it: its value, and
    whether it takes part in the differentiation."""

    value: Any
    perturbed: bool


def custom_vjp_primal_tree_values(primals: Any) -> Any:
    """The values of a tree of `CustomVJPPrimal`.

    Raises TypeError for another kind of leaf.

    >>> custom_vjp_primal_tree_values((CustomVJPPrimal(2.0, True),))
    (2.0,)
    """

    def value(leaf: Any) -> Any:
        if not isinstance(leaf, CustomVJPPrimal):
            raise TypeError(
                f"custom_vjp_primal_tree_values: every leaf must be a CustomVJPPrimal; got "
                f"{type(leaf).__name__}.{at_user_line()}"
            )
        return leaf.value

    return tree.map(value, primals)


@dataclass(frozen=True, eq=False)
class UserRule:
    """The rule as the user wrote it. `promise` is there once the function is staged."""

    call: Call
    fwd: Callable[..., Any]
    bwd: Callable[..., Any]
    symbolic_zeros: bool
    promise: Promise | None = None

    def forward(
        self, operands: Sequence[Any], perturbed: Sequence[bool]
    ) -> tuple[list[Any], list[Any], UserPullback]:
        """The forward half."""
        outs, residuals, pullback = self.run(operands, perturbed)
        return outs, residuals, pullback

    def run(
        self, operands: Sequence[Any], perturbed: Sequence[bool]
    ) -> tuple[list[Any], list[Any], UserPullback]:
        """The forward half, with all that the user's pullback needs to know."""
        leaves = operands
        if self.symbolic_zeros:
            pairs = zip(operands, perturbed, strict=True)
            leaves = [CustomVJPPrimal(x, flag) for x, flag in pairs]
        primal, residual = self._pair(self.fwd(*self.call.arguments(operands, leaves)))
        outs, out_tree = self.call.flat_results(primal)
        if self.promise is not None:
            outs = self.promise.keep(f"{self.where}: the first result", outs, out_tree)
        saved, saved_tree = tree.flatten(residual)
        saved = [self._saved(x) for x in saved]
        kept = tuple(None if isinstance(x, Array) else (x,) for x in saved)
        avals = tuple(aval_of(x) for x in operands)
        primals = tuple(aval_of(out) for out in outs)
        pullback = UserPullback(self, avals, out_tree, primals, saved_tree, kept)
        return outs, [x for x in saved if isinstance(x, Array)], pullback

    def _pair(self, result: Any) -> tuple[Any, Any]:
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(
                f"{self.where}: it must return a pair, the result and what the backward rule "
                f"needs; got {result!r}.{at_user_line()}"
            )
        return result[0], result[1]

    def _saved(self, leaf: Any) -> Any:
        """A residual: arrays flow, anything else is kept as it is."""
        if isinstance(leaf, CustomVJPPrimal):
            raise TypeError(
                f"{self.where}: it must not return a CustomVJPPrimal; got {leaf!r}."
                f"{at_user_line()} Return its value, or custom_vjp_primal_tree_values of the tree."
            )
        return to_array.convert(leaf) if is_array_like(leaf) else leaf

    def __str__(self) -> str:
        return f"{name_of(self.fwd)}, {name_of(self.bwd)}"

    @property
    def where(self) -> str:
        """The head of messages."""
        return f"custom_vjp: the forward rule {name_of(self.fwd)} of {self.call.name}"


@dataclass(frozen=True, eq=False)
class UserPullback:
    """The user's backward rule. `kept` holds the residuals that are no arrays, as 1-tuples."""

    rule: UserRule
    operands: tuple[Aval, ...]
    out_tree: Any
    results: tuple[Aval, ...]
    saved_tree: Any
    kept: tuple[tuple[Any] | None, ...]

    def __call__(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> Cotangents:
        arrays, rule = iter(residuals), self.rule
        saved = [next(arrays) if leaf is None else leaf[0] for leaf in self.kept]
        whole = [
            zero_of(aval, rule.symbolic_zeros) if ct is None else ct
            for ct, aval in zip(cotangents, self.results, strict=True)
        ]
        result = rule.bwd(
            *rule.call.fixed(()),
            tree.unflatten(self.saved_tree, saved),
            tree.unflatten(self.out_tree, whole),
        )
        leaves = self._leaves(result)
        return [
            self._fit(number, ct, aval)
            for number, (ct, aval) in enumerate(zip(leaves, self.operands, strict=True))
        ]

    def _leaves(self, result: Any) -> list[Any]:
        """A leaf for each operand; None stands for the zero of a whole subtree."""
        dummy = self.rule.call.others([_Leaf()] * len(self.operands))
        result = tuple(result) if type(result) is list else result
        try:
            if not isinstance(result, tuple):
                raise ValueError("not a tuple")
            return tree.broadcast_prefix(result, dummy, lambda x: x is None)
        except ValueError:
            raise self._misfit(result) from None

    def _misfit(self, result: Any) -> TypeError:
        return TypeError(
            f"{self.where}: it must return a tuple with a cotangent for each argument of "
            f"{self.rule.call.name}, of the structure {self.rule.call.in_tree} (None for zero); "
            f"got {tree.structure(result)}.{at_user_line()}"
        )

    def _fit(self, number: int, ct: Any, primal: Aval) -> Any:
        expected = tangent_aval(primal)
        if ct is None or expected.dtype == dtypes.float0:
            return None
        symbolic = isinstance(ct, SymbolicZero)
        ct = ct if symbolic else as_result(name_of(self.rule.bwd), ct)
        path = lambda: leaf_path(self.rule.call.in_tree, number)  # noqa: E731
        if ct.shape != expected.shape:
            raise ShapeError(
                f"{self.where}: the cotangent of the argument at {path()}, {primal}, must be "
                f"{expected}; got {ct.aval}.{at_user_line()}"
            )
        if dtypes.is_complex(ct.dtype) and not dtypes.is_complex(expected.dtype):
            raise DtypeError(
                f"{self.where}: the cotangent of the argument at {path()}, {primal}, must be real; "
                f"got {ct.aval}.{at_user_line()}"
            )
        return None if symbolic else convert_element_type(ct, expected.dtype, expected.weak_type)

    def __str__(self) -> str:
        return name_of(self.rule.bwd)

    @property
    def where(self) -> str:
        """The head of messages."""
        return f"custom_vjp: the backward rule {self} of {self.rule.call.name}"


class _Leaf:
    """Stands for an argument's leaf."""


# flat -----------------------------------------------------------------------------------------


class FlatForward:
    """The forward half as a flat function: operands -> (results, residuals). It learns the pullback
    and the number of results when it is called."""

    def __init__(self, rule: Rule, perturbed: Sequence[bool]) -> None:
        self.rule, self.perturbed = rule, perturbed
        self.pullback: Any = None
        self.count = 0

    def __call__(self, *operands: Any) -> list[Any]:
        outs, residuals, self.pullback = self.rule.forward(operands, self.perturbed)
        self.count = len(outs)
        return [*outs, *residuals]


class FlatPullback:
    """A pullback as a flat function: (residuals, cotangents that are not zero) -> cotangents that
    are not zero. It learns which these are when it is called."""

    def __init__(self, pullback: Pullback, nonzero: Sequence[bool]) -> None:
        self.pullback, self.nonzero = pullback, nonzero
        self.out_nonzero: tuple[bool, ...] = ()

    def __call__(self, *values: Any) -> list[Any]:
        count = len(values) - sum(self.nonzero)
        given = iter(values[count:])
        cts = [next(given) if flag else None for flag in self.nonzero]
        found = self.pullback(values[:count], cts)
        self.out_nonzero = tuple(ct is not None for ct in found)
        return [ct for ct in found if ct is not None]

    def split(self, values: Sequence[Any]) -> Cotangents:
        """Flat results as a cotangent for each operand."""
        given = iter(values)
        return [next(given) if flag else None for flag in self.out_nonzero]


def apply_forward(
    rule: Rule, operands: Sequence[Any], perturbed: Sequence[bool]
) -> tuple[list[Any], list[Any], Pullback]:
    """The forward half of an equation's rule, applied so that jaxprs that are being staged capture
    nothing."""
    form = FlatForward(rule, perturbed)
    values = contained(form, operands, str(rule))
    return values[: form.count], values[form.count :], form.pullback


def apply_pullback(
    pullback: Pullback, residuals: Sequence[Any], cotangents: Sequence[Any]
) -> Cotangents:
    """The pullback of an equation, applied likewise."""
    form = FlatPullback(pullback, [ct is not None for ct in cotangents])
    values = [*residuals, *(ct for ct in cotangents if ct is not None)]
    return form.split(contained(form, values, str(pullback)))
