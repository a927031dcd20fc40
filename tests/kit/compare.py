"""What the tests mean by equal: the fields of two Exported, the interface of two modules, the values of two results."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np

# Fields both libraries document, and the two private ones that hold the shardings. `in_shardings_hlo` and its twin are
# not here: JAX releases differ in whether they fill them (house/test_api.py has their test).
FIELDS = (
    "fun_name", "in_tree", "in_avals", "out_tree", "out_avals", "_in_named_shardings", "_out_named_shardings",
    "nr_devices", "platforms", "ordered_effects", "unordered_effects", "disabled_safety_checks",
    "mlir_module_serialized", "calling_convention_version", "module_kept_var_idx", "uses_global_constants",
)  # fmt: skip


def vars_of(value: Any, *names: str) -> dict[str, Any]:
    return {"type": type(value), **{name: getattr(value, name) for name in names}}


def _mesh(mesh: Any) -> dict[str, Any]:
    device = mesh.abstract_device and vars_of(mesh.abstract_device, "device_kind", "num_cores", "platform")
    return {**vars_of(mesh, "axis_sizes", "axis_names", "axis_types"), "device": device}


def _sharding(sharding: Any) -> dict[str, Any] | None:
    if sharding is None:
        return None
    spec = vars_of(sharding.spec, "_partitions", "reduced", "unreduced")
    return {**vars_of(sharding, "memory_kind"), "mesh": _mesh(sharding.mesh), "spec": spec}


def _aval(aval: Any, named_sharding: Any, as_written: bool) -> dict[str, Any]:
    fields = vars_of(aval, "dtype", "memory_space", *([] if as_written else ["weak_type"]))
    fields["shape"] = [(str(d), isinstance(d, int)) for d in aval.shape]
    if not as_written or named_sharding is not None:
        fields["sharding"] = _sharding(aval.sharding)
    return fields


def describe(exported: Any, *, module: bool = True, as_written: bool = False) -> dict[str, Any]:
    """The fields of an Exported as values that compare across libraries and across symbolic scopes.

    `as_written=True` leaves out what the format has no place for: weak types, and the mesh behind an unspecified
    sharding.
    """
    for name in ("in_avals", "out_avals", "_in_named_shardings", "_out_named_shardings", "platforms",
                 "ordered_effects", "unordered_effects", "disabled_safety_checks", "module_kept_var_idx"):  # fmt: skip
        assert type(getattr(exported, name)) is tuple, f"{name} is a {type(getattr(exported, name))}"
    assert type(exported.mlir_module_serialized) is bytes
    fields = {name: getattr(exported, name) for name in FIELDS}
    for name in ("in_avals", "out_avals"):
        shardings = fields[f"_{name.removesuffix('_avals')}_named_shardings"]
        fields[name] = tuple(_aval(a, s, as_written) for a, s in zip(fields[name], shardings, strict=True))
    for name in ("_in_named_shardings", "_out_named_shardings"):
        fields[name] = tuple(map(_sharding, fields[name]))
    # Unordered effects come out of a set, in any order; the checks are each library's own class.
    fields["unordered_effects"] = sorted(fields["unordered_effects"], key=str)
    fields["disabled_safety_checks"] = tuple(
        (str(check), check.is_custom_call()) for check in fields["disabled_safety_checks"]
    )
    if not module:
        del fields["mlir_module_serialized"]
    return fields


def assert_same_fields(found: Any, expected: Any, **how: bool) -> None:
    """Fails with the names and values of the fields that differ."""
    found_fields, expected_fields = describe(found, **how), describe(expected, **how)
    differing = [name for name in expected_fields if found_fields[name] != expected_fields[name]]
    lines = [
        f"{name}:\n    found    {found_fields[name]!r}\n    expected {expected_fields[name]!r}" for name in differing
    ]
    assert not differing, "fields differ\n" + "\n".join(line[:4000] for line in lines)


def chain(exported: Any, vjp_order: int) -> list[Any]:
    """The Exported and its VJPs up to `vjp_order`."""
    links = [exported]
    for _ in range(vjp_order):
        assert links[-1].has_vjp()
        links.append(links[-1].vjp())
    return links


def assert_same_chains(found: Any, expected: Any, vjp_order: int, **how: bool) -> None:
    for ours, theirs in zip(chain(found, vjp_order), chain(expected, vjp_order), strict=True):
        assert_same_fields(ours, theirs, **how)


def module_interface(exported: Any) -> dict[str, Any]:
    """What a caller of the module relies on: its attributes, its meshes, and the signature of its public functions."""
    # Locations name the arguments of a VJP, which every library does in its own way.
    text = re.sub(r' loc\((?:"[^"]*"|#loc\d*)\)', "", exported.mlir_module())
    return {
        "attributes": re.findall(r"^module @\S+ attributes (\{.*\}) \{$", text, re.M),
        "meshes": re.findall(r"^ *sdy\.mesh .*$", text, re.M),
        "public": re.findall(r"^ *func\.func public (.*) \{$", text, re.M),
    }


def scopes(exported: Any) -> set[int]:
    """The identities of the symbolic scopes that an Exported's shapes use."""
    return {id(d.scope) for a in exported.in_avals + exported.out_avals for d in a.shape if not isinstance(d, int)}


def _plain(x: Any) -> np.ndarray:
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(x))
    x = np.asarray(x)
    return x.astype(np.float64) if x.dtype.kind == "V" and x.dtype != jax.dtypes.float0 else x


def assert_same_values(found: Any, expected: Any, *, rtol: float = 1e-5) -> None:
    """Equal trees, dtypes, shapes; exactly equal integers, floats equal to a few units of float32."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        ours, theirs = _plain(ours), _plain(theirs)
        if theirs.dtype == jax.dtypes.float0:
            continue
        if theirs.dtype.kind in "fc":
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)
        else:
            np.testing.assert_array_equal(ours, theirs)


def assert_same_placement(found: Any, expected: Any) -> None:
    """Equal weak types, memory kinds and shardings of results; values are not compared."""
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if not isinstance(theirs, jax.Array):
            assert not isinstance(ours, jax.Array)
            continue
        assert getattr(ours, "weak_type", None) == getattr(theirs, "weak_type", None)
        assert ours.sharding.memory_kind == theirs.sharding.memory_kind
        assert ours.sharding.is_equivalent_to(theirs.sharding, ours.ndim), f"{ours.sharding} != {theirs.sharding}"
