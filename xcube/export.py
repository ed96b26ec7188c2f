"""Jitted functions as bytes that another process, machine or device can run: `export` makes an
`Exported`, its `serialize` bytes, and `deserialize` an `Exported` again. Names are those of
`jax.export`; the format is xcube's own, and reading it executes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from xcube import __version__, dtypes, tree
from xcube.array import Array, DeviceArray
from xcube.eager import from_host
from xcube.errors import ExportError
from xcube.ir import Aval, Jaxpr, at_user_line
from xcube.lowering.device import KINDS, default_device
from xcube.lowering.export.functions import Stored, computed, pack, unpack
from xcube.lowering.export.sealing import FORMAT, OLDEST
from xcube.lowering.export.trees import (
    register_namedtuple_serialization,
    register_pytree_node_serialization,
)
from xcube.lowering.export.values import Vocabulary
from xcube.stages import ShapeDtypeStruct, Wrapped
from xcube.trace import EVAL, current_trace, evaluate
from xcube.transforms.arguments import as_leaf
from xcube.transforms.custom.custom_vjp import custom_vjp
from xcube.transforms.entry import Entry
from xcube.transforms.grad import vjp
from xcube.transforms.jit import jit
from xcube.transforms.linearize import tangent_aval
from xcube.transforms.portable import PARAMETERS, PRIMITIVES, portable
from xcube.transforms.signature import places, structure_fault, type_faults

__all__ = [
    "DisabledSafetyCheck",
    "Exported",
    "default_export_platform",
    "deserialize",
    "export",
    "maximum_supported_calling_convention_version",
    "minimum_supported_calling_convention_version",
    "register_namedtuple_serialization",
    "register_pytree_node_serialization",
]

minimum_supported_calling_convention_version = OLDEST
maximum_supported_calling_convention_version = FORMAT

_VOCABULARY = Vocabulary(PRIMITIVES, PARAMETERS, from_host)


@dataclass(frozen=True)
class DisabledSafetyCheck:
    """A check that is left out when an exported function is called."""

    _impl: str

    @classmethod
    def platform(cls) -> DisabledSafetyCheck:
        """Let the function run on platforms for which it was not exported."""
        return cls("platform")

    def __str__(self) -> str:
        return self._impl

    __repr__ = __str__


@dataclass(frozen=True, eq=False, repr=False)
class Exported:
    """A function as a closed program, which can be stored, called, and differentiated in reverse
    mode; made by `export` and `deserialize`.

    >>> import xcube.numpy as jnp
    >>> from xcube import jit
    >>> exported = export(jit(lambda x: jnp.sin(x) * 2))(jnp.zeros(3))
    >>> again = deserialize(exported.serialize())
    >>> again.in_avals
    (ShapedArray(float32[3]),)
    >>> again.call(jnp.zeros(3))
    Array([0., 0., 0.], dtype=float32)
    """

    _stored: Stored
    _source: Jaxpr | None = None  # with the rules of custom derivatives, which are not stored
    _cache: dict[str, Any] = field(default_factory=dict)

    @property
    def fun_name(self) -> str:
        """Name of the function."""
        return self._stored.name

    @property
    def in_tree(self) -> Any:
        """Structure of (positional arguments, keyword arguments)."""
        return self._stored.in_tree

    @property
    def in_avals(self) -> tuple[Aval, ...]:
        """Avals of the leaves of the arguments."""
        return self._stored.in_avals

    @property
    def out_tree(self) -> Any:
        """Structure of the result."""
        return self._stored.out_tree

    @property
    def out_avals(self) -> tuple[Aval, ...]:
        """Avals of the leaves of the result."""
        return self._stored.out_avals

    @property
    def platforms(self) -> tuple[str, ...]:
        """Kinds of devices that the function was exported for."""
        return self._stored.platforms

    @property
    def nr_devices(self) -> int:
        """How many devices the function runs on."""
        return 1

    @property
    def disabled_safety_checks(self) -> tuple[DisabledSafetyCheck, ...]:
        """The checks that calls leave out."""
        return tuple(map(DisabledSafetyCheck, self._stored.checks))

    @property
    def calling_convention_version(self) -> int:
        """Version of the format that `serialize` writes."""
        return FORMAT

    @property
    def jaxpr(self) -> Jaxpr:
        """The program, with the arrays that it captured."""
        closed, count = self._stored.jaxpr, len(self._stored.constants)
        captured = tuple(zip(closed.inputs[:count], self._stored.constants, strict=True))
        inputs = closed.inputs[count:]
        return Jaxpr(inputs, closed.equations, closed.outputs, captured, closed.name)

    def has_vjp(self) -> bool:
        """Whether `vjp` gives a function."""
        return self._stored.vjp is not None or self._source is not None

    def vjp(self) -> Exported:
        """The function of the leaves of the arguments and of a cotangent for each leaf of the
        result, which gives a tuple of cotangents of the leaves of the arguments.

        Raises ValueError if it was not stored: see `serialize`.
        """
        if not self.has_vjp():
            raise ValueError(
                f"vjp: {self.fun_name} was stored without its derivative (no VJP is available)."
                f"{at_user_line()} Use serialize(vjp_order=1) where it is exported."
            )
        if "vjp" not in self._cache:
            self._cache["vjp"] = self._backward()
        return self._cache["vjp"]

    def _backward(self) -> Exported:
        if self._source is not None:
            return _exported_vjp(self._stored, self._source)
        assert self._stored.vjp is not None
        return Exported(self._stored.vjp)

    def serialize(self, vjp_order: int = 0) -> bytearray:
        """The function as bytes, with derivatives up to an order: 1 allows grad, 2 grad of grad.

        Raises ValueError if the order is negative or not available, ExportError for arguments or
        results of a class that could not be found again.
        """
        if vjp_order < 0:
            raise ValueError(f"serialize: vjp_order must be >= 0; got {vjp_order}.{at_user_line()}")
        return pack(self._to_order(vjp_order), _VOCABULARY, __version__)

    def _to_order(self, order: int) -> Stored:
        found = None if order == 0 else self.vjp()._to_order(order - 1)
        return replace(self._stored, vjp=found)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The result, for arguments of the structure, shapes and dtypes it was exported for; works
        under jit, vmap and reverse mode, for which `has_vjp` must hold.

        Raises ValueError for other arguments, or on another platform.
        """
        arrays = self._checked(args, kwargs)
        pairs = zip(arrays, self.in_avals, strict=True)
        operands = [x for x, aval in pairs if not _is_float0(aval)]
        is_known = current_trace() is EVAL and all(type(x) is DeviceArray for x in operands)
        results = self._entry.run(operands) if is_known else self._function(*operands)
        return tree.unflatten(self.out_tree, _with_zeros(results, self.out_avals))

    def _checked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Array]:
        """The leaves of a call as arrays."""
        leaves, treedef = tree.flatten((args, kwargs))
        if treedef != self.in_tree:
            fault = structure_fault(self.in_tree, args, kwargs)
            raise ValueError(f"{self.fun_name}: {fault}{at_user_line()}")
        arrays = [
            as_leaf("export", self.fun_name, leaf, lambda n=n: places(args, kwargs)[n])
            for n, leaf in enumerate(leaves)
        ]
        if faults := type_faults(self.in_avals, arrays, args, kwargs):
            raise ValueError(
                f"{self.fun_name}: the arguments must have the types for which it was exported; "
                f"{'; '.join(faults)}.{at_user_line()} Convert them."
            )
        self._check_platform(arrays)
        return arrays

    def _check_platform(self, arrays: Sequence[Array]) -> None:
        home = default_device()
        places = [x._device for x in arrays if type(x) is DeviceArray]
        kind = next((place for place in places if place is not home), home).kind
        if kind not in self.platforms and "platform" not in self._stored.checks:
            raise ValueError(
                f"{self.fun_name}: it was exported for platforms {self.platforms} but it is used "
                f"on {kind!r}.{at_user_line()} Export it with platforms=({kind!r}, ...)."
            )

    @cached_property
    def _entry(self) -> Entry:
        """What runs the program, from flat arrays to flat arrays, float0 apart."""
        stored = self._stored
        flat = tree.structure([0] * len(stored.jaxpr.outputs))
        donated = (False,) * len(stored.jaxpr.inputs)
        return Entry(stored.name, stored.jaxpr, list(stored.constants), None, flat, donated)

    @cached_property
    def _function(self) -> Any:
        """The same with the stored derivative as its rule."""
        entry = self._entry
        function = custom_vjp(lambda *xs: entry.call(list(xs)))
        function.defvjp(lambda *xs: (function(*xs), xs), self._pull_back)
        return function

    def _pull_back(self, xs: Sequence[Array], cts: Sequence[Any]) -> tuple[Any, ...]:
        """Cotangents of flat arguments from those of flat results."""
        backward, count = self.vjp(), len(self.in_avals)
        primals = _with_zeros(xs, self.in_avals)
        whole = zip(_with_zeros(cts, self.out_avals), backward.in_avals[count:], strict=True)
        given = [_float0(aval) if _is_float0(aval) else ct for ct, aval in whole]
        grads = zip(backward.call(*primals, *given), self.in_avals, strict=True)
        return tuple([grad for grad, aval in grads if not _is_float0(aval)])

    def __repr__(self) -> str:
        return f"Exported(fun_name={self.fun_name}, ...)"


