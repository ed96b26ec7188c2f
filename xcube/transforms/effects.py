"""Programs without one kind of effect: what only watches or checks is taken out of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from xcube.ir import Equation, Jaxpr


def without(jaxpr: Jaxpr, effect: str) -> Jaxpr:
    """The program without the equations that are there for an effect, those of inner programs
    included. Cached."""
    if effect not in jaxpr.effects:
        return jaxpr
    key = ("without", effect)
    if key not in jaxpr._cache:
        kept = (eqn for eqn in jaxpr.equations if effect not in eqn.primitive.effects)
        equations = tuple([inside_without(eqn, effect) for eqn in kept])
        jaxpr._cache[key] = replace(jaxpr, equations=equations, _cache={})
    return jaxpr._cache[key]


def inside_without(eqn: Equation, effect: str) -> Equation:
    """The equation with its programs without an effect."""

    def clean(value: Any) -> Any:
        if isinstance(value, tuple) and any(isinstance(item, Jaxpr) for item in value):
            return tuple([clean(item) for item in value])
        return without(value, effect) if isinstance(value, Jaxpr) else value

    return replace(eqn, params={name: clean(value) for name, value in eqn.params.items()})
