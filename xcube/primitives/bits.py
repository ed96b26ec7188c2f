"""Logic and bits, element by element: and, or, xor, not, shifts, counts, high products. They have
no derivatives."""

from __future__ import annotations

from xcube.primitives.kinds import INTEGER, WHOLE, binary, unary

bitwise_and = binary(
    "and",
    accepts=WHOLE,
    doc="x & y: s[*d], s[*d] -> s[*d] of bools or integers, bit by bit.",
)
bitwise_or = binary(
    "or",
    accepts=WHOLE,
    doc="x | y: s[*d], s[*d] -> s[*d] of bools or integers, bit by bit.",
)
bitwise_xor = binary(
    "xor",
    accepts=WHOLE,
    doc="x ^ y: s[*d], s[*d] -> s[*d] of bools or integers, bit by bit.",
)
bitwise_not = unary(
    "not",
    accepts=WHOLE,
    doc="~x: s[*d] -> s[*d], all bits of a bool or an integer inverted.",
)
shift_left = binary(
    "shift_left",
    accepts=INTEGER,
    doc="x << y: i[*d], i[*d] -> i[*d]; 0 where y is not less than the number of bits.",
)
shift_right_logical = binary(
    "shift_right_logical",
    accepts=INTEGER,
    doc="x >> y with zeros shifted in: i[*d], i[*d] -> i[*d]; 0 for a shift by all bits or more.",
)
shift_right_arithmetic = binary(
    "shift_right_arithmetic",
    accepts=INTEGER,
    doc="x >> y with the sign bit shifted in: i[*d], i[*d] -> i[*d]; the sign for wide shifts.",
)
population_count = unary(
    "population_count",
    accepts=INTEGER,
    doc="How many bits of x are set: i[*d] -> i[*d].",
)
clz = unary(
    "clz",
    accepts=INTEGER,
    doc="How many bits before the first set one: i[*d] -> i[*d].",
)
mulhi = binary(
    "mulhi",
    accepts=INTEGER,
    doc="The high half of the product x * y: i[*d], i[*d] -> i[*d].",
)
