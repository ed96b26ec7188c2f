"""Straight pieces of a program on the GPU: launched one by one at first, then as a graph that is
made once and told only which pointers changed. Graphs with control flow hold conditional nodes,
whose values small kernels set; they are made anew for pointers that they have not seen."""

from __future__ import annotations

import operator
from array import array as cell_array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from xcube.lowering.device.base import Launch
from xcube.lowering.device.cuda_code import COPIES, ONE, Code, Extent, Function, copy_extent
from xcube.lowering.device.cuda_context import Context
from xcube.lowering.device.cuda_maps import MAP_CELLS, TensorMap
from xcube.lowering.device.cuda_plan import Choose, Move, Node, Place, Repeat, Run, Straight

SINGLY = 2
"""Launches up to which a graph would gain nothing."""

WARM = 2
"""Runs of a piece without control flow before a graph of it is made."""

GRAPHS = 4
"""Graphs of one piece that are kept, for as many sets of pointers."""

_CELL = (1 << 64) - 1
_NAMES = 4  # of kernels in a message


class Task:
    """One launch: the cells of its parameters, and those among them that pointers fill."""

    def __init__(
        self,
        function: Function,
        extent: Extent,
        cells: Sequence[int],
        patches: Sequence[tuple[int, Place]],
        parameters: Iterable[int],
        maps: Sequence[tuple[int, TensorMap]] = (),
    ) -> None:
        self.function, self.extent, self._maps = function, extent, maps
        self.cells = cell_array("Q", [cell & _CELL for cell in cells])
        self.patches = tuple((cell, base, offset) for cell, (base, offset) in patches)
        start = self.cells.buffer_info()[0]
        self._addresses = cell_array("Q", [start + 8 * cell for cell in parameters])
        self.parameters = self._addresses.buffer_info()[0]
        """Address of the addresses of the parameters."""

    def fill(self, pointers: Sequence[int]) -> None:
        """Put the pointers of a run into the cells."""
        cells = self.cells
        for cell, base, offset in self.patches:
            cells[cell] = pointers[base] + offset
        for cell, map in self._maps:
            cells[cell : cell + MAP_CELLS] = map.encoded(cells[map.buffer])

    def arguments(self, stream: Any) -> tuple[Any, ...]:
        """Arguments of cuLaunchKernel."""
        function, extent = self.function, self.extent
        return (
            *(function.handle, *extent.grid, *extent.block, function.shape.shared),
            *(stream, self.parameters, 0),
        )

    def node(self, driver: Any) -> Any:
        """Parameters of a kernel node."""
        node = driver.CUDA_KERNEL_NODE_PARAMS()
        node.func = self.function.handle
        node.gridDimX, node.gridDimY, node.gridDimZ = self.extent.grid
        node.blockDimX, node.blockDimY, node.blockDimZ = self.extent.block
        node.sharedMemBytes = self.function.shape.shared
        node.kernelParams = self.parameters
        return node


class Tasks:
    """Makes tasks of nodes. `scratch`: the base of memory that kernels ask for beside buffers."""

    def __init__(self, code: Code, kernels: Sequence[int], cores: int, scratch: int) -> None:
        self._code, self._cores, self.scratch = code, cores, scratch
        self._functions = [code.function(kernel) for kernel in kernels]

    def scratch_nbytes(self, launches: Iterable[Launch]) -> int:
        """Bytes of scratch memory that serve every launch, for they run one after the other."""
        extents = (
            self._functions[each.kernel].extent(each.cubes, self._cores) for each in launches
        )
        return max((extent.scratch for extent in extents), default=0)

    def task(self, node: Run | Move) -> Task:
        return self._run(node) if isinstance(node, Run) else self._move(node)

    def test(self, handle: int, predicate: Place) -> Task:
        """Gives a conditional node the bool at a place."""
        function = self._code.own("xcube_test")
        return Task(function, ONE, [handle, 0], [(1, predicate)], range(2))

    def pick(self, handle: int, index: Place, count: int) -> Task:
        """Gives a conditional node the i32 at a place, clamped."""
        function = self._code.own("xcube_pick")
        return Task(function, ONE, [handle, 0, count], [(1, index)], range(3))

    def _run(self, run: Run) -> Task:
        """Parameters: pointers, scalars, the number of cubes, scratch memory if there is some, and
        tensor maps."""
        function = self._functions[run.kernel]
        extent = function.extent(run.cubes, self._cores)
        cells = [*[0] * len(run.places), *run.scalars, run.cubes]
        patches = list(enumerate(run.places))
        if extent.scratch:
            patches.append((len(cells), (self.scratch, 0)))
            cells.append(0)
        parameters = list(range(len(cells)))
        maps = []
        for shape in function.shape.maps:
            maps.append((len(cells), TensorMap(self._code.driver, shape, run.scalars)))
            parameters.append(len(cells))
            cells += [0] * MAP_CELLS
        return Task(function, extent, cells, patches, parameters, maps)

    def _move(self, move: Move) -> Task:
        """One kernel for all copies; its one parameter is a struct of all cells."""
        cells, patches = [0] * (3 * COPIES), []
        for number, (target, source, nbytes) in enumerate(move.copies):
            patches += [(3 * number, target), (3 * number + 1, source)]
            cells[3 * number + 2] = nbytes
        largest = max(nbytes for _, _, nbytes in move.copies)
        extent = copy_extent(largest, len(move.copies), self._cores)
        return Task(self._code.own("xcube_copy"), extent, cells, patches, range(1))


