"""Artifacts that say what no reader knows, or have the modules of others: refused, with the path to what is wrong."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import io
import itertools
import os
import pickle
import random
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp._kernel.releases import table
from jaxexp.errors import DeserializationError
from kit import wire
from kit.alike import LIBRARIES, raises_alike
from kit.compare import assert_same_fields
from kit.corpus import CASES, EFFECTS, arr, export_with, f32
from kit.damaged import jax_blob
from kit.each import each
from kit.goldens import blob_of
from kit.layout import aval, of_values
from kit.other_modules import with_module
from kit.vhlo import for_version

pytestmark = pytest.mark.jax


@each("library", LIBRARIES)
def test_truncated(library: str) -> None:
    """But for the few bytes of padding that may end a buffer."""
    blob = bytes(export_with(LIBRARIES[library], CASES["namedtuples"].build()).serialize(vjp_order=1))
    for end in range(len(blob) - 8):
        with pytest.raises(DeserializationError) as error:
            jaxexp.deserialize(blob[:end])
        assert end < 12 or "looks like" not in error.value.found


def _foreign() -> dict[str, tuple[bytes, str]]:
    """Bytes, and what the error calls them."""
    archive, array = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a", "text" * 99)
    np.save(array, np.arange(99))
    return {
        "empty": (b"", "0 bytes"),
        "one byte": (b"\0", "1 bytes"),
        "three bytes": (b"abc", "looks like text"),
        "zeros": (bytes(1000), ""),
        "random": (random.Random(0).randbytes(1000), ""),
        "noise that begins with letters": (b"letters!\0\1\2" * 50, ""),
        "noise of high bytes": (b"\x91noise\xc3\xf0" * 50, ""),
        "text": (b"This is no artifact. " * 50, "looks like text"),
        "text that is cut inside a character": (("x" * 63 + "ä").encode() * 50, "looks like text"),
        "png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(200), "image"),
        "zip": (archive.getvalue(), "zip archive"),
        "npy": (array.getvalue(), "NumPy's file of arrays"),
        "pickle": (pickle.dumps({"fun_name": ["f"] * 99}), "pickle"),
        "gzip": (gzip.compress(bytes(range(256))), "gzip"),
        "stablehlo": (jax_export.export(jax.jit(jnp.sin))(arr(2)).mlir_module_serialized, "StableHLO"),
        "root table without fields": (b"\x08\0\0\0\x04\0\x04\0\x04\0\0\0", ""),
        "root points to itself": (bytes(8), ""),
    }


@each("name, foreign", _foreign().items())
def test_foreign_bytes(name: str, foreign: tuple[bytes, str]) -> None:
    data, called = foreign
    with pytest.raises(DeserializationError) as error:
        jaxexp.deserialize(data)
    assert isinstance(error.value, ValueError)
    assert error.value.found in str(error.value)
    assert error.value.file is None
    if name != "root table without fields":  # an artifact that lacks everything
        assert (error.value.path, error.value.expected) == ("", "a serialized Exported")
    assert called in error.value.found
    assert called or "what looks like" not in error.value.found


def test_files_that_are_too_large(tmp_path: Path) -> None:
    """This one takes no room here, and would take all of the memory."""
    path = tmp_path / "large.jaxexp"
    path.touch()
    os.truncate(path, 1 << 40)
    message = "expected an artifact of at most 4 GiB, found a file of 1"
    for read in (
        jaxexp.load, jaxexp.verify, lambda path: jaxexp.load(path, policy=jaxexp.Policy()),
        lambda path: jaxexp.load_many([path]),
    ):  # fmt: skip
        with pytest.raises(DeserializationError, match=message):
            read(path)
    assert re.search(message, str(jaxexp.verify_many([path])[str(path)]))


# One value of an artifact changed to something no reader knows: the case, the paths of the value (wherever the two
# layouts, full and unique, hold it), the new value, and what the error's path and message must contain.
INNER = "in_tree.children.0.children.0"
AVALS = ("unique_avals", "in_avals", "out_avals")
UNKNOWN = {
    "dtype": ("sin", [f"{a}.0.dtype" for a in AVALS], 99, "dtype", "99"),
    "negative dtype": ("sin", [f"{a}.0.dtype" for a in AVALS], -3, "dtype", ""),
    "memory space": ("sin", [f"{a}.0.memory_space" for a in AVALS], 77, "memory_space", "77"),
    "tree kind": ("nested_containers", ["in_tree.kind"], 55, r"in_tree", "55"),
    "axis type": ("sharded_2d", ["unique_abstract_meshes.0.axis_types.0"], 66, "axis_types", "66"),
    "inner tree kind": ("nested_containers", [f"{INNER}.kind"], 42, r"in_tree\.children\[0\]\.children\[0\]", "42"),
    "check kind": ("custom_call_allowed", ["disabled_checks.1.kind"], 44, r"disabled_checks\[1\]", "44"),
    "aval index": ("sin", ["in_avals_idxs.0"], 9, "in_avals_idxs|in_avals", "9"),
    "sharding index": ("sharded_2d", ["in_shardings_idxs.1"], 9, "in_shardings_idxs|in_shardings", "9"),
    "mesh index": ("two_meshes", ["unique_named_shardings.1.abstract_mesh_idx"], 9, "mesh", "9"),
    "kept index": ("dropped", ["module_kept_var_idx.1"], 9, "module_kept_var_idx", "9"),
    "kept order": ("dropped", ["module_kept_var_idx.1"], 1, "module_kept_var_idx", ""),
    "dict keys out of order": ("nested_containers", [f"{INNER}.children_names.0"], "z", "in_tree", ""),
    "shape that does not parse": ("symbolic_batch", [f"{a}.0.shape.0" for a in AVALS], "(", "shape|avals", ""),
    "name that is not UTF-8": ("sin", ["function_name"], b"\xff\xfe\xfd", "function_name|fun_name", ""),
    "platform that is not UTF-8": ("sin", ["platforms.0"], b"\xff\xfe\xfd", "platforms", ""),
    "more avals than shardings": ("fifty_arguments", ["in_shardings_idxs"], 3, "in_shardings|in_avals", ""),
    "vector longer than the buffer": ("sin", ["mlir_module_serialized"], 2**31, "", ""),
    "string longer than the buffer": ("sin", ["function_name"], 2**30, "", ""),
    "offset out of the buffer": ("sin", ["in_tree@"], 2**30, "", ""),
}  # fmt: skip


@each("what", UNKNOWN)
def test_unknown_value(what: str) -> None:
    case, paths, value, where, found = UNKNOWN[what]
    blob = jax_blob(case)
    jaxexp.deserialize(blob)
    for path in paths:
        wire.write(blob, path, value)
    with pytest.raises(DeserializationError) as error:
        jaxexp.deserialize(bytes(blob))
    assert re.search(where, error.value.path), error.value
    assert found in error.value.found, error.value
    assert error.value.path in str(error.value)
    assert "\n" not in str(error.value), "a sentence"
    assert len(str(error.value)) < 400
    try:
        jax_export.deserialize(blob)
    except (TypeError, NotImplementedError) as theirs:
        assert isinstance(error.value, type(theirs))
    except Exception:
        pass  # a ValueError, which ours is, or an accident such as KeyError


@each("field", ["in_tree", "out_tree", "platforms", "function_name", "mlir_module_serialized"])
def test_required_field_missing(field: str) -> None:
    blob = jax_blob("sin")
    wire.remove(blob, field)
    with pytest.raises(DeserializationError, match=field):
        jaxexp.deserialize(bytes(blob))


def test_error_inside_the_vjp() -> None:
    """All of the chain is checked on reading, and the path says where."""
    for path in ("vjp", "vjp.vjp"):
        blob = jax_blob("sin", vjp_order=2)
        wire.write(blob, f"{path}.unique_avals.0.memory_space", 99)
        with pytest.raises(DeserializationError) as error:
            jaxexp.deserialize(bytes(blob))
        assert error.value.path.startswith(path)
    # What the dtype is may be known as late as somebody asks; that the primal has another one is known at once.
    blob = jax_blob("sin", vjp_order=1)
    for values in ("unique_avals", "in_avals", "out_avals"):
        for i in range(wire.length(blob, f"vjp.{values}")):
            wire.write(blob, f"vjp.{values}.{i}.dtype", 99)
    with pytest.raises(DeserializationError, match=r"at vjp\..*found .*99"):
        jaxexp.deserialize(bytes(blob))


def test_unknown_effect() -> None:
    blob = jax_blob("ordered_effect")
    name = wire.read(blob, "ordered_effects.0.type_name")
    assert name == str(type(EFFECTS["first"])) == "<class 'corpus.FirstOrderedEffect'>"
    wire.write(blob, "ordered_effects.0.type_name", name.replace("First", "Thrsd"))
    error = raises_alike(lambda library: library.deserialize(blob), match="Thrsd")
    assert error.path == "ordered_effects[0]"
    assert isinstance(error, DeserializationError)
    assert isinstance(error, NotImplementedError)


def test_effect_type_without_nullary_constructor() -> None:
    """The bytes name a known effect type that cannot be made from its name alone."""
    name = str(type(EFFECTS["argument"]))
    # Nobody writes such an artifact but through an effect type that prints as another one.
    meta = type("Meta", (type,), {"__repr__": lambda cls: name})
    pretender = meta("Pretender", (type(EFFECTS["unordered"]),), {})
    exported = jaxexp.export(jax.jit(jnp.sin))(arr(2))
    blob = dataclasses.replace(exported, unordered_effects=(pretender(),)).serialize()
    assert wire.read(blob, "unordered_effects.0.type_name") == name
    error = raises_alike(lambda library: library.deserialize(blob), match="EffectWithArgument")
    assert isinstance(error, NotImplementedError)


BLOCKS = 80
SIZE, KEY = b"4711", b"kernel_of_it"


@functools.cache
def artifact() -> bytes:
    shapes = {"bias": (3,), KEY.decode(): (int(SIZE), 2)}
    block = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    params = {f"block_{i:03}": block for i in range(BLOCKS)}
    exported = jax.export.export(jax.jit(lambda params: jax.tree.map(jnp.sin, params)))(params)
    return bytes(exported.serialize())


def damaged(text: bytes, other: bytes) -> Iterator[str]:
    written = len(text).to_bytes(4, "little") + text + b"\0"
    other = written[:4] + other
    assert len(other) == len(written)
    for found in re.finditer(re.escape(written), artifact()):
        blob = artifact()[: found.start()] + other + artifact()[found.end() :]
        with pytest.raises(DeserializationError) as caught:
            jaxexp.deserialize(blob)
        yield str(caught.value)


@each(
    "text, other, message",
    [
        (SIZE, SIZE + b"!", "a zero-terminated string inside the buffer"),
        (SIZE, b"47\xff1\0", "expected UTF-8"),
        (SIZE, b"4712\0", "the aval that its index stands for"),
        (SIZE, b"47 1\0", "a dimension as JAX prints it"),
        (KEY, KEY + b"!", "a zero-terminated string inside the buffer"),
        (KEY, KEY[:-1] + b"\xff\0", "expected UTF-8"),
        (KEY, b"a" + KEY[1:] + b"\0", "keys in ascending order"),
    ],
)
def test_a_text_that_is_damaged_at_one_of_many_places(text: bytes, other: bytes, message: str) -> None:
    errors = list(damaged(text, other))
    if text == KEY:
        every = list(range(BLOCKS))
        expected, pattern = {r"in_tree\.children\[0\]\.children\[0\]": every, "out_tree": every}, r"\.children\[(\d+)\]"
    else:
        assert jaxexp.deserialize(artifact()).in_avals == jax.export.deserialize(bytearray(artifact())).in_avals
        odd, pattern = list(range(1, 2 * BLOCKS, 2)), r"\[(\d+)\]"
        # Where the distinct one is changed, the first copy is not its copy any more.
        expected = {"in_avals": sorted(odd + [1] * message.startswith("the aval")), "out_avals": odd}
    assert len(errors) == 2 * BLOCKS + (text == SIZE)  # and the aval that both lists have indices of
    for place, indices in expected.items():
        found = [match for error in errors if (match := re.search(rf"\b(?<!unique_){place}{pattern}", error))]
        assert sorted(int(match[1]) for match in found) == indices
        assert all(message in match.string for match in found)


def test_variables_named_by_digits_of_other_scripts() -> None:
    """They are digits for Python's `int`, and no names for Python."""
    for name in ("\u0663" * 2, "\u0663" * 4301):
        blob = of_values([aval(name)], [0])
        assert jaxexp.inspect(blob).arguments[0].shape == (name,)
        with pytest.raises(DeserializationError):
            jaxexp.deserialize(blob)


