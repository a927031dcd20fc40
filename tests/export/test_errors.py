"""Bad input of every kind: one ExportError each, which is also what jax.export raises for the same mistake."""

from __future__ import annotations

import collections
import dataclasses
import errno
import functools
import gzip
import io
import os
import pickle
import random
import re
import struct
import subprocess
import sys
import zipfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from kit import wire
from kit.alike import LIBRARIES, raises_alike, reload
from kit.corpus import CASES, EFFECTS, Tagged, arr, export_with, f32, spec, touch


def jax_blob(name: str, vjp_order: int = 0) -> bytearray:
    """A case as jax.export writes it: damage to it does not depend on how jaxexp lays tables out."""
    if name == "two_meshes":
        theirs = export_with(jax_export, CASES["sharded_1d"].build())
        first, second = (AbstractMesh((8,), (axis,), axis_types=(AxisType.Auto,)) for axis in "xy")
        shardings = NamedSharding(first, P("x")), NamedSharding(second, P("y"))
        return bytearray(dataclasses.replace(theirs, _in_named_shardings=shardings).serialize())
    case = CASES[name]
    with case.context():
        return bytearray(export_with(jax_export, case.build()).serialize(vjp_order=vjp_order))


# --- exporting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "not_jitted", [lambda x: x, Tagged, 3, None, "f"], ids=["lambda", "class", "int", "None", "str"]
)
def test_not_jitted(not_jitted) -> None:
    raises_alike(lambda library: library.export(not_jitted)(f32(1)), match="jit")


def test_unstable_custom_call() -> None:
    fun = jax.jit(lambda x: jax.ffi.ffi_call("target_nobody_knows", jax.ShapeDtypeStruct((2,), f32))(x))
    raises_alike(lambda library: library.export(fun)(arr(2)), match="target_nobody_knows")

    def with_another_allowed(library):
        return library.export(fun, disabled_checks=[library.DisabledSafetyCheck.custom_call("other")])(arr(2))

    raises_alike(with_another_allowed, match="target_nobody_knows")
    for target in ("target_nobody_knows", "ALL"):  # ALL lifts the check for every target, as in jax.export
        for library in LIBRARIES.values():
            library.export(fun, disabled_checks=[library.DisabledSafetyCheck.custom_call(target)])(arr(2))


def test_several_symbolic_scopes() -> None:
    (a,), (b,) = jax_export.symbolic_shape("a"), jax_export.symbolic_shape("b")
    fun = jax.jit(lambda x, y: (x, y))
    raises_alike(lambda library: library.export(fun)(spec((a,)), spec((b,))), match="scope")
    nested = jax.jit(lambda d, *, k: (d, k))
    raises_alike(lambda library: library.export(nested)({"p": spec((a,))}, k=spec((b,))), match="'p'.*k|k.*'p'")


@pytest.mark.parametrize(
    "callback",
    [
        lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
        lambda x: jax.experimental.io_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True),
        lambda x: (jax.debug.print("{x}", x=x), x)[1],
    ],
    ids=["pure_callback", "io_callback", "debug_print"],
)
def test_host_callbacks(callback) -> None:
    import jax.experimental

    error = raises_alike(lambda library: library.export(jax.jit(callback))(arr(2)), match="callback")
    assert isinstance(error, NotImplementedError)


@pytest.fixture
def calling_convention():
    name = "jax_export_calling_convention_version"
    before = getattr(jax.config, name)
    yield lambda version: jax.config.update(name, version)
    jax.config.update(name, before)


@pytest.mark.parametrize("version", [0, 8, 11])
def test_calling_convention_out_of_range(calling_convention, version: int) -> None:
    calling_convention(version)
    raises_alike(lambda library: library.export(jax.jit(jnp.sin))(arr(2)), match=f"{version}.*9.*10")


@pytest.mark.parametrize("version", [9, 10])
def test_calling_convention_in_range(calling_convention, version: int) -> None:
    calling_convention(version)
    exported = jaxexp.export(jax.jit(jnp.sin))(arr(2))
    assert exported.calling_convention_version == version
    assert reload(jax_export, exported).calling_convention_version == version
    np.testing.assert_allclose(reload(jaxexp, exported).call(arr(2)), np.sin(arr(2)), rtol=1e-6)


