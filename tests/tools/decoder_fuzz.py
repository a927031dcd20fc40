"""Artifacts whose fields were changed one by one: what `reader_fuzz.py decoder` makes, and what has to come out."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import random
from typing import Any

import jax
import jax.numpy as jnp

import jaxexp
from kit import corpus  # noqa: F401  (registers the node types and effects that the artifacts use)
from kit.parts import CycleError, Part, put_together, take_apart, walk
from kit.places import GOLDEN
from kit.wire import LAYOUT

TEXTS: list[Any] = [
    "", " ", "0", "-1", "1", "2", "007", "1_000", "+3", "9223372036854775807", "9223372036854775808", "1" * 400, "1.5",
    "nan", "a", "b", "a, b", "a;b", "2*a", "a*b", "-a", "a+b", "a - a", "mod(a, 0)", "floordiv(a, 0)", "max(a, -1)",
    "min(a)", "max(", ")", "((((", "a==b", "a >= 4", "a b", "...", "_", "None", "a'", 'a"', "b\0c", "\n", "\t", "é",
    "ß" * 50,
    "名前", "\ud800", b"\xff\xfe", b"\xc0\x80", "{}", "%s", "%n", "x" * 5000, "__class__", "lambda", "cpu", "CPU",
    "tpu", "cuda", "rocm", "gpu", "device", "pinned_host", "unpinned_host", "nope", "corpus.Tagged", "corpus.Nobody",
    "builtins.dict", "collections.OrderedDict", "<class 'corpus.FirstOrderedEffect'>", "<class 'int'>", "0.4.30",
    "99.0.0", "TPU v4", "i8[]",
]  # fmt: skip
RANGES = {"b": (-128, 127), "h": (-(2**15), 2**15 - 1), "H": (0, 2**16 - 1), "I": (0, 2**32 - 1), "?": (0, 1)}
SMALL = [*range(8), 9, 10, 12, 29, 30, 31, 32, 127, 255, 256, 1000]


class Changer:
    """Changes an artifact that was taken apart, by a source of random numbers."""

    def __init__(self, root: Part, source: random.Random) -> None:
        self.root, self.source = root, source
        self.by_kind: dict[str, list[Part]] = collections.defaultdict(list)
        for part in walk(root):
            self.by_kind[part.kind].append(part)

    def change(self) -> str:
        """Changes one field of one table, and says which."""
        kind = self.source.choice([*self.by_kind, "Exported", "Exported"])
        part = self.source.choice(self.by_kind[kind])
        name = self.source.choice(list(LAYOUT[kind]))
        code = LAYOUT[kind][name][1]
        if self.source.random() < 0.1:
            part.pop(name, None)
        else:
            part[name] = self.value(code, part.get(name))
        return f"{kind}.{name}"

    def value(self, code: str, old: Any) -> Any:
        if code == "s":
            return self.text(old)
        if code.startswith("["):
            return self.vector(code[1:-1], old or [])
        if code in LAYOUT:
            return self.source.choice(self.by_kind[code]) if code in self.by_kind else Part(code)
        least, most = RANGES[code]
        near = [] if old is None else [int(old) - 1, int(old) + 1, int(old) ^ 1 << self.source.randrange(8)]
        fitting = [n for n in [*SMALL, *near, least, most, least + 1, most - 1] if least <= n <= most]
        return self.source.choice(fitting)

    def text(self, old: Any) -> Any:
        if isinstance(old, str) and old and self.source.random() < 0.3:
            at = self.source.randrange(len(old))
            return old[:at] + self.source.choice(["", "z", "0", "-", "(", "\0", "é"]) + old[at + 1 :]
        return self.source.choice(TEXTS)

    def vector(self, code: str, old: list[Any]) -> list[Any]:
        """A new list, so that others who share the old one keep it."""
        new = list(old)
        at = self.source.randrange(len(new) + 1)
        match self.source.randrange(7):
            case 0:
                new = []
            case 1:
                del new[at : at + 1]
            case 2 if new:
                new.insert(at, self.source.choice(new))
            case 3 if new:
                self.source.shuffle(new)
            case 4 if new:
                new *= self.source.choice([2, 3, 50])
            case _:
                new[at : at + self.source.randrange(2)] = [self.value(code, self.source.choice(new) if new else None)]
        return new


def look_at(blob: bytes) -> str:
    """What `deserialize` makes of bytes: "refused", or "read" where the result is one piece and says the same again.

    Anything else is an exception of another type, or an AssertionError.
    """
    try:
        exported = jaxexp.deserialize(blob)
    except jaxexp.errors.DeserializationError as error:
        assert error.expected, repr(error)
        assert error.found, repr(error)
        str(error).encode()
        return "refused"
    chain = [exported]
    while chain[-1].has_vjp():
        try:
            chain.append(chain[-1].vjp())
        except jaxexp.errors.DeserializationError:  # a VJP's dtypes and node types are looked up when it is asked for
            break
    for function in chain:
        touch(function)
    order = len(chain) - 1
    try:
        written = bytes(exported.serialize(vjp_order=order))
    except jaxexp.errors.SerializationError as error:
        # A directive of 2023 that is read, and that no reader of today knows.
        assert "shape_assertions" in str(error), repr(error)
        return "read"
    again = jaxexp.deserialize(written)
    assert bytes(again.serialize(vjp_order=order)) == written, "what is written from it reads as something else"
    return "read"


POLICIES = (jaxexp.Policy(), jaxexp.Policy(max_devices=1, platforms=("cpu",), max_array_bytes=1 << 20))


def look_in_other_ways(blob: bytes) -> None:
    """`inspect`, `compatibility` and policies: a result, or the one error that each has."""
    for read in (jaxexp.inspect, jaxexp.compatibility):
        with contextlib.suppress(jaxexp.errors.DeserializationError):
            str(read(blob))
    for policy in POLICIES:
        with contextlib.suppress(jaxexp.errors.DeserializationError, jaxexp.errors.PolicyError):
            jaxexp.deserialize(blob, policy=policy)


def touch(exported: jaxexp.Exported) -> None:
    """Every field has its type, and those that belong together fit."""
    for field in dataclasses.fields(exported):
        getattr(exported, field.name)
    assert isinstance(exported.fun_name, str)
    assert all(isinstance(platform, str) for platform in exported.platforms)
    assert len(exported.platforms) > 0
    assert exported.nr_devices > 0
    assert exported.in_tree.num_leaves == len(exported.in_avals) == len(exported._in_named_shardings)
    assert exported.out_tree.num_leaves == len(exported.out_avals) == len(exported._out_named_shardings)
    assert all(0 <= i < len(exported.in_avals) for i in exported.module_kept_var_idx)
    assert list(exported.module_kept_var_idx) == sorted(set(exported.module_kept_var_idx))
    assert len(exported.in_shardings_hlo) == len(exported.in_avals)
    assert len(exported.out_shardings_hlo) == len(exported.out_avals)
    assert isinstance(exported.mlir_module_serialized, bytes)
    for aval in (*exported.in_avals, *exported.out_avals):
        assert len(aval.shape) == aval.ndim
        str(aval)
    str(exported.in_tree)
    str(exported.out_tree)
    hash(exported)
    assert exported == exported
    repr(exported)


@functools.cache
def sources(largest: int = 20_000) -> list[bytes]:
    """Artifacts to begin with: goldens of releases far apart, and one that has what they lack."""
    folders = ["jax-0.4.23", "jax-0.5.3", "jax-0.9.0.1", "jax-0.10.0", "*_jaxexp-*"]
    files = [file for folder in folders for path in sorted(GOLDEN.glob(folder)) for file in sorted(path.glob("*.bin"))]
    blobs = [file.read_bytes() for file in files if file.stat().st_size <= largest]
    blobs = [blob for blob in blobs if b"corpus.Pt" not in blob]  # a type of kit/goldens.py's own
    checks = [jaxexp.DisabledSafetyCheck.platform(), jaxexp.DisabledSafetyCheck.custom_call("some_target")]
    unchecked = jaxexp.export(jax.jit(jnp.sin), disabled_checks=checks)(jax.ShapeDtypeStruct((3, 4), jnp.float32))
    return [*blobs, bytes(unchecked.serialize(vjp_order=2))]


def make(source: random.Random) -> bytes:
    """An artifact with a few changes; those that make a table its own part are no artifact."""
    while True:
        root = take_apart(source.choice(sources()))
        changer = Changer(root, source)
        for _ in range(source.choice([1, 1, 1, 2, 3, 6])):
            changer.change()
        with contextlib.suppress(CycleError):
            return put_together(root)


def look_in_all_ways(blob: bytes) -> str:
    """Only some of the artifacts: most readings are quick, and these are not."""
    outcome = look_at(blob)
    if sum(blob) % 4 == 0:
        look_in_other_ways(blob)
    return outcome
