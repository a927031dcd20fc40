"""One of the processes of test_two_processes.py; run as a script, which says what it did in JSON on its last line.

two_processes.py export FOLDER             exports for eight devices, and writes what to expect
two_processes.py call FOLDER PORT INDEX    one of two processes of four devices each: loads, calls, compares
two_processes.py cached FOLDER PORT INDEX  one of two processes that share a compile cache, and says what it compiled
two_processes.py save FOLDER               exports a function with a sharded weight, and saves both
two_processes.py read FOLDER PORT INDEX    loads and calls it, and says which part of the file of weights was read
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxexp

AXES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def mesh(kind: str) -> Mesh:
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(AXES[kind],) * 2)


def arguments() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(7)
    return tuple(random.uniform(-1, 1, shape).astype(np.float32) for shape in ((16, 8), (8, 4)))


def function(kind: str) -> tuple[Any, tuple[Any, ...]]:
    """Normalizes over the whole array and contracts a dimension that is sharded, over both meshes axes."""
    m = mesh(kind)
    rows, columns, out = (NamedSharding(m, p) for p in (P("x", "y"), P("y", None), P("x", None)))

    def auto(a: Any, w: Any) -> Any:
        return jnp.tanh((a - a.mean()) @ w)

    def explicit(a: Any, w: Any) -> Any:
        return jnp.tanh(jnp.einsum("ij,jk->ik", a - a.mean(), w, out_sharding=out))

    a, w = (
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s) for x, s in zip(arguments(), (rows, columns), strict=True)
    )
    if kind == "explicit":
        return jax.jit(explicit), (a, w)
    return jax.jit(auto, in_shardings=(rows, columns), out_shardings=out), (a, w)


def squared(call: Any) -> Any:
    return lambda a, w: (call(a, w) ** 2).sum()


def of(call: Any) -> dict[str, Any]:
    """What is compared: values and gradients, with eager dispatch and under jit."""
    gradient = jax.grad(squared(call), argnums=(0, 1))
    return {"eager": call, "jitted": jax.jit(call), "gradient": gradient, "jitted gradient": jax.jit(gradient)}


# Who reads which artifact, and what is compared; jax.export reads jaxexp's file.
COMPARED = [
    ("jaxexp", "auto", ["eager", "jitted", "gradient", "jitted gradient"]),
    ("jaxexp", "explicit", ["eager", "jitted gradient"]),
    ("jax.export", "auto", ["eager", "jitted gradient"]),
]


def export(folder: Path) -> dict[str, Any]:
    assert jax.device_count() == jax.local_device_count() == 8
    for kind in AXES:
        fun, specs = function(kind)
        jaxexp.export(fun)(*specs).save(folder / f"{kind}.jaxexp", vjp_order=1)
    fun, specs = function("auto")
    args = [jax.device_put(x, s.sharding) for x, s in zip(arguments(), specs, strict=True)]
    value, (da, dw) = jax.jit(fun)(*args), jax.jit(jax.grad(squared(fun), argnums=(0, 1)))(*args)
    np.savez(folder / "expected.npz", value=value, da=da, dw=dw)
    return {"exported": sorted(AXES)}


def call(folder: Path, port: str, index: str) -> dict[str, Any]:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(index), initialization_timeout=60)
    assert jax.device_count() == 8
    assert jax.local_device_count() == 4
    expected = np.load(folder / "expected.npz")
    compared = []
    for reader, kind, ways in COMPARED:
        path = folder / f"{kind}.jaxexp"
        exported = jaxexp.load(path) if reader == "jaxexp" else jax_export.deserialize(bytearray(path.read_bytes()))
        m = mesh(kind)
        args = [
            jax.make_array_from_callback(x.shape, s, lambda index, x=x: x[index])
            for x, s in zip(arguments(), exported.in_shardings_jax(m), strict=True)
        ]
        (out,) = exported.out_shardings_jax(m)
        with jax.set_mesh(m):
            for how in ways:
                results = of(exported.call)[how](*args)
                if "gradient" in how:
                    compare(results[0], expected["da"])
                    compare(results[1], expected["dw"])
                else:
                    compare(results, expected["value"])
                    assert results.sharding.is_equivalent_to(out, 2), results.sharding
                compared.append(f"{reader}, {kind}, {how}")
    jax.distributed.shutdown()
    return {"process": int(index), "compared": compared}


def cached(folder: Path, port: str, index: str) -> dict[str, Any]:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(index), initialization_timeout=60)
    jaxexp.compile_cache(folder / "cache")
    expected = np.load(folder / "expected.npz")
    model = jaxexp.load(folder / "auto.jaxexp")
    args = [
        jax.make_array_from_callback(x.shape, s, lambda index, x=x: x[index])
        for x, s in zip(arguments(), model.in_shardings_jax(mesh("auto")), strict=True)
    ]
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
    compare(model.call(*args), expected["value"])
    count = sum(event.endswith("backend_compile_duration") for event in compiled)
    exe = folder / f"{index}.exe"
    model.precompile(into=exe, mesh_or_device=mesh("auto"))
    again = jaxexp.load(folder / "auto.jaxexp", executables=exe)
    compare(again.call(*args), expected["value"])
    jax.distributed.shutdown()
    return {"process": int(index), "compiled": count, "used": [one.used for one in again.executables]}


def compare(result: jax.Array, expected: np.ndarray) -> None:
    """The shards of this process, which are some and not all."""
    assert not result.is_fully_addressable
    assert len(result.addressable_shards) == 4
    for shard in result.addressable_shards:
        np.testing.assert_allclose(shard.data, expected[shard.index], rtol=1e-5, atol=1e-6)


SIDE = 4096  # of a weight of 64 MiB: the system maps up to 2 MiB at once


def save(folder: Path) -> dict[str, Any]:
    m = mesh("auto")
    w = jax.device_put(np.ones((SIDE, SIDE), np.float32), NamedSharding(m, P(("x", "y"))))
    x = jax.ShapeDtypeStruct((4, SIDE), np.float32, sharding=NamedSharding(m, P()))
    jaxexp.export(jax.jit(lambda x: x @ w), weights={"w": w})(x).save(folder / "model.jaxexp")
    return {"saved": (folder / "model.safetensors").stat().st_size}


def read(folder: Path, port: str, index: str) -> dict[str, Any]:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(index), initialization_timeout=60)
    m = mesh("auto")
    model = jaxexp.load(folder / "model.jaxexp").with_mesh(m)
    x = jax.make_array_from_callback(
        (4, SIDE), NamedSharding(m, P()), lambda index: np.ones((4, SIDE), np.float32)[index]
    )
    with jax.set_mesh(m):
        y = jax.block_until_ready(model.call(x))
    for shard in y.addressable_shards:
        np.testing.assert_allclose(shard.data, SIDE)
    touched = resident(folder / "model.safetensors")
    jax.distributed.shutdown()
    return {"process": int(index), "part": touched / (SIDE * SIDE * 4)}


def resident(path: Path) -> int:
    """How many bytes of a mapped file this process has read."""
    total, is_of_file = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if not line.partition(" ")[0].endswith(":"):
            is_of_file = line.endswith(str(path))
        elif is_of_file and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


if __name__ == "__main__":
    command, folder, *rest = sys.argv[1:]
    print(
        json.dumps(
            {"export": export, "call": call, "cached": cached, "save": save, "read": read}[command](Path(folder), *rest)
        )
    )
