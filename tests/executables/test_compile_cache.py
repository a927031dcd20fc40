"""`compile_cache`: what one process compiled, others use; whatever happens to the folder, results are right."""

from __future__ import annotations

import collections
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxexp
from jaxexp import _native
from jaxexp._executables import conditions
from jaxexp._kernel.io import compile_cache
from jaxexp.errors import ExportError
from kit.archive_files import make
from kit.corpus import mesh, touch
from kit.saved import saved
from kit.steps import counted

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
ANY = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("n, 8"), np.float32)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "cache"
    jax.clear_caches()
    jaxexp.compile_cache(folder)
    yield folder
    jaxexp.compile_cache(None)
    jax.clear_caches()


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.exe"))


def in_another_process(call: Callable[[], Any]) -> tuple[Any, collections.Counter[str]]:
    """What a call returns in a process that has compiled nothing, and what JAX does for it."""
    jax.clear_caches()
    with counted() as steps:
        return call(), steps


def calls_of(path: Path) -> Callable[[], tuple[Any, collections.Counter[str]]]:
    """Calls the function of a file in another process."""
    return lambda: in_another_process(lambda: jaxexp.load(path).call(X))


@pytest.mark.jax
def test_the_second_process_traces_and_compiles_nothing(cache: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, lambda x, *, scale: {"y": jnp.sin(x) * scale, "z": (x.sum(),)}, X, scale=np.float32(2))

    def call() -> tuple[Any, collections.Counter[str]]:
        return in_another_process(lambda: jaxexp.load(path).call(X, scale=np.float32(2)))

    first, steps = call()
    assert steps["compiled"] == 1
    assert len(entries(cache)) == 1
    assert {entry.suffix for entry in cache.iterdir()} == {".exe"}, "no lock is left"
    second, steps = call()
    assert not steps
    jax.tree.map(np.testing.assert_array_equal, first, second)
    with counted() as steps:
        jaxexp.load(path).call(X, scale=np.float32(2))
    assert not steps, "equal functions share what was found"
    jaxexp.compile_cache(None)
    plain, steps = call()
    assert steps["compiled"] == 1
    assert jax.tree.structure(plain) == jax.tree.structure(second)
    for one, other in zip(jax.tree.leaves(second), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
        assert (one.aval, one.committed, one.sharding) == (other.aval, other.committed, other.sharding)
    assert {path.name for path in tmp_path.iterdir()} == {"f.jaxexp", "cache"}


def any_size(folder: Path) -> Callable[[], Any]:
    path = saved(folder, jnp.tanh, ANY)
    return lambda: [jaxexp.load(path).call(X[:n]) for n in (1, 2, 8)]


def gradients(folder: Path) -> Callable[[], Any]:
    """By one argument, and by both: three VJPs, beside the function."""
    path = saved(folder, lambda w, x: jnp.tanh(x @ w), X, X, vjp_order=1)

    def call() -> Any:
        model = jaxexp.load(path)
        return [jax.grad(lambda w, x: model.call(w, x).sum(), wrt)(X, X) for wrt in (0, 1, (0, 1))]

    return call


def with_weights(folder: Path) -> Callable[[], Any]:
    jaxexp.export(jax.jit(lambda w, x: x @ w["w"]))({"w": X}, X).bind({"w": X}).save(folder / "f.jaxexp")
    return lambda: jaxexp.load(folder / "f.jaxexp").call(X)


def sharded(folder: Path) -> Callable[[], Any]:
    sharding = NamedSharding(mesh((4, 2), ("a", "b")), PartitionSpec("a"))
    spec = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=sharding)
    path, placed = saved(folder, lambda x: (x @ x.T).sum(0), spec), jax.device_put(X, sharding)
    return lambda: jaxexp.load(path).call(placed)


