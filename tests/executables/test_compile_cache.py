"""`compile_cache`: what one process compiled, others use; whatever happens to the folder, results are right."""

from __future__ import annotations

import collections
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxexp
from jaxexp import _native
from jaxexp._executables import conditions
from jaxexp._kernel.io import compile_cache
from kit import served
from kit.corpus import touch
from kit.places import WORKERS
from kit.steps import counted

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "cache"
    jax.clear_caches()
    jaxexp.compile_cache(folder)
    yield folder
    jaxexp.compile_cache(None)
    jax.clear_caches()


def saved(folder: Path, function: Any, *args: Any, vjp_order: int = 0, **kwargs: Any) -> Path:
    path = folder / "model.jaxexp"
    jaxexp.export(jax.jit(function))(*args, **kwargs).save(path, vjp_order=vjp_order)
    return path


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.exe"))


def in_another_process(call: Callable[[], Any]) -> tuple[Any, collections.Counter[str]]:
    """What a call returns in a process that has compiled nothing, and what JAX does for it."""
    jax.clear_caches()
    with counted() as steps:
        return call(), steps


def test_the_second_process_traces_and_compiles_nothing(cache: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, lambda x, *, scale: {"y": jnp.sin(x) * scale, "z": (x.sum(),)}, X, scale=np.float32(2))
    first, steps = in_another_process(lambda: jaxexp.load(path).call(X, scale=np.float32(2)))
    assert steps["compiled"] == 1
    assert len(entries(cache)) == 1
    assert {entry.suffix for entry in cache.iterdir()} == {".exe"}, "no lock is left"
    second, steps = in_another_process(lambda: jaxexp.load(path).call(X, scale=np.float32(2)))
    assert not steps
    jax.tree.map(np.testing.assert_array_equal, first, second)
    jaxexp.compile_cache(None)
    plain, steps = in_another_process(lambda: jaxexp.load(path).call(X, scale=np.float32(2)))
    assert steps["compiled"] == 1
    assert jax.tree.structure(plain) == jax.tree.structure(second)
    for one, other in zip(jax.tree.leaves(second), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(one, other)
        assert (one.aval, one.committed, one.sharding) == (other.aval, other.committed, other.sharding)


def test_nothing_is_kept_without_it(tmp_path: Path) -> None:
    assert compile_cache.current() is None
    jaxexp.load(saved(tmp_path, jnp.sin, X)).call(X)
    assert {path.name for path in tmp_path.iterdir()} == {"model.jaxexp"}


def test_equal_functions_share_what_was_found(cache: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, jnp.cos, X)
    jaxexp.load(path).call(X)
    with counted() as steps:
        for _ in range(3):
            jaxexp.load(path).call(X)
    assert not steps
    assert len(entries(cache)) == 1


def test_each_size_of_a_symbolic_function(cache: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, jnp.tanh, jax.ShapeDtypeStruct(jaxexp.symbolic_shape("n, 8"), np.float32))
    for n in (1, 2, 8):
        np.testing.assert_allclose(jaxexp.load(path).call(X[:n]), np.tanh(X[:n]), rtol=1e-6)
    assert len(entries(cache)) == 3
    found, steps = in_another_process(lambda: [jaxexp.load(path).call(X[:n]) for n in (1, 2, 8)])
    assert not steps
    np.testing.assert_allclose(found[2], np.tanh(X), rtol=1e-6)


@pytest.mark.parametrize("wrt", [0, 1, (0, 1)])
def test_gradients(cache: Path, tmp_path: Path, wrt: Any) -> None:
    path = saved(tmp_path, lambda w, x: jnp.tanh(x @ w), X, X, vjp_order=1)

    def gradient() -> Any:
        model = jaxexp.load(path)
        return jax.grad(lambda w, x: model.call(w, x).sum(), wrt)(X, X)

    first, _ = in_another_process(gradient)
    second, _ = in_another_process(gradient)
    assert len(entries(cache)) == 2, "the function, and its VJP"
    jax.tree.map(np.testing.assert_array_equal, first, second)
    jaxexp.compile_cache(None)
    jax.tree.map(np.testing.assert_array_equal, in_another_process(gradient)[0], second)


def test_gradients_compile_nothing_of_the_functions(cache: Path, tmp_path: Path, caplog: Any) -> None:
    path = saved(tmp_path, lambda w, x: jnp.tanh(x @ w), X, X, vjp_order=1)
    pull = lambda: jax.vjp(jaxexp.load(path).call, X, X)[1](X)  # noqa: E731
    in_another_process(pull)
    with caplog.at_level(logging.INFO, "jaxexp.executables"):
        in_another_process(pull)
    assert [record.message.partition(" from ")[0].partition(": ")[2] for record in caplog.records] == ["uses code"] * 2


def test_weights(cache: Path, tmp_path: Path) -> None:
    exported = jaxexp.export(jax.jit(lambda w, x: x @ w["w"]))({"w": X}, X)
    exported.bind({"w": X}).save(tmp_path / "model.jaxexp")
    first, _ = in_another_process(lambda: jaxexp.load(tmp_path / "model.jaxexp").call(X))
    second, steps = in_another_process(lambda: jaxexp.load(tmp_path / "model.jaxexp").call(X))
    assert not steps
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("axes", [(8,), (4, 2)])
def test_sharded_functions(cache: Path, tmp_path: Path, axes: tuple[int, ...]) -> None:
    types = (jax.sharding.AxisType.Auto,) * len(axes)
    mesh = jax.make_mesh(axes, ("a", "b")[: len(axes)], axis_types=types, devices=jax.devices()[:8])
    sharding = NamedSharding(mesh, PartitionSpec("a"))
    path = saved(tmp_path, lambda x: (x @ x.T).sum(0), jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=sharding))
    placed = jax.device_put(X, sharding)
    first, _ = in_another_process(lambda: jaxexp.load(path).call(placed))
    assert len(entries(cache)) == 1
    second, steps = in_another_process(lambda: jaxexp.load(path).call(placed))
    assert not steps
    assert first.sharding.is_equivalent_to(second.sharding, 1)
    np.testing.assert_array_equal(first, second)


