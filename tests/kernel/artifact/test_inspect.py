"""What an artifact says of itself, without JAX."""

from __future__ import annotations

import collections
import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

import jaxexp
from jaxexp import _jax, _native
from jaxexp._kernel.artifact import op_sharding, words
from jaxexp._kernel.codec.dtypes import DTYPES
from kit import layout
from kit.corpus import CASES, arr, export_with
from kit.each import each
from kit.goldens import Pt, blob_of
from kit.places import GOLDEN
from kit.ways import name_of


@pytest.fixture(scope="module")
def blob() -> bytes:
    b = jaxexp.symbolic_shape("b, 3", constraints=["b >= 2"])
    exported = jaxexp.export(jax.jit(lambda x, scale: {"y": x * scale}))(jax.ShapeDtypeStruct(b, "float32"), 2.0)
    return bytes(exported.serialize(vjp_order=2, metadata={"run": [1, 2], "by": "me"}))


@pytest.mark.jax
def test_fields(blob) -> None:
    found, loaded = jaxexp.inspect(blob), jaxexp.deserialize(blob)
    assert found.fun_name == loaded.fun_name == "<lambda>"
    assert found.jax_version == jax.__version__
    assert found.calling_convention_version == loaded.calling_convention_version
    assert (found.platforms, found.nr_devices) == (("cpu",), 1)
    assert [(v.dtype, v.shape, v.kept, v.weak_type) for v in found.arguments] == [
        ("float32", ("b", 3), True, False), ("float32", (), True, True),
    ]  # fmt: skip
    assert [(v.dtype, v.shape, v.kept) for v in found.results] == [("float32", ("b", 3), True)]
    assert (found.in_tree, found.out_tree, found.vjp_order) == ("((*, *), {})", "{'y': *}", 2)
    assert found.total_bytes == len(blob)
    assert found.module_bytes[0] == len(loaded.mlir_module_serialized)
    assert found.module_bytes[2] == len(loaded.vjp().vjp().mlir_module_serialized)
    assert "vhlo" in found.dialects
    assert any(name.startswith("vhlo.multiply") for name in found.operations)
    assert found.stablehlo is not None and found.producer is not None
    assert found.trailer.startswith("jaxexp")
    assert found.constraints == ("b >= 2",)
    assert found.metadata == {"run": [1, 2], "by": "me"}
    assert not found.modules_checked
    assert jaxexp.inspect(blob, check_modules=True) == dataclasses.replace(found, modules_checked=True)
    # A damaged module is found when the modules are asked for.
    damaged = bytearray(blob)
    damaged[blob.index(loaded.mlir_module_serialized) + 99] ^= 1
    assert len(found.module_digests) == 3
    assert jaxexp.inspect(bytes(damaged)).module_digests == found.module_digests
    with pytest.raises(jaxexp.errors.DeserializationError, match="mlir_module_serialized"):
        jaxexp.inspect(bytes(damaged), check_modules=True)
    with pytest.raises(TypeError, match="path"):
        jaxexp.inspect(None)


