"""Parameters of equations and metadata of trees: a closed set of kinds of values, each with a tag.
What repeats (strings, avals, sources, arrays, jaxprs) lies in a table and is named by its place."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from xcube import dtypes
from xcube.array import Array
from xcube.errors import ExportError
from xcube.ir import Aval, Jaxpr, Primitive, Source
from xcube.lowering.export.wire import DEEPEST, Reader, Writer, damaged


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """What a file may name: primitives, and classes of parameters (enumerations, named tuples,
    dataclasses), by their names. `array` makes an array of a NumPy array and an aval."""

    primitives: Mapping[str, Primitive]
    classes: Mapping[str, type]
    array: Callable[[np.ndarray, Aval], Array]


class Unstorable(Exception):
    """A value of no kind that can be stored; the caller knows where it stands."""


# writing --------------------------------------------------------------------------------------


class Tables:
    """What is written once: each method gives an item's place, new or known. `pack_jaxpr` makes the
    bytes of a jaxpr with the help of these tables."""

    def __init__(
        self, vocabulary: Vocabulary, pack_jaxpr: Callable[[Tables, Jaxpr], bytes]
    ) -> None:
        self.vocabulary, self._pack_jaxpr = vocabulary, pack_jaxpr
        self.strings, self.avals, self.sources = _Table(), _Table(), _Table()
        self.arrays, self.jaxprs = _Table(), _Table()

    def jaxpr(self, jaxpr: Jaxpr) -> int:
        """The place of a jaxpr; those inside it come before."""
        return self.jaxprs.index(id(jaxpr), lambda: self._pack_jaxpr(self, jaxpr))

    def string(self, value: str) -> int:
        """The place of a string."""
        return self.strings.index(value, lambda: packed(lambda w: w.string(value)))

    def aval(self, aval: Aval) -> int:
        """The place of an aval."""

        def pack(w: Writer) -> None:
            w.number(self.string(dtypes.short_name(aval.dtype)))
            w.number(len(aval.shape))
            for size in aval.shape:
                w.number(size)
            w.number(aval.weak_type)

        return self.avals.index(aval, lambda: packed(pack))

    def source(self, source: Source | None) -> int:
        """The place of a line of code counted from 1, 0 for none. Of its path the name is kept."""
        if source is None:
            return 0

        def pack(w: Writer) -> None:
            w.number(self.string(str(source).rpartition(":")[0]))
            w.number(source.line)
            w.number(self.string(source.function))

        return 1 + self.sources.index(source, lambda: packed(pack))

    def array(self, value: Array) -> int:
        """The place of an array."""

        def pack(w: Writer) -> None:
            w.number(self.aval(value.aval))
            w.raw(np.ascontiguousarray(value).tobytes())

        return self.arrays.index(id(value), lambda: packed(pack))

    def value(self, w: Writer, value: Any) -> None:
        """A value with its tag. Raises Unstorable for one of no kind."""
        kind = type(value)
        if simple := _SIMPLE.get(kind):
            tag, write = simple
            w.data += tag
            write(w, value)
        elif kind in _COMPOUND:
            self._compound(w, value)
        elif self.vocabulary.classes.get(kind.__name__) is kind:
            w.data += b"c"
            w.number(self.string(kind.__name__))
            self.value(w, _fields(value))
        else:
            tag, place = self._placed(value)
            w.data += tag
            w.number(place)

    def _compound(self, w: Writer, value: tuple[Any, ...] | dict[Any, Any]) -> None:
        if isinstance(value, dict):
            w.data += b"d"
            self.value(w, tuple(value))
            self.value(w, tuple(value.values()))
            return
        w.data += b"t"
        w.number(len(value))
        for item in value:
            self.value(w, item)

    def _placed(self, value: Any) -> tuple[bytes, int]:
        """The tag and place of what lies in a table."""
        if type(value) is str:
            return b"s", self.string(value)
        if isinstance(value, np.dtype):
            return b"y", self.string(dtypes.short_name(value))
        if isinstance(value, Aval):
            return b"v", self.aval(value)
        if isinstance(value, Jaxpr):
            return b"j", self.jaxpr(value)
        if isinstance(value, Array):
            return b"a", self.array(value)
        if name := _name_here(value):
            return b"n", self.string(name)
        raise Unstorable(f"{value!r:.60}, a {type(value).__name__}")


def _name_here(value: Any) -> str:
    """The qualified name of a function of this package, "module:name"; empty for anything else."""
    name = f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"
    return name if callable(value) and _function_here(name) is value else ""


def _function_here(name: str) -> Any:
    """The function of that name in a loaded module of this package; None if there is none. Looked
    up in dictionaries, so that no code of the module runs."""
    module, _, path = name.partition(":")
    if not module.startswith("xcube."):
        return None
    value = vars(sys.modules[module]).get(path) if module in sys.modules else None
    return value if callable(value) else None


_COMPOUND = (tuple, dict)
_SIMPLE: dict[type, tuple[bytes, Callable[[Writer, Any], None]]] = {
    type(None): (b"N", lambda w, value: None),
    bool: (b"b", lambda w, value: w.number(value)),
    int: (b"i", Writer.integer),
    float: (b"f", Writer.real),
    complex: (b"z", Writer.complex),
    bytes: (b"r", Writer.raw),
}


def _fields(value: Any) -> tuple[Any, ...]:
    if isinstance(value, enum.Enum):
        return (value.name,)
    if dataclasses.is_dataclass(value):
        return tuple([getattr(value, field.name) for field in dataclasses.fields(value)])
    return tuple(value)


class _Table:
    """Entries in the order in which they were first asked for."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self._places: dict[Hashable, int] = {}

    def index(self, key: Hashable, pack: Callable[[], bytes]) -> int:
        if key not in self._places:
            entry = pack()
            self._places[key] = len(self.entries)
            self.entries.append(entry)
        return self._places[key]


