"""jaxpr -> jaxpr: calls inlined, compositions expanded, algebra, common subexpressions, dead code.

The result is flat: every equation is an element rule, a reduction, a template, or control flow
around flat jaxprs (see structure.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube.ir import Atom, Aval, Equation, Jaxpr, Literal, Var, effects_of
from xcube.lowering import structure
from xcube.lowering.kernels import contract_matrix
from xcube.lowering.results import filled
from xcube.primitives.elementwise import div, mul, sqrt
from xcube.primitives.kinds import add
from xcube.primitives.lowered import Barrier, Expand, HostCall, Inline, Reduction, Structured
from xcube.primitives.select import eq, select
from xcube.primitives.shape import broadcast_in_dim_p, full
from xcube.trace import EVAL, literal, set_current, stage

Expansion = Callable[[Equation], "Jaxpr | None"]


def simplify(jaxpr: Jaxpr, expand: Expansion | None = None) -> Jaxpr:
    """Flatten and simplify. `expand` may replace an equation by a jaxpr of the same signature."""
    assert not jaxpr.captured, "lowering wants closed jaxprs"
    flat = _Flattener(expand)
    with set_current(EVAL):
        outputs = flat.inline(jaxpr, list(jaxpr.inputs))
    equations = tuple(flat.equations)
    return structure.live(Jaxpr(jaxpr.inputs, equations, tuple(outputs), (), jaxpr.name))


class _Flattener:
    def __init__(self, expand: Expansion | None) -> None:
        self.equations: list[Equation] = []
        self.producer: dict[Var, Equation] = {}
        self._known: dict[Any, tuple[Atom, ...]] = {}
        self._expand = expand

    def inline(self, jaxpr: Jaxpr, args: Sequence[Atom]) -> list[Atom]:
        env: dict[Var, Atom] = dict(zip(jaxpr.inputs, args, strict=True))

        def read(atom: Atom) -> Atom:
            return env[atom] if isinstance(atom, Var) else atom

        for eqn in jaxpr.equations:
            inputs = tuple([read(atom) for atom in eqn.inputs])
            env.update(zip(eqn.outputs, self.equation(eqn, inputs), strict=True))
        return [read(atom) for atom in jaxpr.outputs]

    def inlined(self, jaxpr: Jaxpr) -> Jaxpr:
        """A jaxpr of control flow with its calls inlined, before the device has its say."""
        key = "inlined"
        if key not in jaxpr._cache:
            inner = _Flattener(None)
            outputs = tuple(inner.inline(jaxpr, list(jaxpr.inputs)))
            flat = Jaxpr(jaxpr.inputs, tuple(inner.equations), outputs, (), jaxpr.name)
            jaxpr._cache[key] = structure.live(flat)
        return jaxpr._cache[key]

    def body(self, jaxpr: Jaxpr, known: dict[Var, Literal]) -> Jaxpr:
        """A jaxpr of control flow, simplified where some inputs are known literals."""
        inner = _Flattener(self._expand)
        outputs = inner.inline(jaxpr, [known.get(var, var) for var in jaxpr.inputs])
        equations = tuple(inner.equations)
        return structure.live(Jaxpr(jaxpr.inputs, equations, tuple(outputs), (), jaxpr.name))

    def equation(self, eqn: Equation, inputs: tuple[Atom, ...]) -> Sequence[Atom]:
        if (inner := self._replacement(eqn)) is not None:
            assert not inner.captured, "lowering wants closed jaxprs"
            return self.inline(inner, inputs)
        if isinstance(eqn.primitive.lower, Reduction) and not eqn.params["axes"]:
            return inputs
        has_effects = bool(effects_of(eqn))
        if not has_effects and all(var.aval.size == 0 for var in eqn.outputs):
            return [self._empty(var.aval) for var in eqn.outputs]
        if isinstance(eqn.primitive.lower, Structured):
            return structure.simplified(self, eqn, inputs)
        if isinstance(eqn.primitive.lower, Barrier):
            return self._barrier(eqn, inputs)
        if isinstance(eqn.primitive.lower, HostCall):
            inputs = tuple(map(self.variable, inputs))
        rule = ALGEBRA.get(eqn.primitive.name)
        if rule is not None and (atom := rule(self, eqn, inputs)) is not None:
            return (atom,)
        key = None if has_effects else _key(eqn, inputs)
        if key is not None and (found := self._known.get(key)) is not None:
            return found
        fresh = Equation(
            tuple([Var(var.aval) for var in eqn.outputs]),
            eqn.primitive, inputs, eqn.params, eqn.source,
        )  # fmt: skip
        return self.append(fresh, key)

    def _barrier(self, eqn: Equation, inputs: tuple[Atom, ...]) -> Sequence[Atom]:
        """A barrier of the operands that are in memory; it is like no other."""
        variables = [atom for atom in inputs if isinstance(atom, Var)]
        if len(variables) == 0:
            return inputs
        outputs = tuple([Var(var.aval) for var in variables])
        passed = iter(
            self.append(Equation(outputs, eqn.primitive, tuple(variables), eqn.params, eqn.source))
        )
        return [next(passed) if isinstance(atom, Var) else atom for atom in inputs]

    def variable(self, atom: Atom) -> Var:
        """An atom as a variable: a literal is written to memory."""
        if isinstance(atom, Var):
            return atom
        eqn = filled(atom)
        key = _key(eqn, eqn.inputs)
        found = self._known.get(key) or self.append(eqn, key)
        return found[0]  # type: ignore[return-value]

    def _empty(self, aval: Aval) -> Atom:
        """An array without elements, whatever it was made of: no rule meets an index into it."""
        zero = literal(np.zeros((), aval.dtype)[()])
        params = {"shape": aval.shape, "broadcast_dimensions": ()}
        eqn = Equation((Var(aval),), broadcast_in_dim_p, (zero,), params)
        key = _key(eqn, eqn.inputs)
        found = self._known.get(key)
        return (found or self.append(eqn, key))[0]

    def append(self, eqn: Equation, key: Any = None) -> tuple[Var, ...]:
        self.equations.append(eqn)
        self.producer.update((var, eqn) for var in eqn.outputs)
        if key is not None:
            self._known[key] = eqn.outputs
        return eqn.outputs

    def _replacement(self, eqn: Equation) -> Jaxpr | None:
        lower = eqn.primitive.lower
        if isinstance(lower, Inline):
            return eqn.params[lower.name]
        found = self._expand(eqn) if self._expand is not None else None
        if found is not None or not isinstance(lower, Expand):
            return found
        is_open = bool(lower.family) and self._expand is None  # the device may have kernels for it
        return None if is_open else _expanded(eqn, lower)

    def again(self, eqn: Equation, inputs: tuple[Atom, ...], params: dict[str, Any]) -> Atom:
        """The same primitive on other inputs and parameters."""
        outputs = tuple([Var(var.aval) for var in eqn.outputs])
        fresh = Equation(outputs, eqn.primitive, inputs, params, eqn.source)
        return self.equation(fresh, inputs)[0]


def _expanded(eqn: Equation, lower: Expand) -> Jaxpr:
    def function(*args: Any) -> Sequence[Any]:
        result = lower.function(*args, **eqn.params)
        return result if eqn.primitive.multiple else [result]

    avals = [atom.aval for atom in eqn.inputs]
    return stage(function, avals, eqn.primitive.name)


def _key(eqn: Equation, inputs: tuple[Atom, ...]) -> Any:
    """What makes two equations without effects the same."""
    atoms = tuple(
        (atom.aval, atom.value.tobytes()) if isinstance(atom, Literal) else atom for atom in inputs
    )
    return eqn.primitive, atoms, tuple(sorted(eqn.params.items(), key=lambda item: item[0]))


# algebra --------------------------------------------------------------------------------------

Rule = Callable[[_Flattener, Equation, tuple[Atom, ...]], "Atom | None"]


def _same_type(flat: _Flattener, eqn: Equation, inputs: tuple[Atom, ...]) -> Atom | None:
    """A conversion or view that changes nothing."""
    x, out = inputs[0], eqn.outputs[0].aval
    return x if (x.aval.shape, x.aval.dtype) == (out.shape, out.dtype) else None


def _identity(flat: _Flattener, eqn: Equation, inputs: tuple[Atom, ...]) -> Atom | None:
    return inputs[0]


def _producer(flat: _Flattener, atom: Atom, name: str) -> Equation | None:
    eqn = flat.producer.get(atom) if isinstance(atom, Var) else None
    return eqn if eqn is not None and eqn.primitive.name == name else None


def _reshape(flat: _Flattener, eqn: Equation, inputs: tuple[Atom, ...]) -> Atom | None:
    if (same := _same_type(flat, eqn, inputs)) is not None:
        return same
    if (inner := _producer(flat, inputs[0], "reshape")) is not None:
        return flat.again(eqn, inner.inputs, eqn.params)
    return None


def _transpose(flat: _Flattener, eqn: Equation, inputs: tuple[Atom, ...]) -> Atom | None:
    order = eqn.params["permutation"]
    if order == tuple(range(len(order))):
        return inputs[0]
    if (inner := _producer(flat, inputs[0], "transpose")) is not None:
        before = inner.params["permutation"]
        return flat.again(eqn, inner.inputs, {"permutation": tuple(before[p] for p in order)})
    return None


def _broadcast(flat: _Flattener, eqn: Equation, inputs: tuple[Atom, ...]) -> Atom | None:
    shape, dims = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    if inputs[0].aval.shape == shape and dims == tuple(range(len(shape))):
        return inputs[0] if isinstance(inputs[0], Var) else None
    if (inner := _producer(flat, inputs[0], "broadcast_in_dim")) is not None:
        mapped = tuple(dims[d] for d in inner.params["broadcast_dimensions"])
        return flat.again(eqn, inner.inputs, {**eqn.params, "broadcast_dimensions": mapped})
    return None


def _literal_value(atom: Atom) -> Any:
    return atom.value if isinstance(atom, Literal) else None


def _filled_with(flat: _Flattener, atom: Atom) -> Any:
    """The scalar that fills an operand, if the program says so."""
    if isinstance(atom, Literal):
        return atom.value
    eqn = _producer(flat, atom, "broadcast_in_dim")
    return _literal_value(eqn.inputs[0]) if eqn is not None else None


def _multiply(flat: _Flattener, eqn: Equation, inputs: tuple[Atom, ...]) -> Atom | None:
    x, y = inputs
    for this, other in ((x, y), (y, x)):
        if isinstance(this, Var) and _filled_with(flat, other) == 1:
            return this if this.aval.shape == eqn.outputs[0].aval.shape else None
    return None


def _divide(flat: _Flattener, eqn: Equation, inputs: tuple[Atom, ...]) -> Atom | None:
    x, y = inputs
    fits = isinstance(x, Var) and x.aval.shape == eqn.outputs[0].aval.shape
    return x if fits and _filled_with(flat, y) == 1 else None


def _negate(flat: _Flattener, eqn: Equation, inputs: tuple[Atom, ...]) -> Atom | None:
    inner = _producer(flat, inputs[0], "neg")
    return inner.inputs[0] if inner is not None and isinstance(inner.inputs[0], Var) else None


def _select(flat: _Flattener, eqn: Equation, inputs: tuple[Atom, ...]) -> Atom | None:
    """A choice among cases that are one."""
    _, first, *others = inputs
    fits = isinstance(first, Var) and first.aval.shape == eqn.outputs[0].aval.shape
    return first if fits and all(case is first for case in others) else None


def _power(flat: _Flattener, eqn: Equation, inputs: tuple[Atom, ...]) -> Atom | None:
    """A power of 1/2, 3/2 or their opposites by square roots."""
    x, exponent = inputs[0], _filled_with(flat, inputs[1])
    wide = x.aval.dtype.kind == "f" and x.aval.dtype.itemsize >= 4
    if exponent is None or not wide or exponent not in (0.5, 1.5, -0.5, -1.5):
        return None
    if not isinstance(x, Var) or x.aval.shape != eqn.outputs[0].aval.shape:
        return None
    jaxpr = stage(lambda base: [_by_root(base, float(exponent))], [x.aval.strengthen()])
    return flat.inline(jaxpr, [x])[0]


def _by_root(x: Any, exponent: float) -> Any:
    """x ** exponent, at -inf and -0 too, where powers are positive and square roots are not."""
    root = sqrt(x)
    power = mul(x, root) if abs(exponent) == 1.5 else add(root, np.zeros((), x.dtype)[()])
    infinity = np.asarray(np.inf, x.dtype)[()]
    power = select(eq(x, -infinity), full(x.shape, infinity), power)
    return power if exponent > 0 else div(np.ones((), x.dtype)[()], power)


def _matrix_product(flat: _Flattener, eqn: Equation, inputs: tuple[Atom, ...]) -> Atom | None:
    """Tiles read an operand in whichever order it lies, and a reshape does not move it."""
    for number, atom in enumerate(inputs):
        if (inner := _producer(flat, atom, "transpose")) is not None:
            params = contract_matrix.absorbed(eqn, number, inner.params["permutation"])
        elif (inner := _producer(flat, atom, "reshape")) is not None:
            params = eqn.params
        else:
            continue
        source = inner.inputs[0]
        if params is not None and isinstance(source, Var):
            return flat.again(eqn, (*inputs[:number], source, *inputs[number + 1 :]), params)
    return None


ALGEBRA: dict[str, Rule] = {
    "matrix_product": _matrix_product,
    "pow": _power,
    "select_n": _select,
    "convert_element_type": _same_type,
    "squeeze": _same_type,
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "mul": _multiply,
    "div": _divide,
    "neg": _negate,
    "copy": _identity,
    "stop_gradient": _identity,
}
