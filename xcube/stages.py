"""The stages between a jitted function and its result, for looking at and for compiling ahead of
time: `jit(f).trace(*args)` gives a `Traced`, its `lower()` a `Lowered`, and its `compile()` a
`Compiled`, which runs. Names and forms are those of `jax.stages`; texts are xcube's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from xcube import tree
from xcube.array import Array, DeviceArray
from xcube.eager import transferred
from xcube.errors import DeviceError, TraceError
from xcube.ir import Aval, Jaxpr, at_user_line
from xcube.lowering import Executable, lower
from xcube.lowering.cost import program_cost
from xcube.lowering.cube.text import text as kernel_text
from xcube.lowering.device import default_device
from xcube.lowering.device.base import Device
from xcube.lowering.program import Program
from xcube.primitives.cost import jaxpr_cost
from xcube.trace import EVAL, Tracer, set_current
from xcube.transforms.arguments import as_leaf
from xcube.transforms.entry import Entry
from xcube.transforms.signature import places, structure_fault, type_faults


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


@dataclass(frozen=True)
class ArgInfo:
    """One leaf of the arguments."""

    _aval: Aval
    donated: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return self._aval.shape

    @property
    def dtype(self) -> Any:
        """Dtype of the elements."""
        return self._aval.dtype


@dataclass(frozen=True)
class CompiledMemoryStats:
    """Bytes that a compiled program uses on its device. Outputs in the memory of a donated argument
    are among both the outputs and the alias. Machine code is shared between programs and counted
    for none."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    generated_code_size_in_bytes: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class _Stage:
    """What all stages know of the signature."""

    _entry: Entry

    @property
    def fun_name(self) -> str:
        """Name of the function."""
        return self._entry.name

    @property
    def in_tree(self) -> Any:
        """Structure of (positional arguments, keyword arguments), static ones left out."""
        return self._entry.in_tree

    @property
    def out_tree(self) -> Any:
        """Structure of the result."""
        return self._entry.out_tree

    @property
    def args_info(self) -> Any:
        """(positional arguments, keyword arguments) with an `ArgInfo` in place of each leaf."""
        pairs = zip(self._entry.in_avals, self._entry.in_donated, strict=True)
        return tree.unflatten(self.in_tree, [ArgInfo(aval, flag) for aval, flag in pairs])

    @property
    def in_avals(self) -> Any:
        """(positional arguments, keyword arguments) with the aval in place of each leaf."""
        return tree.unflatten(self.in_tree, self._entry.in_avals)

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """Positions of donated leaves among all leaves."""
        return tuple([n for n, flag in enumerate(self._entry.in_donated) if flag])

    @property
    def out_info(self) -> Any:
        """The result with a `ShapeDtypeStruct` in place of each leaf."""
        shapes = [ShapeDtypeStruct.of(aval) for aval in self._entry.jaxpr.out_avals]
        return tree.unflatten(self.out_tree, shapes)

    def __repr__(self) -> str:
        ins, outs = ", ".join(map(str, self._entry.in_avals)), self._entry.jaxpr.out_avals
        return f"<{type(self).__name__} {self.fun_name}({ins}) -> {', '.join(map(str, outs))}>"


