"""Models that are served: functions of one array of float32 whose weights are in the file, for several runtimes.

Run as a program, this is a process that serves a model. It imports nothing but what it serves with.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Call = Callable[[np.ndarray], np.ndarray]


def load(how: str, model: str) -> Call:
    """`how` is "jaxexp", "jax.export", "executables", "session", "session, executables", "ONNX Runtime",
    "AOTInductor" or "pypjrt"; `model` is the path of the artifact, beside which other files have its name and more.
    """
    if how == "ONNX Runtime":
        import onnxruntime

        session = onnxruntime.InferenceSession(f"{model}.onnx", providers=["CPUExecutionProvider"])
        return lambda x: session.run(None, {"x": x})[0]
    if how == "AOTInductor":
        import torch

        module = torch._inductor.aoti_load_package(f"{model}.pt2")
        without_gradients = torch.inference_mode()  # which threads have by themselves
        return without_gradients(lambda x: module(torch.from_numpy(x)).numpy())
    if how.startswith("session"):
        from jaxexp.runtime import Session

        return Session(model, executables=f"{model}.code" if how.endswith("executables") else None)
    import numpy as np

    if how == "pypjrt":
        from pypjrt.typing import F32

        client = _pypjrt_client()
        executable = client.deserialize_executable(Path(f"{model}.pypjrt").read_bytes())

        def call(x: np.ndarray) -> np.ndarray:
            with client.device() as device:
                (result,) = executable(client.typed_buffer(F32, x, x.shape, device))
            found = np.empty(result.dimensions, np.float32)
            result.to_host(found)
            return found

        return call
    if how == "executables":
        import jaxexp

        loaded: Any = jaxexp.load(model, executables=f"{model}.exe")
        return lambda x: np.asarray(loaded.call(x))  # in a jax.jit, JAX compiles
    import importlib

    import jax

    from bench.reader import reader

    jitted = jax.jit(reader(importlib.import_module(how))(model).call)
    return lambda x: np.asarray(jitted(x))


def _pypjrt_client() -> Any:
    import pypjrt

    return pypjrt.Client.create(os.environ["JAXEXP_PLUGIN"])


def prepare(how: str, model: str, x: np.ndarray) -> None:
    """Writes the file of executables that `load` takes."""
    if how == "pypjrt":
        import jaxexp

        executable = _pypjrt_client().compile(jaxexp.load(model).mlir_module_serialized)
        Path(f"{model}.pypjrt").write_bytes(executable.serialize())
    elif how == "executables":
        import jaxexp

        jaxexp.load(model).precompile((x,), into=f"{model}.exe")
    else:
        from jaxexp.runtime import Session

        session = Session(model)
        session(x)
        session.save_executable(f"{model}.code")


def seconds_of_a_call(call: Call, x: np.ndarray, threads: int, calls: int) -> float:
    """The time of `calls` calls by each of some threads, divided by the number of all calls."""

    def run() -> None:
        for _ in range(calls):
            call(x)

    others = [threading.Thread(target=run) for _ in range(threads - 1)]
    start = time.perf_counter()
    for other in others:
        other.start()
    run()
    for other in others:
        other.join()
    return (time.perf_counter() - start) / (calls * threads)


def main() -> None:
    how, model, task = json.loads(sys.argv[1])
    import numpy as np

    x = np.load(f"{model}.npy")
    if task == "prepare":
        prepare(how, model, x)
        return
    call = load(how, model)
    result = call(x)
    print("ready", flush=True)
    if task == "result":
        np.save(f"{model}.result.npy", result)
    # Each line asks for a sample: how many threads, and seconds for all of it.
    for line in sys.stdin:
        threads, seconds = json.loads(line)
        once = seconds_of_a_call(call, x, threads, 1)
        once = seconds_of_a_call(call, x, threads, max(1, int(seconds / 10 / once / threads)))
        print(seconds_of_a_call(call, x, threads, max(1, int(seconds / once / threads))), flush=True)


if __name__ == "__main__":
    main()
