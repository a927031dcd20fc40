"""jaxexp beside other releases of JAX: who can read an artifact, old artifacts in a new format, and `install`.

`foreign/` makes functions of modules that other programs wrote.

`compatibility` collects the facts that decide who can read an artifact, and compares them with each release in the
table. `migrate` decodes an artifact, brings its modules up to date, writes it, and compares the new artifact with the
original.

What surprises: nothing here runs a function, except `migrate` with `inputs`.
"""
