"""A module read back into a JAX function: each operation becomes the primitive that it was lowered from.

May import: _module _function.
"""
