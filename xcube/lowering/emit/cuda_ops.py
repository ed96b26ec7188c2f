"""The scalar operations of the kernel IR as CUDA C++ expressions, with the exact semantics that the
table in `cube/ir.py` states. An expression stands where it is assigned to its result's type, so a
conversion back to a narrower or a signed integer goes without saying."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xcube.lowering.cube import ir
from xcube.lowering.cube.arithmetic import literal
from xcube.lowering.cube.ir import Const, Type

NARROW = ("f8_e4m3fn", "f8_e5m2", "f16", "bf16")  # held as their bits
UNSIGNED = (*ir.UNSIGNED, "bool")


def expression(let: ir.Let, args: Sequence[str]) -> str:
    """One lane of an operation."""
    op, dtype = let.op, let.args[0].type.dtype
    if op == "select":
        return f"{args[0]} ? {args[1]} : {args[2]}"
    if op == "cast":
        return cast(args[0], dtype, let.target.type.dtype)
    if op == "bitcast":
        return from_bits(to_bits(args[0], dtype), let.target.type.dtype)
    last = let.args[-1]
    if op in _BY_CONSTANT and isinstance(last, Const) and dtype not in ir.FLOATS:
        return _BY_CONSTANT[op](dtype, args[0], int(last.value))
    return compute(op, dtype, args)


def compute(op: str, dtype: str, args: Sequence[str]) -> str:
    """Arithmetic on operands of one dtype."""
    if dtype in NARROW:
        return _compute_narrow(op, dtype, args)
    if dtype in ir.FLOATS:
        return _FLOAT[op].format(*args, f="f" if dtype == "f32" else "", dtype=dtype)
    return _WHOLE[op](dtype, *args)


# literals and bits ------------------------------------------------------------------------------


def number(value: int | float | bool, dtype: str) -> str:
    """A literal without spaces."""
    if dtype in ir.FLOATS:
        return _real(value, dtype)
    if dtype == "bool":
        return "true" if value else "false"
    return _whole(int(value), dtype)


def _whole(value: int, dtype: str) -> str:
    if value == -(1 << 63):
        return f"(-{(1 << 63) - 1}ll-1)"
    if value == -(1 << 31) and dtype == "i32":
        return f"(-{(1 << 31) - 1}-1)"
    text = f"{value}{_suffix(value, dtype)}"
    return f"({text})" if value < 0 else text


def _suffix(value: int, dtype: str) -> str:
    if dtype == "index":  # two short ones may meet in an operation
        return "" if abs(value) < 1 << 15 else "ll"
    return {"i64": "ll", "u64": "ull", "u32": "u"}.get(dtype, "")


def _real(value: float, dtype: str) -> str:
    exact = literal(Const(float(value), Type(dtype)))
    if dtype in NARROW:
        digits = ir.BITS[dtype] // 4
        return f"0x{int(exact.view(f'u{ir.BITS[dtype] // 8}')[0]):0{digits}x}"
    if not abs(exact[0]) < float("inf"):
        bits = int(exact.view("u4" if dtype == "f32" else "u8")[0])
        return from_bits(f"0x{bits:x}", dtype)
    text = f"{exact[0]!s}{'f' if dtype == 'f32' else ''}"
    return f"({text})" if text.startswith("-") else text


def to_bits(x: str, dtype: str) -> str:
    """A value as the integer that has its bits."""
    return {"f32": f"__float_as_uint({x})", "f64": f"__double_as_longlong({x})"}.get(dtype, x)


def from_bits(x: str, dtype: str) -> str:
    """A value of a dtype from its bits."""
    wide = {"f32": f"__uint_as_float({x})", "f64": f"__longlong_as_double({x})"}
    return wide.get(dtype, f"({dtype}){x}")


def parted(x: str, source: str, target: str, parts: int) -> list[str]:
    """The parts of a value that are values of a narrower dtype, the low one first. They are no more
    than the value's name with a shift, so that `joined` finds it again."""
    bits, word = ir.BITS[target], to_bits(x, source)
    words = [word if not k else f"({word}>>{k * bits})" for k in range(parts)]
    return [from_bits(f"(u32){part}" if bits == 32 else part, target) for part in words]


