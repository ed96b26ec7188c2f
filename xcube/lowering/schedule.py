"""jaxpr -> groups: which equations share a kernel.

Equations are visited from the results backwards; each is put where its values are consumed, if
that kernel can compute them where it needs them, or else begins a kernel of its own. What decides
is how a kernel reads a variable: the index of every read, as a function of the kernel's
iteration space, is known exactly (see expression.py).

    map       one shape; every result is a function of the index
    rows      a map over rows x columns with reductions over the columns: softmax, norms
    template  a family of kernels of its own; results may pass through a map behind it
    control   control flow, a host call or a barrier: reads and writes whole variables
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from xcube import dtypes
from xcube.ir import Equation, Jaxpr, Shape, Var, effects_of
from xcube.lowering.clusters import Cluster, Group, Indices, in_place
from xcube.lowering.expression import COSTLY, EquationElements, Evaluator, Node
from xcube.lowering.index import Dynamic, Index
from xcube.primitives.lowered import (
    Barrier,
    Constant,
    Element,
    HostCall,
    Reduction,
    Structured,
    Template,
)

LIMIT = 128  # load of a kernel, in simple equations: bounds compile time and recursion depth
DEEP = 40  # weight of a view of views from which it is written to memory
FEW_ROWS = 8  # a program of so few long rows would leave processors idle
LONG = 1 << 16
WASTE = 1.6  # how often an element may be computed anew for want of a common index


def schedule(jaxpr: Jaxpr) -> list[Group]:
    """Groups in an order in which they can run."""
    return _Scheduler(jaxpr).run()


class _Scheduler:
    def __init__(self, jaxpr: Jaxpr) -> None:
        self.jaxpr = jaxpr
        self.producer = {var: eqn for eqn in jaxpr.equations for var in eqn.outputs}
        self.position = {id(eqn): number for number, eqn in enumerate(jaxpr.equations)}
        self.results = {atom for atom in jaxpr.outputs if isinstance(atom, Var)}
        self.views = _views(jaxpr)
        self.clusters: list[Cluster] = []
        self.owner: dict[Var, Cluster] = {}
        self.readers: dict[Var, list[Cluster]] = {}
        self.effect: Cluster | None = None  # the first one with effects that has been placed
        self.asked = {  # must be in memory: read whole by a template, or a view too deep
            var for var, eqn in self.producer.items() if _is_view(eqn) and var not in self.views
        }

    def run(self) -> list[Group]:
        for eqn in reversed(self.jaxpr.equations):
            self._place(eqn)
        self._merge_siblings()
        return [self._group(cluster) for cluster in self._ordered()]

    # placing one equation

    def _place(self, eqn: Equation) -> None:
        lower = eqn.primitive.lower
        wanted = [v for v in eqn.outputs if v in self.results or v in self.asked]
        if isinstance(lower, Template):
            self._place_template(eqn, lower)
        elif isinstance(lower, Reduction):
            self._place_reduction(eqn)
        elif isinstance(lower, WHOLE):
            self._place_control(eqn)
        elif isinstance(lower, Element):
            if eqn.outputs[0] not in self.views or wanted:
                self._place_element(eqn, bool(wanted))
        else:
            raise TypeError(f"{eqn.primitive.name} has no lowering rule")

    def _consumers(self, eqn: Equation) -> list[Cluster]:
        found: dict[int, Cluster] = {}
        for var in eqn.outputs:
            found.update((c.number, c) for c in self.readers.get(var, ()))
        return list(found.values())

    def _place_element(self, eqn: Equation, wanted: bool) -> None:
        consumers = self._consumers(eqn)
        for cluster in consumers:
            self._foresee_rows(eqn, cluster, consumers)
        if not wanted and consumers and self._join_all(eqn, consumers):
            return
        space, out = eqn.primitive.lower.space, eqn.outputs[0].aval
        shape = out.shape if space is None else space(out, **eqn.params)
        for cluster in consumers:
            if self._identical(eqn, cluster) and self._may_own(eqn, cluster, consumers):
                self._adopt(cluster, eqn)
                self._write(cluster, eqn, wanted or len(consumers) > 1)
                return
        cluster = self._new("map", shape)
        self._adopt(cluster, eqn, cluster.full())
        self._write(cluster, eqn, True)

    def _join_all(self, eqn: Equation, consumers: list[Cluster]) -> bool:
        """Compute the equation inside every consumer, where that costs little."""
        if len(consumers) > 1 and not _repeatable(eqn):
            return False
        if not all(self._may_inline(eqn, cluster) for cluster in consumers):
            return False
        for cluster in consumers:
            self._adopt(cluster, eqn)
        return True

    def _may_inline(self, eqn: Equation, cluster: Cluster) -> bool:
        if cluster.load >= LIMIT:
            return False
        if self._identical(eqn, cluster):
            return True
        reads = sum(len(cluster.reads.get(var, ())) for var in eqn.outputs)
        size = max(1, eqn.outputs[0].aval.size)
        space = math.prod(cluster.shape)
        if cluster.outputs and any(var in self.asked for var in cluster.outputs):
            return _repeatable(eqn)  # what packs an operand walks it against the grain
        if any(_data_dependent(i) for var in eqn.outputs for i in cluster.reads.get(var, ())):
            return _repeatable(eqn)
        return reads * space <= WASTE * size or (_repeatable(eqn) and eqn.outputs[0].aval.ndim == 0)

    def _identical(self, eqn: Equation, cluster: Cluster) -> bool:
        """Whether a cluster reads the equation's results only where it is anyway."""
        if cluster.load >= LIMIT:
            return False
        seen = [cluster.reads[var] for var in eqn.outputs if var in cluster.reads]
        place = cluster.place(eqn.outputs[0].aval.shape)
        return place is not None and all(reads == {place} for reads in seen)

    def _foresee_rows(self, eqn: Equation, cluster: Cluster, consumers: Iterable[Cluster]) -> None:
        """Make a map a rows program before its reduction comes, where an equation lies between the
        two: the mean of a row, say."""
        shape = eqn.outputs[0].aval.shape
        if cluster.family != "map" or cluster.place(shape) is not None:
            return
        if (axes := self._columns_behind(eqn, cluster.shape)) is None:
            return
        place = cluster.place(shape, axes)
        seen = [cluster.reads[var] for var in eqn.outputs if var in cluster.reads]
        fits = place is not None and all(reads == {place} for reads in seen)
        if fits and self._may_own(eqn, cluster, consumers):
            self._become_rows(cluster, cluster.shape, axes)

    def _columns_behind(self, eqn: Equation, space: Shape) -> tuple[int, ...] | None:
        """The axes of a reduction of a space from which an equation computes with its results
        alone."""
        size, todo, seen = eqn.outputs[0].aval.size, [eqn], set()
        while todo and len(seen) < LIMIT:
            current = todo.pop()
            if isinstance(current.primitive.lower, Reduction):
                axes = current.params["axes"]
                if current.inputs[0].aval.shape == space and _many_rows(space, axes):
                    return axes
                continue
            behind = [self.producer[a] for a in current.inputs if a in self.producer]
            fresh = [p for p in behind if id(p) not in seen and p.outputs[0].aval.size == size]
            seen.update(id(p) for p in fresh)
            todo += fresh
        return None

    def _may_own(self, eqn: Equation, cluster: Cluster, consumers: Iterable[Cluster]) -> bool:
        """Whether the other consumers can run after a cluster that writes the results."""
        if cluster.root is not None and eqn.outputs[0].aval.shape != cluster.shape:
            return False
        others = [other for other in consumers if other is not cluster]
        return not any(self._depends(cluster, other) for other in others)

    def _place_reduction(self, eqn: Equation) -> None:
        consumers = self._consumers(eqn)
        space, axes = eqn.inputs[0].aval.shape, eqn.params["axes"]
        wanted = any(v in self.results or v in self.asked for v in eqn.outputs)
        for cluster in consumers:
            if self._takes_reduction(cluster, eqn, space, axes) and self._may_own(
                eqn, cluster, consumers
            ):
                self._become_rows(cluster, space, axes)
                self._adopt(cluster, eqn)
                self._write(cluster, eqn, wanted or len(consumers) > 1)
                return
        cluster = self._new("rows", space, axes)
        self._adopt(cluster, eqn, cluster.row())
        self._write(cluster, eqn, True)

    def _takes_reduction(
        self, cluster: Cluster, eqn: Equation, space: Shape, axes: tuple[int, ...]
    ) -> bool:
        if cluster.root is not None or cluster.load >= LIMIT:
            return False
        if not _many_rows(space, axes):
            return False
        reads = [cluster.reads[var] for var in eqn.outputs if var in cluster.reads]
        if cluster.shape == space and cluster.axes in ((), axes):
            row = tuple([i for axis, i in enumerate(cluster.full()) if axis not in axes])
            return all(read == {row} for read in reads)
        if cluster.axes:
            return False
        place = cluster.place(tuple([s for axis, s in enumerate(space) if axis not in axes]))
        return place is not None and all(read == {place} for read in reads)

    def _become_rows(self, cluster: Cluster, space: Shape, axes: tuple[int, ...]) -> None:
        """Turn a map into a rows program: over the same space, or over its rows."""
        if cluster.axes:
            return
        before = cluster.shape
        cluster.family, cluster.shape, cluster.axes = "rows", space, axes
        if before != space:
            self._probe_again(cluster)

    def _place_template(self, eqn: Equation, template: Template) -> None:
        family, consumers = template.family, self._consumers(eqn)
        wanted = any(v in self.results or v in self.asked for v in eqn.outputs)
        for atom in eqn.inputs:
            if isinstance(atom, Var):
                self.asked.add(atom)
        shape = eqn.outputs[0].aval.shape
        if family in EPILOGUES:
            for cluster in consumers:
                fits = cluster.family == "map" and cluster.root is None and cluster.shape == shape
                fits = fits and not (template.is_plain and _is_heavy(cluster))
                if (
                    fits
                    and self._identical(eqn, cluster)
                    and self._may_own(eqn, cluster, consumers)
                ):
                    cluster.family, cluster.root = family, eqn
                    self._adopt(cluster, eqn)
                    self._write(cluster, eqn, wanted or len(consumers) > 1)
                    return
        cluster = self._new(family, shape)
        cluster.root = eqn
        self._adopt(cluster, eqn, cluster.full())
        self._write(cluster, eqn, True)

    def _place_control(self, eqn: Equation) -> None:
        self.asked.update(atom for atom in eqn.inputs if isinstance(atom, Var))
        cluster = self._new("control", ())
        cluster.root = eqn
        self._adopt(cluster, eqn, ())
        cluster.outputs += eqn.outputs
        self.owner.update((var, cluster) for var in eqn.outputs)
        if effects_of(eqn):
            if self.effect is not None:
                self.effect.before = cluster
            self.effect = cluster

    # clusters

    def _new(self, family: str, shape: Shape, axes: tuple[int, ...] = ()) -> Cluster:
        cluster = Cluster(len(self.clusters), family, shape, axes)
        self.clusters.append(cluster)
        return cluster

    def _write(self, cluster: Cluster, eqn: Equation, materialise: bool) -> None:
        """Declare which of an equation's results a cluster writes to memory."""
        if not materialise:
            return
        for var in eqn.outputs:
            used = var in self.results or var in self.asked or self.readers.get(var)
            if used or len(eqn.outputs) == 1:
                cluster.outputs.append(var)
                self.owner[var] = cluster

    def _adopt(self, cluster: Cluster, eqn: Equation, at: Indices | None = None) -> None:
        """Make an equation a member and follow its reads."""
        cluster.members.append(eqn)
        cluster.load += _load(eqn)
        indices: set[Indices] = set() if at is None else {at}
        for var in eqn.outputs:
            indices |= cluster.reads.pop(var, set())
            if cluster in self.readers.get(var, ()):
                self.readers[var].remove(cluster)
        indices = indices or {cluster.full()}
        if isinstance(eqn.primitive.lower, WHOLE):
            self._read_whole(cluster, eqn)
            return
        if indices == {cluster.place(eqn.outputs[0].aval.shape)}:
            cluster.here.add(id(eqn))
        for index in indices:
            self._probe(cluster, eqn, index)

    def _probe(self, cluster: Cluster, eqn: Equation, index: Indices) -> None:
        """Record what an equation's elements at an index read, views looked through."""
        lower = eqn.primitive.lower
        if isinstance(lower, Template):
            self._read_whole(cluster, eqn)
            return
        evaluator = self._evaluator(cluster)
        if isinstance(lower, Reduction):
            whole = cluster.full()
            for atom in eqn.inputs:
                evaluator.read(atom, whole)
        else:
            lower.rule(EquationElements(evaluator, eqn), index, **eqn.params)

    def _read_whole(self, cluster: Cluster, eqn: Equation) -> None:
        for atom in eqn.inputs:
            if isinstance(atom, Var):
                self._record(cluster, atom, (Index(-1),))

    def _evaluator(self, cluster: Cluster) -> Evaluator:
        def intercept(var: Var, index: Indices) -> Node | None:
            if var in self.views:
                return None
            self._record(cluster, var, index)
            dtype = dtypes.short_name(var.aval.dtype)
            return cluster.nodes.make("load", dtype, (), (var, Index(0), ()))

        return Evaluator(cluster.nodes, self.views, intercept)

    def _record(self, cluster: Cluster, var: Var, index: Indices) -> None:
        cluster.reads.setdefault(var, set()).add(index)
        readers = self.readers.setdefault(var, [])
        if cluster not in readers:
            readers.append(cluster)

    def _probe_again(self, cluster: Cluster) -> None:
        """Follow all reads anew after the space has changed."""
        for var in list(cluster.reads):
            self.readers[var].remove(cluster)
        members, cluster.members, cluster.reads, cluster.load = cluster.members, [], {}, 0
        cluster.here = set()
        own = {var for eqn in members for var in eqn.outputs}
        written = {id(self.producer[var]) for var in cluster.outputs}
        for eqn in members:
            read = any(var in cluster.reads for var in eqn.outputs)
            at = cluster.place(eqn.outputs[0].aval.shape)
            at = at if id(eqn) in written or not read else None
            self._adopt(cluster, eqn, at)
        assert not own & set(cluster.reads), "an equation was probed before its reader"

    def _depends(self, cluster: Cluster, other: Cluster) -> bool:
        """Whether a cluster needs results of another, directly or not."""
        seen, todo = set(), [cluster]
        while todo:
            current = todo.pop()
            if current is other:
                return True
            if current.number in seen:
                continue
            seen.add(current.number)
            todo += [self.owner[var] for var in current.reads if var in self.owner]
            todo += [current.before] if current.before is not None else []
        return False

    def _merge_siblings(self) -> None:
        """Kernels over one space that read the same variables become one."""
        needed = self._needed()
        by_space: dict[Any, list[Cluster]] = {}
        for cluster in self.clusters:
            if cluster.root is None:
                space = (cluster.family, cluster.shape, cluster.axes)
                by_space.setdefault(space, []).append(cluster)
        for siblings in by_space.values():
            for position, first in enumerate(siblings):
                for second in siblings[position + 1 :]:
                    either = needed[first.number] >> second.number
                    either |= needed[second.number] >> first.number
                    if either & 1 or not (first.members and second.members):
                        continue
                    if _alike(first, second):
                        self._merge(first, second)
                        _join(needed, first.number, second.number)

    def _needed(self) -> list[int]:
        """For each cluster, the clusters whose results it needs, directly or not, as a bit mask."""
        needed = [0] * len(self.clusters)
        for cluster in self._ordered():
            for need in self._needs(cluster):
                needed[cluster.number] |= needed[need.number] | 1 << need.number
        return needed

    def _merge(self, first: Cluster, second: Cluster) -> None:
        first.members = sorted(
            {id(e): e for e in (*first.members, *second.members)}.values(),
            key=lambda eqn: -self.position[id(eqn)],
        )
        first.load += second.load
        first.here |= second.here
        for var in second.outputs:
            if var not in first.outputs:
                first.outputs.append(var)
            self.owner[var] = first
        for var, indices in second.reads.items():
            first.reads.setdefault(var, set()).update(indices)
            readers = self.readers[var]
            readers.remove(second)
            if first not in readers:
                readers.append(first)
        second.members, second.outputs, second.reads = [], [], {}

    def _ordered(self) -> list[Cluster]:
        """Clusters after what they read, else in the program's order."""
        order: list[Cluster] = []
        done: set[int] = set()

        def visit(cluster: Cluster) -> None:
            stack = [(cluster, iter(self._needs(cluster)))]
            done.add(cluster.number)
            while stack:
                current, needs = stack[-1]
                for need in needs:
                    if need.number not in done:
                        done.add(need.number)
                        stack.append((need, iter(self._needs(need))))
                        break
                else:
                    order.append(current)
                    stack.pop()

        alive = [c for c in self.clusters if c.members]
        for cluster in sorted(alive, key=self._last):
            if cluster.number not in done:
                visit(cluster)
        return order

    def _last(self, cluster: Cluster) -> int:
        return max(self.position[id(eqn)] for eqn in cluster.members)

    def _needs(self, cluster: Cluster) -> list[Cluster]:
        owners = {self.owner[v].number: self.owner[v] for v in cluster.reads if v in self.owner}
        if cluster.before is not None:
            owners[cluster.before.number] = cluster.before
        return sorted((c for c in owners.values() if c is not cluster), key=self._last)

    def _group(self, cluster: Cluster) -> Group:
        producers = dict(self.views)
        producers.update((var, eqn) for eqn in cluster.members for var in eqn.outputs)
        order = [eqn.outputs[0] for eqn in reversed(cluster.members) if id(eqn) in cluster.here]
        return Group(
            cluster.family,
            cluster.shape,
            cluster.axes,
            tuple(cluster.outputs),
            producers,
            cluster.root,
            tuple(order),
            tuple(cluster.members),
            frozenset(cluster.reads),
            in_place(cluster),
        )


