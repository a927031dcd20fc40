"""jaxexp in jax.export's place: code of others does what it did, the log is shown, and nothing is left behind."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax._src import error_check

import jaxexp
from jaxexp._compat.install import _OURS
from kit.compare import assert_same_fields
from kit.corpus import arr, f32
from kit.each import each
from kit.installed import STOCK, everything

pytestmark = pytest.mark.jax

# --- code written for jax.export ------------------------------------------------------------------------------------

USER = '''
"""A module that knows jax.export alone."""
import collections
import itertools
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import export

numbers = itertools.count()
x = np.arange(6, dtype=np.float32).reshape(2, 3)


@jax.jit
def f(x, y=None, *, scale=1.0):
    return {"r": jnp.sin(x) * scale, "s": (x.sum() if y is None else y)}


def reload(exported, order=0):
    assert isinstance(exported, export.Exported)
    loaded = export.deserialize(exported.serialize(vjp_order=order))
    assert isinstance(loaded, export.Exported) and isinstance(loaded, jax.export.Exported)
    return loaded


def results():
    """Values and facts by name."""
    found = {}
    exported = export.export(f)(x, x, scale=np.float32(2))
    loaded = reload(exported, 1)
    found["call"] = loaded.call(x, x, scale=np.float32(2))
    found["jit"] = jax.jit(loaded.call)(x, x, scale=np.float32(3))
    found["grad"] = jax.grad(lambda x: loaded.call(x, x, scale=np.float32(2))["r"].sum())(x)
    found["vjp"] = loaded.vjp().fun_name, loaded.has_vjp(), loaded.vjp().has_vjp()
    found["same module"] = loaded.mlir_module_serialized == exported.mlir_module_serialized

    b, c = export.symbolic_shape("b, 2*c", constraints=["b >= 2"])
    flat = jax.jit(lambda x: x.reshape(-1) + x.shape[0])
    symbolic = reload(export.export(flat)(jax.ShapeDtypeStruct((b, c), x.dtype)))
    found["symbolic"] = symbolic.call(x[:, :2]), [str(d) for d in symbolic.in_avals[0].shape]
    scope = export.SymbolicScope()
    specs = export.symbolic_args_specs((x, x), ("n, _", None), scope=scope)
    found["args specs"] = [str(s.shape) for s in specs]
    found["symbolic call"] = reload(export.export(f)(*specs)).call(np.ones((5, 3), np.float32), x)

    checks = [export.DisabledSafetyCheck.platform(), export.DisabledSafetyCheck.custom_call("my_call")]
    unchecked = reload(export.export(f, platforms=["tpu"], disabled_checks=checks)(x))
    found["checks"] = [(str(c), c.is_custom_call()) for c in unchecked.disabled_safety_checks]
    found["unchecked call"] = unchecked.call(x)

    class Box:
        def __init__(self, x, label):
            self.x, self.label = x, label

    jax.tree_util.register_pytree_node(Box, lambda b: ((b.x,), b.label), lambda label, xs: Box(*xs, label))
    number = next(numbers)
    export.register_pytree_node_serialization(
        Box, serialized_name=f"{__name__}.Box{number}", serialize_auxdata=str.encode,
        deserialize_auxdata=lambda data: bytes(data).decode())
    pair = export.register_namedtuple_serialization(
        collections.namedtuple("pair", "a b"), serialized_name=f"{__name__}.pair{number}")
    tree = pair(Box(x, "label"), {"k": [x]})
    loaded = reload(export.export(jax.jit(lambda t: t))(tree), 1)
    result = loaded.call(tree)
    found["registered"] = type(result) is pair, type(result.a) is Box, result.a.label, result.b["k"][0]

    inner = reload(export.export(f)(x), 1)
    outer = reload(export.export(jax.jit(lambda x: inner.call(x)["r"] * 2))(x), 1)
    found["nested"] = outer.call(x), jax.grad(lambda x: outer.call(x).sum())(x)
    return found
'''


def plain(value: Any) -> Any:
    """Results as they compare: arrays by what they hold, symbolic dimensions by what they say."""
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (np.ndarray, jax.Array)):
        return str(value.dtype), value.shape, np.asarray(value).round(5).tolist()
    return value


@pytest.mark.wide(one_in=2, promise="code for jax.export gives the same results, whenever it was imported")
@pytest.mark.parametrize("importing", [contextlib.nullcontext, jaxexp.install])
def test_user_code_gives_the_same_results(importing: Any, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    spec = importlib.util.spec_from_file_location(f"test_install_{importing.__name__}", tmp_path / "user.py")
    module = importlib.util.module_from_spec(spec)
    with importing():
        spec.loader.exec_module(module)

    def kinds() -> set[type]:
        exported = module.export.export(module.f)(module.x)
        return {type(exported), type(module.reload(exported, 1).vjp())}

    stock = plain(module.results())
    assert kinds() == {STOCK}
    with jaxexp.install():
        assert kinds() == {jaxexp.Exported}  # or this would compare jax.export with itself
        found = plain(module.results())
    assert kinds() == {STOCK}
    assert found.keys() == stock.keys()
    assert {k: v for k, v in found.items() if v != stock[k]} == {}


def test_every_name_has_its_place() -> None:
    """What jaxexp has under a name of jax.export is what `install` puts there."""
    assert {name: getattr(jaxexp, name) for name in jax_export.__all__ if hasattr(jaxexp, name)} == {
        name: ours for name, ours in _OURS.items() if name in jax_export.__all__
    }


def test_uninstall_leaves_what_others_put_there(monkeypatch: pytest.MonkeyPatch) -> None:
    logger, others = logging.getLogger("jaxexp"), logging.getLogger("others")
    put = {"deserialize": len, "maximum_supported_calling_convention_version": 7, "Exported": tuple}
    for place, name in [*((jax_export, name) for name in [*put, "SymbolicScope"]), (logger, "parent")]:
        monkeypatch.setattr(place, name, getattr(place, name))  # so that all of them come back at the end
    with jaxexp.install(), jaxexp.install():
        for name, value in put.items():
            setattr(jax_export, name, value)
        del jax_export.SymbolicScope
        logger.parent = others
    assert {name: getattr(jax_export, name) for name in put} == put
    assert not hasattr(jax_export, "SymbolicScope")
    assert logger.parent is others
    assert jax_export.export is not jaxexp.export


# --- what makes jax.export's log visible makes jaxexp's visible ------------------------------------------------------

PROGRAM = """
import jax, jaxexp
from jax import export
if {install}:
    jaxexp.install()
