"""What units do together: barriers, planes, atomic updates, prints, and the end of a unit."""

from __future__ import annotations

import string
from typing import Any

from xcube.cube.state import current, fail
from xcube.cube.values import Value, as_bool, as_index, converted, lifted, resolved, typed
from xcube.cube.views import View
from xcube.errors import DtypeError, KernelError, ShapeError
from xcube.lowering.cube import ir, matrix


def sync_cube() -> None:
    """All units of the cube meet here; what they wrote before is seen behind it."""
    current().build.sync()


def sync_plane() -> None:
    """All units of the plane meet here."""
    matrix.sync_plane(current().build)


def terminate() -> None:
    """The unit ends here."""
    current().build.emit(ir.Return())


def debug_print(format: str, *values: Any) -> None:
    """Print a line once the launch has run, with the values in the places {} of the text.

    Raises KernelError if there are not as many places as values.
    """
    places = [field for _, field, _, _ in string.Formatter().parse(format) if field is not None]
    if len(places) != len(values) or any(places):
        must = f"debug_print: there must be a place {{}} for each of {len(values)} values"
        fail(KernelError, must, f"{format!r}", "Write {} for each value.")
    found = [resolved(value) for value in values]
    if any(isinstance(value, Value) and value.lanes > 1 for value in found):
        must = "debug_print: values must be scalars"
        fail(ShapeError, must, ", ".join(map(typed, found)), "Print the lanes: x[0], x[1].")
    current().build.print(format, *[lifted(value).core for value in found])


# planes ---------------------------------------------------------------------------------------


def _plane(op: str, value: Any, argument: Any = None) -> Value:
    given = lifted(value)
    at = None if argument is None else as_index(argument).core
    return Value(current().build.plane(op, given.core, at))


def _plane_number(op: str, value: Any) -> Value:
    given = lifted(value)
    if given.dtype.name == "bool":
        must = f"plane_{op}: the operand must be a number"
        fail(DtypeError, must, typed(given), "Use plane_any, plane_all or plane_ballot.")
    return _plane(op, given)


def plane_sum(value: Any) -> Value:
    """The sum over the units of the plane, which all of them get."""
    return _plane_number("sum", value)


def plane_prod(value: Any) -> Value:
    """The product over the units of the plane."""
    return _plane_number("prod", value)


def plane_min(value: Any) -> Value:
    """The smallest number of the plane; NaN if one is."""
    return _plane_number("min", value)


def plane_max(value: Any) -> Value:
    """The largest number of the plane; NaN if one is."""
    return _plane_number("max", value)


def plane_inclusive_sum(value: Any) -> Value:
    """The sum over the units of the plane up to this one."""
    return _plane_number("inclusive_sum", value)


def plane_exclusive_sum(value: Any) -> Value:
    """The sum over the units of the plane before this one."""
    return _plane_number("exclusive_sum", value)


def plane_inclusive_prod(value: Any) -> Value:
    """The product over the units of the plane up to this one."""
    return _plane_number("inclusive_prod", value)


def plane_exclusive_prod(value: Any) -> Value:
    """The product over the units of the plane before this one."""
    return _plane_number("exclusive_prod", value)


def plane_all(condition: Any) -> Value:
    """Whether a condition holds in all units of the plane."""
    return _plane("all", as_bool("plane_all", condition))


def plane_any(condition: Any) -> Value:
    """Whether a condition holds in some unit of the plane."""
    return _plane("any", as_bool("plane_any", condition))


def plane_ballot(condition: Any) -> Value:
    """A bit for each unit of the plane, u32: whether a condition holds there."""
    return _plane("ballot", as_bool("plane_ballot", condition))


def plane_elect() -> Value:
    """Whether this is the one unit of the plane that is chosen."""
    return _plane("elect", True)


def plane_broadcast(value: Any, unit: Any) -> Value:
    """The value of one unit of the plane."""
    return _plane("broadcast", value, unit)


