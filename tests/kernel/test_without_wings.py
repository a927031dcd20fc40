"""The kernel works without any wing: a copy without their folders does what `jax.export` does."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import jaxexp
from kit.places import TESTS

PACKAGE = Path(jaxexp.__file__).parent
KEPT = {"_kernel", "_api"}
WINGS = {path.name for path in PACKAGE.iterdir() if path.is_dir()} - KEPT


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to import the kernel from."""
    folder = tmp_path_factory.mktemp("kernel")
    shutil.copytree(PACKAGE, folder / "jaxexp", ignore=shutil.ignore_patterns("__pycache__", *WINGS))
    return folder


def run(copy: Path, code: str) -> str:
    script = f"import sys; sys.path[:0] = [{str(copy)!r}, {str(TESTS)!r}]\n{textwrap.dedent(code)}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_wing_is_left(copy: Path) -> None:
    left = {path.name for path in (copy / "jaxexp").iterdir() if path.is_dir()}
    assert left == KEPT
    with pytest.raises(AssertionError, match=r"No module named 'jaxexp\._view'"):
        run(copy, "import jax, jaxexp; repr(jaxexp.export(jax.jit(lambda x: x))(1.0))")


def test_the_corpus_through_the_kernel(copy: Path) -> None:
    """Every case: exported, serialized with its VJPs, read, called and differentiated as the live function."""
    out = run(
        copy,
        """
        import jaxexp
        from kit.compare import assert_same_values
        from kit.corpus import CASES, export_with
        from kit.derivatives import pull_back

        called = differentiated = 0
        for name, case in CASES.items():
            with case.context():
                program = case.build()
                exported = export_with(jaxexp, program)
                loaded = jaxexp.deserialize(exported.serialize(vjp_order=case.vjp_order))
                assert loaded.mlir_module_serialized == exported.mlir_module_serialized, name
                if not program.callable_here or exported.nr_devices > 1:
                    continue
                live = program.finish(program.live(*program.args, **program.kwargs))
                found = program.finish(loaded.call(*program.args, **program.kwargs))
                assert_same_values(found, live)
                called += 1
                if case.vjp_order:
                    theirs = pull_back(program.live, program.args, program.kwargs)
                    assert_same_values(pull_back(loaded.call, program.args, program.kwargs), theirs)
                    differentiated += 1
        print(called, differentiated)
        """,
    )
    called, differentiated = map(int, out.split()[-2:])
    assert called > 30
    assert differentiated > 10


def test_the_kernel_has_a_class_of_its_own(copy: Path) -> None:
    """Without the public classes, too."""
    run(
        copy,
        """
        import shutil, pickle
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
        assert (loaded.call(x) == jnp.sin(x)).all()
        assert jnp.allclose(jax.grad(lambda x: loaded.call(x).sum())(x), jnp.cos(x))
        assert pickle.loads(pickle.dumps(loaded)) == loaded
        """,
    )