class Traced(_Stage):
    """A function traced for one signature.

    >>> from xcube import jit
    >>> traced = jit(lambda x: x * 2).trace(ShapeDtypeStruct((3,), "float32"))
    >>> traced.jaxpr
    { lambda ; a:f32[3]. let b:f32[3] = mul a 2.0:f32[] in (b,) }
    >>> traced.out_info
    ShapeDtypeStruct(shape=(3,), dtype=float32)
    """

    @cached_property
    def jaxpr(self) -> Jaxpr:
        """The program, with the constants that the function captured."""
        entry, count = self._entry, len(self._entry.constants)
        closed = entry.jaxpr
        captured = tuple(zip(closed.inputs[:count], entry.constants, strict=True))
        inputs = closed.inputs[count:]
        return Jaxpr(inputs, closed.equations, closed.outputs, captured, closed.name)

    @property
    def out_avals(self) -> Any:
        """The result with the aval in place of each leaf."""
        return tree.unflatten(self.out_tree, self._entry.jaxpr.out_avals)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result, also traced. Raises TypeError if the arguments have another signature."""
        leaves, treedef = tree.flatten((args, kwargs))
        return self._entry.call(_checked(self._entry, leaves, treedef, args, kwargs))

    def lower(self) -> Lowered:
        """The program for the default device.

        Raises TraceError if the function captured traced values, which no program can hold.
        """
        if self._entry.is_open:
            found = next(x for x in self._entry.constants if isinstance(x, Tracer))
            raise TraceError(
                f"lower: {self.fun_name} must not close over traced values; it closes over "
                f"{found.aval}.{at_user_line()} Pass it as an argument."
            )
        return Lowered(self._entry, default_device())


DIALECTS = ("jaxpr", "program", "cube")


@dataclass(frozen=True, eq=False, repr=False)
class Lowered(_Stage):
    """A function lowered to a program for a device: its launches over planned memory.

    >>> from xcube import jit
    >>> lowered = jit(lambda x: x * 2).lower(ShapeDtypeStruct((3,), "float32"))
    >>> lowered.cost_analysis()
    {'flops': 3.0, 'transcendentals': 0.0, 'bytes accessed': 24.0}
    """

    _device: Device

    @cached_property
    def _program(self) -> Program:
        with set_current(EVAL):
            return lower(self._entry.jaxpr, self._device, self._entry.donated)

    def as_text(self, dialect: str | None = None) -> str:
        """The program as text: "jaxpr" (after simplification), "program" (launches and memory), or
        "cube" (its kernels); by default the first two.

        Raises ValueError for another dialect.
        """
        if dialect is None:
            return f"{self.as_text('jaxpr')}\n\n{self.as_text('program')}"
        return str(self.compiler_ir(dialect))

    def compiler_ir(self, dialect: str | None = None) -> Any:
        """The program as an object: see `as_text`; by default "program"."""
        if dialect not in (None, *DIALECTS):
            raise ValueError(
                f"as_text: the dialect must be one of {', '.join(DIALECTS)} or None; got "
                f"{dialect!r} (unknown dialect).{at_user_line()}"
            )
        if dialect == "jaxpr":
            return self._program.jaxpr
        if dialect == "cube":
            return "\n\n".join(map(kernel_text, self._program.kernels))
        return self._program

    def cost_analysis(self) -> dict[str, float]:
        """The traced program's "flops", "transcendentals" and "bytes accessed", equation by
        equation, as counted by `xcube.primitives.cost`."""
        return jaxpr_cost(self._entry.jaxpr).analysis()

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> Compiled:
        """The program compiled for its device; calls of the jitted function find it there too.

        Raises DeviceError for compiler options, of which there are none.
        """
        check_compiler_options(compiler_options)
        self._entry.link(self._device)
        return Compiled(self._entry, self._device)


def check_compiler_options(options: Mapping[str, Any] | None) -> None:
    """Refuse options of a compiler that is not here."""
    if options:
        raise DeviceError(
            f"compiler_options: xcube's compiler has none; got {', '.join(map(repr, options))} (no "
            f"such compile option).{at_user_line()} Leave them out."
        )


class Compiled(Lowered):
    """A function compiled for one signature and one device: a call runs it, and never traces.

    >>> import xcube.numpy as jnp
    >>> from xcube import jit
    >>> compiled = jit(lambda x: x * 2).lower(jnp.ones(3)).compile()
    >>> compiled(jnp.arange(3.0))
    Array([0., 2., 4.], dtype=float32)
    >>> compiled.memory_analysis().output_size_in_bytes
    12
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result. Raises TypeError if the arguments have another structure, or another shape or
        dtype, or are traced; DeviceError if one is on a device that is neither the program's nor
        the default one."""
        entry, home = self._entry, self._device
        leaves, treedef = tree.flatten((args, kwargs))
        for leaf in leaves:
            if type(leaf) is not DeviceArray:
                _refuse_traced(entry.name, leaf)
        arrays = _checked(entry, leaves, treedef, args, kwargs)
        for number, x in enumerate(arrays):
            if x._device is not home:
                arrays[number] = self._moved(x)
        return entry.run(arrays, home)

    def _moved(self, leaf: DeviceArray) -> DeviceArray:
        if leaf._device is not default_device():
            raise DeviceError(
                f"{self.fun_name}: its arguments must be on {self._device.name}, for which it was "
                f"compiled; got {leaf.aval} on {leaf._device.name}.{at_user_line()} Move it with "
                f"device_put."
            )
        return transferred(leaf, self._device)

    call = __call__

    def as_text(self, dialect: str | None = None) -> str:
        """The program and the text of its kernels as the device compiles them; or a dialect of
        `Lowered.as_text`."""
        if dialect is not None:
            return super().as_text(dialect)
        kernels = [self._device.emit(kernel) for kernel in self._program.kernels]
        return "\n\n".join([str(self._program), *kernels])

    def cost_analysis(self) -> dict[str, float]:
        """The "flops", "transcendentals" and "bytes accessed" of the program after simplification
        and fusion: bytes are those that launches read and write."""
        with set_current(EVAL):
            facts = self._device.facts()
            return program_cost(self._entry.jaxpr, self._program, facts).analysis()

    def memory_analysis(self) -> CompiledMemoryStats:
        """Bytes of arguments (captured constants included), outputs and temporaries."""
        program = self._program
        return CompiledMemoryStats(
            argument_size_in_bytes=sum(aval.nbytes for aval in self._entry.jaxpr.in_avals),
            output_size_in_bytes=sum(program.output_nbytes),
            alias_size_in_bytes=sum(program.output_nbytes[n] for n in program.donated),
            temp_size_in_bytes=program.arena_nbytes,
        )

    def runtime_executable(self) -> Executable:
        """What the device runs: from buffers of constants and arguments to buffers of results."""
        return self._entry.link(self._device).executable


@runtime_checkable
class Wrapped(Protocol):
    """A function that can be traced, lowered and compiled ahead of time: what `jit` gives."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        ...

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Trace it for the signature of these arguments."""
        ...

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace and lower it."""
        ...


