"""Arrays: `Array`, the public type of every array value, and `DeviceArray`, an aval with a buffer
on a device. What is here needs no computation: text, conversion to Python and NumPy, exchange with
other libraries, deletion. Operators and methods that compute are installed on `Array` by
operators.py, so that traced and concrete values share one table."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from xcube import dlpack
from xcube.ir import Aval, Shape, at_user_line


class Array:
    """An immutable n-dimensional array: concrete (`DeviceArray`) or traced (`Tracer`)."""

    __slots__ = ("__weakref__",)
    __array_priority__ = 100

    @property
    def aval(self) -> Aval:
        """What is known without the elements: shape, dtype, weak type."""
        raise NotImplementedError

    @property
    def shape(self) -> Shape:
        """Length of each axis."""
        return self.aval.shape

    @property
    def dtype(self) -> np.dtype:
        """Type of the elements."""
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.aval.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.aval.size

    @property
    def weak_type(self) -> bool:
        """Whether the dtype gives way to that of what it meets, as a Python number's does."""
        return self.aval.weak_type

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.aval.nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.aval.dtype.itemsize

    def __hash__(self) -> int:
        raise TypeError(
            f"hash: arrays must not be used as keys, for == compares them element by element; got "
            f"{self.aval}.{at_user_line()} Use id(x), or bytes and shape of a concrete array."
        )

    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError(f"len: the array must have an axis; got {self.aval}.{at_user_line()}")
        return self.aval.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.aval.shape:
            raise TypeError(f"iter: the array must have an axis; got {self.aval}.{at_user_line()}")
        return (self[k] for k in range(self.aval.shape[0]))  # type: ignore[index]

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise TypeError(
            f"x[...] = y: arrays are immutable; got {self.aval}.{at_user_line()} Use "
            f"x = x.at[...].set(y) in place of x[...] = y, .add(y) in place of x[...] += y."
        )

    def __delitem__(self, index: Any) -> NoReturn:
        raise TypeError(
            f"del x[...]: arrays are immutable; got {self.aval}.{at_user_line()} Use "
            f"xcube.numpy.delete, which gives a new array."
        )

    if TYPE_CHECKING:  # operators.py installs these on arrays and tracers alike
        T: Array
        mT: Array
        real: Array
        imag: Array
        at: Any

        def __index__(self) -> int: ...
        def __add__(self, other: Any) -> Array: ...
        def __radd__(self, other: Any) -> Array: ...
        def __sub__(self, other: Any) -> Array: ...
        def __rsub__(self, other: Any) -> Array: ...
        def __mul__(self, other: Any) -> Array: ...
        def __rmul__(self, other: Any) -> Array: ...
        def __truediv__(self, other: Any) -> Array: ...
        def __rtruediv__(self, other: Any) -> Array: ...
        def __floordiv__(self, other: Any) -> Array: ...
        def __rfloordiv__(self, other: Any) -> Array: ...
        def __mod__(self, other: Any) -> Array: ...
        def __rmod__(self, other: Any) -> Array: ...
        def __pow__(self, other: Any) -> Array: ...
        def __rpow__(self, other: Any) -> Array: ...
        def __matmul__(self, other: Any) -> Array: ...
        def __rmatmul__(self, other: Any) -> Array: ...
        def __and__(self, other: Any) -> Array: ...
        def __rand__(self, other: Any) -> Array: ...
        def __or__(self, other: Any) -> Array: ...
        def __ror__(self, other: Any) -> Array: ...
        def __xor__(self, other: Any) -> Array: ...
        def __rxor__(self, other: Any) -> Array: ...
        def __lshift__(self, other: Any) -> Array: ...
        def __rlshift__(self, other: Any) -> Array: ...
        def __rshift__(self, other: Any) -> Array: ...
        def __rrshift__(self, other: Any) -> Array: ...
        def __divmod__(self, other: Any) -> tuple[Array, Array]: ...
        def __rdivmod__(self, other: Any) -> tuple[Array, Array]: ...
        def __lt__(self, other: Any) -> Array: ...
        def __le__(self, other: Any) -> Array: ...
        def __gt__(self, other: Any) -> Array: ...
        def __ge__(self, other: Any) -> Array: ...
        def __eq__(self, other: Any) -> Any: ...
        def __ne__(self, other: Any) -> Any: ...
        def __neg__(self) -> Array: ...
        def __pos__(self) -> Array: ...
        def __abs__(self) -> Array: ...
        def __invert__(self) -> Array: ...
        def __round__(self, ndigits: int | None = None) -> Array: ...
        def __getitem__(self, index: Any) -> Array: ...
        def astype(self, dtype: Any, copy: bool = False, device: Any = None) -> Array: ...
        def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Array: ...
        def transpose(self, *axes: Any) -> Array: ...
        def flatten(self, order: str = "C") -> Array: ...
        def compress(self, condition: Any, axis: int | None = None, **options: Any) -> Array: ...
        def copy(self) -> Array: ...
        def clone(self) -> Array: ...
        def view(self, dtype: Any = None) -> Array: ...
        def to_device(self, device: Any, *, stream: Any = None) -> Array: ...
        def nonzero(self) -> tuple[Array, ...]: ...
        def all(self, *args: Any, **kwargs: Any) -> Array: ...
        def any(self, *args: Any, **kwargs: Any) -> Array: ...
        def argmax(self, *args: Any, **kwargs: Any) -> Array: ...
        def argmin(self, *args: Any, **kwargs: Any) -> Array: ...
        def argpartition(self, *args: Any, **kwargs: Any) -> Array: ...
        def argsort(self, *args: Any, **kwargs: Any) -> Array: ...
        def choose(self, *args: Any, **kwargs: Any) -> Array: ...
        def clip(self, *args: Any, **kwargs: Any) -> Array: ...
        def conj(self, *args: Any, **kwargs: Any) -> Array: ...
        def conjugate(self, *args: Any, **kwargs: Any) -> Array: ...
        def cumprod(self, *args: Any, **kwargs: Any) -> Array: ...
        def cumsum(self, *args: Any, **kwargs: Any) -> Array: ...
        def diagonal(self, *args: Any, **kwargs: Any) -> Array: ...
        def dot(self, *args: Any, **kwargs: Any) -> Array: ...
        def max(self, *args: Any, **kwargs: Any) -> Array: ...
        def mean(self, *args: Any, **kwargs: Any) -> Array: ...
        def min(self, *args: Any, **kwargs: Any) -> Array: ...
        def prod(self, *args: Any, **kwargs: Any) -> Array: ...
        def ptp(self, *args: Any, **kwargs: Any) -> Array: ...
        def ravel(self, *args: Any, **kwargs: Any) -> Array: ...
        def repeat(self, *args: Any, **kwargs: Any) -> Array: ...
        def round(self, *args: Any, **kwargs: Any) -> Array: ...
        def searchsorted(self, *args: Any, **kwargs: Any) -> Array: ...
        def sort(self, *args: Any, **kwargs: Any) -> Array: ...
        def squeeze(self, *args: Any, **kwargs: Any) -> Array: ...
        def std(self, *args: Any, **kwargs: Any) -> Array: ...
        def sum(self, *args: Any, **kwargs: Any) -> Array: ...
        def swapaxes(self, *args: Any, **kwargs: Any) -> Array: ...
        def take(self, *args: Any, **kwargs: Any) -> Array: ...
        def trace(self, *args: Any, **kwargs: Any) -> Array: ...
        def var(self, *args: Any, **kwargs: Any) -> Array: ...


