"""Operations on integers, indices and truth values as LLVM instructions, with a result for every
operand: zero divisors, the lowest number by -1, and shifts by more than the width."""

from __future__ import annotations

from xcube.lowering.cube import ir
from xcube.lowering.cube.ir import Type
from xcube.lowering.emit.llvm_text import (
    HELD,
    UNSIGNED,
    Code,
    Rule,
    binary,
    flagged,
    held,
    intrinsic,
    line,
    number,
)


def _divide(code: Code, type: Type, x: str, y: str) -> str:
    """Divisors that would trap are replaced by 1 and their results by what the table states."""
    kind, flag = held(type), line("i1", type.lanes)
    quotient = _quotient(code, type, x, _safe_divisor(code, type, y))
    minus = number(-1, type.dtype, type.lanes)
    if type.dtype not in UNSIGNED:
        negated = code.add(f"sub {kind} zeroinitializer, {x}")
        is_minus = code.add(f"icmp eq {kind} {y}, {minus}")
        quotient = code.add(f"select {flag} {is_minus}, {kind} {negated}, {kind} {quotient}")
    if type.dtype == "index":
        return quotient
    is_zero = code.add(f"icmp eq {kind} {y}, zeroinitializer")
    return code.add(f"select {flag} {is_zero}, {kind} {minus}, {kind} {quotient}")


def _remainder(code: Code, type: Type, x: str, y: str) -> str:
    kind, flag = held(type), line("i1", type.lanes)
    safe = _safe_divisor(code, type, y)
    quotient = _quotient(code, type, x, safe)
    product = code.add(f"mul {kind} {quotient}, {safe}")
    rest = code.add(f"sub {kind} {x}, {product}")
    if type.dtype == "index":
        return rest
    is_zero = code.add(f"icmp eq {kind} {y}, zeroinitializer")
    return code.add(f"select {flag} {is_zero}, {kind} {x}, {kind} {rest}")


def _safe_divisor(code: Code, type: Type, y: str) -> str:
    """The divisor with 1 in place of 0, which an index never is, and of -1 where there is one."""
    kind, flag = held(type), line("i1", type.lanes)
    one = number(1, type.dtype, type.lanes)
    if type.dtype in UNSIGNED:
        unsafe = code.add(f"icmp eq {kind} {y}, zeroinitializer")
    elif type.dtype == "index":
        unsafe = code.add(f"icmp eq {kind} {y}, {number(-1, type.dtype, type.lanes)}")
    else:  # y + 1 is 0 or 1
        above = code.add(f"add {kind} {y}, {one}")
        unsafe = code.add(f"icmp ule {kind} {above}, {one}")
    return code.add(f"select {flag} {unsafe}, {kind} {one}, {kind} {y}")


def _quotient(code: Code, type: Type, x: str, y: str) -> str:
    """x / y for divisors that cannot trap; lines divide as floats, which no rounding can hurt."""
    sign = "u" if type.dtype in UNSIGNED else "s"
    bits = ir.BITS[type.dtype]
    if type.lanes == 1 or bits == 64:
        return code.add(f"{sign}div {held(type)} {x}, {y}")
    real = line("float" if bits <= 16 else "double", type.lanes)
    x = code.add(f"{sign}itofp {held(type)} {x} to {real}")
    y = code.add(f"{sign}itofp {held(type)} {y} to {real}")
    quotient = code.add(f"fdiv {real} {x}, {y}")
    middle = line(f"i{max(bits, 32)}", type.lanes)
    whole = code.add(f"fpto{sign}i {real} {quotient} to {middle}")
    return whole if bits == 32 else code.add(f"trunc {middle} {whole} to {held(type)}")


def _divide_by(code: Code, type: Type, x: str, y: int) -> str:
    if y == 0:
        return number(-1, type.dtype, type.lanes)
    if y == -1:
        return code.add(f"sub {held(type)} zeroinitializer, {x}")
    sign = "u" if type.dtype in UNSIGNED else "s"
    return code.add(f"{sign}div {held(type)} {x}, {number(y, type.dtype, type.lanes)}")


def _remainder_by(code: Code, type: Type, x: str, y: int) -> str:
    if y == 0:
        return x
    if y == -1:
        return number(0, type.dtype, type.lanes)
    sign = "u" if type.dtype in UNSIGNED else "s"
    return code.add(f"{sign}rem {held(type)} {x}, {number(y, type.dtype, type.lanes)}")


