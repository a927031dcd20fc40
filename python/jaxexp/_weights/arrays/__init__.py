"""The weights of a function as arrays: from devices to files and back.

`pieces.py` has names and bytes of arrays, `placing.py` puts tensors on devices, `weights.py` is the mapping of both.
"""
