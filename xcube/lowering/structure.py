"""Control flow simplified: its bodies are simplified, what no turn changes moves out of loops, and
what nobody asks for is dropped.

Bodies are flat jaxprs afterwards, the operands of control flow are variables, and literals among
them are written into the bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from xcube.ir import Atom, Equation, Jaxpr, Literal, Primitive, Var, effects_of
from xcube.lowering.bounded import in_pieces
from xcube.lowering.expression import COSTLY
from xcube.lowering.fission import separated
from xcube.primitives.index import scattered_update
from xcube.primitives.lowered import Element, Inline, Structured
from xcube.primitives.shape import full, reshape
from xcube.primitives.view import concatenate, slice_in_dim
from xcube.trace import evaluate, stage


class Flattener(Protocol):
    """What simplification asks of the walk that it is part of."""

    def inline(self, jaxpr: Jaxpr, args: Sequence[Atom]) -> list[Atom]: ...

    def inlined(self, jaxpr: Jaxpr) -> Jaxpr: ...

    def body(self, jaxpr: Jaxpr, known: dict[Var, Literal]) -> Jaxpr: ...

    def equation(self, eqn: Equation, inputs: tuple[Atom, ...]) -> Sequence[Atom]: ...

    def variable(self, atom: Atom) -> Var: ...

    def append(self, eqn: Equation, key: Any = None) -> tuple[Var, ...]: ...


LARGE = 512  # elements of a carried array from which writing a window of it in place pays
SMALLER = 4  # times that the window must be smaller


def simplified(flat: Flattener, eqn: Equation, inputs: tuple[Atom, ...]) -> Sequence[Atom]:
    """The results of control flow, simplified into `flat`."""
    return SIMPLIFIED[eqn.primitive.lower.kind](flat, eqn, inputs)


# loops ----------------------------------------------------------------------------------------


def _scan(flat: Flattener, eqn: Equation, inputs: tuple[Atom, ...]) -> Sequence[Atom]:
    params = eqn.params
    length, unroll = params["length"], params["unroll"]
    if length <= 1 or unroll is True or unroll >= length:
        return flat.inline(_unrolled(eqn), inputs)
    if (pieces := in_pieces(eqn)) is not None:
        return flat.inline(pieces, inputs)
    body = flat.inlined(params["jaxpr"])
    if (parts := separated(eqn, body)) is not None:
        return flat.inline(parts, inputs)
    loop = _Loop(flat, inputs, params["num_consts"], params["num_carry"])
    loop.add(body, range(params["num_consts"]))
    loop.simplify()
    if not loop.carry and not loop.bodies[0].outputs and not loop.bodies[0].effects:
        return loop.results([])
    jaxpr, consts = loop.jaxpr(0)
    xs = inputs[params["num_consts"] + params["num_carry"] :]
    operands = (*consts, *loop.inits(), *map(flat.variable, xs))
    changed = {"jaxpr": jaxpr, "num_consts": len(consts), "num_carry": len(loop.carry)}
    return loop.results(_appended(flat, eqn, operands, {**params, **changed}, jaxpr))


def _while(flat: Flattener, eqn: Equation, inputs: tuple[Atom, ...]) -> Sequence[Atom]:
    params = eqn.params
    first, second = params["cond_nconsts"], params["body_nconsts"]
    count = len(inputs) - first - second
    loop = _Loop(flat, inputs, first + second, count)
    loop.add(params["body_jaxpr"], range(first, first + second))
    loop.add(params["cond_jaxpr"], range(first), is_test=True)
    loop.simplify()
    body, body_consts = loop.jaxpr(0)
    test, test_consts = loop.jaxpr(1)
    operands = (*test_consts, *body_consts, *loop.inits())
    changed = {
        "cond_jaxpr": test,
        "cond_nconsts": len(test_consts),
        "body_jaxpr": body,
        "body_nconsts": len(body_consts),
    }
    return loop.results(_appended(flat, eqn, operands, {**params, **changed}, body))


def _appended(
    flat: Flattener, eqn: Equation, operands: Iterable[Var], params: dict[str, Any], like: Jaxpr
) -> tuple[Var, ...]:
    """The equation anew, with other operands and bodies."""
    length = params.get("length")
    carry = params.get("num_carry", len(like.outputs))
    outputs = [
        Var(aval if n < carry else aval.update(shape=(length, *aval.shape)))
        for n, aval in enumerate(like.out_avals)
    ]
    return flat.append(Equation(tuple(outputs), eqn.primitive, tuple(operands), params, eqn.source))


class _Loop:
    """A loop in the making. `carry`: numbers of the carried values that are left; `bodies`: its
    jaxprs, of which a test gives no carry; `constants`: for each body, its variables that no
    turn changes, with what they are outside."""

    def __init__(self, flat: Flattener, inputs: tuple[Atom, ...], consts: int, carry: int) -> None:
        self.flat, self.inputs, self.consts = flat, inputs, consts
        self.carry = list(range(carry))
        self.bodies: list[Jaxpr] = []
        self.variables: list[list[Var]] = []  # of the carried values, all of them
        self.constants: list[dict[Var, Atom]] = []
        self.is_test: list[bool] = []
        self.fixed: dict[int, Atom] = {}
        self.given = carry

    def add(self, jaxpr: Jaxpr, consts: range, is_test: bool = False) -> None:
        given = len(consts)
        self.bodies.append(jaxpr)
        self.constants.append(dict(zip(jaxpr.inputs, self.inputs[consts.start : consts.stop])))  # noqa: B905
        self.variables.append(list(jaxpr.inputs[given : given + self.given]))
        self.is_test.append(is_test)

    def simplify(self) -> None:
        self._fix()
        for number, jaxpr in enumerate(self.bodies):
            constants = self.constants[number]
            known = {v: a for v, a in constants.items() if isinstance(a, Literal)}
            self.bodies[number] = self.flat.body(jaxpr, known)
        self._fix()
        state = [self.variables[0][n] for n in self.carry]
        if (windows := _with_windows(self.bodies[0], state)) is not None:
            self.bodies[0] = self.flat.body(windows, {})
        for number, jaxpr in enumerate(self.bodies):
            self.bodies[number] = _hoisted(self.flat, jaxpr, self.constants[number])

    def _fix(self) -> None:
        """Carried values that every turn passes on as they are become constants."""
        body = self.bodies[0]
        for place, number in enumerate(list(self.carry)):
            if body.outputs[place] is not self.variables[0][number]:
                continue
            self.fixed[number] = self.inputs[self.consts + number]
            for variables, constants in zip(self.variables, self.constants, strict=True):
                constants[variables[number]] = self.fixed[number]
        kept = [n not in self.fixed for n in self.carry]
        rest = body.outputs[len(self.carry) :]
        outputs = [a for a, flag in zip(body.outputs, kept, strict=False) if flag]
        self.bodies[0] = _with_outputs(body, (*outputs, *rest))
        self.carry = [n for n in self.carry if n not in self.fixed]

    def jaxpr(self, number: int) -> tuple[Jaxpr, list[Var]]:
        """A body with the constants that it reads first, and those from outside."""
        body, constants = self.bodies[number], self.constants[number]
        read = _variables_read(body)
        used = [v for v, atom in constants.items() if v in read and isinstance(atom, Var)]
        state = [self.variables[number][n] for n in self.carry]
        taken = {*constants, *self.variables[number]}
        rest = [v for v in body.inputs if v not in taken]
        jaxpr = Jaxpr((*used, *state, *rest), body.equations, body.outputs, (), body.name)
        return jaxpr, [self.flat.variable(constants[var]) for var in used]

    def inits(self) -> list[Var]:
        return [self.flat.variable(self.inputs[self.consts + n]) for n in self.carry]

    def results(self, outputs: Sequence[Atom]) -> list[Atom]:
        """All results of the loop as it was, from those that are left."""
        carried = dict(zip(self.carry, outputs, strict=False))
        whole = [self.fixed.get(n, carried.get(n)) for n in range(self.given)]
        return [*whole, *outputs[len(self.carry) :]]  # type: ignore[list-item]


def _with_windows(jaxpr: Jaxpr, state: Sequence[Var]) -> Jaxpr | None:
    """The body with small windows of large carried arrays written where they are, rather than the
    arrays computed anew; None where there are none."""
    carried, equations, found = set(state), [], False
    for eqn in jaxpr.equations:
        if eqn.primitive.name == "dynamic_update_slice" and eqn.inputs[0] in carried:
            x, update = eqn.inputs[0].aval, eqn.inputs[1].aval
            carried.update(eqn.outputs)
            if x.size >= LARGE and x.size >= SMALLER * update.size > 0:
                inner = stage(
                    lambda *args: [scattered_update(*args)], [atom.aval for atom in eqn.inputs]
                )
                params = {"jaxpr": inner}
                eqn = Equation(eqn.outputs, window_p, eqn.inputs, params, eqn.source)
                found = True
        equations.append(eqn)
    if not found:
        return None
    return Jaxpr(jaxpr.inputs, tuple(equations), jaxpr.outputs, (), jaxpr.name)


window_p = Primitive("window", lambda *avals, jaxpr: jaxpr.out_avals, lower=Inline(), multiple=True)


def _with_outputs(jaxpr: Jaxpr, outputs: Sequence[Atom]) -> Jaxpr:
    return Jaxpr(jaxpr.inputs, jaxpr.equations, tuple(outputs), (), jaxpr.name)


def _variables_read(jaxpr: Jaxpr) -> set[Atom]:
    atoms: set[Atom] = set()
    for eqn in jaxpr.equations:
        atoms.update(atom for atom in eqn.inputs if isinstance(atom, Var))
    return atoms.union(atom for atom in jaxpr.outputs if isinstance(atom, Var))


def _hoisted(flat: Flattener, jaxpr: Jaxpr, constants: dict[Var, Atom]) -> Jaxpr:
    """The body without what depends on constants alone and is worth keeping in memory; the results
    of that join `constants`."""
    outside = dict(constants)
    invariant: dict[Var, Equation] = {}
    for eqn in jaxpr.equations:
        if effects_of(eqn):
            continue
        if all(isinstance(a, Literal) or a in outside or a in invariant for a in eqn.inputs):
            invariant.update((var, eqn) for var in eqn.outputs)
    worthy = _worthy(jaxpr, invariant)
    wanted = _with_operands(worthy, invariant)
    for eqn in jaxpr.equations:
        if id(eqn) in wanted:
            inputs = tuple([outside[a] if isinstance(a, Var) else a for a in eqn.inputs])
            outside.update(zip(eqn.outputs, flat.equation(eqn, inputs), strict=True))
    constants.update((var, outside[var]) for eqn in worthy for var in eqn.outputs)
    moved = {id(eqn) for eqn in worthy}
    equations = [eqn for eqn in jaxpr.equations if id(eqn) not in moved]
    body = Jaxpr(jaxpr.inputs, tuple(equations), jaxpr.outputs, (), jaxpr.name)
    return live(body)


def _worthy(jaxpr: Jaxpr, invariant: dict[Var, Equation]) -> list[Equation]:
    """The invariant equations that cost more in every turn than reading their results would."""
    if not invariant:
        return []
    asked: set[Atom] = set()
    for eqn in jaxpr.equations:
        stays = not any(var in invariant for var in eqn.outputs)
        if stays and not isinstance(eqn.primitive.lower, Element):
            asked.update(eqn.inputs)
    found = {id(eqn): eqn for eqn in invariant.values()}
    return [e for e in found.values() if _saves(e) or any(v in asked for v in e.outputs)]


def _saves(eqn: Equation) -> bool:
    lower = eqn.primitive.lower
    if not isinstance(lower, Element) or eqn.primitive.name in COSTLY:
        return True
    if lower.cheap:
        return False
    out = eqn.outputs[0].aval.size
    return any(isinstance(a, Var) and a.aval.size >= out for a in eqn.inputs)


def _with_operands(wanted: Iterable[Equation], invariant: dict[Var, Equation]) -> set[int]:
    todo, found = list(wanted), set()
    while todo:
        eqn = todo.pop()
        if id(eqn) in found:
            continue
        found.add(id(eqn))
        todo += [invariant[a] for a in eqn.inputs if isinstance(a, Var) and a in invariant]
    return found


def _unrolled(eqn: Equation) -> Jaxpr:
    """A scan as its turns one after another."""
    params = eqn.params
    body, length, first = params["jaxpr"], params["length"], params["num_consts"]
    turns = range(length)[::-1] if params["reverse"] else range(length)

    def function(*args: Any) -> list[Any]:
        consts, rest = list(args[:first]), list(args[first:])
        carry, xs = rest[: params["num_carry"]], rest[params["num_carry"] :]
        rows: dict[int, list[Any]] = {}
        for turn in turns:
            results = evaluate(body, [*consts, *carry, *(_row(x, turn) for x in xs)])
            carry, rows[turn] = results[: len(carry)], results[len(carry) :]
        columns = [[rows[turn][n] for turn in range(length)] for n in range(count)]
        return [*carry, *map(_stacked, columns, body.out_avals[len(carry) :])]

    count = len(body.outputs) - params["num_carry"]
    return stage(function, [atom.aval for atom in eqn.inputs], body.name)


def _row(x: Any, turn: int) -> Any:
    return reshape(slice_in_dim(x, turn, turn + 1), x.shape[1:])


def _stacked(rows: Sequence[Any], aval: Any) -> Any:
    if not rows:
        return full((0, *aval.shape), aval.dtype.type(0))
    parts = [reshape(_whole(row), (1, *aval.shape)) for row in rows]
    return parts[0] if len(parts) == 1 else concatenate(parts, 0)


def _whole(row: Any) -> Any:
    return full((), row) if isinstance(row, Literal) else row


# branches -------------------------------------------------------------------------------------


def _cond(flat: Flattener, eqn: Equation, inputs: tuple[Atom, ...]) -> Sequence[Atom]:
    index, *operands = inputs
    branches = eqn.params["branches"]
    if isinstance(index, Literal):
        chosen = branches[min(max(int(index.value), 0), len(branches) - 1)]
        return flat.inline(chosen, operands)
    flats = []
    for branch in branches:
        pairs = zip(branch.inputs, operands, strict=True)
        flats.append(flat.body(branch, {v: a for v, a in pairs if isinstance(a, Literal)}))
    kept = [isinstance(atom, Var) for atom in operands]
    flats = [_with_inputs(branch, kept) for branch in flats]
    variables = [atom for atom in operands if isinstance(atom, Var)]
    outputs = tuple([Var(aval) for aval in branches[0].out_avals])
    params = {**eqn.params, "branches": tuple(flats)}
    return flat.append(Equation(outputs, eqn.primitive, (index, *variables), params, eqn.source))


def _with_inputs(jaxpr: Jaxpr, kept: Sequence[bool]) -> Jaxpr:
    inputs = tuple([v for v, flag in zip(jaxpr.inputs, kept, strict=True) if flag])
    return Jaxpr(inputs, jaxpr.equations, jaxpr.outputs, (), jaxpr.name)


Simplification = Callable[[Flattener, Equation, tuple[Atom, ...]], Sequence[Atom]]

SIMPLIFIED: dict[str, Simplification] = {"scan": _scan, "while": _while, "cond": _cond}


# dead code ------------------------------------------------------------------------------------


def live(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr without what its results and effects do not need."""
    needed = {atom for atom in jaxpr.outputs if isinstance(atom, Var)}
    kept: list[Equation] = []
    for eqn in reversed(jaxpr.equations):
        if not effects_of(eqn) and not any(var in needed for var in eqn.outputs):
            continue
        if isinstance(eqn.primitive.lower, Structured):
            eqn = PRUNED[eqn.primitive.lower.kind](eqn, needed)
        kept.append(eqn)
        needed.update(atom for atom in eqn.inputs if isinstance(atom, Var))
    return Jaxpr(jaxpr.inputs, tuple(kept[::-1]), jaxpr.outputs, jaxpr.captured, jaxpr.name)


