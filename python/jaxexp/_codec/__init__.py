"""How single values cross into bytes: tree nodes, dtypes, dict keys.

May import: _function.
"""
