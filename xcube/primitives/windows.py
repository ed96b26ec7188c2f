"""Windows of arrays at places that an array of indices names: how gather and scatter number their
dimensions, what happens out of bounds, and which shapes fit."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from xcube import dtypes
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Shape, at_user_line


class GatherDimensionNumbers(NamedTuple):
    """How the dimensions of operand, indices and result of a gather belong together. The last
    dimension of the indices holds one start per entry of `start_index_map`.

    `offset_dims`: the dimensions of the result that run through a window; the others run through
    the indices. `collapsed_slice_dims`: operand dimensions of window size 1 left out of the
    result. `start_index_map`: the operand dimension of each start. `operand_batching_dims` and
    `start_indices_batching_dims`: dimensions that walk together in operand and indices.
    """

    offset_dims: Shape
    collapsed_slice_dims: Shape
    start_index_map: Shape
    operand_batching_dims: Shape = ()
    start_indices_batching_dims: Shape = ()


class ScatterDimensionNumbers(NamedTuple):
    """How the dimensions of operand, indices and updates of a scatter belong together: as in the
    gather that reads what the scatter writes, field by field.

    `update_window_dims`: the dimensions of the updates that run through a window.
    `inserted_window_dims`: operand dimensions of window size 1 that the updates do not have.
    `scatter_dims_to_operand_dims`: the operand dimension of each start.
    `operand_batching_dims` and `scatter_indices_batching_dims`: dimensions that walk together.
    """

    update_window_dims: Shape
    inserted_window_dims: Shape
    scatter_dims_to_operand_dims: Shape
    operand_batching_dims: Shape = ()
    scatter_indices_batching_dims: Shape = ()


DimensionNumbers = GatherDimensionNumbers | ScatterDimensionNumbers


class GatherScatterMode(enum.Enum):
    """What happens to a window that is not wholly inside the operand.

    CLIP: it is moved inside. FILL_OR_DROP: reading gives a filling, writing does nothing.
    PROMISE_IN_BOUNDS: the caller says that there is none; it is treated like CLIP when reading
    and dropped when writing.
    """

    CLIP = enum.auto()
    FILL_OR_DROP = enum.auto()
    PROMISE_IN_BOUNDS = enum.auto()

    @staticmethod
    def from_any(mode: str | GatherScatterMode | None) -> GatherScatterMode:
        """The mode of a mode or of its name "clip", "fill", "drop" or "promise_in_bounds"; None
        means FILL_OR_DROP. Raises ValueError for other names."""
        if isinstance(mode, GatherScatterMode):
            return mode
        if mode not in _MODES:
            raise ValueError(
                f"mode: must be 'clip', 'fill', 'drop' or 'promise_in_bounds'; got {mode!r}."
                f"{at_user_line()}"
            )
        return _MODES[mode]


_MODES: dict[str | None, GatherScatterMode] = {
    None: GatherScatterMode.FILL_OR_DROP,
    "fill": GatherScatterMode.FILL_OR_DROP,
    "drop": GatherScatterMode.FILL_OR_DROP,
    "clip": GatherScatterMode.CLIP,
    "promise_in_bounds": GatherScatterMode.PROMISE_IN_BOUNDS,
}

# shape ----------------------------------------------------------------------------------------


def is_ascending(dims: Shape, rank: int) -> bool:
    """Whether dimensions are distinct, sorted and less than a rank."""
    return list(dims) == sorted(set(dims)) and all(0 <= d < rank for d in dims)


def is_distinct(dims: Shape, rank: int) -> bool:
    """Whether dimensions are distinct and less than a rank."""
    return len(set(dims)) == len(dims) and all(0 <= d < rank for d in dims)


def check_indices(name: str, operand: Aval, indices: Aval, numbers: DimensionNumbers) -> None:
    """What gather and scatter ask alike of operand, indices and dimension numbers."""
    _, dropped, mapped, batching, index_batching = numbers
    if not dtypes.is_integer(indices.dtype):
        raise DtypeError(f"{name}: the indices must be integers; got {indices}.{at_user_line()}")
    rules = {
        "the last dimension of the indices must hold one start for each mapped dimension": (
            indices.ndim > 0 and indices.shape[-1] == len(mapped)
        ),
        "the operand's dimensions must be distinct, in range and sorted": (
            is_ascending(dropped, operand.ndim)
            and is_ascending(batching, operand.ndim)
            and is_distinct(mapped, operand.ndim)
        ),
        "batching dimensions must not be dropped or mapped": (
            not set(batching) & {*dropped, *mapped}
        ),
        "the batching dimensions of operand and indices must agree": (
            is_distinct(index_batching, indices.ndim - 1)
            and [operand.shape[d] for d in batching] == [indices.shape[d] for d in index_batching]
        ),
    }
    require(name, rules, f"{numbers} for operand {operand} and indices {indices}")


def require(name: str, rules: dict[str, bool], came: str) -> None:
    """Raises ShapeError with the first rule that does not hold."""
    for rule, holds in rules.items():
        if not holds:
            raise ShapeError(f"{name}: {rule}; got {came}.{at_user_line()}")


def gather_abstract(
    x: Aval, indices: Aval, *, dimension_numbers: Any, slice_sizes: Shape, **params: Any
) -> Aval:
    check_indices("gather", x, indices, dimension_numbers)
    offset, collapsed, _, batching, _ = dimension_numbers
    rank, dropped = len(offset) + indices.ndim - 1, {*collapsed, *batching}
    rules = {
        "there must be one slice size for each dimension of the operand": (
            len(slice_sizes) == x.ndim
        ),
        "offset_dims must be sorted dimensions of the result, one for each that is kept": (
            is_ascending(offset, rank) and len(offset) == x.ndim - len(dropped)
        ),
        "slice sizes must lie in 0..size": indices.size == 0
        or all(0 <= n <= size for n, size in zip(slice_sizes, x.shape, strict=False)),
        "collapsed dimensions must have slice size 1, batching ones at most 1": (
            all(slice_sizes[d] == 1 for d in collapsed if d < len(slice_sizes))
            and all(slice_sizes[d] <= 1 for d in batching if d < len(slice_sizes))
        ),
    }
    require(
        "gather",
        rules,
        f"{dimension_numbers}, slice_sizes={slice_sizes} for operand {x} and indices {indices}",
    )
    window = iter([n for d, n in enumerate(slice_sizes) if d not in dropped])
    batch = iter(indices.shape)
    shape = tuple([next(window) if d in offset else next(batch) for d in range(rank)])
    return Aval(shape, x.dtype, x.weak_type)


def scatter_abstract(
    name: str, x: Aval, indices: Aval, updates: Aval, numbers: ScatterDimensionNumbers
) -> Aval:
    """The result of a scatter. Raises DtypeError or ShapeError if the operands do not fit."""
    if x.dtype != updates.dtype:
        raise DtypeError(
            f"{name}: operand and updates must have one dtype; got {x}, {updates}.{at_user_line()}"
        )
    check_indices(name, x, indices, numbers)
    window, dropped = numbers.update_window_dims, window_dropped(numbers)
    batch = [n for d, n in enumerate(updates.shape) if d not in window]
    kept = [n for d, n in enumerate(x.shape) if d not in dropped]
    rules = {
        "update_window_dims must be sorted dimensions of the updates, one for each that is kept": (
            is_ascending(window, updates.ndim) and len(window) == len(kept)
        ),
        "the updates must have the indices' dimensions besides those of the window": (
            batch == list(indices.shape[:-1])
        ),
        "a window must not be larger than the operand": all(
            updates.shape[d] <= n for d, n in zip(window, kept, strict=False) if d < updates.ndim
        ),
    }
    require(name, rules, f"{numbers} for operand {x}, indices {indices} and updates {updates}")
    return x


# conversions ----------------------------------------------------------------------------------


def window_dropped(numbers: DimensionNumbers) -> set[int]:
    """The operand dimensions of which a window shows nothing."""
    return {*numbers[1], *numbers.operand_batching_dims}


def window_sizes(rank: int, updates: Shape, numbers: ScatterDimensionNumbers) -> Shape:
    """The slice sizes of the gather that reads what a scatter writes."""
    sizes = iter([updates[d] for d in numbers.update_window_dims])
    dropped = window_dropped(numbers)
    return tuple([1 if d in dropped else next(sizes) for d in range(rank)])


def shifted(dims: Shape) -> Shape:
    """Dimensions of an array that got a new one in front."""
    return tuple([d + 1 for d in dims])


def batched_numbers(numbers: Any, in_operand: bool, in_indices: bool) -> Any:
    """Dimension numbers after a new dimension in front of operand and/or indices. In the operand
    alone it makes windows longer, in the indices alone it makes more of them, in both it is a
    batching dimension."""
    window, dropped, mapped, batching, index_batching = numbers
    window = shifted(window) if in_indices else (0, *shifted(window))
    if in_operand:
        dropped, mapped, batching = shifted(dropped), shifted(mapped), shifted(batching)
    if in_indices:
        index_batching = shifted(index_batching)
    if in_operand and in_indices:
        batching, index_batching = (0, *batching), (0, *index_batching)
    return type(numbers)(window, dropped, mapped, batching, index_batching)
