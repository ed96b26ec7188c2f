"""What an equation costs, as arithmetic and as bytes moved, by the conventions of XLA's cost
analysis where it has one. A count from shapes alone: what fusion saves is not in it.

- One flop for each element of a result of arithmetic, comparison or choice, of whatever dtype; one
  transcendental instead for functions that no processor has as an instruction, and for roots.
- Moving elements (views, conversions, indexing) is no arithmetic.
- A reduction of n elements to m does n - m flops, a contraction 2 for each product, a sort of rows
  of n elements ceil(log2(n)) comparisons for each of them.
- Each operand is read once, but no more of it than the result has elements; a result is written
  once. What updates an array in place (dynamic_update_slice, scatter) touches what it writes.
- A scan costs its length times its body, a branch the most that one of them can. How often a while
  loop turns is not known: it counts for one turn, and `Cost.loops` says how many such loops there
  are. What the host does in a callback is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xcube.ir import Aval, Equation, Jaxpr, Literal
from xcube.primitives.callback import HostOnly
from xcube.primitives.lowered import (
    Barrier,
    Constant,
    Element,
    Expand,
    HostCall,
    Inline,
    Reduction,
    Structured,
)
from xcube.trace import stage


@dataclass(frozen=True, slots=True)
class Cost:
    """Operations and bytes: `flops` of plain arithmetic, calls of `transcendentals`, `nbytes` read
    and written. `loops`: while loops among it, of which one turn is counted."""

    flops: int = 0
    transcendentals: int = 0
    nbytes: int = 0
    loops: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.transcendentals + other.transcendentals,
            self.nbytes + other.nbytes,
            self.loops + other.loops,
        )

    def times(self, turns: int) -> Cost:
        """The cost of doing it so many times.

        >>> Cost(2, 0, 8).times(3)
        Cost(flops=6, transcendentals=0, nbytes=24, loops=0)
        """
        flops, calls, nbytes = self.flops, self.transcendentals, self.nbytes
        return Cost(flops * turns, calls * turns, nbytes * turns, self.loops)

    def most(self, other: Cost) -> Cost:
        """The larger of each count.

        >>> Cost(2, 1).most(Cost(1, 3))
        Cost(flops=2, transcendentals=3, nbytes=0, loops=0)
        """
        return Cost(
            max(self.flops, other.flops),
            max(self.transcendentals, other.transcendentals),
            max(self.nbytes, other.nbytes),
            max(self.loops, other.loops),
        )

    def analysis(self) -> dict[str, float]:
        """The counts under the names of JAX's `cost_analysis`; "while loops" where there are any.

        >>> Cost(2, 1, 12).analysis()
        {'flops': 2.0, 'transcendentals': 1.0, 'bytes accessed': 12.0}
        """
        found = {
            "flops": float(self.flops),
            "transcendentals": float(self.transcendentals),
            "bytes accessed": float(self.nbytes),
        }
        return {**found, "while loops": float(self.loops)} if self.loops else found


def jaxpr_cost(jaxpr: Jaxpr) -> Cost:
    """The cost of all equations, those of inner jaxprs included."""
    return sum(map(equation_cost, jaxpr.equations), Cost())


def equation_cost(eqn: Equation) -> Cost:
    """The cost of one equation."""
    lower = eqn.primitive.lower
    if isinstance(lower, Structured):
        return _structured(lower.kind, eqn.params)
    if isinstance(lower, Inline):
        return jaxpr_cost(eqn.params[lower.name])
    if isinstance(lower, Barrier | Constant):
        return Cost()
    if isinstance(lower, HostCall | HostOnly):
        return Cost(nbytes=_moved(eqn))
    if isinstance(lower, Expand):
        return jaxpr_cost(_expansion(eqn, lower))
    if isinstance(lower, Element):
        return _element(eqn, lower)
    if isinstance(lower, Reduction):
        return Cost(_read(eqn) - _written(eqn), 0, _moved(eqn))
    return _template(eqn)


# equations that hold others -------------------------------------------------------------------


def _structured(kind: str, params: dict[str, Any]) -> Cost:
    if kind == "scan":
        return jaxpr_cost(params["jaxpr"]).times(params["length"])
    if kind == "while":
        turn = jaxpr_cost(params["cond_jaxpr"]) + jaxpr_cost(params["body_jaxpr"])
        return turn + Cost(loops=1)
    found = Cost()
    for branch in params["branches"]:
        found = found.most(jaxpr_cost(branch))
    return found


def _expansion(eqn: Equation, lower: Expand) -> Jaxpr:
    """The composition that an equation stands for."""

    def expand(*args: Any) -> Sequence[Any]:
        result = lower.function(*args, **eqn.params)
        return result if eqn.primitive.multiple else [result]

    return stage(expand, [atom.aval for atom in eqn.inputs]).closed()


# elements -------------------------------------------------------------------------------------

TRANSCENDENTAL = frozenset(
    "exp exp2 expm1 log log1p log2 sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh "
    "atanh logistic pow sqrt rsqrt cbrt erf erfc erf_inv lgamma digamma igamma igammac bessel_i0e "
    "bessel_i1e zeta regularized_incomplete_beta".split()
)
MOVES = frozenset(("gather", "dynamic_slice", "dynamic_update_slice", "bitcast_convert_type"))
_ROUNDS, _ROUND, _INJECTION = 20, 5, 3  # of threefry: add, rotate by two shifts and an or, xor


def _element(eqn: Equation, lower: Element) -> Cost:
    size = eqn.outputs[0].aval.size
    if eqn.primitive.name == "dynamic_update_slice":
        _, update, *starts = [atom.aval for atom in eqn.inputs]
        return Cost(nbytes=2 * update.nbytes + sum(start.nbytes for start in starts))
    if lower.cheap or eqn.primitive.name in MOVES:
        return Cost(nbytes=_moved(eqn))
    if eqn.primitive.name in TRANSCENDENTAL:
        return Cost(0, size, _moved(eqn))
    work = _WORK.get(eqn.primitive.name)
    return Cost(size * (work(eqn.params) if work else 1), 0, _moved(eqn))


def _multiplications(params: dict[str, Any]) -> int:
    """Of a power by repeated squaring, and the division of a negative one."""
    power = abs(params["y"])
    return max(power.bit_length() + power.bit_count() - 2, 0) + (params["y"] < 0)


_WORK: dict[str, Callable[[dict[str, Any]], int]] = {
    "integer_pow": _multiplications,
    "threefry2x32": lambda params: _ROUNDS * _ROUND + (_ROUNDS // 4 + 1) * _INJECTION,
}

# primitives with kernels of their own ---------------------------------------------------------


def _template(eqn: Equation) -> Cost:
    name = eqn.primitive.name
    if name.startswith("scatter"):
        return _scatter(eqn)
    if name == "dot_general":
        (summed, _), _ = eqn.params["dimension_numbers"]
        x = eqn.inputs[0].aval
        return Cost(2 * _written(eqn) * math.prod(x.shape[d] for d in summed), 0, _moved(eqn))
    if name == "sort":
        length = eqn.inputs[0].aval.shape[eqn.params["dimension"]]
        return Cost(eqn.inputs[0].aval.size * _levels(length), 0, _moved(eqn))
    if name == "top_k":
        return Cost(_read(eqn) * _levels(eqn.params["k"] + 1), 0, _moved(eqn))
    return Cost(_written(eqn), 0, _moved(eqn))


def _levels(length: int) -> int:
    return max(length - 1, 0).bit_length()


def _scatter(eqn: Equation) -> Cost:
    _, indices, updates = [atom.aval for atom in eqn.inputs]
    combines = eqn.primitive.name != "scatter"
    read = updates.nbytes * (2 if combines else 1) + indices.nbytes
    return Cost(updates.size if combines else 0, 0, read + updates.nbytes)


# sizes ----------------------------------------------------------------------------------------


def _read(eqn: Equation) -> int:
    return sum(aval.size for aval in _operands(eqn))


def _written(eqn: Equation) -> int:
    return sum(var.aval.size for var in eqn.outputs)


def _operands(eqn: Equation) -> list[Aval]:
    return [atom.aval for atom in eqn.inputs if not isinstance(atom, Literal)]


def _moved(eqn: Equation) -> int:
    """Bytes read and written. One element of an element rule's result needs one of each operand."""
    written = sum(var.aval.nbytes for var in eqn.outputs)
    if isinstance(eqn.primitive.lower, Element):
        size = max(var.aval.size for var in eqn.outputs)
        return written + sum(min(x.size, size) * x.dtype.itemsize for x in _operands(eqn))
    return written + sum(x.nbytes for x in _operands(eqn))
