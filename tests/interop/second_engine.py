"""IREE beside XLA: modules of exported functions and of their VJPs, run by an engine that shares no code with JAX's.

python second_engine.py [--folder FOLDER] [--writer PYTHON]

Prints a table, and fails where a value is another one, or where what is known of IREE is no longer so. IREE comes from
PyPI; where it cannot be had, this says so and ends well. In FOLDER, `write` and `run` are the two halves: the first is
for a Python with jaxexp, the second for one with IREE.
"""

from __future__ import annotations

import argparse
import collections
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENGINE = ("iree-base-compiler==3.13.0", "iree-base-runtime==3.13.0", "numpy", "ml_dtypes")
# One device, no custom calls, numbers that NumPy's files hold; symbolic dimensions are fixed first.
SAMPLE = (
    "sin scalars no_arguments fifty_arguments dropped nested_containers custom_node wide_tree integers_and_floats "
    "threefry_key symbolic_batch symbolic_several symbolic_expressions symbolic_while multi_platform "
    "platform_dependent scan while_loop cond fori_and_switch custom_vjp remat donated large_constant perceptron "
    "convolution_and_gather nested_jit_and_vmap random_inside"
).split()
# What this release of IREE does not run, by what it says; and what it runs wrong.
TOO_MANY = "binding count"  # of buffers in one dispatch, which are at most 32
KNOWN = {
    "fifty_arguments": TOO_MANY,
    "random_inside": "out range of the declared binding capacity",  # of a command buffer that it made itself
    "threefry_key": "dialect 'sdy' does not implement the bytecode interface",
    "wide_tree": TOO_MANY,
    "donated": "Not equal to tolerance",  # it writes the first result over the argument, and reads that for the second
}


def write(folder: Path) -> None:
    """For each case a module, and a .npz of what goes in and what JAX makes of it; for its VJP, too."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.path.insert(0, str(HERE.parent))
    import jax
    import numpy as np

    import jaxexp
    from kit.corpus import CASES, export_with
    from kit.runtime_values import flat_arguments, flat_results

    def one(name: str, exported: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = flat_arguments(exported, args, kwargs)
        inputs = [given[i] for i in exported.module_kept_var_idx]
        if len(exported.platforms) > 1:
            inputs.insert(0, np.array(exported.platforms.index("cpu"), np.int32))
        results = flat_results(exported, exported.call(*args, **kwargs))
        (folder / f"{name}.mlir").write_bytes(exported.mlir_module_serialized)
        arrays = {f"in_{i}": array for i, array in enumerate(inputs)}
        np.savez(folder / f"{name}.npz", **arrays, **{f"out_{i}": array for i, array in enumerate(results)})

    for name in SAMPLE:
        case = CASES[name]
        with case.context():
            program = case.build()
            exported = export_with(jaxexp, program)
            args, kwargs = program.args, program.kwargs
            if any(not isinstance(size, int) for aval in exported.in_avals for size in aval.shape):
                specs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), (args, kwargs))
                exported = exported.specialize(*specs[0], **specs[1])
            one(name, exported, args, kwargs)
            if case.vjp_order:
                vjp = exported.vjp()
                rng = np.random.default_rng(1)
                leaves = [rng.uniform(0.25, 1.75, aval.shape).astype(aval.dtype) for aval in vjp.in_avals]
                if all(aval.dtype != jax.dtypes.float0 for aval in vjp.in_avals):
                    one(f"{name}-vjp", vjp, *vjp.in_tree.unflatten(leaves))


def run(folder: Path, name: str) -> None:
    """Fails where a result is not JAX's."""
    import iree.compiler
    import iree.runtime
    import numpy as np

    options = ["--iree-llvmcpu-target-cpu=host"]
    module = (folder / f"{name}.mlir").read_bytes()
    program = iree.compiler.compile_str(module, target_backends=["llvm-cpu"], input_type="auto", extra_args=options)
    context = iree.runtime.SystemContext(config=iree.runtime.Config("local-sync"))
    loaded = iree.runtime.VmModule.copy_buffer(context.instance, program)
    context.add_vm_module(loaded)
    with np.load(folder / f"{name}.npz") as file:
        arrays = dict(file)
    results = context.modules[loaded.name]["main"](*(arrays[key] for key in arrays if key.startswith("in_")))
    results = [] if results is None else results if isinstance(results, (list, tuple)) else [results]
    expected = [arrays[key] for key in arrays if key.startswith("out_")]
    for result, wanted in zip(map(np.asarray, results), expected, strict=True):
        assert result.shape == wanted.shape, f"a result of shape {result.shape} where JAX has {wanted.shape}"
        np.testing.assert_allclose(result.astype(np.float64), wanted.astype(np.float64), rtol=1e-4, atol=1e-5)


def installed(folder: Path, python: str) -> Path | None:
    """The folder with IREE; None where pip cannot install it."""
    target, partial = folder / "engine", folder / ".engine"
    if not target.exists():
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(partial)]
        done = subprocess.run([*command, *ENGINE], stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            print(f"IREE is left out, as pip cannot install it: {done.stderr.strip().splitlines()[-1]}")
            return None
        partial.rename(target)
    return target


def compared(name: str, python: str, environment: dict[str, str], folder: Path) -> str:
    """Runs one module in a process of its own, as a compiler may end it: "alike", "known", or "unexpected"."""
    command = [python, "-P", __file__, "run", str(folder), name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        outcome = "unexpected" if name in KNOWN else "alike"
    else:
        outcome = "known" if name in KNOWN and KNOWN[name] in done.stderr else "unexpected"
    why = done.stderr.strip().splitlines()[-1:] if outcome == "unexpected" else [KNOWN.get(name, "")]
    print(f"| {name} | {outcome} | {''.join(why)[:200]} |", flush=True)
    return outcome


def main(folder: Path, chosen_writer: str | None) -> int:
    from run import writer  # beside this file

    folder = folder.absolute()
    modules = folder / "modules"
    modules.mkdir(parents=True, exist_ok=True)
    python = chosen_writer or writer(folder)
    engine = installed(folder, python)
    if engine is None:
        return 0
    subprocess.run([python, __file__, "write", str(modules)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(engine)}
    print("| module | IREE's values are | |\n|---|---|---|", flush=True)
    names = sorted(path.stem for path in modules.glob("*.mlir"))
    found = collections.Counter(compared(name, python, environment, modules) for name in names)
    print(f"IREE: {found['alike']} of {len(names)} modules have the values of JAX; {found['unexpected']} unexpected")
    return 1 if found["unexpected"] else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["run"]:
        run(Path(sys.argv[2]), sys.argv[3])
    else:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        parser.add_argument("--folder", type=Path, default=HERE.parents[1] / ".interop", help="for wheels and modules")
        parser.add_argument("--writer", help="a Python with jaxexp and the newest JAX; by default one is set up")
        options = parser.parse_args()
        sys.exit(main(options.folder, options.writer))
