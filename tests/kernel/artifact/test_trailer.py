"""What jaxexp keeps behind an artifact: digests, constraints, weak types, the user's metadata."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import pickle
import subprocess
import sys
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xxhash
from jax import export as jax_export

import jaxexp
from jaxexp import _native
from kit import wire
from kit.compare import assert_same_fields, assert_same_values
from kit.corpus import CASES, export_with

DeserializationError = jaxexp.DeserializationError
every_case = pytest.mark.parametrize("name", CASES)


def exported_case(name: str) -> Any:
    return export_with(jaxexp, CASES[name].build())


def trailer(blob: Any) -> dict[str, Any]:
    found = _native.Artifact(bytes(blob)).trailer()
    assert found is not None
    return found


# --- layout ---------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(one_in=4, reason="many cases go the same way")
@every_case
def test_jax_export_reads_the_same_with_and_without(name: str) -> None:
    case = CASES[name]
    with case.context():
        exported = export_with(jaxexp, case.build())
        having = exported.serialize(case.vjp_order)
        without = exported.serialize(case.vjp_order, trailer=False)
        assert wire.has_trailer(having) and not wire.has_trailer(without)
        one, other = jax_export.deserialize(bytearray(having)), jax_export.deserialize(bytearray(without))
        for order in range(case.vjp_order + 1):
            assert_same_fields(one, other)
            assert one.mlir_module_serialized == other.mlir_module_serialized
            assert one.has_vjp() == other.has_vjp() == (order < case.vjp_order)
            if one.has_vjp():
                one, other = one.vjp(), other.vjp()


def test_layout() -> None:
    """As schema/trailer.fbs has it, byte by byte."""
    exported = exported_case("sin")
    blob = bytes(exported.serialize(2))
    start, footer, metadata_size = wire.trailer_of(blob)
    assert int.from_bytes(blob[12:16], "little") == len(blob) == footer + 48
    assert blob[-8:] == wire.MARK
    assert blob[footer : footer + 16] == xxhash.xxh3_128_digest(blob[:metadata_size])
    assert blob[footer + 24 : footer + 40] == xxhash.xxh3_128_digest(blob[start : footer + 24])
    position = metadata_size
    for function in trailer(blob)["functions"]:
        module = blob[position + 4 : position + 4 + function["module_size"]]
        assert int.from_bytes(blob[position : position + 4], "little") == len(module)
        assert xxhash.xxh3_128_digest(module) == function["module_digest"]
        position += 4 + len(module) + -len(module) % 4
    assert position == start
    assert trailer(blob)["writer"] == f"jaxexp {jaxexp.__version__}"


@pytest.mark.parametrize("size", [0, 1, 2**17 - 1, 2**17, 2**17 + 1, 3 * 2**17 + 5, 2**21 + 3])
def test_digests_of_modules_of_any_size(size: int, tmp_path) -> None:
    """Copied and hashed in steps, in one go, and without a copy."""
    module = np.random.default_rng(size).bytes(size)
    exported = dataclasses.replace(exported_case("sin"), mlir_module_serialized=module)
    blob = exported.serialize()
    assert trailer(blob)["functions"][0]["module_digest"] == xxhash.xxh3_128_digest(module)
    exported.save(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == blob
    assert jaxexp.load(tmp_path / "f").mlir_module_serialized == module


def test_what_follows_is_ignored() -> None:
    blob = bytes(exported_case("sin").serialize(1))
    loaded = jaxexp.deserialize(blob + b"more" * 100)
    assert loaded == jaxexp.deserialize(blob)
    assert loaded.vjp().mlir_module_serialized == jaxexp.deserialize(blob).vjp().mlir_module_serialized


def test_an_artifact_without_one_is_as_good() -> None:
    exported = exported_case("symbolic_batch")
    loaded = jaxexp.deserialize(bytes(exported.serialize(1, trailer=False)))
    assert _native.Artifact(bytes(exported.serialize(trailer=False))).trailer() is None
    assert loaded.metadata == {}
    again = jaxexp.deserialize(bytes(loaded.serialize(1)))
    assert again.vjp().mlir_module_serialized == loaded.vjp().mlir_module_serialized


# --- digests --------------------------------------------------------------------------------------------------------


def damaged(blob: Any, at: int) -> bytes:
    changed = bytearray(blob)
    changed[at] ^= 1
    return bytes(changed)


def test_damage_to_the_metadata_shows_on_load() -> None:
    blob = exported_case("sin").serialize()
    at, _ = wire.locate(blob, "function_name")
    with pytest.raises(DeserializationError, match="damaged; get another copy") as error:
        jaxexp.deserialize(damaged(blob, at + 4))
    assert error.value.path == "metadata"


def test_damage_to_a_module_shows_when_it_is_read(tmp_path) -> None:
    blob = exported_case("sin").serialize(2)
    loaded = jaxexp.deserialize(damaged(blob, wire.locate(blob, "vjp.mlir_module_serialized")[0] + 100))
    x = np.ones(4, np.float32)
    assert_same_values([loaded.call(x)], [jnp.sin(x)])
    vjp = loaded.vjp()
    uses = {
        "bytes": lambda: vjp.mlir_module_serialized,
        "text": vjp.mlir_module,
        "call": lambda: vjp.call(x, x),
        "gradient": lambda: jax.grad(lambda x: loaded.call(x).sum())(x),
        "under jit": lambda: jax.jit(vjp.call)(x, x),
        "serialize": lambda: loaded.serialize(1),
        "serialize without a trailer": lambda: loaded.serialize(1, trailer=False),
        "save": lambda: loaded.save(tmp_path / "f", vjp_order=1),
        "save without a trailer": lambda: loaded.save(tmp_path / "f", vjp_order=1, trailer=False),
        "to jax.export": lambda: loaded.to_jax().vjp().mlir_module_serialized,
    }
    for use in uses.values():
        with pytest.raises(DeserializationError, match="damaged; get another copy") as error:
            use()
        assert error.value.path == "vjp.mlir_module_serialized"
    assert not (tmp_path / "f").exists()
    # Comparisons say whether two are alike, damaged or not: JAX compares functions whenever it likes.
    assert loaded != jaxexp.deserialize(bytes(blob))
    assert hash(loaded) == hash(jaxexp.deserialize(bytes(blob)))
    with pytest.raises(DeserializationError, match=r"vjp\.mlir_module_serialized"):
        jaxexp.migrate(damaged(blob, wire.locate(blob, "vjp.mlir_module_serialized")[0] + 100))


def damaged_large() -> tuple[jaxexp.Exported, bytes]:
    module = np.random.default_rng(0).bytes(2**22 + 5)
    blob = dataclasses.replace(exported_case("sin"), mlir_module_serialized=module).serialize()
    return jaxexp.deserialize(damaged(blob, wire.locate(blob, "mlir_module_serialized")[0] + 2**21)), module


def test_damage_to_a_large_module_shows_with_the_last_piece() -> None:
    """Its digest is made while the caller writes it."""
    loaded, module = damaged_large()
    parts = _native.EncodedParts([loaded], jax.__version__, _native.Form(), _native.Notes("jaxexp", {}))
    next(parts)
    assert len(memoryview(next(parts))) == len(module)
    with pytest.raises(DeserializationError, match="damaged; get another copy") as error:
        next(parts)
    assert error.value.path == "mlir_module_serialized"
    assert list(parts) == []


def test_damage_to_a_large_module_leaves_files_as_they_are(tmp_path) -> None:
    """The file that is there stays, and a pipe gets nothing."""
    loaded, _ = damaged_large()
    (tmp_path / "f").write_bytes(b"earlier")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        for name in ("f", "pipe"):
            with pytest.raises(DeserializationError, match="damaged; get another copy"):
                loaded.save(tmp_path / name)
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
    assert (tmp_path / "f").read_bytes() == b"earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "pipe"]


def test_pieces_that_nobody_takes() -> None:
    """The thread that digests a module ends before the module goes."""
    for taken in range(20):
        module = np.random.default_rng(taken).bytes(2**23)
        exported = dataclasses.replace(exported_case("sin"), mlir_module_serialized=module)
        reference = weakref.ref(exported)
        parts = _native.EncodedParts([exported], jax.__version__, _native.Form(), _native.Notes("jaxexp", {}))
        del exported, module
        for _ in range(taken % 3):
            next(parts)
        del parts
        gc.collect()
        assert reference() is None


def test_a_file_that_was_cut() -> None:
    blob = bytes(exported_case("sin").serialize())
    for size in range(len(blob)):
        with pytest.raises(DeserializationError):
            jaxexp.deserialize(blob[:size])
    with pytest.raises(
        DeserializationError, match=f"expected {len(blob)} bytes.*found {len(blob) - 1}: the file was cut"
    ):
        jaxexp.deserialize(blob[:-1])


def test_the_module_has_to_be_where_it_was() -> None:
    """A root buffer whose module lies elsewhere, and a trailer whose digests fit that."""
    blob = exported_case("sin").serialize(1)
    primal, vjp = (wire.locate(blob, f"{path}mlir_module_serialized@")[0] for path in ("", "vjp."))
    target = wire.locate(blob, "vjp.mlir_module_serialized")[0]
    wire.write(blob, "mlir_module_serialized@", target - primal)
    with pytest.raises(DeserializationError, match="bytes at byte") as error:
        jaxexp.deserialize(bytes(wire.seal(blob)))
    assert error.value.path == "trailer.functions[0].module_size"
    assert vjp


# --- constraints ----------------------------------------------------------------------------------------------------


def bounded(*constraints: str) -> Any:
    b, c = jaxexp.symbolic_shape("b, c", constraints=constraints)
    fun = jax.jit(lambda x, y: jnp.concatenate([x * 2, y]))
    return jaxexp.export(fun)(jax.ShapeDtypeStruct((b,), np.float32), jax.ShapeDtypeStruct((c,), np.float32))


def test_a_loaded_function_has_the_constraints_of_the_original() -> None:
    live = bounded("b >= 4", "c <= b", "mod(b, 2) == 0")
    loaded = jaxexp.deserialize(live.serialize(1))
    assert {"b >= 4", "c <= b"} <= set(trailer(live.serialize())["constraints"])
    dim, original = loaded.in_avals[0].shape[0], live.in_avals[0].shape[0]
    assert jaxexp.symbolic_dim_bounds(dim) == jaxexp.symbolic_dim_bounds(original) == (4, np.inf)
    assert dim % 2 == 0
    again = jaxexp.deserialize(loaded.serialize(1))
    assert trailer(again.serialize())["constraints"] == trailer(live.serialize())["constraints"]
    assert jaxexp.symbolic_dim_bounds(again.vjp().in_avals[0].shape[0]) == (4, np.inf)
    fits = np.ones(6, np.float32), np.ones(5, np.float32)
    for exported in (live, loaded, again):
        assert_same_values([exported.call(*fits)], [np.concatenate([2 * fits[0], fits[1]])])
        for sizes, named in [((2, 1), "b >= 4"), ((4, 5), "c <= b"), ((5, 1), "floordiv(b, 2) == b")]:
            args = [np.ones(size, np.float32) for size in sizes]
            for call in (exported.call, jax.jit(exported.call)):
                with pytest.raises(jaxexp.ExportError) as error:
                    call(*args)
                assert named in str(error.value)


def test_constraints_without_a_trailer_are_lost() -> None:
    loaded = jaxexp.deserialize(bounded("b >= 4").serialize(trailer=False))
    assert jaxexp.symbolic_dim_bounds(loaded.in_avals[0].shape[0]) == (1, np.inf)


@pytest.mark.parametrize("constraint", ["b 3 4", "bb >== 3", "", "0 >= 12"])
def test_damaged_constraints(constraint: str) -> None:
    blob = bounded("b >= 4").serialize()
    at = bytes(blob).index(b"\6\0\0\0b >= 4\0", wire.trailer_of(blob)[0])
    text = constraint.encode().ljust(6)
    blob[at + 4 : at + 10] = text[:6]
    with pytest.raises(DeserializationError) as error:
        jaxexp.deserialize(bytes(wire.seal(blob)))
    assert error.value.path == "trailer.constraints[0]"


def test_too_many_constraints() -> None:
    (a,) = jaxexp.symbolic_shape("b")
    exported = jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((a,), np.float32))
    # JAX takes half a minute to export with that many.
    (b,) = jaxexp.symbolic_shape("b", constraints=[f"b >= {i}" for i in range(1, 1030)])
    avals = [jax.core.ShapedArray((b,), np.float32)]
    exported = dataclasses.replace(exported, in_avals=avals, out_avals=avals)
    with pytest.raises(jaxexp.ExportError, match="found 1029"):
        exported.serialize()
    assert exported.serialize(trailer=False)


# --- weak types -----------------------------------------------------------------------------------------------------


def weak(exported: Any) -> list[bool]:
    return [
        *(i in exported.weak_arguments for i in range(len(exported.in_avals))),
        *(i in exported.weak_results for i in range(len(exported.out_avals))),
    ]


def in_avals(exported: Any) -> list[bool]:
    return [aval.weak_type for aval in (*exported.in_avals, *exported.out_avals)]


def with_weak_types() -> jaxexp.Exported:
    specs = [jax.ShapeDtypeStruct((), np.float32, weak_type=w) for w in (True, False, True)]
    return jaxexp.export(jax.jit(lambda x, y, z: (x + y, 2.0, x * 1.0, z)))(*specs)


def test_weak_types_are_kept() -> None:
    live = with_weak_types()
    loaded = jaxexp.deserialize(live.serialize(2))
    assert (loaded.weak_arguments, loaded.weak_results) == ((0, 2), (1, 2, 3))
    assert weak(live) == in_avals(live) == weak(loaded) == [True, False, True, False, True, True, True]
    assert weak(live.vjp()) == weak(loaded.vjp())
    assert weak(live.vjp().vjp()) == weak(loaded.vjp().vjp())
    assert weak(pickle.loads(pickle.dumps(loaded))) == weak(live)
    for again in (loaded.serialize(2), loaded.serialize(compatibility="jax-0.6.2"), jaxexp.migrate(loaded.serialize())):
        assert weak(jaxexp.deserialize(again)) == weak(live)
    assert weak(jaxexp.deserialize(live.serialize(trailer=False))) == [False] * 7


def test_loaded_functions_are_typed_as_jax_export_types_them() -> None:
    """Weak types stay in the artifact: avals and results do not have them, nor do dtypes that depend on them."""
    live = with_weak_types()
    loaded, expected = jaxexp.deserialize(live.serialize(1)), jax_export.deserialize(live.serialize(1))
    assert (loaded.in_avals, loaded.out_avals) == (expected.in_avals, expected.out_avals)
    assert (loaded.vjp().in_avals, loaded.vjp().out_avals) == (expected.vjp().in_avals, expected.vjp().out_avals)
    half, args = jnp.ones(3, jnp.bfloat16), (1.0, np.float32(2), 3.0)
    for call in (lambda f: f.call(*args), lambda f: jax.jit(f.call)(*args), lambda f: jax.eval_shape(f.call, *args)):
        for ours, theirs in zip(call(loaded), call(expected), strict=True):
            assert (ours.dtype, ours.weak_type) == (theirs.dtype, theirs.weak_type) == (np.float32, False)
    for ours, theirs in zip(loaded.call(*args), expected.call(*args), strict=True):
        assert (half * ours).dtype == (half * theirs).dtype == np.float32
    # In the process of the export, both libraries keep the types of the function that was exported.
    theirs_live = jax_export.export(jax.jit(lambda x: x * 1.0))(1.0).call(1.0)
    assert theirs_live.weak_type
    assert [result.weak_type for result in live.call(*args)] == [False, True, True, True]


def test_weak_types_beside_shardings() -> None:
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    specs = [jax.ShapeDtypeStruct((), np.float32, weak_type=w, sharding=replicated) for w in (True, False)]
    live = jaxexp.export(jax.jit(lambda x, y: (x, y)))(*specs)
    loaded = jaxexp.deserialize(live.serialize())
    assert weak(loaded) == weak(live) == [True, False, True, False]
    assert [a.sharding for a in loaded.in_avals] == [a.sharding for a in live.in_avals]


# --- the user's metadata --------------------------------------------------------------------------------------------

EVERYTHING = {
    "text": "Übung 日本 \ud800",
    "number": 1.5,
    "big": 10**40,
    "nested": {"list": [1, None, True, {"a": []}]},
    "": "empty key",
    "Schlüssel": "ä",
}


def test_metadata_of_the_user(tmp_path) -> None:
    exported = exported_case("sin")
    assert exported.metadata == {}
    blob = exported.serialize(1, metadata=EVERYTHING)
    loaded = jaxexp.deserialize(blob)
    assert loaded.metadata == EVERYTHING
    assert list(loaded.metadata) == sorted(EVERYTHING, key=str.encode)
    with pytest.raises(TypeError):
        loaded.metadata["new"] = 1
    assert loaded.vjp().metadata == {}
    assert exported.metadata == {}
    exported.save(tmp_path / "f", vjp_order=1, metadata=EVERYTHING)
    assert (tmp_path / "f").read_bytes() == blob
    assert jax_export.deserialize(bytearray(blob)).fun_name == "sin"


def test_metadata_is_kept_until_there_is_other() -> None:
    loaded = jaxexp.deserialize(exported_case("symbolic_batch").serialize(metadata={"a": 1}))
    assert jaxexp.deserialize(loaded.serialize()).metadata == {"a": 1}
    assert jaxexp.deserialize(loaded.serialize(metadata={"b": 2})).metadata == {"b": 2}
    assert jaxexp.deserialize(loaded.serialize(metadata={})).metadata == {}
    assert jaxexp.deserialize(loaded.serialize(trailer=False)).metadata == {}
    assert jaxexp.deserialize(jaxexp.migrate(loaded.serialize())).metadata == {"a": 1}
    assert jaxexp.deserialize(jaxexp.migrate(loaded.serialize(), to="jax-0.6.2")).metadata == {"a": 1}
    specs = (
        jax.ShapeDtypeStruct(tuple(d if isinstance(d, int) else 2 for d in a.shape), a.dtype) for a in loaded.in_avals
    )
    fixed = loaded.specialize(*specs)
    assert fixed.metadata == {"a": 1}


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"a": {1, 2}}, TypeError, r"metadata\['a'\] has to be a JSON value"),
        ({"a": float("nan")}, ValueError, r"metadata\['a'\] has to be a JSON value"),
        ({1: "a"}, TypeError, "the keys of metadata have to be strings, found 1"),
        ({"\ud800": 1}, ValueError, "is not Unicode text"),
        ([("a", 1)], TypeError, "metadata has to be a mapping"),
        ({"a": np.float32(1)}, TypeError, r"metadata\['a'\] has to be a JSON value"),
    ],
)
def test_what_is_no_metadata(metadata: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(jaxexp.ExportError, match=message) as raised:
        exported_case("sin").serialize(metadata=metadata)
    assert isinstance(raised.value, error)


def test_deep_metadata() -> None:
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    with pytest.raises(jaxexp.ExportError, match="metadata"):
        exported_case("sin").serialize(metadata={"deep": deep})
    while deep:  # taken apart in a loop: dropping it whole is deep, too
        deep = deep.pop()


def test_metadata_needs_a_trailer() -> None:
    with pytest.raises(jaxexp.ExportError, match="metadata is in the trailer"):
        exported_case("sin").serialize(trailer=False, metadata={"a": 1})


@pytest.mark.parametrize("text", ["[1,2", "NaN ", '"\\x"', "1 2 ", "[[[["])
def test_hostile_metadata(text: str) -> None:
    blob = exported_case("sin").serialize(metadata={"key": "abcd"})
    at = bytes(blob).index(b'"abcd"', wire.trailer_of(blob)[0])
    blob[at : at + 6] = text.ljust(6).encode()
    with pytest.raises(DeserializationError, match="expected JSON") as error:
        jaxexp.deserialize(bytes(wire.seal(blob)))
    assert error.value.path == "trailer.metadata['key']"


def test_spaces_around_metadata() -> None:
    blob = exported_case("sin").serialize(metadata={"key": "abcd"})
    at = bytes(blob).index(b'"abcd"', wire.trailer_of(blob)[0])
    blob[at : at + 6] = b"\t 12\n "
    assert jaxexp.deserialize(bytes(wire.seal(blob))).metadata == {"key": 12}


def test_keys_out_of_order() -> None:
    blob = exported_case("sin").serialize(metadata={"aaa": 1, "bbb": 2})
    at = bytes(blob).index(b"bbb", wire.trailer_of(blob)[0])
    blob[at : at + 3] = b"aaa"
    with pytest.raises(DeserializationError, match="keys in ascending order"):
        jaxexp.deserialize(bytes(wire.seal(blob)))


# --- other libraries, other processes -------------------------------------------------------------------------------

READER = """
import json, sys
import jaxexp
loaded = jaxexp.load(sys.argv[1])
print(json.dumps(dict(loaded.metadata)))
"""


def test_read_in_another_process(tmp_path, subprocess_env) -> None:
    exported_case("sin").save(tmp_path / "f", metadata={"accuracy": 0.97})
    command = [sys.executable, "-c", READER, str(tmp_path / "f")]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=subprocess_env()).stdout
    assert json.loads(found) == {"accuracy": 0.97}
