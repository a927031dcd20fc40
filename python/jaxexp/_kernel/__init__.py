"""The format, and what a function needs to be exported, written, read and called. It imports no wing.

Above are the verbs: `export/` from a jitted function to a `Function`, `write/` to bytes, `read/` back, `call/` into the
caller's program. Below is what they share: `module/` the StableHLO module, `codec/` single values, `function/` a
function as data, `releases/` what each JAX can read, `artifact/` what bytes say without JAX, `io/` files and threads.

What surprises: `exported.py` has a complete class. `jaxexp.Exported` is a subclass with the verbs of the wings.
"""
