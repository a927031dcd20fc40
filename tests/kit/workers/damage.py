"""Parses damaged modules of golden artifacts, and prints how many were refused and how many parsed."""

import random

import jaxexp
from jaxexp import _jax
from jaxexp._kernel.module import mlir
from kit.modules import modules


def damaged(module: bytes, source: random.Random) -> bytes:
    data = bytearray(module)
    at = source.randrange(len(data))
    if source.random() < 0.6:
        data[at] ^= 1 << source.randrange(8)
    else:
        data[at : at + 8] = source.randbytes(len(data[at : at + 8]))
    return bytes(data)


if __name__ == "__main__":
    counts = {True: 0, False: 0}
    for name, whole in modules("jax-*/*.bin").items():
        choice = random.Random(name)  # so that other modules do not change what happens to this one
        for _ in range(6):
            try:
                with _jax.make_ir_context() as ir_context:
                    mlir.parse(damaged(whole, choice), ir_context)
                counts[True] += 1
            except jaxexp.DeserializationError:
                counts[False] += 1
    print(counts[False], counts[True])