export.export(jax.jit(jax.numpy.sin), platforms=("cpu", "tpu"))(jax.ShapeDtypeStruct((3,), "float32"))
"""


@pytest.fixture
def log_modules():
    yield lambda names: jax.config.update("jax_debug_log_modules", names)
    jax.config.update("jax_debug_log_modules", "")


@pytest.mark.long(
    promise="variables of the environment that show jax.export's log show jaxexp's",
    sibling="test_install.py::test_the_option_shows_the_log",
)
@pytest.mark.processes(reason="JAX reads these variables when it is imported")
@each(
    "variables, is_shown",
    [
        ({"JAX_DEBUG_LOG_MODULES": "jax._src.export", "JAX_LOGGING_LEVEL": "WARNING"}, True),
        ({"JAX_DEBUG_LOG_MODULES": "jax._src.export._export", "JAX_LOGGING_LEVEL": "WARNING"}, True),
        ({"JAX_LOGGING_LEVEL": "DEBUG"}, True),
        ({"JAX_DEBUG_LOG_MODULES": "jax._src.export"}, False),  # without a level, JAX's handler for modules is mute
    ],
)
def test_the_environment_variables_show_the_log(variables: dict[str, str], is_shown: bool, subprocess_env) -> None:
    environment = {name: value for name, value in subprocess_env().items() if name != "JAX_LOGGING_LEVEL"}
    for install in (True, False):
        command = [sys.executable, "-c", PROGRAM.format(install=install)]
        env = {**environment, **variables}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        lines = [line for line in done.stderr.splitlines() if line.startswith("DEBUG:") and "export" in line]
        ours = any("exported sin for ('cpu', 'tpu')" in line and ":jaxexp." in line for line in lines)
        theirs = any("sin" in line and ":jax._src.export." in line for line in lines)
        assert (ours, theirs or install) == (is_shown and install, is_shown or install)
        assert lines == [] or is_shown


def test_the_option_shows_the_log(log_modules, caplog) -> None:
    def shown() -> bool:
        caplog.clear()
        jax_export.export(jax.jit(jnp.sin))(arr(3))
        return any(record.name.startswith("jaxexp") for record in caplog.records)

    with jaxexp.install():
        assert not shown()
        log_modules("jax._src.export")
        assert shown()
        log_modules("")
        assert not shown()
    log_modules("jax._src.export")
    with jaxexp.install():
        assert shown()
        with jaxexp.install():
            assert shown()
        assert shown()
    assert not shown()


def test_uninstall_takes_the_log_away(log_modules) -> None:
    logger = logging.getLogger("jaxexp._kernel.export.export")
    above, level = logging.getLogger("jaxexp").parent, logging.getLogger("jaxexp").level
    log_modules("jax._src.export")
    for _ in range(2):
        assert not logger.isEnabledFor(logging.DEBUG)
        with jaxexp.install():
            assert logger.isEnabledFor(logging.DEBUG)
    assert not logger.isEnabledFor(logging.DEBUG)
    assert (logging.getLogger("jaxexp").parent, logging.getLogger("jaxexp").level) == (above, level)


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
