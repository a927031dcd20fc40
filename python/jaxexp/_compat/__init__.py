"""jaxexp beside other releases of JAX: who can read an artifact, old artifacts in a new format, and `install`.

`compatibility` reads what decides who can read an artifact, and asks each release of the table about it. `migrate` decodes
an artifact, brings its modules up to date, writes it, and compares what it wrote with the original.

What surprises: nothing here runs a function, except `migrate` with `inputs`.
"""