# Calls, and how many entries they make.
KINDS: dict[str, tuple[Callable[[Path], Callable[[], Any]], int]] = {
    "each size": (any_size, 3),
    "gradients": (gradients, 4),
    "weights": (with_weights, 1),
    "4 x 2 devices": (sharded, 1),
}


@pytest.mark.jax
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_calls(kind: str, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make, count = KINDS[kind]
    call = make(tmp_path)
    first, _ = in_another_process(call)
    assert len(entries(cache)) == count
    with caplog.at_level(logging.INFO, "jaxexp.executables"):
        second, steps = in_another_process(call)
    assert len(entries(cache)) == count
    said = {record.message.partition(" from ")[0].partition(": ")[2] for record in caplog.records}
    assert said == {"uses code"}
    if kind != "gradients":  # which compute more than what the functions compute
        assert not steps
    jaxexp.compile_cache(None)
    for expected in (first, in_another_process(call)[0]):
        for one, other in zip(jax.tree.leaves(second), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
            assert one.sharding.is_equivalent_to(other.sharding, one.ndim)


@pytest.mark.jax
def test_other_settings_miss(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that changes between two calls."""
    call = calls_of(saved(tmp_path, jnp.sin, ANY))
    call()
    with monkeypatch.context() as patch:
        true = conditions.of_machine
        patch.setattr(conditions, "of_machine", lambda devices: {**true(devices), "jaxlib": "0.0.1"})
        assert call()[1]["compiled"] == 1
    assert len(entries(cache)) == 2
    old = getattr(jax.config, "jax_optimization_level", None)
    if old is not None:
        jax.config.update("jax_optimization_level", "O0")
        try:
            call()
        finally:
            jax.config.update("jax_optimization_level", old)
        assert len(entries(cache)) == 3


def test_damaged_entries_are_compiled_and_made_again(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one under another name: its conditions are compared, not only its name."""
    sin, cos = (calls_of(saved(tmp_path / f.__name__, f, X)) for f in (jnp.sin, jnp.cos))
    cos()
    (other,) = entries(cache)
    of_cos = other.read_bytes()
    other.unlink()
    sin()
    (entry,) = entries(cache)
    good = entry.read_bytes()
    head, kept, *_ = _native.read_executables(_native.FileBytes(entry))[0][0]
    places = (0, 70, len(good) - 200)
    bad: list[bytes | None] = [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in places]
    for content in (*bad, good[: len(good) // 2], of_cos, None):
        caplog.clear()
        jaxexp.compile_cache(cache)  # says everything again
        if content is None:  # which XLA does not load
            _native.ExecutableStore(cache, 1 << 30).put(head, kept, b"no code at all")
        else:
            entry.write_bytes(content)
        found, steps = sin()
        assert steps["compiled"] == 1
        np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)
        again = sum("which is made again" in message for message in caplog.messages)
        assert content in (None, of_cos) or again == 1
        assert entries(cache) == [entry]
        assert not sin()[1]


@pytest.mark.jax
def test_code_that_does_not_run_is_removed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = SimpleNamespace(unsafe_call=Mock(side_effect=jax.errors.JaxRuntimeError("no such symbol")))
    call = calls_of(saved(tmp_path, jnp.sin, X))
    call()
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, "jaxexp.executables"):
        patch.setattr("jaxexp._executables.executables.made_of", lambda *_: broken)
        found, steps = call()
    assert steps["compiled"] == 1
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)
    assert "is not used: it does not run: no such symbol" in caplog.text
    assert entries(cache) == [], "the next process makes it again"


# --- the folder -----------------------------------------------------------------------------------------------------


def test_a_store(tmp_path: Path) -> None:
    """The oldest entries go, the locks of dead processes, and after a day what else these left; one has its turn at a
    time."""
    one, other = (_native.ExecutableStore(tmp_path, 20_000) for _ in range(2))
    for i in range(10):
        assert one.put({"n": str(i)}, {}, bytes(5_000))
        assert (tmp_path / f"{hashlib.sha256(f'1:n1:{i}'.encode()).hexdigest()}.exe").exists(), "as its page says"
        os.utime(tmp_path / _native.store_name({"n": str(i)}), (i, i))
        assert one.find({"n": "0"}) is not None, "it was just used, so the others go first"
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 20_000
    assert [i for i in range(10) if one.find({"n": str(i)}) is not None] == [0, 8, 9]
    assert not one.put({"n": "large"}, {}, bytes(20_000))
    assert one.find({"n": "large"}) is None
    names = [".0123456789abcdef.tmp", f"{_native.store_name({})}.lock", "notes.txt"]
    held = other.turn({"n": "held"})
    for old in (False, True):
        for name in names:
            (tmp_path / name).touch()
            if old:
                os.utime(tmp_path / name, (0, 0))
        one.put({"n": str(old)}, {}, b"1")
        left = ["notes.txt"] if old else [names[0], "notes.txt"]
        assert [name for name in names if (tmp_path / name).exists()] == left
        assert [path.name for path in tmp_path.glob("*.lock")] == [f"{_native.store_name({'n': 'held'})}.lock"]
        assert one.turn({"n": "held"}) is None
    held.end()
    turn = one.turn({"n": "1"})
    assert other.turn({"n": "1"}) is None
    assert other.turn({"n": "2"}) is not None
    turn.end()
    assert other.turn({"n": "1"}) is not None


def test_who_waited_too_long_compiles(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = calls_of(saved(tmp_path, jnp.sin, X))
    call()
    (entry,) = entries(cache)
    (held,) = _native.read_executables(_native.FileBytes(entry))[0]
    entry.unlink()
    turn = _native.ExecutableStore(cache, 1 << 30).turn(held[0])
    monkeypatch.setattr(compile_cache, "PATIENCE", 0.2)
    start = time.monotonic()
    assert call()[1]["compiled"] == 1
    assert time.monotonic() - start >= 0.2
    turn.end()


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_folders(cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that vanishes, that is only read, or that every user may write to."""
    sin, cos = (calls_of(saved(tmp_path / f.__name__, f, X)) for f in (jnp.sin, jnp.cos))
    sin()
    for entry in entries(cache):
        entry.unlink()
    cache.rmdir()
    found, steps = sin()
    assert steps["compiled"] == 1
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)
    cache.mkdir()
    sin()
    if os.geteuid() != 0:  # who may write everywhere
        caplog.clear()
        cache.chmod(0o500)
        try:
            assert not sin()[1]
            cos(), cos()
            assert sum("cannot add" in message for message in caplog.messages) == 1
        finally:
            cache.chmod(0o700)
    cache.chmod(0o777)
    with pytest.raises(ExportError, match=r"every user of this machine may write to the folder .*chmod o-w"):
        jaxexp.compile_cache(cache)
    cache.chmod(0o755)
    jaxexp.compile_cache(cache)
    jaxexp.compile_cache(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o777 == 0o700


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for given, options, kind, message in (
        (tmp_path / "file", {}, OSError, "file"),
        ("https://cdn.example/code", {}, ExportError, "is a URL: mount it, or copy its files"),
        (tmp_path.as_uri(), {}, ExportError, "is a URL: mount it, or copy its files"),
        (tmp_path, {"max_bytes": 0}, ExportError, "max_bytes"),
        (3, {}, TypeError, "is a folder, not <class 'int'>"),
    ):
        with pytest.raises(kind, match=message):
            jaxexp.compile_cache(given, **options)  # type: ignore[arg-type]
    assert compile_cache.current() is None


def test_threads_compile_once(cache: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, lambda x: jnp.linalg.matrix_power(x, 5), X)
    jax.clear_caches()
    with counted() as steps, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: jaxexp.load(path).call(X), range(4)))
    assert steps["compiled"] == 1


def test_the_environment(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked once, for a process that chose nothing."""
    for value, folder in (
        (str(tmp_path / "named"), str(tmp_path / "named")),
        ("", None),
        ("https://cdn.example/", None),
    ):
        monkeypatch.setenv("JAXEXP_COMPILE_CACHE", value)
        monkeypatch.setattr(compile_cache, "_is_chosen", False)
        monkeypatch.setattr(compile_cache, "_current", None)
        found = compile_cache.current()
        assert (found.folder if found else None) == folder
        assert ("$JAXEXP_COMPILE_CACHE is not used: " in caplog.text) == value.startswith("http")
        monkeypatch.delenv("JAXEXP_COMPILE_CACHE")
        assert compile_cache.current() is found


# --- beside other settings ------------------------------------------------------------------------------------------


@pytest.mark.jax
def test_functions_with_effects_run_as_always(cache: Path) -> None:
    for effect in ("first", "unordered"):
        exported = jaxexp.export(jax.jit(lambda x: touch(x, effect) + 1))(X)  # noqa: B023
        np.testing.assert_array_equal(exported.call(X), touch(X, effect) + 1)
    assert entries(cache) == []


@pytest.mark.jax
def test_under_debug_nans_without_jit_and_switched_off(cache: Path, tmp_path: Path) -> None:
    model = jaxexp.load(saved(tmp_path, jnp.log, ANY))
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        model.call(X)
    with jax.disable_jit():
        np.testing.assert_allclose(model.call(np.abs(X)), np.log(np.abs(X)), rtol=1e-4, atol=1e-6)
    before = entries(cache)
    assert len(before) <= 1
    jaxexp.compile_cache(None)
    np.testing.assert_allclose(model.call(np.abs(X[:2])), np.log(np.abs(X[:2])), rtol=1e-4, atol=1e-6)
    assert entries(cache) == before


@pytest.mark.jax
def test_with_a_file_of_executables(cache: Path, tmp_path: Path) -> None:
    """The file comes first; what it lacks is in the cache."""
    path = saved(tmp_path, jnp.sin, ANY, vjp_order=1)
    jaxexp.load(path).precompile((X,), into=tmp_path / "f.exe")
    assert entries(cache) == []

    def call() -> Any:
        model = jaxexp.load(path, executables=tmp_path / "f.exe")
        return model.call(X), model.call(X[:3]), jax.vjp(model.call, X[:2])[1](X[:2])

    in_another_process(call)
    assert len(entries(cache)) == 3
    found, steps = in_another_process(call)
    assert not steps["compiled"]
    np.testing.assert_allclose(found[1], np.sin(X[:3]), rtol=1e-6)


@pytest.mark.jax
def test_beside_the_cache_of_jax(cache: Path, tmp_path: Path) -> None:
    """Code from JAX's cache cannot be kept, so it is compiled anew, and JAX's cache stays on."""
    from jax.experimental.compilation_cache import compilation_cache

    path = saved(tmp_path, jnp.sin, X)
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    old = {name: getattr(jax.config, name) for name in names}
    jax.config.update(names[0], str(tmp_path / "jax"))
    jax.config.update(names[1], 0)
    compilation_cache.reset_cache()
    try:
        jaxexp.compile_cache(None)
        calls_of(path)()
        jaxexp.compile_cache(cache)
        assert calls_of(path)()[1]["compiled"] == 1
        assert jax.config.jax_enable_compilation_cache
    finally:
        for name, value in old.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    assert len(entries(cache)) == 1
    found, steps = calls_of(path)()
    assert not steps
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)


# --- filled ahead of calls ------------------------------------------------------------------------------------------


@pytest.mark.jax
def test_what_was_precompiled_is_what_calls_use(cache: Path, tmp_path: Path) -> None:
    """In threads, which compile the same at once, and what others do."""
    paths = [saved(tmp_path / str(i), lambda x, c=i: jnp.tanh(x) * c, X, vjp_order=1) for i in range(3)]
    jax.clear_caches()
    models = [jaxexp.load(path) for path in paths]
    with counted() as steps, ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda model: model.precompile(vjp_order=1), [*models, *models]))
    assert steps["compiled"] == len(entries(cache)) == 6
    assert found[:3] == found[3:]
    assert [len(one) for one in found] == [2] * 6

    def call() -> Any:
        return [jaxexp.load(path).call(X) for path in paths], jax.vjp(jaxexp.load(paths[1]).call, X)[1](X)

    (results, (gradient,)), steps = in_another_process(call)
    assert not steps["compiled"]
    np.testing.assert_allclose(gradient, X * (1 - np.tanh(X) ** 2), rtol=1e-5)
    for i, result in enumerate(results):
        np.testing.assert_allclose(result, np.tanh(X) * i, rtol=1e-6)


@pytest.mark.jax
def test_sizes_and_places(cache: Path, tmp_path: Path) -> None:
    model = jaxexp.load(saved(tmp_path, jnp.sin, ANY))
    with pytest.raises(ExportError, match=r"args\[0\] has the symbolic shape \(n, 8\).*precompile\(args"):
        model.precompile()
    for n in (1, 8):
        model.precompile((jax.ShapeDtypeStruct((n, 8), np.float32),))
    device, here = jax.devices()[3], mesh((4, 2), ("a", "b"))
    fixed, sharding = jaxexp.load(saved(tmp_path / "fixed", jnp.cos, X)), NamedSharding(here, PartitionSpec("a"))
    fixed.precompile(mesh_or_device=device)
    spread = jaxexp.export(jax.jit(lambda x: x * 2))(jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=sharding))
    spread.precompile(mesh_or_device=here)
    assert len(entries(cache)) == 4
    placed = jax.device_put(X, device), jax.device_put(X, sharding)
    with counted() as steps:
        assert model.call(X[:1]).shape == (1, 8)
        assert model.call(X).shape == (8, 8)
        assert fixed.call(placed[0]).devices() == {device}
        np.testing.assert_array_equal(spread.call(placed[1]), X * 2)
    assert not steps["compiled"]
    with pytest.raises(TypeError, match=r"expected a jax.sharding.Mesh, a device or None"):
        fixed.precompile(mesh_or_device="cpu")


