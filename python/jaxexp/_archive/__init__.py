"""Archives: many artifacts in one file, read and written.

May import: _read _bound _exported _compiled _weights _view _function _bulk _artifact _safetensors _io.
JAX is imported only inside functions, if at all.
"""
