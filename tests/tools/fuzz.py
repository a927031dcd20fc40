"""Runs the fuzz targets of tests/cpp, and those in Python, for some seconds: what `make fuzz` does.

Prints the table of docs/fuzzing.md: executions, hours of CPU, and the worst cost of a run as a part of what is
promised.

python tests/tools/fuzz.py SECONDS [--keep FOLDER] [--driver] [TARGET...]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import numpy as np

import jaxexp
from jaxexp import _native
from jaxexp._executables.file import ExecutablesFile, GrowingFile
from kit import hostile, named_devices, native
from kit.places import ATTACKS, GOLDEN, TESTS
from tools import fuzzed_devices, fuzzed_locations, fuzzed_nodes, tensors_fuzz
from tools.steps import cpu_of_children

LONGEST = 20_000  # bytes of a seed; a module is shortened for the C++ targets, but not the rest
# How long inputs may be, and for which part of the time. Most are short, because then there are many of them in a
# second; what grows shows in long ones. Our own driver mixes them itself.
LONGEST_INPUT = 1 << 20
LIBFUZZER_INPUTS = ((4096, 0.75), (LONGEST_INPUT, 0.25))
DRIVER_INPUTS = ((LONGEST_INPUT, 1.0),)
TIMEOUT, MEGABYTES = 60, 4096
HOSTILE_SIZES = (1_000, 30_000)


DONE = re.compile(r"Done (\d+) runs in \d+ second")
COVERED = re.compile(r"cov: (\d+)")
COST = re.compile(r"cost: ([\d.]+)")

PYTHON_TARGETS = ("decoder", "scopes", "archives", "nodes", "devices", "locations", "signatures", "tensors")

CONSTRAINTS = {
    "equality": "mod(b, 8) == 0\nb >= 2*c + 1\n2*a*b + floordiv(b, 8)",
    "chain": "v0 == v1*v1 + w1\nv1 == v2*v2 + w2\nv0^3*v1",
    "extrema": "max(a + b, 2)^2 * min(a, -3) <= a\nmax(a, b)*mod(a, b)^2",
}
# The number of devices, and the message.
OP_SHARDINGS = {
    "tiled": bytes.fromhex("0800000008031a0204024a0108520100"),
    "replicated": bytes.fromhex("010000000800"),
    "maximal": bytes.fromhex("020000000801220101"),
    **{
        name: (8).to_bytes(4, "little") + message
        for name, (attribute, message) in {**named_devices.SHARDINGS, **named_devices.UNKNOWN_FORMS}.items()
        if attribute == "mhlo.sharding" and isinstance(message, bytes)
    },
}
CODE = 70  # bytes that are left of the code of an executable
# What the runtime says of a call on four devices: xla.OpShardings, of which the last one is replicated.
RUNTIME = (
    {"function": "double", "module": "ab" * 16, "plugin": "1 bytes, cd", "compile options": "1a04080110"},
    {"parameter 0": "0803" "1a0104" "220400010203", "parameter 1": "0803" "1a020202" "520104" "5a0100", "result 0": ""},
)  # fmt: skip
MADE = 60  # seeds of what each of the Python targets makes


def seed_files() -> list[Path]:
    """Golden artifacts and the named hostile files, as far as they are small."""
    files = [*sorted(GOLDEN.rglob("*.bin")), *sorted(ATTACKS.rglob("*"))]
    return [file for file in files if file.is_file() and file.stat().st_size <= LONGEST and file.suffix != ".py"]


def make_seeds(programs: Path, folder: Path) -> int:
    """Fills folders of artifacts (with shortened modules), modules, dimensions and indexes; returns how many files."""
    parts = [str(folder / name) for name in ("artifacts", "modules", "dimensions", "archives", "ends")]
    command = [str(programs / "make_seeds"), *parts, *map(str, seed_files())]
    made = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0])
    write_hostile(folder)
    write_made(folder)
    write_arrays(folder)
    write_tensors(folder)
    write_executables(folder / "executables")
    return made


def write_hostile(folder: Path) -> None:
    """Artifacts that try to cost more than their bytes, and texts for the targets that read these alone."""
    sys.setrecursionlimit(30_000)
    for name, make in hostile.FAMILIES.items():
        for size in HOSTILE_SIZES:
            (folder / "artifacts" / f"{name}_{size}").write_bytes(make(size))
    for kind, seeds in (("dimensions", CONSTRAINTS), ("op_shardings", OP_SHARDINGS)):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for name, text in seeds.items():
            (folder / kind / name.replace(" ", "_")).write_bytes(text.encode() if isinstance(text, str) else text)


def write_made(folder: Path) -> None:
    """Nodes of trees, as the Python targets make them; modules with devices and locations of all kinds."""
    for i in range(MADE):
        (folder / "artifacts" / f"node_{i}").write_bytes(fuzzed_nodes.make(random.Random(i)))
        devices, locations = fuzzed_devices.make(random.Random(i)).blob, fuzzed_locations.make(random.Random(i))
        for name, blob in (("devices", devices), ("locations", locations)):
            (folder / "modules" / f"{name}_{i}").write_bytes(bytes(_native.Artifact(blob).module()))


def write_arrays(folder: Path) -> None:
    """NumPy's files, from the arguments of golden artifacts."""
    arrays = folder / "arrays"
    arrays.mkdir(parents=True, exist_ok=True)
    for file in sorted(GOLDEN.rglob("*.npz")):
        if file.stat().st_size <= LONGEST:
            name = f"{file.parent.name}-{file.stem}"
            shutil.copy(file, arrays / f"{name}.npz")
            with zipfile.ZipFile(file) as archive:
                (arrays / f"{name}.npy").write_bytes(archive.read(archive.namelist()[0]))


