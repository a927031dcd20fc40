"""A program whose first argument is a dict of weights, together with these weights.

`lifting.py` chooses constants of a traced function, and turns them into arguments. `program.py` makes such a dict of
any first argument, finds the weights of a program, and saves both.
"""
