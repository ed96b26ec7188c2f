"""Products that a scan need not make turn by turn are made at once, outside: loop fission.

A product of an operand that no turn changes with one that depends on the turn's slices alone
becomes one product over all turns before the loop: a recurrent network's x @ W. A carried sum of
products that nothing else reads becomes one product over all turns behind it: the gradient of its
weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xcube.ir import Atom, Axis, Equation, Jaxpr, Literal, Var, effects_of
from xcube.primitives.kinds import add
from xcube.primitives.shape import batch_front
from xcube.trace import aval_of, bind, bind_equation, stage

ROOM = 64 << 20  # bytes that stacked operands may take at any rate
SHARE = 8  # or this many times what the loop reads and writes

VIEWS = frozenset({"transpose", "reshape"})


def separated(eqn: Equation, body: Jaxpr) -> Jaxpr | None:
    """The program of a scan with these products outside; None if it has none. `body` is the scan's
    body with calls inlined."""
    names = [inner.primitive.name for inner in body.equations]
    if "dot_general" not in names:
        return None
    fission = _Fission(eqn, body)
    if not fission.before and not fission.sums:
        return None
    return stage(fission.program, [atom.aval for atom in eqn.inputs], body.name)


@dataclass(frozen=True, eq=False)
class _Sum:
    """A carried sum of products: its place in the carry, the product, the views behind it, and the
    addition."""

    place: int
    product: Equation
    views: tuple[Equation, ...]
    addition: Equation

    @property
    def equations(self) -> tuple[Equation, ...]:
        return (self.product, *self.views, self.addition)


class _Fission:
    def __init__(self, eqn: Equation, body: Jaxpr) -> None:
        self.eqn, self.body = eqn, body
        self.length = eqn.params["length"]
        first, count = eqn.params["num_consts"], eqn.params["num_carry"]
        self.consts = body.inputs[:first]
        self.carry = body.inputs[first : first + count]
        self.xs = body.inputs[first + count :]
        self.producer = {var: e for e in body.equations for var in e.outputs}
        self.fixed = self._depending_on(self.consts)
        self.turning = self._depending_on((*self.consts, *self.xs))
        sliced = [*eqn.inputs[first + count :], *eqn.outputs[count:]]
        self.room = max(ROOM, SHARE * sum(atom.aval.nbytes for atom in sliced))
        self.before = [e for e in body.equations if self._may_go_before(e)]
        self.sums = [s for n in range(count) if (s := self._sum(n)) is not None]

    def _depending_on(self, variables: Sequence[Var]) -> set[Atom]:
        """What can be computed from these variables alone."""
        found: set[Atom] = set(variables)
        for eqn in self.body.equations:
            known = all(isinstance(a, Literal) or a in found for a in eqn.inputs)
            if known and not effects_of(eqn):
                found.update(eqn.outputs)
        return found

    def _may_go_before(self, eqn: Equation) -> bool:
        if eqn.primitive.name != "dot_general" or not all(a in self.turning for a in eqn.inputs):
            return False
        if sum(a in self.fixed for a in eqn.inputs) != 1:
            return False
        behind = self._behind(eqn)
        if any(e.primitive.batch is None for e in behind):
            return False
        largest = max(var.aval.nbytes for e in behind for var in e.outputs)
        return largest * self.length <= self.room

    def _behind(self, eqn: Equation) -> list[Equation]:
        """What an equation needs, itself included, in order."""
        needed, todo = set(), [eqn]
        while todo:
            current = todo.pop()
            if id(current) not in needed:
                needed.add(id(current))
                todo += [self.producer[a] for a in current.inputs if a in self.producer]  # type: ignore[index]
        return [e for e in self.body.equations if id(e) in needed]

    def _sum(self, place: int) -> _Sum | None:
        state, out = self.carry[place], self.body.outputs[place]
        if not isinstance(out, Var) or (eqn := self.producer.get(out)) is None:
            return None
        if eqn.primitive.name != "add" or state not in eqn.inputs:
            return None
        term = eqn.inputs[1] if eqn.inputs[0] is state else eqn.inputs[0]
        if self._reads(state) != 1 or self._reads(out) != 1:
            return None
        views: list[Equation] = []
        while isinstance(term, Var) and self._reads(term) == 1:
            made = self.producer.get(term)
            if made is None:
                return None
            if made.primitive.name == "dot_general":
                return _Sum(place, made, tuple(views[::-1]), eqn) if self._gains(made) else None
            if made.primitive.name not in VIEWS:
                return None
            views.append(made)
            term = made.inputs[0]
        return None

    def _reads(self, var: Var) -> int:
        read = sum(eqn.inputs.count(var) for eqn in self.body.equations)
        return read + self.body.outputs.count(var)

    def _gains(self, product: Equation) -> bool:
        """Whether its operands are smaller than the product, and may be kept for all turns."""
        operands = [a for a in product.inputs if isinstance(a, Var) and a not in self.fixed]
        if len(operands) != 2 or product.inputs[0].aval.dtype != product.inputs[1].aval.dtype:
            return False
        nbytes = sum(a.aval.nbytes for a in operands)
        out = product.outputs[0].aval
        return nbytes <= out.nbytes and nbytes * self.length <= max(self.room, 4 * out.nbytes)

    # the new program

    def program(self, *args: Any) -> list[Any]:
        params = self.eqn.params
        first, count = len(self.consts), len(self.carry)
        consts, carry, xs = args[:first], args[first : first + count], args[first + count :]
        made = self._made_before(consts, xs)
        summed = {s.place: s for s in self.sums}
        kept = [n for n in range(count) if n not in summed]
        stacked = self._stacked_operands()
        outputs = [self.body.outputs[n] for n in kept]
        slices = self.body.outputs[count:]
        moved = {id(e) for e in (*self.before, *(e for s in self.sums for e in s.equations))}
        body = Jaxpr(
            (*self.consts, *(self.carry[n] for n in kept), *self.xs, *made),
            tuple([e for e in self.body.equations if id(e) not in moved]),
            (*outputs, *slices, *stacked),
            (),
            self.body.name,
        )
        operands = (*consts, *(carry[n] for n in kept), *xs, *made.values())
        changed = {**params, "jaxpr": body, "num_carry": len(kept)}
        results = bind(self.eqn.primitive, *operands, **changed)
        values = dict(zip(kept, results, strict=False))
        rows = dict(zip(self.xs, xs, strict=True)) | made
        rows |= dict(zip(stacked, results[len(kept) + len(slices) :], strict=True))
        values |= {place: self._total(s, carry[place], rows) for place, s in summed.items()}
        carried = [values[n] for n in range(count)]
        return [*carried, *results[len(kept) : len(kept) + len(slices)]]

    def _made_before(self, consts: Sequence[Any], xs: Sequence[Any]) -> dict[Var, Any]:
        """The products before the loop, a row for each turn."""
        axis = Axis(self.length)
        known = {v: (x, False) for v, x in zip(self.consts, consts, strict=True)}
        known.update((v, (x, True)) for v, x in zip(self.xs, xs, strict=True))
        for eqn in self._all_behind():
            inputs = [(a, False) if isinstance(a, Literal) else known[a] for a in eqn.inputs]
            values, flags = [x for x, _ in inputs], [flag for _, flag in inputs]
            if any(flags):
                outs, batched = eqn.primitive.batch(axis, values, flags, **eqn.params)  # type: ignore[misc]
                pairs = (
                    zip(outs, batched, strict=True) if eqn.primitive.multiple else [(outs, batched)]
                )
            else:
                pairs = [(out, False) for out in bind_equation(eqn, values)]
            known.update(zip(eqn.outputs, pairs, strict=True))
        found = {eqn.outputs[0]: known[eqn.outputs[0]] for eqn in self.before}
        return {v: x if flag else batch_front(x, axis.size) for v, (x, flag) in found.items()}

    def _all_behind(self) -> list[Equation]:
        needed = {id(e) for eqn in self.before for e in self._behind(eqn)}
        return [e for e in self.body.equations if id(e) in needed]

    def _stacked_operands(self) -> list[Var]:
        """What the sums' products multiply, as further slices that the loop writes."""
        made = {eqn.outputs[0] for eqn in self.before}
        atoms = [a for s in self.sums for a in s.product.inputs if isinstance(a, Var)]
        return list(dict.fromkeys(a for a in atoms if a not in self.xs and a not in made))

    def _total(self, found: _Sum, begin: Any, rows: dict[Var, Any]) -> Any:
        """The sum of all turns' products."""
        params = found.product.params
        (left, right), batch = params["dimension_numbers"]
        numbers = tuple((0, *(d + 1 for d in dims)) for dims in (left, right))
        shifted = tuple(tuple(d + 1 for d in dims) for dims in batch)
        operands = [rows[a] for a in found.product.inputs]  # type: ignore[index]
        params = {**params, "dimension_numbers": (numbers, shifted)}
        total = bind(found.product.primitive, *operands, **params)
        for view in found.views:
            total = bind(view.primitive, total, **view.params)
        assert aval_of(total).shape == aval_of(begin).shape
        return add(begin, total)