def test_a_target_that_is_not_utf8(tmp_path: Path) -> None:
    """jaxlib parses it, and cannot say it. A pass over many artifacts goes on."""
    x = np.eye(3, dtype=np.float32)
    blob = jaxexp.export(jax.jit(jnp.linalg.cholesky))(x).serialize(trailer=False)
    blob[blob.index(b"lapack_spotrf_ffi")] = 0xE8
    (tmp_path / "bad").write_bytes(blob)
    (tmp_path / "good").write_bytes(jaxexp.export(jax.jit(jnp.sin))(x).serialize())
    with pytest.raises(DeserializationError, match="UTF-8"):
        jaxexp.deserialize(blob).call(x)
    reports: dict[str, Any] = dict(jaxexp.compatibility_many([tmp_path / "bad", tmp_path / "good"]))
    bad, good = (reports[str(tmp_path / name)] for name in ("bad", "good"))
    assert "UTF-8" in bad.unreadable_here
    assert good.unreadable_here is None


TWO = """func.func public @main(%arg0: tensor<2xf32>, %arg1: tensor<2xf32>) -> tensor<2xf32> {
  return %arg0 : tensor<2xf32>
}"""
ONE = "func.func public @main(%arg0: {0}) -> {0} {{ return %arg0 : {0} }}"
OTHERS = [
    (ONE.replace("@main", "@other").format("tensor<2xf32>"), "main"),
    (TWO, "1 arguments"),
    ("func.func public @main() { return }", "1 arguments"),
    (
        "func.func public @main(%arg0: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) "
        "{ return %arg0, %arg0 : tensor<2xf32>, tensor<2xf32> }",
        "1 results",
    ),
    (ONE.format("tensor<3xf32>"), "in_avals"),
    (ONE.format("tensor<2x1xf32>"), "in_avals"),
    (ONE.format("tensor<2xi32>"), "in_avals"),
    (
        "func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xi32> "
        "{ %0 = stablehlo.convert %arg0 : (tensor<2xf32>) -> tensor<2xi32> return %0 : tensor<2xi32> }",
        "out_avals",
    ),
    (
        "func.func public @main(%arg0: !stablehlo.token) -> tensor<2xf32> "
        "{ %0 = stablehlo.constant dense<0.0> : tensor<2xf32> return %0 : tensor<2xf32> }",
        "in_avals",
    ),
]


