"""How single values cross into bytes: nodes of trees, dtypes, dimensions.

The native module calls back here for values that only Python can judge. `nodes.py` has the classes that users
registered, and describes the others by their names.
"""
