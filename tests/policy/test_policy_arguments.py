"""`policy=`: only a policy, or None, wherever it is taken; and policies in TOML files."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.codec import nodes as library_nodes
from jaxexp._kernel.module import mlir
from kit.corpus import arr
from kit.each import each
from kit.layout import CUSTOM, function, node
from kit.library_nodes import described
from kit.parts import put_together

pytestmark = pytest.mark.jax

POLICY = jaxexp.Policy(platforms=("cpu",), max_devices=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    exported = jaxexp.export(jax.jit(jnp.sin))(arr(2))
    exported.save(tmp_path / "sin.jaxexp")
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as archive:
        archive.add("sin", exported)
    return tmp_path


TAKERS = {
    "load": lambda folder, policy: jaxexp.load(folder / "sin.jaxexp", policy=policy),
    "load of a member": lambda folder, policy: jaxexp.load(f"{folder}/fleet.zip::sin", policy=policy),
    "load of a buffer": lambda folder, policy: jaxexp.load((folder / "sin.jaxexp").read_bytes(), policy=policy),
    "check": lambda folder, policy: jaxexp.check(folder / "sin.jaxexp", policy=policy),
    "deserialize": lambda folder, policy: jaxexp.deserialize((folder / "sin.jaxexp").read_bytes(), policy=policy),
    "load_many": lambda folder, policy: jaxexp.load_many([folder / "sin.jaxexp"], policy=policy),
    "Handle.load": lambda folder, policy: jaxexp.Archive.open(folder / "fleet.zip")["sin"].load(policy=policy),
    "Archive.load_all": lambda folder, policy: jaxexp.Archive.open(folder / "fleet.zip").load_all(policy=policy),
    "Archive.precompile": lambda folder, policy: jaxexp.Archive.open(folder / "fleet.zip").precompile(
        into=folder / "code", policy=policy
    ),
    "verify_many": lambda folder, policy: jaxexp.verify_many([folder], policy=policy),
    "migrate_many": lambda folder, policy: jaxexp.migrate_many(
        [folder / "sin.jaxexp"], folder / "new", "jax-0.6.2", policy=policy
    ),
}


@each("taker", TAKERS)
def test_what_is_no_policy(folder: Path, taker: str) -> None:
    take: Any = TAKERS[taker]
    take(folder, POLICY)
    for given, advice in (
        ({"platforms": ("cpu",)}, r"takes such fields as keywords: Policy\(\*\*fields\); found <class 'dict'>"),
        ("policy.toml", r"and Policy\.from_toml\('policy\.toml'\) reads one from a file; found <class 'str'>"),
        (Path("policy.toml"), r"Policy\.from_toml\('policy\.toml'\) reads one"),
        (jaxexp.Policy, r"such as Policy\(platforms=\('cpu',\)\); found <class 'type'>"),
        (False, "found <class 'bool'>"),
    ):
        with pytest.raises(TypeError, match=rf"policy= takes a jaxexp\.Policy or None, .*{advice}") as raised:
            take(folder, given)
        assert isinstance(raised.value, jaxexp.errors.ExportError)


def _takers() -> Iterator[str]:
    """All public functions and methods that take a policy."""
    for name in jaxexp.__all__:
        found = getattr(jaxexp, name)
        of_class = isinstance(found, type)
        for method in [name for name in vars(found) if not name.startswith("_")] if of_class else [""]:
            function = getattr(found, method, None) if of_class else found
            if inspect.isroutine(function) and "policy" in inspect.signature(function).parameters:
                yield f"{name}.{method}" if method else name


def test_every_function_that_takes_a_policy_is_here() -> None:
    there = {name.partition(" ")[0] for name in TAKERS}
    assert set(_takers()) == there


def outcome(taker: str, folder: Path, policy: jaxexp.Policy) -> Any:
    take: Any = TAKERS[taker]
    try:
        found = take(folder, policy)
    except jaxexp.errors.PolicyError as error:
        return error
    return next(iter(found.values()), None) if isinstance(found, dict) else None


@each("taker", TAKERS)
def test_no_road_loses_a_policy(taker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an artifact says of itself is enough to refuse it, before MLIR sees its module, or anything is compiled."""
    w = jnp.ones(2)
    kernel = jax.jit(lambda x: jax.ffi.ffi_call("my_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x * w))
    checks = [jaxexp.DisabledSafetyCheck.custom_call("my_kernel")]
    exported = jaxexp.export(kernel, platforms=["cpu"], disabled_checks=checks, weights={"w": w})(arr(2))
    exported.save(tmp_path / "sin.jaxexp")
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as archive:
        archive.add("sin", exported)
    error = outcome(taker, tmp_path, jaxexp.Policy())
    assert isinstance(error, jaxexp.errors.PolicyError)
    assert error.field == "custom_calls"
    if taker.startswith(("Archive", "Handle")):
        assert error.file == jaxexp.Archive.open(tmp_path / "fleet.zip")["sin"].label

    def refuse(*_: object) -> None:
        raise AssertionError("MLIR gets bytes")

    monkeypatch.setattr(mlir, "parse", refuse)
    monkeypatch.setattr(_jax, "deserialize_portable_artifact", refuse)
    allowing = {"custom_calls": None}
    for field, policy in (
        ("platforms", jaxexp.Policy(platforms=("tpu",), **allowing)),
        ("max_artifact_bytes", jaxexp.Policy(max_artifact_bytes=100, **allowing)),
        ("max_module_bytes", jaxexp.Policy(max_module_bytes=10, **allowing)),
        ("max_weights", jaxexp.Policy(max_weights=0, **allowing)),
        ("max_weight_bytes", jaxexp.Policy(max_weight_bytes=1, **allowing)),
    ):
        error = outcome(taker, tmp_path, policy)
        assert isinstance(error, jaxexp.errors.PolicyError), field
        assert (error.field, (tmp_path / "code").exists()) == (field, False)
    with pytest.raises(jaxexp.errors.DeserializationError, match="MLIR gets bytes"):
        jaxexp.load(tmp_path / "sin.jaxexp", policy=jaxexp.Policy(**allowing))


def test_a_policy_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('platforms = ["cpu"]\nmax_devices = 1\n')
    assert jaxexp.Policy.from_toml(path) == jaxexp.Policy.from_toml(str(path)) == POLICY
    path.write_bytes(b'\xef\xbb\xbfplatforms = ["cpu"]\r\nmax_devices = 1\r\n')  # as editors on Windows write it
    assert jaxexp.Policy.from_toml(path) == POLICY
    path.write_text("")
    assert jaxexp.Policy.from_toml(path) == jaxexp.Policy()


@each(
    "text, said, kind",
    [
        ("platform = ['cpu']", "Policy has no field 'platform': did you mean platforms?", TypeError),
        ("self = 1", "Policy has no field 'self'", TypeError),
        ("platforms = 'cpu'", "found one str", TypeError),
        ("platforms = ['cpus']", "there is no platform 'cpus'", ValueError),
        ("max_devices = ", "is not a TOML file", ValueError),
        ("a = " + "[" * 100_000, "is not a TOML file", ValueError),
    ],
)
def test_files_that_are_no_policy(tmp_path: Path, text: str, said: str, kind: type[Exception]) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(jaxexp.errors.ExportError) as raised:
        jaxexp.Policy.from_toml(path)
    assert isinstance(raised.value, kind)
    assert said in str(raised.value)
    assert repr(str(path)) in str(raised.value)
    with pytest.raises(FileNotFoundError):
        jaxexp.Policy.from_toml(tmp_path / "other.toml")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@each("read", [jaxexp.Policy.from_toml, jaxexp.from_stablehlo])
def test_only_files_are_read(read: Any, tmp_path: Path) -> None:
    """A pipe would wait for its writer, and some devices have no end."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises(OSError, match=r"not a regular file|Is a directory") as raised:
            read(path)
        assert raised.value.filename == str(path)


def test_a_policy_refuses_before_auxiliary_data_become_objects(tmp_path: Path, monkeypatch: Any) -> None:
    description = described("kit.library_nodes:Node", [], "registered", ["tuple", ["tuple"], 1])
    blob = put_together(function(out_tree=node(CUSTOM, name="jaxexp.node", auxdata=description)))
    (tmp_path / "sin.jaxexp").write_bytes(blob)
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as writer:
        writer.add("sin", blob)
    made: list[Any] = []
    monkeypatch.setattr(library_nodes, "from_json", made.append)
    for taker in [
        name
        for name in TAKERS
        if name.split()[0] in ("load", "load_many", "deserialize", "Handle.load", "Archive.load_all")
    ]:
        error = outcome(taker, tmp_path, jaxexp.Policy(unregistered_nodes=False))
        assert isinstance(error, jaxexp.errors.PolicyError), taker
        assert "unregistered classes: kit.library_nodes.Node" in str(error), taker
        assert not made, taker
    jaxexp.deserialize(blob)
    assert made


def test_a_policy_allows_nodes_of_registered_classes() -> None:
    class Registered:
        pass

    jax.tree_util.register_pytree_node(Registered, lambda _: ((), 1), lambda _, __: Registered())
    exported = jaxexp.export(jax.jit(lambda: Registered()))()
    blob, policy = bytes(exported.serialize()), jaxexp.Policy(unregistered_nodes=False)
    with pytest.raises(jaxexp.errors.PolicyError, match="Registered"):
        jaxexp.deserialize(blob, policy=policy)
    name = f"{__name__}.Registered"
    jaxexp.register_pytree_node_serialization(
        Registered, serialized_name=name, serialize_auxdata=lambda _: b"", deserialize_auxdata=lambda _: 1
    )
    jaxexp.deserialize(blob, policy=policy)  # its description names a class that is registered by now
    jaxexp.deserialize(bytes(exported.serialize()), policy=policy)
