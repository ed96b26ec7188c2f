"""Conversions between number formats as LLVM instructions, exact where LLVM leaves results open:
saturating float to integer, and one rounding to the floats that are held as bits."""

from __future__ import annotations

from xcube.lowering.cube import ir
from xcube.lowering.cube.ir import Type
from xcube.lowering.emit.llvm_text import (
    HELD,
    NARROW,
    UNSIGNED,
    WIDE,
    Code,
    line,
    number,
    overload,
    real,
)


def cast(code: Code, value: str, source: Type, dtype: str) -> str:
    """The same number in another dtype."""
    lanes = source.lanes
    if source.dtype == dtype:
        return value
    if source.dtype in NARROW:
        return cast(code, widen(code, value, source), Type("f32", lanes), dtype)
    if dtype == "bool":
        return _is_nonzero(code, value, source)
    if dtype in NARROW:
        return narrow(code, _to_f32(code, value, source), lanes, dtype)
    if source.dtype in WIDE:
        return _from_wide(code, value, source, dtype)
    return _from_whole(code, value, source, dtype)


def widen(code: Code, value: str, source: Type) -> str:
    """A float held as bits, exactly, as f32."""
    return _WIDEN[source.dtype](code, value, source.lanes)


def narrow(code: Code, value: str, lanes: int, dtype: str) -> str:
    """An f32 rounded to nearest even, as the bits of a narrow float."""
    return _NARROW[dtype](code, value, lanes)


def f64_to_odd_f32(code: Code, value: str, lanes: int) -> str:
    """An f64 as f32, rounded to odd: a later rounding to fewer bits is then the only one."""
    double, single = line("double", lanes), line("float", lanes)
    near = code.add(f"fptrunc {double} {value} to {single}")
    back = code.add(f"fpext {single} {near} to {double}")
    size = code.alike("fabs", "double", lanes, value)
    near_size = code.alike("fabs", "double", lanes, back)
    low = code.add(f"fcmp olt {double} {near_size}, {size}")
    high = code.add(f"fcmp ogt {double} {near_size}, {size}")
    return to_odd(code, near, Type("f32", lanes), low, high)


def to_odd(code: Code, near: str, type: Type, is_low: str, is_high: str) -> str:
    """Where a float's size is too low or too high and its last bit even: the next one that way."""
    bits, lanes = ir.BITS[type.dtype], type.lanes
    kind, whole, flag = line(HELD[type.dtype], lanes), line(f"i{bits}", lanes), line("i1", lanes)
    one = number(1, f"i{bits}", lanes)
    pattern = code.add(f"bitcast {kind} {near} to {whole}")
    last = code.add(f"and {whole} {pattern}, {one}")
    even = code.add(f"xor {whole} {last}, {one}")
    up = code.add(f"select {flag} {is_low}, {whole} {even}, {whole} zeroinitializer")
    down = code.add(f"select {flag} {is_high}, {whole} {even}, {whole} zeroinitializer")
    raised = code.add(f"add {whole} {pattern}, {up}")
    odd = code.add(f"sub {whole} {raised}, {down}")
    return code.add(f"bitcast {whole} {odd} to {kind}")


# To and from whole numbers ------------------------------------------------------------------------


def _is_nonzero(code: Code, value: str, source: Type) -> str:
    type = line(HELD[source.dtype], source.lanes)
    compare = "fcmp une" if source.dtype in WIDE else "icmp ne"
    return code.add(f"{compare} {type} {value}, zeroinitializer")


def _from_whole(code: Code, value: str, source: Type, dtype: str) -> str:
    lanes = source.lanes
    type, target = line(HELD[source.dtype], lanes), line(HELD[dtype], lanes)
    if type == target:
        return value
    unsigned = source.dtype in UNSIGNED
    if dtype in WIDE:
        return code.add(f"{'uitofp' if unsigned else 'sitofp'} {type} {value} to {target}")
    if source.dtype == "bool" or ir.BITS[source.dtype] < ir.BITS[dtype]:
        return code.add(f"{'zext' if unsigned else 'sext'} {type} {value} to {target}")
    return code.add(f"trunc {type} {value} to {target}")


