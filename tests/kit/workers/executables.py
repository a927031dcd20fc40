"""Functions of all kinds with their code in files, written in one process and called in others.

executables.py write FOLDER        exports each function, computes its results, and precompiles it
executables.py check FOLDER [SEED COUNT]
    calls each with its code, compares the results, and prints what became of the code; then calls one function with
    COUNT changed copies of its file of code
"""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import jaxexp

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
SIZES = (2, 5, 8)
OLDEST = "jax-0.10.2"  # so that all supported releases read the artifacts
Calls = list[tuple[Any, ...]]


def _linear_algebra(x: Any) -> Any:
    positive = x @ x.T + 8 * jnp.eye(8)
    return {"cholesky": jnp.linalg.cholesky(positive), "values": jnp.linalg.eigh(positive)[0]}


def _mesh() -> Any:
    return jax.make_mesh((2,), ("d",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))


def _sharded() -> Any:
    sharding = NamedSharding(_mesh(), PartitionSpec("d"))
    jitted = jax.jit(lambda x: (jnp.sin(x) @ x.T, x.sum()), in_shardings=sharding, out_shardings=None)
    return jaxexp.export(jitted)(jax.ShapeDtypeStruct(X.shape, X.dtype))


def _symbolic() -> Any:
    (n,) = jaxexp.symbolic_shape("n")
    return jaxexp.export(jax.jit(lambda x: jnp.tanh(x).sum(0)))(jax.ShapeDtypeStruct((n, 8), X.dtype))


# By name: what exports the function, the arguments of its calls, and whether its VJP is called, too.
CASES: dict[str, tuple[Callable[[], Any], Calls, bool]] = {
    "plain": (lambda: jaxexp.export(jax.jit(lambda x, y: jnp.sin(x) @ y["z"]))(X, {"z": X}), [(X, {"z": X})], True),
    "lapack": (lambda: jaxexp.export(jax.jit(_linear_algebra))(X), [(X,)], False),
    "symbolic": (_symbolic, [(X[:n],) for n in SIZES], False),
    "donated": (lambda: jaxexp.export(jax.jit(lambda x: x * 2 + 1, donate_argnums=0))(X), [(X,)], False),
    "sharded": (_sharded, [(X,)], False),
    "random": (
        lambda: jaxexp.export(jax.jit(lambda key: jax.random.normal(key, (4,))))(jax.random.key(0)),
        [(0,)],
        False,
    ),
}


def _placed(name: str, exported: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if name == "sharded":
        return (jax.device_put(args[0], exported.in_shardings_jax(_mesh())[0]),)
    return (jax.random.key(args[0]),) if name == "random" else args


def _needs(name: str) -> int:
    return 2 if name == "sharded" else 1


def _gradient(exported: Any, args: tuple[Any, ...]) -> Any:
    def loss(*args: Any) -> Any:
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(exported.call(*args)))

    return jax.grad(loss, argnums=tuple(range(len(args))))(*args)


def _results(name: str, exported: Any) -> list[Any]:
    _, calls, has_gradient = CASES[name]
    found = [exported.call(*_placed(name, exported, args)) for args in calls]
    if has_gradient:
        found += [_gradient(exported, args) for args in calls]
    return [np.asarray(leaf) for leaf in jax.tree.leaves(found)]


def write(folder: Path) -> None:
    for name, (export, calls, has_gradient) in CASES.items():
        if jax.device_count() < _needs(name):
            continue
        artifact = folder / f"{name}.jaxexp"
        if not artifact.exists():
            exported = export()
            exported.save(artifact, vjp_order=has_gradient, compatibility=OLDEST)
            np.savez(folder / f"{name}.npz", *_results(name, exported))
        exported = jaxexp.load(artifact)
        for args in calls:
            exported.precompile(_placed(name, exported, args), into=folder / f"{name}.exe", vjp_order=has_gradient)


def check(folder: Path) -> dict[str, list[Any]]:
    states = {}
    for artifact in sorted(folder.glob("*.jaxexp")):
        name = artifact.stem
        if jax.device_count() < _needs(name):
            continue
        exported = jaxexp.load(artifact, executables=artifact.with_suffix(".exe"))
        _compare(name, exported, folder)
        listed = [*exported.executables, *(exported.vjp().executables if CASES[name][2] else ())]
        states[name] = [one.why for one in listed]
    return states


def _compare(name: str, exported: Any, folder: Path) -> None:
    with np.load(folder / f"{name}.npz") as file:
        expected = [file[f"arr_{i}"] for i in range(len(file.files))]
    for one, other in zip(_results(name, exported), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5, err_msg=name)


def damage(folder: Path, seed: int = 0, count: int = 0) -> dict[str, int]:
    """How many changed files were refused, and of how many the code was used or not."""
    rng, artifact = random.Random(seed), folder / "plain.jaxexp"
    bytes_, changed = artifact.with_suffix(".exe").read_bytes(), folder / f"changed-{seed}.exe"
    outcomes = {"refused": 0, "used": 0, "not used": 0}
    for _ in range(count):
        data = bytearray(bytes_)
        how = rng.randrange(4)
        place = rng.randrange(len(data))
        if how == 0:
            data = data[:place]
        elif how == 1:
            del data[place : place + rng.randrange(1, 200)]
        else:
            for _ in range(how - 1):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        changed.write_bytes(data)
        try:
            exported = jaxexp.load(artifact, executables=changed)
        except jaxexp.errors.DeserializationError:
            outcomes["refused"] += 1
            continue
        _compare("plain", exported, folder)
        outcomes["used" if any(one.used for one in exported.executables) else "not used"] += 1
    changed.unlink(missing_ok=True)
    return outcomes


if __name__ == "__main__":
    task, where, *more = sys.argv[1:]
    folder = Path(where)
    if task == "write":
        write(folder)
    answer = {"states": check(folder) if task == "check" else {}, "outcomes": damage(folder, *map(int, more))}
    print(json.dumps(answer))
