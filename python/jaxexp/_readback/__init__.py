"""A module read back into a JAX function: each operation becomes the primitive that it was lowered from.

`reader.py` walks the module, and each file beside it knows one family of operations. `staged.py` traces equal steps
once. `read_back.py` has the public `raised` and `jaxpr`. `vmap/` uses all this to map calls. `in_float64.py`
compiles a function in float64: `widened.py` evaluates its jaxpr so, with the rounding errors of `noise.py`. `traced/`
reads no module back: it adds to one.

What surprises: an operation is understood completely or refused. A function that was read back has no gradient, because
custom derivatives are gone; for modules of other producers, `zeros.py` gives operations the derivatives as written.
"""
