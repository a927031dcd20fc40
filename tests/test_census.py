"""A census of damage: every single-bit flip of three artifacts, and changes of two bytes, are noticed before use.

`python tests/test_census.py` prints what becomes of flips in artifacts without a trailer, for docs/security.md.
"""

from __future__ import annotations

import collections
import functools
import itertools
import random
import sys
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export as jax_export
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
import wire
from corpus import CASES, export_with
from jaxexp._write import serialize as _codec


def _tiny() -> tuple[Any, int]:
    return jaxexp.export(jax.jit(lambda x: x + 1))(jax.ShapeDtypeStruct((), jnp.float32)), 0


def _dicts_with_vjp() -> tuple[Any, int]:
    return export_with(jaxexp, CASES["nested_containers"].build()), 1


def _symbolic_sharded() -> tuple[Any, int]:
    mesh = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))
    (batch,) = jaxexp.symbolic_shape("b", constraints=["mod(b, 4) == 0", "b >= 4"])
    shape = jax.ShapeDtypeStruct((batch, 6), jnp.float32, sharding=NamedSharding(mesh, P("x", "y")))
    return jaxexp.export(jax.jit(lambda x: jnp.sin(x) * 2))(shape), 0


MAKERS = {"tiny": _tiny, "dicts_with_vjp": _dicts_with_vjp, "symbolic_sharded": _symbolic_sharded}


@functools.cache
def artifact(name: str) -> bytes:
    exported, order = MAKERS[name]()
    return bytes(exported.serialize(vjp_order=order, metadata={"made": "for the census"}))


def read_everything(blob: bytes) -> jaxexp.Exported:
    """Reads an artifact and each module in it, which is when the modules' digests are looked at."""
    exported = function = jaxexp.deserialize(blob)
    while True:
        assert isinstance(function.mlir_module_serialized, bytes)
        if not function.has_vjp():
            return exported
        function = function.vjp()


def read_bytes(blob: bytes) -> None:
    """What reading does before it makes anything of the bytes: a hundred times as quick, so there can be all flips."""
    part: Any = _codec.read(blob)
    while part is not None:
        part.module()
        part = part.vjp()


def census(blobs: Iterable[bytes], look: Callable[[bytes], Any] = read_bytes) -> dict[str, int]:
    """How many are refused, how many are not; and any exception that is no DeserializationError, by its type."""
    found: collections.Counter[str] = collections.Counter()
    for blob in blobs:
        try:
            look(blob)
            found["silent"] += 1
        except jaxexp.DeserializationError:
            found["refused"] += 1
        except Exception as error:
            found[type(error).__name__] += 1
    return dict(found)


def flipped(blob: bytes, bits: Iterable[int]) -> Iterable[bytes]:
    for bit in bits:
        changed = bytearray(blob)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


def with_two(blob: bytes, places: Iterable[tuple[int, int]], source: random.Random) -> Iterable[bytes]:
    """Two bytes, each changed to any of its other values."""
    for i, j in places:
        changed = bytearray(blob)
        for at in (i, j):
            changed[at] ^= source.randrange(1, 256)
        yield bytes(changed)


every_artifact = pytest.mark.parametrize("name", MAKERS)


@every_artifact
def test_undamaged(name: str) -> None:
    """What the census calls refused is not refused for another reason."""
    blob = artifact(name)
    assert wire.has_trailer(blob)
    assert read_everything(blob).metadata == {"made": "for the census"}
    for look in (read_bytes, read_everything):
        assert census([blob, blob + b"behind the end"], look) == {"silent": 2}


@every_artifact
def test_every_single_bit(name: str) -> None:
    blob = artifact(name)
    bits = 8 * len(blob)
    assert census(flipped(blob, range(bits))) == {"refused": bits}
    some = random.Random(name).sample(range(bits), 500)
    assert census(flipped(blob, some), read_everything) == {"refused": 500}


@every_artifact
def test_two_bytes(name: str) -> None:
    """All pairs of places that say where the trailer is; of other pairs, thousands by chance."""
    blob = artifact(name)
    source = random.Random(name)
    head, footer = range(16), range(len(blob) - 48, len(blob))
    framing = list(itertools.combinations([*head, *footer], 2))
    assert census(with_two(blob, framing, source)) == {"refused": len(framing)}
    anywhere = [tuple(source.sample(range(len(blob)), 2)) for _ in range(3000)]
    one_in_the_frame = [(source.choice([*head, *footer]), source.randrange(16, len(blob) - 48)) for _ in range(2000)]
    assert census(with_two(blob, anywhere + one_in_the_frame, source)) == {"refused": 5000}
    neighbours = [(i, i + 1) for i in range(len(blob) - 1)]
    assert census(with_two(blob, neighbours, source)) == {"refused": len(neighbours)}


@every_artifact
def test_every_truncation(name: str) -> None:
    blob = artifact(name)
    assert census(blob[:end] for end in range(len(blob))) == {"refused": len(blob)}


@every_artifact
def test_every_byte_left_out(name: str) -> None:
    """What follows moves up by one; so does what a byte put in moves down."""
    blob = artifact(name)
    assert census(blob[:at] + blob[at + 1 :] for at in range(len(blob))) == {"refused": len(blob)}
    assert census(blob[:at] + b"\0" + blob[at:] for at in range(1, len(blob))) == {"refused": len(blob) - 1}


def test_metadata_are_checked_before_the_module_is_touched() -> None:
    """Damage to the signature shows on reading; damage to a module when its bytes are asked for, not when they run."""
    blob = artifact("tiny")
    _, _, metadata_size = wire.trailer_of(blob)
    assert census(flipped(blob, range(8 * metadata_size)), jaxexp.deserialize) == {"refused": 8 * metadata_size}
    damaged = next(iter(flipped(blob, [8 * (metadata_size + 40)])))
    loaded = jaxexp.deserialize(damaged)
    for use in (lambda: loaded.mlir_module_serialized, loaded.mlir_module, lambda: loaded.call(jnp.float32(1))):
        with pytest.raises(jaxexp.DeserializationError, match="mlir_module_serialized"):
            use()


# --- without a trailer: a report, not a promise -----------------------------------------------------------------------


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
        except jaxexp.DeserializationError:
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
    import os
    import resource
    import signal

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
