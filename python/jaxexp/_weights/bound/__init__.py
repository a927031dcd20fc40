"""A program whose first argument is a dict of weights, together with these weights.

`lifting.py` turns constants of a traced function into arguments; `taking.py` chooses which. `renamed.py` turns any
first argument into such a dict. `program.py` finds the weights of a program, and `save.py` saves both.
"""
