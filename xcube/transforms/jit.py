"""jit: trace once per signature, compile, call. Inside another trace a jitted function is one
equation that holds its jaxpr (call.py); what a signature became is an entry (entry.py)."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from xcube import config, tree
from xcube.array import Array, DeviceArray
from xcube.errors import DeviceError
from xcube.ir import Aval, Jaxpr, at_user_line
from xcube.stages import Lowered, ShapeDtypeStruct, Traced, check_compiler_options
from xcube.trace import EVAL, StagingTrace, Tracer, current_trace, evaluate, owner
from xcube.transforms.arguments import (
    FlatCall,
    abstract,
    as_leaf,
    check_callable,
    is_array_like,
    stage_flat,
)
from xcube.transforms.collectives import bound_axes
from xcube.transforms.entry import Entry
from xcube.transforms.leaks import NoLeaks


class Jitted:
    """A function that is traced once per signature and compiled; made by `jit`."""

    def __init__(
        self,
        fun: Callable[..., Any],
        static_argnums: tuple[int, ...],
        static_argnames: tuple[str, ...],
        donate_argnums: tuple[int, ...],
        donate_argnames: tuple[str, ...],
        inline: bool = False,
    ) -> None:
        functools.update_wrapper(self, fun, updated=())
        attributes = getattr(fun, "__dict__", {})
        vars(self).update({k: v for k, v in attributes.items() if not hasattr(Jitted, k)})
        self._fun = fun
        self._name = getattr(fun, "__name__", type(fun).__name__)
        self._static_argnums, self._static_argnames = static_argnums, static_argnames
        self._donate_argnums, self._donate_argnames = donate_argnums, donate_argnames
        options = (static_argnums, static_argnames, donate_argnums, donate_argnames)
        self._cache = _cache_of(fun, options)
        self._inline = inline

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if config.current.disable_jit:
            return self._fun(*args, **kwargs)
        leaves, entry = self._entry(args, kwargs)
        if entry.is_open or current_trace() is not EVAL:
            return self._traced(entry, leaves)
        for leaf in leaves:
            if type(leaf) is not DeviceArray:
                return self._traced(entry, leaves)
        return entry.run(leaves)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<jitted {self._name}>"

    def __reduce__(self) -> str:
        """Pickled by name, as functions are."""
        return self.__qualname__  # type: ignore[attr-defined]

    def __copy__(self) -> Jitted:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Jitted:
        return self

    # stages and cache controls

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """The function traced for these arguments: arrays, or things with shape and dtype such as
        `ShapeDtypeStruct`."""
        return Traced(self._entry(args, kwargs, abstract_only=True)[1])

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The function traced and lowered for these arguments, as by `trace(...).lower()`."""
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of the result, without running."""
        return self.trace(*args, **kwargs).out_info

    def jaxpr(self, *args: Any, **kwargs: Any) -> Jaxpr:
        """The jaxpr of this signature, captured constants as leading inputs."""
        return self._entry(args, kwargs, abstract_only=True)[1].jaxpr

    def clear_cache(self) -> None:
        """Forget all signatures."""
        self._cache.clear()

    def _cache_size(self) -> int:
        return len(self._cache)

    # inside

    def _entry(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], abstract_only: bool = False
    ) -> tuple[list[Any], Entry]:
        static_key, fun, given = None, self._fun, (args, kwargs)
        if self._static_argnums or self._static_argnames:
            args, kwargs, static_key, fun = self._split_static(args, kwargs)
        leaves, treedef = tree.flatten((args, kwargs))
        if abstract_only:
            avals = tuple([abstract(leaf) for leaf in leaves])
        else:
            leaves = [
                leaf if isinstance(leaf, Array) else self._leaf(leaf, n, args, kwargs)
                for n, leaf in enumerate(leaves)
            ]
            avals = tuple([leaf.aval for leaf in leaves])
        now = config.current
        modes = (
            *(now.enable_x64, now.numpy_dtype_promotion, now.default_matmul_precision),
            *(now.device, now.autotune),
        )
        key = (treedef, avals, static_key, modes, bound_axes())
        if (entry := self._cache.get(key)) is None:
            entry = self._trace(key, FlatCall(fun, leaves, treedef), avals, self._donated(*given))
        return leaves, entry

    def _leaf(self, leaf: Any, number: int, args: Any, kwargs: Any) -> Array:
        call = FlatCall(self._fun, *tree.flatten((args, kwargs)))
        return as_leaf("jit", self._name, leaf, lambda: call.describe(number))

    def _trace(
        self, key: Any, call: FlatCall, avals: tuple[Aval, ...], donated: tuple[bool, ...]
    ) -> Entry:
        with NoLeaks(f"jit of {self._name}"):
            jaxpr, out_tree = stage_flat(call, avals)
        constants = jaxpr.consts
        is_open = any(isinstance(value, Tracer) for value in constants)
        flags = (False,) * len(constants) + donated
        closed, name = jaxpr.closed(), self._name
        entry = Entry(name, closed, constants, call.treedef, out_tree, flags, is_open)
        return entry if is_open else self._cache.setdefault(key, entry)

    def _donated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, ...]:
        """Of each leaf of the arguments that are not static, whether it is donated."""
        static = _positions(self._static_argnums, len(args))
        donated = _positions(self._donate_argnums, len(args))
        parts = [(arg, n in donated) for n, arg in enumerate(args) if n not in static]
        parts += [
            (kwargs[name], name in self._donate_argnames)
            for name in sorted(kwargs)
            if name not in self._static_argnames
        ]
        return tuple([flag for value, flag in parts for _ in tree.leaves(value)])

    def _split_static(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        numbers = _positions(self._static_argnums, len(args))
        static = {n: args[n] for n in sorted(numbers)}
        named = {k: kwargs[k] for k in sorted(kwargs) if k in self._static_argnames}
        for where, value in (*static.items(), *named.items()):
            _check_hashable(self._name, where, value)
        dynamic = tuple(arg for n, arg in enumerate(args) if n not in numbers)
        rest = {k: v for k, v in kwargs.items() if k not in named}

        def fun(*given: Any, **given_named: Any) -> Any:
            values = iter(given)
            whole = [static[n] if n in numbers else next(values) for n in range(len(args))]
            return self._fun(*whole, **given_named, **named)

        fun.__name__ = self._name
        key = (tuple(static.items()), tuple(named.items()), len(args))
        typed = tuple(type(v) for v in (*static.values(), *named.values()))
        return dynamic, rest, (key, typed), fun

    def _traced(self, entry: Entry, leaves: list[Any]) -> Any:
        operands = [*entry.constants, *leaves]
        if self._inline and isinstance(owner(operands), StagingTrace):
            return tree.unflatten(entry.out_tree, evaluate(entry.jaxpr, operands))
        return entry.bind(leaves)


def _check_hashable(name: str, where: Any, value: Any) -> None:
    try:
        hash(value)
    except TypeError:
        raise ValueError(
            f"jit: static arguments must be hashable; argument {where!r} of {name} is "
            f"{type(value).__name__}.{at_user_line()} Pass a tuple or a frozen dataclass, or make "
            f"it an ordinary argument."
        ) from None


_caches: weakref.WeakKeyDictionary[Any, dict[Any, dict[Any, Entry]]] = weakref.WeakKeyDictionary()


def _cache_of(fun: Callable[..., Any], options: Any) -> dict[Any, Entry]:
    """Jitting one function twice shares what was traced."""
    try:
        return _caches.setdefault(fun, {}).setdefault(options, {})
    except TypeError:  # not hashable or not weakly referable: a cache of its own
        return {}


def clear_caches() -> None:
    """Forget every traced and compiled signature in this process."""
    for caches in list(_caches.values()):
        for cache in caches.values():
            cache.clear()


def jit(
    fun: Callable[..., Any] | None = None,
    /,
    *,
    in_shardings: None = None,
    out_shardings: None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    device: None = None,
    backend: None = None,
    inline: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile a function: it is traced once per signature (structure, shapes, dtypes of the
    arguments and values of the static ones) and runs as one program.

    `donate_argnums`: arguments whose buffers the results may take over; the arrays passed are
    deleted. `inline`: inside another traced function it leaves its equations, not one call; it
    runs the same. `keep_unused` is accepted: arguments are always kept. Shardings, device and
    backend must be None, and there are no compiler options: a program runs on the device of its
    arguments. Raises ValueError for static arguments that cannot be hashed or are donated too,
    DeviceError for what must be None.

    >>> import xcube.numpy as jnp
    >>> jit(lambda x: x + 1)(jnp.arange(3))
    Array([1, 2, 3], dtype=int32)
    """
    places = {"in_shardings": in_shardings, "out_shardings": out_shardings}
    _check_places({**places, "device": device, "backend": backend})
    check_compiler_options(compiler_options)
    if fun is None:
        return functools.partial(
            jit,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            inline=inline,
        )
    check_callable("jit", fun)
    static = _by_both(fun, _tuple(static_argnums), _tuple(static_argnames))
    donated = _by_both(fun, _tuple(donate_argnums), _tuple(donate_argnames))
    _check_apart(fun, static, donated)
    return Jitted(fun, *static, *donated, inline)


