"""What CUDA C++ kernels need defined before them: types, conversions and the operations that take
more than an expression. A kernel's text names what it uses; `definitions` finds these names and
whatever their own texts name, and gives them in order. No header is included, which halves the time
that NVRTC takes; formats that C++ lacks are held as their bits, and the instructions that only PTX
has stand in `_PTX`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from xcube.lowering.cube import ir

_FUNCTION = "static __device__ __forceinline__"
_WORD = re.compile(r"\b[a-z]\w*\b")
_CHUNK = re.compile(r"(?:(load|store)_)?(\w+?)x(\d+)")


def definitions(text: str) -> list[str]:
    """The definitions that a text needs, each behind what it needs itself."""
    found: dict[str, str] = {}
    for word in _words(text):
        _collect(word, found)
    return list(found.values())


def size_of(dtype: str) -> int:
    """Bytes of one element in memory."""
    return ir.BITS[dtype] // 8


def _words(text: str) -> Iterator[str]:
    return iter(dict.fromkeys(_WORD.findall(text)))


def _collect(word: str, found: dict[str, str]) -> None:
    if word in found or (text := _definition(word)) is None:
        return
    for other in _words(text):
        if other != word:
            _collect(other, found)
    found[word] = text


def _definition(word: str) -> str | None:
    if (text := _KNOWN.get(word)) is not None:
        return text
    match = _CHUNK.fullmatch(word)
    if match is None or match[2] not in _TYPES:
        return None
    return _CHUNKS[match[1]](match[2], int(match[3]))


# types ------------------------------------------------------------------------------------------

_TYPES = {
    "i8": "signed char",
    "i16": "short",
    "i32": "int",
    "i64": "long long",
    "u8": "unsigned char",
    "u16": "unsigned short",
    "u32": "unsigned int",
    "u64": "unsigned long long",
    "f32": "float",
    "f64": "double",
    "f16": "unsigned short",
    "bf16": "unsigned short",
    "f8_e4m3fn": "unsigned char",
    "f8_e5m2": "unsigned char",
    "index": "long long",
}


def _struct(dtype: str, lanes: int) -> str:
    """Neighbours that move in one access of at most 16 bytes."""
    return f"struct alignas({lanes * size_of(dtype)}) {dtype}x{lanes} {{ {dtype} at[{lanes}]; }};"


def _load(dtype: str, lanes: int) -> str:
    """At an address of which only the run knows whether it is aligned."""
    chunk, each = f"{dtype}x{lanes}", ", ".join([f"from[{k}]" for k in range(lanes)])
    whole = f"return *(const {chunk}*)from;"
    if size_of(dtype) == 1 and lanes >= 4:
        words = f"u32x{lanes // 4}"
        parts = ", ".join([f"({dtype})({word_byte('words', k)})" for k in range(lanes)])
        read = f"const {words} words = *(const {words}*)from;"
        whole = f"{{\n    {read}\n    return {chunk}{{{parts}}};\n  }}"
    return (
        f"{_FUNCTION} {chunk} load_{chunk}(const {dtype}* from) {{\n"
        f"  if ((u64)from % sizeof({chunk}) == 0) {whole}\n"
        f"  return {chunk}{{{each}}};\n"
        "}"
    )


def word_byte(words: str, number: int) -> str:
    """A byte of words of four bytes. Bytes move as words: NVRTC 13.0 makes wrong code of vectors
    of bytes that are tested one by one."""
    return f"{words}.at[{number // 4}] >> {8 * (number % 4)}"


def _store(dtype: str, lanes: int) -> str:
    chunk = f"{dtype}x{lanes}"
    each = " ".join([f"to[{k}] = line.at[{k}];" for k in range(lanes)])
    return (
        f"{_FUNCTION} void store_{chunk}({dtype}* to, {chunk} line) {{\n"
        f"  if ((u64)to % sizeof({chunk}) == 0) {{\n"
        f"    *({chunk}*)to = line;\n"
        "  } else {\n"
        f"    {each}\n"
        "  }\n"
        "}"
    )


_CHUNKS = {None: _struct, "load": _load, "store": _store}


# functions --------------------------------------------------------------------------------------


def _function(result: str, name: str, parameters: str, value: str) -> tuple[str, str]:
    """A function of one expression: its name and text."""
    return name, f"{_FUNCTION} {result} {name}({parameters}) {{\n  return {value};\n}}"


def _steps(result: str, name: str, parameters: str, *lines: str) -> tuple[str, str]:
    body = "".join([f"  {line}\n" for line in lines])
    return name, f"{_FUNCTION} {result} {name}({parameters}) {{\n{body}}}"


def _instruction(
    result: str, name: str, operand: str, count: int, instruction: str
) -> tuple[str, str]:
    """A function that is one instruction of PTX."""
    letters = {"f32": "f", "u16": "h", "f16": "h", "bf16": "h"}
    inputs = "xyz"[:count]
    places = ", ".join([f"%{k}" for k in range(count + 1)])
    sources = ", ".join([f'"{letters[operand]}"({x})' for x in inputs])
    return _steps(
        result,
        name,
        ", ".join([f"{operand} {x}" for x in inputs]),
        f"{result} result;",
        f'asm("{instruction} {places};" : "={letters[result]}"(result) : {sources});',
        "return result;",
    )


def _pair_of(dtype: str) -> tuple[str, str]:
    """Two singles rounded to 16 bits each, the first in the low half."""
    return _steps(
        "u32",
        f"pair_of_{dtype}",
        "f32 low, f32 high",
        "u32 result;",
        f'asm("cvt.rn.{dtype}x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));',
        "return result;",
    )


_PTX = (
    _pair_of("f16"),
    _pair_of("bf16"),
    _instruction("f32", "exp2_approx", "f32", 1, "ex2.approx.ftz.f32"),
    _instruction("f32", "min_f32", "f32", 2, "min.NaN.f32"),
    _instruction("f32", "max_f32", "f32", 2, "max.NaN.f32"),
    _instruction("f32", "f32_from_f16", "f16", 1, "cvt.f32.f16"),
    _instruction("f16", "f16_from_f32", "f32", 1, "cvt.rn.f16.f32"),
    _instruction("bf16", "bf16_from_f32", "f32", 1, "cvt.rn.bf16.f32"),
    _instruction("f16", "fma_f16", "f16", 3, "fma.rn.f16"),
    _instruction("bf16", "fma_bf16", "bf16", 3, "fma.rn.bf16"),
)


def _divisions(dtype: str) -> Iterator[tuple[str, str]]:
    """x / 0 is -1, x % 0 is x; the lowest number by -1 is itself and leaves 0."""
    pair = f"{dtype} x, {dtype} y"
    if dtype in ir.UNSIGNED:
        yield _function(dtype, f"div_{dtype}", pair, f"y == 0 ? ({dtype})-1 : x / y")
        yield _function(dtype, f"rem_{dtype}", pair, "y == 0 ? x : x % y")
        return
    bits = "u64" if dtype == "i64" else "u32"
    quotient = f"y == 0 ? -1 : y == -1 ? ({dtype})(0 - ({bits})x) : x / y"
    yield _function(dtype, f"div_{dtype}", pair, quotient)
    yield _function(dtype, f"rem_{dtype}", pair, "y == 0 ? x : y == -1 ? 0 : x % y")


def _extremes() -> Iterator[tuple[str, str]]:
    for name, sign in (("min_f64", "<"), ("max_f64", ">")):
        yield _function("f64", name, "f64 x, f64 y", f"x {sign} y || x != x ? x : y")


def _wholes_of_floats() -> Iterator[tuple[str, str]]:
    """The conversions clamp; a NaN becomes 0 by itself only from f32 to 32 bits."""
    names = {"i32": "int", "u32": "uint", "i64": "ll", "u64": "ull"}
    for source, kind in (("f32", "float"), ("f64", "double")):
        for target, name in names.items():
            convert = f"__{kind}2{name}_rz(x)"
            guarded = source == "f64" or target in ("i64", "u64")
            value = f"x != x ? 0 : {convert}" if guarded else convert
            yield _function(target, f"{target}_from_{source}", f"{source} x", value)
        for target in ("i8", "i16", "u8", "u16"):
            yield _clamped(target, source)


def _clamped(target: str, source: str) -> tuple[str, str]:
    bits, signed = ir.BITS[target], target in ir.SIGNED
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return _steps(
        target,
        f"{target}_from_{source}",
        f"{source} x",
        f"const i32 y = i32_from_{source}(x);",
        f"return y < {low} ? {low} : y > {high} ? {high} : y;",
    )


def _singles_rounded_to_odd() -> Iterator[tuple[str, str]]:
    """Cut off, with the last bit set if anything was lost: a later rounding is the only one."""
    names = {"i32": "int", "u32": "uint", "i64": "ll", "u64": "ull", "f64": "double"}
    for source, name in names.items():
        yield _steps(
            "f32",
            f"odd_f32_from_{source}",
            f"{source} x",
            f"const f32 y = __{name}2float_rz(x);",
            f"return ({source})y == x ? y : __uint_as_float(__float_as_uint(y) | 1);",
        )


def _minifloats() -> Iterator[tuple[str, str]]:
    """e5m2 is the upper half of an f16; e4m3 in the fields of an f16 is 2**-8 of its value."""
    yield _function("f32", "f32_from_f8_e5m2", "f8_e5m2 x", "f32_from_f16((f16)(x << 8))")
    yield _steps(
        "f32",
        "f32_from_f8_e4m3fn",
        "f8_e4m3fn x",
        "const f32 y = f32_from_f16((f16)((x & 0x7f) << 7 | (x & 0x80) << 8));",
        "return (x & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000) : y * 256.0f;",
    )
    yield _to_minifloat("f8_e4m3fn", 3, 7, 0x7F)
    yield _to_minifloat("f8_e5m2", 2, 15, 0x7C)


def _to_minifloat(dtype: str, mantissa: int, bias: int, most: int) -> tuple[str, str]:
    """Normal results are rounded in the bits, subnormal ones by adding a power of two whose last
    place is theirs; `most` is infinity, or the NaN that stands for it."""
    drop, anchor = 23 - mantissa, 24 - bias - mantissa
    return _steps(
        dtype,
        f"{dtype}_from_f32",
        "f32 x",
        "const u32 bits = __float_as_uint(x), size = bits & 0x7fffffff;",
        f"const u32 even = size + {hex((1 << drop - 1) - 1)} + (size >> {drop} & 1);",
        f"const u32 normal = (even >> {drop}) - {hex(127 - bias << mantissa)};",
        f"const u32 small = __float_as_uint(__uint_as_float(size) + {2.0**anchor}f)"
        f" - {hex(anchor + 127 << 23)};",
        f"const u32 near = size < {hex(128 - bias << 23)} ? small : normal;",
        f"const u32 top = size > 0x7f800000 ? 0x7f : near < {hex(most)} ? near : {hex(most)};",
        "return top | (bits >> 24 & 0x80);",
    )


def _products_of_minifloats() -> Iterator[tuple[str, str]]:
    """The product is exact in f64, and directed roundings differ where the sum is not."""
    yield _steps(
        "f64",
        "odd_sum",
        "f64 x, f64 y",
        "const f64 sum = __dadd_rz(x, y);",
        "const bool exact = __dadd_ru(x, y) == __dadd_rd(x, y);",
        "return exact ? sum : __longlong_as_double(__double_as_longlong(sum) | 1);",
    )
    for dtype in ("f8_e4m3fn", "f8_e5m2"):
        yield _steps(
            dtype,
            f"fma_{dtype}",
            f"{dtype} x, {dtype} y, {dtype} z",
            f"const f64 product = (f64)f32_from_{dtype}(x) * f32_from_{dtype}(y);",
            f"return {dtype}_from_f32(odd_f32_from_f64(odd_sum(product, f32_from_{dtype}(z))));",
        )


# A byte is exchanged as part of the word that it lies in.
_BYTE_EXCHANGE = _steps(
    "u8",
    "cas_u8",
    "u8* at, u8 old, u8 value",
    "u32* const word = (u32*)((u64)at & ~3ull);",
    "const u32 shift = ((u64)at & 3) * 8, mask = 0xffu << shift;",
    "u32 seen = *(const volatile u32*)word, before;",
    "do {",
    "  before = seen;",
    "  if ((u8)(before >> shift) != old) return before >> shift;",
    "  seen = atomicCAS(word, before, (before & ~mask) | (u32)value << shift);",
    "} while (seen != before);",
    "return old;",
)

_PLANES = (
    _function(
        "u32", "shuffle_u32", "u32 members, u32 x, u32 origin", "__shfl_sync(members, x, origin)"
    ),
    _steps(
        "u64",
        "shuffle_u64",
        "u32 members, u64 x, u32 origin",
        "const u32 low = __shfl_sync(members, (u32)x, origin);",
        "return (u64)__shfl_sync(members, (u32)(x >> 32), origin) << 32 | low;",
    ),
)

_KNOWN: dict[str, str] = {
    "tile_map": "struct alignas(64) tile_map { u64 at[16]; };",
    **{name: f"typedef {spelling} {name};" for name, spelling in _TYPES.items()},
    **dict(_PTX),
    **dict(pair for dtype in ir.INTEGERS for pair in _divisions(dtype)),
    **dict(_extremes()),
    **dict(_wholes_of_floats()),
    **dict(_singles_rounded_to_odd()),
    **dict([_function("f32", "f32_from_bf16", "bf16 x", "__uint_as_float((u32)x << 16)")]),
    **dict(_minifloats()),
    **dict(_products_of_minifloats()),
    **dict([_BYTE_EXCHANGE]),
    **dict(_PLANES),
}
