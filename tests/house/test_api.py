"""jaxexp's public surface against that of the installed jax.export, and what it adds."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest
from jax import export as jax_export

import jaxexp
from kit.corpus import arr
from kit.models import KEYWORDS, exported_case

pytestmark = pytest.mark.jax
# What jax.export 0.12.0.1 exports, for the releases that had less.
NAMES = (
    "DisabledSafetyCheck", "Exported", "export", "deserialize", "register_pytree_node_serialization",
    "register_namedtuple_serialization", "maximum_supported_calling_convention_version",
    "minimum_supported_calling_convention_version", "default_export_platform", "SymbolicScope", "is_symbolic_dim",
    "symbolic_dim_bounds", "symbolic_shape", "symbolic_args_specs",
)  # fmt: skip
OLDER_NAMES = ("maximum_supported_serialization_version", "minimum_supported_serialization_version")
METHODS = ("mlir_module", "in_shardings_jax", "out_shardings_jax", "has_vjp", "vjp", "serialize", "call")


def test_every_name_is_there() -> None:
    names = {*jax_export.__all__, *NAMES, *OLDER_NAMES}
    assert names <= {*jaxexp.__all__}
    assert names <= {*dir(jaxexp)}
    assert len(set(jaxexp.__all__)) == len(jaxexp.__all__)
    for name in [name for name in (*NAMES, *OLDER_NAMES) if name.endswith("version")]:
        theirs = getattr(jax_export, name.replace("serialization", "calling_convention"))
        assert getattr(jaxexp, name) == theirs
    assert jaxexp.default_export_platform() == jax_export.default_export_platform() == "cpu"
    assert [name for name in jaxexp.__all__ if getattr(jaxexp, name, None) is None] == []
    for name in ("no_such_name", "NoSuchError"):
        with pytest.raises(AttributeError, match=f"'{name}'$"):
            getattr(jaxexp, name)
    with pytest.warns(DeprecationWarning, match=r"^jaxexp[.]PolicyError is jaxexp[.]errors[.]PolicyError now$"):
        assert getattr(jaxexp, "PolicyError") is jaxexp.errors.PolicyError  # noqa: B009
    with pytest.raises(AttributeError, match=r"has no attribute 'NoSuchError'$"):
        jaxexp.errors.NoSuchError  # noqa: B018


def signatures_of(library) -> dict[str, inspect.Signature]:
    found = {}
    for name in jax_export.__all__:
        value = getattr(library, name)
        if inspect.isfunction(value):
            found[name] = inspect.signature(value)
    for cls in ("Exported", "DisabledSafetyCheck"):
        for name, value in inspect.getmembers(getattr(library, cls)):
            if not name.startswith("_") and callable(value):
                found[f"{cls}.{name}"] = inspect.signature(value)
    return found


def test_signatures() -> None:
    """Every parameter of jax.export's functions, by name, kind, order and default; more may follow or have defaults."""
    theirs, ours = signatures_of(jax_export), signatures_of(jaxexp)
    assert {"export", "deserialize", "Exported.call", "DisabledSafetyCheck.platform"} <= theirs.keys()
    for name, signature in theirs.items():
        expected = [(p.name, p.kind, p.default) for p in signature.parameters.values()]
        found = [(p.name, p.kind, p.default) for p in ours[name].parameters.values()]
        for i, (_, _, default) in enumerate(expected):
            if default is inspect.Parameter.empty:
                found[i] = (*found[i][:2], default)
        assert found[: len(expected)] == expected, name
    mesh_parameter = ours["Exported.in_shardings_jax"].parameters["mesh"]
    assert mesh_parameter.default is None, "new in JAX 0.11"


def test_exported_fields() -> None:
    theirs = {f.name for f in dataclasses.fields(jax_export.Exported)}
    # Up to 0.10 a flag said whether shardings are named; they always are.
    expected = (theirs | set(KEYWORDS)) - {"_has_named_shardings"}
    found = [f.name for f in dataclasses.fields(jaxexp.Exported)]
    assert (set(found), found) == (expected, list(KEYWORDS))
    ours = exported_case("sin")
    for name in theirs:
        getattr(ours, name)
    for name in METHODS:
        assert callable(getattr(ours, name))