class Graph:
    """A piece as an executable graph for one set of pointers."""

    def __init__(
        self, context: Context, tasks: Tasks, nodes: Sequence[Node], pointers: Sequence[int]
    ) -> None:
        self._context, self._tasks, self._pointers = context, tasks, pointers
        self._entries: list[tuple[Any, Any, Task]] = []
        self._graph: Any = None
        self._exec: Any = None
        driver = context.driver
        self._graph = context.value(driver.cuGraphCreate(0), "cuGraphCreate")
        self._add(nodes, self._graph, None)
        self._exec = context.value(driver.cuGraphInstantiate(self._graph, 0), "cuGraphInstantiate")

    def __del__(self) -> None:
        if self._context.is_over:
            return
        driver = self._context.driver
        with self._context:
            if self._exec is not None:
                driver.cuStreamSynchronize(self._context.stream)  # it may be running
                driver.cuGraphExecDestroy(self._exec)
            if self._graph is not None:
                driver.cuGraphDestroy(self._graph)

    def launch(self) -> None:
        """Enqueue one run."""
        context = self._context
        code = context.driver.cuGraphLaunch(self._exec, context.stream)[0]
        context.check(code, "graph launch")

    def update(self, pointers: Sequence[int]) -> None:
        """Later runs use these pointers. Only for graphs without control flow."""
        context, before = self._context, self._pointers
        changed = {base for base, pointer in enumerate(pointers) if pointer != before[base]}
        for handle, node, task in self._entries:
            if any(base in changed for _, base, _ in task.patches):
                task.fill(pointers)
                code = context.driver.cuGraphExecKernelNodeSetParams(self._exec, handle, node)[0]
                context.check(code, f"new pointers for {task.function.name}")
        self._pointers = pointers

    def _add(self, nodes: Sequence[Node], graph: Any, last: Any) -> Any:
        """Add nodes behind the last one, each after the one before; gives the new last one."""
        for node in nodes:
            if isinstance(node, Repeat):
                last = self._repeat(node, graph, last)
            elif isinstance(node, Choose):
                last = self._choose(node, graph, last)
            else:
                last = self._kernel(self._tasks.task(node), graph, last)
        return last

    def _kernel(self, task: Task, graph: Any, last: Any) -> Any:
        task.fill(self._pointers)
        context, after = self._context, [] if last is None else [last]
        node = task.node(context.driver)
        added = context.driver.cuGraphAddKernelNode(graph, after, len(after), node)
        handle = context.value(added, f"a graph's node for {task.function.name}")
        self._entries.append((handle, node, task))
        return handle

    def _repeat(self, node: Repeat, graph: Any, last: Any) -> Any:
        condition = self._condition(graph)
        last = self._add(node.test, graph, last)
        last = self._kernel(self._tasks.test(int(condition), node.predicate), graph, last)
        kind = self._context.driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
        added, (body,) = self._conditional(graph, last, condition, kind, 1)
        end = self._add((*node.body, *node.test), body, None)
        self._kernel(self._tasks.test(int(condition), node.predicate), body, end)
        return added

    def _choose(self, node: Choose, graph: Any, last: Any) -> Any:
        condition, count = self._condition(graph), len(node.branches)
        last = self._kernel(self._tasks.pick(int(condition), node.index, count), graph, last)
        kind = self._context.driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_SWITCH
        added, bodies = self._conditional(graph, last, condition, kind, count)
        for branch, body in zip(node.branches, bodies, strict=True):
            self._add(branch, body, None)
        return added

    def _condition(self, graph: Any) -> Any:
        context = self._context
        made = context.driver.cuGraphConditionalHandleCreate(graph, context.handle, 0, 0)
        return context.value(made, "cuGraphConditionalHandleCreate")

    def _conditional(
        self, graph: Any, last: Any, condition: Any, kind: Any, count: int
    ) -> tuple[Any, list[Any]]:
        """A conditional node, and the empty graphs of its bodies."""
        context = self._context
        node = context.driver.CUgraphNodeParams()
        node.type = context.driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        node.conditional.handle = condition
        node.conditional.type = kind
        node.conditional.size = count
        node.conditional.ctx = context.handle
        added = context.driver.cuGraphAddNode(graph, [last], None, 1, node)
        handle = context.value(added, "a graph's conditional node")
        return handle, list(node.conditional.phGraph_out)[:count]


