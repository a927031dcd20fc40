"""Weights that have other names or dtypes where they come from: `rename` and `cast`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import jaxexp
from jaxexp._errors import WeightsError
from kit.each import each
from kit.weighted import X, apply, bound, close, named, params

Arrays = dict[str, Any]


def dotted(name: str) -> str:
    return name.replace("/", ".")


def in_memory(arrays: Arrays, _: Path) -> Any:
    return arrays


def in_file(arrays: Arrays, folder: Path) -> Any:
    safetensors.numpy.save_file({name: np.asarray(array) for name, array in arrays.items()}, folder / "w.safetensors")
    return folder / "w.safetensors"


def on_devices(arrays: Arrays, _: Path) -> Any:
    return {name: jnp.asarray(array) for name, array in arrays.items()}


PLACES = [in_memory, in_file, on_devices]
in_each = each("place", PLACES)


def of_state_dict(seed: int = 1) -> Arrays:
    """The parameters by the names that PyTorch's modules would give them."""
    return {f"model.{dotted(name)}": array for name, array in named(params(seed=seed)).items()}


@pytest.fixture(scope="module")
def model() -> jaxexp.BoundExported:
    return bound()[0]


@in_each
def test_names_of_a_state_dict(place: Any, model: jaxexp.BoundExported, tmp_path: Path) -> None:
    given = place(of_state_dict(), tmp_path)
    tuned = model.with_weights(given, rename=lambda name: f"model.{dotted(name)}")
    assert list(tuned.weights) == list(model.weights)
    tuned.save(tmp_path / "tuned.jaxexp")  # under the function's own names
    again = jaxexp.load(tmp_path / "tuned.jaxexp", verify=True)
    assert list(again.weights) == list(model.weights)
    for one in (tuned, again):
        close(dict(one.weights), named(params(seed=1)))


def test_bind_takes_other_names(tmp_path: Path) -> None:
    given = in_file(of_state_dict(), tmp_path)
    program = jaxexp.export(jax.jit(apply))(params(), X)
    close(program.bind(given, rename=lambda name: f"model.{dotted(name)}").call(X), apply(params(seed=1), X))


def test_a_mapping_has_only_names_that_differ(model: jaxexp.BoundExported) -> None:
    given = named(params(seed=1))
    given["classifier"] = given.pop("head")
    close(model.with_weights(given, rename={"head": "classifier"}).call(X), apply(params(seed=1), X))


def test_a_pytree_with_another_prefix(model: jaxexp.BoundExported) -> None:
    given = {"params": params(seed=1), "step": np.zeros((), np.int32)}
    with pytest.warns(UserWarning, match="given arrays that are not used: 'step'") as warned:
        tuned = model.with_weights(given, rename="params/{}".format)
    assert warned[0].filename == __file__
    close(tuned.call(X), apply(params(seed=1), X))


def test_a_pure_dict_of_nnx() -> None:
    nnx = pytest.importorskip("flax.nnx")
    graphdef, state = nnx.split(nnx.Linear(32, 8, rngs=nnx.Rngs(0)))
    exported = jaxexp.export(jax.jit(lambda x: nnx.merge(graphdef, state)(x)), weights=state)(X)
    assert set(exported.weights) == {"kernel/value", "bias/value"}
    pure = jax.tree.map(lambda array: array * 2, nnx.to_pure_dict(state))
    with pytest.raises(WeightsError, match="other names there, pass rename=lambda") as error:
        exported.with_weights(pure)
    tuned = exported.with_weights(pure, rename=eval(str(error.value).rpartition("rename=")[2]))
    close(tuned.call(X), X @ pure["kernel"] + pure["bias"])


@in_each
def test_places_of_a_tied_weight_are_renamed(place: Any, tmp_path: Path) -> None:
    w, other = (np.full((32, 32), value, np.float32) for value in (0.1, 0.2))
    tree = {"embed": jnp.asarray(w)}
    tree["head"] = tree["embed"]
    model = jaxexp.export(jax.jit(lambda x: x @ tree["embed"] @ tree["head"]), weights=tree)(X)
    rename = {"embed": "wte", "head": "lm_head"}
    close(model.with_weights(place({"wte": other}, tmp_path), rename=rename).call(X), X @ other @ other)
    with pytest.raises(WeightsError, match="'head': expected the same array as 'embed'"):
        model.with_weights(place({"wte": other, "lm_head": w}, tmp_path), rename=rename)


