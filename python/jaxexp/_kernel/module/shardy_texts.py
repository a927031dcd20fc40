"""Shardy's parts of a module as texts in frontend attributes, as modules of some JAX releases have them.

XLA's passes read these texts without a question: at one that is no attribute of Shardy, or of many brackets in
brackets, they end the process. So whatever runs such a pass, or compiles the module, checks the texts first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from jaxexp import _jax
from jaxexp._errors import ModuleError, cause
from jaxexp._kernel.artifact.words import cut

from . import mlir

_FRONTEND = "mhlo.frontend_attributes"
_MESHES = "xla.sdy.meshes"
_SHARDING = "xla.sdy.sharding"
_RULE = "xla.sdy.sharding_rule"
_DEEPEST = 16  # brackets in brackets; Shardy has six
_MOST_DEVICES = 1 << 20  # of a mesh, as in `cpp/wire/bytecode/sections.cpp`: XLA divides by products of its sizes
# What XLA undoes before it reads a text, and writes itself.
_ESCAPED = re.compile(rb"\\(?:([\"'\\])|([0-3][0-7]{2}))")
# XLA ends the process at names with other characters when it reads what it wrote itself.
_AXIS = re.compile(r"[ -\[\]-~]*")
# Words of Shardy's attributes; no others of MLIR, which begin with other words and a "<". Names are as above.
_TOKENS = re.compile(
    r'"[ !#-\[\]-~]*+"|->|(?:\#sdy(?:\.\w++)?+|\b(?:mesh|sharding|sharding_per_value|op_sharding_rule))(?=\s*+<)'
    r"|[\w.$@?]++(?!\s*+<)|(?P<opens>[\[{(<])|(?P<closes>[\]})>])|[=,:\s]",
    re.ASCII,
)


def are_in(module: Any) -> bool:
    """Whether a module has its Shardy parts as texts. A ModuleError if its frontend attributes are no dictionary."""
    return any(name == _MESHES for name, _ in _of_frontend(module.operation.attributes))


def import_(module: Any) -> None:
    """Turns texts, if a module has them, back into the dialect, in place."""
    if not are_in(module):
        return
    check(module)
    try:
        mlir.run_passes(module, "xla-sdy-round-trip-import-shardy-attrs", "sdy-lift-inlined-meshes")
    except MemoryError:
        raise
    except Exception as error:  # of several types, as in `mlir.parse`
        raise _refused(mlir.what_is_wrong(error)) from cause(error)


def check(module: Any) -> None:
    """Checks all texts in a module that has some."""
    known: dict[Any, Any] = {}
    for count, name, attribute in _texts(module):
        key = name, attribute
        if key not in known:
            known[key] = _read(name, attribute)
        if count is not None and len(_jax.sdy.TensorShardingPerValueAttr(known[key]).shardings) != count:
            raise _refused(f"{name} with another number of shardings than the operation has results")


def check_axes(module: Any) -> None:
    """Checks the names of axes in the meshes at the top of a module: XLA writes Shardy's parts as texts, too."""
    for operation in module.body.operations:
        if not isinstance(operation, _jax.MeshOp):
            continue
        try:
            axes = _jax.sdy.MeshAttr(operation.attributes["mesh"]).axes
            names = [_jax.sdy.MeshAxisAttr(axis).name for axis in axes]
        except RuntimeError as error:  # of the bindings, which make a string of it
            raise mlir.not_text("axes of meshes whose names") from cause(error)
        for name in names:
            if not _AXIS.fullmatch(name):
                raise ModuleError("mlir_module_serialized", "axes of meshes with names in ASCII", repr(cut(name)))


def meshes_in(attribute: Any) -> Iterator[Any]:
    """The meshes in an attribute of Shardy: itself, or those of its shardings that refer to no mesh of the module."""
    sdy = _jax.sdy
    if sdy.MeshAttr.isinstance(attribute):
        yield sdy.MeshAttr(attribute)
    elif sdy.TensorShardingAttr.isinstance(attribute):
        yield from meshes_in(sdy.TensorShardingAttr(attribute).mesh_or_ref)
    elif sdy.TensorShardingPerValueAttr.isinstance(attribute):
        for sharding in sdy.TensorShardingPerValueAttr(attribute).shardings:
            yield from meshes_in(sharding)


