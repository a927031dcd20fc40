"""Which plugin a session takes, and what it says if there is none."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp.runtime import Session, find_plugin, register_ffi, use_lapack
from kit import runtime as built
from kit import without_jax

without_jax.skip_without_plugin()

X = np.ones(3, np.float32)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that Python finds packages in."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delenv("JAXEXP_PLUGIN", raising=False)
    for name in ("libtpu", "jax_plugins", "xla_plugins"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def package(site: Path, name: str, file: str, entry: str = "") -> str:
    """A package with a file, whose code must not run."""
    folder = site.joinpath(*name.split("."))
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('this package was imported')")
    (folder / file).touch()
    if entry:
        info = site / f"{entry}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {entry}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[jax_plugins]\n{entry} = {name}\n")
    return str(folder / file)


def test_known_packages_and_entry_points(site: Path) -> None:
    cpu = package(site, "xla_plugins.xla_cpu_pjrt", "xla_cpu_pjrt.so")
    cuda = package(site, "jax_plugins.xla_cuda13", "xla_cuda_plugin.so")
    assert (find_plugin(), find_plugin("cpu"), find_plugin("cpu", "cuda")) == (cuda, cpu, cuda)
    tpu = package(site, "libtpu", "libtpu.so")
    assert find_plugin() == tpu
    metal = package(site, "their_plugins", "pjrt_plugin_metal_14.dylib", entry="metal")
    assert find_plugin("metal") == metal
    with pytest.raises(jaxexp.errors.RunError) as missing:
        find_plugin("rocm")
    assert missing.value.reason == "argument"
    assert str(missing.value).startswith("there is no PJRT plugin for rocm: ")
    assert str(missing.value).endswith(
        "and the entry points of jax_plugins are metal. Install such a package, or name the file of a plugin by "
        "plugin= or by the environment variable JAXEXP_PLUGIN"
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    jaxexp.export(jax.jit(jnp.sin), platforms=["cpu", "cuda"])(X).save(tmp_path / "sin.jaxexp")
    return tmp_path / "sin.jaxexp"


def test_how_a_plugin_is_named(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAXEXP_PLUGIN", raising=False)
    file = built.plugin()
    for plugin in (None, "cpu", file, str(file)):
        np.testing.assert_allclose(Session(path, plugin=plugin)(X), np.sin(X), rtol=1e-6)
    monkeypatch.setenv("JAXEXP_PLUGIN", str(tmp_path / "other.so"))
    with pytest.raises(jaxexp.errors.RunError, match=r"the plugin .*other\.so cannot be loaded"):
        Session(path)
    assert Session(path, plugin="cpu").platform == "cpu"


def test_a_plugin_starts_once_in_a_process(path: Path, subprocess_env: Any) -> None:
    """With its options and devices; and not in the children of the process."""
    one, other = Session(path, plugin="cpu"), Session(path, plugin=built.plugin())
    assert one._plugin is other._plugin
    with pytest.raises(jaxexp.errors.RunError, match=r"was started with the options \{\}, and cannot take others"):
        Session(path, plugin="cpu", options={"cpu_device_count": 3})
    code = """
    import os, sys
    import numpy as np
    from jaxexp.runtime import Session
    x = np.zeros(3, np.float32)
    for devices in (None, [2]):
        session = Session(sys.argv[1], plugin="cpu", options={"cpu_device_count": 3}, devices=devices)
        print(session(x), session(session.put(x, 1)), flush=True)
    try:
        Session(sys.argv[1], plugin="cpu", devices=[7])
    except RuntimeError as error:
        print(type(error).__name__, error.reason, flush=True)
    if (child := os.fork()) == 0:
        try:
            session(x)
        except RuntimeError as error:
            os._exit(7 if "fork" in str(error) else 1)
        os._exit(2)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    printed = without_jax.run(code, subprocess_env(), path)
    assert printed == "[0. 0. 0.] [0. 0. 0.]\n" * 2 + "RunError argument\n7\n"


def test_the_lapack_of_the_environment(subprocess_env: Any, tmp_path: Path) -> None:
    """SciPy's, which is not imported; or none, whatever jaxlib has."""
    a = np.array([[2, 1], [1, 3]], np.float32)
    jaxexp.export(jax.jit(jnp.linalg.eigvalsh))(a).save(tmp_path / "e.jaxexp", compatibility=built.READER)
    code = """
    import os, sys
    import numpy as np
    from jaxexp.runtime import Session
    a = np.array([[2, 1], [1, 3]], np.float32)
    try:
        np.testing.assert_allclose(Session(sys.argv[1])(a), np.linalg.eigvalsh(a), rtol=1e-5)
        print("found", "scipy" in sys.modules)
    except RuntimeError as error:
        print(error)
    """
    env = subprocess_env()
    env.pop("JAXEXP_LAPACK", None)
    assert without_jax.run(code, env, tmp_path / "e.jaxexp") == "found False\n"
    refused = without_jax.run(code, {**env, "JAXEXP_LAPACK": ""}, tmp_path / "e.jaxexp")
    assert "LAPACK is in jaxlib, and none was found here ($JAXEXP_LAPACK says that none is to be used)" in refused
    with pytest.raises(jaxexp.errors.RunError, match=r"the LAPACK .*(none\.so|is in use)"):
        use_lapack(tmp_path / "none.so")


def test_what_is_no_handler() -> None:
    """What is made for another version of XLA's FFI is an error at once."""
    with pytest.raises(ValueError, match="PyCapsule"):
        register_ffi("target", 3)
    never = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda frame: 0)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    with pytest.raises(jaxexp.errors.RunError):
        register_ffi("test_plugins.never", new(ctypes.cast(never, ctypes.c_void_p), None, None))
