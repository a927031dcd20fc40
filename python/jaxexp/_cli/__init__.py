"""The command line: one file per command in `commands/`, and what they share.

May import: _sources _archive _compat _export _weights _read _view _module _releases _bulk _artifact _io.
JAX is imported only inside functions, if at all.
"""