def _reads(jaxpr: Jaxpr, outputs: Sequence[Atom]) -> tuple[Jaxpr, set[Atom]]:
    """The jaxpr with these results only, and the variables that it then reads."""
    body = live(_with_outputs(jaxpr, outputs))
    return body, _variables_read(body)


def _pruned_scan(eqn: Equation, needed: set[Var]) -> Equation:
    params = eqn.params
    jaxpr, first, count = params["jaxpr"], params["num_consts"], params["num_carry"]
    state = jaxpr.inputs[first : first + count]
    kept = [var in needed for var in eqn.outputs]
    while True:
        outputs = [a for a, flag in zip(jaxpr.outputs, kept, strict=True) if flag]
        body, read = _reads(jaxpr, outputs)
        wider = [flag or (n < count and state[n] in read) for n, flag in enumerate(kept)]
        if wider == kept:
            break
        kept = wider
    given = [var in read for var in jaxpr.inputs]
    given[first : first + count] = kept[:count]
    if all(kept) and all(given):
        return eqn
    changed = {
        "jaxpr": _with_inputs(body, given),
        "num_consts": sum(given[:first]),
        "num_carry": sum(kept[:count]),
    }
    return _narrowed(eqn, given, kept, {**params, **changed})


def _pruned_while(eqn: Equation, needed: set[Var]) -> Equation:
    params = eqn.params
    test, body = params["cond_jaxpr"], params["body_jaxpr"]
    first, second = params["cond_nconsts"], params["body_nconsts"]
    test_state, state = test.inputs[first:], body.inputs[second:]
    _, tested = _reads(test, test.outputs)
    kept = [var in needed or test_state[number] in tested for number, var in enumerate(eqn.outputs)]
    while True:
        outputs = [a for a, flag in zip(body.outputs, kept, strict=True) if flag]
        inner, read = _reads(body, outputs)
        wider = [flag or state[n] in read for n, flag in enumerate(kept)]
        if wider == kept:
            break
        kept = wider
    test_given = [*(var in tested for var in test.inputs[:first]), *kept]
    body_given = [*(var in read for var in body.inputs[:second]), *kept]
    if all(test_given) and all(body_given):
        return eqn
    changed = {
        "cond_jaxpr": _with_inputs(test, test_given),
        "cond_nconsts": sum(test_given[:first]),
        "body_jaxpr": _with_inputs(inner, body_given),
        "body_nconsts": sum(body_given[:second]),
    }
    given = [*test_given[:first], *body_given]
    return _narrowed(eqn, given, kept, {**params, **changed})


def _pruned_cond(eqn: Equation, needed: set[Var]) -> Equation:
    kept = [var in needed for var in eqn.outputs]
    found = [
        _reads(branch, [a for a, flag in zip(branch.outputs, kept, strict=True) if flag])
        for branch in eqn.params["branches"]
    ]
    count = len(eqn.inputs) - 1
    given = [any(branch.inputs[n] in read for branch, read in found) for n in range(count)]
    if all(kept) and all(given):
        return eqn
    branches = tuple([_with_inputs(branch, given) for branch, _ in found])
    return _narrowed(eqn, [True, *given], kept, {**eqn.params, "branches": branches})


def _narrowed(
    eqn: Equation, given: Sequence[bool], kept: Sequence[bool], params: dict[str, Any]
) -> Equation:
    inputs = tuple([a for a, flag in zip(eqn.inputs, given, strict=True) if flag])
    outputs = tuple([v for v, flag in zip(eqn.outputs, kept, strict=True) if flag])
    return Equation(outputs, eqn.primitive, inputs, params, eqn.source)


PRUNED: dict[str, Callable[[Equation, set[Var]], Equation]] = {
    "scan": _pruned_scan,
    "while": _pruned_while,
    "cond": _pruned_cond,
}
