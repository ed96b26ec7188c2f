"""What a checkpointed function may save for its derivative: `policy(primitive, *avals, **params)`
says whether the results of an operation on such operands may. Policies by kind of operation, by
name (`checkpoint_name`), and the answers that a policy can give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from xcube import tree
from xcube.array import Array
from xcube.errors import DeviceError
from xcube.ir import Aval, Axis, Equation, Primitive, at_user_line
from xcube.primitives.lowered import Expand
from xcube.trace import bind
from xcube.transforms.arguments import is_array_like, to_array

Policy = Callable[..., Any]

# answers --------------------------------------------------------------------------------------


class Saveable:
    """A policy's answer "may be saved"; the same as True."""


class Recompute:
    """A policy's answer "compute it again"; the same as False."""


@dataclass(frozen=True)
class Offloadable:
    """A policy's answer "move it from memory `src` to memory `dst`", which no device offers."""

    src: str
    dst: str


def is_saveable(policy: Policy, eqn: Equation) -> bool:
    """A policy's answer for an equation; what has effects is saved, since it must run once.

    Raises TypeError if it is no answer, DeviceError if it asks for a second memory.
    """
    answer = policy(eqn.primitive, *[atom.aval for atom in eqn.inputs], **eqn.params)
    if isinstance(answer, bool | np.bool_):
        return bool(answer)
    if answer is Saveable or answer is Recompute:
        return answer is Saveable
    if isinstance(answer, Offloadable):
        _refuse_offload("checkpoint", answer.src, answer.dst)
    raise TypeError(
        f"checkpoint: a policy must answer True or False (Saveable or Recompute); "
        f"{policy_name(policy)} answered {answer!r} for {eqn.primitive}.{at_user_line()} "
        f"Is it a function that makes policies, such as save_only_these_names? Call it first."
    )


def policy_name(policy: Policy) -> str:
    """A policy as the user knows it."""
    return getattr(policy, "__name__", None) or repr(policy)


def _refuse_offload(what: str, src: Any, dst: Any) -> NoReturn:
    raise DeviceError(
        f"{what}: offloading needs a device with two memories; no device of xcube has a memory "
        f"{dst!r} besides {src!r}.{at_user_line()} Keep the values (dots_with_no_batch_dims_"
        f"saveable, save_only_these_names) or compute them again (budget, nothing_saveable)."
    )


# names ----------------------------------------------------------------------------------------


def _name_jvp(primals: Any, tangents: Any, *, name: str) -> tuple[Any, Any]:
    return bind(name_p, primals[0], name=name), tangents[0]


def _name_batch(axis: Axis, args: Any, batched: Any, *, name: str) -> tuple[Any, bool]:
    return bind(name_p, args[0], name=name), batched[0]


name_p = Primitive(
    "name",
    abstract=lambda x, *, name: x,
    jvp=_name_jvp,
    batch=_name_batch,
    lower=Expand(lambda x, *, name: x),
)


def checkpoint_name(x: Any, name: str) -> Any:
    """x as it is, under a name that policies can choose: any pytree of arrays -> the same.

    Raises TypeError if the name is no string or a leaf no array.

    >>> import xcube.numpy as jnp
    >>> checkpoint_name(jnp.float32(2), "scores")
    Array(2., dtype=float32)
    """
    _check_names("checkpoint_name", (name,))
    return tree.map(lambda leaf: bind(name_p, _leaf(leaf), name=name), x)


def _leaf(value: Any) -> Array:
    if isinstance(value, Array):
        return value
    if is_array_like(value):
        return to_array.convert(value)
    raise TypeError(
        f"checkpoint_name: every leaf must be an array or a number; got {type(value).__name__}."
        f"{at_user_line()}"
    )


