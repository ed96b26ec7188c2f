"""Spelling for the LLVM emitter: types, literals and a growing list of instructions.

Floats narrower than f32 are held in registers as their bits, so that moving them is integer work
on every target; `llvm_casts.py` widens them where their value matters."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import cache

from xcube.lowering.cube import ir
from xcube.lowering.cube.ir import Const, Type

Rule = Callable[..., str]  # code, type, operands -> the text of the result

HELD = {
    **{"bool": "i1", "index": "i64", "f32": "float", "f64": "double", "half": "half"},
    **{dtype: f"i{ir.BITS[dtype]}" for dtype in ir.INTEGERS},
    **{"f16": "i16", "bf16": "i16", "f8_e4m3fn": "i8", "f8_e5m2": "i8"},
}
WIDE = ("f32", "f64")
UNSIGNED = (*ir.UNSIGNED, "bool")
SHORT = {"float": "f32", "double": "f64", "half": "f16"}

# Exponent bits, mantissa bits, and whether the format has infinities.
NARROW = {
    "f16": (5, 10, True),
    "bf16": (8, 7, True),
    "f8_e5m2": (5, 2, True),
    "f8_e4m3fn": (4, 3, False),
}


class Code:
    """The instructions of one function and the functions that it calls."""

    def __init__(self, native_half: bool = False) -> None:
        self.native_half = native_half
        self.here = ""  # the label of the open block
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self._count = 0

    def add(self, instruction: str) -> str:
        """Append an instruction; the name of its result."""
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {instruction}")

    def label(self, hint: str) -> str:
        """A fresh label, to be placed by `mark`."""
        self._count += 1
        return f"{hint}{self._count}"

    def mark(self, label: str) -> None:
        """Place a label here: a block begins."""
        self.lines.append(f"{label}:")
        self.here = label

    def go(self, label: str) -> None:
        """Jump: the block ends."""
        self.do(f"br label %{label}")

    def go_if(self, condition: str, label: str, other: str, hints: str = "") -> None:
        """Jump by a condition: the block ends."""
        self.do(f"br i1 {condition}, label %{label}, label %{other}{hints}")

    def call(self, function: str, result: str, types: tuple[str, ...], *args: str) -> str:
        """Call a declared function or intrinsic; the name of its result."""
        return self.add(self._call(function, result, types, args))

    def run(self, function: str, types: tuple[str, ...], *args: str) -> None:
        """Call a declared function that gives nothing."""
        self.do(self._call(function, "void", types, args))

    def alike(self, name: str, scalar: str, lanes: int, *args: str) -> str:
        """Call an overloaded intrinsic whose operands and result are of one type."""
        type = line(scalar, lanes)
        return self.call(f"llvm.{name}.{overload(scalar, lanes)}", type, (type,) * len(args), *args)

    def _call(
        self, function: str, result: str, types: tuple[str, ...], args: tuple[str, ...]
    ) -> str:
        if function not in self.declared:
            self.declared[function] = f"declare {result} @{function}({', '.join(types)})"
        operands = ", ".join([f"{type} {arg}" for type, arg in zip(types, args, strict=True)])
        return f"call {result} @{function}({operands})"


@cache
def line(scalar: str, lanes: int) -> str:
    """A line of an LLVM type: `<16 x float>`."""
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


@cache
def overload(scalar: str, lanes: int) -> str:
    """The suffix of an intrinsic's name: `v16f32`."""
    short = SHORT.get(scalar, scalar)
    return short if lanes == 1 else f"v{lanes}{short}"


def held(type: Type) -> str:
    """The LLVM type of a value in a register."""
    return line(HELD[type.dtype], type.lanes)


def stored(dtype: str) -> str:
    """The LLVM type of one element in memory."""
    return "i8" if dtype == "bool" else HELD[dtype]


def size_of(dtype: str) -> int:
    """Bytes of one element in memory."""
    return ir.BITS[dtype] // 8


def literal(constant: Const) -> str:
    """The text of a literal, without its type."""
    return number(constant.value, constant.type.dtype, constant.type.lanes)


def number(value: int | float | bool, dtype: str, lanes: int = 1) -> str:
    """The text of a Python number as a literal of a dtype, the same in every lane."""
    if dtype in ("f32", "f64"):
        text = real(value, HELD[dtype])
    elif dtype in NARROW:
        text = str(float_bits(float(value), *NARROW[dtype]))
    elif dtype == "bool":
        text = "true" if value else "false"
    else:
        text = str(int(value))
    return text if lanes == 1 else f"splat ({HELD[dtype]} {text})"


def real(value: float, scalar: str) -> str:
    """The text of an LLVM float or double literal: the bits of the rounded value as a double."""
    value = float(value)
    if scalar == "float" and math.isfinite(value):
        bits = float_bits(value, 8, 23, True)
        value = struct.unpack("<f", struct.pack("<I", bits))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def float_bits(value: float, exponent_bits: int, mantissa_bits: int, infinities: bool) -> int:
    """A number rounded to nearest even in an IEEE-like format of at most 32 bits, as its bits."""
    sign = int(math.copysign(1, value) < 0) << (exponent_bits + mantissa_bits)
    top = (1 << (exponent_bits + mantissa_bits)) - 1
    infinity = top - (1 << mantissa_bits) + 1 if infinities else top
    if math.isnan(value):
        return sign | (infinity | 1 << (mantissa_bits - 1))
    if math.isinf(value):
        return sign | infinity
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = max(math.frexp(value)[1] - 1, 1 - bias) if value else 1 - bias
    steps = round(math.ldexp(abs(value), mantissa_bits - exponent))  # half to even
    return sign | min(((exponent + bias - 1) << mantissa_bits) + steps, infinity)


# Rules that are one instruction -------------------------------------------------------------------


def binary(instruction: str) -> Rule:
    """An instruction of two operands of one type."""
    return lambda code, type, x, y: code.add(f"{instruction} {held(type)} {x}, {y}")


def intrinsic(name: str) -> Rule:
    """An intrinsic whose operands and result are of one type."""
    return lambda code, type, *args: code.alike(name, HELD[type.dtype], type.lanes, *args)


def flagged(name: str) -> Rule:
    """An intrinsic of one operand whose flag "no result is poison" is off."""

    def rule(code: Code, type: Type, x: str) -> str:
        kind = held(type)
        function = f"llvm.{name}.{overload(HELD[type.dtype], type.lanes)}"
        return code.call(function, kind, (kind, "i1"), x, "false")

    return rule