def uses(exported: jaxexp.Exported, x: Any) -> list[Callable[[], object]]:
    shape = jax.ShapeDtypeStruct(np.shape(x), f32)
    return [
        lambda: exported.call(x),
        lambda: jax.jit(exported.call).lower(shape),
        lambda: jaxexp.export(jax.jit(exported.call))(shape),
        lambda: jaxexp.migrate(exported.serialize()),
        lambda: jaxexp.deserialize(exported.serialize(), policy=jaxexp.Policy()),
    ]


@each("text, found", OTHERS)
def test_the_module_of_another_function(text: str, found: str) -> None:
    exported = jaxexp.deserialize(with_module(f"module @jit_f {{ {text} }}"))
    for use in uses(exported, np.ones(2, f32)):
        with pytest.raises(DeserializationError, match=found) as error:
            use()
        assert error.value.path == "mlir_module_serialized"


def test_swapped_modules() -> None:
    names = ("sin", "dropped", "symbolic_batch", "multi_platform", "ordered_effect")
    exported = {name: export_with(jaxexp, CASES[name].build()) for name in names}
    policy = jaxexp.Policy(custom_calls=None, effects=None)
    for one, other in itertools.product(exported.values(), repeat=2):
        mixed = dataclasses.replace(one, mlir_module_serialized=other.mlir_module_serialized).serialize()
        if one is other:
            jaxexp.deserialize(mixed, policy=policy)
            continue
        with pytest.raises(DeserializationError, match="main function"):
            jaxexp.deserialize(mixed, policy=policy)


