"""A program and its weights: large arrays that stay outside of the module.

`arrays/` are the weights as arrays, on devices and in files. `bound/` is a program together with weights: binding, exporting,
calling, saving. `files/` reads and writes files of tensors (safetensors).
"""
