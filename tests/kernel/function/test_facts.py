"""What a function knows besides its fields goes along to everything that is made of it: every fact on every way."""

from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp._api.cases.recording import recorded
from jaxexp._kernel.artifact.cases import Cases
from jaxexp._kernel.function.data import facts_of, note, weak_arguments, weak_results
from kit.compare import assert_same_values
from kit.each import each

pytestmark = pytest.mark.jax

METADATA = {"is": "mine"}
OLDEST = "jax-0.10.2"


def define_pair(names: tuple[str, str]) -> type:
    """The class `library_of_facts.Pair` with its children in this order, as a release of that library has it."""

    class Pair:
        def __init__(self, a: Any, b: Any) -> None:
            self.a, self.b = a, b

    Pair.__module__, Pair.__qualname__ = "library_of_facts", "Pair"
    key = jax.tree_util.GetAttrKey
    jax.tree_util.register_pytree_with_keys(
        Pair,
        lambda pair: ([(key(name), getattr(pair, name)) for name in names], None),
        lambda _, children: Pair(**dict(zip(names, children, strict=True))),
    )
    sys.modules["library_of_facts"].Pair = Pair  # type: ignore[attr-defined]
    return Pair


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> type:
    monkeypatch.setitem(sys.modules, "library_of_facts", types.ModuleType("library_of_facts"))
    return define_pair(("a", "b"))


WEIGHTS = {"w": np.full(2, 3, np.float32)}
X = np.full(2, 10, np.float32)


@functools.cache
def exported_with(pair: Any, **options: Any) -> jaxexp.Exported:
    """A function whose second argument and result are weakly typed, and whose results are a pair."""
    function = jax.jit(
        lambda weights, given, factor: (pair(given.a + weights["w"], given.b - weights["w"]), factor * 2)
    )
    spec = jax.ShapeDtypeStruct((2,), np.float32)
    return jaxexp.export(function, **options)({"w": spec}, pair(spec, spec), 2.0)


@functools.cache
def blob_with(pair: Any) -> bytes:
    exported = exported_with(pair)
    note(exported, cases=Cases(recorded(exported, [(WEIGHTS, pair(X, X), 2.0)])))
    return bytes(exported.serialize(vjp_order=2, metadata=METADATA))


def loaded_with(pair: Any) -> jaxexp.Exported:
    return jaxexp.deserialize(blob_with(pair), policy=jaxexp.Policy())


def of_archive(function: jaxexp.Exported, folder: Path) -> jaxexp.Exported:
    with jaxexp.Archive.create(folder / "one.jaxar") as writer:
        writer.add("f", function, vjp_order=1)
    with jaxexp.Archive.open(folder / "one.jaxar") as archive:
        return archive["f"].load()


def saved(function: jaxexp.Exported, folder: Path) -> Path:
    function.save(folder / "one.jaxexp", vjp_order=1)
    return folder / "one.jaxexp"


def specs_of(function: jaxexp.Exported) -> Any:
    return jax.tree_util.tree_unflatten(function.in_tree, function.in_avals)


def specialized(function: jaxexp.Exported, _: Path) -> jaxexp.Exported:
    """Its shapes are constant, so it is itself: see `test_specialize`."""
    args, kwargs = specs_of(function)
    return function.specialize(*args, **kwargs)


def without_vjp(function: jaxexp.Exported) -> jaxexp.Exported:
    return dataclasses.replace(function, _get_vjp=None)


# Ways from a function to a function.
WAYS: dict[str, Callable[[jaxexp.Exported, Path], jaxexp.Exported]] = {
    "replace": lambda f, _: dataclasses.replace(f, fun_name=f.fun_name),
    "replace a field": lambda f, _: dataclasses.replace(f, nr_devices=1),
    "copy": lambda f, _: copy.copy(f),
    "deepcopy": lambda f, _: copy.deepcopy(f),
    "pickle": lambda f, _: pickle.loads(pickle.dumps(f if f._facts.compatibility is None else without_vjp(f))),
    "deserialize": lambda f, _: jaxexp.deserialize(f.serialize(vjp_order=1)),
    "deserialize for an older reader": lambda f, _: jaxexp.deserialize(f.serialize(compatibility=OLDEST)),
    "load": lambda f, folder: jaxexp.load(saved(f, folder)),
    "load_many": lambda f, folder: jaxexp.load_many([saved(f, folder)])[0],
    "migrate": lambda f, folder: jaxexp.deserialize(jaxexp.migrate(saved(f, folder))),
    "Handle.load": of_archive,
    "Exported.from_jax": lambda f, _: jaxexp.Exported.from_jax(f.to_jax()),
    "Exported.unbound": lambda f, _: f.unbound,
    "Exported.bind": lambda f, _: f.bind(WEIGHTS),
    "Exported.specialize": specialized,
    "BoundExported.unbound": lambda f, _: f.bind(WEIGHTS).unbound,
    "BoundExported.with_weights": lambda f, _: f.bind(WEIGHTS).with_weights(WEIGHTS),
    "BoundExported.with_mesh": lambda f, _: f.bind(WEIGHTS).with_mesh(None),
    "BoundExported.specialize": lambda f, _: f.bind(WEIGHTS).specialize(*specs_of(f)[0][1:]),
    "BoundExported as a pytree": lambda f, _: jax.tree_util.tree_map(lambda leaf: leaf, f.bind(WEIGHTS)),
    "BoundExported.save": lambda f, folder: jaxexp.load(saved(f.bind(WEIGHTS), folder)),
    "BoundExported pickled": lambda f, _: pickle.loads(pickle.dumps(without_vjp(f).bind(WEIGHTS))),
}