def _is_view(eqn: Equation) -> bool:
    return isinstance(eqn.primitive.lower, Element) and eqn.primitive.lower.cheap


def _views(jaxpr: Jaxpr) -> dict[Var, Equation]:
    """The equations that kernels look through, by result. What it costs to look through a view of
    views doubles where it is read twice and where a reshape divides its index."""
    weights: dict[Var, int] = {}
    views: dict[Var, Equation] = {}
    for eqn in jaxpr.equations:
        if not _is_view(eqn):
            continue
        weight = 1 + sum(weights.get(atom, 0) for atom in eqn.inputs if isinstance(atom, Var))
        weight *= 2 if eqn.primitive.name == "reshape" else 1
        if weight < DEEP:
            views.update((var, eqn) for var in eqn.outputs)
            weights.update((var, weight) for var in eqn.outputs)
    return views


def _load(eqn: Equation) -> int:
    """How much code an equation becomes, in simple operations."""
    return 8 if _is_long(eqn) else 1


def _is_heavy(cluster: Cluster) -> bool:
    """Whether a map computes long functions, or reads more than a product and one array more."""
    size = math.prod(cluster.shape)
    arrays = sum(var.aval.size == size for var in cluster.reads)
    return arrays > 2 or any(map(_is_long, cluster.members))


