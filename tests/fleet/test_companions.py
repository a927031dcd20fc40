"""What belongs to an artifact goes along on every way: weights, cases, sizes, padding, metadata, first writer."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._cli import start
from jaxexp._kernel.function.data import note
from kit.archive_files import make
from kit.each import each
from kit.goldens import blob_of

pytestmark = pytest.mark.jax

METADATA, SIZES, FIRST = {"is": "mine"}, ({"b": 4}, {"b": 8}), "JAX 0.4.30"
WEIGHTS = {"w": np.full((3, 2), 2, np.float32)}
X = np.arange(4 * 3, dtype=np.float32).reshape(4, 3)
LARGE = np.arange(1 << 15, dtype=np.float32)  # of more bytes than a trailer takes


@functools.cache
def exported() -> jaxexp.BoundExported:
    (b,) = jaxexp.symbolic_shape("b")
    specs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((b, 3), LARGE.shape)]
    function = jax.jit(lambda weights, x, large: (x @ weights["w"], jnp.sum(large)))
    program = jaxexp.export(function)({"w": jax.ShapeDtypeStruct((3, 2), np.float32)}, *specs)
    return note(program, first_writer=FIRST).bind(WEIGHTS)


OPTIONS: dict[str, Any] = {
    "metadata": METADATA,
    "sizes": SIZES,
    "pad": "b",
    "vjp_order": 1,
    "cases": [{"args": (X, LARGE), "name": "small", "tolerance": 1e-5}],
}


def in_archive(folder: Path, function: jaxexp.Exported, **options: Any) -> str:
    with jaxexp.Archive.create(folder / "made.zip") as writer:
        writer.add("model", function, **options)
    return f"{folder / 'made.zip'}::model"


def added(folder: Path, saved: Path) -> str:
    return in_archive(folder, jaxexp.load(saved), vjp_order=1)


def with_file(folder: Path, saved: Path) -> str:
    return f"{make(folder / 'made.zip', {'model': saved})}::model"


def again(folder: Path, saved: Path) -> Path:
    jaxexp.load(saved).save(folder / "again.jaxexp", vjp_order=1)
    return folder / "again.jaxexp"


def appended(folder: Path, saved: Path) -> str:
    member = added(folder, saved)
    with jaxexp.Archive.append(folder / "made.zip") as writer:
        writer.add("other", jaxexp.load(saved))
        writer.remove("other")
    jaxexp.Archive.compact(folder / "made.zip")
    return member


def called(*arguments: Any) -> None:
    assert start.main(list(map(str, arguments))) == 0


def packed(folder: Path, saved: Path) -> str:
    called("pack", folder / "made.zip", f"model={saved}")
    return f"{folder / 'made.zip'}::model"


def copied(folder: Path, saved: Path) -> str:
    """From archive to archive; the first one adds the metadata."""
    plain = jaxexp.load(saved)
    plain.save(folder / "plain.jaxexp", vjp_order=1, metadata={})
    with jaxexp.Archive.create(folder / "first.zip") as writer:
        writer.add_file("model", folder / "plain.jaxexp", metadata=METADATA)
    called("pack", folder / "made.zip", f"model={folder / 'first.zip'}::model")
    return f"{folder / 'made.zip'}::model"


def unpacked(folder: Path, saved: Path) -> Path:
    added(folder, saved)
    called("unpack", folder / "made.zip", "-d", folder / "out")
    return folder / "out" / "model.jaxexp"


def migrated(folder: Path, saved: Path) -> Path:
    (new := saved.with_name("migrated.jaxexp")).write_bytes(jaxexp.migrate(saved))
    return new


def migrated_many(folder: Path, saved: Path) -> Path:
    added(folder, saved)
    assert not jaxexp.migrate_many([folder / "made.zip"], folder / "out")
    return folder / "out" / "model.jaxexp"


def migrated_by_command(folder: Path, saved: Path) -> Path:
    called("migrate", member := added(folder, saved), folder / "new.jaxexp")
    called("migrate", "--force", member, folder / "new.jaxexp")
    return folder / "new.jaxexp"


def read(folder: Path, saved: Path) -> Path:
    """The bytes of a member, beside the files that the function was loaded from."""
    with_file(folder, saved)
    handle = jaxexp.Archive.open(folder / "made.zip")["model"]
    (new := saved.with_name("read.jaxexp")).write_bytes(handle.read())
    return new


WAYS: dict[str, Callable[[Path, Path], Any]] = {
    "save": lambda folder, saved: saved,
    "save again": again,
    "add what was exported": lambda folder, saved: in_archive(folder, exported(), **OPTIONS),
    "add what was loaded": added,
    "add a file": with_file,
    "append and compact": appended,
    "pack": packed,
    "unpack": unpacked,
    "copy between archives": copied,
    "read": read,
    "migrate": migrated,
    "migrate_many": migrated_many,
    "migrate a member": migrated_by_command,
    "load_many": lambda folder, saved: jaxexp.load_many([saved])[0],
    "load_all": lambda folder, saved: jaxexp.Archive.open(added(folder, saved).partition("::")[0]).load_all()[0],
    "with_weights": lambda folder, saved: jaxexp.load(saved).with_weights(WEIGHTS),
    "specialize": lambda folder, saved: jaxexp.load(saved).specialize(X, LARGE),
    "pickle": lambda folder, saved: pickle.loads(pickle.dumps(jaxexp.load(saved))),
}
# What does not go along, because it would no longer be true.
LEFT: dict[str, set[str]] = {"with_weights": {"cases"}, "specialize": {"sizes", "padded"}, "pickle": {"cases"}}


@each("way", WAYS)
def test_every_way(way: str, tmp_path: Path) -> None:
    (tmp_path / "at").mkdir()
    exported().save(saved := tmp_path / "at" / "model.jaxexp", **OPTIONS)
    jaxexp.load(saved).precompile((X, LARGE), into=(code := tmp_path / "model.exe"))
    made = WAYS[way](tmp_path, saved)
    function = made if isinstance(made, jaxexp.Exported) else jaxexp.load(made)
    found = {
        "metadata": dict(function.metadata),
        "sizes": tuple(map(dict, function.sizes)),
        "padded": function.padded,
        "first writer": note(function.unbound)._facts.first_writer,
        "weights": {name: np.asarray(array).tolist() for name, array in function.weights.items()},
        "cases": [case.name for case in function.cases],
    }
    expected: dict[str, Any] = {
        "metadata": METADATA,
        "sizes": SIZES,
        "padded": ("b",),
        "first writer": FIRST,
        "weights": {name: array.tolist() for name, array in WEIGHTS.items()},
        "cases": ["small"],
    }
    left = LEFT.get(way, set())
    assert found | dict.fromkeys(left) == expected | dict.fromkeys(left)
    if "cases" not in left:
        assert function.check().verdict in ("equal", "within tolerance"), function.check()
    if not isinstance(made, jaxexp.Exported):
        inspection = jaxexp.inspect(made)
        assert (inspection.metadata, inspection.sizes, inspection.padded) == (METADATA, SIZES, ("b",))
        assert inspection.first_writer == FIRST and f"from an artifact of {FIRST}" in str(inspection)
        assert inspection.trailer is not None and FIRST not in inspection.trailer
        assert len(inspection.cases) == len(inspection.weights) == 1
        fast = jaxexp.load(made, executables=code)
        fast.call(X, LARGE)
        assert [one.used for one in fast.executables] == [True]


def test_who_wrote_an_old_artifact_first(tmp_path: Path) -> None:
    """As far as the artifact says it; and each way that makes an artifact of it keeps that."""
    (tmp_path / "old.jaxexp").write_bytes(blob_of("0.4.30", "sin"))
    old = jaxexp.inspect(tmp_path / "old.jaxexp")
    assert (old.jax_version, old.first_writer) == (None, None)
    made = [
        jaxexp.migrate(tmp_path / "old.jaxexp"),
        jaxexp.load(tmp_path / "old.jaxexp").serialize(),
        jaxexp.migrate(jaxexp.migrate(tmp_path / "old.jaxexp", to="0.6.2")),
        jaxexp.load(tmp_path / "old.jaxexp").serialize(metadata=METADATA),
    ]
    for blob in made:
        assert jaxexp.inspect(bytes(blob)).first_writer == f"JAX {old.writer}"
        assert jaxexp.inspect(bytes(jaxexp.deserialize(blob).serialize())).first_writer == f"JAX {old.writer}"
    new = jaxexp.export(jax.jit(jnp.sin))(X).serialize()
    assert jaxexp.inspect(bytes(jaxexp.migrate(bytes(new)))).first_writer is None
