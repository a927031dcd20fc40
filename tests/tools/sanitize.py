"""The codec under sanitizers: builds it with them, then runs the tests that use it. What `make sanitize` does.

python tests/tools/sanitize.py [build] [asan] [leaks] [threads]
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit import native, runtime
from kit.places import GOLDEN, ROOT, TESTS

FOLDER = ROOT / "build" / "sanitize"
SITE = FOLDER / "site"
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g1 -DNDEBUG"

# What exercises the native module; compiling with XLA is slow here, so what mostly does that is left out.
SUITE = [
    "kernel/artifact/test_attacks.py",
    "kernel/artifact/test_census.py",
    "kernel/artifact/test_own_golden.py",
    "kernel/artifact/test_trailer.py",
    "kernel/call/test_threads.py",
    "kernel/codec/test_codec.py",
    "kernel/codec/test_newer_writers.py",
    "kernel/codec/test_pytrees.py",
    "kernel/codec/test_registered_classes.py",
    "kernel/codec/test_registry.py",
    "kernel/export/test_errors.py",
    "kernel/io/test_kill.py",
    "kernel/read/test_damaged.py",
    "kernel/read/test_golden.py",
    "wire/test_fuzz.py",
    "kernel/write/test_errors_of_writing.py",
]

# Everything that a round made is gone or reachable when the check runs; the interpreter is still up. With an argument
# it loses something on purpose.
LEAKS = """
import ctypes, gc, sys
lost = ctypes.CDLL(None).malloc(12345) if len(sys.argv) > 1 else 0
del lost
import jax
import jaxexp
from kit.corpus import CASES, export_with

blobs = []
for name in ("sin", "nested_containers", "custom_node", "symbolic_batch", "sharded_2d"):
    order = CASES[name].vjp_order
    blobs.append((order, bytes(export_with(jaxexp, CASES[name].build()).serialize(vjp_order=order))))
