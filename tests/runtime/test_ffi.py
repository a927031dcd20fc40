"""Custom calls that a user brings, and a plugin that does not find them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from kit import runtime as built
from kit.places import ROOT
from kit.run_c import Handle, Library, Reason, RunError, pointer

pytestmark = [
    pytest.mark.slow(reason="builds the C++ runtime, which takes minutes"),
    pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX"),
]
X = np.arange(3, dtype=np.float32)


@pytest.fixture(scope="module")
def handlers(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    file = tmp_path_factory.mktemp("handlers") / "handlers.so"
    source, headers = ROOT / "tests" / "cpp" / "ffi_handlers.c", ROOT / "cpp" / "third_party"
    subprocess.run([compiler, "-shared", "-fPIC", f"-I{headers}", source, "-o", file], check=True)
    return ctypes.CDLL(str(file))


def artifact(folder: Path, target: str) -> Path:
    calls = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(X.shape, X.dtype))
    allowed = [jaxexp.DisabledSafetyCheck.custom_call(target)]
    exported = jaxexp.export(jax.jit(lambda x: calls(x) + 1), platforms=["cpu"], disabled_checks=allowed)(X)
    exported.save(folder / "f.jaxexp", compatibility=built.READER)
    return folder / "f.jaxexp"


def register(library: Library, runtime: Handle, target: str, handler: Any) -> None:
    address = ctypes.cast(handler, ctypes.c_void_p)
    library.checked("register_ffi", pointer(runtime), target.encode(), address)


# A name may have any characters.
@pytest.mark.parametrize("target", ["jaxexp_twice", 'jaxexp "twice" \\ é'])
def test_a_handler_runs(
    target: str, library: Library, runtime: Handle, handlers: ctypes.CDLL, call: Any, tmp_path: Path
) -> None:
    function = library.load(runtime, artifact(tmp_path, target))
    with pytest.raises(
        RunError, match=r"that the plugin does not compile: .* gives the plugin handlers .* by register_ffi"
    ):
        call(function, X)
    register(library, runtime, target, handlers.twice)
    register(library, runtime, target, handlers.twice)  # again, which changes nothing
    np.testing.assert_array_equal(call(function, X)[0], 2 * X + 1)
    with pytest.raises(RunError, match="has another handler already") as raised:
        register(library, runtime, target, handlers.of_another_version)
    assert raised.value.reason == Reason.ARGUMENT


def test_a_handler_that_is_not_found_is_an_error_at_once(
    library: Library, runtime: Handle, handlers: ctypes.CDLL
) -> None:
    """Plugins take a handler that is built for a newer version of XLA's FFI, and miss it when they compile."""
    with pytest.raises(RunError, match=r"newer version of XLA's FFI than the plugin .* a jaxlib that is not newer"):
        register(library, runtime, "jaxexp_other", handlers.of_another_version)


def test_a_handler_has_a_name(library: Library, runtime: Handle, handlers: ctypes.CDLL) -> None:
    with pytest.raises(RunError, match="a custom call has a name, and a handler"):
        register(library, runtime, "", handlers.twice)
    with pytest.raises(RunError, match="a custom call has a name, and a handler"):
        register(library, runtime, "jaxexp_none", None)
