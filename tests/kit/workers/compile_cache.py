"""Processes of test_compile_cache.py.

compile_cache.py ARTIFACT           calls a function, and says how often JAX compiled, and a digest of the result
compile_cache.py --killed FOLDER    adds to a folder in child processes that die at a byte by chance
"""

import hashlib
import os
import random
import signal
import sys
from pathlib import Path

from kit.dying import assert_died, die_at, forked

CODE = bytes(range(256)) * 400
CONDITIONS = {"function": "f", "arguments": "float32[8]" * 100}


def call(artifact: str) -> None:
    import numpy as np
    from jax import monitoring

    import jaxexp

    compiled = []

    def listen(event: str, _: float, **__: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    model = jaxexp.load(artifact)
    arguments = [np.linspace(-1, 1, aval.size, dtype=aval.dtype).reshape(aval.shape) for aval in model.in_avals]
    monitoring.register_event_duration_secs_listener(listen)
    result = np.asarray(model.call(*arguments))
    print(len(compiled), hashlib.sha256(result.tobytes()).hexdigest())


def killed(folder: Path) -> None:
    from jaxexp import _native

    store = _native.ExecutableStore(folder, 1 << 30)
    store.put(CONDITIONS, {}, CODE)
    (entry,) = folder.iterdir()
    size, died = entry.stat().st_size, 0
    source = random.Random(0)
    entry.unlink()
    for at in [0, size - 1, *(source.randrange(size) for _ in range(18))]:

        def run(at: int = at) -> None:
            turn = store.turn(CONDITIONS)
            assert turn is not None
            die_at(at)
            store.put(CONDITIONS, {}, CODE)

        child, ended = forked(run)
        assert_died(child, signal.SIGXFSZ)
        os.close(ended)
        died += 1
        assert store.find(CONDITIONS) is None
        turn = store.turn(CONDITIONS)
        assert turn is not None, "the dead process had the turn"
        assert store.put(CONDITIONS, {"a": "b"}, CODE)
        assert store.find(CONDITIONS) == ({"a": "b"}, CODE)
        turn.end()
        for left in folder.iterdir():
            left.unlink()
    print("died", died)


if __name__ == "__main__":
    if sys.argv[1] == "--killed":
        killed(Path(sys.argv[2]))
    else:
        call(sys.argv[1])
