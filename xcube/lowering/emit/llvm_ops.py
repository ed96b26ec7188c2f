"""The scalar operations of the kernel IR as LLVM instructions, with the exact semantics that the
table in `ir.py` states: one function or spelling for each operation and kind of number."""

from __future__ import annotations

from xcube.lowering.cube import ir
from xcube.lowering.cube.ir import Const, Type
from xcube.lowering.emit.llvm_casts import cast, f64_to_odd_f32, narrow, to_odd, widen
from xcube.lowering.emit.llvm_integers import CONSTANT_RULES, WHOLE_RULES
from xcube.lowering.emit.llvm_text import (
    HELD,
    NARROW,
    UNSIGNED,
    WIDE,
    Code,
    Rule,
    binary,
    held,
    intrinsic,
    line,
    number,
    overload,
)


def operate(code: Code, let: ir.Let, args: list[str]) -> str:
    """Emit one operation; the text of its result."""
    op = let.op
    if (rule := LINE_RULES.get(op)) is not None:
        return rule(code, let, args)
    type = let.args[0].type
    if op in CONSTANT_RULES and isinstance(let.args[1], Const) and type.dtype not in ir.FLOATS:
        return CONSTANT_RULES[op](code, type, args[0], int(let.args[1].value))
    return compute(code, op, type, args)


def compute(code: Code, op: str, type: Type, args: list[str]) -> str:
    """Emit arithmetic on operands of one type; the text of its result."""
    dtype = type.dtype
    if dtype in WIDE:
        return FLOAT_RULES[op](code, type, *args)
    if dtype in NARROW:
        return _compute_narrow(code, op, type, args)
    return WHOLE_RULES[op](code, type, *args)


# Floats -------------------------------------------------------------------------------------------


def _compute_narrow(code: Code, op: str, type: Type, args: list[str]) -> str:
    """In f32, which is exact enough that rounding its result again is one rounding."""
    if op in BIT_RULES:
        return BIT_RULES[op](code, type, *args)
    if code.native_half and type.dtype == "f16":
        return _compute_half(code, op, type, args)
    if op == "fma":
        return _fma_narrow(code, type, *args)
    wide = type.of("f32")
    result = FLOAT_RULES[op](code, wide, *[widen(code, arg, type) for arg in args])
    return result if op in COMPARE else narrow(code, result, type.lanes, type.dtype)


def _compute_half(code: Code, op: str, type: Type, args: list[str]) -> str:
    """In the machine's own f16."""
    half = type.of("half")
    args = [code.add(f"bitcast {held(type)} {arg} to {held(half)}") for arg in args]
    result = FLOAT_RULES[op](code, half, *args)
    return result if op in COMPARE else code.add(f"bitcast {held(half)} {result} to {held(type)}")


def _fma_narrow(code: Code, type: Type, x: str, y: str, z: str) -> str:
    """In f64, where the product is exact; rounding the sum to odd leaves one rounding, the last."""
    lanes, wide = type.lanes, type.of("f64")
    double = held(wide)
    x, y, z = (cast(code, value, type, "f64") for value in (x, y, z))
    product = code.add(f"fmul {double} {x}, {y}")
    total = code.add(f"fadd {double} {product}, {z}")
    error = _error_of_sum(code, wide, product, z, total)
    sign = code.alike("copysign", "double", lanes, number(1.0, "f64", lanes), total)
    outward = code.add(f"fmul {double} {sign}, {error}")
    is_low = code.add(f"fcmp ogt {double} {outward}, zeroinitializer")
    is_high = code.add(f"fcmp olt {double} {outward}, zeroinitializer")
    total = to_odd(code, total, wide, is_low, is_high)
    return narrow(code, f64_to_odd_f32(code, total, lanes), lanes, type.dtype)


def _error_of_sum(code: Code, type: Type, x: str, y: str, total: str) -> str:
    """x + y - total without rounding (Knuth); NaN where the total is not finite."""
    kind = held(type)
    part = code.add(f"fsub {kind} {total}, {x}")
    rest = code.add(f"fsub {kind} {total}, {part}")
    of_x = code.add(f"fsub {kind} {x}, {rest}")
    of_y = code.add(f"fsub {kind} {y}, {part}")
    return code.add(f"fadd {kind} {of_x}, {of_y}")