def write_tensors(folder: Path) -> None:
    """Files of tensors, wrong ones too, headers without files, and indices."""
    tensors = folder / "tensors"
    tensors.mkdir(parents=True, exist_ok=True)
    source = random.Random(0)
    for number in range(60):
        header, data = tensors_fuzz.seed_file(source)
        text = json.dumps(header).encode()
        blob = len(text).to_bytes(8, "little") + text + data
        (tensors / f"file_{number}").write_bytes(blob if number % 2 else text)
        (tensors / f"changed_{number}").write_bytes(tensors_fuzz.changed_file(source))
        names = {name: f"x-{i}.safetensors" for i, name in enumerate(header)}
        index = {"metadata": {"total_size": [1.5e3, None, True]}, "weight_map": names}
        (tensors / f"index_{number}").write_text(json.dumps(index))


def write_executables(folder: Path) -> None:
    """Fills a folder with files of no record, of one, and of many, as jaxexp and the C++ runtime write them."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [RUNTIME, *_of_jax()]
    for count in (1, 2, len(records)):
        file = GrowingFile(folder / f"of_{count}")
        for number, (conditions, call) in enumerate(records[-count:]):
            file.put(conditions, call, bytes(range(CODE * (number % 3))))
    whole = (folder / "of_1").read_bytes()
    (folder / "of_0").write_bytes(whole[:64])
    (folder / "not_finished").write_bytes(whole[:-64])


def _of_jax() -> list[tuple[dict[str, str], dict[str, str]]]:
    x = np.ones((4, 2), np.float32)
    exported = jaxexp.export(jax.jit(lambda x, y: {"product": x @ y["z"], "sum": x.sum()}))(x, {"z": x.T})
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "model.exe")
        exported.precompile(into=path, vjp_order=1)
        return [(dict(one.conditions), dict(one.call)) for one in ExecutablesFile(path).records]


def seeds_of(target: str, folder: Path) -> Path:
    others = {
        "fuzz_bytecode": "modules", "fuzz_dimension": "dimensions", "fuzz_archive": "archives", "fuzz_end": "ends",
        "fuzz_executables": "executables", "fuzz_npy": "arrays", "fuzz_op_sharding": "op_shardings",
        "fuzz_refine": "modules", "fuzz_tensors": "tensors",
    }  # fmt: skip
    return folder / others.get(target, "artifacts")


def targets(programs: Path) -> list[str]:
    return sorted(path.name for path in programs.glob("fuzz_*") if path.is_file() and os.access(path, os.X_OK))


def commands_of(
    name: str, programs: Path, seeds: Path, corpus: Path, inputs: Sequence[tuple[int, float]], seconds: int
) -> list[list[str]]:
    """What runs a target for so long, one after the other."""
    if name in PYTHON_TARGETS:
        return [[sys.executable, str(TESTS / "tools" / "reader_fuzz.py"), name, str(seconds)]]
    keep, commands = corpus.parent, []
    for longest, part in inputs:
        limits = [f"-max_total_time={max(1, round(part * seconds))}", f"-max_len={longest}", f"-timeout={TIMEOUT}"]
        limits += [f"-rss_limit_mb={MEGABYTES}", f"-artifact_prefix={keep}/{name}-"]
        commands.append([str(programs / name), *limits, str(corpus), str(seeds_of(name, seeds))])
    return commands


def short_run(target: Path, runs: int, seeds: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The same inputs each time."""
    command = [target, f"-runs={runs}", "-max_len=2048", *options, seeds_of(target.name, seeds)]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)


