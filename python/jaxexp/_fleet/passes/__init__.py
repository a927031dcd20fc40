"""One question about many artifacts, as in `verify_many` and `migrate_many`; with a function of the user, `spread`.

`many.py` lists the artifacts, has workers look at them, and has all passes but `migrate_many`. A result names its
artifact, and has the answer or the error.
"""
