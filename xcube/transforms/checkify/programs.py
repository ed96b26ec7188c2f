"""checkify: the walk over a program that turns its checks into a value. Every program inside an
equation becomes one that begins without an error and gives its own first error in front of its
results; whoever runs it adds that to the errors so far."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube import tree
from xcube.array import Array
from xcube.errors import TraceError
from xcube.ir import Aval, Equation, Jaxpr, at_user_line
from xcube.primitives.convert import stop_gradient
from xcube.primitives.kinds import add
from xcube.primitives.lowered import Inline, Structured
from xcube.primitives.select import eq, ne, select
from xcube.primitives.shape import full, zeros_of
from xcube.trace import aval_of, bind, bind_equation, evaluate, interpret, stage
from xcube.transforms.arguments import FlatCall, check_callable, stage_flat
from xcube.transforms.checkify.check import Error, bind_check, check_p, taken_apart
from xcube.transforms.checkify.errors import CheckError, Errors, Site, user_checks
from xcube.transforms.checkify.operations import findings
from xcube.transforms.effects import inside_without, without
from xcube.transforms.vmap import named_like

Checked = tuple[Jaxpr, tuple[Site, ...]]  # gives code, payloads and results; and its sites

NONE = np.int32(0)


class Ledger:
    """The first error of a run up to here, and the sites up to here with their payloads."""

    def __init__(self) -> None:
        self.code: Any = NONE
        self.sites: list[Site] = []
        self.payloads: list[tuple[Any, ...]] = []

    def add(self, failed: Any, site: Site, payload: tuple[Any, ...] = ()) -> None:
        """One more site, and whether it failed."""
        self.merge(select(failed, np.int32(1), NONE), (site,), (payload,))

    def merge(self, code: Any, sites: Sequence[Site], payloads: Sequence[tuple[Any, ...]]) -> None:
        """The errors of a program that was just run; they count if there was none before."""
        if offset := len(self.sites):
            code = select(eq(self.code, 0), _shifted(code, offset), self.code)
        self.code = code
        self.sites += sites
        self.payloads += [tuple(map(stop_gradient, payload)) for payload in payloads]

    @property
    def error(self) -> Error:
        """All of it as a value."""
        return Error(_array(self.code), tuple(self.payloads), tuple(self.sites))

    @property
    def flat(self) -> list[Any]:
        """Code and payloads as the leading results of a program."""
        return [self.code, *itertools.chain(*self.payloads)]


def _shifted(code: Any, offset: int) -> Any:
    """The code where its sites stand behind so many others."""
    return select(eq(code, 0), NONE, add(code, np.int32(offset))) if offset else code


def _array(x: Any) -> Any:
    return x if isinstance(x, Array) else full((), x)


# the walk -------------------------------------------------------------------------------------


def run(jaxpr: Jaxpr, args: Sequence[Any], errors: Errors, ledger: Ledger) -> list[Any]:
    """Results of a program; its errors go to the ledger."""

    def rule(eqn: Equation, inputs: list[Any]) -> Sequence[Any]:
        lower = eqn.primitive.lower
        if eqn.primitive is check_p:
            return _discharge(ledger, errors, eqn, inputs)
        if isinstance(lower, Structured):
            return _STRUCTURED[lower.kind](ledger, errors, eqn, inputs)
        if isinstance(lower, Inline):
            return _call(ledger, errors, eqn, inputs, lower.name)
        outs = bind_equation(eqn, inputs)
        for finding in findings(errors, eqn, inputs, outs):
            ledger.add(finding.failed, finding.site, finding.payload)
        return outs

    return interpret(jaxpr, args, rule)


def checked_jaxpr(jaxpr: Jaxpr, errors: Errors) -> Checked:
    """The jaxpr form: inputs -> code, payloads, results; and the sites. Cached."""
    key = ("checkify", errors)
    if key not in jaxpr._cache:
        ledger = Ledger()

        def function(*args: Any) -> list[Any]:
            outs = run(jaxpr, args, errors, ledger)
            return [*ledger.flat, *outs]

        staged = stage(function, jaxpr.in_avals, jaxpr.name)
        jaxpr._cache[key] = staged, tuple(ledger.sites)
    return jaxpr._cache[key]


def guarded_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    """The same program with a leading input bool[]: its checks count where that holds. Control flow
    needs it where a program runs for all examples of a batch though only some of them ask for it.
    """

    def function(is_active: Any, *args: Any) -> list[Any]:
        checked, sites = checked_jaxpr(jaxpr, _EVERY_CHECK)
        code, payloads, outs = taken_apart(evaluate(checked, args), sites)
        if sites:
            bind_check([select(is_active, code, NONE), *itertools.chain(*payloads)], sites)
        return outs

    return _staged(jaxpr, "guarded", function, [Aval((), np.bool_), *jaxpr.in_avals])


_EVERY_CHECK: Errors = frozenset({CheckError})  # and nothing that is not a check already


def _discharge(ledger: Ledger, errors: Errors, eqn: Equation, args: Sequence[Any]) -> Sequence[Any]:
    """A check of the user's, or an error that another checkify gave. What is not asked for is
    dropped."""
    sites, wanted = eqn.params["sites"], tuple(errors)
    code, payloads, _ = taken_apart(args, sites)
    for number, site in enumerate(sites, 1):
        if not issubclass(site.category, wanted):
            code = select(eq(code, number), NONE, code)
    if any(issubclass(site.category, wanted) for site in sites):
        ledger.merge(code, sites, payloads)
    return []


# calls ----------------------------------------------------------------------------------------

# Calls about which nothing is known but the program that they call.
_TRANSPARENT = frozenset({"jit", "checkpoint"})


def _call(
    ledger: Ledger, errors: Errors, eqn: Equation, args: Sequence[Any], name: str
) -> Sequence[Any]:
    """A call of a checked program. One with rules of its own keeps them: it is made without checks,
    and its program is run once more for the errors, of which nothing is differentiated."""
    jaxpr = eqn.params[name]
    checked, sites = checked_jaxpr(jaxpr, errors)
    if not sites:
        return _unchecked(eqn, args)
    if eqn.primitive.name in _TRANSPARENT:
        results = bind(eqn.primitive, *args, **{**eqn.params, name: checked})
        return _merge(ledger, results, sites)
    if effects := jaxpr.effects - {"check", "debug"}:
        raise TraceError(
            f"checkify: a function with a custom rule is run once more for its errors, so it must "
            f"have no effects; got {', '.join(sorted(effects))} in {eqn.primitive.name} at "
            f"{eqn.source}.{at_user_line()} Take the effect or the check out of the function."
        )
    _merge(ledger, evaluate(without(checked, "debug"), list(map(stop_gradient, args))), sites)
    return _unchecked(eqn, args)


def _unchecked(eqn: Equation, args: Sequence[Any]) -> Sequence[Any]:
    """The equation without the checks in its programs."""
    return bind_equation(inside_without(eqn, "check"), args)


def _merge(ledger: Ledger, results: Sequence[Any], sites: tuple[Site, ...]) -> list[Any]:
    code, payloads, outs = taken_apart(results, sites)
    ledger.merge(code, sites, payloads)
    return outs


# control flow ---------------------------------------------------------------------------------


def _state_avals(checked: Jaxpr, sites: Sequence[Site]) -> tuple[Aval, ...]:
    """Avals of code and payloads."""
    return tuple(aval.strengthen() for aval in checked.out_avals[: _width(sites)])


def _width(sites: Sequence[Site]) -> int:
    return 1 + sum(site.count for site in sites)


def _zeros(avals: Sequence[Aval]) -> list[Any]:
    return [zeros_of(aval) for aval in avals]


def _staged(
    jaxpr: Jaxpr, key: Any, function: Callable[..., Sequence[Any]], avals: Sequence[Aval]
) -> Jaxpr:
    """The jaxpr of a function that a checked jaxpr and a key decide, staged once."""
    key = ("checkify", key)
    if key not in jaxpr._cache:
        jaxpr._cache[key] = stage(function, avals, jaxpr.name)
    return jaxpr._cache[key]


def _first(before: Sequence[Any], now: Sequence[Any]) -> list[Any]:
    """Code and payloads: those before if they hold an error, else those now."""
    keep = ne(before[0], 0)
    return [
        select(full(aval_of(old).shape, keep), old, new)
        for old, new in zip(before, now, strict=True)
    ]


def _scan(ledger: Ledger, errors: Errors, eqn: Equation, args: Sequence[Any]) -> Sequence[Any]:
    params = eqn.params
    checked, sites = checked_jaxpr(params["jaxpr"], errors)
    if not sites:
        return _unchecked(eqn, args)
    n, state = params["num_consts"], _state_avals(checked, sites)

    def body(*values: Any) -> list[Any]:
        consts, before, rest = values[:n], values[n : n + len(state)], values[n + len(state) :]
        results = evaluate(checked, [*consts, *rest])
        return [*_first(before, results[: len(state)]), *results[len(state) :]]

    avals = checked.in_avals
    jaxpr = _staged(checked, ("scan", n), body, [*avals[:n], *state, *avals[n:]])
    params = {**params, "jaxpr": jaxpr, "num_carry": params["num_carry"] + len(state)}
    results = bind(eqn.primitive, *args[:n], *_zeros(state), *args[n:], **params)
    return _merge(ledger, results, sites)


def _while(ledger: Ledger, errors: Errors, eqn: Equation, args: Sequence[Any]) -> Sequence[Any]:
    """The condition is checked before the loop, and after each turn of it."""
    params = eqn.params
    test, body = (checked_jaxpr(params[f"{part}_jaxpr"], errors) for part in ("cond", "body"))
    sites = (*body[1], *test[1])
    if not sites:
        return _unchecked(eqn, args)
    n, m = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    cond_consts, body_consts, carry = args[:n], args[n:m], args[m:]
    if test[1]:
        _merge(ledger, evaluate(test[0], [*cond_consts, *carry]), test[1])
    state = (*_state_avals(*body), *_state_avals(*test)[1:])
    cond_jaxpr, body_jaxpr = _checked_loop(test, body, n, m, state)
    results = bind(
        eqn.primitive,
        *(*cond_consts, *cond_consts, *body_consts, *_zeros(state), *carry),
        cond_jaxpr=cond_jaxpr,
        cond_nconsts=n,
        body_jaxpr=body_jaxpr,
        body_nconsts=m,
    )
    return _merge(ledger, results, sites)


def _checked_loop(
    test: Checked, body: Checked, n: int, m: int, state: Sequence[Aval]
) -> tuple[Jaxpr, Jaxpr]:
    """Condition and body of a while loop whose carry begins with the state. The body has the
    constants of both, of which the first n are those of the condition."""
    (cond_jaxpr, test_sites), (body_jaxpr, body_sites) = test, body
    width = len(state)

    def cond(*values: Any) -> list[Any]:
        results = evaluate(cond_jaxpr, [*values[:n], *values[n + width :]])
        return results[_width(test_sites) :]

    def turn(*values: Any) -> list[Any]:
        inner, before, carry = Ledger(), values[m : m + width], values[m + width :]
        outs = _merge(inner, evaluate(body_jaxpr, [*values[n:m], *carry]), body_sites)
        _merge(inner, evaluate(cond_jaxpr, [*values[:n], *outs]), test_sites)
        return [*_first(before, inner.flat), *outs]

    cond_consts, avals = cond_jaxpr.in_avals[:n], body_jaxpr.in_avals
    body_consts, carry = avals[: m - n], avals[m - n :]
    return (
        _staged(cond_jaxpr, ("cond", n, body_jaxpr), cond, [*cond_consts, *state, *carry]),
        _staged(
            body_jaxpr,
            ("body", n, cond_jaxpr),
            turn,
            [*cond_consts, *body_consts, *state, *carry],
        ),
    )


def _cond(ledger: Ledger, errors: Errors, eqn: Equation, args: Sequence[Any]) -> Sequence[Any]:
    parts = tuple([checked_jaxpr(branch, errors) for branch in eqn.params["branches"]])
    sites = tuple(itertools.chain(*[part[1] for part in parts]))
    if not sites:
        return _unchecked(eqn, args)
    params = {**eqn.params, "branches": _checked_branches(parts)}
    return _merge(ledger, bind(eqn.primitive, *args, **params), sites)


def _checked_branches(parts: tuple[Checked, ...]) -> tuple[Jaxpr, ...]:
    """Each branch gives the state of all branches, with zeros as the payloads of the others."""
    payloads = [_state_avals(*part)[1:] for part in parts]
    branches, jaxprs = [], tuple([part[0] for part in parts])
    for number, (checked, sites) in enumerate(parts):
        offset = sum(len(part[1]) for part in parts[:number])
        before, after = (itertools.chain(*p) for p in (payloads[:number], payloads[number + 1 :]))

        def branch(*values: Any, part=(checked, sites, offset, [*before], [*after])) -> list[Any]:
            checked, sites, offset, before, after = part
            code, *rest = evaluate(checked, values)
            width = _width(sites) - 1
            own, outs = rest[:width], rest[width:]
            return [_shifted(code, offset), *_zeros(before), *own, *_zeros(after), *outs]

        branches.append(_staged(checked, ("branch", number, jaxprs), branch, checked.in_avals))
    return tuple(branches)


_STRUCTURED: dict[str, Callable[..., Sequence[Any]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}

# the function ---------------------------------------------------------------------------------


def checkify(fun: Callable[..., Any], errors: Errors = user_checks) -> Callable[..., Any]:
    """A function that gives (error, fun(*args, **kwargs)) and raises none: the checks of fun are
    functionalized, so that it can be jitted, mapped, differentiated.

    `errors`: the categories to look for, unions of `user_checks` (`check`s that fail), `nan_checks`
    (operations that give NaN), `div_checks` (division by zero), `index_checks` (indices out of
    bounds), as `float_checks`, `automatic_checks`, `all_checks`. The first error counts; its
    `get()` is a message or None, and `throw()` raises JaxRuntimeError.

    >>> import xcube.numpy as jnp
    >>> from xcube import jit
    >>> from xcube.transforms.checkify.check import check
    >>> def f(x):
    ...     check(x > 0, "x must be positive, is {}", x)
    ...     return jnp.log(x)
    >>> error, y = jit(checkify(f))(jnp.float32(-1))
    >>> error.get()
    'x must be positive, is -1.0 (`check` failed). At ...'
    """
    check_callable("checkify", fun)
    categories = frozenset(errors)

    def checked(*args: Any, **kwargs: Any) -> tuple[Error, Any]:
        call = FlatCall(named_like(lambda: fun(*args, **kwargs), fun), [], _NO_ARGUMENTS)
        jaxpr, out_tree = stage_flat(call, [])
        ledger = Ledger()
        outs = run(jaxpr, [], categories, ledger)
        return ledger.error, tree.unflatten(out_tree, map(_array, outs))

    return named_like(checked, fun)


_NO_ARGUMENTS = tree.structure(((), {}))
