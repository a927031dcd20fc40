"""What Python reads: fields of artifacts; archives, from a file, a file object and a URL; symbolic scopes and metadata,
which JAX gets to see; auxiliary data of tree nodes; meshes, shardings and locations in modules; signatures; weights.

python tests/tools/reader_fuzz.py KIND SECONDS [SEED]
"""

from __future__ import annotations

import collections
import functools
import io
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import jaxexp
from jaxexp import _native
from kit import costs, layout
from kit.archives import blob, plain
from tools import decoder_fuzz, fuzzed_devices, fuzzed_locations, fuzzed_nodes, fuzzed_signatures, tensors_fuzz

Make = Callable[[random.Random], Any]  # something with a length, in bytes
Look = Callable[[Any], str]

WAYS = 8  # how often one run reads its bytes, at most; each reading is one that the promise about cost is for
WORST = [0.0]

NAMES = ["a", "b", "c", "abc", "_", "x1", "mod", "None"]
NUMBERS = ["0", "1", "2", "3", "7", "8", "63", "64", "1000", "-1", "-8", "2147483648", "9223372036854775807", "1" * 30]
RELATIONS = [" >= ", " == ", " <= ", " > ", "=", ""]
PIECES = ["(", ")", ",", "^", "*", " ", "\0", "é", "mod(", "max(", "==", "\\u0000"]
TEXTS = ["", '"', "null", "1e400", "[" * 200, '{"a": 1}', "1" * 500, '"\\ud800"', "NaN", '"x"', "[1, 2, [3]]", "\x00"]


def expression(source: random.Random, depth: int = 0) -> str:
    """In JAX's language of dimensions, more or less."""
    if depth > 4 or source.random() < 0.3:
        return source.choice(NAMES if source.random() < 0.7 else NUMBERS)
    inner = [expression(source, depth + 1) for _ in range(source.choice([1, 2, 2, 3]))]
    match source.randrange(6):
        case 0:
            return " + ".join(inner)
        case 1:
            return "*".join(inner)
        case 2:
            return f"{source.choice(NAMES)}^{source.choice(NUMBERS)}"
        case 3:
            return f"{source.choice(['max', 'min', 'mod', 'floordiv', 'non_negative'])}({', '.join(inner)})"
        case 4:
            return " - ".join(inner)
        case _:
            return f"{source.choice(NUMBERS)}*{inner[0]}"


def spoiled(source: random.Random, text: str) -> str:
    """The same with a piece of something else in it, now and then."""
    if source.random() < 0.8:
        return text
    at = source.randrange(len(text) + 1)
    return text[:at] + source.choice(PIECES) + text[at + source.randrange(3) :]


def scope(source: random.Random) -> bytes:
    """An artifact with constraints, metadata, and an argument whose dimensions are symbolic."""
    constraints = [
        spoiled(source, expression(source) + source.choice(RELATIONS) + expression(source))
        for _ in range(source.choice([0, 1, 1, 2, 3, 8, 40]))
    ]
    dimensions = [spoiled(source, expression(source)) for _ in range(source.choice([1, 1, 2, 4]))]
    keys = sorted({spoiled(source, f"k{i}") for i in range(source.choice([0, 0, 1, 3]))})
    metadata = [(key, source.choice(TEXTS) if source.random() < 0.5 else json.dumps([key])) for key in keys]
    return layout.with_constraints(constraints, metadata, *dimensions)


def look_at_scope(data: bytes) -> str:
    """Read in every way: a result, or the one error that each has."""
    outcome = "refused"
    for read in (jaxexp.deserialize, jaxexp.inspect, jaxexp.compatibility):
        try:
            result = read(data)
        except jaxexp.errors.DeserializationError as error:
            str(error).encode()
        else:
            str(result)
            if isinstance(result, jaxexp.Exported):
                outcome = "read"
                str(result.in_avals)
                str(result.metadata)
                again = jaxexp.deserialize(result.serialize())
                assert again.in_avals == result.in_avals or again.fun_name == result.fun_name
    return outcome


