"""`jax.vmap` of a call.

If the function has a `batch_dim`, a mapped call is one longer call. Otherwise it is a primitive of its own. When that
is lowered, the module is read back and mapped; if that is not possible, it is a loop, and the log says why. Derivatives
come from the stored VJPs.
"""
