"""`Exported` as the dataclass that `jax.export.Exported` is: built by position, matched, taken apart, pickled."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest
from jax import export as jax_export

import jaxexp
from kit.alike import LIBRARIES
from kit.compare import assert_same_fields, assert_same_values
from kit.corpus import CASES, arr, export_with
from kit.models import KEYWORDS, exported_case

PLAIN = {
    "sin": lambda library: export_with(library, CASES["sin"].build()),
    "sharded": lambda library: export_with(library, CASES["sharded_2d"].build()),
    "symbolic": lambda library: export_with(library, CASES["symbolic_several"].build()),
    "several platforms": lambda library: export_with(library, CASES["multi_platform"].build()),
    "checks": lambda library: export_with(library, CASES["custom_call_allowed"].build()),
}
each_plain = pytest.mark.parametrize("name", PLAIN)
each_origin = pytest.mark.parametrize("origin", ["exported", "loaded", "from jax.export", "specialized"])


def of_origin(origin: str) -> jaxexp.Exported:
    exported = exported_case("sin")
    return {
        "exported": lambda: exported,
        "loaded": lambda: jaxexp.deserialize(exported.serialize(vjp_order=1)),
        "from jax.export": lambda: jaxexp.Exported.from_jax(exported_case("sin", jax_export)),
        "specialized": lambda: exported_case("symbolic_several").specialize(*CASES["symbolic_several"].build().args),
    }[origin]()


def fields_of_both() -> list[str]:
    """Those of jax.export in their order. JAX 0.10 has one more, which says that shardings are named."""
    names = [field.name for field in dataclasses.fields(jax_export.Exported) if field.name != "_has_named_shardings"]
    assert names == list(KEYWORDS)
    return names


def test_match_arguments() -> None:
    theirs = [name for name in jax_export.Exported.__match_args__ if name != "_has_named_shardings"]
    assert list(jaxexp.Exported.__match_args__) == theirs
    match exported_case("sin"):
        case jaxexp.Exported(name, in_tree, (aval,)):
            assert (name, in_tree.num_leaves, aval.shape) == ("sin", 1, (4,))
        case _:
            pytest.fail("no match")


@each_origin
def test_construction_by_position(origin: str) -> None:
    exported = of_origin(origin)
    again = jaxexp.Exported(*(getattr(exported, name) for name in fields_of_both()))
    assert_same_fields(again, exported)
    assert again == exported


@pytest.mark.parametrize("missing", fields_of_both())
def test_every_field_has_to_be_given(missing: str) -> None:
    for library in LIBRARIES.values():
        exported = exported_case("sin", library)
        values = {field.name: getattr(exported, field.name) for field in dataclasses.fields(exported)}
        assert_same_fields(type(exported)(**values), exported)
        del values[missing]
        with pytest.raises(TypeError, match=missing):
            type(exported)(**values)


@each_origin
@pytest.mark.parametrize("take_apart", [dataclasses.asdict, dataclasses.astuple])
def test_taken_apart(take_apart: Any, origin: str) -> None:
    exported = of_origin(origin)
    apart = take_apart(exported)
    values = list(apart.values() if isinstance(apart, dict) else apart)
    assert values == [getattr(exported, name) for name in fields_of_both()]
    if isinstance(apart, dict):
        assert list(apart) == fields_of_both()
        assert jaxexp.Exported(**apart).vjp().in_avals == exported.vjp().in_avals


@pytest.mark.parametrize("name", sorted(PLAIN.keys() - {"sharded"}))  # since JAX 0.11, HloSharding cannot be copied
def test_taken_apart_as_in_jax_export(name: str) -> None:
    ours, theirs = (dataclasses.asdict(PLAIN[name](library)) for library in (jaxexp, jax_export))
    theirs.pop("_has_named_shardings", None)
    assert list(ours) == list(theirs)
    for field in ("in_tree", "out_tree", "platforms", "nr_devices", "_in_named_shardings", "mlir_module_serialized"):
        assert ours[field] == theirs[field], field
    assert list(map(str, ours["disabled_safety_checks"])) == list(map(str, theirs["disabled_safety_checks"]))
    assert all(isinstance(check, jaxexp.DisabledSafetyCheck) for check in ours["disabled_safety_checks"])


def test_checks_are_no_dataclasses() -> None:
    for library in LIBRARIES.values():
        check = library.DisabledSafetyCheck.custom_call("target")
        assert not dataclasses.is_dataclass(check)
        assert str(type(check)("custom_call:target")) == str(copy.deepcopy(check)) == str(check)


# --- pickles --------------------------------------------------------------------------------------------------------


@each_plain
def test_pickle_without_vjp(name: str) -> None:
    """What jax.export pickles: a function whose VJP was taken away. (With shardings, it cannot since JAX 0.11.)"""
    for library in LIBRARIES.values() if name != "sharded" else [jaxexp]:
        exported = dataclasses.replace(PLAIN[name](library), _get_vjp=None)
        again = pickle.loads(pickle.dumps(exported))
        assert type(again) is type(exported)
        assert not again.has_vjp()
        assert list(map(str, again.in_avals)) == list(map(str, exported.in_avals))
        assert again.mlir_module_serialized == exported.mlir_module_serialized
        if library is jaxexp:
            assert_same_fields(again, exported)
            assert again == exported or name == "symbolic"  # of two scopes
        if name == "sin":
            assert_same_values(again.call(arr(4)), exported.call(arr(4)))


def test_pickle_without_vjp_of_a_loaded_function() -> None:
    loaded = jaxexp.deserialize(exported_case("sin").serialize(vjp_order=1, metadata={"is": "mine"}))
    without = dataclasses.replace(loaded, _get_vjp=None)
    assert pickle.loads(pickle.dumps(without)) == without
    assert pickle.loads(pickle.dumps(loaded)).metadata == {"is": "mine"}


def test_functions_with_a_vjp_cannot_be_pickled() -> None:
    """jax.export cannot do it either. A function that was changed after loading has its VJP only in this process."""
    loaded = jaxexp.deserialize(exported_case("sin").serialize(vjp_order=1))
    for exported in (exported_case("sin"), dataclasses.replace(loaded, fun_name="other")):
        with pytest.raises(jaxexp.ExportError, match=r"serialize\(vjp_order=.*_get_vjp=None") as error:
            pickle.dumps(exported)
        assert isinstance(error.value, TypeError)
        assert isinstance(error.value, AttributeError), "as in jax.export"
