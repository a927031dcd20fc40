"""From bytes to a function.

The native module verifies all metadata and makes the object. A `Decoder` makes functions of one given class, so the
class can stand above the kernel.
"""
