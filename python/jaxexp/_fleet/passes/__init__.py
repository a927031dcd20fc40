"""One question about many artifacts: `verify_many`, `check_many`, `digests_many`, `compatibility_many`, `migrate_many`.

`folders.py` and `given.py` list the artifacts. `one_by_one.py` looks at each of them in a worker. A result names its
artifact, and has the answer or the error.
"""
