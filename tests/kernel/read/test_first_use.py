"""The fields of a loaded function are decoded when somebody looks at them, and what might be refused before that."""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp import _native
from jaxexp._api.exported import reader
from jaxexp._kernel.codec import binding
from jaxexp._kernel.function.data import attributes_of
from kit.command_line import started
from kit.compare import assert_same_fields, chain
from kit.corpus import CASES, arr
from kit.each import each

pytestmark = pytest.mark.jax
OPENED = {"_artifact", "_get_vjp"}


def is_decoded(exported: Any) -> bool:
    return exported._artifact.is_decoded


def at_once(blob: bytes) -> Any:
    """The same function, decoded when it is opened: nobody knows for how long such a buffer stays what it is."""
    exported = reader.decode(_native.Artifact(memoryview(bytearray(blob)).toreadonly(), in_place=True))
    assert is_decoded(exported)
    return exported


@pytest.fixture(scope="module")
def blob() -> bytes:
    function = jax.jit(lambda tree, n: {"y": tree["a"] * n, "z": [tree["b"]]})
    return bytes(jaxexp.export(function)({"a": arr(3), "b": arr(2, 2)}, np.float32(2)).serialize(vjp_order=1))


@pytest.fixture(scope="module")
def symbolic() -> bytes:
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 2*b + 1"), np.float32)
    return bytes(jaxexp.export(jax.jit(lambda x: jnp.concatenate([x, x])))(spec).serialize())


def test_opening_decodes_nothing(blob: bytes, symbolic: bytes, tmp_path: Path) -> None:
    file = tmp_path / "f.jaxexp"
    file.write_bytes(blob)
    with jaxexp.Archive.create(tmp_path / "archive") as archive:
        archive.add("a", blob)
        archive.add("b", symbolic)
    archive = jaxexp.Archive.open(tmp_path / "archive")
    opened = [
        jaxexp.deserialize(blob), jaxexp.deserialize(memoryview(blob)), jaxexp.deserialize(bytearray(blob)),
        jaxexp.deserialize(symbolic), jaxexp.load(file), *jaxexp.load_many([blob, file, symbolic]),
        *archive.load_all(), archive["a"].load(), jaxexp.deserialize(blob).vjp(),
    ]  # fmt: skip
    for exported in opened:
        assert not is_decoded(exported)
        assert attributes_of(exported).keys() <= OPENED | {"_origin", "_kept"}


def test_any_field_brings_all(blob: bytes) -> None:
    expected = at_once(blob)
    for name in [f.name for f in dataclasses.fields(jaxexp.Exported)]:
        exported = jaxexp.deserialize(blob)
        assert getattr(exported, name) == getattr(expected, name)
        assert getattr(exported, name) is getattr(exported, name)
        alone = {"fun_name", "nr_devices", "platforms", "mlir_module_serialized", "_get_vjp"}
        assert is_decoded(exported) == (name not in alone), name
        assert_same_fields(exported, expected)
    # Other questions decode nothing.
    exported = jaxexp.deserialize(blob)
    assert not hasattr(exported, "no_such_field")
    assert exported.has_vjp()
    assert dict(exported.metadata) == {}
    assert not is_decoded(exported)


def test_every_case_is_the_same_at_once_and_later(blobs: dict[str, bytes]) -> None:
    waiting = 0
    for name, one in blobs.items():
        exported, expected = jaxexp.deserialize(one), at_once(one)
        waiting += not is_decoded(exported)
        order = CASES[name].vjp_order
        for link, other in zip(chain(exported, order), chain(expected, order), strict=True):
            assert_same_fields(link, other)
            assert link.weak_arguments == other.weak_arguments
            assert vars(link).keys() == vars(other).keys(), name
    assert waiting > len(blobs) // 3


def test_what_may_be_refused_is_decoded_at_once(blobs: dict[str, bytes]) -> None:
    for name in ("custom_node", "ordered_effect", "sharded_2d", "mixed_nodes"):
        assert is_decoded(jaxexp.deserialize(blobs[name])), name
        assert all(map(is_decoded, jaxexp.load_many([blobs[name]] * 2)))
    for names, constraints, waits in (
        ("b, c", (), True), ("b, c", ("b >= 3",), False), ("b, c", ("2*b == c",), False), ("größe, c", (), False),
    ):  # fmt: skip
        shape = jaxexp.symbolic_shape(names, constraints=constraints)
        blob = bytes(jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct(shape, np.float32)).serialize())
        exported = jaxexp.deserialize(blob)
        assert is_decoded(exported) != waits
        assert str(exported.in_avals[0].shape) == f"({names})"


