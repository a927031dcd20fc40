"""Cases of functions: recorded, kept in files, made again, and compared.

recording.py makes calls with calling.py, and keeps what they took and returned, with the tolerances that measuring.py
finds; files.py puts large arrays into a file of tensors beside the artifact. replaying.py makes the calls again, or
reads what they returned elsewhere; comparing.py says of each result how it differs, culprit.py which operation differs
first, and report.py says it in words. padding.py runs a function with larger arguments, and compares what is kept.
Files that do not import JAX are for `jaxexp.runtime`, too.
"""
