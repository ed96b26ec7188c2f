"""The operations of planes: what each takes and gives, and what it means.

A reduction gives all units the same: halves of the plane combined, then quarters, ..., as those of
a line. A scan adds what is 1, 2, 4, ... units before. Units that the last plane of a cube lacks are
left out. `ballot` has a bit for each unit; `elect` chooses the first unit whose value holds.
broadcast: the argument is the same for all units; shuffle: the value of the unit with the number
`argument`; _xor, _up, _down: with this unit's number ^, -, + it. A unit that is not there leaves
each its own value.
"""

from __future__ import annotations

from xcube.lowering.cube import ir

NUMBERS, BITWISE = ir.OPS["add"].dtypes, ir.OPS["and"].dtypes

REDUCTIONS = {
    **{"sum": "add", "prod": "mul", "min": "min", "max": "max"},
    **{"and": "and", "or": "or", "xor": "xor", "all": "and", "any": "or"},
}
SCANS = {
    f"{kind}_{name}": op
    for kind in ("inclusive", "exclusive")
    for name, op in (("sum", "add"), ("prod", "mul"))
}
SHUFFLES = ("broadcast", "shuffle", "shuffle_xor", "shuffle_up", "shuffle_down")
OPS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sum", "prod", "min", "max"), NUMBERS),
    **dict.fromkeys(("and", "or", "xor"), BITWISE),
    **dict.fromkeys(("all", "any", "ballot", "elect"), ("bool",)),
    **dict.fromkeys(SHUFFLES, ir.DTYPES),
    **dict.fromkeys(SCANS, NUMBERS),
}
IDENTITIES = {"add": -0.0, "mul": 1, "and": -1, "or": 0, "xor": 0}


def identity(op: str, dtype: str) -> int | float | bool:
    """The value that combined with another by an operation leaves it as it is."""
    if op in ("min", "max"):
        return _extremes(dtype)[op == "max"]
    value = IDENTITIES[op]
    if dtype in ir.FLOATS:
        return float(value)
    if dtype == "bool":
        return bool(value)
    return (1 << ir.BITS[dtype]) - 1 if value == -1 and dtype in ir.UNSIGNED else int(value)


def _extremes(dtype: str) -> tuple[int | float | bool, int | float | bool]:
    """The highest and the lowest value."""
    if dtype == "bool":
        return True, False
    if dtype in ir.FLOATS:
        most = 448.0 if dtype == "f8_e4m3fn" else float("inf")  # it has no infinity
        return most, -most
    bits = ir.BITS[dtype] - (dtype not in ir.UNSIGNED)
    return (1 << bits) - 1, 0 if dtype in ir.UNSIGNED else -(1 << bits)