def _to_f32(code: Code, value: str, source: Type) -> str:
    """A number as an f32 that rounds to any narrow float as the number itself would."""
    lanes, bits = source.lanes, ir.BITS[source.dtype]
    if source.dtype == "f32":
        return value
    if source.dtype == "f64":
        return f64_to_odd_f32(code, value, lanes)
    if bits <= 16:
        return _from_whole(code, value, source, "f32")
    if bits == 64:
        value = _keep_53_bits(code, value, source)
    return f64_to_odd_f32(code, _from_whole(code, value, source, "f64"), lanes)


def _keep_53_bits(code: Code, value: str, source: Type) -> str:
    """A 64-bit integer rounded to odd where it has more bits than an f64."""
    lanes = source.lanes
    type, flag = line("i64", lanes), line("i1", lanes)
    if source.dtype in UNSIGNED:
        top = code.add(f"lshr {type} {value}, {number(53, 'i64', lanes)}")
    else:  # bits 53 and up are all alike in a short number
        near = code.add(f"ashr {type} {value}, {number(53, 'i64', lanes)}")
        sign = code.add(f"ashr {type} {value}, {number(63, 'i64', lanes)}")
        top = code.add(f"xor {type} {near}, {sign}")
    long = code.add(f"icmp ne {type} {top}, zeroinitializer")
    low = code.add(f"and {type} {value}, {number(0x7FF, 'i64', lanes)}")
    carry = code.add(f"add {type} {low}, {number(0x7FF, 'i64', lanes)}")
    mixed = code.add(f"or {type} {value}, {carry}")
    odd = code.add(f"and {type} {mixed}, {number(-0x800, 'i64', lanes)}")
    return code.add(f"select {flag} {long}, {type} {odd}, {type} {value}")


def _from_wide(code: Code, value: str, source: Type, dtype: str) -> str:
    lanes = source.lanes
    type, target = line(HELD[source.dtype], lanes), line(HELD[dtype], lanes)
    if dtype in WIDE:
        return code.add(f"{'fpext' if dtype == 'f64' else 'fptrunc'} {type} {value} to {target}")
    if lanes > 1:
        return _saturate_line(code, value, source, dtype)
    sign = "ui" if dtype in UNSIGNED else "si"
    name = f"llvm.fpto{sign}.sat.{overload(target, 1)}.{overload(type, 1)}"
    return code.call(name, target, (type,), value)


def _saturate_line(code: Code, value: str, source: Type, dtype: str) -> str:
    """LLVM's saturating conversions of lines compile to scalar code on x86, so clamp first."""
    lanes, scalar = source.lanes, HELD[source.dtype]
    unsigned, bits = dtype in UNSIGNED, ir.BITS[dtype]
    low = 0 if unsigned else -(1 << (bits - 1))
    high = (1 << (bits if unsigned else bits - 1)) - 1
    type, flag = line(scalar, lanes), line("i1", lanes)
    exact = bits < (32 if source.dtype == "f32" else 64)
    middle_bits = max(bits, 32)
    signed = not unsigned or bits < 32
    whole = line(f"i{middle_bits}", lanes)
    clamped = _limit(code, value, low, scalar, lanes, "ogt")
    if exact:
        clamped = _limit(code, clamped, high, scalar, lanes, "olt")
    result = code.add(f"fpto{'si' if signed else 'ui'} {type} {clamped} to {whole}")
    if not exact:
        bound = _splat_real(high + 1, scalar, lanes)
        over = code.add(f"fcmp oge {type} {value}, {bound}")
        most = f"splat (i{bits} {high})"
        result = code.add(f"select {flag} {over}, {whole} {most}, {whole} {result}")
    ordered = code.add(f"fcmp ord {type} {value}, zeroinitializer")
    result = code.add(f"select {flag} {ordered}, {whole} {result}, {whole} zeroinitializer")
    if bits < middle_bits:
        return code.add(f"trunc {whole} {result} to {line(f'i{bits}', lanes)}")
    return result