def test_types_are_our_own() -> None:
    """jax.export's are bases in name only: nothing of theirs is inherited."""
    for ours, theirs in (
        (jaxexp.Exported, jax_export.Exported),
        (jaxexp.DisabledSafetyCheck, jax_export.DisabledSafetyCheck),
    ):
        assert issubclass(ours, theirs)
        own = {name for owner in ours.__mro__ if owner not in (theirs, object) for name in vars(owner)}
        assert vars(theirs).keys() <= own | {"__annotations__", "__dict__", "__slotnames__", "__weakref__"}
    assert type(exported_case("sin")) is jaxexp.Exported
    # Shape polymorphism belongs to JAX's tracing: there it must be the very same type.
    assert jaxexp.SymbolicScope is jax_export.SymbolicScope


def test_public_functions_are_documented() -> None:
    for owner in (jaxexp, jaxexp.errors):
        for name in owner.__all__:
            value = getattr(owner, name)
            assert value.__doc__ or not callable(value), name
    for name in (*METHODS, "save", "from_jax", "to_jax"):
        assert getattr(jaxexp.Exported, name).__doc__, name


def test_symbolic_names() -> None:
    a, b = jaxexp.symbolic_shape("a, 2*b", constraints=["a >= 3", "b <= 5"])
    assert jaxexp.is_symbolic_dim(a)
    assert not jaxexp.is_symbolic_dim(3)
    assert jaxexp.symbolic_dim_bounds(a) == (3, np.inf)
    assert jaxexp.symbolic_dim_bounds(b) == (2, 10)
    assert jaxexp.symbolic_dim_bounds(7) == (7, 7)
    (again,) = jaxexp.symbolic_shape("a", scope=a.scope)
    assert again == a
    specs = jaxexp.symbolic_args_specs((arr(2, 3),), "n, ...")
    assert [str(d) for d in specs[0].shape] == ["n", "3"]
    scope = jaxexp.SymbolicScope(["n >= 2"])
    (n,) = jaxexp.symbolic_shape("n", scope=scope)
    assert jaxexp.symbolic_dim_bounds(n)[0] == 2


def test_disabled_safety_check() -> None:
    for make in (lambda c: c.platform(), lambda c: c.custom_call("target"), lambda c: c.custom_call("a:b")):
        ours, theirs = make(jaxexp.DisabledSafetyCheck), make(jax_export.DisabledSafetyCheck)
        assert (ours.is_custom_call(), str(ours)) == (theirs.is_custom_call(), str(theirs))
        assert (ours, hash(ours)) == (make(jaxexp.DisabledSafetyCheck), hash(make(jaxexp.DisabledSafetyCheck)))
        assert ours != jaxexp.DisabledSafetyCheck.custom_call("other")


def private(thing: object) -> list[str]:
    return [name for name in dir(thing) if name.startswith("_") and not name.startswith("__")]


def test_dir_shows_public_names(tmp_path) -> None:
    assert [name for name in dir(jaxexp) if not name.startswith("__")] == sorted(jaxexp.__all__)
    exported = exported_case("sin")
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as writer:
        writer.add("sin", exported)
        assert private(writer) == []
        assert {"add", "remove", "names"} <= set(dir(writer))
    archive = jaxexp.Archive.open(tmp_path / "fleet.zip")
    for thing in (exported, jaxexp.Archive, archive, archive["sin"], jaxexp.Policy()):
        assert private(thing) == []
        assert "__class__" in dir(thing)
    theirs = jax_export.deserialize(bytearray(exported.serialize(trailer=False)))
    assert {name for name in dir(theirs) if not name.startswith("_")} <= set(dir(exported))
    assert {"open", "create", "glob", "load_all", "keys"} <= set(dir(jaxexp.Archive)) & set(dir(archive))
    assert {"load", "summary", "name", "label"} <= set(dir(archive["sin"]))
    assert exported._in_named_shardings is not None  # not shown, but there
