"""Weights in archives: each tensor once, mapped where it is, fetched when it is used, and never lost."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from numpy.testing import assert_array_equal

import jaxexp
from jaxexp import Archive, _native
from jaxexp._errors import DeserializationError, ExportError, WeightsError
from jaxexp._fleet.archive import writer as weights_writer
from kit import hostile_archives
from kit.archive_files import make
from kit.archives import blob
from kit.flips import flip, flipped
from kit.weighted import X, apply, bound, close, closed, params, squared

SIZE = sum(array.nbytes for array in jax.tree.leaves(params()))


@pytest.fixture
def tuned() -> dict[str, Any]:
    """Shares all but the head with `params()`."""
    return {**params(), "head": params(seed=1)["head"]}


@pytest.fixture
def path(tmp_path: Path, tuned: dict[str, Any]) -> Path:
    """One model with a VJP, once more from files, and a tuned one."""
    model, _ = bound()
    model.save(tmp_path / "model.jaxexp")
    with Archive.create(tmp_path / "fleet.zip") as archive:
        archive.add("model", model, vjp_order=1)
        archive.add_file("again/saved", tmp_path / "model.jaxexp", metadata={"step": 3})
        archive.add("tuned", model.with_weights(tuned), vjp_order=1)
    return tmp_path / "fleet.zip"


def stored(path: Path) -> int:
    with zipfile.ZipFile(path) as file:
        names = [name for name in file.namelist() if name.startswith(".jaxexp/weights/")]
        return sum(sum(a.nbytes for a in safetensors.numpy.load(file.read(name)).values()) for name in names)


def test_each_tensor_is_stored_once(path: Path, tuned: dict[str, Any]) -> None:
    assert stored(path) == SIZE + tuned["head"].nbytes
    with Archive.open(path) as archive:
        assert archive.weight_bytes == stored(path)
        assert archive.verify() == {}
        for name, handle in archive.items():
            model = handle.load()
            assert isinstance(model, jaxexp.BoundExported)
            close(model.call(X), apply(tuned if name == "tuned" else params(), X))
            model.weights.check_digests()  # type: ignore[attr-defined]
            assert [weight.name for weight in handle.inspect().weights] == list(model.weights)
        assert archive["again/saved"].load().metadata == {"step": 3}
        close(jax.grad(squared(archive["tuned"].load().call))(X), jax.grad(squared(closed(tuned)))(X))
        assert [type(f) for f in archive.load_all()] == [jaxexp.BoundExported] * 3
        assert archive["model"].load() is archive["model"].load()
    assert pickle.loads(pickle.dumps(Archive.open(path)["model"])).load() == Archive.open(path)["model"].load()


def test_other_tools(path: Path) -> None:
    """`unzip` finds files of tensors, and jax.export reads the program."""
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        program = jax.export.deserialize(bytearray(file.read("model")))
        tensors = safetensors.numpy.load(file.read(".jaxexp/weights/000000.safetensors"))
    weights = {w.name: tensors[w.digest] for w in Archive.open(path)["model"].inspect().weights}
    close(program.call(weights, X), apply(params(), X))


def test_they_are_mapped_where_they_are(path: Path) -> None:
    model, other = Archive.open(path)["model"].load(), Archive.open(path)["tuned"].load()
    addresses = [model.weights["layers/0/w"].unsafe_buffer_pointer()]
    addresses.append(other.weights["layers/0/w"].unsafe_buffer_pointer())
    maps = Path("/proc/self/maps").read_text().splitlines()
    for address in addresses:
        (line,) = [m for m in maps if int(m.split("-")[0], 16) <= address < int(m.split("-")[1].split()[0], 16)]
        assert line.endswith("fleet.zip")


def test_an_archive_that_grows_and_shrinks(path: Path, tuned: dict[str, Any]) -> None:
    old = Archive.open(path)
    loaded = old["model"].load()
    with Archive.append(path) as writer:
        writer.add("from the archive", loaded)
        writer.add("larger", bound(4)[0])
        writer.remove("tuned")
    layer = params(4)["layers"][3]
    assert stored(path) == SIZE + tuned["head"].nbytes + sum(
        a.nbytes for a in (layer["w"], layer["b"], params(4)["head"])
    )
    Archive.compact(path)
    new = Archive.open(path)
    assert new.verify() == {}
    assert stored(path) == SIZE + sum(a.nbytes for a in (layer["w"], layer["b"], params(4)["head"]))
    close(new["from the archive"].load().call(X), apply(params(), X))
    close(new["larger"].load().call(X), apply(params(4), X))
    close(loaded.call(X), apply(params(), X))  # of the file that is gone
    replaced = Archive.open(path)
    make(path, {"model": bound(1)[0]})
    with pytest.raises(DeserializationError, match="expected the file as it was when it was opened, found another one"):
        replaced["model"].load()


def test_nothing_is_read_before_it_is_needed(path: Path) -> None:
    class File(io.FileIO):
        ranges: list[tuple[int, int]] = []  # noqa: RUF012

        def read(self, size: int = -1) -> bytes:
            self.ranges.append((self.tell(), size))
            return super().read(size)

    at = path.read_bytes().index(np.asarray(params()["layers"][0]["w"]).tobytes())
    head = path.read_bytes().index(np.asarray(params()["head"]).tobytes())
    with File(path) as file:
        archive = Archive.open(file)
        file.ranges.clear()  # of the first bytes, and the index
        model = archive["model"].load()
        assert not any(start <= p < start + size for start, size in file.ranges for p in (at, head))
        model.weights["head"]
        assert (head, params()["head"].nbytes) in file.ranges
        assert not any(start <= at < start + size for start, size in file.ranges)
        close(model.call(X), apply(params(), X))


def test_programs_whose_weights_are_elsewhere(tmp_path: Path) -> None:
    model, _ = bound()
    model.save(tmp_path / "model.jaxexp")
    programs = {"program": (tmp_path / "model.jaxexp").read_bytes(), "unbound": model.unbound}
    for handle in Archive.open(make(tmp_path / "x.zip", programs)).values():
        program = handle.load()
        assert type(program) is jaxexp.Exported
        assert handle.stored_weights() is None
        close(program.bind(tmp_path / "model.safetensors").call(X), apply(params(), X))


def test_equal_bytes_of_other_types(tmp_path: Path) -> None:
    """One tensor is a weight of several types: it has no type in the archive, only bytes."""
    given = {"a": jnp.zeros((8, 8)), "b": jnp.zeros(64, jnp.int32), "c": jnp.zeros((4, 16), jnp.uint32)}
    exported = jaxexp.export(jax.jit(lambda x: {"x": x, **given}), weights=given)(1.0)
    assert stored(make(tmp_path / "x.zip", {"f": exported})) == 256
    result = Archive.open(tmp_path / "x.zip")["f"].load().call(1.0)
    assert all((result[name].shape, result[name].dtype) == (w.shape, w.dtype) for name, w in given.items())
    unpacked: Any = Archive.open(tmp_path / "x.zip")["f"].stored_weights()
    assert {source.name: (source.dtype, source.shape) for source in unpacked.sources()} == {
        "a": ("F32", (8, 8)), "b": ("I32", (64,)), "c": ("U32", (4, 16)),
    }  # fmt: skip


def test_missing_and_damaged_files_are_not_packed(tmp_path: Path) -> None:
    model, _ = bound()
    model.save(tmp_path / "model.jaxexp")
    tensors = tmp_path / "model.safetensors"
    whole = tensors.read_bytes()
    for damaged, message in (
        (whole[:-1] + bytes([whole[-1] ^ 1]), "tensor .* expected bytes with the digest"),
        (whole[:-4], "expected 14,"),
        (None, "expected a file that 'model.jaxexp' names, found none"),
    ):
        if damaged is None:
            tensors.unlink()
        else:
            tensors.write_bytes(damaged)
        with pytest.raises(WeightsError, match=message), Archive.create(tmp_path / "x.zip") as archive:
            archive.add_file("model", tmp_path / "model.jaxexp")
        assert not (tmp_path / "x.zip").exists()


def test_forged_digests_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_writer._native, "Digester", _SameDigest)
    with Archive.create(tmp_path / "x.zip") as archive:
        archive.add("one", _of(jnp.ones(4)))
        archive.add("same", _of(jnp.ones(4)))
        with pytest.raises(ExportError, match="'w' has the same digest as another tensor in the archive"):
            archive.add("other", _of(jnp.zeros(4)))


class _SameDigest:
    def update(self, part: Any) -> None: ...

    def digest(self) -> bytes:
        return bytes(16)


def _of(w: jax.Array) -> jaxexp.Exported:
    return jaxexp.export(jax.jit(lambda x: x + w), weights={"w": w})(1.0)


def test_damage_is_found(path: Path) -> None:
    data = path.read_bytes()
    with zipfile.ZipFile(path) as file:
        (info, *_) = [i for i in file.infolist() if i.filename.startswith(".jaxexp/weights/")]
    end = info.header_offset + 200 + info.file_size
    for at in [*range(info.header_offset, info.header_offset + 700, 29), *range(info.header_offset + 700, end, 2003)]:
        path.write_bytes(flipped(data, at))
        try:
            with Archive.open(path) as archive:
                found: Any = archive.verify()
        except DeserializationError as error:
            found = error
        assert found, f"byte {at - info.header_offset} of the file of weights"


def test_which_members_are_damaged(path: Path) -> None:
    flip(path, np.asarray(params()["head"]).tobytes(), 5)  # which the tuned one has not
    with Archive.open(path) as archive:
        errors = archive.verify()
        assert list(errors) == ["again/saved", "model"]
        assert "fleet.zip::model': tensor 'head': expected bytes with the digest" in str(errors["model"])
        assert archive.glob("tuned").verify() == {}
        assert list(archive.glob("m*").verify()) == ["model"]
        with pytest.raises(WeightsError, match="tensor 'head'"):
            archive["model"].load(verify=True)


def test_hostile_places_are_refused(tmp_path: Path) -> None:
    header = len(_native.zip_local_header(_native.archive_weights_name(0), 64, 0, 0))
    for place, message in (
        (lambda body: (body.position + 1, 64, 0, header), "bytes in front of the index, at a multiple of 64"),
        (lambda body: (1 << 40, 64, 0, header), "bytes in front of the index, at a multiple of 64"),
        (lambda body: (body.position, (1 << 64) - 1, 0, header), "bytes in front of the index, at a multiple of 64"),
        (lambda body: (body.position, 64, 0, 60_000), "a ZIP header in front of the bytes"),
        (lambda body: (body.position, 64, 0, 1), "a ZIP header in front of the bytes"),
        (lambda body: (body.position, 64, 0, header), "bytes of its own, found bytes that also belong to 'a'"),
    ):
        data = hostile_archives.archive(
            {"a": blob()},
            lambda bodies: iter([("a", bodies["a"].member())]),
            lambda records, bodies, place=place: records.add_weights(*place(bodies["a"]), []),
        )
        (tmp_path / "x.zip").write_bytes(data)
        with pytest.raises(DeserializationError, match=message), Archive.open(tmp_path / "x.zip") as opened:
            opened.verify()


def test_members_of_the_same_bytes_share_their_weights(tmp_path: Path) -> None:
    """Many names for one artifact cost no more than one, and all of them are named when a weight is damaged."""
    model, given = bound()
    path = make(tmp_path / "fleet.zip", dict.fromkeys("abc", model))
    with Archive.open(path) as archive:
        first, *others = archive.load_all()
        assert all(other.weights is first.weights for other in others)
        assert_array_equal(others[0].call(X), model.call(X))
    flip(path, np.asarray(given["head"]).tobytes())
    found = Archive.open(path).verify()
    assert [str(error.file).rpartition("::")[2] for error in found.values()] == list(found) == ["a", "b", "c"]


def test_an_archive_that_was_opened_by_a_relative_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    archive = Archive.open(path.name)
    monkeypatch.chdir("/")
    assert archive["model"].load().call(X) is not None


def test_another_file_of_the_same_size_and_times(tmp_path: Path) -> None:
    """Written over the one that was added before, as `cp -p` does it."""
    model, _ = bound()
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        model.with_weights(params(seed=seed)).save(tmp_path / str(seed) / "m.jaxexp")
    (tmp_path / "here").mkdir()
    with Archive.create(tmp_path / "f.zip") as archive:
        for seed in (0, 1):
            for file in (tmp_path / str(seed)).iterdir():
                with open(tmp_path / "here" / file.name, "r+b" if seed else "wb") as target:
                    target.write(file.read_bytes())
                os.utime(tmp_path / "here" / file.name, ns=(10**18, 10**18))
            archive.add_file(str(seed), tmp_path / "here" / "m.jaxexp")
    with Archive.open(tmp_path / "f.zip") as archive:
        assert archive.verify() == {}
        for seed in (0, 1):
            close(archive[str(seed)].load().call(X), apply(params(seed=seed), X))
