"""The fields of a loaded function are decoded when somebody looks at them, and what might be refused before that."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import pickle
import threading
import tracemalloc
from collections.abc import Callable, Iterator
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
from kit.compare import assert_same_fields
from kit.corpus import CASES, arr

OPENED = {"_artifact", "_get_vjp"}


def is_decoded(exported: Any) -> bool:
    return exported._artifact.is_decoded


def at_once(blob: bytes) -> Any:
    """The same function, decoded when it is opened: nobody knows for how long such a buffer stays what it is."""
    exported = reader.decode(_native.Artifact(memoryview(bytearray(blob)).toreadonly(), in_place=True))
    assert is_decoded(exported)
    return exported


@contextlib.contextmanager
def bound_with(**changed: Any) -> Iterator[None]:
    """While it is open, the codec calls other functions than JAX's. It has nothing in its caches."""
    given: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binding._native, "bind", given.append)
        binding.bind.__wrapped__()
    vars(given[0]).update(changed)
    binding._native.bind(given[0])
    try:
        yield
    finally:
        binding.bind.__wrapped__()


@pytest.fixture(scope="module")
def blob() -> bytes:
    function = jax.jit(lambda tree, n: {"y": tree["a"] * n, "z": [tree["b"]]})
    return bytes(jaxexp.export(function)({"a": arr(3), "b": arr(2, 2)}, np.float32(2)).serialize(vjp_order=1))


@pytest.fixture(scope="module")
def symbolic() -> bytes:
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 2*b + 1"), np.float32)
    return bytes(jaxexp.export(jax.jit(lambda x: jnp.concatenate([x, x])))(spec).serialize())


# --- What is there when --------------------------------------------------------------------------------------------


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
    names = [f.name for f in dataclasses.fields(jaxexp.Exported)]
    for name in names:
        exported = jaxexp.deserialize(blob)
        assert getattr(exported, name) == getattr(expected, name)
        assert getattr(exported, name) is getattr(exported, name)
        alone = {"fun_name", "nr_devices", "platforms", "mlir_module_serialized", "_get_vjp"}
        assert is_decoded(exported) == (name not in alone), name
        assert_same_fields(exported, expected)


def test_other_questions_decode_nothing(blob: bytes) -> None:
    exported = jaxexp.deserialize(blob)
    assert not hasattr(exported, "no_such_field")
    assert exported.has_vjp()
    assert dict(exported.metadata) == {}
    assert len(exported.mlir_module_serialized) > 0
    assert exported.fun_name == "<lambda>"
    assert exported.platforms == ("cpu",)
    assert exported.nr_devices == 1
    assert not is_decoded(exported)


def test_every_case_is_the_same_at_once_and_later(blobs: list[bytes]) -> None:
    waiting = 0
    for name, one in zip(CASES, blobs, strict=True):
        exported, expected = jaxexp.deserialize(one), at_once(one)
        waiting += not is_decoded(exported)
        for _ in range(CASES[name].vjp_order + 1):
            assert_same_fields(exported, expected)
            assert exported.weak_arguments == expected.weak_arguments
            assert vars(exported).keys() == vars(expected).keys(), name
            if exported.has_vjp():
                exported, expected = exported.vjp(), expected.vjp()
    assert waiting > len(blobs) // 3


@pytest.mark.parametrize(
    ("name", "why"),
    [("custom_node", "nodes"), ("ordered_effect", "effects"), ("sharded_2d", "shardings"), ("mixed_nodes", "nodes")],
)
def test_what_may_be_refused_is_decoded_at_once(blobs: list[bytes], name: str, why: str) -> None:
    blob = blobs[list(CASES).index(name)]
    assert is_decoded(jaxexp.deserialize(blob)), why
    assert all(map(is_decoded, jaxexp.load_many([blob, blob])))


def test_constraints_are_checked_at_once() -> None:
    for constraints, waits in (((), True), (("b >= 3",), False), (("2*b == c",), False)):
        shape = jaxexp.symbolic_shape("b, c", constraints=constraints)
        blob = bytes(jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct(shape, np.float32)).serialize())
        assert is_decoded(jaxexp.deserialize(blob)) != waits


def test_names_beyond_ascii_are_checked_at_once() -> None:
    for name, waits in (("b", True), ("größe", False)):
        shape = jaxexp.symbolic_shape(name)
        blob = bytes(jaxexp.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct(shape, np.float32)).serialize())
        exported = jaxexp.deserialize(blob)
        assert is_decoded(exported) != waits
        assert str(exported.in_avals[0].shape) == f"({name},)"


def test_errors_come_up_where_the_artifact_is_opened(blobs: list[bytes]) -> None:
    def unknown(*_: Any) -> Any:
        raise jaxexp.DeserializationError("", "a class that is registered", "another one")

    custom, effect = (blobs[list(CASES).index(name)] for name in ("custom_node", "ordered_effect"))
    for function, blob, path in (
        ("build_custom_node", custom, "in_tree"),
        ("effect_of_name", effect, "ordered_effects[0]"),
    ):
        with bound_with(**{function: unknown}):
            with pytest.raises(jaxexp.DeserializationError) as alone:
                jaxexp.deserialize(blob)
            (found,) = jaxexp.load_many([blob], on_error="return")
        assert alone.value.path.startswith(path)
        assert isinstance(found, jaxexp.DeserializationError)
        assert found.path == alone.value.path


# --- Several threads -----------------------------------------------------------------------------------------------