@in_each
def test_what_is_missing_has_the_name_that_was_looked_for(
    place: Any, model: jaxexp.BoundExported, tmp_path: Path
) -> None:
    given = of_state_dict()
    given["model.heads"] = given.pop("model.head")
    given["model.layers.2.bias"] = given.pop("model.layers.2.b")
    with pytest.raises(WeightsError) as error:
        model.with_weights(place(given, tmp_path), rename=lambda name: f"model.{dotted(name)}")
    assert (error.value.path, error.value.expected) == ("model.head", "an array of this name for the weight 'head'")
    assert error.value.found.startswith("no such name among 7, of which 'model.heads' ")
    assert "Also missing: 'model.layers.2.b'" in error.value.found


def test_without_rename_the_error_suggests_it(model: jaxexp.BoundExported) -> None:
    with pytest.raises(WeightsError, match=r"of which 'model.head' is not used\. .* other names there, pass rename=$"):
        model.with_weights(of_state_dict())
    with pytest.raises(WeightsError) as error:
        model.weights_into(of_state_dict())
    assert "rename" not in str(error.value)


def test_rename_that_makes_no_sense() -> None:
    model, given = bound()
    for rename, said in (
        ({"model.head": "head"}, r"rename= maps 'model.head', which is not the name of a weight"),
        ({"layers.0.w": "w"}, r"did you mean 'layers/0/w'\?"),
        ({0: "w"}, "rename= maps 0, which"),
        (3, "takes a mapping or a function of names, not <class 'int'>"),
        (lambda name: None, "has to give the name of an array for 'head', found None"),
        ({"head": 3}, "found 3"),
    ):
        with pytest.raises(jaxexp.errors.ExportError, match=said):
            model.with_weights(given, rename=rename)  # type: ignore[arg-type]


CASTS = [
    (in_memory, "float16"),
    (in_memory, "float64"),
    (in_file, "bfloat16"),
    (in_file, "float64"),
    (on_devices, "bfloat16"),
]


@each("place, dtype", CASTS)
def test_floats_are_cast(place: Any, dtype: str, model: jaxexp.BoundExported, tmp_path: Path) -> None:
    original = {name: np.asarray(array).astype(dtype) for name, array in named(params(seed=1)).items()}
    with jax.enable_x64(True):
        given = place(original, tmp_path)
    with pytest.raises(WeightsError, match=r"expected float32\[32,8\], found .*; cast=True casts it$"):
        model.with_weights(given)
    tuned = model.with_weights(given, cast=True)
    tuned.save(tmp_path / "tuned.jaxexp")
    for found in (tuned, jaxexp.load(tmp_path / "tuned.jaxexp", verify=True)):
        for name, array in found.weights.items():
            np.testing.assert_array_equal(array, original[name].astype(np.float32), strict=True)


def test_only_what_differs_is_cast(model: jaxexp.BoundExported) -> None:
    mixed = named(params())
    mixed["head"] = mixed["head"].astype(jnp.bfloat16)
    tuned = model.with_weights(mixed, cast=True)
    assert tuned.weights["layers/0/w"] is mixed["layers/0/w"]
    assert tuned.weights["head"].dtype == np.float32


@pytest.fixture(scope="module")
def narrow() -> Any:
    given = {
        "f": jnp.ones(4, jnp.bfloat16),
        "i": jnp.arange(4, dtype=jnp.int8),
        "c": jnp.ones(2, jnp.complex64),
        "f4": jnp.ones(4, ml_dtypes.float4_e2m1fn),
    }

    def function(x: Any) -> Any:
        return x + given["f"], given["i"] + 1, given["c"] * 2, given["f4"].astype(jnp.float32)

    return jaxexp.export(jax.jit(function), weights=given)(np.zeros(4, jnp.bfloat16))


@in_each
def test_to_small_dtypes(place: Any, narrow: Any, tmp_path: Path) -> None:
    arrays = {
        "f": np.array([1 / 3, np.inf, -2, 0], np.float64),
        "i": np.array([-128, 127, 0, 5], np.int64),
        "c": np.array([1 + 2j, 3], np.complex64),
        "f4": np.array([0.5, 1.5, -6, 3], np.float32),
    }
    with jax.enable_x64(True):
        given = place(arrays, tmp_path)
    tuned = narrow.with_weights(given, cast=True)
    tuned.save(tmp_path / "tuned.jaxexp")
    for found in (tuned, jaxexp.load(tmp_path / "tuned.jaxexp", verify=True)):
        f, i, c, f4 = found.call(np.zeros(4, jnp.bfloat16))
        np.testing.assert_array_equal(f.astype(np.float32), np.array([0.333984375, np.inf, -2, 0], np.float32))
        np.testing.assert_array_equal(i, np.array([-127, -128, 1, 6], np.int8))
        np.testing.assert_array_equal(c, arrays["c"] * 2)
        np.testing.assert_array_equal(f4, arrays["f4"])


