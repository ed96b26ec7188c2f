"""Matrix units, copies on their way and barriers in kernels. A fragment is a matrix of 16 rows and
8 columns, or an operand of their product, whose elements the units of a plane hold together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xcube.cube.places import UNIT_POS_PLANE
from xcube.cube.state import current, fail
from xcube.cube.values import DTYPES, Core, DType, Value, as_bool, as_index
from xcube.cube.views import View, shared_memory
from xcube.errors import DtypeError, KernelError, ShapeError
from xcube.lowering.cube import ir, matrix

Coordinates = Callable[[Any, int], tuple[Any, Any]]


@dataclass(frozen=True, eq=False)
class Matrix:
    """A fragment. `kind`: "a" (16 rows, deep), "b" (deep, 8 columns) or "accumulator" (16, 8);
    `deep` is 32 bytes: 16 elements of f16 and bf16, 8 of f32, which count as tf32."""

    kind: str
    dtype: DType
    core: Core

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return _shape(self.kind, self.dtype)

    @property
    def lanes(self) -> int:
        """Elements that this unit holds."""
        return self.core.lanes

    @property
    def line(self) -> Value:
        """The elements that this unit holds."""
        return Value(self.core)

    def coordinates(self, lane: int) -> tuple[Any, Any]:
        """Row and column of an element that this unit holds."""
        return _coordinates(self.kind, self.dtype)(as_index(UNIT_POS_PLANE), lane)

    def store(self, view: View) -> None:
        """Write the elements to a view of as many rows and columns.

        Raises ShapeError if the view has another number of axes.
        """
        _require_axes("Matrix.store", view)
        for lane in range(self.lanes):
            view[self.coordinates(lane)] = self.line[lane]

    def __cube_parts__(self) -> tuple[Any, list[Any]]:
        return (self.kind, self.dtype), [self.line]

    @classmethod
    def __cube_build__(cls, static: Any, children: Sequence[Any]) -> Matrix:
        kind, dtype = static
        return cls(kind, dtype, children[0].core)


def _shape(kind: str, dtype: DType) -> tuple[int, int]:
    if kind == "accumulator":
        return matrix.ROWS, matrix.COLUMNS
    deep = matrix.depth(dtype.name)
    return (matrix.ROWS, deep) if kind == "a" else (deep, matrix.COLUMNS)


def _coordinates(kind: str, dtype: DType) -> Coordinates:
    if kind == "accumulator":
        return matrix.sum_of
    function = matrix.left if kind == "a" else matrix.right
    return lambda unit, lane: function(unit, lane, dtype.name)


def _require_axes(what: str, view: View) -> None:
    if not isinstance(view, View) or view.rank != 2 or view.lanes != 1:
        must = f"{what}: a matrix must be a view of two axes"
        fail(ShapeError, must, repr(view), "Annotate cube.Tensor, and take a tile of it.")


def _loaded(kind: str, view: View) -> Matrix:
    _require_axes(f"matrix_{kind}", view)
    dtype = view.dtype
    if dtype.name not in matrix.INPUTS:
        must = f"matrix_{kind}: elements must be of {', '.join(matrix.INPUTS)}"
        fail(DtypeError, must, f"{dtype}", "Cast them into shared memory first.")
    rows, columns = _shape(kind, dtype)
    at = _coordinates(kind, dtype)
    unit = as_index(UNIT_POS_PLANE)
    lanes = [view[at(unit, lane)].core for lane in range(rows * columns // ir.PLANE)]
    return Matrix(kind, dtype, current().build.join(lanes))


def matrix_a(view: View) -> Matrix:
    """The left operand of a product, read from a view of two axes.

    Raises DtypeError if it is not of f16, bf16 or f32.
    """
    return _loaded("a", view)


def matrix_b(view: View) -> Matrix:
    """The right operand of a product, read from a view of two axes.

    Raises DtypeError if it is not of f16, bf16 or f32.
    """
    return _loaded("b", view)


def accumulator(value: Any = 0.0) -> Matrix:
    """A matrix of 16 rows and 8 columns of f32 that holds one number everywhere, or the elements of
    a view of two axes."""
    dtype, build = DTYPES["f32"], current().build
    if isinstance(value, View):
        _require_axes("accumulator", value)
        unit = as_index(UNIT_POS_PLANE)
        lanes = [value[matrix.sum_of(unit, lane)].core for lane in range(4)]
        return Matrix("accumulator", dtype, build.join(lanes))
    return Matrix("accumulator", dtype, build.splat(dtype(value).core, 4))


def multiply_add(a: Matrix, b: Matrix, c: Matrix) -> Matrix:
    """a @ b + c, by the units of a plane together.

    Raises KernelError if the fragments are not such operands of one dtype.
    """
    got = ", ".join([f"{x.kind} of {x.dtype}" for x in (a, b, c)])
    if [x.kind for x in (a, b, c)] != ["a", "b", "accumulator"] or a.dtype != b.dtype:
        must = "multiply_add: operands must be matrix_a, matrix_b of one dtype, accumulator"
        fail(KernelError, must, got, "Load them with cube.matrix_a and cube.matrix_b.")
    return Matrix("accumulator", c.dtype, matrix.multiply(current().build, a.core, b.core, c.core))


# copies ---------------------------------------------------------------------------------------


def copy_async(target: View, source: View, valid: Any = True) -> None:
    """Begin to copy 16 bytes from an array of the launch to shared memory, from the first element
    of both views on; zeros where `valid` does not hold. Both places are multiples of 16 bytes.

    Raises KernelError if the views are not of such memory.
    """
    spaces = [target.memory.buffer.space, source.memory.buffer.space]
    if spaces != ["shared", "global"] or target.dtype != source.dtype:
        must = "copy_async: the target must be shared memory, the source an array of its dtype"
        got = f"{target!r} in {spaces[0]}, {source!r} in {spaces[1]} memory"
        fail(KernelError, must, got, "Copy element by element.")
    holds = None if valid is True else as_bool("copy_async", valid).core
    places = [as_index(view.offset).core for view in (target, source)]
    build = current().build
    matrix.copy_async(
        build, target.memory.buffer, places[0], source.memory.buffer, places[1], holds
    )


def commit_copies() -> None:
    """The copies begun since the last time are one batch."""
    matrix.commit_copies(current().build)


def wait_copies(pending: int = 0) -> None:
    """Wait until at most `pending` batches of this unit are on their way."""
    matrix.wait_copies(current().build, pending)


@dataclass(frozen=True)
class Barriers:
    """Barriers of a cube, by number; units see one that was set behind the next `sync_cube`."""

    view: View

    def _place(self, number: Any) -> Core:
        return as_index(self.view._at(number).offset).core

    def set(self, number: Any, arrivals: int) -> None:
        """Make a phase of a barrier take so many arrivals; by one unit."""
        build, buffer = current().build, self.view.memory.buffer
        matrix.set_barrier(build, buffer, self._place(number), arrivals)

    def arrive(self, number: Any, nbytes: int = 0) -> None:
        """Arrive; the phase also waits for so many bytes of boxes."""
        build, buffer = current().build, self.view.memory.buffer
        matrix.arrive(build, buffer, self._place(number), nbytes)

    def wait(self, number: Any, parity: Any) -> None:
        """Wait until the phase of a parity has ended."""
        build, buffer = current().build, self.view.memory.buffer
        matrix.wait_for(build, buffer, self._place(number), as_index(parity).core)


def barriers(count: int) -> Barriers:
    """So many barriers of a cube."""
    return Barriers(shared_memory("u64", count))


@dataclass(frozen=True)
class Boxes:
    """An array of the launch that is read by boxes, asked for by one unit."""

    view: View
    map: ir.TileMap

    @property
    def nbytes(self) -> int:
        """Bytes of a box."""
        return matrix.box_bytes(self.map)

    def copy(self, target: View, place: Sequence[Any], over: Barriers, number: Any) -> None:
        """Ask for the box at a place (of each axis) to be copied to shared memory, with zeros
        outside of the array; its bytes count at a barrier. `matrix.exchanged` in
        lowering/cube/matrix.py says where they lie."""
        at = as_index(target.offset).core
        places = [as_index(index).core for index in reversed(place)]
        build = current().build
        matrix.copy_tile(
            build,
            target.memory.buffer,
            at,
            self.map,
            places,
            over.view.memory.buffer,
            over._place(number),
        )


def boxes(view: View, box: Sequence[int]) -> Boxes:
    """A tensor of the launch as boxes of known sizes, one for each axis; the last is 128 bytes.

    Raises ShapeError if the view is no whole tensor of 2 to 5 axes.
    """
    whole = view.whole is not None and view.memory.buffer.space == "global"
    if not whole or not 2 <= view.rank <= 5 or len(box) != view.rank or view.lanes != 1:
        must = "boxes: the view must be a whole tensor of 2 to 5 axes, with a size for each"
        fail(ShapeError, must, f"{view!r} and {tuple(box)}", "Pass the parameter itself.")
    sizes = [as_index(size).core for size in reversed(view.shape)]
    strides = [as_index(stride).core for stride in reversed(view.strides[:-1])]
    map = current().build.map(view.memory.buffer, sizes, strides, tuple(reversed(box)))
    return Boxes(view, map)
