"""`make shadow`: JAX's own tests with jaxexp in the place of `jax.export`, and their functions exported by both.

The tests are not in JAX's wheels. SOURCE is a folder with them: a checkout of JAX at the installed release, or near it.
A file on exporting runs four times: as it is; with jaxexp installed; with jaxexp imported where it imported
`jax.export`; and with each function that it jits and calls exported, serialized, loaded and called by both libraries.
Other files run only in this last way. Then the examples in JAX's documents on export run with both. Of long files, a
share of the tests runs; `--part 0/1` runs all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import documents

HERE = Path(__file__).parent
MODES = {"jax": [], "jaxexp": ["words", "in_place"], "rewritten": ["words"], "functions": ["functions"]}
# Of how many of its tests one runs by default.
ON_EXPORT = {
    "export_test.py": 1, "export_back_compat_test.py": 1, "export_serialization_back_compat_test.py": 1,
    "error_check_test.py": 1, "pallas/pallas_shape_poly_test.py": 1, "shape_poly_test.py": 32,
    "export_harnesses_multi_platform_test.py": 100,
}  # fmt: skip
OTHERS = {
    "api_test.py": 8, "pjit_test.py": 8, "shard_map_test.py": 8, "lax_control_flow_test.py": 8,
    "mutable_array_test.py": 4, "linalg_test.py": 40, "lax_test.py": 100, "lax_numpy_test.py": 200,
    "lax_scipy_test.py": 20, "random_lax_test.py": 20, "nn_test.py": 8, "fft_test.py": 20, "image_test.py": 8,
    "sparse_bcoo_bcsr_test.py": 40, "custom_api_test.py": 8, "custom_linear_solve_test.py": 1,
    "custom_root_test.py": 1, "array_test.py": 4, "aot_test.py": 2, "key_reuse_test.py": 4, "memories_test.py": 4,
    "layout_test.py": 2, "debugger_test.py": 1, "pallas/pallas_test.py": 40, "ode_test.py": 2,
    "x64_context_test.py": 2, "tree_util_test.py": 8,
    "shard_alike_test.py": 1,  # in JAX up to 0.11
}  # fmt: skip
FILES = {**ON_EXPORT, **OTHERS}
Line = dict[str, Any]


def rewritten(source: Path, folder: Path) -> Path:
    """A copy of JAX's tests that import jaxexp where they imported `jax.export`."""
    copy = folder / "rewritten"
    if copy.exists():
        return copy
    making = folder / "being rewritten"
    shutil.rmtree(making, ignore_errors=True)
    shutil.copytree(source / "tests", making / "tests")
    if (source / "pyproject.toml").exists():
        shutil.copy(source / "pyproject.toml", making)
    for file in making.rglob("*.py"):
        text = re.sub(r"^from jax import export$", "import jaxexp as export", file.read_text(), flags=re.MULTILINE)
        text, count = re.subn(r"\bjax\.export\b(?!\()", "jaxexp", text)
        if count:
            text = re.sub(r"^import jax$", "import jax\nimport jaxexp", text, flags=re.MULTILINE)
        file.write_text(text)
    return making.rename(copy)


def run(source: Path, file: str, mode: str, folder: Path, part: str, timeout: float, more: list[str]) -> list[Line]:
    """Runs a file in a mode, again after each crash. Returns the lines that the plugins wrote."""
    out = folder / f"{file.replace('/', '-').removesuffix('.py')}.{mode}.jsonl"
    environment = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        **os.environ,
        "SHADOW_OUT": str(out),
        "SHADOW_PART": part,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
    }
    plugins = [argument for plugin in ["outcomes", *MODES[mode]] for argument in ("-p", plugin)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *plugins, *more]
    while True:
        known = _lines(out)
        try:
            done = subprocess.run(
                [*command, f"--rootdir={source}", f"tests/{file}"],
                cwd=source,
                env=environment,
                timeout=timeout,
                stdout=(folder / f"{out.stem}.log").open("a"),
                stderr=subprocess.STDOUT,
            )
        except subprocess.TimeoutExpired:
            print(f"  {file} took too long as {mode}; it goes on with the next run", flush=True)
            _forget_unfinished(out)
            break
        # Passed, failed, cannot be imported, nothing left; no progress.
        if done.returncode in (0, 1, 2, 5) or len(_lines(out)) == len(known):
            break
    return _lines(out)


def _forget_unfinished(out: Path) -> None:
    """A test that was stopped has not crashed. What its functions gave goes with it."""
    lines = _lines(out)
    last = max((i for i, line in enumerate(lines) if "test" in line), default=-1)
    if last >= 0 and lines[last]["outcome"] == "crashed":
        out.write_text("".join(f"{json.dumps(line)}\n" for line in lines[:last]))


def _lines(out: Path) -> list[Line]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def outcomes(lines: list[Line]) -> dict[str, Line]:
    """The last line of each test."""
    return {line["test"]: line for line in lines if "test" in line}


def alone(jax: dict[str, Line], jaxexp: dict[str, Line]) -> dict[str, str]:
    """Tests that pass with jax.export and not with jaxexp, and why."""
    return {
        test: line.get("why", "")[-600:] or line["outcome"]
        for test, line in jaxexp.items()
        if line["outcome"] not in ("passed", "skipped")
        and (jax.get(test, {}).get("outcome") == "passed" or (line["outcome"] == "not collected" and test not in jax))
    }