def test_errors_come_up_where_the_artifact_is_opened(blobs: dict[str, bytes], bound_with: Any) -> None:
    def unknown(*_: Any) -> Any:
        raise jaxexp.errors.DeserializationError("", "a class that is registered", "another one")

    for function, name, path in (
        ("build_custom_node", "custom_node", "in_tree"), ("effect_of_name", "ordered_effect", "ordered_effects[0]"),
    ):  # fmt: skip
        with bound_with(**{function: unknown}):
            with pytest.raises(jaxexp.errors.DeserializationError) as alone:
                jaxexp.deserialize(blobs[name])
            (found,) = jaxexp.load_many([blobs[name]], on_error="return")
        assert alone.value.path.startswith(path)
        assert isinstance(found, jaxexp.errors.DeserializationError)
        assert found.path == alone.value.path


def test_threads_that_look_first_see_the_same_objects(symbolic: bytes, bound_with: Any) -> None:
    both, scope = threading.Barrier(2, timeout=60), binding._jax.SymbolicScope

    def slow_scope() -> Any:
        both.wait()  # both threads are decoding now
        return scope()

    with bound_with(SymbolicScope=slow_scope):
        exported = jaxexp.deserialize(symbolic)
        assert not is_decoded(exported)

        def look(*names: str) -> Any:
            found = {name: getattr(exported, name) for name in names}
            return found["in_avals"], found["out_avals"]

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            one, other = pool.map(look, ("in_avals", "out_avals"), ("out_avals", "in_avals"))
    assert one[0] is other[0]
    assert one[1] is other[1]
    (in_aval,), (out_aval,) = one
    assert in_aval.shape[0].scope is out_aval.shape[0].scope


USES: list[Callable[[Any], Any]] = [
    lambda e: {name: value for name, value in vars(e).items() if name != "_artifact"},
    dir, repr, lambda e: e._repr_html_(), hash, dataclasses.asdict, dataclasses.astuple,
    lambda e: dataclasses.replace(e, fun_name="other"), copy.copy, copy.deepcopy,
    lambda e: pickle.loads(pickle.dumps(e)),
    lambda e: e.serialize(1),
    lambda e: jax.tree.map(np.asarray, e.call({"a": arr(3), "b": arr(2, 2)}, np.float32(2))),
    lambda e: e.vjp(),
    lambda e: [getattr(e, name) for name in type(e).__match_args__],
    lambda e: (e.to_jax().in_avals, e.to_jax().in_tree),
    lambda e: e.weak_arguments,
    lambda e: (e.in_shardings_hlo, e.in_shardings_jax()),
]  # fmt: skip


@each("use", USES)
def test_uses_of_a_function_that_nobody_looked_at(blob: bytes, use: Callable[[Any], Any]) -> None:
    found, expected = use(jaxexp.deserialize(blob)), use(at_once(blob))
    if isinstance(found, dict) and "z" in found:
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    else:
        assert found == expected


def test_what_somebody_sets(blob: bytes, symbolic: bytes) -> None:
    exported = jaxexp.deserialize(blob)
    object.__setattr__(exported, "platforms", ("tpu",))
    vars(exported)["nr_devices"] = 7
    assert len(exported.in_avals) == 3
    assert exported.platforms == vars(exported)["platforms"] == ("tpu",)
    assert exported.nr_devices == 7
    assert jaxexp.deserialize(blob) == at_once(blob) != jaxexp.deserialize(symbolic)


AT_THE_END = """
import jax, jaxexp

class Last:
    function = jaxexp.deserialize(jaxexp.export(jax.jit(lambda x: x * 2))(1.0).serialize())

    def __del__(self):
        f = self.function
        print(f.fun_name, f.platforms, f.nr_devices, f.mlir_module_serialized[:2])

last = Last()
"""


@pytest.mark.processes(reason="it ends")
def test_fields_that_are_first_read_when_python_ends(subprocess_env: Any) -> None:
    """Globals of modules are gone then, so what needs JAX can no longer be decoded."""
    done = started(AT_THE_END, env=subprocess_env())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "<lambda> ('cpu',) 1 b'ML'\n"