@pytest.mark.jax
def test_nothing_is_run(cache: Path) -> None:
    """Four terabytes are no trouble until somebody wants to have them."""
    function = jaxexp.export(jax.jit(lambda x: jnp.broadcast_to(x, (1 << 40,)) * 2))(np.float32(1))
    function.precompile()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"RESOURCE_EXHAUSTED|[Oo]ut of memory"):
        jax.block_until_ready(function.call(np.float32(1)))


@pytest.mark.jax
def test_members_of_an_archive(cache: Path, tmp_path: Path) -> None:
    functions = {name: jaxexp.export(jax.jit(getattr(jnp, name)))(X) for name in ("sin", "cos")}
    with jaxexp.Archive.open(make(tmp_path / "fleet.zip", functions)) as archive:
        assert archive.precompile().keys() == {"sin", "cos"}
        _, steps = in_another_process(lambda: archive["cos"].load().call(X))
        assert not steps["compiled"]


def test_no_place_for_code(tmp_path: Path) -> None:
    function = jaxexp.export(jax.jit(jnp.sin))(X)
    with pytest.raises(ExportError, match=r"no place for the code.*or first call jaxexp.compile_cache\(folder"):
        function.precompile()
    jaxexp.compile_cache(tmp_path / "small", max_bytes=10)
    try:
        with pytest.raises(OSError, match=r"code of [\d,]+ bytes is larger than the compile cache '.*small' may be"):
            function.precompile()
    finally:
        jaxexp.compile_cache(None)
    with pytest.raises(AttributeError, match=r"no attribute 'prefetch' any more: use compile_cache\(folder\)"):
        jaxexp.prefetch  # type: ignore[attr-defined]  # noqa: B018