def _negate_bits(code: Code, type: Type, x: str) -> str:
    kind, sign = held(type), 1 << (ir.BITS[type.dtype] - 1)
    return code.add(f"xor {kind} {x}, {_whole(sign, type)}")


def _abs_bits(code: Code, type: Type, x: str) -> str:
    kind, rest = held(type), (1 << (ir.BITS[type.dtype] - 1)) - 1
    return code.add(f"and {kind} {x}, {_whole(rest, type)}")


def _whole(value: int, type: Type) -> str:
    """An integer literal of the type that holds a narrow float."""
    return number(value, HELD[type.dtype], type.lanes)


def _extreme(compare: str) -> Rule:
    """min and max: the comparison is x86's own instruction, the second select keeps a NaN in x."""

    def rule(code: Code, type: Type, x: str, y: str) -> str:
        kind, flag = held(type), line("i1", type.lanes)
        inside = code.add(f"fcmp {compare} {kind} {x}, {y}")
        chosen = code.add(f"select {flag} {inside}, {kind} {x}, {kind} {y}")
        is_nan = code.add(f"fcmp uno {kind} {x}, {x}")
        return code.add(f"select {flag} {is_nan}, {kind} {x}, {kind} {chosen}")

    return rule


def _library(name: str) -> Rule:
    """A function of the C library, lane by lane."""

    def rule(code: Code, type: Type, *args: str) -> str:
        types = ("double",) * len(args)
        if type.lanes == 1:
            return code.call(name, "double", types, *args)
        kind, result = held(type), "poison"
        for lane in range(type.lanes):
            parts = [code.add(f"extractelement {kind} {arg}, i64 {lane}") for arg in args]
            part = code.call(name, "double", types, *parts)
            result = code.add(f"insertelement {kind} {result}, double {part}, i64 {lane}")
        return result

    return rule


def _exp2(code: Code, type: Type, x: str) -> str:
    """By the C library, in double precision."""
    wide = type.of("f64")
    return cast(code, _library("exp2")(code, wide, cast(code, x, type, "f64")), wide, "f32")


# Lines --------------------------------------------------------------------------------------------


def _select(code: Code, let: ir.Let, args: list[str]) -> str:
    kind, flag = held(let.args[1].type), held(let.args[0].type)
    return code.add(f"select {flag} {args[0]}, {kind} {args[1]}, {kind} {args[2]}")


def _cast(code: Code, let: ir.Let, args: list[str]) -> str:
    return cast(code, args[0], let.args[0].type, let.target.type.dtype)


def _bitcast(code: Code, let: ir.Let, args: list[str]) -> str:
    source, target = let.args[0].type, let.target.type
    if held(source) == held(target):
        return args[0]
    return code.add(f"bitcast {held(source)} {args[0]} to {held(target)}")


def splat(code: Code, value: str, type: Type) -> str:
    """The same scalar in every lane of a type."""
    kind, scalar = held(type), HELD[type.dtype]
    first = code.add(f"insertelement {kind} poison, {scalar} {value}, i64 0")
    mask = line("i32", type.lanes)
    return code.add(f"shufflevector {kind} {first}, {kind} poison, {mask} zeroinitializer")


def _splat(code: Code, let: ir.Let, args: list[str]) -> str:
    return args[0] if let.target.type.lanes == 1 else splat(code, args[0], let.target.type)


def _lane(_: Code, let: ir.Let, __: list[str]) -> str:
    scalar, lanes = HELD[let.target.type.dtype], let.target.type.lanes
    return "0" if lanes == 1 else f"<{', '.join([f'{scalar} {lane}' for lane in range(lanes)])}>"


def _extract(code: Code, let: ir.Let, args: list[str]) -> str:
    return extract(code, args[0], let.args[0].type, let.attrs[0])


def extract(code: Code, value: str, type: Type, lane: int) -> str:
    """One lane of a line, or the scalar itself."""
    if type.lanes == 1:
        return value
    return code.add(f"extractelement {held(type)} {value}, i64 {lane}")