def _shift_left(code: Code, type: Type, x: str, y: str) -> str:
    return _guarded_shift(code, type, "shl", x, y)


def _shift_right(code: Code, type: Type, x: str, y: str) -> str:
    if type.dtype in UNSIGNED:
        return _guarded_shift(code, type, "lshr", x, y)
    most = number(ir.BITS[type.dtype] - 1, type.dtype, type.lanes)
    limited = code.alike("umin", HELD[type.dtype], type.lanes, y, most)
    return code.add(f"ashr {held(type)} {x}, {limited}")


def _guarded_shift(code: Code, type: Type, shift: str, x: str, y: str) -> str:
    kind, flag = held(type), line("i1", type.lanes)
    width = number(ir.BITS[type.dtype], type.dtype, type.lanes)
    inside = code.add(f"icmp ult {kind} {y}, {width}")
    shifted = code.add(f"{shift} {kind} {x}, {y}")
    zero = number(0, type.dtype, type.lanes)
    return code.add(f"select {flag} {inside}, {kind} {shifted}, {kind} {zero}")


def _shift_left_by(code: Code, type: Type, x: str, y: int) -> str:
    if not 0 <= y < ir.BITS[type.dtype]:
        return number(0, type.dtype, type.lanes)
    return code.add(f"shl {held(type)} {x}, {number(y, type.dtype, type.lanes)}")


def _shift_right_by(code: Code, type: Type, x: str, y: int) -> str:
    bits, unsigned = ir.BITS[type.dtype], type.dtype in UNSIGNED
    if not 0 <= y < bits:
        if unsigned:
            return number(0, type.dtype, type.lanes)
        y = bits - 1
    shift = "lshr" if unsigned else "ashr"
    return code.add(f"{shift} {held(type)} {x}, {number(y, type.dtype, type.lanes)}")


def _multiply_high(code: Code, type: Type, x: str, y: str) -> str:
    bits = ir.BITS[type.dtype]
    extend = "zext" if type.dtype in UNSIGNED else "sext"
    kind, wide = held(type), line(f"i{2 * bits}", type.lanes)
    x, y = (code.add(f"{extend} {kind} {value} to {wide}") for value in (x, y))
    product = code.add(f"mul {wide} {x}, {y}")
    amount = str(bits) if type.lanes == 1 else f"splat (i{2 * bits} {bits})"
    high = code.add(f"lshr {wide} {product}, {amount}")
    return code.add(f"trunc {wide} {high} to {kind}")


def _not(code: Code, type: Type, x: str) -> str:
    ones = number(True if type.dtype == "bool" else -1, type.dtype, type.lanes)
    return code.add(f"xor {held(type)} {x}, {ones}")


def _extreme_whole(name: str) -> Rule:
    def rule(code: Code, type: Type, x: str, y: str) -> str:
        sign = "u" if type.dtype in UNSIGNED else "s"
        return code.alike(f"{sign}{name}", HELD[type.dtype], type.lanes, x, y)

    return rule


def _compare_whole(condition: str) -> Rule:
    def rule(code: Code, type: Type, x: str, y: str) -> str:
        sign = "" if condition in ("eq", "ne") else "u" if type.dtype in UNSIGNED else "s"
        return code.add(f"icmp {sign}{condition} {held(type)} {x}, {y}")

    return rule


# Tables -------------------------------------------------------------------------------------------

WHOLE_RULES: dict[str, Rule] = {
    **{op: binary(op) for op in ("add", "sub", "mul", "and", "or", "xor")},
    **{op: _compare_whole(op) for op in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{op: _extreme_whole(op) for op in ("min", "max")},
    "div": _divide,
    "rem": _remainder,
    "mulhi": _multiply_high,
    "shl": _shift_left,
    "shr": _shift_right,
    "not": _not,
    "neg": lambda code, type, x: code.add(f"sub {held(type)} zeroinitializer, {x}"),
    "abs": flagged("abs"),
    "popcount": intrinsic("ctpop"),
    "clz": flagged("ctlz"),
}

# Integer operations whose second operand is known.
CONSTANT_RULES: dict[str, Rule] = {
    "div": _divide_by,
    "rem": _remainder_by,
    "shl": _shift_left_by,
    "shr": _shift_right_by,
}
