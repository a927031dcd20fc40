"""Writing for old readers: which slots, which StableHLO, what is refused, and how the choice travels.

What real old releases make of it is shown by ``make interop``; here is what can be seen without them.
"""

from __future__ import annotations

import collections
import datetime
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp._kernel.releases import table
from jaxexp._kernel.write import reader as readers
from jaxexp.errors import ExportError, SerializationError
from kit import wire
from kit.compare import assert_same_values
from kit.corpus import CASES, arr, export_with, mesh, spec
from kit.derivatives import pull_back
from kit.each import each

pytestmark = pytest.mark.jax
f32 = np.float32


def stablehlo_of(exported: Any) -> tuple[int, ...]:
    found = re.match(rb"ML\xefR.StableHLO_v([\d.]+)\x00", bytes(exported.mlir_module_serialized), re.DOTALL)
    assert found is not None
    return table.number(found[1].decode())


def sharded() -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    m = mesh((4, 2), ("x", "y"))
    s = NamedSharding(m, P("x", "y"))

    def fun(a, b):
        c = jax.lax.with_sharding_constraint(a @ b, NamedSharding(m, P(("x", "y"), None)))
        c = jax.lax.with_sharding_constraint(c, NamedSharding(m, P(P.UNCONSTRAINED, "x")))
        return c, jax.shard_map(lambda v: jax.lax.psum(v * 2, "x"), mesh=m, in_specs=P("x"), out_specs=P())(c)

    values = arr(16, 16), arr(16, 16, seed=1)
    placed = jax.device_put(values[0], s), jax.device_put(values[1], NamedSharding(m, P()))
    return jax.jit(fun, in_shardings=(s, None)), tuple(spec(v.shape) for v in values), placed


# What stands in which slot for which reader: version number, a short device count, an xla.OpSharding, convention.
SLOTS = [
    ("0.4.22", 1, True, True, 9),
    ("0.4.24", 2, True, True, 9),
    ("0.6.2", 2, True, True, 9),
    ("0.8.1", 2, True, True, 10),
    ("0.8.2", 3, False, True, 10),
    ("0.9.0", 3, False, False, 10),
    ("0.10.0", 3, False, False, 10),
    ("0.11.1", 12, False, False, 10),
    ("0.12.0.1", 12, False, False, 10),
]


@each("release, number, short_count, op_sharding, convention", SLOTS)
def test_slots_of_each_reader(release: str, number: int, short_count: bool, op_sharding: bool, convention: int) -> None:
    s = NamedSharding(mesh((8,), ("x",)), P("x"))
    fun = jax.jit(lambda a, b: a * 2 + b, in_shardings=(s, None), out_shardings=s)
    blob = jaxexp.export(fun)(spec((8,)), spec((8,))).serialize(compatibility=f"jax-{release}")
    assert wire.read(blob, "serialization_version") == number
    assert wire.read(blob, "calling_convention_version") == convention
    assert wire.read(blob, "nr_devices") == 8
    if short_count:
        assert wire.read(blob, "nr_devices_short") == 8
    else:
        with pytest.raises(LookupError):
            wire.read(blob, "nr_devices_short")
    # Newer readers find all they need beside it.
    assert wire.length(blob, "in_avals") == wire.length(blob, "in_avals_idxs") == 2
    assert wire.length(blob, "in_shardings") == wire.length(blob, "in_shardings_idxs") == 2
    assert wire.read(blob, "in_shardings.0.named_sharding.mesh.axis_names.0") == "x"
    assert wire.length(blob, "in_shardings.1.hlo_sharding_proto") == 0  # unspecified
    if op_sharding:
        assert wire.read(blob, "in_shardings.0.kind") == wire.read(blob, "out_shardings.0.kind") == 1
        at, _ = wire.locate(blob, "in_shardings.0.hlo_sharding_proto")
        proto = bytes(blob[at + 4 : at + 4 + wire.length(blob, "in_shardings.0.hlo_sharding_proto")])
        read = jaxexp.deserialize(blob)
        hlo = read._in_named_shardings[0]._to_xla_hlo_sharding(read.in_avals[0].ndim)
        assert proto == hlo.to_proto().SerializeToString()
    else:
        assert wire.length(blob, "in_shardings.0.hlo_sharding_proto") == 0


