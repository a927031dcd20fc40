"""The C++ runtime, built and installed from the checkout, and plugins to run it on."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from . import native
from .places import ROOT, TESTS

INSTALLED = native.INSTALLED
RUN = INSTALLED / "bin" / "jaxexp-run"
NEWER = ROOT / "build" / "newer_plugin"
# What the plugin of the package xla-cpu-pjrt understands: StableHLO 1.13.3.
READER = "jax-0.8.1"

build = native.libraries


def program(name: str, folder: Path) -> Path:
    """Builds a program of tests/cpp with what is installed, and returns where."""
    libraries = [next(INSTALLED.glob(f"lib*/libjaxexp_{library}.a")) for library in ("runtime", "wire")]
    headers = ["-I", INSTALLED / "include", "-isystem", ROOT / "cpp" / "third_party" / "dlpack"]
    source = TESTS / "cpp" / f"{name}.cpp"
    compiler = shutil.which("c++") or "g++"
    command = [compiler, "-std=c++20", "-pthread", *headers, source, *libraries, "-ldl", "-o", folder / name]
    subprocess.run(command, check=True)
    return folder / name


def plugin() -> Path:
    """A plugin for the CPU: $JAXEXP_PJRT_PLUGIN, or that of xla-cpu-pjrt. Raises native.UnavailableError."""
    named = os.environ.get("JAXEXP_PJRT_PLUGIN")
    if named:
        return Path(named)
    folder = plugin_package()
    if folder is None:
        raise native.UnavailableError("there is no PJRT plugin: install xla-cpu-pjrt, which is for Linux on x86-64")
    return folder / "xla_cpu_pjrt.so"


def newer_plugin() -> Path:
    """A newer one: $JAXEXP_NEWER_PJRT_PLUGIN, or that of lammps-jax-pjrt-cpu in this environment or in NEWER, where
    `make runtime` puts it, because it asks for an old JAX. Raises native.UnavailableError.
    """
    if named := os.environ.get("JAXEXP_NEWER_PJRT_PLUGIN"):
        return Path(named)
    folders = [NEWER / "lammps_jax_pjrt_cpu", _package("lammps_jax_pjrt_cpu")]
    for folder in filter(None, folders):
        if (file := folder / "pjrt_c_api_cpu_plugin.so").exists():
            return file
    raise native.UnavailableError(
        f"there is no second PJRT plugin: python -m pip install --no-deps --target {NEWER.relative_to(ROOT)} "
        "lammps-jax-pjrt-cpu==0.11.2, which is for Linux on x86-64"
    )


def plugin_package() -> Path | None:
    return _package("xla_plugins.xla_cpu_pjrt")


def _package(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return Path(next(iter(spec.submodule_search_locations or []))) if spec else None


def lapack(package: str = "scipy") -> Path:
    """The LAPACK that SciPy has, which jaxlib calls, too; or NumPy's, which has wide integers. Raises
    native.UnavailableError.
    """
    spec = importlib.util.find_spec(package)
    folder = Path(next(iter(spec.submodule_search_locations or []))) if spec else Path()
    found = sorted(folder.with_name(f"{package}.libs").glob("*openblas*.so"))
    if not found:
        raise native.UnavailableError(f"the installed {package} has no OpenBLAS of its own")
    return found[0]


def run(
    *arguments: object,
    devices: int = 1,
    plugin_file: Path | None = None,
    lapack_file: Path | str = "",
    stdout: Any = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:
    """Calls jaxexp-run with the plugin, and by default without a LAPACK that this machine may have."""
    options = ["--plugin", str(plugin_file or plugin()), "--option", f"cpu_device_count={devices}"]
    command = [str(RUN), *options, *map(str, arguments)]
    environment = {**os.environ, "JAXEXP_LAPACK": str(lapack_file)}
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment)


def results(
    artifact: Path,
    arguments: Sequence[np.ndarray],
    dtypes: Mapping[str, str],
    *more: object,
    folder: Path | None = None,
    **how: Any,
) -> dict[str, np.ndarray]:
    """What jaxexp-run computes, by paths; `dtypes` are the results' dtypes, by the same paths. `how` is for `run`."""
    given, found = ((folder or artifact.parent) / f"{artifact.stem}.{kind}.npz" for kind in ("in", "out"))
    np.savez(given, *arguments)
    done = run(artifact, given, "--out", found, *more, **how)
    assert done.returncode == 0, done.stderr
    with np.load(found) as file:
        arrays = dict(file)
    assert arrays.keys() == dtypes.keys()
    return {path: array.view(numpy_dtype(dtypes[path])) for path, array in arrays.items()}


def numpy_dtype(name: str) -> np.dtype:
    """Of an array as a module has it: keys are their data."""
    if name.startswith("key<"):
        return np.dtype(np.uint32)
    return np.dtype(np.bool_) if name == "float0" else np.dtype(getattr(ml_dtypes, name, name))
