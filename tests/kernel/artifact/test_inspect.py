"""What an artifact says of itself, without JAX."""

from __future__ import annotations

import collections
import dataclasses
import json
import mmap
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jaxexp
from jaxexp import _jax, _native
from jaxexp._kernel.artifact import op_sharding, words
from jaxexp._kernel.codec.dtypes import DTYPES
from jaxexp._kernel.module import mlir
from kit import layout, wire
from kit.corpus import CASES, arr, export_with
from kit.goldens import Pt, blob_of
from kit.places import GOLDEN

ARTIFACTS = sorted(GOLDEN.glob("**/*.bin"))


@pytest.fixture(scope="module")
def blob() -> bytes:
    b = jaxexp.symbolic_shape("b, 3", constraints=["b >= 2"])
    exported = jaxexp.export(jax.jit(lambda x, scale: {"y": x * scale}))(jax.ShapeDtypeStruct(b, "float32"), 2.0)
    return bytes(exported.serialize(vjp_order=2, metadata={"run": [1, 2], "by": "me"}))


def test_fields(blob) -> None:
    found, loaded = jaxexp.inspect(blob), jaxexp.deserialize(blob)
    assert found.fun_name == loaded.fun_name == "<lambda>"
    assert found.jax_version == jax.__version__
    assert found.calling_convention_version == loaded.calling_convention_version
    assert (found.platforms, found.nr_devices) == (("cpu",), 1)
    assert [(v.dtype, v.shape, v.kept, v.weak_type) for v in found.arguments] == [
        ("float32", ("b", 3), True, False),
        ("float32", (), True, True),
    ]
    assert [(v.dtype, v.shape, v.kept) for v in found.results] == [("float32", ("b", 3), True)]
    assert found.in_tree == "((*, *), {})"
    assert found.out_tree == "{'y': *}"
    assert found.vjp_order == 2
    assert found.total_bytes == len(blob)
    assert found.module_bytes[0] == len(loaded.mlir_module_serialized)
    assert found.module_bytes[2] == len(loaded.vjp().vjp().mlir_module_serialized)
    assert "vhlo" in found.dialects
    assert any(name.startswith("vhlo.multiply") for name in found.operations)
    assert found.stablehlo is not None and found.producer is not None
    assert found.trailer.startswith("jaxexp")
    assert len(found.module_digests) == 3
    assert found.constraints == ("b >= 2",)
    assert found.metadata == {"run": [1, 2], "by": "me"}
    assert not found.modules_checked
    assert jaxexp.inspect(blob, check_modules=True) == dataclasses.replace(found, modules_checked=True)


def test_arguments_that_are_not_used() -> None:
    blob = export_with(jaxexp, CASES["dropped"].build()).serialize()
    found = jaxexp.inspect(blob)
    assert [v.kept for v in found.arguments] == [False, True, False, True]
    assert str(found).count("not used") == 2


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


@pytest.mark.parametrize("name", sorted(name for name, case in CASES.items() if not case.x64))
def test_says_what_loading_says(name: str) -> None:
    exported = export_with(jaxexp, CASES[name].build())
    try:
        blob = exported.serialize()
    except jaxexp.ExportError:
        return
    found, loaded = jaxexp.inspect(blob), jaxexp.deserialize(blob)
    assert_same(found, loaded)


