"""What each release of JAX knows: StableHLO versions, features of the format, dates.

The table is measured from released wheels, not written by hand (`tests/interop/`).
"""
