"""reduce_window: any operation folded over all elements under a window that slides over arrays. The
operation is traced; one that has a primitive of its own takes it, others are composed of slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xcube import dtypes, tree
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.ir import Aval, Jaxpr, Literal, Shape, at_user_line
from xcube.primitives.convert import convert_element_type
from xcube.primitives.select import ne
from xcube.primitives.shape import broadcast_in_dim, full, reshape
from xcube.primitives.view import integers, pad, scalar_like
from xcube.primitives.window_reduce import FOLDS
from xcube.primitives.window_reduce_planes import Window, check_window, fold_windows
from xcube.trace import Tracer, aval_of, stage
from xcube.transforms.arguments import to_array
from xcube.transforms.vmap import vmap

Padding = str | Sequence[tuple[int, int]]
Gaps = tuple[tuple[int, int, int], ...]


def window_of(
    name: str,
    shape: Shape,
    sizes: Sequence[int],
    strides: Sequence[int] | None,
    padding: Padding,
    dilation: Sequence[int] | None,
    named_for: Shape | None = None,
) -> Window:
    """A window over an array of a shape; no strides or dilations are ones. `named_for`: the shape
    that a padding with a name is made for, if it is another."""
    ones = (1,) * len(sizes)
    sizes, dilation = integers(sizes), integers(ones if dilation is None else dilation)
    strides = integers(ones if strides is None else strides)
    window = Window(sizes, strides, ((0, 0),) * len(sizes), dilation)
    check_window(name, Aval(shape, np.float32), window)
    if isinstance(padding, str):
        return window.padded(paddings(name, named_for or shape, window, padding))
    given = [integers(pair) for pair in padding]
    if len(given) != len(shape) or any(len(pair) != 2 or min(pair) < 0 for pair in given):
        raise ShapeError(
            f"{name}: padding must be 'SAME', 'SAME_LOWER', 'VALID' or a pair (low, high) of sizes "
            f">= 0 for each of {len(shape)} dimensions; got {padding}.{at_user_line()}"
        )
    return window.padded(tuple([(low, high) for low, high in given]))


def paddings(name: str, shape: Shape, window: Window, padding: str) -> tuple[tuple[int, int], ...]:
    """The pairs that a name stands for: SAME makes ceil(size / stride) places, the odd one out at
    the end (SAME_LOWER: at the start); VALID stands out nowhere. Raises ValueError for others."""
    if padding.upper() == "VALID":
        return ((0, 0),) * len(shape)
    if padding.upper() not in ("SAME", "SAME_LOWER"):
        raise ValueError(
            f"{name}: padding must be 'SAME', 'SAME_LOWER', 'VALID' or pairs (low, high); got "
            f"{padding!r}.{at_user_line()}"
        )
    totals = [
        max(0, (-(-size // stride) - 1) * stride + span - size)
        for size, stride, span in zip(shape, window.strides, window.spans, strict=True)
    ]
    odd = padding.upper() == "SAME_LOWER"
    return tuple([((total + odd) // 2, total - (total + odd) // 2) for total in totals])


def reduce_window_shape_tuple(
    operand_shape: Sequence[int],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Shape:
    """The shape of a reduce_window.

    Raises ShapeError if lengths differ or a size, stride or dilation is less than 1.

    >>> reduce_window_shape_tuple((8, 9), (2, 3), (2, 1), [(0, 0), (1, 1)])
    (4, 9)
    """
    name = "reduce_window_shape_tuple"
    shape = _dilated(name, integers(operand_shape), base_dilation)
    window = window_of(name, shape, window_dimensions, window_strides, padding, window_dilation)
    return window.places(shape)


def _dilated(name: str, shape: Shape, dilation: Sequence[int] | None) -> Shape:
    """A shape with gaps between its elements."""
    steps = integers((1,) * len(shape) if dilation is None else dilation)
    if len(steps) != len(shape) or min((*steps, 1)) < 1:
        raise ShapeError(
            f"{name}: base_dilation must have an entry >= 1 for each of {len(shape)} dimensions; "
            f"got {steps}.{at_user_line()}"
        )
    return tuple([max(0, (n - 1) * step + 1) for n, step in zip(shape, steps, strict=True)])


def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[[Any, Any], Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Padding,
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """Elements under each place of a window folded by an associative `computation` of two scalars:
    d[*s] -> d[*places]. `init_value` stands where the window stands out, between elements that
    `base_dilation` moves apart, and once more in each fold.

    A pytree of arrays of one shape, with init values alike, is folded together by a computation of
    two such pytrees of scalars. Raises ShapeError if shapes or window do not fit, DtypeError if
    the computation's results are not of the operands' dtypes, ValueError for an unknown padding.

    >>> import xcube.numpy as jnp
    >>> from xcube import lax
    >>> reduce_window(jnp.arange(5), 0, lax.add, (3,), (1,), "SAME")
    Array([1, 3, 6, 9, 7], dtype=int32)
    """
    leaves, treedef = tree.flatten(operand)
    inits, init_treedef = tree.flatten(init_value)
    xs = [x if isinstance(x, Array) else to_array.convert(np.asarray(x)) for x in leaves]
    _check_operands(xs, treedef, init_treedef)
    shape = _dilated("reduce_window", xs[0].shape, base_dilation)
    window = window_of(
        "reduce_window",
        shape,
        window_dimensions,
        window_strides,
        padding,
        window_dilation,
        xs[0].shape,  # as in JAX: without the gaps of base_dilation
    )
    inits = [scalar_like(init, x.dtype) for init, x in zip(inits, xs, strict=True)]
    steps = base_dilation or (1,) * len(shape)
    gaps = tuple([(0, 0, step - 1) for step in integers(steps)])
    body = _traced(computation, treedef, xs)
    if 0 in (places := window.places(shape)):
        return tree.unflatten(treedef, [full(places, 0, x.dtype) for x in xs])
    fold = _fold_name(body, xs[0])
    if fold is not None:
        return tree.unflatten(treedef, [_by_primitive(fold, xs[0], inits[0], window, gaps)])
    return tree.unflatten(treedef, _by_slices(computation, treedef, xs, inits, window, gaps))


def _check_operands(xs: Sequence[Any], treedef: Any, init_treedef: Any) -> None:
    shown = ", ".join(str(aval_of(x)) for x in xs)
    if treedef != init_treedef or not xs:
        raise ShapeError(
            f"reduce_window: needs an operand at least, and an init value for each; got operands "
            f"{shown} in {treedef} and init values in {init_treedef}.{at_user_line()}"
        )
    if len({x.shape for x in xs}) > 1:
        raise ShapeError(
            f"reduce_window: the operands must have one shape; got {shown}.{at_user_line()}"
        )


def _traced(computation: Any, treedef: Any, xs: Sequence[Any]) -> Jaxpr:
    """The computation of two scalars of each operand's dtype."""
    avals, found = [Aval((), x.dtype) for x in xs], []

    def flat(*args: Any) -> list[Any]:
        pair = [tree.unflatten(treedef, part) for part in (args[: len(xs)], args[len(xs) :])]
        leaves, out = tree.flatten(computation(*pair))
        found.append(out)
        return leaves

    body = stage(flat, [*avals, *avals], "reduce_window")
    got = [atom.aval for atom in body.outputs]
    if found[0] != treedef or [(a.shape, a.dtype) for a in got] != [
        (a.shape, a.dtype) for a in avals
    ]:
        raise DtypeError(
            f"reduce_window: the computation must give scalars of the operands' dtypes "
            f"{', '.join(map(str, avals))}; got {', '.join(map(str, got))}.{at_user_line()}"
        )
    return body


