"""What is installed, as a project uses it: the examples are built against it, and run; pages are compiled as pasted."""

from __future__ import annotations

import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from kit import native, runtime
from kit.documentation import DOCS, blocks
from kit.places import ROOT
from kit.saved import saved

pytestmark = pytest.mark.cpp
EXAMPLE = ROOT / "cpp" / "example" / "run"


def run(*command: Any, **options: Any) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what the example exports."""
    folder = tmp_path_factory.mktemp("files")
    namespace = runpy.run_path(str(EXAMPLE / "export.py"))
    namespace["main"](folder)
    return folder


def built(source: Path, folder: Path, installed: Path) -> Path:
    """An example that is built by CMake with what is installed."""
    run(native.cmake(), "-S", source, "-B", folder, "-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_PREFIX_PATH={installed}")
    run(native.cmake(), "--build", folder)
    return folder


def test_the_reader_is_installed_too(installed: Path, files: Path, tmp_path: Path) -> None:
    """As docs/guide/cpp.md uses it: find_package(jaxexp_wire); and the licences."""
    program = built(ROOT / "cpp" / "example", tmp_path, installed) / "signature"
    assert run(program, files / "predict.jaxexp").startswith("predict, for 1 device(s)\n")
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


@pytest.mark.long(
    promise="a project can use shared libraries, and catches their exceptions",
    sibling="test_package.py::test_pkg_config_finds_a_package_that_was_moved",
)
def test_shared_libraries(plugin: Path, files: Path, tmp_path: Path) -> None:
    """By CMake and by pkg-config."""
    installed = runtime.build(shared=True)
    assert not [*installed.glob("lib*/*.a")]
    built(EXAMPLE, tmp_path, installed)
    cpp = with_pkg_config(installed, "jaxexp_runtime", EXAMPLE / "train.cpp", tmp_path / "other", "c++", "-std=c++20")
    for program in (tmp_path / "train", cpp):
        assert run(program, plugin, files / "step.jaxexp", 200)
        missing = subprocess.run([program, plugin, files / "no", "1"], capture_output=True, text=True)
        assert missing.returncode == 1, "exceptions are caught across libraries"
    assert run(installed / "bin" / "jaxexp-run", "--inspect", files / "predict.jaxexp")


def test_the_examples(installed: Path, plugin: Path, files: Path, tmp_path: Path) -> None:
    """A training loop in C++, and a call from C."""
    programs = built(EXAMPLE, tmp_path, installed)
    said = run(programs / "train", plugin, files / "step.jaxexp", 200).split()
    assert (float(said[1]), float(said[2].rstrip(","))) == pytest.approx((2, -1), abs=1e-3)
    assert float(said[4]) < 1e-6
    missing = subprocess.run([programs / "train", plugin, files / "no", "1"], capture_output=True, text=True)
    assert missing.returncode == 1
    assert missing.stderr.count(str(files / "no")) == 2
    predict = [programs / "predict", plugin, files / "predict.jaxexp"]
    said = run(*predict, 2, 3).split()
    assert said[:2] == ["result:", "float32[2,2]:"]
    assert [float(number) for number in said[2:]] == pytest.approx([0.268941, 0.731059] * 2, rel=1e-4)
    wrong = subprocess.run([*predict, "2"], capture_output=True, text=True)
    assert wrong.returncode == 1
    shapes = "args[0] must have rank 2, found rank 1 (exported with float32[2,3], called with float32[2])\n"
    assert wrong.stderr.endswith(f"calling predict: {shapes}")


def test_calls_from_python_without_jax(installed: Path, plugin: Path, tmp_path: Path) -> None:
    """Of a scalar and an array in Fortran's order."""
    x = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    path = saved(tmp_path, lambda x, scale: x * scale, x, np.float32(0), reader=runtime.READER)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "scale.npy", np.float32(3))
    run_it = "import runpy, sys; runpy.run_path(sys.argv[0], run_name='__main__'); assert 'jax' not in sys.modules"
    code = f"import sys; sys.argv = sys.argv[1:]; {run_it}"
    library = next(installed.glob("lib*/libjaxexp-c.*"))
    arguments = (EXAMPLE / "predict.py", library, plugin, path, tmp_path / "x.npy", tmp_path / "scale.npy")
    assert run(sys.executable, "-c", code, *arguments, env={**os.environ, "PYTHONPATH": ""}) == f"{x * 3}\n"


