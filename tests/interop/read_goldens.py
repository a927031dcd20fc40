"""Reads and calls artifacts with the `jax.export` of the JAX that runs it, from 0.4.22 on; prints JSON.

    python read_goldens.py FOLDER...

A folder holds NAME.bin, and NAME.npz with the arguments and the results. For each file: "ok", or the step that failed
and the first line of the error. JAX's own errors are the point here, so every exception is taken.
"""

import collections
import json
import os
import sys
import warnings
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
warnings.simplefilter("ignore")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

try:
    from jax import export
except ImportError:  # until 0.4.29
    from jax.experimental import export
deserialize = getattr(export, "deserialize", None)
if deserialize is None:  # until 0.4.23
    from jax.experimental.export import export
    from jax.experimental.export.serialization import deserialize

Pt = collections.namedtuple("Pt", "x y")
if hasattr(export, "register_namedtuple_serialization"):
    export.register_namedtuple_serialization(Pt, serialized_name="corpus.Pt")
if "--expired" in sys.argv:
    sys.argv.remove("--expired")
    jax.config.update("jax_export_deserialize_expired_versions", True)


def arguments(exported, stored):
    leaves = []
    for i, aval in enumerate(exported.in_avals):
        value = stored[f"in_{i}"]
        if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
            leaves.append(jax.random.wrap_key_data(jnp.asarray(value), impl="threefry2x32"))
        else:
            leaves.append(value.astype(aval.dtype))
    if exported.nr_devices > 1:
        mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
        leaves = [jax.device_put(leaf, NamedSharding(mesh, P())) for leaf in leaves]
    return exported.in_tree.unflatten(leaves)


def outcome(path):
    step = "deserialize"
    try:
        exported = deserialize(bytearray(path.read_bytes()))
        step = "call"
        stored = np.load(path.with_suffix(".npz"))
        args, kwargs = arguments(exported, stored)
        if hasattr(exported, "call"):
            call = exported.call
        else:
            call = export.call(exported) if hasattr(export, "call") else export.call_exported(exported)
        results = jax.tree_util.tree_leaves(call(*args, **kwargs))
        step = "compare"
        for i, (result, aval) in enumerate(zip(results, exported.out_avals, strict=True)):
            expected = stored[f"out_{i}"]
            if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
                result = jax.random.key_data(result)
            np.testing.assert_allclose(np.asarray(result).astype(expected.dtype), expected, rtol=1e-4, atol=1e-5)
    except BaseException as error:
        return f"{step}: {type(error).__name__}: {str(error).strip()}".splitlines()[0][:200]
    return "ok"


files = sorted(file for folder in sys.argv[1:] for file in Path(folder).glob("*.bin"))
print(json.dumps({f"{file.parent.name}/{file.stem}": outcome(file) for file in files}))
