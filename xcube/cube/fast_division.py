"""Division of run-time numbers by one that the launch knows, as a product and a shift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from xcube.cube.state import is_expanding
from xcube.cube.values import DTYPES, Value
from xcube.errors import DtypeError
from xcube.ir import at_user_line

U32: Any = DTYPES["u32"]  # what the launch passes, in kernels


@dataclass(frozen=True)
class FastDivmod:
    """Division by a number that the launch knows: `n // d` as a product and a shift, for n below
    2**31. A parameter annotated so takes an int.

    >>> from xcube import cube
    >>> cube.FastDivmod.of(7).shift
    3

    Source: Granlund and Montgomery, Division by invariant integers using multiplication, 1994.
    """

    divisor: U32  # type: ignore[valid-type]
    multiplier: U32  # type: ignore[valid-type]
    shift: U32  # type: ignore[valid-type]

    @classmethod
    def of(cls, divisor: int) -> FastDivmod:
        """For a divisor in 1..2**31 - 1.

        Raises DtypeError for others.
        """
        if isinstance(divisor, bool) or not isinstance(divisor, int | np.integer):
            _refuse_divisor(divisor)
        number = int(divisor)
        if not 1 <= number < 1 << 31:
            _refuse_divisor(divisor)
        shift = (number - 1).bit_length()
        multiplier = ((1 << 32) * ((1 << shift) - number)) // number + 1
        return cls(number, multiplier, shift)

    def divide(self, n: Any) -> Any:
        """n // divisor, u32."""
        number = _unsigned(n)
        high = _mulhi(number, self.multiplier)
        return (high + number) >> self.shift

    def modulo(self, n: Any) -> Any:
        """n % divisor, u32."""
        return _unsigned(n) - self.divide(n) * self.divisor

    def divmod(self, n: Any) -> tuple[Any, Any]:
        """Both."""
        quotient = self.divide(n)
        return quotient, _unsigned(n) - quotient * self.divisor


def _refuse_divisor(divisor: Any) -> NoReturn:
    raise DtypeError(
        f"FastDivmod: the divisor must be an int in 1..{(1 << 31) - 1}; got {divisor!r}."
        f"{at_user_line()} Divide with // instead."
    )


def _unsigned(n: Any) -> Any:
    return DTYPES["u32"](n) if is_expanding() else int(n)


def _mulhi(n: Any, multiplier: Any) -> Any:
    if not is_expanding():
        return n * multiplier >> 32
    core = DTYPES["u32"](n).core
    return Value(core.build.op("mulhi", core, DTYPES["u32"](multiplier).core))