@functools.cache
def whole_archives() -> list[bytes]:
    """One section, two, and one that is not finished."""
    made = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.zip")
        with jaxexp.Archive.create(path) as archive:
            for i in range(3):
                archive.add(f"m/{i}", blob(version=i), metadata={"i": i})
            archive.add("plain", plain())
        made.append(path.read_bytes())
        with jaxexp.Archive.append(path) as archive:
            archive.add("again", blob(version=0))
            archive.add("new", blob("tpu"))
        made.append(path.read_bytes())
        made.append(made[1][: (len(made[0]) + len(made[1])) // 2])
    return made


def archive(source: random.Random) -> bytes:
    """An archive with a few changes, most of them where what all readers look at is."""
    data = bytearray(source.choice(whole_archives()))
    for _ in range(source.choice([0, 1, 1, 2, 5])):
        front, back = source.randrange(min(400, len(data))), len(data) - 1 - source.randrange(min(3000, len(data)))
        at = source.choice([front, back, back, source.randrange(len(data))])
        match source.randrange(6):
            case 0:
                data[at] ^= 1 << source.randrange(8)
            case 1:
                data[at : at + 8] = source.randrange(1 << 20).to_bytes(8, "little")
            case 2:
                del data[at : at + source.choice([1, 8, 64, 134, 4000])]
            case 3:
                data += data[at : at + source.choice([134, 1000, 4000])]
            case 4:
                data[at:at] = source.choice(whole_archives())[-source.choice([134, 700, 4000]) :]
            case _:
                data += source.choice(whole_archives())
        if not data:
            return b"P"
    return bytes(data)


class Found(NamedTuple):
    """What an archive shows: its names, those that are damaged, those that can be loaded, and where it ends."""

    names: list[str]
    damaged: list[str]
    loaded: list[str]
    end: int


def look_at_archive(data: bytes) -> str:
    """The same from a file, a file object and a URL: refused by one, or names and members that all agree on."""
    import fsspec

    fsspec.filesystem("memory").pipe("/fuzz.zip", data)
    of_file, of_object = read_file(data), read_archive(io.BytesIO(data))
    of_url = read_archive("memory://fuzz.zip")
    assert (of_file is None) == (of_object is None), "a file object is read as a file is"
    if of_url is not None and of_file is None:
        # Members without a section's head are walked through in a file only. So there it sees what is wrong with them.
        assert of_url.end < len(data) or not begins_with_section(data), "a URL is no less careful than a file"
        of_file = read_file(data[: of_url.end]) if of_url.end < len(data) else of_url
        assert of_file is not None, "what a URL shows is an archive without what follows, too"
    read = [one for one in (of_file, of_object, of_url) if one is not None]
    for found in read:
        assert found[:2] == read[0][:2], "an archive is the same wherever it comes from"
        # What comes from elsewhere is compared with the index at once: a member may be refused that a file gives.
        refused = {one for one in read[0].loaded if one not in found.loaded}
        assert set(found.loaded) <= set(read[0].loaded)
        assert {one.rpartition(" ")[0] for one in refused} <= set(found.damaged)
    return "read" if read else "refused"


def begins_with_section(data: bytes) -> bool:
    """Whether an archive begins as today's do."""
    return _native.archive_section_head(0).find(b"jxsect") == data.find(b"jxsect")


def read_file(data: bytes) -> Found | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "fuzz.zip")
        path.write_bytes(data)
        return read_archive(path)


def read_archive(where: object) -> Found | None:
    """None for what is no archive."""
    try:
        with jaxexp.Archive.open(where) as opened:
            names = list(opened)
            damaged = sorted(opened.verify(workers=1))
            loaded = []
            for name in names:
                try:
                    loaded.append(f"{name} {opened[name].load(verify=True).fun_name}")
                except jaxexp.errors.DeserializationError:
                    assert name in damaged, f"{name} was verified and cannot be loaded"
            return Found(names, damaged, loaded, opened._opened.end)
    except jaxexp.errors.DeserializationError as error:
        str(error).encode()
        return None


KINDS: dict[str, tuple[Make, Look]] = {
    "decoder": (decoder_fuzz.make, decoder_fuzz.look_in_all_ways),
    "scopes": (scope, look_at_scope),
    "archives": (archive, look_at_archive),
    "nodes": (fuzzed_nodes.make, fuzzed_nodes.look_at),
    "devices": (fuzzed_devices.make, fuzzed_devices.look_at),
    "locations": (fuzzed_locations.make, fuzzed_locations.look_at),
    "signatures": (fuzzed_signatures.make, fuzzed_signatures.look_at),
    "tensors": (tensors_fuzz.changed_file, tensors_fuzz.look),
}


def run(kind: str, seed: int, count: int) -> collections.Counter[str]:
    """Makes so many inputs and looks at each; what fails says which seed made it."""
    make, look = KINDS[kind]
    outcomes: collections.Counter[str] = collections.Counter()
    for i in range(seed, seed + count):
        data = make(random.Random(i))
        start = time.process_time()
        try:
            outcomes[look(data)] += 1
        except Exception as error:
            error.add_note(f"reader_fuzz.py {kind}: seed {i}")
            raise
        ratio = (time.process_time() - start) / (WAYS * costs.allowed_seconds(len(data), 1))
        WORST[:] = [max(*WORST, ratio)]
        assert ratio <= 1 or ratio <= costs.slowness(), f"seed {i} took more than its bytes allow"
    return outcomes


def main() -> None:
    kind, seconds, *seeds = sys.argv[1:]
    seed, batch = int(seeds[0]) if seeds else 1_000_000, 20
    end = time.monotonic() + float(seconds)
    total: collections.Counter[str] = collections.Counter()
    while time.monotonic() < end:
        signal.alarm(600)  # a hang ends the process
        total += run(kind, seed, batch)
        seed += batch
    signal.alarm(0)
    print(f"Done {total.total()} runs in {float(seconds):.0f} second(s): {dict(total)}, cost: {WORST[0]:.3f}")


if __name__ == "__main__":
    main()
