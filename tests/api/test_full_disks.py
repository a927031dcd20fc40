"""Files that cannot be written, as on a full disk: the error names the path that the user gave, and nothing is left."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxexp
from jaxexp._kernel.io import files

resource = pytest.importorskip("resource")
pytestmark = pytest.mark.jax
W = {"w": np.ones((64, 64), np.float32)}


@pytest.fixture(scope="module")
def weighted() -> jaxexp.Exported:
    return jaxexp.export(jax.jit(lambda x: x @ jnp.asarray(W["w"])), weights=W)(np.ones((1, 64), np.float32))


@pytest.fixture
def small_files() -> Iterator[None]:
    """While files may have no more than some bytes. The error is another one than on a full disk, at the same place."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def archived(function: jaxexp.Exported, path: Path) -> None:
    with jaxexp.Archive.create(path) as archive:
        archive.add("f", function)


# Each with the name of the file that cannot be written.
WRITERS: dict[str, tuple[Callable[[jaxexp.Exported, Path], Any], str]] = {
    "save": (lambda function, path: function.unbound.save(path), "f.jaxexp"),
    "save with weights": (lambda function, path: function.save(path), "f.safetensors"),
    "Archive.create": (archived, "f.jaxexp"),
    "precompile": (lambda function, path: function.precompile(into=path), "f.jaxexp"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_space(writer: str, weighted: jaxexp.Exported, tmp_path: Path, small_files: None) -> None:
    write, named = WRITERS[writer]
    with pytest.raises(OSError) as caught:
        write(weighted, tmp_path / "f.jaxexp")
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / named))
    assert not list(tmp_path.iterdir())


def test_no_space_behind_an_archive(weighted: jaxexp.Exported, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = tmp_path / "f.zip"
    archived(weighted.unbound, path)
    before = path.read_bytes()
    request.getfixturevalue("small_files")
    with pytest.raises(OSError) as caught, jaxexp.Archive.append(path) as archive:
        archive.add("g", weighted)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("writer", ["save", "save with weights", "Archive.create"])
def test_a_folder_that_is_read_only(
    writer: str, weighted: jaxexp.Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Any, *_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    write, named = WRITERS[writer]
    monkeypatch.setattr(files, "Written", refused)
    monkeypatch.setattr(os, "unlink", refused)  # as such a file system refuses also what is not there
    with pytest.raises(OSError) as caught:
        write(weighted, tmp_path / "f.jaxexp")
    assert (caught.value.errno, caught.value.filename) == (errno.EROFS, str(tmp_path / named))
