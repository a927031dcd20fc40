"""Each door that takes an artifact, and each place that one comes from: the same result, the same error, and what to
do instead where there is no artifact.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxexp
from jaxexp import Archive
from jaxexp._cli import start
from jaxexp.errors import DeserializationError, ExportError, PolicyError, WeightsError
from kit import archive_files
from kit.archives import blob
from kit.doors import DOORS, SAID, WRONG, Taken, W, World, X, given, outcome, sources
from kit.each import each
from kit.served import serving


def every_door(test: Callable[..., None]) -> Callable[..., None]:
    """For each door a third of the ways, in turn, and at night the `rest`."""
    for names, values in (("door", DOORS), ("rest", [False, True])):
        test = pytest.mark.parametrize(names, values)(test)
    return pytest.mark.wide(one_in=2, promise="each way to an artifact is one for each door")(test)


def some(ways: Iterable[Taken], first: int, rest: bool) -> list[Taken]:
    return [way for number, way in enumerate(ways) if ((number + first) % 3 == 0) != rest]


NUMBERS = {door: number for number, door in enumerate(DOORS)}


def of(name: str | None) -> set[str | None]:
    """What an error may be about: an artifact, or the archive that it is in."""
    return {name, name and name.partition("::")[0]}


@every_door
def test_the_same_result(door: str, rest: bool, world: World) -> None:
    read = DOORS[door]
    expected = read(world.root / "good" / "f.jaxexp")
    ways = some(world.sources("good"), NUMBERS[door], rest)
    assert {way: found for _, way, make, _ in ways if (found := outcome(read, make)) != expected} == {}


@every_door
def test_the_same_error(door: str, rest: bool, world: World) -> None:
    wrong = {}
    for number, state in enumerate(("damaged", *WRONG)):
        for _, way, make, name in some(world.sources(state), NUMBERS[door] + number, rest):
            found = outcome(DOORS[door], make)
            if (state, door, found) == ("damaged", "check", "failed") or (state, way) == ("empty", "mmap"):
                continue  # a case that fails; and no system maps nothing
            names = of(name) | ({None} if (state, door) == ("damaged", "load") else set())  # a module is read later
            is_right = isinstance(found, DeserializationError) and found.file in names
            if not is_right or SAID.get(state, "") not in str(found):
                wrong[state, way] = found
    assert wrong == {}


@every_door
def test_what_is_not_there(door: str, rest: bool, world: World, tmp_path: Path) -> None:
    wrong = {}
    for where, way, make, name in some(sources(tmp_path, f"{world.url}/missing"), NUMBERS[door], rest):
        found = outcome(DOORS[door], make)
        file = "" if where == "buffer" else str(name).partition("::")[0].removeprefix("file://")
        if not isinstance(found, FileNotFoundError) or file not in str(found):
            wrong[way] = found
    assert wrong == {}
    for place in (world.root, world.url):
        with pytest.raises(KeyError, match=r"'in/\*' is not in Archive"):
            DOORS[door](f"{place}/good/all.zip::in/*")


def computed(artifact: Any, **options: Any) -> tuple[bool, bool, list[str | None]]:
    """Whether a function has its weights, whether it computes what it should, and why it uses no compiled code."""
    function = jaxexp.load(artifact, **options)
    is_bound = isinstance(function, jaxexp.BoundExported)
    found = function.call(X) if is_bound else function.call(W, X)
    return is_bound, np.allclose(found, np.sin(X @ W["w"]), 1e-3, 1e-2), [one.why for one in function.executables]


def verified(artifact: Any) -> None:
    jaxexp.load(artifact, verify=True)


BOUND, UNBOUND = (True, True, []), (False, True, [])
ALONE = WeightsError, "weights beside it in 'f.safetensors': copy all files"
DAMAGED = WeightsError, r"found the digest|as its header says, found content"
MISSING = WeightsError, "names, found none of this name"
# What a door makes of a state, from a path, an archive, a URL and a buffer: the result, or the error.
BESIDE: list[tuple[str, Callable[[Any], Any], Any, Any, Any, Any]] = [
    ("with_weights", computed, BOUND, BOUND, ALONE, UNBOUND),
    ("with_weights", lambda artifact: computed(artifact, verify=True), BOUND, BOUND, ALONE, UNBOUND),
    ("with_weights", jaxexp.verify, None, None, None, None),
    ("damaged_weights", jaxexp.verify, DAMAGED, DAMAGED, DAMAGED, None),
    ("damaged_weights", verified, DAMAGED, DAMAGED, ALONE, None),
    ("missing_weights", jaxexp.verify, MISSING, None, MISSING, None),
    ("missing_weights", verified, MISSING, None, ALONE, None),
    ("with_cases", DOORS["check"], "equal", "equal", "equal", "failed"),
    ("with_cases", jaxexp.verify, None, None, None, None),
    ("damaged_cases", DOORS["check"], "failed", "failed", "failed", "failed"),
    ("damaged_cases", jaxexp.verify, DAMAGED, DAMAGED, DAMAGED, None),
    ("damaged_cases", verified, DAMAGED, DAMAGED, None, None),
    ("missing_cases", DOORS["check"], "failed", "equal", "failed", "failed"),
    ("missing_cases", jaxexp.verify, MISSING, None, MISSING, None),
]


@pytest.mark.wide(one_in=2, promise="files beside an artifact are used, or missed, in each way to it")
@pytest.mark.parametrize("rest", [False, True])
def test_files_beside_it(rest: bool, world: World) -> None:
    wrong = {}
    for row, (state, read, *expected) in enumerate(BESIDE):
        by_place = dict(zip(("path", "archive", "URL", "buffer"), expected, strict=True))
        for where, way, make, name in some(world.sources(state), row, rest):
            found, right = outcome(read, make), by_place[where]
            if isinstance(found, Exception) and isinstance(right, tuple) and isinstance(right[0], type):
                file = str(found.file).replace(".cases.safetensors", ".jaxexp").replace(".safetensors", ".jaxexp")
                if type(found) is right[0] and re.search(right[1], str(found)) and file in of(name):
                    continue
            if found != right:
                wrong[row, state, way] = found
    assert wrong == {}


def test_compiled_code_and_digests(world: World) -> None:
    meaning = jaxexp.digests(world.root / "with_weights" / "f.jaxexp")
    for where, way, make, _ in some(world.sources("with_weights"), 0, rest=True):
        found = outcome(lambda artifact: computed(artifact, executables=world.root / "f.exe"), make)
        if where == "URL":
            assert isinstance(found, WeightsError), way
        else:
            assert found == (where != "buffer", True, [None]), way
        digests = outcome(jaxexp.digests, make)
        assert digests == meaning if where != "buffer" else "pass the path of the artifact" in str(digests), way
        assert outcome(jaxexp.inspect, make).weights, way


at_each_door = pytest.mark.parametrize("door", DOORS)


@at_each_door
def test_what_is_no_artifact(door: str, world: World, tmp_path: Path) -> None:
    read, name, good = DOORS[door], door.partition(",")[0].partition(" ")[0], world.root / "good"
    for wrong in (3, None, object(), ["a"], Archive.open(good / "all.zip")):
        with pytest.raises(TypeError, match=r"takes an artifact as a path, as 'archive.zip::member'") as error:
            read(wrong)
        assert isinstance(error.value, ExportError)
        assert name == "check" or str(error.value).startswith(name)
    with (good / "f.jaxexp").open(encoding="latin-1") as text, pytest.raises(TypeError, match="a text file"):
        read(text)
    with pytest.raises(DeserializationError, match=r"an archive of artifacts: name one of them, as in .*::NAME"):
        read(good / "all.zip")
    if door != "verify":
        with pytest.raises(DeserializationError):
            read(world.root / "f.exe")
    if sys.platform != "win32":  # which refuses access to folders
        with pytest.raises(IsADirectoryError, match="Name a file in it; load_many, verify_many and others") as folder:
            read(tmp_path)
        assert folder.value.filename == str(tmp_path)
    if hasattr(os, "mkfifo"):  # to open it would wait for somebody who writes
        os.mkfifo(tmp_path / "pipe.jaxexp")
        with pytest.raises((OSError, ExportError), match=r"pipe\.jaxexp"):
            read(tmp_path / "pipe.jaxexp")


@at_each_door
def test_names_with_colons(door: str, world: World, tmp_path: Path) -> None:
    """A file may be called so; and fsspec chains URLs by what also stands before the name of a member."""
    good, read = world.root / "good", DOORS[door]
    expected = read(good / "f.jaxexp")
    shutil.copy(good / "f.jaxexp", tmp_path / "café::b")
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as zipped:
        zipped.write(good / "f.jaxexp", "in/b8")
        zipped.write(good / "all.zip", "all.zip")
    outer = tmp_path / "outer.zip"
    chained = [f"zip://{inner}::{place}" for inner in ("in/b8", "all.zip") for place in (outer, outer.as_uri())]
    for artifact in (tmp_path / "café::b", *(f"{url}::in/f" if "all.zip" in url else url for url in chained)):
        assert read(artifact) == expected, artifact


def test_a_file_object_is_read_from_where_it_is(world: World) -> None:
    file = io.BytesIO(b"a line before\n" + (world.root / "good" / "f.jaxexp").read_bytes())
    file.readline()
    assert jaxexp.load(file).fun_name == "sine"
    assert file.read() == b""


def test_a_policy_limits_what_is_read(world: World) -> None:
    class Endless:
        size = 0

        def read(self, size: int = -1) -> bytes:
            assert size >= 0, "everything was asked for"
            self.size += size
            return bytes(size)

    endless = Endless()
    with pytest.raises(PolicyError, match="max_artifact_bytes"):
        jaxexp.load(endless, policy=jaxexp.Policy(max_artifact_bytes=1000))
    assert endless.size < 1 << 22
    for _, _, way, _ in world.sources("good"):
        with pytest.raises(PolicyError, match="max_artifact_bytes"), given(way) as artifact:
            jaxexp.load(artifact, policy=jaxexp.Policy(max_artifact_bytes=10))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.timeout(60)
def test_pipes_in_passes_and_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To open one would wait for somebody who writes."""
    pipe = tmp_path / "f.jaxexp"
    os.mkfifo(pipe)
    for one in (jaxexp.verify_many, jaxexp.digests_many, jaxexp.compatibility_many, jaxexp.check_many):
        ((_, found),) = dict(one([pipe])).items()
        assert isinstance(found, Exception), one.__name__
    for command in ("verify", "inspect", "ls", "check", "compat"):
        for arguments in ([str(pipe)], [str(tmp_path), "--include", "*.jaxexp"]):
            assert start.main([command, *arguments]) == 1
            assert "f.jaxexp" in "".join(capsys.readouterr()), command
    with pytest.raises((OSError, ExportError), match=r"f\.jaxexp"):
        Archive.open(pipe)


