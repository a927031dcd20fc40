"""Code that was compiled earlier and kept in a file beside a function: read and written, compared and called.

May import: _module _function _artifact _io.
"""
