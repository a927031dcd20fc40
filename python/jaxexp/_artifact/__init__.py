"""What an artifact says of itself, read from its bytes.

May import: _io. No JAX is imported here.
"""
