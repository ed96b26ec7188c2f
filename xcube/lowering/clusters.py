"""Groups of equations, clusters that are groups in the making, and which of their results may lie
in the memory of an operand."""

from __future__ import annotations

from dataclasses import dataclass, field

from xcube.ir import Equation, Jaxpr, Shape, Var
from xcube.lowering.expression import Expressions
from xcube.lowering.index import Index, dim, fit, ravel
from xcube.primitives.lowered import Structured

Indices = tuple[Index, ...]


@dataclass(frozen=True, eq=False)
class Group:
    """Equations that become one launch of a template.

    `members`: its own equations, results first. `outputs`: the variables it writes. `producers`:
    its equations, and the views that it reads through, by output variable. `root`: the equation
    of a template family, or None. `shape`: the iteration space; `axes`: the columns (rows
    programs). `order`: variables that are computed at the index of the space itself, operands
    before results. `reads`: the variables it reads. `in_place`: pairs (operand, result) of which
    the operand is read only where the result is written, so that they may share memory.
    """

    family: str
    shape: Shape
    axes: tuple[int, ...]
    outputs: tuple[Var, ...]
    producers: dict[Var, Equation]
    root: Equation | None = None
    order: tuple[Var, ...] = ()
    members: tuple[Equation, ...] = ()
    reads: frozenset[Var] = frozenset()
    in_place: frozenset[tuple[Var, Var]] = frozenset()

    @property
    def name(self) -> str:
        """The family and the first few operations, for people to read."""
        names = list(dict.fromkeys(eqn.primitive.name for eqn in reversed(self.members)))
        return "_".join([self.family, *(n.replace("-", "_") for n in names[:4])])

    def program(self) -> Jaxpr:
        """The group alone: what it reads are the inputs."""
        inputs: dict[Var, None] = {}
        made: dict[int, Equation] = {}

        def visit(var: Var) -> None:
            eqn = None if var in self.reads else self.producers.get(var)
            if eqn is None:
                inputs[var] = None
            elif id(eqn) not in made:
                for atom in eqn.inputs:
                    if isinstance(atom, Var):
                        visit(atom)
                made[id(eqn)] = eqn

        for var in self.outputs:
            visit(var)
        return Jaxpr(tuple(inputs), tuple(made.values()), self.outputs)


@dataclass(eq=False)
class Cluster:
    """A group in the making. `reads`: for each outside variable, the indices at which it is read;
    `order` of its equations, youngest first."""

    number: int
    family: str
    shape: Shape
    axes: tuple[int, ...] = ()
    members: list[Equation] = field(default_factory=list)
    outputs: list[Var] = field(default_factory=list)
    reads: dict[Var, set[Indices]] = field(default_factory=dict)
    root: Equation | None = None
    load: int = 0
    here: set[int] = field(default_factory=set)  # equations computed at the space's own index
    before: Cluster | None = None  # the one whose effects come before this one's
    nodes: Expressions = field(default_factory=Expressions)

    def full(self) -> Indices:
        return tuple([dim(number, extent) for number, extent in enumerate(self.shape)])

    def row(self) -> Indices:
        whole = self.full()
        return tuple([index for axis, index in enumerate(whole) if axis not in self.axes])

    def place(self, shape: Shape, axes: tuple[int, ...] = ()) -> Indices | None:
        """The index, into a result of some shape, of what is computed where the kernel is: in its
        space or, for a rows program, in its rows; None if the shape is neither's. `axes`: as if
        these were the columns."""
        axes, full = axes or self.axes, self.full()
        if (whole := fit(full, self.shape, shape)) is not None or not axes:
            return whole
        kept = [axis for axis in range(len(self.shape)) if axis not in axes]
        return fit([full[axis] for axis in kept], [self.shape[axis] for axis in kept], shape)


OVERWRITING = frozenset({"scatter", "cumulative"})  # may turn their first operand into the result


def in_place(cluster: Cluster) -> frozenset[tuple[Var, Var]]:
    """Pairs of an operand and a result that lie in memory alike and are walked alike."""
    if cluster.family == "control" and cluster.root is not None:
        return frozenset(carried(cluster.root))
    if cluster.family == "cube" and cluster.root is not None:
        return frozenset(begun(cluster.root))
    if cluster.family in OVERWRITING and cluster.root is not None:
        first, *others = cluster.root.inputs
        operands = [first] if isinstance(first, Var) and first not in others else []
    elif cluster.family == "map" or cluster.root is not None:
        operands = list(cluster.reads)
    else:  # a rows program reads a row several times
        operands = []
    return frozenset(
        (operand, result)
        for operand in operands
        for result in cluster.outputs
        if _lie_alike(operand, result) and _walked_alike(cluster, operand, result)
    )


def begun(eqn: Equation) -> list[tuple[Var, Var]]:
    """Pairs of an operand of a user's kernel and the result that begins as it, of operands that
    the kernel reads under no other name."""
    pairs = [(eqn.inputs[x], eqn.outputs[y]) for x, y in eqn.params["handle"].in_place()]
    return [(x, y) for x, y in pairs if isinstance(x, Var) and eqn.inputs.count(x) == 1]


def carried(eqn: Equation) -> list[tuple[Var, Var]]:
    """Pairs of what a loop begins and ends with, of which it reads the first nowhere else."""
    params = eqn.params
    if not isinstance(eqn.primitive.lower, Structured) or eqn.primitive.lower.kind == "cond":
        return []
    first = params.get("num_consts", 0) + params.get("cond_nconsts", 0)
    first += params.get("body_nconsts", 0)
    inits = eqn.inputs[first : first + params.get("num_carry", len(eqn.outputs))]
    pairs = zip(inits, eqn.outputs, strict=False)
    return [(x, y) for x, y in pairs if isinstance(x, Var) and eqn.inputs.count(x) == 1]


def _lie_alike(x: Var, y: Var) -> bool:
    return x.aval.size == y.aval.size and x.aval.dtype.itemsize == y.aval.dtype.itemsize


def _walked_alike(cluster: Cluster, operand: Var, result: Var) -> bool:
    if cluster.family in OVERWRITING:
        return operand.aval == result.aval
    if cluster.root is not None and result in cluster.root.outputs:
        return False  # it may have to be written before the map behind it reads
    place = cluster.place(result.aval.shape)
    if place is None or (Index(-1),) in cluster.reads[operand]:  # read whole by a template
        return False
    position = ravel(place, result.aval.shape)
    return all(ravel(at, operand.aval.shape) == position for at in cluster.reads[operand])