# checks ---------------------------------------------------------------------------------------


def _refuse_traced(name: str, leaf: Any) -> None:
    if isinstance(leaf, Tracer):
        raise TypeError(
            f"{name}: a compiled function cannot be transformed or traced (cannot apply "
            f"transformations to a function compiled for a particular signature); got a traced "
            f"{leaf.aval}.{at_user_line()} Use the jitted function."
        )


def _checked(
    entry: Entry, leaves: list[Any], treedef: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any]:
    """The leaves of a call as arrays. Raises TypeError if its signature is not the entry's."""
    if treedef != entry.in_tree:
        fault = structure_fault(entry.in_tree, args, kwargs)
        raise TypeError(f"{entry.name}: {fault}{at_user_line()}")
    arrays = [
        leaf if isinstance(leaf, Array) else _leaf(entry.name, leaf, number, args, kwargs)
        for number, leaf in enumerate(leaves)
    ]
    if faults := type_faults(entry.in_avals, arrays, args, kwargs):
        raise TypeError(
            f"{entry.name}: the arguments must have the types for which it was compiled; "
            f"{'; '.join(faults)}.{at_user_line()} Convert them, or call the jitted function."
        )
    return arrays


def _leaf(name: str, leaf: Any, number: int, args: tuple[Any, ...], kwargs: Any) -> Array:
    return as_leaf("jit", name, leaf, lambda: places(args, kwargs)[number])