def _is_long(eqn: Equation) -> bool:
    """Whether an equation is a function of many operations."""
    return eqn.primitive.name in COSTLY - QUICK


QUICK = frozenset({"div", "rem", "sqrt", "rsqrt"})


def _alike(first: Cluster, second: Cluster) -> bool:
    """Whether two kernels over one space read an array in the same way."""
    if first.load + second.load > LIMIT:
        return False
    return any(
        var.aval.ndim and var.aval.size > 1 and first.reads[var] & second.reads[var]
        for var in first.reads
        if var in second.reads
    )


def _join(needed: list[int], first: int, second: int) -> None:
    """Record that two clusters became one."""
    both = 1 << first | 1 << second
    needed[first] |= needed[second]
    for number, mask in enumerate(needed):
        if mask & both:
            needed[number] |= both | needed[first]


WHOLE = Structured | HostCall | Barrier | Constant
EPILOGUES = frozenset({"matmul", "convolve"})


def _repeatable(eqn: Equation) -> bool:
    """Whether computing an equation twice costs no more than reading its result."""
    result, *others = eqn.outputs
    if eqn.primitive.name in COSTLY or others:
        return False
    tensors = [atom for atom in eqn.inputs if isinstance(atom, Var) and atom.aval.ndim]
    return len(tensors) <= 1 and all(x.aval.nbytes <= result.aval.nbytes for x in tensors)


def _data_dependent(indices: Indices) -> bool:
    return any(isinstance(s, Dynamic) for index in indices for s in index.symbols)


def _many_rows(space: Shape, axes: Sequence[int]) -> bool:
    rows = math.prod(size for axis, size in enumerate(space) if axis not in axes)
    return rows >= FEW_ROWS or math.prod(space) <= LONG
