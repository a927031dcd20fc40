"""What is installed, as a project uses it: the examples are built against it, and run."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from kit import native, runtime
from kit.places import ROOT

pytestmark = [
    pytest.mark.slow(reason="builds the C++ runtime, which takes minutes"),
    pytest.mark.once(reason="what is built in C++ is the same for every pair of Python and JAX"),
]
EXAMPLE = ROOT / "cpp" / "example" / "run"


def run(*command: Any, **options: Any) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def programs(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example")
    options = ("-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_PREFIX_PATH={installed}")
    run(native.cmake(), "-S", EXAMPLE, "-B", folder, *options)
    run(native.cmake(), "--build", folder)
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what the example exports."""
    folder = tmp_path_factory.mktemp("files")
    run(sys.executable, EXAMPLE / "export.py", folder)
    return folder


def test_the_reader_is_installed_too(installed: Path, files: Path, tmp_path: Path) -> None:
    """As docs/guide/cpp.md uses it: find_package(jaxexp_wire); and the licences."""
    run(native.cmake(), "-S", ROOT / "cpp" / "example", "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={installed}")
    run(native.cmake(), "--build", tmp_path)
    assert run(tmp_path / "signature", files / "predict.jaxexp").startswith("predict, for 1 device(s)\n")
    licenses = installed / "share" / "licenses" / "jaxexp"
    assert {path.name for path in licenses.iterdir()} == {"LICENSE", "LICENSE-nlohmann", "LICENSE-xxhash"}


def with_pkg_config(installed: Path, package: str, source: Path, program: Path, *options: str) -> Path:
    """Builds a program with what pkg-config says, from where the package was moved to."""
    command = shutil.which("pkg-config")
    if command is None:
        pytest.skip("there is no pkg-config")
    folder = next(installed.glob("lib*/pkgconfig"))
    said = run(command, "--cflags", "--libs", package, env={**os.environ, "PKG_CONFIG_PATH": str(folder)}).split()
    assert [Path(part[2:]).resolve() for part in said if part.startswith("-I")] == [installed / "include"]
    run(*options, source, *said, f"-Wl,-rpath,{folder.parent}", "-o", program)
    return program


def test_pkg_config_finds_a_package_that_was_moved(installed: Path, plugin: Path, files: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(installed, tmp_path / "moved", symlinks=True)
    cpp = with_pkg_config(moved, "jaxexp_runtime", EXAMPLE / "train.cpp", tmp_path / "train", "c++", "-std=c++20")
    assert run(cpp, plugin, files / "step.jaxexp", 200)
    c = with_pkg_config(moved, "jaxexp_c", EXAMPLE / "predict.c", tmp_path / "predict", "cc")
    assert run(c, plugin, files / "predict.jaxexp", 2, 3).startswith("result: float32[2")


def test_shared_libraries(plugin: Path, files: Path, tmp_path: Path) -> None:
    """A project uses them by CMake and by pkg-config."""
    installed = runtime.build(shared=True)
    assert not [*installed.glob("lib*/*.a")]
    run(native.cmake(), "-S", EXAMPLE, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={installed}")
    run(native.cmake(), "--build", tmp_path)
    cpp = with_pkg_config(installed, "jaxexp_runtime", EXAMPLE / "train.cpp", tmp_path / "other", "c++", "-std=c++20")
    for program in (tmp_path / "train", cpp):
        assert run(program, plugin, files / "step.jaxexp", 200)
        missing = subprocess.run([program, plugin, files / "no", "1"], capture_output=True, text=True)
        assert missing.returncode == 1, "exceptions are caught across libraries"
    assert run(installed / "bin" / "jaxexp-run", "--inspect", files / "predict.jaxexp")


def test_a_training_loop_in_cpp(programs: Path, plugin: Path, files: Path) -> None:
    said = run(programs / "train", plugin, files / "step.jaxexp", 200).split()
    assert (float(said[1]), float(said[2].rstrip(","))) == pytest.approx((2, -1), abs=1e-3)
    assert float(said[4]) < 1e-6
    missing = subprocess.run([programs / "train", plugin, files / "no", "1"], capture_output=True, text=True)
    assert missing.returncode == 1
    assert missing.stderr.count(str(files / "no")) == 2


def test_a_call_from_c(programs: Path, plugin: Path, files: Path) -> None:
    said = run(programs / "predict", plugin, files / "predict.jaxexp", 2, 3).split()
    assert said[:2] == ["result:", "float32[2,2]:"]
    assert [float(number) for number in said[2:]] == pytest.approx([0.268941, 0.731059] * 2, rel=1e-4)
    wrong = subprocess.run(
        [programs / "predict", plugin, files / "predict.jaxexp", "2"], capture_output=True, text=True
    )
    assert wrong.returncode == 1
    said = "args[0] must have rank 2, found rank 1 (exported with float32[2,3], called with float32[2])\n"
    assert wrong.stderr.endswith(f"calling predict: {said}")


def test_a_call_from_python_without_jax(installed: Path, plugin: Path, files: Path) -> None:
    library = next(installed.glob("lib*/libjaxexp-c.*"))
    run_it = "import runpy, sys; runpy.run_path(sys.argv[0], run_name='__main__'); assert 'jax' not in sys.modules"
    code = f"import sys; sys.argv = sys.argv[1:]; {run_it}"
    arguments = (EXAMPLE / "predict.py", library, plugin, files / "predict.jaxexp", files / "x.npy")
    said = run(sys.executable, "-c", code, *arguments, env={**os.environ, "PYTHONPATH": ""})
    expected = jaxexp.load(files / "predict.jaxexp").call(np.load(files / "x.npy"))
    np.testing.assert_allclose(
        np.array(said.translate(str.maketrans("[]", "  ")).split(), float).reshape(2, 2), expected, rtol=1e-4
    )


def test_a_scalar_from_python(installed: Path, plugin: Path, tmp_path: Path) -> None:
    """And an array in Fortran's order."""
    x = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    exported = jaxexp.export(jax.jit(lambda x, scale: x * scale))(x, np.float32(0))
    exported.save(tmp_path / "f.jaxexp", compatibility=runtime.READER)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "scale.npy", np.float32(3))
    library = next(installed.glob("lib*/libjaxexp-c.*"))
    inputs = (tmp_path / "x.npy", tmp_path / "scale.npy")
    said = run(sys.executable, EXAMPLE / "predict.py", library, plugin, tmp_path / "f.jaxexp", *inputs)
    assert said == f"{x * 3}\n"


def test_the_header_of_the_c_api_is_as_published() -> None:
    package = runtime.plugin_package()
    if package is None:
        pytest.skip("there is no PJRT plugin: install xla-cpu-pjrt, which is for Linux on x86-64")
    published = (package / "include" / "pjrt_c_api.h").read_bytes()
    assert (ROOT / "cpp" / "third_party" / "pjrt" / "pjrt_c_api.h").read_bytes() == published


def test_the_header_of_the_ffi_is_as_published() -> None:
    """It is from this release of jaxlib."""
    if importlib.metadata.version("jaxlib") != "0.10.2":
        pytest.skip("the header is from jaxlib 0.10.2")
    published = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_bytes()
    assert (ROOT / "cpp" / "third_party" / "xla" / "ffi" / "api" / "c_api.h").read_bytes() == published
