"""Contractions without packing, where a cube is a task of one thread: a rows program that is a sum
of products is computed by tiles of sums in registers, that read the operands where they lie.

Lines of sums lie along a row that memory has as neighbours (`contract_lines`), or along the depth
(`contract_depth`). What makes the factors is computed where they are read, what follows is computed
on the sums. Each sum is made in the order of the depth, whatever the number of threads. All other
rows programs are left to `rows`.
"""

from __future__ import annotations

from xcube.ir import Var
from xcube.lowering import tune
from xcube.lowering.clusters import Group
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels import rows
from xcube.lowering.kernels.contract_choice import candidates, sizes_of
from xcube.lowering.kernels.contract_cubes import Cubes
from xcube.lowering.kernels.contract_depth import Depth
from xcube.lowering.kernels.contract_lines import Lines, Stream
from xcube.lowering.kernels.contract_product import may_be_product, recognise
from xcube.lowering.kernels.space import analyse
from xcube.lowering.kernels.work import Work

TEMPLATES: dict[str, type[Cubes]] = {"lines": Lines, "stream": Stream, "depth": Depth}


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launch of a rows program; as a contraction where it is one."""
    if facts.units > 1 or not may_be_product(group):
        return rows.build(group, facts, sources)
    space = analyse(group)
    product = recognise(space)
    if product is None:
        return rows.build(group, facts, sources)
    sizes, dtype = sizes_of(product, [axis.extent for axis in space.columns]), product.line.dtype
    parts = (sizes.rows, sizes.across, tune.size_class(sizes.lanes), tune.size_class(sizes.depth))
    problem = f"{dtype} {sizes.form} {' '.join(map(str, parts))}"
    tile = tune.pick("direct", problem, candidates(sizes, dtype, facts), facts, group.program)
    return [TEMPLATES[tile.form](group.name, space, product, tile, sources).build()]
