"""What an artifact may contain.

A `Policy` is checked twice: what the bytes say, before anything is made of them; then every operation of the parsed module,
as it will run. What is not understood is refused.
"""
