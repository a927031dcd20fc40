"""Functions and their weights in files: saved together, found again, and refused when they do not belong together."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.flax
import safetensors.numpy

import jaxexp
from jaxexp import _native
from jaxexp._errors import DeserializationError, ExportError, WeightsError
from jaxexp._kernel.codec import binding
from jaxexp.errors import PolicyError
from kit.each import each
from kit.flips import flip
from kit.weighted import X, apply, bound, close, closed, params, squared


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    bound()[0].save(tmp_path / "model.jaxexp", vjp_order=1)
    return tmp_path / "model.jaxexp"


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def works(model: Any, given: Any = None) -> None:
    given = params() if given is None else given
    close(model.call(X), apply(given, X))
    close(jax.grad(squared(model.call))(X), jax.grad(squared(closed(given)))(X))


def test_a_round_trip(saved: Path) -> None:
    assert names(saved.parent) == ["model.jaxexp", "model.safetensors"]
    loaded = jaxexp.load(saved)
    assert isinstance(loaded, jaxexp.BoundExported)
    works(loaded)
    assert loaded == jaxexp.load(saved)
    assert loaded.unbound == jaxexp.deserialize(saved.read_bytes())
    assert loaded.metadata == {}


def test_other_tools_read_both(saved: Path) -> None:
    program = jax.export.deserialize(bytearray(saved.read_bytes()))
    weights = safetensors.flax.load_file(saved.with_suffix(".safetensors"))
    close(program.call(weights, X), apply(params(), X))
    close(jax.grad(lambda x: squared(program.call)(weights, x))(X), jax.grad(squared(closed(params())))(X))


def test_from_another_folder(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved.parent)
    loaded = jaxexp.load(saved.name)
    jaxexp.load(saved.name).save("again.jaxexp", vjp_order=1)
    assert names(saved.parent) == ["again.jaxexp", "again.safetensors", "model.jaxexp", "model.safetensors"]
    monkeypatch.chdir("/")
    works(loaded)
    works(jaxexp.load(saved.with_name("again.jaxexp")))


def test_on_a_cpu_weights_are_the_mapped_file(saved: Path) -> None:
    w = jaxexp.load(saved).weights["layers/0/w"]
    address = w.unsafe_buffer_pointer()
    maps = Path("/proc/self/maps").read_text().splitlines()
    (line,) = [m for m in maps if int(m.split("-")[0], 16) <= address < int(m.split("-")[1].split()[0], 16)]
    assert line.endswith("model.safetensors")


def test_saved_again_where_they_are(saved: Path) -> None:
    before = saved.with_suffix(".safetensors").stat().st_ino
    loaded = jaxexp.load(saved)
    loaded.save(saved, vjp_order=1, metadata={"note": 1})
    assert saved.with_suffix(".safetensors").stat().st_ino == before
    assert jaxexp.load(saved).metadata == {"note": 1}
    works(jaxexp.load(saved))
    loaded.save(saved.with_name("other.jaxexp"), vjp_order=1)
    loaded.save(saved.with_name("third.jaxexp"), vjp_order=1, weights="model.safetensors")
    assert saved.with_suffix(".safetensors").stat().st_ino == before
    assert names(saved.parent) == [
        "model.jaxexp", "model.safetensors", "other.jaxexp", "other.safetensors", "third.jaxexp",
    ]  # fmt: skip
    for name in ("other", "third"):
        works(jaxexp.load(saved.with_name(f"{name}.jaxexp")))
    (saved.parent / "there").mkdir()
    loaded.save(saved.parent / "there" / "x.jaxexp", vjp_order=1, weights="arrays.safetensors")
    assert names(saved.parent / "there") == ["arrays.safetensors", "x.jaxexp"]
    works(jaxexp.load(saved.parent / "there" / "x.jaxexp"))


def test_tuned_weights(saved: Path) -> None:
    tuned = params(seed=5)
    model = jaxexp.load(saved).with_weights(tuned)
    model.save(saved.with_name("tuned.jaxexp"), vjp_order=1)
    works(jaxexp.load(saved.with_name("tuned.jaxexp")), tuned)
    works(jaxexp.load(saved))
    works(jaxexp.load(saved).with_weights(saved.with_name("tuned.safetensors")), tuned)
    model.save(saved, vjp_order=1)  # in the place of what it was loaded from
    works(jaxexp.load(saved), tuned)
    assert names(saved.parent) == ["model.jaxexp", "model.safetensors", "tuned.jaxexp", "tuned.safetensors"]


def test_several_files(tmp_path: Path) -> None:
    exported, given = bound()
    exported.save(tmp_path / "x.jaxexp", vjp_order=1, max_weights_file_size=5000)
    found = names(tmp_path)
    assert found[:2] == ["x-00001-of-00004.safetensors", "x-00002-of-00004.safetensors"]
    assert found[-1] == "x.safetensors.index.json"
    works(jaxexp.load(tmp_path / "x.jaxexp"), given)
    works(exported.unbound.bind(tmp_path / "x.safetensors.index.json"), given)
    (tmp_path / found[0]).unlink()
    with pytest.raises(WeightsError, match=r"x-00001-of-00004.safetensors.*expected a file that 'x.jaxexp' names"):
        jaxexp.load(tmp_path / "x.jaxexp").call(X)


def test_options_that_cannot_be(tmp_path: Path) -> None:
    no_name = r"has to be the name of a \.safetensors file in the folder of the program"
    for options, said in (
        ({"trailer": False}, "the trailer says where its weights are"),
        ({"max_weights_file_size": 0}, "has to be positive"),
        *(
            ({"max_weights_file_size": wrong}, f"takes a number of bytes, an int, not {wrong!r}")
            for wrong in ("5GB", 5e9, True, b"5")
        ),
        *(({"weights": name}, no_name) for name in ("a:b.safetensors", "a\nb.safetensors", "\ud800.safetensors")),
        *(({"weights": name}, no_name) for name in ("../a.safetensors", "a.bin")),
    ):
        with pytest.raises(ExportError, match=said):
            bound()[0].save(tmp_path / "x.jaxexp", **options)
    for more in ({}, {"weights": "x.safetensors"}):
        with pytest.raises(ExportError, match=r"would be the file of the weights, too: .* such as 'x\.jaxexp'"):
            bound()[0].save(tmp_path / "x.safetensors", **more)
    assert names(tmp_path) == []


def test_a_checkpoint_of_another_program_stays(tmp_path: Path) -> None:
    """Weights that came from a file under other names and dtypes would take its place."""
    exported = bound()[0]
    hub = tmp_path / "hub.safetensors"
    arrays = {name: np.asarray(array, np.float16) for name, array in exported.weights.items()}
    safetensors.numpy.save_file({f"model.{name}": array for name, array in arrays.items()}, hub)
    before = hub.read_bytes()
    tuned = exported.with_weights(hub, rename="model.{}".format, cast=True)
    with pytest.raises(ExportError, match=r"hub\.safetensors' to be missing.* name another file with weights="):
        tuned.save(tmp_path / "hub.jaxexp")
    assert names(tmp_path) == ["hub.safetensors"] and hub.read_bytes() == before
    tuned.save(tmp_path / "hub.jaxexp", weights="tuned.safetensors")
    assert hub.read_bytes() == before
    jaxexp.load(tmp_path / "hub.jaxexp").save(tmp_path / "hub.jaxexp", weights="tuned.safetensors")


def replaced(path: Path) -> None:
    bound()[0].with_weights(params(seed=1)).save(path.with_name("y.jaxexp"))
    path.with_name("y.safetensors").replace(path)


def a_link_outside(path: Path) -> None:
    outside = path.parent.parent / "outside.safetensors"
    path.rename(outside)
    path.symlink_to(outside)


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (
        Path.unlink,
        "expected a file that 'model.jaxexp' names, found none of this name: copy it beside 'model.jaxexp', too",
    ),
    (lambda path: os.truncate(path, path.stat().st_size - 1), r"expected [\d,]+ bytes, as its header says, found"),
    (lambda path: os.truncate(path, 7), "which begins with the length of its header, found 7 bytes"),
    (lambda path: path.write_bytes(b""), "expected a safetensors file, found an empty file"),
    (replaced, r"expected the file that 'model.jaxexp' was saved with \([\d,]+ bytes, content [0-9a-f]{32}\)"),
    (
        lambda path: safetensors.flax.save_file({"head": jnp.ones((32, 8))}, path),
        "found another one .* To use other weights, pass them to with_weights",
    ),
    (lambda path: (path.unlink(), path.mkdir()), "expected a regular file, found something else|Is a directory"),
    (lambda path: (path.unlink(), os.mkfifo(path)), "expected a regular file, found something else"),
    (a_link_outside, "expected 'model.safetensors' in the folder .*, found a link to"),
]


@each("damage, message", DAMAGE)
def test_one_clear_error(tmp_path: Path, damage: Any, message: str) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    bound()[0].save(folder / "model.jaxexp", vjp_order=1)
    weights = folder / "model.safetensors"
    damage(weights)
    loaded = jaxexp.load(folder / "model.jaxexp")
    for use in (lambda: loaded.call(X), lambda: loaded.weights["head"], lambda: jax.jit(loaded.call)(X)):
        with pytest.raises(WeightsError, match=message) as error:
            use()
        assert str(weights) in str(error.value)
    with pytest.raises(WeightsError, match=message):
        jaxexp.load(folder / "model.jaxexp", verify=True)


def test_damage_is_found_where_it_is_looked_for(saved: Path) -> None:
    flip(saved.with_suffix(".safetensors"), -100)
    jaxexp.load(saved).call(X)  # not at each load
    with pytest.raises(WeightsError, match=r"tensor 'layers/2/w': expected bytes with the digest"):
        jaxexp.load(saved, verify=True)
    with pytest.raises(WeightsError, match="expected bytes with the digest"):
        jaxexp.load(saved).weights.check_digests()


def with_table(saved: Path, change: Callable[[Any, Any], Any]) -> None:
    """Whoever wrote a program chose the table of files and tensors in its trailer."""
    artifact = jaxexp.deserialize(saved.read_bytes())
    files, tensors, _ = artifact.__dict__["_artifact"].weights()
    binding.bind()
    notes = _native.Notes("hostile", {}, (*change(files, tensors), []))
    saved.write_bytes(bytes(_native.encode([artifact], jax.__version__, _native.Form(), notes)))


def test_names_that_lead_elsewhere(saved: Path) -> None:
    for stem in ("../x", "/etc/x", "a/x", "a\\x", "C:x", "..", "", "x"):
        name = f"{stem}.safetensors" if len(stem) > 2 else stem
        with_table(saved, lambda files, tensors, name=name: ([(name, *file[1:]) for file in files], tensors))
        with pytest.raises(WeightsError, match=r"expected the name of a \.safetensors file in the same folder"):
            jaxexp.load(saved).call(X)


def test_tables_that_do_not_fit(saved: Path) -> None:
    """Or say less than a file has, so that a policy allows it: sizes are what the signature says."""
    whole = saved.read_bytes()
    for change in (lambda t: t[::-1], lambda t: t[:-1], lambda t: [("x", *t[0][1:]), *t[1:]]):
        saved.write_bytes(whole)
        with_table(saved, lambda files, tensors, change=change: (files, change(tensors)))
        said = r"trailer.weights.tensors: expected the names in the dict"
        with pytest.raises(DeserializationError, match=said) as error:
            jaxexp.load(saved)
        assert error.value.file == str(saved)
    saved.write_bytes(whole)
    with_table(saved, lambda files, tensors: (files, [(name, file, 0, digest) for name, file, _, digest in tensors]))
    with pytest.raises(WeightsError, match="expected a tensor of 0 bytes, found F32"):
        jaxexp.load(saved, policy=jaxexp.Policy(max_weight_bytes=0)).call(X)


def test_many(saved: Path) -> None:
    broken = saved.with_name("broken.jaxexp")
    broken.write_bytes(saved.read_bytes().replace(b"model.safetensors", b"other.safetensors")[:-1])
    paths = [saved, saved, broken]
    loaded = jaxexp.load_many([*paths, saved.read_bytes()], on_error="return")
    assert [type(f).__name__ for f in loaded[:2]] == ["BoundExported"] * 2
    assert isinstance(loaded[2], DeserializationError)
    assert type(loaded[3]) is jaxexp.Exported
    for model in loaded[:2]:
        works(model)
    works(jaxexp.load_many([saved], policy=jaxexp.Policy())[0])
    with pytest.raises(DeserializationError) as error:
        jaxexp.load_many([saved, broken, saved, saved])
    assert error.value.file == str(broken)


def test_a_policy_limits_weights(saved: Path) -> None:
    enough = jaxexp.Policy(max_weights=7, max_weight_bytes=20_000)
    works(jaxexp.load(saved, policy=enough))
    with pytest.raises(PolicyError, match=r"has 7 weights. At most 6 are allowed.*Policy\(max_weights=7\)"):
        jaxexp.load(saved, policy=jaxexp.Policy(max_weights=6))
    with pytest.raises(PolicyError, match=r"has 13,696 bytes of weights. At most 1,000"):
        jaxexp.load_many([saved], policy=jaxexp.Policy(max_weight_bytes=1000))


STEMS = {
    "a:b": "a_b",
    "model\xa0v2": "model_v2",
    "\u0645\u062f\u0644\u200c\u0647\u0627": "\u0645\u062f\u0644_\u0647\u0627",  # Persian
    "a\nb": "a_b",
    os.fsdecode(b"m\xff"): "m_",
    "mod\u00e8le:2": "mod\u00e8le:2",
}


@each("stem, beside", STEMS.items())
def test_names_that_an_artifact_may_not_contain(stem: str, beside: str, tmp_path: Path) -> None:
    """Files beside a program are named like it, as far as a name may stand in a file that others read."""
    path = tmp_path / f"{stem}.jaxexp"
    bound()[0].save(path, vjp_order=1)
    assert f"{beside}.safetensors" in names(tmp_path)
    close(jaxexp.load(path).call(X), apply(params(), X))
    large = np.ones((200, 200), np.float32)
    other = tmp_path / f"{stem}2.jaxexp"
    jaxexp.export(jax.jit(jnp.sin))(large).save(other, cases=[(large,)])
    assert f"{beside}2.cases.safetensors" in names(tmp_path)
    assert jaxexp.check(other).ok
    jaxexp.verify(other)
