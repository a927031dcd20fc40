"""Reads, calls and compares with an old release's own jax.export, from 0.4.22 on, on whatever Python it needs.

python read.py FOLDER RELEASE [CASE...] prints one JSON object a line: before each case its name, after it what came of
it, so that a crash is known by the case that it cut short.

python read.py --goldens [--expired] FOLDER... reads all NAME.bin, whose arguments and results are in NAME.npz. It
prints one JSON object: for each file "ok", or the step that failed and the first line of the error.
"""

import collections
import contextlib
import json
import os
import sys
import types
import warnings
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
warnings.simplefilter("ignore")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

try:
    from jax import export

    deserialize = export.deserialize
except ImportError:  # before 0.4.30
    try:
        from jax.experimental import export
        from jax.experimental.export import deserialize
    except ImportError:  # before 0.4.24
        from jax.experimental.export import export
        from jax.experimental.export.serialization import deserialize


def call(exported):
    if hasattr(exported, "call"):
        return exported.call
    return export.call(exported) if hasattr(export, "call") else export.call_exported(exported)


try:
    from jax import enable_x64
except ImportError:  # before 0.8
    from jax.experimental import enable_x64

FLOAT0 = jax.dtypes.float0


def know_the_corpus():
    """The node types and effects of the corpus, which an artifact knows by name."""
    Point = collections.namedtuple("Point", "x y")
    Segment = collections.namedtuple("Segment", ["start", "end", "weight"])

    @jax.tree_util.register_pytree_node_class
    class Tagged:
        def __init__(self, left, right, tag):
            self.left, self.right, self.tag = left, right, tag

        def tree_flatten(self):
            return (self.left, self.right), self.tag

        @classmethod
        def tree_unflatten(cls, tag, children):
            return cls(*children, tag)

    def decode(data):
        name, number = bytes(data).decode().split("\0")
        return name, int(number)

    if hasattr(export, "register_namedtuple_serialization"):
        export.register_namedtuple_serialization(Point, serialized_name="corpus.Point")
        export.register_namedtuple_serialization(Segment, serialized_name="corpus.Segment")
        export.register_pytree_node_serialization(
            Tagged,
            serialized_name="corpus.Tagged",
            serialize_auxdata=lambda tag: f"{tag[0]}\0{tag[1]}".encode(),
            deserialize_auxdata=decode,
        )
    from jax._src import effects

    class Effect(effects.Effect):
        def __eq__(self, other):
            return type(self) is type(other)

        def __hash__(self):
            return hash(type(self).__name__)

        def __lt__(self, other):
            return type(self).__name__ < type(other).__name__

    module = types.ModuleType("corpus")
    for name in ("FirstOrderedEffect", "SecondOrderedEffect", "UnorderedEffect"):
        effect = type(name, (Effect,), {"__module__": "corpus", "__qualname__": name})
        setattr(module, name, effect)
        effects.lowerable_effects.add_type(effect)
        effects.control_flow_allowed_effects.add_type(effect)
        effects.custom_derivatives_allowed_effects.add_type(effect)
        if "Ordered" in name and name != "UnorderedEffect":
            effects.ordered_effects.add_type(effect)
    sys.modules["corpus"] = module


def make_lapack_ready():
    """Up to 0.9.2 an artifact with a LAPACK call, its own too, crashes a process that has lowered none before."""
    try:
        from jaxlib import lapack

        lapack._lapack.initialize()
    except (ImportError, AttributeError):
        pass


def is_key(dtype):
    return hasattr(jax.dtypes, "prng_key") and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def as_stored(value, aval):
    """A value from the file in the dtype that the function takes."""
    if is_key(aval.dtype):
        name = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}[str(aval.dtype)]
        return jax.random.wrap_key_data(jnp.asarray(value), impl=name)
    if aval.dtype == FLOAT0:
        return np.zeros(value.shape, FLOAT0)
    return value.astype(aval.dtype)


def on_explicit_mesh(sharding):
    """A stored sharding on a mesh of devices, if its axes are Explicit: then it is part of the function's types."""
    if sharding is None or not any("Explicit" in str(kind) for kind in sharding.mesh.axis_types):
        return None
    sizes, names, kinds = sharding.mesh.axis_sizes, sharding.mesh.axis_names, sharding.mesh.axis_types
    return NamedSharding(Mesh(np.array(jax.devices()).reshape(sizes), names, axis_types=kinds), sharding.spec)


