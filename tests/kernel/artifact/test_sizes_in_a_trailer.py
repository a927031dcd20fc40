"""Sets of sizes that are saved with a function go along with it, and have to fit it."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
import pytest

import jaxexp
from jaxexp import _native

SIZES = [{"b": 1, "n": 4}, {"n": 4, "b": 8}]


def exported(*constraints: str) -> jaxexp.Exported:
    b, n = jaxexp.symbolic_shape("b, n", constraints=constraints)
    spec = jax.ShapeDtypeStruct((b, 2 * n), np.float32)
    return jaxexp.export(jax.jit(lambda weights, x: x * weights["w"]))({"w": jax.ShapeDtypeStruct((), "float32")}, spec)


def of_archive(function: jaxexp.Exported, folder: Path) -> jaxexp.Exported:
    with jaxexp.Archive.create(folder / "one.zip") as writer:
        writer.add("f", function)
    with jaxexp.Archive.open(folder / "one.zip") as archive:
        return archive["f"].load()


def saved(function: jaxexp.Exported, folder: Path) -> Path:
    function.save(folder / "f.jaxexp")
    return folder / "f.jaxexp"


WAYS: dict[str, Callable[[jaxexp.Exported, Path], jaxexp.Exported]] = {
    "nothing": lambda f, _: f,
    "replace": lambda f, _: dataclasses.replace(f, fun_name="g"),
    "copy": lambda f, _: copy.deepcopy(f),
    "pickle": lambda f, _: pickle.loads(pickle.dumps(f)),
    "serialize": lambda f, _: jaxexp.deserialize(f.serialize()),
    "serialize with metadata": lambda f, _: jaxexp.deserialize(f.serialize(metadata={"is": "mine"})),
    "serialize for an older reader": lambda f, _: jaxexp.deserialize(f.serialize(compatibility="jax-0.9.0")),
    "load": lambda f, folder: jaxexp.load(saved(f, folder)),
    "load_many": lambda f, folder: jaxexp.load_many([saved(f, folder)])[0],
    "migrate": lambda f, folder: jaxexp.deserialize(jaxexp.migrate(saved(f, folder))),
    "archive": of_archive,
    "bind": lambda f, _: f.bind({"w": np.float32(2)}).unbound,
    "save bound": lambda f, folder: jaxexp.load(saved(f.bind({"w": np.float32(2)}), folder)).unbound,
}


@pytest.mark.parametrize("way", WAYS)
def test_sizes_go_along(way: str, tmp_path: Path) -> None:
    function = jaxexp.deserialize(exported().serialize(sizes=SIZES))
    assert function.sizes == tuple(SIZES)
    assert WAYS[way](function, tmp_path).sizes == tuple(SIZES)


def test_saved_with_weights(tmp_path: Path) -> None:
    exported().bind({"w": np.float32(2)}).save(tmp_path / "f.jaxexp", sizes=SIZES)
    assert jaxexp.load(tmp_path / "f.jaxexp").sizes == tuple(SIZES)


def test_other_sizes_and_none() -> None:
    assert exported().sizes == ()
    function = jaxexp.deserialize(exported().serialize(sizes=SIZES))
    assert jaxexp.deserialize(function.serialize(sizes=[{"b": 2, "n": 2}])).sizes == ({"b": 2, "n": 2},)
    assert jaxexp.deserialize(function.serialize(sizes=[])).sizes == ()
    assert jaxexp.deserialize(exported().serialize(sizes=[*SIZES, SIZES[0]])).sizes == tuple(SIZES)
    with pytest.raises(TypeError):
        function.sizes[0]["b"] = 2  # type: ignore[index]


def test_a_specialized_function_has_none() -> None:
    function = jaxexp.deserialize(exported().serialize(sizes=SIZES))
    scalar, matrix = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((), (2, 4)))
    assert function.specialize({"w": scalar}, matrix).sizes == ()


def test_jax_export_ignores_them() -> None:
    blob = exported().serialize(sizes=SIZES)
    assert jax.export.deserialize(blob).fun_name == "<lambda>"
    assert len(blob) > len(exported().serialize())


def test_inspect_shows_them(tmp_path: Path) -> None:
    exported().save(tmp_path / "f.jaxexp", sizes=SIZES)
    found = jaxexp.inspect(tmp_path / "f.jaxexp")
    assert found.sizes == tuple(SIZES)
    assert "b=1 n=4, b=8 n=4" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["sizes"] == [{"b": 1, "n": 4}, {"b": 8, "n": 4}]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([{"b": 8}], r"a set of sizes has a size from 1 to 2\^63 - 1 for each of b, n, found {'b': 8}"),
        ([{"b": 1 << 63, "n": 1}], r"a size from 1 to 2\^63 - 1 for each of b, n, found"),
        ([{"b": 8, "n": 2, "c": 1}], "for each of b, n, found"),
        ([{"b": 0, "n": 2}], "a size from 1 to"),
        ([{"b": 3, "n": 2}], r"args\[1\].shape\[0\] must be a multiple of 2, found 3 \(exported with the constraint"),
        (
            [{"b": 2, "n": 2}] * 2 + [{"b": 2 * i, "n": 1} for i in range(1, 65)],
            "there is room for 64 sets of sizes, found",
        ),
    ],
    ids=["missing", "large", "unknown", "zero", "constraint", "many"],
)
def test_sizes_that_do_not_fit(sizes: Any, message: str) -> None:
    with pytest.raises(jaxexp.ExportError, match=message):
        exported("mod(b, 2) == 0").serialize(sizes=sizes)


@pytest.mark.parametrize("sizes", [[{"b": "8", "n": 2}], [8], [{"b": 1.5, "n": 2}]], ids=["text", "number", "float"])
def test_sizes_that_are_none(sizes: Any) -> None:
    with pytest.raises(TypeError, match=r"saving <lambda>: sizes is a list of dicts such as {'batch': 8}"):
        exported().serialize(sizes=sizes)


def test_no_sizes_without_symbolic_dimensions_or_a_trailer() -> None:
    static = jaxexp.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct((2,), "float32"))
    with pytest.raises(
        jaxexp.ExportError, match=r"has no sizes, because it has no symbolic dimensions, found {'b': 1}"
    ):
        static.serialize(sizes=[{"b": 1}])
    with pytest.raises(jaxexp.ExportError, match=r"with sizes and trailer=False: sizes are in the trailer"):
        exported().serialize(sizes=SIZES, trailer=False)


@pytest.mark.parametrize(
    "sizes",
    [[[("b", 0)]], [[("b", -1)]], [[("n", 1), ("b", 1)]], [[("b", 1), ("b", 1)]], [[("b", i)] for i in range(1, 66)]],
    ids=["zero", "negative", "order", "twice", "many"],
)
def test_hostile_sizes(sizes: Any) -> None:
    notes = _native.Notes("a test", {}, sizes=sizes)
    blob = _native.encode([exported()], jax.__version__, _native.Form(), notes)
    with pytest.raises(jaxexp.DeserializationError, match=r"trailer\.sizes"):
        jaxexp.deserialize(blob)
