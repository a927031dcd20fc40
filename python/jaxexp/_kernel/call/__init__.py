"""Calls of exported functions: the primitive `call_exported` and its rules.

`call.py` passes an eager call to JAX's own dispatch, which finds the compiled code. A traced call binds the primitive.
`primitive.py` has its rules: it merges the function's module into the caller's, and gives JAX the stored VJPs.

What surprises: equal functions share one jitted callable (`shared.py`), and arguments may fit a tree of classes that
are not loaded (`trees.py`). The rule for `jax.vmap` is a method of the function's class.
"""
