"""Writes artifacts of functions for eight devices, with a release of JAX from before Shardy: 0.4.23 to 0.5.3.

usage: generate.py FOLDER [CASE ...]

`FOLDER/jax-VERSION/CASE.bin` is the artifact, `CASE.npz` its arguments (`in_0`, ...) and what the function computed
there (`out_0`, ...); `cases.json` says for each argument and result which part of it each device held, as the starts
and ends along its axes. Needs no part of jaxexp.
"""

import json
import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.shard_map import shard_map
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

try:
    from jax import export as jax_export

    serialize = None
except ImportError:  # before 0.4.30
    from jax.experimental import export as jax_export

    if hasattr(jax_export, "serialize"):
        serialize = jax_export.serialize
    else:
        from jax.experimental.export import export as jax_export
        from jax.experimental.export.serialization import serialize

if hasattr(jax.config, "jax_use_shardy_partitioner"):
    jax.config.update("jax_use_shardy_partitioner", False)


def mesh(**axes):
    return Mesh(np.array(jax.devices()).reshape(tuple(axes.values())), tuple(axes))


WIDE, DEEP, LINE = mesh(x=4, y=2), mesh(a=2, b=2, c=2), mesh(i=8)
MOVED = Mesh(np.array(jax.devices()).reshape(2, 4).T, ("x", "y"))  # another order of devices


def array(*shape):
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def on(m, *specs):
    return [NamedSharding(m, spec) for spec in specs]


def constrain(value, m, spec):
    return lax.with_sharding_constraint(value, NamedSharding(m, spec))


def arguments():
    def f(a, b):
        return a * 2 + b, (a @ b.T).sum()

    a, b = on(WIDE, P("x", "y"), P("x"))
    return jax.jit(f, in_shardings=(a, b), out_shardings=(a, None)), (array(8, 4), array(8, 4))


def constraint():
    def f(a):
        return jnp.sin(constrain(a, WIDE, P("y", None))) @ constrain(a, WIDE, P(None, "x")).T

    s, t = on(WIDE, P("x", "y"), P(("x", "y")))
    return jax.jit(f, in_shardings=s, out_shardings=t), (array(8, 8),)


def several_axes():
    def f(a, b):
        c = constrain(a, DEEP, P(("a", "c"), "b"))
        return c + b, constrain(c, DEEP, P("b", ("c", "a")))

    s, t = on(DEEP, P(("c", "a")), P("b", "c"))
    return jax.jit(f, in_shardings=(s, t), out_shardings=(t, s)), (array(8, 8), array(8, 8))


def order_of_devices():
    def f(a):
        return constrain(a + 1, MOVED, P("y"))

    s, t = on(MOVED, P("x", "y"), P(None, ("y", "x")))
    return jax.jit(f, in_shardings=s, out_shardings=t), (array(8, 8),)


def sub_axes():
    """Two meshes over the same devices: what is one axis here is two there."""

    def f(a, b):
        c = constrain(a, LINE, P("i"))
        return constrain(c, DEEP, P("a", ("b", "c"))) + b, constrain(c, WIDE, P("x"))

    return jax.jit(f, in_shardings=(*on(WIDE, P("x", "y")), *on(LINE, P(None, "i")))), (array(8, 8), array(8, 8))


def unconstrained():
    def f(a):
        return constrain(jnp.cos(a), WIDE, P(P.UNCONSTRAINED, "y"))

    return jax.jit(f, in_shardings=on(WIDE, P("x"))[0]), (array(8, 8),)


def symbolic():
    def f(a):
        return constrain(jnp.cos(a), WIDE, P("x", "y")) * a.shape[0]

    s, t = on(WIDE, P("x"), P("y", "x"))
    return jax.jit(f, in_shardings=s, out_shardings=t), (array(8, 8),)


def scan():
    def f(a, b):
        def step(carry, x):
            carry = constrain(jnp.tanh(carry @ b) + x, WIDE, P("x", "y"))
            return carry, carry.sum(axis=0)

        return lax.scan(step, a, jnp.arange(3.0))

    s, t = on(WIDE, P("x", None), P(None, "y"))
    return jax.jit(f, in_shardings=(s, t)), (array(8, 4), array(4, 4))


def nested_jit():
    inner = jax.jit(lambda x: x * 2, in_shardings=on(WIDE, P("y", "x"))[0], out_shardings=on(WIDE, P(None, "x"))[0])

    def f(a):
        return inner(a) + inner(a + 1)

    return jax.jit(f, in_shardings=on(WIDE, P("x"))[0]), (array(8, 8),)


def shard_map_psum():
    def f(a):
        return shard_map(
            lambda x: lax.psum(x, "y"), mesh=WIDE, in_specs=P("x", "y"), out_specs=P("x", None)
        )(a) * 2  # fmt: skip

    return jax.jit(f, in_shardings=on(WIDE, P("x", "y"))[0]), (array(8, 4),)


def shard_map_collectives():
    def body(x, y):
        i = lax.axis_index("x")
        gathered = lax.all_gather(x, "x", axis=0, tiled=True)
        moved = lax.ppermute(y, "x", [(j, (j + 1) % 4) for j in range(4)])
        swapped = lax.all_to_all(x, "y", split_axis=1, concat_axis=0, tiled=True)
        return gathered.sum(axis=0, keepdims=True), moved + i, swapped, lax.psum_scatter(y, "y", tiled=True)

    def f(a, b):
        return shard_map(
            body, mesh=WIDE, in_specs=(P("x", None), P("x", "y")),
            out_specs=(P(None, None), P("x", "y"), P(("x", "y"), None), P(("x", "y"), None)), check_rep=False,
        )(a, b)  # fmt: skip

    return jax.jit(f, in_shardings=tuple(on(WIDE, P("x", None), P("x", "y")))), (array(8, 4), array(16, 4))


