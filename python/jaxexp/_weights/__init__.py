"""A program and its weights: large arrays that stay outside the module.

`files/` reads and writes files of tensors (safetensors). `arrays/` has the weights as arrays, on devices and in files.
`bound/` has a program together with its weights: binding, exporting, saving.
"""