def joined(parts: Sequence[str], source: str, target: str) -> str:
    """The value of a wider dtype that is made of parts: that which was parted, if one was."""
    word = parts[0].removeprefix(f"({source})")
    if list(parts) == parted(word, f"u{ir.BITS[target]}", source, len(parts)):
        return from_bits(word, target)
    bits, wide = ir.BITS[source], f"u{ir.BITS[target]}"
    words = [f"({wide})(u{bits}){to_bits(part, source)}" for part in parts]
    shifted = [f"{word} << {k * bits}" if k else word for k, word in enumerate(words)]
    return from_bits(f"({' | '.join(shifted)})", target)


# casts ------------------------------------------------------------------------------------------


def cast(x: str, source: str, target: str) -> str:
    """The same number in another dtype."""
    if source == target:
        return x
    if source in NARROW:
        return cast(widened(x, source), "f32", target)
    if target == "bool":
        return f"{x} != 0"
    if target in NARROW:
        return narrowed(_as_single(x, source), target)
    if source in ir.FLOATS and target not in ir.FLOATS:
        return f"{'i64' if target == 'index' else target}_from_{source}({x})"
    return f"({target}){x}"


def widened(x: str, dtype: str) -> str:
    """A narrow float, exactly, as f32."""
    return f"f32_from_{dtype}({x})"


def narrowed(x: str, dtype: str) -> str:
    """An f32 rounded to nearest even."""
    return f"{dtype}_from_f32({x})"


def _as_single(x: str, source: str) -> str:
    """A number as an f32 that rounds to any narrow float as the number itself would."""
    if source == "f32":
        return x
    if source != "f64" and ir.BITS[source] <= 16:
        return f"(f32){x}"
    return f"odd_f32_from_{'i64' if source == 'index' else source}({x})"


# floats -----------------------------------------------------------------------------------------


def _compute_narrow(op: str, dtype: str, args: Sequence[str]) -> str:
    """In f32, which is exact enough that rounding its result again is one rounding."""
    sign = 1 << (ir.BITS[dtype] - 1)
    if op == "neg":
        return f"{args[0]} ^ 0x{sign:x}"
    if op == "abs":
        return f"{args[0]} & 0x{sign - 1:x}"
    if op == "fma":
        return f"fma_{dtype}({', '.join(args)})"
    result = compute(op, "f32", [widened(arg, dtype) for arg in args])
    return result if op in _COMPARE else narrowed(result, dtype)


_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

# f is the suffix of the single-precision functions. min and max of CUDA's library drop a NaN.
_FLOAT: dict[str, str] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "rem": "fmod{f}({0}, {1})",
    "neg": "-{0}",
    "abs": "fabs{f}({0})",
    "min": "min_{dtype}({0}, {1})",
    "max": "max_{dtype}({0}, {1})",
    "fma": "fma{f}({0}, {1}, {2})",
    "round": "rint{f}({0})",
    "exp2_approx": "exp2_approx({0})",
    **{op: f"{op}{{f}}({{0}})" for op in ("sqrt", "floor", "ceil", "trunc")},
    **{op: f"{{0}} {sign} {{1}}" for op, sign in _COMPARE.items()},
    **{name: f"{name}({{0}})" for name in ir.LIBRARY},
    **{name: f"{name}({{0}}, {{1}})" for name in ("atan2", "pow")},
}

# integers ---------------------------------------------------------------------------------------

Rule = Callable[..., str]  # dtype, operands -> expression


def _bits_type(dtype: str) -> str:
    """The unsigned type that integers of a dtype compute in; C's own widening takes them there."""
    return "u64" if ir.BITS[dtype] == 64 else "u32"


def _wrapping(sign: str) -> Rule:
    """Signed overflow has no result in C++, so it is computed as unsigned. An index is an address:
    one that overflows means nothing, and the compiler may know that."""

    def rule(dtype: str, x: str, y: str) -> str:
        if dtype in ("index", "u32", "u64") or (ir.BITS[dtype] < 32 and sign != "*"):
            return f"{x} {sign} {y}"
        bits = _bits_type(dtype)
        return f"({bits}){x} {sign} ({bits}){y}"

    return rule


def _infix(sign: str) -> Rule:
    return lambda dtype, x, y: f"{x} {sign} {y}"


