"""From an `Exported` to bytes, for today's `jax.export` or an older one.

May import: _codec _module _function _releases _artifact _io.
"""
