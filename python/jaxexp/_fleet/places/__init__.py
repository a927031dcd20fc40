"""One artifact, wherever it is: in a file, a buffer, a file object, a member of an archive, or behind a URL.

`source.py` makes one object of all these, a `Source`. `Opened` is such an artifact, read once: its bytes, and the only
way to the files that it uses. `load`, `inspect`, `verify`, `sign` and the passes begin with these two.
"""