def test_another_setting_misses(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, jnp.sin, X)
    jaxexp.load(path).call(X)
    true = conditions.of_machine
    monkeypatch.setattr(conditions, "of_machine", lambda devices: {**true(devices), "jaxlib": "0.0.1"})
    _, steps = in_another_process(lambda: jaxexp.load(path).call(X))
    assert steps["compiled"] == 1
    assert len(entries(cache)) == 2


def test_a_setting_that_changes_meanwhile(cache: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, jnp.sin, jax.ShapeDtypeStruct(jaxexp.symbolic_shape("n, 8"), np.float32))
    model = jaxexp.load(path)
    model.call(X)
    before = {entry.name for entry in entries(cache)}
    level = "O0" if hasattr(jax.config, "jax_optimization_level") else None
    if level is None:
        pytest.skip("this JAX has no optimization level")
    old = jax.config.jax_optimization_level
    jax.config.update("jax_optimization_level", level)
    try:
        in_another_process(lambda: jaxexp.load(path).call(X))
    finally:
        jax.config.update("jax_optimization_level", old)
    assert len({entry.name for entry in entries(cache)} - before) == 1


@pytest.mark.parametrize("at", [0, 70, 300, -200, None])
def test_a_damaged_entry_is_compiled_and_made_again(
    cache: Path, tmp_path: Path, at: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(tmp_path, jnp.sin, X)
    jaxexp.load(path).call(X)
    (entry,) = entries(cache)
    good = entry.read_bytes()
    bad = bytearray(good)
    if at is None:
        bad = bad[: len(bad) // 2]
    else:
        bad[at] ^= 1
    entry.write_bytes(bad)
    found, steps = in_another_process(lambda: jaxexp.load(path).call(X))
    assert steps["compiled"] == 1
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)
    assert sum("which is made again" in message for message in caplog.messages) == 1
    assert entries(cache) == [entry]
    _, steps = in_another_process(lambda: jaxexp.load(path).call(X))
    assert not steps


def test_code_that_xla_does_not_load_is_removed(cache: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, jnp.sin, X)
    jaxexp.load(path).call(X)
    (entry,) = entries(cache)
    head, call, position, size, _ = _native.read_executables(_native.FileBytes(entry))[0][0]
    assert (position, size) != (0, 0)
    _native.ExecutableStore(cache, 1 << 30).put(head, call, b"no code at all")
    found, steps = in_another_process(lambda: jaxexp.load(path).call(X))
    assert steps["compiled"] == 1
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)
    assert not in_another_process(lambda: jaxexp.load(path).call(X))[1]


