"""Writes golden artifacts of jaxexp's own format into tests/golden/DATE_jaxexp-VERSION_jax-VERSION/.

    PYTHONPATH=tests python tests/golden/make_own.py [--label LABEL] [CASE ...]

Run it when something new can be written, or when something is written in another way on purpose; folders of earlier
versions stay. A label goes behind the date, where a day has several folders. NAME.bin is the artifact, NAME.npz holds
the flat arguments ("in_0", ...) and the results of the function itself ("out_0", ...). cases.json has the order of
derivatives and the length of each artifact.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from kit import devices  # noqa: F401  (eight devices, before JAX is there)

# isort: split
import jax
import jax.numpy as jnp
import numpy as np

import jaxexp
from kit.corpus import CASES, Program, arr, export_with, spec

# From the corpus, with the orders of derivatives that are kept.
FROM_CORPUS = {
    "sin": 2, "dropped": 2, "keywords": 1, "nested_containers": 2, "namedtuples": 0, "ordered_dict": 0,
    "custom_node": 2, "dataclass_node": 1, "standard_dtypes": 0, "wide_dtypes": 0, "float8s": 0,
    "four_bit_integers": 0, "float4": 0, "integers_and_floats": 1, "threefry_key": 0, "rbg_key": 0, "unsafe_rbg_key": 0,
    "key_batch": 0, "symbolic_batch": 2, "symbolic_several": 1, "symbolic_expressions": 0, "symbolic_multi_platform": 0,
    "multi_platform": 2, "sharded_2d": 2, "partly_sharded": 1, "constrained_inside": 0, "shard_map_psum": 1,
    "explicit_mesh": 1, "several_effects": 0, "effects_and_symbolic_shapes": 0, "cholesky": 1, "scan": 2,
}  # fmt: skip


def other_keys() -> Any:
    """Dict keys that are not strings."""
    table = {1: arr(3), 2: arr(2)}
    fun = jax.jit(lambda table: {(1, 2): table[1] * 2, (3, 4): table[2] - 1})
    return Program(fun, (table,)), {}


def declared_batch() -> Any:
    """A declared batch dimension, and constraints on symbolic ones."""
    b, n = jaxexp.symbolic_shape("b, n", constraints=["n >= 2", "b <= 64"])
    fun = jax.jit(lambda x: jnp.cumsum(x, axis=1))
    return Program(fun, (arr(3, 4),), specs=(spec((b, n)),)), {"batch_dim": "b"}


def weak_types() -> Any:
    """Types that give way in promotion, among arguments and results."""
    fun = jax.jit(lambda x, y: (x * 2, x + y, 3.0))
    weak = jax.ShapeDtypeStruct((), np.float32, weak_type=True)
    return Program(fun, (2.0, arr(3)), specs=(weak, spec((3,)))), {}


def constants() -> Any:
    """Arrays that the function closes over."""
    table = arr(16, 16, seed=4)
    return Program(jax.jit(lambda x: x @ table), (arr(2, 16),)), {}


def recorded() -> Any:
    """Calls that were recorded: given and drawn arguments, of the function and of its VJP."""
    fun = jax.jit(lambda x, y, n: {"sum": (x * y).sum(), "next": n + 1})
    args = arr(2, 3), np.asarray(arr(3), jnp.bfloat16), np.int32(3)
    drawn = jaxexp.Drawn((2, 3), "float32", seed=1), jaxexp.Drawn((3,), "bfloat16", "uniform", 2, -1, 1), np.int32(4)
    cases = [args, {"args": drawn, "name": "drawn", "tolerance": {"result['sum']": (1e-3, 1e-6)}}]
    cases.append({"args": drawn, "name": "gradient", "vjp_order": 1})
    return Program(fun, args), {"reproducible": True}, {"cases": cases}


def traced() -> Any:
    """A call with a trace, of an operation in a loop and of one in a function; its tolerances are measured."""
    fun = jax.jit(lambda w, x: jax.lax.fori_loop(0, 3, lambda _, y: jax.nn.softmax(y @ w), x).sum(0))
    args = arr(4, 4), arr(2, 4, seed=1)
    case = {"args": args, "name": "traced", "trace": True, "tolerance": "measured"}
    return Program(fun, args), {"reproducible": True}, {"cases": [case]}


def sized() -> Any:
    """Sets of sizes to compile for, and rows that are apart, so that other calls can be padded to them."""
    b, n = jaxexp.symbolic_shape("batch, n", constraints=["mod(n, 2) == 0"])
    fun = jax.jit(lambda x: {"norm": jnp.sqrt((x * x).sum(1)), "softmax": jax.nn.softmax(x)})
    sizes = [{"batch": 16, "n": 8}, {"batch": 4, "n": 8}]
    return Program(fun, (arr(3, 8),), specs=(spec((b, n)),)), {}, {"sizes": sizes, "pad": "batch"}


def write(folder: Path, name: str, exported: Any, program: Any, order: int, **more: Any) -> dict[str, int]:
    path = folder / f"{name}.bin"
    exported.save(path, vjp_order=order, metadata={"case": name, "digits": [1, 2.5, None]}, **more)
    arrays = {f"in_{i}": plain(x) for i, x in enumerate(jax.tree.leaves((program.args, program.kwargs)))}
    results = program.live(*program.args, **program.kwargs)
    arrays |= {f"out_{i}": plain(x) for i, x in enumerate(jax.tree.leaves(results))}
    np.savez(folder / f"{name}.npz", **arrays)
    return {"bytes": path.stat().st_size, "vjp_order": order}


def plain(leaf: Any) -> np.ndarray:
    """A leaf as an array of a dtype that numpy has without help: keys as their data, small dtypes widened."""
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    value = np.asarray(leaf)
    if value.dtype.isbuiltin != 2:  # which is for dtypes of packages
        return value
    return value.astype(np.int8 if "int" in value.dtype.name else np.float32)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--label", default="")
    arguments.add_argument("cases", nargs="*")
    options = arguments.parse_args()
    today = datetime.date.today().isoformat() + options.label
    folder = Path(__file__).parent / f"{today}_jaxexp-{jaxexp.__version__}_jax-{jax.__version__}"
    folder.mkdir(exist_ok=True)
    cases = {}
    for name, order in FROM_CORPUS.items():
        if options.cases and name not in options.cases:
            continue
        with CASES[name].context():
            program = CASES[name].build()
            cases[name] = write(folder, name, export_with(jaxexp, program), program, order)
    for build in (other_keys, declared_batch, weak_types, constants, recorded, sized, traced):
        if options.cases and build.__name__ not in options.cases:
            continue
        program, how, *more = build()
        exported = jaxexp.export(program.fun, **how)(*program.specs, **program.kwspecs)
        cases[build.__name__] = write(folder, build.__name__, exported, program, 1, **dict(*more))
    for name in cases:
        cases[name]["x64"] = name in CASES and CASES[name].x64
    (folder / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")
    print(f"{len(cases)} artifacts in {folder}")


if __name__ == "__main__":
    main()
