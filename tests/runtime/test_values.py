"""What the C++ runtime computes is what JAX computes: the corpus, VJPs, and all golden artifacts as they are, on both
plugins for the CPU that PyPI has; and custom calls, which a plugin runs or names.
"""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from kit import documentation, goldens, native, recorded, runtime
from kit.corpus import CASES, export_with
from kit.places import TESTS
from kit.run_c import Handle, Library, RunError
from kit.runtime_values import assert_alike, flat_arguments, flat_results

cpp = pytest.mark.cpp
Call = Callable[..., list[np.ndarray]]


@pytest.fixture(scope="module")
def eight(library: Library, plugin: Path) -> Handle:
    return library.runtime(plugin, cpu_device_count=8)


def of_paths(library: Library, function: Handle, results: list[np.ndarray]) -> dict[str, np.ndarray]:
    return dict(zip(library.texts("result_path", "result_count", function), results, strict=True))


REFUSED = {
    "other_platform": "was exported for rocm, and the plugin is for cpu",
    "custom_call_allowed": "custom calls that the plugin does not compile: jaxexp_corpus_no_such_target",
    "memory_kinds": "custom calls that the plugin does not compile: annotate_device_placement",
    "unreduced_result": "result is unreduced over the mesh axis y",
}
# JAX 0.8.1 cannot read them, so they are written for today's StableHLO, which is newer than the plugin's.
NEW = {"memory_kinds", "one_device_sharding", "reduced_argument", "unreduced_result"}
# test_lapack.py has these.
LAPACK = {"cholesky", "qr", "eigh", "svd", "lu", "triangular_solve", "linalg_symbolic_multi_platform"}


@cpp
@pytest.mark.parametrize("name", [name for name in CASES if name not in LAPACK])
def test_corpus(name: str, library: Library, eight: Handle, call: Call, tmp_path: Path) -> None:
    case = CASES[name]
    with case.context():
        program = case.build()
        exported = export_with(jaxexp, program)
        exported.save(tmp_path / "f.jaxexp", compatibility=None if name in NEW else runtime.READER)
        arguments = flat_arguments(exported, program.args, program.kwargs)
        if name in REFUSED:
            with pytest.raises(RunError, match=REFUSED[name]) as refused:
                call(library.load(eight, tmp_path / "f.jaxexp"), *arguments)
            assert len(str(refused.value)) < 1000
            return
        expected = flat_results(exported, program.live(*program.args, **program.kwargs))
    function = library.load(eight, tmp_path / "f.jaxexp")
    assert_alike(of_paths(library, function, call(function, *arguments)), expected)


# --- golden artifacts -----------------------------------------------------------------------------------------------

PAGE = documentation.DOCS / "guide" / "run.md"
MARKERS = ("<!-- golden artifacts: start -->", "<!-- golden artifacts: end -->")
PLUGINS: dict[str, Callable[[], Path]] = {
    "xla-cpu-pjrt 0.0.1": runtime.plugin,
    "lammps-jax-pjrt-cpu 0.11.2": runtime.newer_plugin,
}
# Calls all artifacts that are named by its input, with the arrays in a folder, where it leaves the results.
CALLS_ALL = """
import os, sys
from pathlib import Path
import numpy as np
from kit.run_c import Library
from kit.runtime import numpy_dtype
library, plugin, lapack, folder = Library(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
library.checked("use_lapack", os.fsencode(lapack))
runtime = library.runtime(plugin, cpu_device_count=8)
for number, line in enumerate(sys.stdin.read().splitlines()):
    print(line, flush=True)
    function = library.load(runtime, Path(line))
    with np.load(folder / f"{number}.npz") as file:
        given = [library.array(file[name].view(numpy_dtype(name.partition(" ")[2]))) for name in file.files]
    results = [library.read(result) for result in library.call(function, *given)]
    paths = library.texts("result_path", "result_count", function)
    found = {path: x.view(f"V{x.dtype.itemsize}") for path, x in zip(paths, results, strict=True)}
    np.savez(folder / f"{number}.out.npz", **found)
assert "jax" not in sys.modules
"""


def run_all(names: list[str], plugin_name: str, installed: Path, folder: Path) -> None:
    """Without Python's JAX and jaxlib, in one process."""
    try:
        plugin, lapack = PLUGINS[plugin_name](), runtime.lapack()
    except native.UnavailableError as missing:
        pytest.skip(str(missing))
    known = {name: recorded.recorded(name) for name in names}
    for number, (arguments, _) in enumerate(known.values()):
        # As bytes: NumPy does not read each of the dtypes that it writes.
        named = {f"{i} {x.dtype.name}": x.view(f"V{x.dtype.itemsize}") for i, x in enumerate(arguments)}
        np.savez(folder / f"{number}.npz", **named)
    library = next(installed.glob("lib*/libjaxexp-c.*"))
    done = subprocess.run(
        [sys.executable, "-c", CALLS_ALL, library, plugin, lapack, folder],
        input="\n".join(str(recorded.path_of(name)) for name in names),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout.splitlines()[-1:], done.stderr[-3000:])
    wrong = {}
    for number, (name, (_, expected)) in enumerate(known.items()):
        values = jaxexp.inspect(recorded.path_of(name)).results
        with np.load(folder / f"{number}.out.npz") as file:
            found = {value.path: file[value.path].view(runtime.numpy_dtype(value.dtype)) for value in values}
            assert file.files == list(found)
        try:
            assert_alike(found, expected)
        except AssertionError as error:
            wrong[name] = str(error)
    assert not wrong