def test_code_that_does_not_run_is_removed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        @staticmethod
        def unsafe_call(*_: Any) -> None:
            raise jax.errors.JaxRuntimeError("no such symbol")

    path = saved(tmp_path, jnp.sin, X)
    jaxexp.load(path).call(X)
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, "jaxexp.executables"):
        patch.setattr("jaxexp._executables.executables.made_of", lambda *_: Broken())
        found, steps = in_another_process(lambda: jaxexp.load(path).call(X))
    assert steps["compiled"] == 1
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)
    assert "is not used: it does not run: no such symbol" in caplog.text
    assert entries(cache) == [], "the next process makes it again"


def test_an_entry_under_another_name_is_not_used(cache: Path, tmp_path: Path) -> None:
    """Its conditions are compared, not only its name."""
    sin, cos = (saved(tmp_path, f, X).rename(tmp_path / f.__name__) for f in (jnp.sin, jnp.cos))
    jaxexp.load(sin).call(X)
    (entry,) = entries(cache)
    jaxexp.load(cos).call(X)
    (other,) = set(entries(cache)) - {entry}
    other.write_bytes(entry.read_bytes())
    found, steps = in_another_process(lambda: jaxexp.load(cos).call(X))
    assert steps["compiled"] == 1
    np.testing.assert_allclose(found, np.cos(X), rtol=1e-6)


def test_the_oldest_entries_go(tmp_path: Path) -> None:
    store = _native.ExecutableStore(tmp_path, 20_000)
    for i in range(10):
        assert store.put({"n": str(i)}, {}, bytes(5_000))
        os.utime(tmp_path / _native.store_name({"n": str(i)}), (i, i))
        assert store.find({"n": "0"}) is not None, "it was just used, so the others go first"
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 20_000
    assert [i for i in range(10) if store.find({"n": str(i)}) is not None] == [0, 8, 9]
    assert not store.put({"n": "large"}, {}, bytes(20_000))
    assert store.find({"n": "large"}) is None


def test_what_dead_processes_left_is_removed_after_a_day(tmp_path: Path) -> None:
    store = _native.ExecutableStore(tmp_path, 1 << 20)
    names = [".0123456789abcdef.tmp", f"{_native.store_name({})}.lock", "notes.txt"]
    for name in names:
        (tmp_path / name).touch()
    store.put({"n": "1"}, {}, b"1")
    assert all((tmp_path / name).exists() for name in names)
    for name in names:
        os.utime(tmp_path / name, (0, 0))
    store.put({"n": "2"}, {}, b"2")
    assert [name for name in names if (tmp_path / name).exists()] == ["notes.txt"]


def test_one_turn_at_a_time(tmp_path: Path) -> None:
    one, other = (_native.ExecutableStore(tmp_path, 1 << 20) for _ in range(2))
    turn = one.turn({"n": "1"})
    assert turn is not None
    assert other.turn({"n": "1"}) is None
    assert other.turn({"n": "2"}) is not None
    turn.end()
    assert other.turn({"n": "1"}) is not None


