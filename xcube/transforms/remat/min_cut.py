"""Minimum cut of a network by Dinic's algorithm (E. A. Dinic, Soviet Math. Doklady 11, 1970). Exact
in integers, hence the same cut on every machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Network:
    """Nodes 0..size-1 and directed edges; capacities are given per cut, so that one network serves
    many weightings."""

    def __init__(self, size: int, edges: Iterable[tuple[int, int]]) -> None:
        self._heads: list[int] = []
        self._edges_of: list[list[int]] = [[] for _ in range(size)]
        for tail, head in edges:  # edge 2k and its reverse 2k + 1
            self._edges_of[tail].append(len(self._heads))
            self._edges_of[head].append(len(self._heads) + 1)
            self._heads += (head, tail)

    def source_side(self, source: int, sink: int, capacities: Sequence[int]) -> list[bool]:
        """Of each node, whether it lies on the source's side of the minimum cut that is nearest to
        the source."""
        self._left = [c for capacity in capacities for c in (capacity, 0)]
        while (levels := self._levels(source))[sink] >= 0:
            self._block(source, sink, levels)
        return [level >= 0 for level in levels]

    def _levels(self, source: int) -> list[int]:
        """Distances from the source over edges with capacity left; -1 where there is no way."""
        levels = [-1] * len(self._edges_of)
        levels[source], queue = 0, [source]
        for node in queue:
            for edge in self._edges_of[node]:
                head = self._heads[edge]
                if self._left[edge] > 0 and levels[head] < 0:
                    levels[head] = levels[node] + 1
                    queue.append(head)
        return levels

    def _block(self, source: int, sink: int, levels: list[int]) -> None:
        """Send flow along shortest ways until each of them has a full edge."""
        ways = [iter(edges) for edges in self._edges_of]
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                node = self._send(source, path)
            elif (edge := self._next(node, ways, levels)) is not None:
                path.append(edge)
                node = self._heads[edge]
            elif not path:
                return
            else:
                levels[node] = -1
                node = self._heads[path.pop() ^ 1]

    def _next(self, node: int, ways: list, levels: list[int]) -> int | None:
        """The next edge of a node that leads one level on."""
        wanted = levels[node] + 1
        for edge in ways[node]:
            if self._left[edge] > 0 and levels[self._heads[edge]] == wanted:
                return edge
        return None

    def _send(self, source: int, path: list[int]) -> int:
        """Send what the path holds; the path is cut before its first full edge. Gives its end."""
        amount = min(self._left[edge] for edge in path)
        full = len(path)
        for place, edge in reversed(list(enumerate(path))):
            self._left[edge] -= amount
            self._left[edge ^ 1] += amount
            if not self._left[edge]:
                full = place
        end = self._heads[path[full] ^ 1]
        del path[full:]
        return end
