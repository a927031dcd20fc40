"""The weights of a function as arrays: from devices to files and back.

`Weights` is a mapping that reads an array when it is first asked for. `saving.py` writes files so that a program finds the
weights that it was saved with, whenever the process dies.
"""
