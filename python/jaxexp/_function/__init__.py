"""An exported function as data: fields, calling convention, shardings.

May import: _artifact.
"""