@dataclasses.dataclass
class Found:
    """What the commands of a target found: `cost` is the worst one, and `crashes` are the ends of their outputs."""

    runs: int = 0
    cpu: float = 0.0
    edges: str = "-"
    cost: float = 0.0
    crashes: list[str] = dataclasses.field(default_factory=list)


def run(commands: list[list[str]]) -> Found:
    found = Found()
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    for command in commands:
        before = cpu_of_children()
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        found.cpu += cpu_of_children() - before
        found.runs += int((DONE.findall(done.stdout) or ["0"])[-1])
        found.edges = (COVERED.findall(done.stdout) or [found.edges])[-1]
        found.cost = max(found.cost, float((COST.findall(done.stdout) or ["0"])[-1]))
        if done.returncode != 0:
            found.crashes.append(done.stdout[-8000:])
    return found


def build(with_libfuzzer: bool) -> tuple[Path, Sequence[tuple[int, float]]]:
    """The folder of the programs, and what inputs they get. Says what was built."""
    why = ""
    try:
        if with_libfuzzer:
            programs = native.sanitized(libfuzzer=True)
            print("libFuzzer, AddressSanitizer and UBSan", flush=True)
            return programs, LIBFUZZER_INPUTS
    except native.UnavailableError as missing:
        why = f"{missing}: "
    programs = native.sanitized()
    print(f"{why}our own driver, AddressSanitizer and UBSan", flush=True)
    return programs, DRIVER_INPUTS


def fuzz(seconds: int, keep: Path, wanted: list[str], with_libfuzzer: bool) -> int:
    programs, inputs = build(with_libfuzzer)
    seeds = keep / "seeds"
    print(f"{make_seeds(programs, seeds)} seeds", flush=True)
    all_targets = [*targets(programs), *PYTHON_TARGETS]
    chosen = [name for name in all_targets if not wanted or name.removeprefix("fuzz_") in wanted]
    share = max(1, seconds // max(1, len(chosen)))
    failed = 0
    total_runs, total_cpu, worst = 0, 0.0, 0.0
    print("| target | executions | CPU hours | edges | worst cost | crashes |\n|---|---|---|---|---|---|", flush=True)
    for name in chosen:
        corpus = keep / name
        corpus.mkdir(parents=True, exist_ok=True)
        found = run(commands_of(name, programs, seeds, corpus, inputs, share))
        failed += bool(found.crashes)
        total_runs, total_cpu, worst = total_runs + found.runs, total_cpu + found.cpu, max(worst, found.cost)
        row = f"{found.runs:,} | {found.cpu / 3600:.3f} | {found.edges} | {found.cost:.1%} | {len(found.crashes)}"
        print(f"| {name.removeprefix('fuzz_')} | {row} |", flush=True)
        for output in found.crashes:
            print(output, flush=True)
    print(f"| all | {total_runs:,} | {total_cpu / 3600:.3f} | | {worst:.1%} | {failed} |", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seconds", type=int, help="over all targets")
    parser.add_argument("--keep", type=Path, help="where corpora and crashes stay (default: a folder that goes away)")
    parser.add_argument("--driver", action="store_true", help="our own driver, also where there is libFuzzer")
    parser.add_argument("targets", nargs="*", help="such as verify, trailer, decoder (default: all)")
    arguments = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as folder:
        return fuzz(arguments.seconds, arguments.keep or Path(folder), arguments.targets, not arguments.driver)


if __name__ == "__main__":
    sys.exit(main())