def test_wrong_arguments_of_the_function_itself() -> None:
    """Errors of the function being traced are the user's own and pass through."""

    @jax.jit
    def broken(x):
        raise LookupError("mine")

    for library in LIBRARIES.values():
        with pytest.raises(LookupError, match="mine"):
            library.export(broken)(arr(2))
        with pytest.raises(TypeError):
            library.export(jax.jit(lambda x: x))(arr(2), arr(2))


# --- calling --------------------------------------------------------------------------------------------------------


def _function(library: Any) -> Any:
    """float32[a, 2], {"k": float32[2*a], "n": int32[]}, scale=float32[] -> float32[a, 2]."""
    (a,) = library.symbolic_shape("a")
    fun = jax.jit(lambda x, d, *, scale: x * d["n"] * scale + d["k"].sum())
    specs = spec((a, 2)), {"k": spec((2 * a,)), "n": spec((), np.int32)}
    return reload(library, library.export(fun)(*specs, scale=spec(())))


X, K, N = arr(3, 2), arr(6), np.int32(2)
WRONG_CALLS = {
    "argument missing": ((X,), {"scale": f32(1)}, ""),
    "argument too many": ((X, {"k": K, "n": N}, X), {"scale": f32(1)}, ""),
    "keyword missing": ((X, {"k": K, "n": N}), {}, "scale"),
    "keyword too many": ((X, {"k": K, "n": N}), {"scale": f32(1), "other": X}, "other"),
    "keyword by position": ((X, {"k": K, "n": N}, f32(1)), {}, ""),
    "tree kind": ((X, [K, N]), {"scale": f32(1)}, "list"),
    "tree key": ((X, {"k": K, "m": N}), {"scale": f32(1)}, "m"),
    "tree leaf": ((X, {"k": (K, K), "n": N}), {"scale": f32(1)}, "tuple"),
    "none": ((None, {"k": K, "n": N}), {"scale": f32(1)}, "None"),
    "rank": ((X[0], {"k": K, "n": N}), {"scale": f32(1)}, "2.*1"),
    "rank of scalar": ((X, {"k": K, "n": N}), {"scale": f32([1])}, "0.*1"),
    "constant dimension": ((arr(3, 4), {"k": K, "n": N}), {"scale": f32(1)}, "2.*4"),
    "indivisible dimension": ((X, {"k": arr(7), "n": N}), {"scale": f32(1)}, "7"),
    "inconsistent dimension": ((X, {"k": arr(8), "n": N}), {"scale": f32(1)}, "8"),
    "dtype": ((X.astype(np.int32), {"k": K, "n": N}), {"scale": f32(1)}, "float32.*int32|int32.*float32"),
    "dtype in tree": ((X, {"k": K, "n": f32(2)}), {"scale": f32(1)}, "int32"),
    "weak dtype": ((X, {"k": K, "n": 2.0}), {"scale": f32(1)}, "int32"),
    "zero-size dimension": ((arr(0, 2), {"k": arr(0), "n": N}), {"scale": f32(1)}, "0"),
}


@pytest.mark.parametrize("how", ["eager", "jit", "grad"])
@pytest.mark.parametrize("mistake", WRONG_CALLS)
def test_wrong_call(mistake: str, how: str) -> None:
    args, kwargs, match = WRONG_CALLS[mistake]

    def provoke(library):
        call = _function(library).call
        if how == "jit":
            call = jax.jit(call)
        if how == "grad":
            return jax.vjp(lambda a, k: call(*a, **k), args, kwargs)
        return call(*args, **kwargs)

    raises_alike(provoke, match=match)


def test_right_call() -> None:
    """What the wrong calls above are wrong about."""
    for library in LIBRARIES.values():
        found = _function(library).call(X, {"k": K, "n": N}, scale=f32(1))
        np.testing.assert_allclose(found, X * 2 + K.sum(), rtol=1e-6)