def _is_float0(aval: Aval) -> bool:
    return aval.dtype == dtypes.float0


def _with_zeros(values: Sequence[Any], avals: Sequence[Aval]) -> list[Any]:
    """One value for each aval: those that a program computes, and zeros of float0."""
    computed = iter(values)
    return [_float0(aval) if _is_float0(aval) else next(computed) for aval in avals]


def _float0(aval: Aval) -> np.ndarray:
    return np.zeros(aval.shape, dtypes.float0)


def export(
    fun_jit: Any,
    *,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[DisabledSafetyCheck] = (),
) -> Callable[..., Exported]:
    """A function that exports a jitted function for arguments, which may be `ShapeDtypeStruct`s.

    `platforms`: kinds of devices that it may run on; by default that of the default device.
    Programs are the same for all. Derivatives keep custom rules; what they compute is stored, not
    their Python. Raises ValueError unless fun_jit is jitted and the platforms are known; the
    function raises ExportError if something in it calls Python.

    >>> import numpy as np
    >>> from xcube import jit
    >>> exported = export(jit(lambda x, y: x @ y), platforms=("cpu", "cuda"))(
    ...     np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)
    ... )
    >>> exported.platforms, exported.out_avals
    (('cpu', 'cuda'), (ShapedArray(float32[2,4]),))
    """
    if not isinstance(fun_jit, Wrapped):
        raise ValueError(
            f"export: the function must be the result of jit; got {fun_jit!r}.{at_user_line()}"
        )
    kinds = (default_export_platform(),) if platforms is None else tuple(platforms)
    if not kinds or not set(kinds) <= set(KINDS):
        raise ValueError(
            f"export: platforms must be some of {', '.join(KINDS)}; got {kinds}.{at_user_line()}"
        )
    checks = tuple(map(str, disabled_checks))

    def exporter(*args: Any, **kwargs: Any) -> Exported:
        return _exported(fun_jit.trace(*args, **kwargs)._entry, kinds, checks)

    return exporter


