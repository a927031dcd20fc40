"""What `import jaxexp` does about a JAX that is too old, too new, or has moved a private name."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes(reason="each with another JAX")


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_too_old_a_jax_fails_at_import():
    result = _run("import jax; jax.__version__ = '0.10.1'; import jaxexp")
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert "0.10.2 to 0.12.0.1" in last
    assert "0.10.1" in last


@pytest.mark.sampled(one_in=2, reason="many cases go the same way")
@pytest.mark.parametrize("version", ["0.12.0.2", "0.13.0", "0.13.0.dev20270101+abc", "1.0"])
def test_too_new_a_jax_warns_once_and_works(version):
    result = _run(
        "import warnings, jax\n"
        f"jax.__version__ = {version!r}\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    import jaxexp\n"
        "    jaxexp.export, jaxexp.Exported, jaxexp.load\n"
        "    import jaxexp\n"
        "print([str(w.message) for w in seen if 'jaxexp' in str(w.message)])\n"
        "e = jaxexp.export(jax.jit(lambda x: x + 1))(jax.ShapeDtypeStruct((2,), 'float32'))\n"
        "print(e.call(jax.numpy.zeros(2, 'float32')))\n"
    )
    assert result.returncode == 0, result.stderr
    warned, called = result.stdout.splitlines()
    assert warned.count(version) == 1
    assert "0.10.2 to 0.12.0.1" in warned
    assert called == "[1. 1.]"


@pytest.mark.parametrize(
    "module, name",
    [
        ("jax._src.core", "trace_state_clean"),
        ("jax._src.interpreters.mlir", "merge_mlir_modules"),
        ("jax._src.export.shape_poly", "solve_dim_vars"),
    ],
)
def test_a_moved_private_name_is_named(module, name):
    result = _run(f"import jax, importlib; m = importlib.import_module({module!r}); del m.{name}; import jaxexp")
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: jaxexp supports JAX 0.10.2 to 0.12.0.1")
    assert f"{module}.{name}" in last


def test_a_moved_private_module_is_named():
    result = _run("import jax, sys; sys.modules['jax._src.dispatch'] = None; del jax._src.dispatch; import jaxexp")
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: jaxexp supports JAX 0.10.2 to 0.12.0.1")
    assert "jax._src.dispatch" in last
