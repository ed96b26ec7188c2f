"""What the numbers of a convolution mean: which dimension is which in its operands, how named
paddings come out, and which shapes follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from xcube.errors import ShapeError
from xcube.ir import Shape, at_user_line

Pairs = tuple[tuple[int, int], ...]


class ConvDimensionNumbers(NamedTuple):
    """Which dimension of the operands and the result of a convolution is which.

    `lhs_spec`: (batch, features, *space) of the input. `rhs_spec`: (output features, input
    features, *window) of the kernel. `out_spec`: (batch, features, *space) of the result.
    """

    lhs_spec: Shape
    rhs_spec: Shape
    out_spec: Shape


ConvGeneralDilatedDimensionNumbers = tuple[str, str, str] | ConvDimensionNumbers | None

_LETTERS = ("NC", "OI", "NC")
_SPECS = ("lhs_spec", "rhs_spec", "out_spec")


def conv_dimension_numbers(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], dimension_numbers: Any
) -> ConvDimensionNumbers:
    """The dimension numbers that three strings, or None for ("NC...", "OI...", "NC..."), mean.

    Raises ShapeError unless the operands have one rank of at least 2 and each string names each
    of their dimensions once.

    >>> conv_dimension_numbers((1, 8, 8, 3), (3, 3, 3, 4), ("NHWC", "HWIO", "NHWC"))
    ConvDimensionNumbers(lhs_spec=(0, 3, 1, 2), rhs_spec=(3, 2, 0, 1), out_spec=(0, 3, 1, 2))
    """
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    rank = len(lhs_shape)
    if rank != len(rhs_shape) or rank < 2:
        raise ShapeError(
            f"convolution: lhs and rhs must have the same number of dimensions, at least 2; got "
            f"shapes {tuple(lhs_shape)} and {tuple(rhs_shape)}.{at_user_line()}"
        )
    if dimension_numbers is None:
        order = tuple(range(rank))
        return ConvDimensionNumbers(order, order, order)
    specs = tuple(dimension_numbers) if isinstance(dimension_numbers, tuple | list) else ()
    if len(specs) != 3 or not all(isinstance(s, str) and len(s) == rank for s in specs):
        raise ShapeError(
            f"convolution: dimension_numbers must be None, a ConvDimensionNumbers or three strings "
            f"of {rank} letters, one per dimension; got {dimension_numbers!r}.{at_user_line()}"
        )
    return ConvDimensionNumbers(*conv_general_permutations(specs))


def conv_general_permutations(dimension_numbers: Sequence[str]) -> tuple[Shape, Shape, Shape]:
    """The places of batch, features and space (output features, input features and window of the
    kernel) in three strings; space is in the order that the kernel's string has.

    Raises ShapeError unless each string has its two letters and the same others, each once.

    >>> conv_general_permutations(("NWC", "WIO", "NWC"))
    ((0, 2, 1), (2, 1, 0), (0, 2, 1))
    """
    spaces = []
    for name, spec, letters in zip(_SPECS, dimension_numbers, _LETTERS, strict=True):
        if len(set(spec)) != len(spec) or not set(letters) <= set(spec):
            raise ShapeError(
                f"convolution: {name} must hold the letters {letters[0]!r} and {letters[1]!r}, and "
                f"each letter once; got {spec!r}.{at_user_line()}"
            )
        spaces.append([c for c in spec if c not in letters])
    if not set(spaces[0]) == set(spaces[1]) == set(spaces[2]):
        raise ShapeError(
            f"convolution: the three strings must name the same dimensions of space; got "
            f"{tuple(dimension_numbers)}.{at_user_line()}"
        )
    found = [
        tuple([spec.index(c) for c in (*letters, *spaces[1])])
        for spec, letters in zip(dimension_numbers, _LETTERS, strict=True)
    ]
    return found[0], found[1], found[2]


# sizes ----------------------------------------------------------------------------------------


def dilated(size: int, step: int) -> int:
    """How far `size` places reach that lie `step` apart."""
    return (size - 1) * step + 1 if size else 0


def strided(size: int, window: int, stride: int) -> int:
    """How many windows fit into a size, `stride` apart."""
    return max(0, (size - window) // stride + 1)


def padtype_to_pads(
    in_shape: Sequence[int],
    window_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str,
) -> list[tuple[int, int]]:
    """The (low, high) pairs of a named padding: "VALID" is none, "SAME" leaves
    ceil(size / stride) windows, with an odd one's rest behind ("SAME_LOWER": in front).

    Raises ShapeError for another name.

    >>> padtype_to_pads((8, 8), (3, 2), (1, 1), "SAME")
    [(1, 1), (0, 1)]
    """
    name = padding.upper() if isinstance(padding, str) else padding
    if name == "VALID":
        return [(0, 0)] * len(window_shape)
    if name not in ("SAME", "SAME_LOWER"):
        raise ShapeError(
            f"padding: must be 'SAME', 'SAME_LOWER', 'VALID' or (low, high) pairs; got "
            f"{padding!r}.{at_user_line()}"
        )
    pairs = []
    for size, window, stride in zip(in_shape, window_shape, window_strides, strict=True):
        count = -(-int(size) // int(stride))
        total = max((count - 1) * int(stride) + int(window) - int(size), 0)
        less, more = total // 2, total - total // 2
        pairs.append((less, more) if name == "SAME" else (more, less))
    return pairs


def transposed_pads(window: int, stride: int, padding: Any) -> tuple[int, int]:
    """The padding of a transposed convolution whose forward one has this window, stride and
    padding ("SAME", "VALID" or a pair). Raises ShapeError for anything else."""
    if padding == "SAME":
        total = window + stride - 2
        low = window - 1 if stride > window - 1 else -(-total // 2)
    elif padding == "VALID":
        total = window + stride - 2 + max(window - stride, 0)
        low = window - 1
    elif isinstance(padding, tuple | list) and len(padding) == 2:
        low, total = window - padding[0] - 1, 2 * (window - 1) - sum(padding)
    else:
        raise ShapeError(
            f"conv_transpose: padding must be 'SAME', 'VALID' or (low, high) pairs; got "
            f"{padding!r}.{at_user_line()}"
        )
    return low, total - low


# shapes ---------------------------------------------------------------------------------------


def conv_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    strides: Sequence[int],
    pads: Any,
    batch_group_count: int = 1,
) -> Shape:
    """The shape [batch, features, *space] of a convolution of [batch, features, *space] with
    [output features, input features, *window].

    Raises ShapeError if a padding cuts off more than there is.

    >>> conv_shape_tuple((2, 3, 8), (4, 3, 3), (2,), "SAME")
    (2, 4, 4)
    """
    space, window = tuple(lhs_shape[2:]), tuple(rhs_shape[2:])
    pairs = padtype_to_pads(space, window, strides, pads) if isinstance(pads, str) else pads
    if not len(pairs) == len(strides) == len(space):
        raise ShapeError(
            f"convolution: there must be {len(space)} strides and pairs of padding, one per "
            f"dimension of space; got window_strides={tuple(strides)}, padding={pairs}."
            f"{at_user_line()}"
        )
    padded = [int(n) + low + high for n, (low, high) in zip(space, pairs, strict=True)]
    if min(padded, default=0) < 0:
        raise ShapeError(
            f"convolution: a negative padding must not cut off more than there is; got "
            f"padding={pairs} for the sizes {space}.{at_user_line()}"
        )
    counts = [strided(n, int(k), s) for n, k, s in zip(padded, window, strides, strict=True)]
    return (int(lhs_shape[0]) // batch_group_count, int(rhs_shape[0]), *counts)


def conv_general_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    dimension_numbers: Sequence[str],
) -> Shape:
    """The shape of a convolution whose dimensions three strings name.

    >>> conv_general_shape_tuple((2, 8, 3), (3, 3, 4), (1,), "VALID", ("NWC", "WIO", "NWC"))
    (2, 6, 4)
    """
    left, right, out = conv_general_permutations(dimension_numbers)
    shapes = ([lhs_shape[d] for d in left], [rhs_shape[d] for d in right])
    return placed(conv_shape_tuple(*shapes, window_strides, padding), out)


def conv_transpose_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    dimension_numbers: Sequence[str],
) -> Shape:
    """The shape of a transposed convolution whose dimensions three strings name.

    >>> conv_transpose_shape_tuple((2, 4, 3), (3, 3, 5), (2,), "SAME", ("NWC", "WIO", "NWC"))
    (2, 8, 5)
    """
    left, right, out = conv_general_permutations(dimension_numbers)
    sizes, windows = [lhs_shape[d] for d in left], [rhs_shape[d] for d in right]
    names = padding if not isinstance(padding, str) else None
    pairs = names or [
        transposed_pads(k, s, padding) for k, s in zip(windows[2:], window_strides, strict=True)
    ]
    walks = zip(sizes[2:], windows[2:], window_strides, pairs, strict=True)
    counts = [(n - 1) * s - k + 2 + sum(pair) for n, k, s, pair in walks]
    return placed((sizes[0], windows[0], *counts), out)


def placed(values: Sequence[int], spec: Shape) -> Shape:
    """Values in the order of batch, features and space, each at its dimension's place."""
    return tuple([values[spec.index(d)] for d in range(len(spec))])
