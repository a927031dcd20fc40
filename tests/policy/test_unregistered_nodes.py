"""`Policy(unregistered_nodes=False)` refuses before auxiliary data become objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

import jaxexp
from jaxexp._kernel.codec import auxdata
from kit.layout import CUSTOM, function, node
from kit.library_nodes import described
from kit.parts import put_together


def artifact() -> bytes:
    description = described("kit.library_nodes:Node", [], "registered", ["tuple", ["tuple"], 1])
    return put_together(function(out_tree=node(CUSTOM, name="jaxexp.node", auxdata=description)))


def test_a_policy_refuses_before_auxiliary_data_become_objects(tmp_path: Path, monkeypatch: Any) -> None:
    blob, policy = artifact(), jaxexp.Policy(unregistered_nodes=False)
    path = tmp_path / "f.jaxexp"
    path.write_bytes(blob)
    with jaxexp.Archive.create(tmp_path / "a.zip") as writer:
        writer.add("f", blob)
    archive = jaxexp.Archive.open(tmp_path / "a.zip")
    made: list[Any] = []
    monkeypatch.setattr(auxdata, "from_json", made.append)
    ways: dict[str, Callable[[], Any]] = {
        "deserialize": lambda: jaxexp.deserialize(blob, policy=policy),
        "load": lambda: jaxexp.load(path, policy=policy),
        "load of a buffer": lambda: jaxexp.load(blob, policy=policy),
        "load of a member": lambda: jaxexp.load(f"{tmp_path / 'a.zip'}::f", policy=policy),
        "load_many": lambda: jaxexp.load_many([path], policy=policy),
        "load_many of buffers": lambda: jaxexp.load_many([blob], policy=policy),
        "handle": lambda: archive["f"].load(policy=policy),
        "load_all": lambda: archive.load_all(policy=policy)["f"],
    }
    for way, read in ways.items():
        with pytest.raises(jaxexp.PolicyError, match=r"unregistered classes: kit\.library_nodes\.Node"):
            read()
        assert not made, way
    jaxexp.deserialize(blob)
    assert made


def test_a_policy_allows_nodes_of_registered_classes() -> None:
    class Registered:
        pass

    jax.tree_util.register_pytree_node(Registered, lambda _: ((), 1), lambda _, __: Registered())
    exported = jaxexp.export(jax.jit(lambda: Registered()))()
    blob, policy = bytes(exported.serialize()), jaxexp.Policy(unregistered_nodes=False)
    with pytest.raises(jaxexp.PolicyError, match="Registered"):
        jaxexp.deserialize(blob, policy=policy)
    name = f"{__name__}.Registered"
    jaxexp.register_pytree_node_serialization(
        Registered, serialized_name=name, serialize_auxdata=lambda _: b"", deserialize_auxdata=lambda _: 1
    )
    jaxexp.deserialize(blob, policy=policy)  # its description names a class that is registered by now
    jaxexp.deserialize(bytes(exported.serialize()), policy=policy)
