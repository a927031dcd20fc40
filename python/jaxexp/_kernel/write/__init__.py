"""From a function to bytes, for today's `jax.export` or an older one.

`options.py` has the record of options, and `reader.py` the release that is to read. `retarget.py` rewrites a module for
that release, and `serialize.py` calls the native encoder.
"""
