"""jaxexp in jax.export's place: for other libraries; and nothing is left behind."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export as jax_export
from jax._src import error_check

import jaxexp
from kit.compare import assert_same_fields
from kit.corpus import arr, f32
from kit.each import each
from kit.installed import STOCK, everything

pytestmark = pytest.mark.jax

# --- real code ------------------------------------------------------------------------------------------------------


@each("writer, reader", [(a, b) for a in ("stock", "installed") for b in ("stock", "installed")])
def test_jax_error_checks(writer: str, reader: str) -> None:
    """JAX's run-time error checks come with wrappers for jax.export, and a node type registered with it."""

    def checked(x: Any) -> Any:
        error_check.set_error_if(x <= 0, "the argument must be positive")
        return x * 2

    def write() -> bytes:
        fun = jax.jit(error_check.wrap_for_export(jax.jit(checked)))
        exported = jax.export.export(fun)(jax.ShapeDtypeStruct((), f32))
        assert type(exported) is (STOCK if writer == "stock" else jaxexp.Exported)
        return bytes(exported.serialize())

    def read(blob: bytes) -> None:
        loaded = jax.export.deserialize(bytearray(blob))
        assert type(loaded) is (STOCK if reader == "stock" else jaxexp.Exported)
        fun = jax.jit(error_check.unwrap_from_import(jax.jit(loaded.call)))
        assert float(fun(f32(3))) == 6
        error_check.raise_if_error()
        fun(f32(-3))
        with pytest.raises(error_check.JaxValueError, match="must be positive"):
            error_check.raise_if_error()

    def run(how: str, work: Any, *args: Any) -> Any:
        if how == "stock":
            return work(*args)
        with jaxexp.install():
            return work(*args)

    run(reader, read, run(writer, write))


def test_jax_array_serialization() -> None:
    """JAX's checkpoints write treedefs with jax.export's private functions, by the registries that jaxexp shares."""
    from jax.experimental.array_serialization import pytree_serialization_utils as utils

    class Theirs(list):
        pass

    class Ours(list):
        pass

    for node in (Theirs, Ours):
        jax.tree_util.register_pytree_node(node, lambda n: (tuple(n), None), lambda _, xs, node=node: node(xs))
    with jaxexp.install():
        for node, library in ((Theirs, utils), (Ours, jax_export)):
            library.register_pytree_node_serialization(
                node,
                serialized_name=f"test_install.{node.__name__}",
                serialize_auxdata=lambda aux: b"",
                deserialize_auxdata=lambda data: None,
            )
        tree = {"a": Theirs([arr(1), Ours([arr(2)])])}
        structure = jax.tree.structure(tree)
        assert utils.deserialize_pytreedef(utils.serialize_pytreedef(structure)) == structure
        blob = jax_export.export(jax.jit(lambda t: t))(tree).serialize()
        assert jax_export.deserialize(blob).in_tree == jax.tree.structure(((tree,), {}))
    loaded = jax_export.deserialize(blob)  # what was registered while jaxexp was installed is known afterwards
    assert type(loaded) is STOCK
    assert_same_fields(loaded, jaxexp.deserialize(blob), as_written=True)


ORBAX = """
import sys
sys.path[:0] = {tests!r}
import jax, jax.numpy as jnp, numpy as np, jaxexp
from jax import export
from orbax import export as orbax
from orbax.export import utils
from kit.compare import assert_same_fields, assert_same_values, module_interface

params = {{"w": np.ones((4, 3), np.float32), "b": np.zeros(3, np.float32)}}
x = np.linspace(0, 1, 20, dtype=np.float32).reshape(5, 4)

def apply(params, x):
    return jnp.tanh(x @ params["w"] + params["b"])

def save(folder):
    module = orbax.JaxModule(params, apply, input_polymorphic_shape="b, 4", jax2tf_kwargs={{}})
    saved = module.obm_module_to_jax_exported_map(jax.ShapeDtypeStruct((2, 4), np.float32))
    utils.save_jax_exported_map(folder, saved, vjp_order=1)
    return saved

def load(folder):
    return utils.load_jax_exported_map(folder)

stock = save({folder!r} + "/stock")
with jaxexp.install():
    ours = save({folder!r} + "/ours")
    loaded = load({folder!r} + "/stock"), load({folder!r} + "/ours")
by_jax = load({folder!r} + "/stock"), load({folder!r} + "/ours")
(name,) = stock
assert type(stock[name]) is type(by_jax[0][name]) is type(by_jax[1][name]) is export.Exported
assert type(ours[name]) is type(loaded[0][name]) is type(loaded[1][name]) is jaxexp.Exported
for one in (ours, *loaded, *by_jax):
    assert_same_fields(one[name], stock[name], module=False, as_written=True)
    assert module_interface(one[name]) == module_interface(stock[name])
    assert_same_values(one[name].call(params, x), apply(params, x))
print("fine")
"""


@pytest.mark.processes(reason="TensorFlow changes the process that imports it")
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("orbax", "tensorflow"))),
    reason="needs TensorFlow (2 GB), without which orbax-export cannot be imported: pip install '.[orbax]'",
)
def test_orbax_export(tmp_path, subprocess_env) -> None:
    code = ORBAX.format(folder=str(tmp_path), tests=[str(p) for p in sys.path if p.endswith("tests")])
    env = subprocess_env(TF_CPP_MIN_LOG_LEVEL="3")
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr


# --- no trace -------------------------------------------------------------------------------------------------------


def test_only_public_names_change_while_installed() -> None:
    before = everything()
    with jaxexp.install():
        changed = {name for name, value in everything().items() if before.get(name) != value}
    # Two constants are equal numbers, and symbolic shapes are JAX's own on both sides.
    public = {f"jax.export.{name}" for name in jax_export.__all__}
    assert changed <= public
    assert {f"jax.export.{name}" for name in ("export", "deserialize", "Exported", "DisabledSafetyCheck")} <= changed
    assert not any("_src" in name for name in changed)


@each("error, depth", [(error, n) for error in (None, KeyError, KeyboardInterrupt, SystemExit) for n in (1, 3)])
def test_nothing_is_left(error, depth: int) -> None:
    before = everything()

    def nest(level: int) -> None:
        with jaxexp.install():
            assert jax_export.export is jaxexp.export
            if level < depth:
                nest(level + 1)
                assert jax_export.export is jaxexp.export
            elif error:
                raise error("inside")
            jax_export.deserialize(jax_export.export(jax.jit(jnp.sin))(arr(2)).serialize()).call(arr(2))

    with pytest.raises(error) if error else contextlib.nullcontext():
        nest(1)
    assert everything() == before


def test_nothing_is_left_by_generators_and_late_ends() -> None:
    """Installations that do not end in the order in which they began."""
    first, second = jaxexp.install(), jaxexp.install()
    with first:
        assert jax_export.export is jaxexp.export
    assert jax_export.export is jaxexp.export
    with second:
        pass
    assert jax_export.export is not jaxexp.export
    jaxexp.uninstall()


def test_nothing_is_left_by_threads() -> None:
    start = threading.Barrier(8)

    def work(_: int) -> None:
        start.wait()
        for _ in range(200):
            with jaxexp.install():
                assert (jax_export.export, jax_export.Exported) == (jaxexp.export, jaxexp.Exported)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
