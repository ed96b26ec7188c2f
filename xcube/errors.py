"""The exceptions of xcube. Names follow JAX where JAX has one; every message says what must hold,
what came, at which line of the user's code, and the way out."""

from __future__ import annotations


class XcubeError(Exception):
    """Base of every error that xcube raises on its own account."""


class ShapeError(XcubeError, TypeError, ValueError):
    """Shapes, ranks or axes do not fit the operation."""


class DtypeError(XcubeError, TypeError):
    """A dtype is unknown, unsupported by the operation, or unsupported by the device."""


class TypePromotionError(DtypeError, ValueError):
    """Strict promotion is on and two dtypes would have to be promoted implicitly."""


class TraceError(XcubeError):
    """A function cannot be traced as it is written."""


class ConcretizationTypeError(TraceError, TypeError):
    """The value of a traced array was asked for where only its shape and dtype are known."""


class TracerBoolConversionError(ConcretizationTypeError):
    """Python asked whether a traced array is true (an `if`, `while`, `and`, `or`, `not`)."""


class TracerIntegerConversionError(TraceError, TypeError):
    """Python asked for a traced array as an index or a size."""


class TracerArrayConversionError(TraceError, TypeError):
    """NumPy asked for the values of a traced array."""


class NonConcreteBooleanIndexError(TraceError, IndexError):
    """A boolean mask selects a number of elements that is not known while tracing."""


class UnexpectedTracerError(TraceError, TypeError):
    """A tracer outlived the trace that made it."""


class JaxprTypeError(XcubeError, TypeError):
    """A jaxpr is not well typed; raised by `check`, which prints the neighbourhood of the fault."""


class KernelError(XcubeError):
    """A cube kernel is not well formed, or the interpreter found a fault in it."""


class LoweringError(XcubeError):
    """A program or kernel cannot be lowered to the device."""


class DeviceError(XcubeError, RuntimeError):
    """A device is missing, failed, or does not support what was asked."""


class OutOfMemoryError(DeviceError, MemoryError):
    """A device could not supply the memory that a program needs."""


class ExportError(XcubeError, ValueError):
    """A program cannot be exported, or bytes are no exported program that can be read here."""
