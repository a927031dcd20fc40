"""What each release of JAX knows.

May import: _artifact. No JAX is imported here.
"""
