"""Equal functions share what JAX makes of them, and different functions do not."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp import _native
from jaxexp._kernel.call import shared
from jaxexp._kernel.function import data
from kit import forged, wire
from kit.corpus import EFFECTS, arr, spec
from kit.each import each
from kit.steps import counted

pytestmark = pytest.mark.jax


@pytest.fixture
def count() -> Iterator[collections.Counter[str]]:
    """What JAX does from now on, when nothing is compiled yet."""
    jax.clear_caches()
    with counted() as found:
        yield found


def load(function: Any, *specs: Any, vjp_order: int = 0) -> jaxexp.Exported:
    return jaxexp.deserialize(blob_of(function, *specs, vjp_order=vjp_order))


def blob_of(function: Any, *specs: Any, vjp_order: int = 0) -> bytes:
    return bytes(jaxexp.export(jax.jit(function))(*specs).serialize(vjp_order=vjp_order))


def cube(x: Any) -> Any:
    return x**3


def test_as_often_as_in_jax_export(count: Any) -> None:
    """Or fewer times: jax.export compiles functions with VJPs, or with symbolic dimensions, at each load."""
    (b,) = jaxexp.symbolic_shape("b")
    for dimension, order, expected in ((3, 0, 1), (3, 1, 2), (b, 0, 2)):
        blob, compiled = blob_of(cube, spec((dimension,)), vjp_order=order), []
        for library in (jaxexp, jax_export):
            jax.clear_caches()
            count.clear()
            for _ in range(2):
                found = library.deserialize(bytearray(blob)).call(arr(3))
                np.testing.assert_allclose(found, arr(3) ** 3, rtol=1e-6)
            compiled.append(count["compiled"])
            assert count["lowered"] == count["compiled"]
        assert compiled == [1, expected]


def test_calls_and_gradients_share_code(count: Any) -> None:
    """As in jax.export: the function is compiled for a call, or for the first gradient, and its VJP."""
    for first in (0, 1):

        def used(call: Any, first: int = first) -> list[Any]:
            uses = [lambda: call(arr(3)), lambda: jax.grad(lambda x: call(x)[0])(arr(3))]
            return [use() for use in uses[:: 1 - 2 * first]]

        for library in (jaxexp, jax_export):
            jax.clear_caches()
            other, blob = (blob_of(function, arr(3), vjp_order=1) for function in (jnp.sin, cube))
            used(library.deserialize(bytearray(other)).call)  # what JAX itself compiles
            count.clear()
            results = used(library.deserialize(bytearray(blob)).call)
            assert count["compiled"] == 2
            np.testing.assert_allclose(results, used(cube), rtol=1e-6)


def test_a_gradient_shares_the_code_of_a_call_with_trees(count: Any) -> None:
    """With dicts, keywords, results in trees, and weights beside the program."""
    params = {"w": arr(3, 3), "b": arr(3)}

    def loaded(function: Any) -> jaxexp.Exported:
        def model(params: Any, x: Any, *, scale: Any) -> Any:
            return {"y": function(x @ params["w"]) * scale, "none": None, "both": (x, params["b"])}

        exported = jaxexp.export(jax.jit(model))(params, arr(2, 3), scale=arr())
        return jaxexp.deserialize(exported.serialize(vjp_order=1))

    def compiled(call: Any, *given: Any) -> tuple[int, int]:
        count.clear()
        call(*given, arr(2, 3), scale=arr())
        once = count["compiled"]
        jax.grad(lambda x: call(*given, x, scale=arr())["y"].sum())(arr(2, 3))
        return once, count["compiled"] - once

    compiled(loaded(jnp.sin).call, params)  # and what JAX itself compiles
    compiled(loaded(jnp.sin).bind(params).call)
    assert compiled(loaded(jnp.cos).call, params) == (1, 1)
    assert compiled(loaded(jnp.tanh).bind(params).call) == (1, 1)


class Box:
    """Tells apart the arrays that it is made of."""

    made_of: set[bool] = set()  # noqa: RUF012

    def __init__(self, x: Any) -> None:
        self.x = x
        Box.made_of.add(isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer))


jax.tree_util.register_pytree_node(Box, lambda box: ((box.x,), None), lambda _, children: Box(*children))


def test_a_gradient_makes_no_object_of_arrays() -> None:
    """Classes of users see what they see in jax.export."""
    exported = jaxexp.export(jax.jit(lambda box, y: {"box": Box(box.x * y)}))(Box(arr(3)), arr(3))
    jax_export.register_pytree_node_serialization(
        Box, serialized_name="Box", serialize_auxdata=lambda _: b"", deserialize_auxdata=lambda _: None
    )
    blob = exported.serialize(vjp_order=1, strict=True)
    for library in (jaxexp, jax_export):
        loaded, box = library.deserialize(bytearray(blob)), Box(arr(3))
        loaded.call(box, arr(3))
        Box.made_of.clear()
        gradient = jax.grad(lambda y, box=box, loaded=loaded: loaded.call(box, y)["box"].x.sum())(arr(3))
        np.testing.assert_allclose(gradient, arr(3), rtol=1e-6)
        assert Box.made_of == {False}


def test_modes_that_look_at_results() -> None:
    loaded = jaxexp.deserialize(blob_of(jnp.log, arr(3), vjp_order=1))
    for mode in (jax.debug_nans, jax.debug_infs):
        for _ in range(2):
            with mode(True), pytest.raises(FloatingPointError):
                jax.grad(lambda x: loaded.call(x).sum())(np.array([0, -1, np.inf], np.float32))


def test_with_symbolic_dimensions_too(count: Any) -> None:
    """Although each load has dimensions of its own, which JAX compares only within one scope."""
    for constraints in ((), ("b >= 2",)):
        (b,) = jaxexp.symbolic_shape("b", constraints=constraints)
        blob = blob_of(cube, spec((b, 3)), vjp_order=1)
        count.clear()
        for _ in range(2):
            for n in (2, 4):
                assert jaxexp.deserialize(blob).call(arr(n, 3)).shape == (n, 3)
        assert count["compiled"] <= 2
        with pytest.raises(jaxexp.errors.ExportError, match="b >= 2") if constraints else contextlib.nullcontext():
            jaxexp.deserialize(blob).call(arr(1, 3))


def test_copies(count: Any) -> None:
    exported = jaxexp.export(jax.jit(cube))(arr(3))
    loaded = jaxexp.deserialize(exported.serialize(vjp_order=1))
    for function in (exported, loaded):
        count.clear()
        for _ in range(2):
            dataclasses.replace(function).call(arr(3))
        assert count["compiled"] == 1
    count.clear()
    other = dataclasses.replace(loaded, fun_name="other")
    other.call(arr(3))
    assert other != loaded
    assert count["compiled"] == 1


def test_derivatives_of_each_load(count: Any) -> None:
    for dimension in (3, *jaxexp.symbolic_shape("b")):
        blob = blob_of(cube, spec((dimension,)), vjp_order=2)
        for again in range(2):
            count.clear()
            loaded = jaxexp.deserialize(blob)
            first = jax.grad(lambda x, f=loaded: f.call(x).sum())
            np.testing.assert_allclose(first(arr(3)), 3 * arr(3) ** 2, rtol=1e-6)
            np.testing.assert_allclose(jax.grad(lambda x, g=first: g(x).sum())(arr(3)), 6 * arr(3), rtol=1e-6)
            np.testing.assert_allclose(loaded.vjp().call(arr(3), arr(3))[0], 3 * arr(3) ** 3, rtol=1e-6)
            assert count["compiled"] == 0 or not again


def test_other_functions_with_the_same_signature() -> None:
    """Modules of one length that differ in one constant, and functions that differ only in their derivatives."""

    def with_derivative(factor: float) -> Any:
        @jax.custom_vjp
        def function(x: Any) -> Any:
            return x * 1.0

        function.defvjp(lambda x: (x * 1.0, None), lambda _, ct: (ct * factor,))
        return function

    plain = [blob_of(lambda x, c=c: x * c, arr(3)) for c in (2.0, 3.0)]
    assert len(plain[0]) == len(plain[1])
    derived = [blob_of(with_derivative(c), arr(3), vjp_order=1) for c in (2.0, 3.0)]
    for _ in range(2):
        for one, other, factor in zip(plain, derived, (2, 3), strict=True):
            np.testing.assert_allclose(jaxexp.deserialize(one).call(arr(3)), factor * arr(3), rtol=1e-6)
            loaded = jaxexp.deserialize(other)
            np.testing.assert_allclose(loaded.call(arr(3)), arr(3), rtol=1e-6)
            gradient = jax.grad(lambda x, f=loaded: f.call(x).sum())(arr(3))
            np.testing.assert_allclose(gradient, np.full(3, factor), rtol=1e-6)


@dataclasses.dataclass(frozen=True)
class Note:
    text: str = dataclasses.field(compare=False)  # so that they all are equal


@dataclasses.dataclass
class Noted:
    value: Any
    note: Note


jax.tree_util.register_pytree_node(Noted, lambda one: ([one.value], one.note), lambda note, of: Noted(of[0], note))
jaxexp.register_pytree_node_serialization(
    Noted,
    serialized_name="tests.Noted",
    serialize_auxdata=lambda note: note.text.encode(),
    deserialize_auxdata=lambda text: Note(text.decode()),
)


def test_results_are_in_each_functions_own_tree(count: Any) -> None:
    """Equal trees may be of different nodes: the keys 1 and True, and data that compares as its class likes."""

    def function_of(key: Any, text: str) -> jaxexp.Exported:
        def make(x: Any) -> Any:
            return [{key: x}, Noted(x, Note(text))]

        return load(make, arr(2))

    for cases in ([(1, "one"), (True, "one")], [(1, "one"), (1, "two")]):
        functions = [function_of(*case) for case in cases]
        assert functions[0].out_tree == functions[1].out_tree
        count.clear()
        for _ in range(2):
            for function, (key, text) in zip(functions, cases, strict=True):
                (found,), noted = function.call(arr(2))
                assert type(found) is type(key) and noted.note.text == text
        assert count["compiled"] <= 2


def test_one_function_on_several_meshes() -> None:
    """Compiled for each, as the same function is."""
    meshes = [jax.make_mesh((2,), ("x",), devices=jax.devices()[i : i + 2]) for i in (0, 2)]
    sharding = [jax.NamedSharding(m, jax.P("x")) for m in meshes]
    blob = blob_of(lambda x: x * 2, jax.ShapeDtypeStruct((4,), np.float32, sharding=sharding[0]))
    for where in sharding * 2:
        found = jaxexp.deserialize(blob).call(jax.device_put(arr(4), where))
        assert found.sharding.is_equivalent_to(where, 1)
        np.testing.assert_allclose(found, 2 * arr(4), rtol=1e-6)


def test_damage_is_found_where_a_good_copy_was_called() -> None:
    """Also where the good copy's code could have been used: each artifact's module is compared with its digest."""
    blob = blob_of(lambda x: x * 7 + 1, arr(3))
    jaxexp.deserialize(blob).call(arr(3))
    module = jaxexp.deserialize(blob).mlir_module_serialized
    at = blob.index(module) + len(module) // 2
    damaged = blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]
    with pytest.raises(jaxexp.errors.DeserializationError):
        jaxexp.deserialize(damaged).call(arr(3))


def test_functions_that_were_used_last_are_kept(monkeypatch: pytest.MonkeyPatch, count: Any) -> None:
    monkeypatch.setattr(shared, "MOST_FUNCTIONS", 2)
    blobs = [blob_of(lambda x, c=c: x * c, arr(3)) for c in range(3)]
    for number, compiled in ((0, 1), (1, 1), (0, 0), (2, 1), (0, 0), (1, 1)):
        count.clear()
        jaxexp.deserialize(blobs[number]).call(arr(3))
        assert count["compiled"] == compiled, number


@each("limit, most, size, kept", [("MOST_FUNCTIONS", 1, 3, 1), ("MOST_MODULE_BYTES", 3 << 20, 1 << 18, 2)])
def test_functions_that_nobody_has_are_freed(
    limit: str, most: int, size: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their code, and without jax.clear_caches: a server that loads one after the other keeps the last of them."""
    monkeypatch.setattr(shared, limit, most)
    references = []
    for number in range(5):
        constant = np.random.default_rng(number).random(size).astype(np.float32)
        loaded = load(lambda x, constant=constant: x + constant, spec((size,)))
        loaded.call(constant)
        references.append(weakref.ref(shared.first_of_equals(loaded)))
    del loaded
    gc.collect()
    assert [reference() is None for reference in references] == [True] * (5 - kept) + [False] * kept


