"""`prefetch`: what it compiles is what the first call runs, and nothing runs before."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp
from kit.corpus import arr, mesh
from kit.each import each

pytestmark = pytest.mark.jax


def loaded(function: Any, *specs: Any, **how: Any) -> Any:
    return jaxexp.deserialize(bytes(jaxexp.export(function)(*specs, **how).serialize()))


def many(number: int) -> list[Any]:
    return [loaded(jax.jit(lambda x, y, c=i: {"sum": x + c, "y": y * c}), arr(3), arr(2, i + 1)) for i in range(number)]


@each("workers", [None, 1])
def test_the_first_call_compiles_nothing(count: Any, workers: int | None) -> None:
    jax.clear_caches()  # equal functions share code
    functions = many(4)
    arguments = [[convert((arr(3), arr(2, i + 1))) for convert in (tuple, jax.device_put)] for i in range(4)]
    count.clear()
    result = jaxexp.prefetch(functions, workers=workers)
    assert count.compiled == 4
    assert all(isinstance(compiled, jax.stages.Compiled) for compiled in result)
    count.clear()
    with ThreadPoolExecutor(2) as pool:
        for calls in (map, pool.map):  # in this thread, and in others
            for i, function in enumerate(functions):
                for result in calls(lambda args, f=function: f.call(*args)["sum"], arguments[i]):
                    np.testing.assert_allclose(result, arr(3) + i, rtol=1e-6)
    assert count.compiled == 0
    functions[0].call(jax.device_put(arr(3), jax.devices()[1]), arr(2, 1))
    assert count.compiled == 1, "the count counts"


def test_on_a_device(count: Any) -> None:
    functions = many(2)
    device = jax.devices()[3]
    arguments = [jax.device_put((arr(3), arr(2, i + 1)), device) for i in range(2)]
    jaxexp.prefetch(functions, device)
    count.clear()
    for function, args in zip(functions, arguments, strict=True):
        assert function.call(*args)["y"].devices() == {device}
    assert count.compiled == 0


def test_on_a_mesh(count: Any) -> None:
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


def test_symbolic_dimensions(count: Any) -> None:
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


def test_functions_that_were_donated_to(count: Any) -> None:
    function = loaded(jax.jit(lambda x, y: (x + y, y), donate_argnums=0), arr(3), arr(3))
    argument, other = jnp.asarray(arr(3)), jnp.asarray(arr(3))
    jaxexp.prefetch([function, (function, (argument, other))])
    count.clear()
    np.testing.assert_array_equal(function.call(argument, other)[0], 2 * arr(3))
    assert not argument.is_deleted()
    assert count.compiled == 0


def test_an_archive_keeps_what_is_compiled(count: Any, tmp_path: Path) -> None:
    with jaxexp.Archive.create(tmp_path / "fleet.zip") as writer:
        for i, function in enumerate(many(3)):
            writer.add(str(i), function.serialize())
    with jaxexp.Archive.open(tmp_path / "fleet.zip") as archive:
        handles = list(archive.values())
        assert len(jaxexp.prefetch([*handles[1:], (handles[0], (arr(3), arr(2, 1)))])) == 3
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


def test_the_persistent_cache_serves_the_next_process(tmp_path: Path) -> None:
    blob = bytes(jaxexp.export(jax.jit(lambda x: x * 53))(arr(3)).serialize())
    events: list[str] = []
    monitoring.register_event_listener(lambda event, **_: events.append(event))
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    compilation_cache.reset_cache()
    try:
        for said in ("misses", "hits"):
            jax.clear_caches()  # as in the next process
            function = jaxexp.deserialize(blob)
            events.clear()
            jaxexp.prefetch([function])
            function.call(arr(3))  # compiles nothing, and asks the cache for nothing
            assert [e for e in events if e.endswith(("_hits", "_misses"))] == [f"/jax/compilation_cache/cache_{said}"]
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        compilation_cache.reset_cache()
