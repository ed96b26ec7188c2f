"""Functions of `nn` against JAX: values, derivatives, corners; initializers; modules as pytrees."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

import xcube.numpy as jnp
from xcube import nn, random, tree
from xcube.array import Array
from xcube.errors import DtypeError, ShapeError
from xcube.transforms.grad import grad, value_and_grad
from xcube.transforms.jit import jit
from xcube.transforms.vmap import vmap

jax = pytest.importorskip("jax")

X = np.concatenate(
    [
        np.random.default_rng(0).normal(size=60) * 3,
        [0.0, -0.0, 1.0, -1.0, 6.0, -3.0, 3.0, 30.0, -30],
    ]
).astype(np.float32)


def close(ours: Any, theirs: Any, rtol: float = 2e-6, atol: float = 1e-6) -> None:
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    np.testing.assert_allclose(
        ours.astype(np.float64), theirs.astype(np.float64), rtol=rtol, atol=atol
    )


# functions of elements ------------------------------------------------------------------------

ACTIVATIONS = (
    *("relu", "relu6", "leaky_relu", "elu", "celu", "selu", "hard_tanh", "hard_sigmoid"),
    *("hard_silu", "hard_swish", "sigmoid", "tanh", "softplus", "log_sigmoid", "soft_sign"),
    *("silu", "swish", "mish", "gelu", "squareplus", "sparse_plus", "sparse_sigmoid", "identity"),
)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_the_same(name: str) -> None:
    ours, theirs = getattr(nn, name), getattr(jax.nn, name)
    close(ours(X), theirs(X), atol=2e-6)
    with_bf16 = ours(jnp.asarray(X, jnp.bfloat16))
    close(with_bf16, theirs(jax.numpy.asarray(X, jax.numpy.bfloat16)), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_slopes_of_activations_are_the_same(name: str) -> None:
    ours = grad(lambda x: jnp.sum(getattr(nn, name)(x)))(X)
    theirs = jax.grad(lambda x: jax.numpy.sum(getattr(jax.nn, name)(x)))(X)
    close(ours, theirs, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("leaky_relu", {"negative_slope": 0.3}),
        ("elu", {"alpha": 0.5}),
        ("celu", {"alpha": 0.5}),
        ("gelu", {"approximate": False}),
        ("squareplus", {"b": 1.0}),
        ("glu", {"axis": 0}),
    ],
)
def test_options_of_activations(name: str, options: dict[str, Any]) -> None:
    x = X[:64]
    close(getattr(nn, name)(x, **options), getattr(jax.nn, name)(x, **options), atol=2e-6)


def test_rectifiers_are_flat_at_their_kinks_and_keep_nan() -> None:
    assert grad(nn.relu)(0.0).item() == 0.0
    assert grad(nn.relu6)(6.0).item() == 0.0
    assert np.isnan(nn.relu(np.nan))
    assert nn.relu(np.array([-1, 2])).dtype == np.int32


def test_log1mexp_is_accurate_on_both_sides() -> None:
    x = np.array([1e-6, 1e-3, 0.5, 0.7, 3.0, 20.0, 80.0], np.float32)
    wide = x.astype(np.float64)
    expected = np.where(wide < 1, np.log(-np.expm1(-wide)), np.log1p(-np.exp(-wide)))
    np.testing.assert_allclose(nn.log1mexp(x), expected, rtol=1e-5, atol=1e-38)
    slopes = grad(lambda x: jnp.sum(nn.log1mexp(x)))(x)
    np.testing.assert_allclose(slopes, 1 / np.expm1(x.astype(np.float64)), rtol=1e-4, atol=1e-38)


def test_glu_refuses_odd_axes() -> None:
    with pytest.raises(ShapeError, match=r"glu: axis 0 must have an even length; got f32\[3\]"):
        nn.glu(np.zeros(3, np.float32))


# softmax and its kin --------------------------------------------------------------------------

M = (np.random.default_rng(1).normal(size=(3, 4, 5)) * 4).astype(np.float32)
WHERE = np.random.default_rng(2).random((3, 4, 5)) < 0.7
WHERE[..., 0] = True


@pytest.mark.parametrize(
    "name", ["softmax", "log_softmax", "logsumexp", "logmeanexp", "standardize"]
)
@pytest.mark.parametrize("axis", [-1, 0, (0, 2)])
def test_row_functions_are_the_same(name: str, axis: Any) -> None:
    ours, theirs = getattr(nn, name), getattr(jax.nn, name)
    close(ours(M, axis=axis), theirs(M, axis=axis), rtol=1e-5, atol=3e-6)
    masked = ours(M, axis=axis, where=WHERE)
    rtol = 1e-3 if name == "standardize" else 1e-5  # a lone element has no variance but epsilon
    close(masked, theirs(M, axis=axis, where=WHERE), rtol=rtol, atol=3e-6)


@pytest.mark.parametrize(
    "name", ["softmax", "log_softmax", "logsumexp", "logmeanexp", "standardize"]
)
def test_slopes_of_row_functions_are_the_same(name: str) -> None:
    weights = np.random.default_rng(3).normal(size=M.shape).astype(np.float32)

    def ours(x: Any) -> Any:
        return jnp.sum(getattr(nn, name)(x, axis=-1, **KEEP.get(name, {})) * weights)

    def theirs(x: Any) -> Any:
        return jax.numpy.sum(getattr(jax.nn, name)(x, axis=-1, **KEEP.get(name, {})) * weights)

    close(grad(ours)(M), jax.grad(theirs)(M), rtol=2e-4, atol=1e-4)


KEEP = {"logsumexp": {"keepdims": True}, "logmeanexp": {"keepdims": True}}


def test_softmax_is_right_far_from_zero() -> None:
    x = np.array([1e4, 1e4 - 1, -np.inf], np.float32)
    close(nn.softmax(x), jax.nn.softmax(x))
    close(nn.log_softmax(x), jax.nn.log_softmax(x), atol=1e-3)
    assert nn.logsumexp(np.full(3, -np.inf, np.float32)).item() == -np.inf
    assert nn.logsumexp(np.array([np.inf, 1.0], np.float32)).item() == np.inf


def test_logsumexp_with_weights_and_signs() -> None:
    b = np.where(WHERE, 1.0, -2.0).astype(np.float32)
    ours = nn.logsumexp(M, axis=1, b=b, return_sign=True)
    theirs = jax.nn.logsumexp(M, axis=1, b=b, return_sign=True)
    for x, y in zip(ours, theirs, strict=True):
        close(x, y, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        nn.logsumexp(M, b=np.abs(b)), np.log((np.abs(b) * np.exp(M.astype(np.float64))).sum()), 1e-6
    )


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot_is_the_same(axis: int) -> None:
    classes = np.array([[0, 3, -1], [2, 9, 1]])
    close(nn.one_hot(classes, 4, axis=axis), jax.nn.one_hot(classes, 4, axis=axis))
    close(nn.one_hot(classes, 4, dtype="int8"), jax.nn.one_hot(classes, 4, dtype="int8"))


@pytest.mark.parametrize("algorithm", ["fast", "stable"])
def test_standardize_algorithms(algorithm: str) -> None:
    close(
        nn.standardize(M, algorithm=algorithm),
        jax.nn.standardize(M, algorithm=algorithm),
        rtol=1e-4,
        atol=1e-5,
    )
    with pytest.raises(ValueError, match="algorithm must be 'fast' or 'stable'; got 'slow'"):
        nn.standardize(M, algorithm="slow")


# attention ------------------------------------------------------------------------------------


def tensors(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    generator = np.random.default_rng(7)
    return [generator.normal(size=shape).astype(np.float32) for shape in shapes]


ATTENTION = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "window": {"local_window_size": 2},
    "window of two sides": {"local_window_size": (1, 3), "is_causal": True},
    "lengths": {"query_seq_lengths": np.array([5, 2]), "key_value_seq_lengths": np.array([6, 3])},
    "mask": {"mask": np.random.default_rng(4).random((2, 4, 6, 6)) < 0.8},
    "common mask": {"mask": np.tri(6, dtype=bool)[None, None]},
    "bias": {"bias": np.random.default_rng(5).normal(size=(1, 4, 6, 6)).astype(np.float32)},
}


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("heads", [4, 2, 1])
def test_attention_is_the_same(name: str, heads: int) -> None:
    q, k, v = tensors((2, 6, 4, 8), (2, 6, heads, 8), (2, 6, heads, 8))
    ours = nn.dot_product_attention(q, k, v, **ATTENTION[name])
    theirs = jax.nn.dot_product_attention(q, k, v, **ATTENTION[name])
    close(ours, theirs, rtol=1e-5, atol=2e-6)


def test_attention_without_batch_and_with_residual() -> None:
    q, k, v = tensors((6, 4, 8), (9, 4, 8), (9, 4, 8))
    ours = nn.dot_product_attention(q, k, v, return_residual=True)
    theirs = jax.nn.dot_product_attention(q, k, v, return_residual=True)
    for x, y in zip(ours, theirs, strict=True):
        close(x, y, rtol=1e-5, atol=2e-6)


def test_slopes_of_attention_are_the_same() -> None:
    q, k, v = tensors((2, 6, 4, 8), (2, 6, 2, 8), (2, 6, 2, 8))

    def ours(*args: Any) -> Any:
        return jnp.sum(nn.dot_product_attention(*args, is_causal=True) ** 2)

    def theirs(*args: Any) -> Any:
        return jax.numpy.sum(jax.nn.dot_product_attention(*args, is_causal=True) ** 2)

    for x, y in zip(
        grad(ours, (0, 1, 2))(q, k, v), jax.grad(theirs, (0, 1, 2))(q, k, v), strict=True
    ):
        close(x, y, rtol=1e-4, atol=1e-4)


def test_attention_refuses_what_does_not_fit() -> None:
    q, k = tensors((2, 6, 4, 8), (2, 6, 3, 8))
    with pytest.raises(ShapeError, match="n a multiple of k; got f32"):
        nn.dot_product_attention(q, k, k)
    with pytest.raises(DtypeError, match="mask must be bool"):
        nn.dot_product_attention(q, q, q, mask=np.ones((1, 1, 6, 6), np.float32))
    with pytest.raises(ShapeError, match="mask must broadcast"):
        nn.dot_product_attention(q, q, q, mask=np.ones((1, 1, 5, 6), bool))


# initializers ---------------------------------------------------------------------------------

SIMPLE = ("zeros", "ones")
SCALED = (
    *("glorot_uniform", "glorot_normal", "lecun_uniform", "lecun_normal", "he_uniform"),
    *("he_normal", "xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"),
    *("uniform", "normal", "truncated_normal"),
)


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_initializers_are_the_same(name: str, dtype: Any) -> None:
    ours = getattr(nn.initializers, name)()(random.key(3), (20, 30), dtype)
    theirs = getattr(jax.nn.initializers, name)()(jax.random.key(3), (20, 30), dtype)
    close(ours, theirs, rtol=3e-6 if dtype is None else 0.02, atol=1e-7)
    assert isinstance(getattr(nn.initializers, name)(), nn.initializers.Initializer)


@pytest.mark.parametrize("name", SIMPLE)
def test_constant_initializers_are_the_same(name: str) -> None:
    ours = getattr(nn.initializers, name)(random.key(3), (2, 3), "int32")
    close(ours, getattr(jax.nn.initializers, name)(jax.random.key(3), (2, 3), "int32"))
    close(nn.initializers.constant(2.5)(random.key(3), (2,)), np.full(2, 2.5, np.float32))


@pytest.mark.parametrize("mode", ["fan_in", "fan_out", "fan_avg", "fan_geo_avg"])
@pytest.mark.parametrize("distribution", ["truncated_normal", "normal", "uniform"])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_variance_scaling_is_the_same(mode: str, distribution: str, dtype: str) -> None:
    arguments = (2.0, mode, distribution, (0, 1), 2, 3)
    ours = nn.initializers.variance_scaling(*arguments)(random.key(3), (3, 4, 5, 2), dtype)
    theirs = jax.nn.initializers.variance_scaling(*arguments)(
        jax.random.key(3), (3, 4, 5, 2), dtype
    )
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-5, atol=1e-6)


def test_initializers_refuse_what_does_not_fit() -> None:
    with pytest.raises(ShapeError, match="the shape must have the axes"):
        nn.initializers.lecun_normal()(random.key(0), (3,))
    with pytest.raises(ValueError, match="mode must be one of 'fan_in'"):
        nn.initializers.variance_scaling(1.0, "fan", "normal")


# modules --------------------------------------------------------------------------------------


class Scale(nn.Module):
    factor: Any
    name: str = nn.static(default="scale")

    def __call__(self, x: Any) -> Any:
        return self.factor * x


class Stack(nn.Module):
    parts: list[Any]
    table: dict[str, Any]
    size: int = nn.static()

    def __init__(self, size: int) -> None:
        self.parts = [Scale(1.0), Scale(np.zeros((2, 3), np.float32), name="other")]
        self.table = {"w": jnp.zeros((4,)), "none": None}
        self.size = size


def test_modules_are_pytrees_with_paths() -> None:
    stack = Stack(3)
    paths = [tree.keystr(path) for path, _ in tree.leaves_with_path(stack)]
    assert paths == [".parts[0].factor", ".parts[1].factor", ".table['w']"]
    leaves, structure = tree.flatten(stack)
    assert isinstance(tree.unflatten(structure, leaves), Stack)
    assert tree.structure(Stack(3)) == structure
    assert tree.structure(Stack(4)) != structure


def test_modules_are_immutable() -> None:
    scale = Scale(2.0)
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"Use module.replace\(factor="):
        scale.factor = 3.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        del scale.factor
    with pytest.raises(AttributeError, match="only the fields factor, name can be assigned"):
        scale.other = 1
    assert scale.replace(factor=3.0)(2.0) == 6.0
    assert scale.factor == 2.0
    with pytest.raises(AttributeError, match="only the fields"):
        scale.replace(other=1)


def test_modules_pickle_and_copy() -> None:
    stack = Stack(3)
    for twin in (pickle.loads(pickle.dumps(stack)), copy.copy(stack), copy.deepcopy(stack)):
        assert tree.structure(twin) == tree.structure(stack)
        assert repr(twin) == repr(stack)


def test_modules_show_shapes_as_a_tree() -> None:
    assert repr(Scale(2.0)) == "Scale(factor=2.0, name='scale')"
    assert repr(Stack(3)) == (
        "Stack(\n"
        "  parts=[Scale(factor=1.0, name='scale'), Scale(factor=f32[2,3], name='other')],\n"
        "  table={'w': f32[4], 'none': None},\n"
        "  size=3,\n"
        ")"
    )
    layer = nn.Linear(2, 3, key=random.key(0))
    assert repr(layer) == "Linear(weight=f32[2,3], bias=f32[3])"


def test_modules_show_shapes_while_tracing() -> None:
    seen = []
    jit(lambda layer: seen.append(repr(layer)))(nn.Linear(2, 3, key=random.key(0)))
    assert seen == ["Linear(weight=f32[2,3], bias=f32[3])"]


def test_modules_go_through_transforms() -> None:
    layer, x = nn.Linear(3, 2, key=random.key(0)), np.ones((4, 3), np.float32)
    value, slope = value_and_grad(lambda m: jnp.sum(m(x) ** 2))(layer)
    assert isinstance(slope, nn.Linear)
    y = x @ np.asarray(layer.weight)
    np.testing.assert_allclose(value, (y**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(slope.weight, 2 * x.T @ y, rtol=1e-5)
    np.testing.assert_allclose(slope.bias, 2 * y.sum(0), rtol=1e-5)
    close(jit(lambda m, x: m(x))(layer, x), layer(x))
    many = vmap(lambda key: nn.Linear(3, 2, key=key))(random.split(random.key(1), 5))
    assert many.weight.shape == (5, 3, 2)
    outs = vmap(lambda m: m(x))(many)
    close(outs[2], tree.map(lambda w: w[2], many)(x), rtol=1e-5)


def test_inherited_constructors_are_kept() -> None:
    class Loud(nn.Linear):
        def __call__(self, x: Any) -> Any:
            return 2 * super().__call__(x)

    layer = nn.Linear(3, 2, key=random.key(0))
    close(Loud(3, 2, key=random.key(0))(np.ones(3, np.float32)), 2 * layer(np.ones(3, np.float32)))


# layers ---------------------------------------------------------------------------------------


def test_linear_maps_the_last_axis() -> None:
    layer = nn.Linear(3, 2, key=random.key(0), bias=False)
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    close(layer(x), x @ np.asarray(layer.weight), rtol=1e-5)
    assert layer.bias is None
    with pytest.raises(
        ShapeError, match=r"Linear: the last axis must have 3 features; got f32\[4\]"
    ):
        layer(jnp.ones(4))


def test_embedding_reads_rows_and_spreads_slopes() -> None:
    table, tokens = nn.Embedding(5, 3, key=random.key(0)), np.array([[0, 4], [4, 2]])
    close(table(tokens), np.asarray(table.weight)[tokens])
    slope = grad(lambda t: jnp.sum(t(tokens)))(table)
    np.testing.assert_allclose(slope.weight, np.array([1, 0, 1, 0, 2])[:, None] * np.ones((5, 3)))
    x = np.ones((2, 3), np.float32)
    close(table.attend(x), x @ np.asarray(table.weight).T, rtol=1e-5)
    with pytest.raises(DtypeError, match="tokens must be integers"):
        table(np.zeros(2, np.float32))


def test_norms_follow_their_formulas() -> None:
    x = M.astype(np.float64)
    centered = x - x.mean(-1, keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(nn.LayerNorm(5)(jnp.asarray(M)), expected, rtol=1e-4, atol=1e-5)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(nn.RMSNorm(5)(jnp.asarray(M)), expected, rtol=1e-4, atol=1e-5)
    assert nn.LayerNorm(5)(jnp.asarray(M, jnp.bfloat16)).dtype == jnp.float32
    assert nn.LayerNorm(5, dtype=jnp.bfloat16)(jnp.asarray(M, jnp.bfloat16)).dtype == jnp.bfloat16


def test_dropout_keeps_the_mean() -> None:
    x = jnp.ones(10_000)
    dropped = np.asarray(nn.Dropout(0.25)(x, key=random.key(0)))
    assert set(np.unique(dropped)) == {0.0, np.float32(1 / 0.75)}
    assert abs(dropped.mean() - 1) < 0.03
    assert nn.Dropout(0.25)(x) is x
    with pytest.raises(ValueError, match=r"rate must lie in \[0, 1\); got 1.0"):
        nn.Dropout(1.0)


def test_sequential_and_mlp_compose() -> None:
    first, second = random.split(random.key(0))
    net = nn.Sequential(nn.Linear(3, 4, key=first), nn.relu, nn.Linear(4, 2, key=second))
    mlp = nn.MLP(3, 4, 2, key=random.key(0), activation=nn.relu)
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    close(net(x), mlp(x), rtol=1e-5)
    assert all(isinstance(leaf, Array) for leaf in tree.leaves(net))


def test_multi_head_attention_is_causal() -> None:
    attention = nn.MultiHeadAttention(8, 2, key=random.key(0), is_causal=True)
    x = np.random.default_rng(0).normal(size=(1, 6, 8)).astype(np.float32)
    changed = x.copy()
    changed[0, 4:] += 1
    np.testing.assert_allclose(attention(x)[0, :4], attention(changed)[0, :4], atol=1e-6)
    assert not np.allclose(attention(x)[0, 4:], attention(changed)[0, 4:])
    with pytest.raises(ShapeError, match="features must be a multiple of num_heads; got 8 and 3"):
        nn.MultiHeadAttention(8, 3, key=random.key(0))