def _limit(code: Code, value: str, bound: int, scalar: str, lanes: int, keep: str) -> str:
    type, limit = line(scalar, lanes), _splat_real(bound, scalar, lanes)
    inside = code.add(f"fcmp {keep} {type} {value}, {limit}")
    return code.add(f"select {line('i1', lanes)} {inside}, {type} {value}, {type} {limit}")


def _splat_real(value: float, scalar: str, lanes: int) -> str:
    return f"splat ({scalar} {real(value, scalar)})" if lanes > 1 else real(value, scalar)


# Narrow floats ------------------------------------------------------------------------------------


def _f16_to_f32(code: Code, value: str, lanes: int) -> str:
    half = code.add(f"bitcast {line('i16', lanes)} {value} to {line('half', lanes)}")
    return code.add(f"fpext {line('half', lanes)} {half} to {line('float', lanes)}")


def _f32_to_f16(code: Code, value: str, lanes: int) -> str:
    half = code.add(f"fptrunc {line('float', lanes)} {value} to {line('half', lanes)}")
    return code.add(f"bitcast {line('half', lanes)} {half} to {line('i16', lanes)}")


def _bf16_to_f32(code: Code, value: str, lanes: int) -> str:
    whole = line("i32", lanes)
    wide = code.add(f"zext {line('i16', lanes)} {value} to {whole}")
    bits = code.add(f"shl {whole} {wide}, {number(16, 'i32', lanes)}")
    return code.add(f"bitcast {whole} {bits} to {line('float', lanes)}")


def _f32_to_bf16(code: Code, value: str, lanes: int) -> str:
    """By integers: the x86 instruction flushes subnormal numbers."""
    whole, short, flag = line("i32", lanes), line("i16", lanes), line("i1", lanes)
    bits = code.add(f"bitcast {line('float', lanes)} {value} to {whole}")
    rounded = _round_off(code, bits, 16, lanes)
    quiet = code.add(f"or {whole} {bits}, {number(0x400000, 'i32', lanes)}")
    is_number = code.add(f"fcmp ord {line('float', lanes)} {value}, zeroinitializer")
    kept = code.add(f"select {flag} {is_number}, {whole} {rounded}, {whole} {quiet}")
    high = code.add(f"lshr {whole} {kept}, {number(16, 'i32', lanes)}")
    return code.add(f"trunc {whole} {high} to {short}")


def _round_off(code: Code, bits: str, drop: int, lanes: int) -> str:
    """Bits of an f32 plus half a unit of what stays after `drop` bits, ties to even."""
    whole = line("i32", lanes)
    last = code.add(f"lshr {whole} {bits}, {number(drop, 'i32', lanes)}")
    tie = code.add(f"and {whole} {last}, {number(1, 'i32', lanes)}")
    half = code.add(f"add {whole} {bits}, {number((1 << (drop - 1)) - 1, 'i32', lanes)}")
    return code.add(f"add {whole} {half}, {tie}")


def _e5m2_to_f32(code: Code, value: str, lanes: int) -> str:
    """An e5m2 is the upper half of an f16."""
    short = line("i16", lanes)
    wide = code.add(f"zext {line('i8', lanes)} {value} to {short}")
    bits = code.add(f"shl {short} {wide}, {number(8, 'i16', lanes)}")
    return _f16_to_f32(code, bits, lanes)


