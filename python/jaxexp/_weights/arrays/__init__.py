"""The weights of a function as arrays: from devices to files and back.

`weights.py` has names and bytes of arrays, puts tensors on devices, and is the mapping of both.
"""