def _fold_name(body: Jaxpr, x: Any) -> str | None:
    """The fold of which a computation is the whole; None for others, and for dtypes without it."""
    if len(body.equations) != 1 or len(body.inputs) != 2:
        return None
    (eqn,) = body.equations
    is_whole = set(eqn.inputs) == set(body.inputs) and body.outputs == eqn.outputs
    name = eqn.primitive.name
    if not is_whole or name not in FOLDS or dtypes.is_complex(x.dtype):
        return None
    return name


def _by_primitive(name: str, x: Any, init: Any, window: Window, gaps: Gaps) -> Any:
    """A fold by its primitive, which pads with neutral elements; others are laid around x."""
    if dtypes.is_bool(x.dtype):
        whole = convert_element_type(x, np.uint8)
        start = convert_element_type(init, np.uint8)
        name = {"add": "or", "max": "or", "min": "and"}.get(name, name)
        return ne(_by_primitive(name, whole, start, window, gaps), 0)
    fold, combine, neutral = FOLDS[name]
    if _is_known(init, neutral(x.dtype)):
        return fold(pad(x, init, gaps), window)
    return combine(fold(pad(x, init, _around(window, gaps)), window.padded(None)), init)


def _is_known(init: Any, value: Any) -> bool:
    """Whether an init value is a certain number already."""
    if isinstance(init, Tracer):
        return False
    known = np.asarray(init.value if isinstance(init, Literal) else init)
    return bool(known == np.asarray(value, known.dtype))


def _around(window: Window, gaps: Gaps) -> Gaps:
    pairs = zip(window.padding, gaps, strict=True)
    return tuple([(low, high, gap) for (low, high), (_, _, gap) in pairs])


def _by_slices(
    computation: Any,
    treedef: Any,
    xs: Sequence[Any],
    inits: Sequence[Any],
    window: Window,
    gaps: Gaps,
) -> list[Any]:
    """Slices of the padded operands folded by the computation itself."""

    def scalars(befores: list[Any], afters: list[Any]) -> list[Any]:
        pair = [tree.unflatten(treedef, part) for part in (befores, afters)]
        return tree.leaves(computation(*pair))

    def combine(befores: list[Any], afters: list[Any]) -> list[Any]:
        shape, count = afters[0].shape, afters[0].size
        flat = [[reshape(x, (count,)) for x in part] for part in (befores, afters)]
        return [reshape(x, shape) for x in vmap(scalars)(*flat)]

    config = _around(window, gaps)
    wide = [pad(x, init, config) for x, init in zip(xs, inits, strict=True)]
    found = fold_windows(wide, window.padded(None), combine)
    starts = [broadcast_in_dim(init, found[0].shape, ()) for init in inits]
    return combine(starts, found) if found[0].size else found
