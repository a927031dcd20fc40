"""A function as data: its fields, its `Facts`, and what it keeps.

`data.py` has the fields and equality, `facts.py` what travels with a function besides its fields, `kept.py` what is
computed once and may be thrown away. `sharding.py` and `convention.py` know how arguments are laid out and passed.

What surprises: a loaded function decodes its fields at the first look at one of them.
"""
