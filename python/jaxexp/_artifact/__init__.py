"""What an artifact says about itself, read from its bytes.

May import: _io. No JAX is imported here.
"""
