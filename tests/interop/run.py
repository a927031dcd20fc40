"""`make interop`: jaxexp writes for old releases of JAX, which read it; docs/interop.md gets the table."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from wheels import Wheels, number, python_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "interop.md"
MARKERS = ("<!-- interop: start -->", "<!-- interop: end -->")
RELEASES = ("0.4.30", "0.4.38", "0.5.3", "0.6.2", "0.7.2", "0.8.3", "0.9.2", "0.10.2", "0.11.2")
# What `make test` keeps of it.
GOLDEN = ROOT / "tests" / "golden" / "compat"
GOLDEN_RELEASES = ("0.4.30", "0.6.2", "0.9.2")
GOLDEN_CASES = (
    "perceptron symbolic_several sharded_2d shard_map_psum multi_platform ordered_effect namedtuples threefry_key "
    "cholesky donated float0"
).split()
WRITER_JAX, WRITER_PYTHON = "0.12.0.1", "3.13"


def interpreter(python: str) -> str:
    """A Python of this version that starts: on PATH, or among pyenv's."""
    name = f"python{python}"
    pyenv = shutil.which("pyenv")
    roots = [root for root in (os.environ.get("PYENV_ROOT"), pyenv and Path(pyenv).resolve().parents[1]) if root]
    candidates = [shutil.which(name)]
    for root in roots:
        candidates += sorted(map(str, Path(root).glob(f"versions/{python}.*/bin/{name}")), reverse=True)
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode == 0:
            return candidate
    raise SystemExit(f"make interop needs Python {python}, which is neither on PATH nor in pyenv")


def writer(folder: Path) -> str:
    """A Python with jaxexp, built from this checkout, on the newest JAX."""
    python = folder / "writer" / "bin" / "python"
    if not python.exists():
        subprocess.run([interpreter(WRITER_PYTHON), "-m", "venv", folder / "writer"], check=True)
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, f"jax=={WRITER_JAX}", f"jaxlib=={WRITER_JAX}"], check=True)
    subprocess.run([*pip, "--no-deps", "--force-reinstall", ROOT], check=True)
    subprocess.run([*pip, "flatbuffers"], check=True)
    return os.fspath(python)


def read(python: str, environment: dict[str, str], folder: Path, release: str) -> dict[str, str | None]:
    """What came of each file that the release was given: None, or the error. A crash ends a process, not the run."""
    outcome: dict[str, str | None] = {}
    cases = json.loads((folder / release / "cases.json").read_text())
    left = list(cases)
    while left:
        command = [python, "-P", os.fspath(HERE / "read.py"), os.fspath(folder), release, *left]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        started = None
        for line in map(json.loads, done.stdout.splitlines()):
            if line.get("done"):
                outcome[line["file"]] = line["error"]
                started = None
            else:
                started = line
        if done.returncode == 0:
            break
        if started is None:
            raise SystemExit(f"reading with JAX {release} did not start:\n{done.stderr}")
        outcome[started["file"]] = f"the process ended with {done.returncode}: {done.stderr[-300:]}"
        left = left[left.index(started["case"]) + 1 :]
    return outcome


def cells(folder: Path, release: str, outcome: dict[str, str | None]) -> dict[str, dict[str, Any]]:
    """What came of each case: "ok", "refused" (by jaxexp, when it was to be written) or "failed", and why."""
    found: dict[str, dict[str, Any]] = {}
    for name, entry in json.loads((folder / release / "cases.json").read_text()).items():
        errors = [outcome.get(file) or "" for file in entry["files"] if outcome.get(file, "not read") is not None]
        if errors:
            found[name] = {"is": "failed", "why": errors[0]}
        elif "refused" in entry:
            found[name] = {"is": "refused", "why": entry["refused"]}
        else:
            found[name] = {"is": "ok"}
    return found


