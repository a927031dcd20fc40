"""One artifact, wherever it is: in a file, a buffer, a file object, a member of an archive, or behind a URL.

`source.py` makes one object of all these; `load`, `inspect`, `verify`, `compatibility` and `migrate` begin with it.
"""
