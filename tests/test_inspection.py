"""`inspect` shows what `jit` compiles, in every form."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest

import xcube
import xcube.numpy as jnp
from xcube.errors import DeviceError
from xcube.inspection import InspectedKernel
from xcube.lowering.cube.check import check


def affine(x: xcube.Array) -> xcube.Array:
    return jnp.exp(x) * 2.0 + 1.0


def test_stages_of_a_fused_function() -> None:
    found = xcube.inspect(affine)(np.ones(1000, np.float32))
    names = [eqn.primitive.name for eqn in found.jaxpr.equations]
    assert names == ["exp", "mul", "add"]
    assert len(found.program.launches) == len(found.kernels) == 1
    kernel = found.kernels[0]
    assert kernel.launches == 1
    check(kernel.kernel)
    assert kernel.cube.startswith(f"kernel {kernel.name}(")
    assert 'define void @"kernel"' in kernel.source
    assert "kernel" in kernel.assembly and "ret" in kernel.assembly


def test_shapes_are_enough() -> None:
    found = xcube.inspect(affine)(xcube.ShapeDtypeStruct((1 << 40,), np.float32))
    assert found.jaxpr.out_avals[0].nbytes == 1 << 42


def test_kernels_do_not_depend_on_the_size() -> None:
    small, large = (xcube.inspect(affine)(np.ones(n, np.float32)) for n in (1000, 3001))
    assert small.kernels[0].cube == large.kernels[0].cube


def test_jitted_functions_keep_static_and_donated_arguments() -> None:
    def step(state: xcube.Array, power: int) -> xcube.Array:
        return state**power + 1.0

    jitted = xcube.jit(step, static_argnums=1, donate_argnums=0)
    state = jnp.ones(1000)
    assert xcube.inspect(jitted)(state, 3).program.donated == {0: 0}
    assert xcube.inspect(jitted)(state, power=3).program.donated == {0: 0}
    assert not state.is_deleted()


def test_inspecting_runs_nothing() -> None:
    x = jnp.ones(1000)
    jitted = xcube.jit(affine)
    assert xcube.inspect(jitted)(x).jaxpr is jitted.jaxpr(x)


def test_text_lists_every_stage() -> None:
    text = repr(xcube.inspect(affine)(np.ones(1000, np.float32)))
    assert "exp a" in text
    assert "program affine: 1 launches" in text
    assert "lines of cube" in text


def test_html_is_balanced_and_escaped() -> None:
    class Balance(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attributes: object) -> None:
            assert tag in ("div", "details", "summary", "pre")
            self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    parser = Balance()
    page = xcube.inspect(lambda x: jnp.exp(x))(np.ones(9, np.float32))._repr_html_()
    parser.feed(page)
    assert parser.open == []
    assert "&lt;lambda&gt;" in page


def test_a_device_without_assembly_says_so() -> None:
    class Opaque:
        name = "opaque"

    found = xcube.inspect(affine)(np.ones(9, np.float32)).kernels[0]
    with pytest.raises(DeviceError, match="opaque"):
        _ = InspectedKernel(found.kernel, Opaque(), 1).assembly  # pyright: ignore
