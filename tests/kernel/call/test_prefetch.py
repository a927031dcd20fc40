"""`prefetch`: what it compiles is what the first call runs, and nothing runs before."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from jaxexp._kernel.call.call import lowered
from kit.corpus import CASES, arr, export_with, mesh

COMPILED = "/jax/core/compile/backend_compile_duration"


class Count(list[str]):
    """How often XLA compiled since, and how often lowering made a module."""

    @property
    def compiled(self) -> int:
        return self.count(COMPILED)


@pytest.fixture
def count() -> Iterator[Count]:
    seen = Count()

    def listen(event: str, duration: float, **_: Any) -> None:
        seen.append(event)

    monitoring.register_event_duration_secs_listener(listen)
    yield seen
    seen.clear()
    with contextlib.suppress(AttributeError):
        monitoring.unregister_event_duration_listener(listen)


def loaded(function: Any, *specs: Any, **how: Any) -> Any:
    return jaxexp.deserialize(bytes(jaxexp.export(function)(*specs, **how).serialize()))


def many(number: int) -> list[Any]:
    return [loaded(jax.jit(lambda x, y, c=i: {"sum": x + c, "y": y * c}), arr(3), arr(2, i + 1)) for i in range(number)]


@pytest.mark.parametrize("workers", [None, 1, 4])
def test_the_first_call_compiles_nothing(count: Count, workers: int | None) -> None:
    jax.clear_caches()  # equal functions share code
    functions = many(6)
    count.clear()
    result = jaxexp.prefetch(functions, workers=workers)
    assert count.compiled == 6
    assert all(isinstance(compiled, jax.stages.Compiled) for compiled in result)
    arguments = [[convert((arr(3), arr(2, i + 1))) for convert in (tuple, jax.device_put)] for i in range(6)]
    count.clear()
    for i, function in enumerate(functions):
        for args in arguments[i]:
            np.testing.assert_array_equal(function.call(*args)["sum"], arr(3) + i)
    assert count.compiled == 0


def test_calls_in_other_threads_find_it(count: Count) -> None:
    functions = many(3)
    jaxexp.prefetch(functions)
    count.clear()
    threads = [threading.Thread(target=f.call, args=(arr(3), arr(2, i + 1))) for i, f in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count.compiled == 0
    functions[0].call(jax.device_put(arr(3), jax.devices()[1]), arr(2, 1))
    assert count.compiled == 1, "the count counts"


def test_on_a_device(count: Count) -> None:
    functions = many(2)
    device = jax.devices()[3]
    arguments = [jax.device_put((arr(3), arr(2, i + 1)), device) for i in range(2)]
    jaxexp.prefetch(functions, device)
    count.clear()
    for function, args in zip(functions, arguments, strict=True):
        assert function.call(*args)["y"].devices() == {device}
    assert count.compiled == 0


def test_on_a_mesh(count: Count) -> None:
    here = mesh((4, 2), ("x", "y"))
    both, rows = NamedSharding(here, P("x", "y")), NamedSharding(here, P("x"))
    specs = [
        jax.ShapeDtypeStruct((8, 4), np.float32, sharding=both),
        jax.ShapeDtypeStruct((8,), np.float32, sharding=rows),
    ]
    function = loaded(jax.jit(lambda a, b, c: a * b[:, None] + c), *specs, jax.ShapeDtypeStruct((4,), np.float32))
    args = jax.device_put(arr(8, 4), both), jax.device_put(arr(8), rows), arr(4)
    count.clear()
    jaxexp.prefetch([function], here)
    assert count.compiled == 1
    count.clear()
    np.testing.assert_allclose(function.call(*args), arr(8, 4) * arr(8)[:, None] + arr(4), rtol=1e-6)
    assert count.compiled == 0
    with pytest.raises(jaxexp.ExportError, match="8 devices"):
        jaxexp.prefetch([function])


def test_every_case_that_runs_here(count: Count) -> None:
    """Trees, dtypes, keys, weak types, dropped arguments, donation, effects: the call finds what was compiled."""
    checked = 0
    for case in CASES.values():
        program = case.build()
        if not program.callable_here or case.x64:
            continue
        with case.context():
            function = jaxexp.deserialize(bytes(export_with(jaxexp, program).serialize()))
            if function.nr_devices > 1:
                continue
            is_symbolic = any(not isinstance(d, int) for aval in function.in_avals for d in aval.shape)
            item = (function, program.args, program.kwargs) if is_symbolic else function
            (result,) = jaxexp.prefetch([item], on_error="return")
            assert isinstance(result, jax.stages.Compiled), (case.name, result)
            count.clear()
            lowered(function, program.args, program.kwargs).compile()
            if count.compiled == 0:
                checked += 1
            else:
                # Arguments that were placed, or that are Python scalars of a weak type, are of another kind.
                leaves = jax.tree.leaves((program.args, program.kwargs))
                assert any(
                    getattr(leaf, "committed", False) or isinstance(leaf, (bool, int, float, complex)) or
                    not hasattr(leaf, "dtype") for leaf in leaves
                ), case.name  # fmt: skip
    assert checked > 50


def test_symbolic_dimensions(count: Count) -> None:
    spec = jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b, 4"), np.float32)
    function = loaded(jax.jit(lambda x, *, scale: x * scale), spec, scale=jax.ShapeDtypeStruct((), np.float32))
    with pytest.raises(jaxexp.ExportError, match=r"args\[0\] has the symbolic shape \(b, 4\).*Pass \(function, args\)"):
        jaxexp.prefetch([function])
    with pytest.raises(jaxexp.ExportError, match=r"^precompiling .*args\[0\] has .*precompile\(args, into=\.\.\.\)"):
        function.precompile(into="never")
    sizes = [(function, (jax.ShapeDtypeStruct((n, 4), np.float32),), {"scale": np.float32(1)}) for n in (1, 2, 8)]
    count.clear()
    jaxexp.prefetch(sizes)
    assert count.compiled == 3
    count.clear()
    for n in (1, 2, 8):
        assert function.call(arr(n, 4), scale=np.float32(2)).shape == (n, 4)
    assert count.compiled == 0
    function.call(arr(3, 4), scale=np.float32(2))
    assert count.compiled == 1


def test_nothing_is_run() -> None:
    """Four terabytes are no trouble until somebody wants to have them."""
    function = loaded(jax.jit(lambda x: jnp.broadcast_to(x, (1 << 40,)) * 2), np.float32(1))
    jaxexp.prefetch([function])
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"RESOURCE_EXHAUSTED|[Oo]ut of memory"):
        jax.block_until_ready(function.call(np.float32(1)))


def test_functions_that_were_donated_to(count: Count) -> None:
    function = loaded(jax.jit(lambda x, y: (x + y, y), donate_argnums=0), arr(3), arr(3))
    argument, other = jnp.asarray(arr(3)), jnp.asarray(arr(3))
    jaxexp.prefetch([function, (function, (argument, other))])
    count.clear()
    np.testing.assert_array_equal(function.call(argument, other)[0], 2 * arr(3))
    assert not argument.is_deleted()
    assert count.compiled == 0


def test_handles_are_loaded() -> None:
    function = many(1)[0]

    class Handle:
        def load(self) -> Any:
            return function

    assert len(jaxexp.prefetch([Handle(), (Handle(), (arr(3), arr(2, 1)))])) == 2


def test_an_archive_keeps_what_is_compiled(count: Count, tmp_path: Path) -> None:
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as writer:
        for i, function in enumerate(many(3)):
            writer.add(str(i), function.serialize())
    with jaxexp.Archive.open(tmp_path / "fleet.zip") as archive:
        assert len(jaxexp.prefetch(archive.values())) == 3
        gc.collect()
        count.clear()
        for function in (handle.load() for handle in archive.values()):
            function.call(*(np.ones(aval.shape, aval.dtype) for aval in function.in_avals))
        assert count.compiled == 0


def test_errors() -> None:
    good, spec = many(1)[0], jax.ShapeDtypeStruct(jaxexp.symbolic_shape("b"), np.float32)
    symbolic = loaded(jax.jit(jnp.sin), spec)
    elsewhere = loaded(jax.jit(jnp.sin), arr(3))
    object.__setattr__(elsewhere, "platforms", ("tpu",))
    found = jaxexp.prefetch([good, symbolic, elsewhere, good, 3, (good, arr(3))], on_error="return")
    kinds = [jax.stages.Compiled, jaxexp.ExportError, jaxexp.ExportError, jax.stages.Compiled, TypeError, TypeError]
    assert all(isinstance(one, kind) for one, kind in zip(found, kinds, strict=True)), found
    assert "tpu" in str(found[2])
    with pytest.raises(jaxexp.ExportError, match="symbolic shape"):
        jaxexp.prefetch([good, symbolic, elsewhere])
    with pytest.raises(jaxexp.ExportError, match="tpu"):
        jaxexp.prefetch([good, elsewhere, symbolic])
    with pytest.raises(TypeError, match=r"expected a jax.sharding.Mesh, a device or None"):
        jaxexp.prefetch([good], "cpu")
    with pytest.raises(jaxexp.ExportError, match="at least 1"):
        jaxexp.prefetch([good], workers=0)
    with pytest.raises(jaxexp.ExportError, match="on_error"):
        jaxexp.prefetch([good], on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(jaxexp.ExportError, match="at most 2,048 functions"):
        jaxexp.prefetch([good] * 2049)
    assert jaxexp.prefetch([]) == []


CACHED = """
import os, sys
import jax, numpy as np
from jax import monitoring
import jaxexp

hits = []
monitoring.register_event_listener(lambda event, **_: hits.append(event))
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
functions = jaxexp.load_many([os.path.join(sys.argv[2], name) for name in sorted(os.listdir(sys.argv[2]))])
jaxexp.prefetch(functions, workers=2)
print(hits.count("/jax/compilation_cache/cache_hits"), hits.count("/jax/compilation_cache/cache_misses"))
hits.clear()
for function in functions:
    function.call(np.ones(3, np.float32))
print(len([hit for hit in hits if "compilation_cache" in hit]))
"""


def test_the_persistent_cache_serves_the_next_process(tmp_path: Path, subprocess_env) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for i in range(3):
        jaxexp.export(jax.jit(lambda x, c=i: x * (c + 2)))(arr(3)).save(models / str(i))

    def process() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", CACHED, tmp_path / "cache", models],
            env=subprocess_env(), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert process() == ["0 3", "0"]
    files = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert len([name for name in files if name.endswith("-cache")]) == 3
    assert process() == ["3 0", "0"]