class Strand:
    """A straight piece, ready to be run with any pointers."""

    def __init__(self, context: Context, tasks: Tasks, straight: Straight) -> None:
        self._context, self._tasks, self._nodes = context, tasks, straight.nodes
        self._is_flat = straight.is_flat
        self._runs = 0
        self._graphs: OrderedDict[Any, Graph] = OrderedDict()
        self._used = _getter({*_bases(straight.nodes), tasks.scratch})
        self._singles: list[Task] = []
        self._filled: Any = None
        if self._is_flat:
            self._singles = [tasks.task(node) for node in straight.nodes]  # type: ignore[arg-type]
        self._launches = [task.arguments(context.stream) for task in self._singles]
        names = [task.function.name for task in self._singles] or ["a graph with control flow"]
        more = " ..." if len(names) > _NAMES else ""
        self._name = ", ".join(names[:_NAMES]) + more

    def run(self, pointers: Sequence[int]) -> None:
        """Enqueue the piece. The context is current."""
        context = self._context
        with context.lock:
            context.running = self._name
            self._runs += 1
            key = self._used(pointers)
            few = len(self._singles) <= SINGLY or self._runs <= WARM
            if self._is_flat and few:
                self._run_singly(key, pointers)
            else:
                self._graph(key, list(pointers)).launch()

    def _run_singly(self, key: Any, pointers: Sequence[int]) -> None:
        if key != self._filled:
            for task in self._singles:
                task.fill(pointers)
            self._filled = key
        launch = self._context.driver.cuLaunchKernel
        for number, arguments in enumerate(self._launches):
            code = launch(*arguments)[0]
            if code:
                name = self._singles[number].function.name
                raise self._context.failure(code, f"launch of kernel {name}")

    def _graph(self, key: Any, pointers: list[int]) -> Graph:
        """The graph for these pointers: one that was made for them, or one that can be changed."""
        found = self._graphs.get(key)
        if found is not None:
            self._graphs.move_to_end(key)
            return found
        if len(self._graphs) < GRAPHS:
            found = Graph(self._context, self._tasks, self._nodes, pointers)
        else:
            _, found = self._graphs.popitem(last=False)
            if self._is_flat:
                found.update(pointers)
            else:
                found = Graph(self._context, self._tasks, self._nodes, pointers)
        self._graphs[key] = found
        return found


def _bases(nodes: Sequence[Node]) -> set[int]:
    """The bases that nodes refer to."""
    found: set[int] = set()
    for node in nodes:
        if isinstance(node, Run):
            found.update(base for base, _ in node.places)
        elif isinstance(node, Move):
            found.update(place[0] for copy in node.copies for place in copy[:2])
        elif isinstance(node, Repeat):
            found |= {node.predicate[0]} | _bases((*node.test, *node.body))
        else:
            found.add(node.index[0])
            found |= _bases([inner for branch in node.branches for inner in branch])
    return found


def _getter(bases: set[int]) -> Callable[[Sequence[int]], Any]:
    return operator.itemgetter(*sorted(bases)) if bases else lambda pointers: ()
