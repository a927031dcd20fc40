"""From a function to bytes, for today's `jax.export` or an older one.

`options.py` has the record of options. `reader.py` has the release that is to read, and rewrites a module for it.
`serialize.py` calls the native encoder.
"""