def compare(what, found, stored):
    if is_key(found.dtype):
        found = jax.random.key_data(found)
    if found.dtype == FLOAT0:
        assert found.shape == stored.shape, (what, found.shape, stored.shape)
        return
    narrow = jnp.finfo(found.dtype).bits < 32 if jnp.issubdtype(found.dtype, jnp.floating) else False
    found = np.asarray(found)
    if found.dtype != stored.dtype:  # a small dtype, which the file holds in a larger one
        found = found.astype(stored.dtype)
    tolerance = 2e-2 if narrow else 1e-4
    np.testing.assert_allclose(found, stored, rtol=tolerance, atol=1e-5, err_msg=what)


def check(path, stored_in, steps):
    steps.append("deserialize")
    exported = deserialize(bytearray(Path(path).read_bytes()))
    steps.append("call")
    stored = dict(np.load(stored_in))
    leaves = [as_stored(stored[f"in_{i}"], aval) for i, aval in enumerate(exported.in_avals)]
    if exported.nr_devices > 1:
        everywhere = NamedSharding(Mesh(np.array(jax.devices()).reshape(4, 2), ("a", "b")), PartitionSpec())
        stored_shardings = getattr(exported, "_in_named_shardings", [None] * len(leaves))
        placed = [on_explicit_mesh(sharding) or everywhere for sharding in stored_shardings]
        leaves = [jax.device_put(leaf, sharding) for leaf, sharding in zip(leaves, placed, strict=True)]

    def results(*xs):
        args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, xs)
        return jax.tree_util.tree_leaves(call(exported)(*args, **kwargs))

    out = results(*leaves)
    steps.append("compare")
    assert len(out) == sum(name.startswith("out_") for name in stored), "number of results"
    for i, found in enumerate(out):
        compare(f"result {i}", found, stored[f"out_{i}"])
    grads = [name for name in stored if name.startswith("grad_")]
    if grads:
        out, pull = jax.vjp(results, *leaves)
        cotangents = [
            jnp.full_like(r, 0.5 + 0.25 * i) if jnp.issubdtype(r.dtype, jnp.inexact) else np.zeros(r.shape, FLOAT0)
            for i, r in enumerate(out)
        ]
        found = pull(cotangents)
        for name in grads:
            compare(name, found[int(name[5:])], stored[name])


def main(folder, release, names):
    know_the_corpus()
    make_lapack_ready()
    with open(os.path.join(folder, release, "cases.json")) as file:
        cases = json.load(file)
    for name in names or list(cases):
        entry = cases[name]
        for file in entry["files"]:
            print(json.dumps({"case": name, "file": file}), flush=True)
            error = None
            with contextlib.ExitStack() as stack:
                if entry["x64"]:
                    stack.enter_context(enable_x64(True))
                try:
                    check(os.path.join(folder, release, file), os.path.join(folder, name + ".npz"), [])
                except Exception as e:
                    error = type(e).__name__ + ": " + " ".join(str(e).split())[:1500]
            print(json.dumps({"case": name, "file": file, "done": True, "error": error}), flush=True)


def outcome(path):
    steps = []
    try:
        check(path, path.with_suffix(".npz"), steps)
    except BaseException as error:  # JAX's own errors are the point here
        return f"{steps[-1]}: {type(error).__name__}: {str(error).strip()}".splitlines()[0][:200]
    return "ok"


def read_goldens(folders):
    if hasattr(export, "register_namedtuple_serialization"):
        export.register_namedtuple_serialization(collections.namedtuple("Pt", "x y"), serialized_name="corpus.Pt")
    files = sorted(file for folder in folders for file in Path(folder).glob("*.bin"))
    print(json.dumps({f"{file.parent.name}/{file.stem}": outcome(file) for file in files}))


if __name__ == "__main__":
    if "--expired" in sys.argv:
        sys.argv.remove("--expired")
        jax.config.update("jax_export_deserialize_expired_versions", True)
    if sys.argv[1] == "--goldens":
        read_goldens(sys.argv[2:])
    else:
        main(sys.argv[1], sys.argv[2], sys.argv[3:])
