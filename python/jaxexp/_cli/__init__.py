"""The command line: `python -m jaxexp COMMAND`.

`start.py` is the entry, `app.py` has the parser, and `commands/` has one file for each command. The commands share the
other files: options, inputs, outputs, pages, complaints.

What surprises: a command imports only what it needs. Most never import JAX, so help and errors come at once.
"""
