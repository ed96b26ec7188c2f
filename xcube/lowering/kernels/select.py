"""Which template builds a group's kernels."""

from __future__ import annotations

from collections.abc import Callable

from xcube.errors import LoweringError
from xcube.ir import Equation, Var
from xcube.lowering.clusters import Group
from xcube.lowering.device.base import Facts
from xcube.lowering.kernels import (
    attention,
    attention_matrix,
    contract,
    contract_direct,
    contract_tiles_pack,
    convolve,
    convolve_apart,
    convolve_swept,
    cube,
    cumulative,
    fft,
    loops,
    repeats,
    rows,
    scatter,
    sort,
    top_k,
    window,
)
from xcube.lowering.kernels.work import Work

Template = Callable[..., list[Work]]

TEMPLATES: dict[str, Template] = {
    "map": rows.build,
    "rows": contract_direct.build,
    "matmul": contract.build,
    "turn_words": contract_tiles_pack.build,
    "attention_matrix": attention_matrix.build,
    "cumulative": cumulative.build,
    "sort": sort.build,
    "top_k": top_k.build,
    "scatter": scatter.build,
    "attention": attention.build,
    "cube": cube.build,
    "window": window.build,
    "convolve": convolve.build,
    "convolve_swept": convolve_swept.build,
    "fft": fft.build,
    "convolve_apart": convolve_apart.build,
}


def build(group: Group, facts: Facts, sources: frozenset[Var] = frozenset()) -> list[Work]:
    """The launches of a group; `sources` are operands whose memory a result takes over."""
    template = TEMPLATES.get(group.family)
    if template is None:
        raise LoweringError(f"no kernels for {group.family!r} on {facts.name}")
    return repeats.build(group, facts, sources, template)


def loop(eqn: Equation, facts: Facts) -> list[Work] | None:
    """A loop as launches that run all of its turns; None where each turn has launches."""
    return loops.build(eqn, facts.vector_bytes)