def test_default_is_as_ever() -> None:
    fun, specs, _ = sharded()
    exported = jaxexp.export(fun)(*specs)
    blob = exported.serialize()
    assert blob == jaxexp.export(fun, compatibility=None)(*specs).serialize(compatibility=None)
    assert wire.read(blob, "serialization_version") == 12
    assert stablehlo_of(exported) == stablehlo_of(jax_export.export(fun)(*specs))
    for newer in (exported, jaxexp.export(fun, compatibility="jax-0.7.2")(*specs)):
        assert b"sdy" in newer.mlir_module_serialized
        assert newer.calling_convention_version == 10


@each("release", ["0.4.30", "0.10.2"])
def test_todays_readers_read_what_is_for_old_ones(release: str) -> None:
    case = CASES["perceptron"].build()
    exported = export_with(jaxexp, case)
    written = exported.serialize(1, compatibility=f"jax-{release}")
    for library in (jax_export, jaxexp):
        read = library.deserialize(written)
        assert read.in_tree == exported.in_tree
        assert stablehlo_of(read) <= table.number(table.release(release).stablehlo)
    assert_same_values(read.call(*case.args), case.fun(*case.args))
    assert_same_values(pull_back(read.call, case.args, {}), pull_back(case.fun, case.args, {}), rtol=1e-4)


@each("when", ["exported for it", "written for it later"])
def test_readers_before_shardy_get_gspmd(when: str) -> None:
    fun, specs, placed = sharded()
    if when == "exported for it":
        exported = jaxexp.export(fun, compatibility="jax-0.6.2")(*specs)
        assert b"sdy" not in exported.mlir_module_serialized
    else:
        exported = jaxexp.export(fun)(*specs)
        assert b"sdy" in exported.mlir_module_serialized
    read = jaxexp.deserialize(exported.serialize(compatibility="jax-0.6.2"))
    text = read.mlir_module()
    assert "sdy" not in text
    assert 'mhlo.sharding = "{devices=[4,2]<=[8]}"' in text
    assert '@Sharding(%0) {mhlo.sharding = "{devices=[8,1]<=[8]}"}' in text
    assert 'backend_config = "unspecified_dims=[0]"' in text
    assert text.count("@SPMDFullToShardShape") == text.count("@SPMDShardToFullShape") == 1
    assert_same_values(read.call(*placed), fun(*placed))


