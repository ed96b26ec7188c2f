"""Dtypes: names, predicates and promotion, against JAX for every pair of dtypes and weak kinds."""

from __future__ import annotations

import itertools
from enum import IntEnum

import ml_dtypes
import numpy as np
import pytest

from xcube import config, dtypes, errors

WEAK = (int, float, complex)
POINTS = (*dtypes.ALL, *WEAK)
MODES = [(x64, promotion) for x64 in (False, True) for promotion in ("standard", "strict")]


@pytest.fixture(params=MODES, ids=lambda mode: f"x64={mode[0]}-{mode[1]}")
def jax_dtypes(request):
    jax = pytest.importorskip("jax")
    module = pytest.importorskip("jax._src.dtypes")
    x64, promotion = request.param
    before = jax.config.jax_explicit_x64_dtypes
    jax.config.update("jax_explicit_x64_dtypes", "allow")
    with (
        config.using(enable_x64=x64, numpy_dtype_promotion=promotion),
        jax.enable_x64(x64),
        jax.numpy_dtype_promotion(promotion),
    ):
        yield module
    jax.config.update("jax_explicit_x64_dtypes", before)


def outcome(function, *arguments):
    try:
        return function(*arguments)
    except (TypeError, ValueError) as error:
        assert "promotion" in str(error)
        return "no common type"


def lattice(*points):
    return dtypes.lattice_result_type(*map(dtypes.typed, points))


def test_the_lattice_of_every_pair_is_that_of_jax(jax_dtypes):
    for pair in itertools.product(POINTS, repeat=2):
        assert outcome(lattice, *pair) == outcome(jax_dtypes.lattice_result_type, *pair), pair


def test_promote_types_is_the_lattice_without_weakness(jax_dtypes):
    for pair in itertools.product(POINTS, repeat=2):
        theirs = outcome(lambda *points: jax_dtypes.lattice_result_type(*points)[0], *pair)
        assert outcome(dtypes.promote_types, *pair) == theirs, pair


def test_the_lattice_of_triples_is_that_of_jax(jax_dtypes):
    random = np.random.default_rng(0)
    for indices in random.integers(len(POINTS), size=(2000, 3)):
        triple = [POINTS[index] for index in indices]
        theirs = outcome(jax_dtypes.lattice_result_type, *triple)
        assert outcome(lattice, *triple) == theirs, triple


def test_result_type_of_values_is_that_of_jax(jax_dtypes):
    values = (True, 3, 1.5, 2j, np.float64(1), np.int64(1), np.arange(3), np.bool_(True), "int64")
    values += (
        np.ones(2, np.float16),
        np.ones(2, ml_dtypes.bfloat16),
        np.uint64(3),
        None,
        bool,
        int,
    )
    for pair in itertools.product(values, repeat=2):
        assert outcome(dtypes.result_type, *pair) == outcome(jax_dtypes.result_type, *pair), pair


def test_promotion_is_commutative_and_idempotent():
    for a, b in itertools.product(dtypes.ALL, repeat=2):
        assert outcome(dtypes.promote_types, a, b) == outcome(dtypes.promote_types, b, a)
    assert all(dtypes.promote_types(dtype, dtype) == dtype for dtype in dtypes.ALL)


def test_strict_promotion_names_both_dtypes_and_the_way_out():
    with config.using(numpy_dtype_promotion="strict"):
        with pytest.raises(errors.TypePromotionError, match=r"strict.*int32, float32.*astype"):
            dtypes.promote_types("int32", "float32")
        assert dtypes.result_type(np.float32(1), 1) == np.float32


def test_narrow_floats_do_not_promote_with_each_other():
    with pytest.raises(errors.TypePromotionError, match=r"float8_e5m2, float8_e4m3fn"):
        dtypes.promote_types(dtypes.float8_e5m2, dtypes.float8_e4m3fn)


def test_issubdtype_is_that_of_jax(jax_dtypes):
    classes = (np.generic, np.number, np.integer, np.inexact, np.floating, np.complexfloating)
    classes += (np.signedinteger, np.unsignedinteger, np.bool_, np.character, np.flexible)
    for pair in itertools.product((*dtypes.ALL, *classes, "float32", np.float32, float), repeat=2):
        assert dtypes.issubdtype(*pair) == jax_dtypes.issubdtype(*pair), pair


def test_isdtype_is_that_of_jax(jax_dtypes):
    kinds = ("bool", "signed integer", "unsigned integer", "integral", "real floating")
    kinds += ("complex floating", "numeric", np.float32, ("bool", "integral", "float32"))
    for dtype, kind in itertools.product(dtypes.ALL, kinds):
        assert dtypes.isdtype(dtype, kind) == jax_dtypes.isdtype(dtype, kind), (dtype, kind)


@pytest.mark.parametrize(("kind", "error"), [("foo", ValueError), (3.5, TypeError)])
def test_isdtype_rejects_what_is_no_kind(kind, error):
    with pytest.raises(error, match="real floating"):
        dtypes.isdtype("float32", kind)


