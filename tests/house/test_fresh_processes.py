"""What depends on what a process imported before: another JAX than the tested ones, no flatbuffers, lazy names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import jaxexp
from kit import in_forks
from kit.corpus import CASES, export_with
from kit.places import TESTS

pytestmark = [
    pytest.mark.jax,
    pytest.mark.processes(reason="one, whose forks the programs are"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="runs its programs in forks"),
]

NEWER = ("0.12.0.2", "0.13.0.dev20270101+abc")
MOVED = ("jax._src.core.trace_state_clean", "jax._src.interpreters.mlir.merge_mlir_modules",
         "jax._src.export.shape_poly.solve_dim_vars")  # fmt: skip
MODULE = "jax._src.dispatch"
NEWER_PROGRAM = """
import warnings, jax
jax.__version__ = {!r}
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import jaxexp
    jaxexp.export, jaxexp.Exported, jaxexp.load
    import jaxexp
print([str(w.message) for w in seen if "jaxexp" in str(w.message)])
exported = jaxexp.export(jax.jit(lambda x: x + 1))(jax.ShapeDtypeStruct((2,), "float32"))
print(exported.call(jax.numpy.zeros(2, "float32")))
"""
NO_FLATBUFFERS = """
import sys
for name in [name for name in sys.modules if name.startswith(("flatbuffers", "jax._src.export.serialization"))]:
    del sys.modules[name]
sys.modules["flatbuffers"] = None  # as if it were not installed
import jax, jax.numpy as jnp, numpy as np
import jaxexp
exported = jaxexp.export(jax.jit(jnp.sin))(np.zeros(3, np.float32))
loaded = jaxexp.deserialize(exported.serialize(vjp_order=1))
print(loaded.call(np.zeros(3, np.float32)).shape)
try:
    from jax import export
    export.export(jax.jit(jnp.sin))(np.zeros(3, np.float32)).serialize()
except ImportError:
    print("jax.export needs it")
"""
UNCHANGED = """
import numpy as np, jax
from jax import export
from jax._src.export import _export
before = {name: getattr(export, name) for name in export.__all__}
private = dict(vars(_export))
written, read = dict(_export.serialization_registry), dict(_export.deserialization_registry)
import jaxexp
jaxexp.deserialize(jaxexp.export(jax.jit(jax.numpy.sin))(np.float32(1)).serialize()).call(np.float32(1))
assert all(getattr(export, name) is value for name, value in before.items())
assert private.keys() == vars(_export).keys()
assert all(vars(_export)[name] is value for name, value in private.items())
assert _export.serialization_registry == written
new = {name: entry[0] for name, entry in _export.deserialization_registry.items() if name not in read}
assert {name: type_.__name__ for name, type_ in new.items()} == {
    "jaxexp.dict": "dict", "jaxexp.OrderedDict": "OrderedDict", "jaxexp.node": "GenericNode"}, new
assert all(_export.deserialization_registry[name] == entry for name, entry in read.items())
assert type(export.export(jax.jit(jax.numpy.sin))(np.float32(1))) is before["Exported"]
"""
FIRST_EXPORT = """
import sys, jax, numpy as np
import jaxexp
jaxexp.export(jax.jit(jax.numpy.sin))(np.float32(1)).serialize()
print(*sorted(name for name in sys.modules if name.startswith("jaxexp._kernel.") and name.endswith(
    (".cases", ".reader", ".table", ".advice", ".call_arrays", ".primitive"))))
"""
LOADS = {
    "load": "jaxexp.load('f.jaxexp')",
    "load_many": "jaxexp.load_many(['f.jaxexp'])[0]",
    "handle": "jaxexp.Archive.open('fleet.zip')['f'].load()",
    "load_all": "jaxexp.Archive.open('fleet.zip').load_all()[0]",
    "vjp": "jaxexp.load('f.jaxexp').vjp()",
}
PICKLED = "import pickle, jaxexp; f = {}; g = pickle.loads(pickle.dumps(f)); print(g == f, g.has_vjp())"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    folder: Path = tmp_path_factory.mktemp("fresh")
    exported = export_with(jaxexp, CASES["sin"].build())
    exported.save(folder / "f.jaxexp", vjp_order=1)
    with jaxexp.Archive.create(folder / "fleet.zip") as writer:
        writer.add("f", exported, vjp_order=1)
    programs = {
        "old": "import jax; jax.__version__ = '0.10.1'; import jaxexp",
        **{version: NEWER_PROGRAM.format(version) for version in NEWER},
        **{name: f"import jax, jax.export; del {name}; import jaxexp" for name in MOVED},
        MODULE: f"import jax, sys; sys.modules[{MODULE!r}] = None; del {MODULE}; import jaxexp",
        "no flatbuffers": NO_FLATBUFFERS,
        "unchanged": UNCHANGED,
        "first export": FIRST_EXPORT,
        **{name: PICKLED.format(how) for name, how in LOADS.items()},
    }  # fmt: skip
    return in_forks.run(programs, {**os.environ, "PYTHONPATH": str(TESTS)}, folder)


def test_another_jax_is_named(ended) -> None:
    """One that is too new warns once, and works; one that is too old, or lacks a private name, fails at the import."""
    for version in NEWER:
        status, out, err = ended[version]
        assert status == 0, err
        warned, called = out.splitlines()
        assert (warned.count(version), "0.10.2 to 0.12.0.1" in warned, called) == (1, True, "[1. 1.]"), version
    for program, said in {"old": "0.10.1", **{name: name for name in (*MOVED, MODULE)}}.items():
        status, _, err = ended[program]
        last = err.strip().splitlines()[-1]
        assert (status, last.startswith("ImportError: jaxexp ")) == (1, True), last
        assert "0.10.2 to 0.12.0.1" in last and said in last


def test_needs_no_flatbuffers_package(ended) -> None:
    status, out, err = ended["no flatbuffers"]
    assert (status, out) == (0, "(3,)\njax.export needs it\n"), err


def test_jax_export_works_without_being_changed_by_the_import(ended) -> None:
    """All that is new are the node types of jaxexp's own that jax.export can read from now on."""
    status, _, err = ended["unchanged"]
    assert status == 0, err


def test_a_first_export_waits_for_no_code_that_it_does_not_need(ended) -> None:
    """A script exports once in a process, so it waits for every import."""
    assert ended["first export"] == (0, "\n", "")


def test_pickles_of_functions_however_they_were_loaded(ended) -> None:
    """In a process that has used no other name of jaxexp."""
    for name in LOADS:
        assert ended[name] == (0, f"True {name != 'vjp'}\n", ""), name
