"""Every public name, used as its documentation says: type checkers find nothing wrong here. Nobody runs this file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, assert_type

import jax
import numpy as np

import jaxexp
from jaxexp.runtime import Array, Session, Value, find_plugin, register_ffi, use_lapack


class Point(NamedTuple):
    x: Any
    y: Any


def export(batch: int) -> jaxexp.Exported:
    scope = jaxexp.SymbolicScope(["n >= 2"])
    (n,) = jaxexp.symbolic_shape("n", scope=scope)
    if jaxexp.is_symbolic_dim(n):
        assert_type(jaxexp.symbolic_dim_bounds(n), tuple[float, float])
    jaxexp.symbolic_args_specs((np.zeros(3),), "n", scope=scope)
    jaxexp.register_namedtuple_serialization(Point, serialized_name="Point")
    jaxexp.register_pytree_node_serialization(
        Point, serialized_name="Point", serialize_auxdata=lambda _: b"", deserialize_auxdata=lambda _: None
    )
    checks = [jaxexp.DisabledSafetyCheck.custom_call("mine"), jaxexp.DisabledSafetyCheck.platform()]
    make = jaxexp.export(
        jax.jit(np.sin), platforms=[jaxexp.default_export_platform()], disabled_checks=checks, batch_dim="n"
    )
    exported = assert_type(make(jax.ShapeDtypeStruct((n,), np.float32)), jaxexp.Exported)
    assert_type(exported.fun_name, str)
    assert_type(exported.platforms, tuple[str, ...])
    assert_type(exported.vjp(), jaxexp.Exported)
    return exported.specialize(jax.ShapeDtypeStruct((batch,), np.float32))


def other_producers(path: Path) -> jaxexp.Exported:
    jaxexp.from_stablehlo("module { }", entry="main", name="f", platforms=["cpu"], kwargs={"x": 0}, results=[0])
    jaxexp.from_stablehlo(b"", shapes={0: "b, 3", 1: (2, 3)}, disabled_checks=[jaxexp.DisabledSafetyCheck.platform()])
    return assert_type(jaxexp.from_stablehlo(path, args=({"w": 0}, 1), differentiable=True), jaxexp.Exported)


def weights(exported: jaxexp.Exported, path: Path) -> None:
    bound = assert_type(exported.bind({"w": np.zeros(3)}), jaxexp.BoundExported)
    bound.save(path, vjp_order=1, weights="x.safetensors", max_weights_file_size=1 << 30)
    loaded = jaxexp.load(path)
    assert_type(loaded.weights["w"], Any)
    assert_type(loaded.unbound, jaxexp.Exported)
    assert_type(loaded.with_weights("torch.safetensors", rename=str.lower, cast=True), jaxexp.BoundExported)
    assert_type(exported.bind({"w": np.zeros(3)}, rename={"w": "weight"}), jaxexp.BoundExported)
    assert_type(loaded.with_weights("tuned.safetensors").with_weights(loaded.weights), jaxexp.BoundExported)
    assert_type(loaded.with_weights("tuned.safetensors", stable=True), jaxexp.BoundExported)
    assert_type(jaxexp.load_many([path], stable=True), list[jaxexp.Exported])
    loaded.weights_into({"w": jax.ShapeDtypeStruct((3,), np.float32)})
    if isinstance(loaded, jaxexp.BoundExported):
        loaded.weights.check_digests()
    jax.tree.map(lambda w: 2 * w, bound)


def save_and_load(exported: jaxexp.Exported, path: Path) -> None:
    exported.save(path, vjp_order=1, metadata={"version": 3})
    data = assert_type(exported.serialize(1), bytearray)
    assert_type(exported.serialize(strict=True), bytearray)
    node = jaxexp.GenericNode(b"", [1])
    assert_type(node._class_name, str)
    for buffer in (data, bytes(data), memoryview(data)):
        assert_type(jaxexp.deserialize(buffer, policy=jaxexp.Policy(max_devices=1)), jaxexp.Exported)
    assert_type(jaxexp.load(path).metadata["version"], Any)
    functions = assert_type(jaxexp.load_many([path, str(path), data]), list[jaxexp.Exported])
    for outcome in jaxexp.load_many([path], on_error="return", workers=2):
        if not isinstance(outcome, Exception):
            functions.append(outcome)
    (compiled,) = exported.precompile((np.zeros(4),), into=path)
    assert_type(compiled, jaxexp.Executable)
    assert_type(jaxexp.load(path, executables=path).executables, tuple[jaxexp.Executable, ...])
    assert_type(jaxexp.compile_cache(path, max_bytes=1 << 30), None)
    jaxexp.compile_cache(None)
    assert_type(functions[0].precompile(mesh_or_device=jax.devices()[0]), tuple[jaxexp.Executable, ...])
    assert_type(jaxexp.inspect(path, check_modules=True), jaxexp.Inspection)
    assert_type(jaxexp.inspect(data, digests=True).platforms, tuple[str, ...])
    assert_type(jaxexp.digests(path), jaxexp.Digests)
    assert_type(jaxexp.digests(data).meaning, str)
    assert_type(jaxexp.compatibility(data), jaxexp.Compatibility)
    assert_type(jaxexp.migrate(data, "jax-0.6.2", locations="names"), bytearray)
    with path.open("rb") as file:
        assert_type(jaxexp.load(file), jaxexp.Exported)
    assert_type(jaxexp.load(io.BytesIO(data), policy=jaxexp.Policy()), jaxexp.Exported)
    assert_type(jaxexp.inspect("fleet.zip::model"), jaxexp.Inspection)
    jaxexp.verify(path)
    with ThreadPoolExecutor(2) as executor:
        found = jaxexp.verify_many([path, "models/"], executor=executor, journal="journal", policy=jaxexp.Policy())
        assert_type(found, dict[str, Exception])
        assert_type(jaxexp.migrate_many([path], "new", "0.6.2", executor=lambda: executor), dict[str, Exception])
        for name, who in jaxexp.compatibility_many([path], journal=path):
            assert_type((name, who), tuple[str, jaxexp.Compatibility | Exception])
        assert_type(dict(jaxexp.digests_many([path], executor=executor)), dict[str, jaxexp.Digests | Exception])
        assert_type(dict(jaxexp.check_many([path], tolerance=0)), dict[str, jaxexp.CheckReport | Exception])
        assert_type(dict(jaxexp.spread(jaxexp.inspect, [path])), dict[str, Any])


def cases(exported: jaxexp.Exported, path: Path) -> None:
    drawn = jaxexp.Drawn((8, 4), "float32", "uniform", seed=1, second=2)
    exported.save(path, cases=[(drawn,), {"args": (np.zeros(4),), "tolerance": jaxexp.Tolerance(1e-3)}])
    for case in assert_type(jaxexp.record(path, [(drawn,)], replace=True), tuple[jaxexp.Case, ...]):
        assert_type(case.results[0].tolerance, jaxexp.Tolerance | None)
        assert_type(case.measured, frozenset[int])
    assert_type(exported.cases, tuple[jaxexp.Case, ...])
    assert_type(exported.check(tolerance=1e-5), jaxexp.CheckReport)
    assert_type(jaxexp.check(path).ok, bool)


def archives(exported: jaxexp.Exported, path: Path) -> None:
    with assert_type(jaxexp.Archive.create(path, share_modules=False), jaxexp.ArchiveWriter) as writer:
        writer.add("model", exported, vjp_order=1)
        writer.add("the same", exported.serialize())
    with jaxexp.Archive.append(str(path)) as writer:
        writer.remove("the same", "another")
    with jaxexp.Archive.open(io.BytesIO(path.read_bytes())) as archive, path.open("rb") as file:
        handle = assert_type(archive["model"], jaxexp.Handle)
        assert_type(handle.summary, jaxexp.Summary)
        assert_type(handle.load(), jaxexp.Exported)
        assert_type(archive.load_all(), list[jaxexp.Exported])
        assert_type(archive.load_all(["model"], on_error="return"), list[jaxexp.Exported | Exception])
        assert_type(jaxexp.Archive.open(file).verify(), dict[str, jaxexp.errors.DeserializationError])
        archive.precompile({"model": (np.zeros(4),)})


def errors(path: Path) -> str | None:
    try:
        jaxexp.load(path).serialize()
    except (
        *(
            jaxexp.errors.WeightsError,
            jaxexp.errors.ExecutablesError,
            jaxexp.errors.JournalError,
            jaxexp.errors.ModuleError,
        ),
        *(jaxexp.errors.ChangedArtifactError, jaxexp.errors.FatalArtifactError, jaxexp.errors.ForeignModuleError),
        *(jaxexp.errors.UnsupportedArtifactError, jaxexp.errors.UnsupportedModuleError),
    ) as error:
        return error.path
    except (jaxexp.errors.DeserializationError, jaxexp.errors.PolicyError, jaxexp.errors.SignatureError) as error:
        return error.file
    except jaxexp.errors.TooOldReaderError as error:
        return str(error.since)
    except jaxexp.errors.RefusedError as error:
        return error.operation
    except (
        *(
            jaxexp.errors.SerializationTypeError,
            jaxexp.errors.SerializationKeyError,
            jaxexp.errors.UnsupportedSerializationError,
        ),
        *(
            jaxexp.errors.ExportTypeError,
            jaxexp.errors.ExportBufferError,
            jaxexp.errors.ExportRuntimeError,
            jaxexp.errors.ExportPicklingError,
        ),
        *(
            jaxexp.errors.WorkerError,
            jaxexp.errors.UnfitWorkerError,
            jaxexp.errors.UnknownCustomCallError,
            jaxexp.errors.UnexpectedDimError,
        ),
    ):
        raise
    except (jaxexp.errors.SerializationError, jaxexp.errors.UnsupportedError):
        return None
    except jaxexp.errors.ExportError as error:
        return str(error)
    return jaxexp.__version__


def signatures(path: str) -> jaxexp.Exported:
    assert_type(jaxexp.sign(path, key="release.pem"), list[str])
    by = jaxexp.SignedBy(public_key="release.pub")
    assert_type(jaxexp.load_many([path], signed_by=by), list[jaxexp.Exported])
    assert_type(jaxexp.Archive.open(path, signed_by=by), jaxexp.Archive)
    jaxexp.verify(path, signed_by=by)
    return jaxexp.load(path, signed_by=by)


def in_the_place_of_jax_export() -> int:
    with jaxexp.install():
        jaxexp.uninstall()
    assert jaxexp.minimum_supported_serialization_version <= jaxexp.maximum_supported_serialization_version
    oldest = jaxexp.minimum_supported_calling_convention_version
    return jaxexp.maximum_supported_calling_convention_version - oldest


def without_jax(path: Path) -> None:
    use_lapack("libopenblas.so.0")
    register_ffi("target", object(), plugin=assert_type(find_plugin("cpu"), str))
    session = Session(path, plugin="cpu", devices=[0], policy=jaxexp.Policy(), options={"cpu_device_count": 2})
    assert_type(session.arguments, tuple[Value, ...])
    assert_type(session.weights, Mapping[str, Array])
    assert_type(session.vjp().with_weights("w.safetensors"), Session)
    assert_type(session.why_compiled, str)
    try:
        np.asarray(session.put(np.zeros(3)).block_until_ready())
        session(np.zeros(3), k=session.on_device(np.zeros(3)))
        session.call_by_path({"args[0]": 3})
        session.compile()
        session.save_executable(path)
    except jaxexp.errors.BusyError:
        pass
    except jaxexp.errors.RunError as error:
        assert_type(error.reason, str)
