"""Whatever is made of a function that a policy allowed, in whichever way it was loaded, runs the code that the policy
wants, and never what was compiled for an equal function that no policy saw.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp

pytestmark = pytest.mark.jax

POLICY = jaxexp.Policy()
LATE = "check after calls"
N = 2000
# All keys are equal. So a stable sort leaves the values in their order, and an unstable one does not.
KEYS, VALUES = np.zeros(N, np.float32), np.arange(N, dtype=np.float32)
WEIGHTS = {"w": VALUES}
EXPECTED = VALUES * VALUES


def ordered(values: Any, keys: Any) -> Any:
    _, found = jax.lax.sort((keys, values["w"]), num_keys=1, is_stable=False)
    return found * jnp.arange(N, dtype=np.float32)


@pytest.fixture(scope="module")
def blob() -> bytes:
    return bytes(jaxexp.export(jax.jit(ordered))(WEIGHTS, KEYS).serialize(vjp_order=2))


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    jax.clear_caches()
    yield
    jaxexp.compile_cache(None)


def saved(blob: bytes, folder: Path) -> Path:
    (folder / "plain.jaxexp").write_bytes(blob)
    return folder / "plain.jaxexp"


def saved_with_weights(blob: bytes, folder: Path) -> Path:
    jaxexp.deserialize(blob).bind(WEIGHTS).save(folder / "bound.jaxexp", vjp_order=2)
    return folder / "bound.jaxexp"


def archived(path: Path, folder: Path) -> jaxexp.Archive:
    with jaxexp.Archive.create(folder / "all.zip") as writer:
        writer.add("f", jaxexp.load(path), vjp_order=2)
    return jaxexp.Archive.open(folder / "all.zip")


def checked_after_calls(function: jaxexp.Exported, *args: Any) -> jaxexp.Exported:
    """What JAX keeps by the function itself must not be used again."""
    mapped_and_derived(function.call, *args)
    if len(args) == 2:
        gradient(function)
    POLICY.check(function)
    return function


LOADED: dict[str, Callable[[bytes, Path], Any]] = {
    "deserialize": lambda blob, _: jaxexp.deserialize(blob, policy=POLICY),
    "load": lambda blob, folder: jaxexp.load(saved(blob, folder), policy=POLICY),
    "load_many": lambda blob, folder: jaxexp.load_many([saved(blob, folder)] * 2, policy=POLICY)[1],
    "load_all": lambda blob, folder: archived(saved(blob, folder), folder).load_all(policy=POLICY)[0],
    "Handle.load": lambda blob, folder: archived(saved(blob, folder), folder)["f"].load(policy=POLICY),
    "load with weights": lambda blob, folder: jaxexp.load(saved_with_weights(blob, folder), policy=POLICY),
    "load_all with weights": lambda blob, folder: archived(saved_with_weights(blob, folder), folder).load_all(
        policy=POLICY
    )[0],
    LATE: lambda blob, _: checked_after_calls(jaxexp.deserialize(blob), WEIGHTS, KEYS),
    f"{LATE} with weights": lambda blob, folder: checked_after_calls(
        jaxexp.load(saved_with_weights(blob, folder)), KEYS
    ),
}
MADE: dict[str, Callable[[Any], Any]] = {
    "replace": lambda f: dataclasses.replace(f, fun_name="other"),
    "deepcopy": copy.deepcopy,
    "pickle": lambda f: pickle.loads(pickle.dumps(f)),
    "from_jax": lambda f: jaxexp.Exported.from_jax(f.to_jax()),
    "specialize": lambda f: f.specialize(*jax.tree_util.tree_unflatten(f.in_tree, f.in_avals)[0]),
    "bind": lambda f: f.bind(WEIGHTS),
    "unbound": lambda f: f.bind(WEIGHTS).unbound,
    "with_weights": lambda f: f.bind(WEIGHTS).with_weights(WEIGHTS),
    "a pytree": lambda f: jax.tree_util.tree_map(lambda leaf: leaf, f.bind(WEIGHTS)),
    "specialized with weights": lambda f: f.bind(WEIGHTS).specialize(jax.ShapeDtypeStruct((N,), np.float32)),
}
# Each way to load a function, and each way to make another of one that was loaded, and of one that was checked late.
PAIRS = [(way, "itself") for way in LOADED] + [(way, made) for made in MADE for way in ("load", LATE)]


def mapped_and_derived(call: Callable[..., Any], *args: Any) -> dict[str, Any]:
    *others, keys = args
    zeros = jax.tree_util.tree_map(np.zeros_like, args)
    return {
        "call": call(*args),
        "jit": jax.jit(call)(*args),
        "vjp": jax.vjp(call, *args)[0],
        "jvp": jax.jvp(call, args, zeros)[0],
        "linearize": jax.linearize(call, *args)[0],
        "vmap": jax.vmap(call, in_axes=(None,) * len(others) + (0,))(*others, keys[None])[0],
        "vmap of vjp": jax.vmap(lambda keys: jax.vjp(lambda x: call(*others, x), keys)[0])(keys[None])[0],
    }


def assert_stable(call: Callable[..., Any], *args: Any) -> None:
    for what, found in mapped_and_derived(call, *args).items():
        np.testing.assert_array_equal(found, EXPECTED, err_msg=what)


def gradient(function: jaxexp.Exported) -> Any:
    return jax.grad(lambda weights: function.call(weights, KEYS).sum())(WEIGHTS)["w"]


def test_the_sort_is_unstable(blob: bytes, tmp_path: Path) -> None:
    """Or else nothing here could fail."""
    function = jaxexp.deserialize(blob)
    assert not np.array_equal(function.call(WEIGHTS, KEYS), EXPECTED)
    assert not np.array_equal(gradient(function), VALUES)
    assert not np.array_equal(jaxexp.load(saved_with_weights(blob, tmp_path)).call(KEYS), EXPECTED)


@pytest.mark.wide(one_in=6, promise="what is made of an allowed function runs the code that the policy wants")
@pytest.mark.parametrize(("loaded", "made"), PAIRS)
def test_functions(loaded: str, made: str, blob: bytes, tmp_path: Path) -> None:
    function = MADE.get(made, lambda f: f)(LOADED[loaded](blob, tmp_path))
    arguments = (KEYS,) if isinstance(function, jaxexp.BoundExported) else (WEIGHTS, KEYS)
    assert_stable(function.call, *arguments)
    np.testing.assert_array_equal(gradient(function.unbound), VALUES)


def test_equal_functions_share_nothing_across_a_policy(blob: bytes, tmp_path: Path) -> None:
    """Neither in the process nor in a compile cache nor what `precompile` compiles, whichever was first."""
    for is_first in (True, False):  # the second time, code comes from the folder
        jaxexp.compile_cache(tmp_path / "cache")
        checked = jaxexp.deserialize(blob, policy=POLICY) if is_first else None
        trusted = jaxexp.deserialize(blob)
        trusted.precompile()
        gradient(trusted)
        assert not np.array_equal(trusted.call(WEIGHTS, KEYS), EXPECTED)
        checked = checked or jaxexp.deserialize(blob, policy=POLICY)
        assert checked != trusted
        assert_stable(checked.call, WEIGHTS, KEYS)
        np.testing.assert_array_equal(gradient(checked), VALUES)
        assert not np.array_equal(jaxexp.deserialize(blob).call(WEIGHTS, KEYS), EXPECTED)
        jaxexp.compile_cache(None)
        jax.clear_caches()


def test_a_late_check_leaves_the_hash(blob: bytes) -> None:
    """And functions that no policy saw keep their code, whichever of them was called first."""
    function, equal = (jaxexp.deserialize(blob) for _ in range(2))
    table, plain = {function: "found"}, {function, equal}
    unstable = function.call(WEIGHTS, KEYS)
    np.testing.assert_array_equal(equal.call(WEIGHTS, KEYS), unstable)
    POLICY.check(function)
    assert table[function] == "found" and len(plain) == 1
    assert hash(function) == hash(equal) and function != equal
    assert_stable(function.call, WEIGHTS, KEYS)
    gradients = [gradient(one) for one in (function, equal)]
    assert not np.array_equal(*gradients)
    for one in (equal, jaxexp.deserialize(blob)):
        np.testing.assert_array_equal(one.call(WEIGHTS, KEYS), unstable)
        np.testing.assert_array_equal(jax.jit(one.call)(WEIGHTS, KEYS), unstable)


def test_a_function_that_was_not_loaded_may_be_checked_after_its_derivatives() -> None:
    function = jaxexp.export(jax.jit(ordered))(WEIGHTS, KEYS)
    assert not np.array_equal(gradient(function), VALUES)
    POLICY.check(function)
    np.testing.assert_array_equal(gradient(function), VALUES)


def test_what_was_made_of_a_function_may_be_checked_later(blob: bytes) -> None:
    trusted = jaxexp.deserialize(blob)
    for function in (MADE["specialize"](trusted), MADE["replace"](trusted), MADE["from_jax"](trusted)):
        POLICY.check(function)
        np.testing.assert_array_equal(function.call(WEIGHTS, KEYS), EXPECTED)
        np.testing.assert_array_equal(gradient(function), VALUES)
    one, other = (jaxexp.deserialize(blob, policy=POLICY) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
