"""What the parameters of kernels may be: arrays, tensors, scalars, comptime values and bundles of
these; how annotations say so, and what stands for a parameter while its kernel is expanded."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from xcube.cube.places import Meta
from xcube.cube.state import current
from xcube.cube.values import DTYPES, DType, Symbol, Value, dtype_of, resolved
from xcube.cube.views import Memory, View
from xcube.errors import DtypeError, KernelError, ShapeError
from xcube.ir import Aval, at_user_line
from xcube.lowering.cube import ir

WIDEST = 16  # bytes of a line whose lanes nobody names


@dataclass(frozen=True)
class Lines:
    """`cube.lines(n)`: elements are read and written in lines of n; of as many as divide the last
    axis and fit 16 bytes where n is not given."""

    lanes: int | None = None


def lines(lanes: int | None = None) -> Lines:
    """Lines of `lanes` elements, in the annotation of an array.

    Raises ShapeError if there are not 1 to 64 lanes.
    """
    if lanes is not None and not 1 <= lanes <= 64:
        raise ShapeError(f"lines: there must be 1 to 64 lanes; got {lanes}.{at_user_line()}")
    return Lines(lanes)


@dataclass(frozen=True)
class ArrayKind:
    """An array as a parameter: `cube.Array` is flat, `cube.Tensor` has its axes;
    `cube.Tensor[cube.f32, 2]` says dtype and rank, `cube.Array[cube.f32, cube.lines(4)]` lines."""

    flat: bool
    dtype: DType | None = None
    rank: int | None = None
    lines: Lines | None = None

    def __getitem__(self, items: Any) -> ArrayKind:
        found = self
        for item in items if isinstance(items, tuple) else (items,):
            if isinstance(item, Lines):
                found = dataclasses.replace(found, lines=item)
            elif isinstance(item, int) and not self.flat:
                found = dataclasses.replace(found, rank=item)
            else:
                found = dataclasses.replace(found, dtype=dtype_of(item))
        return found

    def __repr__(self) -> str:
        return "cube.Array" if self.flat else "cube.Tensor"


@dataclass(frozen=True)
class Comptime:
    """`cube.comptime`: annotates parameters whose value is a part of the kernel; called with a
    value it gives that back, and makes sure that it is known.

    >>> from xcube import cube
    >>> cube.comptime(3)
    3
    """

    def __getitem__(self, item: Any) -> Comptime:
        return self

    def __call__(self, value: Any) -> Any:
        """The value as a Python number.

        Raises KernelError if it is known at run time only.
        """
        found = resolved(value) if isinstance(value, Symbol) else value
        if not isinstance(found, Value):
            return found
        return int(found) if not found.dtype.is_float else float(found)

    def __repr__(self) -> str:
        return "cube.comptime"


ARRAY, TENSOR, COMPTIME = ArrayKind(True), ArrayKind(False), Comptime()

_PYTHON = {int: DTYPES["i32"], float: DTYPES["f32"], bool: DTYPES["bool"]}


@dataclass(frozen=True)
class Known:
    """A comptime value; equal to equal ones of its type only."""

    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Known) or type(self.value) is not type(other.value):
            return False
        return bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True)
class Scalar:
    """A Python number of a dtype, as the value of a run-time scalar."""

    value: bool | int | float
    dtype: DType

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)


# annotations ----------------------------------------------------------------------------------


def kinds(function: types.FunctionType) -> dict[str, Any]:
    """What each parameter is annotated as; None where it is not.

    Raises KernelError if an annotation is none of the language.
    """
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        found[name] = _kind(function, name, parameter.annotation)
    return found


def _kind(function: types.FunctionType, name: str, annotation: Any) -> Any:
    if isinstance(annotation, str):
        annotation = _evaluated(function, name, annotation)
    if annotation is inspect.Parameter.empty or annotation is Any:
        return None
    if isinstance(annotation, ArrayKind | Comptime | DType):
        return annotation
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return annotation
    if annotation in _PYTHON:
        return _PYTHON[annotation]
    raise KernelError(
        f"{function.__name__}: {name} must be annotated as cube.Array, cube.Tensor, a dtype like "
        f"cube.f32, cube.comptime, a dataclass of these, or not at all; got {annotation!r}."
        f"{_at(function)} Take the annotation away, or use one of these."
    )


def _evaluated(function: types.FunctionType, name: str, text: str) -> Any:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    near = dict(_filled(cells))
    try:
        return eval(text, function.__globals__, near)
    except Exception as error:
        raise KernelError(
            f"{function.__name__}: the annotation of {name} must be known where the function is "
            f"decorated; got {text!r}, and {type(error).__name__}: {error}.{_at(function)} Import "
            f"what it names."
        ) from error


def _filled(cells: Any) -> Iterator[tuple[str, Any]]:
    for name, cell in cells:
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue


def _at(function: types.FunctionType) -> str:
    code = function.__code__
    return f" At {code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}."


def kind_of(annotations: Mapping[str, Any], path: str) -> Any:
    """The annotation of a parameter, or of a field of a bundle: "p", "p.weight"."""
    name, *fields = path.split(".")
    found = annotations.get(name)
    for field in fields:
        found = _field_kind(found, field)
    return found


def _field_kind(bundle: Any, name: str) -> Any:
    if not (isinstance(bundle, type) and dataclasses.is_dataclass(bundle)):
        return None
    annotation = inspect.get_annotations(bundle).get(name)
    if isinstance(annotation, str):
        module = inspect.getmodule(bundle)
        annotation = eval(annotation, vars(module) if module else {}, dict(vars(bundle)))
    is_bundle = isinstance(annotation, type) and dataclasses.is_dataclass(annotation)
    known = is_bundle or isinstance(annotation, ArrayKind | Comptime | DType)
    return annotation if known else _PYTHON.get(annotation)


def word(kind: Any) -> str:
    """What a launch does with a value of a kind: "array", "scalar", "comptime", or "" for what it
    turns out to be."""
    table = {ArrayKind: "array", DType: "scalar", Comptime: "comptime"}
    return table.get(type(kind), "")


# values of a call -----------------------------------------------------------------------------


def flattened(name: str, kind: Any, value: Any, annotations: Mapping[str, Any]) -> Iterator[Any]:
    """Pairs (path, value) of a parameter: of the fields of a bundle, or of itself."""
    is_bundle = dataclasses.is_dataclass(value) and not isinstance(value, type)
    if isinstance(kind, type) and not is_bundle and hasattr(kind, "of"):
        value, is_bundle = kind.of(value), True
    if word(kind) == "comptime" or not is_bundle or isinstance(value, Scalar):
        yield name, _prepared(name, kind, value)
        return
    yield name, Known(type(value))
    for field in dataclasses.fields(value):
        path = f"{name}.{field.name}"
        part = getattr(value, field.name)
        yield from flattened(
            path, kind_of(annotations, path) or _own(value, field), part, annotations
        )


def _own(bundle: Any, field: dataclasses.Field[Any]) -> Any:
    """The kind of a field of a bundle whose parameter is not annotated."""
    return _field_kind(type(bundle), field.name)


def _prepared(name: str, kind: Any, value: Any) -> Any:
    """The value as a launch takes it."""
    is_number = isinstance(value, bool | int | float)
    if word(kind) == "comptime" or (kind is None and not is_number and not _has_dtype(value)):
        return Known(_hashable(name, value))
    if isinstance(kind, DType) and is_number:
        return _scalar(name, kind, value)
    if isinstance(kind, DType) and not _has_dtype(value) and not isinstance(value, Scalar):
        raise TypeError(
            f"cube: {name} must be a number, for it is {kind}; got {value!r}.{at_user_line()} Pass "
            f"a number or an array without axes."
        )
    if kind is None and is_number:
        return Scalar(value, _PYTHON[type(value)])
    return value


def _has_dtype(value: Any) -> bool:
    return hasattr(value, "dtype") or hasattr(value, "__jax_array__")


def _hashable(name: str, value: Any) -> Any:
    if hasattr(value, "aval"):
        raise KernelError(
            f"cube: a comptime value must be known when the kernel is expanded; got an array of "
            f"{value.aval} for {name}.{at_user_line()} Pass a Python number; inside jit, make the "
            f"argument that it comes from static: static_argnums."
        )
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(value, Hashable):
        try:
            hash(value)
            return value
        except TypeError:
            pass_on = type(value).__name__
    else:
        pass_on = type(value).__name__
    raise KernelError(
        f"cube: a comptime value must be hashable, for it is a part of the kernel's key; got "
        f"{pass_on} for {name}.{at_user_line()} Pass a tuple, or a frozen dataclass."
    )


def _scalar(name: str, kind: DType, value: bool | int | float) -> Scalar:
    whole = kind.name in (*ir.INTEGERS, "index")
    if whole and (isinstance(value, float) or not kind.min <= value <= kind.max):
        raise DtypeError(
            f"cube: {name} must be a whole number in {kind.min}..{kind.max}, for it is {kind}; got "
            f"{value!r}.{at_user_line()} Annotate another dtype, or pass another number."
        )
    return Scalar(value, kind)


# what stands for parameters -------------------------------------------------------------------


@dataclass(frozen=True)
class ArraySpec:
    """An array as a kernel is expanded for it. `access`: "out" if nothing was written to it."""

    path: str
    dtype: str
    rank: int
    flat: bool
    lanes: int
    access: str


@dataclass(frozen=True)
class ScalarSpec:
    """A run-time scalar."""

    path: str
    dtype: str


@dataclass(frozen=True)
class KnownSpec:
    """A comptime value."""

    path: str
    value: Known


Spec = ArraySpec | ScalarSpec | KnownSpec


def spec(kernel: str, kind: Any, argument: Any) -> Spec:
    """What a kernel is expanded for, of an argument of a launch (`calls.Argument`).

    Raises DtypeError or ShapeError if it is not what the parameter is annotated as.
    """
    if isinstance(argument.value, Known):
        return KnownSpec(argument.name, argument.value)
    if argument.aval is None:
        return ScalarSpec(argument.name, argument.value.dtype.name)
    if argument.is_scalar or isinstance(kind, DType):
        return _scalar_spec(kernel, kind, argument)
    return _array_spec(kernel, kind or TENSOR, argument)


def _scalar_spec(kernel: str, kind: Any, argument: Any) -> ScalarSpec:
    dtype = dtype_of(argument.aval.dtype)
    if argument.aval.shape or (kind is not None and kind != dtype):
        wanted = f"a number of {kind or dtype}"
        _refuse(DtypeError, kernel, argument, wanted, "Cast it: x.astype(...).")
    return ScalarSpec(argument.name, dtype.name)


def _array_spec(kernel: str, kind: ArrayKind, argument: Any) -> ArraySpec:
    aval: Aval = argument.aval
    dtype = dtype_of(aval.dtype)
    if kind.dtype is not None and kind.dtype != dtype:
        way = f"Cast it: x.astype({kind.dtype.numpy.name!r})."
        _refuse(DtypeError, kernel, argument, f"an array of {kind.dtype}", way)
    if kind.rank is not None and kind.rank != aval.ndim:
        way = "Reshape it, or annotate another rank."
        _refuse(ShapeError, kernel, argument, f"an array of {kind.rank} axes", way)
    if aval.ndim == 0 and not kind.flat:
        _refuse(ShapeError, kernel, argument, "an array with axes", "Annotate a dtype.")
    access = "inout" if argument.operand is not None else "out"
    lanes = _lanes(kernel, kind, argument, dtype)
    return ArraySpec(argument.name, dtype.name, aval.ndim, kind.flat, lanes, access)


def _lanes(kernel: str, kind: ArrayKind, argument: Any, dtype: DType) -> int:
    """Lanes of the lines of an array."""
    if kind.lines is None:
        return 1
    aval: Aval = argument.aval
    last = aval.size if kind.flat else aval.shape[-1]
    lanes = kind.lines.lanes
    if lanes is None:
        widest = max(1, WIDEST * 8 // dtype.bits)
        return next(n for n in (widest >> k for k in range(8)) if n and last % n == 0)
    if last % lanes:
        what = f"an array whose {'length' if kind.flat else 'last axis'} is a multiple of {lanes}"
        way = "Pad it, or annotate cube.lines() for lines that fit."
        _refuse(ShapeError, kernel, argument, what, way)
    return lanes


def _refuse(error: type[Exception], kernel: str, argument: Any, what: str, way: str) -> NoReturn:
    must = f"{kernel}: {argument.name} must be {what}"
    raise error(f"{must}; got {argument.aval}.{at_user_line()} {way}")


def array(given: ArraySpec) -> View:
    """The view of an array parameter; its buffer is declared here."""
    buffer = current().build.buffer(given.dtype, given.access)
    memory = Memory(given.path, buffer)
    length = _symbol("length", given.path)
    if given.flat:
        found = View(memory, 0, (length,), (1,), whole=length)
    else:
        shape = [_symbol("shape", given.path, axis) for axis in range(given.rank)]
        strides = [_symbol("stride", given.path, axis) for axis in range(given.rank - 1)]
        found = View(memory, 0, tuple(shape), (*strides, 1), whole=length)
    return found if given.lanes == 1 else found.as_lines(given.lanes)


def _symbol(kind: str, path: str, axis: int = 0) -> Symbol:
    meta = Meta(kind, path, axis)
    name = {"length": f"{path}.length"}.get(kind, f"{path}.{kind}[{axis}]")
    return Symbol(name, lambda: Value(current().scalar(meta), True))


def scalar(given: ScalarSpec) -> Value:
    """The value of a scalar parameter."""
    return Value(current().scalar(Meta("scalar", given.path), given.dtype))
