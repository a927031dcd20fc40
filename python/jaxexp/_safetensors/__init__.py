"""Files of tensors in the safetensors format: read, checked and written, one file or a folder of shards.

Without JAX. May import: _io.
"""
