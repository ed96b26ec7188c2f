"""Evaluation at once: one operation is a program of one equation, compiled once per signature.

This is also the floor where host values become arrays, since it is the first that knows devices.
Importing it completes the two knots of the import order: the evaluator and the conversion.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from xcube import config, dtypes
from xcube.array import Array, DeviceArray
from xcube.errors import DeviceError, DtypeError
from xcube.ir import Aval, Literal, Primitive, at_user_line, user_source
from xcube.lowering import Executable, compile
from xcube.lowering.cube.ir import DTYPES
from xcube.lowering.device import default_device, holder
from xcube.lowering.device.base import Buffer, Device
from xcube.primitives.callback import HostOnly
from xcube.primitives.lowered import HostCall
from xcube.trace import EVAL, EvalTrace, StagingTrace, literal, set_current
from xcube.transforms import nans
from xcube.transforms.arguments import to_array

_lock = threading.Lock()
STORED = frozenset((*DTYPES, "c64", "c128"))  # what kernels can load, complex as pairs
_executables: dict[Any, tuple[Executable, tuple[Aval, ...]]] = {}
_scalars: dict[Any, Buffer] = {}
_SCALAR_LIMIT = 4096
_PROGRAM_LIMIT = 8192


def evaluate(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Apply a primitive to concrete operands."""
    arrays = [arg if type(arg) is DeviceArray else operand(arg) for arg in args]
    device = arrays[0]._device if arrays else default_device()
    for x in arrays:
        if x._device is not device:
            arrays, device = together(arrays)
            break
    key = (primitive, tuple([x._aval for x in arrays]), tuple(params.items()), device)
    if (entry := _executables.get(key)) is None:
        if isinstance(primitive.lower, HostCall | HostOnly):
            outs = _call(arrays, device, **params)
            nans.check_operation(primitive, arrays, params, outs)
            return outs
        while len(_executables) >= _PROGRAM_LIMIT:
            _executables.pop(next(iter(_executables)), None)
        entry = _executables[key] = _compile(primitive, [x._aval for x in arrays], params, device)
    executable, avals = entry
    buffers = executable([x.buffer for x in arrays])
    settings = config.current
    if primitive.multiple or settings.debug_nans or settings.debug_infs:
        outs = [DeviceArray(a, b, device) for a, b in zip(avals, buffers, strict=True)]
        nans.check_operation(primitive, arrays, params, outs)
        return outs if primitive.multiple else outs[0]
    return DeviceArray(avals[0], buffers[0], device)


def _call(
    arrays: Sequence[DeviceArray],
    device: Device,
    *,
    function: Any,
    results: tuple[Aval, ...],
    **params: Any,
) -> list[DeviceArray]:
    """Results of a host call, which outside of programs is simply made."""
    source = user_source()
    try:
        with set_current(EVAL):
            values = function([x.buffer.numpy(x.shape, x.dtype) for x in arrays])
    except Exception as error:
        if source:
            error.add_note(f"Raised in the callback at {source}.")
        raise
    hosts = map(np.ascontiguousarray, values)
    return [
        DeviceArray(aval, device.from_host(host.reshape(aval.shape)), device)
        for aval, host in zip(results, hosts, strict=True)
    ]


def _compile(
    primitive: Primitive, avals: Sequence[Aval], params: dict[str, Any], device: Device
) -> tuple[Executable, tuple[Aval, ...]]:
    trace = StagingTrace(primitive.name)
    with set_current(trace):
        result = trace.process(primitive, [trace.new_input(aval) for aval in avals], params)
        jaxpr = trace.jaxpr(result if primitive.multiple else [result])
    with set_current(EVAL), _lock:
        return compile(jaxpr, device, forward=False), jaxpr.out_avals


def together(arrays: list[DeviceArray]) -> tuple[list[DeviceArray], Device]:
    """The arrays on one device, where computing with them happens: that of those which are not on
    the default device, if there are any.

    Raises DeviceError if there are several such devices.
    """
    if not arrays:
        return arrays, default_device()
    device = arrays[0]._device
    for x in arrays:
        if x._device is not device:
            return _gathered(arrays)
    return arrays, device


def _gathered(arrays: list[DeviceArray]) -> tuple[list[DeviceArray], Device]:
    home = default_device()
    chosen = dict.fromkeys(x._device for x in arrays if x._device is not home)
    if len(chosen) > 1:
        places = ", ".join(f"{x.aval} on {x._device.name}" for x in arrays)
        raise DeviceError(
            f"the operands must be on one device, or on it and the default device; got {places}."
            f"{at_user_line()} Move them with device_put."
        )
    device = next(iter(chosen), home)
    return [transferred(x, device) for x in arrays], device


def transferred(x: DeviceArray, device: Device) -> DeviceArray:
    """The array on a device: itself if it is there, else a copy."""
    if x._device is device:
        return x
    return DeviceArray(x._aval, device.receive(x.buffer, x._device), device)


def clear() -> None:
    """Forget the programs of single operations."""
    _executables.clear()
    _scalars.clear()


def operand(value: Any) -> DeviceArray:
    """A scalar operand as an array on the default device. Repeated scalars share one buffer, but
    never one array: an array may be deleted or donated."""
    if isinstance(value, DeviceArray):
        return value
    atom = value if isinstance(value, Literal) else literal(value)
    device = default_device()
    key = (device, atom.aval, atom.value.tobytes())
    if (buffer := _scalars.get(key)) is None:
        if len(_scalars) >= _SCALAR_LIMIT:
            _scalars.clear()
        buffer = _scalars[key] = from_host(np.asarray(atom.value), atom.aval).buffer
    return DeviceArray(atom.aval, buffer, device)


def from_host(value: np.ndarray, aval: Aval | None = None) -> DeviceArray:
    """A copy of a NumPy array on the default device, of the same dtype."""
    _check_dtype(value.dtype)
    device = default_device()
    aval = aval or Aval(value.shape, value.dtype)
    return DeviceArray(aval, device.from_host(np.ascontiguousarray(value)), device)


def _check_dtype(dtype: np.dtype) -> None:
    if dtypes.SHORT.get(dtype) not in STORED and dtype != dtypes.float0:
        raise DtypeError(
            f"array: elements of dtype {dtype} cannot be stored.{at_user_line()} Use one of "
            f"{', '.join(known.name for known, short in dtypes.SHORT.items() if short in STORED)}."
        )


def convert(value: Any) -> Array:
    """Any array-like as an array: Python scalars weakly typed, 64-bit NumPy values narrowed to
    the default width unless 64-bit types are enabled."""
    if isinstance(value, Array):
        return value
    if (device := holder(value)) is not None:
        buffer, shape, dtype = device.import_array(value)
        return DeviceArray(Aval(tuple(shape), dtype), buffer, device)
    if hasattr(value, "__jax_array__"):
        return convert(value.__jax_array__())
    if isinstance(value, bool | int | float | complex) and not isinstance(value, np.generic):
        atom = literal(value)  # a buffer of its own: others may come to see and write it
        return from_host(np.asarray(atom.value), atom.aval)
    host = np.asarray(value)
    _check_dtype(host.dtype)
    return from_host(host.astype(dtypes.canonicalize_dtype(host.dtype), copy=False))


EvalTrace.evaluate = staticmethod(evaluate)
to_array.convert = convert  # type: ignore[method-assign]