def _quotient(op: str, sign: str) -> Rule:
    """The divisor of an index is never 0."""

    def rule(dtype: str, x: str, y: str) -> str:
        return f"{x} {sign} {y}" if dtype == "index" else f"{op}_{dtype}({x}, {y})"

    return rule


def _negated(dtype: str, x: str) -> str:
    return f"0 - ({_bits_type(dtype)}){x}"


def _magnitude(dtype: str, x: str) -> str:
    bits = _bits_type(dtype)
    return f"{x} < 0 ? 0 - ({bits}){x} : ({bits}){x}"


def _not(dtype: str, x: str) -> str:
    return f"!{x}" if dtype == "bool" else f"~{x}"


def _high_half(dtype: str, x: str, y: str) -> str:
    bits = ir.BITS[dtype]
    if bits < 32:
        wide = "u32" if dtype in UNSIGNED else "i32"
        return f"({wide}){x} * ({wide}){y} >> {bits}"
    names = {"i32": "__mulhi", "u32": "__umulhi", "i64": "__mul64hi", "u64": "__umul64hi"}
    return f"{names[dtype]}({x}, {y})"


def _shift_left(dtype: str, x: str, y: str) -> str:
    bits = _bits_type(dtype)
    return f"({bits}){y} < {ir.BITS[dtype]} ? ({bits}){x} << {y} : 0"


def _shift_right(dtype: str, x: str, y: str) -> str:
    bits, width = _bits_type(dtype), ir.BITS[dtype]
    if dtype in UNSIGNED:
        return f"{y} < {width} ? {x} >> {y} : 0"
    return f"{x} >> (({bits}){y} < {width} ? {y} : {width - 1})"


def _population(dtype: str, x: str) -> str:
    bits = ir.BITS[dtype]
    return f"__popcll({x})" if bits == 64 else f"__popc({_unsigned(x, bits)})"


def _leading_zeros(dtype: str, x: str) -> str:
    bits = ir.BITS[dtype]
    if bits == 64:
        return f"__clzll({x})"
    return f"__clz({_unsigned(x, bits)})" + (f" - {32 - bits}" if bits < 32 else "")


def _unsigned(x: str, bits: int) -> str:
    return f"(u{bits}){x}"


_WHOLE: dict[str, Rule] = {
    "add": _wrapping("+"),
    "sub": _wrapping("-"),
    "mul": _wrapping("*"),
    "div": _quotient("div", "/"),
    "rem": _quotient("rem", "%"),
    "mulhi": _high_half,
    "neg": _negated,
    "abs": _magnitude,
    "min": lambda dtype, x, y: f"{x} < {y} ? {x} : {y}",
    "max": lambda dtype, x, y: f"{x} > {y} ? {x} : {y}",
    "and": _infix("&"),
    "or": _infix("|"),
    "xor": _infix("^"),
    "not": _not,
    "shl": _shift_left,
    "shr": _shift_right,
    "popcount": _population,
    "clz": _leading_zeros,
    **{op: _infix(sign) for op, sign in _COMPARE.items()},
}


# integers by a known number ---------------------------------------------------------------------


def _divided_by(dtype: str, x: str, y: int) -> str:
    if y == 0:
        return number(-1, dtype) if dtype not in UNSIGNED else f"({dtype})-1"
    return _negated(dtype, x) if y == -1 else f"{x} / {number(y, dtype)}"


def _rest_by(dtype: str, x: str, y: int) -> str:
    if y == 0:
        return x
    return "0" if y == -1 else f"{x} % {number(y, dtype)}"


def _shifted_left_by(dtype: str, x: str, y: int) -> str:
    return f"({_bits_type(dtype)}){x} << {y}" if 0 <= y < ir.BITS[dtype] else "0"


def _shifted_right_by(dtype: str, x: str, y: int) -> str:
    width = ir.BITS[dtype]
    if 0 <= y < width:
        return f"{x} >> {y}"
    return "0" if dtype in UNSIGNED else f"{x} >> {width - 1}"


_BY_CONSTANT: dict[str, Callable[[str, str, int], str]] = {
    "div": _divided_by,
    "rem": _rest_by,
    "shl": _shifted_left_by,
    "shr": _shifted_right_by,
}
