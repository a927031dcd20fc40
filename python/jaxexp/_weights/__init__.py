"""A program and its weights: large arrays that stay outside the module.

    files/    files of tensors, without JAX: read, written, and saved beside a program (`saving.py` has the protocol)
    arrays/   `Weights`: a mapping that reads a weight when it is first used, and puts it on its devices
    bound/    programs whose first argument is a dict of weights: lifted out of a trace, bound, saved

README.md says how weights come out of a trace, into files, and back.
"""
