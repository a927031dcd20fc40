"""A function's parsed module against a policy.

The module is checked as it will run: after it was brought up to date, with every operation, attribute and type in it.
"""
