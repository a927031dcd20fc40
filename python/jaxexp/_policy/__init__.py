"""What an artifact may contain.

A `Policy` is checked twice: first against what the bytes say, before anything is made of them; then against every
operation of the parsed module, as it will run. It refuses what it does not understand.
"""
