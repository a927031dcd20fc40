"""Builds C++: the libraries of cpp/ once for everything that links them, and the tests of tests/cpp with sanitizers."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .places import ROOT, TESTS

BUILT = ROOT / "build" / "cpp"
INSTALLED = BUILT / "installed"

# Clang 14 and 15 have no views of GCC 12's library.
HEAD = "#include <cstddef>\n#include <cstdint>\n#include <ranges>\n#include <vector>\n"
USE = "for (int i : std::views::iota(0, static_cast<int>(n))) std::vector<int>(3).at(i);"
PROGRAM = f"{HEAD}int main(int n, char**) {{ {USE} }}\n"
FUZZ_TARGET = f'{HEAD}extern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t n) {{ {USE} return 0; }}\n'


class UnavailableError(Exception):
    """This machine lacks what the C++ tests need; the message says what."""


def _works(compiler: str, sanitize: str, program: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "a.cpp")
        source.write_text(program)
        command = [compiler, f"-fsanitize={sanitize}", "-std=c++20", str(source), "-o", str(Path(folder, "a"))]
        return subprocess.run(command, capture_output=True).returncode == 0


@functools.cache
def compiler(sanitize: str, *, libfuzzer: bool = False) -> str:
    """A C++ compiler that links programs with these sanitizers; one with libFuzzer, where that is wanted."""
    clangs = ["clang++", *(f"clang++-{version}" for version in range(22, 13, -1))]
    candidates = clangs if libfuzzer else [*filter(None, [os.environ.get("CXX")]), "g++", "c++", *clangs]
    present = [name for name in candidates if shutil.which(name)]
    if not present:
        raise UnavailableError("no Clang" if libfuzzer else "no C++ compiler")
    flags, tried = (f"{sanitize},fuzzer", FUZZ_TARGET) if libfuzzer else (sanitize, PROGRAM)
    for name in present:
        if _works(name, flags, tried):
            return name
    raise UnavailableError(f"{present[0]} links no program with -fsanitize={flags}")


def cmake() -> str:
    beside = Path(sys.executable).with_name("cmake")  # what pip installs, even where the environment is not active
    command = str(beside) if beside.exists() else shutil.which("cmake")
    if command is None:
        raise UnavailableError("no CMake")
    return command


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Tests run in several processes: one builds, the others wait."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path, source: Path, options: list[str], *, install: Path | None = None, targets: str = "all") -> Path:
    """Configures, builds and installs; quickly where nothing has changed. RuntimeError has the compiler's output."""
    program = cmake()
    if importlib.util.find_spec("ninja"):
        options = [*options, "-G", "Ninja"]
    jobs = ["--parallel", str(min(os.cpu_count() or 1, 4))]
    commands = [
        [program, "-S", str(source), "-B", str(folder), f"-DPython_EXECUTABLE={sys.executable}", *options],
        [program, "--build", str(folder), *jobs, "--target", *targets.split()],
    ]
    if install:
        commands.append([program, "--install", str(folder), "--prefix", str(install)])
    with alone(folder):
        for command in commands:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-5000:]}")
    return folder


@functools.cache
def libraries(*, shared: bool = False) -> Path:
    """Builds and installs `cpp` with the assertions of the C++ library on, and returns where.

    Everything links the static libraries: the modules for Python that tests use, the tests of C++, the examples. Raises
    UnavailableError.
    """
    folder, installed = (BUILT / "shared", BUILT / "shared" / "installed") if shared else (BUILT / "build", INSTALLED)
    if shutil.which("c++") is None and shutil.which("g++") is None:
        raise UnavailableError("there is no C++ compiler")
    # Modules for Python are linked from what shows no symbols. Shared libraries are tried once, so they build quickly.
    options = [
        f"-DCMAKE_CXX_FLAGS_RELEASE={'-O0' if shared else '-O2'} -D_GLIBCXX_ASSERTIONS",
        f"-DCMAKE_CXX_VISIBILITY_PRESET={'default' if shared else 'hidden'}",
        f"-DCMAKE_VISIBILITY_INLINES_HIDDEN={'OFF' if shared else 'ON'}",
        f"-DBUILD_SHARED_LIBS={'ON' if shared else 'OFF'}",
        "-DJAXEXP_WERROR=ON",
    ]
    _make(folder, ROOT / "cpp", options, install=installed)
    return installed


@functools.cache
def programs() -> Path:
    """Where the unit tests and small programs of tests/cpp are, linked to `libraries()`. Raises UnavailableError."""
    return _make(BUILT / "tests", TESTS / "cpp", [f"-DJAXEXP_PREBUILT={libraries()}"])


@functools.cache
def sanitized(sanitize: str = "address,undefined", *, libfuzzer: bool = False, targets: str = "all") -> Path:
    """Where all programs of tests/cpp are, compiled with sanitizers, their libraries, too. Raises UnavailableError."""
    if sys.platform == "win32":
        raise UnavailableError("the C++ tests use POSIX signals")
    chosen = compiler(sanitize, libfuzzer=libfuzzer)
    kind = "-".join([*sanitize.split(","), *(["libfuzzer"] if libfuzzer else []), Path(chosen).name])
    options = [f"-DCMAKE_CXX_COMPILER={chosen}", f"-DJAXEXP_SANITIZE={sanitize}"]
    options.append(f"-DJAXEXP_LIBFUZZER={'ON' if libfuzzer else 'OFF'}")
    return _make(BUILT / kind, TESTS / "cpp", options, targets=targets)
