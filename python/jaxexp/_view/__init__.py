"""What an artifact looks like: lines, cards for notebooks, pages for `jaxexp view`, the module as a graph.

Everything here shows the facts of `_kernel/artifact`. Only `element` in `card.py` escapes text for HTML.
"""
