"""The StableHLO module: parsed, checked, wrapped, brought up to date.

Every module that runs comes from `runnable.parse`, which compares the main function with the signature and rewrites
what old jaxlibs wrote. `mlir.parse` reads a module as it is, to show or rewrite it.
"""
