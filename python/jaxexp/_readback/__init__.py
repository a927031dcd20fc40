"""A module read back into a JAX function: each operation becomes the primitive that it was lowered from.

`reader.py` walks the module into the blocks of `program.py`, which run or become one jaxpr. `read_back.py` has the
table that says how each operation is read, from files that know one family each, and functions for known shapes, and
the public `raised` and `make_jaxpr`. `vmap.py` maps calls with it. `in_float64.py` compiles a function in float64, with
rounding errors. `traced.py` reads no module back: it adds to one a fingerprint of what each operation makes.

What surprises: an operation is understood completely or refused. A function that was read back has no gradient: custom
derivatives are gone. Modules of other producers get the derivatives as written from `elementwise.py`.
"""
