"""Artifacts that were changed to something no reader knows: refused, with the path to what is wrong."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import io
import os
import pickle
import random
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from kit import wire
from kit.alike import LIBRARIES, raises_alike
from kit.corpus import CASES, EFFECTS, arr, export_with
from kit.damaged import jax_blob

# --- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vjp_order", [0, 1])
@pytest.mark.parametrize("library", LIBRARIES)
def test_truncated(library: str, vjp_order: int) -> None:
    """Every prefix is refused, but for the few bytes of padding that may end a buffer."""
    exported = export_with(LIBRARIES[library], CASES["namedtuples"].build())
    blob = bytes(exported.serialize(vjp_order=vjp_order))
    for end in [*range(len(blob) - 8), len(blob) // 2]:
        with pytest.raises(jaxexp.DeserializationError):
            jaxexp.deserialize(blob[:end])


@functools.cache
def _foreign() -> dict[str, bytes]:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a", "text" * 99)
    array = io.BytesIO()
    np.save(array, np.arange(99))
    return {
        "empty": b"",
        "one byte": b"\0",
        "three bytes": b"abc",
        "zeros": bytes(1000),
        "ones": b"\xff" * 1000,
        "text": b"This is no artifact. " * 50,
        "json": b'{"fun_name": "f", "platforms": ["cpu"]}' * 9,
        "png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(200),
        "zip": archive.getvalue(),
        "npy": array.getvalue(),
        "pickle": pickle.dumps({"fun_name": ["f"] * 99}),
        "gzip": gzip.compress(bytes(range(256))),
        "stablehlo": jax_export.export(jax.jit(jnp.sin))(arr(2)).mlir_module_serialized,
        "root table without fields": b"\x08\0\0\0\x04\0\x04\0\x04\0\0\0",
        "root points to itself": b"\0\0\0\0\0\0\0\0",
    }


@pytest.mark.parametrize("name", _foreign())
def test_foreign_bytes(name: str, tmp_path) -> None:
    data = _foreign()[name]
    with pytest.raises(jaxexp.DeserializationError) as error:
        jaxexp.deserialize(data)
    assert isinstance(error.value, ValueError)
    assert error.value.expected
    assert error.value.found
    assert error.value.expected in str(error.value)
    assert error.value.found in str(error.value)
    assert error.value.file is None
    if name != "root table without fields":  # which is an artifact that lacks everything
        assert error.value.expected == "a serialized Exported"
    path = tmp_path / "f.bin"
    path.write_bytes(data)
    with pytest.raises(jaxexp.DeserializationError) as from_file:
        jaxexp.load(path)
    assert from_file.value.file == str(path)
    assert repr(str(path)) in str(from_file.value)
    assert from_file.value.expected == error.value.expected


KINDS = {
    "text": "text", "three bytes": "text", "json": "text", "png": "image", "zip": "zip archive",
    "npy": "NumPy's file of arrays", "pickle": "pickle", "gzip": "gzip", "stablehlo": "StableHLO", "zeros": "",
    "ones": "", "one byte": "1 bytes", "empty": "0 bytes",
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_foreign_bytes_are_called_by_their_name(name: str) -> None:
    with pytest.raises(jaxexp.DeserializationError) as error:
        jaxexp.deserialize(_foreign()[name])
    assert error.value.path == ""
    assert KINDS[name] in error.value.found
    if not KINDS[name]:
        assert "what looks like" not in error.value.found


@pytest.mark.parametrize("library", LIBRARIES)
def test_truncated_artifacts_look_like_nothing_else(library: str) -> None:
    blob = bytes(export_with(LIBRARIES[library], CASES["namedtuples"].build()).serialize())
    for end in range(12, len(blob) - 8):
        with pytest.raises(jaxexp.DeserializationError) as error:
            jaxexp.deserialize(blob[:end])
        assert "looks like" not in error.value.found


class PathOfBytes(os.PathLike):
    """As `os.scandir` gives them for a folder whose name is bytes. Bytes themselves are an artifact."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> bytes:
        return bytes(self._path)


def test_load_names_the_file(tmp_path) -> None:
    """Also for what is wrong deep inside, and however the path is given."""
    blob = jax_blob("sin")
    for field in ("unique_avals", "in_avals", "out_avals"):
        wire.write(blob, f"{field}.0.dtype", 99)
    path = tmp_path / "damaged"
    path.write_bytes(blob)
    for form in (path, str(path), PathOfBytes(path)):
        with pytest.raises(jaxexp.DeserializationError) as error:
            jaxexp.load(form)
        assert error.value.file == str(path)
        assert str(error.value).startswith(f"cannot read the artifact {str(path)!r}: at ")
        assert error.value.path.endswith(".dtype")
        copied = pickle.loads(pickle.dumps(error.value))
        assert (str(copied), copied.file) == (str(error.value), error.value.file)
    with pytest.raises(FileNotFoundError, match="absent"):
        jaxexp.load(tmp_path / "absent")
    (tmp_path / "empty").touch()
    with pytest.raises(jaxexp.DeserializationError, match="empty file"):
        jaxexp.load(tmp_path / "empty")


