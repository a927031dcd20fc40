"""Meshes and shardings in modules: what `reader_fuzz.py devices` makes, and what has to come out under a policy."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jaxexp
from jaxexp import _jax
from kit.named_devices import NO_DEVICES, PLACES, SHARDINGS, UNKNOWN_FORMS, Value, artifact, attribute_of
from tools.fuzzed_texts import check_text

FORMS: list[tuple[str, Value]] = [*SHARDINGS.values(), *SHARDINGS.values(), *UNKNOWN_FORMS.values(), *NO_DEVICES]
LIMITS = [1, 2, 7, 8, 9, 100, 1 << 40]
NUMBERS = b"0 1 2 7 8 9 08 99 -8 0x8 1e9 4294967296 18446744073709551616".split()
PIECES = [b"", b" ", b"\n", b"//\n", b"\xff", b"\0", b"\xd9\xa8", b"maximal device=7"]
PIECES += rb'[ ] { } < > = , " \" \ // @ #sdy.mesh< mesh "x"=8 ["x"=8]'.split()
PIECES += b"device_ids=[7] devices= <=[8] T(0) replicated 8 unreduced={ last_tile_dims={ shard_as".split()
NAMES = ["xla.sdy.meshes", "xla.sdy.sharding", "sdy.mesh", "my_mesh", "devices", "SHARDING", "sdy.sharding_rule", "x"]


class Input(NamedTuple):
    """An artifact, the attribute that it has in one place, and how many devices are allowed."""

    blob: bytes
    name: str
    value: Value
    limit: int

    def __len__(self) -> int:  # of what is read
        return len(self.blob)


def spoiled(source: random.Random, text: bytes) -> bytes:
    """A text with other numbers, pieces or bytes in it."""
    made = text
    for _ in range(source.choice([0, 1, 1, 2, 4])):
        numbers = list(re.finditer(rb"\d+", made))
        at = source.randrange(len(made) + 1)
        match source.randrange(6):
            case 0 | 1 if numbers:
                found = source.choice(numbers)
                made = made[: found.start()] + source.choice(NUMBERS) + made[found.end() :]
            case 2:
                made = made[:at] + made[at + source.choice([1, 2, 8]) :]
            case 3:
                made = made[:at] + source.choice(made.split(b",")) + b"," + made[at:]
            case 4:
                made = made[:at] + bytes([source.randrange(256)]) + made[at + 1 :]
            case _:
                made = made[:at] + source.choice(PIECES) + made[at:]
    if source.random() < 0.01:
        made += source.choice(PIECES) * source.choice([1000, 50_000]) + text
    return made


def make(source: random.Random) -> Input:
    name, value = source.choice(FORMS)
    if isinstance(value, dict):
        value = {
            source.choice([key, key, key, source.choice(NAMES)]): spoiled(source, text) for key, text in value.items()
        }
    elif isinstance(value, bytes):
        value = spoiled(source, value)
    place = PLACES[source.choice(list(PLACES))]
    try:
        blob = artifact(place(attribute_of(name, value)))
    except (ValueError, _jax.ir.MLIRError):  # attributes that MLIR has parsed are not spoiled
        name, value = NO_DEVICES[0]
        blob = artifact(place(attribute_of(name, value)))
    return Input(blob, name, value, source.choice(LIMITS))


def look_at(given: Input) -> str:
    """Refused; or what is allowed says no more devices in the eyes of other readers."""
    policy = jaxexp.Policy(custom_calls=("mine",), max_devices=given.limit)
    try:
        jaxexp.deserialize(given.blob, policy=policy)
    except (jaxexp.errors.PolicyError, jaxexp.errors.DeserializationError) as error:
        check_text(str(error))
        return "refused"
    assert max(said(given.name, given.value), default=0) <= given.limit, "a mesh that the policy does not allow"
    return "read"


def said(name: str, value: Value) -> Iterator[int]:
    """How many devices an attribute names, as far as the parsers say."""
    if isinstance(value, dict):
        for key, text in value.items():
            if "sdy" in key and "rule" not in key:
                yield from parsed(text)
    elif isinstance(value, str):
        yield from parsed(value.encode())
    elif name == "mhlo.sharding":
        yield from of_message(value)
        yield from of_text(value)
    else:
        yield from parsed(value)


def parsed(text: bytes) -> Iterator[int]:
    """Of Shardy's text."""
    with _jax.make_ir_context():
        try:
            attribute = _jax.ir.Attribute.parse(text.decode().replace('\\"', '"'))
        except (ValueError, _jax.ir.MLIRError):  # such as half a character
            return
        yield from counted(attribute)


def counted(attribute: Any) -> Iterator[int]:
    ir, sdy = _jax.ir, _jax.sdy
    if isinstance(attribute, ir.DictAttr):
        for one in attribute:
            yield from counted(one.attr)
    elif sdy.MeshAttr.isinstance(attribute):
        mesh = sdy.MeshAttr(attribute)
        yield math.prod(sdy.MeshAxisAttr(axis).size for axis in mesh.axes)
        yield from (device + 1 for device in mesh.device_ids)
    elif sdy.TensorShardingAttr.isinstance(attribute):
        yield from counted(sdy.TensorShardingAttr(attribute).mesh_or_ref)
    elif sdy.TensorShardingPerValueAttr.isinstance(attribute):
        for one in sdy.TensorShardingPerValueAttr(attribute).shardings:
            yield from counted(one)


def of_text(sharding: bytes) -> Iterator[int]:
    """Of XLA's text for a sharding, what can be seen without a parser: XLA's own writes past the end of its memory."""
    for sizes in re.findall(rb"(?:devices=|<=)\[([\d,]+)\]", sharding):
        yield math.prod(int(size) for size in sizes.split(b",") if size)
    yield from (int(device) + 1 for device in re.findall(rb"device=(\d+)", sharding))


def of_message(data: bytes) -> Iterator[int]:
    """Of an xla.OpSharding."""
    message = _jax.OpSharding()
    try:
        message.ParseFromString(data)
    except Exception:  # what is no message; of a type that jaxlib keeps to itself
        return
    yield from _of_message(message)


def _of_message(message: Any) -> Iterator[int]:
    sizes: Iterable[int]
    for sizes in (message.tile_assignment_dimensions, message.iota_reshape_dims):
        yield math.prod(sizes) if len(list(sizes)) else 0
    yield from (device + 1 for device in message.tile_assignment_devices)
    for part in message.tuple_shardings:
        yield from _of_message(part)
