"""Contractions without packing, lines along a row: a step of the depth loads a few lines of one
factor and multiplies them with a few scalars of the other. Tiles keep their sums in registers;
where there are few rows and the factor is large, `Stream` walks it in whole stretches of memory
instead, and keeps the sums in an array of the cube."""

from __future__ import annotations

from collections.abc import Sequence

from xcube.lowering.cube.build import Value
from xcube.lowering.kernels.contract_cubes import Cubes


class Lines(Cubes):
    """Lines lie along a row."""

    def _extents(self) -> tuple[int, int]:
        along = self.product.along
        return 1 if along is None else along.extent, self.product.lane.extent

    def _steps(self) -> tuple[int, int]:
        return self.tile.rows, self.tile.lines * self.tile.lanes

    def _tiles(self, down: Value, stop_down: Value, across: Value, stop_across: Value) -> None:
        tile, extent = self.tile, self.product.lane.extent
        step = tile.lines * tile.lanes
        if extent % step == 0:
            self._columns(down, stop_down, across, stop_across, tile.lines, None)
            return
        whole = stop_across - (stop_across - across) % self.b.constant(step, "index")
        if extent >= step:
            self._columns(down, stop_down, across, whole, tile.lines, None)
        ragged = stop_across if extent % tile.lanes else None
        self._columns(down, stop_down, whole, stop_across, 1, ragged)

    def _columns(
        self,
        down: Value,
        stop_down: Value,
        first: Value,
        stop: Value,
        lines: int,
        ragged: Value | None,
    ) -> None:
        """Tiles of so many lines; `ragged`: where the last of them ends."""
        for column in self.b.range(first, stop, lines * self.tile.lanes):
            self.emit.mask = None
            if ragged is not None:
                self.emit.mask_from(column, ragged, True)
            for begin in self.b.range(down, stop_down, self.tile.rows):
                self._tile(begin, column, lines)
            self.emit.mask = None

    def _tile(self, begin: Value, column: Value, lines: int) -> None:
        tile, product = self.tile, self.product
        extent = self._extents()[0]
        first = self._clamped(begin, extent, tile.rows)
        rights = self._places(product.line, product.lane, column, lines, tile.lanes)
        lefts = self._places(product.other, product.along, first, tile.rows, 1)
        sums = self._sums(tile.rows, lines)

        def step() -> None:
            right = [self._factor(product.line, product.lane, *place) for place in rights]
            for cells, place in zip(sums, lefts, strict=True):
                left = self._factor(product.other, product.along, *place)
                for cell, line in zip(cells, right, strict=True):
                    self._multiply_add(left, line, cell)

        self._nest(self.space.columns, step)
        for cells, (place, _) in zip(sums, lefts, strict=True):
            with self._own(place, begin, extent, tile.rows):
                self._write_row(place, [cell.get() for cell in cells], [at for at, _ in rights])

    def _write_row(self, place: Value, sums: Sequence[Value], columns: Sequence[Value]) -> None:
        emit, product = self.emit, self.product
        with self._at(product.along, place, {}):
            emit.hoist(self.roots, emit.lane_mask)
            for line, column in zip(sums, columns, strict=True):
                with self._at(product.lane, column, {}):
                    emit.folds[product.fold] = [line]
                    emit.write(self.space.results)


class Stream(Lines):
    """Few rows: stretches of `tile.steps` rows of the matrix at a time."""

    def _tiles(self, down: Value, stop_down: Value, across: Value, stop_across: Value) -> None:
        tile = self.tile
        width = tile.lines * tile.lanes
        self.array = self.b.shared(self.product.line.dtype, tile.rows * width)
        self.places = self._places(self.product.other, self.product.along, down, tile.rows, 1)
        for first in self.b.range(across, stop_across, width):
            self._stretch(first, self.b.op("min", first + width, stop_across))

    def _stretch(self, first: Value, stop: Value) -> None:
        b, (axis,) = self.b, self.space.columns
        extent = self.arguments.scalar(("extent", axis.dims), axis.extent)
        whole = extent - extent % b.constant(self.tile.steps, "index")
        self._clear(first, stop)
        for k in b.range(0, whole, self.tile.steps):
            self._add(first, stop, [k + n for n in range(self.tile.steps)])
        for k in b.range(whole, extent):
            self._add(first, stop, [k])
        for column in b.range(first, stop, self.tile.lanes):
            self._mask(column, stop)
            for row, (place, _) in enumerate(self.places):
                line = b.load(self.array, self._cell(row, column - first), lanes=self.tile.lanes)
                self._write_row(place, [line], [column])
        self.emit.mask = None

    def _clear(self, first: Value, stop: Value) -> None:
        zero = self.b.constant(0, self.product.line.dtype, self.tile.lanes)
        for column in self.b.range(0, stop - first, self.tile.lanes):
            for row in range(self.tile.rows):
                self.b.store(self.array, self._cell(row, column), zero)

    def _cell(self, row: int, column: Value) -> Value:
        return column + row * self.tile.lines * self.tile.lanes

    def _mask(self, column: Value, stop: Value) -> None:
        self.emit.mask_from(column, stop, self.product.lane.extent % self.tile.lanes != 0)

    def _add(self, first: Value, stop: Value, steps: Sequence[Value]) -> None:
        """The products of some steps of the depth, along the whole stretch."""
        b, tile, product, (axis,) = self.b, self.tile, self.product, self.space.columns
        scalars: list[list[Value]] = []
        for k in steps:
            with self._at(axis, k, {}):
                scalars.append(
                    [
                        b.splat(self._factor(product.other, product.along, *place), tile.lanes)
                        for place in self.places
                    ]
                )
        for column in b.range(first, stop, tile.lanes):
            self._mask(column, stop)
            cells = [self._cell(row, column - first) for row in range(tile.rows)]
            sums = [b.variable(b.load(self.array, cell, lanes=tile.lanes)) for cell in cells]
            for k, lefts in zip(steps, scalars, strict=True):
                with self._at(axis, k, {}):
                    line = self._factor(product.line, product.lane, column, {})
                for left, total in zip(lefts, sums, strict=True):
                    self._multiply_add(left, line, total)
            for cell, total in zip(cells, sums, strict=True):
                b.store(self.array, cell, total.get())
