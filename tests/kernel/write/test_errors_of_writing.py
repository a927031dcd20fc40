"""Bad input to `serialize` and `save`: one ExportError each; and the classes of errors."""

from __future__ import annotations

import collections
import dataclasses
import errno
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export as jax_export
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from kit import wire
from kit.alike import LIBRARIES, raises_alike
from kit.corpus import Tagged, arr, f32, touch
from kit.damaged import jax_blob

# --- serializing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["argument", "unequal"])
def test_unserializable_effect(effect: str) -> None:
    fun = jax.jit(lambda x: touch(x, effect))
    name = {"argument": "EffectWithArgument", "unequal": "UnequalEffect"}[effect]
    error = raises_alike(lambda library: library.export(fun)(arr(2)).serialize(), match=name)
    assert isinstance(error, NotImplementedError)
    assert isinstance(error, jaxexp.SerializationError)


def strictly(exported: Any) -> Any:
    """What jax.export always does: every pytree node type has to be registered."""
    return exported.serialize(strict=True) if type(exported) is jaxexp.Exported else exported.serialize()


def test_unregistered_pytree_type() -> None:
    @jax.tree_util.register_pytree_node_class
    class Unregistered(Tagged):
        pass

    fun = jax.jit(lambda x: Unregistered(x, x, ("", 0)).left)
    node = Unregistered(arr(2), arr(2), ("", 0))
    for tree in (node, {"a": [node]}):
        exports = {library: library.export(jax.jit(lambda t: t))(tree) for library in LIBRARIES.values()}
        error = raises_alike(lambda library, exports=exports: strictly(exports[library]), match="Unregistered")
        assert isinstance(error, jaxexp.SerializationError)
    assert jaxexp.export(fun)(arr(2)).serialize(), "inside the function any type will do"


def test_unregistered_namedtuple() -> None:
    pair = collections.namedtuple("LonelyPair", "a b")
    raises_alike(
        lambda library: strictly(library.export(jax.jit(lambda t: t.a))(pair(arr(2), arr(2)))), match="LonelyPair"
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