LARGE = 1 << 18  # numbers of four bytes: so many that a file is read in parts


def large(constant: Any) -> jaxexp.Exported:
    return jaxexp.export(jax.jit(lambda x: x * constant), reproducible=True)(spec((LARGE,), constant.dtype))


def saved_twice(folder: Path) -> tuple[jaxexp.Exported, jaxexp.Exported, Callable[[], object]]:
    """Two loads of equal files, and what cuts the first file."""
    exported, (one, other) = large(np.linspace(0, 1, LARGE, dtype=np.float32)), (folder / "one", folder / "other")
    for path in (one, other):
        exported.save(path, vjp_order=1)
    return jaxexp.load(one), jaxexp.load(other), lambda: os.truncate(one, 2000)


def with_unknown_effect(_: Path) -> tuple[jaxexp.Exported, jaxexp.Exported, Callable[[], object]]:
    """Two loads of an artifact whose VJP cannot be decoded."""
    exported = jaxexp.export(jax.jit(jnp.sin))(spec((LARGE,)))
    vjp = dataclasses.replace(exported.vjp(), unordered_effects=(EFFECTS["unordered"],), _get_vjp=None)
    blob = dataclasses.replace(exported, _get_vjp=lambda _: vjp).serialize(vjp_order=1)
    name = wire.read(blob, "vjp.unordered_effects.0.type_name")
    wire.write(blob, "vjp.unordered_effects.0.type_name", name.replace("Unordered", "Undrrdeeo"))
    one, other = (jaxexp.deserialize(bytes(wire.seal(blob))) for _ in range(2))
    return one, other, lambda: None