def table(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The page's table, a row a case, and the reasons of what is not ok."""
    releases = sorted(results, key=number)
    names = list(dict.fromkeys(name for release in releases for name in results[release]))
    reasons: dict[str, None] = {}
    lines = [
        f"Written by jaxexp on JAX {WRITER_JAX}; read, called and compared by each release's own `jax.export`.",
        "A version in a cell means that jaxexp refuses to write the case for this release; "
        "that version is the first that reads it.",
        "",
        "| case | " + " | ".join(releases) + " |",
        "|---|" + "---|" * len(releases),
    ]
    for name in names:
        row = []
        for release in releases:
            cell = results[release].get(name, {"is": "", "why": ""})
            if cell["is"] == "refused":
                feature = re.fullmatch(
                    r".* cannot be written for JAX [\d.]+: (.*); write for JAX ([\d.]+) .*", cell["why"]
                )
                row.append(feature[2] if feature else "refused")
                reasons[f"- `{name}`: {feature[1] if feature else cell['why']}"] = None
            elif cell["is"] == "failed":
                row.append("**failed**")
                reasons[f"- `{name}` **failed** on {release}: {cell['why'][:300]}"] = None
            else:
                row.append(cell["is"])
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    total = sum(len(results[release]) for release in releases)
    ok = sum(cell["is"] == "ok" for release in releases for cell in results[release].values())
    failed = sum(cell["is"] == "failed" for release in releases for cell in results[release].values())
    lines += ["", f"{ok} of {total} were read, ran and matched; {total - ok - failed} were refused; {failed} failed."]
    if reasons:
        lines += ["", "Reasons:", "", *reasons]
    return "\n".join(lines)


def keep(artifacts: Path, results: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Puts what a few releases have read in tests/golden/compat."""
    for release in GOLDEN_RELEASES:
        folder = GOLDEN / f"jax-{release}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        written = json.loads((artifacts / release / "cases.json").read_text())
        kept = {name: written[name] for name in GOLDEN_CASES if results[release][name]["is"] == "ok"}
        for name in kept:
            shutil.copy(artifacts / release / f"{name}.bin", folder)
        entries = {name: {"vjp_order": entry["vjp_order"]} for name, entry in kept.items()}
        (folder / "cases.json").write_text(json.dumps(entries, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("releases", nargs="*", default=RELEASES, help=f"by default {' '.join(RELEASES)}")
    parser.add_argument("--folder", type=Path, default=ROOT / ".interop", help="for wheels and artifacts")
    parser.add_argument("--writer", help="a Python with jaxexp and the newest JAX; by default one is set up")
    parser.add_argument("--no-page", action="store_true", help="leave docs/interop.md as it is")
    parser.add_argument("--keep", action="store_true", help="renew tests/golden/compat")
    chosen = parser.parse_args()
    releases, folder = list(chosen.releases) or list(RELEASES), chosen.folder.absolute()
    artifacts = folder / "artifacts"
    artifacts.mkdir(parents=True, exist_ok=True)
    python = chosen.writer or writer(folder)
    subprocess.run([python, os.fspath(HERE / "write.py"), os.fspath(artifacts), *releases], check=True)

    wheels = Wheels(folder, {tag: interpreter(tag) for tag in {python_of(release) for release in releases}})
    kept = folder / "results.json"
    results = json.loads(kept.read_text()) if kept.exists() else {}
    for release in releases:
        results[release] = cells(artifacts, release, read(*wheels.environment(release), artifacts, release))
        counts = [sum(c["is"] == what for c in results[release].values()) for what in ("ok", "refused", "failed")]
        print(f"JAX {release}: {counts[0]} ok, {counts[1]} refused when writing, {counts[2]} failed", flush=True)
        for name, cell in results[release].items():
            if cell["is"] == "failed":
                print(f"  {name}: {cell['why'][:400]}", flush=True)
    kept.write_text(json.dumps(results, indent=1))
    if chosen.keep:
        keep(artifacts, results)
    if not chosen.no_page and set(RELEASES) <= results.keys():  # some of them do not make a page
        page = PAGE.read_text()
        before, _, rest = page.partition(MARKERS[0])
        _, _, after = rest.partition(MARKERS[1])
        shown = {release: cells for release, cells in results.items() if release in RELEASES}
        PAGE.write_text(f"{before}{MARKERS[0]}\n{table(shown)}\n{MARKERS[1]}{after}")
    if any(cell["is"] == "failed" for release in releases for cell in results[release].values()):
        sys.exit("some cases failed")


if __name__ == "__main__":
    main()