def plane_shuffle(value: Any, unit: Any) -> Value:
    """The value of the unit of the plane that this unit names."""
    return _plane("shuffle", value, unit)


def plane_shuffle_xor(value: Any, mask: Any) -> Value:
    """The value of the unit whose number differs in these bits."""
    return _plane("shuffle_xor", value, mask)


def plane_shuffle_up(value: Any, distance: Any) -> Value:
    """The value of the unit so far before; one's own where there is none."""
    return _plane("shuffle_up", value, distance)


def plane_shuffle_down(value: Any, distance: Any) -> Value:
    """The value of the unit so far behind; one's own where there is none."""
    return _plane("shuffle_down", value, distance)


# atomics --------------------------------------------------------------------------------------


def _element(name: str, array: View, index: Any) -> View:
    """The one element that an atomic updates."""
    if not isinstance(array, View):
        must = f"{name}: the first argument must be an array"
        fail(KernelError, must, type(array).__name__, f"Write cube.{name}(array, index, value).")
    found = array._at(index)
    if found.shape or found.lanes != 1:
        must = f"{name}: an atomic must update one element"
        fail(ShapeError, must, f"{found!r}", "Name an index for each axis.")
    return found


def _atomic(op: str, array: View, index: Any, value: Any) -> Value:
    found = _element(f"atomic_{op}", array, index)
    given = converted(value, array.dtype, f"what updates {array.memory.name}")
    bits = op in ("and", "or", "xor")
    if bits and array.dtype.is_float:
        must = f"atomic_{op}: elements must be integers"
        fail(DtypeError, must, f"{array.dtype}", "Use atomic_add, or an array of integers.")
    array.memory.note_write()
    at = as_index(found.offset).core
    return Value(current().build.atomic(op, array.memory.buffer, at, given.core))


def atomic_add(array: View, index: Any, value: Any) -> Value:
    """Add to an element indivisibly; gives what it was before, as all of these do."""
    return _atomic("add", array, index, value)


def atomic_sub(array: View, index: Any, value: Any) -> Value:
    """Subtract from an element indivisibly."""
    return _atomic("sub", array, index, value)


def atomic_min(array: View, index: Any, value: Any) -> Value:
    """The smaller of an element and a number, indivisibly."""
    return _atomic("min", array, index, value)


def atomic_max(array: View, index: Any, value: Any) -> Value:
    """The larger of an element and a number, indivisibly."""
    return _atomic("max", array, index, value)


def atomic_and(array: View, index: Any, value: Any) -> Value:
    """Bits of an element and a number, indivisibly."""
    return _atomic("and", array, index, value)


def atomic_or(array: View, index: Any, value: Any) -> Value:
    """Bits of an element or a number, indivisibly."""
    return _atomic("or", array, index, value)


def atomic_xor(array: View, index: Any, value: Any) -> Value:
    """Bits of either an element or a number, indivisibly."""
    return _atomic("xor", array, index, value)


def atomic_exchange(array: View, index: Any, value: Any) -> Value:
    """Replace an element indivisibly."""
    return _atomic("exchange", array, index, value)


def atomic_store(array: View, index: Any, value: Any) -> None:
    """Write an element indivisibly."""
    _atomic("store", array, index, value)


def atomic_load(array: View, index: Any) -> Value:
    """Read an element indivisibly."""
    found = _element("atomic_load", array, index)
    at = as_index(found.offset).core
    array.memory.note_write()
    return Value(current().build.atomic("load", array.memory.buffer, at))


def atomic_compare_exchange(array: View, index: Any, expected: Any, value: Any) -> Value:
    """Replace an element if it is what is expected, indivisibly; gives what it was."""
    found = _element("atomic_compare_exchange", array, index)
    what = f"what updates {array.memory.name}"
    pair = [converted(x, array.dtype, what).core for x in (expected, value)]
    array.memory.note_write()
    at = as_index(found.offset).core
    return Value(current().build.compare_exchange(array.memory.buffer, at, *pair))