def is_of_bytes(way: str) -> bool:
    return any(word in way for word in ("load", "deserialize", "migrate", "save"))


def comparable(function: jaxexp.Exported) -> dict[str, Any]:
    """Every fact in a form that compares across functions; trees by what is written of them."""
    unbound = function.unbound
    facts = facts_of(unbound)._asdict()
    facts["metadata"] = dict(facts["metadata"]) if facts["metadata"] else None
    for name in ("in_tree", "out_tree"):
        facts[name] = None if facts[name] is None else repr(facts[name].written)
    facts["cases"] = None if facts["cases"] is None else [case.name for case in facts["cases"].all]
    facts["weak_arguments"], facts["weak_results"] = weak_arguments(unbound), weak_results(unbound)
    return facts


@each("way", WAYS)
def test_facts_of_a_loaded_function(way: str, pair: Any, tmp_path: Path) -> None:
    function = loaded_with(pair)
    before = comparable(function)
    assert before["metadata"] == METADATA
    assert (before["weak_arguments"], before["weak_results"]) == ((3,), (2,))
    assert "a" in before["in_tree"]
    assert "b" in before["out_tree"]
    assert before["cases"] == ["0"]
    assert before["under_policy"]
    if "bind" in way or way.startswith("Bound"):
        before["cases"] = None  # they belong to their weights
    if is_of_bytes(way):
        before["under_policy"] = None  # bytes do not say who allowed them
    after = comparable(WAYS[way](function, tmp_path))
    assert after == before


@each("way", WAYS)
def test_facts_of_an_exported_function(way: str, pair: Any, tmp_path: Path) -> None:
    function = exported_with(pair, compatibility=OLDEST)
    before = comparable(function)
    assert before["compatibility"] == OLDEST
    after = comparable(WAYS[way](function, tmp_path))
    if is_of_bytes(way):
        after["compatibility"] = OLDEST  # bytes do not say for whom they were written
        before["in_tree"], before["out_tree"] = after["in_tree"], after["out_tree"]  # only an artifact describes trees
    if "pickle" in way:
        before["in_tree"], before["out_tree"] = after["in_tree"], after["out_tree"]
    assert after == before


@each("way", ["replace", "copy", "pickle", "Exported.from_jax", "Exported.specialize"])
def test_facts_of_a_vjp(way: str, pair: Any, tmp_path: Path) -> None:
    for primal in (loaded_with(pair), exported_with(pair)):
        vjp = without_vjp(primal.vjp()) if way == "pickle" and primal.vjp()._get_vjp is not None else primal.vjp()
        after = comparable(WAYS[way](vjp, tmp_path))
        assert after["name_and_order"] == comparable(vjp)["name_and_order"] == (primal.fun_name, 1)
        assert after["under_policy"] == facts_of(primal).under_policy


def test_specialize(pair: Any) -> None:
    (n,) = jaxexp.symbolic_shape("n")
    function = jax.jit(lambda given, factor: (pair(given.a + 1, given.b - 1), factor * 2))
    spec = jax.ShapeDtypeStruct((n,), np.float32)
    blob = jaxexp.export(function)(pair(spec, spec), 2.0).serialize(vjp_order=1, metadata=METADATA)
    loaded = jaxexp.deserialize(blob)
    two = jax.ShapeDtypeStruct((2,), np.float32)
    args, _ = jax.tree_util.tree_unflatten(loaded.in_tree, (two, two, loaded.in_avals[2]))
    specialized = loaded.specialize(*args)
    assert specialized is not loaded
    assert comparable(specialized) == comparable(loaded)
    assert specialized.vjp()._facts.name_and_order == (loaded.fun_name, 1)


@pytest.fixture
def swapped(pair: Any) -> Iterator[tuple[jaxexp.Exported, Any]]:
    """A function that was loaded where the children of its class have another order, and what it is called with."""
    blob = loaded_with(pair).serialize(vjp_order=2)
    other = define_pair(("b", "a"))
    yield jaxexp.deserialize(blob), (WEIGHTS, other(X, X), 2.0)


@each("way", WAYS)
def test_no_way_swaps_results(way: str, swapped: tuple[jaxexp.Exported, Any], tmp_path: Path) -> None:
    """`call` refuses it, whatever was done before: some libraries have another order in each process."""
    function, args = swapped
    message = r"library_of_facts\.Pair has the children b, a in this process, and a, b in the artif"
    with pytest.raises(jaxexp.errors.ExportError, match=message):
        made = WAYS[way](function, tmp_path)
        made.call(*args[1:] if isinstance(made, jaxexp.BoundExported) else args)


REFUSING = ("Exported.specialize", "Exported.from_jax")  # as calls do


@each("way", [way for way in WAYS if not way.startswith("Bound") and "bind" not in way and way not in REFUSING])
def test_no_way_writes_other_names(way: str, pair: Any, tmp_path: Path) -> None:
    """An artifact that is written here is right where the class is as it was."""
    original = blob_with(pair)
    define_pair(("b", "a"))
    function = jaxexp.deserialize(original)
    blob = WAYS[way](function, tmp_path).serialize()
    names = [value.path for value in jaxexp.inspect(blob).results]
    assert names == [value.path for value in jaxexp.inspect(function.serialize()).results]
    before = define_pair(("a", "b"))
    found, factor = jaxexp.deserialize(blob).call(WEIGHTS, before(X, 2 * X), 2.0)
    assert_same_values((found.a, found.b, factor), (X + 3, 2 * X - 3, np.float32(4)))