NEWER = jax.__version__.replace("0.1", "9.1", 1)  # of the same length


def written_case(name: str) -> bytearray:
    return bytearray(export_with(jaxexp, CASES[name].build()).serialize(trailer=False))


@each(
    "path",
    ["", "in_tree", "in_avals.0", "unique_avals.0", "in_shardings.0", "unique_named_shardings.0",
     "unique_named_shardings.0.spec", "unique_abstract_meshes.0"],
)  # fmt: skip
def test_unknown_slots_are_ignored(path: str) -> None:
    blob = written_case("sharded_2d")
    expected = jaxexp.deserialize(bytes(blob))
    table = wire.locate(blob, path)[0] if path else wire._u32(blob, 0)
    slots = [slot for slot in range(len(wire.LAYOUT["Exported"])) if wire._field(blob, table, slot) is not None]
    wire.add_slot(blob, path, value_of=slots[0])
    found = jaxexp.deserialize(blob)
    assert found == expected
    assert_same_fields(found, jax_export.deserialize(blob))  # which ignores them too
    assert jaxexp.compatibility(blob).unreadable_here is None


UNKNOWN_DTYPE = r"at in_avals\[0\]\.dtype: expected a dtype \(0 to 29, or a registered one\)"


@each(
    "path, number, expected",
    [
        *(("in_avals.0.dtype", number, UNKNOWN_DTYPE) for number in (77, -1)),
        ("in_tree.kind", 9, r"at in_tree\.kind: expected a kind of tree node \(0 to 5\)"),
        ("in_avals.0.memory_space", 8, r"\.memory_space: expected a memory space \(0 to 3\)"),
        ("unique_abstract_meshes.0.axis_types.0", 5, r"\.axis_types\[0\]: expected a type of mesh axis \(1 to 3\)"),
    ],
)
def test_unknown_numbers_are_named(path: str, number: int, expected: str) -> None:
    blob, is_dtype = written_case("sharded_2d"), path.endswith("dtype")
    if path.startswith("in_avals"):  # also where newer readers look
        wire.write(blob, path.replace("in_avals", "unique_avals"), number)
        expected = expected.replace(r"in_avals\[0\]", r"\w+_avals\[\d\]")
    wire.write(blob, path, number)
    if is_dtype:
        report = jaxexp.compatibility(blob)
        assert f"number {number}" in report.dtypes
        assert report.readers == ()
        assert f"found {number}, which is unknown here" in (report.unreadable_here or "")
    found = f", found {number}, which is unknown here: the artifact was written by JAX"
    with pytest.raises(DeserializationError, match=f"{expected}{found} {jax.__version__}; read it with"):
        jaxexp.deserialize(blob)
    wire.write(blob, "jax_version", NEWER)
    with pytest.raises(DeserializationError, match=f"{found} {NEWER}; read it with a jaxexp that knows it"):
        jaxexp.deserialize(blob) if is_dtype else jaxexp.compatibility(blob)
    wire.remove(blob, "jax_version")
    with pytest.raises(DeserializationError, match="damaged, or was written by a newer JAX or jaxexp"):
        jaxexp.deserialize(blob)


