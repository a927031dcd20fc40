"""`migrate_many`: what each artifact becomes, and where it is written."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import jaxexp
from kit.archive_files import make
from kit.archives import blob
from kit.each import each


def test_what_a_reader_cannot_read_is_the_outcome_of_one_artifact(tmp_path: Path) -> None:
    of_today = jaxexp.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct((2,), jnp.float8_e8m0fnu))
    fleet = make(tmp_path / "fleet.zip", {"a": blob(), "b": of_today, "c": blob()})
    for _ in range(2):  # from a worker, and from the journal
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            how: Any = {"executor": executor, "journal": tmp_path / "journal"}
            ((name, error),) = jaxexp.migrate_many([fleet], tmp_path / "new", "0.4.30", **how).items()
        assert name == f"{fleet}::b"
        assert isinstance(error, jaxexp.errors.TooOldReaderError)
        assert error.since == (0, 5, 1)
        assert "float8_e8m0fnu" in str(error)
        assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a.jaxexp", "c.jaxexp"]


def archive_of(path: Path, *names: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    return make(path, {name: blob(version=number) for number, name in enumerate(names)})


def written(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@each("as_handles", [False, True])
def test_members_that_are_named_one_by_one(as_handles: bool, tmp_path: Path) -> None:
    fleet = archive_of(tmp_path / "fl.zip", "a0", "in/a0", "in/a1", "a2")
    named = [f"{fleet}::in/a0", f"{fleet}::a0", f"{fleet}::a2"]
    given: list[Any] = [jaxexp.Archive.open(fleet)[name.partition("::")[2]] for name in named] if as_handles else named
    for _ in range(2):
        assert jaxexp.migrate_many(given, tmp_path / "new", journal=tmp_path / "journal") == {}
        assert written(tmp_path / "new") == ["fl.zip/a0.jaxexp", "fl.zip/a2.jaxexp", "fl.zip/in/a0.jaxexp"]
    assert jaxexp.load(tmp_path / "new/fl.zip/in/a0.jaxexp") == jaxexp.deserialize(blob(version=1))
    assert jaxexp.migrate_many(given[:1], tmp_path / "one") == {}
    assert written(tmp_path / "one") == ["in/a0.jaxexp"]


def test_members_that_are_named_twice(tmp_path: Path) -> None:
    fleet, other = (archive_of(tmp_path / folder / "fl.zip", "a0", "a1", "b") for folder in ("one", "other"))
    for given, failed in (
        ([f"{fleet}::a0", f"{fleet}::a1", f"{fleet}::a0"], f"{fleet}::a0"),
        ([f"{fleet}::a*", f"{fleet}::a1"], f"{fleet}::a1"),
        ([fleet, f"{fleet}::b"], f"{fleet}::b"),
        ([f"{fleet}::b", fleet], str(fleet)),
        ([fleet, other], str(other)),
        ([f"{fleet}::a0", f"{other}::a0"], f"{other}::a0"),
    ):
        found = jaxexp.migrate_many(given, tmp_path / "new")
        assert list(found) == [failed]
        assert "to the same place as another: 'fl.zip'" in str(found[failed])


def test_a_folder_inside_of_the_folder_of_an_archive(tmp_path: Path) -> None:
    archive_of(tmp_path / "one" / "sub", "fl.zip/a")
    (tmp_path / "other" / "sub").mkdir(parents=True)
    nested = archive_of(tmp_path / "other" / "sub" / "fl.zip", "a")
    for given in ([tmp_path / "one", tmp_path / "other"], [tmp_path / "other", tmp_path / "one"]):
        ((name, error),) = jaxexp.migrate_many(given, tmp_path / "new").items()
        assert name == str(nested if given[0].name == "one" else tmp_path / "one" / "sub")
        assert "to the same place as another" in str(error)


def test_the_folder_that_is_written_to_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    (folder / "inner").mkdir(parents=True)
    for name in ("a", "inner/b"):
        (folder / f"{name}.jaxexp").write_bytes(blob())
    for _ in range(3):
        assert jaxexp.migrate_many([folder], folder / "inner" / "new") == {}
        assert written(folder / "inner" / "new") == ["a.jaxexp", "inner/b.jaxexp"]
    before = written(folder)
    assert jaxexp.migrate_many([folder / "inner" / "new"], folder / "inner" / "new") == {}, "in place"
    assert written(folder) == before


def test_the_journal_of_another_place_does_not_count(tmp_path: Path) -> None:
    """Members lie elsewhere when another artifact is given, too."""
    fleet, journal = archive_of(tmp_path / "fl.zip", "a"), tmp_path / "journal"
    (tmp_path / "other.jaxexp").write_bytes(blob())
    assert jaxexp.migrate_many([fleet], tmp_path / "new", journal=journal) == {}
    assert jaxexp.migrate_many([fleet, tmp_path / "other.jaxexp"], tmp_path / "new", journal=journal) == {}
    assert written(tmp_path / "new") == ["a.jaxexp", "fl.zip/a.jaxexp", "other.jaxexp"]
