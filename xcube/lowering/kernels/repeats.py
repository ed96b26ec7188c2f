"""Groups that are like one built before get its kernels: layers of a network differ in their
variables only. What makes two groups alike is a key of their equations, in which variables are
numbered in the order of their appearance."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from xcube.ir import Atom, Equation, Literal, Var
from xcube.lowering import tune
from xcube.lowering.clusters import Group
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels.work import Work

Build = Callable[[Group, Facts, frozenset[Var]], list[Work]]

LIMIT = 4096  # groups remembered

_built: dict[Any, list[tuple[Work, tuple[int, ...]]]] = {}
_lock = threading.Lock()


def build(group: Group, facts: Facts, sources: frozenset[Var], template: Build) -> list[Work]:
    """The launches that a template makes of a group, or those that it made of its like."""
    numbers = _Numbers(group)
    key = (facts, numbers.key(sources))
    if (found := _built.get(key)) is not None:
        variables = list(numbers.variables)
        return [work.on(tuple([variables[n] for n in places])) for work, places in found]
    works = template(group, facts, sources)
    if all(var in numbers.variables for work in works for var in work.buffers):
        _remember(key, [(w, tuple([numbers.variables[v] for v in w.buffers])) for w in works])
    return works


def clear() -> None:
    """Forget all groups."""
    _built.clear()


def _remember(key: Any, works: list[tuple[Work, tuple[int, ...]]]) -> None:
    with _lock:
        if len(_built) >= LIMIT:
            _built.pop(next(iter(_built)))
        _built[key] = works


class _Numbers:
    """A group's equations, results first, and numbers of its variables as they appear there."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.variables: dict[Var, int] = {}
        self.equations: dict[int, Equation] = {}
        for eqn in (*group.members, *([group.root] if group.root is not None else [])):
            self._reach(eqn)
        for var in group.outputs:
            self._number(var)

    def key(self, sources: frozenset[Var]) -> Any:
        group, number = self.group, self.variables.__getitem__
        return (
            (group.name, group.family, group.shape, group.axes, tune.answers()),
            tuple(map(number, group.outputs)),
            tuple(map(number, group.order)),
            tuple(sorted(map(number, sources))),
            tuple(sorted((number(x), number(y)) for x, y in group.in_place)),
            group.root is not None and number(group.root.outputs[0]),
            tuple(map(self._described, self.equations.values())),
        )

    def _reach(self, eqn: Equation) -> None:
        """Number the results and operands of an equation and of all that the group makes for it."""
        todo = [eqn]
        while todo:
            current = todo.pop()
            if id(current) in self.equations:
                continue
            self.equations[id(current)] = current
            for atom in (*current.outputs, *current.inputs):
                if isinstance(atom, Var):
                    self._number(atom)
                    if (made := self.group.producers.get(atom)) is not None:
                        todo.append(made)

    def _number(self, var: Var) -> None:
        self.variables.setdefault(var, len(self.variables))

    def _described(self, eqn: Equation) -> Any:
        return (
            eqn.primitive,
            tuple(sorted(eqn.params.items(), key=lambda item: item[0])),
            tuple([self.variables[var] for var in eqn.outputs]),
            tuple([var.aval for var in eqn.outputs]),
            tuple(map(self._operand, eqn.inputs)),
        )

    def _operand(self, atom: Atom) -> Any:
        if isinstance(atom, Literal):
            return atom.aval, atom.value.tobytes()
        return self.variables[atom], atom.aval