def test_headers_of_others_are_as_published() -> None:
    """Those of the C API, and of the FFI, from these releases."""
    third_party, package = ROOT / "cpp" / "third_party", runtime.plugin_package()
    if package is None or importlib.metadata.version("jaxlib") != "0.10.2":
        pytest.skip("the headers are from xla-cpu-pjrt, which is for Linux on x86-64, and from jaxlib 0.10.2")
    published = (package / "include" / "pjrt_c_api.h").read_bytes()
    assert (third_party / "pjrt" / "pjrt_c_api.h").read_bytes() == published
    published = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_bytes()
    assert (third_party / "xla" / "ffi" / "api" / "c_api.h").read_bytes() == published


# --- snippets of pages ----------------------------------------------------------------------------------------------

# What the text around the snippets speaks of.
BEFORE = {
    "cpp": """
#include <jaxexp/archive.h>
#include <jaxexp/runtime.h>
#include <iostream>
void show(const jaxexp::Artifact&);
void compile(std::span<const std::uint8_t>);
std::string sha256(std::span<const std::uint8_t>);
enum { kDLCUDA = 2 };  // of dlpack.h
void page(std::span<const std::uint8_t> bytes, std::span<const std::uint8_t> mapped, const jaxexp::Runtime& runtime,
          const jaxexp::Function& f, const jaxexp::Array& w, const jaxexp::Array& b, const jaxexp::Array& x,
          const jaxexp::Array& n, const jaxexp::Array& array, const jaxexp::Artifact& artifact, const std::string& file,
          std::size_t i, void (*log)(const std::string&), jaxexp::FfiHandler* handler,
          DLManagedTensorVersioned* tensor, const std::map<std::filesystem::path, std::string>& expected) {
""",
    "c": """
#include <jaxexp/run.h>
#include <stdio.h>
void page(const int64_t* shape, const float* numbers, const jaxexp_array* const* inputs, jaxexp_array** results) {
""",
}
COMPILERS = {"cpp": ["c++", "-std=c++20", "-x", "c++"], "c": ["cc", "-std=c99", "-x", "c"]}


def compiles(language: str, snippets: list[str], installed: Path) -> None:
    """All in one function: a snippet sees what those before it declare."""
    command = COMPILERS[language]
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}")
    includes = [line for text in snippets for line in re.findall(r"^#include .*", text, re.MULTILINE)]
    code = "\n{\n".join(re.sub(r"^#include .*", "", text, flags=re.MULTILINE) for text in snippets)
    source = "\n".join(includes) + BEFORE[language] + "{\n" + code + "}" * (len(snippets) + 1)
    done = subprocess.run(
        [*command, "-fsyntax-only", "-I", installed / "include", "-"], input=source, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_pages(installed: Path) -> None:
    """Their blocks, and the calls inside sentences."""
    snippets: dict[str, list[str]] = {"cpp": [], "c": []}
    for language, page in (("cpp", "run"), ("cpp", "cpp"), ("cpp", "executables"), ("c", "run")):
        found = [block.code for block in blocks(DOCS / "guide" / f"{page}.md") if block.language == language]
        assert found
        snippets[language] += found
    text = (DOCS / "guide" / "run.md").read_text(encoding="utf-8")
    calls = [call for call in re.findall(r"`(runtime\.\w+\([^`]*\))`", text.replace("\n", " ")) if "..." not in call]
    assert len(calls) >= 5
    compiles("cpp", [f"{call};\n" for call in calls] + snippets["cpp"], installed)
    compiles("c", snippets["c"], installed)