def _check_places(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value is not None:
            raise DeviceError(
                f"jit: {name} must be None, for a program runs on the one device of its arguments; "
                f"got {value!r}.{at_user_line()} Move the arguments with device_put."
            )


def _check_apart(
    fun: Callable[..., Any],
    static: tuple[tuple[int, ...], tuple[str, ...]],
    donated: tuple[tuple[int, ...], tuple[str, ...]],
) -> None:
    both = [*(set(static[0]) & set(donated[0])), *(set(static[1]) & set(donated[1]))]
    if both:
        called = getattr(fun, "__name__", type(fun).__name__)
        raise ValueError(
            f"jit: an argument cannot be both static and donated; got {both[0]!r} of {called} in "
            f"both.{at_user_line()}"
        )


def _tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int | str) else tuple(value)


def _positions(numbers: Sequence[int], count: int) -> set[int]:
    """Positions among so many arguments; negative ones count from the end."""
    return {number % count for number in numbers if -count <= number < count}


def _by_both(
    fun: Callable[..., Any], numbers: tuple[int, ...], names: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Arguments by position and by name: they may be passed either way, however declared."""
    if not numbers and not names:
        return numbers, names
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return numbers, names
    _check_declared(fun, parameters, numbers, names)
    plain = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    positional = {*numbers, *(plain.index(name) for name in names if name in plain)}
    named = {*names, *(plain[n] for n in numbers if -len(plain) <= n < len(plain))}
    return tuple(sorted(positional)), tuple(sorted(named))


def _check_declared(
    fun: Callable[..., Any],
    parameters: Sequence[inspect.Parameter],
    numbers: tuple[int, ...],
    names: tuple[str, ...],
) -> None:
    """Refuse declarations of arguments that the function does not have."""
    kinds = {p.kind for p in parameters}
    called = getattr(fun, "__name__", type(fun).__name__)
    known = {p.name for p in parameters}
    if inspect.Parameter.VAR_KEYWORD not in kinds and (extra := set(names) - known):
        raise ValueError(
            f"jit: static_argnames and donate_argnames must name parameters of {called}, which are "
            f"{', '.join(sorted(known)) or 'none'}; got {', '.join(sorted(extra))}."
            f"{at_user_line()}"
        )
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    most = len(places)
    if inspect.Parameter.VAR_POSITIONAL not in kinds and any(
        not -most <= n < most for n in numbers
    ):
        raise ValueError(
            f"jit: static_argnums and donate_argnums must lie in {-most}..{most - 1} for {called}; "
            f"got {numbers}.{at_user_line()}"
        )


def make_jaxpr(
    fun: Callable[..., Any],
    static_argnums: int | Sequence[int] | None = None,
    return_shape: bool = False,
) -> Callable[..., Any]:
    """A function that gives the jaxpr of fun for its arguments (arrays, or things with shape and
    dtype).

    >>> make_jaxpr(lambda x: x * 2)(1.0)
    { lambda ; a:f32[]. let b:f32[] = mul a 2.0:f32[] in (b,) }
    """
    statics = _tuple(static_argnums)

    def maker(*args: Any, **kwargs: Any) -> Any:
        call = FlatCall(fun, *tree.flatten((args, kwargs)))
        if statics:
            dynamic, rest, _, inner = Jitted(fun, statics, (), (), ())._split_static(args, kwargs)
            call = FlatCall(inner, *tree.flatten((dynamic, rest)))
        jaxpr, out_tree = stage_flat(call, [abstract(leaf) for leaf in call.leaves])
        if not return_shape:
            return jaxpr
        return jaxpr, tree.unflatten(out_tree, [ShapeDtypeStruct.of(a) for a in jaxpr.out_avals])

    return maker


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Shapes and dtypes of fun(*args, **kwargs), without running it.

    >>> import xcube.numpy as jnp
    >>> eval_shape(jnp.sum, ShapeDtypeStruct((2, 3), "float32"))
    ShapeDtypeStruct(shape=(), dtype=float32)
    """
    call = FlatCall(fun, *tree.flatten((args, kwargs)))
    jaxpr, out_tree = stage_flat(call, [abstract(leaf) for leaf in call.leaves])
    return tree.unflatten(out_tree, [ShapeDtypeStruct.of(aval) for aval in jaxpr.out_avals])


def typeof(x: Any) -> Aval:
    """The type of an array or number: shape, dtype and whether the dtype is weak.

    Raises TypeError for what is neither.

    >>> import xcube.numpy as jnp
    >>> typeof(jnp.ones((2, 3)))
    ShapedArray(float32[2,3])
    """
    if isinstance(x, Array):
        return x.aval
    if not is_array_like(x):
        raise TypeError(
            f"typeof: takes an array or a number; got {type(x).__name__}.{at_user_line()}"
        )
    return abstract(x)
