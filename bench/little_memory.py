"""A round trip of weights by processes that may have no more memory than twice the weights.

One process makes, exports and saves them, another one loads, calls and differentiates.
"""

from __future__ import annotations

MODES = ("save", "load")
SIDE = 8192  # an array of 256 MiB

# Its arguments: the mode, the file, how many arrays, and their side. It prints by how many megabytes its anonymous
# memory grew while it saved, or while it loaded, called and differentiated.
PROGRAM = """
import sys
from pathlib import Path
import resource
import jax, jax.numpy as jnp, numpy as np
import jaxexp
mode, path, layers, side = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
limit = 2 * layers * side * side * 4
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon"))
x, expected = np.ones((2, side), np.float32), np.prod([(i + 1) / 4 for i in range(layers)])
if mode == "save":
    params = [jnp.full((side, side), (i + 1) / side / 4, jnp.float32) for i in range(layers)]
    def model(x):
        for w in params:
            x = x @ w
        return x
    exported = jaxexp.export(jax.jit(model), weights=params)(x)
    before = anonymous()
    exported.save(path, vjp_order=1)
else:
    before = anonymous()
    model = jaxexp.load(path)
    np.testing.assert_allclose(model.call(x), np.full(x.shape, expected), rtol=1e-3)
    np.testing.assert_allclose(jax.grad(lambda x: model.call(x).sum())(x), np.full(x.shape, expected), rtol=1e-3)
print(anonymous() - before)
"""
