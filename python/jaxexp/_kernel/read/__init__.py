"""From bytes to a function.

The native module verifies all metadata and makes the object. A `Reader` makes functions of one given class, so the
class can stand above the kernel.
"""