def test_threads_that_look_first_see_the_same_objects(symbolic: bytes) -> None:
    both = threading.Barrier(2, timeout=60)
    scope = binding._jax.SymbolicScope

    def slow_scope() -> Any:
        both.wait()  # both threads are decoding now
        return scope()

    with bound_with(SymbolicScope=slow_scope):
        exported = jaxexp.deserialize(symbolic)
        assert not is_decoded(exported)
        seen: list[tuple[Any, Any]] = []

        def look(first: str, second: str) -> None:
            found = {name: getattr(exported, name) for name in (first, second)}
            seen.append((found["in_avals"], found["out_avals"]))

        threads = [
            threading.Thread(target=look, args=names)
            for names in (("in_avals", "out_avals"), ("out_avals", "in_avals"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(seen) == 2
    assert seen[0][0] is seen[1][0]
    assert seen[0][1] is seen[1][1]
    (in_aval,), (out_aval,) = seen[0]
    assert in_aval.shape[0].scope is out_aval.shape[0].scope


def test_versions_share_what_is_decoded_for_one_of_them(blob: bytes) -> None:
    program = jaxexp.deserialize(blob)
    versions = [bytes(program.serialize(metadata={"version": i})) for i in range(5)]
    found = jaxexp.load_many(versions, workers=2)
    assert not any(map(is_decoded, found))
    found[3].in_avals  # noqa: B018
    assert all(map(is_decoded, found))
    assert len({id(e.in_avals) for e in found}) == len({id(e.disabled_safety_checks) for e in found}) == 1
    assert [dict(e.metadata) for e in found] == [{"version": i} for i in range(5)]


# --- A function that nobody has looked at --------------------------------------------------------------------------

USES: dict[str, Callable[[Any], Any]] = {
    "vars": lambda e: {name: value for name, value in vars(e).items() if name != "_artifact"},
    "dir": dir,
    "repr": repr,
    "html": lambda e: e._repr_html_(),
    "hash": hash,
    "asdict": dataclasses.asdict,
    "astuple": dataclasses.astuple,
    "replace": lambda e: dataclasses.replace(e, fun_name="other"),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda e: pickle.loads(pickle.dumps(e)),
    "serialize": lambda e: e.serialize(1),
    "call": lambda e: jax.tree.map(np.asarray, e.call({"a": arr(3), "b": arr(2, 2)}, np.float32(2))),
    "vjp": lambda e: e.vjp(),
    "match": lambda e: [getattr(e, name) for name in type(e).__match_args__],
    "to_jax": lambda e: (e.to_jax().in_avals, e.to_jax().in_tree),
    "weak": lambda e: e.weak_arguments,
    "shardings": lambda e: (e.in_shardings_hlo, e.in_shardings_jax()),
}


@pytest.mark.parametrize("use", USES)
def test_uses_of_a_function_that_nobody_looked_at(blob: bytes, use: str) -> None:
    found, expected = USES[use](jaxexp.deserialize(blob)), USES[use](at_once(blob))
    jax.tree.map(np.testing.assert_array_equal, found, expected) if use == "call" else None
    assert use == "call" or found == expected


def test_equality(blob: bytes, symbolic: bytes) -> None:
    assert jaxexp.deserialize(blob) == jaxexp.deserialize(blob) == at_once(blob)
    assert jaxexp.deserialize(blob) != jaxexp.deserialize(symbolic)
    exported = jaxexp.deserialize(symbolic)
    assert exported == exported


def test_what_somebody_sets_stays(blob: bytes) -> None:
    exported = jaxexp.deserialize(blob)
    object.__setattr__(exported, "platforms", ("tpu",))
    assert len(exported.in_avals) == 3
    assert exported.platforms == ("tpu",)
    assert vars(exported)["platforms"] == ("tpu",)
    exported = jaxexp.deserialize(blob)
    vars(exported)["nr_devices"] = 7
    assert exported.nr_devices == 7


def test_a_subclass_with_fields_of_its_own(blob: bytes) -> None:
    @dataclasses.dataclass(frozen=True, init=False, eq=False, repr=False)
    class Noted(jaxexp.Exported):
        note: str = "none"

    made = object.__new__(Noted)
    attributes_of(made).update(attributes_of(jaxexp.deserialize(blob)), note="mine")
    assert made.note == "mine"
    assert made.in_avals == at_once(blob).in_avals
    assert vars(made)["note"] == "mine"
    with pytest.raises(AttributeError, match="in_tree"):
        object.__new__(Noted).in_tree  # noqa: B018


def test_without_memory_a_look_can_be_repeated(blob: bytes) -> None:
    with bound_with(create_aval=_NoMemory(), plain_avals=binding._jax.plain_avals):
        exported = jaxexp.deserialize(blob)
        with pytest.raises(MemoryError):
            exported.in_avals  # noqa: B018
        assert attributes_of(exported).keys() == OPENED
    assert exported.in_avals == at_once(blob).in_avals


class _NoMemory:
    def __call__(self, *_: Any, **__: Any) -> Any:
        raise MemoryError


# --- Memory --------------------------------------------------------------------------------------------------------


def test_opened_functions_take_little_memory() -> None:
    program = jaxexp.export(jax.jit(lambda *xs: xs))(*(arr(i + 1) for i in range(200)))
    blobs = [bytes(dataclasses.replace(program, fun_name=f"f{i}", _get_vjp=None).serialize()) for i in range(50)]
    jaxexp.load_many(blobs, workers=1)[0].in_avals  # noqa: B018
    gc.collect()
    tracemalloc.start()
    try:
        found = jaxexp.load_many(blobs, workers=1)
        opened, _ = tracemalloc.get_traced_memory()
        for exported in found:
            exported.in_avals  # noqa: B018
        looked_at, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert opened < 1000 * len(found)  # bytes
    assert looked_at > 4 * opened
