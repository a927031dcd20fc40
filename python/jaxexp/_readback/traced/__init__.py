"""A function that also returns what each of its operations made, as fingerprints.

tracing.py changes the module of a function; rows.py says what each row of the fingerprints is about, and fingerprint.py
what they are. exact.py makes one operation once more, in float64.
"""
