"""Archives: many artifacts in one file, read and written.

May import: _read _exported _compiled _function _artifact _io.
JAX is imported only inside functions, if at all.
"""