def test_wrong_call_after_a_right_one() -> None:
    """The way that repeated calls take must check as much as the first one."""
    loaded = _function(jaxexp)
    for _ in range(2):
        loaded.call(X, {"k": K, "n": N}, scale=f32(1))
        for args, kwargs, _match in WRONG_CALLS.values():
            with pytest.raises(jaxexp.ExportError):
                loaded.call(*args, **kwargs)


def test_errors_name_the_argument() -> None:
    for mistake, where in {"dtype in tree": r"\[1\]\['n'\]|d\['n'\]|'n'", "rank of scalar": "scale"}.items():
        args, kwargs, _ = WRONG_CALLS[mistake]
        with pytest.raises(jaxexp.ExportError, match=where):
            _function(jaxexp).call(*args, **kwargs)


def test_constraint_violated() -> None:
    def provoke(library):
        (a,) = library.symbolic_shape("a", constraints=["a >= 4"])
        library.export(jax.jit(lambda x: x))(spec((a,))).call(arr(3))

    raises_alike(provoke, match="4.*3|3.*4")


@pytest.mark.parametrize("argument", ["text", object(), [1, "x"]], ids=["str", "object", "list"])
def test_argument_is_no_array(argument) -> None:
    for library in LIBRARIES.values():
        loaded = reload(library, library.export(jax.jit(lambda x: x))(arr(2)))
        with pytest.raises((TypeError, ValueError)):
            loaded.call(argument)


@pytest.mark.parametrize("how", ["eager", "jit"])
def test_wrong_platform(how: str) -> None:
    def provoke(library):
        loaded = reload(library, library.export(jax.jit(jnp.cos), platforms=("tpu", "rocm"))(arr(2)))
        (jax.jit(loaded.call) if how == "jit" else loaded.call)(arr(2))

    raises_alike(provoke, match="tpu.*cpu|cpu.*tpu")


def test_wrong_platform_among_several() -> None:
    """A function lowered for two platforms may only call what covers both."""

    def provoke(library):
        inner = library.export(jax.jit(jnp.cos), platforms=("cpu",))(arr(2))
        library.export(jax.jit(lambda x: inner.call(x)), platforms=("cpu", "tpu"))(arr(2))

    raises_alike(provoke, match="tpu")


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("devices", [1, 4])
def test_wrong_device_count(how: str, devices: int) -> None:
    p = CASES["sharded_1d"].build()
    args = [np.asarray(a) for a in p.args]
    if devices > 1:
        m = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices], axis_types=(AxisType.Auto,))
        args = [jax.device_put(a, NamedSharding(m, P("x"))) for a in args]

    def provoke(library):
        loaded = reload(library, export_with(library, p))
        (jax.jit(loaded.call) if how == "jit" else loaded.call)(*args)

    raises_alike(provoke, match=f"8 devices.*{devices}|{devices}.*8")


# --- derivatives ----------------------------------------------------------------------------------------------------


def _loaded_sin(library: Any, vjp_order: int) -> Any:
    return reload(library, library.export(jax.jit(jnp.sin))(f32(0)), vjp_order)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_missing_vjp(order: int) -> None:
    """Derivatives up to the order that was written work; the next one is an error."""

    def provoke(library):
        fun = _loaded_sin(library, order).call
        for _ in range(order):
            fun = jax.grad(fun)
        assert abs(float(fun(f32(1))) - [np.sin, np.cos, lambda x: -np.sin(x)][order](1)) < 1e-5
        jax.grad(fun)(f32(1))

    raises_alike(provoke, match=r"(?i)vjp")

    def ask(library):
        link = _loaded_sin(library, order)
        for _ in range(order):
            link = link.vjp()
        assert not link.has_vjp()
        link.vjp()

    raises_alike(ask, match=r"(?i)vjp")


@pytest.mark.parametrize("order", [1, 2])
def test_serialize_without_vjp(order: int) -> None:
    raises_alike(lambda library: _loaded_sin(library, order - 1).serialize(vjp_order=order), match=r"(?i)vjp")


def test_save_without_vjp(tmp_path) -> None:
    with pytest.raises(jaxexp.ExportError, match=r"(?i)vjp"):
        _loaded_sin(jaxexp, 0).save(tmp_path / "f", vjp_order=1)
    assert list(tmp_path.iterdir()) == []


