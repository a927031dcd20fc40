"""A program, whose first argument is a dict of weights, together with these weights.

`lifting.py` makes arguments of constants in a traced function, `taking.py` chooses which. `renamed.py` turns any first
argument into such a dict. `calls.py` puts the arrays in front of the arguments of a call.
"""