def test_an_unknown_kind_of_sharding() -> None:
    blob = bytearray(blob_of("0.4.30", "sharded"))
    wire.write(blob, "in_shardings.0.kind", 6)
    with pytest.raises(DeserializationError, match=r"kind of sharding \(0 to 2\), found 6, which is unknown"):
        jaxexp.deserialize(blob)


def test_a_module_that_is_too_new() -> None:
    blob = for_version(written_case("sin"), "1.99.0", "sine_v2")
    exported = jaxexp.deserialize(blob)
    assert exported.fun_name == "sin"  # the signature is readable
    installed = table.release(jax.__version__)
    message = (
        rf"at mlir_module_serialized: expected a module that JAX {installed.version} reads, "
        rf"for StableHLO up to {installed.stablehlo}, "
        r"found one for StableHLO 1\.99\.0, which needs a JAX that is newer than this jaxexp"
    )
    args = CASES["sin"].build().args
    for use in (exported.mlir_module, lambda: exported.call(*args), lambda: jaxexp.migrate(blob)):
        with pytest.raises(DeserializationError, match=message) as raised:
            use()
        assert isinstance(raised.value, RuntimeError)  # as in jax.export
    report = jaxexp.compatibility(blob)
    assert report.loaded_here
    assert "1.99.0" in (report.unreadable_here or "")
    assert report.custom_calls is None
    assert f"not known: JAX {jax.__version__} does not read the module" in str(report)
    assert "damaged" not in str(report)