def test_partly_manual_shard_map_has_to_be_exported_for_its_reader() -> None:
    m = mesh((4, 2), ("x", "y"))
    body = jax.shard_map(lambda v: v * 2, mesh=m, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    fun, args = jax.jit(body), (spec((8, 2)),)
    with pytest.raises(ExportError, match=r"shard_map that leaves the mesh axes y automatic; .*jax-0\.6\.2"):
        jaxexp.export(fun)(*args).serialize(compatibility="jax-0.6.2")
    assert b"sdy" not in jaxexp.export(fun, compatibility="jax-0.6.2")(*args).mlir_module_serialized


Pair = collections.namedtuple("Pair", "x y")
jaxexp.register_namedtuple_serialization(Pair, serialized_name="test.Pair")


# Function, specs, reader, what the error names, the first release that reads it.
REFUSED: list[tuple[Any, Any, str, str, str]] = [
    (lambda x: x, lambda: spec((2,), jnp.float8_e4m3), "0.4.35", r"args\[0\] has dtype float8_e4m3", "0.4.36"),
    (lambda x: x, lambda: spec((2,), jnp.float4_e2m1fn), "0.5.2", "float4_e2m1fn", "0.5.3"),
    (lambda x: x, lambda: jax.random.key(1), "0.5.3", r"args\[0\] has dtype key<fry>", "0.6.0"),
    (lambda x: x, lambda: spec((2,), jax.dtypes.float0), "0.4.23", "float0", "0.4.24"),
    (lambda x: x, lambda: Pair(f32(1), f32(2)), "0.4.34", "nodes of <class '.*Pair'>", "0.4.35"),
    (lambda x: x, lambda: {1: f32(1)}, "0.4.35", "keys that are not strings", "0.10.2"),
    (
        lambda x: jnp.concatenate([x, x])[: jax.core.max_dim(x.shape[0], 3)], lambda: spec(jaxexp.symbolic_shape("n")),
        "0.4.23", r"result has a symbolic dimension .*max\(", "0.4.24",
    ),
    (jnp.linalg.cholesky, lambda: spec((3, 3)), "0.4.30", "calls lapack_spotrf_ffi", "0.4.31"),
    (jnp.linalg.eigvals, lambda: spec((3, 3)), "0.4.31", "lapack_sgeev_ffi", "0.4.32"),
    (lambda x: -x, lambda: spec((2,), jnp.int4), "0.4.30", r"4-bit integers \(stablehlo.negate\)", "0.4.36"),
    (
        lambda x: jax.lax.dot(x, x, precision=jax.lax.DotAlgorithmPreset.F32_F32_F32), lambda: spec((3, 3)),
        "0.4.30", "stablehlo.dot_general, or a form of it, that is not in StableHLO", "0.4.35",
    ),
    (
        lambda x: x.astype(jnp.float8_e3m4).astype(f32), lambda: spec((2,)),
        "0.4.30", "stablehlo.convert of element type f8E3M4", "0.4.35",
    ),
]  # fmt: skip


@each("fun, make_spec, release, what, since", REFUSED)
def test_features_that_a_reader_does_not_know(fun: Any, make_spec: Any, release: str, what: str, since: str) -> None:
    message = rf"cannot be written for JAX {re.escape(release)}: .*{what}.*; write for JAX {re.escape(since)} or"
    arg = make_spec()
    with pytest.raises(SerializationError, match=message) as raised:
        jaxexp.export(jax.jit(fun), compatibility=f"jax-{release}")(arg)
    assert isinstance(raised.value, NotImplementedError)
    exported = jaxexp.export(jax.jit(fun))(arg)
    with pytest.raises(SerializationError, match=message):
        exported.serialize(compatibility=f"jax-{release}")
    # And the release that the message names can be written for.
    read = jaxexp.deserialize(exported.serialize(compatibility=f"jax-{since}"))
    assert read.out_tree == exported.out_tree


def test_an_error_about_a_key_says_what_to_take() -> None:
    with pytest.raises(SerializationError, match=r"0\.6\.0 or newer, or export .*wrap_key_data"):
        jaxexp.export(jax.jit(jax.random.normal), compatibility="jax-0.5.3")(jax.random.key(1))
    data = jax.random.key_data(jax.random.key(1))
    exported = jaxexp.export(
        jax.jit(lambda data: jax.random.normal(jax.random.wrap_key_data(data))), compatibility="jax-0.5.3"
    )(data)
    assert jaxexp.compatibility(exported.serialize()).readable_by("0.5.3")


def test_a_function_that_calls_one_with_shardy_says_where_to_convert() -> None:
    loaded = jaxexp.deserialize(jaxexp.export(jax.jit(jax.random.normal))(jax.random.key(0)).serialize())
    function = jax.jit(lambda data: loaded.call(jax.random.wrap_key_data(data)))
    data = jax.random.key_data(jax.random.key(1))
    with pytest.raises(ExportError, match="pass it to save or serialize instead"):
        jaxexp.export(function, compatibility="jax-0.5.0")(data)
    written = jaxexp.export(function)(data).serialize(compatibility="jax-0.5.0")
    assert jaxexp.compatibility(written).readable_by("0.5.0")


def test_shardings_that_a_reader_does_not_know() -> None:
    cholesky = jaxexp.export(jax.jit(jnp.linalg.cholesky), platforms=("cuda",))(spec((3, 3)))
    kinds, unreduced = (export_with(jaxexp, CASES[name].build()) for name in ("memory_kinds", "unreduced_result"))
    for exported, release, message in (
        (kinds, "0.8.1", r"args\[0\] is in memory space .*; write for JAX 0\.8\.2 or"),
        (unreduced, "0.8.3", r"unreduced or reduced over mesh axes .*; write for JAX 0\.9\.0 or"),
        (cholesky, "0.7.2", r"calls cusolver_potrf_ffi, .*; write for JAX 0\.8\.0 or"),
    ):
        with pytest.raises(SerializationError, match=message):
            exported.serialize(compatibility=f"jax-{release}")
    assert cholesky.serialize(compatibility="jax-0.8.0")


def test_composites_are_expanded_for_compilers_without_them() -> None:
    """CHLO operations are composites in an artifact, which may come back as operations."""
    exported = jaxexp.export(jax.jit(lambda x: (jax.lax.acosh(1 + x), jax.lax.top_k(x, 2))))(spec((4,)))
    old, newer = (jaxexp.deserialize(exported.serialize(compatibility=f"jax-{v}")) for v in ("0.4.31", "0.4.32"))
    assert re.search(r'= chlo\.|stablehlo\.composite "chlo\.', newer.mlir_module())
    assert not re.search(r"= chlo\.|stablehlo\.composite", old.mlir_module())
    x = arr(4)
    assert_same_values(old.call(x), newer.call(x), rtol=1e-5)


def test_choice_is_kept_for_the_function_and_its_vjps(tmp_path: Path) -> None:
    exported = jaxexp.export(jax.jit(jnp.sin), compatibility="jax-0.4.30")(spec((3,)))
    of_any_size = jaxexp.export(jax.jit(jnp.sin), compatibility="jax-0.4.30")(spec(jaxexp.symbolic_shape("n")))
    for function in (exported, exported.vjp(), exported.vjp().vjp()):
        assert stablehlo_of(function) <= table.number("1.1.3")
        assert function.calling_convention_version == 9
        assert wire.read(function.serialize(), "serialization_version") == 2
    of_one = of_any_size.specialize(spec((3,)))
    for function in (of_one, of_one.vjp()):
        assert wire.read(function.serialize(), "serialization_version") == 2
        assert stablehlo_of(jaxexp.deserialize(function.serialize())) <= table.number("1.1.3")
    blob = exported.serialize(2)
    assert wire.read(blob, "vjp.vjp.serialization_version") == 2
    exported.save(tmp_path / "sin", vjp_order=2)
    assert (tmp_path / "sin").read_bytes() == blob
    # Another choice takes its place; and a loaded function has none.
    assert wire.read(exported.serialize(compatibility="jax-0.8.3"), "serialization_version") == 3
    assert wire.read(jaxexp.deserialize(blob).serialize(), "serialization_version") == 12
    jaxexp.export(jax.jit(jnp.sin))(spec((3,))).save(tmp_path / "later", compatibility="jax-0.4.30")
    assert wire.read((tmp_path / "later").read_bytes(), "serialization_version") == 2


def test_weeks_back_from_the_installed_release() -> None:
    exported, installed = jaxexp.export(jax.jit(jnp.sin))(spec((3,))), table.release(jax.__version__)
    for weeks in (0, 4, 12, 52):
        reader = readers.reader_of(f"{weeks}w")
        assert reader.release == table.newest_before(installed.date - datetime.timedelta(weeks=weeks))
        assert exported.serialize(compatibility=f"{weeks}w") == exported.serialize(compatibility=reader.release.version)


@each(
    "args, order, oldest",
    [
        ((spec((2,)), spec((2,), np.int32)), 0, "0.4.22"),
        ((spec((2,)), spec((2,), np.int32)), 1, "0.4.24"),  # float0 in the VJP
        ((spec((2,), jnp.float8_e4m3), spec((2,), jnp.float8_e4m3)), 0, "0.4.36"),
    ],
)
def test_max_is_the_oldest_reader_that_can_be(args: Any, order: int, oldest: str) -> None:

    def fun(x: Any, n: Any) -> Any:
        return x * n

    exported = jaxexp.export(jax.jit(fun))(*args)
    assert exported.serialize(order, compatibility="max") == exported.serialize(order, compatibility=f"jax-{oldest}")
    chosen = jaxexp.export(jax.jit(fun), compatibility="max")(*args)
    assert wire.read(chosen.serialize(order), "serialization_version") < 12
    if oldest != "0.4.22":
        whose = "fun_vjp_jax cannot be written for.*float0.*" if order else ""
        with pytest.raises(SerializationError, match=f"{whose}write for JAX {re.escape(oldest)}"):
            exported.serialize(order, compatibility="jax-0.4.22")


NO_CHOICES = {
    **{choice: f"found {choice!r}" for choice in (3, b"4w", "4", "4 weeks", "JAX 0.4.30", "1e3w", "0..4", "MAX", "")},
    "jax-0.4.21": r"is not a known release of JAX; next to it are JAX 0\.4\.22\. compatibility= takes",
    "jax-0.6.3": r"is not a known release of JAX; next to it are JAX 0\.6\.2 and JAX 0\.7\.0",
    "jax-9.9.9": r"next to it are JAX 0\.12\.0\.1\. compatibility=",
    "5000w": r"goes back to before 2023-12-14",
    f"{'9' * 5000}w": r"goes back to before 2023-12-14",
}


@each("choice, message", NO_CHOICES.items())
def test_what_is_no_choice(choice: Any, message: str) -> None:
    exported = jaxexp.export(jax.jit(jnp.sin))(spec((3,)))
    for attempt in (
        lambda: jaxexp.export(jax.jit(jnp.sin), compatibility=choice),
        lambda: exported.serialize(compatibility=choice),
    ):
        with pytest.raises(ExportError, match=message) as raised:
            attempt()
        assert isinstance(raised.value, TypeError) == (not isinstance(choice, str))
        if "found" in message or "known release" in message:
            assert "'0.4.22' to '0.12.0.1'" in str(raised.value)
            assert '"12w", or "max"' in str(raised.value)
