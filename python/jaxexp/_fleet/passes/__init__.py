"""One question about many artifacts: `verify_many`, `compatibility_many`, `migrate_many`.

`folders.py` and `given.py` list the artifacts. `in_workers.py` is the work for one share. A result says which artifact it
is of, and what was found or which error was raised.
"""