class DeviceArray(Array):
    """An aval and the device buffer that holds its elements in row-major order."""

    __slots__ = ("_aval", "_buffer", "_device")

    def __init__(self, aval: Aval, buffer: Any, device: Any) -> None:
        self._aval, self._buffer, self._device = aval, buffer, device

    @property
    def aval(self) -> Aval:
        """What is known without the elements: shape, dtype, weak type."""
        return self._aval

    @property
    def buffer(self) -> Any:
        """The device buffer; raises RuntimeError if the array was deleted or donated."""
        if self._buffer is None:
            raise RuntimeError(
                f"array {self._aval} was deleted or its buffer was donated to a jitted call "
                f"(donate_argnums); keep using that call's result instead."
            )
        return self._buffer

    # place ------------------------------------------------------------------------------------

    @property
    def device(self) -> Any:
        """The device that holds the elements."""
        return self._device

    def devices(self) -> set[Any]:
        """The devices that hold the elements: always one."""
        return {self._device}

    @property
    def committed(self) -> bool:
        """Whether the array stays where it is: always."""
        return True

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process can read all elements: always."""
        return True

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each of its devices holds all elements: always, there is one."""
        return True

    def addressable_data(self, index: int) -> DeviceArray:
        """The part of the array on its device number `index`: itself.

        Raises IndexError unless the index is 0.
        """
        if index != 0:
            raise IndexError(f"addressable_data: the index must be 0, one device; got {index}.")
        return self

    def on_device_size_in_bytes(self) -> int:
        """Bytes that the elements occupy on the device."""
        return self.buffer.nbytes

    def unsafe_buffer_pointer(self) -> int:
        """Address of the elements on the device; valid while the array lives."""
        return self.buffer.pointer

    def is_deleted(self) -> bool:
        """Whether the elements were given up, by `delete` or by donation."""
        return self._buffer is None

    def delete(self) -> None:
        """Give the elements up now; their memory is free once no view of it is left."""
        self._buffer = None

    def is_ready(self) -> bool:
        """Whether the elements are computed; on the CPU always, since programs run to their end."""
        return getattr(self.buffer, "is_ready", _always)()

    def block_until_ready(self) -> DeviceArray:
        """This array, once its elements are computed."""
        synchronize = getattr(self._device, "synchronize", None)
        if self.buffer is not None and synchronize is not None:
            synchronize()
        return self

    def copy_to_host_async(self) -> None:
        """Start to copy the elements to the host, where they are not there already."""
        if (start := getattr(self.buffer, "copy_to_host_async", None)) is not None:
            start()

    # text -------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        if self._buffer is None:
            return f"Array(deleted, {self._aval})"
        weak = ", weak_type=True" if self._aval.weak_type else ""
        ending = f"dtype={self._aval.dtype.name}{weak})"
        body, width = self._body("Array(", ","), np.get_printoptions()["linewidth"]
        last_line = len(body) - body.rfind("\n") + 1
        gap = " " if last_line + len(ending) + 1 <= width else " " * len("Array(")
        return f"Array({body},{gap}{ending}"

    def _body(self, prefix: str, suffix: str) -> str:
        if self._aval.size == 0:
            return f"[], shape={self._aval.shape}"
        return np.array2string(self.__array__(), prefix=prefix, suffix=suffix, separator=", ")

    def __str__(self) -> str:
        return str(self.__array__())

    def __format__(self, specification: str) -> str:
        if self._aval.ndim == 0:
            return format(self.__array__()[()], specification)
        return format(self.__array__(), specification)

    # Python values ----------------------------------------------------------------------------

    def item(self, *args: int) -> Any:
        """One element as a Python scalar; the only one if no index is given.

        Raises ValueError if there are several elements and no index.

        >>> import xcube.numpy as jnp
        >>> jnp.array([[7]]).item()
        7
        """
        return self.__array__().item(*args)

    def tolist(self) -> Any:
        """The elements as nested lists of Python scalars.

        >>> import xcube.numpy as jnp
        >>> jnp.arange(3).tolist()
        [0, 1, 2]
        """
        return self.__array__().tolist()

    def tobytes(self, order: str = "C") -> bytes:
        """The elements' bytes in row-major order."""
        return self.__array__().tobytes(order)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        if self._aval.size != 1:
            raise ValueError(
                f"bool: the array must have one element; got {self._aval}.{at_user_line()} "
                f"Use x.any() or x.all()."
            )
        return bool(self.__array__().reshape(()))

    def _scalar(self, asked: str) -> Any:
        if self._aval.ndim:
            raise TypeError(
                f"{asked}: only a scalar array has such a value; got {self._aval}."
                f"{at_user_line()} Use x.item() for an array of one element."
            )
        return self.__array__()[()]

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        value = self._scalar("index")
        if self._aval.dtype.kind not in "iu":
            raise TypeError(
                f"index: the array must be an integer; got {self._aval}.{at_user_line()}"
            )
        return operator.index(value)

    # NumPy and others -------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        value = self.buffer.numpy(self._aval.shape, self._aval.dtype)
        if dtype is not None and np.dtype(dtype) != value.dtype:
            if copy is False:
                raise ValueError(
                    f"array: {self._aval} can become {np.dtype(dtype)} only by a copy; copy=False."
                )
            return value.astype(dtype)
        return value.copy() if copy else value

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self.__array__())  # type: ignore[arg-type]  # Python 3.12 types it

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if (exported := self._exported(stream, max_version, dl_device, copy)) is not None:
            return exported
        host = self.__array__()
        if max_version is None or copy:
            return dlpack.capsule(_shared(self.buffer, host, bool(copy)))
        options = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        return dlpack.capsule(host, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        if (place := getattr(self._device, "dlpack_device", None)) is not None:
            return place
        return np.empty(0).__dlpack_device__()  # the processor, as NumPy names it

    def _exported(self, stream: Any, max_version: Any, dl_device: Any, copy: Any) -> Any:
        """A capsule of memory that is not the host's; None for one of the host's memory."""
        export = getattr(self._device, "dlpack", None)
        if export is None or (dl_device is not None and dl_device != self.__dlpack_device__()):
            return None
        buffer = self._device.receive(self.buffer, self._device) if copy else self.buffer
        return export(buffer, self.shape, self.dtype, stream, max_version)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory of an array on a GPU, for libraries that know this protocol."""
        if (interface := getattr(self._device, "array_interface", None)) is None:
            raise AttributeError(f"__cuda_array_interface__: {self._aval} is on {self._device}")
        return interface(self.buffer, self.shape, self.dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.copy()  # type: ignore[attr-defined]


def _always() -> bool:
    return True


class _Shared:
    """A buffer as NumPy sees it through the array interface, without the read-only flag: the first
    version of DLPack has no such flag, and its consumers promise by convention not to write."""

    def __init__(self, buffer: Any, host: np.ndarray) -> None:
        self.buffer = buffer
        self.__array_interface__ = {**host.__array_interface__, "data": (buffer.pointer, False)}


def _shared(buffer: Any, host: np.ndarray, copy: bool) -> np.ndarray:
    return host.copy() if copy or host.size == 0 else np.asarray(_Shared(buffer, host))
