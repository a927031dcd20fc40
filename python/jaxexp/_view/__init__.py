"""What an artifact looks like: lines, cards for notebooks, pages for `jaxexp view`, the module as a graph.

All shows the facts of `_kernel/artifact`. Text of others is escaped in one place, `markup.py`.
"""