def _texts(module: Any) -> Iterator[tuple[int | None, str, Any]]:
    """The texts in a module: each with how many shardings it has to have, if that is known, and its name."""
    for operation in mlir.iter_operations(module):
        attributes = operation.attributes
        for name, attribute in _of_frontend(attributes):
            is_known = name == _SHARDING
            yield (len(operation.results) if is_known else None), name, attribute
        for group in ("arg_attrs", "res_attrs"):
            if operation.name == "func.func" and group in attributes:
                for one in _jax.ir.ArrayAttr(attributes[group]):
                    for name, attribute in _of_frontend(_jax.ir.DictAttr(one)):
                        yield None, f"{name} of a value" if name == _SHARDING else name, attribute


def _of_frontend(attributes: Any) -> list[tuple[str, Any]]:
    if _FRONTEND not in attributes:
        return []
    frontend = attributes[_FRONTEND]
    if not isinstance(frontend, _jax.ir.DictAttr):
        raise _refused(f"{_FRONTEND} that is no dictionary")
    return [(name, attribute) for name, attribute in mlir.items(frontend) if name in _CLASSES]


def _read(name: str, attribute: Any) -> Any:
    if not isinstance(attribute, _jax.ir.StringAttr):
        raise _refused(f"{name} that is no text")
    text = attribute.value_bytes
    if b"\\" in _ESCAPED.sub(b"", text):
        raise _refused(f"{name} with an unknown escape")
    plain = str(_ESCAPED.sub(lambda found: found[1] or bytes([int(found[2], 8)]), text), "utf-8", "replace")
    at = depth = 0
    while at < len(plain):
        token = _TOKENS.match(plain, at)
        if token is None:
            raise _refused(f"{name} = {cut(plain)!r}")
        word, at = token[0], token.end()
        depth += (token["opens"] is not None) - (token["closes"] is not None)
        is_device = word.isdecimal() and len(word) < 8 and int(word) <= _MOST_DEVICES
        if depth > _DEEPEST or (name != _RULE and word[0].isdecimal() and not is_device):
            raise _refused(f"{name} = {cut(plain)!r}")
    try:
        made = _jax.ir.Attribute.parse(plain, attribute.context)
    except _jax.ir.MLIRError as error:
        raise _refused(f"{name} = {cut(plain)!r}") from cause(error)
    parts = [part for _, part in mlir.items(_jax.ir.DictAttr(made))] if isinstance(made, _jax.ir.DictAttr) else [made]
    if isinstance(made, _jax.ir.DictAttr) != (name == _MESHES) or not all(map(_CLASSES[name].isinstance, parts)):
        raise _refused(f"{name} = {cut(plain)!r}")
    for mesh in (mesh for part in parts for mesh in meshes_in(part)):
        if math.prod(_jax.sdy.MeshAxisAttr(axis).size for axis in mesh.axes) > _MOST_DEVICES:
            raise _refused(f"{name} with a mesh of more than {_MOST_DEVICES} devices")
    return made


def _refused(found: str) -> ModuleError:
    return ModuleError("mlir_module_serialized", "frontend attributes as XLA writes them for Shardy", found)


# The class of each attribute; of meshes, that of each of them.
_CLASSES: dict[str, Any] = {
    _MESHES: _jax.sdy.MeshAttr,
    _SHARDING: _jax.sdy.TensorShardingPerValueAttr,
    f"{_SHARDING} of a value": _jax.sdy.TensorShardingAttr,
    "xla.sdy.in_shardings": _jax.sdy.TensorShardingPerValueAttr,
    "xla.sdy.out_shardings": _jax.sdy.TensorShardingPerValueAttr,
    "xla.sdy.manual_axes": _jax.sdy.ManualAxesAttr,
    _RULE: _jax.sdy.OpShardingRuleAttr,
}
