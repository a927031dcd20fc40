"""A function as data: its fields, its `Facts`, and what it keeps.

`data.py` has the fields and equality, the facts that travel with a function besides its fields, and what is computed
once and may be thrown away. `sharding.py` knows how arguments are sharded, and `convention.py` in which order the
module takes them.

What surprises: a loaded function decodes all its fields on the first access to one of them.
"""
