"""What MLIR says about a wrong module is in jaxexp's error, escaped, and nowhere else."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import pytest

import jaxexp
from jaxexp import _jax
from jaxexp._cli.commands.view import page_of
from jaxexp._fleet.places.source import source
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.module import mlir
from kit import other_modules
from kit.each import each

pytestmark = pytest.mark.jax
X = np.ones(4, np.float32)
NAMES = b"the_first_function", b"the_other_function"
COMMANDS = "\x1b[2J\a\u202e\nwhole 123".encode()


@functools.cache
def with_functions(*names: bytes, attribute: str = "") -> jaxexp.Exported:
    """A function whose module has two functions of these names."""
    functions = [
        f"func.func private @{name.decode()}(%x: tensor<4xf32>) -> tensor<4xf32> {{ return %x : tensor<4xf32> }}"
        for name in NAMES
    ]
    calls = f"""func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
        %0 = call @{NAMES[0].decode()}(%x) : (tensor<4xf32>) -> tensor<4xf32>
        %1 = call @{NAMES[1].decode()}(%0) {attribute} : (tensor<4xf32>) -> tensor<4xf32>
        return %1 : tensor<4xf32>
    }}"""
    serialized = other_modules.serialized("\n".join([*functions, calls]))
    for name, new in zip(NAMES, names, strict=True):
        assert len(name) == len(new)
        serialized = serialized.replace(name, new)
    exported = jaxexp.export(jax.jit(lambda x: x * 1))(X)
    return jaxexp.deserialize(dataclasses.replace(exported, mlir_module_serialized=serialized).serialize())


USES: dict[str, Any] = {
    "call": lambda exported: exported.call(X),
    "policy": lambda exported: jaxexp.Policy().check(exported),
    "text": lambda exported: exported.mlir_module(),
    "jaxpr": lambda exported: exported.make_jaxpr(),
    "digests": lambda exported: jaxexp.digests(exported.serialize()),
    "migrate": lambda exported: jaxexp.migrate(exported.serialize()),
    "compatibility": lambda exported: jaxexp.compatibility(exported.serialize()).unreadable_here,
}


@each("use", [use for use in USES if use != "compatibility"])
def test_a_producer_is_text(use: str) -> None:
    """MLIR quotes it, too."""
    blob = bytearray(jaxexp.export(jax.jit(lambda x: x * 1))(X).serialize(trailer=False))
    blob[blob.index(b"StableHLO_v")] = 0xFF
    with pytest.raises(jaxexp.errors.DeserializationError, match="a producer that is not UTF-8"):
        USES[use](jaxexp.deserialize(blob))


# Names of functions, and what is said of them: MLIR quotes the name of a function that is there twice.
NAMED = [
    ((COMMANDS, COMMANDS), r"redefinition of symbol named '\x1b[2J\x07\u202e"),
    ((b"\xff" + COMMANDS[:17],) * 2, "redefinition of symbol named '?????????????????0'"),
    ((b"\xff" + COMMANDS[:17], NAMES[1]), "functions whose names are text"),
]


@each("use, names, said", [(use, *named) for use in USES for named in NAMED])
def test_nothing_is_printed(use: str, names: tuple[bytes, ...], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    exported = with_functions(*names)
    capfd.readouterr()
    try:
        found = str(USES[use](exported))
        assert use == "compatibility"
    except jaxexp.errors.DeserializationError as error:
        found = str(error)
    assert capfd.readouterr() == ("", "")
    assert said in found
    assert found.isprintable()


def test_a_diagnostic_that_is_no_text(capfd: pytest.CaptureFixture[str]) -> None:
    """Shardy prints numbers of factors as letters, far beyond these, too. MLIR's bindings would end the process."""
    rule = "#sdy.op_sharding_rule<([i])->([i]) {i=4}, custom>"
    text = f"""func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
        %0 = stablehlo.custom_call @f(%x) {{sdy.sharding_rule = {rule}}} : (tensor<4xf32>) -> tensor<4xf32>
        return %0 : tensor<4xf32> }}"""
    serialized = bytearray(other_modules.serialized(text))
    found = [i for i, byte in enumerate(serialized) if byte == 2 * 9 + 1]  # kinds of attributes of Shardy
    outcomes = set()
    for i in found:
        changed = serialized.copy()
        changed[i] = 2 * 8 + 1
        with _jax.make_ir_context() as context:
            try:
                mlir.parse(bytes(changed), context)
            except jaxexp.errors.DeserializationError as error:
                outcomes.add("is not UTF-8" in str(error) or "TensorMapping" in str(error))
    assert True in outcomes
    assert capfd.readouterr() == ("", "")


def test_strings_of_bytes() -> None:
    """MLIR's bindings cannot say anything about these, and would end the process. A page shows them."""
    old_options = with_functions(*NAMES, attribute=r'{options = "\FF\00\01"}')
    np.testing.assert_allclose(old_options.call(X), X)
    said = other_modules.serialized(r"""func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.tan %x {extra = "\FF<\1B"} : tensor<4xf32>
      return %0 : tensor<4xf32> }""")
    exported = dataclasses.replace(old_options, mlir_module_serialized=said)
    assert r"extra = \\xff" in page_of(source(bytes(exported.serialize()), "view"))  # in JSON


def test_texts_in_place_of_bytes() -> None:
    """Different strings stay different, and have their lengths."""
    long = "n" * 70_000  # whose length takes three bytes
    given = [rf"\{i:02X}" for i in range(128, 138)] + [r"\FF\FF", r"\FF\FE", "?0", long, "0", "\u00fc"]
    assert _texts(given) is None  # "0" is taken
    given.remove("0")
    found = _texts(given)
    assert found is not None
    assert sorted(found[:10]) == [*"0123456789"]
    assert sorted(found[10:12]) == ["?1", "?2"]
    assert found[12:] == ["?0", long, "\u00fc"]


def _texts(given: list[str]) -> list[str] | None:
    with _jax.make_ir_context() as context:
        quoted = ", ".join(f'"{text}"' for text in given)
        module = mlir.serialize(_jax.ir.Module.parse(f"module attributes {{jax.given = [{quoted}]}} {{}}"))
        in_text = module_head.in_text(module)
        return in_text and [text.value for text in mlir.parse(in_text, context).operation.attributes["jax.given"]]
