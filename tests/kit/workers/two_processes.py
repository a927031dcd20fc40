"""What test_two_processes.py exports, and as a script one of its two processes, which has four devices.

two_processes.py use FOLDER PORT INDEX     loads, calls, compares; says which part of the file of weights it read
two_processes.py cached FOLDER PORT INDEX  shares a compile cache with the other one, and says what it compiled
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
SIDE = 4096  # of a weight of 64 MiB: the system maps up to 2 MiB at once
SMAPS = Path("/proc/self/smaps")


def mesh(kind: str = "auto") -> Mesh:
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(AXES[kind],) * 2)


def arguments() -> list[np.ndarray]:
    random = np.random.default_rng(7)
    return [random.uniform(-1, 1, shape).astype(np.float32) for shape in ((16, 8), (8, 4))]


def function(kind: str) -> tuple[Any, list[Any]]:
    """Normalizes over the whole array and contracts a dimension that is sharded, over both axes of the mesh."""
    m = mesh(kind)
    *shardings, out = (NamedSharding(m, p) for p in (P("x", "y"), P("y", None), P("x", None)))

    def auto(a: Any, w: Any) -> Any:
        return jnp.tanh((a - a.mean()) @ w)

    def explicit(a: Any, w: Any) -> Any:
        return jnp.tanh(jnp.einsum("ij,jk->ik", a - a.mean(), w, out_sharding=out))

    specs = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s) for x, s in zip(arguments(), shardings, strict=True)]
    if kind == "explicit":
        return jax.jit(explicit), specs
    return jax.jit(auto, in_shardings=tuple(shardings), out_shardings=out), specs


def gradient_of(call: Any) -> Any:
    return jax.grad(lambda a, w: (call(a, w) ** 2).sum(), argnums=(0, 1))


# Who reads which artifact, and what is compared; jax.export reads jaxexp's file.
COMPARED = [
    ("jaxexp", "auto", ["eager", "jitted", "jitted gradient"]),
    ("jaxexp", "explicit", ["eager", "jitted gradient"]),
    ("jax.export", "auto", ["eager", "jitted gradient"]),
]


def export(folder: Path) -> None:
    """Writes functions for eight devices, one of them with a sharded weight, and what to expect."""
    for kind in AXES:
        fun, specs = function(kind)
        jaxexp.export(fun)(*specs).save(folder / f"{kind}.jaxexp", vjp_order=1)
    fun, specs = function("auto")
    args = [jax.device_put(x, s.sharding) for x, s in zip(arguments(), specs, strict=True)]
    da, dw = jax.jit(gradient_of(fun))(*args)
    np.savez(folder / "expected.npz", value=jax.jit(fun)(*args), da=da, dw=dw)
    m = mesh()
    w = jax.device_put(np.ones((SIDE, SIDE), np.float32), NamedSharding(m, P(("x", "y"))))
    x = jax.ShapeDtypeStruct((4, SIDE), np.float32, sharding=NamedSharding(m, P()))
    jaxexp.export(jax.jit(lambda x: x @ w), weights={"w": w})(x).save(folder / "model.jaxexp")


def placed(exported: Any, m: Mesh) -> list[jax.Array]:
    return [
        jax.make_array_from_callback(x.shape, s, lambda index, x=x: x[index])
        for x, s in zip(arguments(), exported.in_shardings_jax(m), strict=True)
    ]


def compare(result: jax.Array, expected: np.ndarray) -> None:
    """The shards of this process, which are some and not all."""
    assert not result.is_fully_addressable
    assert len(result.addressable_shards) == 4
    for shard in result.addressable_shards:
        np.testing.assert_allclose(shard.data, expected[shard.index], rtol=1e-5, atol=1e-6)


def use(folder: Path, expected: Any) -> dict[str, Any]:
    compared = []
    for reader, kind, ways in COMPARED:
        path = folder / f"{kind}.jaxexp"
        exported = jaxexp.load(path) if reader == "jaxexp" else jax_export.deserialize(bytearray(path.read_bytes()))
        m = mesh(kind)
        args, (out,) = placed(exported, m), exported.out_shardings_jax(m)
        with jax.set_mesh(m):
            for how in ways:
                call = gradient_of(exported.call) if "gradient" in how else exported.call
                results = (jax.jit(call) if "jitted" in how else call)(*args)
                if "gradient" in how:
                    compare(results[0], expected["da"])
                    compare(results[1], expected["dw"])
                else:
                    compare(results, expected["value"])
                    assert results.sharding.is_equivalent_to(out, 2), results.sharding
                compared.append(f"{reader}, {kind}, {how}")
    return {"compared": compared, "part": read(folder)}


def read(folder: Path) -> float | None:
    """Which part of the file of weights this process has read, as Linux tells."""
    m = mesh()
    model = jaxexp.load(folder / "model.jaxexp").with_mesh(m)
    x = np.ones((4, SIDE), np.float32)
    with jax.set_mesh(m):
        y = jax.block_until_ready(
            model.call(jax.make_array_from_callback(x.shape, NamedSharding(m, P()), lambda index: x[index]))
        )
    for shard in y.addressable_shards:
        np.testing.assert_allclose(shard.data, SIDE)
    if not SMAPS.exists():
        return None
    total, is_of_file = 0, False
    for line in SMAPS.read_text().splitlines():
        if not line.partition(" ")[0].endswith(":"):
            is_of_file = line.endswith(str(folder / "model.safetensors"))
        elif is_of_file and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total / (SIDE * SIDE * 4)


def cached(folder: Path, expected: Any) -> dict[str, Any]:
    jaxexp.compile_cache(folder / "cache")
    model, m = jaxexp.load(folder / "auto.jaxexp"), mesh()
    args, compiled = placed(model, m), []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
    compare(model.call(*args), expected["value"])
    count = sum(event.endswith("backend_compile_duration") for event in compiled)
    exe = folder / f"{jax.process_index()}.exe"
    model.precompile(into=exe, mesh_or_device=m)
    again = jaxexp.load(folder / "auto.jaxexp", executables=exe)
    compare(again.call(*args), expected["value"])
    return {"compiled": count, "used": [one.used for one in again.executables]}


if __name__ == "__main__":
    what, place, port, index = sys.argv[1:]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(index), initialization_timeout=60)
    assert (jax.device_count(), jax.local_device_count()) == (8, 4)
    found = {"use": use, "cached": cached}[what](Path(place), np.load(Path(place) / "expected.npz"))
    jax.distributed.shutdown()
    print(json.dumps({"process": int(index), **found}))
