"""A module read back into a JAX function: each operation becomes the primitive that it was lowered from.

`reader.py` walks the module, and the files beside it know one family of operations each. `staged.py` traces equal steps
once. `read_back.py` has the public `raised` and `jaxpr`. `vmap/` maps calls with it.

What surprises: an operation is understood completely or refused. Functions that were read back have no gradient, since
custom derivatives are gone.
"""
