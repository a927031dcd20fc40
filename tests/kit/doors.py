"""Doors that take an artifact, and all ways to give them one, whole or damaged, alone or with files beside it."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxexp
from jaxexp import Archive
from kit.served import serving

X = np.linspace(0, 1, 16384, dtype=np.float32).reshape(128, 128)
W = {"w": X + 1}


def loaded(given: Any, **options: Any) -> list[Any]:
    function = jaxexp.load(given, **options)
    return [function, dict(function.metadata), function.mlir_module(), function.vjp().mlir_module()]


DOORS: dict[str, Callable[[Any], Any]] = {
    "load": loaded,
    "load, verified": partial(loaded, verify=True),
    "load with a policy": partial(loaded, policy=jaxexp.Policy()),
    "verify": jaxexp.verify,
    "inspect": partial(jaxexp.inspect, check_modules=True),
    "check": lambda given: jaxexp.check(given).verdict,
    "compatibility": jaxexp.compatibility,
    "migrate": jaxexp.migrate,
    "digests": jaxexp.digests,
}


class Pipe(io.RawIOBase):
    """Gives a few bytes at a time, and cannot go back."""

    def __init__(self, data: bytes) -> None:
        self._left = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._left.readinto(memoryview(buffer)[:100])


class Somewhere(os.PathLike):
    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


def mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


PATHS: dict[str, Callable[[Path], Any]] = {"path": Path, "str": str, "PurePath": PurePath, "PathLike": Somewhere}
FILES = {"open file": lambda path: path.open("rb"), "raw file": lambda path: path.open("rb", buffering=0)}
BUFFERS: dict[str, Callable[[Path], Any]] = {
    "bytes": Path.read_bytes,
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "memoryview": lambda path: memoryview(path.read_bytes()),
    "mmap": mapped,
    "array": lambda path: np.fromfile(path, np.uint8),
    "file in memory": lambda path: io.BytesIO(path.read_bytes()),
    "pipe": lambda path: Pipe(path.read_bytes()),
}
Taken = tuple[str, str, Callable[[], Any], str | None]


def sources(folder: Path, url: str) -> Iterator[Taken]:
    """All ways to f.jaxexp and to its copy in all.zip: where it is, the way's name, the way, what errors call it."""
    here, zipped, behind = folder / "f.jaxexp", f"{folder}/all.zip::in/f", f"{url}/all.zip::in/f"
    yield from (("path", name, partial(make, here), str(here)) for name, make in PATHS.items())
    yield from (("buffer", name, partial(make, here), None) for name, make in BUFFERS.items())
    yield from (("buffer", name, partial(make, here), str(here)) for name, make in FILES.items())
    yield "URL", "URL", lambda: f"{url}/f.jaxexp", f"{url}/f.jaxexp"
    yield "URL", "URL of a file", here.as_uri, here.as_uri()
    for where, member in (("here", zipped), ("behind a URL", behind)):
        path, _, name = member.partition("::")
        yield "archive", f"member {where}", lambda member=member: member, member
        yield "archive", f"handle {where}", lambda path=path, name=name: Archive.open(path)[name], member
    yield "archive", "path of a member", lambda: Path(zipped), zipped


class World:
    """Folders on this machine that are behind a URL, too."""

    def __init__(self, root: Path, server: Any) -> None:
        self.root, self.server, self.url = root, server, server.url.rpartition("/")[0]

    def put(self, state: str, function: Any, **saved: Any) -> Path:
        folder = self.root / state
        folder.mkdir()
        function.save(folder / "f.jaxexp", **saved)
        with Archive.create(folder / "all.zip") as archive:
            archive.add_file("in/f", folder / "f.jaxexp")
        return self.publish(folder)

    def changed(self, state: str, of: str, change: Callable[[bytes], bytes | None], *names: str) -> None:
        """The same with other content of these files; with None, without the file."""
        shutil.copytree(self.root / of, self.root / state)
        for path in (self.root / state / name for name in names):
            if (content := change(path.read_bytes())) is None:
                path.unlink()
            else:
                path.write_bytes(content)
        self.publish(self.root / state)

    def publish(self, folder: Path) -> Path:
        self.server.others |= {f"/{folder.name}/{path.name}": path.read_bytes() for path in folder.iterdir()}
        return folder

    def sources(self, state: str) -> Iterator[Taken]:
        return sources(self.root / state, f"{self.url}/{state}")


def flipped(part: bytes, data: bytes) -> bytes:
    at = data.index(part) + len(part) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


WRONG: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:-9],
    "empty": lambda data: b"",
    "page": lambda data: b"\n<!DOCTYPE html><html><title>Log in</title></html>",
    "pointer": lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
}
SAID = {
    "page": "an HTML page, as servers send it in place of a file",
    "pointer": "a pointer of Git LFS: 'git lfs pull'",
}


@contextlib.contextmanager
def world_in(root: Path) -> Iterator[World]:
    def sine(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    small, large = jaxexp.export(jax.jit(sine))(X[0, :3]), jaxexp.export(jax.jit(sine))(X)
    model = jaxexp.export(jax.jit(lambda w, x: jnp.sin(x @ w["w"])))(W, X).bind(W)
    with serving(b"") as server:
        world = World(root, server)
        world.put("good", small, vjp_order=1, cases=[(X[0, :3],)], metadata={"run": 7})
        world.put("with_cases", large, cases=[(X,)])
        jaxexp.load(world.put("with_weights", model) / "f.jaxexp").precompile(into=world.root / "f.exe")
        module = partial(flipped, bytes(small.mlir_module_serialized))
        world.changed("damaged", "good", module, "f.jaxexp", "all.zip")
        for state, change in WRONG.items():
            world.changed(state, "good", change, "f.jaxexp", "all.zip")
        for name, beside, array in (("weights", "f.safetensors", W["w"]), ("cases", "f.cases.safetensors", X)):
            world.changed(f"damaged_{name}", f"with_{name}", partial(flipped, array.tobytes()), beside, "all.zip")
            world.changed(f"missing_{name}", f"with_{name}", lambda _: None, beside)
        yield world


@contextlib.contextmanager
def given(make: Callable[[], Any]) -> Iterator[Any]:
    """What a way leads to; a file is closed afterwards."""
    with contextlib.ExitStack() as files:
        found = make()
        yield files.enter_context(found) if isinstance(found, io.IOBase) else found


def outcome(read: Callable[[Any], Any], make: Callable[[], Any]) -> Any:
    """What a door returns or raises."""
    try:
        with given(make) as artifact:
            return read(artifact)
    except Exception as error:
        return error
