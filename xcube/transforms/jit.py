"""jit: trace once per signature, compile, call. Inside another trace a jitted function is one
equation that holds its jaxpr; lowering inlines it. The one door from transforms to lowering."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xcube import config, tree
from xcube.array import Array, DeviceArray
from xcube.ir import Aval, Jaxpr, Linear, Primitive, at_user_line
from xcube.lowering import Executable, compile
from xcube.lowering.device import default_device
from xcube.primitives.lowered import Inline
from xcube.trace import EVAL, Tracer, bind, current_trace, set_current
from xcube.transforms.arguments import (
    FlatCall,
    abstract,
    as_leaf,
    check_callable,
    stage_flat,
)
from xcube.transforms.linearize import linearize_jaxpr
from xcube.transforms.transpose import transpose_jaxpr
from xcube.transforms.vmap import batch_jaxpr

# the primitive --------------------------------------------------------------------------------


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Jaxpr, name: str) -> Any:
    nonzero = tuple(tangent is not None for tangent in tangents)
    known, linear, out_nonzero, forwarded = linearize_jaxpr(jaxpr, nonzero)
    results = bind(jit_p, *primals, jaxpr=known, name=name)
    outs, fresh = results[: len(jaxpr.outputs)], iter(results[len(jaxpr.outputs) :])
    residuals = [primals[p] if p >= 0 else next(fresh) for p in forwarded]
    given = [tangent for tangent in tangents if tangent is not None]
    out_tangents = iter(bind(jit_p, *residuals, *given, jaxpr=linear, name=name))
    return outs, [next(out_tangents) if flag else None for flag in out_nonzero]


def _transpose(cts: Sequence[Any], *args: Any, jaxpr: Jaxpr, name: str) -> list[Any]:
    linear = tuple(isinstance(arg, Linear) for arg in args)
    nonzero = tuple(ct is not None for ct in cts)
    transposed, flags = transpose_jaxpr(jaxpr, linear, nonzero)
    known = [arg for arg, flag in zip(args, linear, strict=True) if not flag]
    given = [ct for ct in cts if ct is not None]
    results = iter(bind(jit_p, *known, *given, jaxpr=transposed, name=name))
    found = iter([next(results) if flag else None for flag in flags])
    return [next(found) if flag else None for flag in linear]


def _batch(
    size: int, args: Sequence[Any], batched: Sequence[bool], *, jaxpr: Jaxpr, name: str
) -> tuple[list[Any], Sequence[bool]]:
    batched_jaxpr, flags = batch_jaxpr(jaxpr, size, tuple(batched))
    return bind(jit_p, *args, jaxpr=batched_jaxpr, name=name), flags


jit_p = Primitive(
    "jit",
    abstract=lambda *avals, jaxpr, name: jaxpr.out_avals,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    lower=Inline(),
    multiple=True,
)


# the function ---------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Entry:
    """One signature of a jitted function: its closed jaxpr, the constants that it captured, the
    structure of its result, and, once it was called, its executable. It is open if it captured
    tracers: then it can only be bound, and is of no use to later calls."""

    jaxpr: Jaxpr
    constants: list[Any]
    out_tree: Any
    donated: tuple[bool, ...]
    is_open: bool
    device: Any = None
    executable: Executable | None = None
    constant_buffers: list[Any] | None = None


class Jitted:
    """A function that is traced once per signature and compiled; made by `jit`."""

    def __init__(
        self,
        fun: Callable[..., Any],
        static_argnums: tuple[int, ...],
        static_argnames: tuple[str, ...],
        donate_argnums: tuple[int, ...],
        donate_argnames: tuple[str, ...],
    ) -> None:
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._name = getattr(fun, "__name__", type(fun).__name__)
        self._static_argnums, self._static_argnames = static_argnums, static_argnames
        self._donate_argnums, self._donate_argnames = donate_argnums, donate_argnames
        options = (static_argnums, static_argnames, donate_argnums, donate_argnames)
        self._cache = _cache_of(fun, options)
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if config.current.disable_jit:
            return self._fun(*args, **kwargs)
        leaves, entry = self._entry(args, kwargs)
        if entry.is_open or current_trace() is not EVAL:
            return self._bind(entry, leaves)
        for leaf in leaves:
            if type(leaf) is not DeviceArray:
                return self._bind(entry, leaves)
        return self._run(entry, leaves)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<jitted {self._name}>"

    # JAX's stages and cache controls

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of the result, without running."""
        _, entry = self._entry(args, kwargs, abstract_only=True)
        shapes = [ShapeDtypeStruct.of(aval) for aval in entry.jaxpr.out_avals]
        return tree.unflatten(entry.out_tree, shapes)

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
        settings = config.current
        modes = (settings.enable_x64, settings.numpy_dtype_promotion, settings.device)
        key = (treedef, avals, static_key, modes)
        if (entry := self._cache.get(key)) is None:
            entry = self._trace(key, FlatCall(fun, leaves, treedef), avals, self._donated(*given))
        return leaves, entry

    def _leaf(self, leaf: Any, number: int, args: Any, kwargs: Any) -> Array:
        call = FlatCall(self._fun, *tree.flatten((args, kwargs)))
        return as_leaf("jit", self._name, leaf, lambda: call.describe(number))

    def _trace(
        self, key: Any, call: FlatCall, avals: tuple[Aval, ...], donated: tuple[bool, ...]
    ) -> Entry:
        jaxpr, out_tree = stage_flat(call, avals)
        constants = jaxpr.consts
        is_open = any(isinstance(value, Tracer) for value in constants)
        flags = (False,) * len(constants) + donated
        entry = Entry(jaxpr.closed(), constants, out_tree, flags, is_open)
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

    def _bind(self, entry: Entry, leaves: list[Any]) -> Any:
        outs = bind(jit_p, *entry.constants, *leaves, jaxpr=entry.jaxpr, name=self._name)
        return tree.unflatten(entry.out_tree, outs)

    def _run(self, entry: Entry, leaves: list[DeviceArray]) -> Any:
        if entry.executable is None:
            self._compile(entry)
        buffers = [*entry.constant_buffers, *[leaf.buffer for leaf in leaves]]  # type: ignore[misc]
        if True in entry.donated:
            buffers = self._donate(entry, leaves, buffers)
        results = entry.executable(buffers)  # type: ignore[misc]
        device = entry.device
        outs = [
            DeviceArray(aval, buffer, device)
            for aval, buffer in zip(entry.jaxpr.out_avals, results, strict=True)
        ]
        return tree.unflatten(entry.out_tree, outs)

    def _compile(self, entry: Entry) -> None:
        with self._lock, set_current(EVAL):
            if entry.executable is not None:
                return
            entry.device = default_device()
            entry.constant_buffers = [value.buffer for value in entry.constants]
            entry.executable = compile(entry.jaxpr, entry.device, entry.donated)

    def _donate(self, entry: Entry, leaves: list[DeviceArray], buffers: list[Any]) -> list[Any]:
        """Take the donated buffers from their arrays. A buffer that somebody else holds (another
        array, a NumPy view) is copied, so that nobody sees it change."""
        first = len(entry.constants)
        given = [leaf for leaf, flag in zip(leaves, entry.donated[first:], strict=True) if flag]
        if len({id(leaf) for leaf in given}) < len(given):
            raise ValueError(
                f"{self._name}: one array was passed in two donated arguments.{at_user_line()}"
            )
        for number, leaf in enumerate(leaves):
            if not entry.donated[first + number]:
                continue
            leaf._buffer = None
            if _holders(buffers, first + number) > _ALONE:
                buffers[first + number] = entry.device.from_host(_bytes(buffers[first + number]))
        return buffers


