"""Derivatives of the operations of kernels, a line each: `y` is the result, `x` and `z` operands.
Functions are known by name, for kernels are differentiated before they are decomposed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from xcube.lowering.cube import ir, math_real
from xcube.lowering.cube.build import Builder, Operand, Value
from xcube.lowering.cube.ir import Atom

Partial = Callable[..., Operand]

_LOG_2, _ROOT_PI = math.log(2), math.sqrt(math.pi)

# Linear in all operands: tangents go the way of values, and cotangents that of TRANSPOSES.
LINEAR = frozenset("add sub neg cast splat extract shuffle reduce_add".split())
# Constant almost everywhere.
FLAT = frozenset("floor ceil trunc round".split())


def _(name: str, *args: Operand) -> Value:
    build = next(x for x in args if isinstance(x, Value)).build
    return math_real.apply(build, name, *args)  # type: ignore[return-value]


def _sign(x: Value) -> Value:
    return _("sign", x)


def _share(test: str) -> Partial:
    """What an operand of min or max has of the tangent: all, nothing, or half of it in a tie."""

    def partial(y: Value, x: Value, z: Value) -> Value:
        b = x.build
        less = b.select(b.op(test, x, z), b.constant(1, x.dtype, x.lanes), 0)
        return b.select(x.eq(z), b.constant(0.5, x.dtype, x.lanes), less)

    return partial


def _turned(partial: Partial) -> Partial:
    return lambda y, x, z: partial(y, z, x)


def _not_zero(x: Value) -> Value:
    return x.build.select(x.eq(0.0), x.build.constant(1, x.dtype, x.lanes), x)


# Of each operation, its derivative by each operand. A Python number is the same everywhere.
PARTIALS: dict[str, tuple[Partial, ...]] = {
    "mul": (lambda y, x, z: z, lambda y, x, z: x),
    "div": (lambda y, x, z: 1 / z, lambda y, x, z: -y / z),
    "rem": (lambda y, x, z: 1.0, lambda y, x, z: -x.build.op("trunc", x / z)),
    "fma": (lambda y, x, z, w: z, lambda y, x, z, w: x, lambda y, x, z, w: 1.0),
    "min": (_share("lt"), _turned(_share("lt"))),
    "max": (_share("gt"), _turned(_share("gt"))),
    "abs": (lambda y, x: _sign(x),),
    "sqrt": (lambda y, x: 0.5 / y,),
    "rsqrt": (lambda y, x: -0.5 * (y / x),),
    "cbrt": (lambda y, x: y / (3 * x),),
    "exp": (lambda y, x: y,),
    "exp2": (lambda y, x: _LOG_2 * y,),
    "exp2_approx": (lambda y, x: _LOG_2 * y,),
    "expm1": (lambda y, x: y + 1,),
    "log": (lambda y, x: 1 / x,),
    "log2": (lambda y, x: 1 / (_LOG_2 * x),),
    "log1p": (lambda y, x: 1 / (x + 1),),
    "logistic": (lambda y, x: y * (1 - y),),
    "pow": (lambda y, x, z: z * _("pow", x, z - 1), lambda y, x, z: _("log", _not_zero(x)) * y),
    "sin": (lambda y, x: _("cos", x),),
    "cos": (lambda y, x: -_("sin", x),),
    "tan": (lambda y, x: y * y + 1,),
    "asin": (lambda y, x: _("rsqrt", 1 - x * x),),
    "acos": (lambda y, x: -_("rsqrt", 1 - x * x),),
    "atan": (lambda y, x: 1 / (x * x + 1),),
    "atan2": (lambda y, x, z: z / (x * x + z * z), lambda y, x, z: -x / (x * x + z * z)),
    "sinh": (lambda y, x: _("cosh", x),),
    "cosh": (lambda y, x: _("sinh", x),),
    "tanh": (lambda y, x: (1 + y) * (1 - y),),
    "asinh": (lambda y, x: _("rsqrt", x * x + 1),),
    "acosh": (lambda y, x: _("rsqrt", (x - 1) * (x + 1)),),
    "atanh": (lambda y, x: 1 / ((1 - x) * (1 + x)),),
    "erf": (lambda y, x: 2 / _ROOT_PI * _("exp", -(x * x)),),
    "erfc": (lambda y, x: -2 / _ROOT_PI * _("exp", -(x * x)),),
    "erf_inv": (lambda y, x: _ROOT_PI / 2 * _("exp", y * y),),
    "lgamma": (lambda y, x: _("digamma", x),),
}


# the way back ---------------------------------------------------------------------------------

Known = Callable[[Atom], Value]
Transpose = Callable[[Builder, ir.Let, Known, Value], Sequence[Value | None]]


def _splat(b: Builder, s: ir.Let, known: Known, ct: Value) -> Sequence[Value]:
    parts = [b.extract(ct, lane) for lane in range(ct.lanes)]
    return [sum(parts[1:], parts[0])]


def _extract(b: Builder, s: ir.Let, known: Known, ct: Value) -> Sequence[Value]:
    lanes = s.args[0].type.lanes
    if lanes == 1:
        return [ct]
    return [b.select(b.lane(lanes, "i32").eq(s.attrs[0]), b.splat(ct, lanes), 0.0)]


def _shuffle(b: Builder, s: ir.Let, known: Known, ct: Value) -> Sequence[Value]:
    type = s.args[0].type
    lane, total = b.lane(type.lanes, "i32"), b.constant(0, type.dtype, type.lanes)
    for to, origin in enumerate(s.attrs):
        part = b.splat(b.extract(ct, to), type.lanes)
        total = total + b.select(lane.eq(origin), part, 0.0)
    return [total]


def _select(b: Builder, s: ir.Let, known: Known, ct: Value) -> Sequence[Value | None]:
    condition, zero = known(s.args[0]), b.constant(0, ct.dtype, ct.lanes)
    return [None, b.select(condition, ct, zero), b.select(condition, zero, ct)]


def unit_of_plane(b: Builder) -> Value:
    """The number of this unit in its plane."""
    wide, high, _ = b.cube_dim
    x, y, z = (b.place(f"unit_pos.{axis}") for axis in "xyz")
    return (x + y * wide + z * (wide * high)) % ir.PLANE


def _broadcast(b: Builder, argument: Value | None, ct: Value) -> Value:
    assert argument is not None, "a broadcast has an origin"
    total, here = b.plane("sum", ct), unit_of_plane(b).eq(argument.cast("index"))
    return b.select(here, total, b.constant(0, ct.dtype, ct.lanes))


# The same of what planes do together.
PLANES: dict[str, Callable[[Builder, Value | None, Value], Value]] = {
    "sum": lambda b, argument, ct: b.plane("sum", ct),
    "broadcast": _broadcast,
    "shuffle_xor": lambda b, argument, ct: b.plane("shuffle_xor", ct, argument),
    "inclusive_sum": lambda b, argument, ct: b.plane("sum", ct) - b.plane("exclusive_sum", ct),
    "exclusive_sum": lambda b, argument, ct: b.plane("sum", ct) - b.plane("inclusive_sum", ct),
}

# Cotangents of the operands of what is linear, and of choices.
TRANSPOSES: dict[str, Transpose] = {
    "add": lambda b, s, known, ct: [ct, ct],
    "sub": lambda b, s, known, ct: [ct, -ct],
    "neg": lambda b, s, known, ct: [-ct],
    "cast": lambda b, s, known, ct: [ct.cast(s.args[0].type.dtype)],
    "reduce_add": lambda b, s, known, ct: [b.splat(ct, s.args[0].type.lanes)],
    "splat": _splat,
    "extract": _extract,
    "shuffle": _shuffle,
    "select": _select,
}
