"""From a jitted function to a `Function`.

`lower.py` traces and lowers with JAX, and `export.py` wraps and serializes the module. The VJP is exported on demand,
in the surroundings of the first export.
"""
