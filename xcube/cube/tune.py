"""`tune`: a function with several ways to compute its result picks the fastest on the device."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from xcube import config, random, tree
from xcube.array import Array
from xcube.errors import KernelError
from xcube.ir import Aval, at_user_line
from xcube.lowering import tune as races
from xcube.lowering.device import default_device
from xcube.lowering.device.base import Device
from xcube.lowering.tune import BUDGET, Question
from xcube.trace import EVAL, Tracer, set_current
from xcube.transforms.arguments import abstract
from xcube.transforms.jit import jit

Config = Mapping[str, Any]

UNCACHED = 1 << 26  # bytes that no cache holds: only such a function can be as slow as memory
STREAM = 1 << 27  # bytes of the array whose copy measures the device's bandwidth


def tune(
    configs: Sequence[Config],
    key: Callable[..., Any] | None = None,
    legal: Callable[..., bool] | None = None,
    budget: float = BUDGET,
) -> Callable[[Callable[..., Any]], Tuned]:
    """Decorate a pure function of arrays whose keyword arguments, one of `configs`, say how, not
    what, it computes: the fastest is found on the device when arguments of a new class come.

    `key(*args, **kwargs)`: the class of the arguments; their structure, dtypes and shapes rounded
    up to powers of two if None. `legal(*args, **kwargs, **config)`: whether a config may be used
    for these arguments, by their shapes and dtypes; it is asked on every call, also of a winner.
    `budget`: seconds of a race (`XCUBE_AUTOTUNE=off` runs none and takes the first legal config).
    Winners are remembered on disk; `tune.export(path)` and `tune.load(path)` carry them to other
    machines of the kind, `tune.clear()` forgets them. Raises KernelError if no config is legal,
    LoweringError with all reasons if none can run, TypeError if the configs are no mappings.

    >>> import xcube.numpy as jnp
    >>> @tune(configs=[{"parts": 1}, {"parts": 4}], legal=lambda x, parts: x.size % parts == 0)
    ... def total(x, *, parts):
    ...     return jnp.sum(jnp.sum(x.reshape(parts, -1), axis=1))
    >>> float(total(jnp.arange(6.0)))
    15.0
    """
    found = [dict(one) if isinstance(one, Mapping) else one for one in configs]
    if not found or not all(isinstance(one, dict) for one in found):
        raise TypeError(
            f"tune: configs must be mappings from names of keyword arguments to values, at least "
            f"one; got {configs!r}.{at_user_line()}"
        )
    return lambda fun: Tuned(fun, found, key, legal, budget)


tune.export = races.winners.export  # type: ignore[attr-defined]
tune.load = races.winners.load  # type: ignore[attr-defined]
tune.clear = races.winners.clear  # type: ignore[attr-defined]


class Tuned:
    """A function and the configs it may be called with; made by `tune`."""

    __name__: str

    def __init__(
        self,
        fun: Callable[..., Any],
        configs: Sequence[dict[str, Any]],
        key: Callable[..., Any] | None,
        legal: Callable[..., bool] | None,
        budget: float,
    ) -> None:
        functools.update_wrapper(self, fun)
        self._fun, self._key, self._legal, self._budget = fun, key, legal, budget
        self._configs = {_text(one): one for one in configs}
        self._name = f"{fun.__module__}.{fun.__qualname__} {_digest(fun)}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fun(*args, **kwargs, **self.choose(*args, **kwargs))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        bound = copy.copy(self)
        bound._fun = functools.partial(self._fun, instance)
        return bound

    def choose(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The config for these arguments: the winner of a race, held now if there was none."""
        names = self._legal_ones(args, kwargs)
        if config.current.autotune == "off" or len(names) == 1:
            return self._configs[names[0]]
        device = _device(args, kwargs)
        question = Question(self._name, self._problem(args, kwargs), _described(device))
        winner = races.winners.find(question, names)
        if winner is None:
            with set_current(EVAL):
                winner = self._race(question, names, device, args, kwargs)
        return self._configs[winner]

    def _legal_ones(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        legal = self._legal
        names = [
            name
            for name, one in self._configs.items()
            if legal is None or legal(*args, **kwargs, **one)
        ]
        if not names:
            raise KernelError(
                f"{self.__name__}: one of the configs {', '.join(self._configs)} must be legal for "
                f"{', '.join(map(str, _avals(args, kwargs)))}; none is.{at_user_line()} Add a "
                "config that takes every shape."
            )
        return names

    def _problem(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if self._key is not None:
            return repr(self._key(*args, **kwargs))
        rounded = [
            f"{aval.dtype}{[1 << math.ceil(math.log2(n)) if n else 0 for n in aval.shape]}"
            for aval in _avals(args, kwargs)
        ]
        return f"{tree.structure((args, kwargs))} {' '.join(rounded)}"

    def _race(
        self,
        question: Question,
        names: Sequence[str],
        device: Device,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> str:
        """Every legal config in turn, on these arguments or, where they are traced, others like
        them."""
        leaves, structure = tree.flatten((args, kwargs))
        leaves = [_concrete(leaf) for leaf in leaves]
        args, kwargs = tree.unflatten(structure, leaves)

        def prepared(name: str) -> races.Runner:
            compiled = jit(functools.partial(self._fun, **self._configs[name]))
            return lambda: _wait(compiled(*args, **kwargs))

        ranking = races.race(
            {name: functools.partial(prepared, name) for name in names},
            _least_seconds(leaves, device),
            self._budget,
        )
        races.winners.note(question, ranking)
        return ranking.winner


def _text(one: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in one.items())


def _digest(fun: Callable[..., Any]) -> str:
    """What changes when the function's text does."""
    try:
        source = inspect.getsource(fun)
    except (OSError, TypeError):
        return ""
    return races.cache.key(source)[:8]


def _avals(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Aval]:
    return [abstract(leaf) for leaf in tree.leaves((args, kwargs))]


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Device:
    """Where the arguments are."""
    for leaf in tree.leaves((args, kwargs)):
        if isinstance(leaf, Array) and not isinstance(leaf, Tracer):
            return leaf.device  # type: ignore[attr-defined]
    return default_device()


def _described(device: Device) -> str:
    facts = device.facts()
    return f"{facts.kind} {facts.model} x{facts.cores}"


def _concrete(leaf: Any) -> Any:
    """The leaf, or for a traced array one of its shape and dtype with values of everyday size."""
    if not isinstance(leaf, Tracer):
        return leaf
    aval, key = leaf.aval, random.key(0)
    if aval.dtype.kind == "f":
        return random.normal(key, aval.shape, aval.dtype)
    return random.randint(key, aval.shape, 0, 2).astype(aval.dtype)


def _wait(result: Any) -> None:
    for leaf in tree.leaves(result):
        leaf.block_until_ready()


def _least_seconds(leaves: Sequence[Any], device: Device) -> float:
    """The time in which the device reads the arguments, if no cache holds them."""
    nbytes = sum(abstract(leaf).nbytes for leaf in leaves)
    return nbytes / _bandwidth(device) if nbytes >= UNCACHED else 0.0


@functools.cache
def _bandwidth(device: Device) -> float:
    """Bytes a second that a copy of a large array moves."""
    copied = jit(lambda x: x + 1)
    x = random.bits(random.key(0), (STREAM // 4,), np.uint32)
    ranking = races.race({"copy": lambda: lambda: _wait(copied(x))})
    return 2 * STREAM / ranking.seconds["copy"]