def functions_alone(lines: list[Line], expected: Iterable[str] = ()) -> list[str]:
    """Functions that jax.export exports, reads or calls, and jaxexp does not, or whose results differ.

    Outcomes that have a text of `expected` in them are left out.
    """
    found = []
    for line in lines:
        if "function" not in line:
            continue
        where = f"{line['of']} {line['function']}"
        for library in ("jax", "jaxexp"):
            for stage, outcome in line[library].items():
                # Whoever wrote the bytes, and whoever reads them: what jax.export does with its own is to be had.
                if outcome != "ok" and line["jax"].get(stage.replace("jaxexp's", "jax's")) == "ok":
                    found.append(f"{where}: {library}: {stage}: {outcome}")
        found += [f"{where}: {difference}" for difference in line["differ"]]
    return [outcome for outcome in found if not any(text in outcome for text in expected)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a checkout of JAX, with its folder tests/")
    parser.add_argument("files", nargs="*", default=list(FILES), help=f"in tests/; by default {' '.join(FILES)}")
    parser.add_argument("--modes", help=f"some of {', '.join(MODES)}, for all files")
    parser.add_argument("--part", help="2/5: the third of five parts of each file's tests")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one file in one mode")
    parser.add_argument(
        "--folder", type=Path, default=Path("build/shadow"), help="for outcomes, which a later run keeps"
    )
    chosen, more = parser.parse_known_intermixed_args()
    if not (chosen.source / "tests" / "export_test.py").exists():
        sys.exit(f"{chosen.source} has no tests/export_test.py; JAX's sdists have no tests: name a checkout of JAX")
    import jax

    folder = (chosen.folder / jax.__version__).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    expected: dict[str, dict[str, str]] = tomllib.loads((HERE / "expected.toml").read_text())
    rows, unexpected = [], []
    for file in chosen.files:
        modes = chosen.modes.split(",") if chosen.modes else ["functions"] if file in OTHERS else list(MODES)
        part = chosen.part or f"0/{FILES.get(file, 1)}"
        lines = {}
        for mode in modes:
            source = rewritten(chosen.source, folder) if mode == "rewritten" else chosen.source.absolute()
            lines[mode] = run(source, file, mode, folder, part, chosen.timeout, more)
        found, only_jaxexp = summary(lines, expected)
        rows.append(f"| {file}, part {part} | {' | '.join(map(str, found))} |")
        print(rows[-1], flush=True)
        unexpected += only_jaxexp
    for name in documents.DOCUMENTS if chosen.files == list(FILES) else ():
        count, differing = documents.differences(chosen.source / name)
        rows.append(f"| {name}, {count} examples | | | | | | | | | | {len(differing)} |")
        unexpected += differing
    head = [f"JAX {jax.__version__}", "", "| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    table = "\n".join([*head, *rows, ""])
    (folder / "table.md").write_text("\n".join([table, *unexpected, ""]))
    print(table, *unexpected, sep="\n")
    sys.exit(bool(unexpected))


COLUMNS = (
    "file", "tests", "pass with jax.export", "pass with jaxexp installed", "pass with jaxexp imported",
    "of these, in jaxexp's words", "fail, because jaxexp can do more", "only jaxexp fails", "functions",
    "exported, read and called by both", "only jaxexp fails or differs",
)  # fmt: skip


def summary(lines: dict[str, list[Line]], expected: dict[str, dict[str, str]]) -> tuple[list[int], list[str]]:
    """The numbers in a file's row, and what only jaxexp fails at."""
    jax, *of_jaxexp = (outcomes(lines.get(mode, [])) for mode in ("jax", "jaxexp", "rewritten"))
    passed = [Counter(line["outcome"] for line in of.values())["passed"] for of in (jax, *of_jaxexp)]
    failing = {test: why for of in of_jaxexp for test, why in alone(jax, of).items()}
    known = {test for test in failing if test.rpartition("::")[2] in expected["tests"]}
    functions = [line for line in lines.get("functions", []) if "function" in line]
    both = sum(_is_ok(line, "jax") and _is_ok(line, "jaxexp") for line in functions)
    tests = outcomes(lines.get("functions", []))
    differing = crashed(jax, tests) + functions_alone(functions, expected["functions"])
    reworded = sum("reworded" in line for line in of_jaxexp[0].values())
    most = max(map(len, (jax, *of_jaxexp, tests)))
    row = [most, *passed, reworded, len(known), len(failing) - len(known), len(functions), both, len(differing)]
    return row, [f"{test}\n{why}" for test, why in failing.items() if test not in known] + differing


def crashed(jax: dict[str, Line], functions: dict[str, Line]) -> list[str]:
    """Tests that end the process while their functions are exported, and do not without that."""
    ended = {test for test, line in functions.items() if line["outcome"] == "crashed"}
    return [f"{test}: crashed" for test in sorted(ended) if jax.get(test, {}).get("outcome") != "crashed"]


def _is_ok(line: Line, library: str) -> bool:
    return all(outcome == "ok" for outcome in line[library].values())


if __name__ == "__main__":
    main()