def shard_map_inside():
    """Data comes to it and leaves it in other shardings, and it is called twice in one function."""

    def f(a):
        square = shard_map(lambda x: x @ x.T, mesh=DEEP, in_specs=P("b", None), out_specs=P(None, "b"), check_rep=False)
        double = shard_map(lambda x: x * 2, mesh=DEEP, in_specs=P(("c", "a"), None), out_specs=P(("c", "a"), None))
        return square(jnp.cos(a)), double(double(constrain(a, DEEP, P(None, "c"))))

    return jax.jit(f, in_shardings=on(DEEP, P("a", "c"))[0]), (array(8, 4),)


def shard_map_in_loop():
    """Twice: in the body of a scan, and differentiated, which makes another one. JAX 0.5.3 crashes on it."""

    def body(c, x):
        return lax.ppermute(jnp.sin(c), "y", [(0, 1), (1, 0)]) * x, jnp.full((2,), lax.axis_index("x"), jnp.int32)

    def f(a):
        def step(c, x):
            return shard_map(
                body, mesh=WIDE, in_specs=(P("x", "y"), P()), out_specs=(P("x", "y"), P("x")), check_rep=False
            )(c, x)  # fmt: skip

        def total(a):
            return lax.scan(step, a, jnp.arange(1.0, 4.0))[0].sum()

        return [*jax.value_and_grad(total)(a), lax.scan(step, a, jnp.arange(2.0))[1]]

    return jax.jit(f, in_shardings=on(WIDE, P("x", "y"))[0]), (array(8, 4),)


def shard_map_partly():
    """One axis stays with the compiler."""

    def f(a):
        return shard_map(
            lambda x: lax.psum(jnp.sin(x), "x"), mesh=WIDE, in_specs=P("x", None), out_specs=P(), auto=frozenset({"y"}),
            check_rep=False,
        )(a)  # fmt: skip

    return jax.jit(f, in_shardings=on(WIDE, P("x", "y"))[0]), (array(8, 4),)


def six_devices():
    """Two by three and three by two: no axes of one mesh make both."""
    wide, deep = (Mesh(np.array(jax.devices()[:6]).reshape(shape), ("x", "y")) for shape in ((2, 3), (3, 2)))

    def f(a):
        return constrain(jnp.sin(constrain(a, deep, P("x", "y"))), wide, P("x", "y"))

    return jax.jit(f, in_shardings=on(wide, P("x", "y"))[0], out_shardings=on(deep, P("x"))[0]), (array(6, 6),)


CASES = [
    arguments, constraint, several_axes, order_of_devices, sub_axes, unconstrained, symbolic, scan, nested_jit,
    shard_map_psum, shard_map_collectives, shard_map_inside,
    shard_map_in_loop, shard_map_partly, six_devices,
]  # fmt: skip


def parts(x, devices):
    """For each device in order, the starts and ends of the part of the array that it holds."""
    held = {
        device.id: [list(s.indices(n)[:2]) for s, n in zip(index, x.shape, strict=True)]
        for device, index in x.sharding.devices_indices_map(x.shape).items()
    }
    return [held[device.id] for device in devices]


def main():
    folder = f"{sys.argv[1]}/jax-{jax.__version__}"
    os.makedirs(folder, exist_ok=True)
    report = {}
    for case in CASES:
        if sys.argv[2:] and case.__name__ not in sys.argv[2:]:
            continue
        function, args = case()
        try:
            specs = args
            if case is symbolic:
                specs = [jax.ShapeDtypeStruct(jax_export.symbolic_shape("4*b, 8"), np.float32)]
            exported = jax_export.export(function)(*specs)
            vjp_order = int(case in (arguments, constraint))
            blob = serialize(exported, vjp_order) if serialize else exported.serialize(vjp_order=vjp_order)
        except Exception as error:
            report[case.__name__] = {"error": f"{type(error).__name__}: {str(error)[:100]}"}
            continue
        with open(f"{folder}/{case.__name__}.bin", "wb") as file:
            file.write(bytes(blob))
        compiled = function.lower(*args).compile()
        shardings = jax.tree_util.tree_leaves(compiled.input_shardings[0])
        placed = [jax.device_put(x, s) for x, s in zip(args, shardings, strict=True)]
        results = jax.tree_util.tree_leaves(compiled(*placed))
        stored = {f"in_{i}": x for i, x in enumerate(args)} | {f"out_{i}": np.asarray(x) for i, x in enumerate(results)}
        np.savez_compressed(f"{folder}/{case.__name__}.npz", **stored)
        # An artifact counts devices as its function does.
        devices = list((MOVED if case is order_of_devices else LINE).devices.flat)[: 6 if case is six_devices else 8]
        report[case.__name__] = {"in": [parts(x, devices) for x in placed], "out": [parts(x, devices) for x in results]}
    with open(f"{folder}/cases.json", "w") as file:
        json.dump(report, file)
        file.write("\n")
    print(jax.__version__, {name: entry.get("error", "ok") for name, entry in report.items()})


if __name__ == "__main__":
    main()
