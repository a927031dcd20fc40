"""Artifacts from a newer, unknown writer: unknown slots are ignored, what is unknown otherwise is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest
from jax import export as jax_export

import jaxexp
from jaxexp._kernel.artifact import module_head
from jaxexp._kernel.releases import stablehlo, table
from kit import wire
from kit.compare import assert_same_fields
from kit.corpus import CASES, export_with
from kit.goldens import arguments, blob_of
from kit.vhlo import for_version

NEWER = jax.__version__.replace("0.1", "9.1", 1)  # of the same length


def artifact(name: str) -> bytearray:
    return bytearray(export_with(jaxexp, CASES[name].build()).serialize(trailer=False))


@pytest.mark.parametrize(
    "path", ["", "in_tree", "in_avals.0", "unique_avals.0", "in_shardings.0", "unique_named_shardings.0",
             "unique_named_shardings.0.spec", "unique_abstract_meshes.0"],
)  # fmt: skip
def test_unknown_slots_are_ignored(path: str) -> None:
    blob = artifact("sharded_2d")
    expected = jaxexp.deserialize(bytes(blob))
    slots = [slot for slot in range(len(wire.LAYOUT["Exported"])) if has(blob, path, slot)]
    wire.add_slot(blob, path, value_of=slots[0])
    found = jaxexp.deserialize(blob)
    assert found == expected
    assert_same_fields(found, jax_export.deserialize(blob))  # which ignores them too
    assert jaxexp.compatibility(blob).unreadable_here is None


def has(blob: Any, path: str, slot: int) -> bool:
    table = wire.locate(blob, path)[0] if path else wire._u32(blob, 0)
    return wire._field(blob, table, slot) is not None


UNKNOWN = {
    "a dtype": ("in_avals.0.dtype", 77, r"at in_avals\[0\]\.dtype: expected a dtype \(0 to 29, or a registered one\)"),
    "a tree": ("in_tree.kind", 9, r"at in_tree\.kind: expected a kind of tree node \(0 to 5\)"),
    "a space": ("in_avals.0.memory_space", 8, r"\.memory_space: expected a memory space \(0 to 3\)"),
    "an axis": (
        "unique_abstract_meshes.0.axis_types.0",
        5,
        r"\.axis_types\[0\]: expected a type of mesh axis \(1 to 3\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", UNKNOWN)
def test_unknown_numbers_are_named(what: str) -> None:
    path, number, expected = UNKNOWN[what]
    blob = artifact("sharded_2d")
    if path.startswith("in_avals"):  # also where newer readers look
        wire.write(blob, path.replace("in_avals", "unique_avals"), number)
        expected = expected.replace(r"in_avals\[0\]", r"\w+_avals\[\d\]")
    wire.write(blob, path, number)
    found = f", found {number}, which is unknown here: the artifact was written by JAX"
    with pytest.raises(jaxexp.DeserializationError, match=f"{expected}{found} {jax.__version__}; read it with"):
        jaxexp.deserialize(blob)
    wire.write(blob, "jax_version", NEWER)
    with pytest.raises(jaxexp.DeserializationError, match=f"{found} {NEWER}; read it with a jaxexp that knows it"):
        jaxexp.compatibility(blob) if what != "a dtype" else jaxexp.deserialize(blob)
    wire.remove(blob, "jax_version")
    with pytest.raises(jaxexp.DeserializationError, match="damaged, or was written by a newer JAX or jaxexp"):
        jaxexp.deserialize(blob)


def test_an_unknown_kind_of_sharding() -> None:
    blob = bytearray(blob_of("0.4.30", "sharded"))
    wire.write(blob, "in_shardings.0.kind", 6)
    with pytest.raises(jaxexp.DeserializationError, match=r"kind of sharding \(0 to 2\), found 6, which is unknown"):
        jaxexp.deserialize(blob)


def test_an_unknown_dtype_is_described() -> None:
    blob = artifact("sin")
    for path in ("in_avals.0.dtype", "unique_avals.0.dtype"):
        wire.write(blob, path, 77)
    report = jaxexp.compatibility(blob)
    assert report.dtypes == ("number 77",)
    assert report.readers == ()
    assert "found 77, which is unknown here" in (report.unreadable_here or "")


def test_a_module_that_is_too_new() -> None:
    blob = for_version(artifact("sin"), "1.99.0", "sine_v2")
    exported = jaxexp.deserialize(blob)
    assert exported.fun_name == "sin"  # the signature is readable
    newest = table.release(jax.__version__).stablehlo
    message = (
        rf"at mlir_module_serialized: expected a module that JAX {jax.__version__} reads, "
        rf"for StableHLO up to {newest}, "
        r"found one for StableHLO 1\.99\.0, which needs a JAX that is newer than this jaxexp"
    )
    args = CASES["sin"].build().args
    uses = (exported.mlir_module, lambda: exported.call(*args))
    for use in (*uses, lambda: jaxexp.migrate(blob)):
        with pytest.raises(jaxexp.DeserializationError, match=message) as raised:
            use()
        assert isinstance(raised.value, RuntimeError)  # as in jax.export
    report = jaxexp.compatibility(blob)
    assert report.loaded_here
    assert "1.99.0" in (report.unreadable_here or "")
    assert report.custom_calls is None
    assert f"not known: JAX {jax.__version__} does not read the module" in str(report)
    assert "damaged" not in str(report)


def test_errors_of_calls_name_the_file(tmp_path: Path) -> None:
    """Of what `load` returned, also where the module is read only then."""
    blob = for_version(artifact("sin"), "1.99.0", "sine_v2")
    args = CASES["sin"].build().args
    path, archive = tmp_path / "new.jaxexp", tmp_path / "new.zip"
    path.write_bytes(blob)
    with jaxexp.Archive.create(archive) as writer:
        writer.add("sin", bytes(blob))
    member = f"{archive}::sin"
    for exported, name in (
        (jaxexp.load(path), str(path)),
        (jaxexp.load(member), member),
        (jaxexp.Archive.open(archive)["sin"].load(), member),
        (jaxexp.deserialize(blob), None),  # equal to the others, whose compiled code it shares
    ):
        with pytest.raises(jaxexp.DeserializationError) as raised:
            exported.call(*args)
        assert raised.value.file == name


def test_a_module_that_only_claims_to_be_newer() -> None:
    """Each release reads what it knows all operations of."""
    blob = for_version(artifact("sin"), "1.99.0")
    args = CASES["sin"].build().args
    assert (jaxexp.deserialize(blob).call(*args) == jaxexp.deserialize(artifact("sin")).call(*args)).all()


def test_what_it_takes_is_told_from_the_table() -> None:
    module = jaxexp.deserialize(blob_of("0.11.2", "poly")).mlir_module_serialized
    assert not module_head.is_for_newer(module, "1.18.0")
    assert module_head.is_for_newer(module, "1.17.0")
    assert stablehlo.why_too_new(module, "1.17.0") == (
        "one for StableHLO 1.18.0 with vhlo.custom_call_v2, which JAX 0.11.0 and newer read",
        True,
    )
    sin = jaxexp.deserialize(blob_of("0.11.2", "sin")).mlir_module_serialized
    assert stablehlo.why_too_new(sin, "1.17.0") == ("one for StableHLO 1.18.0, which JAX 0.11.0 and newer read", False)


def test_which_jax_is_needed() -> None:
    """The one kind of golden artifact that JAX 0.10.2 cannot parse."""
    exported = jaxexp.deserialize(blob_of("0.12.0.1", "poly"))
    args, kwargs = arguments(exported, "0.12.0.1", "poly")
    if jax.__version_info__ >= (0, 11, 0):
        exported.call(*args, **kwargs)
        return
    with pytest.raises(jaxexp.DeserializationError, match=r"vhlo\.custom_call_v2, which JAX 0\.11\.0 and newer read"):
        exported.call(*args, **kwargs)