def _join(code: Code, let: ir.Let, args: list[str]) -> str:
    low, high = (arg.type for arg in let.args)
    wide = Type(low.dtype, max(low.lanes, high.lanes, 2))
    x, y = (_widened(code, x, type, wide.lanes) for x, type in zip(args, (low, high), strict=True))
    lanes = [*range(low.lanes), *range(wide.lanes, wide.lanes + high.lanes)]
    mask = ", ".join([f"i32 {lane}" for lane in lanes])
    kind = held(wide)
    return code.add(f"shufflevector {kind} {x}, {kind} {y}, <{len(lanes)} x i32> <{mask}>")


def _widened(code: Code, value: str, type: Type, lanes: int) -> str:
    """A line, or a scalar, as the first lanes of a wider line."""
    if type.lanes == lanes:
        return value
    if type.lanes == 1:
        wide = Type(type.dtype, lanes)
        return code.add(f"insertelement {held(wide)} poison, {HELD[type.dtype]} {value}, i64 0")
    kind, mask = held(type), ", ".join([f"i32 {min(k, type.lanes - 1)}" for k in range(lanes)])
    return code.add(f"shufflevector {kind} {value}, {kind} poison, <{lanes} x i32> <{mask}>")


def _shuffle(code: Code, let: ir.Let, args: list[str]) -> str:
    source, target = let.args[0].type, let.target.type
    if target.lanes == 1:
        return extract(code, args[0], source, let.attrs[0])
    if source.lanes == 1:
        return splat(code, args[0], target)
    return shuffle(code, args[0], source, let.attrs)


def shuffle(code: Code, value: str, type: Type, lanes: tuple[int, ...] | range) -> str:
    """A line made of the source's lanes."""
    kind, mask = held(type), ", ".join([f"i32 {lane}" for lane in lanes])
    return code.add(f"shufflevector {kind} {value}, {kind} poison, <{len(lanes)} x i32> <{mask}>")


def _reduce(op: str) -> Rule:
    """Halves, then quarters, ... in one fixed order; whole numbers leave the order to LLVM."""

    def rule(code: Code, let: ir.Let, args: list[str]) -> str:
        type, value = let.args[0].type, args[0]
        if type.dtype not in ir.FLOATS and type.lanes > 1:
            return _reduce_whole(code, op, type, value)
        while type.lanes > 1:
            half = type.lanes // 2
            part = Type(type.dtype, half)
            sides = (range(half), range(half, 2 * half))
            low, high = (_lanes_of(code, value, type, side) for side in sides)
            value, type = compute(code, op, part, [low, high]), part
        return value

    return rule


def _lanes_of(code: Code, value: str, type: Type, lanes: range) -> str:
    if len(lanes) == 1:
        return extract(code, value, type, lanes[0])
    return shuffle(code, value, type, lanes)


def _reduce_whole(code: Code, op: str, type: Type, value: str) -> str:
    sign = ("u" if type.dtype in UNSIGNED else "s") if op in ("min", "max") else ""
    scalar = HELD[type.dtype]
    name = f"llvm.vector.reduce.{sign}{op}.{overload(scalar, type.lanes)}"
    return code.call(name, scalar, (held(type),), value)


# Tables -------------------------------------------------------------------------------------------


COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}

FLOAT_RULES: dict[str, Rule] = {
    **{op: binary(f"f{op}") for op in ("add", "sub", "mul", "div", "rem")},
    **{op: binary(f"fcmp {condition}") for op, condition in COMPARE.items()},
    **{op: intrinsic(op) for op in ("fma", "sqrt", "floor", "ceil", "trunc")},
    **{name: _library(name) for name in ir.LIBRARY},
    "exp2_approx": _exp2,
    "neg": lambda code, type, x: code.add(f"fneg {held(type)} {x}"),
    "abs": intrinsic("fabs"),
    "round": intrinsic("roundeven"),
    "min": _extreme("olt"),
    "max": _extreme("ogt"),
}

BIT_RULES: dict[str, Rule] = {"neg": _negate_bits, "abs": _abs_bits}

LINE_RULES: dict[str, Rule] = {
    "select": _select,
    "cast": _cast,
    "bitcast": _bitcast,
    "splat": _splat,
    "lane": _lane,
    "extract": _extract,
    "join": _join,
    "shuffle": _shuffle,
    **{f"reduce_{op}": _reduce(op) for op in ("add", "mul", "min", "max", "and", "or", "xor")},
}