def _e4m3_to_f32(code: Code, value: str, lanes: int) -> str:
    """Moved into the fields of an f16 the value is 2**-8 of what it should be, subnormal or not."""
    short, single, flag = line("i16", lanes), line("float", lanes), line("i1", lanes)
    wide = code.add(f"zext {line('i8', lanes)} {value} to {short}")
    size = code.add(f"and {short} {wide}, {number(0x7F, 'i16', lanes)}")
    field = code.add(f"shl {short} {size}, {number(7, 'i16', lanes)}")
    top = code.add(f"and {short} {wide}, {number(0x80, 'i16', lanes)}")
    sign = code.add(f"shl {short} {top}, {number(8, 'i16', lanes)}")
    small = _f16_to_f32(code, code.add(f"or {short} {field}, {sign}"), lanes)
    full = code.add(f"fmul {single} {small}, {number(256.0, 'f32', lanes)}")
    is_nan = code.add(f"icmp eq {short} {size}, {number(0x7F, 'i16', lanes)}")
    nan = number(float("nan"), "f32", lanes)
    return code.add(f"select {flag} {is_nan}, {single} {nan}, {single} {full}")


def _f32_to_f8(code: Code, value: str, lanes: int, dtype: str) -> str:
    """Normal results are rounded in the bits, subnormal ones by adding a power of two."""
    exponent_bits, mantissa_bits, infinities = NARROW[dtype]
    bias, drop = (1 << (exponent_bits - 1)) - 1, 23 - mantissa_bits
    whole, single, flag = line("i32", lanes), line("float", lanes), line("i1", lanes)

    def whole_number(value: int) -> str:
        return number(value, "i32", lanes)

    bits = code.add(f"bitcast {single} {value} to {whole}")
    size = code.add(f"and {whole} {bits}, {whole_number(0x7FFFFFFF)}")
    rounded = code.add(f"lshr {whole} {_round_off(code, size, drop, lanes)}, {whole_number(drop)}")
    normal = code.add(f"sub {whole} {rounded}, {whole_number((127 - bias) << mantissa_bits)}")
    # adding 2**e rounds to multiples of 2**(e - 23), which is the step of the subnormal numbers
    anchor = 1 - bias - mantissa_bits + 23
    plain = code.add(f"bitcast {whole} {size} to {single}")
    shifted = code.add(f"fadd {single} {plain}, {number(2.0**anchor, 'f32', lanes)}")
    steps = code.add(f"bitcast {single} {shifted} to {whole}")
    small = code.add(f"sub {whole} {steps}, {whole_number((anchor + 127) << 23)}")
    is_small = code.add(f"icmp ult {whole} {size}, {whole_number((1 - bias + 127) << 23)}")
    chosen = code.add(f"select {flag} {is_small}, {whole} {small}, {whole} {normal}")
    top = (1 << (exponent_bits + mantissa_bits)) - 1
    limit = top - (1 << mantissa_bits) + 1 if infinities else top
    limited = code.alike("umin", "i32", lanes, chosen, whole_number(limit))
    is_nan = code.add(f"icmp ugt {whole} {size}, {whole_number(0x7F800000)}")
    known = code.add(f"select {flag} {is_nan}, {whole} {whole_number(top)}, {whole} {limited}")
    high = code.add(f"lshr {whole} {bits}, {whole_number(24)}")
    sign = code.add(f"and {whole} {high}, {whole_number(0x80)}")
    result = code.add(f"or {whole} {known}, {sign}")
    return code.add(f"trunc {whole} {result} to {line('i8', lanes)}")


def _f32_to_e4m3(code: Code, value: str, lanes: int) -> str:
    return _f32_to_f8(code, value, lanes, "f8_e4m3fn")


def _f32_to_e5m2(code: Code, value: str, lanes: int) -> str:
    return _f32_to_f8(code, value, lanes, "f8_e5m2")


_WIDEN = {
    "f16": _f16_to_f32,
    "bf16": _bf16_to_f32,
    "f8_e4m3fn": _e4m3_to_f32,
    "f8_e5m2": _e5m2_to_f32,
}
_NARROW = {
    "f16": _f32_to_f16,
    "bf16": _f32_to_bf16,
    "f8_e4m3fn": _f32_to_e4m3,
    "f8_e5m2": _f32_to_e5m2,
}