for _ in range(300):
    for order, blob in blobs:
        loaded = jaxexp.deserialize(blob)
        assert bytes(loaded.serialize(vjp_order=order)) == blob
        loaded.mlir_module_serialized
        for damaged in (blob[:-8], blob[: len(blob) // 2], blob[:40] + b"!" + blob[41:]):
            try:
                jaxexp.deserialize(damaged)
            except jaxexp.DeserializationError:
                pass
del loaded
gc.collect()
sys.exit(1 if ctypes.CDLL(None).__lsan_do_recoverable_leak_check() else 0)
"""

SUPPRESSIONS = {"LSAN_OPTIONS": "lsan.supp", "TSAN_OPTIONS": "tsan.supp"}


def build(compiler: str) -> None:
    """The package with an instrumented native module, in a folder of its own."""
    command = [
        sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-deps", "--upgrade",
        "--target", str(SITE), str(ROOT), "-C", f"build-dir={FOLDER / 'cmake'}", "-C", "cmake.build-type=Sanitize",
        "-C", f"cmake.define.CMAKE_CXX_COMPILER={compiler}", "-C", f"cmake.define.CMAKE_CXX_FLAGS={FLAGS}",
    ]  # fmt: skip
    if importlib.util.find_spec("scikit_build_core") and importlib.util.find_spec("nanobind"):
        command.append("--no-build-isolation")
    # CMake makes the stub by importing the module, into a Python that knows nothing of AddressSanitizer.
    subprocess.run(command, check=True, env={**os.environ, **preloaded(compiler)})


def preloaded(compiler: str) -> dict[str, str]:
    """The environment of a Python that loads the instrumented module: the runtime has to come first."""

    def library(name: str) -> str:
        return subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()

    return {
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so.6')}",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:malloc_context_size=12",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def environment(compiler: str, **extra: str) -> dict[str, str]:
    path = os.pathsep.join([str(SITE), str(TESTS)])
    # Python's own allocator would hide where a small object ends.
    return {**os.environ, **preloaded(compiler), "PYTHONPATH": path, "PYTHONMALLOC": "malloc", **extra}


def asan(compiler: str) -> int:
    files = [str(TESTS / name) for name in SUITE if (TESTS / name).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", *files]
    where = "import jaxexp._native as n; print(n.__file__)"
    found = subprocess.check_output([sys.executable, "-c", where], env=environment(compiler), text=True).strip()
    assert Path(found).is_relative_to(SITE), f"{found} is not the instrumented module"
    return subprocess.run(command, env=environment(compiler), cwd=ROOT).returncode


def leaks(compiler: str) -> int:
    options = preloaded(compiler)["ASAN_OPTIONS"].replace("detect_leaks=0", "detect_leaks=1:leak_check_at_exit=0")
    suppressions = f"suppressions={TESTS / 'cpp' / 'lsan.supp'}:print_suppressions=0"
    devices = "--xla_force_host_platform_device_count=8"
    extra = {"ASAN_OPTIONS": options, "LSAN_OPTIONS": suppressions, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": devices}
    command = [sys.executable, "-c", LEAKS]
    control = subprocess.run([*command, "lose"], env=environment(compiler, **extra), capture_output=True, text=True)
    if control.returncode != 1 or "12345 byte" not in control.stderr:
        print(f"LeakSanitizer does not notice what is lost on purpose:\n{control.stderr[-3000:]}")
        return 1
    return subprocess.run(command, env=environment(compiler, **extra)).returncode


def threads() -> int:
    programs = native.build("thread")
    files = sorted(str(path) for folder in GOLDEN.glob("*_jaxexp-*") for path in folder.glob("*.bin"))
    failed = subprocess.run([str(programs / "threads"), *files]).returncode
    try:
        plugin = runtime.plugin()
    except native.UnavailableError as missing:
        print(f"the runtime is left out: {missing}")
        return failed
    with tempfile.TemporaryDirectory() as folder:
        return call_functions(programs, plugin, Path(folder)) or failed


# What JAX exports for the program of tests/cpp/functions.cpp, written to the folder that it is given.
FUNCTIONS = """
import sys, jax, jaxexp, numpy as np
from kit import runtime

devices = jax.sharding.NamedSharding(jax.make_mesh((4,), ("a",)), jax.sharding.PartitionSpec("a"))
add = jax.jit(lambda x: x + 1, donate_argnums=0)
twice = jax.jit(lambda x: 2 * x, in_shardings=devices, out_shardings=devices)
for name, function, size in (("add", add, 3), ("twice", twice, 8)):
    exported = jaxexp.export(function)(jax.ShapeDtypeStruct((size,), np.float32))
    with open(f"{sys.argv[1]}/{name}.jaxexp", "wb") as file:
        file.write(exported.serialize(compatibility=runtime.READER))
x = np.ones(3, np.float32)
weighted = jaxexp.export(jax.jit(lambda p, x: p["w"] * x))({"w": x}, x).bind({"w": np.array([1, 2, 3], np.float32)})
weighted.save(f"{sys.argv[1]}/weighted.jaxexp", vjp_order=1, compatibility=runtime.READER)
"""


def call_functions(programs: Path, plugin: Path, folder: Path) -> int:
    """Runs the program `functions`, whose threads call the C++ runtime; the plugin's own code has no sanitizers."""
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(TESTS)])
    devices = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", FUNCTIONS, str(folder)], check=True, env={**os.environ, **devices})
    files = [str(folder / f"{name}.jaxexp") for name in ("add", "twice", "weighted")]
    suppressions = {kind: f"suppressions={TESTS / 'cpp' / name}" for kind, name in SUPPRESSIONS.items()}
    return subprocess.run(
        [str(programs / "functions"), str(plugin), *files, str(folder / "code.exe")],
        env={**os.environ, **suppressions},
    ).returncode


def main() -> int:
    wanted = sys.argv[1:] or ["build", "asan", "leaks", "threads"]
    compiler = native.compiler("address,undefined")
    if "clang" in compiler:
        print(f"{compiler} keeps its sanitizers' runtime to itself: this needs g++", file=sys.stderr)
        return 1
    steps = {
        "build": lambda: build(compiler) or 0,
        "asan": lambda: asan(compiler),
        "leaks": lambda: leaks(compiler),
        "threads": threads,
    }
    failed = []
    for name in wanted:
        start = time.monotonic()
        print(f"== {name}", flush=True)
        if steps[name]() != 0:
            failed.append(name)
        print(f"== {name}: {'failed' if name in failed else 'passed'} in {time.monotonic() - start:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
