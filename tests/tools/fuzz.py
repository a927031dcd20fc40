"""Runs the fuzz targets of tests/cpp, and the Python decoder's, for some seconds: what `make fuzz` does.

python tests/tools/fuzz.py SECONDS [--keep FOLDER] [TARGET...]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit import native
from kit.places import ATTACKS, GOLDEN, TESTS

LONGEST = 20_000  # bytes; a module is shortened for the C++ targets, but not the rest

DONE = re.compile(r"Done (\d+) runs in (\d+) second")
COVERED = re.compile(r"cov: (\d+)")


def seed_files() -> list[Path]:
    """Golden artifacts and the named hostile files, as far as they are small."""
    files = [*sorted(GOLDEN.rglob("*.bin")), *sorted(ATTACKS.rglob("*"))]
    return [file for file in files if file.is_file() and file.stat().st_size <= LONGEST and file.suffix != ".py"]


def make_seeds(programs: Path, folder: Path) -> int:
    """Fills folders of artifacts (with shortened modules), modules, dimensions and indexes; returns how many files."""
    parts = [str(folder / name) for name in ("artifacts", "modules", "dimensions", "archives")]
    command = [str(programs / "make_seeds"), *parts, *map(str, seed_files())]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0])


def seeds_of(target: str, folder: Path) -> Path:
    others = {"fuzz_bytecode": "modules", "fuzz_dimension": "dimensions", "fuzz_archive": "archives"}
    return folder / others.get(target, "artifacts")


def targets(programs: Path) -> list[str]:
    return sorted(path.name for path in programs.glob("fuzz_*") if path.is_file() and os.access(path, os.X_OK))


def fuzz(seconds: int, keep: Path, wanted: list[str]) -> int:
    try:
        programs = native.build(libfuzzer=True)
        print("libFuzzer, AddressSanitizer and UBSan", flush=True)
    except native.UnavailableError as missing:
        programs = native.build()
        print(f"{missing}: our own driver, AddressSanitizer and UBSan", flush=True)
    seeds = keep / "seeds"
    print(f"{make_seeds(programs, seeds)} seeds", flush=True)
    chosen = [name for name in [*targets(programs), "decoder"] if not wanted or name.removeprefix("fuzz_") in wanted]
    share = max(1, seconds // max(1, len(chosen)))
    failed = 0
    print(f"{'target':<16}{'executions':>12}{'seconds':>9}{'edges':>7}{'crashes':>9}", flush=True)
    for name in chosen:
        corpus = keep / name
        corpus.mkdir(parents=True, exist_ok=True)
        if name == "decoder":
            command = [sys.executable, str(TESTS / "tools" / "decoder_fuzz.py"), str(share)]
        else:
            limits = [f"-max_total_time={share}", "-max_len=4096", f"-artifact_prefix={keep}/{name}-"]
            command = [str(programs / name), *limits, str(corpus), str(seeds_of(name, seeds))]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        runs, took = (DONE.findall(done.stdout) or [("0", "0")])[-1]
        edges = (COVERED.findall(done.stdout) or ["-"])[-1]
        crashed = done.returncode != 0
        failed += crashed
        print(f"{name.removeprefix('fuzz_'):<16}{runs:>12}{took:>9}{edges:>7}{int(crashed):>9}", flush=True)
        if crashed:
            print(done.stdout[-8000:], flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seconds", type=int, help="over all targets")
    parser.add_argument("--keep", type=Path, help="where corpora and crashes stay (default: a folder that goes away)")
    parser.add_argument("targets", nargs="*", help="such as verify, view, write, decoder (default: all)")
    arguments = parser.parse_intermixed_args()
    if arguments.keep:
        return fuzz(arguments.seconds, arguments.keep, arguments.targets)
    with tempfile.TemporaryDirectory() as folder:
        return fuzz(arguments.seconds, Path(folder), arguments.targets)


if __name__ == "__main__":
    sys.exit(main())
