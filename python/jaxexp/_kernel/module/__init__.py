"""The StableHLO module: parsed, checked, wrapped, brought up to date.

`runnable.parse` is the only way to a module that runs: it compares the main function with the signature and rewrites what
old jaxlibs wrote. `mlir.parse` reads a module as it is, to show or to rewrite it.
"""