def deserialize(blob: bytes | bytearray | memoryview) -> Exported:
    """The exported function in bytes that `serialize` made.

    Raises ExportError, a ValueError, for bytes that are something else, of a newer version, cut or
    altered, and for functions that this process cannot run. Nothing in the bytes is executed.
    """
    return Exported(unpack(blob, _VOCABULARY))


def default_export_platform() -> str:
    """Kind of the default device.

    >>> default_export_platform()
    'cpu'
    """
    return default_device().kind


def _exported(entry: Entry, platforms: tuple[str, ...], checks: tuple[str, ...]) -> Exported:
    if entry.is_open:
        raise ExportError(
            f"export: {entry.name} must not close over traced values.{at_user_line()} Export it "
            f"outside of the function that is being traced."
        )
    stored = Stored(
        name=entry.name,
        in_tree=entry.in_tree,
        in_avals=entry.in_avals,
        out_tree=entry.out_tree,
        out_avals=entry.jaxpr.out_avals,
        platforms=platforms,
        checks=checks,
        jaxpr=portable(entry.jaxpr),
        constants=tuple(entry.constants),
    )
    return Exported(stored, entry.jaxpr)


def _exported_vjp(stored: Stored, source: Jaxpr) -> Exported:
    """The derivative of a function, whose source has its inputs in order, constants first."""
    cts = tuple(map(tangent_aval, stored.out_avals))
    in_avals, out_avals = (*stored.in_avals, *cts), tuple(map(tangent_aval, stored.in_avals))
    count = len(computed(stored.in_avals))
    kinds = list(map(tangent_aval, source.out_avals))

    def backward(*operands: Any) -> list[Any]:
        primals, cotangents = operands[:count], operands[count:]
        _, pull = vjp(lambda *xs: evaluate(source, [*stored.constants, *xs]), *primals)
        return [ct for ct in pull(_with_zeros(cotangents, kinds)) if ct.dtype != dtypes.float0]

    backward.__name__ = f"{stored.name}_vjp"
    shapes = [ShapeDtypeStruct(x.shape, x.dtype, x.weak_type) for x in computed(in_avals)]
    found = _exported(jit(backward).trace(*shapes)._entry, stored.platforms, stored.checks)
    whole = replace(
        found._stored,
        in_tree=tree.structure(((0,) * len(in_avals), {})),
        in_avals=in_avals,
        out_tree=tree.structure((0,) * len(out_avals)),
        out_avals=out_avals,
    )
    return Exported(whole, found._source)
