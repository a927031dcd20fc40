"""Who signed a file: signatures of the OpenSSF Model Signing format, made and checked by the package `model-signing`.

A signature is a file of its own, a Sigstore bundle. It has a statement with the SHA-256 of each file that was signed,
by its path from the folder of the signature. `signed_by.py` says who is trusted. `reading.py` has the package check a
signature, and keeps the digests; it reads a file once, compares these bytes with the digest, and hands out the same
bytes. `writing.py` signs.

What surprises: the package hashes files by their paths, and compares. Here it gets an object that keeps the signed
digests instead, so no file is read twice. `model-signing` is imported when a signature is made or checked, not before.
"""
