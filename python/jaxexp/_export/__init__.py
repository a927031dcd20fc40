"""From a jitted function to an `Exported`.

May import: _bound _exported _write _module _codec _function _weights _safetensors _artifact.
"""
