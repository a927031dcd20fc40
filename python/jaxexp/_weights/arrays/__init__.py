"""The weights of a function as arrays: from devices to files and back.

`Weights` is a mapping that reads an array when it is first used. `saving.py` writes files so that a program always
finds the weights that it was saved with, even if the process dies.
"""
