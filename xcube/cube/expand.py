"""From a decorated function and what it is launched with to a kernel: parameters become buffers and
scalars, the rewritten function is called once, and what it wrote becomes the kernel's results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xcube.cube.parameters import (
    ArraySpec,
    ScalarSpec,
    Spec,
    array,
    scalar,
)
from xcube.cube.places import Meta
from xcube.cube.state import Expanding, Scribe, expanding
from xcube.cube.trees import remade
from xcube.lowering.cube import ir, rebuild
from xcube.lowering.cube.barriers import require_met


@dataclass(frozen=True)
class Expansion:
    """A kernel with what its buffers and scalars stand for: `arrays` are the parameters behind its
    buffers, `written` and `read` those that it writes and reads, in the order of parameters."""

    kernel: ir.Kernel
    arrays: tuple[str, ...]
    written: tuple[str, ...]
    read: tuple[str, ...]
    scalars: tuple[Meta, ...]


@dataclass(frozen=True)
class Request:
    """What a kernel is expanded for: the key by which expansions are remembered."""

    specs: tuple[Spec, ...]
    dim: tuple[int, int, int]
    grid: int
    facts: Any


def expand(name: str, function: Callable[..., Any], request: Request) -> Expansion:
    """The kernel that a rewritten function builds.

    Raises KernelError, DtypeError or ShapeError, with the user's line, if it cannot be built.
    """
    state = Expanding(Scribe(name, request.dim), request.facts, request.grid)
    with expanding(state):
        function(**_arguments(request.specs))
    arrays = tuple([spec.path for spec in request.specs if isinstance(spec, ArraySpec)])
    written = tuple([path for path in arrays if path in state.written])
    kernel = _accessed(state.build.finish(), arrays, written)
    require_met(kernel)
    read = {_read(s) for s in rebuild.every(kernel.body)}
    return Expansion(
        kernel,
        arrays,
        written,
        tuple([path for number, path in enumerate(arrays) if number in read]),
        tuple(state.scalars),
    )


def _arguments(specs: Sequence[Spec]) -> dict[str, Any]:
    """What stands for each parameter, bundles put together again."""
    found = {spec.path: _argument(spec) for spec in specs}
    bundles = {path.rpartition(".")[0] for path in found} - {""}
    for path in sorted(bundles, key=lambda path: -path.count(".")):
        found[path] = _bundle(path, found)
    return {path: value for path, value in found.items() if "." not in path}


def _bundle(path: str, values: Mapping[str, Any]) -> Any:
    """A dataclass of the values of its fields."""
    kind = values[path]
    names = [field.name for field in dataclasses.fields(kind)]
    return remade(kind, {name: values[f"{path}.{name}"] for name in names})


def _argument(spec: Spec) -> Any:
    if isinstance(spec, ArraySpec):
        return array(spec)
    return scalar(spec) if isinstance(spec, ScalarSpec) else spec.value.value


def _read(s: ir.Stmt) -> int | None:
    """The number of the global buffer that a statement reads."""
    if isinstance(s, ir.CopyTile):
        return s.map.buffer.number
    buffer = s.source if isinstance(s, ir.CopyAsync) else getattr(s, "buffer", None)
    reads = isinstance(s, ir.Load | ir.Atomic | ir.CompareExchange | ir.CopyAsync)
    if not reads or not isinstance(buffer, ir.Buffer) or buffer.space != "global":
        return None
    return buffer.number


def _accessed(kernel: ir.Kernel, arrays: Sequence[str], written: Sequence[str]) -> ir.Kernel:
    """The kernel whose buffers say which of them are only read."""
    fixed = {
        buffer: dataclasses.replace(buffer, access="in")
        for buffer, path in zip(kernel.buffers, arrays, strict=True)
        if path not in written
    }
    if not fixed:
        return kernel
    if kernel.maps:
        return _replaced(kernel, fixed)
    build = Scribe(kernel.name, kernel.cube_dim)
    pass_ = rebuild.Rebuilder(kernel, build)
    for buffer in kernel.buffers:
        access = fixed.get(buffer, buffer).access
        pass_.memories["global", buffer.number] = build.buffer(buffer.dtype, access)
    pass_.scalars()
    pass_.block(kernel.body)
    return build.finish()


def _replaced(tree: Any, buffers: Mapping[ir.Buffer, ir.Buffer]) -> Any:
    """A kernel, or a part of one, with other buffers; names stay, those in maps too."""
    if isinstance(tree, ir.Buffer):
        return buffers.get(tree, tree)
    if type(tree) is tuple:
        return tuple([_replaced(item, buffers) for item in tree])
    if not dataclasses.is_dataclass(tree) or isinstance(tree, type | ir.Const):
        return tree
    fields = {f.name: getattr(tree, f.name) for f in dataclasses.fields(tree)}
    return dataclasses.replace(tree, **{k: _replaced(v, buffers) for k, v in fields.items()})
