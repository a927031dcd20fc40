"""Functions together with their weights: the class `BoundExported`, binding, saving and loading them.

May import: _exported _compiled _call _write _module _weights _codec _function _safetensors.
"""