def test_many_are_loaded_from_files() -> None:
    for place in ("fleet.zip::model/v1", "memory://fleet/model.jaxexp"):
        with pytest.raises(FileNotFoundError, match=r"Archive.load_all loads members") as error:
            jaxexp.load_many([place])
        assert error.value.filename == place
        (found,) = jaxexp.load_many([place], on_error="return")
        assert "load from a URL" in str(found)


def test_archives_are_not_written_to_urls() -> None:
    url = "http://127.0.0.1:1/fleet.zip"
    for use in (jaxexp.Archive.create, jaxexp.Archive.append, jaxexp.Archive.compact):
        with pytest.raises(ExportError, match=f"^{re.escape(url)} is a URL, from which archives are only read"):
            use(url)


@each(
    "data, said",
    [
        (b"\n<!DOCTYPE html><html><title>Log in</title></html>", "what looks like an HTML page, as servers send it"),
        (b"<html>" + b" " * 100_000, "what looks like an HTML page"),
        (b'{"error": "access denied", "status": 403}', "what looks like text, as servers send it"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a pointer of Git LFS"),
        ("Größeres wäre möglich. ".encode() * 9, "what looks like text"),
        (("x" * 63 + "ä" * 9).encode(), "what looks like text"),  # the beginning that is looked at ends inside of one
        (b"\x93NUMPY" + bytes(100), "what looks like NumPy's file of arrays"),
        (bytes(100), "something else"),
        (b"\x91noise\xc3\xf0" * 9, "something else"),
        (b"letters \0\1\2 and numbers", "something else"),
    ],
)
def test_what_is_there_in_place_of_an_archive(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "fleet.zip").write_bytes(data)
    with serving(data) as server:
        for place in (tmp_path / "fleet.zip", server.url):
            with pytest.raises(DeserializationError, match=f"expected an archive .*, found {said}"):
                jaxexp.Archive.open(place)


def test_a_pass_in_this_thread_opens_what_is_behind_a_url_once(tmp_path: Path) -> None:
    with serving(archive_files.make(tmp_path / "fleet.zip", {"model": blob()}).read_bytes()) as server:
        assert jaxexp.verify_many([server.url]) == {}
        assert [size for _, size in server.requests].count(1) == 1, "the size comes with a byte"
        with jaxexp.Archive.open(server.url) as archive:
            assert jaxexp.verify_many([archive]) == {}
            assert [name for name, _ in jaxexp.compatibility_many([archive])] == [f"{server.url}::model"]


def test_a_url_that_cannot_be_read_says_why_beside_what_can(tmp_path: Path) -> None:
    """Also where the size is asked for before anything is read."""
    good, gone = tmp_path / "good.jaxexp", "http://127.0.0.1:1/model.jaxexp"
    good.write_bytes(blob())
    assert {name: str(error) for name, error in jaxexp.verify_many([gone, good]).items()}.keys() == {gone}
    assert "there is no connection to the server" in str(jaxexp.verify_many([good, gone])[gone])
    found = dict(jaxexp.compatibility_many([gone, good]))
    assert isinstance(found[gone], OSError)
    assert not isinstance(found[str(good)], Exception)
