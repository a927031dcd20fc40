"""The releases of JAX that can parse a module: the first for each of StableHLO's operations, types and attributes.

The version of StableHLO that a module was written for is a promise: every release whose jaxlib knows that version
reads it. The real requirement is often lower, because most operations are old. `tests/interop/measure_stablehlo.py`
finds the names in the released jaxlibs.
"""

from __future__ import annotations

import re

from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.artifact.module_head import Bytecode

from .table import SHARDY, Release, first_to_read, number, release

# By the first release whose jaxlib knows them; JAX 0.4.22 knows all others. Portable artifacts hold operations of the
# dialect VHLO, which gives a changed operation a new number.
_OPERATIONS = {
    "0.4.26": "composite_v1",
    "0.4.29": "dynamic_conv_v2 dynamic_gather_v2 gather_v2 scatter_v2",
    "0.4.31": "tan_v1",
    "0.4.32": "all_gather_v2 all_reduce_v2 all_to_all_v2 dot_general_v2",
    "0.5.1": "exponential_v2",
    "0.5.3": "cbrt_v2 cosine_v2 exponential_minus_one_v2 log_plus_one_v2 log_v2 logistic_v2 rsqrt_v2 sine_v2 sqrt_v2 "
    "tan_v2 tanh_v2",
    "0.7.0": "recv_v2 send_v2",
    "0.9.2": "composite_v2",
    "0.10.0": "async_done_v1 async_start_v1",
    "0.11.0": "custom_call_v2",
    "0.11.1": "collective_reduce_v1",
    "0.11.2": "collective_broadcast_v2",
}
_FIRST_WITH_OPERATION = {f"vhlo.{name}": first for first, names in _OPERATIONS.items() for name in names.split()}

# Types and attributes have numbers in bytecode.
_TYPES = {
    "0.4.25": {30: "quantized per axis"},
    "0.4.31": {31: "i2", 32: "ui2"},
    "0.4.32": {33: "none", 34: "tf32", 35: "f8E4M3", 36: "f8E3M4"},
    "0.4.36": {37: "f4E2M1FN", 38: "f6E2M3FN", 39: "f6E3M2FN", 40: "f8E8M0FNU"},
    "0.7.1": {41: "buffer"},
    "0.10.0": {42: "future"},
}
# Element types that came after StableHLO 1.0, as modules call them.
NEW_ELEMENT_TYPES = frozenset(
    name for names in _TYPES.values() for name in names.values() if re.fullmatch(r"u?i\d|f\dE\w+", name)
)
_FIRST_WITH_TYPE = {
    ("vhlo", code): (first, f"the type {name}") for first, names in _TYPES.items() for code, name in names.items()
}
_FIRST_WITH_ATTRIBUTE = {
    ("builtin", 22): ("0.4.36", "ranges in source locations"),
    ("vhlo", 19): ("0.5.1", "the accuracy of a result"),
    ("vhlo", 20): ("0.5.1", "the accuracy of a result"),
    **{("vhlo", code): ("0.10.0", "groups of replicas by mesh axes") for code in range(21, 26)},
}


def needs(head: Bytecode) -> list[tuple[Release, str]]:
    """Things in a module that not every release can parse: the first release that can, and a name; oldest first."""
    found = {(_FIRST_WITH_OPERATION[name], name) for name in head.operations & _FIRST_WITH_OPERATION.keys()}
    found |= {_FIRST_WITH_TYPE[code] for code in head.type_codes & _FIRST_WITH_TYPE.keys()}
    found |= {_FIRST_WITH_ATTRIBUTE[code] for code in head.attribute_codes & _FIRST_WITH_ATTRIBUTE.keys()}
    if "sdy" in head.dialects:
        found.add((".".join(map(str, SHARDY)), "the Shardy dialect"))
    return sorted(((release(first), what) for first, what in found), key=lambda need: (need[0].number, need[1]))


def why_too_new(module: bytes | memoryview, newest: str) -> tuple[str, bool]:
    """What is too new for a jaxlib in a module for a StableHLO newer than `newest`, which the jaxlib knows.

    The text describes the module and its readers. The bool says whether this jaxlib certainly cannot read it: a module
    for a newer version need not use anything new.
    """
    head = module_head.read(module)
    too_new = [(first, what) for first, what in needs(head) if number(first.stablehlo) > number(newest)]
    version = head.stablehlo
    assert version is not None
    reader = too_new[-1][0] if too_new else first_to_read(version)
    contains = f" with {', '.join(what for _, what in too_new)}" if too_new else ""
    takes = "needs a JAX that is newer than this jaxexp" if reader is None else f"JAX {reader.version} and newer read"
    return f"one for StableHLO {version}{contains}, which {takes}", bool(too_new)
