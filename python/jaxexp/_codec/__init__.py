"""How single values become bytes: tree nodes, dtypes, dict keys.

May import: _function _artifact.
"""
