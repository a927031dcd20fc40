"""The command line: `python -m jaxexp COMMAND`.

`start.py` is the entry, `app.py` has the parser, `commands/` one file for each command. The other files are what several
commands share: inputs, outputs, progress, complaints.

What surprises: a command imports only what it needs, and most never import JAX, so that help and errors come at once.
"""
