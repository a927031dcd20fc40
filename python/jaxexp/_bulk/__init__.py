"""Passes over many artifacts: cut into shares by bytes, run by any executor, resumed from a journal.

May import: _io.
JAX is imported only inside functions, if at all.
"""
