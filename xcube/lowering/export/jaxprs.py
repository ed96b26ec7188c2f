"""Closed jaxprs to bytes and back. Variables are numbered as they are defined, inputs first; what
is read is typed anew, so that a program that does not fit together is refused."""

from __future__ import annotations

from typing import Any

from xcube.errors import ExportError
from xcube.ir import Atom, Aval, Equation, Jaxpr, Literal, Primitive, Var
from xcube.lowering.export.values import Found, Tables, Unstorable, packed
from xcube.lowering.export.wire import Reader, Writer, damaged
from xcube.primitives.lowered import Inline

# writing --------------------------------------------------------------------------------------


def pack_jaxpr(tables: Tables, jaxpr: Jaxpr) -> bytes:
    """The bytes of a closed jaxpr. Raises ExportError for an equation that cannot be stored."""
    assert not jaxpr.captured, "what is exported is closed"
    numbers = {var: n for n, var in enumerate(jaxpr.inputs)}

    def pack(w: Writer) -> None:
        w.number(tables.string(jaxpr.name))
        w.number(len(jaxpr.inputs))
        for var in jaxpr.inputs:
            w.number(tables.aval(var.aval))
        w.number(len(jaxpr.equations))
        for eqn in jaxpr.equations:
            _write_equation(w, eqn, numbers, tables)
        _write_atoms(w, jaxpr.outputs, numbers, tables)

    return packed(pack)


def _write_equation(w: Writer, eqn: Equation, numbers: dict[Var, int], tables: Tables) -> None:
    name = eqn.primitive.name
    if tables.vocabulary.primitives.get(name) is not eqn.primitive:
        raise unstorable(eqn, "it is not among the primitives that are stored")
    w.number(tables.string(name))
    w.number(tables.source(eqn.source))
    try:
        tables.value(w, eqn.params)
    except Unstorable as error:
        why = f"its parameters must be of kinds that can be stored; got {error}"
        raise unstorable(eqn, why) from error
    _write_atoms(w, eqn.inputs, numbers, tables)
    w.number(len(eqn.outputs))
    for var in eqn.outputs:
        numbers[var] = len(numbers)
        w.number(tables.aval(var.aval))


def _write_atoms(
    w: Writer, atoms: tuple[Atom, ...], numbers: dict[Var, int], tables: Tables
) -> None:
    """Variables by their number, counted from 1; a 0 is followed by a literal."""
    w.number(len(atoms))
    for atom in atoms:
        if isinstance(atom, Var):
            w.number(1 + numbers[atom])
        else:
            w.number(0)
            w.number(tables.aval(atom.aval))
            w.raw(atom.value.tobytes())


def unstorable(eqn: Equation, why: str) -> ExportError:
    """The error for an equation that cannot be exported."""
    written = f" Written at {eqn.source}." if eqn.source else ""
    return ExportError(f"export: {eqn.primitive.name} cannot be exported: {why}.{written}")


# reading --------------------------------------------------------------------------------------


def read_jaxpr(r: Reader, found: Found) -> Jaxpr:
    """A closed jaxpr whose inner ones have been read before. Raises ExportError if an equation is
    not one that its primitive allows."""
    name = r.pick(found.strings)
    inputs = tuple([Var(aval) for aval in r.many(lambda: r.pick(found.avals))])
    known = list(inputs)
    equations = tuple(r.many(lambda: _read_equation(r, found, known)))
    outputs = _read_atoms(r, found, known)
    return Jaxpr(inputs, equations, outputs, (), name)


def _read_equation(r: Reader, found: Found, known: list[Var]) -> Equation:
    primitive = _primitive(r.pick(found.strings), found)
    place = r.number()
    if place > len(found.sources):
        raise damaged(f"source {place} of {len(found.sources)}")
    source = found.sources[place - 1] if place else None
    params, inputs = found.value(r), _read_atoms(r, found, known)
    avals = r.many(lambda: r.pick(found.avals))
    outputs = tuple(map(Var, avals))
    known += outputs
    eqn = Equation(outputs, primitive, inputs, params, source)
    _check(eqn)
    return eqn


def _primitive(name: str, found: Found) -> Primitive:
    if name not in found.vocabulary.primitives:
        raise ExportError(
            f"deserialize: this version of xcube has no primitive {name!r} that can be stored."
        )
    return found.vocabulary.primitives[name]


def _read_atoms(r: Reader, found: Found, known: list[Var]) -> tuple[Atom, ...]:
    def atom() -> Atom:
        if (number := r.number()) == 0:
            return Literal(*found.scalar(r))
        if number > len(known):
            raise damaged(f"variable {number} of {len(known)}")
        return known[number - 1]

    return tuple(r.many(atom))


def _check(eqn: Equation) -> None:
    """Raises ExportError unless the equation's types are what its primitive makes of its inputs."""
    given = [atom.aval for atom in eqn.inputs]
    if isinstance(eqn.primitive.lower, Inline):
        _check_types(eqn, eqn.params[eqn.primitive.lower.name].in_avals, given)
    made: Any = eqn.primitive.abstract(*given, **eqn.params)
    expected = made if eqn.primitive.multiple else (made,)
    _check_types(eqn, expected, [var.aval for var in eqn.outputs])


def _check_types(eqn: Equation, expected: tuple[Aval, ...], given: list[Aval]) -> None:
    wanted, found = ([(x.shape, x.dtype) for x in avals] for avals in (expected, given))
    if wanted != found:
        raise damaged(
            f"({', '.join(map(str, given))}) where {eqn.primitive.name} has "
            f"({', '.join(map(str, expected))})"
        )