@cpp
@pytest.mark.long(
    promise="every golden artifact runs on both plugins, and gives the recorded results",
    sibling="test_values.py::test_some_golden_artifacts_run",
)
@pytest.mark.parametrize("plugin_name", PLUGINS)
def test_golden_artifacts_run(plugin_name: str, installed: Path, tmp_path: Path) -> None:
    run_all([*recorded.ARTIFACTS], plugin_name, installed, tmp_path)


@cpp
@pytest.mark.parametrize("plugin_name", PLUGINS)
def test_some_golden_artifacts_run(plugin_name: str, installed: Path, tmp_path: Path) -> None:
    """The last ones of each folder."""
    last = {name.rpartition("/")[0]: name for name in recorded.ARTIFACTS}
    run_all([*last.values()], plugin_name, installed, tmp_path)


def test_the_table_of_the_page() -> None:
    """It says of every kind what the test above shows of each of its artifacts."""
    if not PAGE.exists():
        pytest.skip("the documentation is not beside the tests")
    assert {recorded.path_of(name) for name in recorded.ARTIFACTS} == set(recorded.GOLDEN.rglob("*.bin"))
    before, start, rest = PAGE.read_text(encoding="utf-8").partition(MARKERS[0])
    found, end, _ = rest.partition(MARKERS[1])
    assert before and start and end
    counts = collections.Counter(recorded.ARTIFACTS.values())
    rows = [("golden artifacts", "", *PLUGINS), ("---", "--:", *["---"] * len(PLUGINS))]
    rows += [(kind, str(count), *["all equal"] * len(PLUGINS)) for kind, count in counts.items()]
    rows += [("refused", "0", *["0"] * len(PLUGINS))]
    assert found.strip() == "\n".join(f"| {' | '.join(row)} |" for row in rows)


NEWER = (
    r"is written for StableHLO \d+\.\d+\.\d+, the plugin knows it up to 1\.13\.3, and does not compile the module: .* "
    f'compatibility="{runtime.READER}".*sine_v9'
)


@cpp
def test_a_newer_stablehlo_explains_what_does_not_compile(plugin: Path, tmp_path: Path) -> None:
    """Not what compiles all the same; here it is an operation of the future. Nor what the plugin's own version says."""
    artifact, own = tmp_path / "f.jaxexp", jaxexp.export(jax.jit(jnp.sin))(np.float32(0))
    np.savez(tmp_path / "in.npz", np.load(goldens.RELEASES["0.12.0.1"] / "sin.npz")["in_0"])
    for blob, is_newer in (
        (goldens.blob_of("0.12.0.1", "sin"), True),
        (own.serialize(compatibility=runtime.READER), False),
    ):
        artifact.write_bytes(blob.replace(b"sine_v2", b"sine_v9"))
        done = runtime.run(artifact, tmp_path / "in.npz")
        assert done.returncode == 1
        if "JAXEXP_PJRT_PLUGIN" not in os.environ:  # another plugin may know more
            assert bool(re.search(NEWER, done.stderr)) == is_newer


# --- custom calls: none of them ends the process --------------------------------------------------------------------

X = np.array([[4, 1, 2], [1, 5, 3], [2, 3, 6]], np.float32)
MISSING: dict[str, Callable[..., Any]] = {
    "cholesky": jnp.linalg.cholesky,
    "householder_product": lambda x: jax.lax.linalg.householder_product(x, x[0]),
    "inverse": jnp.linalg.inv,
    "svd": lambda x: tuple(jnp.linalg.svd(x)),
}


def exported_for(folder: Path, function: Any, *platforms: str) -> Path:
    exported = jaxexp.export(jax.jit(function), platforms=platforms)(X)
    exported.save(folder / "f.jaxexp", compatibility=runtime.READER)
    np.save(folder / "x.npy", X)
    return folder / "f.jaxexp"


@cpp
@pytest.mark.parametrize("name", MISSING)
def test_what_a_plugin_lacks_is_named(name: str, plugin: Path, tmp_path: Path) -> None:
    """XLA's own calls for TPUs among them, such as those that it crashes on when they are asked for in another way."""
    artifact = exported_for(tmp_path, MISSING[name], "cpu")
    (calls,) = jaxexp.inspect(artifact).custom_calls
    done = runtime.run(artifact, tmp_path / "x.npy")
    assert done.returncode == 1
    assert "has custom calls that the plugin does not compile: lapack_" in done.stderr
    assert all(call in done.stderr for call in calls)
    assert len(done.stderr) < 1000
    assert f"custom calls: {' '.join(sorted(calls))}\n" in runtime.run("--inspect", artifact).stdout
    for platforms in (("cpu", "tpu"), ("tpu", "cpu"), ("cuda", "cpu")) if name == "inverse" else ():
        done = runtime.run(exported_for(tmp_path, MISSING[name], *platforms), tmp_path / "x.npy")
        assert done.returncode == 1
        assert "has custom calls that the plugin does not compile: " in done.stderr
        assert "so export it for cpu only, if these are for others" in done.stderr


@cpp
def test_calls_of_the_compiler_itself(library: Library, runtime: Handle, call: Call, tmp_path: Path) -> None:
    for platforms in (("cpu",), ("cpu", "tpu"), ("tpu", "cpu")):
        artifact = exported_for(tmp_path, lambda x: jax.lax.approx_max_k(x, 2)[0], *platforms)
        np.testing.assert_array_equal(call(library.load(runtime, artifact), X)[0], jax.lax.top_k(X, 2)[0])
