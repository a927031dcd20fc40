"""What jaxexp keeps behind an artifact: digests, constraints, weak types, the user's metadata, sets of sizes."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import pickle
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import xxhash
from jax import export as jax_export

import jaxexp
from jaxexp import _native
from jaxexp._api.exported import reader
from jaxexp.errors import DeserializationError, ExportError
from kit import wire
from kit.compare import assert_same_values
from kit.each import each
from kit.models import exported_case
from kit.ways import parts_of

pytestmark = pytest.mark.jax


def trailer(blob: Any) -> dict[str, Any]:
    found = _native.Artifact(bytes(blob)).trailer()
    assert found is not None
    return found


@each("size", [None, 0, 1, 2**17 - 1, 2**17, 2**17 + 1, 3 * 2**17 + 5, 2**21 + 3])
def test_layout(size: int | None, tmp_path: Path) -> None:
    """As schema/trailer.fbs has it, byte by byte. Modules of other sizes are copied and hashed in other steps."""
    exported = exported_case("sin")
    if size is not None:
        exported = dataclasses.replace(exported, mlir_module_serialized=np.random.default_rng(size).bytes(size))
    blob = bytes(exported.serialize(2 if size is None else 0))
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
    exported.save(tmp_path / "f", vjp_order=2 if size is None else 0)
    assert (tmp_path / "f").read_bytes() == blob
    assert jaxexp.load(tmp_path / "f").mlir_module_serialized == exported.mlir_module_serialized
    assert jaxexp.deserialize(blob + b"more" * 100) == jaxexp.deserialize(blob), "what follows is ignored"


def test_an_artifact_without_one_is_as_good() -> None:
    loaded = jaxexp.deserialize(bytes(bounded("b >= 4").serialize(1, trailer=False)))
    assert _native.Artifact(bytes(loaded.serialize(trailer=False))).trailer() is None
    assert loaded.metadata == {}
    assert jaxexp.symbolic_dim_bounds(loaded.in_avals[0].shape[0]) == (1, np.inf), "constraints are in the trailer"
    assert jaxexp.deserialize(bytes(loaded.serialize(1))).vjp().mlir_module_serialized
    with pytest.raises(ExportError, match="metadata is in the trailer"):
        loaded.serialize(trailer=False, metadata={"a": 1})


def damaged(blob: Any, at: int) -> bytes:
    changed = bytearray(blob)
    changed[at] ^= 1
    return bytes(changed)


@each("apart", [False, True])
def test_damage_to_a_module_shows_when_it_is_read(apart: bool, tmp_path: Path) -> None:
    """Also if modules are stored apart."""
    blob = exported_case("sin").serialize(2)
    changed = damaged(blob, wire.locate(blob, "vjp.mlir_module_serialized")[0] + 100)
    image, (module, of_vjp, of_second) = parts_of(bytes(blob))
    loaded = reader.read(image, [module, damaged(of_vjp, 100), of_second]) if apart else jaxexp.deserialize(changed)
    x = np.ones(4, np.float32)
    assert_same_values([loaded.call(x)], [jnp.sin(x)])
    vjp = loaded.vjp()
    for use in (
        lambda: vjp.mlir_module_serialized, vjp.mlir_module, lambda: vjp.call(x, x),
        lambda: jax.grad(lambda x: loaded.call(x).sum())(x), lambda: jax.jit(vjp.call)(x, x),
        lambda: loaded.serialize(1), lambda: loaded.serialize(1, trailer=False),
        lambda: loaded.save(tmp_path / "f", vjp_order=1),
        lambda: loaded.save(tmp_path / "f", vjp_order=1, trailer=False),
        lambda: loaded.to_jax().vjp().mlir_module_serialized, lambda: jaxexp.migrate(changed),
        lambda: pickle.dumps(loaded),
    ):  # fmt: skip
        with pytest.raises(DeserializationError, match="damaged; get another copy") as error:
            use()
        assert error.value.path == "vjp.mlir_module_serialized"
    assert not (tmp_path / "f").exists()
    # Comparisons say whether two are alike, damaged or not: JAX compares functions whenever it likes.
    assert loaded != jaxexp.deserialize(bytes(blob))
    assert hash(loaded) == hash(jaxexp.deserialize(bytes(blob)))


def test_damage_to_a_large_module_shows_with_the_last_piece(tmp_path) -> None:
    """Its digest is made while the caller writes it. The file that is there stays, and a pipe gets nothing."""
    module = np.random.default_rng(0).bytes(2**22 + 5)
    blob = dataclasses.replace(exported_case("sin"), mlir_module_serialized=module).serialize()
    loaded = jaxexp.deserialize(damaged(blob, wire.locate(blob, "mlir_module_serialized")[0] + 2**21))
    parts = _native.EncodedParts([loaded], jax.__version__, _native.Form(), _native.Notes("jaxexp", {}))
    next(parts)
    assert len(memoryview(next(parts))) == len(module)
    with pytest.raises(DeserializationError, match="damaged; get another copy") as error:
        next(parts)
    assert error.value.path == "mlir_module_serialized"
    assert list(parts) == []
    (tmp_path / "f").write_bytes(b"earlier")
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        for name in ("f", "pipe"):
            with pytest.raises(DeserializationError, match="damaged; get another copy"):
                loaded.save(tmp_path / name)
        assert os.read(pipe, 1) == b""
    finally:
        os.close(pipe)
    assert (tmp_path / "f").read_bytes() == b"earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "pipe"]


def test_pieces_that_nobody_takes() -> None:
    """The thread that digests a module ends before the module goes."""
    for taken in range(3):
        exported = dataclasses.replace(exported_case("sin"), mlir_module_serialized=bytes(2**22))
        reference, parts = weakref.ref(exported), _native.EncodedParts([exported], "", _native.Form(), None)
        for _ in range(taken):
            next(parts)
        del exported, parts
        gc.collect()
        assert reference() is None


def test_the_module_has_to_be_where_it_was() -> None:
    """A root buffer whose module lies elsewhere, and a trailer whose digests fit that."""
    blob = exported_case("sin").serialize(1)
    place, other = (wire.locate(blob, path)[0] for path in ("mlir_module_serialized@", "vjp.mlir_module_serialized"))
    wire.write(blob, "mlir_module_serialized@", other - place)
    with pytest.raises(DeserializationError, match="bytes at byte") as error:
        jaxexp.deserialize(bytes(wire.seal(blob)))
    assert error.value.path == "trailer.functions[0].module_size"


def bounded(*constraints: str) -> Any:
    b, c = jaxexp.symbolic_shape("b, c", constraints=constraints)
    fun = jax.jit(lambda x, y: jnp.concatenate([x * 2, y]))
    return jaxexp.export(fun)(jax.ShapeDtypeStruct((b,), np.float32), jax.ShapeDtypeStruct((c,), np.float32))


def test_a_loaded_function_has_the_constraints_of_the_original() -> None:
    live = bounded("b >= 4", "c <= b", "mod(b, 2) == 0")
    loaded = jaxexp.deserialize(live.serialize(1))
    assert {"b >= 4", "c <= b"} <= set(trailer(live.serialize())["constraints"])
    again = jaxexp.deserialize(loaded.serialize(1))
    assert trailer(again.serialize())["constraints"] == trailer(live.serialize())["constraints"]
    for exported in (live, loaded, again, again.vjp()):
        dim = exported.in_avals[0].shape[0]
        assert jaxexp.symbolic_dim_bounds(dim) == (4, np.inf)
        assert dim % 2 == 0
    fits = np.ones(6, np.float32), np.ones(5, np.float32)
    for exported in (live, loaded, again):
        assert_same_values([exported.call(*fits)], [np.concatenate([2 * fits[0], fits[1]])])
        with pytest.raises(ExportError, match="must satisfy c <= b"):  # for others, see test_a_broken_constraint
            exported.call(np.ones(4, np.float32), np.ones(5, np.float32))


@each("constraint", ["b 3 4", "bb >== 3", "", "0 >= 12"])
def test_damaged_constraints(constraint: str) -> None:
    damaged = replaced(bounded("b >= 4").serialize(), b"b >= 4", constraint.encode())
    # Whether a text is a constraint needs no JAX, whether one can hold does.
    for read in (jaxexp.deserialize, *([jaxexp.inspect, jaxexp.compatibility] if constraint != "0 >= 12" else [])):
        with pytest.raises(DeserializationError) as error:
            read(damaged)
        assert error.value.path == "trailer.constraints[0]"


def replaced(blob: bytearray, old: bytes, new: bytes) -> bytes:
    at = bytes(blob).index(old, wire.trailer_of(blob)[0])
    blob[at : at + len(old)] = new.ljust(len(old))[: len(old)]
    return bytes(wire.seal(blob))


def test_too_many_constraints() -> None:
    (a,) = jaxexp.symbolic_shape("b")
    exported = jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((a,), np.float32))
    # JAX takes half a minute to export with that many.
    (b,) = jaxexp.symbolic_shape("b", constraints=[f"b >= {i}" for i in range(1, 1030)])
    avals = [jax.core.ShapedArray((b,), np.float32)]
    exported = dataclasses.replace(exported, in_avals=avals, out_avals=avals)
    with pytest.raises(ExportError, match="found 1029"):
        exported.serialize()
    assert exported.serialize(trailer=False)


def weak(exported: Any) -> list[bool]:
    return [
        *(i in exported.weak_arguments for i in range(len(exported.in_avals))),
        *(i in exported.weak_results for i in range(len(exported.out_avals))),
    ]


def with_weak_types() -> jaxexp.Exported:
    specs = [jax.ShapeDtypeStruct((), np.float32, weak_type=w) for w in (True, False, True)]
    return jaxexp.export(jax.jit(lambda x, y, z: (x + y, 2.0, x * 1.0, z)))(*specs)


def test_weak_types_are_kept() -> None:
    live = with_weak_types()
    loaded = jaxexp.deserialize(live.serialize(2))
    assert (loaded.weak_arguments, loaded.weak_results) == ((0, 2), (1, 2, 3))
    assert weak(live) == weak(loaded) == [True, False, True, False, True, True, True]
    assert weak(live) == [aval.weak_type for aval in (*live.in_avals, *live.out_avals)]
    assert weak(live.vjp()) == weak(loaded.vjp())
    assert weak(live.vjp().vjp()) == weak(loaded.vjp().vjp())
    assert weak(jaxexp.deserialize(loaded.serialize(compatibility="jax-0.6.2"))) == weak(live)
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


def test_metadata_of_the_user(tmp_path) -> None:
    everything = {
        "text": "Übung 日本 \ud800", "number": 1.5, "big": 10**40, "nested": {"list": [1, None, True, {"a": []}]},
        "": "empty key", "Schlüssel": "ä", "large": [1e308],
    }  # fmt: skip
    exported = exported_case("sin")
    blob = exported.serialize(1, metadata=everything)
    loaded = jaxexp.deserialize(blob)
    assert loaded.metadata == everything
    assert list(loaded.metadata) == sorted(everything, key=str.encode)
    with pytest.raises(TypeError):
        loaded.metadata["new"] = 1
    assert loaded.vjp().metadata == exported.metadata == {}
    exported.save(tmp_path / "f", vjp_order=1, metadata=everything)
    assert (tmp_path / "f").read_bytes() == blob
    assert jax_export.deserialize(bytearray(blob)).fun_name == "sin"


def test_metadata_is_kept_until_there_is_other() -> None:
    loaded = jaxexp.deserialize(exported_case("symbolic_batch").serialize(metadata={"a": 1}))
    for again, expected in (
        (loaded.serialize(), {"a": 1}),
        (loaded.serialize(metadata={"b": 2}), {"b": 2}),
        (loaded.serialize(metadata={}), {}),
        (loaded.serialize(trailer=False), {}),
        (jaxexp.migrate(loaded.serialize(), to="jax-0.6.2"), {"a": 1}),
    ):
        assert jaxexp.deserialize(again).metadata == expected


def test_what_is_no_metadata() -> None:
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    for metadata, error, message in (
        ({"a": {1, 2}}, TypeError, r"metadata\['a'\] has to be a JSON value"),
        ({"a": float("nan")}, ValueError, r"metadata\['a'\] has to be a JSON value"),
        ({1: "a"}, TypeError, "the keys of metadata have to be strings, found 1"),
        ({"\ud800": 1}, ValueError, "is not Unicode text"),
        ([("a", 1)], TypeError, "metadata has to be a mapping"),
        ({"deep": deep}, ExportError, "metadata"),
    ):
        with pytest.raises(ExportError, match=message) as raised:
            exported_case("sin").serialize(metadata=metadata)
        assert isinstance(raised.value, error)
    while deep:  # taken apart in a loop: dropping it whole is deep, too
        deep = deep.pop()


def test_hostile_metadata() -> None:
    function = exported_case("sin")
    for text in ("[1,2", "NaN ", '"\\x"', "1 2 ", "[[[["):
        with pytest.raises(DeserializationError, match="expected JSON") as error:
            jaxexp.deserialize(replaced(function.serialize(metadata={"key": "abcd"}), b'"abcd"', text.encode()))
        assert error.value.path == "trailer.metadata['key']"
    spaces = replaced(function.serialize(metadata={"key": "abcd"}), b'"abcd"', b"\t 12\n ")
    assert jaxexp.deserialize(spaces).metadata == {"key": 12}
    with pytest.raises(DeserializationError, match="keys in ascending order"):
        jaxexp.deserialize(replaced(function.serialize(metadata={"aaa": 1, "bbb": 2}), b"bbb", b"aaa"))


SIZES = [{"b": 1, "n": 4}, {"n": 4, "b": 8}]


def exported(*constraints: str) -> jaxexp.Exported:
    b, n = jaxexp.symbolic_shape("b, n", constraints=constraints)
    spec = jax.ShapeDtypeStruct((b, 2 * n), np.float32)
    return jaxexp.export(jax.jit(lambda weights, x: x * weights["w"]))({"w": jax.ShapeDtypeStruct((), "float32")}, spec)


def test_sizes_go_along(tmp_path: Path) -> None:
    blob = exported().serialize(sizes=SIZES)
    function = jaxexp.deserialize(blob)
    bound = function.bind({"w": np.float32(2)})
    bound.save(tmp_path / "bound")
    for other in (
        function, dataclasses.replace(function, fun_name="g"), pickle.loads(pickle.dumps(function)), bound.unbound,
        jaxexp.deserialize(function.serialize(metadata={"is": "mine"})), *jaxexp.load_many([blob]),
        jaxexp.deserialize(function.serialize(compatibility="jax-0.9.0")), jaxexp.deserialize(jaxexp.migrate(blob)),
        jaxexp.load(tmp_path / "bound").unbound,
    ):  # fmt: skip
        assert other.sizes == tuple(SIZES)
    found = jaxexp.inspect(blob)
    assert found.sizes == tuple(SIZES)
    assert "b=1 n=4, b=8 n=4" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["sizes"] == [{"b": 1, "n": 4}, {"b": 8, "n": 4}]
    assert jax_export.deserialize(blob).fun_name == "<lambda>"


def test_other_sizes_and_none() -> None:
    assert exported().sizes == ()
    function = jaxexp.deserialize(exported().serialize(sizes=SIZES))
    for given, sizes in (([{"b": 2, "n": 2}], ({"b": 2, "n": 2},)), ([], ()), ([*SIZES, SIZES[0]], tuple(SIZES))):
        assert jaxexp.deserialize(function.serialize(sizes=given)).sizes == sizes
    with pytest.raises(TypeError):
        function.sizes[0]["b"] = 2  # type: ignore[index]
    scalar, matrix = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((), (2, 4)))
    static = function.specialize({"w": scalar}, matrix)
    assert static.sizes == ()
    with pytest.raises(ExportError, match=r"takes no sizes, because it has no symbolic dimensions, found {'b'"):
        static.serialize(sizes=[{"b": 1}])
    with pytest.raises(ExportError, match=r"with sizes and trailer=False: sizes are in the trailer"):
        function.serialize(sizes=SIZES, trailer=False)


NOT_SIZES = r"saving <lambda>: a set of sizes is a dict of integers such as {'batch': 8}, not "


@each(
    "sizes, error, message",
    [
        ([{"b": 8}], ValueError, r"a size from 1 to 2\^63 - 1 for each of b, n, found {'b': 8}"),
        ([{"b": 1 << 63, "n": 1}], ValueError, r"a size from 1 to 2\^63 - 1 for each of b, n, found"),
        ([{"b": 8, "n": 2, "c": 1}], ValueError, "for each of b, n, found"),
        ([{"b": 0, "n": 2}], ValueError, "a size from 1 to"),
        ([{"b": 3, "n": 2}], ValueError, r"args\[1\].shape\[0\] must be a multiple of 2, found 3 \(exported with the"),
        ([{"b": 2 * i, "n": 1} for i in range(1, 66)], ValueError, "there is room for 64 sets of sizes, found"),
        ([{"b": "8", "n": 2}], TypeError, NOT_SIZES),
        ([8], TypeError, NOT_SIZES),
        *(([{"b": 2, "n": one}], TypeError, NOT_SIZES) for one in (1.5, 1.0, True, np.True_, np.array(True), None)),
    ],
)
def test_sizes_that_do_not_fit(sizes: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        exported("mod(b, 2) == 0").serialize(sizes=sizes)
    assert isinstance(raised.value, ExportError) or error is TypeError


NOT_ASCENDING = r"trailer\.padded\[1\].* in ascending order"
HOSTILE_SIZES = (
    [[("b", 0)]], [[("b", -1)]], [[("n", 1), ("b", 1)]], [[("b", 1), ("b", 1)]], [[("b", i)] for i in range(1, 66)],
)  # fmt: skip


@each(
    "notes, message",
    [
        *(({"padded": padded}, NOT_ASCENDING) for padded in (["n", "b"], ["b", "b"])),
        *(({"sizes": sizes}, r"trailer\.sizes") for sizes in HOSTILE_SIZES),
    ],
)
def test_hostile_sizes(notes: Any, message: str) -> None:
    blob = _native.encode([exported()], jax.__version__, _native.Form(), _native.Notes("a test", {}, **notes))
    with pytest.raises(DeserializationError, match=message):
        jaxexp.deserialize(blob)
