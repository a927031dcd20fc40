"""C++ under sanitizers: builds it, then runs its tests and some of those in Python. What `make sanitize` does.

python tests/tools/sanitize.py [--if-needed] [--all] [fuzz] [asan] [leaks] [threads]

When *fuzz*, *asan* and *leaks* have passed, .ci/sanitized gets a digest of the C++ and of its tests. With --if-needed,
nothing runs where that file has the digest already, and otherwise everything but *threads*. With --all, the tests in
Python have all their cases, and not only what gates a commit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit import native, runtime
from kit.places import GOLDEN, ROOT, TESTS

PASSED = ROOT / ".ci" / "sanitized"
SOURCES = ("cpp", "schema", "tests/cpp")
SITE = ROOT / "build" / "sanitize" / "site"
RUNS = 2000  # of each fuzz target
STEPS = ("fuzz", "asan", "leaks", "threads")

# What exercises the native module; compiling with XLA is slow here, so what mostly does that is left out.
SUITE = [
    "kernel/artifact/test_apart.py",
    "kernel/artifact/test_attacks.py",
    "kernel/artifact/test_trailer.py",
    "kernel/call/test_threads.py",
    "kernel/codec/test_codec.py",
    "kernel/codec/test_generic_nodes.py",
    "kernel/codec/test_pytrees.py",
    "kernel/codec/test_registered_classes.py",
    "kernel/export/test_errors.py",
    "kernel/read/test_damaged.py",
    "kernel/read/test_golden.py",
    "kernel/write/test_limits.py",
    "wire/test_fuzz.py",
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
            except jaxexp.errors.DeserializationError:
                pass
del loaded
gc.collect()
sys.exit(1 if ctypes.CDLL(None).__lsan_do_recoverable_leak_check() else 0)
"""

SUPPRESSIONS = {"LSAN_OPTIONS": "lsan.supp", "TSAN_OPTIONS": "tsan.supp"}


def digest() -> str:
    """Of what is compiled here, as it is in the checkout now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *SOURCES]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    found = hashlib.sha256()
    for name in sorted(set(filter(None, names))):
        file = ROOT / os.fsdecode(name)
        if file.exists():
            content = file.read_bytes()
            found.update(b"%s %d\n%s" % (name, len(content), content))
    return found.hexdigest()


def passed_before() -> bool:
    return PASSED.exists() and PASSED.read_text().split()[:1] == [digest()]


def fuzz() -> int:
    """Unit tests, and a short run of each fuzz target."""
    from tools import fuzz

    programs = native.sanitized()
    failed = subprocess.run([programs / "unit"]).returncode
    with tempfile.TemporaryDirectory() as folder:
        fuzz.make_seeds(programs, Path(folder))
        for target in fuzz.targets(programs):
            done = fuzz.short_run(programs / target, RUNS, Path(folder))
            if done.returncode != 0 or not re.search(rf"Done {RUNS} runs", done.stdout):
                print(f"{target}:\n{done.stdout[-5000:]}", flush=True)
                failed = 1
    return failed


def instrumented() -> None:
    """The package with modules that are linked from the same objects as the fuzz targets, in a folder of its own."""
    built = native.sanitized(targets="_native _runtime") / "jaxexp"
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(ROOT / "python", SITE, ignore=shutil.ignore_patterns("*.so", "*.pyi", "__pycache__"))
    for module in (*built.glob("_native*.so"), *built.glob("_runtime*.so")):
        shutil.copy(module, SITE / "jaxexp")


def environment(**extra: str) -> dict[str, str]:
    """Of a Python that loads the instrumented modules: the sanitizers' library has to come first."""
    compiler = native.compiler("address,undefined")

    def library(name: str) -> str:
        return subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()

    return {
        **os.environ,
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so.6')}",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:malloc_context_size=12",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": os.pathsep.join([str(SITE), str(TESTS)]),
        "PYTHONMALLOC": "malloc",  # Python's own allocator would hide where a small object ends
        **extra,
    }


def asan(everything: bool) -> int:
    instrumented()
    where = "import jaxexp._native as n, jaxexp._runtime as r; print(n.__file__, r.__file__)"
    found = subprocess.check_output([sys.executable, "-c", where], env=environment(), text=True)
    assert all(Path(file).is_relative_to(SITE) for file in found.split()), f"{found} are not the instrumented modules"
    files = [str(TESTS / name) for name in SUITE]
    chosen = ["-m", "not cpp", *([] if everything else ["--gate"])]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", *chosen, *files]
    return subprocess.run(command, env=environment(), cwd=ROOT).returncode


def leaks() -> int:
    instrumented()
    options = environment()["ASAN_OPTIONS"].replace("detect_leaks=0", "detect_leaks=1:leak_check_at_exit=0")
    suppressions = f"suppressions={TESTS / 'cpp' / 'lsan.supp'}:print_suppressions=0"
    devices = "--xla_force_host_platform_device_count=8"
    extra = {"ASAN_OPTIONS": options, "LSAN_OPTIONS": suppressions, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": devices}
    command = [sys.executable, "-c", LEAKS]
    control = subprocess.run([*command, "lose"], env=environment(**extra), capture_output=True, text=True)
    if control.returncode != 1 or "12345 byte" not in control.stderr:
        print(f"LeakSanitizer does not notice what is lost on purpose:\n{control.stderr[-3000:]}")
        return 1
    return subprocess.run(command, env=environment(**extra)).returncode


def threads() -> int:
    programs = native.sanitized("thread")
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--if-needed", action="store_true", help="only where .ci/sanitized is of other C++")
    parser.add_argument("--all", action="store_true", help="all cases of the tests in Python")
    parser.add_argument("steps", nargs="*", choices=[*STEPS, []], help="only these, which leave .ci/sanitized as it is")
    arguments = parser.parse_args()
    if arguments.if_needed and passed_before():
        print(f"sanitized before: digest {digest()}")
        return 0
    try:
        if "clang" in (compiler := native.compiler("address,undefined")):
            raise native.UnavailableError(f"{compiler} keeps its sanitizers' runtime to itself: this needs g++")
    except native.UnavailableError as missing:
        print(missing, file=sys.stderr)
        return 1
    steps = {"fuzz": fuzz, "asan": lambda: asan(arguments.all), "leaks": leaks, "threads": threads}
    wanted = arguments.steps or [name for name in STEPS if not (arguments.if_needed and name == "threads")]
    before, failed = digest(), False
    for name in wanted:
        start = time.monotonic()
        print(f"== {name}", flush=True)
        status = steps[name]()
        failed = failed or status != 0
        print(f"== {name}: {'failed' if status else 'passed'} in {time.monotonic() - start:.0f} s", flush=True)
    if not failed and set(wanted) >= set(STEPS) - {"threads"} and digest() == before:
        PASSED.write_text(f"{before}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