# --- serializing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["argument", "unequal"])
def test_unserializable_effect(effect: str) -> None:
    fun = jax.jit(lambda x: touch(x, effect))
    name = {"argument": "EffectWithArgument", "unequal": "UnequalEffect"}[effect]
    error = raises_alike(lambda library: library.export(fun)(arr(2)).serialize(), match=name)
    assert isinstance(error, NotImplementedError)
    assert isinstance(error, jaxexp.SerializationError)


def test_unregistered_pytree_type() -> None:
    @jax.tree_util.register_pytree_node_class
    class Unregistered(Tagged):
        pass

    fun = jax.jit(lambda x: Unregistered(x, x, ("", 0)).left)
    node = Unregistered(arr(2), arr(2), ("", 0))
    for tree in (node, {"a": [node]}):
        exports = {library: library.export(jax.jit(lambda t: t))(tree) for library in LIBRARIES.values()}
        error = raises_alike(lambda library, exports=exports: exports[library].serialize(), match="Unregistered")
        assert isinstance(error, jaxexp.SerializationError)
    assert jaxexp.export(fun)(arr(2)).serialize(), "inside the function any type will do"


def test_unregistered_namedtuple() -> None:
    pair = collections.namedtuple("LonelyPair", "a b")
    raises_alike(
        lambda library: library.export(jax.jit(lambda t: t.a))(pair(arr(2), arr(2))).serialize(), match="LonelyPair"
    )


def test_unknown_disabled_check() -> None:
    theirs = dataclasses.replace(
        jax_export.export(jax.jit(jnp.sin))(arr(2)), disabled_safety_checks=(jax_export.DisabledSafetyCheck("odd"),)
    )
    raises_alike(
        lambda library: (theirs if library is jax_export else jaxexp.Exported.from_jax(theirs)).serialize(), match="odd"
    )


def test_what_the_format_cannot_hold() -> None:
    """Limits of the format; jax.export fails in its own ways, often late, so only the ExportError is asserted."""
    m = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
    changes = {
        "module_kept_var_idx": ((70_000,), "65535|70000"),
        "fun_name": ("\ud800", "fun_name|surrogate|UTF-8|utf-8"),
        "_in_named_shardings": ((NamedSharding(m, P(P.UNCONSTRAINED)),), "(?i)unconstrained"),
        "nr_devices": (2**32, "nr_devices|4294967296"),
        "platforms": (("cpu", 3), "platforms|3"),
    }
    for name, (value, match) in changes.items():
        exported = dataclasses.replace(jaxexp.export(jax.jit(jnp.sin))(arr(2)), **{name: value})
        with pytest.raises(jaxexp.SerializationError, match=match):
            exported.serialize()


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
    "text": "text", "three bytes": "text", "json": "text", "png": "image", "zip": "zip archive", "npy": "NumPy array",
    "pickle": "pickle", "gzip": "gzip", "stablehlo": "StableHLO", "zeros": "", "ones": "", "one byte": "1 bytes",
    "empty": "0 bytes",
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


def test_load_names_the_file(tmp_path) -> None:
    """Also for what is wrong deep inside, and however the path is given."""
    blob = jax_blob("sin")
    for field in ("unique_avals", "in_avals", "out_avals"):
        wire.write(blob, f"{field}.0.dtype", 99)
    path = tmp_path / "damaged"
    path.write_bytes(blob)
    for form in (path, str(path), bytes(path)):
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
    blob = jax_blob("custom_node")
    wire.write(blob, "in_tree.children.0.children.0.custom_name", "corpus.Nobody")

    def provoke(library):
        library.deserialize(blob)

    error = raises_alike(provoke, match=r"corpus\.Nobody")
    assert isinstance(error, jaxexp.DeserializationError)
    assert "register" in str(error)


def test_unknown_effect() -> None:
    blob = jax_blob("ordered_effect")
    name = wire.read(blob, "ordered_effects.0.type_name")
    assert name == str(type(CASES["ordered_effect"].build())).replace("Program", "FirstOrderedEffect")
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


