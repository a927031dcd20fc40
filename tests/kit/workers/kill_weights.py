"""Saves two programs with weights over each other in child processes that are killed: test_saving.py starts this.

kill_weights.py FOLDER    in front of each step that the system is asked for, and then at many bytes of the files
"""

import json
import os
import signal
import sys
from itertools import count

import jax
import numpy as np

from jaxexp._kernel.io import files
from jaxexp._weights.arrays import saving
from jaxexp._weights.arrays.stored import Stored, Table
from jaxexp._weights.arrays.weights import Weights
from kit.dying import assert_died, die_at, forked
from kit.tensor_files import array_in

SHAPE = {"w": (64, 8), "b": (30,)}
TYPES = {name: jax.typeof(jax.ShapeDtypeStruct(shape, np.float32)) for name, shape in SHAPE.items()}


def values(version: int) -> dict[str, np.ndarray]:
    return {name: np.full(shape, version, np.float32) for name, shape in SHAPE.items()}


def save(folder: str, version: int) -> None:
    """A program that says which version it is, and the weights of this version."""
    arrays = values(version)

    def write_program(table: Table) -> None:
        program = {"version": version, "weights": [[[n, s, c.hex()] for n, s, c in table.files]]}
        program["weights"].append([[n, f, s, d.hex()] for n, f, s, d in table.tensors])
        files.replace(os.path.join(folder, "program"), [json.dumps(program).encode()])

    path = os.path.join(folder, "program")
    saving.save(path, "model.safetensors", Weights(TYPES, arrays).sources(), write_program, max_file_size=1000)


def look(folder: str) -> int:
    """The version that is there, with its own weights."""
    path = os.path.join(folder, "program")
    with open(path, "rb") as file:
        program = json.load(file)
    of_files, of_tensors = program["weights"]
    table = Table.of_trailer(
        [(n, s, bytes.fromhex(c)) for n, s, c in of_files],
        [(n, f, s, bytes.fromhex(d)) for n, f, s, d in of_tensors],
        [],
    )
    stored = Stored(path, table)
    stored.check_digests()
    for name, expected in values(program["version"]).items():
        file, tensor = stored.find(name)
        np.testing.assert_array_equal(array_in(file, tensor), expected)
    return program["version"]


def save_until(folder: str, version: int, step: int) -> None:
    """Saves, and is killed in front of the step of this number."""
    steps = count(1)

    def on_event(event: str, args: tuple[object, ...]) -> None:
        if (event == "open" or event.startswith("os.")) and next(steps) == step:
            os.write(1, f"{event}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(on_event)
    save(folder, version)
    os.write(1, b"done\n")
    os._exit(0)


def save_and_die(folder: str, version: int, size: int) -> None:
    die_at(size)
    save(folder, version)


def main() -> None:
    (folder,) = sys.argv[1:]
    save(folder, 1)
    for step in count(1):
        child, ended = forked(lambda step=step: save_until(folder, 2, step))
        with os.fdopen(ended) as pipe:
            event = pipe.read().split()[-1]
        if event == "done":
            os.waitpid(child, 0)
            break
        assert_died(child, signal.SIGKILL)
        print("step", event, look(folder))
        save(folder, 1)
        assert look(folder) == 1
    assert look(folder) == 2
    save(folder, 1)
    for size in range(0, os.path.getsize(os.path.join(folder, "model-00001-of-00002.safetensors")), 300):
        child, ended = forked(lambda size=size: save_and_die(folder, 2, size))
        os.close(ended)
        assert_died(child, signal.SIGXFSZ)
        print("byte", size, look(folder))
    save(folder, 2)
    print("left", *sorted(name for name in os.listdir(folder) if not name.endswith(".tmp")))


if __name__ == "__main__":
    main()