@in_each
def test_what_is_not_cast(place: Any, narrow: Any, tmp_path: Path) -> None:
    whole = {name: np.asarray(array) for name, array in narrow.weights.items()}
    whole["f4"] = whole["f4"].astype(np.float32)  # which any program can write
    for name, array in (
        ("f", np.arange(4, dtype=np.int32)),
        ("i", np.ones(4, np.float32)),
        ("i", np.ones(4, np.bool_)),
        ("c", np.ones(2, np.float32)),
        ("f", np.ones(5, np.float32)),
    ):
        with pytest.raises(WeightsError, match=f"tensor '{name}': expected") as error:
            narrow.with_weights(place({**whole, name: array}, tmp_path), cast=True)
        why = "cast=True only casts floats to floats, complex numbers to complex numbers, and integers to integers"
        assert (why in str(error.value)) == (np.shape(array) == whole[name].shape)
    large = place({**whole, "i": np.array([0, 0, 0, 128], np.int16)}, tmp_path)
    with pytest.raises(
        WeightsError, match=r"'i': expected integers that fit into int8, found int16\[4\] from 0 to 128"
    ):
        narrow.with_weights(large, cast=True).call(np.zeros(4, jnp.bfloat16))  # a file is read by the call


@in_each
def test_no_weight_becomes_infinite(place: Any, narrow: Any, tmp_path: Path) -> None:
    whole = {other: np.asarray(weight) for other, weight in narrow.weights.items()}
    whole["f4"] = whole["f4"].astype(np.float32)
    floats = "f", np.array([1, np.inf, -1e39, np.nan]), r"floats that fit into bfloat16, found float64\[4\] with -1e"
    numbers = "c", np.array([1, 1e300j]), r"floats that fit into complex64, found complex128\[2\] with .*1e\+300j"
    for name, array, said in (floats, numbers) if place is not in_file else (floats,):  # which has no complex128
        with jax.enable_x64(True):
            given = place({**whole, name: array}, tmp_path)
        with pytest.raises(WeightsError, match=f"'{name}': expected {said}"):
            narrow.with_weights(given, cast=True).call(np.zeros(4, jnp.bfloat16))  # a file is read by the call


SMALL = "float4_e2m1fn float8_e4m3fn float8_e4m3b11fnuz float8_e8m0fnu float8_e5m2 float16 bfloat16 float32".split()


@each("dtype", SMALL)
def test_floats_stay_the_numbers_that_they_are(dtype: str) -> None:
    """Some dtypes have no infinity, no NaN, no zero or no negative numbers. NumPy makes others of what they lack."""
    taken = np.dtype(getattr(ml_dtypes, dtype, dtype))
    weights = {"w": np.ones(1, taken)}
    program = jaxexp.export(jax.jit(lambda w, x: w["w"].astype(np.float32) + x))(weights, np.float32(0))
    numbers = (1.0, 4.0, -4.0, 0.0, 1e4, -1e4, np.inf, -np.inf, np.nan)
    for source, number in itertools.product(("float32", "float16", "float8_e5m2"), numbers):
        given = np.dtype(getattr(ml_dtypes, source, source))
        old = np.array([number], given)
        with np.errstate(all="ignore"):
            before, after = (float(x) for x in (old.astype("f4")[0], old.astype("f4").astype(taken).astype("f4")[0]))
        same = after == before or (np.isnan(after) and np.isnan(before)) or abs(after - before) < abs(before) / 2
        try:
            found = program.bind({"w": old}, cast=True).call(np.float32(0))
        except WeightsError as error:
            assert not same or given == taken
            assert f"expected floats that fit into {dtype}, found {source}[1] with" in str(error)
        else:
            assert same, (source, number, found)
            np.testing.assert_array_equal(found, np.float32([after]))


def test_traced_arrays_are_cast(narrow: Any) -> None:
    model, given = bound()

    @jax.jit
    def called(weights: Arrays) -> Any:
        return model.with_weights(weights, rename=dotted, cast=True).call(X)

    halves = {dotted(name): array.astype(jnp.bfloat16) for name, array in named(given).items()}
    expected = apply(jax.tree.map(lambda w: w.astype(jnp.bfloat16).astype(jnp.float32), given), X)
    close(called(halves), expected)
    gradient = jax.grad(lambda weights: called(weights).sum())(halves)
    assert gradient["head"].dtype == jnp.bfloat16
    with pytest.raises(WeightsError, match=r"'i': .* which is being traced"):
        jax.jit(lambda i: narrow.with_weights({**narrow.weights, "i": i}, cast=True).weights["i"])(np.arange(4))


def test_the_given_array_may_change_after_it_was_cast() -> None:
    model, given = bound()
    arrays = {name: np.asarray(array).astype(np.float64) for name, array in named(given).items()}
    tuned = model.with_weights(arrays, cast=True)
    for array in arrays.values():
        array[:] = 0
    close(tuned.call(X), apply(given, X))
