"""Modules with locations of any kind: what `reader_fuzz.py locations` makes, and what has to come out."""

from __future__ import annotations

import random
from typing import Any

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.module import mlir
from kit.named_devices import bytecode, with_bytecode
from tools.fuzzed_texts import TEXTS, check_text

PATH = "/home/somebody/secret.py"
FUNCTIONS = ["f", "f", "<lambda>", "<listcomp>", "jit(f)", *TEXTS]
TYPE = "tensor<8xf32>"
TEXT = f"""module @f {{
  func.func public @main(%arg0: {TYPE}) -> {TYPE} {{
    %0 = stablehlo.sine %arg0 : {TYPE}
    %1 = func.call @NAME(%0) : ({TYPE}) -> {TYPE}
    return %1 : {TYPE}
  }}
  func.func private @NAME(%arg0: {TYPE}) -> {TYPE} {{
    return %arg0 : {TYPE}
  }}
}}"""


def make(source: random.Random) -> bytes:
    """An artifact whose locations share their parts, and nest."""
    ir = _jax.ir
    with _jax.make_ir_context():
        module = ir.Module.parse(TEXT.replace("NAME", source.choice(["g", '"g\\FF"', '"g h"', '"\\1B[31m"'])))
        made: list[Any] = [ir.Location.unknown(), ir.Location.file(PATH, 3, 4)]
        is_chain, levels = source.random() < 0.2, source.choice([3, 10, 30, 200])
        for _ in range(levels):
            made.append(location(source, made[-1:] if is_chain else made[-source.choice([1, 2, 5, len(made)]) :]))
        for operation in mlir.iter_operations(module):
            operation.location = source.choice([made[-1], source.choice(made)])
        for function in module.body.operations:
            function.regions[0].blocks[0].arguments[0].set_location(source.choice(made))
        return with_bytecode(bytecode(module))


def location(source: random.Random, known: list[Any]) -> Any:
    """One of others, all of which stay in the part of the known ones that is given."""
    ir, one, other = _jax.ir, source.choice(known), source.choice(known)
    name = source.choice(FUNCTIONS).encode(errors="replace").decode()
    match source.randrange(7):
        case 0:
            return ir.Location.name(name, ir.Location.file(PATH, source.randrange(9), 1))
        case 1:
            return ir.Location.name(name, one)
        case 2:
            return ir.Location.fused([one, other, source.choice(known)])
        case 3:
            return ir.Location.fused([one, other], ir.StringAttr.get(PATH))
        case 4:
            return ir.Location.callsite(one, [other])
        case 5:
            return ir.Location.callsite(one, [source.choice(known) for _ in range(3)])
        case _:
            return ir.Location.callsite(ir.Location.name(name, ir.Location.file(PATH, 1, 2)), [one])


def look_at(blob: bytes) -> str:
    """Artifacts with less in their locations, which cannot lose more; and which mean the same."""
    try:
        exported = jaxexp.deserialize(blob)
        kept = {keep: bytes(exported.serialize(locations=keep)) for keep in ("names", "none")}
        meaning = jaxexp.digests(blob).meaning
    except jaxexp.errors.ExportError as error:
        check_text(str(error))
        return "refused"
    for keep, written in kept.items():
        assert PATH.encode() not in written
        assert jaxexp.inspect(written).absolute_paths == ()
        assert bytes(jaxexp.deserialize(written).serialize(locations=keep)) == written
        assert jaxexp.digests(written).meaning == meaning
    return "read"