def packed(pack: Callable[[Writer], None]) -> bytes:
    """The bytes that a function writes."""
    writer = Writer()
    pack(writer)
    return bytes(writer.data)


# reading --------------------------------------------------------------------------------------


class Found:
    """The tables of a file, as far as they have been read."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.strings: list[str] = []
        self.avals: list[Aval] = []
        self.sources: list[Source] = []
        self.arrays: list[Array] = []
        self.jaxprs: list[Jaxpr] = []

    def aval(self, r: Reader) -> Aval:
        """An entry of the table of avals."""
        dtype = _dtype(r.pick(self.strings))
        shape = tuple(r.many(r.number))
        return Aval(shape, dtype, _flag(r.number()))

    def source(self, r: Reader) -> Source:
        """An entry of the table of sources."""
        return Source(r.pick(self.strings), r.number(), r.pick(self.strings))

    def array(self, r: Reader) -> Array:
        """An entry of the table of arrays."""
        aval = r.pick(self.avals)
        return self.vocabulary.array(_elements(aval, r.raw()), aval)

    def scalar(self, r: Reader) -> tuple[Any, Aval]:
        """A NumPy scalar and its aval."""
        aval = r.pick(self.avals)
        if aval.shape:
            raise damaged(f"a scalar of type {aval}")
        return _elements(aval, r.raw())[()], aval

    def value(self, r: Reader, depth: int = 0) -> Any:
        """A value with its tag."""
        if depth > DEEPEST:
            raise damaged(f"values in values, more than {DEEPEST} deep")
        tag = r.take(1)
        if read := _READ.get(tag):
            return read(self, r)
        if tag == b"t":
            return tuple(r.many(lambda: self.value(r, depth + 1)))
        if tag == b"d":
            keys, values = self.value(r, depth + 1), self.value(r, depth + 1)
            return dict(zip(keys, values, strict=True))
        if tag == b"c":
            return self._instance(r.pick(self.strings), self.value(r, depth + 1))
        raise damaged(f"a value with the tag {tag!r}")

    def _instance(self, name: str, fields: Any) -> Any:
        kind = self.vocabulary.classes.get(name)
        if kind is None:
            raise ExportError(
                f"deserialize: this version of xcube has no parameters of class {name!r}."
            )
        if issubclass(kind, enum.Enum):
            return kind[fields[0]]
        return kind(*fields)


_READ: dict[bytes, Callable[[Found, Reader], Any]] = {
    b"N": lambda found, r: None,
    b"b": lambda found, r: _flag(r.number()),
    b"i": lambda found, r: r.integer(),
    b"f": lambda found, r: r.real(),
    b"z": lambda found, r: r.complex(),
    b"r": lambda found, r: r.raw(),
    b"s": lambda found, r: r.pick(found.strings),
    b"y": lambda found, r: _dtype(r.pick(found.strings)),
    b"v": lambda found, r: r.pick(found.avals),
    b"j": lambda found, r: r.pick(found.jaxprs),
    b"a": lambda found, r: r.pick(found.arrays),
    b"n": lambda found, r: _function(r.pick(found.strings)),
}


def _function(name: str) -> Any:
    if (function := _function_here(name)) is None:
        raise ExportError(f"deserialize: the function {name} of xcube is not loaded here, or gone.")
    return function


def _flag(number: int) -> bool:
    if number > 1:
        raise damaged(f"{number} for a truth value")
    return bool(number)


def _dtype(short: str) -> np.dtype:
    if short not in dtypes.BY_SHORT:
        raise ExportError(f"deserialize: this version of xcube has no dtype {short!r}.")
    return dtypes.BY_SHORT[short]


def _elements(aval: Aval, data: bytes) -> np.ndarray:
    if len(data) != aval.nbytes:
        raise damaged(f"{len(data)} bytes for {aval}")
    if aval.dtype == np.bool_ and data.strip(b"\x00\x01"):
        raise damaged(f"bytes that are no truth values in {aval}")
    return np.frombuffer(data, aval.dtype).reshape(aval.shape)