@each("made, is_called", [(saved_twice, True), (saved_twice, False), (with_unknown_effect, True)])
def test_no_function_spoils_an_equal_one(made: Any, is_called: bool, tmp_path: Path) -> None:
    """JAX's caches compare functions whenever they like: what cannot be read of one is no error of the other."""
    one, other, spoil = made(tmp_path)
    x, call = arr(LARGE), jax.jit(lambda function, x: function.call(x), static_argnums=0)
    if is_called:
        one.call(x), call(one, x)
    spoil()
    assert hash(one) == hash(other)
    assert len({one, other}) == 2
    np.testing.assert_array_equal(other.call(x), call(other, x))
    if made is saved_twice:
        gradient = jax.grad(lambda x: other.call(x).sum())(x)
        np.testing.assert_allclose(gradient, np.linspace(0, 1, LARGE), rtol=1e-6)


def test_modules_of_one_digest_are_told_apart(tmp_path: Path) -> None:
    """Also those of files that nobody has read: somebody can make others of the same digest."""
    somewhere = np.arange(LARGE, dtype=np.uint32)
    pair = forged.pair(LARGE, large(somewhere).mlir_module_serialized.index(somewhere.tobytes()))
    for name, constant in zip("ab", pair, strict=True):
        large(constant).save(tmp_path / name)
    assert len({_native.digest(large(constant).mlir_module_serialized) for constant in pair}) == 1
    one, other = (jaxexp.load(tmp_path / name) for name in "ab")
    call = jax.jit(lambda function, x: function.call(x), static_argnums=0)
    for function, constant in zip((one, other), pair, strict=True):
        np.testing.assert_array_equal(call(function, np.ones(LARGE, np.uint32)), constant)
    assert one != other


def test_modules_of_two_digests_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[Any]()
    monkeypatch.setattr(data, "_unchecked", read.append)
    for name, step in (("a", 1), ("b", 2)):
        large(np.arange(0, LARGE * step, step, dtype=np.uint32)).save(tmp_path / name)
    one, other = (jaxexp.load(tmp_path / name) for name in "ab")
    assert hash(one) == hash(other), "or nothing is compared"
    assert one != other
    assert not read