def test_text_and_json(blob) -> None:
    found = jaxexp.inspect(blob)
    text = str(found)
    for part in ("float32[b,3]", "weakly typed", "b >= 2", 'by = "me"', found.module_digests[0], jax.__version__):
        assert part in text
    data = json.loads(json.dumps(found.to_dict()))
    assert data["arguments"][0]["shape"] == ["b", 3]
    assert data.keys() == {field.name for field in dataclasses.fields(found)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.fun_name = "other"
    unused = jaxexp.inspect(export_with(jaxexp, CASES["dropped"].build()).serialize())
    assert [v.kept for v in unused.arguments] == [False, True, False, True]
    assert str(unused).count("not used") == 2


@pytest.mark.jax
def test_modules_written_in_unknown_ways() -> None:
    """What cannot be told is None, not nothing."""
    exported = jaxexp.export(jax.jit(jnp.linalg.cholesky))(arr(2, 2))
    blob = bytes(exported.serialize(trailer=False))
    assert list(jaxexp.inspect(blob).custom_calls[0]) == ["lapack_spotrf_ffi"]
    newer_operation = blob.replace(b"custom_call_v", b"custom_call_w")
    found = jaxexp.inspect(newer_operation)
    assert found.custom_calls == (None,)
    assert any(name.startswith("vhlo.custom_call_w") for name in found.operation_counts[0])
    assert "not known" in str(found)
    at = blob.index(b"ML\xefR") + 4
    newer_format = blob[:at] + bytes([99 << 1 | 1]) + blob[at + 1 :]
    assert jaxexp.inspect(newer_format).operation_counts == (None,)
    damaged = blob[: at + 40] + bytes(200) + blob[at + 240 :]
    assert jaxexp.inspect(damaged).custom_calls == (None,)


def test_paths_of_leaves() -> None:
    def function(x, *, k):
        return {"sum": x[0]["a b"] + x[1][0], "none": None, "more": (k,)}

    exported = jaxexp.export(jax.jit(function))(({"a b": 1.0}, [2.0]), k=3.0)
    found = jaxexp.inspect(exported.serialize())
    assert [v.path for v in found.arguments] == ["args[0][0]['a b']", "args[0][1][0]", "kwargs['k']"]
    assert [v.path for v in found.results] == ["result['more'][0]", "result['sum']"]
    custom = jaxexp.inspect(GOLDEN / "2026-11-21-trailer_jaxexp-0.1.0_jax-0.12.0.1" / "custom_node.bin")
    assert custom.arguments[0].path.startswith("args[0]<0>")
    long = "é" * 1000
    exported = jaxexp.export(jax.jit(lambda tree: tree[long]))({long: 1.0})
    path = jaxexp.inspect(exported.serialize()).arguments[0].path
    assert len(path) < 300 and path.endswith("...")


def test_fields_of_registered_namedtuples() -> None:
    """The artifact lists them, so they have the same names as in messages about the loaded function."""
    found = jaxexp.inspect(blob_of("0.12.0.1", "namedtuple_tree"))
    assert (found.in_tree, found.out_tree) == ("((corpus.Pt(x=*, y=*),), {})", "corpus.Pt(x=*, y=*)")
    assert [value.path for value in found.arguments] == ["args[0].x", "args[0].y"]
    assert [value.path for value in found.results] == ["result.x", "result.y"]
    assert jaxexp.compatibility(blob_of("0.12.0.1", "namedtuple_tree")).custom_nodes == ("corpus.Pt",)
    # An OrderedDict lists its keys in the same way; here both share these bytes.
    value = collections.OrderedDict(x=arr(1), y=Pt(arr(1), arr(1)))
    found = jaxexp.inspect(jaxexp.export(jax.jit(lambda d: d["x"]))(value).serialize())
    assert [one.path for one in found.arguments] == ["args[0]['x']", "args[0]['y'].x", "args[0]['y'].y"]


def test_names_of_dtypes() -> None:
    count = len(DTYPES)
    assert list(map(name_of, DTYPES)) == list(map(_native.dtype_name, range(count)))
    assert _native.dtype_name(count) == f"dtype {count}"


@pytest.mark.jax
def test_shardings_as_xla_prints_them() -> None:
    protos = set()
    for path in sorted(GOLDEN.glob("**/*.bin")):
        facts = _native.Artifact(path.read_bytes()).describe()
        protos |= {v[3] for v in (*facts["arguments"], *facts["results"]) if isinstance(v[3], bytes)}
    kinds = _jax.OpSharding.Type
    tiles = {"tile_assignment_dimensions": [2, 2, 2], "tile_assignment_devices": [0, 1, 2, 3, 7, 6, 5, 4]}
    for fields in (
        {"type": kinds.MANUAL},
        {"type": kinds.MAXIMAL, "tile_assignment_dimensions": [1], "tile_assignment_devices": [3]},
        {"type": kinds.OTHER, "last_tile_dims": [kinds.MANUAL], **tiles},
    ):
        proto = _jax.OpSharding()
        for name, value in fields.items():
            setattr(proto, name, value)
        protos.add(proto.SerializeToString())
    assert len(protos) > 8
    for data in protos:
        proto = _jax.OpSharding()
        proto.ParseFromString(data)
        assert op_sharding.text(data) == str(_jax.HloSharding.from_proto(proto))
        for end in range(1, len(data)):
            assert op_sharding.text(data[:end])


def test_large_trees_are_cut() -> None:
    """Trees share subtrees: a short artifact may hold one whose text is long, and so may be paths of its leaves."""
    leaves = layout.node(layout.DICT, layout.repeated(layout.node(layout.LEAF), 60_000), names=["k" * 200])
    zeros = [0] * 60_000
    tree = layout.node(layout.TUPLE, layout.node(layout.TUPLE, leaves), layout.node(layout.DICT))
    root = layout.function(in_tree=tree, unique_avals=[layout.aval("1")], in_avals_idxs=zeros, in_shardings_idxs=zeros)
    found = jaxexp.inspect(layout.put_together(root))
    assert len(found.in_tree) < 1 << 17
    assert found.in_tree.endswith("...")
    assert len(str(found).splitlines()) < 80
    paths = [argument.path for argument in found.arguments]
    assert "k" * 200 in paths[0]
    assert len(paths[-1]) < 50
    assert sum(map(len, paths)) < 12 << 20


@each(
    "text, expected",
    [
        ("models/a?b@c.jaxexp", "models/a?b@c.jaxexp"),
        ("https://host/m.jaxexp", "https://host/m.jaxexp"),
        ("https://me:secret@host:80/m.jaxexp?key=secret", "https://host:80/m.jaxexp?..."),
        ("s3://me@bucket/f.zip?a=b&c=d::one", "s3://bucket/f.zip?...::one"),
        ("cannot read 'https://a:b@h/x?y=z', found <html>", "cannot read 'https://h/x?...', found <html>"),
        ("https://h/a@b/m.jaxexp", "https://h/a@b/m.jaxexp"),
        ("a://" * 500_000 + "?b", "a://" * 500_000 + "?..."),  # in linear time
    ],
)
def test_texts_without_secrets(text: str, expected: str) -> None:
    assert words.without_secrets(text) == expected
