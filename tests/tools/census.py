"""Prints how artifacts without a trailer end when bits flip, for docs/fuzzing.md: a report, not a test.

python tests/tools/census.py [FLIPS]
"""

from __future__ import annotations

import collections
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from jax import export as jax_export

import jaxexp
from kit import wire
from kit.census import flipped
from kit.corpus import CASES, export_with


def meaning(exported: Any) -> Any:
    """What a caller sees of a function's signature."""
    shardings = [None if s is None else str(s) for s in (*exported.in_shardings_hlo, *exported.out_shardings_hlo)]
    return (
        exported.fun_name, str(exported.in_tree), [str(a) for a in exported.in_avals], str(exported.out_tree),
        [str(a) for a in exported.out_avals], shardings, exported.nr_devices, tuple(exported.platforms),
        [str(e) for e in exported.ordered_effects], [str(e) for e in exported.unordered_effects],
        [str(c) for c in exported.disabled_safety_checks], exported.calling_convention_version,
        tuple(exported.module_kept_var_idx), exported.uses_global_constants, bytes(exported.mlir_module_serialized),
    )  # fmt: skip


def classify(read: Callable[[bytes], Any], original: bytes, blobs: Iterable[bytes]) -> collections.Counter[str]:
    expected = meaning(read(original))
    found: collections.Counter[str] = collections.Counter()
    for blob in blobs:
        try:
            seen = meaning(read(blob))
        except jaxexp.errors.DeserializationError:
            found["refused"] += 1
        except Exception:
            found["another exception"] += 1
        else:
            found["same meaning" if seen == expected else "changed meaning"] += 1
    return found


def report(flips: int) -> None:
    """Flips of single bits outside of the module, by chance: in what jax.export writes, and in what jaxexp writes."""
    exported = export_with(jax_export, CASES["nested_containers"].build())
    theirs = bytes(exported.serialize())
    at, _ = wire.locate(theirs, "mlir_module_serialized")
    module = range(at, at + 4 + wire.length(theirs, "mlir_module_serialized"))
    source = random.Random(0)
    bits = source.sample([bit for bit in range(8 * len(theirs)) if bit // 8 not in module], flips)
    print(f"{flips} flips of single bits in the metadata of {len(theirs)} bytes that jax.export wrote")
    readers = {"jax.export": lambda b: jax_export.deserialize(bytearray(b)), "jaxexp": jaxexp.deserialize}
    for name, read in readers.items():
        # In children, as a reader may crash or never come back.
        print(f"  {name:<28}", dict(in_children(read, theirs, list(flipped(theirs, bits)))))
    ours = bytes(jaxexp.Exported.from_jax(exported).serialize())
    _, _, size = wire.trailer_of(ours)
    bits = source.sample(range(8 * size), flips)
    print(f"{flips} flips in the metadata of the same function as jaxexp writes it")
    print(f"  {'jaxexp, with a trailer':<28}", dict(classify(jaxexp.deserialize, ours, flipped(ours, bits))))


def in_children(read: Callable[[bytes], Any], original: bytes, blobs: list[bytes]) -> collections.Counter[str]:
    """As `classify`, each in a process of its own: how it ended counts where it did not say."""
    found: collections.Counter[str] = collections.Counter()
    for blob in blobs:
        said, say = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30))
            (outcome,) = classify(read, original, [blob])
            os.write(say, outcome.encode())
            os._exit(0)
        os.close(say)
        with os.fdopen(said) as pipe:
            outcome = pipe.read()
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            outcome = "no end in 10 s" if os.WTERMSIG(status) == signal.SIGALRM else "crash"
        found[outcome or "crash"] += 1
    return found


if __name__ == "__main__":
    report(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