def test_predicates_partition_the_dtypes():
    for dtype in dtypes.ALL:
        tests = (dtypes.is_bool, dtypes.is_integer, dtypes.is_float, dtypes.is_complex)
        assert sum(test(dtype) for test in tests) == 1, dtype
        assert dtypes.is_inexact(dtype) == (dtypes.is_float(dtype) or dtypes.is_complex(dtype))


def test_signed_is_what_holds_minus_one():
    for dtype in dtypes.ALL:
        if dtype != dtypes.float8_e8m0fnu:
            holds = dtypes.kind_of(dtype) != "bool" and np.array(-1).astype(dtype) == -1
            assert dtypes.is_signed(dtype) == bool(holds), dtype


def test_short_names_are_those_of_jax(jax_dtypes):
    for dtype in dtypes.ALL:
        assert dtypes.short_name(dtype) == jax_dtypes.short_dtype_name(dtype)


def test_short_names_have_an_inverse():
    assert {dtypes.BY_SHORT[short]: short for short in dtypes.SHORT.values()} == dtypes.SHORT


def test_an_unknown_dtype_is_named():
    with pytest.raises(errors.DtypeError, match="S3"):
        dtypes.short_name(np.dtype("S3"))
    with pytest.raises(errors.DtypeError, match=r"zeros: 'nonsense' is not a dtype of xcube"):
        dtypes.requested_dtype("nonsense", "zeros")
    with pytest.raises(errors.DtypeError):
        dtypes.promote_types("S3", "int32")
    with pytest.raises(errors.DtypeError):
        dtypes.promote_types([], "int32")


def test_defaults_are_32_bits_wide_and_64_under_enable_x64():
    narrow = {"bool": "bool", "int": "int32", "uint": "uint32", "float": "float32"}
    narrow["complex"] = "complex64"
    assert {kind: dtypes.default_dtype(kind) for kind in narrow} == narrow
    with config.using(enable_x64=True):
        assert [dtypes.default_dtype(t) for t in WEAK] == ["int64", "float64", "complex128"]


def test_inputs_are_narrowed_and_named_dtypes_are_kept():
    assert dtypes.canonicalize_dtype(np.dtype("uint64")) == "uint32"
    assert dtypes.requested_dtype("uint64") == "uint64"
    assert dtypes.requested_dtype(np.float64) == "float64"
    assert dtypes.requested_dtype(np.dtype(">f4")).isnative
    with config.using(enable_x64=True):
        assert dtypes.canonicalize_dtype(np.dtype("uint64")) == "uint64"
        assert dtypes.requested_dtype(complex) == "complex128"


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_an_integer_that_does_not_fit_overflows(value):
    with pytest.raises(OverflowError, match=f"Python int {value} too large to convert to int32"):
        dtypes.scalar_dtype(value)
    with config.using(enable_x64=True):
        assert dtypes.scalar_dtype(value) == "int64"


def test_scalars_have_the_dtype_of_their_python_type():
    color = IntEnum("color", ["red"])
    values = (True, -(2**31), 2**31 - 1, 1.0, 1j, color.red)
    expected = ["bool", "int32", "int32", "float32", "complex64", "int32"]
    assert [dtypes.scalar_dtype(value) for value in values] == expected
    with pytest.raises(errors.DtypeError, match="float64"):
        dtypes.scalar_dtype(np.float64(1))


def test_an_array_keeps_its_dtype_and_weakness():
    class Value:
        dtype, weak_type = np.dtype("float64"), True

    assert dtypes.typed(Value()) == (np.dtype("float64"), True)
    assert dtypes.result_type(Value(), np.dtype("float16")) == "float16"


def test_limits_are_those_of_numpy_and_ml_dtypes():
    assert dtypes.finfo("float32").max == np.finfo("float32").max
    assert dtypes.finfo(dtypes.bfloat16).eps == ml_dtypes.finfo("bfloat16").eps
    assert dtypes.finfo("complex64").eps == np.finfo("float32").eps
    assert dtypes.iinfo("uint4").max == 15
    with pytest.raises(errors.DtypeError, match="int32"):
        dtypes.finfo("int32")
    with pytest.raises(errors.DtypeError, match="float32"):
        dtypes.iinfo("float32")


def test_bits_are_those_of_jax(jax_dtypes):
    for dtype in dtypes.ALL:
        expected = 8 if dtypes.is_bool(dtype) else jax_dtypes.itemsize_bits(dtype)
        assert dtypes.bits_of(dtype) == expected, dtype


def test_parts_of_complex_dtypes():
    assert [dtypes.float_part(np.dtype(d)) for d in ("c8", "c16", "f2")] == ["f4", "f8", "f2"]
    assert [dtypes.complex_of(np.dtype(d)) for d in ("f4", "f8", "f2", "c16")] == [
        "c8",
        "c16",
        "c8",
        "c16",
    ]
    with pytest.raises(errors.DtypeError, match="int32"):
        dtypes.complex_of(np.dtype("int32"))


def test_tangents_of_what_has_no_derivative_are_float0():
    for dtype in dtypes.ALL:
        expected = dtype if dtypes.is_inexact(dtype) else dtypes.float0
        assert dtypes.tangent_dtype(dtype) == expected
    assert dtypes.float0 == [("float0", "V0")] and dtypes.float0.itemsize == 0
