"""From a jitted function to a `Function`.

`export.py` traces and lowers with JAX, and wraps and serializes the module. The VJP is exported on demand, in the
surroundings of the first export.
"""