# --- saving ---------------------------------------------------------------------------------------------------------


def test_save_fails_before_writing(tmp_path) -> None:
    path = tmp_path / "f"
    jaxexp.export(jax.jit(jnp.sin))(arr(2)).save(path)
    before = path.read_bytes()
    with pytest.raises(jaxexp.SerializationError):
        jaxexp.export(jax.jit(lambda x: touch(x, "unequal")))(arr(2)).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_save_fails_in_the_middle(tmp_path, subprocess_env) -> None:
    """The system lets the child write 1,000 bytes to a file: the old file stays, and no temporary one."""
    path = tmp_path / "f"
    jaxexp.export(jax.jit(jnp.sin))(arr(2)).save(path)
    before = path.read_bytes()
    code = f"""
import resource, dataclasses, jaxexp
f = jaxexp.load({str(path)!r})
big = dataclasses.replace(f, mlir_module_serialized=bytes(100_000))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    big.save({str(path)!r})
except OSError as error:
    print(type(error).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=subprocess_env(), capture_output=True, text=True, check=False
    )
    assert done.stdout == "OSError\n", done.stderr
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_save_where_it_may_not(tmp_path, monkeypatch) -> None:
    def refuse(source, target):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), source, None, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError) as error:
        jaxexp.export(jax.jit(jnp.sin))(arr(2)).save(tmp_path / "f")
    assert (error.value.filename, error.value.filename2) == (str(tmp_path / "f"), None)
    assert list(tmp_path.iterdir()) == []


def test_save_where_it_cannot(tmp_path) -> None:
    """The errors name what the caller knows, not the temporary file."""
    exported = jaxexp.export(jax.jit(jnp.sin))(arr(2))
    with pytest.raises(FileNotFoundError) as missing:
        exported.save(tmp_path / "missing" / "f")
    assert missing.value.errno == errno.ENOENT
    assert missing.value.filename == str(tmp_path / "missing")
    assert ".tmp" not in str(missing.value)
    (tmp_path / "directory").mkdir()
    with pytest.raises(OSError) as directory:
        exported.save(tmp_path / "directory")
    assert ".tmp" not in str(directory.value)
    assert str(tmp_path / "directory") in str(directory.value)
    assert [p.name for p in tmp_path.iterdir()] == ["directory"]
    assert list((tmp_path / "directory").iterdir()) == []


# --- the classes themselves -----------------------------------------------------------------------------------------


def test_hierarchy() -> None:
    assert issubclass(jaxexp.ExportError, ValueError)
    assert issubclass(jaxexp.DeserializationError, jaxexp.ExportError)
    assert issubclass(jaxexp.SerializationError, jaxexp.ExportError)
    error = jaxexp.DeserializationError("in_avals[3].dtype", "a number below 30", "99")
    assert (error.path, error.expected, error.found) == ("in_avals[3].dtype", "a number below 30", "99")
    for part in (error.path, error.expected, error.found):
        assert part in str(error)


def test_messages_are_one_clear_sentence() -> None:
    """No stack of nested causes to read: the message says what was expected and found, and where."""
    blob = jax_blob("sin")
    for path in ("unique_avals.0.dtype", "in_avals.0.dtype", "out_avals.0.dtype"):
        wire.write(blob, path, 99)
    with pytest.raises(jaxexp.DeserializationError) as error:
        jaxexp.deserialize(blob)
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 300


@pytest.mark.parametrize("checks", [[42], "ALL", ["platform"]], ids=["int", "str", "list of str"])
def test_disabled_checks_of_another_kind(checks) -> None:
    with pytest.raises(jaxexp.ExportError, match="DisabledSafetyCheck") as error:
        jaxexp.export(jax.jit(jnp.sin), disabled_checks=checks)(f32(1))
    assert isinstance(error.value, TypeError)


def test_dimensions_that_do_not_follow_from_shapes() -> None:
    a, b = jaxexp.symbolic_shape("a, b")
    x = jax.ShapeDtypeStruct((a * b,), f32)
    raises_alike(lambda library: library.export(jax.jit(jnp.sin))(x), match="a\\*b")
