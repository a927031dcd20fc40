"""An HloSharding as text, and its devices, from the bytes of its xla.OpSharding, without XLA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

# The numbers of the message's fields and of its types of shardings (xla_data.proto in OpenXLA).
_TYPE, _TILE_SHAPE, _TILE_DIMS, _TILE_DEVICES, _TUPLE, _REPLICATE_LAST, _METADATA = range(1, 8)
_LAST_TILE_DIMS, _IOTA_DIMS, _IOTA_TRANSPOSED, _IS_GROUP, _GROUP, _GROUP_TYPE = range(8, 14)
_OF_NUMBERS = (_TILE_DIMS, _TILE_DEVICES, _LAST_TILE_DIMS, _IOTA_DIMS, _IOTA_TRANSPOSED)
_REPLICATED, _MAXIMAL, _TUPLE_TYPE, _OTHER, _MANUAL = range(5)
_SUBGROUPS = {_REPLICATED: "replicated", _MAXIMAL: "maximal", _MANUAL: "manual"}


def text(proto: bytes) -> str:
    """The sharding as XLA prints it, such as ``{devices=[2,1]<=[2]}``; if damaged, a text with its length."""
    try:
        return _text(proto, is_part=False)
    except (IndexError, ValueError, KeyError):
        return f"an HloSharding of {len(proto)} bytes that cannot be read"


def devices(proto: bytes) -> int:
    """How many devices a sharding divides an array among, or one more than the largest that it names; 0 for neither.

    Raises:
        ValueError: the bytes are no xla.OpSharding, have fields that are unknown here, or contradict themselves.
    """
    numbers, parts = _read(proto, is_part=False)
    return max(map(_devices, [numbers, *(_read(part, is_part=True)[0] for part in parts)]))


def _read(proto: bytes, is_part: bool) -> tuple[dict[int, list[int]], list[bytes]]:
    """The fields of a message that are numbers, or lists of them, and the parts of a tuple. Other fields are empty."""
    numbers: dict[int, list[int]] = {}
    parts: list[bytes] = []
    for field, value in _fields(proto):
        found = numbers.setdefault(field, [])
        if not isinstance(value, bytes):
            found.append(value)
        elif field in _OF_NUMBERS:
            at = 0
            while at < len(value):
                number, at = _number(value, at)
                found.append(number)
        elif field == _TUPLE:
            if is_part:
                raise ValueError("a tuple in a tuple")
            parts.append(value)
    return numbers, parts


def _devices(numbers: dict[int, list[int]]) -> int:
    if not all(_TYPE <= field <= _GROUP_TYPE for field in numbers):
        raise ValueError("a field that is unknown here")
    dims, named, iota = (numbers.get(field, []) for field in (_TILE_DIMS, _TILE_DEVICES, _IOTA_DIMS))
    check_tiles(dims, named, iota)
    return max(size_of(dims), size_of(iota), *(device + 1 for device in named))


def check_tiles(dims: Sequence[int], named: Sequence[int], iota: Sequence[int]) -> None:
    """Compares sizes of tiles with the devices that are named, or counted by `iota`. XLA divides by what it finds."""
    if dims and (0 in dims or size_of(dims) != (size_of(iota) if iota else len(named))):
        raise ValueError("other sizes than devices")


def size_of(dimensions: Iterable[int]) -> int:
    """The product of dimensions, but at least the largest one, and at most 2**64; 0 if there are none."""
    product, largest = 1, 0
    for dimension in dimensions:
        product, largest = min(product * dimension, 1 << 64), max(largest, dimension)
    return max(product, largest) if largest else 0


def _text(proto: bytes, is_part: bool) -> str:
    numbers, parts = _read(proto, is_part)
    kind = numbers.get(_TYPE, [_REPLICATED])[-1]
    if kind == _TUPLE_TYPE:
        return f"{{{', '.join(_text(part, is_part=True) for part in parts)}}}"
    devices = numbers.get(_TILE_DEVICES, [])
    if kind != _OTHER:
        return f"{{maximal device={devices[0]}}}" if kind == _MAXIMAL else f"{{{_SUBGROUPS[kind]}}}"
    tiled = f"devices=[{_joined(numbers.get(_TILE_DIMS, []))}]"
    if iota := numbers.get(_IOTA_DIMS):
        order = numbers.get(_IOTA_TRANSPOSED, [])
        tiled += f"<=[{_joined(iota)}]" + (f"T({_joined(order)})" if order != sorted(order) else "")
    else:
        tiled += _joined(devices)
    if numbers.get(_REPLICATE_LAST, [0])[-1]:
        tiled += " last_tile_dim_replicate"
    elif last := numbers.get(_LAST_TILE_DIMS):
        tiled += f" last_tile_dims={{{', '.join(_SUBGROUPS[dim] for dim in last)}}}"
    return f"{{{tiled}}}"


def _joined(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in the Protocol Buffers encoding: numbers and bytes."""
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        value, at = _number(message, at)
        if key & 7 == 0:
            yield key >> 3, value
        elif key & 7 == 2:
            if value > len(message) - at:
                raise ValueError("a field that is longer than the message")
            yield key >> 3, message[at : at + value]
            at += value
        else:
            raise ValueError("a field of another type")


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at == len(data) or shift > 63:
            raise ValueError("a number that does not end")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