def test_errors_of_calls_name_the_file(tmp_path: Path) -> None:
    blob = for_version(written_case("sin"), "1.99.0", "sine_v2")
    path, archive = tmp_path / "new.jaxexp", tmp_path / "new.zip"
    path.write_bytes(blob)
    with jaxexp.Archive.create(archive) as writer:
        writer.add("sin", bytes(blob))
    member = f"{archive}::sin"
    for exported, name in (
        (jaxexp.load(path), str(path)),
        (jaxexp.load(member), member),
        (jaxexp.Archive.open(archive)["sin"].load(), member),
        (jaxexp.deserialize(blob), None),  # equal to the others, whose compiled code it shares
    ):
        with pytest.raises(DeserializationError) as raised:
            exported.call(*CASES["sin"].build().args)
        assert raised.value.file == name


def test_a_module_that_only_claims_to_be_newer() -> None:
    """Each release reads what it knows all operations of."""
    blob = for_version(written_case("sin"), "1.99.0")
    args = CASES["sin"].build().args
    assert (jaxexp.deserialize(blob).call(*args) == jaxexp.deserialize(written_case("sin")).call(*args)).all()


@each("results, wrong", [("2*abc", None), ("2*uvw", "uvw"), ("mod(abc + xyz, 2) + 1", "xyz"), ("max(2, abc)", None)])
def test_results_have_the_variables_of_arguments(results: str, wrong: str | None) -> None:
    """Inside of operations, too; every door refuses others."""
    (abc,) = jaxexp.symbolic_shape("abc")
    exported = jaxexp.export(jax.jit(lambda x: jnp.concatenate([x, x])))(jax.ShapeDtypeStruct((abc,), f32))
    name = "abc" if wrong is None else wrong
    scope = jaxexp.SymbolicScope()
    (shape,) = (jaxexp.symbolic_shape(results, scope=scope),)
    changed = dataclasses.replace(exported, out_avals=(jax.core.ShapedArray(shape, f32),))
    blob = bytes(jax_export.Exported.serialize(changed.to_jax()))
    if wrong is None:
        assert str(jaxexp.deserialize(blob).out_avals[0].shape[0]) == results
        return
    for door in (jaxexp.deserialize, jaxexp.inspect, jaxexp.verify):
        with pytest.raises(DeserializationError, match=rf"expected dimension variables .* found '{name}'") as error:
            door(blob)
        assert error.value.path == "out_avals[0].shape[0]"