def _check_names(what: str, names: tuple[Any, ...]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{what}: a name must be a string; got {name!r}.{at_user_line()}")


# policies -------------------------------------------------------------------------------------


def everything_saveable(primitive: Primitive, *avals: Aval, **params: Any) -> bool:
    """Save whatever the derivative needs, as without `checkpoint`.

    >>> everything_saveable(name_p)
    True
    """
    return True


def nothing_saveable(primitive: Primitive, *avals: Aval, **params: Any) -> bool:
    """Save the inputs alone and compute everything else again; what `checkpoint` does by default.

    >>> nothing_saveable(name_p)
    False
    """
    return False


def dots_saveable(primitive: Primitive, *avals: Aval, **params: Any) -> bool:
    """Save the results of contractions and convolutions.

    >>> dots_saveable(name_p)
    False
    """
    return primitive.name in ("dot_general", "conv_general_dilated")


def dots_with_no_batch_dims_saveable(primitive: Primitive, *avals: Aval, **params: Any) -> bool:
    """Save the results of contractions without batch dimensions: in a transformer those with
    weights, but not those of attention, which grow with the square of the sequence.

    >>> dots_with_no_batch_dims_saveable(name_p)
    False
    """
    return primitive.name == "dot_general" and params["dimension_numbers"][1] == ((), ())


@dataclass(frozen=True)
class ByName:
    """Saves named values: those among `names`, or, with `others`, those that are not."""

    names: frozenset[str]
    others: bool = False

    def __call__(self, primitive: Primitive, *avals: Aval, **params: Any) -> bool:
        return primitive is name_p and (params["name"] in self.names) != self.others


@dataclass(frozen=True)
class AllBut:
    """Saves every value but the named ones among `forbidden`, under whatever name they go."""

    forbidden: frozenset[str]

    def __call__(self, primitive: Primitive, *avals: Aval, **params: Any) -> bool:
        return primitive is not name_p or params["name"] not in self.forbidden


def forbidden_names(policy: Policy) -> frozenset[str]:
    """Names of values that a policy saves in no guise."""
    return policy.forbidden if isinstance(policy, AllBut) else frozenset()


@dataclass(frozen=True)
class Either:
    """Saves what one of two policies saves."""

    first: Policy
    second: Policy

    def __call__(self, primitive: Primitive, *avals: Aval, **params: Any) -> bool:
        answers = [policy(primitive, *avals, **params) for policy in (self.first, self.second)]
        if all(isinstance(answer, bool | np.bool_) for answer in answers):
            return any(answers)
        raise ValueError(
            f"save_from_both_policies: both policies must answer True or False; got {answers[0]!r} "
            f"and {answers[1]!r} for {primitive}.{at_user_line()} Write one policy function."
        )


def save_only_these_names(*names: str) -> Policy:
    """A policy that saves values named by `checkpoint_name`, if the name is among these.

    >>> save_only_these_names("scores")(name_p, name="scores")
    True
    """
    _check_names("save_only_these_names", names)
    return ByName(frozenset(names))


def save_any_names_but_these(*names: str) -> Policy:
    """A policy that saves values named by `checkpoint_name`, unless the name is among these.

    >>> save_any_names_but_these("scores")(name_p, name="scores")
    False
    """
    _check_names("save_any_names_but_these", names)
    return ByName(frozenset(names), others=True)


def save_anything_except_these_names(*names: str) -> Policy:
    """A policy that saves every value, named or not, except those with these names.

    JAX's policy of this name saves those too; here they are computed again.

    >>> save_anything_except_these_names("scores")(name_p, name="scores")
    False
    """
    _check_names("save_anything_except_these_names", names)
    return AllBut(frozenset(names))


def save_from_both_policies(policy_1: Policy, policy_2: Policy) -> Policy:
    """A policy that saves what one of two policies saves.

    >>> save_from_both_policies(dots_saveable, save_only_these_names("a"))(name_p, name="a")
    True
    """
    return Either(policy_1, policy_2)


def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
    """JAX's policy that moves results of contractions to another memory.

    Raises DeviceError: no device of xcube has a second memory.
    """
    _refuse_offload("offload_dot_with_no_batch_dims", offload_src, offload_dst)


def save_and_offload_only_these_names(
    *,
    names_which_can_be_saved: Any,
    names_which_can_be_offloaded: Any,
    offload_src: str,
    offload_dst: str,
) -> Policy:
    """JAX's policy that saves some named values and moves others to another memory; without names
    to move it is `save_only_these_names`.

    Raises DeviceError if a value is to move: no device of xcube has a second memory.

    >>> save_and_offload_only_these_names(
    ...     names_which_can_be_saved=["a"], names_which_can_be_offloaded=[],
    ...     offload_src="device", offload_dst="pinned_host",
    ... )(name_p, name="a")
    True
    """
    if names_which_can_be_offloaded:
        _refuse_offload("save_and_offload_only_these_names", offload_src, offload_dst)
    return save_only_these_names(*names_which_can_be_saved)
