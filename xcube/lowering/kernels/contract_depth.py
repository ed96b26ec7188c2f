"""Contractions without packing, lines along the depth: lines of both factors are multiplied, and
the lanes of the sums are added at the end."""

from __future__ import annotations

from typing import Any

from xcube.lowering.cube.build import Value
from xcube.lowering.expression import Node
from xcube.lowering.kernels.contract_cubes import Cubes, Places, Sums
from xcube.lowering.kernels.space import Axis


class Depth(Cubes):
    """Lines lie along the innermost axis of the depth."""

    def _extents(self) -> tuple[int, int]:
        both = (self.product.along, self.product.across)
        along, across = [1 if axis is None else axis.extent for axis in both]
        return along, across

    def _steps(self) -> tuple[int, int]:
        return self.tile.rows, self.tile.lines

    def _tiles(self, down: Value, stop_down: Value, across: Value, stop_across: Value) -> None:
        for column in self.b.range(across, stop_across, self.tile.lines):
            for row in self.b.range(down, stop_down, self.tile.rows):
                self._tile(row, column)

    def _tile(self, row: Value, column: Value) -> None:
        tile, product, extents = self.tile, self.product, self._extents()
        first = self._clamped(row, extents[0], tile.rows)
        second = self._clamped(column, extents[1], tile.lines)
        lefts = self._places(product.other, product.along, first, tile.rows, 1)
        rights = self._places(product.line, product.across, second, tile.lines, 1)
        sums = self._sums(tile.rows, tile.lines)
        *above, _ = self.space.columns
        self._nest(above, lambda: self._line_loop(sums, lefts, rights))
        for cells, (down, _) in zip(sums, lefts, strict=True):
            for cell, (across, _) in zip(cells, rights, strict=True):
                with (
                    self._own(down, row, extents[0], tile.rows),
                    self._own(across, column, extents[1], tile.lines),
                ):
                    self._write_element(down, across, cell.get())

    def _line_loop(self, sums: Sums, lefts: Places, rights: Places) -> None:
        """Whole lines of the depth, then what is left."""
        b, lanes, lane = self.b, self.tile.lanes, self.product.lane
        end = self.arguments.scalar(("extent", lane.dims), lane.extent)
        whole = end if lane.extent % lanes == 0 else end - end % b.constant(lanes, "index")
        for k in b.range(0, whole, lanes):
            self._step(k, sums, lefts, rights)
        if lane.extent % lanes:
            self.emit.mask_from(whole, end, True)
            self._step(whole, sums, lefts, rights)
            self.emit.mask = None

    def _step(self, k: Value, sums: Sums, lefts: Places, rights: Places) -> None:
        product = self.product
        with self._at(product.lane, k, {}):
            right = [self._line(product.line, product.across, *place) for place in rights]
            for cells, place in zip(sums, lefts, strict=True):
                left = self._line(product.other, product.along, *place)
                for cell, line in zip(cells, right, strict=True):
                    self._multiply_add(left, line, cell)

    def _line(self, node: Node, axis: Axis | None, place: Value, scope: dict[Any, Any]) -> Value:
        """A line of a factor, zero behind the end of the depth."""
        value = self.b.splat(self._factor(node, axis, place, scope), self.tile.lanes)
        if self.emit.mask is None:
            return value
        return self.b.select(self.emit.mask, value, self.b.constant(0, node.dtype))

    def _write_element(self, down: Value, across: Value, line: Value) -> None:
        product = self.product
        with self._at(product.along, down, {}), self._at(product.across, across, {}):
            self.emit.folds[product.fold] = [self.b.reduce("add", line)]
            self.emit.write(self.space.results)
