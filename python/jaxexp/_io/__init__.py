"""Files, sources of bytes, locks, threads.

May import: nothing. No JAX is imported here.
"""
