"""What archives of 10^3 to 10^6 members cost: made, opened, appended to, and searched. `python -m bench archives`
prints the table in docs/formats/archive.md; numbers of members may follow.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SIZES = (1_000, 10_000, 100_000, 1_000_000)
STEPS = ("create", "append", "open", "glob")
ROUNDS = 20

COLUMNS = (
    "members",
    "make: peak memory, each member",
    "append one: CPU, bytes written",
    "open, and find one",
    '`glob("m5/plat1/*")`',
)


def main(argv: list[str]) -> int:
    if argv and argv[0] in STEPS:
        globals()[f"_{argv[0]}"](Path(argv[1]), int(argv[2]))
        return 0
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for members in map(int, argv) if argv else SIZES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "fleet.zip"
            found = [_in_process(step, path, members) for step in STEPS]
        print(f"| {members:,} | {' | '.join(found)} |", flush=True)
    return 0


def _in_process(step: str, path: Path, members: int) -> str:
    command = [sys.executable, "-m", "bench", "archives", step, path, str(members)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _name(number: int) -> str:
    return f"m{number // 1000}/plat{number // 100 % 10}/b{number % 100:02}"


def _create(path: Path, members: int) -> None:
    """Functions with one module and their own metadata. Memory is that of the process, with JAX."""
    import jax
    import numpy as np

    import jaxexp
    from bench import memory

    exported = jaxexp.export(jax.jit(lambda x: x * 2))(jax.ShapeDtypeStruct((2, 4), np.float32))

    def run() -> None:
        with jaxexp.Archive.create(path) as archive:
            for number in range(members):
                archive.add(_name(number), exported.serialize(metadata={"version": number}))

    exported.serialize(metadata={"version": 0})
    begin = time.process_time()
    peak = memory.peak_of(run)
    shown = "?" if peak is None else f"{peak / 1e6:,.0f} MB"
    print(f"{shown}, {(time.process_time() - begin) / members * 1e6:.0f} us")


def _append(path: Path, members: int) -> None:
    import jaxexp

    blob = jaxexp.Archive.open(path)[_name(members // 2)].read()

    def run() -> None:
        with jaxexp.Archive.append(path) as archive:
            archive.add(f"m5/plat1/new{path.stat().st_size}", blob)

    run()  # imports, and reads the file
    before = path.stat().st_size
    milliseconds = _best(run, time.process_time) * 1e3
    print(f"{milliseconds:,.1f} ms, {(path.stat().st_size - before) / ROUNDS / 1e3:,.0f} kB")


def _open(path: Path, members: int) -> None:
    import jaxexp

    def run() -> None:
        with jaxexp.Archive.open(path) as archive:
            assert archive[_name(members // 2)].size

    print(f"{_best(run, time.perf_counter) * 1e6:,.0f} us")


def _glob(path: Path, members: int) -> None:
    import jaxexp

    def run() -> None:
        with jaxexp.Archive.open(path) as archive:
            assert len(archive.glob("m5/plat1/*")) >= (100 if members > 6000 else 1)

    print(f"{_best(run, time.perf_counter) * 1e6:,.0f} us")


def _best(run: Callable[[], None], clock: Callable[[], float]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = clock()
        run()
        best = min(best, clock() - begin)
    return best
