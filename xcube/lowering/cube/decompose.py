"""The last pass over kernels whose functions were kept as single operations, so that passes could
see them by name (`Builder.keeps_calls`): each becomes what `math.apply` makes of it, unless the
target has it."""

from __future__ import annotations

from xcube.lowering.cube import ir, math_real, rebuild
from xcube.lowering.cube.build import Builder
from xcube.lowering.cube.ir import Kernel


def decompose(kernel: Kernel) -> Kernel:
    """The kernel in operations of the table alone; itself where it is so already.

    >>> build = Builder("example")
    >>> build.keeps_calls = True
    >>> x = build.load(build.buffer("f32"), 0)
    >>> build.store(build.buffer("f32", "out"), 0, math_real.apply(build, "exp", x))
    >>> [s.op for s in build.finish().body if isinstance(s, ir.Let)]
    ['exp']
    >>> any(map(is_call, decompose(build.finish()).body))
    False
    """
    if not any(is_call(s) for s in rebuild.every(kernel.body)):
        return kernel
    build = Builder(kernel.name, kernel.cube_dim, kernel.resident)
    pass_ = _Decomposer(kernel, build)
    pass_.parameters()
    pass_.block(kernel.body)
    return build.finish()


def is_call(s: ir.Stmt) -> bool:
    """Whether a statement is a function that the table of operations does not have."""
    if not isinstance(s, ir.Let):
        return False
    return s.op not in ir.OPS or (s.op in math_real.CALLS and not _is_native(s))


def _is_native(s: ir.Let) -> bool:
    return s.target.type.dtype in ir.OPS[s.op].dtypes


class _Decomposer(rebuild.Rebuilder):
    def let(self, s: ir.Let) -> None:
        if not is_call(s):
            super().let(s)
            return
        args = [self.value(atom) for atom in s.args]
        self.values[s.target.number] = math_real.apply(self.build, s.op, *args)