def test_who_waited_too_long_compiles(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, jnp.sin, X)
    jaxexp.load(path).call(X)
    (entry,) = entries(cache)
    (held,) = _native.read_executables(_native.FileBytes(entry))[0]
    entry.unlink()
    turn = _native.ExecutableStore(cache, 1 << 30).turn(held[0])
    assert turn is not None
    monkeypatch.setattr(compile_cache, "PATIENCE", 0.2)
    start = time.monotonic()
    _, steps = in_another_process(lambda: jaxexp.load(path).call(X))
    assert steps["compiled"] == 1
    assert time.monotonic() - start >= 0.2
    turn.end()


def test_threads_compile_once(cache: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, lambda x: jnp.linalg.matrix_power(x, 5), X)
    jax.clear_caches()
    with counted() as steps:
        threads = [threading.Thread(target=lambda: jaxexp.load(path).call(X)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert steps["compiled"] == 1


@pytest.mark.slow(reason="starts eight processes, which import JAX")
def test_eight_processes_compile_once(tmp_path: Path, subprocess_env: Callable[..., dict[str, str]]) -> None:
    path = saved(tmp_path, lambda x: jnp.linalg.matrix_power(jnp.tanh(x), 7), X)
    command = [sys.executable, WORKERS / "compile_cache.py", path]
    env = {**subprocess_env(), "JAXEXP_COMPILE_CACHE": str(tmp_path / "cache")}
    running = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    said = [one.communicate(timeout=300)[0].split() for one in running]
    assert [one.returncode for one in running] == [0] * 8
    assert sum(int(compiled) for compiled, _ in said) == 1
    assert len({digest for _, digest in said}) == 1
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the processes that it kills")
def test_killed_at_any_byte_while_adding(tmp_path: Path, subprocess_env: Callable[..., dict[str, str]]) -> None:
    """Whoever is killed while it writes leaves no entry, and keeps nobody waiting."""
    command = [sys.executable, WORKERS / "compile_cache.py", "--killed", tmp_path]
    done = subprocess.run(command, env=subprocess_env(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["died", "20"]


@pytest.mark.parametrize("effect", ["first", "unordered"])
def test_functions_with_effects_run_as_always(cache: Path, effect: str) -> None:
    exported = jaxexp.export(jax.jit(lambda x: touch(x, effect) + 1))(X)
    np.testing.assert_array_equal(exported.call(X), touch(X, effect) + 1)
    assert entries(cache) == []


def test_under_debug_nans_and_without_jit(cache: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, jnp.log, X)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jaxexp.load(path).call(X)
    with jax.disable_jit():
        np.testing.assert_array_equal(jaxexp.load(path).call(np.abs(X)), jaxexp.load(path).call(np.abs(X)))
    assert len(entries(cache)) <= 1


def test_with_a_file_of_executables(cache: Path, tmp_path: Path) -> None:
    """The file comes first; what it lacks is in the cache."""
    path = saved(tmp_path, jnp.sin, jax.ShapeDtypeStruct(jaxexp.symbolic_shape("n, 8"), np.float32), vjp_order=1)
    jaxexp.load(path).precompile((X,), into=tmp_path / "model.exe")
    assert entries(cache) == []

    def call() -> Any:
        model = jaxexp.load(path, executables=tmp_path / "model.exe")
        return model.call(X), model.call(X[:3]), jax.vjp(model.call, X[:2])[1](X[:2])

    in_another_process(call)
    assert len(entries(cache)) == 3
    found, steps = in_another_process(call)
    assert not steps["compiled"]
    np.testing.assert_allclose(found[1], np.sin(X[:3]), rtol=1e-6)


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
        in_another_process(lambda: jaxexp.load(path).call(X))
        jaxexp.compile_cache(cache)
        in_another_process(lambda: jaxexp.prefetch([jaxexp.load(path)]) and jaxexp.load(path).call(X))
        assert jax.config.jax_enable_compilation_cache
    finally:
        for name, value in old.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    assert len(entries(cache)) == 1
    found, steps = in_another_process(lambda: jaxexp.load(path).call(X))
    assert not steps
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)


def test_prefetch_compiles_once(cache: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, jnp.sin, X)
    model = jaxexp.load(path)
    jax.clear_caches()
    with counted() as steps:
        jaxexp.prefetch([model])
        model.call(X)
    assert steps["compiled"] == 1
    assert len(entries(cache)) == 1
    assert not in_another_process(lambda: jaxexp.load(path).call(X))[1]


def test_switched_off_it_is_not_used(cache: Path, tmp_path: Path) -> None:
    model = jaxexp.load(saved(tmp_path, jnp.sin, jax.ShapeDtypeStruct(jaxexp.symbolic_shape("n, 8"), np.float32)))
    model.call(X)
    jaxexp.compile_cache(None)
    np.testing.assert_allclose(model.call(X[:2]), np.sin(X[:2]), rtol=1e-6)
    assert len(entries(cache)) == 1


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_only_read(cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sin, cos = (saved(tmp_path, f, X).rename(tmp_path / f.__name__) for f in (jnp.sin, jnp.cos))
    jaxexp.load(sin).call(X)
    cache.chmod(0o500)
    try:
        assert not in_another_process(lambda: jaxexp.load(sin).call(X))[1]
        for _ in range(2):
            in_another_process(lambda: jaxexp.load(cos).call(X))
        assert sum("cannot add" in message for message in caplog.messages) == 1
    finally:
        cache.chmod(0o700)


def test_a_folder_that_vanishes(cache: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, jnp.sin, X)
    jaxexp.load(path).call(X)
    for entry in entries(cache):
        entry.unlink()
    cache.rmdir()
    found, steps = in_another_process(lambda: jaxexp.load(path).call(X))
    assert steps["compiled"] == 1
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_folder_that_everybody_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    for named in (folder, folder.as_uri(), folder.as_uri().replace("file:", "local:")):
        with pytest.raises(jaxexp.ExportError, match=r"every user of this machine may write to the folder .*chmod o-w"):
            jaxexp.compile_cache(named)
    folder.chmod(0o755)
    jaxexp.compile_cache(folder)
    jaxexp.compile_cache(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").stat().st_mode & 0o777 == 0o700
    jaxexp.compile_cache(None)


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        jaxexp.compile_cache(tmp_path / "file")
    for url in ("http://cdn.example/code", "ftp://cdn.example/code", "webhdfs://cdn.example/code"):
        with pytest.raises(jaxexp.ExportError, match="anybody on the way could replace: use https"):
            jaxexp.compile_cache(url)
    for url in ("zip://x::https://cdn.example/code.zip", "simplecache::https://cdn.example/code", "dir://code"):
        with pytest.raises(jaxexp.ExportError, match="leads through several"):
            jaxexp.compile_cache(url)
    with pytest.raises(jaxexp.ExportError, match="local is the folder in front of a URL"):
        jaxexp.compile_cache(tmp_path, local=tmp_path / "other")
    with pytest.raises(jaxexp.ExportError, match="max_bytes"):
        jaxexp.compile_cache(tmp_path, max_bytes=0)
    with pytest.raises(TypeError, match="a folder or a URL"):
        jaxexp.compile_cache(3)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="nowhere"):
        jaxexp.compile_cache("nowhere://a/b")
    assert compile_cache.current() is None


@pytest.mark.parametrize("local", [False, True])
def test_a_url(cache: Path, tmp_path: Path, local: bool) -> None:
    path = saved(tmp_path, jnp.sin, X)
    jaxexp.load(path).call(X)
    front = tmp_path / "front" if local else None
    jaxexp.compile_cache(cache.as_uri(), local=front)
    found, steps = in_another_process(lambda: jaxexp.load(path).call(X))
    assert not steps
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)
    other = saved(tmp_path, jnp.cos, X)
    for _ in range(2):
        _, steps = in_another_process(lambda: jaxexp.load(other).call(X))
    assert bool(steps) != local, "a miss goes to the folder in front, if there is one"
    assert len(entries(cache)) == 1
    if front is not None:
        assert len(entries(front)) == 2


def test_over_http(cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("aiohttp")
    path = saved(tmp_path, jnp.sin, X)
    jaxexp.load(path).call(X)
    (entry,) = entries(cache)
    with served.raw(served.ranges_of(entry.read_bytes())) as server:
        jaxexp.compile_cache(f"{server.origin}/code/")
        found, steps = in_another_process(lambda: jaxexp.load(path).call(X))
        assert not steps
        assert f" /code/{entry.name} HTTP".encode() in server.requests[-1]
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)
    with served.raw(served.ranges_of(b"something else")) as server:
        jaxexp.compile_cache(server.origin)
        assert in_another_process(lambda: jaxexp.load(path).call(X))[1]["compiled"] == 1
        assert "which is made again" in caplog.text
    with served.raw(served.to(lambda: "http://127.0.0.1:9/")) as server:
        jaxexp.compile_cache(server.origin)
        assert in_another_process(lambda: jaxexp.load(path).call(X))[1]["compiled"] == 1
        assert "the server answers 302" in caplog.text


def test_a_server_that_does_not_answer(cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("aiohttp")
    jaxexp.compile_cache("http://127.0.0.1:9/code", local=tmp_path / "front")
    for function in (jnp.sin, jnp.cos):
        path = saved(tmp_path, function, X)
        found, _ = in_another_process(lambda path=path: jaxexp.load(path).call(X))
        np.testing.assert_allclose(found, np.asarray(function(X)), rtol=1e-6)
    assert sum("is not asked again" in message for message in caplog.messages) == 1
    assert len(entries(tmp_path / "front")) == 2


@pytest.mark.processes(reason="which read the environment")
@pytest.mark.parametrize(("value", "is_used"), [("cache", True), ("", False), ("http://cdn.example/code", False)])
def test_the_environment(
    tmp_path: Path, subprocess_env: Callable[..., dict[str, str]], value: str, is_used: bool
) -> None:
    path = saved(tmp_path, jnp.sin, X)
    env = {**subprocess_env(), "JAXEXP_COMPILE_CACHE": str(tmp_path / value) if is_used else value}
    command = [sys.executable, WORKERS / "compile_cache.py", path]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 ")
    assert (tmp_path / "cache").exists() == is_used
    assert ("$JAXEXP_COMPILE_CACHE is not used" in done.stderr) == value.startswith("http")


def test_names_of_entries() -> None:
    """SHA-256 of the conditions, each with its length in front: no two lists have one name."""
    assert _native.store_name({}) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855.exe"
    import hashlib

    for size in (0, 1, 50, 51, 52, 60, 61, 62, 63, 64, 115, 1000):
        text = "x" * size
        expected = hashlib.sha256(f"1:a{size}:{text}".encode()).hexdigest()
        assert _native.store_name({"a": text}) == f"{expected}.exe"


def test_a_url_without_a_place_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is wrong with the cache, calls go on."""
    pytest.importorskip("fsspec")
    folder = tmp_path / "cache"
    path = saved(tmp_path, jnp.sin, X)
    jaxexp.compile_cache(folder)
    try:
        expected = in_another_process(lambda: np.asarray(jaxexp.load(path).call(X)))[0]
        assert entries(folder)
        jaxexp.compile_cache(f"file://{folder}")

        def none(*args: Any, **options: Any) -> Any:
            raise FileNotFoundError("No usable temporary directory found")

        monkeypatch.setattr("tempfile.TemporaryDirectory", none)
        found, _ = in_another_process(lambda: np.asarray(jaxexp.load(path).call(X)))
    finally:
        jaxexp.compile_cache(None)
    np.testing.assert_array_equal(found, expected)
    assert "is not asked again" in caplog.text


def test_no_url() -> None:
    with pytest.raises(jaxexp.ExportError, match="is none"):
        jaxexp.compile_cache("https://[x")
