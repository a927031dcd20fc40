"""One question about many artifacts, as in `verify_many` and `migrate_many`; with a function of the user, `spread`.

`folders.py` and `given.py` list the artifacts. `one_by_one.py` has workers look at each of them, and the passes that
need no more than that; `migrate_many.py` and `verify_many.py` have the others. A result names its artifact, and has
the answer or the error.
"""