@pytest.mark.parametrize(
    "read",
    [
        jaxexp.load,
        jaxexp.verify,
        lambda path: jaxexp.load(path, policy=jaxexp.Policy()),
        lambda path: jaxexp.load_many([path])[0],
        lambda path: raise_(jaxexp.verify_many([path])[str(path)]),
    ],
    ids=["load", "verify", "policy", "load_many", "verify_many"],
)
def test_files_that_are_too_large(read: Callable[[Path], object], tmp_path: Path) -> None:
    """This one takes no room here, and would take all of the memory."""
    path = tmp_path / "large.jaxexp"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(jaxexp.DeserializationError, match="expected an artifact of at most 4 GiB, found a file of 1"):
        read(path)


def raise_(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("size", [0, 2, 3, 5, 0xFFFE])
def test_impossible_vtable(size: int) -> None:
    """The slots of a table's vtable begin behind four bytes, which belong to its size."""
    blob = jax_blob("sin")
    table = struct.unpack_from("<I", blob, 0)[0]
    vtable = table - struct.unpack_from("<i", blob, table)[0]
    struct.pack_into("<H", blob, vtable, size)
    with pytest.raises(jaxexp.DeserializationError, match=r"root table is damaged.*a table inside the buffer"):
        jaxexp.deserialize(bytes(blob))


def test_field_beyond_the_end() -> None:
    blob = jax_blob("sin")
    table = struct.unpack_from("<I", blob, 0)[0]
    vtable = table - struct.unpack_from("<i", blob, table)[0]
    nr_devices = vtable + 4 + 2 * wire.LAYOUT["Exported"]["nr_devices"][0]
    assert struct.unpack_from("<H", blob, nr_devices)[0] != 0
    struct.pack_into("<H", blob, nr_devices, 0xFFFC)
    with pytest.raises(jaxexp.DeserializationError, match="nr_devices: expected a number inside the buffer"):
        jaxexp.deserialize(bytes(blob))
    struct.pack_into("<H", blob, nr_devices, 41)
    with pytest.raises(jaxexp.DeserializationError, match="nr_devices: expected a value at a multiple of its size"):
        jaxexp.deserialize(bytes(blob))


def test_random_bytes() -> None:
    source = random.Random(0)
    for _ in range(2000):
        with pytest.raises(jaxexp.DeserializationError):
            jaxexp.deserialize(source.randbytes(source.randrange(200)))


@pytest.mark.parametrize("not_bytes", [None, 3, "text", [1, 2], object()], ids=["None", "int", "str", "list", "object"])
def test_not_a_buffer(not_bytes) -> None:
    with pytest.raises(TypeError):
        jaxexp.deserialize(not_bytes)


def test_buffer_with_gaps() -> None:
    blob = jax_blob("sin")
    spread = bytearray(2 * len(blob))
    spread[::2] = blob
    with pytest.raises((jaxexp.ExportError, BufferError)):
        jaxexp.deserialize(memoryview(spread)[::2])


@pytest.mark.parametrize("case", ["symbolic_batch", "sharded_2d", "nested_containers"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_flipped_bits(library: str, case: str) -> None:
    """Damage anywhere gives an error or an artifact that says something else; never a crash or another exception."""
    source, original = (
        random.Random(case),
        bytes(export_with(LIBRARIES[library], CASES[case].build()).serialize(vjp_order=1)),
    )
    metadata = [i for i in range(len(original)) if original[i : i + 9] != original[:9]]
    refused = 0
    for _ in range(700):
        blob = bytearray(original)
        for _ in range(source.randrange(1, 4)):
            blob[source.choice(metadata)] ^= 1 << source.randrange(8)
        try:
            loaded = jaxexp.deserialize(bytes(blob))
            assert isinstance(loaded.mlir_module_serialized, bytes)
            _ = loaded.vjp() if loaded.has_vjp() else None
            hash(loaded)
        except jaxexp.ExportError:
            refused += 1
    assert refused > 10, "flips that are never noticed are no test"


# One value of an artifact changed to something no reader knows: the case, the paths of the value (wherever the two
# layouts, full and unique, hold it), the new value, and what the error's path and message must contain.
INNER = "in_tree.children.0.children.0"
AVALS = ("unique_avals", "in_avals", "out_avals")
UNKNOWN = {
    "dtype": ("sin", [f"{a}.0.dtype" for a in AVALS], 99, "dtype", "99"),
    "negative dtype": ("sin", [f"{a}.0.dtype" for a in AVALS], -3, "dtype", ""),
    "memory space": ("sin", [f"{a}.0.memory_space" for a in AVALS], 77, "memory_space", "77"),
    "tree kind": ("nested_containers", ["in_tree.kind"], 55, r"in_tree", "55"),
    "inner tree kind": ("nested_containers", [f"{INNER}.kind"], 42, r"in_tree\.children\[0\]\.children\[0\]", "42"),
    "axis type": ("sharded_2d", ["unique_abstract_meshes.0.axis_types.0"], 66, "axis_types", "66"),
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


@pytest.mark.parametrize("what", UNKNOWN)
def test_unknown_value(what: str) -> None:
    case, paths, value, where, found = UNKNOWN[what]
    blob = jax_blob(case)
    jaxexp.deserialize(blob)
    for path in paths:
        wire.write(blob, path, value)
    with pytest.raises(jaxexp.DeserializationError) as error:
        jaxexp.deserialize(bytes(blob))
    assert re.search(where, error.value.path), error.value
    assert found in error.value.found, error.value
    assert error.value.path in str(error.value)
    try:
        jax_export.deserialize(blob)
    except (TypeError, NotImplementedError) as theirs:
        assert isinstance(error.value, type(theirs))
    except Exception:
        pass  # a ValueError, which ours is, or an accident such as KeyError


@pytest.mark.parametrize("field", ["in_tree", "out_tree", "platforms", "function_name", "mlir_module_serialized"])
def test_required_field_missing(field: str) -> None:
    blob = jax_blob("sin")
    wire.remove(blob, field)
    with pytest.raises(jaxexp.DeserializationError, match=field):
        jaxexp.deserialize(bytes(blob))


def test_error_inside_the_vjp() -> None:
    """All of the chain is checked on reading, and the path says where."""
    for order in (1, 2):
        blob = jax_blob("sin", vjp_order=order)
        path = ".".join(["vjp"] * order)
        wire.write(blob, f"{path}.unique_avals.0.memory_space", 99)
        with pytest.raises(jaxexp.DeserializationError) as error:
            jaxexp.deserialize(bytes(blob))
        assert error.value.path.startswith(path)


def test_unknown_dtype_inside_the_vjp() -> None:
    """What the dtype is may be known as late as somebody asks; that the primal has another one is known at once."""
    blob = jax_blob("sin", vjp_order=1)
    for values in ("unique_avals", "in_avals", "out_avals"):
        for i in range(wire.length(blob, f"vjp.{values}")):
            wire.write(blob, f"vjp.{values}.{i}.dtype", 99)
    with pytest.raises(jaxexp.DeserializationError) as error:
        jaxexp.deserialize(bytes(blob))
    assert error.value.path.startswith("vjp.")
    assert "99" in error.value.found


def test_unknown_pytree_type() -> None:
    """jax.export refuses it; jaxexp reads it as a generic node."""
    blob = jax_blob("custom_node")
    wire.write(blob, "in_tree.children.0.children.0.custom_name", "corpus.Nobody")
    with pytest.raises(ValueError, match=r"corpus\.Nobody"):
        jax_export.deserialize(blob)
    assert "GenericNode[corpus.Nobody" in str(jaxexp.deserialize(blob).in_tree)


def test_unknown_effect() -> None:
    blob = jax_blob("ordered_effect")
    name = wire.read(blob, "ordered_effects.0.type_name")
    assert name == str(type(EFFECTS["first"])) == "<class 'corpus.FirstOrderedEffect'>"
    wire.write(blob, "ordered_effects.0.type_name", name.replace("First", "Thrsd"))
    error = raises_alike(lambda library: library.deserialize(blob), match="Thrsd")
    assert error.path == "ordered_effects[0]"
    assert isinstance(error, jaxexp.DeserializationError)
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


def test_module_is_damaged() -> None:
    """The module's bytes are opaque to the reader; what is wrong with them shows when the function is called."""
    exported = dataclasses.replace(jaxexp.export(jax.jit(jnp.sin))(arr(2)), mlir_module_serialized=b"no module at all")
    loaded = jaxexp.deserialize(exported.serialize())
    with pytest.raises(Exception):  # noqa: B017  (jaxlib's own error)
        loaded.call(arr(2))
    with pytest.raises(Exception):  # noqa: B017
        loaded.mlir_module()
