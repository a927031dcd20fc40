"""What an artifact looks like: cards for notebooks, and pages for `jaxexp view`, with the module as a graph.

May import: _module _function _artifact. JAX is imported only inside functions, if at all.
"""
