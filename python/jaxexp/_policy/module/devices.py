"""How many devices an attribute names, in each form that a mesh or a sharding has in a module.

Shardy has attributes of its own, and the same as texts in frontend attributes. Before Shardy, a sharding is a string,
with XLA's text for it or with the bytes of an xla.OpSharding. A form that is unknown here is an error, not 0 devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from jaxexp import _jax
from jaxexp._kernel.artifact.op_sharding import check_tiles, size_of
from jaxexp._kernel.artifact.op_sharding import devices as devices_of_proto
from jaxexp._kernel.module.shardy_texts import meshes_in

_OF_XLA = "mhlo.sharding"
_FRONTEND = "mhlo.frontend_attributes"
_OF_COLLECTIVES = frozenset(["replica_groups", "source_target_pairs"])
_OF_SHARDY = frozenset(["mesh", "sharding", "in_shardings", "out_shardings", "out_sharding"])
# It says how the dimensions of an operation belong together: its numbers are their sizes.
_WITHOUT_DEVICES = frozenset(["sdy.sharding_rule", "xla.sdy.sharding_rule"])
# Frontend attributes of other names are notes for the compiler, such as those of `jax.experimental.xla_metadata`.
_FRONTEND_NAMES = re.compile(r"sdy|shard|mesh|device|replica|partition|source_target", re.IGNORECASE)
_MESH_OF_MODULE = "#stablehlo.replica_group_mesh_axes<mesh = @"


class NotUnderstoodError(ValueError):
    """An attribute that may name devices, in a form that is unknown here. Its text says which attribute."""


def may_name_devices(name: str, *, of_custom_call: bool) -> bool:
    """Whether an attribute of this name is one for `of_attribute`. The others of a custom call are up to its target."""
    if name in (_OF_XLA, _FRONTEND) or name.startswith(("sdy.", "xla.sdy.")):
        return True
    return not of_custom_call and (name in _OF_COLLECTIVES or name in _OF_SHARDY)


def of_attribute(name: str, attribute: Any) -> int:
    """The size of the largest mesh in an attribute, or one more than the largest device in it; 0 if it has neither.

    Raises:
        NotUnderstoodError: it is in a form that is unknown here.
    """
    ir, sdy = _jax.ir, _jax.sdy
    if name in _WITHOUT_DEVICES or isinstance(attribute, ir.UnitAttr):
        return 0
    if name == _FRONTEND and isinstance(attribute, ir.DictAttr):
        return _largest(_of_frontend(one.name, one.attr) for one in attribute if _FRONTEND_NAMES.search(one.name))
    if name == _OF_XLA and isinstance(attribute, ir.StringAttr):
        return of_hlo(attribute.value_bytes)
    if name in _OF_COLLECTIVES:
        if isinstance(attribute, ir.DenseIntElementsAttr):
            return max(attribute, default=-1) + 1
        if str(attribute).startswith(_MESH_OF_MODULE):
            return 0  # that mesh is counted
        raise NotUnderstoodError(name)
    if any(one.isinstance(attribute) for one in (sdy.MeshAttr, sdy.TensorShardingAttr, sdy.TensorShardingPerValueAttr)):
        return _largest(map(_of_mesh, meshes_in(attribute)))  # a mesh of the module is counted there
    if isinstance(attribute, ir.StringAttr):
        return of_shardy(name, attribute.value_bytes)
    return of_shardy(name, str(attribute).encode())


def _of_mesh(mesh: Any) -> int:
    size = size_of(_jax.sdy.MeshAxisAttr(axis).size for axis in mesh.axes)
    return max(size, *(device + 1 for device in mesh.device_ids), 0)


def _largest(numbers: Iterable[int]) -> int:
    return max(numbers, default=0)


def _of_frontend(name: str, attribute: Any) -> int:
    if not isinstance(attribute, _jax.ir.StringAttr):
        raise NotUnderstoodError(name)
    text = attribute.value_bytes
    if name in _WITHOUT_DEVICES:
        return 0
    if "sdy" in name.lower():
        return of_shardy(name, text)
    if not re.fullmatch(rb"[\d{},\s]*", text):  # such as _xla_send_recv_source_target_pairs
        raise NotUnderstoodError(name)
    return _largest(device + 1 for device in _numbers(name, text.decode()))


# --- texts of Shardy --------------------------------------------------------------------------------------------------

# Possessive, so that the time to match is in proportion to the text.
_NUMBER = r"\d++"
_NUMBERS = rf"\s*+(?:{_NUMBER}(?:\s*+,\s*+{_NUMBER})*+)?+\s*+"
_STRING = r'"[^"\\\n]*+"'
_AXIS = rf"{_STRING}\s*+=\s*+{_NUMBER}"
_AXES = rf"\s*+(?:{_AXIS}(?:\s*+,\s*+{_AXIS})*+)?+\s*+"
_IDS = rf"\s*+,\s*+device_ids\s*+=\s*+\[(?P<ids>{_NUMBERS})\]"
_SHARDY = re.compile(
    rf"(?:\#sdy\.)?mesh\s*+<\s*+\[(?P<axes>{_AXES})\](?:{_IDS})?+\s*+>"
    # The name of a mesh in a list; lists of axes; and what has no size and begins no comment, which may hide a quote.
    rf"|(?:{_STRING}|[\w.$-]++)\s*+=\s*+(?=\#sdy\.mesh\b)"
    r"|(?:replicated|unreduced)\s*+=\s*+(?=\{)"
    rf'|{_STRING}|[\w.$\#-]++|[^\w.$\#"=\\/-]++',
    re.ASCII,
)


def of_shardy(name: str, text: bytes) -> int:
    """The same for attributes of Shardy as text, which refer to meshes by name or have them inside.

    Raises:
        NotUnderstoodError: a number may be a size, but is not in a mesh.
    """
    largest = 0
    # XLA undoes escapes before it reads the text.
    for token in _tokens(_SHARDY, name, text.decode("latin-1").replace('\\"', '"')):
        if (axes := token["axes"]) is not None:
            sizes = _numbers(name, re.sub(_STRING, "", axes))
            ids = _numbers(name, token["ids"] or "")
            largest = max(largest, size_of(sizes), *(device + 1 for device in ids))
    return largest


# --- texts of XLA -----------------------------------------------------------------------------------------------------

_HLO = re.compile(
    rf"devices=\[(?P<dims>{_NUMBERS})\](?:<=\[(?P<iota>{_NUMBERS})\](?:T\({_NUMBERS}\))?+|(?P<ids>{_NUMBERS}))"
    rf"|maximal\ device=(?P<one>{_NUMBER})"
    rf"|(?:shard_as|shard_like)\ {_NUMBER}"
    r"|(?:replicated|manual|unknown|unreduced|last_tile_dim_replicate|last_tile_dims=)(?!\w)|[{}\s,]++",
    re.ASCII,
)


def of_hlo(sharding: bytes) -> int:
    """The same for a sharding from before Shardy: XLA's text for it, or the bytes of an xla.OpSharding.

    XLA tries the bytes first. A text in braces is no message: "{" begins a group of fields, and none of these texts
    has the character that ends it.

    Raises:
        NotUnderstoodError: it is neither, or its sizes contradict each other.
    """
    if not sharding.startswith(b"{"):
        try:
            return devices_of_proto(sharding)
        except ValueError:
            raise NotUnderstoodError(_OF_XLA) from None
    largest = 0
    for token in _tokens(_HLO, _OF_XLA, sharding.decode("latin-1")):
        dims, iota, ids, one = (_numbers(_OF_XLA, token[group] or "") for group in ("dims", "iota", "ids", "one"))
        try:
            check_tiles(dims, ids, iota)
        except ValueError:
            raise NotUnderstoodError(_OF_XLA) from None
        largest = max(largest, size_of(dims), *(device + 1 for device in (*ids, *one)))
    return largest


def _tokens(pattern: re.Pattern[str], name: str, text: str) -> Iterator[re.Match[str]]:
    at = 0
    while at < len(text):
        token = pattern.match(text, at)
        if token is None:
            raise NotUnderstoodError(name)
        yield token
        at = token.end()


def _numbers(name: str, text: str) -> list[int]:
    found = re.findall(r"\d+", text, re.ASCII)
    if any(len(number) > 20 for number in found):  # no 64 bits
        raise NotUnderstoodError(name)
    return list(map(int, found))
