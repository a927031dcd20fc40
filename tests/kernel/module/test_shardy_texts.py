"""Shardings as texts in frontend attributes: XLA's passes end the process at what they do not expect there."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxexp
from kit import other_modules
from kit.each import each

pytestmark = pytest.mark.jax
X = np.ones(2, np.float32)
MESH = '{m = #sdy.mesh<["x"=1]>}'
OF_OPERATION = '#sdy.sharding_per_value<[<@m, [{"x"}]>]>'
RULE = "#sdy.op_sharding_rule<([i])->([i]) {i=2}, custom>"


def _frontend(**texts: str | bytes) -> str:
    def quoted(text: str | bytes) -> str:
        return "".join(f"\\{byte:02X}" for byte in (text.encode() if isinstance(text, str) else text))

    given = ", ".join(f'xla.sdy.{name} = "{quoted(text)}"' for name, text in texts.items())
    return f"{{mhlo.frontend_attributes = {{{given}}}}}"


def _function(meshes: str | bytes = MESH, argument: str = "", result: str = "", **operation: str) -> jaxexp.Exported:
    of = {"argument": argument, "result": result}
    argument, result = (_frontend(sharding=text) if text else "" for text in of.values())
    target = "xla.sdy.FuncResultSharding" if "sharding" in operation else "Sharding"
    text = f"""module attributes {_frontend(meshes=meshes)} {{
      func.func @main(%x: tensor<2xf32> {argument}) -> (tensor<2xf32> {result}) {{
        %0 = stablehlo.custom_call @{target}(%x) {_frontend(**operation)} : (tensor<2xf32>) -> tensor<2xf32>
        return %0 : tensor<2xf32>
      }}
    }}"""
    return jaxexp.deserialize(other_modules.with_module(text))


USES: dict[str, Any] = {
    "call": lambda exported: exported.call(X),
    "older": lambda exported: exported.serialize(compatibility="max"),
}


READ: list[dict[str, Any]] = [
    {"argument": '#sdy.sharding<@m, [{"x"}]>', "sharding": OF_OPERATION},
    {"argument": r"#sdy.sharding<@m, [{\"x\"}]>", "meshes": MESH.replace('"', r"\"")},
    {"argument": '#sdy.sharding<mesh<["y"=1]>, [{"y", ?}p1]>', "meshes": "{}"},
    {"meshes": r'{m = #sdy.mesh<["\170"=1]>}', "sharding_rule": RULE},
]


@each("use, texts", [(use, texts) for use in USES for texts in READ])
def test_what_is_read(use: str, texts: dict[str, str]) -> None:
    USES[use](_function(**texts))


REFUSED: dict[str, dict[str, Any]] = {
    "junk": {"meshes": "junk"},
    "bytes": {"meshes": b"\xff{}"},
    "deep": {"meshes": "{a=" * 100_000},
    "deep, without brackets": {"meshes": "{m = affine_map<(d0)->(" + "-" * 100_000 + "d0)>}"},
    "deep sharding": {"argument": "[" * 100_000},
    "deep rule": {"sharding_rule": "<" * 100_000},
    "another attribute": {"meshes": "{m = dense<0> : tensor<99999999999xf32>}"},
    "an attribute of XLA": {"meshes": "{m = 8 : i64}"},
    "no dictionary": {"meshes": '#sdy.mesh<["x"=1]>'},
    "more": {"meshes": f"{MESH} {MESH}"},
    "an escape that does not end": {"argument": "\\"},
    "another escape": {"argument": r"\x41"},
    "names that XLA cannot read again": {"meshes": r'{m = #sdy.mesh<["\303\274"=1]>}'},
    "names that MLIR escapes": {"meshes": r'{m = #sdy.mesh<["\\C3"=1]>}'},
    "sizes that are 4 together, modulo 2**64": {"meshes": '{m = #sdy.mesh<["x"=4611686018427387905, "y"=4]>}'},
    "too many devices": {"meshes": '{m = #sdy.mesh<["x"=1048576, "y"=2]>}'},
    "too many devices in a mesh of its own": {"argument": '#sdy.sharding<mesh<["x"=65536, "y"=65536]>, [{"x"}]>'},
    "a part of an axis, of too many devices": {"argument": '#sdy.sharding<@m, [{"x":(4611686018427387905)4}]>'},
    "a size of 0": {"meshes": '{m = #sdy.mesh<["x"=0]>}'},
    "another mesh": {"argument": '#sdy.sharding<@other, [{"x"}]>'},
    "another rank": {"argument": "#sdy.sharding<@m, [{}, {}]>"},
    "of an operation": {"argument": OF_OPERATION},
    "of a value": {"sharding": '#sdy.sharding<@m, [{"x"}]>'},
    "no sharding": {"sharding": "#sdy.sharding_per_value<[]>"},
    "two shardings": {"sharding": "#sdy.sharding_per_value<[<@m, [{}]>, <@m, [{}]>]>"},
    "of a result": {"result": RULE},
    "a rule of others": {"sharding_rule": RULE.replace("([i])->", "([i], [i])->")},
    "many factors": {"sharding_rule": "#sdy.op_sharding_rule<([z_99999999999])->([i]) {i=2}, custom>"},
    "no rule": {"sharding_rule": OF_OPERATION},
}


@each("name, use", [("junk", "older"), *((name, "call") for name in REFUSED)])
def test_what_is_refused(name: str, use: str, capfd: pytest.CaptureFixture[str]) -> None:
    exported = _function(**REFUSED[name])
    with pytest.raises(jaxexp.errors.DeserializationError, match="as XLA writes them for Shardy") as error:
        USES[use](exported)
    assert len(str(error.value)) < 1000
    assert str(error.value).isprintable()
    assert capfd.readouterr() == ("", "")


def _with_frontend(frontend: str) -> jaxexp.Exported:
    text = f"""module attributes {{mhlo.frontend_attributes = {frontend}}} {{
      func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{ return %x : tensor<2xf32> }}
    }}"""
    return jaxexp.deserialize(other_modules.with_module(text))


NO_DICTIONARIES = ('"{}"', "5 : i32", "unit", '["xla.sdy.meshes"]')
NO_TEXTS = ("{xla.sdy.meshes = 5 : i32}", '{xla.sdy.meshes = "{}", xla.sdy.sharding = [1]}')


@each("frontend", [*NO_DICTIONARIES, *NO_TEXTS])
def test_what_is_no_dictionary_of_texts(frontend: str) -> None:
    exported = _with_frontend(frontend)
    what, uses = ("text", USES) if frontend in NO_TEXTS else ("dictionary", ["call"])
    for use in uses:
        with pytest.raises(jaxexp.errors.DeserializationError, match=f"that is no {what}"):
            USES[use](exported)


@each("name", [b"ax\xffsx", b"ax\\sx", "ax\u00fcx".encode()])
def test_names_of_axes_at_which_xla_would_end_the_process(name: bytes) -> None:
    exported, x = _on_a_mesh(name)
    with pytest.raises(jaxexp.errors.DeserializationError, match="axes of meshes"):
        exported.call(x)
    with pytest.raises(jaxexp.errors.ExportError):
        jaxexp.migrate(exported.serialize(), "0.6.2")
    exported, x = _on_a_mesh(b'a" x.')
    assert exported.call(x).sum() == 16


def _on_a_mesh(name: bytes) -> tuple[jaxexp.Exported, jax.Array]:
    placed = NamedSharding(jax.make_mesh((8,), ("axisx",)), PartitionSpec("axisx"))
    exported = jaxexp.export(jax.jit(lambda x: 2 * x, in_shardings=placed))(np.ones(8, np.float32))
    blob = exported.serialize(trailer=False)
    at = blob.rindex(b"axisx\0")
    assert len(name) == 5
    return jaxexp.deserialize(blob[:at] + name + blob[at + 5 :]), jax.device_put(np.ones(8, np.float32), placed)
