"""The kernel works without any wing: a copy without their folders does what `jax.export` does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import jaxexp
from kit import in_forks
from kit.places import TESTS

PACKAGE = Path(jaxexp.__file__).parent
KEPT = {"_kernel", "_api"}
WINGS = {path.name for path in PACKAGE.iterdir() if path.is_dir()} - KEPT

pytestmark = [pytest.mark.jax, pytest.mark.processes(reason="this one has the wings")]


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., str]:
    """Code that imports a copy of the kernel."""
    shutil.copytree(PACKAGE, tmp_path / "jaxexp", ignore=shutil.ignore_patterns("__pycache__", *WINGS))
    left = {path.name for path in (tmp_path / "jaxexp").iterdir() if path.is_dir()}
    assert left == KEPT
    return lambda code: f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(TESTS)!r}]\n{code}"


VIEW = "import jax, jaxexp; repr(jaxexp.export(jax.jit(lambda x: x))(1.0))"
# Every case: exported, serialized with its VJPs, read, called and differentiated as the live function.
CORPUS = """
import jaxexp
from kit.devices import DEVICES
from kit.compare import assert_same_values
from kit.corpus import CASES, export_with
from kit.derivatives import pull_back

called = differentiated = 0
for name, case in [*CASES.items()][::EVERY]:
    with case.context():
        program = case.build()
        exported = export_with(jaxexp, program)
        loaded = jaxexp.deserialize(exported.serialize(vjp_order=case.vjp_order))
        assert loaded.mlir_module_serialized == exported.mlir_module_serialized, name
        if not program.callable_here or exported.nr_devices > 1:
            continue
        live = program.finish(program.live(*program.args, **program.kwargs))
        assert_same_values(program.finish(loaded.call(*program.args, **program.kwargs)), live)
        called += 1
        if case.vjp_order:
            theirs = pull_back(program.live, program.args, program.kwargs)
            assert_same_values(pull_back(loaded.call, program.args, program.kwargs), theirs)
            differentiated += 1
print(called, differentiated)
"""
WITHOUT_API = """
import pickle, shutil
shutil.rmtree(sys.path[0] + "/jaxexp/_api")
import jax, jax.numpy as jnp
from jaxexp._kernel.exported import Function
from jaxexp._kernel.export.export import Exporting
from jaxexp._kernel.read.decode import reader_of

how = Exporting(Function, ("cpu",), (), None, None, None, False, ())
exported = how.export(jax.jit(jnp.sin), (jax.ShapeDtypeStruct((3,), "float32"),), {})
loaded = reader_of(Function).read(bytes(exported.serialize(vjp_order=1)))
assert type(loaded) is type(exported) is Function
x = jnp.arange(3.0)
assert jnp.allclose(loaded.call(x), jnp.sin(x))
assert jnp.allclose(jax.grad(lambda x: loaded.call(x).sum())(x), jnp.cos(x))
assert pickle.loads(pickle.dumps(loaded)) == loaded
"""


def test_what_the_kernel_does_alone(program: Callable[..., str], subprocess_env) -> None:
    """With the public classes, and without them, as it has a class of its own."""
    programs = {"view": VIEW, "corpus": CORPUS.replace("EVERY", "13"), "class": WITHOUT_API}
    done = in_forks.run({name: program(code) for name, code in programs.items()}, subprocess_env())
    assert "No module named 'jaxexp._view'" in done["view"][2]
    assert (done["corpus"][0], done["class"][0]) == (0, 0), done
    assert min(map(int, done["corpus"][1].split()[-2:])) > 2