@pytest.mark.parametrize("path", ARTIFACTS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_artifacts_of_all_releases(path: Path) -> None:
    found = jaxexp.inspect(path)
    assert str(found)
    assert found.total_bytes == path.stat().st_size
    try:
        loaded = jaxexp.load(path)
    except jaxexp.DeserializationError as error:
        assert "registered" in str(error)  # pytree nodes, of which inspect knows nothing
        return
    assert_same(found, loaded)


def assert_same(found: jaxexp.Inspection, loaded: jaxexp.Exported) -> None:
    assert found.fun_name == loaded.fun_name
    assert found.platforms == loaded.platforms
    assert found.nr_devices == loaded.nr_devices
    assert found.disabled_checks == tuple(map(str, loaded.disabled_safety_checks))
    assert found.ordered_effects == tuple(str(type(e)) for e in loaded.ordered_effects)
    assert found.unordered_effects == tuple(str(type(e)) for e in loaded.unordered_effects)
    for values, avals, shardings in (
        (found.arguments, loaded.in_avals, loaded._in_named_shardings),
        (found.results, loaded.out_avals, loaded._out_named_shardings),
    ):
        assert [v.dtype for v in values] == [_name(aval.dtype) for aval in avals]
        assert [tuple(map(str, v.shape)) for v in values] == [tuple(map(str, aval.shape)) for aval in avals]
        assert [v.memory_space for v in values] == [aval.memory_space.name.lower() for aval in avals]
        assert [v.sharding is None for v in values] == [sharding is None for sharding in shardings]
    assert [i for i, v in enumerate(found.arguments) if v.kept] == list(loaded.module_kept_var_idx)
    if not any(custom in str(loaded.in_tree) for custom in ("CustomNode", "{1:")):  # which have names in artifacts
        assert f"PyTreeDef({found.in_tree})" == str(loaded.in_tree)
        assert f"PyTreeDef({found.out_tree})" == str(loaded.out_tree)


def _name(dtype) -> str:
    return "float0" if dtype == jax.dtypes.float0 else str(dtype)


@pytest.mark.sampled(one_in=4, reason="many cases go the same way")
@pytest.mark.parametrize("path", ARTIFACTS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_custom_calls_are_those_that_a_parser_finds(path: Path) -> None:
    found = jaxexp.inspect(path)
    link, counted = _native.Artifact(path.read_bytes()), []
    while link is not None:
        with _jax.make_ir_context() as context:
            try:
                module = mlir.parse(bytes(link.module()), context)
            except jaxexp.DeserializationError as error:
                assert "StableHLO up to" in str(error)  # written by a newer JAX
                return
            counted.append(dict(collections.Counter(target for target, _ in mlir.custom_calls(module))))
        link = link.vjp()
    assert list(found.custom_calls) == counted
    assert set(found.operation_counts[0]) <= set(found.operations)
    assert [any("custom_call" in name for name in kinds) for kinds in found.operation_counts] == list(
        map(bool, counted)
    )


def test_operations_are_counted() -> None:
    def function(x):
        y = jnp.sin(jnp.sin(x))
        return jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(y), y)

    (counts,) = jaxexp.inspect(jaxexp.export(jax.jit(function))(arr(2)).serialize()).operation_counts
    assert sum(n for name, n in counts.items() if name.startswith("vhlo.sine")) == 3
    assert counts["builtin.module"] == 1


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
    assert list(map(_name, DTYPES)) == list(map(_native.dtype_name, range(count)))
    assert _native.dtype_name(count) == f"dtype {count}"


def test_shardings_as_xla_prints_them() -> None:
    protos = set()
    for path in ARTIFACTS:
        facts = _native.Artifact(path.read_bytes()).describe()
        protos |= {v[3] for v in (*facts["arguments"], *facts["results"]) if isinstance(v[3], bytes)}
    kinds = _jax.OpSharding.Type
    for fields in (
        {"type": kinds.MANUAL},
        {"type": kinds.MAXIMAL, "tile_assignment_dimensions": [1], "tile_assignment_devices": [3]},
        {
            "type": kinds.OTHER,
            "tile_assignment_dimensions": [2, 2, 2],
            "tile_assignment_devices": [0, 1, 2, 3, 7, 6, 5, 4],
            "last_tile_dims": [kinds.MANUAL],
        },
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


def test_every_kind_of_source(blob, tmp_path) -> None:
    path = tmp_path / "f"
    path.write_bytes(blob)
    expected = jaxexp.inspect(blob)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for source in (bytearray(blob), memoryview(blob), mapped, str(path), path):
            assert jaxexp.inspect(source) == expected


def test_errors(blob, tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        jaxexp.inspect(tmp_path / "missing")
    with pytest.raises(IsADirectoryError if sys.platform != "win32" else OSError):
        jaxexp.inspect(str(tmp_path))
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_bytes(blob[:100])
    for name in ("empty", "short"):
        with pytest.raises(jaxexp.DeserializationError) as error:
            jaxexp.inspect(tmp_path / name)
        assert error.value.file == str(tmp_path / name)
    for not_bytes in (None, 3, object()):
        with pytest.raises(TypeError, match="path"):
            jaxexp.inspect(not_bytes)


def test_refuses_what_loading_refuses() -> None:
    blob = bytearray(jaxexp.export(jax.jit(jnp.sin))(arr(2)).serialize(trailer=False))
    wire.write(blob, "unique_avals.0.memory_space", 77)
    errors = []
    for read in (jaxexp.inspect, jaxexp.deserialize):
        with pytest.raises(jaxexp.DeserializationError) as error:
            read(bytes(blob))
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_digests(blob) -> None:
    """A damaged module is found when the modules are asked for."""
    damaged = bytearray(blob)
    module = jaxexp.deserialize(blob).mlir_module_serialized
    damaged[blob.index(module) + len(module) // 2] ^= 1
    assert jaxexp.inspect(bytes(damaged)).module_digests == jaxexp.inspect(blob).module_digests
    with pytest.raises(jaxexp.DeserializationError, match="mlir_module_serialized"):
        jaxexp.inspect(bytes(damaged), check_modules=True)


def test_a_large_tree_is_cut() -> None:
    """Trees share subtrees: a short artifact may hold one whose text is long."""
    tree = jnp.float32(1)
    for _ in range(14):
        tree = (tree, tree)
    blob = jaxexp.export(jax.jit(lambda tree: jax.tree_util.tree_leaves(tree)[0]))(tree).serialize()
    assert len(jaxexp.inspect(blob).in_tree) < 1 << 17
    assert jaxexp.inspect(blob).in_tree.endswith("...")
    assert len(str(jaxexp.inspect(blob)).splitlines()) < 80


def test_imports_no_jax(blob, tmp_path, subprocess_env) -> None:
    (tmp_path / "f").write_bytes(blob)
    code = f"""
import sys
import jaxexp
print(jaxexp.inspect({str(tmp_path / "f")!r}, check_modules=True))
print(sorted({{"jax", "jaxlib", "numpy"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=subprocess_env(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{jaxexp.inspect(blob, check_modules=True)}\n[]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("models/a?b@c.jaxexp", "models/a?b@c.jaxexp"),
        ("https://host/m.jaxexp", "https://host/m.jaxexp"),
        ("https://me:secret@host:80/m.jaxexp?key=secret", "https://host:80/m.jaxexp?..."),
        ("s3://me@bucket/f.zip?a=b&c=d::one", "s3://bucket/f.zip?...::one"),
        ("cannot read 'https://a:b@h/x?y=z', found <html>", "cannot read 'https://h/x?...', found <html>"),
        ("https://h/a@b/m.jaxexp", "https://h/a@b/m.jaxexp"),
    ],
)
def test_texts_without_secrets(text: str, expected: str) -> None:
    assert words.without_secrets(text) == expected


def test_secrets_are_found_in_linear_time() -> None:
    text = "a://" * 500_000
    assert words.without_secrets(f"{text} {text}?b") == f"{text} {text}?..."


def test_long_paths_of_many_leaves_are_cut() -> None:
    leaves = layout.node(layout.DICT, layout.repeated(layout.node(layout.LEAF), 60_000), names=["k" * 200])
    zeros = [0] * 60_000
    tree = layout.node(layout.TUPLE, layout.node(layout.TUPLE, leaves), layout.node(layout.DICT))
    root = layout.function(in_tree=tree, unique_avals=[layout.aval("1")], in_avals_idxs=zeros, in_shardings_idxs=zeros)
    paths = [argument.path for argument in jaxexp.inspect(layout.put_together(root)).arguments]
    assert "k" * 200 in paths[0]
    assert len(paths[-1]) < 50
    assert sum(map(len, paths)) < 12 << 20