def _holders(values: list[Any], position: int) -> int:
    return sys.getrefcount(values[position])


_ALONE = _holders([object()], 0)  # of a value that only its list holds


def _bytes(buffer: Any) -> np.ndarray:
    return buffer.numpy((buffer.nbytes,), np.dtype(np.uint8))


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


class ShapeDtypeStruct:
    """Shape and dtype of an array that need not exist."""

    __slots__ = ("dtype", "shape", "weak_type")

    def __init__(self, shape: Sequence[int], dtype: Any, weak_type: bool = False) -> None:
        aval = Aval(tuple(shape), dtype, weak_type)
        self.shape, self.dtype, self.weak_type = aval.shape, aval.dtype, aval.weak_type

    @classmethod
    def of(cls, aval: Aval) -> ShapeDtypeStruct:
        return cls(aval.shape, aval.dtype, aval.weak_type)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return Aval(self.shape, self.dtype).size

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype.name}{weak})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeDtypeStruct) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> Any:
        return self.shape, self.dtype, self.weak_type


def jit(
    fun: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    inline: bool = False,
    keep_unused: bool = False,
) -> Any:
    """Compile a function: it is traced once per signature (structure, shapes, dtypes of the
    arguments and values of the static ones) and runs as one program.

    `donate_argnums`: arguments whose buffers the results may take over; the arrays passed are
    deleted. `inline` and `keep_unused` are accepted for compatibility: nested calls are always
    inlined by lowering. Raises ValueError for static arguments that cannot be hashed.

    >>> import xcube.numpy as jnp
    >>> jit(lambda x: x + 1)(jnp.arange(3))
    Array([1, 2, 3], dtype=int32)
    """
    if fun is not None:
        check_callable("jit", fun)
    if fun is None:
        return functools.partial(
            jit,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
        )
    static = _by_both(fun, _tuple(static_argnums), _tuple(static_argnames))
    donated = _by_both(fun, _tuple(donate_argnums), _tuple(donate_argnames))
    return Jitted(fun, *static, *donated)


def _tuple(value: Any) -> tuple[Any, ...]:
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
    fun: Callable[..., Any], static_argnums: int | Sequence[int] = (), return_shape: bool = False
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
