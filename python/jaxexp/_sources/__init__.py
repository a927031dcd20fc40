"""Artifacts wherever they are: in a file, a buffer, a file object or an archive; and the functions that take one
or many.

May import: _archive _compat _weights _read _exported _bulk _artifact _safetensors _io.
JAX is imported only inside functions, if at all.
"""
