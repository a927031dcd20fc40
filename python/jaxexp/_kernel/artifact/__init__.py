"""What an artifact says of itself, read from its bytes without JAX.

The native module verifies a buffer and describes it. These files turn the description into an `Inspection`, into words,
and into one list of facts, which the command line, cards and pages show.
"""
